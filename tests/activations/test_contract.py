"""One contract for every activation: against Arb's integrals, at tiny and huge arguments, for all shapes."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from flint import acb, arb, ctx
from support.activation_truths import BITS, TRUTHS, Truth, elu, inside, leaky
from torch import Tensor

from bnndp.activations import ACTIVATIONS, Elu, LeakyRelu, PiecewiseAffine, moments
from bnndp.activations.activation import Central, Shape

# The surrogate of a sine has an error that is no rounding: it is held to its own bound only.
SURROGATE = PiecewiseAffine.of(torch.sin, 1.0, curvature=1.0)
CASES: list[Any] = [
    *[
        pytest.param(record(), TRUTHS[kind], id=kind)
        for kind, record in ACTIVATIONS.items()
        if kind in TRUTHS and kind != "piecewise_affine"
    ],
    *[pytest.param(LeakyRelu(a), leaky(a), id=f"leaky_relu {a}") for a in (0.3, -0.5, 1.0, 2.0)],
    *[pytest.param(Elu(a), elu(a), id=f"elu {a}") for a in (0.5, 2.5)],
    pytest.param(SURROGATE, TRUTHS["piecewise_affine"], id="piecewise_affine"),
]
every = pytest.mark.parametrize(("activation", "truth"), CASES)

POINTS = [
    (0.0, 1e-6), (0.3, 1e-6), (-4.0, 1e-3), (0.9999, 1e-3), (-0.2, 0.3), (0.05, 0.5), (2.5, 0.7), (-1.1, 1.0),
    (30.0, 0.9), (-30.0, 0.4), (-0.4, 2.0), (0.6, 2.2), (-3.0, 3.9),
]  # fmt: skip
FAR = [(1e3, 1e-8), (-1e3, 1.0), (1e3, 1e3), (-1e3, 1e3), (0.5, 40.0), (-60.0, 15.0), (0.0, 1e3)]
FAR += [(20.0, 8.1), (-700.0, 0.5)]


def tensors(points: list[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    m, r = torch.tensor(points, dtype=torch.float64).T
    return m.contiguous(), r.contiguous()


def everything(central: Central) -> list[Tensor]:
    """The ends of the moments, and both norms."""
    return [*moments.fields(central), central.norm8, central.norm16]


@cache
def central(truth: Truth, m: float, r: float) -> tuple[arb, arb, arb]:
    return truth.central(m, r)


def is_surrogate(activation: Any) -> bool:
    return isinstance(activation, PiecewiseAffine)


def test_no_activation_escapes_the_contract() -> None:
    assert {case.values[0].kind for case in CASES} == set(ACTIVATIONS)
    assert all(kind == record.kind for kind, record in ACTIVATIONS.items())


@every
def test_value_is_the_function(activation: Any, truth: Truth) -> None:
    x = torch.tensor([-700.0, -30.0, -1.5, -1e-9, 0.0, 1e-9, 0.3, 1.0, 19.0, 700.0], dtype=torch.float64)
    for a, b in zip(x.tolist(), activation(x).tolist(), strict=True):
        assert inside(b, 4e-16 * max(1, abs(a)), truth.value(a)), a


@every
def test_zero_deviation_gives_the_function_itself(activation: Any, truth: Truth) -> None:
    m = torch.tensor([-1e3, -2.0, -1.0, -1e-300, 0.0, 5e-324, 0.1, 1.0, 3.0, 1e3], dtype=torch.float64)
    zero = torch.zeros_like(m)
    assert torch.equal(activation.mean(m, zero), activation(m))
    central = activation.central(m, zero)
    for field in everything(central):
        assert (field.abs() <= 1e-280).all()


@every
def test_mean_agrees_with_integrals_within_its_error(activation: Any, truth: Truth) -> None:
    m, r = tensors(POINTS + FAR)
    mean, error = activation.mean(m, r), activation.error(m, r)
    for a, b, value, granted in zip(m.tolist(), r.tolist(), mean.tolist(), error.tolist(), strict=True):
        exact = truth.mean(a, b)
        assert inside(value, granted + 1e-22 * (1 + abs(a) + b), exact), (a, b, value, exact)
        if not is_surrogate(activation):
            assert granted <= 1e-9
            assert inside(value, max(granted / 8, 1e-22 * (1 + abs(a) + b)), exact), (a, b, value, exact)


@every
@pytest.mark.parametrize("points", [POINTS[::3], pytest.param(POINTS + FAR[1:6], marks=pytest.mark.slow)], ids=len)
def test_central_moments_contain_those_of_integrals(
    activation: Any, truth: Truth, points: list[tuple[float, float]]
) -> None:
    m, r = tensors([p for p in points if p not in FAR or not is_surrogate(activation)])
    found, alone = everything(activation.central(m, r)), activation.variance(m, r)
    with ctx.workprec(BITS):
        for i, (a, b) in enumerate(zip(m.tolist(), r.tolist(), strict=True)):
            variance, third, fourth = central(truth, a, b)
            tolerance = [arb(1e-18) * (arb(truth.steepest) * b) ** k for k in (2, 3, 4)]  # of the integrals themselves
            low2, high2, low3, high3, low4, high4, *_ = (arb(field[i].item()) for field in found)
            own = [(low2, high2), (arb(alone.lower[i].item()), arb(alone.upper[i].item()))]
            assert all(0 <= low <= variance + tolerance[0] for low, _ in own), (a, b)
            assert all(high >= variance - tolerance[0] for _, high in own), (a, b)
            assert low3 <= third + tolerance[1], (a, b)
            assert high3 >= third - tolerance[1], (a, b)
            assert 0 <= low4 <= fourth + tolerance[2], (a, b)
            assert high4 >= fourth - tolerance[2], (a, b)


@pytest.mark.parametrize(("activation", "truth"), CASES[:-1])  # for the surrogate see test_piecewise.py
def test_central_moments_are_tight_where_networks_live(activation: Any, truth: Truth) -> None:
    m, r = tensors([p for p in POINTS if p[1] <= 1])
    found, alone = everything(activation.central(m, r)), activation.variance(m, r)
    for i, (a, b) in enumerate(zip(m.tolist(), r.tolist(), strict=True)):
        variance, third, fourth = map(float, central(truth, a, b))
        low2, high2, low3, high3, low4, high4, *_ = (field[i].item() for field in found)
        scale = max(activation.shape.steepest, 0.5) * b * (1 + abs(a)) ** 0.5
        assert high2 - low2 <= 1e-6 * variance + 2e-12 * scale**2, (a, b)
        assert (alone.upper - alone.lower)[i] <= 1e-6 * variance + 2e-12 * scale**2, (a, b)
        assert high3 - low3 <= 1e-6 * abs(third) + 2e-11 * scale**3, (a, b)
        assert high4 <= fourth * (1 + 1e-6) + 1e-8 * scale**4, (a, b)
        assert low4 >= fourth * (1 - 1e-6) - 1e-8 * scale**4, (a, b)


@every
def test_central_moments_are_never_looser_than_lipschitz(activation: Any, truth: Truth) -> None:
    m = torch.linspace(-40, 40, 41, dtype=torch.float64)
    for deviation in (1e-200, 1e-9, 0.1, 1.0, 2.5, 7.0, 9.0, 100.0, 1e6):
        r = torch.full_like(m, deviation)
        low2, high2, low3, high3, low4, high4, norm8, norm16 = everything(activation.central(m, r))
        scale = activation.shape.steepest * r
        slack = 1 + 1e-10
        assert (low2 <= high2).all()
        assert (low3 <= high3).all()
        assert (low4 <= high4).all()
        assert (low2 >= 0).all()
        assert (low4 >= 0).all()
        assert (high2 <= slack * scale**2 + 1e-280).all()
        assert (torch.maximum(-low3, high3) <= slack * 1.59577 * scale**3 + 1e-280).all()
        assert (high4 <= slack * 3 * scale**4 + 1e-280).all()
        assert (norm8 <= slack * 105**0.125 * scale + 1e-280).all()
        assert (norm16 <= slack * 2027025**0.0625 * scale + 1e-280).all()


@every
def test_norms_are_at_least_those_of_integrals(activation: Any, truth: Truth) -> None:
    points = [(-0.2, 0.3), (2.5, 0.7), (-1.1, 1.0), (-2.0, 1.0), (-2.49, 1.0), (-3.0, 1.0), (-4.0, 0.5), (-0.4, 2.0)]
    m, r = tensors(points if activation.kind in ("relu", "leaky_relu") else points[:1])  # others: Lipschitz alone
    found = activation.central(m, r)
    for i, (a, b) in enumerate(zip(m.tolist(), r.tolist(), strict=True)):
        for q, norm in ((8, found.norm8), (16, found.norm16)):
            assert arb(norm[i].item()) >= truth.norm(a, b, q) * (1 - arb(1e-9)), (a, b, q)


@pytest.mark.parametrize("slope", [0.0, 0.01, -0.5])
def test_norms_of_hinges_far_below_their_kink(slope: float) -> None:
    """They fall as exp(-t^2 / 2 q), which is no zero where the density underflows."""
    t = torch.cat([torch.linspace(1, 6, 51), torch.tensor([10.0, 20.0, 37.0, 38.5, 39.0, 40.0, 60.0, 100.0])]).double()
    found = LeakyRelu(slope).central(-t, torch.ones_like(t))
    for q, norm in ((8, found.norm8), (16, found.norm16)):
        for x, bound in zip(t.tolist(), norm.tolist(), strict=True):
            with ctx.workprec(600):
                tail = (acb(x) / acb(2).sqrt()).erfc().real / 2
                raw = [tail, (-(arb(x) ** 2) / 2).exp() / (2 * arb.pi()).sqrt() - x * tail]  # E (xi - t)_+^j
                for j in range(2, q + 1):
                    raw.append((j - 1) * raw[-2] - x * raw[-1])
                centred = sum((math.comb(q, j) * raw[j] * (-raw[1]) ** (q - j) for j in range(1, q + 1)), raw[1] ** q)
                kinked = (1 - arb(slope)) * centred.root(q)
                gaussian = abs(arb(slope)) * arb(math.prod(range(1, q, 2))).root(q)
                assert arb(bound) >= kinked - gaussian, (q, x)
                if slope == 0:
                    assert arb(bound) <= kinked * (1.8 if x <= 6 else 1.1), (q, x)


@every
def test_shape_bounds_the_derivatives_of_the_mean(activation: Any, truth: Truth) -> None:
    shape: Shape = activation.shape
    for m, r in [(0.0, 0.05), (0.7, 0.3), (-1.0, 0.2), (1.5, 0.6), (-2.4, 1.0), (0.4, 3.0), (-1.2, 0.8)]:
        at = torch.tensor([r], dtype=torch.float64)
        below, above = (bound.item() for bound in shape.curvature(at))
        slack = arb(1e-15)
        assert arb(shape.slopes[0]) - slack <= truth.derivative(m, r, 1) <= arb(shape.slopes[1]) + slack, (m, r)
        assert -arb(below) - slack <= truth.derivative(m, r, 2) <= arb(above) + slack, (m, r)
        for order in range(3, 9):
            bound = arb(shape.derivative(order, at).item())
            assert abs(truth.derivative(m, r, order)) <= bound + slack / arb(r) ** (order - 2), (m, r, order)


@every
def test_shape_at_vanishing_deviations_is_a_bound_or_infinite(activation: Any, truth: Truth) -> None:
    r = torch.tensor([0.0, 5e-324, 1e-300, 1e-120, 1e-90, 1e-3], dtype=torch.float64)
    shape = activation.shape
    for bound in (*shape.curvature(r), *(shape.derivative(order, r) for order in range(3, 9))):
        assert not bound.isnan().any()
        assert (bound >= 0).all()
        assert (bound.diff().nan_to_num(0.0) <= 0).all()


@every
def test_slope_is_nearly_the_derivative(activation: Any, truth: Truth) -> None:
    points = [(0.3, 0.1), (-1.2, 0.8), (2.0, 1.9), (0.5, 2.5), (-4.0, 6.0), (10.0, 100.0)]
    points += [(m, r) for r in (1.0, 2.0) for m in (0.0, 0.175, 0.5, -1.0)]  # where rules change, they are worst
    if is_surrogate(activation):
        points = points[:3]
    m, r = tensors(points)
    for a, b, value in zip(m.tolist(), r.tolist(), activation.slope(m, r).tolist(), strict=True):
        assert abs(value - float(truth.derivative(a, b, 1))) <= (1e-2 if is_surrogate(activation) else 1e-9), (a, b)


@every
def test_huge_and_tiny_arguments_leave_finite_numbers(activation: Any, truth: Truth) -> None:
    sizes = [0.0, 5e-324, 1e-300, 1e-100, 1e-9, 1.0, 1e9, 1e60]
    m, r = torch.cartesian_prod(
        torch.tensor([*sizes, *[-s for s in sizes]], dtype=torch.float64), torch.tensor(sizes, dtype=torch.float64)
    ).T
    mean, error = activation.mean(m, r), activation.error(m, r)
    for value in (mean, error, activation.slope(m, r), *everything(activation.central(m, r))):
        assert value.isfinite().all()
        assert value.shape == m.shape
        assert value.dtype == torch.float64
    assert (error >= 0).all()
    # A Lipschitz function moves by at most what its argument moves.
    moved = activation.shape.steepest * r * 0.7979
    assert ((mean - activation(m)).abs() <= moved * (1 + 1e-9) + 2 * error).all()


@every
@pytest.mark.parametrize("wrong", [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, math.inf)])
def test_what_is_no_number_is_never_a_bound(activation: Any, truth: Truth, wrong: tuple[float, float]) -> None:
    m, r = tensors([wrong])
    mean, error = activation.mean(m, r), activation.error(m, r)
    central = activation.central(m, r)
    bounded = (mean - error).isfinite() & (mean + error).isfinite()
    if not math.isinf(m.item()) and not math.isinf(r.item()):
        assert not bounded.any()
        assert not central.variance.upper.isfinite().any()
        assert not central.fourth.upper.isfinite().any()
        assert not central.norm8.isfinite().any()
        assert not central.norm16.isfinite().any()
    # Infinite arguments: either no bound, or one that holds in the limit (a bounded activation).
    elif bounded.any():
        assert activation.kind in ("tanh", "sigmoid", "hard_tanh")


@every
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 3, 4), (2, 1, 2, 2)])
def test_any_shape(activation: Any, truth: Truth, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    m = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    r = 3 * torch.rand(shape, generator=generator, dtype=torch.float64)
    flat = activation.mean(m.flatten(), r.flatten())
    for value in (activation.mean(m, r), activation.error(m, r), activation.slope(m, r), activation(m)):
        assert value.shape == m.shape
        assert value.dtype == torch.float64
    assert torch.allclose(activation.mean(m, r).flatten(), flat, rtol=1e-13, atol=1e-15)
    assert all(field.shape == m.shape for field in everything(activation.central(m, r)))
    assert activation.out_shape(shape) == shape
    transposed = activation.mean(m.mT, r.mT).mT if m.ndim >= 2 else activation.mean(m, r)
    assert torch.allclose(transposed, activation.mean(m, r), rtol=1e-13, atol=1e-15)


@every
def test_many_entries_are_taken_in_chunks_and_give_the_same(activation: Any, truth: Truth) -> None:
    n = 700 if is_surrogate(activation) else 12_000
    generator = torch.Generator().manual_seed(5)
    m = 3 * torch.randn(n, generator=generator, dtype=torch.float64)
    r = 4 * torch.rand(n, generator=generator, dtype=torch.float64) ** 2
    some = torch.tensor([0, 1, n // 2, n - 2, n - 1])
    assert torch.allclose(activation.mean(m, r)[some], activation.mean(m[some], r[some]), rtol=1e-12, atol=1e-14)
    whole, part = everything(activation.central(m, r)), everything(activation.central(m[some], r[some]))
    for a, b in zip(whole, part, strict=True):
        assert torch.allclose(a[some], b, rtol=1e-9, atol=1e-11)


@every
def test_gradients_reach_the_argument(activation: Any, truth: Truth) -> None:
    x = torch.tensor([-2.3, -0.4, 0.2, 1.7], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(activation(x).sum(), x)
    low, high = activation.shape.slopes
    assert ((slope >= low - 1e-12) & (slope <= high + 1e-12)).all()
    step = 1e-6
    with torch.no_grad():
        difference = (activation(x + step) - activation(x - step)) / (2 * step)
    assert torch.allclose(slope, difference, atol=1e-6)


@every
def test_the_record_is_complete(activation: Any, truth: Truth) -> None:
    assert activation.random is False
    assert activation.to("cpu").kind == activation.kind
    again = type(activation)(
        **{name: getattr(activation, name) for name in (*activation.tensors, *activation.settings)}
    )
    m, r = tensors(POINTS)
    assert torch.equal(again.mean(m, r), activation.mean(m, r))
    with pytest.raises((AttributeError, TypeError)):
        activation.kind = "other"
