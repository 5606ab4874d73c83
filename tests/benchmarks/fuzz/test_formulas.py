"""The campaign of formulas holds on the code as it is, and must notice a wrong formula: some are put in its place."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from benchmarks.fuzz.formulas import __main__ as campaign
from benchmarks.fuzz.formulas import activations
from benchmarks.fuzz.formulas.draws import Draw
from benchmarks.fuzz.formulas.judge import Judge
from flint import arb, ctx
from support.activation_truths import TRUTHS
from torch import Tensor

from bnndp.activations import Elu, Gelu, Sigmoid
from bnndp.activations.activation import Shape
from bnndp.maths import exponential, hinge, logistic, normal, normal_difference, rectified, rounding, softmax

POINTS = 50
IDS = [f"{formula.name} {getattr(formula.check, '__name__', '')}" for formula in campaign.FORMULAS]


@pytest.mark.parametrize("formula", campaign.FORMULAS, ids=IDS)
def test_every_formula_holds(formula: campaign.Formula) -> None:
    tallies = campaign.examine(formula, POINTS, seed=5)
    assert tallies
    assert all(tally.claims > 0 for tally in tallies.values())
    assert [tally.examples for tally in tallies.values() if tally.failures] == []


def times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda value: value * factor


WRONG: list[tuple[Any, str, Callable[[Any], Any], str]] = [
    (rectified, "expected_relu", times(1 + 1e-12), "rectified"),
    (normal, "cdf", times(1 - 1e-14), "normal"),
    (normal, "rectangle_quantile", lambda c: c * (1 - 1e-11), "normal"),
    (normal_difference, "cdf_difference", times(1 + 1e-12), "normal"),
    (hinge, "clipped_raw", lambda values: (values[0], values[1], -values[2], values[3]), "hinge"),
    (rounding, "down", times(1 + 1e-13), "rounding"),
    (logistic, "logistic_tail", times(0.9), "logistic"),
    (softmax, "union_bound", lambda low: low + 1e-3 * low.abs(), "softmax"),
    (exponential, "log_moment", lambda value: value - 1e-11 * (1 + value.abs()), "exponential"),
    (exponential, "lipschitz", times(0.9), "exponential"),
    (Elu, "mean", times(1 + 1e-9), "elu"),
    (Elu, "slope", lambda slope: slope + 1e-8, "elu"),
    (Gelu, "error", times(0.0), "gelu"),
    (Shape, "curvature", lambda sides: (0.9 * sides[0], 0.9 * sides[1]), "relu"),
]


@pytest.mark.parametrize(("owner", "name", "change", "group"), WRONG, ids=[f"{case[1]} {case[3]}" for case in WRONG])
def test_a_wrong_formula_is_noticed(
    monkeypatch: pytest.MonkeyPatch, owner: ModuleType | type, name: str, change: Callable[[Any], Any], group: str
) -> None:
    right = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: change(right(*args, **kwargs)))
    found = [campaign.examine(formula, POINTS, seed=5) for formula in campaign.FORMULAS if group in formula.name]
    assert any(tally.failures and tally.examples for tallies in found for tally in tallies.values())


def test_a_failure_is_the_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["campaign", "--points", "50", "--only", "chernoff", "rounding"])
    assert campaign.main() == 0
    right = rounding.up
    monkeypatch.setattr(rounding, "up", lambda x, n: right(x, n) * torch.nan)
    assert campaign.main() == 1
    assert "WRONG" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["campaign", "--only", "no such formula"])
    assert campaign.main() == 1


def test_what_is_no_number_or_undecided_fails_and_what_is_infinite_says_nothing() -> None:
    judge, one = Judge(), arb(1)
    judge.above("f", (), math.nan, one)
    judge.near("f", (), math.nan, 1.0, one, one)
    judge.near("f", (), math.nan, math.inf, one, one)
    judge.near("f", (), 1.0, math.nan, one, one)
    judge.above("f", (), 1.0, arb(1, 1e-30))
    judge.below("f", (), 1.5, one)
    judge.above("f", (), -math.inf, one)
    assert judge.tallies["f"].failures == judge.tallies["f"].claims == 7
    judge.above("g", (), math.inf, one, one)
    judge.below("g", (), -math.inf, one)
    judge.near("g", (), 3.0, math.inf, one, one)
    assert (judge.tallies["g"].failures, judge.tallies["g"].silent) == (0, 3)
    judge.near("h", (), 1.25, 0.5, one, arb(2))
    assert (judge.tallies["h"].used, judge.tallies["h"].loss) == (0.5, 0.375)


@pytest.mark.parametrize(("m", "r"), [(0.3, 2.0), (-7.0, 3.5), (40.0, 20.0)])
def test_both_kinds_of_integrals_agree(m: float, r: float) -> None:
    with ctx.workprec(150):
        for kind in activations.SMOOTH:
            assert kind.wide is not None
            assert abs(kind.wide(arb(m), arb(r)) - TRUTHS[kind.name].mean(m, r)) < 1e-18 * (1 + abs(m) + r)


def test_the_two_rules_of_an_activation_are_both_met() -> None:
    """A wrong rule for wide laws alone would be seen."""
    kind = activations.SMOOTH[0]
    judge = Judge()

    class Biased(Sigmoid):
        __slots__ = ()

        def mean(self, m: Tensor, r: Tensor) -> Tensor:
            return Sigmoid.mean(self, m, r) + torch.where(r > 2, 1e-12, 0.0)

    activations.Smooth("sigmoid", Biased(), kind.wide, bounded=True).means(judge, Draw(1), POINTS)
    tally = judge.tallies["mean"]
    assert 0 < tally.failures < tally.claims
