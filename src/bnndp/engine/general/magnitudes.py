r"""The range of magnitudes of the general pass; what is beyond it is refused before a pass.

float64 loses what is below :math:`2^{-1074}`. The general pass (``propagation``) multiplies squares of deviations
with squares of values, fourth powers of weights with fourth moments, factors of covariances with one another, and
squares of rows, which are products of the weights of several layers, with variances. The highest powers are the
fourth of a weight, the fourth of a value (sixth powers are products of roots) and the square of a row. One factor may
vanish, at most :math:`2^{-1074}` of it, while the others are large. With numbers of at most ``LARGE`` = 1e35 in
tensors and boxes (here) and in hidden values (``engine/general/pre_activation.py``), and rows of at most 1e90 (here),
a sum of n terms loses less than

* :math:`2^{-1074}\,n\cdot10^{4\cdot35}<n\cdot10^{-183}` of a fourth moment, where 1e-120 is granted,
* :math:`2^{-1074}\,n\cdot10^{2\cdot90+2\cdot35}<n\cdot10^{-73}` of a variance along a row, where 1e-60 is granted:

``SMALL`` = 1e-30 is added to every standard deviation from above, and its powers to what is of a higher degree; a lower
bound of a variance below 1e-60 is zero. What a term under a root loses is less than 1e-10 of the sum, which the factors
for rounding cover, or the sum is itself less than 1e10 times that, which is less than is granted. So nothing needs to
be refused at the small end: bounds of what is measured in units of 1e-30 are wide, and hold. A mean loses coefficients,
in proportion to the values that they meet: ``TINY`` times these is taken off.

Powers above the fourth, up to the eighth, are those of ``engine/general/expansion.py``: they are taken of weights and
moments that are at least ``SMALL``, and its powers are added to the sums, so that nothing vanishes.

The moment pass of plain networks adds ``SMALL`` and ``TINY`` where it takes powers, and has no bound for hidden
values above ``LARGE`` (``engine/dense/forward.py``); the partition method takes no powers above squares. Neither
needs a limit for the tensors, nor does a network without variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.layers import WEIGHTED, Residual
from bnndp.maths.rounding import LARGE
from bnndp.network import Layer, is_activation

__all__ = ["expect_magnitudes"]

_STEEPEST = 1e90  # of a network from any hidden layer to the output, by the sizes of the weights


def expect_magnitudes(layers: Sequence[Layer], box: Box) -> None:
    """Refuse numbers of layers with variance, or of the boxes, that are too large for the general pass."""
    if not any(layer.random for layer in layers):
        return
    for index, layer in enumerate(layers):
        _expect_layer(f"layer {index}", layer)
    _expect_steepness(layers)
    magnitude = box.magnitude
    if not bool((magnitude <= LARGE).all()):
        b, i = (~(magnitude <= LARGE)).nonzero()[0].tolist()
        raise InputError(
            f"box {b} reaches {magnitude[b, i].item():.3g} at input {i}; the moments of a network with variance are "
            f"computed for inputs up to {LARGE:g}. Give the inputs in other units, with the weights of the first layer "
            "in theirs (BayesianNetwork.in_units)."
        )


def _expect_layer(where: str, layer: Layer) -> None:
    if isinstance(layer, Residual):
        for index, inner in enumerate(layer.layers):
            _expect_layer(f"{where}, layer {index}", inner)
        return
    for name in layer.tensors if isinstance(layer, WEIGHTED) else ():
        tensor: Tensor = getattr(layer, name)
        if not bool(torch.linalg.vector_norm(tensor, math.inf) <= LARGE):
            at = tuple((~(tensor.abs() <= LARGE)).nonzero()[0].tolist())
            raise InputError(
                f"{name}{list(at)} of {where} ({layer.kind}) is {tensor[at].item():.3g}; the moments of a network with "
                f"variance are computed for numbers up to {LARGE:g}. Give its inputs or outputs in other units."
            )


def _expect_steepness(layers: Sequence[Layer]) -> None:
    steepest = _steepness(layers)
    if not steepest <= _STEEPEST:
        raise InputError(
            f"the product of the largest row sums of the weights of all layers is {steepest:.3g}; the moments of a "
            f"network with variance are computed up to {_STEEPEST:g}. Scale the weights of some layers down."
        )


def _steepness(layers: Iterable[Layer]) -> float:
    """At least the sum of the sizes of a row that is carried from the outputs of the layers to any layer of them."""
    steepest = 1.0
    for layer in layers:
        if isinstance(layer, Residual):
            own = 1 + _steepness(layer.layers)
        elif isinstance(layer, WEIGHTED):
            own = torch.linalg.vector_norm(layer.weight_mean.flatten(1), 1, dim=1).max().item()
        else:
            own = layer.shape.steepest if is_activation(layer) else 1.0
        steepest *= max(1.0, own)
    return steepest
