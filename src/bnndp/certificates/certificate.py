"""Certificates as files: canonical JSON with a digest, floats in hexadecimal (docs/certificates.md, section 1)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from bnndp.files.posterior import write_whole

FORMAT = "bnndp-certificate-1"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A claim about a model file, for every input of a region, with its proof; numbers are in hexadecimal."""

    network: str  # SHA-256 of the model file
    region: dict[str, Any]
    claim: dict[str, Any]
    proof: dict[str, Any]
    made: dict[str, Any]  # by which version, with which options: nothing of it is proved

    @property
    def text(self) -> str:
        """The file."""
        body: dict[str, Any] = {
            "format": FORMAT,
            "network": {"sha256": self.network},
            "region": self.region,
            "claim": self.claim,
            "proof": self.proof,
            "made": self.made,
        }
        digest = hashlib.sha256(_canonical(body).encode()).hexdigest()
        return _canonical(body | {"digest": digest})

    def save(self, path: str | Path) -> None:
        """Write it; an interrupted write leaves no file."""
        write_whole(path, self.text.encode())


def _canonical(value: object) -> str:
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def plain(value: Any) -> Any:
    """Tensors and floats in hexadecimal, everything else as it is."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file."""
    hasher = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(2**20):
            hasher.update(block)
    return hasher.hexdigest()
