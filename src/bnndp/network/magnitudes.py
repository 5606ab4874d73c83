r"""The range of magnitudes that bounds are computed for: layers are scaled into it, and the rest is refused.

Every pass takes powers of what it is given, and float64 holds :math:`2^{-1074}` to :math:`2^{1024}`. Means are bounded
by sums of products, variances by second to fourth powers, remainders by powers up to the eighth. What underflows is
covered by absolute terms, ``SMALL`` = 1e-30 for a standard deviation with its powers, and ``TINY`` = 1e-290 for a mean.
They are sound if what is lost, at most :math:`2^{-1074}` a factor, does not meet numbers so large that the product
exceeds them, and negligible if hidden values are of a size around one. Hence

* **parameters** are at most ``MOST`` = :math:`2^{32}\approx4\cdot10^9` and **inputs** at most ``INPUTS`` =
  :math:`2^{48}\approx3\cdot10^{14}`. A square that vanishes takes less than :math:`2^{-1074}\,2^{96}n<10^{-294}n` from
  a variance of the first layer, where ``SMALL``\ :sup:`2` = 1e-60 is granted, and a coefficient that vanishes less than
  :math:`2^{-1074}\,2^{80}mn<10^{-299}mn` from a mean, for m neurons of n inputs: less than ``TINY``, for any layer of
  up to :math:`10^9` weights;
* **parameters of the last layer** with weights are at most ``OUTPUTS`` = :math:`2^{64}\approx10^{19}`: outputs have the
  units of the user, and their powers are taken up to the second only;
* **hidden values and their standard deviations** have no bound above ``LARGE`` = 1e18 (the passes see to that):
  coefficients that vanish lose less than :math:`2^{-1074}10^{18}n<10^{-305}n` of a mean, those of squares
  :math:`10^{-287}n`, fourth powers less than :math:`2^{-1074}10^{72}n<10^{-251}n` of a fourth moment, where
  ``SMALL``\ :sup:`4` = 1e-120 is granted;
* **rows of coefficients**, products of the weights of several layers, are at most ``STEEPEST`` = 1e90, by the product
  of the row sums: their squares lose less than :math:`2^{-1074}10^{2\cdot90+2\cdot18}n<10^{-107}n` of a variance, where
  ``SMALL``\ :sup:`2` = 1e-60 is granted.

Eighth powers are taken of numbers that are at least ``SMALL``, or clamped from below to ``TINY`` before they are used.

**Scaling.** Let :math:`\varphi(cz)=c\varphi(z)` for c > 0 for all that is between two layers with weights: ReLU, leaky
ReLU, identity, pooling, dropout, flattening, or nothing. Then the first of them may be divided by a power of two, with
its biases, and the weights of the second multiplied by it. The law of the network stays the same, and no number is
rounded unless it becomes subnormal, which is refused. A layer is scaled where its largest number is beyond
:math:`2^{\pm32}`, to a largest number from one half to one. Inputs, outputs, and what goes into any other activation or
into a block of branches have the units of the user; small ones are covered by ``SMALL``, large ones refused. A number
far below the largest of its layer is negligible beside it, and covered in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from bnndp.activations import Identity, LeakyRelu, Relu
from bnndp.errors import MagnitudeError
from bnndp.geometry.box import Box
from bnndp.layers import (
    WEIGHTED,
    AveragePool,
    Branched,
    CorrelatedLinear,
    Dropout,
    Flatten,
    MatrixNormalLinear,
    MaxPool,
)
from bnndp.network.network import Layer, is_activation

__all__ = ["INPUTS", "MOST", "OUTPUTS", "Placed", "expect_box", "scaled"]

MOST = 2.0**32
"""The largest number of a layer, once it is scaled."""

INPUTS = 2.0**48
"""The largest number of a box, and of the shift of a network."""

OUTPUTS = 2.0**64
"""The largest number of the last layer of a network."""

STEEPEST = 1e90
"""The largest product of the row sums of the weights of all layers, once they are scaled."""

_EXPONENT = 32  # of MOST
_HOMOGENEOUS = (Relu, LeakyRelu, Identity, AveragePool, MaxPool, Dropout, Flatten)


@dataclass(frozen=True, slots=True)
class Placed:
    """A layer, and where the user put it."""

    where: str
    layer: Layer


def scaled(layers: Sequence[Placed], most: float = OUTPUTS) -> list[Placed]:
    """The chain with its hidden values in other units wherever a layer needs it; refused where that does not help.

    ``most`` is the largest number of its last layer.
    """
    found, below = list(layers), 0
    last = max((index for index, placed in enumerate(layers) if isinstance(placed.layer, WEIGHTED)), default=0)
    for index, placed in enumerate(layers):
        layer = placed.layer
        if isinstance(layer, Branched):
            where = [f"{placed.where}, {f'branch {k}, ' if k else ''}layer" for k in range(len(layer.branches))]
            branches = tuple(map(_scaled_branch, where, layer.branches))
            if branches != layer.branches:
                found[index] = replace(placed, layer=layer.with_branches(branches))
        elif isinstance(layer, WEIGHTED):
            weights, biases = _exponents(layer)
            size = max(weights + below, biases)
            above = int(size) if _free(layers[index + 1 :]) and abs(size) > _EXPONENT and size > -math.inf else 0
            found[index] = _in_units(placed, below, above)
            _expect_numbers(found[index], placed, below, most if index == last else MOST)
            below = above
    _expect_steepness([placed.layer for placed in found])
    return found


def _scaled_branch(where: str, layers: Sequence[Layer]) -> tuple[Layer, ...]:
    return tuple(each.layer for each in scaled([Placed(f"{where} {k}", each) for k, each in enumerate(layers)], MOST))


def expect_box(box: Box) -> None:
    """Refuse boxes of inputs that are too large."""
    ends = (box.lower, box.upper) if box.batch else ()
    if all(bool(torch.linalg.vector_norm(end, math.inf) <= INPUTS) for end in ends):
        return
    b, i = (~(box.magnitude <= INPUTS)).nonzero()[0].tolist()
    raise MagnitudeError(
        f"box {b} reaches {box.magnitude[b, i].item():.3g} at input {i}; bounds are computed for inputs up to "
        f"{INPUTS:.3g}. Give the inputs in other units, with the weights of the first layer in theirs "
        "(BayesianNetwork.in_units)."
    )


def _free(rest: Sequence[Placed]) -> bool:
    """Whether the values before these layers may have any units: only what keeps factors comes before weights."""
    for placed in rest:
        if isinstance(placed.layer, WEIGHTED):
            return True
        if not isinstance(placed.layer, _HOMOGENEOUS):
            return False
    return False


def _exponents(layer: Layer) -> tuple[float, float]:
    """The largest exponents of the weights and of the biases, standard deviations included; minus infinity of zeros."""
    parts: list[tuple[Tensor, ...]]
    if isinstance(layer, MatrixNormalLinear):
        rows, columns = layer.row_factor, layer.column_factor
        parts = [(layer.weight_mean,), (layer.bias_mean,), (rows,), (columns[:-1],), (columns[-1:],)]
        weight, bias, row, column, last = _largest(parts)
        return max(weight, row + column), max(bias, row + last)
    any_layer: Any = layer
    parts = [(any_layer.weight_mean, any_layer.weight_std), (any_layer.bias_mean, any_layer.bias_std)]
    if isinstance(layer, CorrelatedLinear):
        parts = [(*parts[0], layer.factor[:, :-1]), (*parts[1], layer.factor[:, -1:])]
    weight, bias = _largest(parts)
    return weight, bias


def _largest(parts: Iterable[tuple[Tensor, ...]]) -> list[float]:
    """The exponent of the largest number of each part, such that it is below ``2**exponent``."""
    each = [torch.stack([torch.linalg.vector_norm(tensor, math.inf) for tensor in part]).max() for part in parts]
    return [math.frexp(size)[1] if size else -math.inf for size in torch.stack(each).tolist()]


def _in_units(placed: Placed, below: int, above: int) -> Placed:
    """The layer that takes its inputs in units of ``2**below`` and gives its outputs in units of ``2**above``."""
    if isinstance(placed.layer, MatrixNormalLinear):
        return _kronecker_in_units(placed, placed.layer, below, above)
    layer: Any = placed.layer
    if not (below or above):
        return placed
    powers = {"weight_mean": below - above, "weight_std": below - above, "bias_mean": -above, "bias_std": -above}
    new = {name: _times(placed, getattr(layer, name), power) for name, power in powers.items()}
    if isinstance(layer, CorrelatedLinear):
        parts = (layer.factor[:, :-1], below - above), (layer.factor[:, -1:], -above)
        new["factor"] = torch.cat([_times(placed, part, power) for part, power in parts], 1)
    return replace(placed, layer=replace(layer, **new))


def _kronecker_in_units(placed: Placed, layer: MatrixNormalLinear, below: int, above: int) -> Placed:
    """The same for two factors, of which that of the rows is brought to a size of one if either is far from it."""
    weights, bias = layer.column_factor[:-1], layer.column_factor[-1:]
    row, column, last = _largest([(layer.row_factor,), (weights,), (bias,)])
    sizes = row - above, max(column + below, last)
    apart = min(sizes) > -math.inf and max(map(abs, sizes)) > _EXPONENT >= sum(sizes)
    moved = int(sizes[0]) if apart else 0
    if not (below or above or moved):
        return placed
    new = MatrixNormalLinear(
        _times(placed, layer.weight_mean, below - above),
        _times(placed, layer.bias_mean, -above),
        _times(placed, layer.row_factor, -above - moved),
        torch.cat([_times(placed, weights, below + moved), _times(placed, bias, moved)]),
    )
    return replace(placed, layer=new)


def _times(placed: Placed, tensor: Tensor, power: int) -> Tensor:
    """``tensor * 2**power``, exactly, or refused."""
    steps = [power // 4] * 3 + [power - 3 * (power // 4)]  # each within the range of float64
    found = reduce(Tensor.mul, [2.0**step for step in steps], tensor)
    wrong = reduce(Tensor.mul, [2.0**-step for step in steps], found) != tensor
    if bool(wrong.any()):
        at = tuple(wrong.nonzero()[0].tolist())
        raise MagnitudeError(
            f"{tensor[at].item():.3g} in {placed.where} ({placed.layer.kind}) cannot be scaled by 2^{power}, as other "
            "numbers of this layer or of the one before need: float64 does not hold both. Set it to zero if it is "
            "negligible, or bring the numbers of each layer closer to one."
        )
    return found


def _expect_numbers(placed: Placed, given: Placed, below: int, most: float) -> None:
    """Refuse a scaled layer with a number above ``most``, by its name and value as the user knows them."""
    layer: Any = placed.layer
    sizes = torch.stack([torch.linalg.vector_norm(getattr(layer, name), math.inf) for name in layer.tensors])
    for name, size in zip(layer.tensors, sizes.tolist(), strict=True):
        if not size <= most:
            tensor = getattr(layer, name)
            at = tuple((~(tensor.abs() <= most)).nonzero()[0].tolist())
            value = getattr(given.layer, name)[at].item()
            units = f" for inputs in units of 2^{below}, to which the layers before are scaled" if below else ""
            raise MagnitudeError(
                f"{name}{list(at)} of {placed.where} ({layer.kind}) is {value:.3g}{units}; bounds are computed for "
                f"numbers up to {most:.3g}. Give the outputs of the network, or what this layer takes and gives, in "
                "other units."
            )


def _expect_steepness(layers: Sequence[Layer]) -> None:
    steepest = _steepness(layers)
    if not steepest <= STEEPEST:
        raise MagnitudeError(
            f"the product of the largest row sums of the weights of all layers is {steepest:.3g}; bounds are computed "
            f"up to {STEEPEST:g}. Scale the weights of some layers down."
        )


def _steepness(layers: Iterable[Layer]) -> float:
    """At least the sum of the sizes of a row that is carried from the outputs of the layers to any layer of them."""
    steepest = 1.0
    for layer in layers:
        if isinstance(layer, Branched):
            own = sum(map(_steepness, layer.branches))
        elif isinstance(layer, WEIGHTED):
            own = torch.linalg.vector_norm(layer.weight_mean.flatten(1), 1, dim=1).max().item()
        else:
            own = layer.shape.steepest if is_activation(layer) else 1.0
        steepest *= max(1.0, own)
    return steepest
