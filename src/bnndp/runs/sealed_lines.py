"""Lines that show whether they are whole: one JSON object each, whose last entry is a checksum of what stands before.

A line that was torn by a kill, a full disk or a power cut, or in which bits were flipped, does not pass. CRC-32 finds
every error of up to 3 bits and every burst of up to 32; of anything else one in four thousand million passes.

Numbers are written so that they are read back bit for bit: Python writes the shortest decimal that does, and what JSON
does not know stands as a text, ``"inf"``, ``"-inf"`` or ``"nan"``.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

_encode = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":")).encode
_SEAL = b',"crc":"%08x"}\n'
_LENGTH = len(_SEAL % 0)


def seal(record: Mapping[str, Any]) -> bytes:
    r"""The line of a record that is not empty.

    >>> seal({"id": 0, "radius": 0.1})
    b'{"id":0,"radius":0.1,"crc":"cddc1dd0"}\n'
    """
    body = _encode(record)[:-1].encode("ascii")
    return body + _SEAL % zlib.crc32(body)


def unseal(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None if the line is not whole."""
    body = line[:-_LENGTH]
    if line[-_LENGTH:] != _SEAL % zlib.crc32(body):
        return None
    try:
        record = json.loads(body + b"}")
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def exact(values: Iterable[float]) -> list[float | str]:
    """Floats as JSON-compatible values, without loss.

    >>> exact([0.1, float("-inf")])
    [0.1, '-inf']
    """
    return [value if math.isfinite(value) else repr(value) for value in values]


def number(value: float | str) -> float:
    """The float that :func:`exact` was given."""
    return float(value)


def numbers(values: Iterable[float | str]) -> list[float]:
    """The floats that :func:`exact` was given."""
    return [float(value) for value in values]


def json_values(value: Any) -> Any:
    """A value, or lists of values, as JSON-compatible values: floats by :func:`exact`."""
    if isinstance(value, float):
        return exact([value])[0]
    return [json_values(part) for part in value] if isinstance(value, list | tuple) else value
