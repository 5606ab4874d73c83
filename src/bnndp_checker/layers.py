r"""Layers with Gaussian weights: the mean of their outputs as a matrix, and how far their noise can move them.

Given z, the output is :math:`X=\mu z+b+N(z)`, where the noise N(z) is linear in independent standard Gaussians and
affine in z. Wanted over a box of z: the standard deviation :math:`r_i` of every :math:`X_i`, and for rows a the
Lipschitz constant in the Gaussians of :math:`\sum_ia_i\varphi_i(X_i)`, slopes of :math:`\varphi_i` in
:math:`p_i\pm w_i`: at most :math:`\|\sum_ia_ip_iN_i\|+\sum_i|a_i|w_i\|N_i\|`, by the triangle inequality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as pairs_of

from flint import arb, arb_mat

from bnndp_checker.ball_arithmetic import ONE, ZERO, larger, sq, upper_root
from bnndp_checker.read_model import Layer, out_shape
from bnndp_checker.vectors import Vector, absolute, dot, matrix, plus, product, times


@dataclass(frozen=True)
class Box:
    """All z with ``low <= z <= high``."""

    low: Vector
    high: Vector

    @property
    def centre(self) -> Vector:
        """The middle."""
        return [(a + b) / 2 for a, b in zip(self.low, self.high, strict=True)]

    @property
    def radius(self) -> Vector:
        """Half of the widths."""
        return [(b - a) / 2 for a, b in zip(self.low, self.high, strict=True)]

    @property
    def size(self) -> Vector:
        """The largest absolute values."""
        return [larger(abs(a), abs(b)) for a, b in zip(self.low, self.high, strict=True)]

    def tops(self, rows: Sequence[Vector]) -> Vector:
        """The largest values of ``rows @ z``."""
        lines = matrix(rows, len(self.low))
        return plus(product(lines, self.centre), product(absolute(lines), self.radius))


@dataclass(frozen=True)
class Gaussian:
    """A layer; every weight has a noise of its own, and perhaps others that outputs share."""

    mean: arb_mat  # (n_out, n_in)
    bias: Vector
    squares: arb_mat  # (n_out, n_in): variances of the independent weights
    bias_squares: Vector
    kernel: tuple[list[list[int]], Vector, Vector] | None = None  # of a convolution: see _convolution
    factor: tuple[list[arb_mat], bool] | None = None  # one (rank, n_in + 1) an output, and whether the noise is shared
    product_factors: tuple[arb_mat, arb_mat] | None = None  # of a matrix-normal law: A (n_out, a), B^T (b, n_in + 1)

    @property
    def by_squares(self) -> bool:
        """Whether the variances are ``squares @ z^2 + bias_squares``."""
        return self.factor is None and self.product_factors is None

    @property
    def independent(self) -> bool:
        """Whether no two outputs share a noise."""
        shared = self.factor is not None and self.factor[1]
        return self.kernel is None and self.product_factors is None and not shared

    def variance(self, z_squares: Vector) -> Vector:
        """The part of the variances that independent weights give, for these z^2."""
        return plus(product(self.squares, z_squares), self.bias_squares)

    def variance_range(self, box: Box) -> tuple[Vector, Vector]:
        """The smallest and the largest variance of every output on the box."""
        low = self.variance([sq(larger(a, -b, ZERO)) for a, b in zip(box.low, box.high, strict=True)])
        high = self.variance([x * x for x in box.size])
        if self.factor is not None:
            high = plus(high, [sq(_norm(part, box)) for part in self.factor[0]])
        if self.product_factors is not None:
            rows, columns = self.product_factors
            size = sq(_norm(columns, box))
            high = plus(high, [dot(row, row) * size for row in rows.tolist()])
        return low, high

    def spread(self, rows: list[Vector], middle: Vector, wide: Vector, std: Vector, box: Box) -> Vector:
        """For each row the square of the Lipschitz constant, see the module; ``std`` is an upper bound of r."""
        steep = plus([abs(p) for p in middle], wide)
        scaled = [times(row, middle) for row in rows]
        loose = [[abs(a) * w for a, w in zip(row, wide, strict=True)] for row in rows]
        if self.kernel is not None:
            return self._shared_kernels(scaled, loose, std, box)
        if self.product_factors is not None:
            left, columns = self.product_factors
            size = sq(_norm(columns, box))
            norms = [upper_root(dot(row, row)) for row in left.tolist()]
            lines = (matrix(scaled, len(middle)) * left).tolist()
            return [sq(upper_root(dot(a, a)) + dot(b, norms)) * size for a, b in zip(lines, loose, strict=True)]
        if self.factor is not None and self.factor[1]:
            own = self.variance([x * x for x in box.size])
            shared = self._shared_factor(self.factor[0], scaled, loose, box)
        else:
            own, shared = [r * r for r in std], [ZERO] * len(rows)
        return [dot([x * x for x in times(row, steep)], own) + extra for row, extra in zip(rows, shared, strict=True)]

    @staticmethod
    def _shared_factor(factors: list[arb_mat], scaled: list[Vector], loose: list[Vector], box: Box) -> Vector:
        """The noise that all outputs share is one linear map."""
        norms, found = [_norm(part, box) for part in factors], []
        for line, extra in zip(scaled, loose, strict=True):
            total = factors[0] * line[0]
            for part, a in zip(factors[1:], line[1:], strict=True):
                total += part * a
            found.append(sq(_norm(total, box) + dot(extra, norms)))
        return found

    def _shared_kernels(self, scaled: list[Vector], loose: list[Vector], std: Vector, box: Box) -> Vector:
        """A kernel is the same at all positions: sums over the positions first, then squares over its entries."""
        patches, stds, bias_stds = self.kernel or ([], [], [])
        places, entries = len(patches), len(patches[0])
        centre, radius = [*box.centre, ZERO], [*box.radius, ZERO]  # index -1 is outside the image
        middle, reach = (matrix([[side[i] for i in patch] for patch in patches], entries) for side in (centre, radius))
        found = [ZERO] * len(scaled)
        for c, bias_std in enumerate(bias_stds):
            part, sigma = slice(c * places, (c + 1) * places), stds[c * entries : (c + 1) * entries]
            own = matrix([row[part] for row in scaled], places)
            far = plus([abs(a) for a in (own * middle).entries()], (absolute(own) * reach).entries())
            for k, (row, extra) in enumerate(zip(scaled, loose, strict=True)):
                line = times(sigma, far[k * entries : (k + 1) * entries])
                square = dot(line, line) + sq(bias_std * sum(row[part], ZERO))
                found[k] += sq(upper_root(square) + dot(extra[part], std[part]))
        return found


def _norm(columns: arb_mat, box: Box) -> arb:
    """An upper bound of the norm of ``columns @ (z, 1)`` on the box."""
    middle, reach = product(columns, [*box.centre, ONE]), product(absolute(columns), [*box.radius, ZERO])
    return upper_root(sum((sq(abs(a) + b) for a, b in zip(middle, reach, strict=True)), ZERO))


def gaussian(layer: Layer, shape: tuple[int, ...]) -> Gaussian:
    """The layer with its inputs and outputs as vectors; average pooling is one without noise."""
    if layer.kind == "conv2d":
        return _convolution(layer, shape)
    if layer.kind == "average_pool":
        return _average(groups(layer, shape), shape[0] * shape[1] * shape[2])
    tensors = {name: tensor.numbers() for name, tensor in layer.tensors.items()}
    n_out, n_in = layer.tensors["weight_mean"].shape
    mean, bias = arb_mat(n_out, n_in, tensors["weight_mean"]), tensors["bias_mean"]
    if layer.kind == "matrix_normal_linear":
        left = arb_mat(n_out, layer.tensors["row_factor"].shape[1], tensors["row_factor"])
        right = arb_mat(n_in + 1, layer.tensors["column_factor"].shape[1], tensors["column_factor"]).transpose()
        return Gaussian(mean, bias, arb_mat(n_out, n_in), [ZERO] * n_out, product_factors=(left, right))
    squares = arb_mat(n_out, n_in, [x * x for x in tensors["weight_std"]])
    factor = None
    if layer.kind == "correlated_linear":
        rank, values = layer.tensors["factor"].shape[2], tensors["factor"]
        size = (n_in + 1) * rank
        parts = [arb_mat(n_in + 1, rank, values[i * size : (i + 1) * size]).transpose() for i in range(n_out)]
        factor = (parts, layer.settings["shared"])
    return Gaussian(mean, bias, squares, [x * x for x in tensors["bias_std"]], factor=factor)


def _windows(layer: Layer, shape: tuple[int, ...], kernel: Sequence[int]) -> list[list[int]]:
    """For every position, row by row, the pixels of a channel in its window, -1 for those outside of the image."""
    height, width = shape[1:]
    (down, right), (above, before) = layer.settings["stride"], layer.settings.get("padding", (0, 0))
    found = []
    for top, left in pairs_of(*map(range, out_shape(layer, shape)[1:])):
        cells = [(top * down - above + i, left * right - before + j) for i, j in pairs_of(*map(range, kernel))]
        found.append([y * width + x if 0 <= y < height and 0 <= x < width else -1 for y, x in cells])
    return found


def groups(layer: Layer, shape: tuple[int, ...]) -> list[list[int]]:
    """For every output of a pooling the inputs in its window."""
    area, cells = shape[1] * shape[2], _windows(layer, shape, layer.settings["size"])
    return [[c * area + i for i in cell] for c in range(shape[0]) for cell in cells]


def _average(windows: list[list[int]], n_in: int) -> Gaussian:
    n_out, rows = len(windows), [[ZERO] * n_in for _ in windows]
    for row, window in zip(rows, windows, strict=True):
        for index in window:
            row[index] = ONE / len(window)
    return Gaussian(matrix(rows, n_in), [ZERO] * n_out, arb_mat(n_out, n_in), [ZERO] * n_out)


def _convolution(layer: Layer, shape: tuple[int, ...]) -> Gaussian:
    """As a matrix; ``kernel`` holds the indices of the window of every position (-1 outside), and the stds."""
    area, n_in = shape[1] * shape[2], shape[0] * shape[1] * shape[2]
    out, _, *kernel = layer.tensors["weight_mean"].shape
    cells = _windows(layer, shape, kernel)
    patches = [[i if i < 0 else c * area + i for c in range(shape[0]) for i in cell] for cell in cells]
    weight, std, bias, bias_std = (
        layer.tensors[name].numbers() for name in ("weight_mean", "weight_std", "bias_mean", "bias_std")
    )
    entries, mean, squares = len(patches[0]), [], []
    for c, patch in pairs_of(range(out), patches):
        means, variances = [ZERO] * n_in, [ZERO] * n_in
        for k, index in enumerate(patch):
            if index >= 0:
                means[index], variances[index] = weight[c * entries + k], sq(std[c * entries + k])
        mean.append(means)
        squares.append(variances)
    everywhere = [[x for x in values for _ in cells] for values in (bias, [x * x for x in bias_std])]
    return Gaussian(
        matrix(mean, n_in), everywhere[0], matrix(squares, n_in), everywhere[1], kernel=(patches, std, bias_std)
    )
