r"""The proof by moments, for dense ReLU networks with independent weights (docs/certificates.md, section 4).

Layer by layer, over the box: ranges of :math:`M=\mathbb EX` by rows carried back to x, then from S = E s, Var s and
Var m bounds of :math:`\mathbb E z` that are lines in M, and of the second and fourth moments of z. Nothing is cut off:
the bounds hold on the whole support of the weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flint import arb

from bnndp_checker.balls import ONE, ZERO, cdf, dot, g, larger, matrix, parts, pdf, product, require, smaller
from bnndp_checker.claims import Lower
from bnndp_checker.layers import Box, Gaussian, gaussian
from bnndp_checker.reading import Layer, Unreadable, numbers

__all__ = ["moment_bounds"]

Vector = list[arb]


@dataclass
class Known:
    """What is known of the outputs z of a hidden layer, for every x of the box."""

    layer: Gaussian
    low: Vector  # E z is at least
    high: Vector  # E z is at most
    square_low: Vector  # E z^2 is at least
    square: Vector  # E z^2 is at most
    variance: Vector  # Var z is at most
    square_variance: Vector  # Var z^2 is at most
    fourth: Vector  # E z^4 is at most
    noise: Vector  # E Var(z | layer before) is at most; of the first layer the variance
    planes: list[tuple[arb, arb, arb, arb]]  # above: slope, constant; below: slope, constant, in M
    slope: Vector  # p
    rest: Vector  # sd(E[z | layer before] - p m) is at most


def moment_bounds(
    layers: Sequence[Layer], shape: tuple[int, ...], box: Box, rows: list[Vector], proof: dict[str, Any]
) -> Lower:
    """Rows of the mean output of a network of linear layers with ReLUs between them."""
    if any(layer.kind != ("relu" if i % 2 else "linear") for i, layer in enumerate(layers)) or len(layers) < 3:
        raise Unreadable("the proof by moments is for dense ReLU networks")
    *hidden, last = (gaussian(layer, (layer.tensors["weight_mean"].shape[1],)) for layer in layers[::2])
    require(len(proof["steps"]) == len(hidden), "one step for each hidden layer")
    first = First(hidden[0], box, proof["steps"][0])
    known = [first.known]
    for k, (layer, given) in enumerate(zip(hidden[1:], proof["steps"][1:], strict=True), start=2):
        known.append(_layer(layer, given, first, known, f"hidden layer {k}"))
    lines = matrix([[-a for a in row] for row in rows], len(last.bias))
    back, constants = _back((lines * last.mean).tolist(), product(lines, last.bias), first, known)
    slopes = [[-a for a in row] for row in back]
    tops = box.tops(matrix(back, len(box.low)))
    return Lower(slopes, [-c for c in constants], [-c - t for c, t in zip(constants, tops, strict=True)])


class First:
    """The first hidden layer: X is exactly Gaussian, E z = g(m(x), r(x)) is convex in x."""

    def __init__(self, layer: Gaussian, box: Box, given: dict[str, Any]) -> None:
        n, self.layer, self.box, self.centre = len(layer.bias), layer, box, box.centre
        require(layer.by_squares and layer.kernel is None, "the first layer has independent weights")
        low, high = ([sign * (a + sign * b) for a, b in zip(box.tops(layer.mean * sign), layer.bias, strict=True)] for sign in (-1, 1))
        least, most = ([x.sqrt() for x in side] for side in layer.deviations(box))
        at = [a + b for a, b in zip(product(layer.squares, [c * c for c in self.centre]), layer.bias_squares, strict=True)]
        tangents = numbers(given["tangent"], n, "tangent")
        self.below = []  # slope of m, slope of q, constant, with q = sum of sigma^2 c x
        for u, r, b in zip(tangents, at, layer.bias_squares, strict=True):
            slope = ZERO if r.is_zero() else pdf(u) / r.sqrt()  # r(x) r(c) >= q(x) + sigma_b^2 (Cauchy and Schwarz)
            self.below.append((cdf(u), slope, slope * b))
        self.above = self._vertices(given) if "vertices" in given else self._corners(given, low, high, least, most)
        ends = [(moments(a, r), moments(b, s)) for a, b, r, s in zip(low, high, least, most, strict=True)]
        variance = [b[1] - b[0] ** 2 for _, b in ends]  # all these moments increase in m and in r
        self.known = Known(
            layer, [a[0] for a, _ in ends], [b[0] for _, b in ends], [a[1] for a, _ in ends], [b[1] for _, b in ends],
            variance, [b[2] - b[1] ** 2 for _, b in ends], [b[2] for _, b in ends], variance, [], [], [],
        )  # fmt: skip

    def _corners(self, given: dict[str, Any], low: Vector, high: Vector, least: Vector, most: Vector) -> list[Any]:
        """``alpha m + beta r + const`` from four corners, r <= (root + s / root) / 2, and x_j^2 below its chord."""
        n, found = len(low), []
        both = product(self.layer.squares, [a * b for a, b in zip(self.box.low, self.box.high, strict=True)])
        alphas, betas, roots = (numbers(given[key], n, key) for key in ("alpha", "beta", "root"))
        for i, (alpha, beta, root) in enumerate(zip(alphas, betas, roots, strict=True)):
            require(beta >= 0 and root > 0, "a slope in r is not negative")
            corners = itertools.product((low[i], high[i]), (least[i], most[i]))
            constant = -_least([alpha * m + beta * r - g(m, r) for m, r in corners])
            rest = beta * (root + (self.layer.bias_squares[i] - both[i]) / root) / 2
            found.append((alpha, beta / root, constant + rest, None))
        return found

    def _vertices(self, given: dict[str, Any]) -> list[Any]:
        """Any slopes in x with the constant from all vertices: the function is convex."""
        require(len(self.box.low) <= 10, "at most ten inputs for all vertices")
        points = list(itertools.product(*zip(self.box.low, self.box.high, strict=True)))
        found = []
        for i, slopes in enumerate(given["vertices"]):
            row = numbers(slopes, len(self.box.low), "vertices")
            mean, squares = self.layer.mean.tolist()[i], self.layer.squares.tolist()[i]
            values = [
                dot(row, point)
                - g(dot(mean, point) + self.layer.bias[i], (dot(squares, [x * x for x in point]) + self.layer.bias_squares[i]).sqrt())
                for point in points
            ]
            found.append((ZERO, ZERO, -_least(values), row))
        require(len(found) == len(self.layer.bias), "one row of slopes for each value")
        return found

    def back(self, rows: list[Vector], constants: Vector) -> tuple[list[Vector], Vector]:
        """Upper bounds of ``rows . E z + constants`` as rows of x."""
        firsts, seconds, extras = [], [], []
        constants = list(constants)
        for k, row in enumerate(rows):
            first, second, extra = [], [], [ZERO] * len(self.centre)
            for a, up, down in zip(row, self.above, self.below, strict=True):
                positive, negative = parts(a)
                first.append(positive * up[0] + negative * down[0])
                second.append(positive * up[1] + negative * down[1])
                constants[k] += positive * up[2] + negative * down[2]
                if up[3] is not None:
                    extra = [x + positive * y for x, y in zip(extra, up[3], strict=True)]
            firsts.append(first)
            seconds.append(second)
            extras.append(extra)
            constants[k] += dot(first, self.layer.bias)
        n = len(self.layer.bias)
        lines = (matrix(firsts, n) * self.layer.mean).tolist()
        tilts = (matrix(seconds, n) * self.layer.squares).tolist()
        found = []
        for line, tilt, extra in zip(lines, tilts, extras, strict=True):
            found.append([a + b * c + e for a, b, c, e in zip(line, tilt, self.centre, extra, strict=True)])
        return found, constants


def moments(m: arb, r: arb) -> tuple[arb, arb, arb]:
    """E z, E z^2 and E z^4 of z = max(m + r xi, 0)."""
    if r.is_zero():
        z = larger(m, ZERO)
        return z, z**2, z**4
    p, d = cdf(m / r), pdf(m / r)
    return (
        m * p + r * d,
        (m**2 + r**2) * p + m * r * d,
        (m**4 + 6 * m**2 * r**2 + 3 * r**4) * p + (m**3 * r + 5 * m * r**3) * d,
    )


def _least(values: Sequence[arb]) -> arb:
    found = values[0]
    for value in values[1:]:
        found = smaller(found, value)
    return found


def _back(rows: list[Vector], constants: Vector, first: First, known: list[Known]) -> tuple[list[Vector], Vector]:
    """Upper bounds of ``rows . E z + constants`` of the last known layer as rows of x."""
    for layer in reversed(known[1:]):
        lines = []
        constants = list(constants)
        for k, row in enumerate(rows):
            line = []
            for a, (up, over, down, under) in zip(row, layer.planes, strict=True):
                positive, negative = parts(a)
                line.append(positive * up + negative * down)
                constants[k] += positive * over + negative * under
            constants[k] += dot(line, layer.layer.bias)
            lines.append(line)
        rows = (matrix(lines, len(layer.layer.bias)) * layer.layer.mean).tolist()
    return first.back(rows, constants)


def _scarf(mean: arb, variance: arb) -> arb:
    """E max(X, 0) is at most this for any X of at most this mean and variance (Scarf 1958)."""
    return (mean + (mean**2 + variance).sqrt()) / 2


def _row_variance(rows: list[Vector], known: list[Known]) -> Vector:
    """Upper bounds of Var(rows . z) of the last known layer: by deviations, or given the layer before it."""
    last, *below = known[-1], *known[:-1]
    if not below:
        return [dot([a * a for a in row], last.variance) for row in rows]
    sds = [v.sqrt() for v in last.variance]
    lines = [[a * p for a, p in zip(row, last.slope, strict=True)] for row in rows]
    linear = _row_variance((matrix(lines, len(sds)) * last.layer.mean).tolist(), known[:-1])
    found = []
    for row, square in zip(rows, linear, strict=True):
        size = [abs(a) for a in row]
        given = dot([a * a for a in row], last.noise) + (square.sqrt() + dot(size, last.rest)) ** 2
        found.append(smaller(given, dot(size, sds) ** 2))
    return found


def _layer(layer: Gaussian, given: dict[str, Any], first: First, known: list[Known], name: str) -> Known:
    """Prove the ranges of the means of a layer after the first, and bound its moments."""
    z, n, second = known[-1], len(layer.bias), len(known) == 1
    low, high = (numbers(side, n, "mean") for side in given["mean"])
    rows = layer.mean.tolist()
    for sign, ends in ((1, high), (-1, low)):
        back, constants = _back([[sign * a for a in row] for row in rows], [sign * b for b in layer.bias], first, known)
        tops = first.box.tops(matrix(back, len(first.centre)))
        for i, (top, constant) in enumerate(zip(tops, constants, strict=True)):
            plain = sum((larger(sign * a * x, sign * a * y) for a, x, y in zip(rows[i], z.low, z.high, strict=True)), sign * layer.bias[i])
            require(smaller(top + constant, plain) <= sign * ends[i], f"{name}, value {i}: the range of the mean")
    spread = [a + b for a, b in zip(product(layer.squares, z.square), layer.bias_squares, strict=True)]  # E s, at most
    spread_low = [a + b for a, b in zip(product(layer.squares, z.square_low), layer.bias_squares, strict=True)]
    jensen = [a + b for a, b in zip(product(layer.squares, [x * x for x in z.low]), layer.bias_squares, strict=True)]
    if second:
        uneven = [dot([a * a for a in row], z.square_variance) for row in layer.squares.tolist()]  # Var s, at most
    else:
        uneven = [x**2 for x in product(layer.squares, [v.sqrt() for v in z.square_variance])]
    moved = _row_variance(rows, known)  # Var m, at most
    if second:  # E (m - E m)^4: independent terms, and E (z - E z)^4 <= 3 r^4 (ReLU is 1-Lipschitz)
        most = [3 * x * x for x in z.layer.deviations(first.box)[1]]
        far = [(dot([a**4 for a in row], most) + 3 * v * v).sqrt() for row, v in zip(rows, moved, strict=True)]
    else:
        far = [dot([abs(a) for a in row], [x.root(4) for x in z.fourth]) ** 2 for row in rows]
    tangents, levels, slopes, centres, reaches = (
        numbers(given[key], n, key) for key in ("tangent", "level", "slope", "centre", "reach")
    )
    found = Known(layer, *([] for _ in range(11)))
    half = pdf(ZERO) / 2
    for i in range(n):
        m, s0, p, u = (low[i], high[i]), levels[i], centres[i], tangents[i]
        require(s0 > 0 and reaches[i] > 0 and 0 <= p <= 1, f"{name}, value {i}: the level, reach or centre")
        root = s0.sqrt()
        excess = _scarf(spread[i] - s0, uneven[i])  # E (s - s0)_+
        total = spread[i] + moved[i]
        above = [[_scarf(end, total), g(end, root) + half * (excess + moved[i]) / root] for end in m]
        constant = _least([larger(above[0][k] - slopes[i] * m[0], above[1][k] - slopes[i] * m[1]) for k in range(2)])
        deviation = jensen[i].sqrt()
        found.planes.append((slopes[i], constant, cdf(u), pdf(u) * deviation))
        found.low.append(larger(g(m[0], deviation), ZERO))
        square = smaller(larger(m[1], ZERO) ** 2 + total, moments(m[1], root)[1] + moved[i] + excess)
        found.high.append(smaller(_least(above[1]), square.sqrt()))
        found.square.append(square)
        found.square_low.append(found.low[i] ** 2)
        found.variance.append(smaller(total, square - found.low[i] ** 2))
        fourth = (larger(m[1], ZERO) + far[i].sqrt()) ** 4
        squares = spread[i] ** 2 + uneven[i]
        found.fourth.append(fourth + 6 * (fourth * squares).sqrt() + 3 * squares)
        found.square_variance.append(found.fourth[i] - found.square_low[i] ** 2)
        found.noise.append(smaller(spread[i], found.variance[i]))
        sd, wide = moved[i].sqrt(), larger(p, ONE - p)
        inside = larger(cdf((m[1] + reaches[i]) / root) - p, p - cdf((m[0] - reaches[i]) / root))
        slip = smaller(wide * sd, larger(inside, ZERO) * sd + wide * far[i] / reaches[i])
        off = larger(abs(spread[i] - s0), abs(s0 - spread_low[i]))
        found.slope.append(p)
        found.rest.append(slip + 2 * half * (uneven[i] + off**2).sqrt() / root)
    return found
