"""Results of runs, one JSON object a line, so that an interrupted run goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.fuzz.seeded_faults.sandbox import Outcome

__all__ = ["Entry", "Journal", "key_of"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One run: what was changed, and what the tests said."""

    key: str
    name: str
    status: str
    by: str
    seconds: float


def key_of(file: str, changed: str, tests: Sequence[str]) -> str:
    """The same only for the same content of the changed file and the same tests."""
    return hashlib.sha256("\0".join((file, changed, *tests)).encode()).hexdigest()[:20]


class Journal:
    """The file of entries; the last of a key counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Entry] = {}
        if path.exists():
            for line in path.read_text("utf-8").splitlines():
                entry = Entry(**json.loads(line))
                self._known[entry.key] = entry

    def get(self, key: str) -> Entry | None:
        """What an earlier run said, if it ran to its end."""
        entry = self._known.get(key)
        return None if entry is None or entry.status == "timeout" else entry

    def put(self, key: str, name: str, outcome: Outcome) -> Entry:
        """Keep an outcome."""
        entry = Entry(key, name, outcome.status, outcome.by, round(outcome.seconds, 1))
        self._known[key] = entry
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry)) + "\n")
        return entry
