"""Shifts of the inputs and weights of members: claims about affine networks, whose least value is a short sum."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.handmade import Table, certificate, header, linear, sealed, tensors, write_model

pytest.importorskip("flint", reason="the checker needs python-flint")
from bnndp_checker import check

LOW, HIGH = [0.5, -1.0], [1.0, 0.25]
FIRST, SECOND = ([2.0, -1.0], 0.5), ([-1.0, 4.0], 0.25)  # weights and bias of two networks of one output
SHIFT = [0.75, -0.5]


def table(name: str, weights: list[float], bias: float) -> Table:
    return tensors(name, [weights], [[0.3, 0.1]], [bias], [0.2])


def least(weights: list[float], bias: float, shift: list[float]) -> float:
    """The least value of ``weights . (x - shift) + bias`` on the region; all numbers are exact in binary."""
    ends = zip(weights, LOW, HIGH, shift, strict=True)
    return sum(min(w * (a - s), w * (b - s)) for w, a, b, s in ends) + bias


def accepted(folder: Path, model: Path, members: int, at_least: float) -> bool:
    proof = {"kind": "chain", "members": [{"exponent": 9.0, "steps": []}] * members}
    body = certificate(model, (LOW, HIGH), "mean", [[1.0]], [at_least], proof)
    path = folder / "certificate.json"
    path.write_text(sealed(body))
    return check(path, model).accepted


@pytest.mark.parametrize("shift", [None, SHIFT])
def test_the_first_layer_sees_the_input_less_the_shift(tmp_path: Path, shift: list[float] | None) -> None:
    given = table("a", *FIRST) | ({} if shift is None else {"input_shift": ([2], shift)})
    model = write_model(tmp_path / "model", header([linear("a")], [2]), given)
    truth = least(*FIRST, shift or [0.0, 0.0])
    assert accepted(tmp_path, model, 1, truth - 1e-9)
    assert not accepted(tmp_path, model, 1, truth + 1e-9)


@pytest.mark.parametrize("weights", [[0.5, 0.5], [2.0, 2.0], [3.0, 1.0], [0.25, 0.0]])
def test_the_weights_of_members_count_by_their_share(tmp_path: Path, weights: list[float]) -> None:
    """Their sum need not be one; members are added before the worst input is taken."""
    entry = header([], [2])
    del entry["layers"]
    entry["members"] = [{"layers": [linear(f"members.{k}.a")]} for k in (0, 1)]
    given = table("members.0.a", *FIRST) | table("members.1.a", *SECOND) | {"members.1.input_shift": ([2], SHIFT)}
    model = write_model(tmp_path / "model", entry, given | {"weights": ([2], weights)})
    share = [w / sum(weights) for w in weights]
    both = [share[0] * a + share[1] * b for a, b in zip(FIRST[0], SECOND[0], strict=True)]
    moved = sum(w * s for w, s in zip(SECOND[0], SHIFT, strict=True))
    truth = least(both, share[0] * FIRST[1] + share[1] * (SECOND[1] - moved), [0.0, 0.0])
    assert accepted(tmp_path, model, 2, truth - 1e-9)
    assert not accepted(tmp_path, model, 2, truth + 1e-9)
