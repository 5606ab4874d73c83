r"""From forms on the chain to the claim: rows of the mean output, or of the mean softmax, are at least given numbers.

A bound of one network is an affine function of x, so that those of the members of an ensemble are added before the
worst x of the region is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flint import arb

from bnndp_checker.activations import activation
from bnndp_checker.balls import ONE, ZERO, absolute, dot, larger, matrix, product, require, smaller
from bnndp_checker.chain import Chain, Form, chain, max_of
from bnndp_checker.layers import Box, Gaussian, gaussian, windows
from bnndp_checker.reading import ACTIVATIONS, Layer, Unreadable, number, numbers, out_shape

__all__ = ["Lower", "mean_bounds", "softmax_bounds"]

Vector = list[arb]


@dataclass
class Lower:
    """For each row of a claim: an affine function of x below it on the box, and a number below it."""

    slopes: list[Vector]
    constants: Vector
    least: Vector


def _prove(layers: Sequence[Layer], shape: tuple[int, ...], box: Box, proof: dict[str, Any]) -> tuple[Chain, Box, Gaussian]:
    """The chain of all layers but the last with weights, the box after it, and that last layer."""
    *hidden, last = (layer for layer in layers) if layers[-1].kind != "flatten" else layers[:-1]
    proved, end = chain(hidden, shape, box, proof)
    for layer in hidden:
        shape = out_shape(layer, shape)
    return proved, end, gaussian(last, shape)


def _rows(layer: Gaussian, rows: list[Vector]) -> tuple[list[Vector], Vector]:
    """Rows of the outputs as rows of the inputs of the last layer, and constants."""
    lines = matrix(rows, len(layer.bias))
    return (lines * layer.mean).tolist(), product(lines, layer.bias)


def _range(form: Form, box: Box) -> tuple[Vector, Vector]:
    """Least and largest value of the affine parts on the box of x."""
    lines = matrix(form.rows, len(box.low))
    tops, bottoms = box.tops(lines), box.tops(lines * -1)
    return (
        [c - b for c, b in zip(form.constants, bottoms, strict=True)],
        [c + t for c, t in zip(form.constants, tops, strict=True)],
    )


def mean_bounds(
    layers: Sequence[Layer], shape: tuple[int, ...], box: Box, rows: list[Vector], proof: dict[str, Any]
) -> Lower:
    r"""Rows of the mean output.

    :math:`\mathbb E S\le top+|top|\delta+(\tau+\|S\|_2)\sqrt\delta` for S = -row . f, outside of the boxes with
    probability :math:`\delta` (Cauchy and Schwarz).
    """
    proved, _, last = _prove(layers, shape, box, proof)
    lines, constants = _rows(last, [[-a for a in row] for row in rows])
    form = proved.form(lines, constants)
    low, high = _range(form, box)
    if proved.failures:
        size = norms(layers, shape, [larger(abs(a), abs(b)) for a, b in zip(box.low, box.high, strict=True)])
        delta = proved.outside
        for k, row in enumerate(rows):
            whole = dot([abs(a) for a in row], size)
            top = larger(abs(low[k]), abs(high[k]))
            form.constants[k] += top * delta + (form.squares[k].sqrt() + whole) * delta.sqrt()
    slopes, constants = [[-a for a in row] for row in form.rows], [-c for c in form.constants]
    return Lower(slopes, constants, [c - t for c, t in zip(constants, box.tops(matrix(form.rows, len(box.low))), strict=True)])


def softmax_bounds(
    layers: Sequence[Layer], shape: tuple[int, ...], box: Box, rows: list[Vector], proof: dict[str, Any]
) -> Lower:
    r"""Rows of the mean softmax, from the forms :math:`S_l=\zeta_l-\zeta_c` of a class c.

    *Union*: :math:`a\cdot p\ge a_c-\sum_l(a_c-a_l)_+\sigma(S_l)`, :math:`\sigma(S)\le\lambda^\lambda(1-\lambda)^{1-\lambda}
    e^{\lambda S}`, and the exponential is below its chord over the range of the form.
    *Corner*: :math:`S_l\le h_l` for all l but with a small probability; then :math:`p_c-p_j\ge(1-e^{h_j})/\sum e^{h_l}`.
    """
    proved, end, last = _prove(layers, shape, box, proof)
    final, classes = proof["final"], len(last.bias)
    c = final["reference"]
    if not (isinstance(c, int) and 0 <= c < classes) or any(len(row) != classes for row in rows):
        raise Unreadable("the reference class or the rows do not fit the classes")
    others = [l for l in range(classes) if l != c]
    pairs = [[ONE if i == l else -ONE if i == c else ZERO for i in range(classes)] for l in others]
    form = proved.form(*_rows(last, pairs))
    noise = numbers(final["noise"], len(others), "noise")
    _check_noise(last, end, proved, pairs, noise)
    squares = [a + b for a, b in zip(form.squares, noise, strict=True)]
    low, high = _range(form, box)
    tilts = numbers(final["tilts"], len(others), "tilts")
    delta, chords = proved.outside, []
    for k, tilt in enumerate(tilts):
        require(0 < tilt <= 1, "a tilt lies between 0 and 1")
        rest = ONE - tilt
        scale = tilt * tilt.log() + (ZERO if rest.is_zero() else rest * rest.log()) + tilt**2 * squares[k] / 2
        bottom, top = ((scale + tilt * end_).exp() for end_ in (low[k], high[k]))
        width = high[k] - low[k]
        slope = (top - bottom) / width if width > 0 else ZERO
        chords.append((slope, top - slope * high[k] + delta) if slope > 0 else (ZERO, top + delta))
    corner = number(final["exponent"])
    require(corner > 0, "the exponent of the corner is positive")
    outside = smaller(delta + len(others) * (-corner).exp(), ONE)
    most = [(h + (2 * corner * s).sqrt()).exp() for h, s in zip(high, squares, strict=True)]
    total = sum(most, ONE)
    found = Lower([], [], [])
    for row in rows:
        weights = [larger(row[c] - row[l], ZERO) for l in others]
        found.constants.append(row[c] - dot(weights, [b for _, b in chords]))
        slopes = [-sum((w * s * line[i] for w, (s, _), line in zip(weights, chords, form.rows, strict=True)), ZERO) for i in range(len(box.low))]
        shift = dot([w * s for w, (s, _) in zip(weights, chords, strict=True)], form.constants)
        found.constants[-1] -= shift
        found.slopes.append(slopes)
        least = found.constants[-1] - box.top([-a for a in slopes], ZERO)
        for k, l in enumerate(others):
            if most[k] <= 1 and all(row[i] == (1 if i == c else -1 if i == l else 0) for i in range(classes)):
                least = larger(least, (ONE - outside) * (ONE - most[k]) / total - outside)
        found.least.append(larger(least, min_of(row)))
    return found


def _check_noise(last: Gaussian, box: Box, proved: Chain, pairs: list[Vector], noise: Vector) -> None:
    """Variances of the differences of two logits given the layer before; on the box, or by chords of the squares."""
    _, high = last.deviations(box)
    n = len(high)
    found = last.spread(pairs, [ONE] * n, [ZERO] * n, [x.sqrt() for x in high], box)
    left = [k for k, (a, b) in enumerate(zip(found, noise, strict=True)) if not a <= b]
    if not left:
        return
    require(last.by_squares and last.kernel is None, "the noise of the last layer")
    ends = [a + b for a, b in zip(box.low, box.high, strict=True)]
    both = [a * b for a, b in zip(box.low, box.high, strict=True)]
    lines = (matrix([[a * a for a in pairs[k]] for k in left], n) * last.squares).tolist()
    constants = [dot([a * a for a in pairs[k]], last.bias_squares) - dot(line, both) for k, line in zip(left, lines, strict=True)]
    rows = [[v * e for v, e in zip(line, ends, strict=True)] for line in lines]
    for k, top in zip(left, proved.at_most(rows, constants), strict=True):
        require(top <= noise[k], "the noise of the last layer")


def min_of(values: Vector) -> arb:
    """The smallest of several numbers."""
    return -max_of([-value for value in values])


def norms(layers: Sequence[Layer], shape: tuple[int, ...], sizes: Vector) -> Vector:
    r"""Bounds of :math:`\|z_i\|_2=(\mathbb E z_i^2)^{1/2}` after the layers, by Minkowski's inequality."""
    for layer in layers:
        if layer.kind in ACTIVATIONS:
            curve = activation(layer)
            at = ZERO if curve.within is None else curve.within[0]
            start, steep = abs(curve.value(at)) + curve.error + abs(at) * curve.steepest(), curve.steepest()
            sizes = [start + steep * size for size in sizes]
        elif layer.kind == "dropout":
            rate = arb(layer.settings["rate"])
            sizes = [size / (ONE - rate).sqrt() for size in sizes]  # E B^2 = 1 / (1 - rate)
        elif layer.kind == "max_pool":
            _, height, width = shape
            cells = windows(shape, layer.settings["size"], layer.settings["stride"], (0, 0))
            sizes = [
                sum((sizes[(c * height + y) * width + x] for _, y, x in cell), ZERO) for c in range(shape[0]) for cell in cells
            ]
        elif layer.kind == "residual":
            sizes = [a + b for a, b in zip(sizes, norms(layer.inner, shape, sizes), strict=True)]
        elif layer.kind != "flatten":
            weights = gaussian(layer, shape)
            _, squares = weights.deviations(Box([-a for a in sizes], sizes))
            means = product(absolute(weights.mean), sizes)
            sizes = [m + abs(b) + s.sqrt() for m, b, s in zip(means, weights.bias, squares, strict=True)]
        shape = out_shape(layer, shape)
    return sizes
