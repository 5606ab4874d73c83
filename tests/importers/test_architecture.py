"""Descriptions of the layers in files: read, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.foreign_states import three_linears
from torch import nn

import bnndp
from bnndp.errors import InputError, ModelFileError
from bnndp.importers.architecture import Architecture, read_architecture
from bnndp.importers.convert import convert
from bnndp.importers.foreign import Choices, Foreign
from bnndp.importers.registry import importer_for
from bnndp.layers import Conv2d
from bnndp.network import BayesianNetwork

DESCRIPTION: dict[str, Any] = {
    "task": "classification",
    "input_shape": [1, 4, 4],
    "layers": [
        {"type": "conv2d", "name": "conv", "stride": [1, 1], "padding": [0, 0]},
        {"type": "leaky_relu", "negative_slope": 0.1},
        {"type": "flatten"},
        {"type": "linear", "name": "head"},
    ],
}


TOML = """
task = "classification"
input_shape = [1, 4, 4]
layers = [
  {type = "conv2d", name = "conv", stride = [1, 1], padding = [0, 0]},
  {type = "leaky_relu", negative_slope = 0.1},
  {type = "flatten"},
  {type = "linear", name = "head"},
]
"""


@pytest.mark.parametrize("suffix", [".json", ".toml"])
def test_a_description_of_the_layers(suffix: str, tmp_path: Path) -> None:
    tensors = {"conv.weight": torch.randn(2, 1, 3, 3), "head.weight": torch.randn(3, 8), "head.bias": torch.randn(3)}
    save_file(tensors, tmp_path / "f.safetensors")
    (tmp_path / f"arch{suffix}").write_text(TOML if suffix == ".toml" else json.dumps(DESCRIPTION))
    found = convert(tmp_path / "f.safetensors", read_architecture(tmp_path / f"arch{suffix}")).posterior
    assert isinstance(found, BayesianNetwork)
    assert (found.task, found.input_shape) == ("classification", (1, 4, 4))
    assert [layer.kind for layer in found.layers] == ["conv2d", "leaky_relu", "flatten", "linear"]
    assert isinstance(found.layers[0], Conv2d)
    assert torch.equal(found.layers[0].weight_mean, tensors["conv.weight"].double())
    assert not found.random


BAD_DESCRIPTIONS: dict[str, tuple[str, str, str]] = {
    "not JSON": (".json", "{", "not JSON"),
    "not TOML": (".toml", "a = ", "not TOML"),
    "not UTF-8": (".toml", "\udcff", "not TOML"),
    "another suffix": (".yaml", "layers: []", "must end in .json or .toml"),
    "a list": (".json", "[]", "needs a list of layers"),
    "no layers": (".json", "{}", "needs a list of layers"),
    "unknown key": (".json", '{"layers": [], "hook": 1}', "unknown settings: 'hook'"),
    "a key twice": (".json", '{"layers": [], "layers": []}', "names 'layers' twice"),
    "unknown task": (".json", '{"layers": [], "task": "x"}', "task must be one of"),
    "odd shape": (".json", '{"layers": [], "input_shape": [1.5]}', "input_shape is"),
}


@pytest.mark.parametrize("case", BAD_DESCRIPTIONS)
def test_bad_descriptions_are_refused(case: str, tmp_path: Path) -> None:
    suffix, text, words = BAD_DESCRIPTIONS[case]
    path = tmp_path / f"arch{suffix}"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelFileError) as caught:
        read_architecture(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)


def test_other_activations_and_unknown_ones() -> None:
    foreign = Foreign(dict(three_linears()))
    tensors = importer_for(foreign).read(foreign, Choices()).members[0]
    found = Architecture("regression", "tanh").network(tensors)
    assert [layer.kind for layer in found.layers] == ["linear", "tanh", "linear", "tanh", "linear"]
    with pytest.raises(InputError, match="activation must be one of"):
        Architecture(activation="leaky_relu")  # it has a setting


def test_dropout_by_the_description_of_the_layers(tmp_path: Path) -> None:
    """A state_dict and dropout layers in --arch: the mean over masks is that of torch."""
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 2))
    torch.manual_seed(0)
    save_file(module.state_dict(), tmp_path / "f.safetensors")
    (tmp_path / "arch.toml").write_text(
        """
task = "regression"
layers = [
  {type = "linear", name = "0"}, {type = "relu"},
  {type = "dropout", rate = 0.4, law = "bernoulli", channels = false},
  {type = "linear", name = "3"},
]
"""
    )
    from bnndp.importers.architecture import read_architecture

    found = convert(tmp_path / "f.safetensors", read_architecture(tmp_path / "arch.toml")).posterior
    assert [layer.kind for layer in found.layers] == ["linear", "relu", "dropout", "linear"]
    assert found.digest() == bnndp.from_module(module, mc_dropout=True, task="regression").digest()
    x = torch.randn(2, 3)
    with torch.no_grad():
        draws = module.double().train()(x.double().repeat(20000, 1, 1))
    bounds = bnndp.certify(found, bnndp.Box.ball(x.double(), eps=0.0))
    error = 5 * draws.std(0) / 20000**0.5
    assert bool(((bounds.lower - error <= draws.mean(0)) & (draws.mean(0) <= bounds.upper + error)).all())
