"""Rows of the last layer: their law and its rounding in ball arithmetic, and the mean from ranges alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from flint import arb
from support.dice import Dice
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.dense.output import interval_mean, lowered_bias, output_rows
from bnndp.engine.margins import margin_rows
from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

NetworkFactory = Callable[..., BayesianNetwork]


def dot(row: Tensor, column: Tensor, power: int = 1) -> arb:
    pairs = zip(row.tolist(), column.tolist(), strict=True)
    return sum((arb(u) ** power * arb(w) ** power for u, w in pairs), arb(0))


def all_rows(outputs: int) -> Tensor:
    """Single outputs, margins, sums, any coefficients, nothing, and terms that cancel: (rows, outputs)."""
    unit, dice = torch.eye(outputs, dtype=torch.float64), Dice(outputs)
    margins = margin_rows(torch.tensor([[1]]), outputs)[0]
    wide = dice.normal(4, outputs) * 10 ** dice.uniform(-8, 8, (4, outputs))
    return torch.cat([unit, -unit, margins, torch.ones(1, outputs), wide, 0 * unit[:1]])


@pytest.mark.parametrize("scale", [1e-170, 1.0, 1e100])
@pytest.mark.parametrize("outputs", slow_but([2, 3, 9], 3))
def test_the_law_of_the_rows(random_network: NetworkFactory, outputs: int, scale: float) -> None:
    """Weights and biases are within their errors, variances not below the truth; single outputs are exact."""
    plain = random_network((7, outputs), seed=outputs, std=0.5).linears[0]
    layer = Linear(*(scale * part for part in (plain.weight_mean, plain.weight_std, plain.bias_mean, plain.bias_std)))
    rows = all_rows(outputs)
    found = output_rows(layer, rows)
    for k, row in enumerate(rows):
        laws = [(found.weight[k], found.weight_error[k], found.variance[k], layer.weight_mean, layer.weight_std)]
        laws.append((found.bias[k : k + 1], found.bias_error[k : k + 1], found.bias_variance[k : k + 1],
                     layer.bias_mean[:, None], layer.bias_std[:, None]))  # fmt: skip
        for value, error, variance, mean, std in laws:
            for i in range(len(value)):
                assert abs(arb(value[i].item()) - dot(row, mean[:, i])) <= arb(error[i].item())
                # row_variance rounds up; the variance of the bias covers squares of weights that underflow
                room = arb(variance[i].item()) * (1 + arb("1e-14")) + arb(2) ** -1073
                assert room >= dot(row, std[:, i], 2)
    assert not found.weight_error[: 2 * outputs].any()
    assert torch.equal(found.weight[:outputs], layer.weight_mean)
    nothing = 2 * outputs + 1  # the margin of class 1 against itself
    assert not any(part[nothing].any() for part in (found.weight, found.variance, found.bias, found.bias_variance))


@pytest.mark.parametrize("each", [False, True])
def test_the_mean_from_ranges_alone_is_rounded_down(random_network: NetworkFactory, each: bool) -> None:
    """At the worst values of E z, exactly: terms of both signs that nearly cancel."""
    layer = random_network((40, 3), seed=2, std=0.5).linears[0]
    rows = all_rows(3)
    low = 1e6 * Dice(1).uniform(shape=(2, 40))
    below = Interval(low, low * (1 + 2.0**-20))
    outputs = output_rows(layer, rows.expand(2, -1, -1) if each else rows)
    found, bias = interval_mean(outputs, below), lowered_bias(outputs, below).expand(2, -1)
    for b in range(2):
        for k, row in enumerate(rows):
            weights = [dot(row, layer.weight_mean[:, i]) for i in range(40)]
            worst = [below.lower[b, i] if w > 0 else below.upper[b, i] for i, w in enumerate(weights)]
            truth = sum((w * arb(z.item()) for w, z in zip(weights, worst, strict=True)), dot(row, layer.bias_mean))
            assert arb(found[b, k].item()) <= truth
            size = sum((abs(w) * arb(z.item()) for w, z in zip(weights, worst, strict=True)), arb(1))
            assert arb(found[b, k].item()) >= truth - arb("1e-7") * size
            rounded = outputs.weight[b, k] if each else outputs.weight[k]
            carried = sum((arb(w) * arb(z.item()) for w, z in zip(rounded.tolist(), worst, strict=True)), arb(0))
            assert carried + arb(bias[b, k].item()) <= truth
