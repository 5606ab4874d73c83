"""The first hidden layer against ball arithmetic at many points of each box, vertices included."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from flint import arb, ctx
from support import oracles
from support.dice import Dice
from support.oracles import Rectified, cdf, rectified
from tests.engine.dense.truth import bounds
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.dense import first as first_module
from bnndp.engine.dense.first import FirstLayer, Plane, Ranges, first_layer
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.maths.rectified import moments
from bnndp.maths.rounding import ELEMENTARY
from bnndp.network import BayesianNetwork


@dataclass(frozen=True)
class Case:
    """A layer of six neurons and a box around ``centre``; neuron 1 has no deviation, neuron 2 is dead."""

    n_in: int
    std: float
    radius: float
    centre: float = 0.5
    seed: int = 0
    norm: float = float("inf")

    def __str__(self) -> str:
        return f"{self.n_in} inputs, std {self.std}, {self.centre} +- {self.radius}, norm {self.norm}"

    def layer(self) -> Linear:
        dice, n = Dice(self.seed + 7 * self.n_in), 6
        weight, bias = dice.normal(n, self.n_in), dice.normal(n)
        std, bias_std = self.std * dice.uniform(shape=(n, self.n_in)), self.std * dice.uniform(shape=(n,))
        std[1], bias_std[1], bias_std[3] = 0.0, 0.0, 0.0
        bias[2] -= 10 * max(1.0, self.std)
        std[4, 0] = 0.0
        weight[5] = 0.0
        return Linear(weight, std, bias, bias_std)

    def box(self) -> Box:
        return Box.ball(self.centre + 0.2 * Dice(100 + self.seed).normal(self.n_in), self.radius, norm=self.norm)

    def points(self) -> list[list[float]]:
        box, dice = self.box(), random.Random(self.seed)
        ends = list(zip(box.lower[0].tolist(), box.upper[0].tolist(), strict=True))
        vertices = [list(v) for v in itertools.islice(itertools.product(*ends), 16)]
        inner = [[min(max(dice.uniform(a, b), a), b) for a, b in ends] for _ in range(6)]
        points = torch.tensor([box.centre[0].tolist(), *vertices, *inner], dtype=torch.float64)
        return box.project(points[:, None])[:, 0].tolist()


CASES = [
    Case(1, 0.3, 0.2),
    Case(1, 0.3, 0.0),
    Case(1, 3.0, 1.0, centre=0.0),
    Case(1, 1e-6, 0.1, centre=-2.0),
    Case(2, 0.3, 0.3, centre=-1.0),
    Case(2, 1e-6, 1e-3),
    Case(2, 1.0, 2.0, centre=0.1),
    Case(2, 0.0, 0.3),
    Case(3, 3.0, 1e-3),
    Case(4, 0.1, 0.5),
    Case(6, 0.3, 0.3, centre=-0.5),
    Case(6, 0.3, 0.0),
    Case(6, 3.0, 1.0, centre=0.0),
    Case(6, 1e-6, 0.05),
    Case(6, 0.0, 0.3),
    Case(6, 1.0, 0.4, norm=2.0),
    Case(6, 0.2, 0.4, norm=1.0),
    Case(20, 0.2, 0.1),
]


@dataclass(frozen=True)
class Subject:
    """A relaxed layer, the points of its box, and the exact pre-activations there."""

    case: Case
    layer: Linear
    found: FirstLayer
    points: list[list[float]]
    exact: list[list[tuple[arb, arb]]]  # (mean, deviation) of every neuron at every point

    def neurons(self) -> Iterator[tuple[int, arb, arb]]:
        for at in self.exact:
            yield from ((i, m, r) for i, (m, r) in enumerate(at))

    def moments(self) -> Iterator[tuple[int, Rectified]]:
        yield from ((i, rectified(m, r)) for i, m, r in self.neurons())


@pytest.fixture(scope="module", params=CASES, ids=str)
def subject(request: pytest.FixtureRequest) -> Subject:
    case = request.param
    layer, points = case.layer(), case.points()
    exact = [oracles.pre_activation(BayesianNetwork((layer,)), x) for x in points]
    return Subject(case, layer, first_layer(layer, case.box()), points, exact)


def value(layer: Linear, plane: Plane, centre: Tensor, x: list[float], i: int) -> arb:
    """The plane of neuron i at x, in real numbers."""
    total = arb(plane.offset[0, i].item()) + arb(plane.alpha[0, i].item()) * arb(layer.bias_mean[i].item())
    alpha, beta = arb(plane.alpha[0, i].item()), arb(plane.beta[0, i].item())
    rows = zip(layer.weight_mean[i].tolist(), layer.weight_std[i].tolist(), centre[0].tolist(), x, strict=True)
    for mu, sigma, c, at in rows:
        total += (alpha * arb(mu) + beta * arb(sigma) ** 2 * arb(c)) * arb(at)
    if plane.dense is not None:
        total += sum((arb(a) * arb(b) for a, b in zip(plane.dense[0, i].tolist(), x, strict=True)), arb(0))
    return total


def above(x: float, ball: arb) -> bool:
    """``x >= truth``; a truth that is exactly 0 or 1 comes with a radius, far below any float here."""
    return bool(arb(x) + arb("1e-60") >= ball)


def below(x: float, ball: arb) -> bool:
    return above(-x, -ball)


def within(interval: Interval, i: int, ball: arb) -> bool:
    return below(interval.lower[0, i].item(), ball) and above(interval.upper[0, i].item(), ball)


def assert_planes_hold(subject: Subject, found: FirstLayer) -> None:
    for x, at in zip(subject.points, subject.exact, strict=True):
        for i, (m, r) in enumerate(at):
            truth = oracles.expected_relu(m, r)
            assert value(subject.layer, found.lower, found.centre, x, i) <= truth
            assert value(subject.layer, found.upper, found.centre, x, i) >= truth


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_planes_hold_for_any_tangent(subject: Subject, seed: int | None) -> None:
    if seed is None:
        assert_planes_hold(subject, subject.found)
        return
    tangent = 3 * Dice(seed).normal(1, 6)
    tangent[0, :2] = torch.tensor([-40.0, 40.0])
    assert_planes_hold(subject, replace(subject.found, tangent=tangent))


def test_size_covers_the_terms_of_the_planes(subject: Subject) -> None:
    layer, found = subject.layer, subject.found
    for x, at in zip(subject.points, subject.exact, strict=True):
        point = torch.tensor(x, dtype=torch.float64)
        q = (layer.weight_std**2 * found.centre * point).abs().sum(-1)
        for plane in (found.lower, found.upper):
            for i, (m, _) in enumerate(at):
                terms = [plane.alpha[0, i].item() * float(abs(m)), plane.beta[0, i].item() * q[i].item()]
                terms.append(plane.offset[0, i].item())
                assert sum(map(abs, terms)) <= found.size[0, i].item() * (1 + 1e-12)


def test_latent(subject: Subject) -> None:
    latent = subject.found.latent
    for i, truth in subject.moments():
        assert within(latent.mean, i, truth.mean)
        assert within(latent.second, i, truth.second)
        assert above(latent.variance[0, i].item(), truth.variance)
        assert above(latent.fourth[0, i].item(), truth.fourth)
        assert latent.activity[0, i].item() >= 1


def test_sources(subject: Subject) -> None:
    sources = subject.found.sources
    for (i, m, r), (_, truth) in zip(subject.neurons(), subject.moments(), strict=True):
        mean = truth.mean
        third = truth.third - 3 * mean * truth.second + 2 * mean**3
        fourth = truth.fourth - 4 * mean * truth.third + 6 * mean**2 * truth.second - 3 * mean**4
        active = cdf(m / r) if r > 0 else arb(int(m > 0))
        assert within(sources.variance, i, truth.variance)
        assert within(sources.cross, i, cross(m, r))
        for bound, value in ((sources.third, abs(third)), (sources.fourth, fourth), (sources.noise, r**2),
                             (sources.square_variance, truth.square_variance), (sources.active, active)):  # fmt: skip
            assert above(bound[0, i].item(), value)
        if subject.case.radius == 0:
            assert sources.cross.upper[0, i].item() == pytest.approx(float(cross(m, r)), rel=1e-8, abs=1e-11)


@pytest.mark.parametrize("n_in", [1, 3, 6])
def test_at_a_point_everything_is_tight(n_in: int) -> None:
    """Without width nothing may be lost but rounding."""
    case = Case(n_in, 0.4, 0.0)
    layer, found = case.layer(), first_layer(case.layer(), case.box())
    x = case.points()[0]
    for i, (m, r) in enumerate(oracles.pre_activation(BayesianNetwork((layer,)), x)):
        truth, size = rectified(m, r), 1 + abs(float(m))
        low, high = (float(value(layer, p, found.centre, x, i)) for p in (found.lower, found.upper))
        assert high - low <= 1e-11 * size
        latent, sources = found.latent, found.sources
        assert (latent.mean.upper - latent.mean.lower)[0, i].item() <= 1e-11 * size
        assert (latent.second.upper - latent.second.lower)[0, i].item() <= 1e-11 * size**2
        assert latent.fourth[0, i].item() == pytest.approx(float(truth.fourth), rel=1e-9, abs=1e-9)
        assert sources.variance.lower[0, i].item() == pytest.approx(float(truth.variance), rel=1e-9, abs=1e-9)
        assert sources.square_variance[0, i].item() == pytest.approx(float(truth.square_variance), rel=1e-9, abs=1e-9)


def test_chord_is_exact_at_the_ends_of_an_interval() -> None:
    """With one input the upper plane is the chord of a convex function."""
    case = Case(1, 0.7, 0.4)
    layer, box = case.layer(), case.box()
    found = first_layer(layer, box)
    for end in (box.lower, box.upper):
        x = end[0].tolist()
        for i, (m, r) in enumerate(oracles.pre_activation(BayesianNetwork((layer,)), x)):
            gap = value(layer, found.upper, found.centre, x, i) - oracles.expected_relu(m, r)
            assert gap >= 0
            assert gap <= 1e-11


def test_the_rectangle_plane_beats_the_interval_one() -> None:
    """With many inputs and a deviation that varies much, the plane in m and r is lower at the centre."""
    n = 8
    layer = Linear(torch.full((1, n), 0.01), torch.ones(1, n), torch.zeros(1), torch.zeros(1))
    box = Box(torch.full((n,), 0.1), torch.full((n,), 1.0))
    found = first_layer(layer, box)
    x = box.centre[0].tolist()
    largest = oracles.pre_activation(BayesianNetwork((layer,)), [1.0] * n)[0]
    assert found.upper.beta[0, 0].item() > 0
    assert value(layer, found.upper, found.centre, x, 0) < 0.8 * oracles.expected_relu(*largest)


# C = Cov(z, z^2) of a source


def cross(m: arb | float, r: arb | float) -> arb:
    z = rectified(m, r)
    return z.third - z.mean * z.second


@pytest.mark.parametrize("r", slow_but([1e-25, 1e-3, 1.0, 1e4, 1e20], 1e-25, 1.0))
def test_the_rounding_of_the_covariance(r: float) -> None:
    """Within an eighth of the error granted, so the ends with that error lie on their sides."""
    m = (torch.arange(-320, 321, 4, dtype=torch.float64) / 8 + 0.01)[None] * r
    spread = torch.full_like(m, r)
    at = moments(m, spread)
    ends = first_module._cross(at, at, Ranges(Interval(m, m), Interval(spread, spread), m, spread))
    columns = (part[0].tolist() for part in (m, at.cross, ends.lower, ends.upper))
    with ctx.workprec(2 * oracles.PRECISION):
        for mean, found, low, high in zip(*columns, strict=True):
            truth, scale = cross(mean, r), max(mean, 0.0) + r
            assert oracles.error(found, truth) <= arb(ELEMENTARY) / 8 * arb(scale) * arb(r) ** 2
            assert oracles.below(low, truth)
            assert oracles.above(high, truth)


@pytest.mark.parametrize(("std", "weight"), [(1e-163, 1.0), (1e-170, 1e200), (1e-150, 1.0), (1e-100, 1e90)])
def test_tiny_deviations(std: float, weight: float) -> None:
    """Their squares underflow; E f(x) = weight * std * x / sqrt(2 pi)."""
    zero, one = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    network = BayesianNetwork.from_linears([Linear(zero, std * one, zero[0], zero[0]), Linear.fixed(weight * one)])
    _, ends = bounds(network, Box([[1.0]], [[2.0]]))
    assert ends.lower.item() <= weight * std / math.sqrt(2 * math.pi) * (1 + 1e-12)
    assert ends.upper.item() >= 2 * weight * std / math.sqrt(2 * math.pi) * (1 - 1e-12)
