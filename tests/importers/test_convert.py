"""Pickles are opened in a child process, for plain tensors only; what comes back is the network, bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.foreign_states import RELUS, check_linears, three_linears
from torch import Tensor

import bnndp
from bnndp.errors import InputError, ModelFileError
from bnndp.files.posterior import load, read_model, save
from bnndp.importers.architecture import Architecture
from bnndp.importers.convert import ConvertOptions, convert
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

CLI_SETTINGS = ("--task", "regression", "--activation", "relu")


@pytest.mark.usefixtures("no_child")
def test_a_checkpoint_through_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bnndp.cli.main import main

    source, out = tmp_path / "c.pt", tmp_path / "m.safetensors"
    torch.save({"epoch": 3, "model": three_linears(), "losses": [0.1, 0.2]}, source)
    arguments = ["convert", str(source), "-o", str(out), "--task", "classification", "--activation", "relu"]
    arguments += ["--key", "model"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "BayesianNetwork(3-4-4-2, classification)" in printed
    assert "read by state_dict: weight_mean = weight" in printed
    assert "  2: linear 4 x 4, no variance in the weights" in printed
    found = read_model(out)
    check_linears(found.posterior, three_linears())
    assert found.sha256 is not None
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert found.origin == {
        "sources": [{"file": "c.pt", "sha256": digest}],
        "importer": "state_dict",
        "formula": "weight_mean = weight, bias_mean = bias or 0, all std = 0",
        "layers": ["0", "2", "4"],
        "choices": {"key": "model"},
        "dtypes": ["float32"],
        "versions": {"bnndp": bnndp.__version__, "torch": metadata.version("torch")},
    }
    assert main(arguments[:-2]) == 0  # the only entry with tensors
    check_linears(load(out), three_linears())


ACTIVATION = (
    "the activation between its layers (--activation KIND or --arch; in Python activation=KIND or an Architecture)"
)
TASK = "the task (--task regression or classification; in Python task=)"


def test_a_missing_task_or_activation_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line that names what to give; nothing is written."""
    from bnndp.cli.main import main

    source, out = tmp_path / "c.safetensors", tmp_path / "m.safetensors"
    save_file(three_linears(), source)
    layers = '"layers": [{"type": "linear", "name": "0"}, {"type": "tanh"}, {"type": "linear", "name": "2"},'
    layers += ' {"type": "gelu"}, {"type": "linear", "name": "4"}]}'
    (tmp_path / "arch.json").write_text("{" + layers)
    (tmp_path / "whole.json").write_text('{"task": "classification", ' + layers)
    arch, whole = ("--arch", str(tmp_path / "arch.json")), ("--arch", str(tmp_path / "whole.json"))
    refused: dict[tuple[str, ...], str] = {
        (): f"{ACTIVATION} and {TASK}",
        ("--activation", "tanh"): TASK,
        ("--task", "classification"): ACTIVATION,
        arch: TASK,
    }
    for options, needed in refused.items():
        assert main(["convert", str(source), "-o", str(out), *options]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith(f"nothing is guessed: give {needed}.")
        assert not out.exists()
    said: dict[tuple[str, ...], str] = {
        CLI_SETTINGS: "activation: relu",
        ("--activation", "tanh", "--task", "classification"): "activation: tanh",
        (*arch, "--task", "regression"): "activations: tanh, gelu",
        whole: "activations: tanh, gelu",
    }
    for options, printed in said.items():
        assert main(["convert", str(source), "-o", str(out), *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert printed in lines
        assert not any(line.startswith("note:") for line in lines)
        task = "classification" if "classification" in options or options == whole else "regression"
        assert load(out).task == task
    assert main(["convert", str(out), "-o", str(tmp_path / "again.safetensors")]) == 0  # ours says it by itself


def test_a_single_layer_needs_no_activation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bnndp.cli.main import main

    source, out = tmp_path / "c.safetensors", tmp_path / "m.safetensors"
    save_file({"0.weight": torch.ones(1, 2), "0.bias": torch.ones(1)}, source)
    assert main(["convert", str(source), "-o", str(out)]) == 2
    assert f"give {TASK}" in capsys.readouterr().err
    assert main(["convert", str(source), "-o", str(out), "--task", "regression"]) == 0
    assert "activation: none\n" in capsys.readouterr().out


@pytest.mark.usefixtures("no_child")
def test_several_entries_with_tensors_are_not_one_network(tmp_path: Path) -> None:
    torch.save({"model": three_linears(), "ema": three_linears()}, tmp_path / "c.pt")
    with pytest.raises(ModelFileError, match="several of its entries hold tensors; give --key model or ema"):
        convert(tmp_path / "c.pt", RELUS)


@pytest.mark.usefixtures("no_child")
def test_views_that_claim_more_than_the_file_are_refused(tmp_path: Path) -> None:
    torch.save({"0.weight": torch.ones(1).expand(10**5, 10**5)}, tmp_path / "f.pt")
    with pytest.raises(ModelFileError, match="save plain tensors, not views"):
        convert(tmp_path / "f.pt", RELUS)


def own_network() -> BayesianNetwork:
    layers = [Linear(torch.randn(n, m), torch.rand(n, m), torch.randn(n), torch.rand(n)) for m, n in ((2, 3), (3, 1))]
    return BayesianNetwork.from_linears(layers)


def own_tensors(network: BayesianNetwork) -> dict[str, Tensor]:
    pairs = zip(("first", "net.last"), network.linears, strict=True)
    return {f"{name}.{field}": getattr(layer, field) for name, layer in pairs for field in layer.tensors}


def test_our_own_names_in_a_safetensors_file(tmp_path: Path) -> None:
    network = own_network()
    save_file(own_tensors(network), tmp_path / "f.safetensors")
    found = convert(tmp_path / "f.safetensors", RELUS)
    assert found.posterior.digest() == network.digest()
    assert found.origin is not None
    assert found.origin["importer"] == "bnndp"
    assert "torch" not in found.origin["versions"]


def _renamed(tensors: dict[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    return {name.replace(old, new): tensor for name, tensor in tensors.items()}


BAD_TENSORS: dict[str, tuple[Callable[[dict[str, Tensor]], dict[str, Tensor]], str]] = {
    "batch norm": (lambda t: t | {"bn.running_mean": torch.ones(4)}, "'bn.running_mean' is known to no importer"),
    "a bias alone": (lambda t: t | {"x.bias": torch.ones(4)}, "'x.bias' is a bias without a weight"),
    "both kinds": (lambda t: t | {"x.weight_mean": torch.ones(1, 2)}, "lacks the tensors"),
    "images": (lambda t: t | {"x.weight": torch.ones(1, 2, 3, 3)}, "not a chain of dense layers; give --arch"),
    "sizes": (lambda t: t | {"x.weight": torch.ones(1, 7)}, "their sizes fit in no order; give --arch"),
    "integers": (lambda t: t | {"x.weight": torch.ones(1, 2, dtype=torch.int64)}, "has dtype torch.int64"),
    "not finite": (
        lambda t: t | {"0.bias": torch.full((4,), torch.nan)},
        "tensor '0.bias' is not finite: [0] is nan (4 of 4 are bad)",
    ),
    "bias of another size": (lambda t: t | {"0.bias": torch.ones(3)}, "bias_mean must have shape (4,)"),
    "nothing": (lambda _: {}, "it holds no tensors"),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_tensors_that_make_no_network_are_refused(case: str, tmp_path: Path) -> None:
    change, words = BAD_TENSORS[case]
    save_file(change(dict(three_linears())), tmp_path / "f")
    with pytest.raises(ModelFileError) as caught:
        convert(tmp_path / "f", RELUS)
    assert str(caught.value).startswith(f"{tmp_path / 'f'}: cannot be converted: ")
    assert words in str(caught.value)


def test_a_single_layer_has_no_name(tmp_path: Path) -> None:
    save_file(dict(torch.nn.Linear(2, 1).state_dict()), tmp_path / "f")
    assert repr(convert(tmp_path / "f", Architecture("regression")).posterior) == "BayesianNetwork(2-1, regression)"


def test_our_own_files_are_sealed_anew(tmp_path: Path) -> None:
    network = own_network()
    save(network, tmp_path / "a", source="words", card={"seed": 1})
    found = convert(tmp_path / "a")
    assert (found.source, found.card, found.posterior.digest()) == ("words", {"seed": 1}, network.digest())
    save(found.posterior, tmp_path / "b", source=found.source, card=found.card, origin=found.origin)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with pytest.raises(InputError, match="describes its layers by itself"):
        convert(tmp_path / "a", Architecture())
    with pytest.raises(InputError, match="leave out --key"):
        convert(tmp_path / "a", options=ConvertOptions(key="model"))


@pytest.mark.parametrize("origin", [{}, {"layers": 5}, {"layers": ["\x1b[2J\n", 3]}, {"layers": []}], ids=str)
def test_the_command_prints_no_origin_as_it_stands(
    origin: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from bnndp.cli.main import main

    save(own_network(), tmp_path / "a", origin=origin)
    assert main(["convert", str(tmp_path / "a"), "-o", str(tmp_path / "b.safetensors")]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())
    assert read_model(tmp_path / "b.safetensors").origin == origin


def test_the_command_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bnndp.cli.main import main

    (tmp_path / "f").write_bytes(b"")
    model, out = "m.safetensors", "out.safetensors"
    (tmp_path / "a.json").write_text('{"layers": [], "task": "regression"}')
    save(own_network(), tmp_path / model)
    before = (tmp_path / model).read_bytes()
    for arguments, words in {
        ("f", "-o", out): "not a file written by torch.save",
        ("absent", "-o", out): "No such file",
        (model, "-o", model): "would be overwritten",
        (model, "-o", out, "--arch", "a.json", "--task", "regression"): "--arch says",
        (model, "-o", out, "--activation", "mish"): "activation must be one of",
        (model, "-o", "no/such/folder.safetensors"): "cannot be written",
        (model, "-o", "out.pt"): "out.pt: a model file is written, whose name must end in .safetensors",
        (model, "-o", "out"): "must end in .safetensors",
    }.items():
        full = [
            str(tmp_path / part) if not part.startswith("-") and i in (0, 2, 4) and part != "mish" else part
            for i, part in enumerate(arguments)
        ]
        assert main(["convert", *full]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert words in line
    assert (tmp_path / model).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "f", model]
    assert load(tmp_path / model).digest()
