"""Suprema of smoothed derivatives by Fourier transforms, against integrals of the function in ball arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from flint import acb, arb, ctx
from support.activation_truths import TRUTHS, Truth

from bnndp.activations import ACTIVATIONS
from bnndp.maths import spectrum
from bnndp.maths.spectrum import Spectrum, spectral_bound


def _square(kind: str) -> Truth:
    (piece,) = TRUTHS[kind].pieces
    return Truth((lambda z, analytic: piece(z, analytic) * piece(z, analytic),), (), 2.0)


# Which orders the bound is attained at, m being zero: those of one parity, or none.
CASES = {
    "tanh": (spectrum.tanh, TRUTHS["tanh"], 1),
    "tanh^2": (spectrum.tanh_square, _square("tanh"), 0),
    "sigmoid": (spectrum.sigmoid, TRUTHS["sigmoid"], 1),
    "sigmoid^2": (spectrum.sigmoid_square, _square("sigmoid"), None),
    "softplus": (spectrum.softplus, TRUTHS["softplus"], 0),
    "silu": (spectrum.silu, TRUTHS["silu"], 0),
    "gelu": (spectrum.gelu, TRUTHS["gelu"], 0),
}
every = pytest.mark.parametrize(("own", "truth", "parity"), CASES.values(), ids=CASES)


@every
def test_no_derivative_is_larger_and_some_are_as_large(own: Spectrum, truth: Truth, parity: int | None) -> None:
    for r in (0.21, 0.7, 1.9, 6.3, 11.0):  # between knots, and beyond the last
        for order in range(2, 9):
            bound = spectral_bound(own, order, torch.tensor([r], dtype=torch.float64)).item()
            sizes = [abs(truth.derivative(m, r, order)) for m in (0.0, 0.3, -0.8, 1.4)]
            slack = arb(1e-15) / arb(r) ** (order - 2)  # of the integrals
            assert all(size <= arb(bound) + slack for size in sizes), (r, order)
            if parity is not None and order % 2 == parity and r < 8:
                assert arb(bound) <= 1.015 * sizes[0] + slack, (r, order)  # a chord of the logarithm lies above it


@every
def test_integrals_are_those_of_ball_arithmetic(own: Spectrum, truth: Truth, parity: int | None) -> None:
    """At knots: the sum of Gauss's rule lies above the integral, and by no more than the error granted."""
    knots, logs = spectrum._table(own)
    for at in (0, 1, 20, 41, len(knots) - 1):
        s = knots[at].item()
        for order in range(2, 9):
            with ctx.workprec(120):
                exact = sum((_panel(own, order, s, a, b) for a, b in _PANELS), arb(0)) / arb.pi()
                found = arb(logs[order - 2, at].item()).exp()
                assert exact <= found <= exact * (1 + arb(3e-9)), (s, order)


_ENDS = (0.0, 0.05, 0.5, 2.0, 8.0, 40.0)  # what is beyond is below e^-60
_PANELS = tuple(pairwise(_ENDS))


def _panel(own: Spectrum, order: int, s: float, a: float, b: float) -> arb:
    transform = _TRANSFORMS[own]
    return acb.integral(
        lambda w, _: w ** (order - 2) * transform(w) * (-s * w * w / 2).exp(), a, b, rel_tol=2**-60, abs_tol=2**-90
    ).real


def _over_sinh(x: acb) -> acb:
    """x / sinh x; its series near zero, where the quotient says nothing."""
    if abs(x).abs_upper() < 0.5:
        return 1 / sum((x ** (2 * k) / arb(2 * k + 1).gamma() / (2 * k + 1) for k in range(20)), acb(0))
    return x / x.sinh()


_TRANSFORMS: dict[Spectrum, Callable[[acb], acb]] = {
    spectrum.tanh: lambda w: 2 * w * _over_sinh(acb.pi() * w / 2),
    spectrum.tanh_square: lambda w: 2 * w * w * _over_sinh(acb.pi() * w / 2),
    spectrum.sigmoid: lambda w: w * _over_sinh(acb.pi() * w),
    spectrum.sigmoid_square: lambda w: w * (1 + w * w).sqrt() * _over_sinh(acb.pi() * w),
    spectrum.softplus: lambda w: _over_sinh(acb.pi() * w),
    spectrum.silu: lambda w: _over_sinh(acb.pi() * w) ** 2 * (acb.pi() * w).cosh(),
    spectrum.gelu: lambda w: (1 + w * w) * (-w * w / 2).exp(),
}


def test_it_falls_with_the_deviation_and_refuses_what_is_no_number() -> None:
    r = torch.cat([torch.linspace(0, 9, 3001), torch.tensor([1e9, torch.inf])]).double()
    for own, *_ in CASES.values():
        for order in range(2, 9):
            assert (spectral_bound(own, order, r).diff() <= 0).all()
    assert spectral_bound(spectrum.tanh, 5, torch.tensor([torch.nan])).isnan().all()


def test_shapes_use_them() -> None:
    r = torch.tensor([0.64], dtype=torch.float64)
    assert ACTIVATIONS["tanh"]().shape.derivative(5, r) <= 2.43  # 16 without smoothing
    assert ACTIVATIONS["gelu"]().shape.curvature(r)[1] <= 0.58  # 0.8
