"""Weights that lie as (inputs, outputs) and were read as (outputs, inputs): noticed when they do not fit otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from torch import Tensor

__all__ = ["turned_advice"]

_ADVICE = (
    'they would fit as (inputs, outputs), the other way round: say layout = "in_out" of the weights by --table '
    "(docs/importers/torch.md)"
)


def turned_advice(tensors: Mapping[str, Tensor]) -> str:
    """What to do if dense layers, in this order, fit one another and their biases only when all weights are turned.

    ``tensors`` have our names. The answer is empty if the weights fit as they are, or in neither way. Where a file has
    no order the sizes were asked for one, and those of turned weights fit the other way round.

    >>> import torch
    >>> turned = {"0.weight_mean": torch.ones(2, 8), "0.bias_mean": torch.ones(8), "2.weight_mean": torch.ones(8, 1)}
    >>> turned_advice(turned)[:35]
    'they would fit as (inputs, outputs)'
    >>> turned_advice({"0.weight_mean": torch.ones(8, 2), "2.weight_mean": torch.ones(1, 8)})
    ''
    """
    names = [name.rpartition(".")[0] for name in tensors if name.endswith(".weight_mean")]
    weights = {name: tuple(tensors[f"{name}.weight_mean"].shape) for name in names}
    if any(len(shape) != 2 for shape in weights.values()):
        return ""
    biases = {name: _bias(name, tensors) for name in names}
    turned = {name: shape[::-1] for name, shape in weights.items()}
    back = dict(reversed(turned.items()))
    return _ADVICE if any(_fits(each, biases) for each in (turned, back)) and not _fits(weights, biases) else ""


def _bias(name: str, tensors: Mapping[str, Tensor]) -> int | None:
    """The length of a bias; None where there is none, or one of zeros, which stands for none."""
    parts = [tensors.get(f"{name}.{part}") for part in ("bias_mean", "bias_std")]
    given = [part for part in parts if part is not None and bool((part != 0).any())]
    return given[0].numel() if given else None


def _fits(weights: Mapping[str, tuple[int, ...]], biases: Mapping[str, int | None]) -> bool:
    """Whether each layer (outputs, inputs) takes what the one before gives, and has a bias of its outputs."""
    chained = all(before[0] == after[1] for before, after in itertools.pairwise(weights.values()))
    return chained and all(biases[name] in (None, shape[0]) for name, shape in weights.items())
