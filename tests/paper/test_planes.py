"""Planes of prop:neuron against ball arithmetic: above and below g(m(z), r(z)) at vertices, inside, and far away."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from support import oracles
from tests.paper.truth import gaussians, linear, plane, random_linear

from bnndp.layers import Linear
from bnndp.maths.rectified import expected_relu
from bnndp.paper.layers import Layer, Ranges, Region
from bnndp.paper.planes import lower_planes, upper_planes, vertex_slopes


def scaled(layer: Linear, std: float) -> Linear:
    return Linear(layer.weight_mean, layer.weight_std * std, layer.bias_mean, layer.bias_std * std)


def region(lower: list[float], upper: list[float], at: list[float] | None = None) -> Region:
    low, high = (torch.tensor([[end]], dtype=torch.float64) for end in (lower, upper))
    return Region(low, high, 0.5 * (low + high) if at is None else torch.tensor([[at]], dtype=torch.float64))


def points(lower: list[float], upper: list[float], seed: int, inside: int = 12) -> list[list[float]]:
    rng = random.Random(seed)
    found = [list(v) for v in itertools.product(*zip(lower, upper, strict=True))][:16]
    return found + [[rng.uniform(a, b) for a, b in zip(lower, upper, strict=True)] for _ in range(inside)]


REGIONS = [
    ([-1.0], [0.5]),
    ([0.3], [0.3]),
    ([-2.0, 0.0], [-1.0, 3.0]),
    ([0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 5.0, 1e-3]),
    ([-1.0, 2.0, 0.0, -3.0, 1e3], [1.0, 2.0, 1e-9, 4.0, 1.1e3]),
]


@pytest.mark.parametrize("std", [0.0, 1e-200, 1e-8, 1.0, 1e6])
@pytest.mark.parametrize(("lower", "upper"), REGIONS)
def test_planes_enclose_the_exact_mean(lower: list[float], upper: list[float], std: float) -> None:
    one = scaled(random_linear(4, len(lower), seed=len(lower)), std)
    layer = Layer.of(one)
    where = region(lower, upper)
    low, high = lower_planes(layer, where.at), upper_planes(layer, where, layer.ranges(where))
    for z in points(lower, upper, seed=1):
        for h, (m, r) in enumerate(gaussians(one, z)):
            truth = oracles.expected_relu(m, r)
            assert plane(layer, low, layer.var_lower, z, h) <= truth
            assert plane(layer, high, layer.var_upper, z, h) >= truth


@pytest.mark.parametrize("at", [[0.0, 0.0], [1.0, 2.0], [1e-8, 0.0], [50.0, 1e3]])
def test_tangents_hold_for_every_input(at: list[float]) -> None:
    one = random_linear(6, 2, seed=3)
    layer = Layer.of(one)
    low = lower_planes(layer, torch.tensor([[at]], dtype=torch.float64))
    for z in ([1e9, 0.0], [0.0, 1e9], [-1e6, 1e6], [1e-30, 1e-30], [0.0, 0.0], at):
        for h, (m, r) in enumerate(gaussians(one, z)):
            assert plane(layer, low, layer.var_lower, z, h) <= oracles.expected_relu(m, r)


def test_tangent_touches() -> None:
    layer, at = Layer.of(random_linear(8, 5, seed=5)), torch.rand(1, 1, 5, dtype=torch.float64)
    gap = expected_relu(*layer.point(at)) - lower_planes(layer, at)(layer, at)
    assert gap.min() >= 0
    assert gap.max() < 1e-11


def test_chord_touches_both_ends_for_one_input() -> None:
    one = random_linear(8, 1, seed=6)
    layer, where = Layer.of(one), region([-1.0], [2.0])
    high = upper_planes(layer, where, layer.ranges(where))
    gap = [
        float(plane(layer, high, layer.var_upper, [x], h) - oracles.expected_relu(m, r))
        for x in (-1.0, 2.0)
        for h, (m, r) in enumerate(gaussians(one, [x]))
    ]
    assert max(gap) < 1e-10


def test_gap_at_a_point_is_rounding_only() -> None:
    layer = Layer.of(random_linear(16, 7, seed=7))
    z = [0.5, -1.0, 2.0, 0.0, 1.0, -0.25, 3.0]
    where = region(z, z)
    gap = upper_planes(layer, where, layer.ranges(where))(layer, where.at) - lower_planes(layer, where.at)(
        layer, where.at
    )
    assert gap.max() < 1e-11


def test_ordinary_network_gets_the_usual_relaxation() -> None:
    """Zero deviations: between the chord (l, 0)-(u, u) and a line below max(m, 0)."""
    one = linear([[1.0, -2.0, 0.5, 1.0]], [[0.0] * 4], [0.25], [0.0])
    layer, where = Layer.of(one), region([-1.0] * 4, [1.0] * 4)
    high = upper_planes(layer, where, layer.ranges(where))
    low, up = -4.25, 4.75
    assert high.a.item() == pytest.approx(up / (up - low), abs=1e-12)
    assert high.offset.item() == pytest.approx(high.a.item() * (0.25 - low), abs=1e-12)


def test_slopes_include_the_concave_envelope() -> None:
    """Lowest of the candidates at a point = best affine bound there over the four vertices (a linear program)."""
    ranges = Ranges(*(torch.tensor([[[v]]], dtype=torch.float64) for v in (-1.0, 2.0, 0.1, 1.5)))
    alpha, beta = (t.flatten() for t in vertex_slopes(ranges))
    corners = [(m, r, float(oracles.expected_relu(m, r))) for m in (-1.0, 2.0) for r in (0.1, 1.5)]
    for m, r in ((0.0, 0.5), (1.5, 1.4), (-0.9, 1.0), (0.5, 0.8)):
        ours = min(
            a * m + b * r + max(g - a * p - b * q for p, q, g in corners)
            for a, b in zip(alpha.tolist(), beta.tolist(), strict=True)
        )
        s, t = (m + 1) / 3, (r - 0.1) / 1.4  # weights on the vertices have one free parameter k
        envelope = max(
            sum(w * g for w, (_, _, g) in zip((1 - s - t + k, t - k, s - k, k), corners, strict=True))
            for k in (max(0.0, s + t - 1), min(s, t))
        )
        assert ours == pytest.approx(envelope, abs=1e-12)
