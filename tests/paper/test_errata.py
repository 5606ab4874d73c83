"""The misprints of the paper that concern g, r and their bounds: each is shown wrong, and its correction right.

The numbers are those of errata.md; the misprints of the partition method itself are tested beside it. Truth is ball
arithmetic throughout.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flint import arb, ctx
from support.oracles import PRECISION, cdf, exact_mean, expected_relu, expected_relu_between, pdf, pre_activation
from torch import Tensor

from bnndp.files.posterior import load
from bnndp.layers import Linear
from bnndp.maths import normal, rectified
from bnndp.network import BayesianNetwork


def uniform(low: float, high: float, n: int, seed: int) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    values: list[float] = (low + (high - low) * torch.rand(n, generator=generator, dtype=torch.float64)).tolist()
    return values


def printed_outer_bound(m: float, r: float) -> arb:
    """``prop:boundOuterSpace`` as printed: half of the positive part of m, and r / sqrt(2 pi)."""
    with ctx.workprec(PRECISION):
        return arb(max(m, 0.0)) / 2 + arb(r) / (2 * arb.pi()).sqrt()


def right_outer_bound(m: float, r: float) -> arb:
    with ctx.workprec(PRECISION):
        return arb(max(m, 0.0)) + arb(r) / (2 * arb.pi()).sqrt()


class TestItem2UnboundedRegion:
    def test_the_printed_bound_fails_on_the_counter_example(self) -> None:
        left = expected_relu_between(10.0, 1.0, 0.0, math.inf)
        assert 9.99 < left < 10.01
        assert 5.39 < printed_outer_bound(10.0, 1.0) < 5.41
        assert left > printed_outer_bound(10.0, 1.0)
        assert left < right_outer_bound(10.0, 1.0)

    def test_it_fails_often_and_the_right_bound_never(self) -> None:
        """reliability.md, section 2: false in a third of random cases, true where the region starts above [m]+."""
        points = list(zip(uniform(-5, 5, 2000, 1), uniform(-8, 8, 2000, 2), uniform(0.05, 2, 2000, 3), strict=True))
        fails = 0
        for m, a, r in points:
            left = expected_relu_between(m, r, a, math.inf)
            assert left <= right_outer_bound(m, r)
            wrong = bool(left > printed_outer_bound(m, r))
            fails += wrong
            assert not (wrong and a >= max(m, 0.0))
        assert 400 < fails < 900

    def test_the_identity_for_the_complement(self) -> None:
        """``E[ReLU 1{outside}] = g - e``: the package's g and interval probabilities add up to the direct integrals."""
        for m, spread, a, b in zip(*(uniform(-3, 3, 200, s) for s in (1, 2, 3, 4)), strict=True):
            r, (low, high) = abs(spread) + 0.01, sorted((a, b))
            inside = expected_relu_between(m, r, low, high)
            with ctx.workprec(PRECISION):
                outside = expected_relu_between(m, r, -math.inf, low) + expected_relu_between(m, r, high, math.inf)
                assert abs(expected_relu(m, r) - inside - outside) < arb(2) ** -200
            start, stop = (torch.tensor(max(x, 0.0), dtype=torch.float64) for x in (low, high))
            mean, std = torch.tensor(m, dtype=torch.float64), torch.tensor(r, dtype=torch.float64)
            e = rectified.expected_relu(mean - start, std) - rectified.expected_relu(mean - stop, std)
            e = e + start * normal.tail((start - mean) / std) - stop * normal.tail((stop - mean) / std)
            assert abs(arb(e.item()) - inside) < 1e-13


class TestItem5UpperPlane:
    """A plane through three vertices of a rectangle of (m, r) may cut off the fourth."""

    @staticmethod
    def vertices(m: tuple[float, float], r: tuple[float, float]) -> dict[tuple[float, float], arb]:
        return {(a, b): expected_relu(a, b) for a, b in itertools.product(m, r)}

    def test_the_fourth_vertex_sticks_out(self) -> None:
        m, r = (-3.0, -1.0), (0.5, 2.0)
        g = self.vertices(m, r)
        with ctx.workprec(PRECISION):
            plane = g[m[1], r[0]] + g[m[0], r[1]] - g[m[0], r[0]]  # its value at (m_high, r_high)
        assert g[m[1], r[1]] > plane + 0.2

    def test_some_choice_of_three_fails_on_every_rectangle(self) -> None:
        for m0, dm, r0, dr in zip(*(uniform(0.05, 3, 200, s) for s in range(4)), strict=True):
            m, r = (m0 - 2.0, m0 - 2.0 + dm), (r0, r0 + dr)
            g = self.vertices(m, r)
            with ctx.workprec(PRECISION):
                twist = g[m[1], r[1]] + g[m[0], r[0]] - g[m[1], r[0]] - g[m[0], r[1]]
            assert twist > 0 or twist < 0  # not zero: two of the four planes miss their fourth vertex

    def test_the_maximum_over_four_vertices_holds_everywhere(self) -> None:
        for m0, dm, r0, dr, p, q in zip(*(uniform(0.01, 3, 40, s) for s in range(6)), strict=True):
            m, r = (m0 - 2.0, m0 - 2.0 + dm), (r0, r0 + dr)
            slopes = (p - 1.0, q - 1.0)  # any slopes will do
            with ctx.workprec(PRECISION):
                gaps = [
                    value - arb(slopes[0]) * a - arb(slopes[1]) * b for (a, b), value in self.vertices(m, r).items()
                ]
                intercept = max(gaps, key=lambda gap: float(gap.mid()))
                for i, j in itertools.product(range(7), repeat=2):
                    a, b = m[0] + (m[1] - m[0]) * i / 6, r[0] + (r[1] - r[0]) * j / 6
                    value = expected_relu(a, b)
                    assert value <= arb(slopes[0]) * a + arb(slopes[1]) * b + intercept + arb(1e-14)


class TestItem6Convexity:
    def test_the_hessian_is_that_of_the_corrected_vector(self) -> None:
        """H = phi(u) / sigma * c c^T with c = (1, -mu / sigma), and not with the printed (1, 1 / sigma)."""
        with ctx.workprec(1500):
            h = arb(2) ** -200
            for mu, sigma in [(-1.5, 0.5), (0.0, 1.0), (0.7, 2.0), (3.0, 0.9)]:
                m, s = arb(mu), arb(sigma)

                def second(dm: tuple[int, int], ds: tuple[int, int], m: arb = m, s: arb = s) -> arb:
                    total = arb(0)
                    for i, j in itertools.product((0, 1), repeat=2):
                        sign = (-1) ** (i + j)
                        total += sign * expected_relu(m + h * (dm[0] * i + dm[1] * j), s + h * (ds[0] * i + ds[1] * j))
                    return total / h**2

                scale = pdf(m / s) / s
                right, printed = (arb(1), -m / s), (arb(1), 1 / s)
                small = arb(2) ** -150
                assert abs(second((1, 1), (0, 0)) - scale * right[0] ** 2) < small
                assert abs(second((1, 0), (0, 1)) - scale * right[0] * right[1]) < small
                assert abs(second((0, 0), (1, 1)) - scale * right[1] ** 2) < small
                assert abs(second((1, 0), (0, 1)) - scale * printed[0] * printed[1]) > 0.005

    def test_the_mean_of_a_neuron_is_convex_in_its_input(self, random_network: Callable[..., BayesianNetwork]) -> None:
        """And so is its standard deviation r(z); inputs of both signs."""
        network = random_network((4, 12, 1), 5, std=1.5)
        ends = torch.randn(40, 2, 4, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
        ends = (ends * 2**20).round() / 2**20  # so that the midpoint is a float
        for pair in ends:
            at = [pre_activation(network, z.tolist()) for z in (*pair, pair.mean(0))]
            for (m0, r0), (m1, r1), (m2, r2) in zip(*at, strict=True):
                with ctx.workprec(PRECISION):
                    assert 2 * expected_relu(m2, r2) <= expected_relu(m0, r0) + expected_relu(m1, r1)
                    assert 2 * r2 <= r0 + r1


class TestItem9PublishedCode:
    def test_the_smallest_deviation_makes_the_rectangle_too_small(self) -> None:
        """m in one place, r between 1 and 2: the lower corner m - c r needs the largest r."""
        epsilon = 0.01
        c = normal.rectangle_quantile(epsilon, 1)
        with ctx.workprec(PRECISION):
            wrong, right = (cdf(c) - cdf(-arb(c) * low / 2) for low in (1.0, 2.0))  # mass for r = 2 of [-c low, 2 c]
            assert wrong < 1 - arb(epsilon)
            assert right >= 1 - arb(epsilon)

    def test_a_box_clipped_to_the_positive_orthant_misses_the_range(self) -> None:
        weight = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
        hidden = Linear(weight, 0.3 * weight.abs(), torch.zeros(2), torch.full((2,), 0.1))
        last = Linear(torch.tensor([[0.0, 1.0]]), torch.zeros(1, 2), torch.zeros(1), torch.zeros(1))
        network = BayesianNetwork.from_linears([hidden, last])
        inside = [exact_mean(network, [k / 50])[0] for k in range(51)]  # the part x >= 0 of the box [-1, 1]
        outside = exact_mean(network, [-1.0])[0]
        assert all(outside > 4 * value for value in inside)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_g_as_printed_is_negative_in_floats_and_ours_is_not(self, dtype: torch.dtype) -> None:
        mu = torch.linspace(-12, 12, 4801, dtype=dtype)
        sigma = torch.ones_like(mu)
        assert (printed_g(mu, sigma) < 0).sum() > 10
        assert printed_g(torch.zeros(1, dtype=dtype), torch.zeros(1, dtype=dtype)).isnan()
        assert (rectified.expected_relu(mu, sigma) >= 0).all()
        assert (rectified.expected_relu(mu, sigma)[mu > -11] > 0).all()
        assert rectified.expected_relu(torch.zeros(1, dtype=dtype), torch.zeros(1, dtype=dtype)).item() == 0

    def test_float32_rounds_a_deviation_below_the_truth(self) -> None:
        """A lower value of r is not an upper bound: the square root of a rounded sum needs outward rounding."""
        sigma, z = (torch.tensor(uniform(0, 1, 300, s), dtype=torch.float64) for s in (1, 2))
        below = 0
        for k in range(1, 300):
            single = (sigma[:k].float() * z[:k].float()).square().sum().sqrt().item()
            with ctx.workprec(PRECISION):
                s = sum(
                    ((arb(a) * arb(b)) ** 2 for a, b in zip(sigma[:k].tolist(), z[:k].tolist(), strict=True)), arb(0)
                )
                below += bool(arb(single) < s.sqrt())
        assert below > 50


def printed_g(mu: Tensor, sigma: Tensor) -> Tensor:
    """``prop:neuron`` as printed, term by term."""
    first = mu / 2 * (1 - torch.special.erf(-mu / (sigma * math.sqrt(2))))
    return first + sigma / math.sqrt(2 * math.pi) * torch.exp(-((mu / (sigma * math.sqrt(2))) ** 2))


def test_the_exact_mean_of_the_published_network(posteriors: Path) -> None:
    """posteriors/README: on the box 0.7 +- 0.075 the exact mean ranges over [-0.8914, -0.5793]."""
    network = load(posteriors / "sine1d_1x256.safetensors")
    values = [exact_mean(network, [0.625 + 0.15 * k / 60])[0] for k in range(61)]
    least, most = min(float(v.mid()) for v in values), max(float(v.mid()) for v in values)
    assert (round(least, 4), round(most, 4)) == (-0.8914, -0.5793)
