r"""Bounds of :math:`\mathbb E\varphi(X)` around :math:`G(M,\rho)`, X Gaussian given a random input (docs/theory.md).

:math:`\mathbb E\varphi(X)=\mathbb EG(m,\sqrt s)`. Three ways to a constant :math:`\rho`, each with an error below and
one above; the better of them is taken for each neuron and side:

* *curvature*: s becomes its mean S, then m its mean M at the price of half the curvature times Var m;
* *replacement*: s becomes S, the independent terms of m become Gaussian (Lindeberg), so that :math:`\rho^2=S+N`, and
  :math:`\mathbb E[m\mid Y]` becomes M;
* *plain*: :math:`\rho=0`, by the variance of X alone (Scarf 1958 at every kink; half the curvature; the Lipschitz
  constant of the activation less its best line).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.activations.activation import Shape
from bnndp.engine.inequalities.local_derivatives import local_remainder
from bnndp.engine.inequalities.smoothed import Smoothed, second_at, third_and_fourth
from bnndp.engine.moments.intervals import product
from bnndp.engine.moments.pre_activation import Expansion, Pieces, PreActivation
from bnndp.engine.moments.signal import POWERS
from bnndp.geometry.bounds import Interval
from bnndp.maths.replacement import ABSOLUTE_THIRD
from bnndp.maths.rounding import SMALL, TINY, UP, power_of
from bnndp.maths.tails import (
    BEND_FOUR,
    BEND_THREE,
    MEAN_ABOVE,
    MEAN_BELOW,
    MEAN_LOCAL_ABOVE,
    MEAN_LOCAL_BELOW,
    SECOND_CURVATURE,
    STEP_FOUR_ABOVE,
    STEP_FOUR_BELOW,
    STEP_THREE,
)

__all__ = ["ExpectationBounds", "PointwiseBounds", "expectation_bounds", "fluctuation", "pointwise_bounds", "scarf"]

_TIMES = (0.5, 1.5)  # deviations of s by which it is taken larger
_FIRST_ABSOLUTE = 0.7978845608028655  # E |xi|, rounded up


@dataclass(frozen=True, slots=True)
class ExpectationBounds:
    """``G(M, lower_rho) - lower_error <= E phi(X) <= G(M, upper_rho) + upper_error``: (batch, n) each."""

    lower_rho: Tensor
    lower_error: Tensor
    upper_rho: Tensor
    upper_error: Tensor
    pointwise: PointwiseBounds | None = None


@dataclass(frozen=True, slots=True)
class _Above:
    """The upper half of :class:`ExpectationBounds`."""

    upper_rho: Tensor
    upper_error: Tensor


@dataclass(frozen=True, slots=True)
class PointwiseBounds:
    """``G(M, rho) - lower_error <= E phi(X) <= G(M, rho) + upper_error`` with rho^2 = S + N, all at the same x.

    (batch, n) each; ``total`` is the range of S + N on the box.
    """

    total: Interval
    lower_error: Tensor
    upper_error: Tensor

    def at_one_spread(self, shape: Shape) -> ExpectationBounds:
        """The same with one rho for the whole box."""
        lower_rho, upper_rho, low, high = _one_spread(shape, self.total)
        return ExpectationBounds(lower_rho, self.lower_error + low * UP, upper_rho, self.upper_error + high * UP, self)


def expectation_bounds(phi: Smoothed, x: PreActivation) -> ExpectationBounds:
    """The best of the three at the middle of the means."""
    middle = 0.5 * (x.mean.lower + x.mean.upper)
    pointwise = _pointwise(phi, x)
    ways = _candidates(phi, x, pointwise)
    low = _best(phi, middle, [(way.lower_rho, way.lower_error) for way in ways if not isinstance(way, _Above)], -1)
    high = _best(phi, middle, [(way.upper_rho, way.upper_error) for way in ways], 1)
    return ExpectationBounds(*low, *high, pointwise)


def pointwise_bounds(phi: Smoothed, x: PreActivation) -> PointwiseBounds:
    """The best of those around G(M, rho) with rho^2 = S + N."""
    found, narrow = _replacement(phi, x), x.narrow[:, None]
    if x.expansion is None or not bool(narrow.any()):
        return found
    finer = _expanded(phi, x, x.expansion)
    return PointwiseBounds(
        found.total,
        torch.where(narrow, torch.fmin(found.lower_error, finer.lower_error), found.lower_error),
        torch.where(narrow, torch.fmin(found.upper_error, finer.upper_error), found.upper_error),
    )


def _pointwise(phi: Smoothed, x: PreActivation) -> PointwiseBounds | None:
    """The same where it says anything; exact for a Gaussian X."""
    if x.fixed:
        zero = torch.zeros_like(x.mean.lower)
        return PointwiseBounds(x.spread, zero, zero)
    known = x.expansion is not None or bool((x.noise.upper > 2 * SMALL**2).any())
    return pointwise_bounds(phi, x) if known else None


def _best(
    phi: Smoothed, middle: Tensor, ways: Sequence[tuple[Tensor, Tensor]], sign: int
) -> tuple[Tensor, Tensor]:  # (batch, n) each
    """Of several rho with an error above (``sign`` 1) or below (-1), the one with the best bound at the middle."""
    rho, error = ways[0]
    best = phi.mean(middle, rho) + sign * error
    for other, more in ways[1:]:
        value = phi.mean(middle, other) + sign * more
        take = value < best if sign > 0 else value > best  # false for NaN
        best, rho, error = (torch.where(take, *both) for both in ((value, best), (other, rho), (more, error)))
    return rho, error


def _candidates(phi: Smoothed, x: PreActivation, pointwise: PointwiseBounds | None) -> list[ExpectationBounds | _Above]:
    shape = phi.shape
    found: list[ExpectationBounds | _Above] = [_plain(shape, x)]
    if x.fixed or bool((x.spread.upper > 0).any()) or shape.bend_up + shape.bend_down < math.inf:
        found.append(_curvature(shape, x))
    if pointwise is not None and not x.fixed:
        found.append(pointwise.at_one_spread(shape))
    if shape.fall == 0 and not x.fixed:
        found += [way for times in _TIMES for way in _above_convex(phi, x, times)]
    return found


def _above_convex(phi: Smoothed, x: PreActivation, times: float) -> list[_Above]:
    r"""From above for a convex activation, with :math:`s_0\ge S` in place of s, by so many deviations of s larger.

    G increases in s, so that what s exceeds s_0 by counts alone (``scarf``), and with the curvature at s_0. By the
    curvature in m, or with Gaussian terms, at s_0 as well.
    """
    shape, level = phi.shape, (x.spread.upper + times * x.spread_deviation) * UP
    up = shape.curvature(level.sqrt())[1]
    sway = 0.5 * product(up, scarf(times * x.spread_deviation, x.spread_deviation.square()))
    smooth = replace(x, spread=Interval(level, level), expansion=None)
    more = _swap(shape, smooth)
    if not x.source:
        more = more + _history(phi, smooth, smooth.smoothing)[1]
    errors = (level, 0.5 * product(up, x.mean_variance)), (smooth.smoothing.upper, more)
    return [_Above(rho.sqrt(), (sway + error) * UP) for rho, error in errors]


def _plain(shape: Shape, x: PreActivation) -> ExpectationBounds:
    """By mean and variance of X alone."""
    variance = x.variance
    sd = variance.sqrt()
    below, above = 0.5 * shape.bend_down * variance, 0.5 * shape.bend_up * variance
    lipschitz = _mass(shape.swing, sd)
    below, above = (torch.minimum(e.nan_to_num(math.inf), lipschitz) for e in (below, above))
    if shape.kinks:
        scarf = [
            (jump, abs(jump) * _beyond(_distance(x.mean, where), variance, x.total_norms))
            for where, jump in shape.kinks
        ]
        zero = torch.zeros_like(sd)
        below = torch.minimum(below, sum((e for jump, e in scarf if jump < 0), zero))
        above = torch.minimum(above, sum((e for jump, e in scarf if jump > 0), zero))
    zero = torch.zeros_like(sd)
    return ExpectationBounds(zero, below * UP, zero, above * UP)


def _distance(mean: Interval, where: float) -> Tensor:
    return torch.maximum(mean.lower - where, where - mean.upper).clamp_min(0)


def scarf(distance: Tensor, variance: Tensor) -> Tensor:
    """``(sqrt(d^2 + V) - d) / 2``: E (Y - d)_+ is at most this for a Y of mean zero and variance V; falls in d."""
    return 0.5 * variance / ((distance.square() + variance).sqrt() + distance).clamp_min(TINY)


def _beyond(distance: Tensor, variance: Tensor, norms: Tensor) -> Tensor:
    r"""E (Y - d)_+ for a centred Y, at most: by its variance (Scarf) or by a norm.

    :math:`(y-d)_+\le\tfrac{(q-1)^{q-1}}{q^q}y^qd^{1-q}` for y >= 0, with equality at y = qd/(q-1).
    """
    found = scarf(distance, variance)
    for q, norm in zip(POWERS, norms.unbind(-1), strict=True):
        constant = (q - 1) ** (q - 1) / q**q * UP
        power = constant * norm * power_of(norm / distance.clamp_min(TINY), q - 1)
        found = torch.fmin(found, power.clamp_min(TINY))  # a power of a small ratio underflows
    return found


def _curvature(shape: Shape, x: PreActivation) -> ExpectationBounds:
    lower_rho, upper_rho, apart_low, apart_high = _one_spread(shape, x.spread)
    r = x.spread.lower.sqrt()
    down, up = shape.curvature(r)
    below = None if x.expansion is None else x.expansion.spread_low
    sway_low, sway_high = _fluctuation(shape, x.spread.lower, x.spread_deviation, x.mean_variance.sqrt(), below)
    variance = x.mean_variance
    return ExpectationBounds(
        lower_rho,
        (apart_low + sway_low + 0.5 * product(down, variance)) * UP,
        upper_rho,
        (apart_high + sway_high + 0.5 * product(up, variance)) * UP,
    )


def _replacement(phi: Smoothed, x: PreActivation) -> PointwiseBounds:
    shape, total = phi.shape, x.smoothing
    below = None if x.expansion is None else x.expansion.spread_low
    sway_low, sway_high = _fluctuation(shape, x.spread.lower, x.spread_deviation, x.mean_variance.sqrt(), below)
    swap = _swap(shape, x)
    low, high = sway_low + swap, sway_high + swap
    if not x.source:
        more_low, more_high = _history(phi, x, total)
        low, high = low + more_low, high + more_high
    return PointwiseBounds(total, low * UP, high * UP)


def _near(phi: Smoothed, x: PreActivation, total: Interval) -> tuple[Interval, Interval]:  # (batch, n) each
    """Third and fourth derivative of G at (M, rho) on the box, ``total`` being the range of rho^2."""
    return third_and_fourth(phi, x.mean, Interval(total.lower.sqrt(), total.upper.sqrt()))


def _history(
    phi: Smoothed, x: PreActivation, total: Interval, near: tuple[Interval, Interval] | None = None
) -> tuple[Tensor, Tensor]:
    r"""Errors below and above of taking Var(m | Y) and c = E[m | Y] as their means.

    Of c by the largest curvature, or by that at M: :math:`\mathbb EG(c)-G(M)` is
    :math:`\tfrac12G_{mm}(M)\operatorname{Var}c` up to :math:`\tfrac16\sup|G_{mmm}|\mathbb E|c-M|^3`, and that mean is
    at most :math:`\operatorname{sd}c\lVert c-M\rVert_4^2`. Of the variance V as in ``_fluctuation``, or with an eighth
    of the fourth derivative at S alone, as S + V is never less. In both the third derivative at M is enough, up to the
    fourth one anywhere times one more c - M: Taylor at M once more. ``near`` are the derivatives there, if known.
    """
    shape, root, least = phi.shape, (0.5 * (total.lower + total.upper)).sqrt(), total.lower.sqrt()
    middle, half = 0.5 * (x.mean.lower + x.mean.upper), 0.5 * (x.mean.upper - x.mean.lower) * UP
    third, fourth, wide = shape.derivative(3, least), shape.derivative(4, least), 0.5 * (total.upper - total.lower) * UP
    bend, off = second_at(phi, middle, root)
    moved = (off + product(third, half) + 0.5 * product(fourth, wide)) * UP
    norm4 = x.norms[..., 0] if x.central_norm4 is None else torch.fmin(x.norms[..., 0], x.central_norm4)
    own, sd, square = (near or _near(phi, x, total))[0].magnitude, x.central.sqrt(), norm4.square()
    sharp = torch.fmin(product(third, sd), product(own, sd) + 0.25 * product(fourth, square))
    beyond = product(sharp, square) / 6
    sharp = torch.fmin(product(third, sd), product(own, sd) + 0.5 * product(fourth, square))
    whole = 0.125 * product(shape.derivative(4, x.spread.lower.sqrt()), x.noise_deviation.square())
    whole = whole + 0.5 * product(sharp, x.noise_deviation)
    lowest = torch.zeros_like(x.central) if x.central_least is None else torch.minimum(x.central_least, x.central)
    found = []
    for curvature, at, sway in zip(
        shape.curvature(least),
        (-bend, bend),
        _fluctuation(shape, total.lower, x.noise_deviation, x.central.sqrt()),
        strict=True,
    ):
        most = at + moved
        local = 0.5 * (product(most.clamp_min(0), x.central) + product(most.clamp_max(0), lowest)) + beyond
        found.append(torch.fmin(sway, whole) + torch.fmin(0.5 * product(curvature, x.central), local))
    return found[0], found[1]


def _expanded(phi: Smoothed, x: PreActivation, terms: Expansion) -> PointwiseBounds:
    """To fourth order with signs (``series.py``), in s to the second order with its value, or to the first."""
    shape, least = phi.shape, x.spread.lower
    total = x.smoothing
    near = third, fourth = _near(phi, x, total)
    r = least.sqrt()
    series = terms.series
    remainder, quadratic = (
        sum((product(shape.derivative(p, r), q) for p, q in parts.items()), torch.zeros_like(r))
        for parts in (series.remainders, series.quadratic)
    )
    if series.local is not None:
        remainder = remainder + local_remainder(shape, x, series.local)
    if terms.pieces is not None:
        remainder = remainder + _of_pieces(shape, least, terms.pieces, terms.pieces.remainders)
    more = _history(phi, x, total, near) if not x.source else (torch.zeros_like(r),) * 2
    cubic, lower, upper = _ends(series.third, third), [], []
    for kappa4, more_remainder, steps in (
        (series.fourth, quadratic, _third_step(shape, terms, least)),
        (series.linear_fourth, 0.0, _second_step(shape, least, x.spread_deviation, terms.spread_low)),
    ):
        quartic = _ends(kappa4, fourth)
        slack = 1e-10 * (cubic.magnitude + quartic.magnitude)
        low, high = (getattr(cubic, end) / 6 + getattr(quartic, end) / 24 for end in ("lower", "upper"))
        lower.append((remainder + more_remainder + steps[0] + more[0]) * UP - low + slack)
        upper.append((remainder + more_remainder + steps[1] + more[1]) * UP + high + slack)
    errors = (torch.fmin(*e).nan_to_num(*(torch.inf,) * 3) for e in (lower, upper))  # no number bounds nothing
    return PointwiseBounds(total, *errors)


def _of_pieces(shape: Shape, least: Tensor, pieces: Pieces, sizes: dict[int, Tensor]) -> Tensor:
    """Sum over blocks of the sizes by order (batch, n, blocks) times the derivatives at their smoothing."""
    r = (least[..., None] + pieces.before).sqrt()
    return sum((product(shape.derivative(p, r), size) for p, size in sizes.items()), torch.zeros_like(r)).sum(-1)


def _third_step(shape: Shape, terms: Expansion, least: Tensor) -> tuple[Tensor, Tensor]:
    """Errors below and above of the Taylor polynomial of second order in s: R_s."""
    r = least.sqrt()
    cubic = terms.spread_third / (least.square() * r).clamp_min(TINY)
    quartic = terms.spread_low / (least.square() * least * r).clamp_min(TINY)
    rise, fall = shape.rise, shape.fall
    up, down = (STEP_THREE * cubic + factor * quartic for factor in (STEP_FOUR_ABOVE, STEP_FOUR_BELOW))
    smooth = _mass(shape.sixth, terms.spread_third) / 48
    bent = terms.spread_third * BEND_THREE / least.square().clamp_min(TINY)
    bent = bent + terms.spread_low * BEND_FOUR / (least.square() * least).clamp_min(TINY)
    bent = _mass(shape.variation, bent)
    both = torch.fmin(smooth, bent)
    return torch.fmin(_mass(rise, down) + _mass(fall, up), both), torch.fmin(_mass(rise, up) + _mass(fall, down), both)


def _mass(mass: float, value: Tensor) -> Tensor:
    """The product, zero where either is zero."""
    if mass == 0:
        return torch.zeros_like(value)
    return mass * value if mass < math.inf else torch.where(value == 0, 0.0, mass * value)


def _ends(a: Interval, b: Interval) -> Interval:
    """The product."""
    found = torch.stack([product(x, y) for x in (a.lower, a.upper) for y in (b.lower, b.upper)])
    return Interval(found.amin(0), found.amax(0))


def _swap(shape: Shape, x: PreActivation) -> Tensor:
    """Error of taking the independent terms of m as Gaussian.

    For any laws of the terms, and for convex functions of Gaussians (``maths/replacement.py``).
    """
    r = x.spread.lower.sqrt()
    third, fourth = shape.derivative(3, r), shape.derivative(4, r)
    # Lindeberg: one term after the other, up to the third derivative (of both laws) or to the fourth.
    gaussian = ABSOLUTE_THIRD * x.absolute_third  # E |B|^3 of the Gaussians B of the same variances
    plain = product(third, x.absolute_third + gaussian) / 6
    finer = product(third, x.third) / 6  # enough for convex terms, see ``maths/replacement.py``
    if not x.convex:
        finer = finer + product(fourth, x.quartic) / 24
    found = torch.minimum(plain, finer)
    narrow = x.narrow[:, None]
    pieces = x.expansion.pieces if x.expansion is not None and bool(narrow.any()) else None
    if pieces is not None:
        sizes = {3: pieces.third / 6, 4: pieces.quartic / 24}
        finer = torch.fmin(found, _of_pieces(shape, x.spread.lower, pieces, sizes))
        found = torch.where(narrow, finer, found)
    return torch.where(x.noise.upper > 0, found, 0.0)


def _one_spread(shape: Shape, spread: Interval) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""One :math:`\rho^2` for all spreads of an interval: those for the lower and the upper bound, and the errors.

    :math:`G(m,s)-G(m,s_0)=\tfrac12\int_{s_0}^sG_{mm}`, and at most the Lipschitz constant times
    :math:`\mathbb E|\xi|\,|\sqrt s-\sqrt{s_0}|`. Where the activation is convex the bounds take the ends: G increases
    in s.
    """
    if shape.fall == 0:
        none = torch.zeros_like(spread.lower)
        return spread.lower.sqrt(), spread.upper.sqrt(), none, none
    down, up = shape.curvature(spread.lower.sqrt())
    both = down + up
    share = torch.where(both.isfinite(), up / both.clamp_min(TINY), 0.5)
    share = torch.where(down == 0, 1.0, torch.where(up == 0, 0.0, share))  # of the way to the upper end, above
    width = spread.upper - spread.lower
    found: list[Tensor] = []
    errors: list[Tensor] = []
    for part, toward_upper, toward_lower in ((1 - share, down, up), (share, up, down)):
        s0 = (spread.lower + part * width).clamp(spread.lower, spread.upper)
        root = s0.sqrt()
        more = torch.minimum(
            0.5 * product(toward_upper, spread.upper - s0),
            _mass(shape.swing, _FIRST_ABSOLUTE * (spread.upper.sqrt() - root)),
        )
        less = torch.minimum(
            0.5 * product(toward_lower, s0 - spread.lower),
            _mass(shape.swing, _FIRST_ABSOLUTE * (root - spread.lower.sqrt())),
        )
        more = more if (shape.rise if toward_upper is up else shape.fall) > 0 else torch.zeros_like(more)
        less = less if (shape.rise if toward_lower is up else shape.fall) > 0 else torch.zeros_like(less)
        found.append(root)
        errors.append(torch.maximum(more, less).clamp_min(0))
    return found[0], found[1], errors[0], errors[1]


def _fluctuation(
    shape: Shape, least: Tensor, deviation: Tensor, other: Tensor, below: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Errors below and above of replacing a random s by its mean S >= ``least``; ``other`` is the deviation of m.

    First order: :math:`\mathbb E(s-S)_\pm\le\tfrac12\operatorname{sd}s`, and below S the curvature counts at most twice
    (:math:`\int_s^S t^{-1/2}dt\le2(S-s)/\sqrt S`). Second order: the rest of
    g is within ``-MEAN_BELOW`` and ``MEAN_ABOVE`` times :math:`(s-S)^2S^{-3/2}`, so that of a mixture of shifted g is
    within the mixtures; or an eighth of the fourth derivative; or by the variation of the second one, of mixtures of
    parabolas; and the linear term is a covariance, at most
    :math:`\tfrac12\sup|G_{mmm}|\operatorname{sd}m\operatorname{sd}s`.
    """
    r = least.sqrt()
    down, up = shape.curvature(r)
    down_less, up_less = (2 * down).clamp_max(shape.bend_down), (2 * up).clamp_max(shape.bend_up)
    quarter = 0.25 * deviation
    first_low = product(down, quarter) + product(up_less, quarter)
    first_high = product(up, quarter) + product(down_less, quarter)
    mixed = 0.5 * product(product(shape.derivative(3, r), other), deviation)
    low, high = (side + mixed for side in _second_step(shape, least, deviation, below))
    none = deviation == 0
    return (
        torch.where(none, 0.0, torch.minimum(first_low, low)),
        torch.where(none, 0.0, torch.minimum(first_high, high)),
    )


def fluctuation(shape: Shape, least: Tensor, deviation: Tensor) -> Tensor:
    """The norm in L2 of what the Taylor polynomial of first order in s leaves, from a norm of s - S in L4."""
    return torch.maximum(*_second_step(shape, least, deviation))


def _second_step(shape: Shape, least: Tensor, deviation: Tensor, below: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Errors below and above of the Taylor polynomial of first order in s, from sd s and :math:`\mathbb E(S-s)_+^4`.

    For a hinge what it leaves is within ``-MEAN_BELOW`` and ``MEAN_ABOVE`` times :math:`\delta^2S^{-3/2}`,
    :math:`\delta=s-S`: the worst is s = 0. With :math:`x=\delta_-/S` it is also at least
    :math:`-\tfrac12\varphi(0)(\sqrt s-\sqrt S)^2S^{-1/2}`, so at least
    :math:`-\tfrac12\varphi(0)(\tfrac14+\tfrac18x+\tfrac58x^2)\delta^2S^{-3/2}`, and at most
    :math:`(c+ax+bx^2)\delta^2S^{-3/2}` with the factors of the third step (docs/theory.md, section 4.3).
    """
    square = deviation.square()
    unit = (least * least.sqrt()).clamp_min(TINY)
    low, high = MEAN_BELOW * square / unit, MEAN_ABOVE * square / unit
    if below is not None:
        cubic = torch.minimum(below**0.75, deviation * below.sqrt()) / least.clamp_min(TINY)
        quartic = below / least.square().clamp_min(TINY)
        finer = MEAN_LOCAL_BELOW * square + STEP_THREE * cubic + STEP_FOUR_BELOW * quartic
        low = torch.fmin(low, finer / unit)
        finer = MEAN_LOCAL_ABOVE * square + STEP_THREE * cubic + STEP_FOUR_ABOVE * quartic
        high = torch.fmin(high, finer / unit)
    bent = _mass(0.5 * shape.variation, SECOND_CURVATURE * square / least.clamp_min(TINY))
    smooth = torch.fmin(_mass(shape.fourth, square) / 8, bent)
    return (
        torch.fmin(_mass(shape.rise, low) + _mass(shape.fall, high), smooth),
        torch.fmin(_mass(shape.rise, high) + _mass(shape.fall, low), smooth),
    )
