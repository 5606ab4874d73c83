"""Truth from elsewhere: ball arithmetic (Arb, through python-flint) that shares no code with the package.

An oracle returns balls that provably contain the real number; :func:`above` and :func:`below` are true only where
the comparison is proved for the whole ball. Never write ``float(ball.upper())``: it rounds to nearest and lies below
the bound in about half of all cases; :func:`up` and :func:`down` round the right way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import wraps
from typing import Any, TypeVar

from flint import arb, ctx, fmpq, fmpz
from torch import Tensor

from bnndp.network import BayesianNetwork

PRECISION = 256
_F = TypeVar("_F", bound=Callable[..., Any])


def precise(function: _F) -> _F:
    """Run a function in PRECISION bits, whatever the context of the caller (more bits are left alone)."""

    @wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        with ctx.workprec(max(PRECISION, ctx.prec)):
            return function(*args, **kwargs)

    return inner  # type: ignore[return-value]


# Comparison of floats with balls


def exact(x: float | int | Fraction | arb) -> arb:
    """The number itself as a ball (of radius zero for a float, an integer or a dyadic fraction)."""
    if isinstance(x, Fraction):
        with ctx.workprec(max(PRECISION, x.numerator.bit_length() + 8)):
            return arb(fmpq(fmpz(x.numerator), fmpz(x.denominator)))
    return arb(x)


def above(x: float, ball: arb) -> bool:
    """Whether ``x`` is provably at least every point of the ball; false for NaN and where nothing can be decided."""
    return bool(arb(x) >= ball)


def below(x: float, ball: arb) -> bool:
    """Whether ``x`` is provably at most every point of the ball; false for NaN and where nothing can be decided."""
    return bool(arb(x) <= ball)


def up(ball: arb) -> float:
    """The float at or just above the upper end of the ball."""
    x = float(ball.upper())
    while not arb(x) >= ball:
        if math.isnan(x):
            raise ValueError(f"the ball {ball} has no upper end")
        x = math.nextafter(x, math.inf)
    return x


def down(ball: arb) -> float:
    """The float at or just below the lower end of the ball."""
    return -up(-ball)


def all_above(x: Tensor, balls: Iterable[arb]) -> bool:
    """:func:`above` for every element of a tensor in row-major order."""
    pairs = list(zip(x.flatten().tolist(), balls, strict=True))
    return all(above(value, ball) for value, ball in pairs)


def all_below(x: Tensor, balls: Iterable[arb]) -> bool:
    """:func:`below` for every element of a tensor in row-major order."""
    pairs = list(zip(x.flatten().tolist(), balls, strict=True))
    return all(below(value, ball) for value, ball in pairs)


@precise
def error(x: float, truth: arb) -> arb:
    """``|x - truth|`` as a ball."""
    return abs(arb(x) - truth)


# The normal law


@precise
def pdf(t: arb | float) -> arb:
    """Standard normal density, zero at infinity."""
    t = arb(t)
    if not t.is_finite():
        return arb(0) if abs(t) > 0 else arb("nan")
    return (-t * t / 2).exp() / (2 * arb.pi()).sqrt()


@precise
def cdf(t: arb | float) -> arb:
    """Standard normal distribution function, 0 and 1 at the infinities."""
    t = arb(t)
    if not t.is_finite():
        return arb(int(t > 0)) if abs(t) > 0 else arb("nan")
    return (-t / arb(2).sqrt()).erfc() / 2


@precise
def tail(t: arb | float) -> arb:
    """One minus the distribution function."""
    return cdf(-arb(t))


# Rectified Gaussians


@dataclass(frozen=True)
class Rectified:
    """Moments of Z = max(N(m, r^2), 0) as balls."""

    mean: arb
    second: arb
    third: arb
    fourth: arb
    variance: arb  # of Z
    square_variance: arb  # of Z^2


def rectified(m: float | arb, r: float | arb) -> Rectified:
    """Moments by the textbook recursion; the bits that cancel (up to 9 log2 |m/r|) are added to the precision.

    Integration by parts gives ``E Z^k = m E Z^(k-1) + (k-1) r^2 E Z^(k-2)`` for k >= 2, ``E Z^0`` being P(Z > 0).
    """
    m, r = arb(m), arb(r)
    if r == 0:
        z = m if m > 0 else arb(0)
        return Rectified(z, z**2, z**3, z**4, arb(0), arb(0))
    with ctx.workprec(max(PRECISION, ctx.prec) + 10 * max(0, _exponent(m) - _exponent(r))):
        u = m / r
        active = cdf(u)
        first = m * active + r * pdf(u)
        second = m * first + r * r * active
        third = m * second + 2 * r * r * first
        fourth = m * third + 3 * r * r * second
        return Rectified(first, second, third, fourth, second - first**2, fourth - second**2)


def expected_relu(m: float | arb, r: float | arb) -> arb:
    """``g(m, r) = E max(N(m, r^2), 0)``."""
    return rectified(m, r).mean


@precise
def expected_relu_between(m: float, r: float, a: float, b: float) -> arb:
    """``E[max(X, 0) 1{a <= X <= b}]`` for X ~ N(m, r^2), r > 0: the integral of x over [max(a, 0), max(b, 0)]."""
    mean, std = arb(m), arb(r)
    alpha, beta = ((arb(max(end, 0.0)) - mean) / std for end in (a, b))
    return mean * (tail(alpha) - tail(beta)) + std * (pdf(alpha) - pdf(beta))


# Networks


@precise
def pre_activation(network: BayesianNetwork, x: Sequence[float | Fraction | arb]) -> list[tuple[arb, arb]]:
    """Mean and standard deviation of every neuron of the first linear layer at the point ``x``."""
    layer = network.linears[0]
    point = [exact(value) for value in x]
    result = []
    for mean, std, b, b_std in zip(
        layer.weight_mean.tolist(),
        layer.weight_std.tolist(),
        layer.bias_mean.tolist(),
        layer.bias_std.tolist(),
        strict=True,
    ):
        m = sum((arb(w) * z for w, z in zip(mean, point, strict=True)), arb(b))
        s = sum(((arb(w) * z) ** 2 for w, z in zip(std, point, strict=True)), arb(b_std) ** 2)
        result.append((m, s.sqrt()))
    return result


@precise
def exact_mean(network: BayesianNetwork, x: Sequence[float | Fraction | arb]) -> list[arb]:
    """``E f(x)`` of a network with at most one hidden layer, over its whole posterior: one ball for each output."""
    if network.depth > 1:
        raise ValueError(f"the mean is known exactly for at most one hidden layer, not for {network.depth}")
    first = pre_activation(network, x)
    if network.depth == 0:
        return [m for m, _ in first]
    hidden = [expected_relu(m, r) for m, r in first]
    last = network.linears[1]
    return [
        sum((arb(w) * z for w, z in zip(row, hidden, strict=True)), arb(b))
        for row, b in zip(last.weight_mean.tolist(), last.bias_mean.tolist(), strict=True)
    ]


def rational_outputs(network: BayesianNetwork, x: Iterable[float | Fraction]) -> list[Fraction]:
    """The outputs at x of dense layers with ReLUs and no variance, in exact arithmetic."""
    z = [Fraction(value) for value in x]
    for k, layer in enumerate(network.linears):
        z = [max(value, Fraction(0)) for value in z] if k else z
        rows = zip(layer.weight_mean.tolist(), layer.bias_mean.tolist(), strict=True)
        z = [sum((Fraction(w) * value for w, value in zip(row, z, strict=True)), Fraction(b)) for row, b in rows]
    return z


def _exponent(x: arb) -> int:
    """About ``log2 |x|`` of a ball; far below every other number where its midpoint is zero."""
    mid = abs(x).mid()
    if mid == 0:
        return -(10**6)
    mantissa, exponent = mid.man_exp()
    return int(exponent) + int(mantissa).bit_length()
