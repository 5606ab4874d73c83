"""Moments given the input, where one order or one source of change dominates: few outcomes (m, s), by quadrature.

``nodes/test_activation_moments.py`` has random laws of all scales; here each term of a bound is the one that is needed.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.layer_networks import ACTS, activation
from tests.engine.explicit_laws import given
from tests.engine.sums.test_expansion import SETTINGS, random_case
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.inequalities.expectation import expectation_bounds
from bnndp.engine.inequalities.given import given_input
from bnndp.engine.inequalities.remainders import moved_by_spread
from bnndp.engine.inequalities.second_moment import second_moment, variance_of
from bnndp.engine.inequalities.smoothed import second
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.moments.signal import POWERS
from bnndp.engine.nodes.activation_moments import activated
from bnndp.engine.planes.mean import planes
from bnndp.geometry.bounds import Interval


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def norm(chance: Tensor, values: Tensor, q: float) -> Tensor:  # (1, outcomes) -> (1, 1)
    return (chance * values.abs() ** q).sum(-1, keepdim=True) ** (1 / q)


def pre_of(chance: Tensor, m: Tensor, s: Tensor, half: float = 0.0) -> PreActivation:  # (1, outcomes) each
    """What is known of a law; ``half`` puts the middle of the range of means that far below the mean."""
    mean, spread = ((chance * x).sum(-1, keepdim=True) for x in (m, s))
    zero, sd = torch.zeros_like(mean), norm(chance, m - mean, 2)

    def norms(values: Tensor, powers: tuple[int, ...] = POWERS) -> Tensor:
        return torch.stack([norm(chance, values, q) for q in powers], -1)

    return PreActivation(
        mean=Interval(mean - 2 * half, mean),
        spread=Interval(spread, spread),
        spread_deviation=norm(chance, s - spread, 2),
        noise=Interval(zero, zero),
        noise_deviation=zero,
        central=sd.square(),
        third=zero,
        absolute_third=zero,
        convex=False,
        quartic=zero,
        norms=norms(m - mean),
        spread_norms=norms(s.sqrt()),
        spread_away=norms(s.sqrt() - spread.sqrt()),
        spread_deltas=norms(s - spread, POWERS[:2]),
        expansion=None,
        fixed=False,
        source=False,
    )


def moments(phi: Any, m: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The central moments given each outcome."""
    values, weight, mean = given(phi, m, s)
    centred = values - mean[..., None]
    return centred**2 @ weight, centred**3 @ weight, centred**4 @ weight


def deviation(chance: Tensor, values: Tensor) -> float:
    return float(norm(chance, values - (chance * values).sum(-1, keepdim=True), 2))


def test_third_moments_move_with_the_variance() -> None:
    relu = activation("relu")
    for chance, s in (
        (row(0.5, 0.5), row(0.999, 1.001)),  # to first order
        (row(1 - 1e-4, 1e-4), row(1e-6, 1.0)),  # of heavy tails: to the power 3/2
    ):
        m = torch.zeros_like(s)
        claim = float(given_input(relu, pre_of(chance, m, s)).third_deviation)
        assert deviation(chance, moments(relu, m, s)[1]) <= claim * (1 + 1e-3)


@pytest.mark.parametrize("step", [1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("act", ["relu", "tanh", "gelu"])
def test_moments_move_with_the_mean(act: str, step: float) -> None:
    """By a little, so that only the first derivative counts: over the outcomes, and from the middle of a box."""
    phi, chance = activation(act), row(0.5, 0.5)
    for at in (-1.0, 0.0, 0.5):
        m, s = row(at - step, at + step), row(1.0, 1.0)
        found = given_input(phi, pre_of(chance, m, s))
        v, k3, _ = moments(phi, m, s)
        assert deviation(chance, v) <= float(found.noise_deviation) * (1 + 1e-3) + 1e-6
        assert deviation(chance, k3) <= float(found.third_deviation) * (1 + 1e-3) + 1e-5
        still = row(at, at)
        found = given_input(phi, pre_of(chance, still, s, half=step))
        at_v, at_k3, at_c4 = (float(x[0, 0]) for x in moments(phi, still, s))
        assert float(found.noise.lower) - 1e-5 <= at_v <= float(found.noise.upper) + 1e-5
        assert float(found.third.lower) - 1e-4 <= at_k3 <= float(found.third.upper) + 1e-4
        assert at_c4 <= float(found.fourth) + 1e-4
        assert at_c4 <= float(found.fourth_mean) + 1e-4


def test_the_first_derivative_of_the_fourth_moment_is_needed() -> None:
    """Where the mean is half a thousandth off the middle, second order is next to nothing."""
    relu, chance, m, s = activation("relu"), row(0.5, 0.5), row(0.3, 0.3), row(1.0, 1.0)
    half = 1e-3
    found = given_input(relu, pre_of(chance, m, s, half=half))
    at, there = (relu.central(m[:, :1] - x, s[:, :1]).fourth.lower for x in (half, 0.0))
    assert float(there) <= float(found.fourth_mean)
    assert float(found.fourth_mean - at) <= 10 * float(there - at)


@pytest.mark.parametrize("act", ["relu", "leaky_relu", "hard_tanh", "tanh", "gelu", "softplus"])
def test_the_second_derivative(act: str) -> None:
    phi = activation(act)
    m = torch.linspace(-4, 4, 401, dtype=torch.float64)[None]
    for r in (0.1, 0.5, 2.0):
        root = torch.full_like(m, r)
        h = 1e-4
        truth = (phi.slope(m + h, root) - phi.slope(m - h, root)).abs() / (2 * h)
        found = second(phi, m, root)
        assert bool((truth <= found + 1e-5).all())
        assert float(found.max()) <= 1.1 * float(truth.max()) + 0.05 / r


FAR_OUT = (  # chances, m, s: s moves by much where the curvature is small, or the mean moves to where it is larger
    (row(0.05, 0.9, 0.05), row(3.0, 3.0, 3.0), row(0.1, 1.0, 1.9)),
    (row(0.25, 0.25, 0.25, 0.25), row(2.0, 4.0, 2.0, 4.0), row(0.99, 0.99, 1.01, 1.01)),
    (row(0.25, 0.25, 0.25, 0.25), row(1.0, 3.0, 1.0, 3.0), row(0.7, 1.3, 1.3, 0.7)),
    (row(0.5, 0.5), row(0.0, 0.0), row(0.9, 1.1)),
)


@pytest.mark.parametrize("act", ["relu", "leaky_relu", "hard_tanh", "tanh", "gelu", "softplus"])
@pytest.mark.parametrize("number", range(len(FAR_OUT)))
def test_what_the_variance_moves(act: str, number: int) -> None:
    phi, (chance, m, s) = activation(act), FAR_OUT[number]
    x = pre_of(chance, m, s)
    root = x.spread.upper.sqrt()
    change = phi.mean(m, s.sqrt()) - phi.mean(m, root.expand_as(m))
    assert float(norm(chance, change, 2)) <= float(moved_by_spread(phi, x, root)) * (1 + 1e-9)
    claims = moved_by_spread(phi, x, root, norms=True)[0, 0]
    for q, claim in zip(POWERS, claims.tolist(), strict=True):
        assert float(norm(chance, change, q)) <= claim * (1 + 1e-9)


def _line(phi: Any, x: PreActivation) -> Any:
    near = expectation_bounds(phi, x)
    _, linear = activated(phi, x, near, planes(phi, x, near))
    assert linear.square is not None
    return linear.square


@pytest.mark.parametrize("act", ["relu", "tanh", "gelu", "softplus"])
@pytest.mark.parametrize(("half", "step"), [(0.01, 1e-3), (0.0, 1e-3), (0.0, 0.1), (0.1, 0.01), (0.03, 1e-4)])
def test_lines_of_squares(act: str, half: float, step: float) -> None:
    """What a line at the middle leaves where the mean is elsewhere in the box, and where it moves."""
    phi, chance = activation(act), row(0.2, 0.8)
    for at in (0.0, 0.4, 2.0):
        m, s = row(at - step, at + step), row(1.0, 1.0)
        line = _line(phi, pre_of(chance, m, s, half=half))
        found = second_moment(phi, m, s.sqrt())
        q = 0.5 * (found.lower + found.upper)
        assert deviation(chance, q - line.slope * m) <= float(line.remainder) * (1 + 1e-6) + 1e-11


def test_norms_of_squares_of_centred_values() -> None:
    """The square of a Gaussian less its mean has the norm 60^(1/4) in L4, and its deviation is the root of two."""
    chance, m, s = row(0.5, 0.5), row(0.0, 0.0), row(1.0, 1.0)
    line = _line(activation("identity"), pre_of(chance, m, s))
    assert float(line.given_norms[0, 0, 0]) >= 60**0.25
    assert float(line.deviations[0, 0, 0]) >= math.sqrt(2) * (1 - 1e-12)
    assert float(line.given) >= math.sqrt(2) * (1 - 1e-12)


@pytest.mark.parametrize(
    "act", slow_but([a for a in ACTS if a != "piecewise_affine"], "relu", "tanh", "softplus", "silu")
)
@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_variances_of_functions_of_sums(act: str, setting: int) -> None:
    """With known cumulants the mean of a square and the square of a mean are off by known amounts, of either sign."""
    phi = activation(act)
    for n_in in (1, 3):
        law = random_case(10 * setting + n_in, n_in, **SETTINGS[setting])
        found = variance_of(phi, law.pre, expectation_bounds(phi, law.pre))
        at = second_moment(phi, law.m, law.s.sqrt())
        truth = law.mean(0.5 * (at.lower + at.upper)) - law.truth(phi) ** 2
        blur = law.mean(at.upper - at.lower) + 1e-13  # wide where r is beyond the rule of quadrature
        assert bool((found.lower.nan_to_num(0.0) <= truth + blur).all())
        assert bool((truth <= found.upper.nan_to_num(torch.inf) + blur).all())
