r"""Combinations of the outputs of the last layer, as one more Gaussian layer: the law of their weights.

Given the last hidden layer z the outputs are independent Gaussians, so :math:`u\cdot f` is Gaussian with weights
:math:`u\mu` of variance :math:`u^2\sigma^2`. Its mean is carried down to x like that of any row (``backward.py``),
which keeps what two outputs share; separate intervals would lose it. By the law of total variance
:math:`\operatorname{Var}(u\cdot f)=\mathbb Es(z)+\operatorname{Var}(u\mu\cdot z)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.dense.conditional import Layers
from bnndp.engine.dense.forward import HiddenLayers
from bnndp.engine.dense.variance import linear_variance
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import apply_rows
from bnndp.layers import Linear
from bnndp.maths.rounding import SMALL, TINY, UNIT, gamma, up

__all__ = ["OutputRows", "interval_mean", "lowered_bias", "output_rows", "row_variance"]


@dataclass(frozen=True, slots=True)
class OutputRows:
    """Mean and variance of the weights of ``rows . f``; (rows, n) each, or (batch, rows, n)."""

    weight: Tensor  # rounded
    weight_error: Tensor  # what rounding changed in it, at most
    variance: Tensor  # rounded up to a factor, see row_variance
    bias: Tensor  # (rows,) or (batch, rows)
    bias_error: Tensor
    bias_variance: Tensor


def output_rows(output: Linear, rows: Tensor) -> OutputRows:  # rows (rows, outputs) or (batch, rows, outputs)
    """The law of the rows of a layer; that of a single output is exact."""
    size, squares = rows.abs(), rows.square()
    some = (size != 0).to(rows.dtype)  # times a mask of booleans TINY would be a float32, and zero
    scaled = some * (size != 1)
    roundings = (some.sum(-1, keepdim=True) - 1).clamp_min(0) + 2 * scaled.sum(-1, keepdim=True)  # (..., rows, 1)
    factor = 4 * UNIT * roundings
    return OutputRows(
        weight=rows @ output.weight_mean,
        weight_error=factor * (size @ output.weight_mean.abs()),
        variance=squares @ output.weight_std.square(),
        bias=rows @ output.bias_mean,
        bias_error=factor[..., 0] * (size @ output.bias_mean.abs()) + TINY * roundings[..., 0],
        bias_variance=squares @ output.bias_std.square() + SMALL**2 * some.amax(-1),  # squares may underflow
    )


def lowered_bias(rows: OutputRows, below: Interval) -> Tensor:  # (batch, rows)
    """The biases, lowered by what the rounding of the rows may change in the means."""
    return rows.bias - _error(rows, below)


def _error(rows: OutputRows, below: Interval) -> Tensor:
    """What the rounding of the rows themselves may change in the mean, for E z within ``below``."""
    return 2 * (apply_rows(rows.weight_error, below.upper) + rows.bias_error)


def interval_mean(rows: OutputRows, below: Interval) -> Tensor:
    """Lower end of the mean (batch, rows) from the ranges of E z alone."""
    positive, negative = rows.weight.clamp_min(0), rows.weight.clamp_max(0)
    size = apply_rows(rows.weight.abs(), below.upper) + rows.bias.abs()
    lost = gamma(2 * rows.weight.shape[-1] + 8) * size + _error(rows, below) + TINY
    return apply_rows(positive, below.lower) + apply_rows(negative, below.upper) + rows.bias - lost


def row_variance(rows: OutputRows, layers: HiddenLayers, given: Layers, outputs: int) -> Tensor:
    """Upper end of the variance (batch, rows): that given the last hidden layer plus that of the conditional mean."""
    latents, n = layers.latents, rows.weight.shape[-1]
    spread = up(apply_rows(rows.variance, latents[-1].second.upper) + rows.bias_variance, n + 2 * outputs + 8)
    through = up(linear_variance(rows.weight, given, latents, layers.first.sources), n + 20)
    error = apply_rows(rows.weight_error, latents[-1].variance.sqrt())  # standard deviations add up
    found = spread + (through.sqrt() + 2 * error).square() * (1 + gamma(8)) + SMALL**2  # terms may underflow
    return torch.where(layers.fine & found.isfinite(), found, torch.inf)
