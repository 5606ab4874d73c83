"""Steps of the chain carry forms of either sign back to their inputs: never below the form itself, point by point."""

from __future__ import annotations

import math
import random

import pytest
from support.handmade import hexed

pytest.importorskip("flint", reason="the checker needs python-flint")
from flint import arb, arb_mat

from bnndp_checker import chain
from bnndp_checker.chain import Chain, Form, Fused, Joined, Maximum
from bnndp_checker.layers import Box, Gaussian
from bnndp_checker.read_model import Layer

WINDOWS = [[0, 1, 2], [2, 3], [4]]


def balls(values: list[float]) -> list[arb]:
    return [arb(value) for value in values]


def value(row: list[arb], constant: arb, z: list[float]) -> arb:
    return sum((a * x for a, x in zip(row, z, strict=True)), constant)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_forms_of_maxima(seed: int, flat: bool) -> None:
    """With a constant above, or with lines of any slopes; coefficients of both signs, windows that overlap."""
    dice = random.Random(seed)
    low = [dice.uniform(-1, 1) for _ in range(5)]
    high = [a + dice.uniform(0, 1) for a in low]
    box = Box(balls(low), balls(high))
    given = {
        "chosen": [dice.choice(window) for window in WINDOWS],
        "slopes": hexed([[] if flat else [dice.uniform(-0.2, 1.2) for _ in window] for window in WINDOWS]),
    }
    proved = Chain(box, arb(9))
    after = chain._maximum(WINDOWS, box, proved, given, "pool")
    (step,) = proved.steps
    assert isinstance(step, Maximum)
    rows = [[dice.uniform(-2, 2) for _ in WINDOWS] for _ in range(6)] + [[-1.0, 0.0, 0.0], [0.0, -3.0, -1.0]]
    form = Form([balls(row) for row in rows], balls([0.25] * len(rows)), [arb(0)] * len(rows))
    step.back(form)
    for _ in range(200):
        z = [dice.choice((a, b, dice.uniform(a, b))) for a, b in zip(low, high, strict=True)]
        top = [max(z[i] for i in window) for window in WINDOWS]
        assert all(a <= t <= b for a, t, b in zip(after.low, top, after.high, strict=True))
        for row, line, constant in zip(rows, form.rows, form.constants, strict=True):
            assert value(balls(row), arb(0.25), top) <= value(line, constant, z) + arb("1e-14")


@pytest.mark.parametrize("seed", range(3))
def test_a_residual_block_adds_its_input(seed: int) -> None:
    """z + W z + b for a block of one layer without variance: the form of the sum is exact."""
    dice = random.Random(seed)
    weight = [[dice.uniform(-1, 1) for _ in range(3)] for _ in range(3)]
    bias = [dice.uniform(-1, 1) for _ in range(3)]
    box = Box(balls([-1.0] * 3), balls([1.0] * 3))
    zero = balls([0.0] * 3)
    layer = Gaussian(arb_mat(3, 3, [arb(x) for row in weight for x in row]), balls(bias), arb_mat(3, 3), zero)
    through = [Fused(layer, box, None, None, (balls([1.0] * 3), zero), zero, zero)]
    step = Joined([through, []], None)
    row = [dice.uniform(-2, 2) for _ in range(3)]
    form = Form([balls(row)], [arb(0.5)], [arb(0)])
    step.back(form)
    for _ in range(20):
        z = [dice.uniform(-1, 1) for _ in range(3)]
        out = [
            x + sum(w * y for w, y in zip(line, z, strict=True)) + b for x, line, b in zip(z, weight, bias, strict=True)
        ]
        assert abs(value(balls(row), arb(0.5), out) - value(form.rows[0], form.constants[0], z)) < arb("1e-13")
    wide = [dice.uniform(-2, 2) for _ in range(6)]
    form = Form([balls(wide)], [arb(0.5)], [arb(0)])
    Joined([through, []], [3, 3]).back(form)
    z = [dice.uniform(-1, 1) for _ in range(3)]
    out = [sum(w * y for w, y in zip(line, z, strict=True)) + b for line, b in zip(weight, bias, strict=True)] + z
    assert abs(value(balls(wide), arb(0.5), out) - value(form.rows[0], form.constants[0], z)) < arb("1e-13")


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("exponent", [1.0, 4.0, 20.0])
def test_factors_of_gaussian_dropout_seldom_leave_their_box(exponent: float, rate: float, channels: bool) -> None:
    """A factor is N(1, rate / (1 - rate)), one for each value or channel: it leaves with at most e^-T, counted once."""
    low, high = [0.5, -2.0, -1.0, 0.0], [1.5, -0.5, 3.0, 0.0]
    box = Box(balls(low), balls(high))
    proved = Chain(box, arb(exponent))
    layer = Layer("dropout", {"rate": rate, "law": "gaussian", "channels": channels}, {})
    after = chain._dropout(layer, (2, 1, 2), box, proved)
    assert proved.failures == (2 if channels else 4)
    std = math.sqrt(rate / (1 - rate))
    for i in range(4):
        for z in (low[i], high[i]):
            ends = sorted((float(side) / z - 1) / std for side in (after.low[i], after.high[i])) if z else [-9.0, 9.0]
            leaves = 0.5 * math.erfc(-ends[0] / math.sqrt(2)) + 0.5 * math.erfc(ends[1] / math.sqrt(2))
            assert leaves <= math.exp(-exponent)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.5, 0.9])
def test_factors_of_bernoulli_dropout_stay_in_their_box(rate: float) -> None:
    low, high = [0.5, -2.0, -1.0], [1.5, -0.5, 3.0]
    box = Box(balls(low), balls(high))
    proved = Chain(box, arb(9))
    layer = Layer("dropout", {"rate": rate, "law": "bernoulli", "channels": False}, {})
    after = chain._dropout(layer, (3,), box, proved)
    assert proved.failures == 0
    for i in range(3):
        for z in (low[i], high[i]):
            for factor in (0.0, 1 / (1 - rate)):
                assert float(after.low[i]) - 1e-12 <= factor * z <= float(after.high[i]) + 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_deviations_on_boxes_around_zero(seed: int) -> None:
    """Squares of deviations at points of a box, also at zero where the box holds it: within the least and largest."""
    dice = random.Random(seed)
    low = [dice.uniform(-2, 0.5) for _ in range(3)]
    high = [a + dice.uniform(0, 2) for a in low]
    low[0], high[0] = -1.0, 1.5
    std, bias_std = [[dice.uniform(0, 1) for _ in range(3)] for _ in range(2)], [0.1, 0.0]
    squares = arb_mat(2, 3, [arb(x) ** 2 for row in std for x in row])
    layer = Gaussian(arb_mat(2, 3), balls([0.0, 0.0]), squares, [arb(x) ** 2 for x in bias_std])
    least, most = layer.variance_range(Box(balls(low), balls(high)))
    nearest = [min(max(0.0, a), b) for a, b in zip(low, high, strict=True)]
    farthest = [max((a, b), key=abs) for a, b in zip(low, high, strict=True)]
    inner = [[dice.uniform(a, b) for a, b in zip(low, high, strict=True)] for _ in range(50)]
    for z in [nearest, farthest, *inner]:
        for i in range(2):
            square = sum((s * x) ** 2 for s, x in zip(std[i], z, strict=True)) + bias_std[i] ** 2
            assert float(least[i]) - 1e-12 <= square <= float(most[i]) + 1e-12
    assert float(least[1]) == pytest.approx(sum((s * x) ** 2 for s, x in zip(std[1], nearest, strict=True)))
