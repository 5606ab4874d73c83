r"""Layers with Gaussian weights as the proofs see them: a matrix of means, and bounds of what their noise can do.

The same quantities as in ``bnndp_checker.layers``, in batches of boxes and float64: what is found here is moved outward
by far more than rounding and proved again by the checker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bnndp.errors import UnsupportedLayerError
from bnndp.layers import AveragePool, Conv2d, CorrelatedLinear, Linear, MatrixNormalLinear
from bnndp.network import Layer

SLACK = 2.0**-36
"""Of the sizes of all terms: far above the rounding of float64, and what a certificate may lose by it."""


@dataclass(frozen=True, slots=True)
class Sides:
    """All z with ``low <= z <= high``: (batch, n) each."""

    low: Tensor
    high: Tensor

    @property
    def centre(self) -> Tensor:
        """The middle."""
        return 0.5 * (self.low + self.high)

    @property
    def radius(self) -> Tensor:
        """Half of the widths."""
        return 0.5 * (self.high - self.low)

    @property
    def magnitude(self) -> Tensor:
        """The largest absolute values."""
        return torch.maximum(self.low.abs(), self.high.abs())

    @property
    def smallest(self) -> Tensor:
        """The least absolute values."""
        return torch.maximum(self.low, -self.high).clamp_min(0)

    def outward(self, size: Tensor) -> Sides:
        """Wider by far more than the rounding of numbers of this size, so that the checker's box lies within."""
        return Sides(self.low - SLACK * size, self.high + SLACK * size)

    def tops(self, rows: Tensor) -> Tensor:  # (batch, rows, n) -> (batch, rows)
        """The largest values of ``rows @ z``."""
        return (rows @ self.centre[..., None] + rows.abs() @ self.radius[..., None])[..., 0]


@dataclass(frozen=True, slots=True)
class Map:
    """``X = mean @ z + bias`` plus noise with independent parts, and perhaps one of the other kinds."""

    mean: Tensor  # (n_out, n_in)
    bias: Tensor  # (n_out,)
    squares: Tensor  # (n_out, n_in): variances of the independent weights
    bias_squares: Tensor  # (n_out,)
    kernel: Conv2d | None = None
    shape: tuple[int, ...] = ()  # of the input of a convolution
    factor: Tensor | None = None  # (n_out, n_in + 1, rank)
    shared: bool = False  # one noise of the factor for all outputs
    outer: tuple[Tensor, Tensor] | None = None  # A (n_out, a) and B (n_in + 1, b) of a matrix-normal law

    @property
    def by_squares(self) -> bool:
        """Whether the variances are ``squares @ z^2 + bias_squares``."""
        return self.factor is None and self.outer is None

    @property
    def independent(self) -> bool:
        """Whether no two outputs share a noise."""
        return self.kernel is None and self.outer is None and not self.shared

    def variance_range(self, box: Sides) -> tuple[Tensor, Tensor]:
        """The smallest and the largest variances on the box: (batch, n_out) each."""
        low, high = (z.square() @ self.squares.mT + self.bias_squares for z in (box.smallest, box.magnitude))
        if self.factor is not None:
            high = high + self._norms(box).square()
        if self.outer is not None:
            high = high + self.outer[0].square().sum(-1) * self._column_norm(box).square()
        return low, high

    def spread(self, rows: Tensor, middle: Tensor, wide: Tensor, std: Tensor, box: Sides) -> Tensor:
        """Squares (batch, rows) of the Lipschitz constants of ``rows @ phi(X)``, slopes of phi in middle +- wide."""
        scaled, loose = rows * middle[:, None], rows.abs() * wide[:, None]
        if self.kernel is not None:
            return self._shared_kernels(self.kernel, scaled, loose, std, box)
        if self.outer is not None:
            left = self.outer[0]
            reach = torch.linalg.vector_norm(scaled @ left, dim=-1) + loose @ torch.linalg.vector_norm(left, dim=-1)
            return (reach * self._column_norm(box)).square()
        steep = middle.abs() + wide
        if self.factor is None or not self.shared:
            return (rows * (steep * std)[:, None]).square().sum(-1)
        own = box.magnitude.square() @ self.squares.mT + self.bias_squares
        total = torch.einsum("bri,ijq->brqj", scaled, self.factor)  # (batch, rows, rank, n_in + 1)
        reach = torch.linalg.vector_norm(_on_box(total, box), dim=-1)
        reach = reach + (loose @ self._norms(box)[..., None])[..., 0]
        return ((rows * steep[:, None]).square() @ own[..., None])[..., 0] + reach.square()

    def _norms(self, box: Sides) -> Tensor:
        """Norms (batch, n_out) of the factors of each output."""
        factor = torch.empty(0) if self.factor is None else self.factor
        return torch.linalg.vector_norm(_on_box(factor.mT[None], box), dim=-1)

    def _column_norm(self, box: Sides) -> Tensor:
        """Norms (batch, 1) of ``B^T (z, 1)``."""
        right = torch.empty(0) if self.outer is None else self.outer[1]
        return torch.linalg.vector_norm(_on_box(right.mT[None], box), dim=-1)[:, None]

    def _shared_kernels(self, kernel: Conv2d, scaled: Tensor, loose: Tensor, std: Tensor, box: Sides) -> Tensor:
        """Sums over the positions first, then squares over the entries of the kernel, then channels."""
        size = (kernel.weight_mean.shape[2], kernel.weight_mean.shape[3])

        def patches(z: Tensor) -> Tensor:  # (batch, places, entries)
            image = z.unflatten(-1, self.shape)
            return functional.unfold(image, size, padding=kernel.padding, stride=kernel.stride).mT

        middle, reach = patches(box.centre), patches(box.radius)
        out = kernel.weight_mean.shape[0]
        own = scaled.unflatten(-1, (out, -1))  # (batch, rows, channels, places)
        far = (own @ middle[:, None]).abs() + own.abs() @ reach[:, None]  # (batch, rows, channels, entries)
        square = (far * kernel.weight_std.flatten(1)).square().sum(-1) + (kernel.bias_std * own.sum(-1)).square()
        extra = (loose * std[:, None]).unflatten(-1, (out, -1)).sum(-1)
        return (square.sqrt() + extra).square().sum(-1)


def _on_box(lines: Tensor, box: Sides) -> Tensor:
    """Largest absolute values of ``lines @ (z, 1)``: (batch or 1, ..., n_in + 1) -> (batch, ...)."""
    ends = functional.pad(box.centre, (0, 1), value=1.0), functional.pad(box.radius, (0, 1))
    shape = (box.low.shape[0],) + (1,) * (lines.ndim - 2) + (-1,)
    middle, reach = (end.reshape(shape) for end in ends)
    return (lines * middle).sum(-1).abs() + (lines.abs() * reach).sum(-1)


def map_of(layer: Layer, shape: tuple[int, ...]) -> Map:
    """The layer with inputs and outputs as vectors; average pooling is one without noise."""
    match layer:
        case Linear():
            return Map(layer.weight_mean, layer.bias_mean, layer.weight_std.square(), layer.bias_std.square())
        case CorrelatedLinear():
            own = layer.weight_std.square(), layer.bias_std.square()
            return Map(layer.weight_mean, layer.bias_mean, *own, factor=layer.factor, shared=layer.shared)
        case MatrixNormalLinear():
            nothing = torch.zeros_like(layer.weight_mean), torch.zeros_like(layer.bias_mean)
            return Map(layer.weight_mean, layer.bias_mean, *nothing, outer=(layer.row_factor, layer.column_factor))
        case Conv2d():

            def dense(kernel: Tensor) -> Tensor:
                return _matrix(lambda z: functional.conv2d(z, kernel, None, layer.stride, layer.padding), shape, kernel)

            mean, squares = dense(layer.weight_mean), dense(layer.weight_std.square())
            places = mean.shape[0] // layer.bias_mean.shape[0]
            bias, bias_squares = (b.repeat_interleave(places) for b in (layer.bias_mean, layer.bias_std.square()))
            return Map(mean, bias, squares, bias_squares, layer, shape)
        case AveragePool():
            pool = torch.nn.AvgPool2d(layer.size, layer.stride)
            mean = _matrix(pool, shape, torch.zeros(0, dtype=torch.float64))
            return Map(mean, mean.new_zeros(mean.shape[0]), torch.zeros_like(mean), mean.new_zeros(mean.shape[0]))
    raise UnsupportedLayerError(f"certificates do not support the layer {layer.kind!r}.")


def _matrix(function: object, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """The matrix (n_out, n_in) of a linear function of images."""
    n = math.prod(shape)
    one = torch.eye(n, dtype=torch.float64, device=like.device).reshape(n, *shape)
    return function(one).flatten(1).mT.contiguous()  # type: ignore[operator]
