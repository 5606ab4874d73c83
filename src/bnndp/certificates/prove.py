"""Proofs of claims about batches of boxes: what the checker will prove of them, and the certificates.

Several proofs are tried and each box gets the best; a box that needs a tighter one may be cut into cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from bnndp.attack import decision_rows
from bnndp.certificates.certificate import Certificate
from bnndp.certificates.claims import mean_lower, softmax_lower
from bnndp.certificates.maps import SLACK, Sides
from bnndp.certificates.moment import moment_lower
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork, Posterior

_MEAN_EXPONENTS = (28.0, 40.0, 64.0)
_SOFTMAX_EXPONENTS = (10.0, 12.0, 16.0)
_STEPS = 10  # of bisection
_TIES = 1e-9  # weight of all rows beside the least lead


class Lower(Protocol):
    """Affine functions of x below the rows of a claim, for one member of an ensemble."""

    slopes: Tensor  # (batch, rows, n)
    constants: Tensor  # (batch, rows)
    least: Tensor  # (batch, rows)

    def member(self, index: int) -> dict[str, Any]:
        """The numbers that prove it for one box."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """``rows . E h(f(x))`` is asked for, h the identity (``of`` mean) or the softmax, on each box."""

    network: Posterior
    of: str
    box: Box
    rows: Tensor  # (batch, rows, outputs)
    reference: Tensor | None = None  # (batch,): the class whose margins prove a claim of the softmax

    def __getitem__(self, index: Tensor) -> Claim:
        """The same of some boxes."""
        reference = None if self.reference is None else self.reference[index]
        return replace(self, box=self.box[index], rows=self.rows[index], reference=reference)


@dataclass(frozen=True, slots=True)
class Proof:
    """Bounds that the checker will prove: ``rows . E h(f(x)) >= at_least`` for every x of each box."""

    claim: Claim
    at_least: Tensor  # (batch, rows); minus infinity where nothing is proved
    trees: tuple[dict[str, Any] | Callable[[], dict[str, Any]], ...]  # of each box: the proof of the certificate

    def tree(self, index: int) -> dict[str, Any]:
        """The proof of one box, as it stands in the certificate."""
        found = self.trees[index]
        return found if isinstance(found, dict) else found()

    def certificate(self, index: int, sha256: str, made: dict[str, Any] | None = None) -> Certificate:
        """The certificate of one box, about the model file with this SHA-256."""
        claim = self.claim
        return Certificate(
            network=sha256,
            region={"low": claim.box.lower[index], "high": claim.box.upper[index]},
            claim={"of": claim.of, "rows": claim.rows[index], "at_least": self.at_least[index]},
            proof=self.tree(index),
            made=made or {},
        )


def prove_mean(network: Posterior, box: Box, rows: Tensor, *, cells: int = 1) -> Proof:  # rows (rows, outputs)
    """Lower bounds of rows of the mean output, with each box cut into at most ``cells`` cells."""
    return prove(Claim(network, "mean", box, rows.expand(box.batch, -1, -1)), cells=cells)


def prove_decision(network: Posterior, box: Box, label: Tensor, *, cells: int = 1) -> Proof:
    """Lower bounds of E p_c - E p_j; the decision is proved where all are positive."""
    return prove(Claim(network, "softmax", box, decision_rows(label, network.n_out)[0], label), cells=cells)


def proved_radius(
    network: Posterior,
    x: Tensor,  # (batch, n)
    label: Tensor,  # (batch,)
    upper: Tensor,  # (batch,): radii beyond which nothing is sought, for example those certified without a checker
    domain: tuple[float, float] | None = None,
) -> tuple[Tensor, Proof]:
    """The largest radii found (NaN where not even the input is proved), and the proofs for the balls with them."""

    def ball(radius: Tensor) -> Box:
        return Box.ball(x, radius.nan_to_num(0.0), domain=domain)

    low = torch.zeros_like(upper)
    proof = prove_decision(network, ball(low), label)
    proved = (proof.at_least > 0).all(-1)
    high = upper.nan_to_num(0.0).clamp_min(0)
    best = torch.where(proved, low, torch.nan)
    tried = high
    for _ in range(_STEPS):
        found = prove_decision(network, ball(tried), label)
        good = (found.at_least > 0).all(-1) & proved
        best = torch.where(good, tried, best)
        low, high = torch.where(good, tried, low), torch.where(good, high, tried)
        tried = 0.5 * (low + high)
    return best, prove_decision(network, ball(best), label)


def prove(claim: Claim, *, cells: int = 1) -> Proof:
    """The best proof of each box; cells are spent where no decision is proved."""
    with torch.no_grad():
        found = _whole(claim)
        if cells < 2 or claim.box.n == 0:
            return found
        at = (~(_lead(found) > 0)).nonzero()[:, 0]
        if not at.numel():
            return found
        return _merged(found, at, _split(claim[at], cells))


def _whole(claim: Claim) -> Proof:
    best: Proof | None = None
    for kind, bound in _attempts(claim):
        parts = _each(claim, bound)
        at_least = _together(claim, parts).nan_to_num(-torch.inf, neginf=-torch.inf)
        trees = tuple(_tree(kind, parts, index) for index in range(claim.box.batch))
        best = _better(best, Proof(claim, at_least, trees))
    return best if best is not None else Proof(claim, torch.full_like(claim.rows[..., 0], -torch.inf), ())


def _tree(kind: str, parts: Sequence[Lower], index: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"kind": kind, "members": [part.member(index) for part in parts]}


def _attempts(claim: Claim) -> list[tuple[str, Callable[[BayesianNetwork, Sides], Lower]]]:
    """The kinds of proofs to try, with what gives the bounds of one member."""
    if claim.of == "mean":
        rows = claim.rows[0]
        if all(member.plain and member.depth for member in claim.network.members):
            return [("moment", lambda member, sides: moment_lower(member, sides, rows))]
        return [
            ("chain", lambda member, sides, t=exponent: mean_lower(member, sides, rows, t))  # type: ignore[misc]
            for exponent in _MEAN_EXPONENTS
        ]
    reference = torch.zeros(claim.box.batch, dtype=torch.long) if claim.reference is None else claim.reference
    return [
        ("chain", lambda member, sides, t=exponent: softmax_lower(member, sides, claim.rows, reference, t))  # type: ignore[misc]
        for exponent in (_SOFTMAX_EXPONENTS if claim.network.random else _SOFTMAX_EXPONENTS[:1])
    ]


def _each(claim: Claim, bound: Callable[[BayesianNetwork, Sides], Lower]) -> tuple[Lower, ...]:
    """The bounds of every member, of what its first layer sees, as functions of x."""
    found, box = [], claim.box
    for member in claim.network.members:
        if member.shift is None:
            found.append(bound(member, Sides(box.lower, box.upper)))
            continue
        part = bound(member.unshifted(), Sides(box.lower - member.shift, box.upper - member.shift))
        part.constants = part.constants - part.slopes @ member.shift
        found.append(part)
    return tuple(found)


def _together(claim: Claim, parts: tuple[Lower, ...]) -> Tensor:
    """The larger of the least value of the sum of the affine functions, and of the sum of the least values."""
    weights = claim.network.probabilities.tolist()
    zero = torch.zeros_like(parts[0].constants)
    slopes = sum((w * p.slopes for w, p in zip(weights, parts, strict=True)), torch.zeros_like(parts[0].slopes))
    constants = sum((w * p.constants for w, p in zip(weights, parts, strict=True)), zero)
    apart = sum((w * p.least for w, p in zip(weights, parts, strict=True)), zero)
    sides = Sides(claim.box.lower, claim.box.upper)
    size = (slopes.abs() @ sides.magnitude[..., None])[..., 0] + constants.abs()
    together = constants - sides.tops(-slopes) - 4 * SLACK * size
    found = torch.fmax(together, apart - SLACK * apart.abs())
    # The mean of a row is at least its least entry; NaN stays, nothing is proved then.
    return torch.maximum(found, claim.rows.amin(-1)) - SLACK if claim.of == "softmax" else found


def _better(first: Proof | None, second: Proof) -> Proof:
    """For each box the better of two proofs."""
    if first is None:
        return second
    take = _score(second) > _score(first)
    at_least = torch.where(take[:, None], second.at_least, first.at_least)
    pairs = zip(take.tolist(), first.trees, second.trees, strict=True)
    return Proof(first.claim, at_least, tuple(b if taken else a for taken, a, b in pairs))


def _score(proof: Proof) -> Tensor:
    """What makes a proof better: its least lead; the sum of all rows where there is none, or where it is the same."""
    lead, total = _lead(proof), proof.at_least.sum(-1)
    return torch.where(lead.isfinite(), lead, 0.0) + _TIES * total


def _lead(proof: Proof) -> Tensor:
    """The least bound (batch,) of the rows that compare classes; minus infinity where there are none."""
    compares = (proof.claim.rows.sum(-1) == 0) & (proof.claim.of == "softmax")
    least = torch.where(compares, proof.at_least, torch.inf).amin(-1)
    return torch.where(compares.any(-1), least, -torch.inf)


def _split(claim: Claim, cells: int) -> Proof:
    """Both halves of each box, across the edge along which the bounds change most."""
    box = claim.box
    slopes = sum(part.slopes.abs().sum(1) for part in _each(claim, _attempts(claim)[0][1]))
    axis = (slopes * (box.upper - box.lower)).argmax(-1, keepdim=True)
    middle = (0.5 * (box.lower + box.upper)).gather(-1, axis)
    halves = [
        Box(box.lower, box.upper.scatter(-1, axis, middle)),
        Box(box.lower.scatter(-1, axis, middle), box.upper),
    ]
    parts = [prove(replace(claim, box=half), cells=cells // 2) for half in halves]
    at_least = torch.minimum(parts[0].at_least, parts[1].at_least)
    trees = tuple(_cut(int(axis[k]), float(middle[k]), parts, k) for k in range(box.batch))
    return Proof(claim, at_least, trees)


def _cut(axis: int, at: float, parts: Sequence[Proof], index: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"kind": "split", "axis": axis, "at": at, "parts": [part.tree(index) for part in parts]}


def _merged(found: Proof, at: Tensor, better: Proof) -> Proof:
    """With the proofs of some boxes replaced where they are better."""
    part = Proof(found.claim[at], found.at_least[at], tuple(found.trees[i] for i in at.tolist()))
    best = _better(part, better)
    trees = list(found.trees)
    for place, tree in zip(at.tolist(), best.trees, strict=True):
        trees[place] = tree
    return Proof(found.claim, found.at_least.index_copy(0, at, best.at_least), tuple(trees))
