"""Documents: no long lines, no path or name that does not exist; public names in the reference, with examples."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 120  # characters of a line
MODULES = ("bnndp.layers", "bnndp.activations", "bnndp.importers", "bnndp.attack")  # beside bnndp itself

PAGES = sorted(path for folder in (".", "docs", ".github") for path in (ROOT / folder).glob("*.md")) + sorted(
    path for path in (ROOT / "docs").glob("*/*.md")
)
NAMING = [page for page in PAGES if page.name != "CHANGELOG.md"]  # a changelog names what is no more
FOLDERS = ("src", "tests", "support", "benchmarks", "tools", "examples")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
naming = pytest.mark.parametrize("page", NAMING, ids=lambda page: page.relative_to(ROOT).as_posix())


def long_lines(text: str) -> Iterator[str]:
    """Lines over the limit, except rows of tables and printed output, which cannot be wrapped."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        printed = fenced and not line.startswith("$ ")
        if len(line) > LONGEST and not (line.startswith("|") and line.endswith("|")) and not printed:
            yield f"{number}: {line}"


def code_spans(text: str) -> list[str]:
    """What stands between backticks, outside of blocks."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`]+)`", prose)


def repository() -> set[str]:
    """All files and folders of the repository, from its root."""
    files = [path for name in FOLDERS for path in (ROOT / name).rglob("*") if "__pycache__" not in path.parts]
    return {path.relative_to(ROOT).as_posix() for path in files} | set(FOLDERS)


def lost_paths(text: str, known: set[str]) -> list[str]:
    """Paths below FOLDERS, and Python files by the end of their path, that are not there; NAME stands for any."""
    spans = [span.rstrip("/") for span in code_spans(text) if "NAME" not in span]
    whole = [span for span in spans if re.fullmatch(rf"({'|'.join(FOLDERS)})/[\w./]*", span)]
    ends = [span for span in spans if re.fullmatch(r"[\w/]+\.py", span)]
    return [path for path in whole if path not in known] + [
        end for end in ends if end not in known and not any(path.endswith(f"/{end}") for path in known)
    ]


def lost_names(text: str) -> list[str]:
    """Dotted names of the package that do not lead anywhere, in code spans and in the reference's directives."""
    spans = [*code_spans(text), *re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)]
    found = (re.match(r"bnndp(_checker)?(\.\w+)+(?!\w|\.\.\.)", span) for span in spans)
    names = {name[0] for name in found if name} - {"bnndp.NAME"}
    return sorted(name for name in names if not _leads_somewhere(name))


def lost_pointers(text: str, known: set[str]) -> list[str]:
    """Of a page that says where things are: files and folders that are not there by their whole path, and names.

    A path starts at ``src/bnndp`` or at the root; ``maths/normal.cdf`` is a name in a module.
    """
    spans = [span.rstrip("/") for span in code_spans(text) if re.fullmatch(r"[\w/]+\.py|\w+/[\w/]*(\.\w+)?", span)]
    return [span for span in spans if not {span, f"src/bnndp/{span}"} & known and not _leads_somewhere(_dotted(span))]


def _dotted(pointer: str) -> str:
    return "bnndp." + pointer.replace("/", ".")


def _leads_somewhere(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pages
def test_no_line_is_long(page: Path) -> None:
    assert list(long_lines(page.read_text(encoding="utf-8"))) == []


@naming
def test_paths_exist(page: Path) -> None:
    assert lost_paths(page.read_text(encoding="utf-8"), repository()) == []


@naming
def test_names_lead_somewhere(page: Path) -> None:
    assert lost_names(page.read_text(encoding="utf-8")) == []


def test_the_map_of_the_paper_has_whole_paths() -> None:
    page = ROOT / "docs" / "paper-to-code.md"
    assert lost_pointers(page.read_text(encoding="utf-8"), repository()) == []


@pytest.mark.parametrize("module", ["bnndp", *MODULES])
def test_the_reference_has_every_public_name(module: str) -> None:
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\w+", " ".join(re.findall(r"^::: \S+$|^ +.*$", reference, flags=re.MULTILINE))))
    assert set(importlib.import_module(module).__all__) - named == set()


def public() -> dict[str, Any]:
    """All public functions and classes, by name."""
    modules = [importlib.import_module(name) for name in ("bnndp", *MODULES)]
    found = {f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in module.__all__}
    return {name: value for name, value in found.items() if inspect.isclass(value) or inspect.isfunction(value)}


@pytest.mark.parametrize("name", public())
def test_public_names_are_documented(name: str) -> None:
    value = public()[name]
    text = inspect.getdoc(value) or ""
    sections = set(re.findall(r"^(Args|Attributes|Returns|Raises|Examples):$", text, flags=re.MULTILINE))
    assert re.fullmatch(r"[A-Z].*\.", text.splitlines()[0])
    assert "Examples" in sections
    assert ">>> " in text
    fields = dataclasses.is_dataclass(value) and any(field.init for field in dataclasses.fields(value))
    if inspect.isfunction(value) or fields:
        assert sections & {"Args", "Attributes"}
    if inspect.isfunction(value) and value.__annotations__["return"] != "None":
        assert "Returns" in sections


def test_faults_are_found() -> None:
    fine = f"| {'x' * 200} |\n```text\n{'x' * 200}\n```\n{'x' * 120}\n"
    assert list(long_lines(fine)) == []
    assert len(list(long_lines(f"```console\n$ {'x' * 200}\n```\n{'x' * 121}\n|{'x' * 121}\n"))) == 3
    known = {"src", "src/bnndp", "src/bnndp/maths/normal.py"}
    assert lost_paths("`src/bnndp/`, `normal.py`, `maths/normal.py`, `src/bnndp/maths/normal.py`", known) == []
    lost = lost_paths("`src/bnndp/none`, `other.py`, `ormal.py`, `moment/normal.py`", known)
    assert lost == ["src/bnndp/none", "other.py", "ormal.py", "moment/normal.py"]
    assert lost_pointers("`maths/normal.py`, `maths/normal.cdf`, `src/bnndp/`, `prop:neuron`", known) == []
    lost = lost_pointers("`normal.py`, `maths/normal.none`, `maths/none.cdf`, `tests/none`", known)
    assert lost == ["normal.py", "maths/normal.none", "maths/none.cdf", "tests/none"]
    assert lost_names("`bnndp.certify(network)`, `bnndp.layers.Linear`, `bnndp_checker.check`") == []
    assert lost_names("`bnndp.from_pyro`\n::: bnndp.evaluate.Evaluation\n") == [
        "bnndp.evaluate.Evaluation",
        "bnndp.from_pyro",
    ]
