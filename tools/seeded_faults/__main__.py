"""Put every fault of the list into a copy of the project: its tests must fail, each time.

The exit status is 0 if all faults were noticed. What is done is kept in ``.cache/seeded-faults.jsonl``; the same
command goes on from there, ``--fresh`` starts anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import Queue

from seeded_faults.catalogue import CatalogueError, Fault, faulty, read_all
from seeded_faults.journal import Entry, Journal, key_of
from seeded_faults.sandbox import ROOT, Sandbox

_JOURNAL = ROOT / ".cache" / "seeded-faults.jsonl"
_ALL = ("tests",)


def main() -> int:
    """Run the faults that are asked for and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="faults whose name holds one of these texts")
    parser.add_argument("--all-tests", action="store_true", help="all tests for the faults that survive their own")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the project that run side by side")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for the tests of one fault")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    given = parser.parse_args()
    try:
        faults = [f for f in read_all() if given.only is None or any(part in f.name for part in given.only)]
        for fault in faults:
            faulty(fault, (ROOT / fault.file).read_text("utf-8"))
    except (CatalogueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if given.fresh:
        _JOURNAL.unlink(missing_ok=True)
    journal = Journal(_JOURNAL)
    with ExitStack() as stack:
        sandboxes: Queue[Sandbox] = Queue()
        for _ in range(max(1, given.jobs)):
            sandboxes.put(stack.enter_context(Sandbox()))

        def one(fault: Fault, tests: Sequence[str], limit: float) -> Entry:
            sandbox = sandboxes.get()
            try:
                changed = faulty(fault, sandbox.text(fault.file))
                key = key_of(fault.file, changed, tests)
                known = journal.get(key)
                return known or journal.put(key, fault.name, sandbox.run(fault.file, changed, tests, limit=limit))
            finally:
                sandboxes.put(sandbox)

        def each(fault: Fault) -> Entry:
            found = one(fault, fault.tests, given.limit)
            if given.all_tests and found.status == "survived":
                found = one(fault, _ALL, 20 * given.limit)
            print(f"{found.status:9}{found.seconds:7.1f} s  {fault.name}", flush=True)
            return found

        with ThreadPoolExecutor(max(1, given.jobs)) as pool:
            entries = list(pool.map(each, faults))
        bad = _failing_anyway(sandboxes.get(), entries, given.limit)
    print("\n".join(_table(faults, entries)))
    if bad:
        print(f"these tests fail without any fault too, so they say nothing: {bad}", file=sys.stderr)
    return 0 if not bad and all(entry.status == "killed" for entry in entries) else 1


def _failing_anyway(sandbox: Sandbox, entries: Sequence[Entry], limit: float) -> str:
    """The tests that noticed a fault, once more without any: what fails then."""
    tests = sorted({entry.by for entry in entries if entry.by})
    if not tests:
        return ""
    outcome = sandbox.check(tests, limit=10 * limit, first=False)
    return "" if outcome.status == "survived" else f"{outcome.status}: {outcome.output[-2000:]}"


def _table(faults: Sequence[Fault], entries: Sequence[Entry]) -> Iterator[str]:
    yield "\nfault | file | result | noticed by"
    for fault, entry in zip(faults, entries, strict=True):
        yield f"{fault.name} | {fault.file} | {entry.status} | {entry.by}"
    for status in ("killed", "survived", "timeout", "broken"):
        yield f"{status}: {sum(entry.status == status for entry in entries)} of {len(entries)}"


if __name__ == "__main__":
    sys.exit(main())
