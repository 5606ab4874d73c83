"""Two-moment bounds against the laws that attain them, random discrete laws, and the ends of float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracles import PRECISION
from torch import Tensor

from bnndp.maths.tails import excess, relu_scarf, shortfall


@pytest.fixture(autouse=True)
def many_bits() -> Iterator[None]:
    with ctx.workprec(PRECISION):
        yield


def scalar(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def scarf(mean: float, variance: float) -> arb:
    """Its value at the law that attains it: the points -R and R, R^2 = mean^2 + variance."""
    mu, v = arb(mean), arb(variance)
    with ctx.workprec(2000):  # so that a far negative mean does not cancel
        root = (mu * mu + v).sqrt()
        return root * (1 + mu / root) / 2 if root > 0 else arb(0)


@pytest.mark.parametrize("mean", [0.0, 1e-300, 1.0, -1.0, 3.7, -3.7, 1e8, -1e8, 1e100, -1e100, -1e150])
@pytest.mark.parametrize("variance", [1e-200, 1e-8, 0.3, 1.0, 1e6, 1e100])
def test_scarf_is_the_mean_of_the_two_point_law(mean: float, variance: float) -> None:
    truth, found = scarf(mean, variance), relu_scarf(scalar(mean), scalar(variance)).item()
    assert abs(arb(found) - truth) <= truth * 1e-15 + arb(1e-300)


@pytest.mark.parametrize(
    ("mean", "variance"), [(-1.6e154, 3.4e307), (-1e160, 1e300), (-1e200, 1e300), (1e200, 1.0), (-1e308, 1e308)]
)
def test_scarf_is_no_less_than_the_truth_where_squares_overflow(mean: float, variance: float) -> None:
    found = relu_scarf(scalar(mean), scalar(variance)).item()
    assert not math.isnan(found)
    assert found == math.inf or arb(found) >= scarf(mean, variance) * (1 - 1e-14)


def test_scarf_without_variance_is_relu() -> None:
    mean = torch.tensor([-1e200, -2.0, -0.0, 0.0, 2.0, 1e150], dtype=torch.float64)
    assert torch.equal(relu_scarf(mean, torch.zeros_like(mean)), mean.clamp_min(0))


def test_scarf_with_infinite_variance_says_nothing() -> None:
    mean = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    assert not torch.isfinite(relu_scarf(mean, torch.full_like(mean, torch.inf))).any()


def test_scarf_increases_in_both_and_is_convex_in_the_mean() -> None:
    mean = torch.linspace(-5, 5, 401, dtype=torch.float64)
    rows = torch.stack([relu_scarf(mean, torch.full_like(mean, v)) for v in (0.0, 0.01, 1.0, 9.0)])
    assert (rows.diff(dim=0) > 0).all()
    assert (rows.diff(dim=1) >= 0).all()
    assert (rows.diff(n=2, dim=1) >= -1e-15).all()


def law(seed: int, atoms: int) -> tuple[Tensor, Tensor]:
    """Values and probabilities of a discrete law; few atoms, so that some come near the extremal one."""
    generator = torch.Generator().manual_seed(seed)
    values = 3 * torch.randn(atoms, generator=generator, dtype=torch.float64)
    weights = torch.rand(atoms, generator=generator, dtype=torch.float64) ** 4
    return values, weights / weights.sum()


@pytest.mark.parametrize("atoms", [2, 3, 7])
def test_no_law_breaks_the_bounds(atoms: int) -> None:
    """The mean may be on the safe side of the one given, the variance below it; only the other side is wrong."""
    for seed in range(200):
        values, weights = law(seed, atoms)
        mean = (weights * values).sum()
        variance = (weights * (values - mean) ** 2).sum()
        for level in (mean - 1, mean, mean + 0.3, mean + 4):
            over = (weights * (values - level).clamp_min(0)).sum()
            under = (weights * (level - values).clamp_min(0)).sum()
            for extra in (0.0, 0.5):
                assert over <= excess(mean + extra, variance + extra, level) * (1 + 1e-12)
                assert under <= shortfall(mean - extra, variance + extra, level) * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(
    mean=st.floats(-100, 100),
    variance=st.floats(1e-6, 1e4),
    level=st.floats(-100, 100),
)
def test_excess_and_shortfall_are_attained(mean: float, variance: float, level: float) -> None:
    root = math.hypot(mean - level, math.sqrt(variance))
    high = 0.5 * (1 + (mean - level) / root)  # probability of level + root, the rest at level - root
    found = [f(scalar(mean), scalar(variance), scalar(level)).item() for f in (excess, shortfall)]
    assert found[0] == pytest.approx(high * root, rel=1e-9, abs=1e-12 * root)
    assert found[1] == pytest.approx((1 - high) * root, rel=1e-9, abs=1e-12 * root)
