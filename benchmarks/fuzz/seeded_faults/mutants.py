"""Random mutants of the modules that bounds rest on, each against the tests of its module.

A mutant that survives is a hole in the tests, or changes nothing that matters: docs/testing.md says which. What is done
is kept in ``.cache/mutants.jsonl``; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from benchmarks.fuzz.seeded_faults.journal import Entry, Journal
from benchmarks.fuzz.seeded_faults.mutator import sample
from benchmarks.fuzz.seeded_faults.runner import Case, run_all
from benchmarks.fuzz.seeded_faults.sandbox import ROOT

_JOURNAL = ROOT / ".cache" / "mutants.jsonl"
_FOLDERS = ("src/bnndp/maths", "src/bnndp/moment", "src/bnndp/partition", "src/bnndp_checker")
_BESIDE = {  # tests of a module beside those of its own name, the quickest first
    "maths/exponential_majorants": "tests/maths/test_exponential.py",
    "maths/normal": "tests/maths/test_rectified.py",
    "maths/panels": "tests/activations/test_contract.py",
    "maths/rounding": "tests/geometry/test_box.py",
    "maths/tails": "tests/maths/test_constants.py tests/maths/test_replacement.py",
    "maths/hinge": "tests/activations/test_contract.py",
    "moment/backward": "tests/engine/dense/test_certain.py tests/engine/dense/test_multipliers.py tests/engine/dense/test_first.py",
    "moment/conditional": "tests/engine/dense/test_units.py tests/engine/dense/test_variance.py "
        "tests/engine/dense/test_norms.py tests/engine/dense/test_quantities.py",
    "moment/exponential_box": "tests/engine/tails/test_quadratic_forms_ball.py",
    "moment/exponential_first": "tests/engine/dense/test_bend.py tests/engine/tails/test_tails.py",
    "moment/exponential_second": "tests/engine/tails/test_tails.py",
    "moment/first": "tests/engine/dense/test_covariance.py tests/engine/dense/test_quantities.py",
    "moment/forward": "tests/engine/dense/test_certain.py tests/engine/dense/test_no_numbers.py tests/engine/dense/test_regressions.py",
    "moment/norms": "tests/engine/dense/test_units.py tests/engine/dense/test_quantities.py",
    "moment/pre_activation": "tests/engine/dense/test_units.py tests/engine/dense/test_covariance.py "
        "tests/engine/dense/test_quantities.py",
    "moment/records": "tests/engine/dense/test_units.py tests/engine/dense/test_covariance.py tests/engine/dense/test_quantities.py",
    "moment/relax": "tests/engine/dense/test_units.py tests/engine/dense/test_covariance.py tests/engine/dense/test_regressions.py",
    "moment/slope": "tests/engine/dense/test_units.py tests/engine/dense/test_variance.py tests/engine/dense/test_quantities.py",
    "moment/tail": "tests/engine/dense/test_units.py tests/engine/dense/test_quantities.py",
    "moment/variance": "tests/engine/dense/test_units.py tests/engine/dense/test_quadratic.py "
        "tests/engine/dense/test_quantities.py tests/engine/dense/test_margins.py",
    "partition/chain": "tests/paper/test_counted.py tests/paper/test_softmax.py",
    "partition/layers": "tests/paper/test_tiny.py tests/paper/test_planes.py tests/paper/test_recursion.py",
    "partition/outer": "tests/paper/test_errata_partition.py tests/paper/test_recursion.py",
    "partition/planes": "tests/paper/test_recursion.py",
    "partition/softmax": "tests/paper/test_counted.py",
    "partition/spreads": "tests/paper/test_counted.py",
    "partition/values": "tests/paper/test_complement.py tests/paper/test_recursion.py",
}  # fmt: skip
_CHECKER = "tests/checker"


def main() -> int:
    """Run the sample that is asked for and print a table; the exit status is 1 if the tests themselves are broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="modules whose path holds one of these texts")
    parser.add_argument("--count", type=int, default=6, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=1, help="copies of the project that run side by side")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for the tests of one mutant")
    given = parser.parse_args()
    cases = [
        Case(mutant.name, mutant.file, mutant.source, own_tests(mutant.file))
        for file in _modules()
        if given.only is None or any(part in file for part in given.only)
        for mutant in sample(file, (ROOT / file).read_text("utf-8"), given.count, given.seed)
    ]
    result = run_all(cases, Journal(_JOURNAL), jobs=given.jobs, limit=given.limit)
    print("\n".join(_table(cases, result.entries)))
    if result.failing_anyway:
        print(f"these tests fail without any mutant too: {result.failing_anyway}", file=sys.stderr)
    return 1 if result.failing_anyway else 0


def _modules() -> Iterator[str]:
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).glob("*.py")):
            if not path.name.startswith("__"):
                yield path.relative_to(ROOT).as_posix()


def own_tests(file: str) -> tuple[str, ...]:
    """The tests of a module: those of its name, and others of ``_BESIDE``."""
    package, _, stem = file.removeprefix("src/").removeprefix("bnndp/").removesuffix(".py").rpartition("/")
    if package == "bnndp_checker":
        return (_CHECKER,)
    own = f"tests/{package}/test_{stem}.py"
    first = (own,) if (ROOT / own).exists() else ()
    return (*first, *_BESIDE.get(f"{package}/{stem}", "").split())


def _table(cases: list[Case], entries: tuple[Entry, ...]) -> Iterator[str]:
    yield "\nmodule | mutants | killed | survived | timeout | broken at import"
    total: Counter[str] = Counter()
    for file, pairs in groupby(zip(cases, entries, strict=True), key=lambda pair: pair[0].file):
        found = Counter(entry.status for _, entry in pairs)
        total += found
        yield _line(file, found)
    yield _line("all", total)
    for case, entry in zip(cases, entries, strict=True):
        if entry.status in ("survived", "timeout"):
            yield f"{entry.status}: {case.name}"


def _line(name: str, found: Counter[str]) -> str:
    parts = [found.total(), *(found[status] for status in ("killed", "survived", "timeout", "broken"))]
    return " | ".join([name, *map(str, parts)])


if __name__ == "__main__":
    sys.exit(main())
