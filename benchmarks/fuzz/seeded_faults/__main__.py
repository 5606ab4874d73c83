"""Put every fault of the list, or random mutants, into a copy of the project: its tests must fail, each time.

Every fault has to be noticed. A mutant that survives is a hole in the tests, or changes nothing that matters
(docs/testing.md says which). What is done is kept in ``.cache/seeded-faults.jsonl``; the same command continues from
there.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.fuzz.seeded_faults.catalogue import CatalogueError, faulty, own_tests, read_all
from benchmarks.fuzz.seeded_faults.mutator import sample
from benchmarks.fuzz.seeded_faults.runner import Case, Entry, Journal, run_all
from benchmarks.fuzz.seeded_faults.sandbox import ROOT

__all__ = ["main"]

_JOURNAL = ROOT / ".cache" / "seeded-faults.jsonl"
_MUTATED = ("src/bnndp/maths", "src/bnndp/engine", "src/bnndp/paper", "src/bnndp_checker")
_STATUSES = ("killed", "survived", "timeout", "broken")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for and print a table; 0 if all faults were noticed and the tests are fine without them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=0, metavar="N", help="N random mutants of each module instead")
    parser.add_argument("--seed", type=int, default=7, help="of the mutants")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="faults (or mutants) whose name or file holds a text")
    parser.add_argument("--all-tests", action="store_true", help="all tests for the faults that survive their own")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the project that run side by side")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one set of tests")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    given = parser.parse_args(arguments)
    then = ("tests",) if given.all_tests else ()
    try:
        cases = list(_mutants(given.only, given.mutants, given.seed) if given.mutants else _faults(given.only, then))
    except (CatalogueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if given.fresh:
        _JOURNAL.unlink(missing_ok=True)
    result = run_all(cases, Journal(_JOURNAL), jobs=given.jobs, limit=given.limit)
    print("\n".join(_table(cases, result.entries)))
    if result.failing_anyway:
        print(f"these tests fail without any change too, so they say nothing: {result.failing_anyway}", file=sys.stderr)
        return 1
    return 0 if given.mutants or all(entry.status == "killed" for entry in result.entries) else 1


def _asked(only: Sequence[str] | None, *texts: str) -> bool:
    return only is None or any(part in text for part in only for text in texts)


def _faults(only: Sequence[str] | None, then: tuple[str, ...]) -> Iterator[Case]:
    for fault in read_all():
        if _asked(only, fault.name, fault.file):
            changed = faulty(fault, (ROOT / fault.file).read_text("utf-8"))
            yield _case(fault.name, fault.file, changed, fault.tests, then)


def _mutants(only: Sequence[str] | None, count: int, seed: int) -> Iterator[Case]:
    for path in sorted(path for folder in _MUTATED for path in (ROOT / folder).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if not path.name.startswith("__") and _asked(only, file):
            for mutant in sample(file, path.read_text("utf-8"), count, seed):
                yield _case(mutant.name, file, mutant.source, own_tests(file))


def _case(name: str, file: str, changed: str, tests: tuple[str, ...], then: tuple[str, ...] = ()) -> Case:
    """The tests of the file's own name first, and those of its folder only if these say nothing."""
    count = 1 if tests == own_tests(file) else len(tests)
    return Case(name, file, changed, tests[:count], (*tests[count:], *then))


def _table(cases: Sequence[Case], entries: Sequence[Entry]) -> Iterator[str]:
    yield "\nchange | file | result | noticed by"
    for case, entry in zip(cases, entries, strict=True):
        yield f"{case.name} | {case.file} | {entry.status} | {entry.by}"
    found: dict[str, Counter[str]] = {}
    for case, entry in zip(cases, entries, strict=True):
        found.setdefault(case.file.rpartition("/")[0], Counter())[entry.status] += 1
    yield "\nfolder | " + " | ".join(_STATUSES)
    for folder, counts in (*found.items(), ("all", sum(found.values(), Counter()))):
        yield f"{folder} | " + " | ".join(str(counts[status]) for status in _STATUSES)


if __name__ == "__main__":
    sys.exit(main())
