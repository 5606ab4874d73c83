r"""The line near :math:`\mathbb E[z^2\mid y]`, :math:`z=\varphi(X)`, which sums of squares in the layer above need."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.activations.activation import Activation, Shape
from bnndp.engine.inequalities.expectation import fluctuation
from bnndp.engine.inequalities.hinge_square import hinge_square
from bnndp.engine.inequalities.powers import Powers, hinge_slopes
from bnndp.engine.inequalities.second_moment import second_moment
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.moments.signal import CENTRED, Signal
from bnndp.maths.rounding import TINY, UP

__all__ = ["SquareLine", "square_line", "with_powers"]


@dataclass(frozen=True, slots=True)
class SquareLine:
    """E[z_i^2 | y] = p_i m_i + remainder: what sums of squares need; (batch, n) each."""

    slope: Tensor  # p
    remainder: Tensor  # its standard deviation
    given: Tensor  # root of E Var(z_i^2 | y)
    norms: Tensor  # (batch, n, 2): ||E[z_i^2 | y] - E z_i^2||_q for q = 4, 8
    given_norms: Tensor  # (batch, n, 2): ||z_i^2 - E[z_i^2 | y]||_q
    deviations: Tensor  # (batch, n, 2): the norm in Lq of the standard deviation of z_i^2 given y
    remainder_norms: Tensor | None  # (batch, n, 2): its norms for q = 4, 8, where they may be less than all


@dataclass(frozen=True, slots=True)
class _Tangent:
    """Derivatives of F(m, s) = E[z^2 | y] at the middle of the box, and half its widths: (batch, n) each."""

    slope: Tensor  # F_m, to within ``off``
    off: Tensor
    bend: Tensor  # |F_mm|, at most
    third: Tensor  # |F_mmm|, at most, on the box
    half: Tensor  # of m
    wide: Tensor  # of s


def square_line(phi: Activation, x: PreActivation, z: Signal, given: Tensor, fourths: Tensor) -> SquareLine:
    r"""A line in m for :math:`q=\mathbb E[z^2\mid y]=F(m,s)`, and the standard deviation of what it leaves.

    Taylor at the middle (m_0, s_0) of the box, with :math:`\tau=m-m_0`, :math:`\delta=s-s_0`: F_m and F_mm are central
    differences, :math:`F_s=\tfrac12F_{mm}`, and the remainder is at most :math:`\tfrac16|F_{mmm}\tau^3|+
    \tfrac12|F_{mmm}\tau\delta|` and what ``fluctuation`` says of :math:`\delta^2`. Or the line is zero, and q
    varies no more than z^2.
    """
    at, sd = _tangent(phi, x), x.mean_variance.sqrt()
    all_of_it = z.square_std * UP
    remainder, norms = _remainder(phi.square, x, at), _norms(phi.square, x, z, at)
    given_norms, deviations = _given_norms(z, fourths)
    finer = _hinge_remainders(phi, x)
    remainder_norms = None
    if finer is not None:
        remainder = torch.fmin(remainder, at.off * sd + finer[0])
        remainder_norms = at.off[..., None] * x.norms[..., :2] + torch.stack(finer[1:], -1)
        norms = torch.fmin(norms, at.slope.abs()[..., None] * x.norms[..., :2] + remainder_norms)
    better = remainder + at.slope.abs() * sd < all_of_it  # false for NaN
    return SquareLine(
        torch.where(better, at.slope, 0.0),
        torch.where(better, remainder, all_of_it) * UP,
        given,
        norms * UP,
        given_norms * UP,
        deviations * UP,
        None if remainder_norms is None else torch.where(better[..., None], remainder_norms, norms) * UP,
    )


def _tangent(phi: Activation, x: PreActivation) -> _Tangent:
    middle, half = 0.5 * (x.mean.lower + x.mean.upper), 0.5 * (x.mean.upper - x.mean.lower) * UP
    root, wide = (0.5 * (x.spread.lower + x.spread.upper)).sqrt(), 0.5 * (x.spread.upper - x.spread.lower) * UP
    h = 0.1 * root.clamp_min(TINY)
    values = [second_moment(phi, middle + k * h, root) for k in (-1, 0, 1)]
    left, at, right = (0.5 * (value.lower + value.upper) for value in values)
    error = torch.stack([0.5 * (value.upper - value.lower) for value in values]).amax(0)
    third = phi.square.derivative(3, x.spread.lower.sqrt())
    slope, off = 0.5 * (right - left) / h, error / h + h.square() / 6 * third
    bend = (right - 2 * at + left).abs() / h.square() + 4 * error / h.square() + h / 3 * third
    return _Tangent(slope, off, bend.clamp_max(_most_bent(phi.square)), third, half, wide)


def _most_bent(shape: Shape) -> float:
    return max(shape.bend_up, shape.bend_down)


def _remainder(shape: Shape, x: PreActivation, at: _Tangent) -> Tensor:  # (batch, n)
    """Standard deviation of q less its line."""
    sd, most = x.mean_variance.sqrt(), _most_bent(shape)
    tau, delta, sd_s = x.norms[..., 0], at.wide + x.spread_deltas[..., 0], at.wide + x.spread_deviation
    fine = 0.5 * at.bend * sd_s + 0.5 * at.third * (at.half + tau) * delta + fluctuation(shape, x.spread.lower, delta)
    plain = torch.full_like(sd, torch.inf) if most == math.inf else 0.5 * most * sd_s
    found = at.off * sd + at.bend * at.half * sd + 0.5 * at.bend * tau.square() + torch.fmin(fine, plain)
    return found + at.third * (at.half + tau) * (at.half + x.norms[..., 1]).square() / 6


def _norms(shape: Shape, x: PreActivation, z: Signal, at: _Tangent) -> Tensor:  # (batch, n, 2)
    """Of q less its mean in L4 and L8: at most those of z^2, or by the second derivative."""
    centred, most = z.norms.new_tensor(CENTRED[:2]), _most_bent(shape)
    norms = centred * (z.mean.magnitude[..., None] + z.norms[..., 1:]).square()
    if most == math.inf:
        return norms
    wider = (at.half[..., None] + x.norms[..., 1:]).square() + (at.wide[..., None] + x.spread_deltas)
    steep = (at.slope.abs() + at.off + at.bend * at.half)[..., None]
    return torch.fmin(norms, steep * x.norms[..., :2] + 0.5 * most * centred * wider)


def _given_norms(z: Signal, fourths: Tensor) -> tuple[Tensor, Tensor]:  # (batch, n, 2) each
    """Of z^2 given y, less its mean: norms in L4 and L8, and those of its standard deviation.

    With A = z - h, h = E[z | y], it is A (2 h + A) less its mean.
    """
    mean, given = z.mean.magnitude[..., None], z.given[..., 1:]
    size = (mean + z.inner)[..., 1:]  # ||h||_2q
    norms = 2 * given * size + size.new_tensor(CENTRED[:2]) * given.square()
    deviations = 2 * (mean * z.deviations[..., :2] + z.inner[..., 1:] * z.deviations[..., 1:])
    return norms, torch.fmin(deviations + fourths.square(), norms)


def _hinge_remainders(phi: Activation, x: PreActivation) -> tuple[Tensor, ...] | None:
    r"""Norms in L2, L4 and L8 of :math:`\mathbb E[z^2\mid y]` less its line in m at the middle, for a hinge at zero.

    :math:`z^2=a^2X^2+(b^2-a^2)X_+^2` with the slopes a and b: of :math:`m^2+s` the line leaves :math:`\tau^2` and what
    s moves, of the other mean what ``hinge_square.py`` says.
    """
    slopes = hinge_slopes(phi)
    if slopes is None:
        return None
    known, (left, right) = hinge_square(x), (slope**2 for slope in slopes)
    jump, half = abs(right - left), 0.5 * (x.mean.upper - x.mean.lower) * UP
    in_s = left + max(right - left, 0.0) * known.slope
    deltas = (x.spread_deviation, *x.spread_deltas.unbind(-1))
    return tuple(
        (in_s * delta + factor * (jump * remainder + left * (half + tau).square())) * UP
        for delta, remainder, tau, factor in zip(
            deltas, known.remainders, x.norms.unbind(-1), (1.0, *CENTRED[:2]), strict=True
        )
    )


def with_powers(line: SquareLine, z: Signal, raw: Powers) -> SquareLine:
    r"""The same with raw moments of z.

    :math:`\mathbb E\operatorname{Var}(z^2\mid y)\le\mathbb Ez^4-(\mathbb Ez^2)^2`. A variable that is not negative
    has norms no smaller than those of its centred part: with mean one, :math:`|y-1|^q+y-1\le y^q` for y >= 0, q >= 2.
    """
    least = (raw.fourth - z.second.lower.square() / UP).clamp_min(0)
    return replace(
        line,
        given=torch.fmin(line.given, least.sqrt() * UP),
        given_norms=torch.fmin(line.given_norms, raw.norms.square() * UP),
        deviations=torch.fmin(line.deviations, raw.fourth_norms.sqrt() * UP),
    )
