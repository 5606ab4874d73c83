"""Probabilities and means inside and outside rectangles, against closed forms in ball arithmetic."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import pytest
import torch
from flint import arb
from support import oracles
from torch import Tensor

from bnndp.maths.rounding import ELEMENTARY
from bnndp.paper.conditional import conditional_mean, excess, inside_probability, outside, truncated_mean
from bnndp.paper.layers import Ranges


def tensor(*values: float) -> Tensor:
    return torch.tensor([[values]], dtype=torch.float64)


@dataclass(frozen=True)
class Case:
    """Intervals of (m, r) and of zeta, in one coordinate."""

    m: tuple[float, float]
    r: tuple[float, float]
    a: float
    b: float

    @property
    def ranges(self) -> Ranges:
        return Ranges(tensor(self.m[0]), tensor(self.m[1]), tensor(self.r[0]), tensor(self.r[1]))

    def points(self) -> list[tuple[float, float]]:
        rng = random.Random(0)
        inside = [(rng.uniform(*self.m), rng.uniform(*self.r)) for _ in range(8)]
        middle = min(max((self.a + self.b) / 2, self.m[0]), self.m[1])
        return [*itertools.product(self.m, self.r), (middle, self.r[0]), (middle, self.r[1]), *inside]


def cases() -> list[Case]:
    rng = random.Random(7)
    found = [
        Case((1.0, 1.0), (1.0, 1.0), -1.0, 2.0),
        Case((0.0, 0.0), (0.0, 0.0), -1.0, 0.0),  # an atom on the end
        Case((0.0, 0.0), (0.0, 1.0), 0.0, 1.0),
        Case((2.0, 3.0), (0.0, 0.0), 1.0, 5.0),
        Case((-30.0, -20.0), (0.5, 1.0), -40.0, 3.0),
        Case((1e5, 1e5), (1e-3, 2e-3), 1e5 - 0.01, 1e5 + 0.01),
        Case((-1.0, 1.0), (1e4, 1e5), -3.0, 3.0),
    ]
    for _ in range(60):
        m, r, end = rng.uniform(-3, 3), 10 ** rng.uniform(-3, 1), rng.uniform(-4, 4)
        case = ((m, m + rng.choice([0, 0.1, 2])), (r, r * rng.choice([1, 1.1, 3])), end, end + 10 ** rng.uniform(-1, 1))
        found.append(Case(*case))
    return found


NOISE = arb(10) ** -60  # differences of 256-bit balls are no better than this


def at_least(x: float, ball: arb) -> bool:
    return oracles.above(x, ball - NOISE)


def at_most(x: float, ball: arb) -> bool:
    return oracles.below(x, ball + NOISE)


def probability(m: float, r: float, a: float, b: float) -> arb:
    if r == 0:
        return arb(int(a <= m <= b))
    return oracles.cdf((arb(b) - m) / r) - oracles.cdf((arb(a) - m) / r)


@pytest.mark.parametrize("case", cases())
def test_inside_probability(case: Case) -> None:
    low, high = (t.item() for t in inside_probability(case.ranges, tensor(case.a), tensor(case.b)))
    for m, r in case.points():
        truth = probability(m, r, case.a, case.b)
        assert at_least(high, truth)
        if r == 0 and m in (case.a, case.b):
            assert low == 0  # the neighbour may own the atom
        else:
            assert at_most(low, truth)


def test_inside_probability_is_exact_at_a_point() -> None:
    case = Case((0.3, 0.3), (0.7, 0.7), -0.5, 2.0)
    low, high = inside_probability(case.ranges, tensor(case.a), tensor(case.b))
    assert (high - low).item() < 1e-12


@pytest.mark.parametrize("case", cases())
def test_truncated_mean_has_the_stated_accuracy(case: Case) -> None:
    for m, r in case.points():
        if r == 0:
            continue
        got = truncated_mean(*(tensor(v) for v in (m, r, case.a, case.b))).item()
        scale = abs(m) + r + max(case.a, 0) + max(case.b, 0)
        assert oracles.error(got, oracles.expected_relu_between(m, r, case.a, case.b)) <= 16 * ELEMENTARY * scale


@pytest.mark.parametrize("case", cases())
def test_conditional_mean(case: Case) -> None:
    low, high = (t.item() for t in conditional_mean(case.ranges, tensor(case.a), tensor(case.b)))
    assert max(case.a, 0) <= low <= high <= max(case.b, 0)
    for m, r in case.points():
        if r == 0:
            if case.a <= m <= case.b:
                assert low <= max(m, 0) <= high
            continue
        chance = probability(m, r, case.a, case.b)
        if chance > arb(1e-15):
            truth = oracles.expected_relu_between(m, r, case.a, case.b) / chance
            assert at_most(low, truth)
            assert at_least(high, truth)


def test_conditional_mean_is_sharp_at_a_point_and_monotone_bounds_are_used() -> None:
    a, b = tensor(-0.5), tensor(2.0)
    low, high = conditional_mean(Case((0.3, 0.3), (0.7, 0.7), 0, 0).ranges, a, b)
    assert (high - low).item() < 1e-10
    low, high = conditional_mean(Case((0.3, 0.32), (0.7, 0.71), 0, 0).ranges, a, b)
    assert (high - low).item() < 0.1  # the ends of the interval alone would give 2


@pytest.mark.parametrize("case", cases())
def test_excess(case: Case) -> None:
    got = excess(case.ranges, tensor(case.b)).item()
    assert all(oracles.above(got, oracles.expected_relu(arb(m) - case.b, r)) for m, r in case.points())


@pytest.mark.parametrize("seed", range(12))
def test_outside_is_above_the_exact_identity(seed: int) -> None:
    """E[z_i 1{zeta outside R}] = g_i - e_i prod_(l != i) P_l in 256 bits, for three coordinates."""
    rng = random.Random(seed)
    three = [cases()[7 + rng.randrange(60)] for _ in range(3)]
    ranges = Ranges(
        tensor(*(c.m[0] for c in three)),
        tensor(*(c.m[1] for c in three)),
        tensor(*(c.r[0] for c in three)),
        tensor(*(c.r[1] for c in three)),
    )
    found = outside(ranges, tensor(*(c.a for c in three)), tensor(*(c.b for c in three)))
    for _ in range(30):
        at = [rng.choice(c.points()) for c in three]
        inside = [probability(m, r, c.a, c.b) for (m, r), c in zip(at, three, strict=True)]
        assert at_least(found.probability.item(), 1 - inside[0] * inside[1] * inside[2])
        for i, ((m, r), c) in enumerate(zip(at, three, strict=True)):
            others = inside[(i + 1) % 3] * inside[(i + 2) % 3]
            part = oracles.expected_relu_between(m, r, c.a, c.b) * others
            assert at_least(found.mean[0, 0, i].item(), oracles.expected_relu(m, r) - part)
            assert oracles.above(found.above[0, 0, i].item(), oracles.expected_relu(arb(m) - max(c.b, 0), r))
            # E (a_+ - z)_+ = a_+ - E min(z, a_+) = a_+ - g(m) + g(m - a_+)
            a = max(c.a, 0.0)
            below = a - oracles.expected_relu(m, r) + oracles.expected_relu(arb(m) - a, r)
            assert at_least(found.below[0, 0, i].item(), below)


def test_outside_vanishes_for_a_deterministic_layer() -> None:
    ranges = Ranges(tensor(1.0, -2.0), tensor(1.5, -1.0), tensor(0.0, 0.0), tensor(0.0, 0.0))
    found = outside(ranges, tensor(0.9, -2.1), tensor(1.6, -0.9))
    for value in (found.probability, found.mean, found.above, found.below):
        assert value.max() < 1e-280
