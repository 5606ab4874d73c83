"""Explicit laws of what goes into an activation, and all that ``PreActivation`` says of them, by enumeration.

A law has a history Y of two values; given Y, m is c(Y) plus three independent terms of two values each, and s moves
with the terms. So there are sixteen outcomes (m, s), and every expectation is a sum. Laws come in batches: (laws, 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.moments.signal import POWERS
from bnndp.geometry.bounds import Interval

_NODES, _REACH = 1201, 9.0


@dataclass(frozen=True, slots=True)
class Law:
    """Outcomes with their chances, and the moments of the package: chances, m, s are (laws, outcomes)."""

    chance: Tensor
    m: Tensor
    s: Tensor
    history: Tensor  # (laws, outcomes): 0 or 1
    pre: PreActivation

    def mean(self, values: Tensor) -> Tensor:  # (laws, outcomes) -> (laws, 1)
        """Expectation."""
        return (self.chance * values).sum(-1, keepdim=True)

    def deviation(self, values: Tensor) -> Tensor:
        """Standard deviation."""
        return self.norm(values, 2)

    @property
    def noise(self) -> Tensor:  # (laws, 1)
        """E Var(m | Y)."""
        found = torch.zeros_like(self.chance[:, :1])
        for y in (0, 1):
            chance = torch.where(self.history == y, self.chance, 0.0)
            whole = chance.sum(-1, keepdim=True)
            centre = (chance * self.m).sum(-1, keepdim=True) / whole
            found = found + (chance * (self.m - centre).square()).sum(-1, keepdim=True)
        return found

    def norm(self, values: Tensor, q: int) -> Tensor:
        """Of the centred values."""
        return self.mean((values - self.mean(values)).abs() ** q) ** (1 / q)


def laws(count: int, seed: int, *, source: bool, scale: float, wide: float = 0.0, fluctuation: float = 1.0) -> Law:
    """Random laws; ``wide`` makes the ranges of the means and spreads intervals with the truth anywhere inside."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=generator, dtype=torch.float64)

    sizes = scale * 10 ** (-2 * uniform(1))  # (laws, 1)
    centre = 4 * uniform(1) - 2
    share = 0.02 + 0.96 * uniform(2, 3)  # chance of the upper value of a term, for each Y
    size = sizes[..., None] * uniform(2, 3)
    upper = size * ((1 - share) / share).sqrt()  # values of mean zero and deviation ``size``
    lower = -size * (share / (1 - share)).sqrt()
    history = uniform(1)
    shift = sizes * (2 * uniform(2) - 1)
    if source:
        share, size, upper, lower = (t[:, :1].expand(-1, 2, -1) for t in (share, size, upper, lower))
        shift = torch.zeros_like(shift)
    base = sizes.square() * 10 ** (4 * uniform(1) - 2)
    lift = fluctuation * base * uniform(3)  # what a term adds to s at its upper (or lower) value
    flipped = uniform(3) < 0.5
    bits = torch.cartesian_prod(*[torch.arange(2)] * 4)  # (16, 4): Y and the terms
    chances, ms, ss = [], [], []
    for y, *terms in bits.tolist():
        chance = history if y else 1 - history
        m, s = centre + shift[:, y : y + 1], base.clone()
        for j, up in enumerate(terms):
            p = share[:, y, j : j + 1]
            chance = chance * (p if up else 1 - p)
            m = m + (upper if up else lower)[:, y, j : j + 1]
            s = s + torch.where(flipped[:, j : j + 1] == bool(up), lift[:, j : j + 1], 0.0)
        chances.append(chance)
        ms.append(m)
        ss.append(s)
    chance, m, s = (torch.cat(t, -1) for t in (chances, ms, ss))
    draft = Law(chance, m, s, bits[:, 0].expand(count, -1), None)
    weight = torch.cat([1 - history, history], -1)  # (laws, 2)
    p = share
    each = size.square()  # variances (laws, 2, 3)
    third = (p * upper**3 + (1 - p) * lower**3).abs()
    absolute = p * upper**3 + (1 - p) * lower.abs() ** 3
    fourth = p * upper**4 + (1 - p) * lower**4
    noise = each.sum(-1)  # (laws, 2)
    mean_noise = (weight * noise).sum(-1, keepdim=True)
    noise_sd = (weight * (noise - mean_noise).square()).sum(-1, keepdim=True).sqrt()
    centre_mean = (weight * shift).sum(-1, keepdim=True)
    central = (weight * (shift - centre_mean).square()).sum(-1, keepdim=True)

    def total(t: Tensor) -> Tensor:  # (laws, 2, 3)
        return (weight * t.sum(-1)).sum(-1, keepdim=True)

    mean, spread = draft.mean(m), draft.mean(s)
    low, high = wide * uniform(1), wide * uniform(1)
    below, above = (1 - 0.9 * wide * uniform(1)).clamp_min(0.05), 1 + wide * uniform(1)
    root, spread_sd = s.sqrt(), draft.deviation(s)
    norms = torch.stack([draft.norm(m, q) for q in POWERS], -1)
    ranges = Interval(spread * below, spread * above)
    away = torch.stack(
        [
            torch.maximum(
                *(draft.mean((root - end.sqrt()).abs() ** q) ** (1 / q) for end in (ranges.lower, ranges.upper))
            )
            for q in POWERS
        ],
        -1,
    )
    pre = PreActivation(
        mean=Interval(mean - sizes * low, mean + sizes * high),
        spread=ranges,
        spread_deviation=spread_sd,
        noise=Interval(mean_noise * below, mean_noise * above),
        noise_deviation=noise_sd,
        central=central,
        third=total(third),
        absolute_third=total(absolute),
        convex=False,
        quartic=total(fourth + 3 * each.square()),
        norms=norms,
        spread_norms=torch.stack([draft.mean(root**q) ** (1 / q) for q in POWERS], -1)
        + (ranges.upper.sqrt() - spread.sqrt())[..., None],
        spread_away=away,
        spread_deltas=torch.stack([draft.norm(s, q) for q in POWERS[:2]], -1),
        expansion=None,
        fixed=False,
        source=source,
        central_norm4=((weight * (shift - centre_mean) ** 4).sum(-1, keepdim=True)) ** 0.25,
        central_least=central,
    )
    return replace(draft, pre=pre)


def of_gaussian(mean: Interval, spread: Interval) -> PreActivation:  # (batch, n) each
    """X Gaussian with a mean and a variance that are functions of x."""
    zero = torch.zeros_like(mean.lower)
    none = Interval(zero, zero)
    norms = zero[..., None].expand(*zero.shape, len(POWERS))
    root = spread.upper.sqrt()[..., None].expand_as(norms)
    return PreActivation(
        mean,
        spread,
        zero,
        none,
        zero,
        zero,
        zero,
        zero,
        False,
        zero,
        norms,
        root,
        norms,
        norms[..., 1:],
        None,
        fixed=True,
        source=True,
    )


def quadrature() -> tuple[Tensor, Tensor]:
    """Nodes and weights for a standard Gaussian (trapezoid: exact to 1e-12 for smooth functions, 1e-5 at kinks)."""
    xi = torch.linspace(-_REACH, _REACH, _NODES, dtype=torch.float64)
    weight = torch.exp(-0.5 * xi.square()) / math.sqrt(2 * math.pi) * (xi[1] - xi[0])
    return xi, weight / weight.sum()


def given(function: Any, m: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values (..., nodes) of a function of X = m + sqrt(s) xi, their weights (nodes,), and their means (...)."""
    xi, weight = quadrature()
    values = function(m[..., None] + s.sqrt()[..., None] * xi)
    return values, weight, values @ weight


def true_mean(phi: Any, law: Law) -> Tensor:  # (laws, 1)
    """E phi(X)."""
    if phi.kind == "piecewise_affine":  # the sine itself, not its surrogate
        return law.mean(torch.exp(-0.5 * law.s) * torch.sin(law.m))
    return law.mean(phi.mean(law.m, law.s.sqrt()))
