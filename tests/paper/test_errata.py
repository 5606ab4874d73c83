"""The misprints of the paper: the printed form fails, ours holds. Truth is ball arithmetic throughout.

Items 7 (softmax) and 8 are in ``test_softmax.py``.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from flint import arb
from support import oracles
from support.oracles import expected_relu, expected_relu_between
from tests.paper.truth import gaussians, linear, plane
from torch import Tensor

from bnndp.geometry.bounds import Affine
from bnndp.geometry.box import Box
from bnndp.maths import rectified
from bnndp.network import BayesianNetwork
from bnndp.paper.conditional import Outside, conditional_mean, inside_probability, outside, truncated_mean
from bnndp.paper.layers import Layer, Ranges, Region
from bnndp.paper.outer import Outer
from bnndp.paper.partition import main_rectangle
from bnndp.paper.planes import upper_planes, vertex_slopes
from bnndp.paper.recursion import bound
from bnndp.paper.values import _expected


def tensor(*values: float) -> Tensor:
    return torch.tensor([[values]], dtype=torch.float64)


def point(m: list[float], r: list[float]) -> Ranges:
    return Ranges(tensor(*m), tensor(*m), tensor(*r), tensor(*r))


def interval(lower: list[float], upper: list[float]) -> Region:
    low, high = tensor(*lower), tensor(*upper)
    return Region(low, high, 0.5 * low + 0.5 * high)


# 1. prop:nnCondExpect


def test_item_1_printed_expectations_cancel() -> None:
    m, r, a, b = 1.0, 0.5, 0.5, 2.0
    tail = lambda t: float(oracles.tail((arb(t) - m) / r))  # noqa: E731
    printed = a * tail(a) - b * tail(b)  # the two expectations before it cancel
    truth = expected_relu_between(m, r, a, b)
    assert abs(printed - float(truth)) > 0.3
    assert oracles.error(truncated_mean(*(tensor(v) for v in (m, r, a, b))).item(), truth) < 1e-13


def test_item_1_without_the_other_coordinates_a_negative_coefficient_is_wrong() -> None:
    """Upper bound of E[-z_1 1{zeta in R}]: e_1 alone is too large to be subtracted."""
    ranges = point([1.0, 0.0], [0.5, 1.0])
    a, b = tensor(0.0, -1.0), tensor(3.0, 1.0)
    e = expected_relu_between(1.0, 0.5, 0.0, 3.0)
    truth = -e * (oracles.cdf(1.0) - oracles.cdf(-1.0))
    assert -e < truth  # the printed form claims an upper bound below the truth
    least, _ = (p.prod(-1) for p in inside_probability(ranges, a, b))
    low, _ = conditional_mean(ranges, a, b)
    ours = -(least * low[..., 0]).item()
    assert oracles.above(ours, truth)
    assert ours == pytest.approx(float(truth), abs=1e-9)


# 2. prop:boundOuterSpace


def outer_bound(m: float, r: float, share: float) -> arb:
    """As printed with a share of a half of the positive part of m; right with all of it."""
    return arb(max(m, 0.0)) * share + arb(r) / (2 * arb.pi()).sqrt()


def test_item_2_the_printed_bound_of_the_unbounded_region() -> None:
    m, r = 10.0, 1.0
    truth = expected_relu(m, r)  # of ReLU(zeta) on [0, oo)
    assert outer_bound(m, r, 0.5) < truth < outer_bound(m, r, 1.0)
    # ours, on the complement of a rectangle with next to nothing in it: all of the mean is outside
    found = outside(point([m], [r]), tensor(-2.0), tensor(-1.0))
    assert oracles.above(found.mean.item(), truth)
    assert found.mean.item() == pytest.approx(float(truth), rel=1e-9)


# 3. the value function on the unbounded region


def test_item_3_a_relaxation_on_a_compact_set_fails_outside_it() -> None:
    one = linear([[1.0, -1.0, 0.5, 0.2]], [[0.5] * 4], [0.1], [0.2])
    layer, where = Layer.of(one), interval([0.0] * 4, [1.0] * 4)
    compact = upper_planes(layer, where, layer.ranges(where))
    outer = Outer.of(torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)).behind(
        layer, where.at[:, 0]
    )
    fails = 0
    for z in ([10.0, 0.0, 0.0, 0.0], [0.0, 10.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1e6], [30.0] * 4, [0.0] * 4):
        ((m, r),) = gaussians(one, z)
        truth = expected_relu(m, r)
        fails += not plane(layer, compact, layer.var_upper, z, 0) >= truth
        value = sum(
            (arb(a) * arb(b) for a, b in zip(outer.matrix[0, 0].tolist(), z, strict=True)), arb(outer.offset.item())
        )
        assert value >= truth
    assert fails >= 2


def test_item_3_dropping_the_complement_is_unsound() -> None:
    """A network whose mean lives outside the main rectangle: the bounds must still hold for a tiny rectangle."""
    first = linear([[1.0]], [[0.0]], [0.0], [3.0])
    second = linear([[1.0]], [[0.0]], [-3.0], [0.0])
    network = BayesianNetwork.from_linears([first, second, linear([[1.0]], [[0.0]], [0.0], [0.0])])
    truth = float(expected_relu(-3.0, 3.0))  # ReLU(ReLU(3 xi) - 3) = ReLU(3 xi - 3)
    for mass in (1e-3, 0.5, 0.9999):
        found = bound(network, Box([0.0], [0.0]), mass=mass).interval()
        assert found.lower.item() <= truth <= found.upper.item()


# 4. prop:FindRectForProbBounds


def test_item_4_swapped_extremes_lose_the_mass() -> None:
    one = linear([[1.0]], [[0.5]], [0.0], [0.1])
    layer, where, mass = Layer.of(one), interval([-1.0], [2.0]), 1e-2
    c = -float(torch.special.ndtri(torch.tensor(mass / 2, dtype=torch.float64)))
    ends = [(float(m), float(r)) for ((m, r),) in (gaussians(one, [z]) for z in (-1.0, 0.0, 2.0))]
    printed = max(m - c * r for m, r in ends), min(m + c * r for m, r in ends)
    found = main_rectangle(layer.ranges(where), mass)
    ours = found.lower.item(), found.upper.item()

    def inside(z: float, ends: tuple[float, float]) -> arb:
        ((m, r),) = gaussians(one, [z])
        return oracles.cdf((arb(ends[1]) - m) / r) - oracles.cdf((arb(ends[0]) - m) / r)

    points = (-1.0, 0.0, 1.0, 2.0)
    assert any(inside(z, printed) < 1 - arb(mass) for z in points)
    assert all(inside(z, ours) >= 1 - arb(mass) for z in points)


# 5. prop:neuron, upper plane


def test_item_5_a_plane_through_three_vertices_misses_the_fourth() -> None:
    ends = (-1.0, 2.0), (0.1, 2.0)
    ranges = Ranges(*(tensor(v) for pair in ends for v in pair))
    alpha, beta = (t.flatten().tolist()[:4] for t in vertex_slopes(ranges))
    corners = [(m, r, expected_relu(m, r)) for m, r in itertools.product(*ends)]
    missed = 0
    for a, b in zip(alpha, beta, strict=True):
        gaps = sorted(float(value) - a * m - b * r for m, r, value in corners)
        three = next(level for level in gaps if sum(abs(level - other) < 1e-12 for other in gaps) == 3)
        missed += gaps[-1] > three + 1e-3
    assert missed == 2  # the other two are the facets of the concave envelope


# 6. convexity


def test_item_6_the_hessian_is_that_of_the_corrected_vector() -> None:
    """H = phi(u) / sigma * c c^T with c = (1, -mu / sigma), and not with the printed (1, 1 / sigma)."""
    for mu, sigma in [(-1.5, 0.5), (0.7, 2.0), (3.0, 0.9)]:
        at = torch.tensor([mu, sigma], dtype=torch.float64)
        found = torch.autograd.functional.hessian(lambda v: rectified.expected_relu(v[0], v[1]), at)
        scale = float(oracles.pdf(mu / sigma)) / sigma
        right, printed = (torch.tensor([1.0, c], dtype=torch.float64) for c in (-mu / sigma, 1 / sigma))
        assert torch.allclose(found, scale * torch.outer(right, right), atol=1e-10)
        assert not torch.allclose(found, scale * torch.outer(printed, printed), atol=1e-3)


# 7. al:backpropstep and al:regression


def test_item_7_probabilities_range_over_the_inputs_of_the_layer() -> None:
    """Line 3 as printed lets z run through Z_k, the rectangle of the outputs: its interval misses the truth."""
    one = linear([[4.0]], [[0.0]], [-1.0], [1.0])
    layer, inputs = Layer.of(one), interval([0.0], [0.5])
    rectangle = main_rectangle(layer.ranges(inputs), 0.5)  # of zeta, about [-1.7, 1.7]
    lower, upper = 0.5 * rectangle.upper, rectangle.upper  # one cell of it
    printed = inside_probability(layer.ranges(Region(lower, upper, lower)), lower, upper)
    ours = inside_probability(layer.ranges(inputs), lower, upper)
    for z in (0.0, 0.25, 0.5):
        ((m, r),) = gaussians(one, [z])
        truth = oracles.cdf((arb(upper.item()) - m) / r) - oracles.cdf((arb(lower.item()) - m) / r)
        assert oracles.below(ours[0].item(), truth)
        assert oracles.above(ours[1].item(), truth)
    assert not oracles.above(printed[1].item(), truth)  # z = 0.5: more likely than the printed interval allows


def test_expected_outside_uses_only_what_is_known() -> None:
    """Both moments of the complement are known from above only, so a negative coefficient may not be credited."""
    beyond = Outside(tensor(0.5), tensor(2.0, 3.0), tensor(0.0, 0.0), tensor(0.0, 0.0))
    function = Affine(
        torch.tensor([[[[1.0, -10.0]]]], dtype=torch.float64), torch.tensor([[[-7.0]]], dtype=torch.float64)
    )
    assert _expected(function, beyond).item() == pytest.approx(2.0)


# 9. the published code


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_item_9_g_as_printed_is_negative_in_floats_and_ours_is_not(dtype: torch.dtype) -> None:
    mu = torch.linspace(-12, 12, 4801, dtype=dtype)
    sigma = torch.ones_like(mu)
    assert (printed_g(mu, sigma) < 0).sum() > 10
    assert printed_g(torch.zeros(1, dtype=dtype), torch.zeros(1, dtype=dtype)).isnan()
    assert (rectified.expected_relu(mu, sigma) >= 0).all()
    assert (rectified.expected_relu(mu, sigma)[mu > -11] > 0).all()
    assert rectified.expected_relu(torch.zeros(1, dtype=dtype), torch.zeros(1, dtype=dtype)).item() == 0


def printed_g(mu: Tensor, sigma: Tensor) -> Tensor:
    """``prop:neuron`` as printed, term by term."""
    first = mu / 2 * (1 - torch.special.erf(-mu / (sigma * math.sqrt(2))))
    return first + sigma / math.sqrt(2 * math.pi) * torch.exp(-((mu / (sigma * math.sqrt(2))) ** 2))
