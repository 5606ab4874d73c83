"""Many changes, one after the other or a few side by side, each in a copy of the project; results are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from queue import Queue

from benchmarks.fuzz.seeded_faults.sandbox import Outcome, Sandbox

__all__ = ["Case", "Entry", "Journal", "Result", "key_of", "run_all"]


@dataclass(frozen=True, slots=True)
class Case:
    """A file with a change, and the tests to run; if these say nothing, those to run ``then``."""

    name: str
    file: str
    changed: str
    tests: tuple[str, ...]
    then: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Result:
    """What became of each case, and what is wrong with the tests that noticed something (nothing, if empty)."""

    entries: tuple[Entry, ...]
    failing_anyway: str


def run_all(cases: Sequence[Case], journal: Journal, *, jobs: int, limit: float) -> Result:
    """Run the cases that the journal does not know; ``limit`` is in seconds for each set of tests."""
    with ExitStack() as stack:
        sandboxes: Queue[Sandbox] = Queue()
        for _ in range(max(1, jobs)):
            sandboxes.put(stack.enter_context(Sandbox()))

        def one(case: Case, tests: Sequence[str]) -> Entry:
            key = key_of(case.file, case.changed, tests)
            known = journal.get(key)
            if known is not None:
                return known
            sandbox = sandboxes.get()
            try:
                return journal.put(key, case.name, sandbox.run(case.file, case.changed, tests, limit=limit))
            finally:
                sandboxes.put(sandbox)

        def each(case: Case) -> Entry:
            found = one(case, case.tests)
            if case.then and found.status == "survived":
                found = one(case, case.then)
            print(f"{found.status:9}{found.seconds:7.1f} s  {case.name}", flush=True)
            return found

        with ThreadPoolExecutor(max(1, jobs)) as pool:
            entries = tuple(pool.map(each, cases))
        return Result(entries, _failing_anyway(sandboxes.get(), entries, limit))


def _failing_anyway(sandbox: Sandbox, entries: Sequence[Entry], limit: float) -> str:
    """The tests that noticed a change, once more without any, file by file: what fails then."""
    tests = sorted({entry.by for entry in entries if entry.by})
    for _, some in groupby(tests, key=lambda test: test.partition("::")[0]):
        outcome = sandbox.check(list(some), limit=10 * limit, first=False)
        if outcome.status != "survived":
            return f"{outcome.status}: {outcome.output[-2000:]}"
    return ""
