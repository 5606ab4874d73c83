"""The mean softmax from inside against the network itself, quadrature and whole sampled networks."""

from __future__ import annotations

import math

import pytest
import torch
from support.classifiers import linear_mean, sampled_softmax
from support.ensembles import outputs
from support.networks import make_network
from tests.marks import slow_but
from torch import Tensor

from bnndp.attack.noise import Noise
from bnndp.attack.sampled_softmax import (
    Contest,
    draw_softmax_noise,
    estimate_softmax,
    log_means,
    mean_path,
    odds_direction,
)
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork


def points(count: int, n: int, seed: int = 0) -> Tensor:
    return torch.rand(count, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 4 - 2


def mean_softmax(network: BayesianNetwork, x: Tensor) -> Tensor:
    """The network of the mean weights."""
    fixed = [Linear.fixed(layer.weight_mean, layer.bias_mean) for layer in network.linears]
    return outputs(BayesianNetwork.from_linears(fixed), x)[0].softmax(-1)


def test_without_variance_it_is_the_network_itself() -> None:
    for sizes in ((3, 4), (3, 7, 4), (3, 7, 6, 4)):
        network = make_network(sizes, std=0.0)
        x = points(6, 3)
        result = estimate_softmax(network, x, draw_softmax_noise(network, 64, seed=0))
        assert result.replicates.shape[0] == 1
        assert not result.std_error.any()
        assert torch.allclose(result.mean, mean_softmax(network, x), rtol=1e-12, atol=1e-14)


def test_the_mean_path_follows_the_mean_weights() -> None:
    network = make_network((3, 7, 6, 4), std=1.0)
    x = points(6, 3)
    path = log_means(network, x, mean_path(network))[0].exp()
    assert torch.allclose(path, mean_softmax(network, x), rtol=1e-12, atol=1e-14)
    sampled = estimate_softmax(network, x, draw_softmax_noise(network, 1024, seed=0)).mean
    assert (sampled - path).abs().max() > 0.02


@pytest.mark.parametrize("std", [0.3, 2.0])
def test_linear_classifiers_agree_with_quadrature(std: float) -> None:
    network = make_network((3, 2), seed=1, std=std)
    x = points(20, 3)
    result = estimate_softmax(network, x, draw_softmax_noise(network, 4096, seed=0))
    truth = linear_mean(network, x)
    assert (result.std_error < 1e-3).all()
    assert (result.std_error > 1e-9).all()
    assert ((result.mean[:, 0] - truth).abs() <= 5 * result.std_error[:, 0]).all()


@pytest.mark.parametrize("samples", slow_but([128, 1024], 128))
def test_standard_errors_are_honest(samples: int) -> None:
    network = make_network((3, 2), seed=2, std=2.0)
    x = points(1, 3, seed=4)
    truth = float(linear_mean(network, x)[0])
    scores = []
    for trial in range(100):
        result = estimate_softmax(network, x, draw_softmax_noise(network, samples, seed=trial))
        scores.append(float((result.mean[0, 0] - truth) / result.std_error[0, 0]))
    # A hundred scores of about unit variance: their root mean square has a deviation of 0.07.
    assert 0.75 < torch.tensor(scores).square().mean().sqrt() < 1.3
    assert abs(torch.tensor(scores).mean()) < 0.4


@pytest.mark.parametrize("sizes", [(2, 6, 3), pytest.param((2, 5, 5, 5, 3), marks=pytest.mark.slow)])
@pytest.mark.parametrize("quiet", [False, True], ids=["", "no noise in the first layer"])
def test_hidden_layers_agree_with_samples_of_whole_networks(sizes: tuple[int, ...], quiet: bool) -> None:
    first, *rest = make_network(sizes, seed=5, std=1.5).linears
    below = Linear.fixed(first.weight_mean, first.bias_mean) if quiet else first
    network, x = BayesianNetwork.from_linears([below, *rest], "classification"), points(3, 2)
    noise = draw_softmax_noise(network, 4096, seed=0)
    assert (noise.members[0].part(0)[0] is None) is quiet
    result, (other, spread) = estimate_softmax(network, x, noise), sampled_softmax(network, x, 50_000, seed=9)
    assert ((result.mean - other).abs() <= 5 * (result.std_error.square() + spread.square()).sqrt()).all()
    assert (result.std_error < 4 * spread).all()  # 12 times fewer draws: no worse than plain sampling
    assert torch.allclose(result.mean.sum(-1), torch.ones(3, dtype=torch.float64), rtol=1e-13, atol=0)


def test_a_narrow_posterior_has_hardly_any_error() -> None:
    network = make_network((2, 6, 5, 4), seed=5, std=1e-3)
    error = estimate_softmax(network, points(5, 2), draw_softmax_noise(network, 256, seed=0)).std_error
    assert error.max() < 1e-6  # what is linear in the noise, about 1e-3 / sqrt(256), cancels in pairs


def layers_of(noise: Noise) -> list[Tensor]:
    """The noise of every random layer of a network: (replicates, draws, width)."""
    (member,) = noise.members
    parts = zip(*(member.part(index) for index in range(noise.replicates)), strict=True)
    return [torch.stack([each for each in part if each is not None]) for part in parts if part[0] is not None]


def test_noise_comes_in_pairs_and_is_determined_by_the_seed() -> None:
    network = make_network((2, 3, 4, 5))
    first, again, other = (layers_of(draw_softmax_noise(network, 256, seed=seed, replicates=4)) for seed in (1, 1, 2))
    assert [layer.shape for layer in first] == [(4, 64, 3), (4, 64, 4), (4, 64, 5)]
    for a, b, c in zip(first, again, other, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a[:, :32], -a[:, 32:])
        assert not torch.isin(a.abs(), c.abs()).any()
        assert not torch.isin(a[0].abs(), a[1].abs()).any()


def test_log_odds_have_the_sign_of_minus_the_margin() -> None:
    p = torch.softmax(3 * points(200, 4), -1)
    rows = points(200 * 5, 4, seed=1).reshape(200, 5, 4)
    odds, margin = Contest.of(rows).odds(p.log()), (rows @ p[..., None])[..., 0]
    assert ((odds > 0) == (margin < 0)).all()
    assert 100 < (odds > 0).sum() < 900
    only = torch.tensor([[1.0, 2.0, 0.0, 0.0], [-1.0, 0.0, -1.0, 0.0], [0.0] * 4], dtype=torch.float64)
    sure, lost, idle = Contest.of(only.expand(200, 3, 4)).odds(p.log()).unbind(-1)
    assert (sure < -1000).all()
    assert (lost > 1000).all()
    assert (idle == -torch.inf).all()


def test_odds_are_those_of_two_classes() -> None:
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    rows = torch.tensor([[1.0, -1.0, 0.0], [1.0, 0.0, -1.0]], dtype=torch.float64)
    assert Contest.of(rows).odds(p.log()).tolist() == pytest.approx([math.log(2 / 7), math.log(1 / 7)], rel=1e-14)


def test_a_hopeless_class_still_has_a_gradient() -> None:
    weight = torch.tensor([[1000.0, 0.0], [0.0, -1000.0]], dtype=torch.float64)
    network = BayesianNetwork((Linear.fixed(weight),))
    x = torch.ones(1, 2, dtype=torch.float64)
    rows = torch.tensor([[[1.0, -1.0]]], dtype=torch.float64)
    value, slope = odds_direction(network, x, Contest.of(rows), mean_path(network))
    assert value.item() == pytest.approx(-2000)
    torch.testing.assert_close(slope, torch.tensor([[-1000.0, -1000.0]], dtype=torch.float64))
