"""The judges of the campaign for classification against one another and against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from benchmarks.fuzz import classification_oracle as oracle
from benchmarks.fuzz.margins_judge import sampled_margins
from flint import arb
from support.ensembles import outputs
from support.networks import make_network

from bnndp.layers import Linear
from bnndp.network import BayesianNetwork


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("mean", [-20.0, -3.0, 0.0, 0.4, 5.0, 45.0])
@pytest.mark.parametrize("std", [0.0, 1e-9, 0.01, 1.0, 5.0, 100.0])
def test_the_mean_of_a_sigmoid(mean: float, std: float) -> None:
    """Against the trapezoidal rule on a fine grid, which converges exponentially for a Gaussian."""
    u = np.linspace(-12, 12, 400_001)
    weights = np.exp(-0.5 * u * u)
    truth = float((weights * np.exp(-np.logaddexp(0, -(mean + std * u)))).sum() / weights.sum())
    found = oracle.mean_sigmoid(numbers(mean), numbers(std), 64).item()
    assert found == pytest.approx(truth, rel=1e-8, abs=1e-15)
    assert oracle.mean_sigmoid(numbers(mean), numbers(std), 32).item() == pytest.approx(truth, rel=3e-6, abs=1e-15)


@pytest.mark.parametrize("sizes", [(2, 2), (2, 1, 2), (2, 2, 2), (2, 1, 1, 2)])
@pytest.mark.parametrize("std", [0.1, 2.0])
@pytest.mark.parametrize("pushed", [False, True])
def test_quadrature_agrees_with_draws(sizes: tuple[int, ...], std: float, pushed: bool) -> None:
    network = make_network(sizes, seed=3, std=std, task="classification")
    x = torch.tensor([[0.3, -0.8], [1.1, 0.2]], dtype=torch.float64)
    assert oracle.has_quadrature(network)
    value, error = oracle.quadrature_softmax(network, x)
    assert (error < 1e-6).all()
    assert torch.allclose(value.sum(-1), numbers(1, 1), atol=1e-12)
    draws = oracle.sampled_softmax(network, x, 2**15, seed=1, pushed=pushed)
    spread = draws.covariance.diagonal(dim1=1, dim2=2).sqrt()
    assert ((draws.mean - value).abs() <= 5 * spread + error).all()
    rows = torch.eye(2, dtype=torch.float64).expand(2, -1, -1)
    assert torch.allclose(draws.error(rows), spread)


def test_the_error_of_draws_is_honest() -> None:
    """Over many seeds the mean is off by one standard error, as often as it should be."""
    network = make_network((2, 1, 2), seed=3, std=1.0, task="classification")
    x = torch.tensor([[0.3, -0.8]], dtype=torch.float64)
    truth, _ = oracle.quadrature_softmax(network, x, nodes=128)
    scores = []
    for seed in range(60):
        draws = oracle.sampled_softmax(network, x, 2048, seed=seed, pushed=seed % 2 == 0)
        scores.append(float((draws.mean - truth)[0, 0] / draws.covariance[0, 0, 0].sqrt()))
    assert 0.7 < torch.tensor(scores).square().mean().sqrt() < 1.3


def test_without_variance_all_judges_agree() -> None:
    network = make_network((3, 7, 6, 4), seed=4, std=0.0, task="classification")
    x = torch.tensor([0.3, -0.2, 0.7], dtype=torch.float64)
    assert oracle.is_ordinary(network)
    exact = oracle.exact_softmax(network, x)
    assert sum(exact, arb(0)).overlaps(arb(1))
    z = outputs(network, x)[0]
    for ours, plain in zip(exact, torch.softmax(z, -1).tolist(), strict=True):
        assert float(ours.mid()) == pytest.approx(plain, rel=1e-12)
        assert ours.rad() < arb(1e-60)
    draws = oracle.sampled_softmax(network, x[None], 2048, seed=0)
    assert torch.allclose(draws.mean[0], torch.softmax(z, -1), rtol=1e-12)


@pytest.mark.parametrize("pushed", [False, True])
def test_margins_of_one_neuron(pushed: bool) -> None:
    """D = w z with z = ReLU(N(m, r^2)) and an independent w: closed forms for mean and variance."""
    m, r, mu, sd = 0.4, 0.8, 1.5, 0.3
    first = Linear(torch.zeros(1, 1), torch.zeros(1, 1), torch.tensor([m]), torch.tensor([r]))
    last = Linear(torch.tensor([[mu], [0.0]]), torch.tensor([[sd], [0.0]]), torch.zeros(2), torch.zeros(2))
    network = BayesianNetwork.from_linears([first, last], "classification")
    own = (first.bias_mean, first.bias_std, last.weight_mean[0], last.weight_std[0])
    m, r, mu, sd = (float(values[0]) for values in own)
    u = m / r
    cdf, pdf = 0.5 * math.erfc(-u / math.sqrt(2)), math.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)
    mean, second = m * cdf + r * pdf, (m * m + r * r) * cdf + m * r * pdf
    pair = (torch.tensor([0]), torch.tensor([1]))
    found = sampled_margins(network, torch.zeros(1, 1, dtype=torch.float64), pair, 2**14, 0, pushed=pushed)
    for name, truth in (("mean", mu * mean), ("variance", mu**2 * (second - mean**2) + sd**2 * second)):
        value, error = (part[0].item() for part in found[name])
        assert abs(value - truth) <= 5 * error
        assert error < 0.03 * truth
    tail, error = (part[0].item() for part in found["tail"])
    duel = oracle.quadrature_softmax(network, torch.zeros(1, 1, dtype=torch.float64), nodes=128)[0][0, 1].item()
    assert abs(tail - duel) <= 5 * error + 1e-7
