"""Imports run one way through the rooms, third-party packages stay where they belong, ``bnndp --help`` is light."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bnndp

SRC = Path(bnndp.__file__).parent

# A module may import from the rooms above the line of its own, and from its own room.
FLOW = (
    ("errors",),
    ("maths", "options"),
    ("geometry",),
    ("activations", "layers"),
    ("network",),
    ("files",),
    ("engine",),
    ("paper",),
    ("tighten",),
    ("attack",),
    ("questions",),
    ("certificates",),
    ("runs",),
    ("report",),
    ("explorer",),
    ("cli",),
    ("__main__",),
)
# These hang off the network, and only the command line and the package itself import them.
ASIDE = {
    "data": {"errors", "geometry", "maths"},
    "importers": {"errors", "maths", "geometry", "activations", "layers", "network", "files"},
    "training": {
        "errors",
        "maths",
        "geometry",
        "activations",
        "layers",
        "network",
        "files",
        "engine",
        "attack",
        "data",
    },
}
RANK = {name: rank for rank, level in enumerate(FLOW) for name in level}
EVERYWHERE = {"torch", "numpy", *sys.stdlib_module_names}
ONLY_IN = {
    "files": {"safetensors"},
    "importers": {"safetensors"},
    "training": {"safetensors"},
    "cli": {"typer", "rich"},
    "report": {"rich", "matplotlib"},
    "certificates": {"bnndp_checker"},
    "runs": {"pyarrow"},
    "runs/ray_cluster": {"ray"},
}
SOURCES = {
    path.relative_to(SRC).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(SRC.rglob("*.py"))
    if path != SRC / "__init__.py"
}
ROOMS = sorted({re.split(r"[/.]", module)[0] for module in SOURCES})


def imported(source: str) -> Iterator[str]:
    """Dotted names that a source imports anywhere, also inside functions; relative imports start with a dot."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def faults(module: str, source: str) -> list[str]:
    """What the imports of a module break."""
    own = re.split(r"[/.]", module)[0]
    if own not in RANK and own not in ASIDE:
        return [f"{module}: {own} has no place in FLOW or ASIDE"]
    allowed = EVERYWHERE.union(ONLY_IN.get(own, ()), ONLY_IN.get(module.rpartition("/")[0], ()))
    found = []
    for name in imported(source):
        top, _, rest = name.partition(".")
        if top not in allowed if top != "bnndp" else not _may(own, rest.split(".")[0]):
            found.append(f"{module}: imports {name or 'relatively'}")
    return found


def _may(own: str, other: str) -> bool:
    if own == other or own in ASIDE:
        return own == other or other in ASIDE[own]
    return RANK[other] < RANK[own] if other in RANK else own == "cli" and other in ASIDE


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_one_way(room: str) -> None:
    modules = {module: source for module, source in SOURCES.items() if re.split(r"[/.]", module)[0] == room}
    assert [fault for module, source in modules.items() for fault in faults(module, source)] == []


def test_no_module_imports_itself_through_others() -> None:
    """Also within a room, and inside functions."""
    names = {module.removesuffix(".py").removesuffix("/__init__").replace("/", "."): module for module in SOURCES}
    graph: dict[str, set[str]] = {}
    for own, module in names.items():
        wanted = set()
        for node in ast.walk(ast.parse(SOURCES[module])):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bnndp."):
                package = (node.module or "").removeprefix("bnndp.")
                each = {f"{package}.{alias.name}" for alias in node.names}  # modules of a package, or what is in one
                wanted |= each if each <= names.keys() else {package}
        graph[own] = wanted & names.keys() - {own}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(names)  # or it raises CycleError


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("maths/normal.py", "from bnndp.network import BayesianNetwork"),
        ("geometry/box.py", "from bnndp.layers import Linear"),
        ("network/network.py", "def f():\n    from bnndp.files.posterior import load"),
        ("engine/dense/forward.py", "from bnndp.paper.layers import Layer"),
        ("engine/mixture.py", "from bnndp.questions.softmax import bound_rows"),
        ("tighten/choice.py", "from bnndp.questions.mean import mean"),
        ("attack/search.py", "from bnndp.questions.radius import Search"),
        ("questions/certify.py", "import bnndp.cli.main"),
        ("questions/certify.py", "import bnndp"),
        ("questions/certify.py", "from bnndp import load"),
        ("questions/certify.py", "from .errors import CertError"),
        ("questions/certify.py", "from bnndp.training import train"),
        ("questions/evaluate.py", "from bnndp.data import mnist"),
        ("questions/certify.py", "import rich"),
        ("data/uci.py", "from bnndp.training.fit import fit"),
        ("runs/work.py", "import ray"),
        ("runs/work.py", "from bnndp.report.table import table"),
        ("cli/main.py", "import matplotlib.pyplot"),
        ("newcomer.py", ""),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert len(faults(module, source)) == 1


def test_a_right_import_is_not_a_fault() -> None:
    source = "import math\nimport torch\nfrom bnndp.errors import CertError\nfrom bnndp.maths import normal"
    assert faults("geometry/box.py", source) == []
    assert faults("maths/rectified.py", "from bnndp.maths.normal import cdf") == []
    assert faults("cli/train.py", "from bnndp.training.fit import fit\nfrom bnndp.data import mnist") == []
    assert faults("runs/ray_cluster/crew.py", "import ray\nfrom bnndp.runs.work import Work") == []


# Above the engine nobody asks what kind of network it is, or by which method: tighten/choice.py decides both

ABOVE = ("questions/", "tighten/", "cli/", "report/", "explorer/")
EXEMPT = ("tighten/choice.py", "cli/inspection.py")  # the second tells what a file holds


def kinds_asked(source: str) -> list[str]:
    """Where a source asks for ensembles, for plain networks, or for the method of the options."""
    told = re.compile(r"isinstance\(.*\bEnsemble\b.*\)|.*\.plain|(.*\b)?(options|how|chosen)\.method", re.DOTALL)
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call | ast.Attribute))
    return [text for text in map(ast.unparse, nodes) if told.fullmatch(text)]


def test_above_the_engine_nobody_asks_for_the_kind_of_a_network() -> None:
    asked = {m: kinds_asked(source) for m, source in SOURCES.items() if m.startswith(ABOVE) and m not in EXEMPT}
    assert {module: found for module, found in asked.items() if found} == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("if isinstance(network, Ensemble): pass", 1),
        ("isinstance(x, (BayesianNetwork, network.Ensemble))", 1),
        ("network.members[0].plain", 1),
        ("stage.options.method == 'best'", 1),
        ("how.method", 1),
        ("bounds.method, found.method, network.members, options.refine", 0),
    ],
)
def test_a_question_for_the_kind_is_found(source: str, count: int) -> None:
    assert len(kinds_asked(source)) == count


def test_the_command_line_alone_imports_no_heavy_library() -> None:
    program = "import sys, bnndp.cli.main; print(*{'torch', 'numpy', 'matplotlib'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


# Beside the package

ROOT = Path(__file__).parents[1]


def outside_faults(file: str, source: str) -> list[str]:
    """What the imports of a file beside the package break.

    ``support`` is what tests and benchmarks share and imports neither; benchmarks do not import tests, and of the tests
    only those of benchmarks import benchmarks.
    """
    own = file.partition("/")[0]
    allowed = {"support", own} | ({"benchmarks"} if file.startswith("tests/benchmarks/") else set())
    others = {"support", "benchmarks", "tests"} - allowed
    if not any(other in source for other in others):
        return []
    return [f"{file}: imports {name}" for name in imported(source) if name.partition(".")[0] in others]


@pytest.mark.parametrize("folder", ["support", "benchmarks", "tests"])
def test_support_benchmarks_and_tests_import_one_way(folder: str) -> None:
    files = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / folder).rglob("*.py")}
    assert [f for file, path in files.items() for f in outside_faults(file, path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("file", "source", "faults"),
    [
        ("support/dice.py", "from benchmarks.pool import mapped", 1),
        ("support/dice.py", "from tests.paper import truth", 1),
        ("benchmarks/fuzz/layers.py", "def f():\n    from tests.paper.truth import plane", 1),
        ("tests/engine/test_mixture.py", "import benchmarks.fuzz.layers", 1),
        ("tests/benchmarks/test_floor.py", "import benchmarks.floor\nimport support.dice\nimport tests.paper", 0),
        ("benchmarks/fuzz/layers.py", "import benchmarks.pool\nimport support.dice\nimport bnndp", 0),
        ("tests/engine/test_mixture.py", "import support.dice\nimport tests.engine.dense.truth", 0),
    ],
)
def test_a_wrong_import_beside_the_package_is_found(file: str, source: str, faults: int) -> None:
    assert len(outside_faults(file, source)) == faults
