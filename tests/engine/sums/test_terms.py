"""What the expansion knows of single terms given a history, and what it makes of it, against exact enumeration.

Y has a few values; given Y, z has a few atoms. Each moment is a finite sum, and each cost of a random history is
attained by some law: a factor that is too small is noticed, whatever the other terms cover.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from tests.engine.sums.test_history import Laws, signal_of
from torch import Tensor

from bnndp.engine.laws.weights import SpreadRemainder
from bnndp.engine.moments.pre_activation import Squares
from bnndp.engine.moments.signal import fixed
from bnndp.engine.nodes.node import Input
from bnndp.engine.propagation.row_moments import with_remainder
from bnndp.engine.sums.expansion import expansion_of
from bnndp.engine.sums.series import History, with_history, with_history_of_squares
from bnndp.engine.sums.terms import terms_of
from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear

SLACK = 1 + 1e-9


def laws(seed: int, *, move: float, widen: float, shift: float, atoms: int = 3) -> Laws:
    """Two values of Y, one of them rare; ``move`` of the means, ``widen`` of the sizes given Y (in powers of ten)."""
    generator = torch.Generator().manual_seed(seed)
    batch = 200

    def uniform(*shape: int) -> Tensor:
        return torch.rand(batch, *shape, generator=generator, dtype=torch.float64)

    values = torch.randn(batch, 1, 2, atoms, generator=generator, dtype=torch.float64).expand(-1, 2, -1, -1)
    signs = torch.where(uniform(2, 2, 1) < 0.5, -1.0, 1.0)
    values = signs * values * 10 ** (widen * (2 * uniform(2, 2, 1) - 1)) + move * (2 * uniform(2, 2, 1) - 1) + shift
    chance = uniform(1, 2, atoms) ** 4 + 1e-4 + uniform(2, 2, atoms) * torch.where(uniform(1, 1, 1) < 0.5, 0.0, 1.0)
    rare = 10 ** (-4 * uniform(1))
    zero = torch.zeros(1, 2, dtype=torch.float64)
    history = torch.cat([rare, 1 - rare], -1)
    return Laws(history, values, chance / chance.sum(-1, keepdim=True), Linear(zero, zero, zero[:, 0], zero[:, 0]))


SETTINGS = [
    {"move": 1.0, "widen": 0.5, "shift": 0.0},
    {"move": 0.0, "widen": 1.0, "shift": 0.0},
    {"move": 0.01, "widen": 1.0, "shift": 2.0},
    {"move": 30.0, "widen": 1.0, "shift": 0.0},
    {"move": 1000.0, "widen": 0.0, "shift": 0.0},
    {"move": 0.0, "widen": 0.0, "shift": 100.0},
    {"move": 10.0, "widen": 2.0, "shift": -3.0},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=[str(i) for i in range(len(SETTINGS))])
@pytest.mark.parametrize("atoms", [2, 3])
def test_moments_of_single_terms(setting: dict[str, float], atoms: int) -> None:
    for seed in range(3):
        law = laws(seed, **setting, atoms=atoms)
        found = terms_of(signal_of(law), None)
        h = (law.chance * law.values).sum(-1, keepdim=True)
        a, b = law.values - h, law.values.square() - (law.chance * law.values.square()).sum(-1, keepdim=True)

        def given(values: Tensor, law: Laws = law) -> Tensor:  # (batch, Y, n, atoms) -> (batch, Y, n)
            return (law.chance * values).sum(-1)

        def size(values: Tensor, q: float = 2.0, law: Laws = law) -> Tensor:  # (batch, Y, n) -> (batch, n)
            return law.over_history(values.abs() ** q) ** (1 / q)

        v, k3, c = given(a**2), given(a**3), given(a**4)
        cross, both, squares = given(a * b), given(a**2 * b), given(b**2)
        scale = law.values.abs().amax((1, 3))  # of rounding
        for name, interval, values, degree in (
            ("third", found.third, k3, 3),
            ("cross", found.cross, cross, 3),
            ("both", found.both, both, 4),
            ("squares", found.squares, squares, 4),
            ("excess", found.excess, c - 3 * v**2, 4),
        ):
            truth, blur = law.over_history(values), 1e-13 * scale**degree
            assert bool(((interval.lower <= truth + blur) & (truth <= interval.upper + blur)).all()), name
        for name, claim, truth, degree in (
            ("second", found.second, size(v), 2),
            ("third of a step", found.step3, size(k3), 3),
            ("fourth of a step", found.step4, size(c + 3 * v**2), 4),
            ("third size", found.third_size, size(k3), 3),
            ("cross size", found.cross_size, size(cross), 3),
            ("both size", found.both_size, size(both), 4),
            ("squares size", found.squares_size, size(squares), 4),
            ("fourth", found.fourth, size(c), 4),
            ("excess size", found.excess_size, size(c - 3 * v**2), 4),
            ("fifth", found.fifth, law.over_history(given(a.abs() ** 5)), 5),
            ("gauss5", found.gauss5, law.over_history(v**2.5), 5),
            ("triple", found.triple, law.over_history(given((a**3 * b).abs())), 5),
            ("pair", found.pair, law.over_history(given(a.abs() * b**2)), 5),
            ("wide", found.wide, law.over_history(given(b**4)) ** 0.25, 2),
            ("second raw", found.second_raw, size(given(law.values.square()), 4.0), 2),
            ("third change", found.third_change, law.norm(k3, 2), 3),
            ("cross change", found.cross_change, law.norm(cross, 2), 3),
        ):
            assert bool((truth <= claim * SLACK + 1e-13 * scale**degree).all()), name


@pytest.mark.parametrize("setting", SETTINGS, ids=[str(i) for i in range(len(SETTINGS))])
def test_the_fourth_powers_are_of_order_two_over_the_history(setting: dict[str, float]) -> None:
    """They are multiplied with what varies with Y too, so that their means over Y are not enough."""
    for seed in range(3):
        law = laws(seed, **setting)
        signal = signal_of(law)
        zero = torch.zeros_like(law.history[:, :1])
        one = torch.ones_like(zero)

        def sums(values: Tensor, a: int, b: int) -> Tensor:  # the first term alone, weight and variance one
            return values[:, :1]

        plain, varied = (
            expansion_of(signal, sums, sums, History(zero, zero, spread, *(zero,) * 6)).series.remainders[6]
            for spread in (zero, one)
        )
        centred = law.values - (law.chance * law.values).sum(-1, keepdim=True)
        v, c = ((law.chance * centred**k).sum(-1) for k in (2, 4))
        truth = law.over_history((c + 3 * v**2).square()).sqrt()[:, :1] / 48
        assert bool((varied - plain >= truth * (1 - 1e-6) - 1e-9 * plain).all())


@pytest.mark.parametrize("setting", SETTINGS, ids=[str(i) for i in range(len(SETTINGS))])
def test_third_cumulants_vary_with_the_history(setting: dict[str, float]) -> None:
    """Those of X, E A^3 + 3 E A B, with the mean of m: their covariance is what is left."""
    for seed in range(3):
        law = laws(seed, **setting)
        zero = torch.zeros_like(law.history[:, :1])

        def sums(values: Tensor, a: int, b: int) -> Tensor:  # the first term alone, weight and variance one
            return values[:, :1]

        found = expansion_of(signal_of(law), sums, sums, History(zero + 1, *(zero,) * 8)).series.remainders[4]
        a = law.values - (law.chance * law.values).sum(-1, keepdim=True)
        kappa3 = (law.chance * (a**3 + 3 * a * law.values.square())).sum(-1)
        blur = 1e-12 * law.values.abs().amax((1, 3))[:, :1] ** 3
        assert bool((law.norm(kappa3, 2)[:, :1] / 6 <= found * SLACK + blur).all())


@dataclass(frozen=True, slots=True)
class Varied:
    """Functions of Y, (Y,) each, with the chances of Y."""

    chance: Tensor

    def mean(self, values: Tensor) -> Tensor:
        return (self.chance * values).sum()

    def deviation(self, values: Tensor) -> Tensor:
        return self.mean((values - self.mean(values)).square()).sqrt()

    def size(self, values: Tensor) -> Tensor:
        return self.mean(values.square()).sqrt()


VARIED = ("mean", "noise", "spread", "kappa3", "whole", "all", "extra")


def costs(law: Varied, **parts: Tensor) -> dict[int, float]:
    """The remainders that a history adds, where only some of its parts vary."""
    zero = torch.zeros((), dtype=torch.float64)
    sized = {name: law.size(parts.get(name, zero)) for name in ("third_sum", "quartic_sum", "fourths")}
    c_abs, squares = (law.size(parts.get(name, zero)) for name in ("c_abs", "squares"))
    varied = {name: law.deviation(parts.get(name, zero * law.chance)) for name in VARIED}
    remainders = dict.fromkeys(range(3, 9), zero)
    history = History(
        mean=varied["mean"],
        noise=varied["noise"],
        spread=varied["spread"],
        spread_norm4=zero,
        spread_low4=zero,
        whole=varied["whole"],
        deviation=varied["all"],
        extra=varied["extra"],
        extra_norm4=zero,
    )
    third = law.mean(parts.get("kappa3", zero * law.chance)).abs()
    with_history(remainders, history, varied["kappa3"], third, tuple(sized.values()))  # type: ignore[arg-type]
    with_history_of_squares(remainders, history, c_abs, squares)
    return {order: float(value) for order, value in remainders.items()}


# Of each product: its order, the parts that vary, and its exact value for a function of which the derivative of that
# order is one and the next is zero (so G_2 = m for the third order, G_3 = m^2 / 2 for the fifth, and so on).
Product = Callable[[Varied, Tensor, Tensor], Tensor]
PRODUCTS: dict[str, tuple[int, tuple[str, str], Product]] = {
    "mean of s and of m": (3, ("spread", "mean"), lambda y, d, m: y.mean(d * m) / 2),
    "what is no square, and m": (3, ("extra", "whole"), lambda y, e, m: y.mean(e * m) / 2),
    "what is no square, twice": (4, ("extra", "extra"), lambda y, e, _: y.mean(e * e) / 8),
    "what is no square, and squares": (4, ("extra", "all"), lambda y, e, d: y.mean(2 * e * d) / 8),
    "mean of s, twice": (4, ("spread", "spread"), lambda y, d, _: y.mean(d * d) / 8),
    "mean of s and variance of m": (4, ("spread", "noise"), lambda y, d, v: y.mean(d * v / 2) / 2),
    "third cumulant and mean of m": (4, ("kappa3", "mean"), lambda y, k, m: y.mean(k * m) / 6),
    "mean of s and covariance": (5, ("spread", "c_abs"), lambda y, d, c: y.mean(d * c) / 4),
    "mean of s and third moments": (5, ("spread", "third_sum"), lambda y, d, k: y.mean(d * k / 6) / 2),
    "fourth cumulant and mean of m": (5, ("fourths", "mean"), lambda y, q, m: y.mean(q * m)),
    "square of s and mean of m": (5, ("squares", "mean"), lambda y, q, m: y.mean(q * m) / 8),
    "third cumulant and variance of m": (5, ("kappa3", "noise"), lambda y, k, v: y.mean(k * v / 2) / 6),
    "mean of s and fourth moments": (6, ("spread", "quartic_sum"), lambda y, d, c: y.mean(d * c / 24) / 2),
    "fourth cumulant and variance of m": (6, ("fourths", "noise"), lambda y, q, v: y.mean(q * v / 2)),
    "square of s and variance of m": (6, ("squares", "noise"), lambda y, q, v: y.mean(q * v / 2) / 8),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_costs_of_a_history_are_attained(name: str) -> None:
    order, (first, second), product = PRODUCTS[name]
    generator = torch.Generator().manual_seed(3)
    for attained in (True, False):
        for _ in range(20):
            chance = torch.rand(4, generator=generator, dtype=torch.float64)
            law = Varied(chance / chance.sum())
            a, b = torch.randn(2, 4, generator=generator, dtype=torch.float64)
            a = a - law.mean(a)
            b = 3 * a if attained or first == second else b - law.mean(b)
            found, truth = costs(law, **{first: a, second: a if first == second else b})[order], product(law, a, b)
            if first != second:  # what one of them costs alone
                found = found - costs(law, **{first: a})[order] - costs(law, **{second: b})[order]
            assert abs(float(truth)) <= found * SLACK
            assert not attained or found <= float(truth) * SLACK


def test_cost_of_a_third_cumulant_that_does_not_vary() -> None:
    """It meets E G_3(m): G_3 = m^2 / 2 has the mean (m_Y^2 + V_Y) / 2, which is off by half of each at most."""
    law = Varied(torch.tensor([0.3, 0.7], dtype=torch.float64))
    kappa3, mean = torch.full((2,), 2.0, dtype=torch.float64), torch.tensor([0.7, -0.3], dtype=torch.float64)
    truth = 2 / 6 * law.mean(mean.square() / 2)
    assert float(truth) == pytest.approx(costs(law, kappa3=kappa3, mean=mean)[5], rel=1e-12)
    noise = law.mean((mean - law.mean(mean)).abs() / 2) * 2 / 6  # a fifth derivative of the sign of V_Y - N
    assert float(noise) <= costs(law, kappa3=kappa3, noise=mean)[5] * SLACK
    assert costs(law, kappa3=kappa3, noise=mean)[5] <= float(noise) * 1.2


def test_products_of_two_values_are_centred() -> None:
    """d_1 d_2 is x or -y, with a common random sign of both: its norm is the product of theirs, its mean not zero."""
    zero = torch.zeros(1, 2, dtype=torch.float64)
    node, none = Input(fixed(Interval(zero, zero))), torch.zeros(1, 1, dtype=torch.float64)
    squares = Squares(none, none, none, none[..., None].expand(1, 1, 2), none, none)
    rows = torch.zeros(1, 1, 2, dtype=torch.float64)
    for chance in torch.linspace(0.01, 0.99, 99, dtype=torch.float64).tolist():
        for y in (0.05, 0.2, 0.5, 1.0):
            weight = torch.tensor([chance, 1 - chance], dtype=torch.float64)
            product = torch.tensor([1.0, -y], dtype=torch.float64)
            norms = torch.stack([(weight * product.abs() ** q).sum() ** (1 / q) for q in (2, 4, 8)])
            found = with_remainder(squares, SpreadRemainder(rows, rows, norms.reshape(1, 1, 3)), node)
            centred = product - (weight * product).sum()
            truth = [float((weight * centred.abs() ** q).sum() ** (1 / q)) for q in (2, 4, 8)]
            claims = [float(found.extra), float(found.extra_norm4), float(found.norms[0, 0, 1])]
            assert all(x <= claim * SLACK for x, claim in zip(truth, claims, strict=True)), (chance, y)
