"""Rows of coefficients over windows around the positions of an image.

The rows of a convolution reach a window of its input only, and so on down to x, one window size a layer. Row (o, p) has
its window at ``p * stride - offset``, and what lies outside the image is no coefficient (products with a vector of the
image drop it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from bnndp.engine.rows.dense import DenseRows
from bnndp.engine.rows.mapped import MappedRows

__all__ = ["LocalRows"]


@dataclass(frozen=True, slots=True)
class LocalRows(MappedRows):
    """Rows over windows of an image (channels, height, width), one a position and output channel."""

    values: Tensor  # (batch or 1, outputs, positions, channels, window height, window width)
    shape: tuple[int, ...]  # of the image
    grid: tuple[int, int]  # positions down and across
    stride: tuple[int, int]
    offset: tuple[int, int]

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.values.shape[1] * self.values.shape[2]

    @property
    def batch(self) -> int:
        """Number of boxes, or 1 if the same for all."""
        return self.values.shape[0]

    @property
    def window(self) -> tuple[int, int]:
        """Height and width of the windows."""
        return self.values.shape[-2], self.values.shape[-1]

    def map(self, function: Callable[[Tensor], Tensor]) -> LocalRows:
        """A function of each coefficient that keeps zero."""
        return replace(self, values=function(self.values))

    def times(self, v: Tensor) -> LocalRows:  # (batch, n)
        """Each coefficient times that of a vector of its box; zero outside the image."""
        return replace(self, values=self.values * self.around(v).reshape(v.shape[0], 1, -1, *self.values.shape[3:]))

    def with_negatives(self) -> LocalRows:
        """The rows, then their negatives."""
        return replace(self, values=torch.cat([self.values, -self.values], 1))

    def plus(self, other: LocalRows) -> LocalRows:
        """The sum with rows of the same windows."""
        return replace(self, values=self.values + other.values)

    def add_times(self, other: LocalRows, v: Tensor) -> LocalRows:  # (batch, n)
        """The sum with ``other.times(v)``."""
        return self.plus(other.times(v))

    def dot(self, v: Tensor) -> Tensor:  # (batch, n) or (n,) -> (batch, rows)
        """Products with a vector."""
        return self.dots(v.reshape(-1, v.shape[-1], 1))[..., 0]

    def dots(self, v: Tensor) -> Tensor:  # (batch, n, q) -> (batch, rows, q)
        """Products with several vectors."""
        values = self.values.flatten(3)
        found = [torch.einsum("bopk,bpk->bop", *_same_batch(values, self.around(part))) for part in v.unbind(-1)]
        return torch.stack(found, -1).flatten(1, 2)

    def group_dots(self, v: Tensor, groups: int) -> Tensor:  # (batch, n, q) -> (batch, rows, groups, q)
        """Products with several vectors, summed within each channel; ``groups`` must be the channels."""
        values = self.values.flatten(4)  # (batch, outputs, positions, channels, window)
        around = [self.around(part).reshape(-1, *values.shape[2:]) for part in v.unbind(-1)]
        found = [torch.einsum("bopck,bpck->bopc", *_same_batch(values, part)) for part in around]
        return torch.stack(found, -1).flatten(1, 2)

    def around(self, v: Tensor) -> Tensor:  # (batch, n) -> (batch, positions, channels * window)
        """What the windows see of a vector: zero outside the image."""
        images = v.reshape(-1, *self.shape)
        return self.windows_of(images).mT

    def windows_of(self, images: Tensor) -> Tensor:  # (batch, any channels, height, width) -> (batch, c * window, p)
        """The windows of images of the same height and width."""
        high, wide = ((self.grid[axis] - 1) * self.stride[axis] + self.window[axis] for axis in (0, 1))  # all windows
        top, left = self.offset
        below, right = (
            max(0, end - size) for end, size in ((high - top, images.shape[2]), (wide - left, images.shape[3]))
        )
        around = functional.pad(images, (left, right, top, below))[..., :high, :wide]  # cut where no window reaches
        return functional.unfold(around, self.window, stride=self.stride)

    def dense(self) -> DenseRows:
        """The same rows over all coordinates of the image."""
        n = math.prod(self.shape)
        index = torch.arange(1, n + 1, dtype=torch.float64, device=self.values.device)
        places = self.around(index[None]).round().long()[0]  # (positions, window): 0 outside
        batch, outputs, positions = self.values.shape[:3]
        found = self.values.new_zeros(batch, outputs, positions, n + 1)
        found.scatter_add_(-1, places.expand(batch, outputs, -1, -1), self.values.flatten(3))
        return DenseRows(found[..., 1:].reshape(batch, outputs * positions, n))

    def around_both(self, other: LocalRows) -> LocalRows:
        """The same rows with windows that hold those of the other ones, too."""
        sides: list[int] = []
        for own, at, size, to in zip(self.window, self.offset, other.window, other.offset, strict=True):
            before = max(at, to) - at
            sides = [before, max(own - at, size - to) - (own - at), *sides]  # the last axis first
        offset = (max(self.offset[0], other.offset[0]), max(self.offset[1], other.offset[1]))
        return replace(self, values=functional.pad(self.values, sides), offset=offset)

    def spread(self, size: tuple[int, int], shape: tuple[int, ...]) -> LocalRows:
        """The rows through means of windows side by side, to the image ``shape`` before them.

        What lies outside this image is dropped first: it may fall on values that no window of the pooling covers.
        """
        inside = self.times(self.values.new_ones(1, math.prod(self.shape)))
        values = inside.values.repeat_interleave(size[0], -2).repeat_interleave(size[1], -1) / (size[0] * size[1])
        return LocalRows(
            values,
            shape,
            self.grid,
            (self.stride[0] * size[0], self.stride[1] * size[1]),
            (self.offset[0] * size[0], self.offset[1] * size[1]),
        )

    def pulled(
        self, kernel: Tensor, shape: tuple[int, ...], stride: tuple[int, int], padding: tuple[int, int]
    ) -> LocalRows:
        """The rows through a convolution (outputs = this image) of this kernel, to its input image ``shape``.

        The coefficients must be zero outside the image: after :meth:`times` they are.
        """
        batch, outputs, positions, channels, high, wide = self.values.shape
        into, kernel_high, kernel_wide = kernel.shape[1:]
        flat = kernel.reshape(channels, -1)
        size = ((high - 1) * stride[0] + kernel_high, (wide - 1) * stride[1] + kernel_wide)
        found = self.values.new_zeros(batch, outputs, positions, into, *size)
        for i in range(high):
            for j in range(wide):
                part = self.values[..., i, j] @ flat  # (batch, outputs, positions, into * kernel)
                top, left = i * stride[0], j * stride[1]
                where = found[..., top : top + kernel_high, left : left + kernel_wide]
                where += part.reshape(*part.shape[:3], into, kernel_high, kernel_wide)
        return LocalRows(
            found,
            shape,
            self.grid,
            (self.stride[0] * stride[0], self.stride[1] * stride[1]),
            (self.offset[0] * stride[0] + padding[0], self.offset[1] * stride[1] + padding[1]),
        )


def _same_batch(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    batch = max(a.shape[0], b.shape[0])
    return a.expand(batch, *a.shape[1:]), b.expand(batch, *b.shape[1:])
