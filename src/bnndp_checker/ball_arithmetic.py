"""Ball arithmetic: every number is an interval that provably holds the real one, and a comparison is true or unknown.

``a <= b`` of two balls is true only if it holds for all their points; with NaN, which stands for no knowledge, it is
false, and whatever is computed from NaN is NaN.
"""

from __future__ import annotations

from functools import reduce

from flint import arb, ctx

BITS = 96
ZERO, ONE = arb(0), arb(1)


class Rejected(Exception):
    """An inequality that could not be proved, in words."""


def use_precision() -> None:
    """Work with mantissas of 96 bits; fewer would make the balls wider, not wrong."""
    ctx.prec = BITS


def require(proved: bool, what: str) -> None:
    """Reject unless it is proved."""
    if proved is not True:
        raise Rejected(what)


def larger(*values: arb) -> arb:
    """The largest of some numbers."""
    return reduce(arb.max, values)


def smaller(*values: arb) -> arb:
    """The smallest of some numbers."""
    return reduce(arb.min, values)


def parts(x: arb) -> tuple[arb, arb]:
    """Positive and negative part: their sum is x."""
    return larger(x, ZERO), smaller(x, ZERO)


def sq(x: arb) -> arb:
    """The square; ``x ** 2`` would be NaN for a ball around zero (python-flint 0.9)."""
    return x * x


def upper_root(x: arb) -> arb:
    """An upper bound of the root of a number that is not negative, though its ball may hold negative ones."""
    top = x.upper()
    return ZERO if top <= 0 else top.sqrt().upper()  # NaN stays NaN


def pdf(u: arb) -> arb:
    """Density of the standard normal law."""
    return (-u * u / 2).exp() / (2 * arb.pi()).sqrt()


def cdf(u: arb) -> arb:
    """Its distribution function, with good tails."""
    return (-u / arb(2).sqrt()).erfc() / 2


def g(m: arb, r: arb) -> arb:
    """The mean of max(X, 0) for a Gaussian X of mean m and standard deviation r >= 0."""
    if r.is_zero():
        return larger(m, ZERO)
    return m * cdf(m / r) + r * pdf(m / r)
