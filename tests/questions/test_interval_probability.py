"""Probabilities of intervals against drawn networks, Gaussian outputs, and every law of two or three points."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from support.ensembles import outputs, points_of
from support.passes import holds
from support.records import linear, normal
from tests.questions.cases import DEEP, interval

from bnndp.activations import Tanh
from bnndp.errors import InputError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.questions.certify import probability
from bnndp.questions.interval_probability import Between, _by_moments, _gaussian, _probability
from bnndp.questions.quantity import Law

F64 = torch.float64
NAN, INF = math.nan, math.inf
DRAWS = 10_000


def phi(t: float) -> float:
    return 0.5 * math.erfc(-t / math.sqrt(2))


def gaussian(m: float, r: float, a: float, b: float) -> float:
    return phi((b - m) / r) - phi((a - m) / r)


@pytest.mark.parametrize("kind", DEEP)
def test_deep_networks_by_draws(kind: str) -> None:
    network, box = DEEP[kind], Box.ball(normal(4, 2, seed=6), 0.1)
    found = outputs(network, points_of(box, 4), DRAWS)
    for a, b in ((-0.5, 0.5), (-INF, 1.0), (0.0, INF), (-20.0, 20.0), (30.0, 31.0)):
        inside = ((found >= a) & (found <= b)).to(F64).mean(0)
        chance = probability(network, box, a, b)
        assert holds(interval(chance), inside, 5 * (inside * (1 - inside) / DRAWS).sqrt() + 1e-3)
    assert bool((chance.upper < 0.1).all())
    assert bool((probability(network, box, -20.0, 20.0).lower > 0.9).all())


def test_gaussian_outputs_over_boxes() -> None:
    first, last = Linear.fixed(normal(5, 2, seed=31)), linear(2, 5, 32)
    network, box = BayesianNetwork((first, Tanh(), last)), Box.ball(normal(4, 2, seed=33), 0.15)
    for a, b in itertools.combinations([-INF, -1.0, 0.0, 0.4, INF], 2):
        bounds = probability(network, box, a, b)
        for x in points_of(box, 30):
            z = torch.tanh(x @ first.weight_mean.T)
            m = z @ last.weight_mean.T + last.bias_mean
            r = (z.square() @ last.weight_std.square().T + last.bias_std.square()).sqrt()
            pairs = zip(m.flatten().tolist(), r.flatten().tolist(), strict=True)
            truth = torch.tensor([gaussian(*pair, a, b) for pair in pairs], dtype=F64).reshape(4, 2)
            assert holds(interval(bounds), truth, 1e-14)
        point = probability(network, Box(x, x), a, b)
        assert holds(interval(point), truth, 1e-14)
        assert bool((point.width < 1e-7).all())
    pair = Ensemble((network, BayesianNetwork((first, Tanh(), linear(2, 5, 34)))), torch.tensor([0.25, 0.75]))
    parts, found = [probability(member, box, -1.0, 0.4) for member in pair.members], probability(pair, box, -1.0, 0.4)
    assert torch.allclose(found.lower, 0.25 * parts[0].lower + 0.75 * parts[1].lower, rtol=0, atol=1e-12)
    assert torch.allclose(found.upper, 0.25 * parts[0].upper + 0.75 * parts[1].upper, rtol=0, atol=1e-12)


def test_a_rectangle_of_gaussians_by_search() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        m = torch.randn(2, generator=generator, dtype=F64).sort().values
        v = torch.rand(2, generator=generator, dtype=F64).sort().values * 4
        a, b = torch.randn(2, generator=generator, dtype=F64).mul(2).sort().values.tolist()
        low, high = _gaussian(Interval(m[:1, None], m[1:, None]), Interval(v[:1, None], v[1:, None]), Between(a, b))
        means = torch.linspace(m[0].item(), m[1].item(), 41, dtype=F64)
        roots = torch.linspace(v[0].sqrt().item(), v[1].sqrt().item(), 41, dtype=F64)
        values = [gaussian(x, r, a, b) for x in means.tolist() for r in roots.tolist()]
        assert low.item() <= min(values)
        assert high.item() >= max(values)
        assert low.item() >= min(values) - 1e-12
        assert high.item() <= max(values) + 5e-3


def test_probabilities_hold_for_every_law_of_two_or_three_points() -> None:
    for mean, variance in ((0.0, 1.0), (0.7, 0.2), (-2.0, 3.0), (0.3, 1e-8)):
        for a, b in ((-1.0, 1.0), (-0.5, 4.0), (-3.0, 0.5), (1.0, 2.0), (-math.inf, 0.5), (-1.0, math.inf)):
            ends = Interval(*(torch.tensor([[mean + step]], dtype=F64) for step in (-0.01, 0.01)))
            low, high = _by_moments(ends, torch.tensor([[variance]], dtype=F64), Between(a, b))
            for p in torch.linspace(0.01, 0.99, 99).tolist():
                for middle in (0.0, 0.5):  # mass at the mean itself
                    sd = math.sqrt(variance / (1 - middle))
                    atoms = (mean - sd * math.sqrt((1 - p) / p), mean + sd * math.sqrt(p / (1 - p)), mean)
                    masses = ((1 - middle) * p, (1 - middle) * (1 - p), middle)
                    inside = sum(mass for atom, mass in zip(atoms, masses, strict=True) if a <= atom <= b)
                    assert low.item() <= inside + 1e-12
                    assert high.item() >= inside - 1e-12
    unit = Interval(*(torch.zeros(1, 1, dtype=F64) for _ in range(2)))
    assert _by_moments(unit, torch.ones(1, 1, dtype=F64), Between(-2.0, 2.0))[0].item() == pytest.approx(0.75)
    assert _by_moments(unit, torch.ones(1, 1, dtype=F64), Between(-2.0, 5.0))[0].item() == pytest.approx(0.8)  # Selberg
    assert _by_moments(unit, torch.ones(1, 1, dtype=F64), Between(-2.0, math.inf))[0].item() == pytest.approx(0.8)
    assert _by_moments(unit, torch.ones(1, 1, dtype=F64), Between(2.0, 3.0))[1].item() == pytest.approx(0.2)


def test_outputs_without_spread_are_inside_or_not() -> None:
    network = BayesianNetwork((Linear.fixed(torch.ones(1, 1)),))
    box = Box([[0.0], [0.9], [2.0]], [[0.5], [1.1], [2.5]])
    bounds = probability(network, box, 0.0, 1.0)
    assert torch.allclose(bounds.upper, torch.tensor([[1.0], [1.0], [0.0]], dtype=F64), atol=1e-12)
    assert bounds.lower[1].item() == 0.0
    assert probability(network, box, -1.0, 5.0).lower.min().item() > 1 - 1e-12
    assert probability(network, Box([[1.0]], [[1.0]]), 1.0, 1.0).upper.item() == 1.0


@pytest.mark.parametrize("mean", [NAN, 0.0])
def test_what_is_no_number_has_any_probability(mean: float) -> None:
    known, unknown = (torch.full((1, 1), value, dtype=F64) for value in (mean, NAN))
    law = Law(Interval(known, known), Interval(unknown, unknown), gaussian=True)
    found = _probability(law, Between(-1.0, 1.0))
    assert (found.lower.item(), found.upper.item()) == (0.0, 1.0)


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (NAN, 1.0), (INF, INF), (-INF, -INF)])
def test_intervals_that_are_none_are_refused(a: float, b: float) -> None:
    network, box = BayesianNetwork((linear(2, 2, 1),)), Box.ball([[0.0, 0.0]], 0.1)
    with pytest.raises(InputError, match="a <= b"):
        probability(network, box, a, b)
    with pytest.raises(InputError, match="batch is empty"):
        probability(network, box[:0], 0.0, 1.0)
