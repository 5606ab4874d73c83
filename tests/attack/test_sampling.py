"""The mean from inside against ball arithmetic, quadrature and plain weight samples, with honest standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import oracles
from support.ensembles import outputs
from support.networks import make_network
from tests.marks import slow_but
from torch import Tensor

from bnndp.attack.noise import Noise
from bnndp.attack.sampling import ascent_direction, draw_noise, estimate, is_exact
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork


def points(count: int, n: int, seed: int = 0) -> Tensor:
    return torch.rand(count, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 4 - 2


def by_quadrature(network: BayesianNetwork, x: Tensor) -> float:
    """``E f(x)`` of a network 1-1-m-1 by quadrature over the first neuron, above and below its kink."""
    first, second, last = network.linears
    m = float(first.weight_mean[0, 0] * x + first.bias_mean[0])
    r = math.hypot(float(first.weight_std[0, 0] * x), float(first.bias_std[0]))
    nodes, weights = np.polynomial.legendre.leggauss(400)
    total, kink = 0.0, min(max(-m / r, -12.0), 12.0)
    for low, high in ((-12.0, kink), (kink, 12.0)):
        e = low + (high - low) * (nodes + 1) / 2
        z = np.maximum(m + r * e, 0)[:, None]
        mean = z * second.weight_mean[:, 0].numpy() + second.bias_mean.numpy()
        std = np.sqrt((z * second.weight_std[:, 0].numpy()) ** 2 + second.bias_std.numpy() ** 2)
        u = torch.from_numpy(mean / std)
        hidden = mean * torch.special.ndtr(u).numpy() + std * np.exp(-0.5 * u.numpy() ** 2) / math.sqrt(2 * math.pi)
        f = hidden @ last.weight_mean[0].numpy() + float(last.bias_mean[0])
        total += (high - low) / 2 * float((weights * np.exp(-0.5 * e * e) * f).sum()) / math.sqrt(2 * math.pi)
    return total


@pytest.mark.parametrize("sizes", [(3, 2), (1, 1, 1), (4, 30, 3)])
def test_at_most_one_hidden_layer_is_exact(sizes: tuple[int, ...]) -> None:
    network = make_network(sizes, seed=1, std=1.0, zeros=0.3)
    x = points(5, sizes[0])
    result = estimate(network, x, draw_noise(network, 64, seed=0))
    assert is_exact(network)
    assert not result.std_error.any()
    for row, at in zip(result.mean.tolist(), x.tolist(), strict=True):
        for value, truth in zip(row, oracles.exact_mean(network, at), strict=True):
            assert oracles.error(value, truth) < 1e-13


def test_a_deep_network_without_variance_is_exact() -> None:
    network, x = make_network((3, 9, 8, 7, 2), std=0.0), points(6, 3)
    result = estimate(network, x, draw_noise(network, 64, seed=0))
    assert is_exact(network)
    assert not result.std_error.any()
    assert torch.allclose(result.mean, outputs(network, x)[0], rtol=1e-13, atol=1e-13)


def test_variance_below_the_last_hidden_layer_is_not_exact() -> None:
    network = make_network((1, 3, 3, 1))
    first, *rest = network.linears
    quiet = Linear(first.weight_mean, 0 * first.weight_std, first.bias_mean, 0 * first.bias_std)
    assert not is_exact(network)
    assert is_exact(BayesianNetwork.from_linears([quiet, *rest]))


@pytest.mark.parametrize("std", [0.3, 1.0])
def test_two_hidden_layers_agree_with_quadrature(std: float) -> None:
    network = make_network((1, 1, 20, 1), seed=3, std=std)
    x = points(7, 1)
    result = estimate(network, x, draw_noise(network, 4096, seed=0))
    truth = torch.tensor([by_quadrature(network, at) for at in x[:, 0]], dtype=torch.float64)
    assert (result.std_error < 1e-3).all()
    assert (result.std_error > 1e-7).sum() >= 5  # a point or two may have a first neuron that is never active
    assert ((result.mean[:, 0] - truth).abs() <= 5 * result.std_error[:, 0]).all()


# The first neuron has u = 6.4, 0.6 and 0.1.
@pytest.mark.parametrize(("seed", "x"), slow_but([(1, 0.4), (3, 0.4), (5, -1.0)], (3, 0.4)))
def test_standard_errors_are_honest(seed: int, x: float) -> None:
    network = make_network((1, 1, 20, 1), seed=seed, std=1.0)
    point = torch.tensor([[x]], dtype=torch.float64)
    truth = by_quadrature(network, point[0, 0])
    scores = []
    for trial in range(100):
        result = estimate(network, point, draw_noise(network, 512, seed=trial))
        scores.append(float((result.mean - truth) / result.std_error))
    # A hundred scores of about unit variance: their root mean square has a deviation of 0.07.
    assert 0.75 < np.sqrt(np.mean(np.square(scores))) < 1.3
    assert abs(np.mean(scores)) < 0.4


def test_three_hidden_layers_agree_with_samples_of_whole_networks() -> None:
    network, x = make_network((2, 6, 5, 4, 2), seed=5, std=1.0), points(3, 2)
    result, drawn = estimate(network, x, draw_noise(network, 4096, seed=0)), outputs(network, x, 20_000, seed=9)
    spread = drawn.std(0) / math.sqrt(20_000)
    assert ((result.mean - drawn.mean(0)).abs() <= 5 * (result.std_error.square() + spread.square()).sqrt()).all()
    assert (result.std_error < 3 * spread).all()  # 5 times fewer draws, yet comparable


def first_layer(noise: Noise) -> Tensor:
    """The noise of the first layer of a network: (replicates, draws, width)."""
    (member,) = noise.members
    parts = [member.part(index)[0] for index in range(noise.replicates)]
    return torch.stack([part for part in parts if part is not None])


def test_noise_is_determined_by_the_seed() -> None:
    network = make_network((1, 3, 3, 1))
    first, again, other = (first_layer(draw_noise(network, 256, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.isin(first, other).any()
    assert not torch.isin(first[0], first[1]).any()  # replicates do not share draws either


def test_noise_is_standard_gaussian() -> None:
    flat = first_layer(draw_noise(make_network((1, 3, 3, 1)), 2**16, seed=0)).flatten()
    assert flat.dtype == torch.float64
    assert flat.isfinite().all()
    assert abs(float(flat.mean())) < 1e-3
    assert abs(float(flat.square().mean()) - 1) < 1e-3
    assert abs(float(flat.pow(4).mean()) - 3) < 0.02


def test_gradients_are_finite_without_variance() -> None:
    for depth in (1, 2, 3):
        network = make_network((2, *(4,) * depth, 1), std=0.0)
        x = torch.zeros(1, 2, dtype=torch.float64)
        _, slope = ascent_direction(network, x, torch.ones(1, 1, dtype=torch.float64), draw_noise(network, 64, seed=0))
        assert slope.isfinite().all()


def test_no_noise_is_needed_where_nothing_is_random() -> None:
    for sizes, std in (((2, 3, 1), 1.0), ((2, 3, 3, 1), 0.0)):
        (member,) = draw_noise(make_network(sizes, std=std), 64, seed=0).members
        assert all(each is None for each in member.part(0))
