"""Single steps of a chain, and mixtures: what a form gains on its way back, against what the step can really do."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from handmade import certificate, header, hexed, linear, rectified, relu_step, sealed, tensors, write_model

pytest.importorskip("flint", reason="the checker needs python-flint")
from flint import arb

from bnndp_checker import chain, check
from bnndp_checker.balls import ONE, ZERO, use_precision
from bnndp_checker.chain import Chain, Drop, Form
from bnndp_checker.layers import Box
from bnndp_checker.reading import Layer, Tensor


@pytest.fixture(autouse=True)
def _precision() -> None:
    use_precision()


def _dense(mean: list[list[float]], bias: list[float], bias_std: float = 0.0) -> Layer:
    shape = (len(mean), len(mean[0]))
    flat = tuple(x for row in mean for x in row)
    tensors = {"weight_mean": Tensor(shape, flat), "weight_std": Tensor(shape, (0.0,) * len(flat))}
    tensors |= {"bias_mean": Tensor(shape[:1], tuple(bias)), "bias_std": Tensor(shape[:1], (bias_std,) * shape[0])}
    return Layer("linear", {}, tensors)


def _box(low: list[float], high: list[float]) -> Box:
    return Box([arb(x) for x in low], [arb(x) for x in high])


def test_what_is_cut_off_joins_the_form() -> None:
    """|X| is X where it is not cut off, so that E |X| is too much by what the other side of zero adds."""
    layers = [_dense([[0.0]], [1.5], 1.0), Layer("leaky_relu", {"negative_slope": -1.0}, {})]
    truth = 1.5 + 2 * rectified(-1.5, 1.0)  # E |X|
    lines = {"above": [[0.0], [truth + 1e-9]], "below": [[0.0], [truth - 1e-9]]}
    proof = {"exponent": 1.0, "steps": [{"mean": [[1.5], [1.5]], "deviation": [[1.0], [1.0]]} | lines]}
    proved, box = chain.chain(layers, (1,), _box([0.0], [0.0]), hexed(proof))
    form = proved.form([[ONE], [-ONE]], [ZERO, ZERO])
    assert float(form.constants[0]) > truth
    assert float(form.constants[1]) >= -1.5  # the mean of X, which is the value where nothing has failed
    assert float(form.squares[0]) >= 1.0
    assert box.low[0] <= 1.5 - math.sqrt(2) + 1e-12
    assert box.high[0] >= 1.5 + math.sqrt(2) - 1e-12


@pytest.mark.parametrize(("channels", "failures"), [(False, 6), (True, 2)])
def test_gaussian_factors_are_cut_off_and_counted(channels: bool, failures: int) -> None:
    before = _box([-1.0] * 6, [2.0] * 6)
    proved = Chain(before, arb(8))
    settings = {"rate": 0.5, "law": "gaussian", "channels": channels}
    after = chain._dropout(Layer("dropout", settings, {}), (2, 1, 3), before, proved)
    (step,) = proved.steps
    assert isinstance(step, Drop)
    assert (proved.failures, step.size) == (failures, 3 if channels else 1)
    assert step.square >= 1  # rate / (1 - rate)
    assert all(x <= -2 * 3 for x in after.low)  # the factor is within 1 +- 4
    assert all(x >= 2 * 5 for x in after.high)


def test_no_dropout_is_no_step() -> None:
    before = _box([0.0], [1.0])
    proved = Chain(before, arb(8))
    assert (
        chain._dropout(Layer("dropout", {"rate": 0, "law": "gaussian", "channels": False}, {}), (1,), before, proved)
        is before
    )
    assert (proved.steps, proved.failures) == ([], 0)


@pytest.mark.parametrize("size", [1, 2])
def test_dropout_moves_groups_by_what_they_hold(size: int) -> None:
    low, high, row = [-0.5, 0.2, 1.0, -2.0], [0.5, 0.9, 1.5, -1.0], [1.0, -2.0, 0.5, 0.25]
    form = Form([[arb(a) for a in row]], [ZERO], [ONE])
    Drop(_box(low, high), size, arb(3)).back(form)
    largest = 0.0
    for z in itertools.product(*zip(low, high, strict=True)):
        parts = [sum(row[i] * z[i] for i in range(k, k + size)) for k in range(0, 4, size)]
        largest = max(largest, 3 * sum(part**2 for part in parts))
    assert abs(float(form.squares[0]) - 1 - largest) < 1e-12  # met at a corner
    assert [float(a) for a in form.rows[0]] == row


def test_a_residual_block_goes_both_ways() -> None:
    inner = (_dense([[0.5, 0.0], [1.0, -1.0]], [0.25, 0.5]),)
    proof = hexed(
        {"exponent": 8.0, "steps": [{"mean": [[-9.0, -9.0], [9.0, 9.0]], "deviation": [[0.0, 0.0], [0.0, 0.0]]}]}
    )
    proved, box = chain.chain([Layer("residual", {}, {}, inner)], (2,), _box([0.0, 0.0], [1.0, 2.0]), proof)
    form = proved.form([[ONE, arb(2)]], [ZERO])
    assert [float(a) for a in form.rows[0]] == [1 + 0.5 + 2.0, 2 - 2.0]
    assert float(form.constants[0]) == 0.25 + 1.0
    assert [float(x) for x in box.low] == [-9, -9]
    assert [float(x) for x in box.high] == [10, 11]
    assert proved.failures == 0


@pytest.mark.parametrize("shifted", [False, True])
def test_mixtures_and_shifts(shifted: bool, tmp_path: Path) -> None:
    """Weights of sum 3/4 are shares of it, and each member sees the inputs less its own shift."""
    entry = header([], [1]) | {"members": [{"layers": [linear(f"m{k}")]} for k in range(2)]}
    del entry["layers"]
    table = {"weights": ([2], [0.25, 0.5])}
    for k, (slope, bias) in enumerate(((2.0, 1.0), (-1.0, 4.0))):
        table |= tensors(f"m{k}", [[slope]], [[1.0]], [bias], [1.0])
        if shifted:
            table[f"members.{k}.input_shift"] = ([1], [3.0 + k])
    model = write_model(tmp_path / "model", entry, table)
    # (2 x + 1) / 3 + 2 (4 - x) / 3 = 3, less 2 * 3 / 3 and plus 2 * 4 / 3
    truth = 3.0 + (-6 + 8) / 3 * shifted
    proof = {"kind": "chain", "members": [{"exponent": 40.0, "steps": []}] * 2}
    for row, off, accepted in ((1.0, -1e-9, True), (1.0, 1e-9, False), (-1.0, -1e-9, True), (-1.0, 1e-9, False)):
        body = certificate(model, ([-1.0], [5.0]), "mean", [[row]], [row * truth + off], proof)
        (tmp_path / "certificate").write_text(sealed(body))
        assert check(tmp_path / "certificate", model).accepted is accepted
    body = certificate(model, ([-1.0], [5.0]), "mean", [[1.0]], [-99.0], proof | {"members": proof["members"][:1]})
    (tmp_path / "certificate").write_text(sealed(body))
    assert not check(tmp_path / "certificate", model).accepted


def test_the_first_layer_sees_what_is_left_of_the_inputs(tmp_path: Path) -> None:
    """ReLU(x - 3) for x from 2 to 4: its ranges are those of x - 3."""
    table = tensors("a", [[1.0]], [[0.0]], [0.0], [0.0]) | tensors("b", [[1.0]], [[0.0]], [0.0], [0.0])
    entry = header([linear("a"), {"type": "relu"}, linear("b")], [1])
    model = write_model(tmp_path / "model", entry, table | {"input_shift": ([1], [3.0])})
    step = relu_step([-1.0 - 1e-9], [1.0 + 1e-9], [0.0], [0.0])
    proof = {"kind": "chain", "members": [{"exponent": 40.0, "steps": [step]}]}
    for at_least, accepted in ((-1.0 - 1e-6, True), (-1.0 + 1e-6, False)):
        body = certificate(model, ([2.0], [4.0]), "mean", [[-1.0]], [at_least], proof)
        (tmp_path / "certificate").write_text(sealed(body))
        assert check(tmp_path / "certificate", model).accepted is accepted


def test_weights_of_nothing_are_rejected(tmp_path: Path) -> None:
    entry = header([], [1]) | {"members": [{"layers": [linear("m")]}]}
    del entry["layers"]
    model = write_model(
        tmp_path / "model", entry, {"weights": ([1], [0.0])} | tensors("m", [[1.0]], [[0.0]], [0.0], [0.0])
    )
    proof = {"kind": "chain", "members": [{"exponent": 40.0, "steps": []}]}
    (tmp_path / "certificate").write_text(sealed(certificate(model, ([0.0], [1.0]), "mean", [[1.0]], [-9.0], proof)))
    assert not check(tmp_path / "certificate", model).accepted
