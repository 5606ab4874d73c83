"""Two-dimensional convolutions with independent Gaussian kernels, the same at every position of the image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.layers.checks import expect_shapes, parameter, positive, take


@dataclass(frozen=True, slots=True, eq=False)
class Conv2d:
    """A 2D convolution (cross-correlation, as in torch) with independent Gaussian kernels and zero padding.

    A kernel is drawn once and used at all positions, so the outputs of one channel are correlated given the input.

    Args:
        weight_mean: Means of the kernels, ``(channels_out, channels_in, height, width)``.
        weight_std: Standard deviations of the kernels, of the same shape. They may be zero.
        bias_mean: Means of the biases, ``(channels_out,)``.
        bias_std: Standard deviations of the biases, ``(channels_out,)``.
        stride: Stride, an integer or a pair (rows, columns).
        padding: Number of zeros added on each side, an integer or a pair (rows, columns).

    Examples:
        >>> Conv2d.fixed(torch.ones(4, 1, 3, 3), padding=1)
        Conv2d(1 -> 4, 3x3, stride (1, 1), padding (1, 1))
    """

    kind: ClassVar[str] = "conv2d"
    tensors: ClassVar[tuple[str, ...]] = ("weight_mean", "weight_std", "bias_mean", "bias_std")
    settings: ClassVar[tuple[str, ...]] = ("stride", "padding")

    weight_mean: Tensor  # (channels out, channels in, height, width)
    weight_std: Tensor  # the same
    bias_mean: Tensor  # (channels out,)
    bias_std: Tensor  # (channels out,)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        take(self, self.tensors)
        positive(self, "stride")
        positive(self, "padding", least=0)
        shape = tuple(self.weight_mean.shape)
        if len(shape) != 4 or 0 in shape:
            raise InputError(f"weight_mean must have shape (out, in, height, width), all positive, got {shape}.")
        expect_shapes(self, {"weight_std": shape, "bias_mean": shape[:1], "bias_std": shape[:1]}, "weight_mean")

    @classmethod
    def fixed(
        cls,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
    ) -> Conv2d:
        """Create a convolution whose kernels have no variance.

        Args:
            weight: The kernels, ``(channels_out, channels_in, height, width)``.
            bias: The biases, ``(channels_out,)``; zero if not given.
            stride: Stride, an integer or a pair (rows, columns).
            padding: Number of zeros added on each side, an integer or a pair (rows, columns).

        Returns:
            The layer.
        """
        mean = parameter("weight", weight)
        zero = mean.new_zeros(mean.shape[:1])
        return cls(mean, torch.zeros_like(mean), zero if bias is None else bias, zero, stride, padding)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        """Sizes only."""
        out, into, height, width = self.weight_mean.shape
        return f"Conv2d({into} -> {out}, {height}x{width}, stride {self.stride}, padding {self.padding})"

    @property
    def random(self) -> bool:
        """Whether any weight or bias has a variance."""
        return bool((self.weight_std > 0).any() | (self.bias_std > 0).any())

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape (channels, height, width) of the outputs for inputs of this shape."""
        out, into, *kernel = self.weight_mean.shape
        if len(shape) != 3 or shape[0] != into:
            raise InputError(f"a convolution of {into} channels takes (channels, height, width), got {shape}.")
        return (out, *window_shape(shape, (kernel[0], kernel[1]), self.stride, self.padding))

    def to(self, device: torch.device | str) -> Conv2d:
        """The same layer with its tensors on ``device``."""
        return replace(self, **{name: getattr(self, name).to(device) for name in self.tensors})


def window_shape(
    shape: tuple[int, ...], kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> tuple[int, int]:
    """How many windows fit in height and width of an image (channels, height, width)."""
    sizes = [(n + 2 * pad - k) // step + 1 for n, k, step, pad in zip(shape[1:], kernel, stride, padding, strict=True)]
    if min(sizes) < 1:
        raise InputError(f"a window of {kernel} with padding {padding} does not fit an image of shape {shape}.")
    return sizes[0], sizes[1]
