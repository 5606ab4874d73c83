r"""Moments of the terms of a sum of independent values times Gaussian weights, and what their steps to Gaussians leave.

Given the history Y of z, A = z - E[z | Y] and B = z^2 - E[z^2 | Y] have the moments that the remainders of the
expansion are made of (``series.py``), as means over Y with their signs and as norms of order two of their sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from bnndp.engine.moments.intervals import BLUR, minus, plus, square, times
from bnndp.engine.moments.signal import GAUSSIAN, Signal, SquareNoise
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import SMALL, UP, power_of

__all__ = ["Sums", "Terms", "signed_sum", "sums_of", "terms_of", "with_squares"]

_GAUSS_5 = 6.3831  # E |xi|^5 = 8 sqrt(2 / pi), rounded up

Sums = Callable[[Tensor, int, int], Tensor]
"""(batch, n_in), powers a, b of the mean and of the variance of a weight -> (batch, n_out): sums over the terms.

Those of sizes are at least ``SMALL**(a + 2 * b)``, and made of weights of at least ``SMALL``: nothing underflows.
"""


def sums_of(mean: Tensor, variance: Tensor, apply: Callable[[Tensor, Tensor], Tensor]) -> tuple[Sums, Sums]:
    """Sums of sizes and signed sums over weights; ``apply`` takes values and numbers for the weights to their sums."""
    size, spread = mean.abs().clamp_min(SMALL), variance.clamp_min(SMALL**2)
    return (
        lambda values, a, b: apply(values, size**a * spread**b) + SMALL ** (a + 2 * b),
        lambda values, a, b: apply(values, mean**a * variance**b),
    )


def signed_sum(parts: tuple[tuple[Interval, int, int, float], ...], sums: Sums, signed: Sums) -> Interval:
    """The sum of weighted sums of terms known to intervals, rounded outward."""
    low: float | Tensor = 0.0
    high: float | Tensor = 0.0
    for part, mean, spread, factor in parts:
        middle, half = 0.5 * (part.lower + part.upper), 0.5 * (part.upper - part.lower)
        value = signed(middle, mean, spread)
        slack = sums(half * UP + BLUR * part.magnitude, mean, spread)
        low, high = low + factor * (value - slack), high + factor * (value + slack)
    return Interval(low, high)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Terms:
    """Moments of A = z - E[z | Y] and B = z^2 - E[z^2 | Y] given Y: (batch, n_in), or with an axis of outputs before.

    Means over Y with their signs, and norms of order two over Y of their sizes.
    """

    third: Interval  # E A^3
    cross: Interval  # E A B
    both: Interval  # E A^2 B
    squares: Interval  # E B^2
    excess: Interval  # E A^4 - 3 v^2
    least: Tensor  # v, at least
    second: Tensor  # v
    third_size: Tensor
    cross_size: Tensor
    both_size: Tensor
    squares_size: Tensor
    fourth: Tensor  # E A^4
    excess_size: Tensor
    fifth: Tensor  # E |A|^5
    gauss5: Tensor  # v^(5/2)
    steps: Callable[[], tuple[Tensor, Tensor, Tensor]]  # found where asked for
    triple: Tensor  # E |A^3 B|
    pair: Tensor  # E |A| B^2
    wide: Tensor  # ||B||_4
    wide8: Tensor  # without a history
    second_raw: Tensor  # E z^2, of order four over Y
    third_change: Tensor  # standard deviations over Y of E A^3 and of E A B
    cross_change: Tensor

    @property
    def step3(self) -> Tensor:
        """Of a step to a Gaussian, times six: what is left before the third derivative."""
        return self.steps()[0]

    @property
    def step4(self) -> Tensor:
        """And times 24 before the fourth."""
        return self.steps()[1]

    @property
    def step5(self) -> Tensor:
        """Times 120, after the fourth."""
        return self.steps()[2]


def terms_of(z: Signal, mean: Interval | None) -> Terms:
    r"""Of the values z; ``mean`` are the :math:`\bar h_k` of ``expansion_of``, if they are not E z."""
    h = z.mean if mean is None else mean  # (batch, n_in), or (batch, n_out, n_in)
    parts = (z.noise, z.third, z.noise_fourth)
    numbers = (z.noise_deviation, z.third_deviation, *z.given.unbind(-1), *z.inner[..., :2].unbind(-1))
    numbers = (*numbers, *z.deviations[..., :2].unbind(-1), z.excess_size)
    if mean is not None:  # (batch, 1, n_in)
        parts = tuple(Interval(part.lower[:, None], part.upper[:, None]) for part in parts)  # type: ignore[assignment]
        numbers = tuple(part[:, None] for part in numbers)
    (v, k3, c), (dv, dk, fourth4, eighth, sixteenth, moved, moved8, deviation4, deviation8, most) = parts, numbers
    eighth, sixteenth = eighth.clamp_min(SMALL), sixteenth.clamp_min(SMALL)
    random = 0.0 if z.source else 1.0  # whether Y is
    v2 = Interval(v.lower.square() / UP, (v.upper.square() + dv.square()) * UP)
    size, hv = h.magnitude, random * moved * dv  # |E h v - E h E v|
    cross = _wider(plus(times(h, v, 2.0), k3), 2 * hv)  # 2 h v + E A^3
    both = _wider(plus(times(h, k3, 2.0), minus(c, v2)), 2 * random * moved * dk)
    squares = plus(times(square(h), v, 4.0), times(h, k3, 4.0), minus(c, v2))
    second = v2.upper.sqrt().clamp_min(SMALL**2)
    squares = _wider(squares, random * (8 * size * hv + 4 * moved.square() * second + 4 * moved * dk))
    excess = minus(c, Interval(3 * v2.lower, 3 * v2.upper))
    fourth1 = c.upper.clamp_min(SMALL**4)
    fifth = fourth1**0.75 * eighth.square() * UP  # between the fourth and the eighth moment
    root4, cube = fourth1.sqrt().sqrt(), (second * fourth1).sqrt()  # of E |A|^3
    wide = (2 * size * root4 + eighth.square() + second) * UP
    gauss5 = second.square() * second.sqrt()
    triple = 2 * size * fourth1 + fifth + second * cube
    pair = (2 * size * cube.sqrt() + fifth.sqrt() + second * second.sqrt().sqrt()).square()
    k3_size = k3.magnitude.clamp_min(SMALL**3)
    if z.source:
        sizes = (*(part.magnitude for part in (cross, both)), squares.upper, fourth1, excess.magnitude)
        k3_change = c_change = torch.zeros_like(fourth1)
        second_square = v2.upper  # E v^2
    else:
        four4 = deviation8.square()  # ||v||_4
        second_square = torch.minimum(four4.square(), fourth1)  # ||v^2||_2: v^2 is at most E A^4
        wide = (2 * (size * root4 + moved8 * eighth) + 2 * eighth.square()) * UP
        k3_size = k3_size + dk
        cross_size = 2 * (size * second + moved * four4) + k3_size
        both_size = 2 * (size * k3_size + moved * sixteenth**3) + fourth1
        squares_size = (2 * size * second.sqrt() + 2 * moved8 * deviation8 + fourth1.sqrt()).square()
        sizes = (
            cross_size,
            both_size,
            squares_size,
            fourth1,
            torch.fmin(fourth1 + second_square, most),
        )  # v^2 <= E A^4
        gauss5 = torch.minimum(fifth, deviation4.clamp_min(SMALL) ** 3 * deviation8.clamp_min(SMALL).square())
        triple = 2 * (size * fourth1 + fifth + moved * eighth**4)
        pair = 4 * (size * cube.sqrt() + fifth.sqrt() + moved * eighth**1.5).square()
        k3_change, c_change = dk, 2 * (size * dv + moved * four4) + dk
    cross_size, both_size, squares_size, fourth, excess_size = sizes

    plain = (k3_size, fourth + 3 * second_square, fifth if z.convex else fifth + _GAUSS_5 * gauss5)
    norms = fourth4, eighth, deviation4, deviation8
    steps = cache(partial(_steps_left, z, z.roughness if mean is None else z.roughness[:, None], plain, norms, second))
    return Terms(
        k3,
        cross,
        both,
        squares,
        excess,
        v.lower.clamp_min(0),
        second,
        k3_size,
        cross_size.clamp_min(SMALL**3),
        both_size.clamp_min(SMALL**4),
        squares_size.clamp_min(SMALL**4),
        fourth.clamp_min(SMALL**4),
        excess_size.clamp_min(SMALL**4),
        fifth,
        gauss5,
        steps,
        triple,
        pair,
        wide,
        (2 * size * eighth + sixteenth.square() + second) * UP,
        size.square() + second if z.source else (size + moved8 + deviation8).square(),
        k3_change,
        c_change,
    )


def with_squares(terms: Terms, known: SquareNoise) -> Terms:
    """With what is known of the squares of z given Y."""
    highest = torch.fmin(terms.squares.upper, known.variance.clamp_min(SMALL**4))
    return replace(
        terms,
        squares=Interval(terms.squares.lower, highest),
        squares_size=torch.fmin(terms.squares_size, known.size.clamp_min(SMALL**4)),
        wide=torch.fmin(terms.wide, known.norm4.clamp_min(SMALL**2)),
    )


def _steps_left(
    z: Signal,
    rough: Tensor,
    plain: tuple[Tensor, Tensor, Tensor],
    norms: tuple[Tensor, Tensor, Tensor, Tensor],
    second: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """What steps to Gaussians leave, of the third, fourth and fifth order."""
    fourth4, eighth, deviation4, deviation8 = norms
    close3 = 1.5 * rough * (fourth4.square() + (GAUSSIAN[0] * deviation4).square())
    close5 = 2.5 * rough * (power_of(eighth, 4) + power_of(GAUSSIAN[1] * deviation8, 4))
    if not z.source:
        close3 = torch.full_like(close3, torch.inf)  # a mean over Y, not of order two
    step3, step4, step5 = _step_sizes(z.convex, plain, close3, close5, second.sqrt())
    return step3.clamp_min(SMALL**3), step4.clamp_min(SMALL**4), step5


def _step_sizes(
    convex: bool, plain: tuple[Tensor, Tensor, Tensor], close3: Tensor, close5: Tensor, unit: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r"""What a step from A to a Gaussian g of the same variance leaves: 6, 24 and 120 times the factors of derivatives.

    By moments, ``plain``; or by the distance of A from g: what the Taylor polynomial of F of order p leaves at A and
    at g differs by at most :math:`|A-g|(|A|^p+|g|^p)\sup|F^{(p+1)}|/(2p!)`. For a convex function of a Gaussian
    variable the kernel of the step has one sign: the third and the fifth moment are enough (``maths/replacement.py``).
    """
    third, fourth, fifth = plain
    if convex:
        return third, torch.zeros_like(fourth), torch.minimum(fifth, close5)
    near = close3 * unit < third * unit + 0.25 * fourth
    return torch.where(near, close3, third), torch.where(near, 0.0, fourth), torch.minimum(fifth, close5)


def _wider(a: Interval, by: Tensor) -> Interval:
    return Interval(a.lower - by * UP, a.upper + by * UP)
