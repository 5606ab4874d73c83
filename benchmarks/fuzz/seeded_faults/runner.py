"""Many changes, one after the other or a few side by side, each in a copy of the project."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from queue import Queue

from benchmarks.fuzz.seeded_faults.journal import Entry, Journal, key_of
from benchmarks.fuzz.seeded_faults.sandbox import Sandbox

__all__ = ["Case", "Result", "run_all"]


@dataclass(frozen=True, slots=True)
class Case:
    """A file with a change, and the tests to run; if these say nothing, those to run ``then``."""

    name: str
    file: str
    changed: str
    tests: tuple[str, ...]
    then: tuple[str, ...] = ()


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
