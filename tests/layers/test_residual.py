"""Residual blocks: the record, its file, its draws and its bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bnndp
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.engine.general.general_pass import GeneralPass
from bnndp.errors import CertError, InputError
from bnndp.geometry.box import Box
from bnndp.layers import Conv2d, Flatten, Linear, Residual
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.questions.mean import one_pass


def dense(g: torch.Generator, n_out: int, n_in: int, std: float) -> Linear:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    weight = normal(n_out, n_in) / n_in**0.5
    return Linear(weight, torch.full_like(weight, std / n_in**0.5), 0.3 * normal(n_out), torch.full((n_out,), std))


def kernel(g: torch.Generator, n_out: int, n_in: int, std: float) -> Conv2d:
    weight = torch.randn(n_out, n_in, 3, 3, generator=g, dtype=torch.float64) / (9 * n_in) ** 0.5
    zero = torch.zeros(n_out)
    return Conv2d(weight, torch.full_like(weight, std / (9 * n_in) ** 0.5), zero, zero, 1, 1)


def block_network(seed: int, std: float, phi: object, *, image: bool) -> BayesianNetwork:
    g = torch.Generator().manual_seed(seed)
    if image:
        block = Residual((kernel(g, 2, 2, std), phi, kernel(g, 2, 2, std)))
        layers = (kernel(g, 2, 1, std), phi, block, phi, Flatten(), dense(g, 2, 32, std))
        return BayesianNetwork(layers, input_shape=(1, 4, 4))
    block = Residual((dense(g, 7, 5, std), phi, dense(g, 5, 7, std)))
    return BayesianNetwork((dense(g, 5, 3, std), phi, block, phi, Residual((phi,)), dense(g, 2, 5, std)))


PHIS = [bnndp.activations.Relu(), bnndp.activations.Tanh(), bnndp.activations.Gelu()]


@pytest.mark.parametrize("image", [False, True])
@pytest.mark.parametrize("phi", PHIS, ids=lambda phi: phi.kind)
def test_without_variance_the_bounds_are_the_network(phi: object, image: bool) -> None:
    network = block_network(0, 0.0, phi, image=image)
    x = torch.rand(3, network.n_in, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    value = evaluate(draw_networks(network, 1, seed=0), x)[0]
    ends = one_pass(network, Box(x, x), Options())[1]
    assert torch.allclose(ends.lower, value, rtol=0, atol=1e-7)
    assert torch.allclose(ends.upper, value, rtol=0, atol=1e-7)
    assert (ends.lower <= value + 1e-12).all()
    assert (ends.upper >= value - 1e-12).all()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("image", [False, True])
def test_bounds_hold_for_samples(seed: int, image: bool) -> None:
    network = block_network(seed, (0.02, 0.2)[seed % 2], PHIS[seed % 3], image=image)
    g = torch.Generator().manual_seed(seed)
    box = Box.ball(torch.rand(1, network.n_in, generator=g, dtype=torch.float64), (0.0, 0.02, 0.3)[seed % 3])
    points = torch.cat([box.lower, box.upper, box.centre])
    outputs = evaluate(draw_networks(network, 3000, seed=seed), points)
    mean, error = outputs.mean(0), 6 * outputs.std(0) / 3000**0.5 + 1e-9
    ends = one_pass(network, box, Options())[1]
    assert (ends.lower <= mean + error).all()
    assert (ends.upper >= mean - error).all()
    variance = GeneralPass.of(network, box).variance(torch.eye(2, dtype=torch.float64))[0]
    assert (outputs.var(0) <= 1.25 * variance + 1e-9).all()


def test_draws_add_the_block() -> None:
    network = block_network(3, 0.0, bnndp.activations.Relu(), image=False)
    layers: tuple[Any, ...] = network.layers
    first, phi, block, _, _, last = layers
    x = torch.rand(2, 3, dtype=torch.float64)
    z = torch.relu(x @ first.weight_mean.T + first.bias_mean)
    inner = torch.relu(z @ block.layers[0].weight_mean.T + block.layers[0].bias_mean)
    z = torch.relu(z + inner @ block.layers[2].weight_mean.T + block.layers[2].bias_mean)
    z = z + torch.relu(z)
    want = z @ last.weight_mean.T + last.bias_mean
    assert torch.allclose(evaluate(draw_networks(network, 1, seed=0), x)[0], want)
    assert phi.kind == "relu"


def test_files_give_blocks_back(tmp_path: Path) -> None:
    network = block_network(2, 0.1, bnndp.activations.Tanh(), image=True)
    bnndp.save(network, tmp_path / "net.safetensors")
    again = bnndp.load(tmp_path / "net.safetensors")
    assert again.digest() == network.digest()
    read: Any = again.layers[2]
    written: Any = network.layers[2]
    assert isinstance(again.layers[2], Residual)
    assert torch.equal(read.layers[0].weight_std, written.layers[0].weight_std)


def test_the_digest_sees_the_block() -> None:
    one, two = (block_network(2, std, bnndp.activations.Tanh(), image=False) for std in (0.1, 0.2))
    assert one.digest() != two.digest()


def test_a_block_must_keep_the_shape() -> None:
    g = torch.Generator().manual_seed(0)
    with pytest.raises(InputError, match="must keep the shape"):
        BayesianNetwork((dense(g, 5, 3, 0.1), Residual((dense(g, 4, 5, 0.1),)), dense(g, 1, 5, 0.1)))
    with pytest.raises(InputError, match="at least one layer"):
        Residual(())


def test_unknown_layers_in_a_block_are_refused() -> None:
    g = torch.Generator().manual_seed(0)
    with pytest.raises(CertError, match="known kinds"):
        BayesianNetwork((dense(g, 5, 3, 0.1), Residual((torch.nn.ReLU(),)), dense(g, 1, 5, 0.1)))
