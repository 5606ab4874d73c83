"""The lower side of a sum of squares against quadrature over its Gaussian weights and all values of its input."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tests.engine.inequalities.test_efron_stein import _atoms
from torch import Tensor

import bnndp.engine.laws  # noqa: F401 - registers the weights of layers
from bnndp.engine.inequalities.lower_side import _Crossed, _gaussian, _slopes, lower_norm
from bnndp.engine.laws.weights import weights_of
from bnndp.engine.moments.signal import Signal
from bnndp.engine.rows import DenseRows
from bnndp.geometry.bounds import Interval
from bnndp.layers import CorrelatedLinear, Linear
from bnndp.network import Layer

F64 = torch.float64
NODES = torch.linspace(-9, 9, 301, dtype=F64)
DENSITY = torch.exp(-0.5 * NODES.square()) / torch.exp(-0.5 * NODES.square()).sum()

SETTINGS: list[dict[str, float]] = [
    {"mean": 0.0, "std": 1.0, "bias": 0.3, "move": 0.1},  # nearly the prior: the weights decide
    {"mean": 1.0, "std": 0.3, "bias": 0.1, "move": 1.0},
    {"mean": 2.0, "std": 0.01, "bias": 0.1, "move": 0.5},  # the input decides
    {"mean": 0.5, "std": 0.5, "bias": 2.0, "move": 0.01},
    {"mean": 0.3, "std": 3.0, "bias": 0.0, "move": 2.0},
]


def source(values: Tensor, chance: Tensor, shift: float = 0.0) -> Signal:  # (batch, n_in, atoms) each
    """Independent values of these laws, whose mean is this far above the middle of its range."""
    mean = (chance * values).sum(-1)
    away = values - mean[..., None]
    norm4 = (chance * away**4).sum(-1) ** 0.25
    found = SimpleNamespace(
        source=True,
        mean=Interval(mean - 2 * max(shift, 0.0), mean + 2 * max(-shift, 0.0)),
        variance=(chance * away.square()).sum(-1),
        norms=norm4[..., None].expand(*norm4.shape, 3),
    )
    return cast("Signal", found)


def layer_of(generator: torch.Generator, n_in: int, *, mean: float, std: float, bias: float) -> Linear:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=F64)

    return Linear(mean * normal(2, n_in), std * normal(2, n_in).abs(), normal(2), bias * normal(2).abs())


def lower_sides(layer: Layer, values: Tensor, chance: Tensor, rows: Tensor, left: float) -> tuple[Tensor, Tensor]:
    """E s and the norm in L4 of its lower side, (batch, rows), for two neurons."""
    n_in, atoms = values.shape[-2:]
    grid = torch.cartesian_prod(*[torch.arange(atoms)] * n_in).reshape(-1, n_in)
    y = values[:, torch.arange(n_in), grid]  # (batch, outcomes, n_in)
    weight = chance[:, torch.arange(n_in), grid].prod(-1)  # (batch, outcomes)
    weights = weights_of(layer, (n_in,))
    m, r = weights.apply(y) + weights.bias, torch.stack([weights.spread(each) for each in y]).sqrt()
    x = m[..., None] + r[..., None] * NODES  # (batch, outcomes, 2, nodes)
    square = torch.where(x > 0, x, left * x).square()
    mean, fourth = [], []
    for row in rows:
        s = row[0] * square[:, :, 0, :, None] + row[1] * square[:, :, 1, None, :]
        own = weight[..., None, None] * DENSITY[:, None] * DENSITY
        mean.append((own * s).sum((1, 2, 3)))
        fourth.append((own * (mean[-1][:, None, None, None] - s).clamp_min(0) ** 4).sum((1, 2, 3)))
    return torch.stack(mean, -1), torch.stack(fourth, -1) ** 0.25


RAMP = (0.0, 1.0)
ROWS = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.1, 2.0]], dtype=F64)


@pytest.mark.parametrize("shift", [0.0, 0.2, -0.2])
@pytest.mark.parametrize("setting", range(len(SETTINGS)))
@pytest.mark.parametrize("left", [0.0, -0.5])
def test_lower_sides_hold(setting: int, shift: float, left: float) -> None:
    settings = dict(SETTINGS[setting])
    move, sharp = settings.pop("move"), math.inf
    for n_in in (1, 2, 3):
        generator = torch.Generator().manual_seed(10 * setting + n_in)
        values, chance = _atoms(generator, 8, n_in)
        values = 1 + move * values
        layer = layer_of(generator, n_in, **settings)
        mean, truth = lower_sides(layer, values, chance, ROWS, left)
        y = source(values, chance, shift)
        found = lower_norm(weights_of(layer, (n_in,)), y, DenseRows(ROWS[None]), mean, (left, 1.0))
        assert found is not None
        assert bool((truth <= found * (1 + 1e-6) + 1e-9).all()), (n_in, float((truth / found).max()))
        sharp = min(sharp, float((found / truth.clamp_min(1e-12)).min()))
    assert shift != 0 or sharp < (1.5 if left == 0 else 2)


def test_inputs_that_are_lower_than_in_the_middle_of_the_box() -> None:
    """Of weights that are almost certain s is what it is at y, which is nearly certain too."""
    ones, zeros = torch.ones(2, 1, dtype=F64), torch.zeros(2, dtype=F64)
    layer = Linear(ones, 1e-3 * ones, zeros, zeros)
    values, chance = torch.tensor([[[1.0, 1.01]]], dtype=F64), torch.tensor([[[0.5, 0.5]]], dtype=F64)
    shift, most = -0.3, torch.full((1, 1), 2 * 1.6**2, dtype=F64)  # the mean of y is at the lower end
    found = lower_norm(weights_of(layer, (1,)), source(values, chance, shift), DenseRows(ROWS[None, 1:2]), most)
    assert found is not None
    assert 3.08 < found.item() < 4.4  # 2 (1.6^2 - 1.005^2)


def test_the_lower_side_of_independent_gaussian_variables() -> None:
    for m, r in ((0.0, 1.0), (-2.0, 1.0), (3.0, 0.5), (1.0, 0.0), (-1.0, 0.0), (30.0, 1.0), (0.1, 5.0)):
        mean, spread = torch.full((1, 2), m, dtype=F64), torch.full((1, 2), r * r, dtype=F64)
        square = (m + r * NODES).clamp_min(0).square()
        s = ROWS[:, 0, None, None] * square[:, None] + ROWS[:, 1, None, None] * square
        own = DENSITY[:, None] * DENSITY
        at = (own * s).sum((1, 2))
        for factor in (0.7, 1.0, 1.5):
            truth = (own * (factor * at[:, None, None] - s).clamp_min(0) ** 4).sum((1, 2)) ** 0.25
            found = _gaussian(RAMP, ROWS[None], mean, spread, factor * at[None])[0]
            assert bool((truth <= found * (1 + 1e-6) + 1e-9).all()), (m, r, factor)
            if m == 0:
                assert bool((found < 1.3 * truth).all())


def test_chernoff_is_nearly_sharp_for_sums_of_many() -> None:
    """For a Gaussian variable of deviation one the norm of the lower side is the fourth root of 3 / 2."""
    n = 400
    rows = torch.full((1, 1, n), 1 / n, dtype=F64)
    found = _gaussian(RAMP, rows, torch.full((1, n), 2.0, dtype=F64), torch.ones(1, n, dtype=F64), _second(2.0)).item()
    fourth = (DENSITY * (2.0 + NODES).clamp_min(0) ** 4).sum().item()
    deviation = math.sqrt((fourth - _second(2.0).item() ** 2) / n)
    assert 0.97 * 1.5**0.25 < found / deviation < 1.15 * 1.5**0.25


def _second(m: float) -> Tensor:
    return (DENSITY * (m + NODES).clamp_min(0).square()).sum().reshape(1, 1)


@pytest.mark.parametrize("mu", [0.0, 0.5, -2.0])
@pytest.mark.parametrize("y", [1.0, -0.3])
def test_fourth_moments_of_slopes(mu: float, y: float) -> None:
    """Of one weight W and X = W y + b: g = 2 X_+ W."""
    sharp = math.inf
    for std, other, shift in ((1.0, 0.0, 0.0), (1.0, 1.0, 0.5), (0.1, 0.02, -0.1), (0.5, 0.01, -2.0)):
        weight = (mu + std * NODES)[:, None]
        x = weight * y + shift + other * NODES
        truth = (DENSITY[:, None] * DENSITY * (2 * x.clamp_min(0) * weight) ** 4).sum().item()

        def one(value: float, *shape: int) -> Tensor:
            return torch.full(shape or (1, 1), value, dtype=F64)

        m, v = one(mu * y + shift), one((std * y) ** 2 + other**2)
        weights = (one(value, 1, 1, 1) for value in (mu, std**2, std**2 * y, std * v.item() ** 0.5))
        found = _slopes(RAMP, one(1.0, 1, 1, 1), m, v, _Crossed(*weights)).item()
        assert truth <= found * (1 + 1e-3), (std, other, shift)
        sharp = min(sharp, found / max(truth, 1e-12))
    assert sharp < 5


def test_a_heavy_upper_tail_does_not_count() -> None:
    """One neuron in ten has a much larger weight: s is far from symmetric."""
    n, draws = 40, 100_000
    generator = torch.Generator().manual_seed(5)
    rows = torch.where(torch.arange(n) % 10 == 0, 1.0, 0.02).to(F64)
    z = torch.randn(draws, n, generator=generator, dtype=F64).clamp_min(0).square() @ rows
    truth = ((z.mean() - z).clamp_min(0) ** 4).mean() ** 0.25
    found = _gaussian(
        RAMP, rows[None, None], torch.zeros(1, n, dtype=F64), torch.ones(1, n, dtype=F64), z.mean()[None, None]
    )
    assert truth < found.item() < 1.1 * truth
    assert found.item() < 0.7 * z.std()


def test_nothing_is_said_of_what_depends() -> None:
    generator = torch.Generator().manual_seed(0)
    values, chance = _atoms(generator, 1, 2)
    layer, most = layer_of(generator, 2, mean=1.0, std=1.0, bias=1.0), torch.ones(1, 3, dtype=F64)
    signal: Any = source(values, chance)
    signal.source = False
    assert lower_norm(weights_of(layer, (2,)), signal, DenseRows(ROWS[None]), most) is None
    signal.source = True
    shared = _with_factor(layer, torch.ones(2, 3, 1, dtype=F64), shared=True)
    assert lower_norm(weights_of(shared, (2,)), signal, DenseRows(ROWS[None]), most) is None


@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_lower_sides_of_correlated_rows_hold(setting: int) -> None:
    settings = dict(SETTINGS[setting])
    move, generator = settings.pop("move"), torch.Generator().manual_seed(setting)
    for n_in in (1, 2, 3):
        values, chance = _atoms(generator, 8, n_in)
        values, layer = 1 + move * values, layer_of(generator, n_in, **settings)
        factor = settings["std"] * torch.randn(2, n_in + 1, 2, generator=generator, dtype=F64)
        coupled = _with_factor(layer, factor, shared=False)
        mean, truth = lower_sides(coupled, values, chance, ROWS, 0.0)
        found = lower_norm(weights_of(coupled, (n_in,)), source(values, chance), DenseRows(ROWS[None]), mean)
        assert found is not None
        assert bool((truth <= found * (1 + 1e-6) + 1e-9).all()), (n_in, float((truth / found).max()))


def _with_factor(layer: Linear, factor: Tensor, *, shared: bool) -> CorrelatedLinear:
    return CorrelatedLinear(layer.weight_mean, layer.weight_std, layer.bias_mean, layer.bias_std, factor, shared)
