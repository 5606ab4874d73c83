"""The order of layers in a file that keeps none: by the numbers in their names, or by their sizes, if they are sure.

A safetensors file has its tensors sorted by name, so that ``10.weight`` comes before ``2.weight``. Two layers of one
size in the wrong order would be another network, and nobody would notice.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from bnndp.errors import ModelFileError

_NUMBER = re.compile(r"\d+")
_ADVICE = (
    'they would fit as (inputs, outputs), the other way round: say layout = "in_out" of the weights by --table '
    "(docs/importers/torch.md)"
)


def in_order(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with their layers in the only order that can be; a :class:`ModelFileError` if there are several."""
    layers = list(dict.fromkeys(map(_layer, tensors)))
    return {name: tensors[name] for layer in _sorted(layers, tensors) for name in tensors if _layer(name) == layer}


def expect_ascending(tensors: Mapping[str, Tensor]) -> None:
    """Refuse layers whose names differ in numbers alone and do not ascend: some program has sorted the names as texts.

    ``safetensors.torch.load_file`` gives such a mapping.
    """
    layers = list(dict.fromkeys(map(_layer, tensors)))
    if _by_number(layers) and _numbers(layers) != sorted(_numbers(layers)):
        names = ", ".join(f"{layer!s:.20}" for layer in layers[:6])
        raise ModelFileError(f"its layers come in the order {names}, which is not that of their numbers; give --arch")


def _by_number(layers: Sequence[str]) -> bool:
    return len({_NUMBER.sub("#", layer) for layer in layers}) == 1


def _numbers(layers: Sequence[str]) -> list[list[int]]:
    return [[int(number) for number in _NUMBER.findall(layer)] for layer in layers]


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _sorted(layers: Sequence[str], tensors: Mapping[str, Tensor]) -> list[str]:
    if _by_number(layers):
        return sorted(layers, key=lambda layer: _numbers([layer]))
    shapes = {layer: tensors.get(f"{layer}.weight_mean") for layer in layers}
    if any(weight is None or weight.ndim != 2 for weight in shapes.values()):
        return list(layers)  # no chain of dense layers: what reads it says so
    found = _chains(
        {layer: (weight.shape[1], weight.shape[0]) for layer, weight in shapes.items() if weight is not None}
    )
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{layer!r:.40}" for layer in list(layers)[:6])
    fault = "in more than one order" if found else "in no order"
    raise ModelFileError(f"the file keeps no order of its layers, {names}, and their sizes fit {fault}; give --arch")


def _chains(sizes: Mapping[str, tuple[int, int]]) -> list[list[str]]:
    """At most two of the orders in which each layer takes the outputs of the one before; (inputs, outputs) of each."""
    found: list[list[str]] = []
    open_ends: list[list[str]] = [[layer] for layer in sizes]
    tries = 0
    while open_ends and len(found) < 2:
        chain = open_ends.pop()
        tries += 1
        if tries > 10_000:
            raise ModelFileError("the file keeps no order of its many layers; give --arch")
        if len(chain) == len(sizes):
            found.append(chain)
            continue
        width = sizes[chain[-1]][1]
        open_ends += [[*chain, layer] for layer in sizes if layer not in chain and sizes[layer][0] == width]
    return found


def transpose_advice(tensors: Mapping[str, Tensor]) -> str:
    """What to do if dense layers, in this order, fit one another and their biases only when all weights are turned.

    ``tensors`` have our names. The answer is empty if the weights fit as they are, or in neither way. Where a file has
    no order the sizes were asked for one, and those of turned weights fit the other way round.

    >>> import torch
    >>> turned = {"0.weight_mean": torch.ones(2, 8), "0.bias_mean": torch.ones(8), "2.weight_mean": torch.ones(8, 1)}
    >>> transpose_advice(turned)[:35]
    'they would fit as (inputs, outputs)'
    >>> transpose_advice({"0.weight_mean": torch.ones(8, 2), "2.weight_mean": torch.ones(1, 8)})
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
    """Whether each layer (outputs, inputs) takes the outputs of the one before, and has a bias of its outputs."""
    chained = all(before[0] == after[1] for before, after in itertools.pairwise(weights.values()))
    return chained and all(biases[name] in (None, shape[0]) for name, shape in weights.items())
