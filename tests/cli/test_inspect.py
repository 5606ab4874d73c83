"""``bnndp inspect``: what it says is what the file holds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bnndp as library
from bnndp.activations import Relu, Tanh
from bnndp.files.posterior import save
from bnndp.layers import Conv2d, CorrelatedLinear, Dropout, Flatten, Linear, MatrixNormalLinear, Residual
from bnndp.network import BayesianNetwork

F64 = torch.float64


def _random(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=F64)


@pytest.fixture
def look(bnndp: Any, tmp_path: Path) -> Any:
    """What the command says of a network, read strictly."""

    def run(network: Any, **said: Any) -> dict[str, Any]:
        path = tmp_path / "looked-at.safetensors"
        save(network, path, **said)
        result = bnndp("inspect", path, "--json")
        assert (result.status, result.stderr, result.stdout.count("\n")) == (0, "", 1)
        assert bnndp("inspect", path).status == 0
        found = json.loads(result.stdout)
        assert found["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert (found["digest"], found["sealed"]) == (network.digest(), True)
        return found

    return run


def test_layers_shapes_and_spread(look: Any) -> None:
    conv = Conv2d(_random(4, 1, 3, 3), _random(4, 1, 3, 3), _random(4), _random(4), (2, 2), (1, 1))
    block = Residual((Linear(_random(16, 16), _random(16, 16), _random(16), _random(16)), Tanh()))
    chain = (conv, Relu(), Flatten(), Dropout(0.25), block, Linear.fixed(_random(3, 16)))
    found = look(BayesianNetwork(chain, "classification", None, (1, 4, 4)))
    assert [layer["kind"] for layer in found["layers"]] == [
        "conv2d", "relu", "flatten", "dropout", "linear", "tanh", "linear",
    ]  # fmt: skip
    assert [layer["name"] for layer in found["layers"]] == ["0", "1", "2", "3", "4.0", "4.1", "5"]
    shapes = [[4, 2, 2], [4, 2, 2], [16], [16], [16], [16], [3]]
    assert [layer["output_shape"] for layer in found["layers"]] == shapes
    assert [layer["parameters"] for layer in found["layers"]] == [40, 0, 0, 0, 272, 0, 51]
    assert (found["parameters"], found["inputs"], found["input_shape"], found["outputs"]) == (363, 16, [1, 4, 4], 3)
    assert found["layers"][0]["settings"] == {"stride": [2, 2], "padding": [1, 1]}
    assert found["layers"][3]["settings"] == {"rate": 0.25, "law": "bernoulli", "channels": False}
    stds = np.sort(torch.cat([conv.weight_std.reshape(-1), conv.bias_std]).numpy())
    assert found["layers"][0]["spread"] == {"least": stds[0], "median": stds[(40 - 1) // 2], "largest": stds[-1]}
    assert found["layers"][-1]["spread"] == {"least": 0, "median": 0, "largest": 0}
    assert found["layers"][1]["spread"] is None


def test_spread_of_correlated_weights_is_that_of_samples(look: Any) -> None:
    """The factors as covariances: a whole layer's, and one of rows and columns."""
    root = _random(6, 6)
    whole = CorrelatedLinear.whole(_random(2, 2), _random(2), root @ root.mT)
    spread = look(BayesianNetwork((whole,)))["layers"][0]["spread"]
    want = (root @ root.mT).diagonal().sqrt()
    assert [spread["least"], spread["largest"]] == pytest.approx([want.min().item(), want.max().item()], rel=1e-9)
    std, factor = _random(2, 2), _random(2, 3, 4)
    both = CorrelatedLinear.low_rank(_random(2, 2), std, _random(2), _random(2), factor)
    spread = look(BayesianNetwork((both,)))["layers"][0]["spread"]
    own = torch.cat([std, _random(2)[:, None]], 1)
    want = (own**2 + (factor**2).sum(-1)).sqrt()
    assert [spread["least"], spread["largest"]] == pytest.approx([want.min().item(), want.max().item()], rel=1e-12)
    rows, columns = _random(2, 2), _random(3, 3)
    kron = MatrixNormalLinear(_random(2, 2), _random(2), rows, columns)
    spread = look(BayesianNetwork((kron,)))["layers"][0]["spread"]
    covariance = torch.kron(rows @ rows.mT, columns @ columns.mT).diagonal().sqrt()
    assert [spread["least"], spread["largest"]] == pytest.approx([covariance.min().item(), covariance.max().item()])


def test_an_ensemble_is_told_as_one(look: Any) -> None:
    members = [Linear(_random(1, 2), std * torch.ones(1, 2, dtype=F64), _random(1), _random(1) + 5) for std in (1, 9)]
    weights = torch.tensor([0.25, 0.75], dtype=F64)
    found = look(library.Ensemble(tuple(BayesianNetwork((member,)) for member in members), weights))
    assert found["ensemble"] == {"members": 2, "least_weight": 0.25, "largest_weight": 0.75, "alike": True}
    assert (found["parameters"], found["layers"][0]["parameters"]) == (6, 3)
    assert (found["layers"][0]["spread"]["least"], found["layers"][0]["spread"]["largest"]) == (1, 9)
    other = BayesianNetwork((Linear.fixed(_random(3, 2)), Tanh(), Linear.fixed(_random(1, 3))))
    assert look(library.Ensemble((BayesianNetwork((members[0],)), other)))["ensemble"]["alike"] is False


NETWORKS = {
    "dense": BayesianNetwork.from_linears(
        [Linear(_random(4, 2), _random(4, 2), _random(4), _random(4)), Linear.fixed(_random(1, 4))]
    ),
    "last layer": BayesianNetwork.from_linears(
        [Linear.fixed(_random(4, 2)), Linear(_random(1, 4), _random(1, 4), _random(1), _random(1))]
    ),
    "dense classifier": BayesianNetwork.from_linears(
        [Linear(_random(4, 2), _random(4, 2), _random(4), _random(4)), Linear.fixed(_random(2, 4))], "classification"
    ),
    "classifier": BayesianNetwork((Linear.fixed(_random(3, 2)), Tanh(), Linear.fixed(_random(2, 3))), "classification"),
}
OPTIONS = {
    "certify": ("certify", "--eps", 0.01),
    "certify --quantity variance": ("certify", "--eps", 0.01, "--quantity", "variance"),
    "certify --quantity noise": ("certify", "--eps", 0.01, "--quantity", "noise"),
    "certify --between": ("certify", "--eps", 0.01, "--between", 0, 1),
    "certify --method partition": ("certify", "--eps", 0.01, "--method", "partition"),
    "radius": ("radius", "--no-attack"),
    "evaluate": ("evaluate", "--eps", 0.01, "--no-attack"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_what_can_be_asked_is_what_the_commands_do(look: Any, bnndp: Any, tmp_path: Path, name: str) -> None:
    network = NETWORKS[name]
    told = look(network)["commands"]
    assert set(told) == {*OPTIONS, "certificates"}
    save(network, tmp_path / "m")
    np.savez(tmp_path / "x.npz", x=[[0.1, 0.2]], y=[0])
    for question, (command, *options) in OPTIONS.items():
        result = bnndp(command, tmp_path / "m", tmp_path / "x.npz", *options, "--json")
        assert result.status == (0 if told[question]["can"] else 2), (question, result.stderr)
        assert told[question]["why"]
    assert told["certificates"]["can"] is True


def test_what_a_file_says_is_shown_harmless(bnndp: Any, tmp_path: Path) -> None:
    path = tmp_path / "m"
    network = BayesianNetwork((Linear.fixed(_random(1, 2)),))
    save(network, path, source="[red]\x1b[31mevil\n[/red]", card={"seed": 3}, origin={"importer": "\x1b]0;x\x07[b]"})
    result = bnndp("inspect", path)
    assert result.status == 0
    assert "\x1b" not in result.stdout
    assert "\x07" not in result.stdout
    assert "[red]\\x1b[31mevil\\n[/red]" in result.stdout
    assert "seed 3" in result.stdout


def test_what_is_no_model_is_refused(refused: Any, inputs: Path, tmp_path: Path) -> None:
    assert "no such file" in refused("inspect", tmp_path / "none")
    assert str(inputs) in refused("inspect", inputs)
