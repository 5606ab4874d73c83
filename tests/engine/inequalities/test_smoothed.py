"""Third and fourth derivatives of smoothed activations against integrals in Arb, at points and on rectangles."""

from __future__ import annotations

import math

import pytest
import torch
from flint import arb
from support.activation_truths import TRUTHS
from support.layer_networks import activation
from tests.marks import slow_but

from bnndp.activations.activation import Activation
from bnndp.engine.inequalities.smoothed import third_and_fourth
from bnndp.geometry.bounds import Interval

KINDS = tuple(kind for kind in TRUTHS if kind != "identity")
POINTS = [(0.0, 0.05), (0.4, 0.3), (-1.2, 0.7), (0.1, 1.0), (0.9, 1.6), (-2.5, 2.4), (3.0, 5.0), (-8.0, 1.0)]
SLACK = arb(1e-15)  # of the integrals


def contains(found: Interval, index: int, truth: arb, scale: float) -> bool:
    low, high = arb(found.lower[0, index].item()), arb(found.upper[0, index].item())
    return bool(low - SLACK * scale <= truth) and bool(truth <= high + SLACK * scale)


def tensor(values: list[float]) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


@pytest.mark.parametrize("kind", slow_but(KINDS, "relu", "hard_tanh", "tanh", "elu", "gelu", "piecewise_affine"))
@pytest.mark.parametrize("wide", [0.0, 0.02, 0.5])
def test_derivatives_lie_in_their_ranges(kind: str, wide: float) -> None:
    """Rectangles have the points at all corners and in the middle."""
    phi, truth = activation(kind), TRUTHS[kind]
    shares = [(0.5, 0.5)] if wide == 0 else [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]
    points = POINTS if wide == 0 else POINTS[1:7:2]
    for a, b in shares:
        m, r = tensor([p[0] for p in points]), tensor([p[1] for p in points])
        width_m, width_r = wide * r, wide * r
        lower_r = r - b * width_r
        ms, rs = Interval(m - a * width_m, m + (1 - a) * width_m), Interval(lower_r, lower_r + width_r)
        found = third_and_fourth(phi, ms, rs)
        for i, (x, y) in enumerate(points):
            for order, part in zip((3, 4), found, strict=True):
                assert contains(part, i, truth.derivative(x, y, order), y**-order), (x, y, order)


@pytest.mark.parametrize("kind", ["relu", "hard_tanh"])
def test_closed_forms_are_tight(kind: str) -> None:
    phi = activation(kind)
    m, r = tensor([p[0] for p in POINTS]), tensor([p[1] for p in POINTS])
    for order, part in zip((3, 4), third_and_fourth(phi, Interval(m, m), Interval(r, r)), strict=True):
        assert bool((part.upper - part.lower <= 1e-11 * phi.shape.derivative(order, r)).all())


@pytest.mark.parametrize("kind", ["tanh", "gelu", "silu", "softplus", "sigmoid"])
def test_differences_are_tight(kind: str) -> None:
    """Within a few hundredths of the largest value."""
    phi = activation(kind)
    m, r = tensor([p[0] for p in POINTS[1:7]]), tensor([p[1] for p in POINTS[1:7]])
    for order, part in zip((3, 4), third_and_fourth(phi, Interval(m, m), Interval(r, r)), strict=True):
        assert bool((part.upper - part.lower <= 0.05 * phi.shape.derivative(order, r)).all()), order


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("r", [0.0, 1e-300, 1e-30, 1e-9, 1e9, 1e35])
def test_ranges_at_any_size_are_no_wider_than_the_largest_value(kind: str, r: float) -> None:
    phi: Activation = activation(kind)
    m, roots = tensor([-1e35, -1.0, 0.0, 0.5, 1e35]), torch.full((1, 5), r, dtype=torch.float64)
    for order, part in zip((3, 4), third_and_fourth(phi, Interval(m, m), Interval(roots, roots)), strict=True):
        most = phi.shape.derivative(order, roots)
        assert not part.lower.isnan().any()
        assert not part.upper.isnan().any()
        assert bool((part.lower >= -most).all())
        assert bool((part.upper <= most).all())
        assert bool((part.lower <= part.upper).all())


def test_neighbouring_floats_as_ends() -> None:
    """The middle of two neighbours is one of them: the other is a whole width away."""
    phi = activation("relu")
    low = tensor([0.3])
    high = torch.nextafter(low, torch.full_like(low, math.inf))
    r = torch.full_like(low, 1e-16)  # u moves by half
    third, _ = third_and_fourth(phi, Interval(low - 0.3, high - 0.3), Interval(r, r))
    for end in (low - 0.3, high - 0.3):
        at, _ = third_and_fourth(phi, Interval(end, end), Interval(r, r))
        assert bool((third.lower <= at.upper).all())
        assert bool((at.lower <= third.upper).all())
