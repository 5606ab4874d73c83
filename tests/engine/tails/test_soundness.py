"""Exponential moments of narrow networks against nested quadrature, which shares no formula with what it judges.

With one or two neurons a layer the means are integrals of one or two dimensions, and little is lost in the bounds:
most lie within a few per cent of the truth, so that a wrong sign or factor anywhere shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from flint import arb
from support.oracles import above, cdf, precise
from torch import Tensor

from bnndp.engine.dense.first import Ranges, first_layer
from bnndp.engine.tails import one_layer as one
from bnndp.engine.tails import two_layers as two
from bnndp.engine.tails.one_layer import Rows, margin_exponents
from bnndp.engine.tails.tails import margin_tails
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.maths.exponential import lipschitz, log_moment, sub_gaussian, tilted
from bnndp.maths.exponential_majorants import harmful_curvature, harmful_parabola
from bnndp.network import BayesianNetwork

F64 = torch.float64
_NODES, _WEIGHTS = (torch.tensor(part, dtype=F64) for part in np.polynomial.legendre.leggauss(16))
_ACCURACY = 1e-7  # of the quadrature, relative


@dataclass(frozen=True, slots=True)
class Draw:
    """Random numbers of one test."""

    generator: torch.Generator

    @classmethod
    def of(cls, seed: int) -> Draw:
        return cls(torch.Generator().manual_seed(seed))

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=F64)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=F64)

    def size(self, low: float, high: float, *shape: int) -> Tensor:
        """Log-uniform between powers of ten."""
        return 10 ** (low + (high - low) * self.uniform(*shape))

    def network(self, sizes: tuple[int, ...]) -> list[Linear]:
        layers = []
        for n_in, n_out in pairwise(sizes):
            layers.append(
                Linear(
                    self.normal(n_out, n_in) * self.size(-0.7, 0.7, 1),
                    self.size(-3, -0.1, n_out, n_in),
                    self.normal(n_out) * self.size(-0.5, 0.5, 1),
                    self.size(-3, -0.3, n_out),
                )
            )
        first = layers[0]
        kind = self.uniform(1).item()
        if kind < 0.3:  # sources that are dead or always active, eight deviations from zero
            r = (first.weight_std.square().sum(1) + first.bias_std.square()).sqrt()
            side = torch.where(self.uniform(first.n_out) < 0.5, -8.0, 8.0)
            layers[0] = Linear(0.01 * first.weight_mean, first.weight_std, side * r, first.bias_std)
        return layers

    def box(self, n: int, wide: bool) -> Box:
        x = self.normal(1, n)
        radius = self.size(-3, -0.3, 1, n) * wide
        return Box(x - radius, x + radius)


def gaussian(layer: Linear, z: Tensor) -> tuple[Tensor, Tensor]:
    s = z.square() @ layer.weight_std.square().mT + layer.bias_std.square()
    return z @ layer.weight_mean.mT + layer.bias_mean, s.sqrt()


def nodes(m: Tensor, r: Tensor, reach: float, panels: int) -> tuple[Tensor, Tensor]:  # (..., n) each
    """Values of independent ReLU(N(m, r^2)) and their weights: (..., points, n) and (..., points)."""
    low = (-m / r).clamp(-reach, reach)
    half = (reach - low) / (2 * panels)
    middle = low[..., None] + half[..., None] * (2 * torch.arange(panels, dtype=F64) + 1)
    xi = (middle[..., None] + half[..., None, None] * _NODES).flatten(-2)
    density = torch.exp(-0.5 * xi.square()) / math.sqrt(2 * math.pi)
    weight = (half[..., None, None] * _WEIGHTS).expand(*middle.shape, -1).flatten(-2) * density
    z = torch.cat([torch.zeros_like(m)[..., None], (m[..., None] + r[..., None] * xi).clamp_min(0)], -1)
    weight = torch.cat([torch.special.ndtr(-m / r)[..., None], weight], -1)
    if m.shape[-1] == 1:
        return z[..., 0, :, None], weight[..., 0, :]
    first, second = torch.broadcast_tensors(z[..., 0, :, None], z[..., 1, None, :])
    both = weight[..., 0, :, None] * weight[..., 1, None, :]
    return torch.stack([first, second], -1).flatten(-3, -2), both.flatten(-2)


def points(box: Box) -> list[Tensor]:
    return [box.lower[0], box.upper[0], box.centre[0]] if bool((box.upper > box.lower).any()) else [box.lower[0]]


def log_mean(layers: list[Linear], rows: Rows, top: Tensor, x: Tensor) -> float:
    """log E[e^(-lam D); s <= top] at x for the first row of ``rows``, by quadrature over both hidden layers."""
    z, weight = nodes(*gaussian(layers[0], x), reach=14.0, panels=12 if layers[0].n_out == 1 else 4)
    m, r = gaussian(layers[1], z)
    inside = (r.square() <= top).all(-1)
    inner = torch.ones_like(weight)
    for i in range(layers[1].n_out):  # given z the neurons are independent
        y, share = nodes(m[:, i : i + 1], r[:, i : i + 1], reach=14.0, panels=6)
        a, c = rows.linear[0, 0, i], rows.square[0, 0, i]
        inner = inner * (share * torch.exp(a * y[..., 0] + c * y[..., 0].square())).sum(-1)
    return math.log((weight * inner * inside).sum().item()) + rows.constant[0, 0].item()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_log_mean_of_two_layers_lies_above_quadrature(seed: int, wide: bool) -> None:
    draw, gaps = Draw.of(100 * seed + wide), []
    for case in range(8):
        layers = draw.network((1 + case % 2, 1 + case // 4, 1 + case // 2 % 2, 2))
        box = draw.box(layers[0].n_in, wide)
        ranges = first_layer(layers[0], box).ranges
        top = two._levels(layers[1], ranges)[:, None]
        rows = margin_exponents(layers[2], torch.tensor([[0]]), torch.tensor([[1]]), draw.size(-1.2, 0, 1).expand(1, 1))
        bound = two._log_mean((layers[0], layers[1]), box, ranges, rows, top).item()
        if math.isfinite(bound):
            truth = max(log_mean(layers, rows, top[0, 0], x) for x in points(box))
            gaps.append(bound - truth)
            assert gaps[-1] >= -_ACCURACY * (1 + abs(truth)), (seed, case)
    assert len(gaps) >= 4
    assert np.quantile(gaps, 0.25) <= (0.05 if not wide else 0.5)  # or the comparison could not fail


def tail(layers: list[Linear], label: int, other: int, x: Tensor) -> float:
    """E sigma(-D) at x by quadrature over all hidden layers and the noise of the margin."""
    z, weight = nodes(*gaussian(layers[0], x), reach=9.0, panels=3 if layers[0].n_out == 1 else 2)
    for layer in layers[1:-1]:
        z, share = nodes(*gaussian(layer, z), reach=9.0, panels=3 if layer.n_out == 1 else 2)
        weight = (weight[..., None] * share).flatten()
        z = z.flatten(0, -2)
    last = layers[-1]
    mean = z @ (last.weight_mean[label] - last.weight_mean[other]) + last.bias_mean[label] - last.bias_mean[other]
    s = z.square() @ (last.weight_std[label].square() + last.weight_std[other].square())
    s = s + last.bias_std[label].square() + last.bias_std[other].square()
    xi = torch.linspace(-8, 8, 49, dtype=F64)  # the trapezoidal rule converges exponentially
    density = torch.exp(-0.5 * xi.square()) / math.sqrt(2 * math.pi) * (xi[1] - xi[0])
    return (weight * (torch.sigmoid(-(mean[:, None] + s.sqrt()[:, None] * xi)) @ density)).sum().item()


@pytest.mark.parametrize("hidden", [(1,), (2,), (1, 1), (2, 1), (1, 2)])
def test_tails_lie_above_nested_quadrature(hidden: tuple[int, ...]) -> None:
    draw, useful = Draw.of(len(hidden) * 10 + hidden[0]), 0
    for case in range(4):
        layers = draw.network((1 + case % 2, *hidden, 3))
        label = case % 3
        last, lead = layers[-1], torch.zeros(3, dtype=F64)
        lead[label] = 8 * draw.uniform(1).item()
        layers[-1] = Linear(last.weight_mean, last.weight_std, last.bias_mean + lead, last.bias_std)
        box = draw.box(layers[0].n_in, case >= 2)
        guess = 6 * draw.normal(1, 3)  # only to choose lambda by
        network = BayesianNetwork.from_linears(layers, task="classification")
        bound = margin_tails(network, box, torch.tensor([label]), guess, guess.abs())[0]
        for other in {0, 1, 2} - {label}:
            truth = max(tail(layers, label, other, x) for x in points(box))
            assert bound[other].item() >= truth * (1 - 1e-5), (case, other)
            useful += bound[other].item() < 1
    assert useful >= 4


_COUNT = 4000


def rectangles(draw: Draw) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Rectangles of (m, r), from nearly points to wide ones, up to nine deviations from zero."""
    r_low = draw.size(-3, 2, _COUNT)
    m_low = r_low * (18 * draw.uniform(_COUNT) - 9)
    return (m_low, m_low + r_low * draw.size(-6, 0.7, _COUNT)), (r_low, r_low * (1 + draw.size(-6, 0.3, _COUNT)))


def within(draw: Draw, ends: tuple[Tensor, Tensor]) -> Tensor:
    share = draw.uniform(_COUNT)
    share = torch.where(draw.uniform(_COUNT) < 0.5, share.round(), share)  # half of them corners
    return ends[0] + share * (ends[1] - ends[0])


@pytest.mark.parametrize("sign", [-1, 1])
def test_plane_lies_above_on_its_rectangle(sign: int) -> None:
    draw = Draw.of(sign + 50)
    m, r = rectangles(draw)
    a = sign * draw.size(-3, 1.2, _COUNT) / r[1]
    c = 0.45 * draw.uniform(_COUNT) / r[1].square() * (draw.uniform(_COUNT) < 0.8)
    parts = (Interval(*(end[None] for end in ends)) for ends in (m, r))
    ranges = Ranges(*parts, m_centre=m[0][None], r_centre=r[0][None])
    alpha, beta, constant = (part[0, 0] for part in one._plane(ranges, a[None, None], c[None, None]))
    for _ in range(20):
        x, y = within(draw, m), within(draw, r)
        truth = tilted(x, y, a, c).log
        assert (alpha * x + beta * y + constant >= truth - 1e-11 * (1 + truth.abs())).all()


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("cells", [1, 6])
def test_tilted_sources_are_sub_gaussian_on_a_rectangle(sign: int, cells: int) -> None:
    r"""The definition itself: log E_t e^(delta (Z - E_t Z)) is a difference of L at a and at a + delta."""
    draw, least = Draw.of(sign + 60), math.inf
    m, r = rectangles(draw)
    a = sign * draw.size(-2, 0.7, _COUNT) / r[1]
    c = 0.45 * draw.uniform(_COUNT) / r[1].square() * (draw.uniform(_COUNT) < 0.6)
    ell = lipschitz(m, r, a, c, cells=cells)
    for _ in range(20):
        x, y = within(draw, m), within(draw, r)
        delta = draw.normal(_COUNT) * draw.size(-0.5, 1, _COUNT) / y
        at, moved = tilted(x, y, a, c), tilted(x, y, a + delta, c)
        used = moved.log - at.log - delta * at.mean
        allowed = 0.5 * (delta * ell).square()
        room = 1e-10 * (1 + at.log.abs() + moved.log.abs() + (delta * at.mean).abs())
        assert (used <= allowed + room).all()
        ratio = allowed / used.clamp_min(1e-3 * allowed + room)
        least = min(least, ratio.nan_to_num(math.inf).min().item())  # there may be no bound: infinite
    assert least <= 1.05  # for some it is nearly sharp


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("cells", [1, 6])
def test_smaller_constants_hold_up_to_their_reach(sign: int, cells: int) -> None:
    draw, least = Draw.of(sign + 80), math.inf
    m, r = rectangles(draw)
    a = sign * draw.size(-2, 1.2, _COUNT) / r[1]
    c = 0.48 * draw.uniform(_COUNT) / r[1].square() * (draw.uniform(_COUNT) < 0.6)
    reach = draw.size(-2, 1.3, _COUNT) / r[1]
    square = sub_gaussian(m, r, a, c, reach, cells=cells)
    for _ in range(20):
        x, y = within(draw, m), within(draw, r)
        share = torch.where(draw.uniform(_COUNT) < 0.5, draw.uniform(_COUNT), 1.0)
        delta = reach * share * torch.where(draw.uniform(_COUNT) < 0.5, -1.0, 1.0)
        at, moved = tilted(x, y, a, c), tilted(x, y, a + delta, c)
        used = moved.log - at.log - delta * at.mean
        allowed = 0.5 * delta.square() * square
        room = 1e-10 * (1 + at.log.abs() + moved.log.abs() + (delta * at.mean).abs())
        assert (used <= allowed + room).all()
        ratio = allowed / used.clamp_min(1e-3 * allowed + room)
        least = min(least, ratio.nan_to_num(math.inf).min().item())
    assert least <= 1.05


def test_parabola_about_a_usual_distance_lies_above() -> None:
    draw, least = Draw.of(71), math.inf
    r = draw.size(-3, 2, _COUNT)
    m0, a = r * (18 * draw.uniform(_COUNT) - 9), draw.size(-3, 1.5, _COUNT) / r
    spread = r * draw.size(-3, 1.5, _COUNT)
    bend, zero = harmful_parabola(m0, r, a, spread), torch.zeros_like(a)
    at = tilted(m0, r, a, zero)
    for _ in range(40):
        step = draw.normal(_COUNT) * draw.size(-1, 1.3, _COUNT) * torch.where(draw.uniform(_COUNT) < 0.5, r, spread)
        rest = tilted(m0 + step, r, a, zero).log - at.log - at.in_mean * step
        allowed = bend.constant + bend.slope * step + 0.5 * bend.curvature * step.square()
        room = 1e-10 * (1 + at.log + (at.in_mean * step).abs())
        assert (rest <= allowed + room).all()
        least = min(least, (allowed / rest.clamp_min(1e-3 * allowed + room)).min().item())
    assert least <= 1.05


def test_parabola_of_a_harmful_neuron_lies_above() -> None:
    draw, least = Draw.of(70), math.inf
    r = draw.size(-3, 2, _COUNT)
    m0, a = r * (18 * draw.uniform(_COUNT) - 9), draw.size(-3, 1.2, _COUNT) / r
    bend, zero = harmful_curvature(m0, r, a), torch.zeros_like(a)
    at = tilted(m0, r, a, zero)
    for _ in range(40):
        step = draw.normal(_COUNT) * draw.size(-1, 1.3, _COUNT) * r
        rest = tilted(m0 + step, r, a, zero).log - at.log - at.in_mean * step
        allowed = 0.5 * bend * step.square()
        room = 1e-10 * (1 + at.log + (at.in_mean * step).abs())
        assert (rest <= allowed + room).all()
        least = min(least, (allowed / rest.clamp_min(1e-3 * allowed + room)).min().item())
    assert least <= 1.05


@precise
def truth_of_log_moment(m: float, r: float, a: float, c: float) -> arb:
    m_, r_, a_, c_ = (arb(x) for x in (m, r, a, c))
    w = 1 / (1 - 2 * c_ * r_ * r_)
    power = w * (a_ * m_ + c_ * m_ * m_ + a_ * a_ * r_ * r_ / 2)
    return (cdf(-m_ / r_) + w.sqrt() * power.exp() * cdf((m_ + a_ * r_ * r_) * w.sqrt() / r_)).log()


@pytest.mark.parametrize("seed", range(3))
def test_log_moment_is_not_below_the_truth_near_its_pole(seed: int) -> None:
    draw, finite = Draw.of(seed), 0
    for _ in range(60):
        r = draw.size(-4, 2, 1).item()
        m = r * (16 * draw.uniform(1).item() - 8)
        a = draw.normal(1).item() * draw.size(-3, 1, 1).item() / r
        c = 0.5 / r**2 * (1 - draw.size(-13, -0.5, 1).item())
        got = log_moment(*(torch.tensor(x, dtype=F64) for x in (m, r, a, c))).item()
        if math.isfinite(got):
            finite += 1
            assert above(got, truth_of_log_moment(m, r, a, c)), (m, r, a, c)
    assert finite >= 3
