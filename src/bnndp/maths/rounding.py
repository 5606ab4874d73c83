"""Outward rounding by a-priori error terms: float64 results that are on the safe side of the real numbers.

PyTorch offers no rounding modes. A dot product of length ``n`` has an error of at most ``gamma(n) * sum |a_i b_i|``
for *any* order of summation (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), so a result is
moved outward by a multiple of the sum of absolute values. ``TINY`` covers what underflow may add.
"""

from torch import Tensor

UNIT = 2.0**-53
"""Unit roundoff of float64."""

TINY = 1e-290
"""Absolute term that covers underflow in sums of products."""

SMALL = 1e-30
"""Added to standard deviations from above where their eighth powers are taken, so that none of them underflows."""

LARGE = 1e18
"""Means and standard deviations above it have no bound: what vanishes may meet them (``network/magnitudes.py``)."""

UP = 1 + 1e-10
"""Covers the rounding of up to 400,000 operations on non-negative numbers, of which :func:`gamma` is below 1e-10.

That is one sum of 400,000 terms, or a chain of eight sums of 50,000. A rounded result times ``UP`` is not below the
exact one, and divided by it not above; underflow is covered separately, by ``TINY`` or ``SMALL``."""

ELEMENTARY = 2.0**-44
"""Error granted to one evaluation of a function of ``maths``, relative to its scale (see maths/rectified.py).

The tests hold every function to an eighth of it; the largest measured error is 1/37 of it (fourth moments)."""


def power_of(x: Tensor, n: int) -> Tensor:
    """``x ** n`` for n >= 1 by products, in a fraction of the time; off by at most n units."""
    square, found = x, None
    while True:
        if n % 2:
            found = square if found is None else found * square
        n //= 2
        if not n:
            return square if found is None else found
        square = square * square


def gamma(n: int) -> float:
    """Error factor of a sum or dot product with ``n`` rounded operations: ``n u / (1 - n u)``, doubled for slack."""
    return 2 * n * UNIT / (1 - 2 * n * UNIT)


def up(x: Tensor, n: int) -> Tensor:
    """A value above the exact result of ``n`` rounded operations on non-negative numbers whose rounded result is x."""
    return x * (1 + gamma(n + 4)) + TINY


def down(x: Tensor, n: int) -> Tensor:
    """A value below the exact result of ``n`` rounded operations on non-negative numbers whose rounded result is x."""
    return (x * (1 - gamma(n + 4)) - TINY).clamp_min(0)
