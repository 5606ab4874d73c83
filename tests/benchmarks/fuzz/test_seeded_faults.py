"""The list of seeded faults is up to date, mutants are what they should be, and a run says what happened.

That the tests notice the faults is for ``make seeded-faults``: here each of them only has to apply.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.fuzz.seeded_faults.catalogue import CatalogueError, Fault, faulty, own_tests, parse, read_all
from benchmarks.fuzz.seeded_faults.mutator import mutants, sample
from benchmarks.fuzz.seeded_faults.runner import Entry, Journal, key_of
from benchmarks.fuzz.seeded_faults.sandbox import ROOT, Outcome, Sandbox

FAULTS = read_all()
BLOCK = "[a fault]\nfile: a.py\nwhy: because\ntests: tests\n- x = 1\n+ x = 2\n"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_applies(fault: Fault) -> None:
    """Its old text occurs once, what results is Python, and the tests that it names exist."""
    ast.parse(faulty(fault, (ROOT / fault.file).read_text("utf-8")))
    for test in fault.tests:
        assert (ROOT / test.partition("::")[0]).exists(), test


def test_the_faults_are_spread_over_the_project() -> None:
    parts = Counter(fault.file.removeprefix("src/bnndp/").split("/")[0] for fault in FAULTS)
    assert len(FAULTS) >= 100
    for part, least in {"maths": 15, "engine": 15, "paper": 15, "questions": 8, "activations": 3}.items():
        assert parts[part] >= least, part
    assert sum(fault.file.startswith("src/bnndp_checker/") for fault in FAULTS) >= 12


def test_a_fault_that_no_longer_applies_is_an_error() -> None:
    (fault,) = parse(BLOCK, "here")
    assert faulty(fault, "y = 0\nx = 1\n") == "y = 0\nx = 2\n"
    for source in ("y = 0\n", "x = 1\nx = 1\n"):
        with pytest.raises(CatalogueError, match="'a fault'"):
            faulty(fault, source)


@pytest.mark.parametrize(
    "text",
    [
        "x\n" + BLOCK,
        BLOCK.replace("why: because\n", ""),
        BLOCK.replace("+ x = 2\n", ""),
        BLOCK.replace("+ x = 2", "+ x = 1"),
        BLOCK.replace("why: because", "why: because\nwhy: not"),
        BLOCK + "what is this\n",
    ],
)
def test_a_list_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(CatalogueError):
        parse(text, "here")


def test_no_two_faults_have_one_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(BLOCK)
    assert len(read_all(tmp_path)) == 1
    (tmp_path / "b.txt").write_text(BLOCK)
    with pytest.raises(CatalogueError, match="several"):
        read_all(tmp_path)


SOURCE = '''"""A module: 1.0 + 2.0 in a docstring is left alone."""

STEP = 0.5


def f(x: float, box: object, n: int = 3) -> float:
    """Also here: a < b."""
    y = x
    y = y + STEP * max(x, 0.25)
    if not y < 3:
        raise ValueError(f"too large: {x + 1}")
    return (box.lower - y).clamp_min(0).amax(dim=-1 - n)  # é
'''


def test_mutants_are_the_changes_that_they_say() -> None:
    found = {(mutant.line, mutant.old, mutant.new) for mutant in mutants("m.py", SOURCE)}
    assert {
        (3, "0.5", "(1.0)"),
        (3, "0.5", "(-0.5)"),
        (9, "y = y + STEP * max(x, 0.25)", "pass"),
        (9, "y + STEP * max(x, 0.25)", "(y)"),
        (9, "y + STEP * max(x, 0.25)", "(y - STEP * max(x, 0.25))"),
        (9, "STEP * max(x, 0.25)", "(STEP / max(x, 0.25))"),
        (9, "max(x, 0.25)", "(min(x, 0.25))"),
        (10, "y < 3", "(y > 3)"),
        (12, "box.lower", "(box.upper)"),
        (12, "box.lower - y", "(box.lower + y)"),
        (12, "(box.lower - y).clamp_min(0)", "(box.lower - y)"),
        (12, "(box.lower - y).clamp_min(0).amax", "((box.lower - y).clamp_min(0).amin)"),
    } <= found
    assert {line for line, _, _ in found} == {3, 9, 10, 12}
    assert not any("n" in old.split() for _, old, _ in found)  # the axis


def test_mutants_of_the_project_are_python_and_differ() -> None:
    for file in ("src/bnndp/maths/tails.py", "src/bnndp/paper/outer.py"):
        source = (ROOT / file).read_text("utf-8")
        for mutant in mutants(file, source):
            assert ast.dump(ast.parse(mutant.source)) != ast.dump(ast.parse(source)), mutant.name
        assert sample(file, source, 5, seed=1) == sample(file, source, 5, seed=1)
        assert len({mutant.source for mutant in sample(file, source, 20, seed=2)}) == 20
        assert all((ROOT / test).exists() for test in own_tests(file))


def test_a_journal_remembers(tmp_path: Path) -> None:
    key = key_of("a.py", "x = 2", ["tests"])
    assert key != key_of("a.py", "x = 3", ["tests"])
    assert key != key_of("a.py", "x = 2", ["tests/test_a.py"])
    journal = Journal(tmp_path / "new" / "journal.jsonl")
    assert journal.get(key) is None
    entry = journal.put(key, "a fault", Outcome("killed", "tests/test_a.py::test", 1.26, "output"))
    assert entry == Entry(key, "a fault", "killed", "tests/test_a.py::test", 1.3)
    assert Journal(tmp_path / "new" / "journal.jsonl").get(key) == entry
    journal.put(key, "a fault", Outcome("timeout", "", 9.0, ""))  # to be tried again
    assert Journal(tmp_path / "new" / "journal.jsonl").get(key) is None


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of the same layout, with one test."""
    for package in ("bnndp", "bnndp_checker"):
        (tmp_path / "src" / package).mkdir(parents=True)
        (tmp_path / "src" / package / "__init__.py").write_text("VALUE = 1\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        "import bnndp\n\ndef test_it():\n    assert bnndp.VALUE == 1\n\ndef test_blind():\n    pass\n"
    )
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nminversion = '8.2'\n")
    return tmp_path


def test_a_run_says_what_happened(project: Path) -> None:
    """Also for changes that leave the size of the file as it was, one right after the other."""
    file, test = "src/bnndp/__init__.py", "tests/test_it.py"
    with Sandbox(project) as sandbox:
        found = sandbox.run(file, "VALUE = 2\n", [test], limit=120)
        assert (found.status, found.by) == ("killed", f"{test}::test_it")
        assert sandbox.run(file, "VALUE = 3\n", [f"{test}::test_blind"], limit=120).status == "survived"
        assert sandbox.run(file, "VALUE = \n", [test], limit=120).status == "broken"
        assert sandbox.run(file, "import time\ntime.sleep(60)\n", [test], limit=2).status == "timeout"
        assert sandbox.text(file) == "VALUE = 1\n"
        assert sandbox.check([test], limit=120).status == "survived"
        folder = sandbox.folder
    assert not folder.exists()
    assert (project / file).read_text() == "VALUE = 1\n"
