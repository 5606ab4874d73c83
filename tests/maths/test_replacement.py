"""Lindeberg's replacement of rectified Gaussians, convex functions of Gaussians: by quadrature over each term."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from flint import arb, ctx
from support.oracles import PRECISION
from support.quadrature import density, rectified_law
from tests.marks import slow_but
from torch import Tensor

from bnndp.maths.replacement import ABSOLUTE_THIRD, blocks_of

F64 = torch.float64
PHI_1 = math.exp(-0.5) / math.sqrt(2 * math.pi)


@pytest.fixture(autouse=True)
def many_bits() -> Iterator[None]:
    with ctx.workprec(2 * PRECISION):
        yield


def cdf(u: Tensor) -> Tensor:
    return 0.5 * torch.special.erfc(-u / math.sqrt(2))


def test_third_absolute_moment_of_a_gaussian() -> None:
    assert 2 * (2 / arb.pi()).sqrt() < arb(ABSOLUTE_THIRD)


def relu(m: Tensor, s: Tensor) -> Tensor:
    r = s.sqrt()
    return m * cdf(m / r) + r * density(m / r)


@dataclass(frozen=True)
class Law:
    """A centred discrete law."""

    values: Tensor
    weights: Tensor

    def moment(self, k: int) -> float:
        return float((self.weights * self.values**k).sum())


def rectified(u: float, panels: int = 12) -> Law:
    """ReLU(u + xi) less its mean."""
    z, weights = rectified_law(u, 1.0, panels)
    return Law(z - (weights * z).sum(), weights)


def outcomes(laws: list[Law], weight: Tensor) -> tuple[Tensor, Tensor]:
    """Values and probabilities of the sum of ``weight_j`` times terms of these laws."""
    total, probability = torch.zeros(1, dtype=F64), torch.ones(1, dtype=F64)
    for law, w in zip(laws, weight, strict=True):
        total = (total[:, None] + w * law.values).flatten()
        probability = (probability[:, None] * law.weights).flatten()
    return total, probability


def error_bound(base: float, laws: list[Law], weight: Tensor) -> float:
    """A step for each term: the third derivative of g is at most phi(1)/s0, and no moment but the third counts."""
    return sum(abs(float(w)) ** 3 * law.moment(3) for law, w in zip(laws, weight, strict=True)) * PHI_1 / (6 * base)


def variance_of(laws: list[Law], weight: Tensor) -> float:
    return sum(float(w) ** 2 * law.moment(2) for law, w in zip(laws, weight, strict=True))


def means(base: float, variance: float) -> Tensor:
    """Where the derivatives of the smoothed function are large: (points,)."""
    u = torch.cat([torch.linspace(-4, 4, 17, dtype=F64), torch.tensor([-1.0, 1.0], dtype=F64)])
    return torch.cat([u * math.sqrt(base), u * math.sqrt(base + variance)])


def worst(base: float, laws: list[Law], weight: Tensor) -> float:
    """Largest effect of the replacement on the rectified mean, over the means."""
    total, probability = outcomes(laws, weight)
    variance, s0 = variance_of(laws, weight), torch.tensor(base, dtype=F64)
    m = means(base, variance)
    before = (probability * relu(m[:, None] + total, s0)).sum(-1)
    return float((before - relu(m, s0 + variance)).abs().max())


LAWS = {
    **{f"u = {u:g}": [rectified(u, 60)] for u in (-4.0, -2.0, -1.0, 0.0, 0.6, 1.0, 2.0, 3.0, 4.0)},
    "two terms": [rectified(0.5), rectified(-1.0)],
    "nearly Gaussian first": [rectified(4.0), rectified(-1.0)],
    "nearly Gaussian last": [rectified(-1.0), rectified(4.0)],
    "three terms": [rectified(0.0, 3), rectified(2.0, 3), rectified(-2.0, 3)],
}


@pytest.mark.parametrize("name", slow_but(LAWS, "u = -2", "u = 0.6", "two terms", "nearly Gaussian last"))
@pytest.mark.parametrize("base", [1e-3, 0.03, 0.3, 1.0, 30.0])
def test_the_error_bounds_the_difference(name: str, base: float) -> None:
    laws = LAWS[name]
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(len(laws), generator=generator, dtype=F64) if seed else torch.ones(len(laws), dtype=F64)
        size = math.sqrt(base + variance_of(laws, weight))
        assert worst(base, laws, weight) <= error_bound(base, laws, weight) + 1e-12 * size


@pytest.mark.parametrize("u", [-3.0, -1.0, 0.0, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("sign", [-1, 1])
def test_small_terms_come_near_the_bound(u: float, sign: int) -> None:
    """So a constant that is too small, and a bound that became loose, would show."""
    weight = torch.tensor([sign * 0.02], dtype=F64)
    ratio = worst(1.0, [rectified(u, 30)], weight) / error_bound(1.0, [rectified(u, 30)], weight)
    assert 0.97 <= ratio <= 1 + 1e-6


# Blocks


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 64, 100])
def test_blocks_are_a_partition_in_the_order_of_the_key(n: int) -> None:
    key = torch.rand(3, n, generator=torch.Generator().manual_seed(n), dtype=F64)
    block = blocks_of(key)
    assert torch.equal(block.sum(1), torch.ones(3, n, dtype=torch.long))
    number = block.long().argmax(1)
    ranked = number.gather(1, key.argsort(1))
    assert (ranked.diff(dim=1) >= 0).all()
