"""Chains of steps as layers: scalings and shifts go into the layers beside them, and what is left becomes a layer.

What is folded is computed in float64; the resulting layers are the ones that are certified. A shift of the inputs stays
what it is, the ``shift`` of the network.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bnndp.errors import ModelFileError
from bnndp.importers.onnx.values import Branches, Elementwise, Permuted, Step
from bnndp.layers import WEIGHTED, Concatenate, Conv2d, Flatten, Linear, Residual
from bnndp.layers.record import Record
from bnndp.layers.units import in_outputs

__all__ = ["folded", "leading_shift"]

_WIDEST = 4096  # entries of a vector whose scaling may become a layer of its own


def leading_shift(steps: tuple[Step, ...]) -> tuple[Tensor | None, tuple[Step, ...]]:
    """What is subtracted from the inputs first (n_in,), and the other steps."""
    first = steps[0].does if steps else None
    if not isinstance(first, Elementwise) or first.random or not bool((first.factor != 0).all()):
        return None, steps
    second = steps[1].does if len(steps) > 1 else None
    if isinstance(second, Elementwise) and not second.random and bool((first.offset == 0).all()):
        first, steps = _one_after_other(first, second), steps[1:]  # x * a + b, as in (x / 255 - mean) / std
    if bool((first.offset == 0).all()) or not bool((first.factor != 0).all()):
        return None, (Step(first), *steps[1:])
    shift = torch.where(first.factor == 1, -first.offset, -first.offset / first.factor)
    nothing = torch.zeros_like(first.offset)
    return shift.flatten(), (Step(Elementwise(first.factor, nothing, nothing)), *steps[1:])


def folded(steps: tuple[Step, ...]) -> list[Record]:
    """The layers of a chain."""
    found: list[Record | Elementwise | Permuted] = []
    for step in steps:
        last = found[-1] if found else None
        does = _block(step.does) if isinstance(step.does, Branches) else step.does
        if isinstance(does, Elementwise):
            _put_elementwise(found, last, does)
        elif isinstance(does, Flatten) and isinstance(last, Elementwise) and not (last.random and last.by_channel):
            found[-1:] = [does, Elementwise(last.factor.flatten(), last.offset.flatten(), last.std.flatten())]
        elif isinstance(does, WEIGHTED) and isinstance(last, Elementwise | Permuted):
            found[-1:] = [*_into(last, does)]
        elif isinstance(last, Elementwise | Permuted):
            found[-1:] = [_layer(last), does]
        else:
            found.append(does)
    return [_layer(each) if isinstance(each, Elementwise | Permuted) else each for each in found]


def _put_elementwise(found: list[Record | Elementwise | Permuted], last: object, does: Elementwise) -> None:
    """A scaling after what was found: in the layer before it, where that is possible."""
    if bool((does.factor == 1).all() & (does.offset == 0).all()) and not does.random:
        return
    if isinstance(last, Elementwise):
        if last.random and does.random and last.by_channel != does.by_channel:
            found[-1:] = [_layer(last), does]
        else:
            found[-1] = _one_after_other(last, does)
    elif isinstance(last, Linear) or (isinstance(last, Conv2d) and _of_channels(does)):
        factor, offset, std = (
            (each if each.ndim == 1 else each[:, 0, 0]) for each in (does.factor, does.offset, does.std)
        )
        layer = in_outputs(last, offset, factor)
        found[-1] = replace(layer, bias_std=torch.hypot(layer.bias_std, std))  # type: ignore[attr-defined, type-var]
    elif isinstance(last, Permuted):
        found[-1:] = [_layer(last), does]
    else:
        found.append(does)


def _one_after_other(first: Elementwise, second: Elementwise) -> Elementwise:
    offset = first.offset * second.factor + second.offset
    std = torch.hypot(first.std * second.factor, second.std)
    by_channel = first.by_channel if first.random else second.by_channel
    return Elementwise(first.factor * second.factor, offset, std, by_channel)


def _of_channels(does: Elementwise) -> bool:
    """Whether all pixels of a channel are treated alike, with the same noise."""
    if does.random and not does.by_channel and does.std[0].numel() > 1:
        return False
    return all(bool((each == each[:, :1, :1]).all()) for each in (does.factor, does.offset, does.std))


def _into(last: Elementwise | Permuted, layer: Record) -> list[Record]:
    """A scaling or a permutation and the layer after it: as one layer where the law stays the same."""
    if isinstance(last, Permuted):
        if not isinstance(layer, Linear):
            return [_layer(last), layer]
        weight, std = (torch.empty_like(w).index_copy_(1, last.index, w) for w in (layer.weight_mean, layer.weight_std))
        return [replace(layer, weight_mean=weight, weight_std=std)]
    shifted = bool((last.offset != 0).any())
    sure = not last.random
    if isinstance(layer, Linear) and sure and not (shifted and bool((layer.weight_std > 0).any())):
        bias = layer.bias_mean + layer.weight_mean @ last.offset
        weight, std = layer.weight_mean * last.factor, layer.weight_std * last.factor.abs()
        return [replace(layer, weight_mean=weight, weight_std=std, bias_mean=bias)]
    if isinstance(layer, Conv2d) and sure and not shifted and _of_channels(last):
        factor = last.factor[:, :1, :1]
        weight, std = layer.weight_mean * factor, layer.weight_std * factor.abs()
        return [replace(layer, weight_mean=weight, weight_std=std)]
    return [_layer(last), layer]


def _layer(does: Elementwise | Permuted) -> Record:
    """A layer that does nothing else."""
    if isinstance(does, Permuted):
        return Linear.fixed(torch.eye(_few(len(does.index)), dtype=torch.float64)[does.index])
    if does.factor.ndim == 1:
        _few(len(does.factor))
        layer = Linear.fixed(torch.diag(does.factor), does.offset)
        return replace(layer, bias_std=does.std)
    if not _of_channels(does):
        raise ModelFileError(
            "constants that differ between the pixels of a channel are added to an image or multiplied with it behind "
            "the first layer, or have noise of their own; only one for each channel is supported there"
        )
    factor, offset, std = (each[:, 0, 0] for each in (does.factor, does.offset, does.std))
    kernel = torch.diag(factor)[:, :, None, None]
    return Conv2d(kernel, torch.zeros_like(kernel), offset, std)


def _few(entries: int) -> int:
    if entries > _WIDEST:
        raise ModelFileError(
            f"a vector of {entries} entries is scaled or reordered where no dense layer follows; up to {_WIDEST} are "
            "supported"
        )
    return entries


def _block(does: Branches) -> Record:
    """Branches as a layer."""
    chains = [tuple(folded(chain)) for chain in does.chains]
    if not does.added:
        return Concatenate(tuple(chains))
    first, second = chains if chains[0] else chains[::-1]
    if not first:
        raise ModelFileError("a value is added to itself; multiply it by 2 instead")
    return Residual(first, second)
