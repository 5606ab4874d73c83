"""The certificate, a JSON file, and its numbers: hexadecimal floats as Python writes them, so that none is rounded."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from flint import arb

from bnndp_checker.strict_json import Unreadable, expect, fields, parse


def read_certificate(path: Path) -> dict[str, Any]:
    """The certificate, with its own digest checked."""
    keys = {"format", "network", "region", "claim", "proof", "digest"}
    found = fields(parse(path.read_bytes()), "a certificate", keys, {"made"})
    expect(found["format"] == "bnndp-certificate-1", "not a certificate of the format bnndp-certificate-1")
    body = {key: value for key, value in found.items() if key != "digest"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    expect(digest == found["digest"], "the digest of the certificate is not that of its content")
    return found


def number(text: Any) -> arb:
    """A hexadecimal float as an exact ball."""
    try:
        value = float.fromhex(text)
    except (TypeError, ValueError, OverflowError) as error:
        raise Unreadable(f"expected a hexadecimal float, found {text!r:.60}") from error
    expect(math.isfinite(value) and value.hex() == text, f"expected a finite hexadecimal float, found {text!r:.60}")
    return arb(value)


def numbers(texts: Any, count: int, what: str) -> list[arb]:
    """So many hexadecimal floats."""
    expect(isinstance(texts, list) and len(texts) == count, f"{what} must be a list of {count} numbers")
    return [number(text) for text in texts]
