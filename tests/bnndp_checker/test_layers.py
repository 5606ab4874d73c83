"""Layers: means, deviations and Lipschitz constants against the noise written out, Gaussian by Gaussian."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

pytest.importorskip("flint", reason="the checker needs python-flint")
from flint import arb, ctx

from bnndp_checker.layers import Box, gaussian, groups
from bnndp_checker.read_model import Layer, Tensor, out_shape
from bnndp_checker.strict_json import Unreadable

Noise = Callable[[list[float]], list[list[float]]]  # z to the columns of all Gaussians: (outputs, Gaussians)
Case = tuple[Layer, tuple[int, ...], Callable[[list[float]], list[float]], Noise]


@pytest.fixture(autouse=True)
def _precision() -> None:
    ctx.prec = 96


def _tensor(dice: random.Random, *shape: int, positive: bool = False) -> Tensor:
    values = tuple(dice.gauss(0, 1) for _ in range(math.prod(shape)))
    return Tensor(shape, tuple(map(abs, values)) if positive else values)


def _dense(dice: random.Random, kind: str, shared: bool = False) -> Case:
    out, n, rank = 3, 2, 2
    mean, bias = _tensor(dice, out, n), _tensor(dice, out)
    tensors = {"weight_mean": mean, "bias_mean": bias}
    std, bias_std = _tensor(dice, out, n, positive=True), _tensor(dice, out, positive=True)
    factor, a, b = _tensor(dice, out, n + 1, rank), _tensor(dice, out, 2), _tensor(dice, n + 1, 3)
    if kind == "matrix_normal_linear":
        tensors |= {"row_factor": a, "column_factor": b}
    else:
        tensors |= {"weight_std": std, "bias_std": bias_std}
    if kind == "correlated_linear":
        tensors["factor"] = factor

    def forward(z: list[float]) -> list[float]:
        return [bias.values[i] + sum(mean.values[i * n + j] * z[j] for j in range(n)) for i in range(out)]

    def noise(z: list[float]) -> list[list[float]]:
        with_one, rows = [*z, 1.0], []
        for i in range(out):
            if kind == "matrix_normal_linear":
                right = [sum(b.values[j * 3 + q] * with_one[j] for j in range(n + 1)) for q in range(3)]
                rows.append([a.values[i * 2 + p] * x for p in range(2) for x in right])
                continue
            row = [0.0] * (out * (n + 1))
            row[i * (n + 1) : (i + 1) * (n + 1)] = [
                *(std.values[i * n + j] * z[j] for j in range(n)),
                bias_std.values[i],
            ]
            if kind == "correlated_linear":
                own = [
                    sum(factor.values[(i * (n + 1) + j) * rank + q] * with_one[j] for j in range(n + 1))
                    for q in range(rank)
                ]
                row += own if shared else [x if k == i else 0.0 for k in range(out) for x in own]
            rows.append(row)
        return rows

    settings = {"shared": shared} if kind == "correlated_linear" else {}
    return Layer(kind, settings, tensors), (n,), forward, noise


def _convolution(dice: random.Random, stride: tuple[int, int], padding: tuple[int, int]) -> Case:
    out, into, tall, broad, height, width = 2, 2, 2, 3, 3, 4
    mean, std = _tensor(dice, out, into, tall, broad), _tensor(dice, out, into, tall, broad, positive=True)
    bias, bias_std = _tensor(dice, out), _tensor(dice, out, positive=True)
    tensors = {"weight_mean": mean, "weight_std": std, "bias_mean": bias, "bias_std": bias_std}
    layer = Layer("conv2d", {"stride": list(stride), "padding": list(padding)}, tensors)
    _, rows, columns = out_shape(layer, (into, height, width))
    size = into * tall * broad

    def patches(z: list[float]) -> list[list[float]]:
        def pixel(c: int, y: int, x: int) -> float:
            return z[(c * height + y) * width + x] if 0 <= y < height and 0 <= x < width else 0.0

        return [
            [
                pixel(c, top * stride[0] + i - padding[0], left * stride[1] + j - padding[1])
                for c in range(into) for i in range(tall) for j in range(broad)
            ]
            for top in range(rows) for left in range(columns)
        ]  # fmt: skip

    def forward(z: list[float]) -> list[float]:
        return [
            bias.values[c] + sum(w * v for w, v in zip(mean.values[c * size : (c + 1) * size], patch, strict=True))
            for c in range(out) for patch in patches(z)
        ]  # fmt: skip

    def noise(z: list[float]) -> list[list[float]]:
        found = []
        for c in range(out):
            for patch in patches(z):
                row = [0.0] * (out * (size + 1))
                own = [s * v for s, v in zip(std.values[c * size : (c + 1) * size], patch, strict=True)]
                row[c * (size + 1) : (c + 1) * (size + 1)] = [*own, bias_std.values[c]]
                found.append(row)
        return found

    return layer, (into, height, width), forward, noise


CASES: dict[str, Callable[[random.Random], Case]] = {
    "linear": lambda dice: _dense(dice, "linear"),
    "rows": lambda dice: _dense(dice, "correlated_linear"),
    "shared": lambda dice: _dense(dice, "correlated_linear", shared=True),
    "matrix_normal": lambda dice: _dense(dice, "matrix_normal_linear"),
    "conv": lambda dice: _convolution(dice, (1, 1), (0, 0)),
    "conv_padded": lambda dice: _convolution(dice, (2, 1), (1, 2)),
}


def _balls(values: list[float]) -> list[arb]:
    return [arb(x) for x in values]


def _box(dice: random.Random, n: int, radius: float) -> tuple[Box, list[list[float]]]:
    """A box, and points of it: inner ones and corners."""
    low = [dice.uniform(-1.5, 1.5) for _ in range(n)]
    high = [x + radius * dice.random() for x in low]
    points = [[dice.uniform(a, b) for a, b in zip(low, high, strict=True)] for _ in range(15)]
    points += [[dice.choice(pair) for pair in zip(low, high, strict=True)] for _ in range(25)]
    return Box(_balls(low), _balls(high)), points


@pytest.mark.parametrize("name", CASES)
def test_means_and_deviations(name: str) -> None:
    dice = random.Random(name)
    layer, shape, forward, noise = CASES[name](dice)
    found = gaussian(layer, shape)
    box, points = _box(dice, math.prod(shape), 0.8)
    low, high = found.variance_range(box)
    rows = found.mean.tolist()
    tops = box.tops(rows)
    for z in points:
        for i, (mean, row) in enumerate(zip(forward(z), noise(z), strict=True)):
            product = sum(float(a) * x for a, x in zip(rows[i], z, strict=True))
            assert abs(product + float(found.bias[i]) - mean) < 1e-12
            assert product <= float(tops[i]) + 1e-12
            square = math.fsum(x * x for x in row)
            assert float(low[i]) - 1e-12 <= square <= float(high[i]) + 1e-12
    point = Box(_balls(points[0]), _balls(points[0]))
    for i, row in enumerate(noise(points[0])):  # at one point nothing is lost
        exact = math.fsum(x * x for x in row)
        assert abs(float(found.variance_range(point)[1][i]) - exact) < 1e-12 * (1 + exact)


@pytest.mark.parametrize("name", CASES)
def test_lipschitz_constants(name: str) -> None:
    """The gradient of a row in the Gaussians, for slopes anywhere in their ranges; exact at a point with one slope."""
    dice = random.Random(name)
    layer, shape, _, noise = CASES[name](dice)
    found = gaussian(layer, shape)
    n = len(found.bias)
    box, points = _box(dice, math.prod(shape), 0.3)
    rows = [[dice.gauss(0, 1) for _ in range(n)] for _ in range(3)] + [[1.0, -1.0, *[0.0] * (n - 2)]]
    middle, wide = [dice.uniform(-1, 1) for _ in range(n)], [dice.choice([0.0, 0.3]) for _ in range(n)]
    deviation = [x.sqrt() for x in found.variance_range(box)[1]]
    bounds = found.spread([_balls(row) for row in rows], _balls(middle), _balls(wide), deviation, box)

    def gradient(row: list[float], slopes: list[float], z: list[float]) -> float:
        columns = zip(*noise(z), strict=True)
        return math.fsum(sum(a * s * x for a, s, x in zip(row, slopes, column, strict=True)) ** 2 for column in columns)

    largest = [0.0] * len(rows)
    for z in points:
        slopes = [p + w * dice.choice([-1, 1, dice.uniform(-1, 1)]) for p, w in zip(middle, wide, strict=True)]
        for k, row in enumerate(rows):
            largest[k] = max(largest[k], gradient(row, slopes, z))
            assert largest[k] <= float(bounds[k]) + 1e-12
    z, zero = points[0], _balls([0.0] * n)
    point = Box(_balls(z), _balls(z))
    own = [x.sqrt() for x in found.variance_range(point)[1]]
    for row, bound in zip(
        rows, found.spread([_balls(row) for row in rows], _balls(middle), zero, own, point), strict=True
    ):
        exact = gradient(row, middle, z)
        assert abs(float(bound) - exact) < 1e-12 * (1 + exact)


@pytest.mark.parametrize("name", CASES)
def test_lipschitz_constants_about_zero(name: str) -> None:
    """A box whose centre is zero, where all comes from its width, and slopes that may all be zero or two."""
    dice = random.Random(name)
    layer, shape, _, noise = CASES[name](dice)
    found, size = gaussian(layer, shape), math.prod(shape)
    n, ball = len(found.bias), Box(_balls([-1.0] * size), _balls([1.0] * size))
    row, deviation = [dice.choice([-1.0, 1.0]) for _ in range(n)], [x.sqrt() for x in found.variance_range(ball)[1]]
    for centre, wide in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        bound = float(found.spread([_balls(row)], _balls([centre] * n), _balls([wide] * n), deviation, ball)[0])
        for _ in range(60):
            z = [dice.choice([-1.0, 1.0]) for _ in range(size)]
            slopes = [centre + wide * dice.choice([-1.0, 1.0]) for _ in range(n)]
            columns = zip(*noise(z), strict=True)
            square = sum(sum(a * s * x for a, s, x in zip(row, slopes, column, strict=True)) ** 2 for column in columns)
            assert square <= bound * (1 + 1e-12)


@pytest.mark.parametrize(("size", "stride"), [((2, 2), (1, 1)), ((2, 3), (2, 1)), ((3, 3), (2, 2))])
def test_windows_of_pooling(size: tuple[int, int], stride: tuple[int, int]) -> None:
    shape = (2, 3, 5)
    settings = {"size": list(size), "stride": list(stride)}
    wanted = []
    for c in range(2):
        for top in range(0, 3 - size[0] + 1, stride[0]):
            for left in range(0, 5 - size[1] + 1, stride[1]):
                cells = [(top + i, left + j) for i in range(size[0]) for j in range(size[1])]
                wanted.append([c * 15 + y * 5 + x for y, x in cells])
    assert groups(Layer("max_pool", settings, {}), shape) == wanted
    found = gaussian(Layer("average_pool", settings, {}), shape)
    for row, window in zip(found.mean.tolist(), wanted, strict=True):
        share = arb(1) / (size[0] * size[1])
        assert all(abs(a - (share if i in window else 0)) < 1e-25 for i, a in enumerate(row))
    assert all(x.is_zero() for x in [*found.squares.entries(), *found.bias, *found.bias_squares])


@pytest.mark.parametrize(
    ("kind", "settings", "shape"),
    [
        ("max_pool", {"size": [2, 2], "stride": [1, 1]}, (4,)),
        ("max_pool", {"size": [2, 9], "stride": [1, 1]}, (1, 3, 3)),
        ("dropout", {"rate": 0.5, "law": "bernoulli", "channels": True}, (4,)),
    ],
)
def test_shapes_that_do_not_fit(kind: str, settings: dict[str, object], shape: tuple[int, ...]) -> None:
    with pytest.raises(Unreadable):
        out_shape(Layer(kind, settings, {}), shape)
