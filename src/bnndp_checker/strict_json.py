"""JSON read strictly: no key twice, no key that is missing or not known; what does not hold is refused."""

from __future__ import annotations

import json
from typing import Any


class Unreadable(Exception):
    """A file that is not what it should be, in one line."""


def expect(holds: bool, what: str) -> None:
    """Refuse a file unless this holds."""
    if holds is not True:
        raise Unreadable(what)


def fields(value: Any, what: str, needed: set[str], allowed: set[str] | None = None) -> dict[str, Any]:
    """An object with the needed keys, and no others but the allowed ones."""
    expect(isinstance(value, dict), f"{what} must be an object")
    found = set(value)
    expect(
        needed <= found <= needed | (allowed or set()), f"{what} has the keys {sorted(found)}, needed: {sorted(needed)}"
    )
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    expect(len(found) == len(pairs), "a key occurs twice")
    return found


def parse(text: bytes) -> Any:
    """The value of a JSON text in which no object has a key twice."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {error!s:.100}") from error
