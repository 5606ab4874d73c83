"""Planes in means and spreads hold on rectangles of both, and lie on the function at points."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.dice import Dice
from support.layer_networks import ACTS, activation
from tests.engine.explicit_laws import of_gaussian
from tests.marks import slow_but

from bnndp.activations import Gelu, HardTanh, LeakyRelu, Relu, Tanh
from bnndp.activations.activation import Activation
from bnndp.engine.inequalities.expectation import expectation_bounds
from bnndp.engine.moments.signal import fixed
from bnndp.engine.planes.mean import _sloped, planes, planes_of_exact
from bnndp.engine.propagation.pre_activation import pre_of_signal
from bnndp.geometry.bounds import Interval

FAST = tuple(act for act in ACTS if act != "piecewise_affine")


@pytest.mark.parametrize("act", slow_but(ACTS, "relu", "tanh", "gelu", "hard_tanh"))
@pytest.mark.parametrize("width", [0.0, 1e-6, 0.1, 3.0])
def test_planes_hold_on_rectangles(act: str, width: float) -> None:
    phi, dice = activation(act), Dice(3)
    count = 40 if act == "piecewise_affine" else 400
    m, s = 6 * dice.uniform(shape=(count, 1)) - 3, 10 ** (5 * dice.uniform(shape=(count, 1)) - 4)
    s[: count // 8] = 0.0
    mean = Interval(m, m + width * dice.uniform(shape=(count, 1)))
    spread = Interval(
        s, s * (1 + width * dice.uniform(shape=(count, 1))) + width * 0.1 * dice.uniform(shape=(count, 1))
    )
    x = of_gaussian(mean, spread)
    share_m, share_s = dice.uniform(shape=(count, 30)), dice.uniform(shape=(count, 30))
    share_m[:, :4] = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    share_s[:, :4] = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    at_m = mean.lower + share_m * (mean.upper - mean.lower)
    at_s = (spread.lower + share_s * (spread.upper - spread.lower)).minimum(spread.upper)
    truth = torch.exp(-0.5 * at_s) * torch.sin(at_m) if act == "piecewise_affine" else phi.mean(at_m, at_s.sqrt())
    near = expectation_bounds(phi, x)
    slack = 1e-12 * (1 + at_m.abs() + at_s.sqrt())
    for found in (planes(phi, x, near), planes(phi, x, replace(near, pointwise=None))):
        low = found.lower_alpha * at_m + found.lower_beta * at_s + found.lower_offset
        high = found.upper_alpha * at_m + found.upper_beta * at_s + found.upper_offset
        for bound in (low, found.range.lower):
            assert bool((bound <= truth + slack).all()), float((bound - truth).max())
        for bound in (high, found.range.upper):
            assert bool((bound >= truth - slack).all()), float((truth - bound).max())


def test_planes_of_a_point_lie_on_the_function() -> None:
    for act in FAST:
        phi = activation(act)
        m = torch.linspace(-3, 3, 31, dtype=torch.float64)[:, None]
        s = torch.full_like(m, 0.3)
        x = of_gaussian(Interval(m, m), Interval(s, s))
        found = planes(phi, x, expectation_bounds(phi, x))
        truth = phi.mean(m, s.sqrt())
        assert float((found.range.upper - truth).abs().max()) < 1e-11, act
        assert float((truth - found.range.lower).abs().max()) < 1e-11, act


def test_a_kink_at_zero_with_ranges_that_underflow_still_has_a_bound() -> None:
    """The square of a step of 1e-290 is zero, and the curvature at a kink infinite: their product is no number."""
    tiny = torch.full((1, 1), 1e-290, dtype=torch.float64)
    x = of_gaussian(Interval(-tiny, tiny), Interval(0 * tiny, 0 * tiny))
    for act in FAST:
        phi = activation(act)
        found = planes(phi, x, expectation_bounds(phi, x))
        assert bool(found.range.lower.isfinite() & found.range.upper.isfinite()), act


@pytest.mark.parametrize("phi", [Relu(), LeakyRelu(0.1), HardTanh(), Tanh(), Gelu()], ids=lambda phi: phi.kind)
def test_planes_of_values_without_spread_enclose_the_activation(phi: Activation) -> None:
    a = torch.tensor([-9.0, -1.5, -1.0, -0.7, -1e-9, 0.0, 0.4, 1.0, 3.0], dtype=torch.float64)
    width = torch.tensor([0.0, 1e-9, 0.7, 2.5, 12.0], dtype=torch.float64)
    low, wide = (grid.reshape(1, -1) for grid in torch.meshgrid(a, width, indexing="ij"))
    found = planes_of_exact(phi, pre_of_signal(fixed(Interval(low, low + wide))))
    for share in torch.linspace(0, 1, 301, dtype=torch.float64):
        t = (low + share * wide).clamp(low, low + wide)
        value = phi(t)
        assert bool((found.lower_alpha * t + found.lower_offset <= value).all())
        assert bool((found.upper_alpha * t + found.upper_offset >= value).all())
        assert bool(((found.range.lower <= value) & (value <= found.range.upper)).all())
    if isinstance(phi, Relu):  # the best lines there are: the chord, and in the middle the function itself
        middle, end = low + 0.5 * wide, low + wide
        above = 0.5 * (phi(low) + phi(end))
        assert torch.allclose(found.upper_alpha * middle + found.upper_offset, above, rtol=1e-12, atol=1e-12)
        assert torch.allclose(found.lower_alpha * middle + found.lower_offset, phi(middle), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("act", ["relu", "tanh", "leaky_relu"])
def test_planes_that_cannot_be_better_are_left_out_only_where_none_is(act: str) -> None:
    """Planes with a slope in s are tried where the function itself is better than the flat plane: nothing is lost."""
    dice, phi = Dice(5), activation(act)
    low, least, wide, more = dice.normal(40, 30), *(dice.uniform(shape=(40, 30)) for _ in range(3))
    least = 10 ** (-2 * least)
    m, s, zero = Interval(low, low + wide**3), Interval(least, least * (1 + more)), torch.zeros_like(low)
    centre = phi.mean(0.5 * (m.lower + m.upper), (0.5 * (s.lower + s.upper)).sqrt())
    for sign, level in ((1, s.upper), (-1, s.lower)):
        ends = torch.stack([phi.mean(end, level.sqrt()) for end in (m.lower, m.upper)])
        flat = zero, zero, ends.amax(0) if sign > 0 else ends.amin(0)
        worth = torch.full((40, 1), 1e-3, dtype=torch.float64)
        some, every = (_sloped(phi, m, s, flat, best, zero, worth, sign) for best in (centre, zero + torch.nan))
        taken = every[1] != 0
        assert 0 < int(taken.sum()) < taken.numel()
        assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(some, every, strict=True))  # rounding
