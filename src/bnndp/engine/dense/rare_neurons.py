r"""Neurons that are hardly ever active: exponentially small bounds where Taylor steps leave a floor.

In the second hidden layer m and s are functions of the independent sources :math:`z_l=\mathrm{ReLU}(\zeta_l)`. By the
concentration of Lipschitz functions of Gaussians, :math:`P(m\ge M+\sqrt{2D\tau})\le e^{-\tau}` with
:math:`D=\sum_l\mu_l^2r_l^2`. For :math:`f=z_l^2`, :math:`|f'|^2=4f`, so the logarithmic Sobolev inequality gives
(Herbst's argument) :math:`\log\mathbb Ee^{\theta(f-\mathbb Ef)}\le2r_l^2\theta^2\mathbb Ef/(1-2r_l^2\theta)`, hence
(Bernstein) :math:`P(s\ge S+\sqrt{2V\tau}+B\tau)\le e^{-\tau}` with :math:`V=4\sum_l\sigma_l^4r_l^2\mathbb Ez_l^2`,
:math:`B=2\max_l\sigma_l^2r_l^2`. Sources that are active with a probability far below :math:`e^{-\tau}` are left out
of D, V and B and their probabilities are added.

Outside that event the Cauchy-Schwarz inequality is used: :math:`\mathbb E[z^p\mathbf 1]\le\sqrt{\mathbb Ez^{2p}P}`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.chunks import by_chunks, indices_of
from bnndp.engine.dense.records import Latent, Level, Sources, Tail
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import apply_rows
from bnndp.layers import Linear
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import moments, ratio
from bnndp.maths.rounding import ELEMENTARY, UP
from bnndp.maths.tails import PEAK

__all__ = ["Rarity", "Stability", "levels", "rarity", "slope_square", "stability"]

_TAUS = (8.0, 16.0, 24.0, 36.0, 64.0)
_XI_8 = 105.0**0.125  # ||xi||_8
_XI_16 = 2027025.0**0.0625  # ||xi||_16
_LIPSCHITZ_8 = (2 * math.factorial(4) * 2**4) ** 0.125  # ||F - E F||_8 of a 1-Lipschitz F, from its Gaussian tails


@dataclass(frozen=True, slots=True)
class Rarity:
    """Bounds for neurons far below zero; (batch, n) each, never larger than what holds without them."""

    second: Tensor  # E z^2, at most
    fourth: Tensor  # E z^4, at most
    activity: Tensor  # sqrt(E Phi(m / sqrt(s))^4), at most; also with any constant up to S in place of s


def levels(layer: Linear, sources: Sources, below: Latent, spread: Interval) -> Tail:
    """Levels that m and s of the second hidden layer exceed with probability at most e^-tau, for several tau."""
    mu2, v2 = layer.weight_mean.square(), layer.weight_std.square()
    found = []
    largest, before = torch.zeros_like(spread.upper), torch.zeros_like(sources.active, dtype=torch.bool)
    for tau in _TAUS:  # more sources are kept with each
        kept = sources.active > 0.01 * math.exp(-tau)
        noise = torch.where(kept, sources.noise, 0.0)
        left = torch.where(kept, 0.0, sources.active).sum(-1, keepdim=True)
        # Without the sources left out the mean of m is larger by their share with negative weights, and smaller by
        # that with positive ones.
        shift = apply_rows(layer.weight_mean.clamp_max(0).abs(), torch.where(kept, 0.0, below.mean.upper))
        fall = apply_rows(layer.weight_mean.clamp_min(0), torch.where(kept, 0.0, below.mean.upper))
        reach = (2 * tau * apply_rows(mu2, noise)).sqrt()
        bernstein = 4 * apply_rows(v2.square(), noise * below.second.upper)
        largest, before = torch.maximum(largest, _largest(v2, sources.noise, kept & ~before)), kept
        high = (spread.upper + (2 * tau * bernstein).sqrt() + 2 * tau * largest) * UP
        found.append(Level((reach + shift) * UP, (reach + fall) * UP, high, 3 * math.exp(-tau) * UP + left))
    size = (mu2 @ sources.noise.mT).mT

    def spread_norm(xi: float) -> Tensor:  # ||z_l||_p <= ||E z_l|| + ||z_l - E z_l||_p, and that at most xi r
        norm = below.mean.upper + xi * sources.noise.sqrt()
        return (apply_rows(v2, norm.square()) + layer.bias_std.square()).sqrt() * UP

    return Tail(tuple(found), _LIPSCHITZ_8 * size.sqrt() * UP, spread_norm(_XI_8), spread_norm(_XI_16))


def _largest(v2: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
    """The largest ``v2[i, l] * noise[l]`` over the sources l of the mask (batch, sources), zero of none: (batch, n)."""
    at = indices_of(mask)
    if at.shape[1] == 0:
        return torch.zeros_like(noise @ v2.mT)
    of_source = v2.mT.contiguous()
    noise = torch.where(mask, noise, 0.0).gather(1, at)
    numbers = at.shape[1] * v2.shape[0]
    return by_chunks(lambda row, r: (of_source[row] * r[..., None]).amax(1), numbers, at, noise)


def rarity(tail: Tail, mean: Interval, fourth: Tensor) -> Rarity:
    """The best over the levels; ``fourth`` (batch, n) bounds E z^4 without them."""
    fourth_of_eighth = (mean.upper.clamp_min(0) + tail.mean8 + _XI_8 * tail.spread8) ** 4 * UP  # sqrt(E z^8)
    second = torch.full_like(fourth, torch.inf)
    best4, activity = fourth, torch.ones_like(fourth)
    for level in tail.levels:
        m, r = mean.upper + level.above, level.spread.sqrt()
        at = moments(m, r)
        scale = m.clamp_min(0) + r
        p = level.probability
        best4 = torch.minimum(best4, at.fourth + ELEMENTARY * scale**4 + fourth_of_eighth * p.sqrt())
        second = torch.minimum(second, at.second + ELEMENTARY * scale**2 + fourth.sqrt() * p.sqrt())
        probability = torch.where(m < 0, cdf(ratio(m, r)) + ELEMENTARY, 1.0)  # below zero it falls with s too
        activity = torch.minimum(activity, (probability**4 + p).sqrt())
    return Rarity(second * UP, best4 * UP, activity * UP)


@dataclass(frozen=True, slots=True)
class Stability:
    """The slope Phi(m / sqrt(s)) of a neuron that seldom changes its side: (batch, n) each, for p = 8."""

    centre: Tensor  # a constant p
    delta: Tensor  # the L8 norm of Phi(m / sqrt(s)) - p, at most
    density: Tensor  # the L8 norm of phi(m / sqrt(s)), at most
    active_spread: Tensor  # the L4 norm of s 1[X > 0], at most


def slope_square(tail: Tail, mean: Interval, s0: Tensor) -> tuple[Tensor, Tensor]:
    """Constants p and bounds of E (Phi(m / sqrt(s0)) - p)^2, the best over the levels: (batch, n) each."""
    root = s0.sqrt()
    centre = torch.full_like(s0, 0.5)
    square = centre.square()
    for level in tail.levels:
        low = cdf(ratio(mean.lower - level.below, root)) - ELEMENTARY
        high = cdf(ratio(mean.upper + level.above, root)) + ELEMENTARY
        middle = 0.5 * (low + high).clamp(0, 2)
        found = (0.5 * (high - low)).square() + torch.maximum(middle, 1 - middle).square() * level.probability
        take = found < square
        centre, square = torch.where(take, middle, centre), torch.where(take, found, square)
    return centre, square * UP


def stability(tail: Tail, mean: Interval) -> Stability:
    """The best over the levels, each norm by itself, for every x of the box."""
    half = torch.full_like(mean.lower, 0.5)
    centre, delta, density, active = half, half, half * 0 + PEAK, tail.spread8.square()
    for level in tail.levels:
        root = level.spread.sqrt()
        m_low, m_high = mean.lower - level.below, mean.upper + level.above
        # Where m keeps its sign a smaller s only moves the slope further to its side.
        low = torch.where(m_low > 0, cdf(ratio(m_low, root)) - ELEMENTARY, 0.0).clamp_min(0)
        high = torch.where(m_high < 0, cdf(ratio(m_high, root)) + ELEMENTARY, 1.0).clamp_max(1)
        middle, p8 = 0.5 * (low + high), level.probability**0.125
        found = 0.5 * (high - low) + torch.maximum(middle, 1 - middle) * p8
        take = found < delta
        centre, delta = torch.where(take, middle, centre), torch.where(take, found, delta)
        nearest = torch.maximum(m_low, -m_high).clamp_min(0)
        density = torch.minimum(density, pdf(ratio(nearest, root)) + ELEMENTARY + PEAK * p8)
        bad = tail.spread16**8 * level.probability.sqrt()  # E s^4 outside the event
        active = torch.minimum(active, (level.spread**4 * high + bad).sqrt().sqrt())
    return Stability(centre, delta * UP, density * UP, active * UP)
