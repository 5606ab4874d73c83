"""The judges of the campaign against one another and against closed forms; and that the exact one has no tolerance."""

from __future__ import annotations

import math

import pytest
import torch
from benchmarks.fuzz import regression_oracle as oracle
from benchmarks.fuzz.regression_cases import Case
from benchmarks.fuzz.regression_judge import Claim, gather, judge
from flint import arb
from support import oracles
from support.networks import layer_of, make_network
from torch import Tensor

from bnndp.geometry.bounds import Affine
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork


def claim(box: Box, lower: float, upper: float) -> Claim:
    flat = torch.zeros(1, 1, box.n, dtype=torch.float64)
    ends = (torch.tensor([[end]], dtype=torch.float64) for end in (lower, upper))
    low, high = (Affine(flat, end) for end in ends)
    return Claim("interval", box, low, high, torch.arange(1))


def verdicts(network: BayesianNetwork, x: Tensor, lower: float, upper: float) -> list[bool]:
    """Whether each suspicion against ``lower <= E f(x) <= upper`` at one point was confirmed."""
    box = Box(x, x)
    case = Case(0, "test", network, box, box.lower[None])
    trial = claim(box, lower, upper)
    evidence = gather(case, box, box.lower[None], [], samples=64, seed=0)
    return [finding.violation for finding in judge(case, trial, evidence)[0]]


@pytest.mark.parametrize(("sizes", "std"), [((3, 1), 0.5), ((3, 9, 1), 0.5), ((3, 7, 6, 5, 1), 0.0)])
def test_one_unit_in_the_last_place_is_seen(sizes: tuple[int, ...], std: float) -> None:
    network = make_network(sizes, seed=1, std=std)
    x = torch.tensor([[0.3, -0.2, 0.7]], dtype=torch.float64)
    truth = oracle.exact_mean(network, x[0])[0]
    nearest = float(truth.mid())
    with oracle.precision():
        below = nearest if arb(nearest) < truth else math.nextafter(nearest, -math.inf)
        above = math.nextafter(below, math.inf)
        assert arb(below) < truth < arb(above)
    assert not any(verdicts(network, x, below, above))
    assert any(verdicts(network, x, above, above + 1))
    assert any(verdicts(network, x, below - 1, below))


@pytest.mark.parametrize("sizes", [(2, 1), (2, 5, 2)])
def test_exact_means_agree_with_the_other_oracle(sizes: tuple[int, ...]) -> None:
    network = make_network(sizes, seed=2, std=0.7, zeros=0.3)
    x = torch.tensor([0.4, -1.1], dtype=torch.float64)
    for ours, theirs in zip(oracle.exact_mean(network, x), oracles.exact_mean(network, x.tolist()), strict=True):
        assert ours.overlaps(theirs)
        assert ours.rad() < arb(1e-60)


def test_exact_means_of_ordinary_networks_agree_with_rationals() -> None:
    means = [([[1, -2], [3, 1]], [0.5, -1]), ([[1, -1], [2, 0.25]], [0, -0.5]), ([[4, -8]], [0.125])]
    layers = [layer_of(*each) for each in means]
    # x = (1, 0.25): (1, 2.25) -> (-1.25, 2.0625) -> 4 * 0 - 8 * 2.0625 + 0.125
    mean = oracle.exact_mean(BayesianNetwork.from_linears(layers), torch.tensor([1, 0.25], dtype=torch.float64))
    assert mean[0] == arb(-16.375)


@pytest.mark.parametrize("sizes", [(2, 1, 30, 2), (2, 2, 30, 2), (2, 1, 1, 9, 2)])
@pytest.mark.parametrize("std", [0.1, 2.0])
def test_quadrature_agrees_with_samples(sizes: tuple[int, ...], std: float) -> None:
    network = make_network(sizes, seed=3, std=std)
    x = torch.tensor([[0.3, -0.8], [1.1, 0.2]], dtype=torch.float64)
    value, error = oracle.quadrature_mean(network, x, nodes=160)
    assert (error < 1e-5 * (1 + value.abs())).all()
    for row, at in enumerate(x):
        mean, spread = oracle.sampled_mean(network, at, 2**16, seed=1)
        assert ((mean - value[row]).abs() <= 5 * spread + error[row] + 1e-14).all()


def test_quadrature_without_variance_is_exact() -> None:
    network = make_network((2, 2, 5, 1), seed=4, std=0.0)
    x = torch.tensor([[0.3, -0.8]], dtype=torch.float64)
    value, error = oracle.quadrature_mean(network, x)
    assert oracles.error(value.item(), oracle.exact_mean(network, x[0])[0]) < 1e-13
    assert error.item() < 1e-12


def test_samples_see_a_neuron_that_is_hardly_ever_active() -> None:
    """Four standard deviations below zero, a thousand times amplified: 6 of 65,536 plain draws would see it."""
    one = torch.ones(1, 1, dtype=torch.float64)
    first = Linear(0 * one, 0 * one, torch.tensor([-4.5]), torch.tensor([1.0]))
    second = Linear(1e3 * one, one, torch.tensor([0.0]), torch.tensor([0.1]))
    last = Linear(one, 0 * one, torch.tensor([0.0]), torch.tensor([0.0]))
    network = BayesianNetwork.from_linears([first, second, last])
    truth, _ = oracle.quadrature_mean(network, torch.zeros(1, 1, dtype=torch.float64))
    mean, spread = oracle.sampled_mean(network, torch.zeros(1, dtype=torch.float64), 2**16, seed=0)
    excess = truth - 0.1 / math.sqrt(2 * math.pi)  # what the rare neuron adds
    assert spread.item() < 0.1 * excess.item()
    assert abs(mean - truth).item() < 4 * spread.item()
