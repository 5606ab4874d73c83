"""Every intermediate quantity of the moment method against draws of the hidden layers at points of the box."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from tests.engine.dense.cases import CASES, network, points, region
from tests.engine.dense.truth import (
    Draws,
    Estimate,
    Hidden,
    Pass,
    at_least,
    at_most,
    central,
    draw,
    inside,
    mean,
    normal,
    relu_mean,
    run,
)
from torch import Tensor

from bnndp.engine.dense.slope import slope
from bnndp.engine.dense.variance import central_variance, linear_variance, square_sum_variance
from bnndp.geometry.bounds import Interval


@dataclass(frozen=True)
class Subject:
    """The records of a pass, and for every point of the box the draws of all layers."""

    found: Pass
    points: Tensor
    draws: list[list[Draws]]

    def pairs(self) -> list[tuple[Hidden, Draws, Draws]]:
        """(records, draws of the layer before, draws) of each hidden layer after the first, at each point."""
        return [
            (h, below, layer)
            for layers in self.draws
            for h, (below, layer) in zip(self.found.hidden, pairwise(layers), strict=True)
        ]


@pytest.fixture(scope="module", params=CASES, ids=str)
def subject(request: pytest.FixtureRequest) -> Subject:
    case = request.param
    net, x = network(case), points(case)
    return Subject(run(net, region(case)), x, [draw(net, p, seed=i) for i, p in enumerate(x)])


def test_outputs(subject: Subject) -> None:
    last, bounds = subject.found.network.linears[-1], subject.found.bounds
    for x, layers in zip(subject.points, subject.draws, strict=True):
        output = mean(layers[-1].h @ last.weight_mean.T + last.bias_mean)
        inside(output, Interval(bounds.lower(x[None]), bounds.upper(x[None])), "E f(x)")
        inside(output, bounds.interval(), "E f(x)")


def test_means_of_pre_activations(subject: Subject) -> None:
    for h, _, at in subject.pairs():
        inside(mean(at.m), h.mean, "E X")


class TestLatent:
    """The moments of the outputs z of a hidden layer."""

    def layers(self, subject: Subject) -> list[tuple[Draws, int]]:
        return [(at, k) for layers in subject.draws for k, at in enumerate(layers)]

    def test_mean(self, subject: Subject) -> None:
        for at, k in self.layers(subject):
            inside(mean(at.h), subject.found.latents[k].mean, f"E z_{k + 1}")

    def test_second(self, subject: Subject) -> None:
        for at, k in self.layers(subject):
            inside(mean(at.q), subject.found.latents[k].second, f"E z_{k + 1}^2")

    def test_variance(self, subject: Subject) -> None:
        for at, k in self.layers(subject):
            spread = mean(at.v + (at.h - at.h.mean(0)) ** 2, at.q.mean(0))
            at_most(spread, subject.found.latents[k].variance[0], f"Var z_{k + 1}")

    def test_fourth(self, subject: Subject) -> None:
        for at, k in self.layers(subject):
            at_most(mean(at.fourth), subject.found.latents[k].fourth[0], f"E z_{k + 1}^4")

    def test_activity(self, subject: Subject) -> None:
        for at, k in self.layers(subject):
            at_most(mean(at.slope**4), subject.found.latents[k].activity[0] ** 2, f"E Phi^4 of layer {k + 1}")

    def test_activity_holds_at_a_constant_spread_too(self, subject: Subject) -> None:
        for h, _, at in subject.pairs():
            s0 = at.s.mean(0).clamp_min(1e-280)
            cdf, _ = normal((at.m / s0.sqrt()).clamp(-1e3, 1e3))
            at_most(mean(cdf**4), h.latent.activity[0] ** 2, "E Phi(m / sqrt(S))^4")


class TestPreActivation:
    """The moments of m and s given the layer before."""

    def test_jensen(self, subject: Subject) -> None:
        for h, below, _ in subject.pairs():
            layer = h.before.layer
            s = below.h.mean(0).square() @ layer.weight_std.T**2 + layer.bias_std**2
            # E z is estimated: its error moves s by at most twice the deviation times its root.
            error = mean(below.h).error.square() @ layer.weight_std.T**2
            at_least(Estimate(s, 2 * (s * error).sqrt() + error, s), h.before.jensen[0] ** 2, "s(E z)")

    def test_spread(self, subject: Subject) -> None:
        for h, _, at in subject.pairs():
            inside(mean(at.s), h.before.spread, "E s")

    def test_spread_variance(self, subject: Subject) -> None:
        for h, _, at in subject.pairs():
            at_most(central(at.s), h.before.spread_variance[0], "Var s")

    def test_spread_fourth(self, subject: Subject) -> None:
        for h, _, at in subject.pairs():
            at_most(central(at.s, 4), h.before.spread_fourth[0], "E (s - E s)^4")

    def test_noise(self, subject: Subject) -> None:
        for h, below, _ in subject.pairs():
            mu2 = h.before.layer.weight_mean.T**2
            inside(mean(below.v @ mu2, below.q.mean(0) @ mu2), h.before.noise, "E Var(m | y)")

    def test_noise_variance(self, subject: Subject) -> None:
        for h, below, _ in subject.pairs():
            at_most(central(below.v @ h.before.layer.weight_mean.T**2), h.before.noise_variance[0], "Var Var(m | y)")

    def test_central(self, subject: Subject) -> None:
        for h, below, _ in subject.pairs():
            at_most(central(below.h @ h.before.layer.weight_mean.T), h.before.central[0], "Var E[m | y]")

    def test_mean_variance(self, subject: Subject) -> None:
        for h, _, at in subject.pairs():
            at_most(central(at.m), h.before.mean_variance[0], "Var m")

    def test_fourth(self, subject: Subject) -> None:
        for h, _, at in subject.pairs():
            at_most(central(at.m, 4), h.before.fourth[0], "E (m - E m)^4")

    def test_norm8(self, subject: Subject) -> None:
        for h, _, at in subject.pairs():
            at_most(central(at.m, 8), h.before.norm8[0] ** 8, "E (m - E m)^8")

    def test_replacement(self, subject: Subject) -> None:
        """Given y, m is a sum of independent terms; a Gaussian of the same variance would give nearly the same."""
        for h, below, at in subject.pairs():
            layer, before = h.before.layer, h.before
            centre = below.h @ layer.weight_mean.T + layer.bias_mean
            variance = below.v @ layer.weight_mean.T**2
            for s0, error in (
                (before.spread.lower, before.replacement.lower),
                (before.spread.upper, before.replacement.upper),
            ):
                base = s0[0].clamp_min(1e-280)
                difference = relu_mean(at.m, base.sqrt()) - relu_mean(centre, (base + variance).sqrt())
                size = at.m.abs().mean(0) + base.sqrt()
                at_most(mean(difference, size), error[0], "effect of the replacement")
                at_most(mean(-difference, size), error[0], "effect of the replacement")


class TestTail:
    """Concentration in the second hidden layer."""

    def test_levels(self, subject: Subject) -> None:
        for h, _, at in subject.pairs():
            if h.before.tail is None:
                continue
            for level in h.before.tail.levels:
                wide = mean(at.m).error + 1e-12 * at.m.abs().mean(0)
                outside = (at.m > at.m.mean(0) + level.above[0] + wide) | (at.s > level.spread[0] * (1 + 1e-12))
                outside |= at.m < at.m.mean(0) - level.below[0] - wide
                at_most(mean(outside.double()), level.probability[0], "P(m or s outside of its level)")

    def test_norms(self, subject: Subject) -> None:
        for h, _, at in subject.pairs():
            if h.before.tail is not None:
                at_most(central(at.m, 8), h.before.tail.mean8[0] ** 8, "E (m - M)^8")
                at_most(mean(at.s**4), h.before.tail.spread8[0] ** 8, "E s^4")
                at_most(mean(at.s**8), h.before.tail.spread16[0] ** 16, "E s^8")

    def test_energy(self, subject: Subject) -> None:
        """The Poincare inequality for Phi(m / sqrt(t)), at wide and narrow t."""
        for h, _, at in subject.pairs():
            energy = h.before.energy
            if energy is None:
                continue
            for factor in (0.1, 1.0, 10.0):
                t = factor * (h.before.spread.upper[0] + h.before.noise.upper[0]).clamp_min(1e-200)
                cdf, pdf = normal((at.m / t.sqrt()).clamp(-1e3, 1e3))
                bound = (energy.usual[0] * mean(pdf**2).highest + energy.rare[0] / (2 * math.pi)) / t
                at_most(central(cdf), bound, "Var Phi(m / sqrt(t))")


class TestSlope:
    """Phi(m / sqrt(s0)) as a random variable."""

    def values(self, h: Hidden, at: Draws) -> Tensor:
        return normal((at.m / h.before.spread.upper[0].clamp_min(1e-280).sqrt()).clamp(-1e3, 1e3))[0]

    def test_variance(self, subject: Subject) -> None:
        for h, _, at in subject.pairs():
            at_most(central(self.values(h, at)), slope(h.before, h.mean).variance[0], "Var Phi")

    def test_square(self, subject: Subject) -> None:
        for h, _, at in subject.pairs():
            found = slope(h.before, h.mean)
            at_most(mean((self.values(h, at) - found.centre[0]) ** 2), found.square[0], "E (Phi - p)^2")


class TestRelaxation:
    """The affine bounds of E z in M; the same draws serve both sides, so their errors nearly cancel."""

    @pytest.mark.parametrize("shift", [None, 0.0, -0.7, 1.3])
    def test_lower(self, subject: Subject, shift: float | None) -> None:
        for h, _, at in subject.pairs():
            r = h.relaxation
            a, b = r.lower(None if shift is None else r.tangent[:, None] + shift)
            at_least(mean(at.h - a[0, 0] * at.m, at.h.abs().mean(0) + at.m.abs().mean(0)), b[0, 0], "E z")

    def test_upper(self, subject: Subject) -> None:
        for h, _, at in subject.pairs():
            r = h.relaxation
            at_most(
                mean(at.h - r.upper_slope[0] * at.m, at.h.abs().mean(0) + at.m.abs().mean(0)), r.upper_offset[0], "E z"
            )

    def test_size(self, subject: Subject) -> None:
        for h, _, at in subject.pairs():
            r = h.relaxation
            m = at.m.mean(0).abs() * (1 - 1e-9)
            planes = [r.lower(None if shift is None else r.tangent[:, None] + shift) for shift in (None, -0.7, 1.3)]
            for a, b in (*((a[0], b[0]) for a, b in planes), (r.upper_slope, r.upper_offset)):
                largest = a[0].abs() * m + b[0].abs()
                at_most(Estimate(largest, mean(at.m).error, largest), r.size[0], "|slope M| + |offset|")


class TestConditional:
    """A hidden layer given the one before."""

    def test_noise(self, subject: Subject) -> None:
        for k, at in self.layers(subject):
            inside(mean(at.v, at.q.mean(0)), subject.found.given[k][1].noise, "E Var(z | y)")

    def test_noise_deviation(self, subject: Subject) -> None:
        for k, at in self.layers(subject):
            at_most(central(at.v), subject.found.given[k][1].beyond.noise_deviation[0] ** 2, "Var Var(z | y)")

    def test_cube(self, subject: Subject) -> None:
        for k, at in self.layers(subject):
            cube = subject.found.given[k][1].beyond.cube[0]
            at_most(mean(at.v**1.5, at.q.mean(0) ** 1.5), cube, "E Var(z | y)^1.5")
            at_most(mean((at.z - at.h).abs() ** 3), math.sqrt(3) * cube, "E |z - E[z | y]|^3")

    def test_slope_rest(self, subject: Subject) -> None:
        """``g(m, sqrt(s0)) - p m`` less its quadratic part, neuron by neuron."""
        for k, at in self.layers(subject):
            before, parts = subject.found.given[k]
            root = before.spread.upper[0].clamp_min(1e-280).sqrt()
            bend = 0.5 * parts.curvature[0] * (at.m - at.m.mean(0)) ** 2
            rest = relu_mean(at.m, root) - parts.slope[0] * at.m - bend
            whole = (parts.slope[0] == 0) & (parts.psi[0] == 0)  # then all of h is in the plain rest
            rare = 0.0 if before.energy is None else parts.largest[0] * before.energy.rare[0].sqrt()
            bound = parts.slope_rest[0] + rare + parts.plain_rest[0]
            size = at.m.abs().mean(0).square()
            centred = torch.where(whole, at.h, rest)
            at_most(mean((centred - centred.mean(0)) ** 2, size), bound**2, "variance of the slope rest")

    def test_gradients(self, subject: Subject) -> None:
        """The slope at the actual s, the density, and s where the neuron is active."""
        for k, at in self.layers(subject):
            known = subject.found.given[k][1].beyond.gradients
            if known is None:
                continue
            distance = at.slope - known.centre[0]
            assert (distance.abs() <= known.widest[0] * (1 + 1e-12)).all()
            at_most(mean(distance**8), known.delta[0] ** 8, "E (Phi - p)^8")
            density = torch.where(at.s > 0, normal((at.m / at.s.sqrt().clamp_min(1e-300)).clamp(-1e3, 1e3))[1], 0.0)
            at_most(mean(density**8), known.density[0] ** 8, "E phi^8")
            at_most(mean(at.s**4 * at.slope), known.active_spread[0] ** 4, "E s^4 1[X > 0]")

    def layers(self, subject: Subject) -> list[tuple[int, Draws]]:
        return [(k, at) for layers in subject.draws for k, at in enumerate(layers[1:])]


class TestRows:
    """Variances of combinations of the neurons of a layer: random signs, one sign, single neurons, nearly nothing."""

    def rows(self, n: int) -> Tensor:
        generator = torch.Generator().manual_seed(n)
        dense = torch.randn(4, n, generator=generator, dtype=torch.float64)
        return torch.cat([dense, torch.ones(1, n), dense[:1] * 1e-8, torch.eye(n, dtype=torch.float64)[:4]])

    def layers(self, subject: Subject) -> list[tuple[int, Draws]]:
        return [(k, at) for layers in subject.draws for k, at in enumerate(layers)]

    def test_linear_variance(self, subject: Subject) -> None:
        found = subject.found
        for k, at in self.layers(subject):
            rows = self.rows(at.z.shape[1])
            bound = linear_variance(rows, found.given[:k], found.latents[: k + 1], found.first.sources)
            at_most(central(at.z @ rows.T), bound[0], f"Var(u z_{k + 1})")

    def test_square_sum_variance(self, subject: Subject) -> None:
        found = subject.found
        for k, at in self.layers(subject):
            rows = self.rows(at.z.shape[1])
            bound = square_sum_variance(rows, found.given[:k], found.latents[: k + 1], found.first.sources)
            at_most(central(at.z**2 @ rows.T), bound[0], f"Var(u z_{k + 1}^2)")

    def test_central_variance(self, subject: Subject) -> None:
        found = subject.found
        for k, at in self.layers(subject):
            if k == 0:
                continue  # given x nothing of the first layer's mean is random
            rows = self.rows(at.z.shape[1])
            bound = central_variance(rows, found.given[:k], found.latents[: k + 1], found.first.sources)
            at_most(central(at.h @ rows.T), bound[0], f"Var(u E[z_{k + 1} | before])")
            # One row for each box (batch, rows, n) must give the same.
            again = central_variance(rows[None], found.given[:k], found.latents[: k + 1], found.first.sources)
            assert torch.allclose(again, bound, rtol=1e-12, atol=0)
