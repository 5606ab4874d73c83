"""The dynamic program backwards: affine bounds of rows of E z_k, carried through the layers down to x.

A lower bound ``A @ E z_k + c`` meets the affine bounds of E z_k in the means of the layer, positive coefficients with
the lower and negative ones with the upper bound, and so on down to the input (Theorem ``Theorem:ValueIteration`` with
the relaxations of docs/theory.md). Upper bounds are lower bounds of the negated rows. What rounding may add at each
step is taken off the constant at once, with the magnitude of the quantities on the box as its scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.bounds import Affine, AffineBounds, Interval
from bnndp.maths.rounding import TINY, gamma
from bnndp.moment.first import FirstLayer
from bnndp.moment.records import Relaxation, of_boxes
from bnndp.network import Linear
from bnndp.regions import Box, apply_rows

__all__ = ["Choice", "Relaxed", "backward", "both_sides", "both_signs", "least", "lower_bound", "ranges"]

_CACHED, _HELD = 2**22, 2**30  # bytes of the matrices made at a time: in the caches of a CPU, on another device

Relaxed = Sequence[tuple[Linear, Relaxation, Tensor]]
"""Of the hidden layers 2 to k: the layer, its relaxation and the scale ``|W| E z + |b|`` of its means (batch, n)."""


@dataclass(frozen=True, slots=True)
class Choice:
    r"""What may be chosen for each row without losing soundness; of the hidden layers 1 to k, (batch, rows, n) or None.

    ``tangents`` are the tangent points u of the lower planes; None: those of the layer. ``multipliers`` belong to cells
    on which the sign of some means M_i is known: :math:`\beta_i\ge0` times that sign. Where :math:`\pm M_i(x)\ge0`,
    a lower bound of :math:`f-\beta_i(\pm M_i)` is one of f (Lagrange; Wang et al. 2021, beta-CROWN).
    """

    tangents: Sequence[Tensor | None] = ()
    multipliers: Sequence[Tensor | None] = ()

    def of(self, k: int) -> tuple[Tensor | None, Tensor | None]:
        """Tangents and multipliers of hidden layer k, counted from zero."""
        return (
            self.tangents[k] if k < len(self.tangents) else None,
            self.multipliers[k] if k < len(self.multipliers) else None,
        )


def backward(rows: Linear, relaxed: Relaxed, first: FirstLayer, box: Box) -> AffineBounds:
    """Affine bounds in x of ``rows.weight_mean @ E z_k + rows.bias_mean`` on the box."""
    return both_sides(lower_bound(*both_signs(rows), relaxed, first, box), box)


def least(
    weight: Tensor,  # (rows, n_k), or (batch, rows, n_k)
    bias: Tensor,  # (rows,) or (batch, rows)
    relaxed: Relaxed,
    first: FirstLayer,
    box: Box,
) -> Tensor:  # (batch, rows)
    """What ``weight @ E z_k + bias`` is at least on each box: the affine functions are made a few boxes at a time.

    Their matrices are much larger than anything else in a pass; those of a piece stay in the caches.
    """
    most = _CACHED if box.lower.device.type == "cpu" else _HELD
    size = max(1, most // (8 * weight.shape[-2] * max(box.n, *weight.shape[-1:])))
    if box.batch <= size:
        found = lower_bound(weight, bias, relaxed, first, box)
        return box.minimum(found.matrix, found.offset)
    parts = []
    for start in range(0, box.batch, size):
        at = slice(start, start + size)
        own = [(layer, of_boxes(relaxation, at), scale[at]) for layer, relaxation, scale in relaxed]
        some = (weight if weight.ndim == 2 else weight[at], bias if bias.ndim == 1 else bias[at])
        found = lower_bound(*some, own, of_boxes(first, at), box[at])
        parts.append(box[at].minimum(found.matrix, found.offset))
    return torch.cat(parts)


def ranges(rows: Linear, relaxed: Relaxed, first: FirstLayer, box: Box) -> Interval:
    """Least and largest values on each box of ``rows.weight_mean @ E z_k + rows.bias_mean``."""
    low, high = least(*both_signs(rows), relaxed, first, box).split(rows.n_out, -1)
    return Interval(low, -high)


def both_signs(rows: Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias of the rows and of their negatives: upper bounds are lower bounds of the latter."""
    return torch.cat([rows.weight_mean, -rows.weight_mean]), torch.cat([rows.bias_mean, -rows.bias_mean])


def both_sides(found: Affine, box: Box) -> AffineBounds:
    """Lower and upper bounds of the rows from lower bounds of :func:`both_signs`."""
    n = found.offset.shape[1] // 2
    low = Affine(found.matrix[:, :n], found.offset[:, :n])
    return AffineBounds(low, Affine(-found.matrix[:, n:], -found.offset[:, n:]), box)


def lower_bound(
    weight: Tensor,  # (rows, n_k), or (batch, rows, n_k)
    bias: Tensor,  # (rows,) or (batch, rows)
    relaxed: Relaxed,
    first: FirstLayer,
    box: Box,
    choice: Choice | None = None,
) -> Affine:
    """An affine function of x below ``weight @ E z_k + bias`` on the box (or cell); differentiable in the choice."""
    choice = choice or Choice()
    matrix = weight.expand(box.batch, *weight.shape[-2:])
    constant = bias.expand(box.batch, bias.shape[-1])
    for k in range(len(relaxed), 0, -1):
        layer, relaxation, scale = relaxed[k - 1]
        tangent, multiplier = choice.of(k)
        matrix, constant = _through_relu(matrix, constant, relaxation, tangent)
        if multiplier is not None:
            matrix = matrix - multiplier
        matrix, constant = _through_linear(matrix, constant, layer, scale)
    return Affine(*_through_first(matrix, constant, first, box, *choice.of(0)))


def _through_relu(
    matrix: Tensor, constant: Tensor, relaxation: Relaxation, tangent: Tensor | None
) -> tuple[Tensor, Tensor]:
    positive, negative = matrix.clamp_min(0), matrix.clamp_max(0)
    low_slope, low_offset = relaxation.lower(tangent)
    slope = positive * low_slope + negative * relaxation.upper_slope[:, None]
    offset = (positive * low_offset).sum(-1) + apply_rows(negative, relaxation.upper_offset)
    lost = apply_rows(positive - negative, relaxation.size) + constant.abs()
    return slope, constant + offset - gamma(2 * matrix.shape[-1] + 8) * lost - TINY


def _through_linear(matrix: Tensor, constant: Tensor, layer: Linear, scale: Tensor) -> tuple[Tensor, Tensor]:
    lost = apply_rows(matrix.abs(), scale) + constant.abs()
    shifted = constant + matrix @ layer.bias_mean - gamma(layer.n_out + 8) * lost - TINY
    return matrix @ layer.weight_mean, shifted


def _through_first(
    matrix: Tensor, constant: Tensor, first: FirstLayer, box: Box, tangent: Tensor | None, multiplier: Tensor | None
) -> tuple[Tensor, Tensor]:
    positive, negative = matrix.clamp_min(0), matrix.clamp_max(0)
    low, high, layer = first.lower_at(first.tangent[:, None] if tangent is None else tangent), first.upper, first.layer
    alpha = positive * low.alpha + negative * high.alpha[:, None]
    beta = positive * low.beta + negative * high.beta[:, None]
    lost = apply_rows(positive - negative, first.size) + constant.abs()
    if multiplier is not None:
        alpha = alpha - multiplier
        m_size = apply_rows(layer.weight_mean.abs(), box.magnitude) + layer.bias_mean.abs()
        lost = lost + apply_rows(multiplier.abs(), m_size) * 1.001  # the size itself is rounded
    slope = (alpha @ layer.weight_mean).baddbmm_(beta, layer.weight_std.square() * first.centre[:, None])
    if high.dense is not None:
        slope = slope + negative @ high.dense
    offset = (positive * low.offset).sum(-1) + apply_rows(negative, high.offset) + alpha @ layer.bias_mean
    error = gamma(4 * layer.n_out + 16)  # four products of length n_out, each term within first.size
    return slope, constant + offset - error * lost - TINY
