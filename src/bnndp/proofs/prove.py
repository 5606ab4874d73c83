"""Proofs of claims about batches of boxes, and their certificates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnndp.ensemble import Ensemble, Posterior
from bnndp.network import BayesianNetwork
from bnndp.proofs.certificate import Certificate
from bnndp.proofs.claims import Lower, mean_lower, softmax_lower
from bnndp.proofs.maps import Sides
from bnndp.proofs.moment import MomentLower, moment_lower
from bnndp.regions import Box

__all__ = ["Proof", "prove_mean", "prove_softmax"]

MEAN_EXPONENTS = (28.0, 40.0, 64.0)
SOFTMAX_EXPONENTS = (10.0, 12.0, 16.0, 24.0)


@dataclass(frozen=True, slots=True)
class Proof:
    """Bounds that the checker will prove: ``rows . E h(f(x)) >= at_least`` for every x of each box."""

    of: str  # "mean" or "softmax"
    kind: str  # "chain" or "moment"
    box: Box
    rows: Tensor  # (batch, rows, outputs)
    at_least: Tensor  # (batch, rows)
    parts: tuple[Lower | MomentLower, ...]  # of each member

    def certificate(self, index: int, sha256: str, made: dict[str, Any] | None = None) -> Certificate:
        """The certificate of one box of the batch, about the model file with this SHA-256."""
        members = [part.member(index) for part in self.parts]
        return Certificate(
            network=sha256,
            region={"low": self.box.lower[index], "high": self.box.upper[index]},
            claim={"of": self.of, "rows": self.rows[index], "at_least": self.at_least[index]},
            proof={"kind": self.kind, "members": members},
            made=made or {},
        )


def prove_mean(network: Posterior, box: Box, rows: Tensor) -> Proof:  # rows (rows, outputs)
    """Lower bounds of rows of the mean output; the best of several proofs for the boxes as a whole."""
    found = []
    whole = rows.expand(box.batch, -1, -1)
    members = network.members if isinstance(network, Ensemble) else (network,)
    with torch.no_grad():
        if all(member.plain and member.depth for member in members):
            parts = _each(network, box, lambda member, sides: moment_lower(member, sides, rows))
            return Proof("mean", "moment", box, whole, _together(network, box, parts), parts)
        for exponent in MEAN_EXPONENTS:
            parts = _each(network, box, lambda member, sides: mean_lower(member, sides, rows, exponent))  # noqa: B023
            found.append(Proof("mean", "chain", box, whole, _together(network, box, parts), parts))
    return max(found, key=lambda proof: float(proof.at_least.sum()))


def prove_softmax(network: Posterior, box: Box, rows: Tensor, reference: Tensor, exponent: float = 12.0) -> Proof:
    """Lower bounds of rows (batch, rows, classes) of the mean softmax, by margins of ``reference`` (batch,)."""
    with torch.no_grad():
        parts = _each(network, box, lambda member, sides: softmax_lower(member, sides, rows, reference, exponent))
        return Proof("softmax", "chain", box, rows, _together(network, box, parts), parts)


def _each(network: Posterior, box: Box, bound: Callable[[BayesianNetwork, Sides], Lower | MomentLower]) -> tuple[Lower | MomentLower, ...]:
    """The bounds of every member, of what its first layer sees, as functions of x."""
    found = []
    for member in network.members if isinstance(network, Ensemble) else (network,):
        if member.shift is None:
            found.append(bound(member, Sides(box.lower, box.upper)))
            continue
        part = bound(member.unshifted(), Sides(box.lower - member.shift, box.upper - member.shift))
        part.constants = part.constants - part.slopes @ member.shift
        found.append(part)
    return tuple(found)


def _together(network: Posterior, box: Box, parts: tuple[Lower | MomentLower, ...]) -> Tensor:
    """The larger of the least value of the sum of the affine functions, and of the sum of the least values."""
    weights = network.probabilities.tolist() if isinstance(network, Ensemble) else [1.0]
    slopes = sum(w * p.slopes for w, p in zip(weights, parts, strict=True))
    constants = sum(w * p.constants for w, p in zip(weights, parts, strict=True))
    apart = sum(w * p.least for w, p in zip(weights, parts, strict=True))
    sides = Sides(box.lower, box.upper)
    size = (slopes.abs() @ sides.magnitude[..., None])[..., 0] + constants.abs()
    together = constants - sides.tops(-slopes) - 2.0**-34 * size
    return torch.maximum(together, apart - 2.0**-40 * (apart.abs() + constants.abs()))
