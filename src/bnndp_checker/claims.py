r"""From forms on the chain to the claim: rows of the mean output, or of the mean softmax, are at least given numbers.

A bound of one network is an affine function of x, so that those of the members of an ensemble are added before the
worst x of the region is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flint import arb

from bnndp_checker.activations import activation
from bnndp_checker.ball_arithmetic import ONE, ZERO, larger, require, smaller, upper_root
from bnndp_checker.chain import Chain, Form, chain, over_squares
from bnndp_checker.layers import Box, Gaussian, gaussian, groups
from bnndp_checker.read_certificate import number, numbers
from bnndp_checker.read_model import ACTIVATIONS, BRANCHED, Layer, out_shape
from bnndp_checker.strict_json import expect
from bnndp_checker.vectors import Vector, absolute, dot, matrix, minus, plus, product

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Lower:
    """For each row of a claim: an affine function of x below it on the box, and a number below it."""

    slopes: list[Vector]
    constants: Vector
    least: Vector

    @classmethod
    def under(cls, rows: list[Vector], constants: Vector, box: Box) -> Lower:
        """What follows where ``rows . x + constants`` is above the opposite of the claim."""
        return cls([minus(row) for row in rows], minus(constants), minus(plus(box.tops(rows), constants)))


def _prove(layers: Sequence[Layer], shape: Shape, box: Box, proof: dict[str, Any]) -> tuple[Chain, Box, Gaussian]:
    """The chain of all layers but the last with weights, the box after it, and that last layer."""
    at = max(i for i, layer in enumerate(layers) if layer.kind != "flatten")
    proved, end = chain(layers[:at], shape, box, proof)
    for layer in layers[:at]:
        shape = out_shape(layer, shape)
    return proved, end, gaussian(layers[at], shape)


def _form(proved: Chain, last: Gaussian, rows: list[Vector]) -> Form:
    """Rows of the outputs, without the noise of the last layer."""
    lines = matrix(rows, len(last.bias))
    return proved.form((lines * last.mean).tolist(), product(lines, last.bias))


def _range(form: Form, box: Box) -> tuple[Vector, Vector]:
    """Least and largest value of the affine parts on the box of x."""
    bottoms = box.tops([minus(row) for row in form.rows])
    return plus(form.constants, minus(bottoms)), plus(form.constants, box.tops(form.rows))


def mean_bounds(layers: Sequence[Layer], shape: Shape, box: Box, rows: list[Vector], proof: dict[str, Any]) -> Lower:
    r"""Rows of the mean output.

    :math:`\mathbb E S\le top+|top|\delta+(\tau+\|S\|_2)\sqrt\delta` for S = -row . f, outside of the boxes with
    probability :math:`\delta` (Cauchy and Schwarz).
    """
    proved, _, last = _prove(layers, shape, box, proof)
    form = _form(proved, last, [minus(row) for row in rows])
    if proved.failures:
        sizes, delta = norms(layers, shape, box.size), proved.outside
        for k, (low, high) in enumerate(zip(*_range(form, box), strict=True)):
            whole = dot([abs(a) for a in rows[k]], sizes)
            form.constants[k] += larger(abs(low), abs(high)) * delta + (
                upper_root(form.squares[k]) + whole
            ) * upper_root(delta)
    return Lower.under(form.rows, form.constants, box)


def norms(layers: Sequence[Layer], shape: Shape, sizes: Vector) -> Vector:
    r"""Bounds of :math:`\|z_i\|_2=(\mathbb E z_i^2)^{1/2}` after the layers, by Minkowski's inequality."""
    for layer in layers:
        if layer.kind in ACTIVATIONS:
            curve = activation(layer)
            at = ZERO if curve.within is None else curve.within[0]
            start = abs(curve.value(at)) + curve.error + abs(at) * curve.steepest
            sizes = [start + curve.steepest * size for size in sizes]
        elif layer.kind == "dropout":  # E B^2 = 1 / (1 - rate)
            sizes = [size / (ONE - arb(float(layer.settings["rate"]))).sqrt() for size in sizes]
        elif layer.kind == "max_pool":
            sizes = [sum((sizes[i] for i in window), ZERO) for window in groups(layer, shape)]
        elif layer.kind in BRANCHED:
            ends = [norms(branch, shape, sizes) for branch in layer.branches]
            sizes = [size for end in ends for size in end] if layer.kind == "concatenate" else plus(*ends)
        elif layer.kind != "flatten":
            weights = gaussian(layer, shape)
            _, squares = weights.variance_range(Box(minus(sizes), sizes))
            means = plus(product(absolute(weights.mean), sizes), [abs(b) for b in weights.bias])
            sizes = plus(means, [upper_root(square) for square in squares])
        shape = out_shape(layer, shape)
    return sizes


def softmax_bounds(layers: Sequence[Layer], shape: Shape, box: Box, rows: list[Vector], proof: dict[str, Any]) -> Lower:
    r"""Rows of the mean softmax, from the forms :math:`S_l=\zeta_l-\zeta_c` of a class c.

    *Union*: :math:`a\cdot p\ge a_c-\sum_l(a_c-a_l)_+\sigma(S_l)`, and :math:`\mathbb E\sigma(S_l)` is below a chord.
    *Corner*: :math:`S_l\le h_l` for all l but rarely; then :math:`p_c-p_j\ge(1-e^{h_j})/(1+\sum e^{h_l})`.
    """
    proved, end, last = _prove(layers, shape, box, proof)
    final, classes = proof["final"], len(last.bias)
    c = final["reference"]
    expect(type(c) is int and 0 <= c < classes, "the reference is one of the classes")
    expect(all(len(row) == classes for row in rows), "a row has one number for each class")
    others = [j for j in range(classes) if j != c]
    pairs = [[ONE if i == j else -ONE if i == c else ZERO for i in range(classes)] for j in others]
    form = _form(proved, last, pairs)
    noise = numbers(final["noise"], len(others), "noise")
    _check_noise(last, end, proved, pairs, noise)  # before the failures are counted
    form.squares = plus(form.squares, noise)
    _, high = _range(form, box)
    tilts = numbers(final["tilts"], len(others), "tilts")
    raised = proved.exponents(*_tilted(last, end, pairs, noise, tilts))
    chords = [_chord(*each, proved.outside) for each in zip(tilts, *_range(raised, box), strict=True)]
    corner = number(final["exponent"])
    require(corner > 0, "the exponent of the corner is positive")
    outside = smaller(proved.outside + len(others) * (-corner).exp(), ONE)
    most = [(h + upper_root(2 * corner * square)).exp() for h, square in zip(high, form.squares, strict=True)]
    lines, constants, apart = [], [], []
    for row in rows:
        weights = [larger(row[c] - row[j], ZERO) for j in others]
        tilted = [w * slope for w, (slope, _) in zip(weights, chords, strict=True)]
        lines.append(
            [dot(tilted, column) for column in zip(*raised.rows, strict=True)] if others else [ZERO] * len(box.low)
        )
        constants.append(dot(weights, [over for _, over in chords]) + dot(tilted, raised.constants) - row[c])
        known = [smaller(*row)]
        for k, pair in enumerate(pairs):
            if most[k] <= 1 and all(a == -b for a, b in zip(row, pair, strict=True)):
                known.append((ONE - outside) * (ONE - most[k]) / sum(most, ONE) - outside)
        apart.append(larger(*known))
    found = Lower.under(lines, constants, box)
    return Lower(found.slopes, found.constants, [larger(a, b) for a, b in zip(found.least, apart, strict=True)])


def _tilted(last: Gaussian, box: Box, pairs: list[Vector], noise: Vector, tilts: Vector) -> tuple[list[Vector], Vector]:
    """Forms of the last box above the logarithm of the mean of ``exp(tilt S)`` given it, S the difference of a pair."""
    lines, n = matrix(pairs, len(last.bias)), len(box.low)
    rows, constants = (lines * last.mean).tolist(), product(lines, last.bias)
    squares, extra = [[ZERO] * n for _ in pairs], noise
    if last.by_squares and last.kernel is None:
        both = [[a * a for a in pair] for pair in pairs]
        squares, extra = over_squares(
            box, (matrix(both, len(last.bias)) * last.squares).tolist(), [dot(pair, last.bias_squares) for pair in both]
        )
    found = [
        [t * a + t * t / 2 * b for a, b in zip(row, square, strict=True)]
        for t, row, square in zip(tilts, rows, squares, strict=True)
    ]
    return found, [t * a + t * t / 2 * b for t, a, b in zip(tilts, constants, extra, strict=True)]


def _chord(tilt: arb, low: arb, high: arb, outside: arb) -> tuple[arb, arb]:
    r"""Slope and constant of a line in t above E sigma(S), where E exp(tilt S) is at most e^t, for low <= t <= high.

    :math:`\sigma(S)\le\lambda^\lambda(1-\lambda)^{1-\lambda}e^{\lambda S}`; e^t is below its chord from low to high.
    """
    require(0 < tilt <= 1, "a tilt lies between 0 and 1")
    complement = ONE - tilt
    scale = tilt * tilt.log() + (ZERO if complement.is_zero() else complement * complement.log())
    bottom, top = ((scale + end).exp() for end in (low, high))
    slope = (top - bottom) / (high - low)
    if not slope > 0:  # an interval of no width
        slope = ZERO
    return slope, top - slope * high + outside


def _check_noise(last: Gaussian, box: Box, proved: Chain, pairs: list[Vector], noise: Vector) -> None:
    """Variances of the differences of two logits given the layer before; on the box, or by chords of the squares."""
    _, high = last.variance_range(box)
    n = len(high)
    found = last.spread(pairs, [ONE] * n, [ZERO] * n, [upper_root(x) for x in high], box)
    left = [k for k, (a, b) in enumerate(zip(found, noise, strict=True)) if not a <= b]
    if not left:
        return
    require(last.by_squares and last.kernel is None, "the noise of the last layer")
    both = [[a * a for a in pairs[k]] for k in left]
    lines = (matrix(both, n) * last.squares).tolist()
    forms = over_squares(box, lines, [dot(pair, last.bias_squares) for pair in both])
    for k, top in zip(left, proved.at_most(*forms), strict=True):
        require(top <= noise[k], "the noise of the last layer")
