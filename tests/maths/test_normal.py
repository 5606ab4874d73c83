"""The normal law against ball arithmetic, into the far tails, and the quantile of a rectangle on its safe side."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracles import PRECISION, cdf, error, pdf, tail

from bnndp.errors import InputError
from bnndp.maths import normal

UNDERFLOW = 2.0**-1020
ABSOLUTE = 2.0**-51
FAR = (-1e300, -1e3, 1e-300, 1e3, 1e300)


@pytest.mark.parametrize(
    ("name", "oracle"), [("pdf", pdf), ("cdf", cdf), ("tail", tail)], ids=["density", "distribution", "tail"]
)
def test_tails_are_accurate_relative_to_themselves(name: str, oracle: type[arb]) -> None:
    t = torch.cat([torch.linspace(-39, 39, 3001).double(), torch.tensor(FAR, dtype=torch.float64)])
    for x, got in zip(t.tolist(), getattr(normal, name)(t).tolist(), strict=True):
        truth = oracle(x)
        wrong = error(got, truth)
        assert 0 <= got <= 1
        assert wrong <= ABSOLUTE
        assert wrong <= (1 + arb(x) ** 2) * ABSOLUTE * truth + UNDERFLOW, x


def test_hazard_rate() -> None:
    t = torch.linspace(-37, 1000, 3001).double()
    for x, got in zip(t.tolist(), normal.hazard(t).tolist(), strict=True):
        assert (
            error(got, pdf(x) / tail(x)) <= (1 + arb(x) ** 2 * (x < 0)) * 16 * ABSOLUTE * pdf(x) / tail(x) + UNDERFLOW
        ), x
    assert (normal.hazard(t).diff() > 0).all()


@pytest.mark.parametrize("t", [math.inf, -math.inf])
def test_infinite_arguments(t: float) -> None:
    x = torch.tensor(t, dtype=torch.float64)
    assert normal.cdf(x) == (t > 0)
    assert normal.tail(x) == (t < 0)
    assert normal.pdf(x) == 0
    assert normal.cdf(torch.tensor(math.nan)).isnan()


def _between(a: float, b: float) -> arb:
    with ctx.workprec(4 * PRECISION):
        return cdf(b) - cdf(a) if a < 0 else tail(a) - tail(b)


def _check_interval(a: float, b: float) -> None:
    got = normal.interval_probability(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)).item()
    truth = _between(a, b)
    nearest = 0.0 if a <= 0 <= b else min(abs(a), abs(b))
    wrong = error(got, truth)
    assert 0 <= got <= 1
    assert wrong <= 2 * ABSOLUTE
    if nearest < 40:  # relative to the tail in which the interval lies: nothing is lost to 1 - (1 - p)
        assert wrong <= 2 * (1 + nearest**2) * ABSOLUTE * tail(nearest) + UNDERFLOW, (a, b)


def test_interval_probability_on_random_intervals() -> None:
    generator = torch.Generator().manual_seed(7)
    start = 80 * torch.rand(1500, generator=generator, dtype=torch.float64) - 40
    width = 10 ** (6 * torch.rand(1500, generator=generator, dtype=torch.float64) - 5)
    for a, b in zip(start.tolist(), (start + width).tolist(), strict=True):
        _check_interval(a, b)


ENDS = st.floats(-1e3, 1e3) | st.sampled_from([-math.inf, math.inf, 0.0, -0.0, 5e-324, -38.0, 38.0, 40.0])


@settings(max_examples=400, deadline=None)
@given(a=ENDS, b=ENDS)
def test_interval_probability_at_the_edges(a: float, b: float) -> None:
    _check_interval(min(a, b), max(a, b))


def test_interval_probability_is_symmetric_and_passes_nan_on() -> None:
    a = torch.tensor([1.0, 8.0, 30.0], dtype=torch.float64)
    b = torch.tensor([2.0, math.inf, 30.5], dtype=torch.float64)
    assert torch.equal(normal.interval_probability(a, b), normal.interval_probability(-b, -a))
    assert normal.interval_probability(torch.tensor(math.nan), torch.tensor(1.0)).isnan()


SIZES = (1, 2, 3, 10, 64, 512, 1000, 10**5, 10**6)


@pytest.mark.parametrize("epsilon", [10.0**-k for k in range(1, 13)] + [0.5, 0.9, 1e-3, 1e-15, 1e-100, 1e-290])
def test_rectangle_holds_the_mass_and_is_hardly_too_wide(epsilon: float) -> None:
    for n in SIZES:
        c = normal.rectangle_quantile(epsilon, n)
        with ctx.workprec(2048):
            assert (1 - 2 * tail(c)) ** n >= 1 - arb(epsilon), (epsilon, n)
            smaller = arb(c) * (1 - arb(1e-9))
            assert (1 - 2 * tail(smaller)) ** n < 1 - arb(epsilon), (epsilon, n)


def test_rectangle_stays_safe_where_almost_no_mass_is_asked_for() -> None:
    for k, share, n in itertools.product(range(1, 53), (1.0, 0.7, 0.9), (1, 2, 5)):
        epsilon = 1 - share * 2.0**-k
        c = normal.rectangle_quantile(epsilon, n)
        with ctx.workprec(PRECISION):
            assert (1 - 2 * tail(c)) ** n >= 1 - arb(epsilon), (epsilon, n)


@pytest.mark.parametrize(
    ("epsilon", "n"),
    [
        (0.0, 1),
        (1.0, 1),
        (-0.1, 3),
        (1.5, 3),
        (math.nan, 3),
        (math.inf, 3),
        (0.1, 0),
        (0.1, -2),
        (1e-320, 1),
        (1e-299, 100),
    ],
)
def test_rectangle_refuses_what_has_no_answer(epsilon: float, n: int) -> None:
    with pytest.raises(InputError, match=f"n={n}"):
        normal.rectangle_quantile(epsilon, n)
