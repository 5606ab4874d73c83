"""Means of logistic functions of wide Gaussians against Arb's integrals, and the constants of the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from flint import acb, arb, ctx
from support.activation_truths import TRUTHS
from torch import Tensor

from bnndp.maths import logistic_normal as subject
from bnndp.maths.rounding import ELEMENTARY

POINTS = [(0.0, 2.0), (0.7, 2.001), (-3.0, 2.5), (40.0, 3.0), (-40.0, 3.0), (5.0, 8.0), (-100.0, 50.0), (1e3, 1e3),
          (0.3, 1e3)]  # fmt: skip


@pytest.fixture(autouse=True)
def _digits() -> Iterator[None]:
    with ctx.workprec(120):
        yield


def sigmoid(m: float, r: float) -> arb:
    return TRUTHS["sigmoid"].mean(m, r)


PAIRS = [
    (subject.wide_sigmoid, sigmoid, False),
    (subject.wide_softplus, TRUTHS["softplus"].mean, True),
    (subject.wide_density, lambda m, r: arb(r) * TRUTHS["sigmoid"].derivative(m, r, 1), False),
    (subject.wide_silu_slope, lambda m, r: TRUTHS["silu"].derivative(m, r, 1), False),
]


@pytest.mark.parametrize(("function", "truth", "grows"), PAIRS, ids=["sigmoid", "softplus", "density", "silu slope"])
def test_agrees_with_integrals(
    function: Callable[[Tensor, Tensor], Tensor], truth: Callable[[float, float], arb], grows: bool
) -> None:
    m, r = torch.tensor(POINTS, dtype=torch.float64).T
    for a, b, value in zip(m.tolist(), r.tolist(), function(m, r).tolist(), strict=True):
        scale = 1 + abs(a) + b if grows else 1
        assert abs(arb(value) - truth(a, b)) <= ELEMENTARY / 8 * scale, (a, b)


def test_a_coarser_rule_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above has teeth: with twice the step the error is above what is granted."""
    monkeypatch.setattr(subject, "_STEP", 15 / 16)
    m, r = torch.tensor([[0.7, 2.001]], dtype=torch.float64).T
    assert abs(arb(subject.wide_sigmoid(m, r).item()) - sigmoid(0.7, 2.001)) > ELEMENTARY / 8


def test_constants_of_the_strip() -> None:
    y, r = arb("2.8"), arb(subject.WIDE)
    exponent = 2 * arb.pi() * y / arb(subject._STEP)
    rule = 2 / (exponent.exp() - 1)
    assert rule < 1.1e-16
    assert y / y.sin() < 8.37
    peak = 1 / (2 * arb.pi()).sqrt()
    height = y / r
    assert 1 + height * peak * (height * height / 2).exp() < 2.5
    assert peak * (height * height / 2).exp() < 1.07
    cut = arb(subject._STEP) * subject._COUNT
    assert 2 / (1 + cut.exp()) < 2e-16
    # the sigmoid: rule, cut and 170 units of rounding
    assert rule * arb("8.37") * arb("2.5") + arb(2e-16) + 170 * arb(2) ** -53 < ELEMENTARY
    # int |t| / (2 (cosh t + cos y)) dt, what |t| adds to M for the softplus
    inner = 2 * acb.integral(lambda t, _: t / (2 * (t.cosh() + y.cos())), 0, 40).real
    assert inner < 8.37 * 2
    # |g| <= |m| + |t| + 0.4 r + 2.8 * 2.5: M <= 8.37 (|m| + 0.4 r + 7 + 2) <= 8.37 * 9 (1 + |m| + r)
    assert rule * arb("8.37") * 9 + 2e-16 * 40 + 170 * arb(2) ** -53 < ELEMENTARY
