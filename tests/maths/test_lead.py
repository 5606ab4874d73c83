"""Leads against exact expectations over hostile laws on few points, and their constants against grids."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bnndp.maths import lead as subject
from bnndp.maths.lead import lead_bound, leads
from bnndp.maths.logistic import logistic_tail
from bnndp.maths.softmax import union_bound

INF, NAN = math.inf, math.nan


class Law:
    """Logits on some points with weights: (batch, points, classes), (batch, points)."""

    def __init__(self, logits: Tensor, weights: Tensor, reference: Tensor | None = None) -> None:
        self.weights = weights / weights.sum(-1, keepdim=True)
        self.logits = logits
        self.label = self.mean(logits).argmax(-1) if reference is None else reference
        own = logits.gather(2, self.label[:, None, None].expand(-1, logits.shape[1], 1))
        self.margins = own - logits
        self.middles = 0.5 * (own + logits)[..., None] - logits[:, :, None]  # (batch, points, k, i)

    def mean(self, values: Tensor) -> Tensor:
        return torch.einsum("bp,bp...->b...", self.weights, values)

    def variance(self, values: Tensor) -> Tensor:
        return self.mean((values - self.mean(values)[:, None]).square())

    @property
    def tails(self) -> Tensor:
        return self.mean(torch.sigmoid(-self.margins))

    @property
    def leads(self) -> Tensor:
        probability = self.mean(torch.softmax(self.logits, -1))
        return probability.gather(1, self.label[:, None]) - probability

    def bound(self, tails: Tensor | None = None, less: Tensor | float = 0.0) -> Tensor:
        one = torch.ones_like(self.tails) if tails is None else tails
        mean, variance = self.mean(self.margins) - less, self.variance(self.margins)
        return leads(mean, variance, self.variance(self.middles), one, self.label)


def random_law(seed: int, batch: int = 256) -> Law:
    generator = torch.Generator().manual_seed(seed)
    classes, points = (int(torch.randint(2, n, (1,), generator=generator)) for n in (7, 6))

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator, dtype=torch.float64)

    def scale(*shape: int) -> Tensor:
        return 10 ** (torch.rand(batch, *shape, generator=generator, dtype=torch.float64) * 3 - 2)

    logits = normal(1, classes) * scale(1, 1) + normal(points, classes) * scale(1, 1) * scale(points, classes)
    return Law(logits, torch.rand(batch, points, generator=generator, dtype=torch.float64) ** 4)


@pytest.mark.parametrize("seed", range(12))
def test_no_law_has_a_smaller_lead(seed: int) -> None:
    law = random_law(seed)
    less = torch.rand(law.leads.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for tails in (None, law.tails):
        for away in (0.0, 0.3 * less):
            assert bool((law.bound(tails, away) <= law.leads + 1e-13).all())


def least_gap(
    bound_of: Callable[[Law], Tensor],
    classes: int,
    points: int,
    *,
    many: int = 48,
    steps: int = 100,
    scale: float = 1.0,
) -> float:
    """Of a lead above its bound, over laws that are changed at random wherever that makes the gap smaller."""
    generator = torch.Generator().manual_seed(10 * classes + points)

    def normal(*shape: int) -> Tensor:
        return torch.randn(many, *shape, generator=generator, dtype=torch.float64)

    def gap_of(logits: Tensor, weights: Tensor) -> Tensor:
        law = Law(logits, weights.softmax(-1), torch.zeros(many, dtype=torch.int64))
        return (law.leads - bound_of(law))[:, 1:].amin(-1)

    logits, weights = scale * normal(points, classes), scale * normal(points)
    logits[..., 0] += scale - 1
    gap = gap_of(logits, weights)
    for step in range(steps):
        size = 10 ** -(2 * step / steps)
        tried = logits + size * normal(points, classes), weights + size * normal(points)
        found = gap_of(*tried)
        better = found < gap
        gap = torch.where(better, found, gap)
        logits, weights = (
            torch.where(better.reshape(-1, *(1,) * (old.ndim - 1)), new, old)
            for new, old in zip(tried, (logits, weights), strict=True)
        )
    return float(gap.min())


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("points", [2, 3])
def test_no_law_that_a_search_finds(classes: int, points: int) -> None:
    """Laws are changed at random wherever that makes the gap between a lead and its bound smaller."""
    gap = least_gap(lambda law: law.bound(law.tails), classes, points)
    assert gap >= -1e-13
    assert gap < 0.02  # the search comes close


def test_calm_logits_of_low_confidence_are_decided() -> None:
    """Where the lead is a few hundredths, and ten classes vary."""
    generator = torch.Generator().manual_seed(3)
    logits = 0.12 * torch.randn(1, 4000, 10, generator=generator, dtype=torch.float64)
    logits[..., 0] += 1.0
    logits[..., 1] += 0.8
    law = Law(logits, torch.ones(1, 4000, dtype=torch.float64))
    found, truth = law.bound()[0, 1].item(), law.leads[0, 1].item()
    assert 0.03 < truth < 0.06
    assert 0.4 * truth < found < truth
    tails = logistic_tail(law.mean(law.margins), law.variance(law.margins))
    rows = torch.zeros(1, 1, 10, dtype=torch.float64)
    rows[..., 0], rows[..., 1] = 1.0, -1.0
    assert union_bound(rows, tails, law.label).item() < -1


def test_it_is_exact_without_variance() -> None:
    logits = torch.randn(50, 1, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    law = Law(logits, torch.ones(50, 1, dtype=torch.float64))
    assert torch.allclose(law.bound(), law.leads, atol=1e-10)


def test_two_classes_are_the_union_bound() -> None:
    law = random_law(2)
    pair = Law(law.logits[..., :2], law.weights)
    found = pair.bound(pair.tails).scatter(1, pair.label[:, None], INF).amin(-1)
    assert bool((found >= (1 - 2 * pair.tails).scatter(1, pair.label[:, None], INF).amin(-1) - 1e-12).all())


def test_the_constants() -> None:
    """Second derivatives in D by differentiation, on a grid of D and t."""
    d = torch.linspace(-12, 12, 4001, dtype=torch.float64)[:, None].expand(-1, 40).clone().requires_grad_()
    t = torch.logspace(-4, 5, 40, dtype=torch.float64)
    lead = 2 * torch.sinh(d / 2) / (2 * torch.cosh(d / 2) + t)

    def bend(values: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(values.sum(), d, create_graph=True)
        return torch.autograd.grad(slope.sum(), d, retain_graph=True)[0]

    assert 0.5 * float(bend(lead).detach().abs().max()) <= subject._HALF_BEND
    ratio = 0.5 * bend(torch.tanh(d / 2) - lead) / (t / (2 + t))
    assert 0.8 * subject._HALF_WEIGHED < float(ratio.detach().max()) <= subject._HALF_WEIGHED
    logistic = torch.sigmoid(d)
    assert float(bend(logistic).detach().abs().max()) <= subject._HALF_BEND


def test_nothing_known_says_nothing() -> None:
    one = torch.ones(1, 3, dtype=torch.float64)
    label, middles = torch.zeros(1, dtype=torch.int64), torch.ones(1, 3, 3, dtype=torch.float64)
    for mean, variance in ((NAN, 0.1), (-INF, 0.1), (INF, NAN), (1.0, INF), (1.0, NAN), (-0.1, 0.0)):
        found = leads(one * mean, one * variance, middles, one, label)
        assert found.tolist() == [[0.0, -1.0, -1.0]]
    for unknown in (INF, NAN):
        found = leads(one, 0.1 * one, middles * unknown, one, label)
        assert found[0, 0] == 0
        assert bool((found[0, 1:] >= -1).all() & (found[0, 1:] < 0.2).all())
    one_unknown = torch.tensor([[0.0, 2.0, -INF]], dtype=torch.float64)  # the third class may have all the weight
    assert leads(one_unknown, 0.01 * one, middles, one, label)[0, 1] <= 0


def test_rows_of_any_losses() -> None:
    generator = torch.Generator().manual_seed(5)
    law = random_law(5)
    classes = law.logits.shape[-1]
    found, probability = law.bound(law.tails), law.mean(torch.softmax(law.logits, -1))
    rows = torch.randn(256, 40, classes, generator=generator, dtype=torch.float64)
    bound = lead_bound(rows, found, law.label)
    assert bool((bound <= torch.einsum("brc,bc->br", rows, probability) + 1e-12).all())
    one = torch.eye(classes, dtype=torch.float64)
    pairs = one[law.label][:, None] - one
    assert torch.allclose(lead_bound(pairs, found, law.label), found, atol=1e-12)
    against = -one[law.label][:, None].expand(-1, 2, -1)  # what falls with the lead is not bounded by it
    assert bool((lead_bound(against, found, law.label) == -INF).all())


@pytest.mark.parametrize("seed", range(4))
def test_steps_of_the_grid_hold_for_every_mean_in_them(seed: int) -> None:
    """The formulas of the module at M itself, for many M from the least one on."""
    generator = torch.Generator().manual_seed(seed)
    least, v, others, sway = torch.rand(4, 300, generator=generator, dtype=torch.float64)
    least, v, others, sway = 2 * least**2, 3 * v**3, 4 * others**2, 10 ** (1.5 - 3 * sway)
    found = subject._on_grid(
        least[:, None], v[:, None], torch.ones_like(v)[:, None], others[:, None, None], sway[:, None, None]
    )
    far = torch.tensor([4.0, 8.0, 30.0], dtype=torch.float64)
    m = least[:, None] + torch.cat([torch.linspace(0, 3, 601, dtype=torch.float64), far])
    v, others, sway = (each[:, None] for each in (v, others, sway))
    t, tau = torch.exp(0.5 * m) * others, torch.tanh(0.5 * m)
    q = 2 * torch.cosh(0.5 * m) / (2 * torch.cosh(0.5 * m) + t)
    plain = tau * q - v / (6 * 3**0.5)
    tail = logistic_tail(m, v.expand_as(m))
    heavy = 1 - 2 * tail - tau * (1 - q) - 0.5 * 0.4393 * v * t / (2 + t)
    first = 0.25 * sway * (0.5 * (m.square() + v).sqrt()).clamp_max(1.0)
    mixed = v.sqrt() * sway
    second = 0.125 * mixed + tau * (0.125 * sway.square() + 0.5 * mixed / (6 * 3**0.5))
    at = torch.maximum(plain, heavy) - torch.minimum(first, second)
    assert bool((found[:, 0, 0] <= at.amin(-1) + 1e-6 * v[:, 0] + 1e-12).all())
