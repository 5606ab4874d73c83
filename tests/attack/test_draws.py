"""Drawn networks have the law of their records, and give what plain torch gives for networks drawn one at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.records import FIXED, IMAGE, RANDOM, apply_once, law, linear, networks, normal, outputs
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import Relu, Tanh
from bnndp.attack.draws import draw_networks, evaluate, stacked
from bnndp.errors import InputError
from bnndp.layers import Conv2d, Dropout, Flatten, Linear
from bnndp.network import BayesianNetwork, Ensemble

NETWORKS = networks()


def alone(layer: Any, shape: tuple[int, ...]) -> BayesianNetwork:
    """A network whose outputs are those of one layer."""
    out = layer.out_shape(shape)
    size = math.prod(out)
    tail = (Flatten(),) if len(out) > 1 else ()
    end = () if hasattr(layer, "weight_mean") else (Linear.fixed(torch.eye(size, dtype=torch.float64)),)
    return BayesianNetwork((layer, *tail, *end), input_shape=shape)


def agrees(samples: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Mean and covariance of samples (draws, n) are the given ones within five standard errors."""
    count = len(samples)
    centred = samples - mean
    error = centred.mean(0).abs() - 5 * centred.std(0) / math.sqrt(count)
    assert (error <= 1e-12).all()
    products = centred[:, :, None] * centred[:, None]
    error = (products.mean(0) - covariance).abs() - 5 * products.std(0) / math.sqrt(count)
    assert (error <= 1e-12).all()


@pytest.mark.parametrize("name", slow_but(RANDOM, "linear", "low rank", "matrix normal", "conv", "channel dropout"))
def test_a_layer_has_the_mean_and_covariance_of_its_record(name: str) -> None:
    layer, shape = RANDOM[name]
    x = normal(2, math.prod(shape), seed=3)
    samples = evaluate(draw_networks(alone(layer, shape), 4000, seed=1), x)
    for index in range(2):
        agrees(samples[:, index], *law(layer, x[index].reshape(shape)))
    assert samples.var(0).max() > 0


@pytest.mark.parametrize("name", FIXED)
def test_a_layer_without_variance_is_the_function_of_torch(name: str) -> None:
    layer, shape = FIXED[name]
    x = normal(3, math.prod(shape), seed=3)
    got = evaluate(draw_networks(alone(layer, shape), 5, seed=1), x)
    assert got.shape[0] == 5
    torch.testing.assert_close(got[4], apply_once(layer, x.reshape(3, *shape)).flatten(1), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", slow_but(NETWORKS, "low rank", "convolutions"))
def test_drawn_networks_have_the_law_of_networks_drawn_one_at_a_time(name: str) -> None:
    network = NETWORKS[name]
    x = normal(3, network.n_in, seed=1)
    ours, theirs = evaluate(draw_networks(network, 6000, seed=2), x), outputs(network, x, 1200, seed=3)
    for power in (1, 2):
        a, b = ours**power, theirs**power
        error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
        assert ((a.mean(0) - b.mean(0)).abs() <= 5 * error).all()
    joint = [(d - d.mean(0)).flatten(1) for d in (ours, theirs)]  # outputs and points of one network belong together
    products = [d[:, :, None] * d[:, None] for d in joint]
    error = sum(p.var(0) / len(p) for p in products) ** 0.5
    assert ((products[0].mean(0) - products[1].mean(0)).abs() <= 5 * error).all()


def test_one_kernel_serves_all_positions_and_inputs() -> None:
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    network = BayesianNetwork((Conv2d(zero, zero + 1, zero[0, 0, 0], zero[0, 0, 0]), Flatten()), input_shape=(1, 2, 3))
    x = 1 + normal(2, 6, seed=0).abs()
    ratios = evaluate(draw_networks(network, 50, seed=1), x) / x
    assert ratios.std(0).min() > 0.5
    assert (ratios - ratios[:, :1, :1]).abs().max() < 1e-14


@pytest.mark.parametrize("channels", [False, True])
def test_factors_of_dropout(channels: bool) -> None:
    network = alone(Dropout(0.3, channels=channels), IMAGE)
    factors = evaluate(draw_networks(network, 2000, seed=1), torch.ones(2, 60, dtype=torch.float64))
    assert torch.equal(factors[:, 0], factors[:, 1])  # one network has one mask for all inputs
    assert ((factors == 0) | ((factors - 1 / 0.7).abs() < 1e-15)).all()
    blocks = factors[:, 0].reshape(2000, 2, 30)
    same = (blocks == blocks[..., :1]).all()
    assert bool(same) is channels
    assert abs((factors == 0).double().mean().item() - 0.3) < 5 * math.sqrt(0.21 / 4000)


def test_rows_have_noise_of_their_own_unless_it_is_shared() -> None:
    for name, shared in (("rows", False), ("low rank", True)):
        layer, shape = RANDOM[name]
        samples = evaluate(draw_networks(alone(layer, shape), 4000, seed=1), normal(1, 4, seed=0))[:, 0]
        off = torch.corrcoef(samples.T)[0, 1].abs().item()
        assert (off > 0.1) is shared


def test_members_are_drawn_with_their_weights() -> None:
    members = [BayesianNetwork((Linear.fixed(torch.zeros(1, 1), torch.tensor([float(k)])),)) for k in range(3)]
    ensemble = Ensemble(tuple(members), torch.tensor([0.2, 0.0, 0.8], dtype=torch.float64))
    drawn = draw_networks(ensemble, 2000, seed=1)
    values = evaluate(drawn, torch.zeros(1, 1, dtype=torch.float64)).flatten()
    assert drawn.draws == len(values) == 2000
    assert not (values == 1).any()
    assert abs((values == 2).double().mean().item() - 0.8) < 5 * math.sqrt(0.16 / 2000)


def test_the_seed_determines_the_draws_and_pieces_do_not_matter() -> None:
    network = NETWORKS["convolutions"]
    x = normal(7, network.n_in, seed=1)
    first = evaluate(draw_networks(network, 30, seed=5), x)
    torch.testing.assert_close(evaluate(draw_networks(network, 30, seed=5), x, memory=1), first, rtol=1e-13, atol=1e-13)
    assert (evaluate(draw_networks(network, 30, seed=6), x) != first).any()


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_can_be_differentiated_in_the_inputs(name: str) -> None:
    network = NETWORKS[name]
    drawn = draw_networks(network, 4, seed=1)
    x, step = normal(2, network.n_in, seed=2), 1e-6 * normal(2, network.n_in, seed=3)
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(evaluate(drawn, leaf).sum(), leaf)
    change = evaluate(drawn, x + step).sum() - evaluate(drawn, x - step).sum()
    torch.testing.assert_close((slope * step).sum() * 2, change, rtol=1e-5, atol=1e-11)


def test_wrong_numbers_are_refused() -> None:
    network = NETWORKS["tanh"]
    with pytest.raises(InputError, match="draws must be at least 1"):
        draw_networks(network, 0, seed=1)
    with pytest.raises(InputError, match="draw fewer"):
        draw_networks(network, 10**9, seed=1)
    with pytest.raises(InputError, match=r"x must have shape \(points, 4\)"):
        evaluate(draw_networks(network, 2, seed=1), normal(3, 5, seed=1))


# Members without variance as one chain


def fixed(seed: int, activation: Any = None) -> BayesianNetwork:
    layers = (Linear.fixed(normal(5, 4, seed=seed)), activation or Tanh(), Linear.fixed(normal(2, 5, seed=seed + 1)))
    return BayesianNetwork(layers, shift=normal(4, seed=seed + 2))


def test_networks_of_one_structure_are_stacked() -> None:
    members = [fixed(seed) for seed in range(5)]
    chain = stacked(Ensemble(tuple(members)))
    assert chain is not None
    x = normal(6, 4, seed=9)
    want = torch.stack([evaluate(draw_networks(member, 1, seed=0), x)[0] for member in members])
    torch.testing.assert_close(evaluate(chain, x), want, rtol=1e-13, atol=1e-13)


def test_networks_of_other_structure_or_with_variance_are_not() -> None:
    assert stacked(Ensemble((fixed(0), fixed(3, Relu())))) is None
    assert stacked(Ensemble((fixed(0), fixed(0).unshifted()))) is None
    assert stacked(Ensemble((BayesianNetwork((linear(2, 4, 0),)),) * 2)) is None
