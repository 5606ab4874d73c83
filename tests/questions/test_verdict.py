"""One function gives verdicts, and takes nothing but ``True`` for a proof."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bnndp
from bnndp.questions.verdict import Verdict, judge

SRC = Path(bnndp.__file__).parent
INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    "proved", [False, None, 1, "yes", float("nan"), torch.tensor(True), np.True_, Verdict.CERTIFIED]
)
def test_only_true_itself_is_a_proof(proved: Any) -> None:
    assert judge(proved=proved, broken=False) is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("change", "found", "verdict"),
    [
        (0.5, 0.4, "CERTIFIED"),
        (0.51, 0.4, "UNDECIDED"),
        (0.51, 0.501, "FALSIFIED"),
        (0.5, 0.501, "CERTIFIED"),  # a proof wins over an attack
        (INF, 0.0, "UNDECIDED"),
        (INF, 2.0, "FALSIFIED"),
        (NAN, 0.0, "UNDECIDED"),
        (NAN, NAN, "UNDECIDED"),
        (2.0, NAN, "UNDECIDED"),
    ],
)
def test_what_is_proved_and_what_is_broken(change: float, found: float, verdict: str) -> None:
    assert judge(proved=change <= 0.5, broken=found > 0.5) is Verdict[verdict]


@pytest.mark.parametrize("verdict", Verdict)
def test_a_verdict_has_no_truth_value(verdict: Verdict) -> None:
    with pytest.raises(TypeError, match="no truth value"):
        bool(verdict)


def made_certified(source: str) -> list[int]:
    """Lines that use ``Verdict.CERTIFIED``, or make a verdict by its value, otherwise than to compare with it."""
    tree, found = ast.parse(source), []
    compared = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Compare) for part in ast.walk(node)}
    for node in (part for part in ast.walk(tree) if isinstance(part, ast.expr)):
        named = isinstance(node, ast.Attribute) and node.attr == "CERTIFIED"
        called = isinstance(node, ast.Call | ast.Subscript) and ast.unparse(
            node.func if isinstance(node, ast.Call) else node.value
        ).endswith("Verdict")
        if (named or called) and id(node) not in compared:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    "source", ["x = Verdict.CERTIFIED", "f(v.Verdict.CERTIFIED)", "Verdict('certified')", "Verdict['CERTIFIED']"]
)
def test_other_ways_to_a_verdict_are_found(source: str) -> None:
    assert made_certified(source) == [1]


def test_no_other_function_gives_the_verdict_and_nothing_rests_on_an_assert() -> None:
    for path in SRC.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if "Verdict" in source and path != SRC / "questions" / "verdict.py":
            assert made_certified(source) == [], path
        if "assert" in source:
            asserts = [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
            assert asserts == [], path
