"""Values of jointly Gaussian vectors against quadrature and closed forms, at points of boxes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import records
from support.layer_networks import ACTS, activation
from support.passes import holds
from tests.engine.explicit_laws import of_gaussian
from tests.engine.gaussian_truths import F64, Truth, ball, matrix_normal, shared, truth_of
from tests.engine.laws.test_weights import points
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import Identity, Relu
from bnndp.engine.inequalities.expectation import expectation_bounds
from bnndp.engine.laws.weights import weights_of
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.moments.joint_gaussian import Coupling, Joint, Near
from bnndp.engine.nodes.activation_moments import activated
from bnndp.engine.nodes.node import row_std
from bnndp.engine.planes.mean import planes
from bnndp.engine.rows import DenseRows
from bnndp.geometry.bounds import Interval
from bnndp.layers import Conv2d, CorrelatedLinear, Flatten, Linear
from bnndp.network import BayesianNetwork

SHARED: dict[str, tuple[Any, tuple[int, ...]]] = {
    **{name: records.RANDOM[name] for name in ("low rank", "whole layer", "matrix normal", "conv")},
    "conv with stride and padding": records.RANDOM["conv with stride and padding"],
    "rank two": (shared(5, 3, 70, 0.4), (3,)),
    "one noise": (matrix_normal(4, 3, 80, 0.5, rank=1), (3,)),
}
SMALL = ("low rank", "matrix normal", "rank two", "one noise")
FAST = ("relu", "tanh", "hard_tanh", "gelu", "piecewise_affine")


@pytest.mark.parametrize("radius", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("name", SHARED)
def test_covariances_of_layers_hold_on_boxes(name: str, radius: float) -> None:
    layer, shape = SHARED[name]
    weights, box = weights_of(layer, shape), ball(records.normal(math.prod(shape), seed=1), radius)
    found = weights.joint(Interval(box.lower, box.upper))
    assert found is not None
    groups, size = found.value.shape[1:3]
    assert groups == weights.groups
    for x in points(box, 20, 2):
        truth = records.law(layer, x.reshape(shape))[1]
        parts = truth.reshape(groups, size, groups, size)
        own = torch.stack([parts[g, :, g] for g in range(groups)])
        assert float((truth - torch.block_diag(*own)).abs().max()) == 0
        assert holds(found.interval, own[None], 1e-13 * float(truth.abs().max()))
        if radius == 0:
            assert torch.allclose(found.value[0], own, rtol=1e-8, atol=1e-8 * float(truth.abs().max()))
            assert float(found.off.max()) < 1e-8 * float(truth.abs().max())


def node_of(layer: Any, shape: tuple[int, ...], act: str, x: Tensor, radius: float) -> Any:
    """The node after a layer and an activation, on a box around x."""
    flat = (Flatten(),) if len(shape) == 3 else ()
    n = weights_of(layer, shape).n_out
    network = BayesianNetwork(
        (layer, activation(act), *flat, Linear.fixed(torch.ones(1, n, dtype=F64))), input_shape=shape
    )
    return MomentPass.of(network, ball(x, radius)).hidden.nodes[1]


def blocks(joint: Joint, matrix: Tensor) -> Tensor:  # (n, n) -> (1, groups, g, g)
    return joint.blocks(matrix[None])


def within(near: Near, truth: Tensor, slack: float = 1e-9) -> bool:
    """Whether the truth is in the range; unknown ranges hold."""
    known = near.off.isfinite()
    off = torch.where(known, near.off, torch.inf)
    return bool(((truth - near.value.nan_to_num(0.0)).abs() <= off + slack).all())


def check(joint: Joint, truth: Truth, covariance: Tensor, slack: float) -> None:
    """All that a record says, at one x."""
    r2 = covariance.diagonal()
    variance, moved = truth.covariance.diagonal(), r2 > 0
    assert within(joint.slope, torch.where(moved, truth.slope, joint.slope.value[0]), slack), "slope"
    assert within(joint.bend, torch.where(moved, truth.bend, joint.bend.value[0]), slack), "bend"
    assert within(joint.slope_covariance, truth.mixed.diagonal(), slack), "slope_covariance"
    size = torch.outer(r2, r2).sqrt()
    rho = torch.where(size > 1e-12 * r2.max().square(), covariance.abs() / size.clamp_min(1e-300), 0.0)
    assert bool((blocks(joint, rho) <= joint.correlation * (1 + 1e-9)).all()), "correlation"
    line = torch.outer(truth.slope, truth.slope) * covariance
    square = 0.5 * torch.outer(truth.bend, truth.bend) * covariance.square()
    rest = truth.covariance - line
    cubic = rest - square
    assert within(joint.covariance, blocks(joint, truth.covariance), slack), "covariance"
    assert within(joint.linear, blocks(joint, line), slack), "linear"
    assert within(joint.remainder, blocks(joint, rest), slack), "remainder"
    assert within(joint.slope_of_pairs, blocks(joint, truth.mixed), slack), "slope of pairs"
    apart = blocks(joint, cubic - cubic.diagonal().diag())
    known = joint.cubic.isfinite()
    assert bool((apart.abs() <= torch.where(known, joint.cubic, torch.inf) + slack).all()), "cubic"
    for claim, what in ((joint.deviation, variance), (joint.second, rest.diagonal()), (joint.third, cubic.diagonal())):
        assert bool((what <= claim[0].square() + slack).all())
    assert bool((joint.second_low[0].square() <= rest.diagonal() + slack).all())


@pytest.mark.parametrize("act", slow_but(ACTS, *FAST))
@pytest.mark.parametrize("radius", [0.0, 0.1])
@pytest.mark.parametrize("name", SMALL)
def test_values_hold_on_boxes(name: str, radius: float, act: str) -> None:
    layer, shape = SHARED[name]
    for seed in range(1):
        x = records.normal(*shape, seed=seed)
        node = node_of(layer, shape, act, x, radius)
        joint = node.signal.joint
        assert joint is not None
        rows = records.normal(1, 5, layer.weight_mean.shape[0], seed=9)
        claim = row_std(node, DenseRows(rows))[0]
        for at in points(ball(x, radius), 3 if radius else 1, seed):
            m, covariance = records.law(layer, at)
            truth = truth_of(act, m, covariance)
            check(joint, truth, covariance, 3e-9)
            spread = torch.einsum("rj,jk,rk->r", rows[0], truth.covariance, rows[0])
            assert bool((spread <= claim.square() + 1e-9).all())
            form = joint.form(joint.covariance, rows)
            assert within(form, spread, 1e-8)


@pytest.mark.parametrize("act", slow_but(ACTS, "relu", "tanh"))
@pytest.mark.parametrize("radius", [0.0, 0.1])
def test_values_of_convolutions_hold_in_groups(act: str, radius: float) -> None:
    shape = (1, 2, 3)
    layer = records.conv(2, 1, 5, size=2, padding=(0, 1), std=0.6)
    x = records.normal(6, seed=2)
    joint = node_of(layer, shape, act, x, radius).signal.joint
    assert joint is not None
    assert joint.groups == 2
    for at in points(ball(x, radius), 3 if radius else 1, 0):
        m, covariance = records.law(layer, at.reshape(shape))
        check(joint, truth_of(act, m, covariance), covariance, 3e-9)
    n = len(m)
    matrix = torch.block_diag(*joint.covariance.value[0])
    rows, coupling = records.normal(1, 3, n, seed=4), records.normal(2, n, n, seed=5)
    assert torch.allclose(joint.apply(rows, joint.covariance.value)[0], rows[0] @ matrix)
    other = coupling * (1 - torch.eye(n, dtype=F64))
    assert torch.allclose(
        joint.products(Coupling(other, torch.ones(2, dtype=F64))).value[0], (other * matrix).sum((-1, -2))
    )
    assert torch.allclose(
        joint.length(rows.abs(), slice(None))[0].square(),
        torch.einsum("rj,jk,rk->r", rows[0].abs(), torch.block_diag(*joint.correlation[0]), rows[0].abs()),
    )


def joint_at(act: str, m: Tensor, covariance: Tensor) -> Joint:  # (n,), (n, n)
    """Of a Gaussian vector of one group, at a point."""
    phi, s = activation(act), covariance.diagonal()
    x = of_gaussian(Interval(m[None], m[None]), Interval(s[None], s[None]))
    near = expectation_bounds(phi, x)
    gaussian = Near(covariance[None, None], torch.zeros_like(covariance)[None, None])
    signal, _ = activated(phi, x, near, planes(phi, x, near), joint=lambda: gaussian)
    assert signal.joint is not None
    return signal.joint


@pytest.mark.parametrize("rho", [-1.0, -0.9, -0.3, 0.0, 1e-6, 0.5, 0.99, 1.0])
def test_rectified_values_without_means_have_a_closed_form(rho: float) -> None:
    """E (X)_+ (Y)_+ = r t (sqrt(1 - rho^2) + rho (pi - arccos rho)) / (2 pi)."""
    r, t = 0.7, 1.9
    covariance = torch.tensor([[r * r, rho * r * t], [rho * r * t, t * t]], dtype=F64)
    joint = joint_at("relu", torch.zeros(2, dtype=F64), covariance)
    kernel = (math.sqrt(1 - rho * rho) + rho * (math.pi - math.acos(rho))) / (2 * math.pi)
    truth = r * t * (kernel - 1 / (2 * math.pi))
    assert within(
        Near(joint.covariance.value[0, 0, 0, 1], joint.covariance.off[0, 0, 0, 1]), torch.tensor(truth), 1e-12
    )
    left = abs(truth - 0.25 * rho * r * t - 0.5 * (rho * r * t) ** 2 / (2 * math.pi * r * t))
    assert left <= float(joint.cubic[0, 0, 0, 1]) + 1e-12
    assert abs(float(truth_of("relu", torch.zeros(2, dtype=F64), covariance).covariance[0, 1]) - truth) < 1e-8


@pytest.mark.parametrize("act", slow_but(ACTS, *FAST))
@pytest.mark.parametrize("scale", [1e-6, 0.3, 3.0])
def test_vectors_of_any_size_hold_at_points(act: str, scale: float) -> None:
    """Also dead neurons, saturated ones, and some without variance."""
    for seed in range(2):
        m = torch.cat([records.normal(3, seed=seed), torch.tensor([-6.0, 5.0, 0.0, 0.7], dtype=F64)])
        factor = scale * records.normal(7, 3, seed=seed + 10)
        factor[5:] = 0.0
        covariance = factor @ factor.mT
        truth = truth_of(act, m, covariance)
        joint = joint_at(act, m, covariance)
        check(joint, truth, covariance, 1e-9 * max(1.0, scale**2))
        assert not bool(joint.covariance.off.isnan().any())
        assert bool(joint.row_deviation(torch.ones(1, 1, 7, dtype=F64)).isfinite().all())


def test_a_narrow_correlation_leaves_little() -> None:
    """What is known grows with the cube of the correlation: of a hundredth, six digits."""
    covariance = torch.tensor([[1.0, 0.01], [0.01, 1.0]], dtype=F64)
    for act in ("relu", "tanh", "gelu"):
        joint = joint_at(act, torch.tensor([0.2, -0.4], dtype=F64), covariance)
        assert float(joint.covariance.off[0, 0, 0, 1]) < 2e-6


def test_sums_of_identities_are_exact() -> None:
    covariance = torch.cov(records.normal(4, 9, seed=1))
    joint = joint_at("identity", records.normal(4, seed=2), covariance)
    rows = records.normal(1, 3, 4, seed=3)
    truth = torch.einsum("rj,jk,rk->r", rows[0], covariance, rows[0])
    assert torch.allclose(joint.form(joint.covariance, rows).value[0], truth, rtol=1e-7)
    assert torch.allclose(joint.row_deviation(rows)[0].square(), truth, rtol=1e-4)


def test_products_of_ranges() -> None:
    a, b = (Near(records.normal(50, seed=i), records.uniform(50, seed=i + 5)) for i in (1, 2))
    found = a.times(b)
    for s in (-1, 0.3, 1):
        for t in (-1, -0.6, 1):
            assert within(found, (a.value + s * a.off) * (b.value + t * b.off), 0.0)
    unknown = Near(a.value, torch.full_like(a.off, torch.inf)).times(Near.zero(a.value))
    assert float(unknown.off.max()) == 0  # an unknown derivative times no width


def test_unknown_covariances_are_no_bound() -> None:
    """NaN says nothing: sums with it are infinite."""
    covariance = torch.eye(2, dtype=F64)
    joint = joint_at("relu", torch.zeros(2, dtype=F64), covariance)
    bad = Near(joint.covariance.value, torch.full_like(joint.covariance.off, torch.nan))
    assert float(joint.form(bad, torch.ones(1, 1, 2, dtype=F64)).off) == math.inf


@pytest.mark.parametrize("name", ["rows", "matrix normal", "low rank"])
def test_means_of_forms_hold(name: str) -> None:
    """E s of a layer that couples its weights, above values with a shared noise."""
    first, x = shared(4, 3, 7, 0.3), records.normal(3, seed=4)
    layer = records.RANDOM[name][0]
    for radius in (0.0, 0.1):
        z = node_of(first, (3,), "relu", x, radius).signal
        found = weights_of(layer, (4,)).mean_spread(z)
        for at in points(ball(x, radius), 5, 1):
            truth = truth_of("relu", *records.law(first, at))
            spread = records.law(layer, truth.mean)[1].diagonal()
            values, vectors = torch.linalg.eigh(truth.covariance)
            for step in (vectors * values.clamp_min(0).sqrt()).mT:
                ends = [records.law(layer, truth.mean + sign * step)[1].diagonal() for sign in (-1, 1)]
                spread = spread + 0.5 * (ends[0] + ends[1]) - records.law(layer, truth.mean)[1].diagonal()
            assert holds(found, spread, 1e-8)


def test_covariances_are_lost_with_what_changes_the_values() -> None:
    """Independent rows have none, nor do large layers, nor signals that other nodes make of them."""
    independent = BayesianNetwork((records.linear(3, 2, 1), Relu(), Linear.fixed(torch.ones(1, 3, dtype=F64))))
    assert MomentPass.of(independent, ball(records.normal(2, seed=1), 0.0)).hidden.nodes[1].signal.joint is None
    wide = CorrelatedLinear.low_rank(
        *(torch.ones(s, dtype=F64) for s in ((600, 1), (600, 1), (600,), (600,), (600, 2, 1)))
    )
    assert weights_of(wide, (1,)).joint(Interval(torch.ones(1, 1, dtype=F64), torch.ones(1, 1, dtype=F64))) is None
    layers = (shared(3, 2, 7, 0.3), Identity(), Relu(), Linear.fixed(torch.ones(1, 3, dtype=F64)))
    chain = MomentPass.of(BayesianNetwork(layers), ball(records.normal(2, seed=1), 0.0)).hidden.nodes
    assert all(node.signal.joint is None for node in chain[2:])


def test_a_convolution_without_variance_of_its_biases() -> None:
    """Correlations of one and of minus one within a channel."""
    kernel = torch.ones(2, 1, 1, 1, dtype=F64)
    layer = Conv2d(kernel, 0.5 * kernel, torch.zeros(2, dtype=F64), torch.zeros(2, dtype=F64))
    x = torch.tensor([1.0, -2.0, 0.0, 0.5], dtype=F64)
    joint = node_of(layer, (1, 2, 2), "relu", x, 0.0).signal.joint
    assert joint is not None
    m, covariance = records.law(layer, x.reshape(1, 2, 2))
    check(joint, truth_of("relu", m, covariance), covariance, 1e-7)
