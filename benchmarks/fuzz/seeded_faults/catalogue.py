"""The list of seeded faults: small changes that each make some bound, verdict or reading wrong.

They are kept as text in ``faults/*.txt``, in blocks of this form, where the old text has to occur exactly once in its
file (so that a change of the code that touches it is noticed):

    [name of the fault]
    file: src/bnndp/maths/normal.py
    why: one line on what is unsound
    tests: tests/maths/test_normal.py tests/maths/test_tails.py
    - the old line, or lines
    + the new line, or lines

Without a line of tests they are those of the file itself, then those of its folder: tests mirror the sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz.seeded_faults.sandbox import ROOT

__all__ = ["FOLDER", "CatalogueError", "Fault", "faulty", "own_tests", "parse", "read_all"]

FOLDER = Path(__file__).parent / "faults"
_KEYS = ("file", "why", "tests")


class CatalogueError(Exception):
    """The list of faults is not what it should be, in one line."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One change, why it is unsound, and the tests that are expected to notice it."""

    name: str
    file: str  # relative to the root of the project
    why: str
    tests: tuple[str, ...]  # arguments of pytest
    old: str
    new: str


def parse(text: str, where: str) -> list[Fault]:
    """The faults of one file of the list; ``where`` is for messages."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("[") and line.endswith("]"):
            blocks.append([line[1:-1]])
        elif line.strip() and not line.startswith("#"):
            if not blocks:
                raise CatalogueError(f"{where}: starts with {line!r:.60}; expected the name of a fault in brackets.")
            blocks[-1].append(line)
    return [_fault(name, lines, where) for name, *lines in blocks]


def _fault(name: str, lines: list[str], where: str) -> Fault:
    said: dict[str, str] = {}
    sides: dict[str, list[str]] = {"-": [], "+": []}
    for line in lines:
        key, _, value = line.partition(": ")
        if line[:1] in sides and line[1:2] in ("", " "):
            sides[line[0]].append(line[2:])
        elif key in _KEYS and key not in said:
            said[key] = value
        else:
            raise CatalogueError(f"{where}, fault {name!r}: cannot read {line!r:.60}.")
    lacking = [key for key in ("file", "why") if key not in said] + [side for side in "-+" if not sides[side]]
    if lacking:
        raise CatalogueError(f"{where}, fault {name!r}: lacks {', '.join(lacking)}.")
    old, new = ("\n".join(sides[side]) for side in "-+")
    if old == new:
        raise CatalogueError(f"{where}, fault {name!r}: changes nothing.")
    tests = tuple(said["tests"].split()) if "tests" in said else own_tests(said["file"])
    return Fault(name, said["file"], said["why"], tests, old, new)


def own_tests(file: str) -> tuple[str, ...]:
    """The tests of a module: those of its name, then all of its folder."""
    package, _, stem = file.removeprefix("src/").removeprefix("bnndp/").removesuffix(".py").rpartition("/")
    candidates = (f"tests/{package}/test_{stem}.py", f"tests/{package}")
    return tuple(test for test in candidates if (ROOT / test).exists())


def read_all(folder: Path = FOLDER) -> tuple[Fault, ...]:
    """All faults, in the order of the files and within them; no name may occur twice."""
    found = [fault for path in sorted(folder.glob("*.txt")) for fault in parse(path.read_text("utf-8"), path.name)]
    names = [fault.name for fault in found]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise CatalogueError(f"several faults are called {doubled[0]!r}; give each a name of its own.")
    return tuple(found)


def faulty(fault: Fault, source: str) -> str:
    """The text of the file with the fault in it; an error if the old text does not occur exactly once."""
    count = source.count(fault.old)
    if count != 1:
        raise CatalogueError(
            f"fault {fault.name!r}: its old text occurs {count} times in {fault.file}, it must occur once; "
            "the code has changed: write the fault anew in benchmarks/fuzz/seeded_faults/faults."
        )
    return source.replace(fault.old, fault.new)
