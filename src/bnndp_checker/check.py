"""A certificate and a model in, accepted or the first inequality that could not be proved out."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flint import arb

from bnndp_checker.ball_arithmetic import ZERO, Rejected, require, use_precision
from bnndp_checker.claims import Lower, mean_bounds, softmax_bounds
from bnndp_checker.layers import Box
from bnndp_checker.moment import moment_bounds
from bnndp_checker.read_certificate import number, numbers, read_certificate
from bnndp_checker.read_model import Model, read_model
from bnndp_checker.strict_json import Unreadable, fields
from bnndp_checker.vectors import Vector, dot, minus, plus

PROOFS = {("mean", "chain"): mean_bounds, ("mean", "moment"): moment_bounds, ("softmax", "chain"): softmax_bounds}
_USAGE = """usage: bnndp-check CERTIFICATE MODEL

Proves the claim of a bnndp certificate about a model again, in ball arithmetic."""


@dataclass(frozen=True)
class Verdict:
    """Accepted, or why not."""

    accepted: bool
    reason: str


def check(certificate: str | Path, model: str | Path) -> Verdict:
    """Prove the claim of a certificate about a model again; whatever goes wrong is a rejection."""
    use_precision()
    try:
        _check(read_certificate(Path(certificate)), read_model(Path(model)))
    except (Rejected, Unreadable) as error:
        return Verdict(False, str(error))
    except Exception as error:  # noqa: BLE001 (a checker that fails has proved nothing)
        return Verdict(False, f"{type(error).__name__}: {error}")
    return Verdict(True, "every inequality was proved")


def _check(certificate: dict[str, Any], model: Model) -> None:
    require(certificate["network"] == {"sha256": model.sha256}, "the certificate is about another model")
    region = fields(certificate["region"], "the region", {"low", "high"})
    box = Box(*(numbers(region[side], math.prod(model.input_shape), "region") for side in ("low", "high")))
    require(all(a <= b for a, b in zip(box.low, box.high, strict=True)), "the region is empty")
    claim = fields(certificate["claim"], "the claim", {"of", "rows", "at_least"})
    require(claim["of"] == "mean" or model.task == "classification", "a claim of the softmax is of a classifier")
    rows = [numbers(row, len(claim["rows"][0]), "row") for row in claim["rows"]]
    require(len(rows) > 0, "a claim has at least one row")
    _on(certificate["proof"], model, box, claim["of"], rows, numbers(claim["at_least"], len(rows), "at_least"))


def _on(proof: dict[str, Any], model: Model, box: Box, of: str, rows: list[Vector], wanted: Vector) -> None:
    """The claim on a box: on both halves, or by the bounds of all members."""
    if proof["kind"] == "split":
        axis, at = proof["axis"], number(proof["at"])
        require(type(axis) is int and 0 <= axis < len(box.low), "the axis of a split")
        require(box.low[axis] <= at <= box.high[axis], "a split lies within its box")
        first, second = proof["parts"]
        _on(first, model, Box(box.low, [*box.high[:axis], at, *box.high[axis + 1 :]]), of, rows, wanted)
        _on(second, model, Box([*box.low[:axis], at, *box.low[axis + 1 :]], box.high), of, rows, wanted)
        return
    bound = PROOFS[of, proof["kind"]]
    found: list[tuple[arb, Lower]] = []
    for (layers, shift), part, weight in zip(model.members, proof["members"], model.weights, strict=True):
        moved = [ZERO] * len(box.low) if shift is None else shift.numbers()  # the first layer sees x - moved
        shifted = Box(plus(box.low, minus(moved)), plus(box.high, minus(moved)))
        lower = bound(layers, model.input_shape, shifted, rows, part)
        constants = [c - dot(line, moved) for c, line in zip(lower.constants, lower.slopes, strict=True)]
        found.append((arb(weight), Lower(lower.slopes, constants, lower.least)))
    total = sum((weight for weight, _ in found), ZERO)
    for k, least in enumerate(wanted):
        slopes = [sum((w * part.slopes[k][i] for w, part in found), ZERO) for i in range(len(box.low))]
        constant = sum((w * part.constants[k] for w, part in found), ZERO)
        together = constant - box.tops([minus(slopes)])[0]
        apart = sum((w * part.least[k] for w, part in found), ZERO)
        require(together / total >= least or apart / total >= least, f"row {k} of the claim")


def main() -> int:
    """The command ``bnndp-check CERTIFICATE MODEL``: exit status 0 accepted, 1 rejected, 2 wrong usage."""
    if len(sys.argv) != 3 or sys.argv[1] in ("-h", "--help"):
        print(_USAGE)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    verdict = check(sys.argv[1], sys.argv[2])
    print("accepted" if verdict.accepted else f"rejected: {verdict.reason}")
    return 0 if verdict.accepted else 1
