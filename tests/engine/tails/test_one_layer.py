"""Exponential moments with one hidden layer: planes above L neuron by neuron, and their sums on boxes.

The truth is ``L = log E exp(a Z + c Z^2)``, Z = max(m + r xi, 0), and its slopes in m and r, all three as integrals of
the definition: nothing of ``maths/exponential.py`` is used. In a network the slack of one neuron hides that of another;
in most cases here there is one neuron on one rectangle of (m, r).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.dice import Dice
from tests.engine.tails.cases import gaussian, inside, make, regions, tails
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.tails import one_layer as subject
from bnndp.engine.tails.first_layer import Ranges, first_ranges
from bnndp.geometry.bounds import Interval
from bnndp.maths.exponential import chernoff_constant

F64 = torch.float64
_CASES, _POINTS, _PANELS = 150, 24, 12
_NODES, _WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(24))
_NOISE = 1e-12  # of the integrals, relative to 1 + |L| + the terms of a plane


@dataclass(frozen=True, slots=True)
class Rectangles:
    """Ranges of m and r and the exponents of one neuron in each case; (cases,) each."""

    m: tuple[Tensor, Tensor]
    r: tuple[Tensor, Tensor]
    a: Tensor  # < 0, but for the kind "convex"
    c: Tensor  # >= 0, 2 c r^2 < 1

    def points(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Points of the rectangles, (count, cases) each: the four corners first."""
        share = Dice(seed).uniform(shape=(2, count, len(self.a)))
        share[:, :4] = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0]], dtype=F64)[..., None]
        return torch.lerp(*self.m, share[0]), torch.lerp(*self.r, share[1])


def rectangles(kind: str) -> Rectangles:
    """Where one term of the bound is all that there is, or (``any``) everything at random."""
    dice = Dice(len(kind))

    def uniform(low: float, high: float) -> Tensor:
        return dice.uniform(low, high, (_CASES,))

    size, still = 10 ** uniform(-1, 0.7), torch.zeros(_CASES, dtype=F64)
    width = 10 ** uniform(-2, 0)  # of r, relative to its least value
    u, step = uniform(-4, 4), 10 ** uniform(-2, 0.5)  # m / r, and its range
    slope, share = -(10 ** uniform(-2, 0.8)), 0.9 * uniform(0, 1) ** 2  # a r, and 2 c r^2, at the largest r
    if kind == "second moment":  # nothing but E Z^2 bends L: m = 0, hardly any slope, only r moves
        u, step, slope, share = still, still, slope * 1e-6, uniform(0.02, 0.9)
    elif kind == "slope":  # Z = X and c = 0: L = a m + a^2 r^2 / 2
        u, share = uniform(40, 60), still
    elif kind == "square":  # Z = X: L has the curvature 2 c w in m, and r stands still
        u, width, slope, share = uniform(9, 12), still, slope * 1e-3, uniform(0.02, 0.8)
    elif kind == "mixed":  # r alone, and Z = X or nearly: X - m is r xi
        u, step, slope = uniform(0, 3), still, slope * 1e-3
    elif kind == "convex":  # of the other sign: a plane from the four corners
        slope = -slope
    r = (size, size * (1 + width))
    return Rectangles((u * size, (u + step) * size), r, slope / r[1], 0.5 * share / r[1].square())


KINDS = ("any", "second moment", "slope", "square", "mixed")


def integrals(m: Tensor, r: Tensor, a: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L and its slopes in m and in r, by panels of Gauss and Legendre on z > 0; ``dL = E_t[F'(X) (dm + xi dr)]``."""
    spread = r / (1 - 2 * c * r * r).sqrt()  # of the integrand, whose top is at ``top``: only where to integrate
    top = (m + a * r * r) / (1 - 2 * c * r * r)
    low = (top - 10 * spread).clamp_min(0)
    high = top.clamp_min(0) + 10 * spread
    ends = torch.linspace(0, 1, _PANELS + 1, dtype=F64)
    at = (ends[:-1, None] + (0.5 + 0.5 * _NODES) / _PANELS).flatten()
    z = low[..., None] + (high - low)[..., None] * at
    weight = (0.5 * (high - low) / _PANELS)[..., None] * _WEIGHTS.repeat(_PANELS)
    xi = (z - m[..., None]) / r[..., None]
    power = a[..., None] * z + c[..., None] * z * z - 0.5 * xi * xi
    scale = torch.maximum(power.amax(-1), torch.zeros_like(m))
    density = torch.exp(power - scale[..., None]) * weight / (r * math.sqrt(2 * math.pi))[..., None]
    total = density.sum(-1) + 0.5 * torch.special.erfc(m / r * math.sqrt(0.5)) * torch.exp(-scale)
    slope = (a[..., None] + 2 * c[..., None] * z) * density
    return total.log() + scale, slope.sum(-1) / total, (xi * slope).sum(-1) / total


def allowed(*terms: Tensor) -> Tensor:
    """What the rounding of the integrals may be worth."""
    return _NOISE * (1 + sum((term.abs() for term in terms), torch.zeros((), dtype=F64)))


def test_the_integrals_themselves() -> None:
    """Far above zero Z = X, and the integral is known; the slopes are those of differences."""
    m, r, a, c = (torch.tensor([x], dtype=F64) for x in (30.0, 0.7, -1.1, 0.3))
    w = 1 / (1 - 2 * c * r * r)
    want = 0.5 * torch.log(w) + w * (a * m + c * m * m + 0.5 * a * a * r * r)
    value, in_m, in_r = integrals(m, r, a, c)
    assert value.item() == pytest.approx(want.item(), rel=1e-13)
    for m in (torch.tensor([x], dtype=F64) for x in (-1.5, 0.0, 0.4)):
        _, in_m, in_r = integrals(m, r, a, c)
        up, down = (integrals(m + step, r, a, c)[0] for step in (1e-4, -1e-4))
        assert in_m.item() == pytest.approx(((up - down) / 2e-4).item(), rel=1e-6)
        up, down = (integrals(m, r + step, a, c)[0] for step in (1e-4, -1e-4))
        assert in_r.item() == pytest.approx(((up - down) / 2e-4).item(), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_tangent_plane_lacks_is_no_more(kind: str) -> None:
    """``L(m, r) - L(m0, r0) - slopes . steps <= slack + curvature (m - m0)^2 / 2`` from every corner and more."""
    case = rectangles(kind)
    a, c = case.a, case.c
    m, r = case.points(_POINTS, 1)
    truth, _, _ = integrals(m, r, a.expand_as(m), c.expand_as(m))
    nearest = 0.0
    for m0, r0 in zip(*case.points(6, 2), strict=True):
        value, in_m, in_r = integrals(m0, r0, a, c)
        slack, curvature = subject.bend(case.m, case.r, a, c, torch.maximum(case.r[1] - r0, r0 - case.r[0]))
        lacks = truth - value - in_m * (m - m0) - in_r * (r - r0)
        bound = slack + 0.5 * curvature * (m - m0).square()
        assert (lacks <= bound + allowed(truth, value, in_m * m, in_m * m0, in_r * r)).all()
        nearest = max(nearest, torch.where(bound > 1e-6, lacks / bound, 0.0).max().item())
    assert nearest >= {"slope": 0.999, "square": 0.499}.get(kind, 0.4)  # or the comparison could not fail


@pytest.mark.parametrize("kind", [*KINDS, "convex"])
def test_a_plane_lies_above_on_its_rectangle(kind: str) -> None:
    """The tangent plane at the centre, raised by what it lacks at most at the corners; for a > 0 one through these."""
    case = rectangles(kind)
    shape = (1, _CASES)
    m, r = (Interval(low.view(shape), high.view(shape)) for low, high in (case.m, case.r))
    ranges = Ranges(m, r, m.lower, r.lower)
    alpha, beta, constant = (
        part[0, 0] for part in subject._plane(ranges, case.a.view(1, *shape), case.c.view(1, *shape))
    )
    x, y = case.points(_POINTS, 3)
    truth, _, _ = integrals(x, y, case.a.expand_as(x), case.c.expand_as(x))
    gap = alpha * x + beta * y + constant - truth
    assert (gap >= -allowed(truth, alpha * x, beta * y)).all()
    assert gap.amin(0).min() < 1e-3


@pytest.mark.parametrize("share", [0.99, 1.0, 1.3, 4.0])  # beyond 3 at the centre as well
def test_there_is_no_plane_where_the_mean_is_infinite(share: float) -> None:
    """``2 c r^2 >= 1`` at the largest r: E exp(c Z^2) does not exist there."""
    m, r = (Interval(*(torch.full((1, 1), end, dtype=F64) for end in ends)) for ends in ((-0.5, 0.5), (0.1, 1.0)))
    a, c = torch.full((1, 1, 1), -0.5, dtype=F64), torch.full((1, 1, 1), 0.5 * share, dtype=F64)
    _, _, constant = subject._plane(Ranges(m, r, m.lower, r.lower), a, c)
    assert not math.isfinite(constant.item())  # NaN and infinity both say that nothing is known


# Networks


def test_the_exponent_given_the_last_hidden_layer() -> None:
    """E exp(-lam D) for Gaussian D: -lam E D + lam^2 Var D / 2, from the logits' own moments."""
    (layer,), z, label = make((5, 4), 0), Dice(0).uniform(shape=(2, 5)), torch.tensor([2, 0])
    lam = torch.tensor([[0.1, 0.5, 0.3, 1.0], [0.7, 0.2, 0.9, 0.4]], dtype=F64)
    rows = subject.margin_exponents(layer, label[:, None].expand(2, 4), torch.arange(4).expand(2, 4), lam)
    got = rows.constant + (rows.linear * z[:, None]).sum(-1) + (rows.square * z[:, None].square()).sum(-1)
    m, r = gaussian(layer, z)
    for b, c in enumerate(label.tolist()):
        for j in set(range(4)) - {c}:
            want = -lam[b, j] * (m[b, c] - m[b, j]) + 0.5 * lam[b, j] ** 2 * (r[b, c] ** 2 + r[b, j] ** 2)
            assert got[b, j].item() == pytest.approx(want.item(), abs=1e-10)
            assert got[b, j] >= want - 1e-15


@pytest.mark.parametrize("radius", [0.0, 0.01, 0.2, 1.0])
@pytest.mark.parametrize("seed", slow_but(range(6), 0, 1))
def test_the_largest_log_moment_lies_above_every_point(radius: float, seed: int) -> None:
    dice, (layer, _), box = Dice(seed), make((6, 9, 2), seed, std=1.0), regions(6, radius, seed)
    ranges = first_ranges(layer, box)
    a = dice.normal(3, 4, 9)
    c = 0.25 / ranges.r.upper[:, None].square() * dice.uniform(shape=(3, 4, 9)) ** 2
    a[:, 1], a[:, 2], c[:, 3] = a[:, 1].abs(), -a[:, 2].abs(), 0
    bound = subject.largest_log_moment(layer, box, ranges, a, c)
    m, r = (part[:, :, None].expand(-1, -1, 4, -1) for part in gaussian(layer, inside(box, 60, seed)))
    values = integrals(m, r, a.expand_as(m), c.expand_as(m))[0].sum(-1)  # (points, batch, rows)
    assert (bound >= values - 1e-11).all()
    if radius <= 0.01:
        assert (bound - values.amax(0)).max().item() <= 1e-9 + 25 * radius  # of first order in the radius


def test_at_a_point_it_is_the_product_of_integrals() -> None:
    layers, box = make((4, 7, 3), 3, std=1.0, margin=3.0), regions(4, 0.0, 3, count=1)
    got, last, (m, r) = tails(layers, box, torch.tensor([0])), layers[1], gaussian(layers[0], box.centre)
    lam = torch.linspace(0.05, 1, 96, dtype=F64)[:, None]
    for j in (1, 2):
        a = -lam * (last.weight_mean[0] - last.weight_mean[j])
        c = 0.5 * lam**2 * (last.weight_std[0] ** 2 + last.weight_std[j] ** 2)
        total = integrals(m.expand_as(a), r.expand_as(a), a, c)[0].sum(-1) - lam[:, 0] * (
            last.bias_mean[0] - last.bias_mean[j]
        )
        total = total + 0.5 * lam[:, 0] ** 2 * (last.bias_std[0] ** 2 + last.bias_std[j] ** 2)
        least = (chernoff_constant(lam[:, 0]) * total.exp()).min().item()
        assert least * (1 - 1e-6) <= got[0, j].item() <= 1.05 * least
