"""Certificates that were changed: a number that is no longer proved, a field of another kind, is a rejection."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from functools import reduce
from operator import delitem, getitem, setitem
from pathlib import Path
from typing import Any

import pytest
from support.handmade import certificate, header, hexed, linear, rectified, relu_step, sealed, tensors, write_model

pytest.importorskip("flint", reason="the checker needs python-flint")
from bnndp_checker import check
from bnndp_checker.check import main

LOW, HIGH = [0.4, 0.1], [0.6, 0.3]
W, S, B, T = [[0.8, -0.3], [0.2, 0.9]], [[0.1, 0.05], [0.02, 0.1]], [0.1, -0.2], [0.05, 0.03]
V, U, C, D = [[1.0, 0.5], [-1.0, 0.3], [-0.5, -0.6]], [[0.05, 0.02]] * 3, [1.0, -0.5, -0.7], [0.02, 0.01, 0.03]
EXPONENT = 12.0
STEP = relu_step(
    [0.8 * 0.4 - 0.3 * 0.3 + 0.1 - 1e-9, 0.2 * 0.4 + 0.9 * 0.1 - 0.2 - 1e-9],
    [0.8 * 0.6 - 0.3 * 0.1 + 0.1 + 1e-9, 0.2 * 0.6 + 0.9 * 0.3 - 0.2 + 1e-9],
    [math.hypot(0.1 * 0.4, 0.05 * 0.1, 0.05) - 1e-9, math.hypot(0.02 * 0.4, 0.1 * 0.1, 0.03) - 1e-9],
    [math.hypot(0.1 * 0.6, 0.05 * 0.3, 0.05) + 1e-9, math.hypot(0.02 * 0.6, 0.1 * 0.3, 0.03) + 1e-9],
)
FIRST = {"tangent": [2.0, 0.2], "alpha": [1.0, 0.6], "beta": [0.1, 0.4], "root": [0.07, 0.04]}
ROWS = [[1.0, -1.0, 0.0], [1.0, 0.0, -1.0], [0.0, 0.0, -1.0]]
FINAL = {"reference": 0, "noise": [0.02, 0.02], "tilts": [1.0, 0.9], "exponent": 14.0}
SOFTMAX = {"kind": "chain", "members": [{"exponent": EXPONENT, "steps": [STEP], "final": FINAL}]}
MEAN = {"kind": "chain", "members": [{"exponent": 40.0, "steps": [STEP]}]}
MOMENT = {"kind": "moment", "members": [{"steps": [FIRST]}]}
LAYERS = [linear("a"), {"type": "relu"}, linear("b")]
Change = Callable[[dict[str, Any]], object]


def _mean_outputs(x: list[float]) -> list[float]:
    """The mean output, exactly up to rounding."""
    z = []
    for w, s, b, t in zip(W, S, B, T, strict=True):
        m = sum(a * v for a, v in zip(w, x, strict=True)) + b
        z.append(rectified(m, math.hypot(*(a * v for a, v in zip(s, x, strict=True)), t)))
    return [sum(a * v for a, v in zip(row, z, strict=True)) + c for row, c in zip(V, C, strict=True)]


CORNERS = [_mean_outputs([x, y]) for x in (0.4, 0.5, 0.6) for y in (0.1, 0.2, 0.3)]
MEAN_ROWS = [[1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [1.0, 1.0, 1.0]]
TRUTH = [min(sum(a * v for a, v in zip(row, f, strict=True)) for f in CORNERS) for row in MEAN_ROWS]
HALVES = {"kind": "split", "axis": 0, "at": 0.5, "parts": [MEAN, MOMENT]}
BASES: dict[str, tuple[str, list[list[float]], list[float], dict[str, Any]]] = {
    "softmax": ("softmax", ROWS, [0.5, 0.5, -0.2], SOFTMAX),
    "mean": ("mean", MEAN_ROWS, [t - 0.02 for t in TRUTH], MEAN),
    "moment": ("mean", MEAN_ROWS, [t - 0.02 for t in TRUTH], MOMENT),
    "split": (
        "mean", MEAN_ROWS, [t - 0.02 for t in TRUTH],
        {"kind": "split", "axis": 1, "at": 0.2, "parts": [MOMENT, HALVES]},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    entry = header(LAYERS, [2], "classification")
    return write_model(folder / "model", entry, tensors("a", W, S, B, T) | tensors("b", V, U, C, D))


def _base(name: str, model: Path) -> dict[str, Any]:
    of, rows, at_least, proof = BASES[name]
    return copy.deepcopy(certificate(model, (LOW, HIGH), of, rows, at_least, proof))


def _verdict(body: dict[str, Any], model: Path, folder: Path) -> tuple[bool, str]:
    path = folder / "certificate.json"
    path.write_text(sealed(body))
    found = check(path, model)
    return found.accepted, found.reason


def _changed(change: Callable[[Any, Any], object], *keys: Any) -> Change:
    """Change what these keys lead to, given its holder and the last key."""
    return lambda body: change(reduce(getitem, keys[:-1], body), keys[-1])


def _set(value: Any, *keys: Any) -> Change:
    return _changed(lambda holder, key: setitem(holder, key, hexed(value)), *keys)


def _move(by: float, *keys: Any) -> Change:
    return _changed(lambda holder, key: setitem(holder, key, (float.fromhex(holder[key]) + by).hex()), *keys)


def _drop(*keys: Any) -> Change:
    return _changed(delitem, *keys)


STEPS = ("proof", "members", 0, "steps", 0)
END = ("proof", "members", 0, "final")
CLAIM = ("claim", "at_least")
NOT_HEXADECIMAL: tuple[Any, ...] = (
    "nan", "inf", "-inf", "0x1p99999", "1.0", "0x1", "0x1p-1080", "0x1.00000000000000000001p+0", " 0x1.0p+0",
    "-0x1P+3", 1, True, None, [], {},
)  # fmt: skip
CHANGES: list[tuple[str, str, Change]] = [
    # what is claimed
    *((base, "row", _move(0.45, *CLAIM, k)) for base in ("softmax", "mean", "moment") for k in range(3)),
    *((base, "", _set([], "claim", "rows")) for base in ("softmax", "mean", "moment")),
    *((base, "", _set([[]], "claim", "rows")) for base in ("softmax", "mean", "moment")),
    *((base, "", _set([[1.0, 0.0]] * 3, "claim", "rows")) for base in ("softmax", "mean", "moment")),
    *((base, "", _set([[1.0, 0.0, 0.0, 0.0]] * 3, "claim", "rows")) for base in ("softmax", "mean", "moment")),
    ("mean", "row must be a list", _set([[1.0, 0.0, 0.0], [1.0], [1.0, 0.0, 0.0]], "claim", "rows")),
    ("mean", "at_least", _drop(*CLAIM, 0)),
    ("mean", "at_least", _set([-9.0] * 4, *CLAIM)),
    ("mean", "keys", _set(0, "claim", "decision")),
    ("mean", "keys", _drop("claim", "of")),
    ("mean", "", _set("median", "claim", "of")),
    ("mean", "", _set("softmax", "claim", "of")),
    ("moment", "", _set("softmax", "claim", "of")),
    # where
    ("mean", "", _move(0.2, "region", "high", 0)),
    ("softmax", "", _move(-0.2, "region", "low", 1)),
    ("moment", "", _move(0.4, "region", "high", 1)),
    ("mean", "empty", _move(0.3, "region", "low", 0)),
    ("mean", "keys", _set(0.1, "region", "radius")),
    ("mean", "list", _set([0.4], "region", "low")),
    # about what
    ("mean", "another model", _set("0" * 64, "network", "sha256")),
    ("mean", "another model", _set("x", "network", "name")),
    ("mean", "format", _set("bnndp-certificate-2", "format")),
    ("mean", "keys", _set(True, "trusted")),
    ("mean", "keys", _drop("region")),
    # the numbers of a step: two ends of the means and deviations, two lines
    *(("softmax", "mean", _move(by, *STEPS, "mean", k, i)) for k, by in ((0, 0.05), (1, -0.05)) for i in (0, 1)),
    ("softmax", "mean", _set([[9.0, 9.0], [8.0, 8.0]], *STEPS, "mean")),
    *(("softmax", "deviation", _move(by, *STEPS, "deviation", 0, 0)) for by in (0.02, -1.0)),
    *(("softmax", "deviation", _move(by, *STEPS, "deviation", 1, 0)) for by in (-0.02, -1.0)),
    *(("softmax", "line above", _move(-0.02, *STEPS, "above", part, i)) for part in (0, 1) for i in (0, 1)),
    *(("softmax", "line below", _move(0.05, *STEPS, "below", part, i)) for part in (0, 1) for i in (0, 1)),
    ("mean", "list", _set([[0.1], [0.2]], *STEPS, "mean")),
    ("mean", "", _set([[0.1, 0.1]], *STEPS, "mean")),
    ("mean", "", _drop(*STEPS, "deviation")),
    # the chain
    *(("mean", "exponent", _set(value, "proof", "members", 0, "exponent")) for value in (0.5, -40.0, 0.0)),
    ("mean", "", _set(40, "proof", "members", 0, "exponent")),
    ("mean", "steps", _set([STEP, STEP], "proof", "members", 0, "steps")),
    ("mean", "", _set([], "proof", "members", 0, "steps")),
    ("mean", "", _set([], "proof", "members")),
    ("mean", "", _set([MEAN["members"][0]] * 2, "proof", "members")),
    ("mean", "", _set("split", "proof", "kind")),
    ("mean", "", _set("moment", "proof", "kind")),
    ("moment", "", _set("chain", "proof", "kind")),
    ("softmax", "", _set("moment", "proof", "kind")),
    ("mean", "", _set(["chain"], "proof", "kind")),
    # the softmax
    *(("softmax", "reference", _set(value, *END, "reference")) for value in (-1, 3, True, 0.0, "0", None)),
    ("softmax", "row", _set(1, *END, "reference")),
    *(("softmax", "noise", _set(value, *END, "noise")) for value in ([0.0, 0.02], [0.02, 1e-4], [-0.02, 0.02], [0.02])),
    *(("softmax", "tilt", _set([value, 1.0], *END, "tilts")) for value in (0.0, -0.5, 1.001, 2.0)),
    *(("softmax", "corner", _set(value, *END, "exponent")) for value in (0.0, -5.0)),
    ("softmax", "", _set([], *END, "tilts")),
    ("softmax", "", _drop("proof", "members", 0, "final")),
    # moments
    ("moment", "slope", _set([-0.1, 0.4], *STEPS, "beta")),
    ("moment", "slope", _set([0.0, 0.04], *STEPS, "root")),
    ("moment", "slope", _set([0.07, -0.04], *STEPS, "root")),
    ("moment", "row", _set([-5.0, -5.0], *STEPS, "alpha")),
    ("moment", "row", _set([-30.0, 30.0], *STEPS, "tangent")),
    ("moment", "", _set([FIRST, FIRST], "proof", "members", 0, "steps")),
    ("moment", "", _set([[1.0, 0.0]], *STEPS, "vertices")),
    # splits
    *(("split", "axis", _set(value, "proof", "axis")) for value in (-1, 2, True, 0.0, None)),
    *(("split", "within", _set(value, "proof", "at")) for value in (0.05, 0.35)),
    ("split", "", _drop("proof", "parts", 0)),
    ("split", "", _set([MOMENT] * 3, "proof", "parts")),
    ("split", "", _set([MOMENT, {"kind": "chain", "members": []}], "proof", "parts")),
    # numbers that are none, or that a reader would round
    *(("mean", "hexadecimal", _set(value, *CLAIM, 0)) for value in NOT_HEXADECIMAL),
]  # fmt: skip


@pytest.mark.parametrize("name", BASES)
def test_what_was_not_changed_is_accepted(name: str, model: Path, tmp_path: Path) -> None:
    assert _verdict(_base(name, model), model, tmp_path) == (True, "every inequality was proved")
    body = _base(name, model) | {"made": {"by": "anyone", "floats": [1.5, -2]}}  # of which nothing is proved
    assert _verdict(body, model, tmp_path)[0]


@pytest.mark.parametrize(("name", "reason", "change"), CHANGES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CHANGES)])
def test_what_was_changed_is_rejected(name: str, reason: str, change: Change, model: Path, tmp_path: Path) -> None:
    body = _base(name, model)
    change(body)
    accepted, found = _verdict(body, model, tmp_path)
    assert not accepted
    assert reason in found


def test_no_claim_beyond_the_truth_is_accepted(model: Path, tmp_path: Path) -> None:
    """The mean output is known here: each row is pushed just past its least value."""
    for name in ("mean", "moment", "split"):
        for k, truth in enumerate(TRUTH):
            body = _base(name, model)
            _set(truth + 1e-9, *CLAIM, k)(body)
            assert not _verdict(body, model, tmp_path)[0]


def test_the_digest_is_that_of_the_content(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    body = json.loads(sealed(_base("mean", model)))
    for changed in (body | {"digest": "0" * 64}, body | {"digest": None}, body | {"made": {}}):
        path.write_text(json.dumps(changed))
        assert "digest" in check(path, model).reason
    del body["digest"]
    path.write_text(json.dumps(body))
    assert not check(path, model).accepted


TWICE = '{"format": "bnndp-certificate-1", "format": "bnndp-certificate-1"}'


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '"x"', "[" * 100_000, TWICE, "\xff"])
def test_what_is_no_certificate_is_refused(text: str, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    path.write_bytes(text.encode("latin-1"))
    assert not check(path, model).accepted


def test_a_key_that_occurs_twice_is_refused(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(sealed(_base("mean", model)).replace('"claim": {', '"claim": {"of": "mean", ', 1))
    assert check(path, model).reason == "a key occurs twice"


def test_splits_without_end_are_rejected(model: Path, tmp_path: Path) -> None:
    proof: dict[str, Any] = copy.deepcopy(MOMENT)
    for _ in range(150):
        proof = {"kind": "split", "axis": 0, "at": 0.5, "parts": [proof, {}]}
    body = _base("moment", model)
    body["proof"] = hexed(proof)
    assert not _verdict(body, model, tmp_path)[0]


def test_missing_files_are_rejections(model: Path, tmp_path: Path) -> None:
    assert not check(tmp_path / "none", model).accepted
    path = tmp_path / "certificate.json"
    path.write_text(sealed(_base("mean", model)))
    assert not check(path, tmp_path / "none").accepted
    assert not check(path, tmp_path).accepted
    assert not check(path, path).accepted


def test_the_command(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "certificate.json"
    body = _base("mean", model)
    for at_least, status, said in ((-9.0, 0, "accepted\n"), (9.0, 1, "rejected: row 0 of the claim\n")):
        _set([at_least] * 3, *CLAIM)(body)
        path.write_text(sealed(body))
        monkeypatch.setattr("sys.argv", ["bnndp-check", str(path), str(model)])
        assert main() == status
        assert capsys.readouterr().out == said
    for arguments, status in (([], 2), (["one"], 2), (["-h"], 0), (["--help"], 0), (["--help", "x"], 2)):
        monkeypatch.setattr("sys.argv", ["bnndp-check", *arguments])
        assert main() == status
        assert "usage" in capsys.readouterr().out
