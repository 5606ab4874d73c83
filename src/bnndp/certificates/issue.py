"""Certificates of many boxes in a folder: proved in chunks, checked by the checker before they are issued."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bnndp.attack import decision_rows
from bnndp.certificates.certificate import Certificate, file_digest
from bnndp.certificates.prove import Claim, Proof, prove, proved_radius
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.network import Posterior

_CHUNK = 16  # boxes proved at a time


@dataclass(frozen=True, slots=True)
class Issued:
    """The outcome for one box: its certificate and claim, or why there is none."""

    index: int
    path: Path | None
    at_least: Tensor  # (rows,): proved; minus infinity where nothing is
    radius: float | None  # of the ball, for a radius
    reason: str  # empty for a certificate


@dataclass(frozen=True, slots=True)
class Office:
    """Issues the certificates of one model file into a folder."""

    network: Posterior
    model: Path
    folder: Path
    cells: int = 1  # the most into which a box is cut
    check: bool = True  # by the checker, before a certificate is written
    made: dict[str, Any] = field(default_factory=dict)

    def of_boxes(self, claim: Claim) -> Iterator[Issued]:
        """One after the other, in the order of the boxes; what can be proved of each row is what is claimed."""
        sha256 = file_digest(self.model)
        for start in range(0, claim.box.batch, _CHUNK):
            part = claim[torch.arange(start, min(start + _CHUNK, claim.box.batch), device=claim.rows.device)]
            proof = prove(part, cells=self.cells)
            for k in range(part.box.batch):
                yield self._issue(proof, k, start + k, sha256, None, wanted=bool(proof.at_least[k].isfinite().all()))

    def of_radii(
        self, x: Tensor, label: Tensor, upper: Tensor, domain: tuple[float, float] | None = None
    ) -> Iterator[Issued]:
        """Decisions on balls around x (points, n), as large as they can be proved up to ``upper`` (points,)."""
        sha256 = file_digest(self.model)
        for start in range(0, x.shape[0], _CHUNK):
            part = slice(start, start + _CHUNK)
            radius, proof = proved_radius(self.network, x[part], label[part], upper[part], domain)
            for k, value in enumerate(radius.tolist()):
                proved = bool((proof.at_least[k] > 0).all()) and value == value
                yield self._issue(proof, k, start + k, sha256, value, wanted=proved)

    def _issue(self, proof: Proof, k: int, index: int, sha256: str, radius: float | None, *, wanted: bool) -> Issued:
        at_least = proof.at_least[k]
        if not wanted:
            return Issued(index, None, at_least, None, "the checker's theory does not reach it")
        made = {"by": f"bnndp {metadata.version('bnndp')}", "index": index, **self.made}
        certificate = proof.certificate(k, sha256, made if radius is None else made | {"radius": radius})
        path = self.folder / f"{index:06d}.json"
        reason = self._write(certificate, path)
        return Issued(index, None if reason else path, at_least, None if reason else radius, reason)

    def _write(self, certificate: Certificate, path: Path) -> str:
        """Write it under its name once it is checked; the reason if the checker rejects it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self.check:
            certificate.save(path)
            return ""
        draft = path.with_suffix(".draft")
        certificate.save(draft)
        try:
            verdict = _checker()(draft, self.model)
            if verdict.accepted:
                draft.replace(path)
            return "" if verdict.accepted else f"rejected by the checker: {verdict.reason}"
        finally:
            draft.unlink(missing_ok=True)


def _checker() -> Any:
    try:
        from bnndp_checker import check
    except ModuleNotFoundError as error:
        raise InputError("certificates are checked before they are written: pip install 'bnndp[check]'.") from error
    return check


def interval_claim(network: Posterior, box: Box) -> Claim:
    """Lower and upper bounds of every mean output: rows e_i, then -e_i."""
    one = torch.eye(network.n_out, dtype=torch.float64, device=box.lower.device)
    return Claim(network, "mean", box, torch.cat([one, -one]).expand(box.batch, -1, -1))


def probability_claim(network: Posterior, box: Box, label: Tensor) -> Claim:
    """Leads of the label over every other class, then lower and upper bounds of every mean probability."""
    one = torch.eye(network.n_out, dtype=torch.float64, device=box.lower.device)
    ranges = torch.cat([one, -one]).expand(box.batch, -1, -1)
    return Claim(network, "softmax", box, torch.cat([decision_rows(label, network.n_out)[0], ranges], 1), label)
