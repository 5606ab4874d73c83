"""The units of inputs and outputs folded into the layers next to them, exactly as far as float64 goes.

With inputs divided by a scale the weights of the first layer are divided by it; with outputs multiplied by a factor the
weights and biases of the last layer are. Both keep the kind of the posterior: no weight becomes dependent on another.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.layers.convolution import Conv2d
from bnndp.layers.correlated import CorrelatedLinear
from bnndp.layers.linear import Linear
from bnndp.layers.matrix_normal import MatrixNormalLinear
from bnndp.layers.record import Record


def divided(layer: Record, scale: Tensor, shape: tuple[int, ...]) -> Record:
    """The layer ``z -> layer(z / scale)``, for a scale (n_in,) of inputs of this shape."""
    if isinstance(layer, Linear):
        return replace(layer, weight_mean=layer.weight_mean / scale, weight_std=layer.weight_std / scale)
    if isinstance(layer, CorrelatedLinear):
        factor = torch.cat([layer.factor[:, :-1] / scale[:, None], layer.factor[:, -1:]], dim=1)
        mean, std = layer.weight_mean / scale, layer.weight_std / scale
        return replace(layer, weight_mean=mean, weight_std=std, factor=factor)
    if isinstance(layer, MatrixNormalLinear):
        factor = torch.cat([layer.column_factor[:-1] / scale[:, None], layer.column_factor[-1:]])
        return replace(layer, weight_mean=layer.weight_mean / scale, column_factor=factor)
    if isinstance(layer, Conv2d):
        channels = scale.reshape(shape[0], -1)  # (channels, height * width)
        if bool((channels != channels[:, :1]).any()):
            raise InputError(
                "inputs of a convolution must have one scale for each channel: the kernel is the same at all positions."
            )
        scale = channels[:, 0, None, None]  # (channels, 1, 1)
        return replace(layer, weight_mean=layer.weight_mean / scale, weight_std=layer.weight_std / scale)
    raise InputError(f"the scale of the inputs cannot be folded into {layer.kind}; give inputs as the layer sees them.")


def in_outputs(layer: Record, offset: Tensor, factor: Tensor) -> Record:
    """The layer with the law of ``offset + factor * layer(z)``; (n_out,) each, or one per channel of an image.

    Standard deviations are multiplied by the magnitude of the factor: a Gaussian of mean zero is symmetric.
    """
    rows = factor[:, None]
    if isinstance(layer, Linear | CorrelatedLinear):
        mean, std = layer.weight_mean * rows, layer.weight_std * rows.abs()
        bias, bias_std = layer.bias_mean * factor + offset, layer.bias_std * factor.abs()
        if isinstance(layer, Linear):
            return Linear(mean, std, bias, bias_std)
        return CorrelatedLinear(mean, std, bias, bias_std, layer.factor * rows[:, None], layer.shared)
    if isinstance(layer, MatrixNormalLinear):
        bias = layer.bias_mean * factor + offset
        return replace(layer, weight_mean=layer.weight_mean * rows, bias_mean=bias, row_factor=layer.row_factor * rows)
    if isinstance(layer, Conv2d):
        kernels = rows[:, None, None]
        return replace(
            layer,
            weight_mean=layer.weight_mean * kernels,
            weight_std=layer.weight_std * kernels.abs(),
            bias_mean=layer.bias_mean * factor + offset,
            bias_std=layer.bias_std * factor.abs(),
        )
    raise InputError(f"a scale of outputs cannot be folded into {layer.kind}; it must follow a layer with weights.")
