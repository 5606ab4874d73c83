"""Lindeberg's replacement against sums whose law is known: all outcomes of discrete terms, and quadrature.

``replacement_error`` uses moments of the terms only, so terms of any law may try to break it. Discrete ones can be
enumerated exactly, and rare large ones come within a few percent of both of its bounds.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from bnndp.maths.replacement import (
    TO_CDF,
    TO_DENSITY_SQUARE,
    TO_SECOND_MOMENT,
    conditional_replacement_error,
    replacement_error,
)

F64 = torch.float64


def cdf(u: Tensor) -> Tensor:
    return 0.5 * torch.special.erfc(-u / math.sqrt(2))


def pdf(u: Tensor) -> Tensor:
    return torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)


# What Gaussian noise of variance s makes of a function at m: the mean of ReLU, of ReLU^2, P(active), and phi^2.


def relu(m: Tensor, s: Tensor) -> Tensor:
    r = s.sqrt()
    return m * cdf(m / r) + r * pdf(m / r)


def square(m: Tensor, s: Tensor) -> Tensor:
    r = s.sqrt()
    return (m * m + s) * cdf(m / r) + m * r * pdf(m / r)


def active(m: Tensor, s: Tensor) -> Tensor:
    return cdf(m / s.sqrt())


@dataclass(frozen=True)
class Law:
    """A centred discrete law."""

    values: Tensor
    weights: Tensor

    def moment(self, k: int) -> float:
        return float((self.weights * self.values**k).sum())


def two_points(p: float) -> Law:
    """A jump of 1 with probability p, less its mean: skewed."""
    return Law(torch.tensor([1 - p, -p], dtype=F64), torch.tensor([p, 1 - p], dtype=F64))


def three_points(p: float) -> Law:
    """Jumps of -1 and 1 with probability p together: not skewed, and with p small of large fourth moment."""
    return Law(torch.tensor([-1.0, 0.0, 1.0], dtype=F64), torch.tensor([p / 2, 1 - p, p / 2], dtype=F64))


def rectified(u: float, nodes: int = 60) -> Law:
    """ReLU(u + xi) less its mean as atoms: zero, and Gauss-Legendre nodes above it."""
    x, w = _legendre(nodes)
    low, high = max(-u, -9.0), 9.0
    xi = low + (high - low) * (x + 1) / 2
    weights = w * (high - low) / 2 * pdf(xi)
    z = torch.cat([torch.zeros(1, dtype=F64), u + xi])
    weights = torch.cat([1 - weights.sum()[None], weights])
    return Law(z - (weights * z).sum(), weights)


def _legendre(nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [-1, 1] from the Jacobi matrix (Golub and Welsch)."""
    k = torch.arange(1, nodes, dtype=F64)
    off = k / (4 * k * k - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return values, 2 * vectors[0] ** 2


def outcomes(laws: list[Law], weight: Tensor) -> tuple[Tensor, Tensor]:
    """Values and probabilities of the sum of ``weight_j`` times terms of these laws."""
    total, probability = torch.zeros(1, dtype=F64), torch.ones(1, dtype=F64)
    for law, w in zip(laws, weight, strict=True):
        total = (total[:, None] + w * law.values).flatten()
        probability = (probability[:, None] * law.weights).flatten()
    return total, probability


def error_bound(base: float, laws: list[Law], weight: Tensor) -> float:
    v, third, fourth = (torch.tensor([[abs(law.moment(k)) for law in laws]], dtype=F64) for k in (2, 3, 4))
    return replacement_error(torch.tensor([[base]], dtype=F64), weight[None], v, v, third, fourth).item()


def variance_of(laws: list[Law], weight: Tensor) -> float:
    return sum(float(w) ** 2 * law.moment(2) for law, w in zip(laws, weight, strict=True))


def means(base: float, laws: list[Law], weight: Tensor) -> Tensor:
    """Where the derivatives of the smoothed function are large, and where single outcomes lie: (points,)."""
    scale = math.sqrt(base + variance_of(laws, weight))
    u = torch.cat([torch.linspace(-4, 4, 33, dtype=F64), torch.tensor([-1.0, 1.0], dtype=F64)])
    return torch.cat([u * math.sqrt(base), u * scale])


def worst(base: float, laws: list[Law], weight: Tensor) -> float:
    """Largest effect of the replacement on the rectified mean, over the means."""
    total, probability = outcomes(laws, weight)
    m, s0 = means(base, laws, weight), torch.tensor(base, dtype=F64)
    before = (probability * relu(m[:, None] + total, s0)).sum(-1)
    return float((before - relu(m, s0 + variance_of(laws, weight))).abs().max())


LAWS = {
    "coin": [two_points(0.5)],
    "skewed": [two_points(0.1)],
    "very skewed": [two_points(1e-3)],
    "rare": [three_points(0.01)],
    "rectified": [rectified(-1.0)],
    "rectified and rare": [rectified(-3.0)],
    "two terms": [rectified(0.5), rectified(-1.0)],
    "three terms": [rectified(0.0, 30), rectified(2.0, 30), rectified(-2.0, 30)],
    "skewed and not": [two_points(0.05), three_points(0.1), two_points(0.5)],
    "nine skewed": [two_points(0.2)] * 9,
    "twelve": [two_points(p) for p in (0.5, 0.1, 0.02, 0.3, 0.7, 0.9, 0.5, 0.01, 0.2, 0.2, 0.4, 0.05)],
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("base", [1e-8, 1e-3, 0.03, 0.3, 1.0, 30.0])
def test_the_error_bounds_the_difference(name: str, base: float) -> None:
    laws = LAWS[name]
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(len(laws), generator=generator, dtype=F64) if seed else torch.ones(len(laws), dtype=F64)
        size = math.sqrt(base + variance_of(laws, weight))
        assert worst(base, laws, weight) <= error_bound(base, laws, weight) + 1e-13 * size


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("base", [1e-8, 0.03, 1.0])
def test_no_term_may_smooth_its_own_step(name: str, base: float) -> None:
    """The same terms in any order, one of them much larger than the others."""
    laws = LAWS[name]
    for large in range(min(3, len(laws))):
        weight = torch.full((len(laws),), 0.05, dtype=F64)
        weight[-1 - large] = 1.0
        assert worst(base, laws, weight) <= error_bound(base, laws, weight) + 1e-13


@pytest.mark.parametrize(
    ("law", "least"), [(two_points(1e-4), 0.95), (three_points(1e-3), 0.95), (rectified(-4.0), 0.85)]
)
def test_rare_small_terms_come_near_both_bounds(law: Law, least: float) -> None:
    """So a constant that is too small, and a bound that became loose, would show."""
    weight = torch.tensor([0.03], dtype=F64)
    ratio = worst(1.0, [law], weight) / error_bound(1.0, [law], weight)
    assert least <= ratio <= 1


def test_smoothing_by_the_terms_before_is_used() -> None:
    """Sixteen equal terms: the last blocks are smoothed by the first ones, so the base hardly matters for them."""
    laws, weight = [two_points(0.5)] * 16, torch.ones(16, dtype=F64)
    alone = error_bound(0.01, laws[:1], weight[:1])
    assert error_bound(0.01, laws, weight) < 2.5 * alone


def test_lower_variances_smooth_and_upper_ones_are_replaced() -> None:
    """On a box only ranges are known: widening any of them must not make the bound smaller."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 20, generator=generator, dtype=F64)
    v = torch.rand(3, 20, generator=generator, dtype=F64)
    base = torch.rand(3, 4, generator=generator, dtype=F64)
    exact = (base, weight, v, v, v**1.5, 3 * v**2)
    found = replacement_error(*exact)
    assert found.shape == (3, 4)
    for i, wider in enumerate((0.9 * base, 1.1 * weight, 0.9 * v, 1.1 * v, 1.1 * v**1.5, 3.3 * v**2)):
        if i == 1:
            continue  # larger weights smooth more, too
        assert (replacement_error(*exact[:i], wider, *exact[i + 1 :]) >= found).all()


def test_nothing_random_needs_no_replacement() -> None:
    zero, one = torch.zeros(1, 2, dtype=F64), torch.ones(1, 2, dtype=F64)
    base = torch.tensor([[0.0, 1.0]], dtype=F64)
    silent = replacement_error(base, torch.ones(2, 2, dtype=F64), zero, zero, zero, zero)
    unused = replacement_error(base, torch.zeros(2, 2, dtype=F64), one, one, one, one)
    assert torch.equal(silent, zero)
    assert torch.equal(unused, zero)


def test_no_base_for_a_random_sum_is_no_bound() -> None:
    one = torch.ones(1, 3, dtype=F64)
    assert replacement_error(torch.zeros(1, 1, dtype=F64), torch.ones(1, 3, dtype=F64), one, one, one, one) == torch.inf


# The same replacement under other functions: their error is a multiple of that of the rectified mean.


def other(function: str, m: Tensor, s0: float, variance: float) -> Tensor:
    """The function smoothed by a Gaussian of this variance, besides the one of variance s0 that it has inside."""
    s = torch.tensor(s0 + variance, dtype=F64)
    if function == "square":
        return square(m, s)
    if function == "cdf":
        return active(m, s)
    # phi(m / sqrt(s0))^2 = exp(-m^2 / s0) / (2 pi): a Gaussian density of variance s0 / 2, times sqrt(pi s0) / (2 pi).
    wide = math.sqrt(s0 / 2 + variance)
    return pdf(m / wide) / wide * math.sqrt(s0 / (4 * math.pi))


@pytest.mark.parametrize("function", ["square", "cdf", "density squared"])
def test_the_smoothed_functions_are_right(function: str) -> None:
    """By quadrature over the Gaussian, for the formulas of this file themselves."""
    x, w = _legendre(80)
    xi, weight = 9 * x, 9 * w * pdf(9 * x)
    m = torch.linspace(-2, 2, 9, dtype=F64)
    inner = other(function, m[:, None] + 0.8 * xi, 0.5, 0.0)
    assert torch.allclose((weight * inner).sum(-1), other(function, m, 0.5, 0.64), rtol=1e-12, atol=1e-14)
    at = {"square": 0.25, "cdf": 0.5, "density squared": 1 / (2 * math.pi)}[function]
    assert other(function, torch.zeros(1, dtype=F64), 0.5, 0.0).item() == pytest.approx(at, rel=1e-14)


@pytest.mark.parametrize("function", ["square", "cdf", "density squared"])
@pytest.mark.parametrize("name", ["coin", "skewed", "very skewed", "rare", "rectified", "two terms", "nine skewed"])
@pytest.mark.parametrize("base", [1e-3, 0.1, 1.0, 30.0, 1000.0])
def test_the_error_of_other_functions(function: str, name: str, base: float) -> None:
    laws = LAWS[name]
    weight = torch.ones(len(laws), dtype=F64)
    variance = variance_of(laws, weight)
    factor = {
        "square": TO_SECOND_MOMENT * math.sqrt(base + variance),
        "cdf": TO_CDF / math.sqrt(base),
        "density squared": TO_DENSITY_SQUARE / math.sqrt(base),
    }[function]
    total, probability = outcomes(laws, weight)
    m = means(base, laws, weight)
    before = (probability * other(function, m[:, None] + total, base, 0.0)).sum(-1)
    worst_of = (before - other(function, m, base, variance)).abs().max().item()
    size = other(function, m, base, variance).abs().max().item()
    assert worst_of <= factor * error_bound(base, laws, weight) + 1e-13 * size


# Deeper layers: the terms are rectified Gaussians given a random layer y.


@pytest.mark.parametrize("base", [1e-4, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("u", [(-2.0, 1.0), (0.0, 0.0), (3.0, -4.0), (-3.0, -3.0)])
@pytest.mark.parametrize("r", [(1.0, 1.0), (0.2, 2.0)])
def test_conditional_error(base: float, u: tuple[float, float], r: tuple[float, float]) -> None:
    """y takes two values; given each, one term w ReLU(N(u r, r^2)) of weight 0.7 and one of weight -0.4."""
    laws = [[rectified(at, 40), rectified(at + 1, 40)] for at in u]
    weight = [scale * torch.tensor([0.7, -0.4], dtype=F64) for scale in r]
    s0, m = torch.tensor(base, dtype=F64), torch.linspace(-4, 4, 33, dtype=F64)
    difference = torch.zeros_like(m)
    for law, w in zip(laws, weight, strict=True):
        total, probability = outcomes(law, w)
        difference += 0.5 * (probability * relu(m[:, None] + total, s0)).sum(-1)
        difference -= 0.5 * relu(m, s0 + variance_of(law, w))
    v = [[law[j].moment(2) * scale**2 for law, scale in zip(laws, r, strict=True)] for j in range(2)]
    s2 = sum(scale**4 for scale in r) / 2
    cube = sum(abs(w) ** 3 * math.sqrt(sum(at) / 2 * s2) for w, at in zip((0.7, 0.4), v, strict=True))
    bound = conditional_replacement_error(s0[None, None], torch.tensor([[cube]], dtype=F64)).item()
    assert difference.abs().max().item() <= bound
    # It is the sum of the two third absolute moments of its docstring, no more.
    cubes = math.sqrt(3) + 2 * math.sqrt(2 / math.pi)
    assert bound == pytest.approx(math.exp(-0.5) / math.sqrt(2 * math.pi) / 6 * cubes * cube / base, rel=1e-12)


def test_third_absolute_moments_are_within_those_assumed() -> None:
    """``E |Y|^3 <= sqrt(3 v) s`` for Y = ReLU(N(u r, r^2)) less its mean, v its variance and s = r^2."""
    for u, r in itertools.product((-4.0, -1.0, 0.0, 1.0, 3.0, 8.0), (0.1, 1.0, 4.0)):
        law = rectified(u, 80)
        v, third = law.moment(2), float((law.weights * law.values.abs() ** 3).sum())
        assert r**3 * third <= math.sqrt(3 * v * r**2) * r**2 * (1 + 1e-9)
        assert (v * r**2) ** 1.5 <= math.sqrt(v * r**2) * r**2 * (1 + 1e-9)
