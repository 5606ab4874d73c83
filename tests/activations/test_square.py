"""Every constant of the shapes of squares, proved in ball arithmetic: by subdivision, and by a bound of the tail."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from flint import arb, arb_poly, arb_series, ctx
from support.layer_networks import ACTS, activation
from tests.activations.test_activation import PRECISION, ball, derivative, gelu, higher, near, proved, silu

from bnndp.activations import (
    Elu,
    Gelu,
    HardTanh,
    Identity,
    LeakyRelu,
    PiecewiseAffine,
    Relu,
    Sigmoid,
    Silu,
    Softplus,
    Tanh,
)
from bnndp.activations.activation import ANY_SLOPE, UNKNOWN, Activation, Shape
from bnndp.engine.inequalities.second_moment import second_moment

FAR = 40.0
Series = Callable[[arb_series], arb_series]
Function = Callable[[arb], arb]


@pytest.fixture(autouse=True)
def _digits() -> Iterator[None]:
    with ctx.workprec(PRECISION):
        yield


def softplus(s: arb_series) -> arb_series:
    """The integral of the sigmoid, whose series holds on wide balls too."""
    sigmoid, x = 1 / (1 + (-s).exp()), s.coeffs()[0]
    return sigmoid.integral() + (1 + x.exp()).log()


def variation(value: Function, slope: Function, low: float, high: float) -> arb:
    """Total variation on [low, high]: differences where the slope has one sign, else its small size."""
    total, todo = arb(0), [(low, high)]
    while todo:
        a, b = todo.pop()
        change = slope(ball(a, b))
        if change > 0 or change < 0:
            total += abs(value(arb(b)) - value(arb(a)))
        elif abs(change) * (b - a) < 1e-11:
            total += abs(change) * (b - a)
        else:
            middle = (a + b) / 2
            todo += [(a, middle), (middle, b)]
    return total


def check(shape: Shape, derivatives: list[Function], low: float, high: float) -> None:
    """Bends, higher derivatives and the variation on an interval; all constants are rounded up by little."""
    limits = [(2, 1, shape.bend_up), (2, -1, shape.bend_down)]
    limits += [(k, sign, bound) for k, bound in higher(shape) for sign in (1, -1)]
    for k, sign, bound in limits:
        assert proved(near(sign, derivatives[k], derivatives[k + 1]), low, high, bound), (k, sign)
    for k, bounds in itertools.groupby(limits, key=lambda limit: limit[0]):
        points = [arb(low) + (arb(high) - arb(low)) * i / 8000 for i in range(8001)]
        values = [derivatives[k](x) for x in points]
        found = list(bounds)
        largest = max(float(max(sign * v for v in values)) for _, sign, _ in found)
        assert max(bound for *_, bound in found) <= largest * (1 + 1e-3), k
    whole = variation(derivatives[2], derivatives[3], low, high)
    assert whole <= arb(shape.variation) * (1 - arb(1e-20))
    assert float(whole) >= shape.variation * (1 - 1e-3)


def chain(first: arb_poly, rate: arb_poly) -> list[arb_poly]:
    """Derivatives as polynomials in t, whose own derivative is ``rate``."""
    found = [first]
    for _ in range(9):
        found.append(found[-1].derivative() * rate)
    return found


@pytest.mark.parametrize(
    ("phi", "first", "rate"),
    [
        pytest.param(Tanh(), arb_poly([0, 0, 1]), arb_poly([1, 0, -1]), id="tanh"),
        pytest.param(Sigmoid(), arb_poly([0.25, 0.5, 0.25]), arb_poly([0.5, 0, -0.5]), id="sigmoid"),
    ],
)
def test_polynomials_in_tanh(phi: Activation, first: arb_poly, rate: arb_poly) -> None:
    shape, found = phi.square, chain(first, rate)
    limits = [(1, 1, shape.slopes[1]), (2, 1, shape.bend_up), (2, -1, shape.bend_down)]
    limits += [(k, sign, bound) for k, bound in higher(shape) for sign in (1, -1)]
    for k, sign, bound in limits:
        if sign * found[k](arb(0)) == bound:  # attained: what is left is t^2 times something negative
            assert found[k].derivative()(arb(0)) == 0
            rest = arb_poly((sign * found[k]).coeffs()[2:])
            assert proved(near(1, rest, rest.derivative()), -1, 1, 0.0), (k, sign)
        else:
            assert proved(near(sign, found[k], found[k].derivative()), -1, 1, bound), (k, sign)
    assert shape.slopes[0] in (0.0, -shape.slopes[1])  # increasing and positive, or odd
    points = [arb(i) / 4000 for i in range(-4000, 4001)]
    for k, bound in ((1, max(map(abs, shape.slopes))), (2, max(shape.bend_up, shape.bend_down)), *higher(shape)):
        assert bound <= max(float(abs(found[k](t))) for t in points) * (1 + 1e-3), k
    for k, bound in ((1, shape.rise + shape.fall), (2, shape.variation)):
        whole = variation(found[k], found[k].derivative(), -1.0, 1.0)
        assert whole <= arb(bound)
        assert float(whole) >= bound * (1 - 1e-3)
    assert shape.rise == shape.fall  # the slope is zero at both ends


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        pytest.param(gelu, Gelu().square, id="gelu"),
        pytest.param(silu, Silu().square, id="silu"),
        pytest.param(softplus, Softplus().square, id="softplus"),
    ],
)
def test_what_grows_like_a_parabola(function: Series, shape: Shape) -> None:
    """Beyond FAR f and f' are at most x + 1 and 2, and derivatives from the second on at most 2 (x + 8) exp(-x).

    For the sigmoid that is the series of exponentials, for the normal density much more than it is. So derivatives of
    f^2 from the third on are at most 2^k times the product, and the second is near 0 on the left and near 2 on the
    right.
    """

    def squared(s: arb_series) -> arb_series:
        return function(s) * function(s)

    assert shape.slopes == ANY_SLOPE
    assert shape.rise == math.inf
    assert (shape.fall == 0) == (shape.bend_down == 0)
    derivatives = [derivative(squared, k) for k in range(10)]
    check_bends = shape if shape.bend_down > 0 else _with_slack(shape)
    check(check_bends, derivatives, -FAR, FAR)
    far = arb(FAR)
    left_over = 2**9 * (far + 1) * 2 * (far + 8) * (-far).exp()
    assert left_over < arb(min(bound for _, bound in higher(shape)))
    assert 2 + left_over < arb(shape.bend_up)
    assert left_over < arb(shape.bend_down or 1.0)
    inside = variation(derivatives[2], derivatives[3], -FAR, FAR)
    assert inside + 2 * 2**9 * (far + 1) * 2 * (far + 9) * (-far).exp() < arb(shape.variation)


def _with_slack(shape: Shape) -> Shape:
    """Softplus squared is convex, as softplus and its first two derivatives are positive: no more can be shown here."""
    return Shape(
        shape.slopes, shape.rise, shape.fall, shape.bend_up, 1e-9, shape.third, shape.fourth, shape.fifth, shape.sixth,
        shape.seventh, shape.eighth, variation=shape.variation,
    )  # fmt: skip


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 1.7, 40.0])
def test_elu(alpha: float) -> None:
    """For x < 0 in t = exp(x): alpha^2 (4 t^2 - 2 t) on [0, 1]; for x > 0 it is 2."""
    shape, square = Elu(alpha).square, arb(alpha) ** 2
    least, most, variation_ = -square / 4, square * 2, square / 4 + square * 9 / 4 + abs(2 - 2 * square)
    assert arb(shape.bend_up) >= most.max(arb(2))
    assert arb(shape.bend_down) >= -least
    assert variation_ <= arb(shape.variation)
    assert float(variation_) >= shape.variation * (1 - 1e-12)
    assert (shape.third, shape.eighth, shape.rise, shape.fall) == (math.inf,) * 4
    assert not shape.kinks
    assert not shape.bumps


def test_piecewise_parabolas() -> None:
    assert Relu().square.bumps == ((0.0, 2.0),)
    assert (Relu().square.bend_up, Relu().square.bend_down, Relu().square.variation) == (2, 0, 2)
    for slope in (0.0, 0.01, 0.3, -0.5, 1.0, 2.0, -1.0, 1e-12):
        shape, jump = LeakyRelu(slope).square, 2 - 2 * arb(slope) ** 2
        assert arb(shape.bend_up) >= arb(2).max(2 * arb(slope) ** 2)
        assert shape.bend_down == 0
        assert arb(shape.variation) >= abs(jump)
        assert abs(arb(shape.bumps[0][1]) - jump) <= arb(1e-15)
        assert shape.variation <= abs(2 - 2 * slope**2) + 1e-13
    hard = HardTanh().square
    assert (hard.slopes, hard.rise, hard.fall) == ((-2, 2), 4, 4)
    assert (hard.bend_up, hard.bend_down, hard.variation) == (2, math.inf, math.inf)
    line = Identity().square
    assert (line.bend_up, line.bend_down, line.variation, line.third, line.eighth) == (2, 0, 0, 0, 0)
    assert PiecewiseAffine.of(torch.sin, 1.5).square == UNKNOWN
    for act in ACTS:
        assert not activation(act).square.slope_known
        assert not activation(act).square.kinks


@pytest.mark.parametrize("act", [act for act in ACTS if act != "piecewise_affine"])
def test_derivatives_of_the_smoothed_square(act: str) -> None:
    """Differences of E phi(m + r xi)^2 in m stay within what the shape says, for orders that double digits show."""
    phi = activation(act)
    m = torch.linspace(-6, 6, 2401, dtype=torch.float64)
    for r in (0.4, 1.0, 3.0):
        root = torch.full_like(m, r)
        found = second_moment(phi, m, root)
        values, error = 0.5 * (found.lower + found.upper), float((found.upper - found.lower).max())
        step = float(m[1] - m[0]) * 40  # wide enough for differences of fifth order
        values = values[::40]
        below, above = (float(t[0]) for t in phi.square.curvature(root))
        second = values.diff(n=2) / step**2
        blur = 64 * (error + 1e-14 * float(values.abs().max()))
        assert bool((second <= above + blur / step**2).all())
        assert bool((second >= -below - blur / step**2).all())
        for order in (3, 4, 5):
            bound = float(phi.square.derivative(order, root)[0])
            assert float(values.diff(n=order).abs().max()) / step**order <= bound + blur / step**order, (r, order)


@pytest.mark.parametrize("act", [act for act in ACTS if act != "piecewise_affine"])
@pytest.mark.parametrize("r", [0.05, 0.3, 0.7, 1.5, 5.0])
def test_derivatives_of_smoothed_activations(act: str, r: float) -> None:
    """Of the third and fourth order, as differences of slopes: by the range of the second derivative among others."""
    phi, h = activation(act), 0.05 * r
    m = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    root = torch.full_like(m, r)
    slopes = [phi.slope(m + k * h, root) for k in (-2, -1, 0, 1, 2)]
    third = (slopes[3] - 2 * slopes[2] + slopes[1]).abs().max() / h**2
    fourth = (slopes[4] - 2 * slopes[3] + 2 * slopes[1] - slopes[0]).abs().max() / (2 * h**3)
    for order, found, error in ((3, third, 4e-9 / h**2), (4, fourth, 3e-9 / h**3)):  # differences are means of them
        assert float(found) <= float(phi.shape.derivative(order, root)[0]) + error, order
