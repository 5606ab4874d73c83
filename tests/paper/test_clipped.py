"""The Gaussian above a rectified Gaussian with clipped noise, against integrals of its stop-loss transform."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flint import arb
from support import oracles
from tests.paper.truth import _NODES, _WEIGHTS

from bnndp.paper.clipped import _STEP, clipped_loss, clipped_variance

REACHES = (1.0, 2.5, 3.3, 4.5, 6.0)


def variance(u: float, reach: float) -> float:
    return clipped_variance(torch.tensor([u], dtype=torch.float64), reach).item()


def law(u: float, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Values and probabilities of ReLU(u + min(xi, c)): two atoms and Gauss-Legendre panels between them."""
    edges = np.linspace(min(-u, reach), reach, 61)
    half = np.diff(edges)[:, None] / 2
    t = (edges[:-1, None] + half + half * _NODES).ravel()
    weight = (half * _WEIGHTS).ravel() * np.exp(-0.5 * t**2) / math.sqrt(2 * math.pi)
    ends = [float(oracles.cdf(min(-u, reach))), float(oracles.tail(reach))]
    return np.maximum(np.concatenate([[0.0], u + t, [u + reach]]), 0), np.concatenate([ends[:1], weight, ends[1:]])


def gaussian_excess(t: float, std: float) -> float:
    return float(oracles.expected_relu(-t, std))


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("u", [-5.9, -4.4, -3.2, -2.41, -1.7, -1.0, -0.3, -0.01])
def test_its_stop_loss_is_above_that_of_the_clipped_law(u: float, reach: float) -> None:
    """Integrals of kinked functions are good to about 1e-7 here; where it is tight a variance less by a tenth fails."""
    values, chance = law(u, reach)
    assert chance.sum() == pytest.approx(1, abs=1e-12)
    values = values - (values * chance).sum()
    v = variance(u, reach)
    levels = np.linspace(values.min() - 0.1, values.max() + 0.1, 301)
    mine = np.array([(np.maximum(values - t, 0) * chance).sum() for t in levels])
    theirs = np.array([gaussian_excess(t, math.sqrt(v)) for t in levels])
    assert (mine <= theirs + 2e-6 * (values.max() - values.min())).all()
    if u > -reach + 4 * _STEP and v < 1:
        less = np.array([gaussian_excess(t, math.sqrt(0.6 * v)) for t in levels])
        assert (mine > less).any()


@pytest.mark.parametrize("reach", REACHES)
def test_it_rises_from_nothing_to_one(reach: float) -> None:
    u = torch.linspace(-reach - 2, 1, 500, dtype=torch.float64)
    v = clipped_variance(u, reach)
    assert (v.diff() >= 0).all()
    assert (v[u > 0] == 1).all()
    assert (v[u < -reach] < 1e-6).all()
    assert variance(float("nan"), reach) == 1
    assert variance(-math.inf, reach) < 1e-6
    assert 0.3 < variance(-_STEP, reach) < 1 or reach < 2


@pytest.mark.parametrize("reach", REACHES)
def test_loss_is_the_mean_excess(reach: float) -> None:
    truth = oracles.expected_relu(-reach, 1.0)
    assert oracles.above(clipped_loss(reach), truth)
    assert arb(clipped_loss(reach)) < truth * (1 + arb(1e-11))
