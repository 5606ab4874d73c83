"""Networks and boxes on which every quantity of the moment method is compared with draws."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from support.dice import Dice
from torch import Tensor

from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork


@dataclass(frozen=True)
class Case:
    """One network and one box, described; see :func:`network` and :func:`region`."""

    name: str
    sizes: tuple[int, ...] = (2, 10, 8, 6, 2)
    std: tuple[float, float] = (0.3, 0.3)  # deviations are log-uniform between these
    radius: float = 0.05
    centre: float = 0.4  # inputs of the centre are this, with small changes
    shift: tuple[float, ...] = ()  # added to the biases of the hidden layers
    dead: float = 0.0  # this share of the neurons of every hidden layer gets a bias of -12
    zeros: float = 0.0  # this share of the deviations is zero
    silent: tuple[int, ...] = ()  # layers without any deviation
    balanced: bool = False  # the biases of the second layer put its means near zero
    mean: float = 1.0  # factor of the mean weights
    norm: float = float("inf")
    seed: int = 0

    def __str__(self) -> str:
        return self.name


CASES = (
    Case("point", radius=0.0),
    Case("narrow", radius=1e-3, seed=1),
    Case("wide box", sizes=(2, 8, 8, 6, 1), radius=1.0, seed=2),
    Case("tiny deviations", std=(1e-6, 1e-6), radius=1e-4, seed=3),
    Case("tiny deviations, point", std=(1e-6, 1e-6), radius=0.0, seed=4),
    Case("small deviations", std=(1e-2, 1e-2), radius=0.02, seed=5),
    Case("large deviations", std=(1.0, 1.0), radius=0.1, seed=6),
    Case("huge deviations", std=(3.0, 3.0), radius=0.0, seed=7),
    Case("all scales", std=(1e-6, 3.0), radius=1e-2, seed=8),
    Case("dead neurons", dead=0.5, std=(1e-2, 1.0), seed=9),
    Case("dead second layer", shift=(0.0, -6.0), seed=10),
    Case("nearly dead second layer", shift=(0.0, -2.0), radius=0.0, std=(0.2, 0.2), seed=22),
    Case("active", sizes=(1, 60, 6, 5, 1), shift=(6.0,), balanced=True, radius=0.0, std=(0.4, 0.4), seed=11),
    Case("active in a box", sizes=(1, 60, 6, 5, 1), shift=(6.0,), balanced=True, radius=1e-3, seed=12),
    Case("some zeros", zeros=0.5, std=(1e-2, 1.0), seed=13),
    Case("silent first layer", silent=(0,), radius=0.01, seed=14),
    Case("silent second layer", silent=(1,), radius=0.01, seed=15),
    Case("silent third layer", silent=(2,), radius=0.0, seed=16),
    Case("negative inputs", centre=-3.0, std=(0.1, 0.5), seed=17),
    Case("about zero", centre=0.0, radius=0.3, shift=(1.0,), seed=18),
    Case("deep", sizes=(2, 6, 6, 5, 5, 1), std=(0.1, 0.3), radius=0.0, seed=19),
    Case("single neurons", sizes=(1, 1, 1, 1, 1), radius=0.05, shift=(1.0, 1.0, 1.0), seed=20),
    Case("one source", sizes=(1, 1, 8, 6, 1), radius=0.0, shift=(2.0,), seed=21),
    Case("many inputs", sizes=(20, 8, 8, 5, 1), radius=0.05, seed=23),
    Case("no mean weights", mean=0.0, radius=0.0, std=(0.5, 0.9), seed=24),
    Case("spread only", sizes=(1, 1, 6, 5, 1), mean=0.0, shift=(3.0,), radius=0.0, std=(1.0, 1.0), seed=26),
    Case("l2 ball", sizes=(6, 8, 8, 5, 1), radius=0.3, norm=2.0, seed=25),
    Case("stable neurons", sizes=(2, 5, 4, 4, 1), shift=(3.0, 6.0, 4.0), std=(0.05, 0.3), seed=53),
    Case("dead third layer", sizes=(2, 5, 6, 5, 1), shift=(1.0, 2.0, -9.0), std=(0.1, 0.2), seed=54),
    Case("rare sources", sizes=(1, 6, 4, 3, 1), shift=(-2.5,), std=(0.5, 1.0), radius=0.02, seed=58),
)
# Kinds of neurons, sizes of boxes, depth and norm: what of all that runs every time.
_USUAL = ("wide box", "all scales", "dead neurons", "active in a box", "deep", "l2 ball")


def cases(*usual: str, of: tuple[Case, ...] = CASES) -> list[object]:
    """Parameters of a test: all cases, those that are not ``usual`` marked as slow."""
    named = usual or _USUAL
    return [pytest.param(case, id=case.name, marks=() if case.name in named else pytest.mark.slow) for case in of]


def network(case: Case) -> BayesianNetwork:
    dice, (low, high) = Dice(case.seed), case.std
    layers = []
    for k, (n_in, n_out) in enumerate(pairwise(case.sizes)):
        weight = case.mean * dice.normal(n_out, n_in) * (2 / n_in) ** 0.5
        bias = 0.3 * dice.normal(n_out) + (case.shift[k] if k < len(case.shift) else 0.0)
        if k < len(case.sizes) - 2:
            bias = torch.where(dice.uniform(shape=(n_out,)) < case.dead, -12.0, bias)
        factor = 0.0 if k in case.silent else 1.0
        std = [
            factor * low * (high / low) ** dice.uniform(shape=shape) * (dice.uniform(shape=shape) >= case.zeros)
            for shape in ((n_out, n_in), (n_out,))
        ]
        layers.append(Linear(weight, std[0] / n_in**0.5, bias, std[1]))
    if case.balanced:
        x = region(case).centre
        below = (x @ layers[0].weight_mean.T + layers[0].bias_mean).clamp_min(0)
        level = below @ layers[1].weight_mean.T
        layers[1] = replace(layers[1], bias_mean=0.1 * dice.normal(case.sizes[2]) - level[0])
    return BayesianNetwork.from_linears(layers)


def gaussian_network(sizes: tuple[int, ...], seed: int, std: float, shift: float = 0.0) -> BayesianNetwork:
    """Standard normal means, deviations of all sizes up to a few ``std``; ``shift`` is added to all biases."""
    dice, layers = Dice(seed), []
    for n_in, n_out in pairwise(sizes):
        weight, spread, bias = dice.normal(n_out, n_in), dice.normal(n_out, n_in).abs(), dice.normal(n_out)
        layers.append(Linear(weight, std * spread, bias + shift, std * dice.normal(n_out).abs()))
    return BayesianNetwork.from_linears(layers)


def region(case: Case) -> Box:
    centre = case.centre + 0.1 * Dice(1000 + case.seed).normal(case.sizes[0])
    return Box.ball(centre, case.radius, norm=case.norm)


def points(case: Case, count: int = 3) -> Tensor:
    """Centre, one vertex (pulled into a ball) and random points: (count, n); the only point of a box without width."""
    box = region(case)
    if case.radius == 0:
        return box.centre
    share = Dice(2000 + case.seed).uniform(shape=(count, box.n))
    share[0], share[1] = 0.5, share[1].round()
    return box.project(((1 - share) * box.lower + share * box.upper)[:, None])[:, 0]
