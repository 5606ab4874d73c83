"""Put every fault of the list into a copy of the project: its tests must fail, each time.

The exit status is 0 if all faults were noticed. What is done is kept in ``.cache/seeded-faults.jsonl``; the same
command goes on from there, ``--fresh`` starts anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from benchmarks.fuzz.seeded_faults.catalogue import CatalogueError, Fault, faulty, read_all
from benchmarks.fuzz.seeded_faults.journal import Entry, Journal
from benchmarks.fuzz.seeded_faults.runner import Case, run_all
from benchmarks.fuzz.seeded_faults.sandbox import ROOT

_JOURNAL = ROOT / ".cache" / "seeded-faults.jsonl"
_ALL = ("tests",)


def main() -> int:
    """Run the faults that are asked for and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="faults whose name holds one of these texts")
    parser.add_argument("--all-tests", action="store_true", help="all tests for the faults that survive their own")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the project that run side by side")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one set of tests")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    given = parser.parse_args()
    try:
        faults = [f for f in read_all() if given.only is None or any(part in f.name for part in given.only)]
        cases = [_case(fault, all_tests=given.all_tests) for fault in faults]
    except (CatalogueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if given.fresh:
        _JOURNAL.unlink(missing_ok=True)
    result = run_all(cases, Journal(_JOURNAL), jobs=given.jobs, limit=given.limit)
    print("\n".join(_table(faults, result.entries)))
    if result.failing_anyway:
        print(f"these tests fail without any fault too, so they say nothing: {result.failing_anyway}", file=sys.stderr)
    return 0 if not result.failing_anyway and all(entry.status == "killed" for entry in result.entries) else 1


def _case(fault: Fault, *, all_tests: bool) -> Case:
    changed = faulty(fault, (ROOT / fault.file).read_text("utf-8"))
    return Case(fault.name, fault.file, changed, fault.tests, _ALL if all_tests else ())


def _table(faults: Sequence[Fault], entries: Sequence[Entry]) -> Iterator[str]:
    yield "\nfault | file | result | noticed by"
    for fault, entry in zip(faults, entries, strict=True):
        yield f"{fault.name} | {fault.file} | {entry.status} | {entry.by}"
    for status in ("killed", "survived", "timeout", "broken"):
        yield f"{status}: {sum(entry.status == status for entry in entries)} of {len(entries)}"


if __name__ == "__main__":
    sys.exit(main())
