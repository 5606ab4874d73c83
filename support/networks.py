"""Random dense networks with ReLUs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from support.dice import Dice

__all__ = ["layer_of", "make_network"]


def layer_of(weight: Any, bias: Any, std: float = 0.0) -> Linear:
    """A layer with these means, as tensors or lists, all of whose weights and biases have the deviation ``std``."""
    means = [torch.as_tensor(mean, dtype=torch.float64) for mean in (weight, bias)]
    (weight_std, bias_std) = (torch.full_like(mean, std) for mean in means)
    return Linear(means[0], weight_std, means[1], bias_std)


def make_network(
    sizes: tuple[int, ...], seed: int = 0, *, std: float = 0.2, zeros: float = 0.0, task: str = "regression"
) -> BayesianNetwork:
    """A network of these sizes: He-scaled means, deviations up to about ``std``, a share ``zeros`` of them zero."""
    dice = Dice(seed)

    def deviation(*shape: int) -> Tensor:
        value = std * dice.uniform(shape=shape)
        return value * (torch.rand(shape, generator=dice.generator) >= zeros)

    def linear(n_in: int, n_out: int) -> Linear:
        weight, spread = dice.normal(n_out, n_in) * (2 / n_in) ** 0.5, deviation(n_out, n_in) / n_in**0.5
        return Linear(weight, spread, dice.normal(n_out), deviation(n_out))

    return BayesianNetwork.from_linears([linear(n_in, n_out) for n_in, n_out in pairwise(sizes)], task)
