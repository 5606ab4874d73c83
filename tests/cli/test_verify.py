"""``bnndp verify`` from the files to the answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

onnx = pytest.importorskip("onnx", reason="ONNX files are read by the package onnx")

PROPERTY = """(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real)
(assert (<= X_0 {0})) (assert (>= X_0 0)) (assert (<= X_1 0.5)) (assert (>= X_1 0.0))
(assert (>= Y_0 1))
"""  # y = relu(x_0 + x_1)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """relu(x_0 + x_1)."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kind, [1, 2])],
        [helper.make_tensor_value_info("y", kind, [1, 1])],
        [onnx.numpy_helper.from_array(np.ones((2, 1), np.float32), "w")],
    )
    path = tmp_path / "n.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    return path


def asked(tmp_path: Path, end: float) -> Path:
    path = tmp_path / f"p{end}.vnnlib"
    path.write_text(PROPERTY.format(end))
    return path


def test_unsat_and_sat(bnndp: Callable[..., Any], network: Path, tmp_path: Path) -> None:
    result = bnndp("verify", network, asked(tmp_path, 0.4))
    assert (result.status, result.stdout) == (0, "unsat\n")
    assert re.fullmatch(r"bnndp: \d+ cells of the inputs were bounded, 0 of them are not proved\n", result.stderr)
    result = bnndp("verify", network, asked(tmp_path, 0.75), "--out", tmp_path / "answer.txt", "--quiet")
    assert (result.status, result.stderr) == (0, "")
    assert (tmp_path / "answer.txt").read_text() == result.stdout
    number = r"(-?[0-9.e-]+)"
    found = re.fullmatch(rf"sat\n\(\(X_0 {number}\)\n \(X_1 {number}\)\n \(Y_0 {number}\)\)\n", result.stdout)
    assert found is not None
    first, second, output = map(float, found.groups())
    assert 0 <= first <= 0.75
    assert 0 <= second <= 0.5
    assert output == pytest.approx(first + second)
    assert first + second >= 1


def test_the_border_is_unknown_or_late(bnndp: Callable[..., Any], network: Path, tmp_path: Path) -> None:
    result = bnndp("verify", network, asked(tmp_path, 0.5), "--time-limit", 1)
    assert (result.status, result.stdout) in ((130, "timeout\n"), (0, "unknown\n"))  # by the speed of the machine
    late = result.stderr.endswith("bnndp: the time was over before there was an answer.\n")
    assert late == (result.status == 130)


def test_standard_deviations_and_own_files(bnndp: Callable[..., Any], network: Path, tmp_path: Path) -> None:
    """E relu(h) with h ~ N(x_0 + x_1, x_0^2 + x_1^2) reaches 1 where the network without variance does not."""
    save_file({"w": np.ones((2, 1), np.float32)}, tmp_path / "s.safetensors")
    std = ("--std", tmp_path / "s.safetensors")
    assert bnndp("verify", network, asked(tmp_path, 0.49)).stdout == "unsat\n"
    assert bnndp("verify", network, asked(tmp_path, 0.49), *std).stdout.startswith("sat\n")
    own = tmp_path / "own.safetensors"
    assert bnndp("convert", network, *std, "--task", "regression", "--out", own).status == 0
    assert bnndp("verify", own, asked(tmp_path, 0.49)).stdout.startswith("sat\n")
    assert bnndp("verify", own, asked(tmp_path, 0.05), "--time-limit", 30).stdout == "unsat\n"


def test_what_is_wrong_is_one_line(refused: Callable[..., str], network: Path, model: Path, tmp_path: Path) -> None:
    good = asked(tmp_path, 0.4)
    refused("verify", tmp_path / "none.onnx", good, says=["none.onnx: cannot be read"])
    refused("verify", network, tmp_path / "none.vnnlib", says=["none.vnnlib: cannot be read"])
    refused("verify", model, good, "--std", model, says=["leave out --std"])
    refused("verify", network, good, "--out", network, says=["--out"])
    wide = tmp_path / "w.vnnlib"
    wide.write_text("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (= X_0 0))(assert (<= Y_0 0))")
    refused("verify", network, wide, says=["w.vnnlib: the property has 1 inputs and 1 outputs, the network 2 and 1"])
    wide.write_text("(declare-const X_0 Real)(assert (= X_0 0))")
    refused("verify", network, wide, says=["nothing to verify"])
    refused("convert", network, "--out", tmp_path / "o.safetensors", says=["is converted alone, with --task"])
