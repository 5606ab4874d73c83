"""Joint leads against exact expectations over hostile laws on few points, and their suprema against fine grids."""

from __future__ import annotations

import math

import pytest
import torch
from tests.maths.test_lead import Law, least_gap, random_law
from torch import Tensor

from bnndp.maths import joint_lead as subject
from bnndp.maths.joint_lead import joint_leads
from bnndp.maths.lead import leads

INF, NAN = math.inf, math.nan


def bound_of(law: Law, less: Tensor | float = 0.0, tails: Tensor | None = None) -> Tensor:
    """The joint leads alone, from means that are too low by ``less``; -1 where none are asked for."""
    mean, variance = law.mean(law.margins) - less, law.variance(law.margins)
    one = torch.ones_like(mean) if tails is None else tails
    return joint_leads(mean, variance, law.variance(law.middles), one, law.label, -torch.ones_like(mean))


@pytest.mark.parametrize("seed", range(12))
def test_no_law_has_a_smaller_lead(seed: int) -> None:
    law = random_law(seed)
    less = torch.rand(law.leads.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for away in (0.0, 0.3 * less):
        for tails in (None, law.tails):
            assert bool((bound_of(law, away, tails) <= law.leads + 1e-13).all())


@pytest.mark.parametrize(("classes", "points"), [(2, 2), (3, 2), (3, 3), (4, 3), (6, 5)])
def test_no_law_that_a_search_finds(classes: int, points: int) -> None:
    """Laws are changed at random wherever that makes the gap between a lead and its bound smaller."""
    gap = least_gap(bound_of, classes, points, many=32, steps=40, scale=2.0)
    assert gap >= -1e-13
    assert gap < 0.05  # the search comes close


def dual(seed: int, pairs: int = 40, classes: int = 3) -> tuple[subject._Dual, subject._Multipliers]:
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(pairs, *shape, generator=generator, dtype=torch.float64)

    mean, variance = 3 * uniform(), 10 ** (2 - 5 * uniform())
    mean[::7] += 20
    centre, spread = 10 * uniform(classes) - 3, 10 ** (2 - 5 * uniform(classes))
    made = subject._Dual.of(mean, variance, centre, spread)
    size = [10 ** (0.5 - 3 * uniform(*t)) for t in ((), (), (classes,), (classes,))]
    size = [torch.where(uniform(*(1,) * (t.ndim - 1)) < 0.2, 1e-7 * t, t) for t in size]  # some lines are nearly level
    return made, subject._Multipliers(*size)


def lost(made: subject._Dual, away: Tensor) -> Tensor:  # (nodes,) -> (pairs, classes, nodes)
    """The losses k by their definition."""
    start = torch.exp(-made.centre)
    total = start.sum(-1)[:, None, None]
    more = torch.exp(-made.centre[..., None] - away) - start[..., None]
    return 1 / (1 + total) - 1 / (1 + total + more.clamp_min(0))


@pytest.mark.parametrize("seed", range(4))
def test_suprema_and_infima_are_those_of_fine_grids(seed: int) -> None:
    made, by = dual(seed)
    away = torch.cat([-torch.logspace(3, -6, 4000, dtype=torch.float64), torch.linspace(0, 60, 2000).double()])
    plain = by.each_b[..., None] * away - 0.5 * by.each_a[..., None] * away.square()
    share = torch.tensor(subject._SHARES, dtype=torch.float64)
    loss = lost(made, away)
    exact = torch.stack([(plain + f * loss).amax(-1) for f in share], -1)  # (pairs, classes, shares)
    found = made._losses(by)[0]
    assert bool((found >= exact - 1e-12).all())
    assert float((found - exact).amin(-1).quantile(0.5)) < 0.02
    y = torch.cat([t * torch.logspace(-6, 3, 4000, dtype=torch.float64) for t in (-1, 1)])
    d = made.mean[:, None] + y
    f = torch.tanh(0.5 * d.clamp_min(0))
    some = torch.linspace(0, 1, 201, dtype=torch.float64)
    curve = torch.stack([(plain + x * loss).amax(-1).sum(1) for x in some], -1)  # (pairs, some)
    at = (f * 200).round().long()
    near = torch.minimum(curve.gather(1, (at - 1).clamp_min(0)), curve.gather(1, at))  # at most Psi(f): it rises
    omega = made.base[:, None] * f - torch.tanh(0.5 * (-d).clamp_min(0)) - near
    value = (omega - by.b[:, None] * y + 0.5 * by.a[:, None] * y.square()).amin(-1)
    value = value - 0.5 * by.a * made.variance - 0.5 * (by.each_a * made.spread).sum(-1)
    assert bool((made.at(by)[0] <= value + 1e-12).all())


def test_two_moments_of_ten_margins_decide() -> None:
    """Margins and variances of an image and a network with dropout; without the joint bound there is no decision."""
    mean = torch.tensor([[0.0, 0.59, 1.50, 3.24, 6.96, 8.38, 8.9, 9.2, 9.8, 13.0]], dtype=torch.float64)
    variance = torch.tensor([[0.0, 1.07, 1.14, 0.80, 0.50, 1.06, 0.8, 0.7, 0.9, 1.0]], dtype=torch.float64)
    middles, label = variance[:, None].expand(-1, 10, -1) * 0.95, torch.tensor([0])
    one = torch.ones_like(mean)
    before = leads(mean, variance, middles, one, label)
    found = joint_leads(mean, variance, middles, one, label, before)
    assert before[0, 1] < 0 < found[0, 1]
    assert bool((found >= before).all())


def test_the_first_derivatives_point_uphill() -> None:
    made, _ = dual(1)
    assert bool((made.climbed(10) >= made.climbed(0)).all())
    assert float((made.climbed(25) - made.climbed(0)).mean()) > 0.01


def test_other_classes_weigh_no_less_than_in_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the mean margins exp(-E C) is at least their r, and C has no smaller variance than by the triangle."""
    seen: list[tuple[Tensor, ...]] = []

    def climbed(*given: Tensor) -> Tensor:
        seen.append(given)
        return torch.full_like(given[0], -1.0)

    monkeypatch.setattr(subject, "_climbed", climbed)
    for m in (0.01, 0.4, 1.5, 4.0):
        for v in (1e-4, 0.3, 3.0):
            mean = torch.tensor([[0.0, m, m + 0.8]], dtype=torch.float64)
            variance, middles = torch.full_like(mean, v), torch.full((1, 3, 3), 0.7 * v, dtype=torch.float64)
            seen.clear()
            joint_leads(mean, variance, middles, torch.full_like(mean, 0.4), torch.tensor([0]), -torch.ones_like(mean))
            for pair, (_, _, centre, spread) in enumerate(zip(*seen[0], strict=True)):
                own, other = (m, m + 0.8) if pair == 0 else (m + 0.8, m)
                assert float(centre) <= other + math.log1p(math.exp(-own)) + 1e-12
                assert 0.7 * v <= float(spread) <= v * (1 + 1e-12)


def test_the_constant() -> None:
    d = torch.linspace(-8, 8, 16001, dtype=torch.float64)
    t = torch.tanh(0.5 * d)
    bend = (0.5 * t * (1 - t.square())).abs().max()  # of tanh(d / 2), and twice that of its logistic function
    assert 0.999 * subject._BEND < float(bend) <= subject._BEND


def test_nothing_known_says_nothing() -> None:
    one = torch.ones(1, 4, dtype=torch.float64)
    label, middles, least = torch.zeros(1, dtype=torch.int64), one[:, None].expand(-1, 4, -1), -one
    for value in (NAN, INF, -INF):
        for part in range(3):
            parts = [4 * one, 0.1 * one, 0.1 * middles]
            parts[part] = parts[part].clone()
            parts[part][..., 2] = value
            found = joint_leads(parts[0], parts[1], parts[2], one, label, least)[0]
            if part == 2:
                assert 0 < found[2] < 1  # it is the rival itself, of which no middle is needed
                found = found[[0, 1, 3]]
            assert bool((found == -1).all())


def test_many_classes_are_near_or_far() -> None:
    generator = torch.Generator().manual_seed(4)
    logits = 0.5 * torch.randn(2, 400, 40, generator=generator, dtype=torch.float64)
    logits[..., 0] += 9
    logits[..., 1] += 8
    law = Law(logits, torch.ones(2, 400, dtype=torch.float64))
    found = bound_of(law)
    assert bool((found <= law.leads + 1e-13).all())
    assert float(found[0, 1]) > 0
