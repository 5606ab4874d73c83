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

# A module may import from the folders on the lines above its own, and from its own folder.
FLOW = (
    ("errors",),
    ("maths", "deadline", "layers", "data"),
    ("options",),
    ("geometry",),
    ("activations",),
    ("network",),
    ("engine", "files"),
    ("paper", "attack", "importers", "runs"),
    ("tighten", "certificates", "training"),
    ("questions",),
    ("report",),
    ("explorer",),
    ("cli",),
    ("__main__",),
)

RANK = {name: rank for rank, level in enumerate(FLOW) for name in level}

# The same for the rooms and files of the engine.
ENGINE = (
    ("chunks", "protocol", "rows"),
    ("moments", "margins", "mixture", "combined", "tails"),
    ("sums", "side_by_side"),
    ("laws",),
    ("inequalities",),
    ("planes",),
    ("nodes",),
    ("propagation",),
    ("moment_pass",),
)

ENGINE_RANK = {name: rank for rank, level in enumerate(ENGINE) for name in level}
EVERYWHERE = {"torch", "numpy", "safetensors"} | set(sys.stdlib_module_names)
ONLY_IN = {
    "cli": {"typer", "rich"},
    "report": {"rich", "matplotlib"},
    "certificates": {"bnndp_checker"},
    "runs": {"pyarrow"},
    "runs/ray_cluster": {"ray"},
    "importers/onnx": {"onnx"},
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
    if own not in RANK:
        return [f"{module}: has no place in FLOW"]
    found = []
    for name in imported(source):
        top, _, rest = name.partition(".")
        if top != "bnndp":
            if top not in EVERYWHERE | ONLY_IN.get(own, set()) | ONLY_IN.get(module.rpartition("/")[0], set()):
                found.append(f"{module}: imports {name or 'relatively'}")
        elif not rest or not _allowed(own, part_of(rest), RANK):
            found.append(f"{module}: imports {name}")
        elif own == part_of(rest) == "engine" and module != "engine/__init__.py":
            room, other = part_of(module.removeprefix("engine/")), part_of(rest.removeprefix("engine."))
            if room not in ENGINE_RANK or not _allowed(room, other, ENGINE_RANK):
                found.append(f"{module}: imports {name}")
    return found


def _allowed(own: str, other: str, rank: dict[str, int]) -> bool:
    return own == other or (other in rank and rank[other] < rank[own])


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    assert faults(module, (SRC / module).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("maths/normal.py", "from bnndp.layers import Linear"),
        ("geometry/box.py", "from bnndp.network import Ensemble"),
        ("network/network.py", "def f():\n    from bnndp.files.posterior import load"),
        ("engine/propagation/forward.py", "from bnndp.paper.layers import Layer"),
        ("engine/mixture.py", "from bnndp.tighten.pass_choice import chunked"),
        ("questions/certify.py", "import bnndp.cli.main"),
        ("questions/certify.py", "import bnndp"),
        ("questions/certify.py", "from bnndp import load"),
        ("questions/certify.py", "from .errors import CertError"),
        ("training/fit.py", "from bnndp.questions.certify import certify"),
        ("attack/search.py", "from bnndp.questions.decision import decide"),
        ("questions/certify.py", "import rich"),
        ("runs/work.py", "import ray"),
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
    assert faults("cli/inputs.py", "from bnndp.data import mnist") == []
    assert faults("runs/ray_cluster/crew.py", "import ray") == []


ABOVE = [
    m
    for m in MODULES
    if m.startswith(("questions/", "tighten/", "report/", "explorer/")) and m != "tighten/pass_choice.py"
]


def asks_for_kinds(source: str) -> list[int]:
    """Lines that ask for the kind of a network or for the method of the options."""
    found = []
    for node in ast.walk(ast.parse(source)):
        call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        kinds = call and any(isinstance(name, ast.Name) and name.id == "Ensemble" for name in ast.walk(node))
        plain = isinstance(node, ast.Attribute) and node.attr == "plain"
        method = (
            isinstance(node, ast.Attribute) and node.attr == "method" and ast.unparse(node.value).endswith("options")
        )
        if kinds or plain or method:
            found.append(node.lineno)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("module", ABOVE)
def test_nothing_above_the_pass_asks_for_kinds_of_networks(module: str) -> None:
    """Which engine serves a network is decided in ``tighten/pass_choice.py``; a network is a mixture of one."""
    assert asks_for_kinds((SRC / module).read_text(encoding="utf-8")) == []


def test_questions_about_kinds_are_found() -> None:
    sources = ("isinstance(network, Ensemble)", "member.plain", "self.options.method", "isinstance(a, (Box, Ensemble))")
    assert [asks_for_kinds(source) for source in sources] == [[1]] * 4
    assert asks_for_kinds("bounds.method, isinstance(a, Box)") == []


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
        ("tests/engine/test_mixture.py", "import support.dice\nimport tests.engine.truth", 0),
    ],
)
def test_a_wrong_import_beside_the_package_is_found(file: str, source: str, faults: int) -> None:
    assert len(outside_faults(file, source)) == faults
