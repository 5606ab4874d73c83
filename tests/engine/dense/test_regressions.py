"""Every unsound or misleading result ever found in the moment method, kept: see SOUNDNESS.md."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bnndp.engine.dense import forward
from bnndp.engine.dense.first import first_layer
from bnndp.engine.dense.pre_activation import pre_activation
from bnndp.engine.dense.relax import relax
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.maths.normal import cdf
from bnndp.maths.rectified import expected_relu
from bnndp.maths.replacement import replacement_error
from bnndp.network import BayesianNetwork
from bnndp.questions.certify import certify

ORIGIN = Box([[0.0]], [[0.0]])


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rectified_quadrature(mean: float, std: float, count: int = 4001) -> tuple[Tensor, Tensor]:
    """Nodes and weights of ReLU(N(mean, std^2)): the atom at zero, and the trapezoidal rule above it."""
    low = max(-mean / std, -9.0)
    xi = torch.linspace(low, 9, count, dtype=torch.float64)
    density = torch.exp(-xi * xi / 2) / math.sqrt(2 * math.pi)
    weight = density * (9 - low) / (count - 1)
    weight[[0, -1]] /= 2
    atom = cdf(tensor(-mean / std))
    weight *= (1 - atom) / weight.sum()
    return torch.cat([tensor(0.0), mean + std * xi]), torch.cat([atom, weight])


def narrow_network(scale: float, sources: int) -> BayesianNetwork:
    """One neuron fed by the first of ``sources`` rectified Gaussians N(0, scale^2), at x = 0."""
    weight = torch.zeros(1, sources, dtype=torch.float64)
    weight[0, 0] = 1
    zero = torch.zeros(sources, 1, dtype=torch.float64)
    first = Linear(
        zero, zero, torch.zeros(sources, dtype=torch.float64), torch.full((sources,), scale, dtype=torch.float64)
    )
    second = Linear(weight, torch.zeros_like(weight), tensor(-scale), tensor(0.3 * scale))
    return BayesianNetwork.from_linears([first, second, Linear(tensor(1)[None], tensor(0)[None], tensor(0), tensor(0))])


@pytest.mark.parametrize("scale", [1e-200, 1e-110, 1e-60, 1e-41, 1.0, 1e41, 1e52, 1e60, 1e150])
@pytest.mark.parametrize("sources", [1, 16])
def test_powers_that_overflow_or_underflow_give_no_false_bound(scale: float, sources: int) -> None:
    """At 1e52 an overflow became a replacement error of zero, and the interval excluded the mean."""
    nodes, weight = rectified_quadrature(0, 1)
    truth = scale * (weight * expected_relu(nodes - 1, torch.full_like(nodes, 0.3))).sum().item()
    found = forward.bound(narrow_network(scale, sources), ORIGIN).interval()
    assert found.lower.item() <= truth * (1 + 1e-6)
    assert found.upper.item() >= truth * (1 - 1e-6)


def test_sources_left_out_shift_the_mean() -> None:
    """A rare source with a negative weight: without it m is larger, and the neuron more often active."""
    first = Linear(tensor(0)[None], tensor(0)[None], tensor(-4.6), tensor(1))
    second = Linear(tensor(-1)[None], tensor(0)[None], tensor(-1e-8), tensor(1e-7))
    layer = first_layer(first, ORIGIN)
    before = pre_activation(second, layer, [layer.latent], [])
    mean = forward._down(second, layer, [], ORIGIN).interval()
    _, latent = relax(before, mean)
    at_least = math.sqrt(cdf(tensor(4.6)).item() * cdf(tensor(-0.1)).item() ** 4)  # the source is off
    assert latent.activity.item() >= at_least


def test_smoothing_is_not_lost_to_cancellation() -> None:
    """The smoothing before a block was a difference of large sums, and could come out far too large."""
    one = torch.ones(1, 1, dtype=torch.float64)
    for base in (1.2e-16, 1e-14, 1e-10, 1e-6):
        found = replacement_error(one * base, one, one, one).item()
        exact = math.exp(-0.5) / math.sqrt(2 * math.pi) / (6 * base)
        assert found >= exact * (1 - 1e-12)


@pytest.mark.parametrize("power", [-130, -60, -45, -30, 30, 45, 60, 150])
@pytest.mark.parametrize("seed", range(4))
def test_bounds_do_not_tighten_with_the_scale(random_network: object, power: int, seed: int) -> None:
    """Multiplying the first layer and all biases by c multiplies the mean by c; the bounds may only get looser."""
    network = random_network((2, 12, 12, 12, 1) if seed % 2 else (2, 12, 12, 1), seed)  # type: ignore[operator]
    box = Box.ball([0.3, -0.4], 0.05 * (seed % 2))
    plain = forward.bound(network, box).interval()
    c = 2.0 ** round(power * math.log2(10))
    scaled = BayesianNetwork.from_linears(
        Linear(
            layer.weight_mean * (c if k == 0 else 1),
            layer.weight_std * (c if k == 0 else 1),
            layer.bias_mean * c,
            layer.bias_std * c,
        )
        for k, layer in enumerate(network.linears)
    )
    found = forward.bound(scaled, box).interval()
    width = (plain.upper - plain.lower).item()
    assert found.lower.item() / c <= plain.lower.item() + 1e-6 * width + 1e-12
    assert found.upper.item() / c >= plain.upper.item() - 1e-6 * width - 1e-12


@pytest.mark.parametrize(("std", "weight"), [(1e-163, 1.0), (1e-170, 1e200), (1e-150, 1.0), (1e-100, 1e90)])
def test_tiny_deviations_of_the_first_layer(std: float, weight: float) -> None:
    """Their squares underflow; E f(x) = weight * std * x / sqrt(2 pi)."""
    hidden = Linear(tensor(0)[None], tensor(std)[None], tensor(0), tensor(0))
    network = BayesianNetwork.from_linears(
        [hidden, Linear(tensor(weight)[None], tensor(0)[None], tensor(0), tensor(0))]
    )
    bounds = certify(network, Box([[1.0]], [[2.0]]))
    assert bounds.lower.item() <= weight * std / math.sqrt(2 * math.pi) * (1 + 1e-12)
    assert bounds.upper.item() >= 2 * weight * std / math.sqrt(2 * math.pi) * (1 - 1e-12)


def test_eighth_powers_of_tiny_weights() -> None:
    """||s - E s||_4 of the second layer with a rare, huge source and tiny deviations, against quadrature."""
    scale, std = 1e34, 1.5e-42
    first = Linear(tensor(0)[None], tensor(0)[None], tensor(-3.7 * scale), tensor(scale))
    second = Linear(tensor(0)[None], tensor(std)[None], tensor(0), tensor(1e-8))
    layer = first_layer(first, ORIGIN)
    before = pre_activation(second, layer, [layer.latent], [])
    nodes, weight = rectified_quadrature(-3.7, 1)
    spread = (std * scale * nodes) ** 2
    centred = spread - (weight * spread).sum()
    truth = (weight * centred**4).sum().item()
    assert before.spread_fourth.item() >= truth
