"""Classifiers, boxes and draws for the tails of margins."""

from __future__ import annotations

from itertools import pairwise

import torch
from support.dice import Dice
from torch import Tensor

from bnndp.engine.tails.tails import margin_tails
from bnndp.engine.tails.two_layers import TRIALS
from bnndp.geometry.box import Box
from bnndp.layers import Linear

Layers = tuple[Linear, ...]


def make(sizes: tuple[int, ...], seed: int, std: float = 0.3, margin: float = 0.0) -> Layers:
    """The layers of a random classifier; ``margin`` is added to the first logit."""
    dice, layers = Dice(seed), []
    for n_in, n_out in pairwise(sizes):
        spread = std * dice.uniform(shape=(n_out, n_in)) / n_in**0.5
        weight = dice.normal(n_out, n_in) * (2 / n_in) ** 0.5
        layers.append(Linear(weight, 2 * spread, 0.4 * dice.normal(n_out), 0.2 * spread[:, 0]))
    last = layers[-1]
    lead = margin * torch.eye(last.n_out, dtype=torch.float64)[0]
    layers[-1] = Linear(last.weight_mean, last.weight_std, last.bias_mean + lead, last.bias_std)
    return tuple(layers)


def regions(n: int, radius: float, seed: int, count: int = 3) -> Box:
    return Box.ball(Dice(1000 + seed).normal(count, n), radius)


def inside(box: Box, count: int, seed: int) -> Tensor:  # (count, batch, n)
    """Points of the boxes, every second one a vertex."""
    share = Dice(2000 + seed).uniform(shape=(count, *box.lower.shape))
    share[::2] = share[::2].round()
    return box.lower + share * (box.upper - box.lower)


def gaussian(layer: Linear, z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the pre-activations given z (..., n)."""
    s = z.square() @ layer.weight_std.square().mT + layer.bias_std.square()
    return z @ layer.weight_mean.mT + layer.bias_mean, s.sqrt()


def draw(layers: Layers, x: Tensor, count: int, seed: int) -> Tensor:  # (count, classes) logits at x (n,)
    dice, z = Dice(seed), x.expand(count, -1)
    for k, layer in enumerate(layers):
        m, r = gaussian(layer, z.clamp_min(0) if k else z)
        z = m + r * dice.normal(*m.shape)
    return z


def tails(
    layers: Layers, box: Box, label: Tensor, wanted: Tensor | None = None, trials: int = TRIALS
) -> Tensor:  # (batch, classes)
    """The bounds of all margins, or of those ``wanted``; their means only serve to choose lambda."""
    mean = torch.full((box.batch, layers[-1].n_out), 6.0, dtype=torch.float64)
    every = torch.ones_like(mean, dtype=torch.bool)
    return margin_tails(layers, box, label, mean, every if wanted is None else wanted, trials)


def lie_above_draws(
    found: Tensor, layers: Layers, x: Tensor, label: Tensor, *, count: int = 10_000, seed: int = 0
) -> bool:
    """Whether bounds (batch, classes) are compatible with draws at x (batch, n), up to five standard errors."""
    for b in range(len(x)):
        logits = draw(layers, x[b], count, seed)
        value = torch.sigmoid(logits - logits[:, label[b], None])
        low = (value.mean(0) - 5 * value.std(0) / count**0.5).scatter(0, label[b], 0.0)
        if not bool((found[b] >= low).all()):
            return False
    return True
