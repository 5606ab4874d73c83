"""Residual blocks: the record, its file and its draws; bounds are in ``engine/general/laws/test_residual.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.records import conv, linear

import bnndp
from bnndp.activations import Relu, Tanh
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.errors import CertError, InputError
from bnndp.layers import Flatten, Linear, Residual
from bnndp.network import BayesianNetwork


def image(std: float) -> BayesianNetwork:
    block = Residual((conv(2, 2, 1, std=std, padding=1), Tanh(), conv(2, 2, 5, std=std, padding=1)))
    layers = (conv(2, 1, 9, std=std, padding=1), Tanh(), block, Flatten(), linear(2, 32, 15, std))
    return BayesianNetwork(layers, input_shape=(1, 4, 4))


def test_draws_add_the_block() -> None:
    first, inner, outer, last = (linear(*sizes, 3, 0.0) for sizes in ((5, 3), (7, 5), (5, 7), (2, 5)))
    layers = (first, Relu(), Residual((inner, Relu(), outer)), Relu(), Residual((Relu(),)), last)
    x = torch.rand(2, 3, dtype=torch.float64)

    def through(layer: Linear, z: torch.Tensor) -> torch.Tensor:
        return z @ layer.weight_mean.T + layer.bias_mean

    z = torch.relu(through(first, x))
    z = torch.relu(z + through(outer, torch.relu(through(inner, z))))
    found = evaluate(draw_networks(BayesianNetwork(layers), 1, seed=0), x)[0]
    assert torch.allclose(found, through(last, z + torch.relu(z)))


def test_files_give_blocks_back(tmp_path: Path) -> None:
    network = image(0.1)
    bnndp.save(network, tmp_path / "net.safetensors")
    again = bnndp.load(tmp_path / "net.safetensors")
    assert isinstance(again, BayesianNetwork)
    assert again.digest() == network.digest() != image(0.2).digest()
    block, own = again.layers[2], network.layers[2]
    assert isinstance(block, Residual)
    assert isinstance(own, Residual)
    assert torch.equal(block.layers[0].weight_std, own.layers[0].weight_std)  # type: ignore[attr-defined]


def test_a_block_must_keep_the_shape_and_hold_known_layers() -> None:
    first, last = linear(5, 3, 0), linear(1, 5, 1)
    with pytest.raises(InputError, match="must keep the shape"):
        BayesianNetwork((first, Residual((linear(4, 5, 2),)), last))
    with pytest.raises(InputError, match="at least one layer"):
        Residual(())
    with pytest.raises(CertError, match="known kinds"):
        BayesianNetwork((first, Residual((torch.nn.ReLU(),)), last))
