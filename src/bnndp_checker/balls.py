"""Ball arithmetic: every number is an interval that provably holds the real one, and a comparison is true or unknown.

``a <= b`` of two balls is true only if it holds for all their points. Vectors are lists, matrices ``arb_mat``.
"""

from __future__ import annotations

from collections.abc import Sequence

from flint import arb, arb_mat, ctx

__all__ = [
    "BITS", "ONE", "ZERO", "Rejected", "absolute", "cdf", "column", "dot", "g", "larger", "matrix", "parts", "pdf",
    "product", "require", "smaller", "use_precision",
]  # fmt: skip

BITS = 96
ZERO, ONE = arb(0), arb(1)
Vector = list[arb]


class Rejected(Exception):
    """An inequality that could not be proved, in words."""


def use_precision() -> None:
    """Work with mantissas of 96 bits."""
    ctx.prec = BITS


def require(proved: bool, what: str) -> None:
    """Reject unless it is proved."""
    if proved is not True:
        raise Rejected(what)


def larger(a: arb, b: arb) -> arb:
    """The larger of two numbers."""
    return a.max(b)


def smaller(a: arb, b: arb) -> arb:
    """The smaller of two numbers."""
    return a.min(b)


def parts(x: arb) -> tuple[arb, arb]:
    """Positive and negative part: their sum is x."""
    return larger(x, ZERO), smaller(x, ZERO)


def dot(a: Sequence[arb], b: Sequence[arb]) -> arb:
    """The sum of the products."""
    return sum((x * y for x, y in zip(a, b, strict=True)), ZERO)


def matrix(rows: Sequence[Sequence[arb]], columns: int) -> arb_mat:
    """A matrix from its rows."""
    return arb_mat(len(rows), columns, [x for row in rows for x in row])


def column(values: Sequence[arb]) -> arb_mat:
    """A vector as a matrix of one column."""
    return arb_mat(len(values), 1, list(values))


def product(left: arb_mat, values: Sequence[arb]) -> Vector:
    """A matrix times a vector."""
    return list((left * column(values)).entries())


def absolute(left: arb_mat) -> arb_mat:
    """The absolute values of all entries."""
    return arb_mat(left.nrows(), left.ncols(), [abs(x) for x in left.entries()])


def pdf(u: arb) -> arb:
    """Density of the standard normal law."""
    return (-u * u / 2).exp() / (2 * arb.pi()).sqrt()


def cdf(u: arb) -> arb:
    """Its distribution function, with good tails."""
    return (-u / arb(2).sqrt()).erfc() / 2


def g(m: arb, r: arb) -> arb:
    """The mean of max(X, 0) for a Gaussian X of mean m and standard deviation r >= 0 (a number, not an interval)."""
    if r.is_zero():
        return larger(m, ZERO)
    u = m / r
    return m * cdf(u) + r * pdf(u)
