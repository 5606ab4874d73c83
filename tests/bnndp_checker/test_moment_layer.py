"""Lines below and above the mean of a second hidden layer in the proof by moments, where that mean is known exactly.

Without variance in the first layer and in the weights of the second, a value of the second is a rectified Gaussian of
the deviation of its bias.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from support.handmade import hexed, rectified

pytest.importorskip("flint", reason="the checker needs python-flint")
from flint import arb, arb_mat

from bnndp_checker.ball_arithmetic import use_precision
from bnndp_checker.layers import Box, Gaussian
from bnndp_checker.moment import First, _layer


@pytest.fixture(autouse=True)
def _as_the_checker_works() -> None:
    use_precision()


def layer(weight: list[list[float]], bias: list[float], bias_std: list[float]) -> Gaussian:
    n_out, n_in = len(weight), len(weight[0])
    mean = arb_mat(n_out, n_in, [arb(x) for row in weight for x in row])
    return Gaussian(mean, [arb(x) for x in bias], arb_mat(n_out, n_in), [arb(x) ** 2 for x in bias_std])


@pytest.mark.parametrize("seed", range(6))
def test_lines_and_moments_hold(seed: int) -> None:
    dice = random.Random(seed)

    def draw(*shape: int) -> list[Any]:
        return (
            [draw(*shape[1:]) for _ in range(shape[0])]
            if len(shape) > 1
            else [dice.uniform(-1, 1) for _ in range(shape[0])]
        )

    n, low, high = 3, [0.1, -0.3], [0.3, 0.2]
    box = Box([arb(x) for x in low], [arb(x) for x in high])
    w1, b1, w2, b2 = draw(4, 2), draw(4), draw(n, 4), draw(n)
    std = [dice.uniform(0.2, 1.0) for _ in range(n)]
    given = hexed({"tangent": [0.0] * 4, "alpha": [0.5] * 4, "beta": [0.0] * 4, "root": [1.0] * 4})
    first = First(layer(w1, b1, [0.0] * 4), box, given)
    tangents = [dice.uniform(-1, 1) for _ in range(n)]
    step = {
        "mean": [[-9.0] * n, [9.0] * n], "tangent": tangents, "level": [s * s for s in std], "slope": [0.6] * n,
        "middle": [s * s for s in std], "centre": [0.5] * n, "reach": [1.0] * n,
    }  # fmt: skip
    found = _layer(layer(w2, b2, std), hexed(step), first, [first.known], "here")
    for _ in range(50):
        x = [dice.uniform(a, b) for a, b in zip(low, high, strict=True)]
        z = [max(sum(w * y for w, y in zip(row, x, strict=True)) + b, 0.0) for row, b in zip(w1, b1, strict=True)]
        for i in range(n):
            m = sum(w * y for w, y in zip(w2[i], z, strict=True)) + b2[i]
            mean = rectified(m, std[i])
            up, over, down, under = (float(part) for part in found.planes[i])
            assert down * m + under <= mean + 1e-12
            assert mean <= up * m + over + 1e-12
            assert float(found.low[i]) - 1e-12 <= mean <= float(found.high[i]) + 1e-12
            assert float(found.square[i]) >= mean**2


@pytest.mark.parametrize("bias", [-0.05, 0.0, 0.02, 0.1])
@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 4.0])
def test_the_rest_of_a_spread_that_varies(scale: float, bias: float) -> None:
    """m is a number and s = scale^2 z^2 + c random: the deviation of g(m, sqrt s), by a fine sum, is below the rest."""
    box = Box([arb(0)], [arb(0)])
    given = hexed({"tangent": [0.0], "alpha": [0.5], "beta": [0.5], "root": [0.2]})
    first = First(layer([[0.0]], [0.3], [0.2]), box, given)
    level = scale**2 * 0.13 + 1e-4
    step = {
        "mean": [[bias], [bias]], "tangent": [0.0], "level": [level], "slope": [0.5], "middle": [level],
        "centre": [0.5], "reach": [1.0],
    }  # fmt: skip
    second = Gaussian(arb_mat(1, 1), [arb(bias)], arb_mat(1, 1, [arb(scale) ** 2]), [arb("0.0001")])
    found = _layer(second, hexed(step), first, [first.known], "here")
    weights, values, spreads = [], [], []
    for k in range(-800, 801):
        xi = 0.01 * k
        z = max(0.3 + 0.2 * xi, 0.0)
        weights.append(math.exp(-0.5 * xi * xi))
        spreads.append(scale**2 * z * z + 1e-4)
        values.append(rectified(bias, math.sqrt(spreads[-1])))
    total = sum(weights)

    def deviation(numbers: list[float]) -> float:
        mean = sum(w * v for w, v in zip(weights, numbers, strict=True)) / total
        return math.sqrt(sum(w * (v - mean) ** 2 for w, v in zip(weights, numbers, strict=True)) / total)

    assert float(found.remainder[0]) >= deviation(values) * (1 - 1e-6)
    mean = sum(w * v for w, v in zip(weights, values, strict=True)) / total
    assert float(found.low[0]) - 1e-9 <= mean <= float(found.high[0]) + 1e-9


@pytest.mark.parametrize("vertices", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_planes_of_the_first_layer(seed: int, vertices: bool) -> None:
    """Whatever slopes a certificate gives: above, and below, the mean of a rectified Gaussian at points of the box."""
    dice = random.Random(seed)
    low, high = [0.2, -1.0], [0.9, 0.3]
    weight, std, bias, bias_std = [1.0, -0.7], [0.5, 0.8], dice.uniform(-1, 1), 0.1
    squares = arb_mat(1, 2, [arb(x) ** 2 for x in std])
    neuron = Gaussian(arb_mat(1, 2, [arb(x) for x in weight]), [arb(bias)], squares, [arb(bias_std) ** 2])
    slopes = [dice.uniform(0, 1), dice.uniform(0, 1), dice.uniform(0.2, 1.0)] if seed else [0.0, 0.0, 0.5]
    given: dict[str, object] = {"tangent": [dice.uniform(-1, 1)]}
    if vertices:
        given["vertices"] = [[dice.uniform(-1, 1), dice.uniform(-1, 1)]]
    else:
        given |= {name: [value] for name, value in zip(("alpha", "beta", "root"), slopes, strict=True)}
    first = First(neuron, Box([arb(x) for x in low], [arb(x) for x in high]), hexed(given))
    rows, constants = first.back([[arb(1)], [arb(-1)]], [arb(0), arb(0)])
    points = [[dice.choice((a, b, dice.uniform(a, b))) for a, b in zip(low, high, strict=True)] for _ in range(200)]
    for x in points:
        m = sum(w * y for w, y in zip(weight, x, strict=True)) + bias
        r = math.hypot(*(s * y for s, y in zip(std, x, strict=True)), bias_std)
        for sign, row, constant in zip((1, -1), rows, constants, strict=True):
            plane = sum(float(a) * y for a, y in zip(row, x, strict=True)) + float(constant)
            assert sign * rectified(m, r) <= plane + 1e-12
        assert float(first.known.low[0]) - 1e-12 <= rectified(m, r) <= float(first.known.high[0]) + 1e-12
