"""Bounds of E softmax from margins, against laws of the logits on few atoms where every mean is a finite sum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from flint import arb, ctx
from support.oracles import PRECISION
from tests.marks import slow_but
from torch import Tensor

from bnndp.maths.softmax import consistent, second_order_bound, union_bound

INF, NAN = math.inf, math.nan


@dataclass(frozen=True)
class Law:
    """Logits on atoms: values (atoms, classes), their probabilities, and what follows for a reference class."""

    logits: Tensor
    weights: Tensor

    @property
    def softmax(self) -> Tensor:
        """E p: (classes,)."""
        return self.weights @ torch.softmax(self.logits, -1)

    def margins(self, c: int) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance of D_i = zeta_c - zeta_i, and the mean of sigma(-D_i): (classes,) each."""
        d = self.logits[:, c : c + 1] - self.logits
        mean = self.weights @ d
        return mean, self.weights @ (d - mean).square(), self.weights @ torch.sigmoid(-d)


def law(seed: int, classes: int, scale: float, size: float) -> Law:
    """Few atoms, unequal probabilities, logits of ``size`` with deviations of ``scale``."""
    generator = torch.Generator().manual_seed(seed)
    atoms = 2 + seed % 4
    centre = size * torch.randn(classes, generator=generator, dtype=torch.float64)
    logits = centre + scale * torch.randn(atoms, classes, generator=generator, dtype=torch.float64)
    weights = torch.rand(atoms, generator=generator, dtype=torch.float64) ** 3 + 1e-6
    return Law(logits, weights / weights.sum())


def some_rows(seed: int, classes: int) -> Tensor:
    """Units, their negatives, all differences, and rows with any coefficients: (1, rows, classes)."""
    unit = torch.eye(classes, dtype=torch.float64)
    pairs = (unit[:, None] - unit).reshape(-1, classes)
    generator = torch.Generator().manual_seed(seed)
    free = torch.randn(6, classes, generator=generator, dtype=torch.float64)
    free = free * torch.tensor([1e-3, 1.0, 1.0, 3.0, 1e3, 1e6], dtype=torch.float64)[:, None]
    constant = torch.full((1, classes), -2.5, dtype=torch.float64)
    return torch.cat([unit, -unit, pairs, free, constant])[None]


def at(c: int) -> Tensor:
    return torch.tensor([c])


@pytest.mark.parametrize("classes", slow_but([2, 3, 5, 10], 2, 5))
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.1, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("size", [0.0, 1.0, 6.0])
def test_no_law_breaks_the_bounds(classes: int, scale: float, size: float) -> None:
    """For every reference class, also with less known of the margins than what is true."""
    for seed in range(6):
        given = law(seed, classes, scale, size)
        rows = some_rows(seed, classes)
        truth = rows[0] @ given.softmax
        rounding = 1e-15 * rows[0].abs().sum(-1)
        for c in range(classes):
            mean, variance, tails = given.margins(c)
            for less in (0.0, 0.3):
                low = union_bound(rows, tails[None] + less, at(c))[0]
                assert (low <= truth + rounding).all()
                low = second_order_bound(rows, mean[None] - less, variance[None] + less, at(c))[0]
                assert (low <= truth + rounding).all()


@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0])
def test_the_union_is_exact_for_two_classes(scale: float) -> None:
    given = law(3, 2, scale, 2.0)
    rows = some_rows(0, 2)
    for c in range(2):
        lead = rows[0, :, c] >= rows[0, :, 1 - c]  # otherwise nothing is known of sigma(-D) from below
        low = union_bound(rows, given.margins(c)[2][None], at(c))[0]
        truth = rows[0] @ given.softmax
        assert torch.allclose(low[lead], truth[lead], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("classes", [2, 4, 10])
def test_the_second_order_is_right_to_second_order(classes: int) -> None:
    """The gap to the truth falls like the variance, and without variance decisions are exact."""
    rows = some_rows(0, classes)[:, :classes]
    c = int(law(5, classes, 0.0, 1.5).softmax.argmax())
    gaps = []
    for scale in (1e-1, 1e-2, 1e-3):
        given = law(5, classes, scale, 1.5)
        mean, variance, _ = given.margins(c)
        gap = rows[0] @ given.softmax - second_order_bound(rows, mean[None], variance[None], at(c))[0]
        gaps.append(float(gap[c]))
    assert 50 < gaps[0] / gaps[1] < 200
    assert 50 < gaps[1] / gaps[2] < 200
    given = law(5, classes, 0.0, 1.5)
    mean, _, _ = given.margins(c)
    unit = rows[:, c : c + 1]
    found = second_order_bound(unit, mean[None], torch.zeros_like(mean)[None], at(c)).item()
    assert found == pytest.approx(float(given.softmax[c]), rel=1e-13)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_the_rest_is_attained_within_a_factor(classes: int) -> None:
    """Two equal classes and a small symmetric noise in their difference: the constant cannot be much smaller."""
    h = 1e-3
    centre = torch.zeros(classes, dtype=torch.float64)
    centre[0] = math.log(3 + 2 * math.sqrt(2)) if classes == 2 else 1.0
    step = torch.zeros_like(centre)
    step[0] = h
    given = Law(torch.stack([centre + step, centre - step]), torch.tensor([0.5, 0.5], dtype=torch.float64))
    shift = float((given.softmax - torch.softmax(centre, -1))[0])
    _, variance, _ = given.margins(0)
    rest = 0.125 * float(variance.sum())
    assert abs(shift) <= rest
    assert abs(shift) >= 0.15 * rest / classes


# Rounding and the ends of float64


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_union_is_rounded_down(classes: int) -> None:
    """Against the same formula in ball arithmetic, with tails taken as they are."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(1, 3, classes, generator=generator, dtype=torch.float64)
        tails = torch.rand(1, classes, generator=generator, dtype=torch.float64) ** 4
        c = seed % classes
        found = union_bound(rows, tails, at(c))[0].tolist()
        with ctx.workprec(PRECISION):
            for row, value in zip(rows[0].tolist(), found, strict=True):
                own = arb(row[c])
                lost = [(own - arb(a)) * arb(u) for a, u in zip(row, tails[0].tolist(), strict=True) if a < row[c]]
                truth = own - sum(lost, arb(0))
                assert arb(value) <= truth
                assert arb(value) >= truth - arb(1e-13) * classes


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_the_second_order_without_variance_is_rounded_down(classes: int) -> None:
    for seed in range(20):
        given = law(seed, classes, 0.0, 3.0)
        rows = some_rows(seed, classes)[:, -7:]
        c = seed % classes
        mean = given.margins(c)[0]
        found = second_order_bound(rows, mean[None], torch.zeros_like(mean)[None], at(c))[0].tolist()
        with ctx.workprec(PRECISION):
            weights = [arb(1) if i == c else (-arb(d)).exp() for i, d in enumerate(mean.tolist())]
            total = sum(weights, arb(0))
            for row, value in zip(rows[0].tolist(), found, strict=True):
                truth = sum((arb(a) * w for a, w in zip(row, weights, strict=True)), arb(0)) / total
                assert arb(value) <= truth


@pytest.mark.parametrize("d", [-800.0, -1e4, -1e308, -INF])
def test_a_hopeless_class_gets_no_credit(d: float) -> None:
    """e^-d overflows: the probability of the reference class is below e^d."""
    rows = torch.tensor([[[1.0, 0.0], [-1.0, 0.0], [1.0, -1.0], [0.0, -1.0]]], dtype=torch.float64)
    mean, variance = torch.tensor([[0.0, d]], dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    found = second_order_bound(rows, mean, variance, at(0))[0]
    assert not found.isnan().any()
    assert (found <= torch.tensor([0.0, 0.0, -1.0, -1.0], dtype=torch.float64)).all()


@pytest.mark.parametrize(("mean", "variance"), [(NAN, 1.0), (1.0, NAN), (1.0, INF), (-INF, INF), (NAN, NAN)])
def test_nothing_known_gives_minus_infinity(mean: float, variance: float) -> None:
    rows = torch.tensor([[[1.0, -1.0, 0.0]]], dtype=torch.float64)
    d = torch.tensor([[0.0, mean, 3.0]], dtype=torch.float64)
    v = torch.tensor([[0.0, variance, 1.0]], dtype=torch.float64)
    assert second_order_bound(rows, d, v, at(0)).item() == -INF


def test_an_infinite_tail_of_a_class_that_does_not_matter_is_ignored() -> None:
    rows = torch.tensor([[[1.0, 1.0, 0.0], [1.0, 0.5, 0.0]]], dtype=torch.float64)
    found = union_bound(rows, torch.tensor([[NAN, INF, 0.25]], dtype=torch.float64), at(0))[0]
    assert found[0].item() == pytest.approx(0.75)
    assert found[1].item() == -INF


# Probabilities add up to one


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_consistent_keeps_the_truth_and_tightens(classes: int) -> None:
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        p = torch.rand(1, classes, generator=generator, dtype=torch.float64) ** 6 + 1e-12
        p = p / p.sum()
        low = p - 0.3 * torch.rand(1, classes, generator=generator, dtype=torch.float64) ** 2
        high = p + 0.3 * torch.rand(1, classes, generator=generator, dtype=torch.float64) ** 2
        new_low, new_high = consistent(low, high)
        assert (new_low <= p + 1e-15).all()
        assert (new_high >= p - 1e-15).all()
        assert (new_low >= low.clamp(0, 1)).all()
        assert (new_high <= high.clamp(0, 1)).all()


def test_consistent_finds_what_follows_from_the_sum() -> None:
    low, high = consistent(
        torch.tensor([[0.6, 0.0, 0.1]], dtype=torch.float64), torch.tensor([[1.0, 1.0, 0.15]], dtype=torch.float64)
    )
    assert high[0].tolist() == pytest.approx([0.9, 0.3, 0.15])
    assert low[0].tolist() == pytest.approx([0.6, 0.0, 0.1])
    low, high = consistent(torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[0.2, 1.0]], dtype=torch.float64))
    assert low[0].tolist() == pytest.approx([0.0, 0.8])


@pytest.mark.parametrize("value", [NAN, INF, -INF, -3.0, 7.0])
def test_consistent_of_nonsense_says_nothing_wrong(value: float) -> None:
    """Ends that say nothing become the trivial ones; those of the other classes still hold."""
    low = torch.tensor([[min(value, 0.0) if value == value else value, 0.2]], dtype=torch.float64)
    high = torch.tensor([[max(value, 1.0) if value == value else value, 0.9]], dtype=torch.float64)
    new_low, new_high = consistent(low, high)
    assert new_low[0].tolist() == pytest.approx([0.1, 0.2])
    assert new_high[0].tolist() == pytest.approx([0.8, 0.9])


@pytest.mark.parametrize("classes", [3, 30, 300, 3000])
def test_consistent_is_rounded_outward(classes: int) -> None:
    """Exact probabilities on both sides, k/2^53-th parts that add up to one: no end may cross them."""
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        parts = torch.rand(classes, generator=generator, dtype=torch.float64)
        parts = (parts / parts.sum() * 2.0**52).floor().to(torch.int64)
        parts[0] += 2**52 - int(parts.sum())
        p = (parts.to(torch.float64) / 2.0**52)[None]
        low, high = consistent(p, p)
        assert (low <= p).all()
        assert (high >= p).all()
