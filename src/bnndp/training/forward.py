r"""The steps of a network in training: a layer of weights, and the layers without weights up to the next one.

Weights of a dense step are (n_out, n_in), those of a convolution (channels out, channels in, height, width). Inputs of
a set are vectors; the first step of a convolutional network gives them the shape of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bnndp.activations.activation import Activation
from bnndp.errors import InputError
from bnndp.layers import AveragePool, Conv2d, Dropout, Flatten, Linear, MaxPool

Fixed = Activation | AveragePool | MaxPool | Flatten | Dropout
"""A layer without weights."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a layer is beside its weights, and what follows it."""

    after: tuple[Fixed, ...] = ()
    stride: tuple[int, int] = (1, 1)  # of a convolution
    padding: tuple[int, int] = (0, 0)
    image: tuple[int, int, int] | None = None  # (channels, rows, columns) into which the vector before it is reshaped

    def as_image(self, z: Tensor) -> Tensor:
        """The inputs (points, ...) in the shape that the layer takes."""
        return z if self.image is None else z.reshape(z.shape[0], *self.image)

    def record(self, weight: Tensor, weight_std: Tensor, bias: Tensor, bias_std: Tensor) -> Linear | Conv2d:
        """The finished layer of weights."""
        if weight.ndim == 2:
            return Linear(weight, weight_std, bias, bias_std)
        return Conv2d(weight, weight_std, bias, bias_std, self.stride, self.padding)


def affine(step: Stage, weight: Tensor, bias: Tensor | None, z: Tensor) -> Tensor:
    """``W z + b`` of a dense layer (points, n_out), or the convolution (points, channels, rows, columns)."""
    if weight.ndim == 2:
        return functional.linear(z, weight, bias)
    return functional.conv2d(z, weight, bias, step.stride, step.padding)


def apply_fixed(fixed: Sequence[Fixed], z: Tensor, generator: torch.Generator | None) -> Tensor:
    """The layers without weights at ``z`` (points, ...); dropout is drawn for every point, or left out (its mean)."""
    for record in fixed:
        z = _apply(record, z, generator)
    return z


def _apply(record: Fixed, z: Tensor, generator: torch.Generator | None) -> Tensor:
    if isinstance(record, Flatten):
        return z.flatten(1)
    if isinstance(record, AveragePool):
        return functional.avg_pool2d(z, record.size, record.stride)
    if isinstance(record, MaxPool):
        return functional.max_pool2d(z, record.size, record.stride)
    if isinstance(record, Dropout):
        return z if generator is None else z * _factor(record, z, generator)
    if callable(record):
        return record(z)
    raise InputError(f"{type(record).__name__} is not a layer that training knows; give an activation or a pooling.")


def _factor(record: Dropout, z: Tensor, generator: torch.Generator) -> Tensor:
    """Factors of mean one, of a unit or of a whole channel each: (points, channels, 1, 1) or the shape of ``z``."""
    shape = (*z.shape[:2], 1, 1) if record.channels else z.shape
    if record.law == "bernoulli":
        kept = torch.rand(shape, generator=generator, dtype=z.dtype) >= record.rate
        return kept.to(z.dtype) / (1 - record.rate)
    spread = (record.rate / (1 - record.rate)) ** 0.5
    return 1 + spread * torch.randn(shape, generator=generator, dtype=z.dtype)
