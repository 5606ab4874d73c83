"""Random classifiers and boxes that try to break a bound of E softmax; every case is determined by (seed, index) alone.

Most families take the hidden layers of a family of the regression campaign and put logits on top, with mean weights
from flat to decided and standard deviations from none to far above one. The others aim at what only classifiers have:
no hidden layer at all, two classes by quadrature, tied classes, and uncertain posteriors with large margins, where
the exponential moments decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from support.dice import Dice
from torch import Tensor

from benchmarks.fuzz.regression_cases import FAMILIES as REGRESSORS
from benchmarks.fuzz.regression_cases import Case, boxes_of
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

__all__ = ["FAMILIES", "make_classifier"]

_MOST_HIDDEN = 3


def make_classifier(seed: int, index: int, boxes: int = 5) -> Case:
    """Case ``index`` of the campaign ``seed``: one classifier and ``boxes`` boxes."""
    dice = Dice(7 * seed * 1_000_003 + index + 1)
    family = FAMILIES[index % len(FAMILIES)]
    network = BayesianNetwork.from_linears(family.layers(dice), "classification")
    box = _boxes(dice, network.n_in, boxes, family)
    planted = torch.zeros(boxes, box.n, dtype=torch.float64)
    if family.name == "planted":
        planted[:, 0] = network.linears[0].bias_mean[1] / -network.linears[0].weight_mean[1, 0]
    return Case(index, family.name, network, box, box.project(planted[None]))


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of classifier and of boxes."""

    name: str
    layers: Callable[[Dice], list[Linear]]
    reach: tuple[float, float] | None = None  # half-widths of the boxes; None: those of the regression campaign


def _boxes(dice: Dice, n: int, count: int, family: Family) -> Box:
    """Boxes of the regression campaign, or l-infinity balls, half of the time within the domain [0, 1]."""
    if family.reach is None and dice.chance(0.5):
        return boxes_of(dice, n, count, far=family.name == "far")
    low, high = family.reach or (1e-6, 1.0)
    radius = dice.log_uniform(low, high, (count,)) * (dice.uniform(shape=(count,)) < 0.75)  # one in four is a point
    if dice.chance(0.5):
        return Box.ball(dice.uniform(0, 1, (count, n)), radius, domain=(0.0, 1.0))
    return Box.ball(dice.uniform(-1, 1, (count, n)), radius)


def _classes(dice: Dice) -> int:
    return dice.width(2, 10)


def _logits(dice: Dice, n_in: int, classes: int) -> Linear:
    """Logits with mean weights from flat to decided; one time in six without variance, in weights, biases or both."""
    gain, std = dice.log_uniform(0.1, 10), dice.log_uniform(1e-4, 3.0)
    silent = dice.integer(0, 8)
    return Linear(
        gain * dice.normal(classes, n_in) / math.sqrt(n_in),
        std * dice.uniform(0, 1, (classes, n_in)) * (0.0 if silent in (0, 1) else 1.0) / math.sqrt(n_in),
        dice.log_uniform(0.01, 3) * dice.normal(classes),
        std * dice.uniform(0, 1, (classes,)) * (0.0 if silent in (0, 2) else 1.0),
    )


def _on_top_of(name: str) -> Callable[[Dice], list[Linear]]:
    """Logits on the hidden layers of a family of the regression campaign."""

    def layers(dice: Dice) -> list[Linear]:
        hidden = REGRESSORS[name](dice).linears[:-1][:_MOST_HIDDEN]
        last = _logits(dice, hidden[-1].n_out, _classes(dice))
        if name == "deterministic":
            last = Linear(last.weight_mean, 0 * last.weight_std, last.bias_mean, 0 * last.bias_std)
        return [*hidden, last]

    return layers


def _linear(dice: Dice) -> list[Linear]:
    """No hidden layer: the logits are Gaussian."""
    return [_logits(dice, dice.width(1, 16), _classes(dice))]


def _layer(dice: Dice, n_in: int, n_out: int, std: Tensor) -> Linear:
    return Linear(
        dice.log_uniform(0.3, 2) * dice.normal(n_out, n_in) * math.sqrt(2 / n_in),
        std * dice.uniform(0, 1, (n_out, n_in)) / math.sqrt(n_in),
        0.3 * dice.normal(n_out),
        std * dice.uniform(0, 1, (n_out,)),
    )


def _two(dice: Dice) -> list[Linear]:
    """Two classes with none, one or two hidden neurons: quadrature is the judge."""
    hidden = [[], [1], [2], [1, 1]][dice.integer(0, 3)]
    sizes = [dice.width(1, 4), *hidden]
    std = dice.log_uniform(1e-2, 2.0)
    below = [_layer(dice, n_in, n_out, std) for n_in, n_out in pairwise(sizes)]
    return [*below, _logits(dice, sizes[-1], 2)]


def _tied(dice: Dice) -> list[Linear]:
    """Classes with the same mean weights and biases: margins whose mean is zero everywhere."""
    *hidden, last = _linear(dice) if dice.chance(0.2) else _on_top_of("plain")(dice)
    weight, bias = last.weight_mean.clone(), last.bias_mean.clone()
    some = dice.integer(1, last.n_out - 1)
    weight[some:], bias[some:] = weight[0], bias[0]
    return [*hidden, Linear(weight, last.weight_std, bias, last.bias_std)]


def _uncertain(depth: int) -> Callable[[Dice], list[Linear]]:
    """Logits with standard deviations of about one and more, and margins of several times that."""

    def layers(dice: Dice) -> list[Linear]:
        sizes = [dice.width(2, 32), *(dice.width(8, 64) for _ in range(depth))]
        std = dice.log_uniform(0.05, 0.6)
        hidden = [_layer(dice, n_in, n_out, std) for n_in, n_out in pairwise(sizes)]
        x = 0.5 * torch.ones(1, sizes[0], dtype=torch.float64)
        for layer in hidden:
            x = torch.relu(x @ layer.weight_mean.T + layer.bias_mean)
        classes, size = _classes(dice), float(x.square().sum().sqrt()) + 0.1
        weight = dice.normal(classes, sizes[-1])
        weight[0] += float(dice.uniform(0, 8)) * x[0] / size  # class 0 is ahead at the centre, by up to 16
        spread = dice.log_uniform(0.5, 3) / size
        last = Linear(
            float(dice.uniform(0.5, 2)) * weight / max(1.0, size / 4),
            spread * dice.uniform(0.3, 1, (classes, sizes[-1])),
            dice.normal(classes),
            dice.log_uniform(0.1, 1) * torch.ones(classes),
        )
        return [*hidden, last]

    return layers


def _families() -> tuple[Family, ...]:
    """Two of the uncertain families come after every four others: the methods that matter most there are the newest."""
    small = (1e-4, 0.1)
    uncertain = (Family("uncertain 1", _uncertain(1), small), Family("uncertain 2", _uncertain(2), small))
    others = [Family(name, _on_top_of(name)) for name in REGRESSORS]
    others += [Family("linear", _linear), Family("two", _two), Family("tied", _tied)]
    mixed: list[Family] = []
    for start in range(0, len(others), 4):
        mixed += [*others[start : start + 4], *uncertain]
    return tuple(mixed)


FAMILIES = _families()
