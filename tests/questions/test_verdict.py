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


@pytest.mark.parametrize(
    "proved", [False, None, 1, "yes", float("nan"), torch.tensor(True), np.True_, Verdict.CERTIFIED]
)
def test_only_true_itself_is_a_proof(proved: Any) -> None:
    assert judge(proved=proved, broken=False) is Verdict.UNDECIDED


def test_comparisons_with_nan_are_no_proof() -> None:
    nan = float("nan")
    assert judge(proved=nan <= 1, broken=nan > 1) is Verdict.UNDECIDED
    assert judge(proved=bool(torch.tensor(nan) > 0), broken=False) is Verdict.UNDECIDED


def test_a_verdict_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="no truth value"):
        bool(Verdict.CERTIFIED)


def made_certified(source: str) -> list[int]:
    """Lines that use ``Verdict.CERTIFIED``, or make a verdict by its value, otherwise than to compare with it."""
    found = []
    tree = ast.parse(source)
    compared = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Compare) for part in ast.walk(node)}
    for node in ast.walk(tree):
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


def test_no_other_function_gives_the_verdict() -> None:
    for path in SRC.rglob("*.py"):
        if path != SRC / "questions" / "verdict.py":
            assert made_certified(path.read_text(encoding="utf-8")) == [], path


def test_no_assert_in_the_package() -> None:
    for path in SRC.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)], path
