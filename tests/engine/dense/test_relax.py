"""Bounds of E ReLU(X) from moments, against laws on few atoms: given the atom X is Gaussian, every mean a finite sum.

An atom is a value of the layer y before: it fixes the mean c of m, the variance V of m given y, and s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from bnndp.engine.dense.records import PreActivation
from bnndp.engine.dense.relax import relax
from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear

F64 = torch.float64
NEURONS = 400


def rectified(m: Tensor, r: Tensor, power: int) -> Tensor:
    """E max(m + r xi, 0)^power for powers 1, 2 and 4, as the textbooks write it."""
    t = m / r
    p, d = 0.5 * torch.erfc(-t / math.sqrt(2)), torch.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)
    if power == 1:
        return m * p + r * d
    if power == 2:
        return (m**2 + r**2) * p + m * r * d
    return (m**4 + 6 * m**2 * r**2 + 3 * r**4) * p + (m**3 * r + 5 * m * r**3) * d


@dataclass(frozen=True)
class Law:
    """One law for each neuron: (neurons, atoms) each."""

    weight: Tensor
    c: Tensor  # E[m | y]
    v: Tensor  # Var(m | y)
    s: Tensor

    def mean(self, values: Tensor) -> Tensor:
        return (self.weight * values).sum(-1)

    def variance(self, values: Tensor) -> Tensor:
        return self.mean((values - self.mean(values)[:, None]) ** 2)

    def truth(self, power: int) -> Tensor:
        """E z^power: (neurons,)."""
        return self.mean(rectified(self.c, (self.v + self.s).sqrt(), power))

    def before(self, wide: float) -> PreActivation:
        """The record of these moments, the ranges of the means of s and V made wider by this share."""

        def around(value: Tensor) -> Interval:
            return Interval(value[None] * (1 - wide), value[None] * (1 + wide))

        away = self.c - self.mean(self.c)[:, None]
        fourth = self.mean(away**4 + 6 * away**2 * self.v + 3 * self.v**2)[None]
        zero = torch.zeros_like(fourth)
        return PreActivation(
            layer=Linear.fixed(torch.zeros(NEURONS, 1, dtype=F64)), jensen=zero, spread=around(self.mean(self.s)),
            spread_variance=self.variance(self.s)[None], spread_fourth=zero + math.inf, noise=around(self.mean(self.v)),
            noise_variance=self.variance(self.v)[None], central=self.variance(self.c)[None], fourth=fourth,
            norm8=zero + math.inf, replacement=Interval(zero, zero), tail=None, energy=None,
        )  # fmt: skip


def laws(kind: str, seed: int) -> Law:
    """Only some of c, V and s random, or all of them together; one atom often far away and rare."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=F64)

    atoms = 2 + seed % 3
    weight = 10 ** (-3 * rand(NEURONS, atoms) * (rand(NEURONS, 1) < 0.5))
    weight = weight / weight.sum(-1, keepdim=True)
    scale = 10 ** (2 * rand(NEURONS, 1) - 1.5)
    c = 3 * torch.randn(NEURONS, 1, generator=generator, dtype=F64) * rand(NEURONS, 1) ** 2 + 0 * weight
    v, s = 0.3 * rand(NEURONS, 1) + 0 * weight, 0.5 * rand(NEURONS, 1) + 0.02 + 0 * weight
    if kind in ("c", "all"):
        c = c + scale * (rand(NEURONS, atoms) - 0.5)
    if kind in ("v", "all"):
        v = v * (1 + scale * rand(NEURONS, atoms))
    if kind in ("s", "all"):
        s = s * (1 + scale * rand(NEURONS, atoms))
    if kind == "c without v":
        c, v = c + scale * (rand(NEURONS, atoms) - 0.5), 0 * v
    return Law(weight, c, v, s)


@pytest.mark.parametrize("wide", [0.0, 0.2])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["nothing", "c", "c without v", "v", "s", "all"])
def test_no_law_breaks_the_bounds(kind: str, seed: int, wide: float) -> None:
    law = laws(kind, seed)
    before, m = law.before(wide), law.mean(law.c)[None]
    first, second, fourth = (law.truth(power) for power in (1, 2, 4))
    for reach in (0.0, wide):
        mean = Interval(m - reach, m + 0.5 * reach)
        planes, latent = relax(before, mean)
        slope, offset = planes.lower()
        below, above = (slope * m[:, None] + offset)[0, 0], (planes.upper_slope * m + planes.upper_offset)[0]
        for low, high in ((below, above), (latent.mean.lower[0], latent.mean.upper[0])):
            assert (low <= first + 1e-13).all()  # the rounding of the finite sums
            assert (high >= first - 1e-13).all()
        assert (latent.second.lower[0] <= second + 1e-12).all()
        assert (latent.second.upper[0] >= second - 1e-12).all()
        assert (latent.variance[0] >= second - first**2 - 1e-12).all()
        assert (latent.fourth[0] >= fourth * (1 - 1e-12)).all()


@pytest.mark.parametrize("kind", ["nothing", "c", "v", "s"])
def test_small_variances_cost_little(kind: str) -> None:
    """So that the test above means something: bounds and truth meet where nothing, or little, is random."""
    law = laws(kind, 5)
    tenth = Law(law.weight, *(law.mean(x)[:, None] + 0.05 * (x - law.mean(x)[:, None]) for x in (law.c, law.v, law.s)))
    m = tenth.mean(tenth.c)[None]
    _, latent = relax(tenth.before(0.0), Interval(m, m))
    gap = latent.mean.upper[0] - latent.mean.lower[0]
    assert (gap <= 1e-11 + (0.0 if kind == "nothing" else 0.02)).all()
