"""Imports run one way, third-party packages stay where they belong, and ``bnndp --help`` loads no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bnndp

SRC = Path(bnndp.__file__).parent

# A module may import from the levels above its own line, and a package from itself.
FLOW = (
    ("errors",),
    ("maths", "options", "verdict", "regular_files", "shown", "vnnlib"),
    ("container",),
    ("effort", "room"),
    ("regions",),
    ("bounds", "halving", "bracket"),
    ("layers", "activations"),
    ("network",),
    ("ensemble", "entries"),
    ("files", "draws", "moment", "partition", "mixture"),
    ("noise", "pathwise", "propagation", "mixture_rows"),
    ("mixture_parts",),
    ("sampling", "methods"),
    ("mixture_softmax", "quantities"),
    ("attacks", "sampling_softmax", "classify"),
    ("evasion", "refine", "single", "linearised"),
    ("certify",),
    ("decision",),
    ("assertions",),
    ("radius",),
    ("evaluate",),
    ("proofs",),
    ("runs",),
    ("cluster",),
    ("report",),
    ("explorer",),
    ("cli",),
    ("__main__",),
)
# These hang off the network: they may import one another and the flow; nothing in the flow imports them, but that the
# command line reads data sets and trains.
ASIDE = ("data", "demo", "training", "importers")

RANK = {name: rank for rank, level in enumerate(FLOW) for name in level}
EVERYWHERE = {"torch", "numpy", "safetensors"} | set(sys.stdlib_module_names)
ONLY_IN = {
    "cli": {"typer", "rich"},
    "report": {"rich", "matplotlib"},
    "proofs": {"bnndp_checker"},
    "runs": {"pyarrow"},
    "cluster": {"ray"},
}

MODULES = sorted(path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py") if path != SRC / "__init__.py")


def imported(source: str) -> Iterator[str]:
    """Dotted names that a source imports anywhere, also inside functions; relative imports start with a dot."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def part_of(module: str) -> str:
    """The part of the package that a file or a dotted name below ``bnndp`` belongs to."""
    return module.replace("/", ".").removesuffix(".py").split(".")[0]


def faults(module: str, source: str) -> list[str]:
    """What the imports of a module break."""
    own = part_of(module)
    if own not in RANK and own not in ASIDE:
        return [f"{module}: has no place in FLOW or ASIDE"]
    found = []
    for name in imported(source):
        top, _, rest = name.partition(".")
        if top != "bnndp":
            if top not in EVERYWHERE | ONLY_IN.get(own, set()):
                found.append(f"{module}: imports {name or 'relatively'}")
        elif not rest or not _allowed(own, part_of(rest)):
            found.append(f"{module}: imports {name}")
    return found


def _allowed(own: str, other: str) -> bool:
    if own == other:
        return True
    if own in ASIDE:
        return other in ASIDE or other in RANK
    return (other in RANK and RANK[other] < RANK[own]) or (own == "cli" and other in ("data", "training", "importers"))


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    assert faults(module, (SRC / module).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("maths/normal.py", "from bnndp.network import Linear"),
        ("regions.py", "from bnndp.geometry.bounds import Interval"),
        ("network.py", "def f():\n    from bnndp.files.posterior import load"),
        ("engine/dense/forward.py", "from bnndp.paper.layers import Layer"),
        ("certify.py", "import bnndp.cli.main"),
        ("certify.py", "import bnndp"),
        ("certify.py", "from bnndp import load"),
        ("certify.py", "from .errors import CertError"),
        ("certify.py", "from bnndp.training import train"),
        ("evaluate.py", "from bnndp.data import mnist"),
        ("classify.py", "from bnndp.questions.decision import decide"),
        ("cli/radius.py", "from bnndp.data.demo import load"),
        ("certify.py", "import rich"),
        ("runs/work.py", "import ray"),
        ("runs/work.py", "from bnndp.runs.ray_cluster.crew import Crew"),
        ("cli/main.py", "import matplotlib.pyplot"),
        ("newcomer.py", ""),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert len(faults(module, source)) == 1


def test_a_right_import_is_not_a_fault() -> None:
    source = "import math\nimport torch\nfrom bnndp.errors import CertError\nfrom bnndp.maths import normal"
    assert faults("regions.py", source) == []
    assert faults("maths/rectified.py", "from bnndp.maths.normal import cdf") == []
    assert faults("cli/labelled.py", "from bnndp.data import mnist") == []
    assert faults("cli/train.py", "from bnndp.training.fit import fit") == []


def test_the_package_alone_imports_no_heavy_library() -> None:
    program = "import sys, bnndp.cli.main; print(*{'torch', 'numpy', 'matplotlib'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


ROOT = Path(__file__).parents[1]
OUTSIDE = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("support", "benchmarks", "tests")
    for path in (ROOT / folder).rglob("*.py")
)


def outside_faults(file: str, source: str) -> list[str]:
    """What the imports of a file beside the package break.

    ``support`` is what tests and benchmarks share and imports neither; benchmarks do not import tests, and of the tests
    only those of benchmarks import benchmarks.
    """
    own = file.partition("/")[0]
    allowed = {"support", own} | ({"benchmarks"} if file.startswith("tests/benchmarks/") else set())
    parts = {"support", "benchmarks", "tests"}
    return [f"{file}: imports {name}" for name in imported(source) if name.partition(".")[0] in parts - allowed]


@pytest.mark.parametrize("file", OUTSIDE)
def test_support_benchmarks_and_tests_import_one_way(file: str) -> None:
    assert outside_faults(file, (ROOT / file).read_text(encoding="utf-8")) == []


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
