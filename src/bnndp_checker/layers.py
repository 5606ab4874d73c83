r"""Layers with Gaussian weights: the mean of their outputs as a matrix, and how far their noise can move them.

Given z, the output is :math:`X=\mu z+b+N(z)`, where the noise N(z) is linear in independent standard Gaussians and
affine in z. Wanted over a box of z: the standard deviation :math:`r_i` of every :math:`X_i`, and for rows a the
Lipschitz constant in the Gaussians of :math:`\sum_ia_i\varphi_i(X_i)`, slopes of :math:`\varphi_i` in
:math:`p_i\pm w_i`: at most :math:`\|\sum_ia_ip_iN_i\|+` what w adds, by the triangle inequality.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flint import arb, arb_mat

from bnndp_checker.balls import ONE, ZERO, absolute, dot, larger, matrix, product, smaller
from bnndp_checker.reading import Layer, Tensor, Unreadable, out_shape

__all__ = ["Box", "Gaussian", "gaussian", "windows"]

Vector = list[arb]


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

    def top(self, row: Vector, constant: arb) -> arb:
        """The largest value of ``row . z + constant``."""
        return dot(row, self.centre) + dot([abs(x) for x in row], self.radius) + constant

    def tops(self, rows: arb_mat) -> Vector:
        """The largest values of ``rows @ z``."""
        middle, reach = product(rows, self.centre), product(absolute(rows), self.radius)
        return [a + b for a, b in zip(middle, reach, strict=True)]


@dataclass(frozen=True)
class Gaussian:
    """A layer; every noise has independent parts in each weight, and perhaps one of the others."""

    mean: arb_mat  # (n_out, n_in)
    bias: Vector
    squares: arb_mat  # (n_out, n_in): variances of the independent weights
    bias_squares: Vector
    kernel: tuple[list[list[int]], int, Vector, Vector] | None = None  # of a convolution: see _convolution
    factor: tuple[list[arb_mat], bool] | None = None  # one (rank, n_in + 1) an output, and whether the noise is shared
    product_factors: tuple[arb_mat, arb_mat] | None = None  # of a matrix-normal law: A (n_out, a), B^T (b, n_in + 1)

    @property
    def random(self) -> bool:
        """Whether there is any noise."""
        some = [*self.squares.entries(), *self.bias_squares]
        return bool(self.factor or self.product_factors) or not all(x.is_zero() for x in some)

    @property
    def by_squares(self) -> bool:
        """Whether the variances are ``squares @ z^2 + bias_squares``."""
        return self.factor is None and self.product_factors is None

    def deviations(self, box: Box) -> tuple[Vector, Vector]:
        """Squares of the least and the largest deviation of every output on the box."""
        most = [larger(a * a, b * b) for a, b in zip(box.low, box.high, strict=True)]
        least = [larger(larger(a, -b), ZERO) ** 2 for a, b in zip(box.low, box.high, strict=True)]
        low, high = (
            [a + b for a, b in zip(product(self.squares, ends), self.bias_squares, strict=True)]
            for ends in (least, most)
        )
        if self.factor is not None:
            high = [a + _norm(part, box) ** 2 for a, part in zip(high, self.factor[0], strict=True)]
        if self.product_factors is not None:
            rows, columns = self.product_factors
            size = _norm(columns, box) ** 2
            high = [a + dot(row, row) * size for a, row in zip(high, rows.tolist(), strict=True)]
        return low, high

    def spread(self, rows: list[Vector], middle: Vector, wide: Vector, deviation: Vector, box: Box) -> Vector:
        """For each row the square of the Lipschitz constant, see the module; ``deviation`` is at least r_i."""
        steep = [(abs(p) + w) * r for p, w, r in zip(middle, wide, deviation, strict=True)]
        scaled = [[a * p for a, p in zip(row, middle, strict=True)] for row in rows]
        loose = [[abs(a) * w for a, w in zip(row, wide, strict=True)] for row in rows]
        if self.kernel is not None:
            return self._shared_kernels(scaled, loose, deviation, box)
        if self.product_factors is not None:
            left, columns = self.product_factors
            size = _norm(columns, box) ** 2
            norms = [dot(row, row).sqrt() for row in left.tolist()]
            lines = (matrix(scaled, len(middle)) * left).tolist()
            return [(dot(a, a).sqrt() + dot(b, norms)) ** 2 * size for a, b in zip(lines, loose, strict=True)]
        if self.factor is not None and self.factor[1]:
            return self._shared_factor(rows, scaled, loose, [abs(p) + w for p, w in zip(middle, wide, strict=True)], box)
        return [sum(((a * s) ** 2 for a, s in zip(row, steep, strict=True)), ZERO) for row in rows]

    def _shared_factor(
        self, rows: list[Vector], scaled: list[Vector], loose: list[Vector], steep: Vector, box: Box
    ) -> Vector:
        """Independent parts add in squares; the noise that all outputs share is one linear map."""
        factors = self.factor[0] if self.factor is not None else []
        most = [larger(a * a, b * b) for a, b in zip(box.low, box.high, strict=True)]
        own = [a + b for a, b in zip(product(self.squares, most), self.bias_squares, strict=True)]
        norms = [_norm(part, box) for part in factors]
        found = []
        for row, line, rest in zip(rows, scaled, loose, strict=True):
            total = sum((part * a for part, a in zip(factors[1:], line[1:], strict=True)), factors[0] * line[0])
            shared = _norm(total, box) + dot(rest, norms)
            found.append(dot([(a * s) ** 2 for a, s in zip(row, steep, strict=True)], own) + shared**2)
        return found

    def _shared_kernels(self, scaled: list[Vector], loose: list[Vector], deviation: Vector, box: Box) -> Vector:
        """A kernel is the same at all positions: sums over the positions first, then squares over its entries."""
        patches, channels, stds, bias_stds = self.kernel or ([], 0, [], [])
        places = len(patches)
        centre, radius = [*box.centre, ZERO], [*box.radius, ZERO]  # index -1 is outside the image
        middle = matrix([[centre[i] for i in patch] for patch in patches], len(patches[0]))
        reach = matrix([[radius[i] for i in patch] for patch in patches], len(patches[0]))
        found = [ZERO] * len(scaled)
        for c in range(channels):
            part = slice(c * places, (c + 1) * places)
            own = matrix([row[part] for row in scaled], places)
            far = [abs(a) + b for a, b in zip((own * middle).entries(), (absolute(own) * reach).entries(), strict=True)]
            entries = len(patches[0])
            sigma = stds[c * entries : (c + 1) * entries]
            for k, (row, rest) in enumerate(zip(scaled, loose, strict=True)):
                line = [(s * a) ** 2 for s, a in zip(sigma, far[k * entries : (k + 1) * entries], strict=True)]
                square = sum(line, ZERO) + (bias_stds[c] * sum(row[part], ZERO)) ** 2
                found[k] += (square.sqrt() + dot(rest[part], deviation[part])) ** 2
        return found


def _norm(columns: arb_mat, box: Box) -> arb:
    """An upper bound of the norm of ``columns @ (z, 1)`` on the box."""
    middle = product(columns, [*box.centre, ONE])
    reach = product(absolute(columns), [*box.radius, ZERO])
    return sum(((abs(a) + b) ** 2 for a, b in zip(middle, reach, strict=True)), ZERO).sqrt()


def gaussian(layer: Layer, shape: tuple[int, ...]) -> Gaussian:
    """The layer with its inputs and outputs as vectors; average pooling is one without noise."""
    tensors = layer.tensors
    out_shape(layer, shape)
    if layer.kind in ("conv2d", "average_pool"):
        return _convolution(layer, shape)
    n_out, n_in = tensors["weight_mean"].shape
    mean = arb_mat(n_out, n_in, tensors["weight_mean"].numbers())
    bias = _sized(tensors["bias_mean"], (n_out,))
    if layer.kind == "matrix_normal_linear":
        a, b = tensors["row_factor"], tensors["column_factor"]
        left = arb_mat(n_out, a.shape[1], _sized(a, (n_out, a.shape[1])))
        right = arb_mat(n_in + 1, b.shape[1], _sized(b, (n_in + 1, b.shape[1]))).transpose()
        return Gaussian(mean, bias, arb_mat(n_out, n_in), [ZERO] * n_out, product_factors=(left, right))
    squares = arb_mat(n_out, n_in, [x * x for x in _sized(tensors["weight_std"], (n_out, n_in))])
    bias_squares = [x * x for x in _sized(tensors["bias_std"], (n_out,))]
    factor = None
    if layer.kind == "correlated_linear":
        given, rank = tensors["factor"], tensors["factor"].shape[2]
        values, size = _sized(given, (n_out, n_in + 1, rank)), (n_in + 1) * rank
        parts = [arb_mat(n_in + 1, rank, values[i * size : (i + 1) * size]).transpose() for i in range(n_out)]
        factor = (parts, layer.settings["shared"] is True)
    return Gaussian(mean, bias, squares, bias_squares, factor=factor)


def _sized(tensor: Tensor, shape: tuple[int, ...]) -> Vector:
    if tensor.shape != shape:
        raise Unreadable(f"a tensor has the shape {tensor.shape}, it must have {shape}")
    return tensor.numbers()


def windows(
    shape: tuple[int, ...], kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> list[list[tuple[int, int, int]]]:
    """For every position, row by row, the (offset in the kernel, row, column) of the pixels in its window."""
    _, height, width = shape
    rows, columns = ((n + 2 * p - k) // s + 1 for n, p, k, s in zip(shape[1:], padding, kernel, stride, strict=True))
    found = []
    for top in range(rows):
        for left in range(columns):
            cells = []
            for i in range(kernel[0]):
                for j in range(kernel[1]):
                    y, x = top * stride[0] - padding[0] + i, left * stride[1] - padding[1] + j
                    if 0 <= y < height and 0 <= x < width:
                        cells.append((i * kernel[1] + j, y, x))
            found.append(cells)
    return found


def _convolution(layer: Layer, shape: tuple[int, ...]) -> Gaussian:
    """As a matrix; ``kernel`` holds, for every position, the indices of its window (-1 outside), and the deviations."""
    into, height, width = shape
    pooling = layer.kind == "average_pool"
    out, (tall, broad) = (into, layer.settings["size"]) if pooling else (
        layer.tensors["weight_mean"].shape[0], layer.tensors["weight_mean"].shape[2:]
    )  # fmt: skip
    cells = windows(shape, (tall, broad), layer.settings["stride"], layer.settings.get("padding", (0, 0)))
    area, n_in, places = tall * broad, into * height * width, len(cells)
    patches = []
    for position in cells:
        patch = [-1] * (into * area)
        for offset, y, x in position:
            for c in range(into):
                patch[c * area + offset] = (c * height + y) * width + x
        patches.append(patch)
    if pooling:
        share = ONE / area
        rows = [[ZERO] * n_in for _ in range(out * places)]
        for c in range(into):
            for p, patch in enumerate(patches):
                for index in patch[c * area : (c + 1) * area]:
                    rows[c * places + p][index] = share
        return Gaussian(matrix(rows, n_in), [ZERO] * len(rows), arb_mat(len(rows), n_in), [ZERO] * len(rows))
    tensors, size = layer.tensors, into * area
    weight, std = tensors["weight_mean"].numbers(), _sized(tensors["weight_std"], tensors["weight_mean"].shape)
    bias, bias_std = (_sized(tensors[name], (out,)) for name in ("bias_mean", "bias_std"))
    mean, squares = ([ZERO] * (out * places * n_in) for _ in range(2))
    for c in range(out):
        for p, patch in enumerate(patches):
            start = (c * places + p) * n_in
            for k, index in enumerate(patch):
                if index >= 0:
                    mean[start + index] = weight[c * size + k]
                    squares[start + index] = std[c * size + k] ** 2
    spread = [x for x in bias for _ in range(places)]
    return Gaussian(
        arb_mat(out * places, n_in, mean), spread, arb_mat(out * places, n_in, squares),
        [x * x for x in bias_std for _ in range(places)], kernel=(patches, out, std, bias_std),
    )  # fmt: skip
