"""The dynamic program backwards: affine bounds of rows of E z_k, carried through the layers down to x.

A lower bound ``A @ E z_k + c`` meets the affine bounds of E z_k in the means of the layer, positive coefficients with
the lower and negative ones with the upper bound, and so on down to the input (Theorem ``Theorem:ValueIteration`` with
the relaxations of docs/theory.md). Upper bounds are lower bounds of the negated rows. What rounding may add at each
step is taken off the constant at once, with the magnitude of the quantities on the box as its scale.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bnndp.bounds import Affine, AffineBounds
from bnndp.maths.rounding import TINY, gamma
from bnndp.moment.first import FirstLayer
from bnndp.moment.records import Relaxation
from bnndp.network import Linear
from bnndp.regions import Box, apply_rows

__all__ = ["backward"]


def backward(
    rows: Linear,
    relaxed: Sequence[tuple[Linear, Relaxation, Tensor]],
    first: FirstLayer,
    box: Box,
) -> AffineBounds:
    """Affine bounds in x of ``rows.weight_mean @ E z_k + rows.bias_mean`` on the box.

    ``relaxed`` holds, for the hidden layers 2 to k, the layer, its relaxation and the scale ``|W| E z + |b|`` of its
    means (batch, n); ``first`` the first hidden layer.
    """
    weight = torch.cat([rows.weight_mean, -rows.weight_mean])
    bias = torch.cat([rows.bias_mean, -rows.bias_mean])
    matrix = weight.expand(box.batch, *weight.shape)  # (batch, 2 rows, n_k): lower bounds of +row and -row
    constant = bias.expand(box.batch, -1)  # (batch, 2 rows)
    for layer, relaxation, scale in reversed(relaxed):
        matrix, constant = _through_relu(matrix, constant, relaxation)
        matrix, constant = _through_linear(matrix, constant, layer, scale)
    matrix, constant = _through_first(matrix, constant, first)
    n = rows.n_out
    return AffineBounds(
        Affine(matrix[:, :n], constant[:, :n]),
        Affine(-matrix[:, n:], -constant[:, n:]),
        box,
    )


def _through_relu(matrix: Tensor, constant: Tensor, relaxation: Relaxation) -> tuple[Tensor, Tensor]:
    positive, negative = matrix.clamp_min(0), matrix.clamp_max(0)
    slope = positive * relaxation.lower_slope[:, None] + negative * relaxation.upper_slope[:, None]
    offset = apply_rows(positive, relaxation.lower_offset) + apply_rows(negative, relaxation.upper_offset)
    lost = apply_rows(positive - negative, relaxation.size) + constant.abs()
    return slope, constant + offset - gamma(2 * matrix.shape[-1] + 8) * lost - TINY


def _through_linear(matrix: Tensor, constant: Tensor, layer: Linear, scale: Tensor) -> tuple[Tensor, Tensor]:
    lost = apply_rows(matrix.abs(), scale) + constant.abs()
    shifted = constant + matrix @ layer.bias_mean - gamma(layer.n_out + 8) * lost - TINY
    return matrix @ layer.weight_mean, shifted


def _through_first(matrix: Tensor, constant: Tensor, first: FirstLayer) -> tuple[Tensor, Tensor]:
    positive, negative = matrix.clamp_min(0), matrix.clamp_max(0)
    low, high, layer = first.lower, first.upper, first.layer
    alpha = positive * low.alpha[:, None] + negative * high.alpha[:, None]
    beta = positive * low.beta[:, None] + negative * high.beta[:, None]
    slope = alpha @ layer.weight_mean + (beta @ layer.weight_std.square()) * first.centre[:, None]
    if high.dense is not None:
        slope = slope + negative @ high.dense
    offset = apply_rows(positive, low.offset) + apply_rows(negative, high.offset) + alpha @ layer.bias_mean
    lost = apply_rows(positive - negative, first.size) + constant.abs()
    error = gamma(4 * layer.n_out + 16)  # four products of length n_out, each term within first.size
    return slope, constant + offset - error * lost - TINY
