r"""The proof by a chain of boxes (docs/certificates.md, section 2).

On an event of known probability all values between the layers lie in boxes. There, every linear form of the last of
them is at most an affine function of x plus M, where M is a sum of martingale differences that a Gaussian
:math:`N(0,\tau^2)` dominates in convex order: lines above and below the conditional means carry rows backward, and
what is left of each layer adds to :math:`\tau^2`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flint import arb, arb_mat

from bnndp_checker.activations import RELU, Activation, activation
from bnndp_checker.ball_arithmetic import ONE, ZERO, g, larger, parts, pdf, require, smaller, sq, upper_root
from bnndp_checker.layers import Box, Gaussian, gaussian, groups
from bnndp_checker.read_certificate import number, numbers
from bnndp_checker.read_model import ACTIVATIONS, BRANCHED, WEIGHTED, Layer, out_shape
from bnndp_checker.strict_json import expect
from bnndp_checker.tilted import Ends, line
from bnndp_checker.vectors import Vector, dot, matrix, minus, plus, product, times


@dataclass
class Form:
    """Linear forms ``rows . z + constants`` plus a part that N(0, squares) dominates, row by row."""

    rows: list[Vector]
    constants: Vector
    squares: Vector

    def through(self, mean: arb_mat, bias: Vector) -> None:
        """Put ``z = mean @ y + bias``."""
        lines = matrix(self.rows, len(bias))
        self.constants = plus(self.constants, product(lines, bias))
        self.rows = (lines * mean).tolist()


class Step(Protocol):
    """One step of the chain."""

    def back(self, form: Form) -> None:
        """Replace a form of its output by one of its input that is at least as large where nothing has failed."""
        ...


@dataclass
class Chain:
    """The steps that are proved so far, and how many events may fail."""

    start: Box
    exponent: arb  # T: every event fails with at most e^-T
    steps: list[Step] = field(default_factory=list)
    failures: int = 0

    @property
    def outside(self) -> arb:
        """At most the probability that anything has failed."""
        return smaller(self.failures * (-self.exponent).exp(), ONE)

    @property
    def reach(self) -> arb:
        """N(0, 1), and what it dominates, exceed this with at most the probability e^-T."""
        return (2 * self.exponent).sqrt()

    def form(self, rows: list[Vector], constants: Vector) -> Form:
        """The rows as forms of x that are at least as large, and the variances of the remainder."""
        found = Form(list(rows), list(constants), [ZERO] * len(rows))
        for step in reversed(self.steps):
            step.back(found)
        return found

    def exponents(self, rows: list[Vector], constants: Vector) -> Form:
        """Forms of x whose exponentials are above E exp(rows . z + constants; nothing has failed)."""
        found = Form(list(rows), list(constants), [ZERO] * len(rows))
        for index in reversed(range(len(self.steps))):
            step = self.steps[index]
            if index == 0 and isinstance(step, Fused) and step.rectified is not None:  # x is not random
                step.tilt(found, *step.rectified)
            else:
                step.back(found)
        return Form(found.rows, plus(found.constants, [square / 2 for square in found.squares]), [])

    def at_most(self, rows: list[Vector], constants: Vector) -> Vector:
        """Values that the forms exceed with at most the probability e^-T each; counts the failures."""
        found = self.form(rows, constants)
        self.failures += sum(not square.is_zero() for square in found.squares)
        tops = plus(self.start.tops(found.rows), found.constants)
        return [top + self.reach * upper_root(square) for top, square in zip(tops, found.squares, strict=True)]


@dataclass
class Fused:
    """A layer with Gaussian weights and the activation after it; or either of them alone."""

    layer: Gaussian | None
    box: Box  # of its input
    above: tuple[Vector, Vector] | None  # slopes and constants over the conditional mean, in m; None: no activation
    below: tuple[Vector, Vector] | None
    slopes: tuple[Vector, Vector]  # of the activation: within the first -+ the second
    std: Vector
    lost: Vector  # what cutting off may change in the mean
    rectified: tuple[list[Ends], list[Ends]] | None = None  # ranges of means and stds of independent ReLUs

    def tilt(self, form: Form, means: list[Ends], stds: list[Ends]) -> None:
        """The same for the logarithm of the mean exponential, where the input is not random."""
        for k, row in enumerate(form.rows):
            slopes, constants = zip(*map(line, row, means, stds), strict=True)
            form.rows[k] = list(slopes)
            form.constants[k] += sum(constants, ZERO)
        if self.layer is not None:
            form.through(self.layer.mean, self.layer.bias)

    def back(self, form: Form) -> None:
        """From the output to the input."""
        if self.layer is not None:
            extra = self.layer.spread(form.rows, *self.slopes, self.std, self.box)
            form.squares = plus(form.squares, extra)
        if self.above is not None and self.below is not None:
            for k, row in enumerate(form.rows):
                ups, downs = zip(*map(parts, row), strict=True)
                form.constants[k] += dot(ups, self.above[1]) + dot(downs, self.below[1])
                form.constants[k] += dot([abs(a) for a in row], self.lost)
                form.rows[k] = plus(times(ups, self.above[0]), times(downs, self.below[0]))
        if self.layer is not None:
            form.through(self.layer.mean, self.layer.bias)


@dataclass
class Drop:
    """Factors of mean one on values, or on groups of them."""

    box: Box
    size: int  # values in a group
    square: arb  # a factor less one is dominated by N(0, square)

    def back(self, form: Form) -> None:
        """The mean stays as it is; a group moves by its form of the values before."""
        for k, row in enumerate(form.rows):
            middle, reach = times(row, self.box.centre), times([abs(a) for a in row], self.box.radius)
            for start in range(0, len(row), self.size):
                part = slice(start, start + self.size)
                form.squares[k] += self.square * sq(abs(sum(middle[part], ZERO)) + sum(reach[part], ZERO))


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
class Joined:
    """A block of branches: their sum, or their values side by side."""

    branches: list[list[Step]]
    sizes: list[int] | None  # of the values of each branch side by side; None: their sum

    def back(self, form: Form) -> None:
        """Through every branch, and together at the input."""
        rows, found, start = list(form.rows), list[list[Vector]](), 0
        for k, steps in enumerate(self.branches):
            end = start if self.sizes is None else start + self.sizes[k]
            form.rows = [list(row) if self.sizes is None else row[start:end] for row in rows]
            start = end
            for step in reversed(steps):
                step.back(form)
            found.append(form.rows)
        require(self.sizes is None or all(len(row) == start for row in rows), "the branches are all of the values")
        form.rows = found[0]
        for other in found[1:]:
            form.rows = [plus(a, b) for a, b in zip(form.rows, other, strict=True)]


def chain(layers: Sequence[Layer], shape: tuple[int, ...], start: Box, proof: dict[str, Any]) -> tuple[Chain, Box]:
    """Prove the numbers of all given layers; the chain, and the box after them."""
    found, given = Chain(start, number(proof["exponent"])), iter(proof["steps"])
    require(found.exponent >= 1, "the exponent is at least 1")
    box = _walk(layers, shape, start, found, given)
    expect(next(given, None) is None, "the proof has more steps than the network")
    return found, box


def _walk(layers: Sequence[Layer], shape: tuple[int, ...], box: Box, proved: Chain, given: Iterator[Any]) -> Box:
    index = 0
    while index < len(layers):
        layer, before, name = layers[index], shape, f"layer {index} ({layers[index].kind})"
        shape, index = out_shape(layer, shape), index + 1
        if layer.kind in (*WEIGHTED, "average_pool"):
            curve = None
            if index < len(layers) and layers[index].kind in ACTIVATIONS:
                curve, index = activation(layers[index]), index + 1
            box = _fused(gaussian(layer, before), curve, box, proved, next(given), name)
        elif layer.kind in ACTIVATIONS:
            box = _fused(None, activation(layer), box, proved, next(given), name)
        elif layer.kind == "dropout":
            box = _dropout(layer, shape, box, proved)
        elif layer.kind == "max_pool":
            box = _maximum(groups(layer, before), box, proved, next(given), name)
        elif layer.kind in BRANCHED:
            box = _block(layer, before, box, proved, given)
    return box


def _block(layer: Layer, shape: tuple[int, ...], box: Box, proved: Chain, given: Iterator[Any]) -> Box:
    """Each branch goes on from the steps before the block, and none from those of another branch."""
    outer, branches, ends = len(proved.steps), list[list[Step]](), list[Box]()
    for branch in layer.branches:
        ends.append(_walk(branch, shape, box, proved, given))
        branches.append(proved.steps[outer:])
        del proved.steps[outer:]
    if layer.kind == "concatenate":
        proved.steps.append(Joined(branches, [len(end.low) for end in ends]))
        return Box([x for end in ends for x in end.low], [x for end in ends for x in end.high])
    proved.steps.append(Joined(branches, None))
    first, second = ends
    return Box(plus(first.low, second.low), plus(first.high, second.high))


def _fused(
    layer: Gaussian | None, curve: Activation | None, box: Box, proved: Chain, given: dict[str, Any], name: str
) -> Box:
    """Prove the ranges of means and standard deviations and the lines of one step; the box after it."""
    n = len(box.low if layer is None else layer.bias)
    zero = [ZERO] * n
    low, high = _pair(given, "mean", n)
    least, most = (zero, zero) if layer is None else _pair(given, "deviation", n)
    if layer is None:
        held = all(a <= x and y <= b for a, x, y, b in zip(low, box.low, box.high, high, strict=True))
        require(held, f"{name}: a range")
    else:
        _check_stds(layer, box, proved, least, most, name)
        _check_means(layer, box, proved, low, high, name)
        proved.failures += sum(not r.is_zero() for r in most)
    require(all(a <= b for a, b in zip(low, high, strict=True)), f"{name}: a range of means is empty")
    reach = [proved.reach * r for r in most]
    ends = Box(plus(low, minus(reach)), plus(high, reach))
    if curve is None:
        proved.steps.append(Fused(layer, box, None, None, ([ONE] * n, zero), most, zero))
        return ends
    above, below = _pair(given, "above", n), _pair(given, "below", n)
    for i in range(n):
        mean, std = (low[i], high[i]), (least[i], most[i])
        require(curve.above(mean, std, above[0][i], above[1][i], 1), f"{name}, value {i}: the line above")
        require(curve.above(mean, std, -below[0][i], -below[1][i], -1), f"{name}, value {i}: the line below")
    slopes = [curve.slopes(a, b) for a, b in zip(ends.low, ends.high, strict=True)]
    around = [(a + b) / 2 for a, b in slopes], [(b - a) / 2 for a, b in slopes]
    lost = 2 * curve.turn * g(-proved.reach, ONE)
    step = Fused(layer, box, above, below, around, most, [lost * r for r in most])
    if layer is not None and layer.independent and curve is RELU:
        step.rectified = list(zip(low, high, strict=True)), list(zip(least, most, strict=True))
    proved.steps.append(step)
    found = [curve.range(a, b) for a, b in zip(ends.low, ends.high, strict=True)]
    return Box([a for a, _ in found], [b for _, b in found])


def _pair(given: dict[str, Any], key: str, n: int) -> tuple[Vector, Vector]:
    first, second = given[key]
    return numbers(first, n, key), numbers(second, n, key)


def over_squares(box: Box, squares: list[Vector], constants: Vector) -> tuple[list[Vector], Vector]:
    """Forms of z above ``squares . z^2 + constants`` on the box: the chords of all z_j^2."""
    ends, both = plus(box.low, box.high), times(box.low, box.high)
    return [times(line, ends) for line in squares], [
        c - dot(line, both) for line, c in zip(squares, constants, strict=True)
    ]


def _check_stds(layer: Gaussian, box: Box, proved: Chain, least: Vector, most: Vector, name: str) -> None:
    """On the whole box; or, where that is too much, by the chords of the squares, which are forms of z."""
    low, high = layer.variance_range(box)
    require(all(a >= 0 and a * a <= b for a, b in zip(least, low, strict=True)), f"{name}: a least standard deviation")
    require(all(b >= 0 for b in most), f"{name}: a largest standard deviation")
    left = [i for i, (a, b) in enumerate(zip(high, most, strict=True)) if not a <= b * b]
    if left:
        require(layer.by_squares, f"{name}, value {left[0]}: the largest standard deviation")
        lines = layer.squares.tolist()
        forms = over_squares(box, [lines[i] for i in left], [layer.bias_squares[i] for i in left])
        for i, square in zip(left, proved.at_most(*forms), strict=True):
            require(square <= sq(most[i]), f"{name}, value {i}: the largest standard deviation")


def _check_means(layer: Gaussian, box: Box, proved: Chain, low: Vector, high: Vector, name: str) -> None:
    """On the whole box; or, where that is too much, as forms carried back to x."""
    rows = layer.mean.tolist() + (layer.mean * -1).tolist()
    constants, ends = [*layer.bias, *minus(layer.bias)], [*high, *minus(low)]
    tops = plus(box.tops(rows), constants)
    left = [i for i, (a, b) in enumerate(zip(tops, ends, strict=True)) if not a <= b]
    if not left:
        return
    for i, top in zip(left, proved.at_most([rows[i] for i in left], [constants[i] for i in left]), strict=True):
        require(top <= ends[i], f"{name}, value {i % len(low)}: the {'least' if i >= len(low) else 'largest'} mean")


def _dropout(layer: Layer, shape: tuple[int, ...], box: Box, proved: Chain) -> Box:
    rate = arb(float(layer.settings["rate"]))
    if rate.is_zero():
        return box
    keep, size = ONE - rate, math.prod(shape[1:]) if layer.settings["channels"] else 1
    if layer.settings["law"] == "bernoulli":
        factors = (ZERO, ONE / keep)
        square = sq(rate / pdf(arb(2).sqrt() * (2 * keep - 1).erfinv()))
    else:  # Gaussian, cut off
        square = rate / keep
        factors = (ONE - square.sqrt() * proved.reach, ONE + square.sqrt() * proved.reach)
        proved.failures += len(box.low) // size
    proved.steps.append(Drop(box, size, square))
    ends = [[a * f for a in pair for f in factors] for pair in zip(box.low, box.high, strict=True)]
    return Box([smaller(*each) for each in ends], [larger(*each) for each in ends])


def _maximum(windows: list[list[int]], box: Box, proved: Chain, given: dict[str, Any], name: str) -> Box:
    r"""Below, the chosen value of a window; above, a constant, or lines over what the others exceed it by.

    :math:`\max_iy_i\le y_c+\sum_i(y_i-y_c)_+`, and :math:`d_+-kd` is convex in d: largest at an end of its range.
    """
    above: list[tuple[dict[int, arb], arb]] = []
    chosen = given["chosen"]
    for window, at, slopes in zip(windows, chosen, given["slopes"], strict=True):
        require(type(at) is int and at in window, f"{name}: the chosen value is in its window")
        if slopes == []:
            above.append(({}, larger(*(box.high[i] for i in window))))
            continue
        line, over = {at: ONE}, ZERO
        for i, k in zip(window, numbers(slopes, len(window), "slopes"), strict=True):
            if i != at:
                ends = (box.low[i] - box.high[at], box.high[i] - box.low[at])
                over += larger(*(larger(d, ZERO) - k * d for d in ends))
                line[i] = k
                line[at] -= k
        above.append((line, over))
    proved.steps.append(Maximum(len(box.low), above, chosen))
    sides = ([larger(*(side[i] for i in window)) for window in windows] for side in (box.low, box.high))
    return Box(*sides)
