"""Vectors of balls, as lists, and matrices, as ``arb_mat``; lengths that do not fit are an error."""

from __future__ import annotations

from collections.abc import Sequence

from flint import arb, arb_mat

from bnndp_checker.ball_arithmetic import ZERO

Vector = list[arb]


def plus(a: Sequence[arb], b: Sequence[arb]) -> Vector:
    """The sum, entry by entry."""
    return [x + y for x, y in zip(a, b, strict=True)]


def minus(a: Sequence[arb]) -> Vector:
    """The opposite."""
    return [-x for x in a]


def times(a: Sequence[arb], b: Sequence[arb]) -> Vector:
    """The products, entry by entry."""
    return [x * y for x, y in zip(a, b, strict=True)]


def dot(a: Sequence[arb], b: Sequence[arb]) -> arb:
    """The sum of the products."""
    return sum(times(a, b), ZERO)


def matrix(rows: Sequence[Sequence[arb]], columns: int) -> arb_mat:
    """A matrix from its rows."""
    return arb_mat(len(rows), columns, [x for row in rows for x in row])


def product(left: arb_mat, values: Sequence[arb]) -> Vector:
    """A matrix times a vector."""
    return list((left * arb_mat(len(values), 1, list(values))).entries())


def absolute(left: arb_mat) -> arb_mat:
    """The absolute values of all entries."""
    return arb_mat(left.nrows(), left.ncols(), [abs(x) for x in left.entries()])
