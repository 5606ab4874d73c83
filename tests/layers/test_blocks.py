"""Blocks of branches: the records, their files and their draws; bounds are in ``engine/test_graphs.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.layer_draws import draw_layers
from support.records import conv, linear, normal
from torch import Tensor

import bnndp
from bnndp.activations import Relu, Tanh
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.attack.pathwise import breadth, noise_width, step
from bnndp.cli.inspection import _named
from bnndp.errors import CertError, InputError, ModelFileError
from bnndp.files.entries import read_chain, write_chain
from bnndp.layers import Concatenate, Dropout, Flatten, Linear, Residual
from bnndp.network import BayesianNetwork


def blocks(std: float) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Blocks and the shapes of their inputs."""
    inner = (linear(4, 5, 1, std), Tanh(), linear(3, 4, 5, std))
    wide = (conv(2, 2, 1, std=std, stride=2, padding=1), Relu(), conv(3, 2, 5, std=std, padding=1))
    return {
        "identity": (Residual((linear(5, 5, 3, std), Relu(), Dropout(0.2 if std else 0.0))), (5,)),
        "projection": (Residual(inner, (linear(3, 5, 9, std),)), (5,)),
        "strided": (Residual(wide, (conv(3, 2, 9, size=1, std=std, stride=2),)), (2, 5, 6)),
        "side by side": (Concatenate((inner, (), (Relu(),))), (5,)),
        "channels": (Concatenate((wide, (conv(1, 2, 9, size=1, std=std, stride=2), Tanh()))), (2, 5, 6)),
        "nested": (Residual((Concatenate((inner, ())), linear(5, 8, 7, std)), (Residual((Relu(),)),)), (5,)),
    }


def network(name: str, std: float) -> BayesianNetwork:
    block, shape = blocks(std)[name]
    end = block.out_shape(shape)
    last = (linear(2, torch.Size(end).numel(), 15, std),)
    return BayesianNetwork((block, *((Flatten(),) if len(end) > 1 else ()), *last), input_shape=shape)


def through(layer: Any, z: Tensor) -> Tensor:  # (points, *shape)
    """Layers without variance, by the functions of torch."""
    if isinstance(layer, Residual):
        return chained(layer.layers, z) + chained(layer.shortcut, z)
    if isinstance(layer, Concatenate):
        return torch.cat([chained(branch, z) for branch in layer.branches], 1)
    if isinstance(layer, Linear):
        return F.linear(z, layer.weight_mean, layer.bias_mean)
    if layer.kind == "conv2d":
        return F.conv2d(z, layer.weight_mean, layer.bias_mean, layer.stride, layer.padding)
    return z if isinstance(layer, Dropout) else z.flatten(1) if isinstance(layer, Flatten) else layer(z)


def chained(layers: Any, z: Tensor) -> Tensor:
    for layer in layers:
        z = through(layer, z)
    return z


NAMES = list(blocks(0.0))


@pytest.mark.parametrize("name", NAMES)
def test_values_and_shapes_are_those_of_torch(name: str) -> None:
    net = network(name, 0.0)
    x = normal(3, net.n_in, seed=1)
    truth = chained(net.layers, x.reshape(3, *net.shapes[0]))
    assert torch.allclose(evaluate(draw_networks(net, 2, seed=0), x)[1], truth)
    assert torch.allclose(draw_layers(net, x, 1, torch.Generator())[-1][0], truth)
    block, shape = blocks(0.0)[name]
    z = x.reshape(1, 3, *shape)
    found = step(block, z, None)
    assert tuple(found.shape[2:]) == block.out_shape(shape)
    assert torch.allclose(found[0], through(block, z[0]))
    assert not block.random
    assert noise_width(block, shape) == 0
    assert net.widest >= breadth(block, shape) >= torch.Size(block.out_shape(shape)).numel()


@pytest.mark.parametrize("name", NAMES)
def test_draws_and_noise_have_one_law(name: str) -> None:
    """Means and standard deviations by draws of all weights, by Gaussians given the layer before, and drawn again."""
    net, draws = network(name, 0.3), 20_000
    block, shape = blocks(0.3)[name]
    x = normal(1, net.n_in, seed=1)
    z, dice = x.reshape(1, 1, *shape), torch.Generator().manual_seed(2)
    eps = torch.randn(draws, noise_width(block, shape), generator=dice, dtype=torch.float64)
    by_noise = step(block, z, eps)[:, 0].flatten(1)
    drawn = draw_layers(net, x, draws, dice)[0][:, 0].flatten(1)
    outputs = [evaluate(draw_networks(net, draws, seed=3), x)[:, 0], draw_layers(net, x, draws, dice)[-1][:, 0]]
    for one, other in ((by_noise, drawn), outputs):
        error = 6 * (one.std(0) + other.std(0)) / draws**0.5 + 1e-12
        assert bool(((one.mean(0) - other.mean(0)).abs() <= error).all())
        assert bool(((one.std(0) - other.std(0)).abs() <= 3 * error).all())


@pytest.mark.parametrize("name", NAMES)
def test_files_give_blocks_back(name: str, tmp_path: Path) -> None:
    net = network(name, 0.1)
    bnndp.save(net, tmp_path / "net.safetensors")
    again = bnndp.load(tmp_path / "net.safetensors")
    assert isinstance(again, BayesianNetwork)
    assert repr(again) == repr(net)
    assert again.digest() == net.digest() != network(name, 0.2).digest()
    assert again.to("cpu").digest() == net.digest()
    named = list(_named(net.layers, net.shapes[0]))
    assert len({name for name, _ in named}) == len(named)


def test_a_shortcut_of_nothing_is_not_in_the_file() -> None:
    entries, _ = write_chain(network("identity", 0.1))
    assert set(entries[0]) == {"type", "layers"}
    entries, tensors = write_chain(network("projection", 0.1))
    assert set(entries[0]) == {"type", "layers", "shortcut"}
    assert "blocks.0.shortcut.layers.0.weight_mean" in tensors
    swapped = BayesianNetwork((Residual((Relu(),), (Tanh(),)), linear(1, 3, 0)), input_shape=(3,))
    other = BayesianNetwork((Residual((Tanh(),), (Relu(),)), linear(1, 3, 0)), input_shape=(3,))
    assert swapped.digest() != other.digest()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"type": "residual", "layers": [{"type": "relu"}], "shortcut": 1}, "lacks its layers"),
        ({"type": "residual", "layers": [], "shortcut": [{"type": "relu"}]}, "at least one layer"),
        ({"type": "residual", "layers": [{"type": "relu"}], "branches": []}, "branches"),
        ({"type": "concatenate", "branches": []}, "at least one branch"),
        ({"type": "concatenate", "branches": [{"type": "relu"}]}, "lacks its branches"),
        ({"type": "concatenate", "layers": [[]]}, "layers"),
    ],
)
def test_entries_that_are_no_blocks_are_refused(entry: Any, words: str) -> None:
    rest, tensors = write_chain(BayesianNetwork((linear(1, 3, 0),)))
    with pytest.raises(ModelFileError, match=words):
        read_chain([entry, *rest], tensors, "regression", [3])


def test_branches_must_fit() -> None:
    first, last = linear(5, 3, 0), linear(1, 5, 1)
    with pytest.raises(InputError, match="cannot be added to a shortcut"):
        BayesianNetwork((first, Residual((linear(4, 5, 2),), (linear(5, 5, 2),)), last))
    with pytest.raises(InputError, match="must keep the shape"):
        BayesianNetwork((first, Residual((linear(4, 5, 2),)), last))
    with pytest.raises(InputError, match="side by side"):
        Concatenate(((), (Flatten(),))).out_shape((2, 3, 3))
    with pytest.raises(InputError, match="at least one branch"):
        Concatenate(())
    with pytest.raises(CertError, match="layer 1, branch 1, layer 0 is ReLU"):
        BayesianNetwork((first, Residual((Relu(),), (torch.nn.ReLU(),)), last))  # type: ignore[arg-type]
