"""Tails and sigmoids of dominated sums against ball arithmetic, quadrature and the laws that attain them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flint import arb
from support import oracles
from tests.paper.truth import _NODES, _WEIGHTS

from bnndp.errors import InputError
from bnndp.paper.concentration import _table, dominated_sigmoid, dominated_tail, tail_quantile


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gaussian_grid(panels: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a standard Gaussian on [-12, 12]."""
    edges = np.linspace(-12, 12, panels + 1)
    half = np.diff(edges)[:, None] / 2
    t = (edges[:-1, None] + half + half * _NODES).ravel()
    return t, (half * _WEIGHTS).ravel() * np.exp(-0.5 * t**2) / math.sqrt(2 * math.pi)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


@pytest.mark.parametrize("q", [-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 20.0, 30.0])
def test_tail_is_attained_by_the_gaussian_averaged_beyond_a_point(q: float) -> None:
    """Averaging N(0, 1) over {> q} leaves an atom of mass Q(q) at E[xi | xi > q]; by Jensen it is dominated."""
    chance = oracles.tail(q)
    t = oracles.down(oracles.pdf(q) / chance)
    found = dominated_tail(tensor(t)).item()
    assert oracles.above(found, chance)
    assert found <= 1.01 * float(chance)


@pytest.mark.parametrize("chance", [0.4, 1e-2, 1e-6, 1e-100, 1e-280])
def test_quantile_keeps_its_promise_and_is_not_far_from_the_gaussian_one(chance: float) -> None:
    t = tail_quantile(chance)
    assert dominated_tail(tensor(t)).item() <= chance
    assert dominated_tail(tensor(0.999 * t - 1e-9)).item() > chance
    assert oracles.tail(t) < chance < 3 * oracles.tail(t)


def test_quantile_refuses_what_has_no_float() -> None:
    for chance in (0.0, -1.0, float("nan"), 1e-300):
        with pytest.raises(InputError, match="probability of a tail"):
            tail_quantile(chance)


def test_tables_are_convex_and_above_the_sigmoid() -> None:
    table = _table()
    assert (table.weights >= 0).all()
    knots = table.knots.tolist()
    points = knots + [k + 0.03 for k in knots] + [-0.5, -1.0, -3.0, -10.0, -300.0, 45.0, 800.0]
    for weights, limit in zip(table.weights.tolist(), table.limits.tolist(), strict=True):
        for d in points:
            value = arb(limit) + sum((arb(w) * max(k - d, 0.0) for w, k in zip(weights, knots, strict=True)), arb(0))
            assert value * (1 + arb(2) ** -30) >= 1 / (1 + arb(d).exp())


@pytest.mark.parametrize("std", [0.0, 1e-9, 0.1, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("mean", [-20.0, -1.0, 0.0, 0.3, 2.0, 6.0, 15.0, 60.0])
def test_sigmoid_is_above_the_gaussian_mean(mean: float, std: float) -> None:
    t, weight = gaussian_grid()
    truth = float((weight * sigmoid(-(mean + std * t))).sum())
    found = dominated_sigmoid(tensor(mean), tensor(std)).item()
    assert found >= truth * (1 - 1e-9) - 1e-15
    assert found <= 1
    if mean >= 0 and std <= 0.1:
        assert found <= 1.01 * truth + 8e-4 + 1e-17  # the chords
    if mean >= 6 and std <= 1:
        assert found <= 1.04 * truth + 1e-15  # knots half a unit apart


@pytest.mark.parametrize("cut", [-3.0, -2.0, -1.0, 0.0, 1.0])
@pytest.mark.parametrize(("mean", "std"), [(0.5, 1.0), (3.0, 2.0), (6.0, 2.0), (6.0, 8.0), (1.0, 0.2)])
def test_sigmoid_is_above_two_point_and_rectified_laws(mean: float, std: float, cut: float) -> None:
    """Laws dominated by the Gaussian: its averages on both sides of a cut, and rectified Gaussians less their mean."""
    found = dominated_sigmoid(tensor(mean), tensor(std)).item()
    below, above = float(oracles.cdf(cut)), float(oracles.tail(cut))
    density = float(oracles.pdf(cut))
    atoms = np.array([-density / below, density / above])
    assert found >= (np.array([below, above]) * sigmoid(-(mean + std * atoms))).sum() - 1e-14
    t, weight = gaussian_grid()
    z = np.maximum(cut + t, 0) - float(oracles.expected_relu(cut, 1.0))
    for sign in (-1, 1):
        assert found >= (weight * sigmoid(-(mean + sign * std * z))).sum() - 1e-9


def test_sigmoid_and_tail_fail_closed() -> None:
    assert (dominated_tail(tensor(40.0, 60.0, 1e3)) > 0).all()  # P(M >= t) is positive, however small
    found = dominated_sigmoid(tensor(float("nan"), -float("inf"), 0.0), tensor(1.0, 1.0, float("inf")))
    assert not (found < 1).any()
