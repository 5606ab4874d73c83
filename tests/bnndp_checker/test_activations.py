"""Activations: constants of the derivatives, slopes and ranges, and lines that are accepted are above the true mean."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("flint", reason="the checker needs python-flint")
from flint import acb, acb_series, arb, ctx

from bnndp_checker.activations import _SMOOTH, Activation, _tangent, activation
from bnndp_checker.ball_arithmetic import ONE, ZERO, Rejected, g
from bnndp_checker.read_model import Layer, Tensor

KNOTS = tuple(-6 + 0.5 * i for i in range(25))
USER = Layer(
    "piecewise_affine",
    {"lipschitz": 1.0, "inner_error": 0.03125, "curvature": None},
    {"knots": Tensor((25,), KNOTS), "values": Tensor((25,), tuple(map(math.sin, KNOTS)))},
)


def _sine_within_knots(x: float) -> float:
    return math.sin(min(max(x, -6.0), 6.0))


CASES: dict[str, tuple[Layer, Callable[[float], float]]] = {
    "identity": (Layer("identity", {}, {}), lambda x: x),
    "relu": (Layer("relu", {}, {}), lambda x: max(x, 0.0)),
    "leaky": (Layer("leaky_relu", {"negative_slope": 0.1}, {}), lambda x: x if x > 0 else 0.1 * x),
    "absolute": (Layer("leaky_relu", {"negative_slope": -1}, {}), abs),
    "steep": (Layer("leaky_relu", {"negative_slope": 3.0}, {}), lambda x: x if x > 0 else 3 * x),
    "hard_tanh": (Layer("hard_tanh", {}, {}), lambda x: min(max(x, -1.0), 1.0)),
    "tanh": (Layer("tanh", {}, {}), math.tanh),
    "sigmoid": (Layer("sigmoid", {}, {}), lambda x: 1 / (1 + math.exp(-x))),
    "softplus": (Layer("softplus", {}, {}), lambda x: math.log1p(math.exp(-abs(x))) + max(x, 0.0)),
    "gelu": (Layer("gelu", {}, {}), lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2))),
    "silu": (Layer("silu", {}, {}), lambda x: x / (1 + math.exp(-x))),
    "elu": (Layer("elu", {"alpha": 1.0}, {}), lambda x: x if x > 0 else math.expm1(x)),
    "elu_0": (Layer("elu", {"alpha": 0}, {}), lambda x: max(x, 0.0)),
    "elu_2": (Layer("elu", {"alpha": 2.0}, {}), lambda x: x if x > 0 else 2 * math.expm1(x)),
    "user": (USER, _sine_within_knots),
}
NODES = [(i + 0.5) / 20 - 10 for i in range(400)]  # of a midpoint rule for the normal law, exact to 1e-12 for smooth
WEIGHTS = [math.exp(-0.5 * t * t) / math.sqrt(2 * math.pi) / 20 for t in NODES]


@pytest.fixture(autouse=True)
def _precision() -> None:
    ctx.prec = 96


def mean(phi: Callable[[float], float], m: float, r: float) -> float:
    """E phi(m + r xi), to about 1e-4 r for kinks."""
    return math.fsum(w * phi(m + r * t) for w, t in zip(WEIGHTS, NODES, strict=True)) if r > 0 else phi(m)


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_function(name: str) -> None:
    layer, phi = CASES[name]
    found = activation(layer)
    for x in (-45.0, -3.0, -1.0, -0.2, 0.0, 0.4, 1.0, 2.5, 40.0):
        if found.within is None or abs(x) < 6:
            assert abs(float(found.value(arb(x))) - phi(x)) <= float(found.error) + 1e-12 * (1 + abs(x))


@pytest.mark.parametrize("kind", _SMOOTH)
def test_derivatives_are_within_their_constants(kind: str) -> None:
    """By Taylor coefficients at many points; the extremes are met, so that smaller constants would fail."""
    stated, first, second = _SMOOTH[kind], [], []
    for i in range(-800, 1 if kind == "elu" else 801):
        x = i / 50
        series = _series(kind, acb_series([acb(x), 1], prec=3))
        first.append(float(series[1].real))
        second.append(2 * float(series[2].real))
        assert abs(float(stated.slope(arb(x))) - first[-1]) < 1e-12
    for seen, (low, high) in ((first, stated.slopes), (second, stated.curvature)):
        assert float(low) - 1e-15 <= min(seen)
        assert max(seen) <= float(high) + 1e-15
        if kind != "silu":  # whose constants are rounded outward
            assert max(seen) > 0.999 * float(high)
    assert kind != "silu" or (max(second) > 0.4999 and min(first) < -0.0998)


def _series(kind: str, x: Any) -> Any:
    one = x.exp() * (-x).exp()
    sigmoid = one / (one + (-x).exp())
    if kind == "tanh":
        twice = x + x  # type: ignore[operator]
        return one / (one + (-twice).exp()) * 2 - one
    if kind == "gelu":
        return x * ((x * (1 / acb(2).sqrt())).erf() + one) * acb(0.5)
    return {
        "sigmoid": lambda: sigmoid,
        "softplus": (one + x.exp()).log,
        "silu": lambda: x * sigmoid,  # type: ignore[operator]
        "elu": lambda: x.exp() - one,
    }[kind]()


@pytest.mark.parametrize("name", CASES)
def test_slopes_and_ranges_hold_what_they_bound(name: str) -> None:
    layer, phi = CASES[name]
    found, dice = activation(layer), random.Random(name)
    for _ in range(20):
        a, b = sorted(dice.uniform(-4, 4) for _ in range(2))
        points = [a + (b - a) * i / 40 for i in range(41)]
        least, most = map(float, found.slopes(arb(a), arb(b)))
        low, high = map(float, found.range(arb(a), arb(b)))
        assert all(low - 1e-12 <= phi(x) <= high + 1e-12 for x in points)
        for x, y in pairwise(points):
            assert least - 1e-9 <= (phi(y) - phi(x)) / (y - x) <= most + 1e-9
            assert abs((phi(y) - phi(x)) / (y - x)) <= float(found.steepest) + 1e-9
    if name not in ("user", "hard_tanh"):
        slopes = [(phi(x + 1e-6) - phi(x - 1e-6)) / 2e-6 for x in (-30.5, -1.4142, -0.1, 0.1, 1.4142, 30.5)]
        assert max(slopes) - min(slopes) <= float(found.turn) + 1e-6


@pytest.mark.parametrize("name", CASES)
def test_lines_above_and_below_the_mean(name: str) -> None:
    """A line that a grid shows to be broken is never accepted; one a little away from the mean is."""
    layer, phi = CASES[name]
    found, dice, accepted = activation(layer), random.Random(name), 0
    allowed = 2 * float(found.error) + 2e-3
    for case in range(12):
        low = dice.uniform(-2, 1.5)
        high = low + dice.choice([0.0, 0.05, 0.4])
        least = dice.choice([0.0, 0.05, 0.2])
        most = least + dice.choice([0.0, 0.05])
        sign = 1 if case % 2 else -1
        slope = dice.uniform(-1.5, 1.5) if high > low else 0.0
        means = [low + (high - low) * i / 8 for i in range(9)]
        truth = max(sign * mean(phi, m, r) - slope * m for m in means for r in (least, (least + most) / 2, most))
        arguments = ((arb(low), arb(high)), (arb(least), arb(most)), arb(slope))
        assert not found.above(*arguments, arb(truth - allowed), sign)
        assert not found.above(*arguments, arb("nan"), sign)
        curved = 0.0 if found.smooth is None else 0.5 * float(found.weight) * (most**2 + (high - low) ** 2 / 64)
        uneven = sum(abs(float(j)) for _, j in found.hinges) * (0.4 * (most - least) + (high - low) / 8)
        accepted += found.above(*arguments, arb(truth + allowed + curved + uneven), sign)
    assert accepted == 12


def test_a_line_through_the_ends_of_a_piece_is_not_above_what_lies_between() -> None:
    found, range_, fixed = activation(CASES["tanh"][0]), (ZERO, arb(8)), (ZERO, ZERO)
    slope = math.tanh(1.0) + 1e-9  # the chord of the first of eight pieces
    assert not found.above(range_, fixed, arb(slope), arb(1e-9), 1)
    assert found.above(range_, fixed, arb(1), arb(0.1), 1)


def test_the_error_of_a_function_of_a_user_counts() -> None:
    found, at, fixed = activation(USER), (arb(0.5), arb(0.5)), (ZERO, ZERO)
    for sign in (1, -1):
        assert not found.above(at, fixed, ZERO, arb(sign * math.sin(0.5) + 0.03), sign)
        assert found.above(at, fixed, ZERO, arb(sign * math.sin(0.5) + 0.04), sign)


def test_a_tangent_is_below() -> None:
    for r in (0.0, 0.3):
        for touch in (-0.5, 0.0, 1e-40, 0.7):
            for at in (-1.0, -1e-41, 0.0, 1e-41, 0.6):
                assert not _tangent(arb(touch), arb(at), arb(r)) > g(arb(at), arb(r))
    around = arb(0, 1e-30)  # a middle whose sign is not known
    assert _tangent(around, arb(-1), ZERO) <= 0


def test_a_function_of_a_user_is_unknown_beyond_its_knots() -> None:
    found = activation(USER)
    with pytest.raises(Rejected, match="knots"):
        found.range(arb(5), arb(6.001))
    assert found.slopes(ZERO, ONE) == (-1, 1)
    low, high = found.range(arb(0.1), arb(0.2))
    assert float(low) <= math.sin(0.1) - 0.03
    assert float(high) >= math.sin(0.2) + 0.02


def test_what_is_cut_off_is_within_the_turn_of_the_slopes() -> None:
    """How far a function is, in the mean, from itself continued in lines from the ends of an interval."""
    for name, m, least in (
        ("absolute", 1.51, 0.45),
        ("gelu", -1.5, 0.1),
        ("hard_tanh", 0.0, 0.3),
        ("identity", 1.0, 0.0),
    ):
        layer, phi = CASES[name]
        c = 0.99 if name == "hard_tanh" else 1.5
        low, high = m - c, m + c
        down, up = ((phi(x + 1e-7) - phi(x - 1e-7)) / 2e-7 for x in (low, high))

        def off(x: float, ends: tuple[float, ...] = (low, high, down, up)) -> float:
            start, slope = (ends[0], ends[2]) if x < ends[0] else (ends[1], ends[3])
            return 0.0 if ends[0] <= x <= ends[1] else abs(phi(x) - phi(start) - slope * (x - start))  # noqa: B023

        bound = float(2 * activation(layer).turn * g(-arb(c), ONE))
        assert least * bound <= mean(off, m, 1.0) <= bound + 1e-6


def test_an_unknown_activation_is_an_error() -> None:
    with pytest.raises(KeyError):
        activation(Layer("cosine", {}, {}))
    assert activation(Layer("identity", {}, {})) == Activation(line=ONE)
