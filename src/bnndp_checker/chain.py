r"""The proof by a chain of boxes (docs/certificates.md, section 2).

On an event of known probability all values between the layers lie in boxes. There, every linear form of the last of
them is at most an affine function of x plus M, where M is a sum of martingale differences that a Gaussian
:math:`N(0,\tau^2)` dominates in convex order: planes above and below the conditional means carry rows backward, and
what is left of each layer adds to :math:`\tau^2`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flint import arb, arb_mat

from bnndp_checker.activations import Activation, activation
from bnndp_checker.balls import ONE, ZERO, dot, g, larger, matrix, parts, pdf, product, require, smaller
from bnndp_checker.layers import Box, Gaussian, gaussian, windows
from bnndp_checker.reading import ACTIVATIONS, WEIGHTED, Layer, Unreadable, numbers, out_shape

__all__ = ["Chain", "Form", "chain"]

Vector = list[arb]


@dataclass
class Form:
    """Linear forms ``rows . z + constants`` plus a part that N(0, squares) dominates, row by row."""

    rows: list[Vector]
    constants: Vector
    squares: Vector

    def through(self, mean: arb_mat, bias: Vector) -> None:
        """Put ``z = mean @ y + bias``."""
        lines = matrix(self.rows, len(bias))
        self.constants = [a + b for a, b in zip(self.constants, product(lines, bias), strict=True)]
        self.rows = (lines * mean).tolist()


@dataclass(frozen=True)
class Lines:
    """Slopes and constants of one line for each value."""

    slope: Vector
    constant: Vector


@dataclass
class Chain:
    """The steps that are proved so far, and the probability that something was outside its box."""

    start: Box
    exponent: arb  # T: every event fails with at most e^-T
    steps: list[Any] = field(default_factory=list)
    failures: int = 0

    @property
    def outside(self) -> arb:
        """At most the probability that a value is outside."""
        return smaller(self.failures * (-self.exponent).exp(), ONE)

    @property
    def reach(self) -> arb:
        """N(0, 1), and what it dominates, exceed this with at most the probability e^-T."""
        return (2 * self.exponent).sqrt()

    def form(self, rows: list[Vector], constants: Vector) -> Form:
        """The rows as forms of x that are at least as large, and the squares of the deviations of the rest."""
        found = Form(list(rows), list(constants), [ZERO] * len(rows))
        for step in reversed(self.steps):
            step.back(found)
        return found

    def at_most(self, rows: list[Vector], constants: Vector) -> Vector:
        """Values that the forms exceed with at most the probability e^-T each; counts the failures."""
        found = self.form(rows, constants)
        self.failures += sum(not square.is_zero() for square in found.squares)
        tops = _sum(self.start.tops(matrix(found.rows, len(self.start.low))), found.constants)
        return [a + self.reach * square.sqrt() for a, square in zip(tops, found.squares, strict=True)]


@dataclass
class Fused:
    """A layer with Gaussian weights and the activation after it; or either of them alone."""

    layer: Gaussian | None
    box: Box  # of its input
    above: Lines | None  # of the conditional mean, in the mean m of the pre-activation; None: no activation
    below: Lines | None
    middle: Vector  # slopes of the activation are within middle +- wide
    wide: Vector
    deviation: Vector
    lost: Vector  # what clipping may change in the mean

    def back(self, form: Form) -> None:
        """From the output to the input."""
        if self.layer is not None:
            extra = self.layer.spread(form.rows, self.middle, self.wide, self.deviation, self.box)
            form.squares = [a + b for a, b in zip(form.squares, extra, strict=True)]
        if self.above is not None and self.below is not None:
            _lines(form, self.above, self.below, self.lost)
        if self.layer is not None:
            form.through(self.layer.mean, self.layer.bias)


def _lines(form: Form, above: Lines, below: Lines, lost: Sequence[arb]) -> None:
    """An upper bound: positive coefficients meet the line above, negative ones that below."""
    planes = list(zip(above.slope, above.constant, below.slope, below.constant, lost, strict=True))
    for k, row in enumerate(form.rows):
        line, total = [], form.constants[k]
        for a, (up, over, down, under, extra) in zip(row, planes, strict=True):
            positive, negative = parts(a)
            line.append(positive * up + negative * down)
            total += positive * over + negative * under + abs(a) * extra
        form.rows[k], form.constants[k] = line, total


@dataclass
class Drop:
    """Factors of mean one on values, or on groups of them."""

    box: Box
    size: int  # values in a group
    square: arb  # a factor less one is dominated by N(0, square)

    def back(self, form: Form) -> None:
        """The mean stays as it is; a group moves by its form of the values before."""
        centre, radius = self.box.centre, self.box.radius
        for k, row in enumerate(form.rows):
            middle = [a * b for a, b in zip(row, centre, strict=True)]
            reach = [abs(a) * b for a, b in zip(row, radius, strict=True)]
            for start in range(0, len(row), self.size):
                part = slice(start, start + self.size)
                form.squares[k] += (abs(sum(middle[part], ZERO)) + sum(reach[part], ZERO)) ** 2 * self.square


@dataclass
class Maximum:
    """The largest value of each window: lines in the values of the window, above and below."""

    n_in: int
    above: list[tuple[dict[int, arb], arb]]
    below: list[int]

    def back(self, form: Form) -> None:
        """Positive coefficients meet the line above, negative ones the chosen value below."""
        for k, row in enumerate(form.rows):
            line = [ZERO] * self.n_in
            for a, (up, over), at in zip(row, self.above, self.below, strict=True):
                positive, negative = parts(a)
                form.constants[k] += positive * over
                for index, slope in up.items():
                    line[index] += positive * slope
                line[at] += negative
            form.rows[k] = line


@dataclass
class Added:
    """A residual block: its input is added to its output."""

    steps: list[Any]

    def back(self, form: Form) -> None:
        """Both ways, and together at the input."""
        straight = list(form.rows)
        for step in reversed(self.steps):
            step.back(form)
        form.rows = [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(form.rows, straight, strict=True)]


def chain(layers: Sequence[Layer], shape: tuple[int, ...], start: Box, proof: dict[str, Any]) -> tuple[Chain, Box]:
    """Prove the numbers of all given layers; the chain, and the box after them."""
    (exponent,) = numbers([proof["exponent"]], 1, "exponent")
    require(exponent >= 1, "the exponent is at least 1")
    found, given = Chain(start, exponent), iter(proof["steps"])
    box, _ = _walk(list(layers), shape, start, found, given)
    if next(given, None) is not None:
        raise Unreadable("the proof has more steps than the network")
    return found, box


def _walk(
    layers: list[Layer], shape: tuple[int, ...], box: Box, proved: Chain, given: Iterator[Any]
) -> tuple[Box, tuple[int, ...]]:
    index = 0
    while index < len(layers):
        layer, before, name = layers[index], shape, f"layer {index} ({layers[index].kind})"
        shape, index = out_shape(layer, shape), index + 1
        if layer.kind in WEIGHTED or layer.kind == "average_pool":
            curve = None
            if index < len(layers) and layers[index].kind in ACTIVATIONS:
                curve, index = activation(layers[index]), index + 1
            box = _fused(gaussian(layer, before), curve, box, proved, next(given), name)
        elif layer.kind in ACTIVATIONS:
            box = _fused(None, activation(layer), box, proved, next(given), name)
        elif layer.kind == "dropout":
            box = _dropout(layer, shape, box, proved)
        elif layer.kind == "max_pool":
            box = _maximum(layer, before, box, proved, next(given), name)
        elif layer.kind == "residual":
            outer = len(proved.steps)
            inner, _ = _walk(list(layer.inner), shape, box, proved, given)
            proved.steps[outer:] = [Added(proved.steps[outer:])]
            box = Box(_sum(box.low, inner.low), _sum(box.high, inner.high))
    return box, shape


def _sum(a: Vector, b: Vector) -> Vector:
    return [x + y for x, y in zip(a, b, strict=True)]


def _fused(
    layer: Gaussian | None, curve: Activation | None, box: Box, proved: Chain, given: dict[str, Any], name: str
) -> Box:
    """Prove the ranges of means and deviations and the lines of one step; the box after it."""
    n = len(box.low) if layer is None else len(layer.bias)
    zero = [ZERO] * n
    low, high = _pair(given, "mean", n)
    if layer is None:
        least = most = zero
        for i in range(n):
            require(low[i] <= box.low[i] and box.high[i] <= high[i], f"{name}, value {i}: the range")
    else:
        least, most = _pair(given, "deviation", n)
        _check_deviations(layer, box, proved, least, most, name)
        _check_means(layer, box, proved, low, high, name)
        proved.failures += sum(not r.is_zero() for r in most)
    reach, ends = proved.reach, []
    for a, b, r in zip(low, high, most, strict=True):
        require(a <= b, f"{name}: a range of means is empty")
        ends.append((a - reach * r, b + reach * r))
    if curve is None:
        proved.steps.append(Fused(layer, box, None, None, [ONE] * n, zero, most, zero))
        return Box([a for a, _ in ends], [b for _, b in ends])
    above, below = Lines(*_pair(given, "above", n)), Lines(*_pair(given, "below", n))
    slopes = [curve.slopes(a, b) for a, b in ends]
    lost = 2 * curve.steepest() * g(-reach, ONE)
    for i in range(n):
        m, r = (low[i], high[i]), (least[i], most[i])
        require(curve.above(m, r, above.slope[i], above.constant[i], 1), f"{name}, value {i}: the line above")
        require(curve.above(m, r, -below.slope[i], -below.constant[i], -1), f"{name}, value {i}: the line below")
    middle, wide = [(a + b) / 2 for a, b in slopes], [(b - a) / 2 for a, b in slopes]
    proved.steps.append(Fused(layer, box, above, below, middle, wide, most, [lost * r for r in most]))
    found = [curve.range(a, b) for a, b in ends]
    return Box([a for a, _ in found], [b for _, b in found])


def _pair(given: dict[str, Any], key: str, n: int) -> tuple[Vector, Vector]:
    first, second = given[key]
    return numbers(first, n, key), numbers(second, n, key)


def _check_deviations(layer: Gaussian, box: Box, proved: Chain, least: Vector, most: Vector, name: str) -> None:
    """On the whole box; or, where that is too much, by the chords of the squares, which are forms of z."""
    low, high = layer.deviations(box)
    for i, (a, b) in enumerate(zip(least, low, strict=True)):
        require(a >= 0 and a * a <= b, f"{name}, value {i}: the least deviation")
    left = [i for i, (a, b) in enumerate(zip(high, most, strict=True)) if not (b >= 0 and a <= b * b)]
    if not left:
        return
    require(layer.by_squares, f"{name}, value {left[0]}: the largest deviation")
    ends = _sum(box.low, box.high)
    both = [a * b for a, b in zip(box.low, box.high, strict=True)]
    lines = layer.squares.tolist()
    rows = [[v * e for v, e in zip(lines[i], ends, strict=True)] for i in left]
    constants = [layer.bias_squares[i] - dot(lines[i], both) for i in left]
    for i, square in zip(left, proved.at_most(rows, constants), strict=True):
        require(most[i] >= 0 and square <= most[i] ** 2, f"{name}, value {i}: the largest deviation")


def _check_means(layer: Gaussian, box: Box, proved: Chain, low: Vector, high: Vector, name: str) -> None:
    """On the whole box; or, where that is too much, as forms carried back to x."""
    lines, claims = layer.mean.tolist(), []
    for sign, ends in ((1, high), (-1, low)):
        tops = box.tops(layer.mean * sign)
        claims += [(sign, i) for i in range(len(ends)) if not tops[i] + sign * layer.bias[i] <= sign * ends[i]]
    if not claims:
        return
    rows = [[sign * a for a in lines[i]] for sign, i in claims]
    found = proved.at_most(rows, [sign * layer.bias[i] for sign, i in claims])
    for (sign, i), top in zip(claims, found, strict=True):
        end = high[i] if sign > 0 else low[i]
        require(top <= sign * end, f"{name}, value {i}: the {'largest' if sign > 0 else 'least'} mean")


def _dropout(layer: Layer, shape: tuple[int, ...], box: Box, proved: Chain) -> Box:
    rate, law = arb(layer.settings["rate"]), layer.settings["law"]
    if rate.is_zero():
        return box
    require(0 < rate < 1, "the rate of dropout")
    keep, size = ONE - rate, math.prod(shape[1:]) if layer.settings["channels"] else 1
    if law == "bernoulli":  # two points: N(0, square) dominates where a tangent of its mean excess meets theirs
        factors = (ZERO, ONE / keep)
        square = (rate / pdf(arb(2).sqrt() * (2 * keep - 1).erfinv())) ** 2
    elif law == "gaussian":
        square = rate / keep
        factors = (ONE - square.sqrt() * proved.reach, ONE + square.sqrt() * proved.reach)
        proved.failures += len(box.low) // size
    else:
        raise Unreadable(f"unknown law of dropout {law!r:.60}")
    proved.steps.append(Drop(box, size, square))
    ends = [[a * f for a in pair for f in factors] for pair in zip(box.low, box.high, strict=True)]
    return Box([-max_of([-x for x in each]) for each in ends], [max_of(each) for each in ends])


def _maximum(
    layer: Layer, shape: tuple[int, ...], box: Box, proved: Chain, given: dict[str, Any], name: str
) -> Box:
    r"""Below, the chosen value of a window; above, a constant, or lines over what the others exceed it by.

    :math:`\max_iy_i\le y_c+\sum_i(y_i-y_c)_+`, and :math:`d_+-kd` is convex in d: largest at an end of its range.
    """
    channels, height, width = shape
    cells = windows(shape, layer.settings["size"], layer.settings["stride"], (0, 0))
    groups = [[(c * height + y) * width + x for _, y, x in cell] for c in range(channels) for cell in cells]
    above, low, high = [], [], []
    for group, at, slopes in zip(groups, given["chosen"], given["slopes"], strict=True):
        require(at in group, f"{name}: the chosen value is in its window")
        low.append(max_of([box.low[i] for i in group]))
        high.append(max_of([box.high[i] for i in group]))
        lines, over = {at: ONE}, ZERO
        for i, k in zip(group, numbers(slopes, len(group), "slopes") if slopes else [], strict=bool(slopes)):
            if i != at:
                ends = (box.low[i] - box.high[at], box.high[i] - box.low[at])
                over += max_of([larger(d, ZERO) - k * d for d in ends])
                lines[i] = k
                lines[at] -= k
        above.append((lines, over) if slopes else ({}, high[-1]))
    proved.steps.append(Maximum(len(box.low), above, list(given["chosen"])))
    return Box(low, high)


def max_of(values: Vector) -> arb:
    """The largest of several numbers."""
    found = values[0]
    for value in values[1:]:
        found = larger(found, value)
    return found
