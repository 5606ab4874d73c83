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

from bnndp_checker.ball_arithmetic import ONE, ZERO, cdf, g, larger, parts, pdf, require, smaller, sq, upper_root
from bnndp_checker.claims import Lower
from bnndp_checker.layers import Box, Gaussian, gaussian
from bnndp_checker.read_certificate import numbers
from bnndp_checker.read_model import Layer
from bnndp_checker.strict_json import expect
from bnndp_checker.vectors import Vector, dot, matrix, minus, plus, product, times

Rows = tuple[list[Vector], Vector]  # with constants


@dataclass
class Known:
    """What is known of the outputs z of a hidden layer, for every x of the box."""

    layer: Gaussian
    low: Vector  # E z is at least
    high: Vector  # E z is at most
    square_low: Vector  # E z^2 is at least
    square: Vector  # E z^2 is at most
    variance: Vector  # Var z is at most
    square_noise: Vector  # E Var(z^2 | layer before) is at most; of the first layer the variance
    square_sd: Vector  # sd E[z^2 | layer before] is at most; of the first layer zero
    fourth: Vector  # E z^4 is at most
    noise: Vector  # E Var(z | layer before) is at most; of the first layer the variance
    planes: list[tuple[arb, arb, arb, arb]]  # above: slope, constant; below: slope, constant, in M
    slope: Vector  # p
    remainder: Vector  # sd(E[z | layer before] - p m) is at most


def moment_bounds(
    layers: Sequence[Layer], _: tuple[int, ...], box: Box, rows: list[Vector], proof: dict[str, Any]
) -> Lower:
    """Rows of the mean output of a network of linear layers with ReLUs between them."""
    kinds = [layer.kind for layer in layers]
    expect(len(kinds) > 1 and kinds == ["linear", *["relu", "linear"] * (len(kinds) // 2)], "not a dense ReLU network")
    *hidden, last = (gaussian(layer, ()) for layer in layers[::2])
    steps = iter(proof["steps"])
    first = First(hidden[0], box, next(steps))
    known = [first.known]
    for k, (layer, given) in enumerate(zip(hidden[1:], steps, strict=True), start=2):
        known.append(_layer(layer, given, first, known, f"hidden layer {k}"))
    lines = matrix([minus(row) for row in rows], len(last.bias))
    return Lower.under(*_back(((lines * last.mean).tolist(), product(lines, last.bias)), first, known), box)


class First:
    """The first hidden layer: X is exactly Gaussian, E z = g(m(x), r(x)) is convex in x."""

    def __init__(self, layer: Gaussian, box: Box, given: dict[str, Any]) -> None:
        n, self.layer, self.box, self.centre = len(layer.bias), layer, box, box.centre
        low = minus(plus(box.tops((layer.mean * -1).tolist()), minus(layer.bias)))
        high = plus(box.tops(layer.mean.tolist()), layer.bias)
        least, most = ([x.sqrt() for x in side] for side in layer.variance_range(box))
        tangents = numbers(given["tangent"], n, "tangent")
        self.below = []  # slope of m, slope of q, constant, with q = sum of sigma^2 c x
        for u, square, b in zip(
            tangents, layer.variance([c * c for c in self.centre]), layer.bias_squares, strict=True
        ):
            # r(x) r(c) >= q(x) + sigma_b^2 (Cauchy and Schwarz)
            slope = ZERO if square.is_zero() else pdf(u) / square.sqrt()
            self.below.append((cdf(u), slope, slope * b))
        self.above = self._vertices(given) if "vertices" in given else self._corners(given, low, high, least, most)
        bottom, top = (list(zip(*map(moments, *side), strict=True)) for side in ((low, least), (high, most)))
        variance, squares = ([(b - a * a).upper() for a, b in zip(*two, strict=True)] for two in (top[:2], top[1:]))
        # all these moments increase in m and in r
        self.known = Known(
            layer,
            [*bottom[0]],
            [*top[0]],
            [*bottom[1]],
            [*top[1]],
            variance,
            squares,
            [ZERO] * n,
            [*top[2]],
            variance,
            [],
            [],
            [],
        )

    def _corners(self, given: dict[str, Any], low: Vector, high: Vector, least: Vector, most: Vector) -> list[Any]:
        """``alpha m + beta r + const`` from four corners, r <= (root + s / root) / 2, and x_j^2 below its chord."""
        found = []
        both = product(self.layer.squares, times(self.box.low, self.box.high))
        alphas, betas, roots = (numbers(given[key], len(low), key) for key in ("alpha", "beta", "root"))
        for i, (alpha, beta, root) in enumerate(zip(alphas, betas, roots, strict=True)):
            require(beta >= 0 and root > 0, "a slope in r is not negative")
            corners = itertools.product((low[i], high[i]), (least[i], most[i]))
            constant = larger(*(g(m, r) - alpha * m - beta * r for m, r in corners))
            remainder = beta * (root + (self.layer.bias_squares[i] - both[i]) / root) / 2
            found.append((alpha, beta / root, constant + remainder, [ZERO] * len(self.centre)))
        return found

    def _vertices(self, given: dict[str, Any]) -> list[Any]:
        """Any slopes in x with the constant from all vertices: the function is convex."""
        require(len(self.centre) <= 10, "at most ten inputs for all vertices")
        points = list(itertools.product(*zip(self.box.low, self.box.high, strict=True)))
        means = [plus(product(self.layer.mean, point), self.layer.bias) for point in points]
        stds = [[s.sqrt() for s in self.layer.variance([x * x for x in point])] for point in points]
        found = []
        for i, _ in zip(range(len(self.layer.bias)), given["vertices"], strict=True):
            row = numbers(given["vertices"][i], len(self.centre), "vertices")
            over = [g(m[i], r[i]) - dot(row, x) for x, m, r in zip(points, means, stds, strict=True)]
            found.append((ZERO, ZERO, larger(*over), row))
        return found

    def back(self, rows: list[Vector], constants: Vector) -> Rows:
        """Upper bounds of ``rows . E z + constants`` as rows of x."""
        found, totals = [], []
        for row, constant in zip(rows, constants, strict=True):
            in_m, in_q, extra = [], [], [ZERO] * len(self.centre)
            for a, up, down in zip(row, self.above, self.below, strict=True):
                positive, negative = parts(a)
                in_m.append(positive * up[0] + negative * down[0])
                in_q.append(positive * up[1] + negative * down[1])
                constant += positive * up[2] + negative * down[2]  # noqa: PLW2901 (the sum so far)
                extra = plus(extra, [positive * slope for slope in up[3]])
            line = (matrix([in_m], len(in_m)) * self.layer.mean).tolist()[0]
            tilt = (matrix([in_q], len(in_q)) * self.layer.squares).tolist()[0]
            found.append(plus(plus(line, times(tilt, self.centre)), extra))
            totals.append(constant + dot(in_m, self.layer.bias))
        return found, totals


def moments(m: arb, r: arb) -> tuple[arb, arb, arb]:
    """E z, E z^2 and E z^4 of z = max(m + r xi, 0)."""
    if r.is_zero():
        z = larger(m, ZERO)
        return z, sq(z), sq(sq(z))
    p, d, a, b, c = cdf(m / r), pdf(m / r), sq(m), sq(r), m * r
    return m * p + r * d, (a + b) * p + c * d, (sq(a) + 6 * sq(c) + 3 * sq(b)) * p + c * (a + 5 * b) * d


def _back(given: Rows, first: First, known: list[Known]) -> Rows:
    """Upper bounds of ``rows . E z + constants`` of the last known layer as rows of x."""
    rows, constants = given
    for layer in reversed(known[1:]):
        lines, totals = [], []
        slope_up, over, slope_down, under = zip(*layer.planes, strict=True)
        for row, constant in zip(rows, constants, strict=True):
            ups, downs = zip(*map(parts, row), strict=True)
            lines.append(plus(times(ups, slope_up), times(downs, slope_down)))
            totals.append(constant + dot(ups, over) + dot(downs, under) + dot(lines[-1], layer.layer.bias))
        rows, constants = (matrix(lines, len(layer.low)) * layer.layer.mean).tolist(), totals
    return first.back(rows, constants)


def _best(*bounds: arb) -> arb:
    """The smallest of the upper ends: an upper bound of what all of these bound, however wide one of the balls is."""
    return smaller(*(bound.upper() for bound in bounds))


def _scarf(mean: arb, variance: arb) -> arb:
    """E max(X, 0) is at most this for any X of at most this mean and variance (Scarf 1958)."""
    return (mean + upper_root(sq(mean) + variance)) / 2


def _row_variance(rows: list[Vector], known: list[Known]) -> Vector:
    """Upper bounds of Var(rows . z) of the last known layer: from standard deviations, or given the layer before it."""
    last = known[-1]
    if len(known) == 1:
        return [dot([a * a for a in row], last.variance) for row in rows]
    lines = matrix([times(row, last.slope) for row in rows], len(last.low))
    linear = _row_variance((lines * last.layer.mean).tolist(), known[:-1])
    found = []
    for row, square in zip(rows, linear, strict=True):
        size = [abs(a) for a in row]
        given = dot(times(size, size), last.noise) + sq(upper_root(square) + dot(size, last.remainder))
        found.append(_best(given, sq(dot(size, [upper_root(v) for v in last.variance]))))
    return found


def _layer(layer: Gaussian, given: dict[str, Any], first: First, known: list[Known], name: str) -> Known:
    """Prove the ranges of the means of a layer after the first, and bound its moments."""
    z, n = known[-1], len(layer.bias)
    low, high = (numbers(side, n, "mean") for side in given["mean"])
    rows, squares = layer.mean.tolist(), layer.squares.tolist()
    for sign, ends in ((1, high), (-1, low)):
        signed = [[sign * a for a in row] for row in rows], [sign * b for b in layer.bias]
        back, constants = _back(signed, first, known)
        tops, plain = plus(first.box.tops(back), constants), plus(Box(z.low, z.high).tops(signed[0]), signed[1])
        for i, end in enumerate(ends):
            require(smaller(tops[i], plain[i]) <= sign * end, f"{name}, value {i}: the range of the mean")
    spread, spread_low = layer.variance(z.square), layer.variance(z.square_low)  # E s is between them
    jensen = layer.variance([x * x for x in z.low])
    moved = _row_variance(rows, known)  # Var m, at most
    uneven = [dot(times(row, row), z.square_noise) + sq(dot(row, z.square_sd)) for row in squares]  # Var s, at most
    if len(known) == 1:  # the z are independent, and E (z - E z)^4 <= 3 r^4 (ReLU is 1-Lipschitz)
        most = [3 * x * x for x in z.layer.variance_range(first.box)[1]]
        far = [upper_root(dot([sq(sq(a)) for a in row], most) + 3 * v * v) for row, v in zip(rows, moved, strict=True)]
    else:  # |m - E m|_4^2, at most
        far = [sq(dot([abs(a) for a in row], [upper_root(upper_root(x)) for x in z.fourth])) for row in rows]
    tangents, levels, slopes, middles, centres, reaches = (
        numbers(given[key], n, key) for key in ("tangent", "level", "slope", "middle", "centre", "reach")
    )
    found = Known(layer, *([] for _ in range(12)))
    for i in range(n):
        m, s0, s1, p, reach = (low[i], high[i]), levels[i], middles[i], centres[i], reaches[i]
        require(s0 > 0 and s1 > 0 and reach > 0 and 0 <= p <= 1, f"{name}, value {i}: a level, the reach or the centre")
        root, std, sd = s0.sqrt(), jensen[i].sqrt(), upper_root(moved[i])
        excess = _scarf(spread[i] - s0, uneven[i])  # E (s - s0)_+
        total = spread[i] + moved[i]  # Var X
        # E z is at most these two, which are convex and increase in M
        above = [(_scarf(end, total), g(end, root) + pdf(ZERO) / 2 * (excess + moved[i]) / root) for end in m]
        over = [
            larger(*(value - slopes[i] * end for value, end in zip(both, m, strict=True)))
            for both in zip(*above, strict=True)
        ]
        found.planes.append((slopes[i], _best(*over), cdf(tangents[i]), pdf(tangents[i]) * std))
        least = g(m[0], std)
        square = _best(sq(larger(m[1], ZERO)) + total, moments(m[1], root)[1] + moved[i] + excess)
        variance = _best(total, square - sq(least))
        centred, squared = sq(sq(larger(m[1], ZERO) + upper_root(far[i]))), sq(spread[i]) + uneven[i]
        fourth = centred + 6 * (centred * squared).sqrt() + 3 * squared
        # given the layer before: E z = g(m, sqrt s), and E z^2, of slope 2 g and curvature at most 2 in m, 1 in s
        wide, root = larger(p, ONE - p), s1.sqrt()
        inside = larger(cdf((m[1] + reach) / root) - p, p - cdf((m[0] - reach) / root), ZERO)
        slip = _best(wide * sd, inside * sd + wide * far[i] / reach)
        off = larger(abs(spread[i] - s1), abs(spread_low[i] - s1))
        apart = upper_root(uneven[i] + sq(off))  # the norm of s - s1
        square_sd = apart + 2 * g(m[1], root) * sd + far[i]
        found.low.append(least)
        found.high.append(_best(*above[1], upper_root(square)))
        found.square_low.append(sq(least))
        found.square.append(square)
        found.variance.append(variance)
        found.square_noise.append(4 * (spread[i] * square + upper_root(uneven[i]) * square_sd))  # Poincare
        found.square_sd.append(square_sd)
        found.fourth.append(fourth)
        found.noise.append(_best(spread[i], variance))
        found.slope.append(p)
        found.remainder.append(slip + pdf(ZERO) * apart / root)
    return found
