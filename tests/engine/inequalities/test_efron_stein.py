"""Deviations of rows of E[z | y] against sums over all outcomes of an input with few values."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.layer_networks import ACTS, activation
from tests.engine.sums.test_expansion import SETTINGS, Case, Sine, case, layer_of, pre_of, signal_of
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.inequalities.efron_stein import MeanSlopes, _forms, conditional_mean_std, mean_slopes
from bnndp.engine.laws.weights import weights_of
from bnndp.engine.moments.signal import fixed
from bnndp.engine.rows import DenseRows
from bnndp.geometry.bounds import Interval
from bnndp.layers import CorrelatedLinear, Linear
from bnndp.network import Layer

F64 = torch.float64
FAST = [act for act in ACTS if act != "piecewise_affine"]
MORE: list[dict[str, float]] = [
    *SETTINGS,
    {"mean": 3.0, "std": 0.1, "bias": 0.3, "wide": 0.1},
    {"mean": 0.01, "std": 0.01, "bias": 1.0},  # nearly linear: the first order is all there is
    {"mean": 0.01, "std": 0.3, "bias": 0.3},  # nearly all of it by s
]


def _atoms(generator: torch.Generator, batch: int, n_in: int) -> tuple[Tensor, Tensor]:
    """Values and chances (batch, n_in, 2): some even, some rare, some far from zero."""
    values = torch.randn(batch, n_in, 2, generator=generator, dtype=F64)
    values = values + torch.where(torch.rand(batch, n_in, 1, generator=generator) < 0.3, 3.0, 0.0)
    share = torch.rand(batch, n_in, 1, generator=generator, dtype=F64)
    share = torch.where(torch.rand(batch, n_in, 1, generator=generator) < 0.5, 0.5, share**4 + 1e-5)
    return values, torch.cat([share, 1 - share], -1)


def _rows(generator: torch.Generator, batch: int, n: int) -> Tensor:  # (batch, rows, n)
    free = torch.randn(batch, 4, n, generator=generator, dtype=F64)
    same, unit = free[:, :1].abs(), torch.eye(n, dtype=F64).expand(batch, -1, -1)
    return torch.cat([free, same, unit], 1)


def _shares(phi: Any, law: Case, layer: Layer, rows: Tensor, *, squares: bool = True) -> Tensor:
    """The true deviations over those that are claimed."""
    weights = weights_of(layer, (law.signal.variance.shape[-1],))
    coupling = weights.spread_remainder(law.signal)
    slopes = mean_slopes(phi, law.pre, squares=squares)
    assert slopes is not None
    found = conditional_mean_std(slopes, weights, DenseRows(rows), law.signal, coupling if squares else None)
    h = phi.mean(law.m, law.s.sqrt())  # (outcomes, batch, n)
    sums = torch.einsum("obn,brn->obr", h - law.mean(h), rows)
    truth = (law.chance[..., None] * sums.square()).sum(0).sqrt()
    assert not found.isnan().any()
    return (truth - 1e-12) / found


@pytest.mark.parametrize("act", [*slow_but(FAST, "relu", "tanh", "hard_tanh"), "sine 0.05", "sine 0.3", "sine 1"])
@pytest.mark.parametrize("setting", range(len(MORE)))
def test_deviations_of_rows_hold(act: str, setting: int) -> None:
    phi: Any = Sine(float(act.split()[1])) if act.startswith("sine") else activation(act)
    settings = dict(MORE[setting])
    wide = settings.pop("wide", 0.0)
    for n_in in (1, 2, 5):
        generator = torch.Generator().manual_seed(10 * setting + n_in)
        layer = layer_of(generator, 6, n_in, **settings)
        law = case(*_atoms(generator, 60, n_in), layer, wide=wide, seed=n_in)
        shares = _shares(phi, law, layer, _rows(generator, 60, 6))
        assert float(shares.max()) <= 1, (n_in, float(shares.max()))


@pytest.mark.parametrize("act", ["relu", "tanh", "sine 0.3"])
def test_deviations_of_rows_of_coupled_weights_hold(act: str) -> None:
    phi: Any = Sine(0.3) if act.startswith("sine") else activation(act)
    for seed, n_in in enumerate((1, 2, 4)):
        generator = torch.Generator().manual_seed(seed)
        plain = layer_of(generator, 6, n_in, mean=1.0, std=0.3, bias=0.5)
        factor = 0.3 * torch.randn(6, n_in + 1, 2, generator=generator, dtype=F64)
        layer = CorrelatedLinear(
            plain.weight_mean, plain.weight_std, plain.bias_mean, plain.bias_std, factor, shared=False
        )
        law = case(*_atoms(generator, 60, n_in), layer)
        rows = _rows(generator, 60, 6)
        for squares in (True, False):
            assert float(_shares(phi, law, layer, rows, squares=squares).max()) <= 1


@pytest.mark.parametrize("act", ["relu", "tanh", "sine 1"])
def test_what_is_linear_is_exact(act: str) -> None:
    """Weights of means 1e-5 below an activation that is smooth at that scale; neurons may cancel."""
    phi: Any = Sine(1.0) if act.startswith("sine") else activation(act)
    generator = torch.Generator().manual_seed(1)
    layer = layer_of(generator, 6, 5, mean=1e-5, std=0.0, bias=1.0)
    law = case(*_atoms(generator, 20, 5), layer)
    assert float(_shares(phi, law, layer, _rows(generator, 20, 6)[:, :5]).min()) > 0.99


@pytest.mark.parametrize("act", [*slow_but(FAST, "relu", "tanh", "hard_tanh"), "sine 0.05", "sine 0.3", "sine 1"])
def test_slopes_of_means_hold(act: str) -> None:
    """Each of the parts, also where a row does not need it."""
    phi: Any = Sine(float(act.split()[1])) if act.startswith("sine") else activation(act)
    for number, setting in enumerate(MORE):
        settings = dict(setting)
        wide = settings.pop("wide", 0.0)
        for n_in in (1, 2, 5):
            generator = torch.Generator().manual_seed(10 * number + n_in)
            layer = layer_of(generator, 6, n_in, **settings)
            law = case(*_atoms(generator, 60, n_in), layer, wide=wide, seed=n_in)
            found = mean_slopes(phi, law.pre, squares=True)
            assert found is not None
            spread, mean = law.mean(law.s), law.mean(law.m)
            total = spread + law.mean((law.m - mean).square())
            steep = phi.slope(law.m, spread.expand_as(law.m).sqrt())
            far = (found.stray == 0) & (found.std == 0)
            slack = 1e-9 * (1 + found.slope.abs())
            off = torch.where(far, 0.0, (law.mean(steep) - found.slope).abs())
            assert bool((off <= found.stray + slack).all()), float((off - found.stray).max())
            norm4 = law.mean((steep - found.slope) ** 4) ** 0.25
            assert bool((torch.where(far, 0.0, norm4) <= found.norm4 + slack).all())
            widest = (steep - found.slope).abs().amax(0)
            assert bool((torch.where(far, 0.0, widest) <= found.widest + slack).all())
            assert bool((torch.where(far, 0.0, _deviation(law, steep)) <= found.std + slack).all())
            h, g = (phi.mean(law.m, s.expand_as(law.m).sqrt()) for s in (law.s, spread))
            rest = torch.where(far, h - found.slope * law.m, h - g - found.spread * law.s)
            assert bool((_deviation(law, rest) <= found.remainder + slack * (1 + total.sqrt())).all())


def _deviation(law: Case, values: Tensor) -> Tensor:
    return law.mean((values - law.mean(values)).square()).sqrt()


@pytest.mark.parametrize("w", [0.03, 0.1, 0.3])
@pytest.mark.parametrize("shift", [0.0, 0.5, 1.0])
def test_sines_of_many_signs(w: float, shift: float) -> None:
    r"""For m a sum of 400 even signs :math:`\mathbb E\cos wm=\cos^{400}w`; at the top nothing is linear."""
    n, signs = 400, torch.tensor([[-1.0, 1.0]], dtype=F64)
    layer = Linear.fixed(torch.ones(1, n, dtype=F64), torch.tensor([shift * math.pi / (2 * w)], dtype=F64))
    law_signal = signal_of(signs.expand(1, n, 2), torch.full((1, n, 2), 0.5, dtype=F64))
    pre = pre_of(layer, law_signal, torch.zeros(1, n, dtype=F64))
    phi: Any = Sine(w)
    slopes = mean_slopes(phi, pre, squares=True)
    assert slopes is not None
    rows = DenseRows(torch.ones(1, 1, 1, dtype=F64))
    found = conditional_mean_std(slopes, weights_of(layer, (n,)), rows, law_signal)
    angle, once, twice = shift * math.pi / 2, math.cos(w) ** n, math.cos(2 * w) ** n
    truth = math.sqrt(0.5 * (1 - math.cos(2 * angle) * twice) - (math.sin(angle) * once) ** 2)
    assert truth <= found.item() * (1 + 1e-9)
    if w == 0.03:
        assert found.item() <= 1.8 * truth


def test_slopes_at_the_end_of_the_range_of_the_mean() -> None:
    """What is nearly linear with a slope that is known of the whole box only."""
    generator = torch.Generator().manual_seed(1)
    layer = replace(layer_of(generator, 6, 5, mean=1e-4, std=0.0, bias=1.0), bias_mean=torch.ones(6, dtype=F64))
    law = case(*_atoms(generator, 20, 5), layer)
    wider = Interval(law.pre.mean.lower - 2.0, law.pre.mean.upper)
    law = replace(law, pre=replace(law.pre, mean=wider))
    shares = _shares(activation("relu"), law, layer, _rows(generator, 20, 6))
    assert 0.3 < float(shares.max()) <= 1


def test_strays_and_deviations_are_attained_by_neurons_that_are_all_the_same() -> None:
    generator = torch.Generator().manual_seed(2)
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=F64)
    for mean in (signs[:, None] * torch.ones(1, 3, dtype=F64), torch.randn(4, 3, generator=generator, dtype=F64)):
        layer = Linear.fixed(mean)
        v = torch.rand(1, 3, generator=generator, dtype=F64)
        covariance = mean @ torch.diag(v[0]) @ mean.mT
        stray = torch.full((1, 4), 0.1, dtype=F64)
        zero = torch.zeros_like(stray)
        slopes = MeanSlopes(zero, stray, stray, *(zero,) * 6)
        signal = replace(fixed(Interval(0 * v, 0 * v)), variance=v)
        found = _forms(slopes, weights_of(layer, (3,)), torch.ones(1, 1, 4, dtype=F64), signal)
        corners = 0.1 * torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=F64)] * 4)
        truth = torch.einsum("ei,ij,ej->e", corners, covariance, corners).sqrt().amax()
        assert len(found) == 2
        assert all(float(truth) <= form.item() * (1 + 1e-9) for form in found)


def test_slopes_that_are_off_everywhere_by_the_most() -> None:
    """F is linear where every g' - p is as large as it may be and has the worst sign: no curvature says so."""
    generator = torch.Generator().manual_seed(5)
    mean, w = (torch.randn(*shape, generator=generator, dtype=F64) for shape in ((3, 4), (1, 2, 3)))
    values = torch.tensor([[-1.0, 1.0]], dtype=F64) * torch.rand(1, 4, 1, generator=generator, dtype=F64)
    z, zero = signal_of(values, torch.full((1, 4, 2), 0.5, dtype=F64)), torch.zeros(1, 3, dtype=F64)
    widest, unknown = torch.tensor([[0.3, 0.5, 0.9]], dtype=F64), zero + math.inf
    slopes = MeanSlopes(zero, unknown, unknown, unknown, widest, unknown, unknown, zero, zero)
    found = conditional_mean_std(slopes, weights_of(Linear.fixed(mean), (4,)), DenseRows(w), z)[0]
    signs = widest * torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=F64)] * 3)
    truth = torch.linalg.vector_norm(((w[0][:, None] * signs) @ mean) * z.variance.sqrt(), dim=-1).amax(-1)
    assert bool((truth <= found * (1 + 1e-9)).all())


def test_squares_alone_where_the_mean_is_at_the_end_of_its_range() -> None:
    """For even signs d^2 is a constant, so that what varies of y^2 is 2 E y d."""
    n, top = 3, 4.0
    values = torch.tensor([[top - 0.01, top + 0.01]], dtype=F64).expand(1, n, 2)
    signal = signal_of(values, torch.full((1, n, 2), 0.5, dtype=F64))
    signal = replace(signal, mean=Interval(torch.full((1, n), 3.5, dtype=F64), signal.mean.upper))
    std = torch.full((1, n), 0.1, dtype=F64)
    layer = Linear(0 * std, std, torch.zeros(1, dtype=F64), torch.full((1,), 9.0, dtype=F64))
    pre, phi = pre_of(layer, signal, torch.full((1, n), top, dtype=F64)), activation("relu")
    slopes = mean_slopes(phi, pre, squares=True)
    assert slopes is not None
    assert float(slopes.spread) > 0
    rows = DenseRows(torch.ones(1, 1, 1, dtype=F64))
    found = conditional_mean_std(slopes, weights_of(layer, (n,)), rows, signal) - slopes.remainder
    truth = float(slopes.spread) * math.sqrt(n) * 0.1**2 * 2 * top * 0.01
    assert truth <= found.item() <= 1.02 * truth


def test_products_alone() -> None:
    """Even signs around zero and one factor for all weights: what varies of s are products of two of them."""
    n, one = 5, torch.ones(1, dtype=F64)
    values = torch.tensor([[-1.0, 1.0]], dtype=F64).expand(1, n, 2)
    factor = torch.cat([torch.full((1, n, 1), 0.1, dtype=F64), torch.zeros(1, 1, 1, dtype=F64)], 1)
    none = torch.zeros(1, n, dtype=F64)
    layer = CorrelatedLinear(none, none, 0 * one, 3 * one, factor, shared=False)
    law = case(values, torch.full((1, n, 2), 0.5, dtype=F64), layer)
    share = _shares(activation("relu"), law, layer, torch.ones(1, 1, 1, dtype=F64))
    assert 0.2 < share.item() <= 1


@pytest.mark.parametrize("wider", ["mean", "spread"])
def test_the_bend_at_the_end_of_its_range(wider: str) -> None:
    """Of a sine at its top and without more variance than needed the slope turns most; in the middle it turns less."""
    signs = torch.tensor([[[-1e-3, 1e-3]]], dtype=F64)
    one = torch.ones(1, 1, dtype=F64)
    layer = Linear(one, 0.1 * one, torch.full((1,), 0.5 * math.pi, dtype=F64), 0.1 * torch.ones(1, dtype=F64))
    law = case(signs, torch.full((1, 1, 2), 0.5, dtype=F64), layer)
    pre, phi = law.pre, Sine(1.0)
    if wider == "mean":
        pre = replace(pre, mean=Interval(pre.mean.lower - 2.0, pre.mean.upper))
    else:
        pre = replace(pre, spread=Interval(pre.spread.lower, pre.spread.upper + 2.0))
    found = mean_slopes(phi, pre, squares=True)
    assert found is not None
    truth = _deviation(law, phi.slope(law.m, law.mean(law.s).expand_as(law.m).sqrt()))
    assert float(truth) <= found.std.item() <= 2 * float(truth)


def test_means_of_slopes_count_with_all_that_they_may_be_off() -> None:
    r"""At worst :math:`\mathbb EL_k=\sum_i|w_i\mu_{ik}|(p_i+\eta_i+\tfrac12\sup|g_i^{(3)}|\mu_{ik}^2v_k)`."""
    generator = torch.Generator().manual_seed(3)
    n_out, n_in = 3, 4
    p, stray, third = torch.rand(3, n_out, generator=generator, dtype=F64).unbind(0)
    mean, w = (torch.rand(*shape, generator=generator, dtype=F64) for shape in ((n_out, n_in), (1, 2, n_out)))
    values = torch.tensor([[-1.0, 1.0]], dtype=F64) * torch.rand(1, n_in, 1, generator=generator, dtype=F64)
    z, zero = signal_of(values, torch.full((1, n_in, 2), 0.5, dtype=F64)), torch.zeros(1, n_out, dtype=F64)
    slopes = MeanSlopes(p[None], stray[None], zero, zero, zero + math.inf, zero, third[None], zero, zero)
    found = conditional_mean_std(slopes, weights_of(Linear.fixed(mean), (n_in,)), DenseRows(w), z)
    for row, bound in zip(w[0].tolist(), found[0].tolist(), strict=True):
        total = 0.0
        for k, v in enumerate(z.variance[0].tolist()):
            terms = zip(row, p.tolist(), stray.tolist(), third.tolist(), mean[:, k].tolist(), strict=True)
            total += v * sum(u * mu * (slope + off + 0.5 * bend * mu**2 * v) for u, slope, off, bend, mu in terms) ** 2
        assert math.sqrt(total) <= bound <= 1.01 * math.sqrt(total)


def test_slopes_of_which_only_the_range_is_known() -> None:
    """Where all differ by as much as they may, and in the same direction, nothing is lost."""
    generator = torch.Generator().manual_seed(4)
    n_out, n_in = 3, 4
    widest = torch.rand(1, n_out, generator=generator, dtype=F64)
    mean, w = (torch.rand(*shape, generator=generator, dtype=F64) for shape in ((n_out, n_in), (1, 2, n_out)))
    values = torch.tensor([[-1.0, 1.0]], dtype=F64) * torch.rand(1, n_in, 1, generator=generator, dtype=F64)
    z, zero = signal_of(values, torch.full((1, n_in, 2), 0.5, dtype=F64)), torch.zeros(1, n_out, dtype=F64)
    unknown = zero + torch.inf
    slopes = MeanSlopes(zero, unknown, unknown, unknown, widest, unknown, unknown, zero, zero)
    found = conditional_mean_std(slopes, weights_of(Linear.fixed(mean), (n_in,)), DenseRows(w), z)
    truth = (((w * widest[:, None]) @ mean).square() @ z.variance[0]).sqrt()
    assert bool((truth <= found * (1 + 1e-12)).all())
    assert torch.allclose(found, truth, rtol=1e-3)


def test_rows_of_coupled_weights_where_the_mean_is_at_the_end_of_its_range() -> None:
    """One factor for all weights, so s varies by the square of the sum: what is off the diagonal moves with E y."""
    n, top = 5, 4.0
    values = torch.tensor([[top - 1e-4, top + 1e-4]], dtype=F64).expand(1, n, 2)
    factor = torch.cat([torch.full((1, n, 1), 0.1, dtype=F64), torch.zeros(1, 1, 1, dtype=F64)], 1)
    none, one = torch.zeros(1, n, dtype=F64), torch.ones(1, dtype=F64)
    layer = CorrelatedLinear(none, none, 0 * one, 20 * one, factor, shared=False)
    signal = signal_of(values, torch.full((1, n, 2), 0.5, dtype=F64))
    signal = replace(signal, mean=Interval(torch.full((1, n), 3.5, dtype=F64), signal.mean.upper))
    pre, weights = pre_of(layer, signal, torch.full((1, n), top, dtype=F64)), weights_of(layer, (n,))
    slopes, coupling = mean_slopes(activation("relu"), pre, squares=True), weights.spread_remainder(signal)
    assert slopes is not None
    assert coupling is not None
    assert float(slopes.spread) > 0
    rows = DenseRows(torch.ones(1, 1, 1, dtype=F64))
    found = conditional_mean_std(slopes, weights, rows, signal, coupling) - slopes.remainder
    truth = float(slopes.spread) * 0.1**2 * 2 * n * top * math.sqrt(n) * 1e-4
    assert truth <= found.item() <= 1.02 * truth
