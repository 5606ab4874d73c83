"""The expansion to fourth order against sums of few independent values with few atoms: every mean is a finite sum."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from flint import acb, arb, ctx
from support import records
from support.layer_networks import ACTS, activation
from tests.marks import slow_but
from torch import Tensor

import bnndp.engine.laws  # noqa: F401 - registers the weights of layers
from bnndp.activations.activation import Shape
from bnndp.engine.inequalities.expectation import ExpectationBounds, _expanded, expectation_bounds
from bnndp.engine.laws.weights import weights_of
from bnndp.engine.moments.pre_activation import Expansion, PreActivation, RowMoments
from bnndp.engine.moments.signal import GAUSSIAN, POWERS, Signal
from bnndp.engine.propagation.pre_activation import pre_of_weights
from bnndp.engine.sums.expansion import expansion_of, norms_of_sum
from bnndp.geometry.bounds import Interval
from bnndp.layers import CorrelatedLinear, Linear, MatrixNormalLinear

ATOMS = 3
Layer = Linear | CorrelatedLinear | MatrixNormalLinear


@dataclass(frozen=True, slots=True)
class Sine:
    """sin(w x): all derivatives of its mean are known, and their bounds attained."""

    w: float
    kind: ClassVar[str] = "sine"

    @property
    def shape(self) -> Shape:
        third, *more = (self.w**k for k in range(3, 9))
        return Shape((-self.w, self.w), math.inf, math.inf, self.w**2, self.w**2, third, *more)

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        return torch.exp(-0.5 * (self.w * r) ** 2) * torch.sin(self.w * m)

    def error(self, m: Tensor, r: Tensor) -> Tensor:
        return torch.full_like(m + r, 1e-14)

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        return self.w * torch.exp(-0.5 * (self.w * r) ** 2) * torch.cos(self.w * m)


@dataclass(frozen=True, slots=True)
class Case:
    """Laws of independent z_k and of the weights that meet them; (batch, n_out) unless said otherwise."""

    chance: Tensor  # (outcomes, batch)
    m: Tensor  # (outcomes, batch, n_out)
    s: Tensor  # (outcomes, batch, n_out)
    signal: Signal
    pre: PreActivation

    def mean(self, values: Tensor) -> Tensor:  # (outcomes, batch, n_out) -> (batch, n_out)
        return (self.chance[..., None] * values).sum(0)

    def truth(self, phi: Any) -> Tensor:
        """E phi(X)."""
        if phi.kind == "piecewise_affine":  # the sine itself, not its surrogate
            return self.mean(torch.exp(-0.5 * self.s) * torch.sin(self.m))
        return self.mean(phi.mean(self.m, self.s.sqrt()))


def case(values: Tensor, chance: Tensor, layer: Layer, *, wide: float = 0.0, seed: int = 0) -> Case:
    """From atoms (batch, n_in, atoms) and their chances; ``wide`` makes points intervals with the truth inside."""
    _, n_in, atoms = values.shape
    grid = torch.cartesian_prod(*[torch.arange(atoms)] * n_in).reshape(-1, n_in)  # (outcomes, n_in)
    source = torch.arange(n_in)
    z = values[:, source, grid].transpose(0, 1)  # (outcomes, batch, n_in)
    weights = weights_of(layer, (n_in,))
    m, s = weights.apply(z) + weights.bias, weights.spread(z.flatten(0, 1)).reshape(*z.shape[:2], -1)
    signal = signal_of(values, chance, wide, seed)
    whole = chance[:, source, grid].prod(-1).T
    return Case(whole, m, s, signal, pre_of(layer, signal, (chance * values).sum(-1), wide))


def signal_of(values: Tensor, chance: Tensor, wide: float = 0.0, seed: int = 0) -> Signal:
    h = (chance * values).sum(-1)
    centred = values - h[..., None]
    v, k3, c = ((chance * centred**k).sum(-1) for k in (2, 3, 4))
    most = centred.abs().amax(-1, keepdim=True)
    share = (centred / most).abs()
    norms = torch.stack([(chance * share**q).sum(-1) ** (1 / q) for q in POWERS], -1) * most
    generator = torch.Generator().manual_seed(seed)

    def around_it(x: Tensor, scale: Tensor, least: float = -math.inf) -> Interval:
        low, high = (wide * torch.rand(x.shape, generator=generator, dtype=x.dtype) for _ in range(2))
        return Interval((x - low * scale - 1e-13 * x.abs()).clamp_min(least), x + high * scale + 1e-13 * x.abs())

    mean, noise, fourth = around_it(h, v.sqrt()), around_it(v, v, 0.0), around_it(c, c, 0.0)
    third = around_it(k3, v**1.5)
    norms, zero = norms * (1 + 1e-12), torch.zeros_like(v)
    deviations = noise.upper.sqrt()[..., None].expand_as(norms)
    moments = (mean, noise.upper, noise.lower, norms, torch.zeros_like(norms), norms, deviations)
    return Signal(
        *moments, (2 * noise.upper).sqrt(), noise, zero, third, zero, fourth, fixed=False, source=True
    )  # fmt: skip


def pre_of(layer: Layer, signal: Signal, h: Tensor, wide: float = 0.0) -> PreActivation:  # h (batch, n_in)
    weights = weights_of(layer, (h.shape[-1],))
    true = weights.apply(h) + weights.bias
    slack = 1e-13 * (weights.power(h.abs() + signal.variance.sqrt(), 1) + weights.bias.abs())
    slack = slack + wide * weights.power(signal.noise.lower.sqrt(), 1)
    loose = torch.full((*true.shape, len(POWERS)), torch.inf, dtype=true.dtype)
    return pre_of_weights(
        weights, signal, Interval(true - slack, true + slack), lambda: RowMoments(torch.zeros_like(true), loose, None)
    )


def layer_of(generator: torch.Generator, n_out: int, n_in: int, *, mean: float, std: float, bias: float) -> Linear:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def some(values: Tensor) -> Tensor:
        return torch.where(torch.rand(values.shape, generator=generator) < 0.2, 0.0, values)

    scale = 10 ** (-1.5 * torch.rand(n_out, n_in, generator=generator, dtype=torch.float64))
    return Linear(
        some(mean * scale * draw(n_out, n_in)),
        some(std * scale * draw(n_out, n_in).abs()),
        draw(n_out),
        bias * (0.05 + draw(n_out).abs()),
    )


def random_case(seed: int, n_in: int, batch: int = 40, n_out: int = 12, **settings: float) -> Case:
    generator = torch.Generator().manual_seed(seed)
    wide = settings.pop("wide", 0.0)
    values = torch.randn(batch, n_in, ATOMS, generator=generator, dtype=torch.float64)
    chance = torch.rand(batch, n_in, ATOMS, generator=generator, dtype=torch.float64) ** 4 + 1e-4
    values = values * 10 ** (-2 * torch.rand(batch, n_in, 1, generator=generator, dtype=torch.float64))
    dead = torch.rand(batch, n_in, 1, generator=generator) < 0.2  # zero but for a rare, large value
    rare = torch.tensor([1.0, 1e-5, 1e-7], dtype=torch.float64)
    values = torch.where(dead, torch.tensor([0.0, 1.0, 6.0], dtype=torch.float64), values)
    chance = torch.where(dead, rare, chance)
    shift = torch.where(torch.rand(batch, n_in, 1, generator=generator) < 0.3, 3.0, 0.0)  # far from zero
    layer = layer_of(generator, n_out, n_in, **{"mean": 1.0, "std": 0.3, "bias": 1.0, **settings})
    return case(values + shift, chance / chance.sum(-1, keepdim=True), layer, wide=wide, seed=seed)


def whole(found: Expansion, order: int) -> Tensor:  # (batch, n_out)
    """The remainder of an order, of all blocks."""
    assert found.pieces is not None
    return found.series.remainders[order] + found.series.quadratic[order] + found.pieces.remainders[order].sum(-1)


def violation(phi: Any, law: Case, found: ExpectationBounds) -> tuple[float, float]:
    """How far the truth is outside, and the largest share of an error that is used."""
    truth, m = law.truth(phi), law.mean(law.m)
    size = 1e-12 * (1 + law.m.abs().amax(0) + law.s.amax(0).sqrt())
    low = phi.mean(m, found.lower_rho) - phi.error(m, found.lower_rho) - found.lower_error
    high = phi.mean(m, found.upper_rho) + phi.error(m, found.upper_rho) + found.upper_error
    worst = torch.maximum(low - truth, truth - high) - size
    assert not worst.isnan().any()
    used = (truth - 0.5 * (low + high)).abs() / (0.5 * (high - low) + size)
    return float(worst.max()), float(used.nan_to_num(0.0).max())


SETTINGS: list[dict[str, float]] = [
    {"mean": 1.0, "std": 0.3, "bias": 1.0},
    {"mean": 0.1, "std": 0.02, "bias": 0.5},  # V / S tiny
    {"mean": 5.0, "std": 0.01, "bias": 0.01},  # V / S huge
    {"mean": 0.0, "std": 1.0, "bias": 0.1},  # only the variance is random
    {"mean": 1.0, "std": 0.0, "bias": 0.7},  # only the mean is
    {"mean": 0.3, "std": 0.3, "bias": 0.0},  # S may vanish
    {"mean": 0.2, "std": 0.2, "bias": 2.0, "wide": 0.3},
]


@pytest.mark.parametrize("act", slow_but(ACTS, "relu", "gelu"))
@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_the_expansion_holds(act: str, setting: int) -> None:
    phi = activation(act)
    for n_in in (1, 2, 4):
        law = random_case(10 * setting + n_in, n_in, batch=4 if act == "piecewise_affine" else 40, **SETTINGS[setting])
        assert law.pre.expansion is not None
        for found in (
            _expanded(phi, law.pre, law.pre.expansion).at_one_spread(phi.shape),
            expectation_bounds(phi, law.pre),
        ):
            worst, _ = violation(phi, law, found)
            assert worst <= 0, (n_in, worst)


@pytest.mark.parametrize("w", [0.03, 0.2, 0.5, 1.0, 3.0])
def test_the_expansion_of_sines_holds(w: float) -> None:
    """Small frequencies hold each remainder to its order: nothing of a higher one is left to cover it."""
    phi = Sine(w)
    for setting in SETTINGS[:5]:
        for n_in in (1, 3):
            law = random_case(7 + n_in, n_in, batch=60, **setting)
            assert law.pre.expansion is not None
            found = _expanded(phi, law.pre, law.pre.expansion).at_one_spread(phi.shape)  # type: ignore[arg-type]
            worst, _ = violation(phi, law, found)
            assert worst <= 0, (setting, n_in, worst)


@pytest.mark.parametrize(("mean", "std"), [(1.0, 0.0), (1.0, 0.5), (0.2, 1.0), (-1.0, 0.5), (0.0, 1.0)])
@pytest.mark.parametrize("n", [30, 3000])
def test_the_expansion_of_sines_of_many_terms_holds(n: int, mean: float, std: float) -> None:
    r"""For n equal terms :math:`R_6` is of the order 1/n and the largest; for two atoms it is nearly attained.

    The truth is a product, :math:`\mathbb E\sin wX=\Im\prod_k\mathbb Ee^{iw\mu_kz_k-w^2\sigma_k^2z_k^2/2}`, times the
    wave of the bias.
    """
    values = torch.tensor([[0.0, 1.0], [0.0, 1.0], [-1.0, 2.0], [0.5, 3.0]], dtype=torch.float64)
    chance = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.97, 0.03]], dtype=torch.float64)
    signal = signal_of(values[:, None].expand(-1, n, -1), chance[:, None].expand(-1, n, -1))
    for scale, noise in ((0.5, 1.0), (1.0, 0.2), (0.3, 0.01)):
        mu, sigma = mean * scale * n**-0.5, std * scale * n**-0.5
        h = (chance * values).sum(-1, keepdim=True)  # (batch, 1)
        bias = torch.linspace(0, 2 * math.pi, 25, dtype=torch.float64)
        ones = torch.ones(25, n, dtype=torch.float64)
        layer = Linear(mu * ones, sigma * ones, bias, noise * ones[:, 0])
        pre = pre_of(layer, signal, h.expand(-1, n))
        for w in (0.3, 1.0, 2.0):
            phi, centred = Sine(w), values - h
            term = chance * torch.exp(1j * w * mu * centred - 0.5 * (w * sigma * values) ** 2)
            wave = torch.exp(n * torch.log(term.sum(-1, keepdim=True)) - 0.5 * (w * noise) ** 2)
            middle = n * mu * h + bias  # (batch, n_out)
            truth = (wave * torch.exp(1j * w * middle)).imag
            assert pre.expansion is not None
            found = _expanded(phi, pre, pre.expansion).at_one_spread(phi.shape)  # type: ignore[arg-type]
            slack = 1e-12 * (1 + middle.abs())
            low = phi.mean(middle, found.lower_rho) - found.lower_error - slack
            high = phi.mean(middle, found.upper_rho) + found.upper_error + slack
            assert bool(((low <= truth) & (truth <= high)).all()), (scale, noise, w)
            assert float((high - low).min()) < 1


@pytest.mark.parametrize("n", [1, 100, 10**8])
@pytest.mark.parametrize(("mean", "std"), [(1.0, 0.0), (1.0, 0.5), (-1.0, 0.3), (0.0, 1.0)])
@pytest.mark.parametrize(("low", "high", "p"), [(0.0, 1.0, 0.1), (-1.0, 2.0, 0.3), (0.5, 3.0, 0.03), (-1.0, 1.0, 0.5)])
def test_remainders_of_waves(n: int, mean: float, std: float, low: float, high: float, p: float) -> None:
    """The inequality itself, in ball arithmetic, for n equal terms; with 1e8 of them it is nearly attained."""
    values = torch.tensor([[[low, high]]], dtype=torch.float64)
    chance = torch.tensor([[[1 - p, p]]], dtype=torch.float64)
    mu, sigma = mean * n**-0.5, std * n**-0.5

    def signed(values: Tensor, a: int, b: int) -> Tensor:
        return n * values * mu**a * sigma ** (2 * b)

    found = expansion_of(signal_of(values, chance), lambda values, a, b: signed(values, a, b).abs(), signed)
    sizes = [arb(x.item()) for x in (*(whole(found, k) for k in (5, 6, 7, 8)), found.spread_third)]
    with ctx.workprec(300):
        heavy, a, b = arb(p), arb(low), arb(high)
        h = (1 - heavy) * a + heavy * b
        second, noise = (1 - heavy) * a * a + heavy * b * b, arb(0.2)
        spread = n * arb(sigma) ** 2 * second + noise**2  # S
        rho2 = spread + n * arb(mu) ** 2 * (second - h * h)
        for w in (arb(0.05), arb(0.5), arb(1.5)):
            terms = [(-((w * arb(sigma) * z) ** 2) / 2 + acb(0, 1) * w * arb(mu) * (z - h)).exp() for z in (a, b)]
            term = (1 - heavy) * terms[0] + heavy * terms[1]
            wave = (n * term.log() - (w * noise) ** 2 / 2).exp()  # E exp(i w (X - M))
            third, fourth = (
                w**k * arb(0.5 * (x.lower + x.upper).item())
                for k, x in ((3, found.series.third), (4, found.series.fourth))
            )
            blur = sum(
                arb(float((x.upper - x.lower).max())) * w**k
                for k, x in ((3, found.series.third), (4, found.series.fourth))
            )
            near = (-w * w * rho2 / 2).exp() * (1 - acb(0, 1) * third / 6 + fourth / 24)
            smooth = (-w * w * spread / 2).exp()  # sup |G_p| / w^p
            rest = sum((w**k * size for k, size in zip((5, 6, 7, 8), sizes[:4], strict=True)), arb(0)) * smooth
            rest += w**6 * sizes[4] / 48
            turns = [(acb(0, 1) * arb.pi() * phase / 8).exp() for phase in range(8)]  # places of the wave
            off = [abs(((wave - near) * turn).real) for turn in turns]
            assert all(x <= rest + blur for x in off), float(w)
            if n > 10**6 and w < 1 and mean and not std and p != 0.5:
                decay = (-w * w * (rho2 - spread) / 2).exp()  # the largest value is taken at S, the term is at rho
                assert max(map(float, off)) >= 0.9 * float(rest * decay)


def correlated_case(kind: str, seed: int, *, mean: float, std: float, wide: float = 0.0) -> Case:
    """Three values of three atoms and weights that are correlated within a row."""
    layer: Any = {
        "rows": lambda: records.correlated(5, 3, seed, shared=False),
        "shared": lambda: records.correlated(5, 3, seed, shared=True),
        "matrix normal": lambda: records.matrix_normal(5, 3, seed),
    }[kind]()
    factor = "column_factor" if kind == "matrix normal" else "factor"
    layer = replace(layer, weight_mean=mean * layer.weight_mean, **{factor: std * getattr(layer, factor)})
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(30, 3, ATOMS, generator=generator, dtype=torch.float64)
    values = values * 10 ** (-2 * torch.rand(30, 1, 1, generator=generator, dtype=torch.float64))
    chance = torch.rand(30, 3, ATOMS, generator=generator, dtype=torch.float64) ** 3 + 1e-3
    return case(values, chance / chance.sum(-1, keepdim=True), layer, wide=wide, seed=seed)


@pytest.mark.parametrize("kind", ["rows", "shared", "matrix normal"])
@pytest.mark.parametrize(("mean", "std", "wide"), [(1.0, 1.0, 0.0), (1.0, 0.2, 0.0), (0.1, 2.0, 0.0), (0.5, 1.0, 0.2)])
def test_the_expansion_holds_for_correlated_weights(kind: str, mean: float, std: float, wide: float) -> None:
    for seed in range(3):
        law = correlated_case(kind, seed, mean=mean, std=std, wide=wide)
        assert law.pre.expansion is not None
        _check_moments(law)
        for phi in (activation("relu"), activation("tanh"), Sine(0.1), Sine(1.0)):
            worst, _ = violation(phi, law, _expanded(phi, law.pre, law.pre.expansion).at_one_spread(phi.shape))  # type: ignore[arg-type]
            assert worst <= 0, (seed, phi, worst)


def search(phi: Any, steps: int, seed: int) -> tuple[float, float]:
    """A random walk over laws of two values of two atoms that keeps what comes nearer to the bound."""
    generator = torch.Generator().manual_seed(seed)
    best, point, outside = -1.0, torch.zeros(12, dtype=torch.float64), -math.inf
    for step in range(steps):
        scale = 2.0 if step < steps // 4 else 0.3
        trial = point + scale * torch.randn(32, 12, generator=generator, dtype=torch.float64)
        laws = [walked(row) for row in trial]
        values, chance = torch.stack([law[0] for law in laws]), torch.stack([law[1] for law in laws])
        for row, (_, _, layer) in zip(range(32), laws, strict=True):
            law = case(values[row : row + 1], chance[row : row + 1], layer)
            assert law.pre.expansion is not None
            worst, used = violation(phi, law, _expanded(phi, law.pre, law.pre.expansion).at_one_spread(phi.shape))
            outside = max(outside, worst)
            if used > best:
                best, point = used, trial[row]
    return outside, best


def walked(x: Tensor) -> tuple[Tensor, Tensor, Linear]:
    """Atoms, chances and weights from twelve numbers."""
    p = torch.sigmoid(x[:2])
    mean, std = x[6:8], 0.3 * x[8:10].exp()
    values = torch.stack([x[2:4], x[4:6]], -1)
    layer = Linear(mean[None], std[None], x[10:11], x[11:12].exp().clamp(1e-3, 1e3))
    return values, torch.stack([p, 1 - p], -1), layer


@pytest.mark.parametrize("phi", [activation("relu"), activation("tanh"), Sine(0.1)], ids=["relu", "tanh", "sine"])
def test_no_walk_leaves_the_bounds(phi: Any) -> None:
    outside, _ = search(phi, 6, 1)
    assert outside <= 0


@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_cumulants_and_moments_of_the_variance(setting: int) -> None:
    for n_in in (1, 2, 4):
        law = random_case(3 * setting + n_in, n_in, **SETTINGS[setting])
        _check_moments(law)


def _check_moments(law: Case) -> None:
    """Cumulants of X, and moments of s and of m."""
    found = law.pre.expansion
    assert found is not None
    a, s = law.m - law.mean(law.m), law.s
    spread, variance = law.mean(s), law.mean(a.square() + s)
    delta = s - spread
    third = law.mean(a**3 + 3 * a * s)
    fourth = law.mean(a**4 + 6 * a.square() * s + 3 * s.square()) - 3 * variance.square()
    rest = 24 * found.series.quadratic[4]  # zero for independent weights
    reach = a.abs().amax(0) + s.amax(0).sqrt()
    size = 1e-12 * reach + 1e-14 * law.m.abs().amax(0)  # of rounding here
    for name, low, truth, high, degree in (
        ("third", found.series.third.lower, third, found.series.third.upper, 3),
        ("fourth", found.series.fourth.lower - rest, fourth, found.series.fourth.upper + rest, 4),
        ("variance of s", None, law.mean(delta**2), found.spread_variance, 4),
        ("third of s", None, law.mean(delta.abs() ** 3), found.spread_third, 6),
        ("fourth of s", None, law.mean(delta**4), found.spread_fourth, 8),
        ("s from below", None, law.mean((-delta).clamp_min(0) ** 4), found.spread_low, 8),
        ("norm 8 of s", None, law.mean(delta**8) ** 0.125, found.spread_norm8, 2),
        *((f"norm {q}", None, law.mean(a**q) ** (1 / q), found.norms[..., i], 1) for i, q in enumerate(POWERS)),
    ):
        slack = 1e-11 * truth.abs() + size * reach ** (degree - 1)
        assert bool((truth <= high + slack).all()), name
        assert low is None or bool((low <= truth + slack).all()), name


@pytest.mark.parametrize("setting", [0, 1, 2, 3, 4])
def test_the_fifth_remainder_is_at_least_the_fifth_cumulant(setting: int) -> None:
    """Of sin(w x) with w to zero the first term left is kappa_5 / 120 times the fifth derivative."""
    for n_in in (1, 3):
        law = random_case(5 * setting + n_in, n_in, **SETTINGS[setting])
        found = law.pre.expansion
        assert found is not None
        a, s = law.m - law.mean(law.m), law.s
        second, third = law.mean(a**2 + s), law.mean(a**3 + 3 * a * s)
        fifth = law.mean(a**5 + 10 * a**3 * s + 15 * a * s.square()) - 10 * second * third
        slack = 1e-12 * (a.abs().amax(0) + s.amax(0).sqrt()) ** 5
        assert bool((fifth.abs() / 120 <= whole(found, 5) + slack).all())


def test_points_are_nearly_exact_where_the_terms_are_many() -> None:
    """Intervals of points: the cumulants are known to rounding."""
    law = random_case(2, 4)
    found = law.pre.expansion
    assert found is not None
    for part in (found.series.third, found.series.fourth):
        assert bool((part.upper - part.lower <= 1e-7 * (1 + part.magnitude)).all())


def test_norms_of_a_sum_of_many_terms_are_near_those_of_a_gaussian() -> None:
    n = 4000
    signs = torch.tensor([[[-1.0, 1.0]]], dtype=torch.float64)
    signal = signal_of(signs, torch.full_like(signs, 0.5))
    norms = norms_of_sum(signal, lambda values, a, _: values * n * n ** (-0.5 * a)).flatten()
    for norm, gaussian in zip(norms.tolist(), GAUSSIAN, strict=True):
        assert gaussian * (1 - 1e-2) <= norm <= gaussian * (1 + 1e-2)


@pytest.mark.parametrize(("unit", "scale"), [(1e-34, 1.0), (1e17, 1.0), (1e-40, 1e-6), (1e17, 1e-6)])
def test_no_power_of_a_small_weight_or_value_vanishes(unit: float, scale: float) -> None:
    """Values in another unit, with weights in theirs: X and its remainders are the same but for a scale."""
    values = torch.tensor([[[0.0, 1.0], [-0.5, 2.0]]], dtype=torch.float64)
    chance = torch.tensor([[[0.3, 0.7], [0.9, 0.1]]], dtype=torch.float64)
    mean, std, bias = torch.tensor([[1.0, -0.7]]).double(), torch.tensor([[0.4, 0.2]]).double(), torch.ones(1).double()
    one = case(values, chance, Linear(mean, std, bias, bias))
    factor = scale / unit
    other = case(values * unit, chance, Linear(mean * factor, std * factor, bias * scale, bias * scale))
    for name, degree in (
        ("spread_variance", 4), ("spread_third", 6), ("spread_fourth", 8), ("spread_low", 8),
        ("spread_norm8", 2), ("norms", 1),
    ):  # fmt: skip
        here, there = (getattr(x.pre.expansion, name) for x in (one, other))
        assert bool((there >= here * scale**degree * (1 - 1e-6)).all()), name
    for degree in (5, 6, 7, 8):
        here, there = (whole(x.pre.expansion, degree) for x in (one, other))  # type: ignore[arg-type]
        assert bool((there >= here * scale**degree * (1 - 1e-6)).all()), degree
    phi = activation("relu")
    worst, _ = violation(phi, other, expectation_bounds(phi, other.pre))
    assert worst <= 0
