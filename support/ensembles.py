"""Ensembles whose members are known one by one: dense networks without variance, and their outputs by plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from bnndp.activations import Relu
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, Ensemble, Layer
from support.layer_draws import draw_layers
from support.records import normal, uniform


def certain_member(
    sizes: Sequence[int], seed: int, *, task: str = "regression", activation: Layer | None = None, shift: bool = False
) -> BayesianNetwork:
    """A dense network without variance."""
    layers: list[Layer] = []
    for index, (n, m) in enumerate(pairwise(sizes)):
        layers += [activation or Relu()] if layers else []
        weight, bias = normal(m, n, seed=97 * seed + index), normal(m, seed=97 * seed + index + 50)
        layers.append(Linear.fixed(weight * (2 / n) ** 0.5, 0.3 * bias))
    return BayesianNetwork(tuple(layers), task, normal(sizes[0], seed=seed) if shift else None)


def certain_ensemble(
    count: int,
    sizes: Sequence[int],
    *,
    task: str = "regression",
    activation: Layer | None = None,
    shift: bool = False,
    zeros: bool = False,
) -> Ensemble:
    """So many of them with unequal weights, every third of them zero if there are to be ``zeros``."""
    members = (certain_member(sizes, seed, task=task, activation=activation, shift=shift) for seed in range(count))
    weights = uniform(count, seed=count)
    if zeros:
        weights[1::3] = 0.0
    return Ensemble(tuple(members), weights / weights.sum())


def outputs(network: BayesianNetwork, x: Tensor, draws: int = 1, seed: int = 0) -> Tensor:
    """Outputs (draws, ..., n_out) at x (..., n); the one there is without variance."""
    shifted = x if network.shift is None else x - network.shift
    found = draw_layers(network, shifted.reshape(-1, x.shape[-1]), draws, torch.Generator().manual_seed(seed))[-1]
    return found.unflatten(1, x.shape[:-1])


def average(ensemble: Ensemble, values: Sequence[Tensor]) -> Tensor:
    """The mean over the members of one value for each."""
    return torch.einsum("k,k...->...", ensemble.probabilities, torch.stack(list(values)))


def mean_output(ensemble: Ensemble, x: Tensor) -> Tensor:
    """The mean output (..., n_out) at x (..., n) of members without variance; of a classifier its mean softmax."""
    softmax = ensemble.task == "classification"
    values = (outputs(member, x)[0] for member in ensemble.members)
    return average(ensemble, [value.softmax(-1) if softmax else value for value in values])


def points_of(box: Box, count: int, seed: int = 1) -> Tensor:
    """Vertices and inner points of each region: (count, batch, n)."""
    share = uniform(count, box.batch, box.n, seed=seed)
    share[::2] = share[::2].round()
    return box.project(box.lower + share * (box.upper - box.lower))
