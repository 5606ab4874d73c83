"""``bnndp train``: small trainings end to end, interruption, refusals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from support.ensembles import outputs
from tests.cli.conftest import terminal
from tests.marks import slow_but
from tests.training import synthetic as made
from typer.testing import CliRunner

from bnndp.cli.main import app
from bnndp.cli.parameters import CLASSES, TARGETS
from bnndp.data import NAMES, describe, load
from bnndp.files.posterior import load as load_network
from bnndp.files.posterior import training_card
from bnndp.layers import Dropout
from bnndp.network import Ensemble
from bnndp.training.method import StepSettings
from bnndp.training.vogn import Vogn

STOPPED = "bnndp: stopped before the end; no output file was written"
# The program with a checkpoint after every step, and steps that take their time.
SLOW = """
import time
from bnndp.training import loop, vogn
loop._SECONDS = 0.0
step = vogn.Vogn.step
def slow(*arguments):
    time.sleep(0.02)
    return step(*arguments)
vogn.Vogn.step = slow
from bnndp.cli.main import run
run()
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the set ``made``."""
    made.install(monkeypatch, tmp_path / "data")
    return tmp_path / "data"


def test_digits_to_certified_radii_in_two_commands(bnndp: Any, answers: Any, tmp_path: Path) -> None:
    model = tmp_path / "digits.safetensors"
    options = ("--hidden", "1x32", "--inference", "vogn", "--steps", 300, "--temperature", 0.1)
    result = bnndp("train", "digits", *options, "--out", model)
    assert (result.status, result.stderr) == (0, "")
    for word in ("digits", "vogn", "300", "accuracy", "NLL", "calibration", "seconds"):
        assert word in result.stdout
    network = load_network(model)
    assert (network.sizes, network.task, network.shift) == ((64, 32, 10), "classification", None)
    card = training_card(model)
    assert card is not None
    assert f"{100 * card['test']['accuracy']:.1f} %" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits.safetensors"]  # the checkpoint is gone

    rows = answers("radius", model, "--data", "digits", "--limit", 8, "--domain", 0, 1, "--no-attack")
    assert [row["label"] for row in rows] == load("digits", "test").y[:8].tolist()
    assert sum((row["radius"] or 0) > 1e-3 for row in rows) >= 5
    assert bnndp("evaluate", model, "--data", "digits", "--limit", 4, "--eps", 0.01, "--no-attack").status == 0


def test_bounds_in_the_units_of_the_set_hold(bnndp: Any, answers: Any, tmp_path: Path, folder: Path) -> None:
    model = tmp_path / "m.safetensors"
    options = ("--hidden", "2x8", "--steps", 600, "--data-dir", folder)
    result = bnndp("train", made.NAME, *options, "--out", model)
    assert (result.status, result.stderr) == (0, "")
    assert "RMSE" in result.stdout
    network = load_network(model)
    centre = load(made.NAME, "test", folder=folder).x[:12]
    half = torch.tensor(0.05 * made.SCALE)
    np.savez(tmp_path / "in.npz", lower=(centre - half).numpy(), upper=(centre + half).numpy())
    rows = answers("certify", model, tmp_path / "in.npz")
    generator = torch.Generator().manual_seed(4)
    draws = 2000
    for point in range(4):  # of every box
        x = centre + half * (2 * torch.rand(centre.shape, generator=generator, dtype=torch.float64) - 1)
        drawn = outputs(network, x, draws, seed=point)[..., 0]
        error = 5 * drawn.std(0) / draws**0.5
        for row, mean, slack in zip(rows, drawn.mean(0).tolist(), error.tolist(), strict=True):
            assert row["lower"] - slack <= mean <= row["upper"] + slack
    # The bounds say something: targets have a deviation of about 1.2 FACTOR, and the slack is small beside the bounds.
    assert all(row["width"] < made.FACTOR for row in rows)
    assert max(error.tolist()) < 0.2 * made.FACTOR


def test_the_summary_as_json(bnndp: Any, tmp_path: Path) -> None:
    for data, figure in (("sine1d", "rmse"), ("moons", "accuracy")):
        out = tmp_path / data
        result = bnndp("train", data, "--hidden", "1x4", "--steps", 3, "--out", out, "--json", "--quiet")
        assert (result.status, result.stderr, result.stdout.count("\n")) == (0, "", 1)
        found = json.loads(result.stdout)
        assert (found["command"], found["data"], found["steps"]) == ("train", data, 3)
        assert (found["model"], found["digest"]) == (str(out), load_network(out).digest())
        assert set(found["test"]) == {figure, "nll", "calibration_error"}


def test_the_sine(bnndp: Any, tmp_path: Path) -> None:
    model = tmp_path / "s.safetensors"
    options = ("--hidden", "1x8", "--inference", "bbb", "--steps", 20, "--batch", 64, "--learning-rate", 0.02)
    more = ("--prior", "unit", "--prior-std", 0.5, "--noise-std", 0.2, "--stop-early", "--seed", 7)
    assert bnndp("train", "sine1d", *options, *more, "--out", model).status == 0
    card = training_card(model)
    assert card is not None
    used = card["options"]
    assert (used["hidden"], used["batch"], used["learning_rate"], used["prior_std"]) == ([8], 64, 0.02, 0.5)
    assert (used["noise_std"], used["seed"], used["inference"], used["prior"]) == (0.2, 7, "bbb", "unit")
    assert used["stopping"] is not None


def _arguments(out: Path, steps: int = 60) -> list[str]:
    return ["train", "digits", "--hidden", "1x8", "--steps", str(steps), "--out", str(out)]


def begun(out: Path) -> subprocess.Popen[bytes]:
    """A slow training that has a checkpoint."""
    command, end = [sys.executable, "-c", SLOW, *_arguments(out)], time.monotonic() + 60
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not out.with_name(f"{out.name}.checkpoint").exists() and time.monotonic() < end:
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("sent", slow_but([signal.SIGKILL, signal.SIGTERM], signal.SIGKILL))
def test_a_killed_training_goes_on_to_the_same_file(bnndp: Any, tmp_path: Path, sent: int) -> None:
    whole, broken = tmp_path / "whole" / "m.safetensors", tmp_path / "broken" / "m.safetensors"
    for path in (whole, broken):
        path.parent.mkdir()
    assert bnndp(*_arguments(whole)).status == 0
    checkpoint = broken.with_name("m.safetensors.checkpoint")
    process = begun(broken)
    time.sleep(0.2)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == (143 if sent == signal.SIGTERM else -sent)
    said = f"{STOPPED}; the same command continues from {checkpoint}.\n" if sent == signal.SIGTERM else ""
    assert errors.decode() == said
    assert checkpoint.exists()
    assert not broken.exists()
    result = bnndp(*_arguments(broken))
    assert result.status == 0
    assert result.stderr.startswith("bnndp: resumed at step ")
    assert 0 < int(result.stderr.split()[-1].rstrip(".")) < 60
    assert broken.read_bytes() == whole.read_bytes()
    assert not checkpoint.exists()


def test_a_checkpoint_after_the_last_step(bnndp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, out = tmp_path / "whole.safetensors", tmp_path / "m.safetensors"
    assert bnndp(*_arguments(whole)).status == 0

    with monkeypatch.context() as patch:
        patch.setattr("bnndp.files.posterior.save", Mock(side_effect=KeyboardInterrupt))
        result = bnndp(*_arguments(out))
    line = f"{STOPPED}; the same command continues from {out}.checkpoint.\n"
    assert (result.status, result.stderr) == (130, line)
    result = bnndp(*_arguments(out))
    assert (result.status, result.stderr) == (0, "bnndp: resumed after the last step.\n")
    assert out.read_bytes() == whole.read_bytes()


def test_a_training_that_is_stopped_while_it_begins_again(
    bnndp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "m.safetensors"
    checkpoint = tmp_path / "m.safetensors.checkpoint"
    checkpoint.write_bytes(b"of another training")
    step = Vogn.step

    def stopped_at(last: int) -> Any:
        def stop(self: Vogn, x: Any, y: Any, settings: StepSettings) -> Any:
            if settings.step == last:
                raise KeyboardInterrupt
            return step(self, x, y, settings)

        with monkeypatch.context() as patch:
            patch.setattr("bnndp.training.loop._SECONDS", 0.0)
            patch.setattr(Vogn, "step", stop)
            return bnndp(*_arguments(out), "--restart")

    # The old checkpoint is not named: the training cannot continue from it.
    result = stopped_at(0)
    assert (result.status, result.stderr) == (130, f"{STOPPED}.\n")
    assert checkpoint.read_bytes() == b"of another training"
    # A new one is, but --restart would not continue from it.
    result = stopped_at(5)
    line = f"{STOPPED}; the same command without --restart continues from {checkpoint}.\n"
    assert (result.status, result.stderr) == (130, line)
    assert bnndp(*_arguments(out)).stderr == "bnndp: resumed at step 5.\n"


def test_a_checkpoint_of_another_training(bnndp: Any, refused: Any, tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    process, checkpoint = begun(out), tmp_path / "m.safetensors.checkpoint"
    process.kill()
    process.communicate()
    line = refused(*_arguments(out, 50))
    assert "is of another training (steps is 60 there, 50 here); begin again with --restart, or change --out" in line
    checkpoint.write_bytes(b"rubbish")
    assert "begin again with --restart" in refused(*_arguments(out))
    result = bnndp(*_arguments(out, 50), "--restart")
    assert (result.status, result.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.safetensors"]


LAYERS: dict[str, tuple[tuple[object, ...], list[str], str]] = {
    "activation": (("--hidden", "1x8", "--activation", "hard-tanh"), ["linear", "hard_tanh", "linear"], "vogn"),
    "convolutions": (
        ("--conv", "3x3p1,pool2,4x3,max2", "--inference", "bbb", "--activation", "silu"),
        ["conv2d", "silu", "average_pool", "conv2d", "silu", "max_pool", "flatten", "linear"],
        "bbb",
    ),
    "dropout": (
        ("--hidden", "1x8", "--dropout", 0.2, "--dropout-law", "gaussian", "--stop-early"),
        ["linear", "relu", "dropout", "linear"],
        "map, dropout",
    ),
    "dropout of channels": (
        ("--conv", "3x3s2", "--hidden", "1x8", "--dropout", 0.2, "--dropout-where", "channels", "--robust", 0.01),
        ["conv2d", "relu", "dropout", "flatten", "linear", "relu", "dropout", "linear"],
        "map, dropout",
    ),
    "as in the paper's table 2": (
        ("--conv", "2x4", "--hidden", "1x8", "--dropout", 0.2, "--inference", "bbb"),
        ["conv2d", "relu", "dropout", "flatten", "linear", "relu", "linear"],
        "bbb, dropout",
    ),
    "laplace": (("--hidden", "1x8", "--laplace", "last-layer"), ["linear", "relu", "correlated_linear"], "map, "),
    "no hidden layer": (("--hidden", "none", "--inference", "bbb"), ["linear"], "bbb"),
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers(bnndp: Any, tmp_path: Path, case: str) -> None:
    arguments, kinds, method = LAYERS[case]
    out = tmp_path / "m.safetensors"
    result = bnndp("train", "digits", *arguments, "--steps", 30, "--out", out)
    assert (result.status, result.stderr) == (0, "")
    assert method in result.stdout
    network = load_network(out)
    assert [layer.kind for layer in network.layers] == kinds
    assert network.random
    dropped = [layer for layer in network.layers if isinstance(layer, Dropout)]
    if dropped:
        assert all(layer.rate == 0.2 for layer in dropped)
        assert dropped[0].channels == ("channels" in arguments)
        assert dropped[0].law == ("gaussian" if "gaussian" in arguments else "bernoulli")
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


def test_an_ensemble(bnndp: Any, tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    options = ("--hidden", "1x8", "--steps", 30)
    result = bnndp("train", "digits", *options, "--ensemble", 3, "--seed", 4, "--out", out)
    assert (result.status, result.stderr) == (0, "")
    found = load_network(out)
    assert isinstance(found, Ensemble)
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]  # all checkpoints are gone
    assert bnndp("train", "digits", *options, "--inference", "map", "--seed", 6, "--out", out).status == 0
    assert load_network(out).digest() == found.members[2].digest()
    card = training_card(out)
    assert card is not None
    assert card["inference"] == "map"


REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "unknown set": (("letters",), "there is no data set 'letters'"),
    "a near miss": (("fashion-mnist",), "did you mean fashion_mnist?"),
    "one number": (("digits", "--hidden", "64"), "'--hidden': '64' is not a number of layers, an x and their width"),
    "no layers": (("digits", "--hidden", "0x64"), "'--hidden'"),
    "no neurons": (("digits", "--hidden", "2x0"), "'--hidden'"),
    "words": (("digits", "--hidden", "twox64"), "'--hidden'"),
    "too many layers": (("digits", "--hidden", "1000x64"), "'--hidden'"),
    "unknown method": (("digits", "--inference", "magic"), "inference 'magic' is unknown; choose one of bbb, vogn"),
    "dropout": (("digits", "--inference", "dropout"), "inference 'dropout' is an option beside the method"),
    "ensemble": (("digits", "--inference", "ensemble"), "inference 'ensemble' is an option beside the method"),
    "laplace": (("digits", "--inference", "laplace"), "inference 'laplace' is an option beside the method"),
    "unknown activation": (("digits", "--activation", "step"), "activation must be one of relu, leaky_relu"),
    "no convolution": (("digits", "--conv", "three"), "conv has 'three'; its layers look like 6x5"),
    "a large convolution": (("digits", "--conv", "3x9"), "does not fit images of shape (1, 8, 8)"),
    "images of vectors": (("sine1d", "--conv", "3x3"), "needs images, but inputs of sine1d are vectors"),
    "all dropped": (("digits", "--dropout", 1), "'--dropout': 1.0 is not a rate of dropout"),
    "dropout by vogn": (("digits", "--dropout", 0.1, "--inference", "vogn"), "dropout is trained by map"),
    "a law": (("digits", "--dropout", 0.1, "--dropout-law", "cauchy"), "law must be one of bernoulli, gaussian"),
    "no members": (("digits", "--ensemble", 0), "'--ensemble'"),
    "laplace of all": (("digits", "--laplace", "all"), "laplace must be last-layer, got 'all'"),
    "laplace by vogn": (("digits", "--laplace", "last-layer", "--inference", "vogn"), "choose inference map"),
    "robust regression": (("sine1d", "--robust", 0.1), "robust is for"),
    "no steps": (("digits", "--steps", 0), "'--steps'"),
    "no batch": (("digits", "--batch", 0), "'--batch'"),
    "negative rate": (("digits", "--learning-rate", -1), "'--learning-rate': -1.0 is not a finite number above zero"),
    "unknown prior": (("digits", "--prior", "flat"), "prior must be one of unit, fan_in, got 'flat'"),
    "NaN prior": (("digits", "--prior-std", "nan"), "'--prior-std'"),
    "infinite temperature": (("digits", "--temperature", "inf"), "'--temperature'"),
    "no noise": (("sine1d", "--noise-std", 0), "'--noise-std'"),
    "noise of classes": (("digits", "--noise-std", 0.1), "noise_std is for regression"),
    "no such fold": (("digits", "--fold", 5), "fold"),
    "negative seed": (("digits", "--seed", -1), "'--seed'"),
    "two sets": (("digits", "moons"), "moons"),
    "a rate that diverges": (("digits", "--steps", 50, "--learning-rate", 1e30, "--restart"), "training diverged"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(refused: Any, tmp_path: Path, case: str) -> None:
    arguments, words = REFUSED[case]
    assert words in refused("train", *arguments, "--out", tmp_path / "m.safetensors")


def test_places_that_cannot_be_written(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    cases = {
        tmp_path / "missing" / "m.safetensors": "does not exist; make it or change --out",
        tmp_path / "file" / "m.safetensors": "does not exist; make it or change --out",
        tmp_path / "folder": "is not a regular file and cannot be replaced; change --out",
        Path("/dev/null"): "is not a regular file",
        Path("-"): "is not a regular file",
        tmp_path / ("m" * 300): "cannot be written",
    }
    for out, words in cases.items():
        line = refused("train", "digits", "--steps", 1, "--out", out)
        assert str(out) in line
        assert words in line
    assert "'--out'" in refused("train", "digits")


@pytest.mark.parametrize("name", ["mnist", "kin8nm", "cifar10_subset"])
def test_data_that_are_not_there(refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("BNNDP_DATA", raising=False)
    line = refused("train", name, "--data-dir", tmp_path, "--out", tmp_path / "m.safetensors")
    assert f"{tmp_path / name.removesuffix('_subset')}: lacks " in line
    assert "put " in line


def test_help_names_all_sets() -> None:
    assert set(CLASSES) == {name for name in NAMES if describe(name).task == "classification"}
    assert set(TARGETS) == {name for name in NAMES if describe(name).task == "regression"}
    result = CliRunner().invoke(app, ["train", "--help"])
    assert result.exit_code == 0
    assert all(name in result.stdout for name in NAMES)


def test_progress_on_a_terminal(tmp_path: Path) -> None:
    status, _, seen = terminal([sys.executable, "-c", SLOW, *_arguments(tmp_path / "m.safetensors")])
    assert status == 0
    assert b"train" in seen
    assert b"60 of 60" in seen
