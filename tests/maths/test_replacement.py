"""Lindeberg's replacement of rectified Gaussians: its constants, and sums by quadrature over each term or on a grid."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from flint import arb, ctx
from support import oracles
from support.oracles import PRECISION
from support.proofs import hermite_peak, proved
from support.quadrature import density, rectified_law
from tests.marks import slow_but
from torch import Tensor

from bnndp.maths import replacement
from bnndp.maths.replacement import (
    ABSOLUTE_THIRD,
    TO_CDF,
    TO_DENSITY_SQUARE,
    TO_SECOND_MOMENT,
    conditional_replacement_error,
    replacement_error,
)

F64 = torch.float64
PHI_1 = math.exp(-0.5) / math.sqrt(2 * math.pi)


@pytest.fixture(autouse=True)
def many_bits() -> Iterator[None]:
    with ctx.workprec(2 * PRECISION):
        yield


def cdf(u: Tensor) -> Tensor:
    return 0.5 * torch.special.erfc(-u / math.sqrt(2))


def moments_of(u: arb) -> tuple[arb, arb, arb]:
    """Mean, variance and third central moment of max(N(u, 1), 0)."""
    z = oracles.rectified(u, arb(1))
    return z.mean, z.variance, z.third - 3 * z.mean * z.second + 2 * z.mean**3


def test_third_absolute_moment_of_a_gaussian() -> None:
    assert 2 * (2 / arb.pi()).sqrt() < arb(ABSOLUTE_THIRD)


def test_largest_skewness() -> None:
    """kappa <= 0.5777 sqrt(v): cell by cell where both are monotone, and by Cauchy and Schwarz to the left.

    kappa rises to 0.607 and falls after it, v rises (maths/central.py), so only u <= 0.61 matters; far to the left
    kappa <= sqrt(v c4) and c4 rises.
    """
    z = oracles.rectified(arb(-2), arb(1))
    fourth = z.fourth - 4 * z.mean * z.third + 6 * z.mean**2 * z.second - 3 * z.mean**4
    limit = arb(replacement._SKEWNESS)
    assert fourth.sqrt() < limit
    a, peak = arb(-2), moments_of(arb("0.60747433"))[2] + arb("1e-12")
    before = moments_of(a)
    while a < arb("0.61"):
        b = a + arb(1) / 8192
        after = moments_of(b)
        highest = after[2] if b < arb("0.6074") else peak
        assert highest < limit * before[1].sqrt()
        a, before = b, after
    # It is sharp.
    _, v, third = moments_of(arb("0.2585"))
    assert third / v.sqrt() > limit - arb("1e-4")


# What Gaussian noise of variance s makes of a function at m: the mean of ReLU, of ReLU^2, P(active), and phi^2.


def relu(m: Tensor, s: Tensor) -> Tensor:
    r = s.sqrt()
    return m * cdf(m / r) + r * density(m / r)


def square(m: Tensor, s: Tensor) -> Tensor:
    r = s.sqrt()
    return (m * m + s) * cdf(m / r) + m * r * density(m / r)


def active(m: Tensor, s: Tensor) -> Tensor:
    return cdf(m / s.sqrt())


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
    v, third = (torch.tensor([[law.moment(k) for law in laws]], dtype=F64) for k in (2, 3))
    return replacement_error(torch.tensor([[base]], dtype=F64), weight[None], v, third).item()


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


# Many terms: the law of the sum on a grid. Sharing an atom between the two nearest points keeps its mean and adds at
# most a quarter of the squared step to the variance, which changes a rectified mean by phi(0)/(2 sqrt(s0)) times it.

STEP, POINTS = 2.0**-9, 2**16


def on_grid(law: Law, w: float) -> Tensor:
    place = w * law.values / STEP
    left = place.floor()
    share = place - left
    grid = torch.zeros(POINTS, dtype=F64)
    grid.index_add_(0, left.long() % POINTS, law.weights * (1 - share))
    return grid.index_add_(0, (left.long() + 1) % POINTS, law.weights * share)


@pytest.mark.parametrize("base", [0.02, 0.3])
@pytest.mark.parametrize("seed", slow_but(range(4), 1, 2))
def test_many_terms(base: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    n = 24
    u = 4 * torch.rand(n, generator=generator, dtype=F64) - (2 if seed % 2 else 1)
    weight = torch.randn(n, generator=generator, dtype=F64) / 3
    weight = weight.abs() if seed < 2 else weight
    laws = [rectified(float(at), 30) for at in u]
    spectrum = torch.ones(POINTS // 2 + 1, dtype=torch.complex128)
    for law, w in zip(laws, weight.tolist(), strict=True):
        spectrum = spectrum * torch.fft.rfft(on_grid(law, w))
    probability = torch.fft.irfft(spectrum, n=POINTS)
    total = STEP * torch.fft.fftfreq(POINTS, 1 / POINTS, dtype=F64)
    variance, s0 = variance_of(laws, weight), torch.tensor(base, dtype=F64)
    m = means(base, variance)
    difference = (probability * relu(m[:, None] + total, s0)).sum(-1) - relu(m, s0 + variance)
    slack = n * STEP**2 / 4 * 0.2 / math.sqrt(base)
    bound = error_bound(base, laws, weight)
    assert slack < 0.1 * bound
    assert difference.abs().max().item() <= bound + slack


# Blocks


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 64, 100])
def test_blocks_are_a_partition_in_the_order_of_the_key(n: int) -> None:
    key = torch.rand(3, n, generator=torch.Generator().manual_seed(n), dtype=F64)
    block = replacement.blocks_of(key)
    assert torch.equal(block.sum(1), torch.ones(3, n, dtype=torch.long))
    number = block.long().argmax(1)
    ranked = number.gather(1, key.argsort(1))
    assert (ranked.diff(dim=1) >= 0).all()


def test_no_term_smooths_its_own_step_or_an_earlier_one() -> None:
    """The exact sum over the terms in the same order is never above the sum over blocks, which is not far above it."""
    generator = torch.Generator().manual_seed(1)
    u = 6 * torch.rand(1, 64, generator=generator, dtype=F64) - 2
    laws = [rectified(float(at)) for at in u[0]]
    v, third = (torch.tensor([[law.moment(k) for law in laws]], dtype=F64) for k in (2, 3))
    weight = torch.randn(5, 64, generator=generator, dtype=F64)
    order = (third / v)[0].argsort()
    for base in (1e-3, 0.1, 10.0):
        w = weight.abs()[:, order]
        part = w.square() * v[0, order]
        rho2 = base + part.cumsum(1) - part
        exact = (PHI_1 / 6 * w**3 * third[0, order] / rho2).sum(1)
        found = replacement_error(torch.full((1, 5), base, dtype=F64), weight, v, third)[0]
        assert (found >= exact * (1 - 1e-12)).all()
        assert (found <= 3 * exact).all() or base < 0.1


def test_the_ends_of_float64() -> None:
    """A single term has only the base, nothing random costs nothing, and what is no number or underflows is not 0."""
    one, zero, weight = torch.ones(1, 1, dtype=F64), torch.zeros(1, 1, dtype=F64), torch.full((1, 1), 1e-120, dtype=F64)
    for base in (1.2e-16, 1e-14, 1e-10, 1e-6):
        assert replacement_error(one * base, one, one, one).item() == pytest.approx(PHI_1 / (6 * base), rel=1e-12)
    for base in (0.0, 1.0):
        assert replacement_error(one * base, one, zero, zero) == replacement_error(one * base, zero, one, one) == 0
    for bad in (math.nan, math.inf):
        assert replacement_error(one, one, one, one * bad) == torch.inf
        assert replacement_error(one * min(bad, 0.0), one, one, one) == torch.inf
    assert replacement_error(one * 1e-60, weight, one * 1e105, one * 1e105).item() > 0  # cubes of tiny weights


def test_widening_a_range_never_lowers_the_bound() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 20, generator=generator, dtype=F64)
    v = torch.rand(3, 20, generator=generator, dtype=F64)
    third = v * torch.rand(3, 20, generator=generator, dtype=F64)
    base = torch.rand(3, 4, generator=generator, dtype=F64)
    found = replacement_error(base, weight, v, third)
    assert found.shape == (3, 4)
    assert (replacement_error(0.9 * base, weight, v, third) >= found).all()
    assert (replacement_error(base, weight, 0.9 * v, third) >= found).all()
    assert (replacement_error(base, weight, v, 1.1 * third) >= found).all()


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
    return density(m / wide) / wide * math.sqrt(s0 / (4 * math.pi))


@pytest.mark.parametrize("function", ["square", "cdf", "density squared"])
def test_the_smoothed_functions_are_right(function: str) -> None:
    """By quadrature over the Gaussian, for the formulas of this file themselves."""
    x, w = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(80))
    xi, weight = 9 * x, 9 * w * density(9 * x)
    m = torch.linspace(-2, 2, 9, dtype=F64)
    inner = other(function, m[:, None] + 0.8 * xi, 0.5, 0.0)
    assert torch.allclose((weight * inner).sum(-1), other(function, m, 0.5, 0.64), rtol=1e-12, atol=1e-14)
    at = {"square": 0.25, "cdf": 0.5, "density squared": 1 / (2 * math.pi)}[function]
    assert other(function, torch.zeros(1, dtype=F64), 0.5, 0.0).item() == pytest.approx(at, rel=1e-14)


@pytest.mark.parametrize("function", ["square", "cdf", "density squared"])
@pytest.mark.parametrize("name", slow_but(LAWS, "u = -2", "u = 0.6", "two terms"))
@pytest.mark.parametrize("base", [0.01, 0.1, 1.0, 30.0, 1000.0])
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
    m = means(base, variance)
    before = (probability * other(function, m[:, None] + total, base, 0.0)).sum(-1)
    worst_of = (before - other(function, m, base, variance)).abs().max().item()
    size = other(function, m, base, variance).abs().max().item()
    assert worst_of <= factor * error_bound(base, laws, weight) + 1e-12 * size


@pytest.mark.parametrize(("function", "least"), [("square", 0.9), ("cdf", 0.9), ("density squared", 0.9)])
def test_the_factors_are_sharp(function: str, least: float) -> None:
    base, laws, weight = 1.0, [rectified(0.0, 30)], torch.tensor([0.01], dtype=F64)
    variance = variance_of(laws, weight)
    factor = {"square": TO_SECOND_MOMENT, "cdf": TO_CDF, "density squared": TO_DENSITY_SQUARE}[function]
    total, probability = outcomes(laws, weight)
    m = torch.linspace(-3, 3, 241, dtype=F64)
    before = (probability * other(function, m[:, None] + total, base, 0.0)).sum(-1)
    ratio = (before - other(function, m, base, variance)).abs().max().item() / error_bound(base, laws, weight)
    assert least * factor <= ratio <= factor * (1 + 1e-4)


# Deeper layers: the terms are rectified Gaussians given a random layer y.


@pytest.mark.parametrize("base", [1e-2, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("u", [(-2.0, 1.0), (0.0, 0.0), (3.0, -4.0), (-3.0, -3.0), (0.26, 0.26)])
@pytest.mark.parametrize("r", [(1.0, 1.0), (0.2, 2.0)])
def test_conditional_error(base: float, u: tuple[float, float], r: tuple[float, float]) -> None:
    """y takes two values; given each, one term w ReLU(N(u r, r^2)) of weight 0.7 and one of weight -0.4."""
    laws = [[rectified(at, 8), rectified(at + 1, 8)] for at in u]
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
    assert bound == pytest.approx(PHI_1 / 6 * replacement._SKEWNESS * cube / base, rel=1e-12)


def test_the_factors_of_other_functions() -> None:
    """A step is of third order, so a factor is the largest third derivative over that of g, phi(1)/rho^2.

    That of E ReLU^2 is 2 phi(u)/rho, times rho <= sqrt(s0 + V); of Phi(m/rho) it is He_2 phi/rho^3, rho >= sqrt(s0).
    phi(m/sqrt s0)^2 is sqrt(s0)/(2 sqrt pi) times the density of N(0, s0/2). Smoothed by a variance V it is that of
    N(0, tau^2), tau^2 = s0/2 + V >= rho^2/2, with third derivative He_3 phi/tau^4; sqrt(s0)/rho^2 <= 1/sqrt(s0).
    """
    assert proved(hermite_peak(1), replacement._PHI_1)
    assert proved(2 * hermite_peak(0) / hermite_peak(1), TO_SECOND_MOMENT)
    assert proved(hermite_peak(2) / hermite_peak(1), TO_CDF)
    assert proved(hermite_peak(3) * 4 / (2 * arb.pi().sqrt()) / hermite_peak(1), TO_DENSITY_SQUARE)
