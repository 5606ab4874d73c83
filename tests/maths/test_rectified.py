"""Moments of rectified Gaussians against 256-bit ball arithmetic, up to 40 deviations and at the ends of float64."""

from __future__ import annotations

import math

import pytest
import torch
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracles import PRECISION, Rectified, cdf, error, expected_relu_between, pdf, rectified
from torch import Tensor

from bnndp.maths import rectified as subject
from bnndp.maths.rounding import ELEMENTARY, TINY, UNIT

SMALLEST = 5e-324
FIELDS = ("mean", "second", "fourth", "variance", "square_variance")


def scale(field: str, m: float, r: float) -> arb:
    """What an error is measured in: ``(|m| + r)^k``, for the variances with their factor r."""
    std = arb(r)
    size = abs(arb(m)) + std
    return {
        "mean": size,
        "second": size**2,
        "fourth": size**4,
        "variance": std**2,
        "square_variance": (std * size) ** 2,
    }[field]


def sample() -> tuple[Tensor, Tensor]:
    """2,600 points (m, r): spread over |m/r| <= 40, near the kink, and the edges of the number range."""
    generator = torch.Generator().manual_seed(20240501)

    def uniform(low: float, high: float, n: int) -> Tensor:
        return low + (high - low) * torch.rand(n, generator=generator, dtype=torch.float64)

    r = 10 ** uniform(-12, 6, 2000)
    u = torch.cat([uniform(-40, 40, 1000), 2 * torch.randn(600, generator=generator, dtype=torch.float64)])
    u = torch.cat([u, u[:400].sign() * 10 ** uniform(-16, 15, 400)])  # down to nothing and far beyond the cut
    big = 10 ** uniform(60, 75, 100)
    edge_m = [sign * size for size in (0.0, SMALLEST, 1e-310, 2.3e-308, 1e-200, 1.0, 1e6) for sign in (1, -1)]
    edge_r = [0.0, SMALLEST, 1e-310, 2.3e-308, 1e-200, 1e-80, 1e-12, 1.0, 1e6, 1e70]
    grid = torch.cartesian_prod(torch.tensor(edge_m, dtype=torch.float64), torch.tensor(edge_r, dtype=torch.float64))
    m = torch.cat([u * r, uniform(-3, 3, 100) * big, 10 ** uniform(60, 75, 50), grid[:, 0]])
    return m, torch.cat([r, big, 10 ** uniform(-75, 60, 50), grid[:, 1]])


@pytest.fixture(scope="module")
def points() -> tuple[Tensor, Tensor, list[Rectified]]:
    m, r = sample()
    return m, r, [rectified(a, b) for a, b in zip(m.tolist(), r.tolist(), strict=True)]


@pytest.mark.parametrize("field", FIELDS)
def test_error_is_within_an_eighth_of_what_rounding_grants(
    points: tuple[Tensor, Tensor, list[Rectified]], field: str
) -> None:
    m, r, truth = points
    got = getattr(subject.moments(m, r), field)
    for a, b, x, t in zip(m.tolist(), r.tolist(), got.tolist(), truth, strict=True):
        allowed = arb(ELEMENTARY) / 8 * scale(field, a, b) + arb(TINY)
        assert x >= 0
        assert error(x, getattr(t, field)) <= allowed, (a, b, x)


def test_mean_is_the_same_from_both_functions(points: tuple[Tensor, Tensor, list[Rectified]]) -> None:
    m, r, _ = points
    torch.testing.assert_close(subject.expected_relu(m, r), subject.moments(m, r).mean, rtol=0, atol=0)
    torch.testing.assert_close(subject.second_moment(m, r), subject.moments(m, r).second, rtol=0, atol=0)


@pytest.mark.parametrize(("field", "relative"), [("mean", 1e-12), ("second", 1e-9), ("fourth", 1e-4)])
def test_left_tail_keeps_relative_accuracy(field: str, relative: float) -> None:
    u = -torch.linspace(0, 36, 1500, dtype=torch.float64)
    got = getattr(subject.moments(u, torch.ones_like(u)), field)
    for x, value in zip(u.tolist(), got.tolist(), strict=True):
        truth = getattr(rectified(x, 1.0), field)
        assert error(value, truth) <= relative * truth, x


def test_zero_deviation_gives_the_relu_itself() -> None:
    m = torch.tensor([-1e300, -3.0, -SMALLEST, -0.0, 0.0, SMALLEST, 0.1, 3.0, 1e60], dtype=torch.float64)
    got = subject.moments(m, torch.zeros_like(m))
    assert torch.equal(got.mean, m.clamp_min(0))
    assert torch.equal(got.second, m.clamp_min(0) ** 2)
    assert torch.equal(got.fourth, (m.clamp_min(0) ** 2) ** 2)
    assert not got.variance.any()
    assert not got.square_variance.any()
    assert torch.equal(
        subject.relu_probability(m, torch.zeros_like(m))[[0, 1, 6, 7]], torch.tensor([0.0, 0, 1, 1]).double()
    )


ANY = st.floats(allow_nan=False, allow_infinity=False)
MODERATE = st.floats(-1e70, 1e70)


@settings(max_examples=250, deadline=None)
@given(m=MODERATE, r=st.floats(0, 1e70))
def test_every_moment_is_within_its_error_bound(m: float, r: float) -> None:
    got = subject.moments(torch.tensor(m, dtype=torch.float64), torch.tensor(r, dtype=torch.float64))
    truth = rectified(m, r)
    for field in FIELDS:
        x = getattr(got, field).item()
        assert x >= 0
        assert error(x, getattr(truth, field)) <= arb(ELEMENTARY) * scale(field, m, r) + arb(TINY), field


@settings(max_examples=250, deadline=None)
@given(m=ANY, r=ANY.map(abs))
def test_never_nan_never_negative_even_where_powers_overflow(m: float, r: float) -> None:
    got = subject.moments(torch.tensor(m, dtype=torch.float64), torch.tensor(r, dtype=torch.float64))
    assert all(getattr(got, field).item() >= 0 for field in FIELDS)  # false for NaN
    assert subject.expected_relu(torch.tensor(m, dtype=torch.float64), torch.tensor(r, dtype=torch.float64)).item() >= 0


@pytest.mark.parametrize("bad", [(math.nan, 1.0), (0.0, math.nan), (math.nan, 0.0)])
def test_not_a_number_is_passed_on(bad: tuple[float, float]) -> None:
    m, r = (torch.tensor(x, dtype=torch.float64) for x in bad)
    assert subject.relu_probability(m, r).isnan()
    assert subject.expected_relu(m, r).isnan()
    assert subject.moments(m, r).square_variance.isnan()


def test_ratio_is_the_quotient_cut_at_a_thousand() -> None:
    m = torch.tensor([1.0, -1.0, 0.0, 3e-310, -1e-323, 5.0, 1e300], dtype=torch.float64)
    r = torch.tensor([0.0, 0.0, 0.0, 1e-310, 1e-323, 2.0, 1e-300], dtype=torch.float64)
    assert subject.ratio(m, r).tolist() == pytest.approx([1000, -1000, 0, 3, -1, 2.5, 1000], rel=1e-12)


def test_a_subnormal_mean_without_deviation_is_on_one_side() -> None:
    m = torch.tensor([5e-324, -5e-324, 1e-321, -1e-310, 1e308, -1e308, 0.0], dtype=torch.float64)
    zero = torch.zeros_like(m)
    assert subject.ratio(m, zero).tolist() == [1000, -1000, 1000, -1000, 1000, -1000, 0]
    assert subject.relu_probability(m, zero).tolist() == [1, 0, 1, 0, 1, 0, 0.5]


def test_a_subnormal_deviation_is_divided_by() -> None:
    m = torch.tensor([5e-324, -1e-323, 1.5e-323], dtype=torch.float64)
    assert subject.ratio(m, torch.full_like(m, 5e-324)).tolist() == [1, -2, 3]


def test_relu_probability() -> None:
    u = torch.linspace(-37, 37, 999, dtype=torch.float64)
    for x, got in zip(u.tolist(), subject.relu_probability(3 * u, torch.full_like(u, 3)).tolist(), strict=True):
        assert error(got, cdf(x)) <= (1 + x * x) * 2.0**-50 * cdf(x)


def test_standard_raw_moments_are_those_of_the_shifted_variable() -> None:
    """Y = (xi - t)_+ and Y = max(xi, -t), the latter by its own integrals and not by those of the package."""
    t = torch.cat([torch.linspace(0, 12, 200), torch.tensor([20.0, 38.0, 1000.0])]).double()
    low, high = subject.standard_raw(t, t < 0), subject.standard_raw(t, t >= 0)
    for i, x in enumerate(t.tolist()):
        truth = rectified(-x, 1.0)
        for got, want in zip(low, (truth.mean, truth.second, truth.third, truth.fourth), strict=True):
            assert error(got[i].item(), want) <= 64 * UNIT
        with ctx.workprec(PRECISION):
            phi, active, t1 = pdf(x), cdf(x), arb(x)
            mass = 1 - active  # max(xi, -t)^k = (-t)^k on xi < -t; integrals of xi^k phi over [-t, inf)
            integrals = (phi, active - t1 * phi, (t1**2 + 2) * phi, 3 * active - (t1**3 + 3 * t1) * phi)
            wants = [value + (-t1) ** (k + 1) * mass for k, value in enumerate(integrals)]
        for got, want in zip(high, wants, strict=True):
            assert error(got[i].item(), want) <= 64 * UNIT


def test_oracle_agrees_with_the_integral_over_an_interval() -> None:
    """Two oracles that share only the normal law: the whole line cut into three parts."""
    for m, r, a, b in [(0.3, 1.0, -1.0, 2.0), (-2.0, 0.5, 0.1, 0.4), (4.0, 2.0, -9.0, 3.0)]:
        parts = [(-math.inf, a), (a, b), (b, math.inf)]
        with ctx.workprec(PRECISION):
            total = sum((expected_relu_between(m, r, low, high) for low, high in parts), arb(0))
            assert abs(total - rectified(m, r).mean) < arb(2) ** -240
