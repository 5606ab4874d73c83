"""Means one layer above jointly Gaussian values, against dense grids of two noises and draws, at points of boxes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support import records
from support.layer_networks import activation
from support.passes import ends, holds
from tests.engine.gaussian_truths import F64, ball, matrix_normal, outcomes, shared, slope_of, spreads, value_of
from tests.engine.laws.test_weights import points
from tests.engine.sums.test_expansion import Sine
from tests.marks import slow_but
from torch import Tensor

import bnndp.engine.laws.correlated as correlated_law
import bnndp.engine.laws.matrix_normal as matrix_law
from bnndp.activations import Identity, Relu
from bnndp.engine.inequalities import local_derivatives
from bnndp.engine.inequalities.expectation import _expanded
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.layers import Conv2d, CorrelatedLinear, Flatten, Linear
from bnndp.network import BayesianNetwork

FIRST = {
    "shared": shared(6, 3, 70, 0.25),
    "matrix normal": matrix_normal(6, 3, 80, 0.15),
    "one noise": matrix_normal(6, 3, 81, 0.2, rank=1),
    "strong": shared(6, 3, 72, 1.0),
}


def _weak(layer: Any, std: float) -> Any:
    """A second layer with smaller variances."""
    if isinstance(layer, CorrelatedLinear):
        parts = std * layer.weight_std, layer.bias_mean, std * layer.bias_std, std * layer.factor, layer.shared
        return CorrelatedLinear(layer.weight_mean, *parts)
    return Linear(layer.weight_mean, std * layer.weight_std, layer.bias_mean, std * layer.bias_std)


SECOND = {
    "linear": _weak(records.linear(4, 6, 90), 0.5),
    "rows": _weak(records.correlated(4, 6, 91, shared=False), 0.5),
    "matrix normal": matrix_normal(4, 6, 93, 0.1),
    "low rank": _weak(records.correlated(4, 6, 92, shared=True), 0.3),
    "biases": Linear.fixed(records.normal(4, 6, seed=4), records.normal(4, seed=5), 0.3 * records.uniform(4, seed=6)),
    "noisy": records.correlated(4, 6, 94, shared=False, std=1.0),
}
PAIRS = [(one, two) for one in FIRST for two in SECOND]
KEPT = [("shared", two) for two in ("linear", "rows", "matrix normal", "biases")] + [
    ("one noise", "linear"),
    ("strong", "noisy"),
]


@dataclass(frozen=True)
class Above:
    """Means and variances of what goes into the second activation at one x: weights (nodes,), others (nodes, n)."""

    weight: Tensor
    m: Tensor
    s: Tensor
    line: Tensor  # L

    def mean(self, values: Tensor) -> Tensor:
        return self.weight @ values


def above(first: Any, act: str, second: Any, x: Tensor) -> Above:
    mean, covariance = records.law(first, x)
    nodes, weight = outcomes(mean, covariance, 201 if float(covariance.diagonal().max()) < 2 else 401)
    m, s = spreads(second, value_of(act, nodes))
    line = ((nodes - mean) * (weight @ slope_of(act, nodes))) @ second.weight_mean.mT
    return Above(weight, m, s, line)


def pre_of(first: Any, act: str, second: Any, x: Tensor, radius: float) -> PreActivation:
    last = Linear.fixed(torch.ones(1, second.weight_mean.shape[0], dtype=F64))
    network = BayesianNetwork((first, activation(act), second, Identity(), last))
    node = MomentPass.of(network, ball(x, radius)).hidden.nodes[2]
    return node.pre  # type: ignore[attr-defined]


def check_pre(pre: PreActivation, at: Above, tolerance: float) -> None:
    """Moments of m and s."""
    mean, spread = at.mean(at.m), at.mean(at.s)
    noise, delta = at.mean((at.m - mean).square()), at.s - spread
    assert holds(pre.mean, mean, tolerance), "mean"
    assert holds(pre.spread, spread, tolerance), "spread"
    assert holds(pre.noise, noise, tolerance), "noise"
    assert holds(pre.smoothing, spread + noise, tolerance), "total"
    terms = pre.expansion
    assert terms is not None
    scale = spread.square() + tolerance
    for truth, claim, what in (
        (at.mean(delta.square()), terms.spread_variance, "variance of s"),
        (at.mean(delta**4), terms.spread_fourth, "fourth moment of s"),
        (at.mean(delta.clamp_max(0) ** 4), terms.spread_low, "lower side of s"),
        (at.mean(delta.square()), pre.spread_deviation.square(), "deviation of s"),
        (at.mean((at.m - mean) ** 4), pre.norms[..., 0] ** 4, "fourth norm of m"),
    ):
        assert bool((truth <= claim[0] * (1 + 1e-4) + 1e-6 * scale).all()), (what, truth, claim)


def check_mean(phi: Any, pre: PreActivation, at: Above, tolerance: float) -> Tensor:
    """The truth is within the errors of G(M, rho); gives the larger of both."""
    assert pre.expansion is not None
    found = _expanded(phi, pre, pre.expansion)
    mean, spread = at.mean(at.m), at.mean(at.s)
    rho = (spread + at.mean((at.m - mean).square())).sqrt()
    gap = at.mean(phi.mean(at.m, at.s.sqrt())) - phi.mean(mean, rho)
    assert bool((gap <= found.upper_error[0] + tolerance).all()), (gap, found.upper_error)
    assert bool((-gap <= found.lower_error[0] + tolerance).all()), (gap, found.lower_error)
    return torch.maximum(found.lower_error, found.upper_error)[0]


@pytest.mark.parametrize("radius", [0.0, 0.05])
@pytest.mark.parametrize("act", slow_but(["relu", "tanh", "gelu", "hard_tanh"], "relu", "tanh"))
@pytest.mark.parametrize(("one", "two"), slow_but(PAIRS, *KEPT))
def test_expansions_hold_on_boxes(one: str, two: str, act: str, radius: float) -> None:
    first, second, x = FIRST[one], SECOND[two], records.normal(3, seed=1)
    pre = pre_of(first, act, second, x, radius)
    tolerance = 5e-4 if one == "strong" else 2e-5  # of the grid, at kinks
    for where in points(ball(x, radius), 2 if radius else 1, 3):
        at = above(first, act, second, where)
        check_pre(pre, at, tolerance)
        for phi in (Sine(1.0), Sine(3.0), *(activation(name) for name in ("relu", "hard_tanh", "gelu"))):
            check_mean(phi, pre, at, tolerance)


@pytest.mark.parametrize("act", ["relu", "tanh", "gelu", "softplus"])
@pytest.mark.parametrize("two", ["linear", "rows", "biases"])
def test_third_cumulants_are_nearly_exact_at_points(two: str, act: str) -> None:
    """Three times E L^2 R + E L delta: R what is left of m, delta that of s."""
    first, second, x = shared(6, 3, 70, 0.02), SECOND[two], records.normal(3, seed=1)
    pre, at = pre_of(first, act, second, x, 0.0), above(first, act, second, x)
    mean, spread = at.mean(at.m), at.mean(at.s)
    rest = at.m - mean - at.line
    kappa = 3 * (at.mean(at.line.square() * rest) + at.mean(at.line * (at.s - spread)))
    assert pre.expansion is not None
    found = pre.expansion.series.third
    size = at.mean(at.line.square()) ** 1.5
    assert holds(found, kappa, 1e-3 * float(size.max()))
    if act != "relu" and two != "rows":  # of kinks that are near, and of products, more is lost
        assert bool(((found.upper - found.lower)[0] < 0.3 * kappa.abs() + 0.05 * size).all())


@pytest.mark.parametrize("act", ["tanh", "gelu"])
def test_errors_are_of_third_order(act: str) -> None:
    """Of noise by a tenth the errors fall by more than a hundredth, and by far more than what they bound."""
    x, second, sizes = records.normal(3, seed=1), SECOND["biases"], []
    for std in (0.1, 0.01):
        first = shared(6, 3, 70, std)
        pre = pre_of(first, act, second, x, 0.0)
        sizes.append(check_mean(Sine(1.0), pre, above(first, act, second, x), 1e-7))
    assert bool((sizes[1] < 2e-3 * sizes[0]).all())


@pytest.mark.parametrize("radius", [0.0, 0.1])
def test_convolutions_hold_in_groups(radius: float) -> None:
    """Two channels of one noise each, and a second layer that adds them."""
    first = Conv2d(
        records.normal(2, 1, 1, 1, seed=1), 0.4 * torch.ones(2, 1, 1, 1, dtype=F64), *(torch.zeros(2, 2, dtype=F64))
    )
    second, x = records.correlated(3, 6, 91, shared=False, std=0.2), records.normal(3, seed=3)
    last = Linear.fixed(torch.ones(1, 3, dtype=F64))
    layers = (first, Relu(), Flatten(), second, Identity(), last)
    chain = MomentPass.of(BayesianNetwork(layers, input_shape=(1, 1, 3)), ball(x, radius)).hidden.nodes
    pre = chain[2].pre  # type: ignore[attr-defined]
    for where in points(ball(x, radius), 3, 1):
        mean, covariance = records.law(first, where.reshape(1, 1, 3))
        nodes, weight = outcomes(mean, covariance)
        m, s = spreads(second, nodes.clamp_min(0))
        at = Above(weight, m, s, 0 * m)
        check_pre(pre, at, 2e-5)
        for phi in (Sine(2.0), activation("relu")):
            check_mean(phi, pre, at, 2e-5)


@pytest.mark.parametrize("two", ["rows", "matrix normal", "low rank"])
def test_couplings_that_are_not_formed_say_nothing(two: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then products of two values in s are not known, so neither is there an expansion nor a noise."""
    for law in (correlated_law, matrix_law):
        monkeypatch.setattr(law, "LARGEST", 1)
    first, second, x = FIRST["shared"], SECOND[two], records.normal(3, seed=1)
    pre, at = pre_of(first, "relu", second, x, 0.0), above(first, "relu", second, x)
    assert pre.expansion is None
    mean, spread = at.mean(at.m), at.mean(at.s)
    assert float(pre.noise.upper.max()) < 1e-50
    assert holds(pre.spread, spread, 1e-5)
    assert bool((at.mean((at.m - mean).square()) <= pre.central[0] * 1.0001).all())
    assert bool((at.mean((at.s - spread).square()) <= pre.spread_deviation[0].square() * 1.0001).all())
    network = BayesianNetwork((first, Relu(), second, Relu(), Linear.fixed(torch.eye(4, dtype=F64))))
    bounds = MomentPass.of(network, ball(x, 0.0))
    assert holds(ends(bounds, 4), at.mean(activation("relu").mean(at.m, at.s.sqrt())), 1e-5)


def test_peaks_of_derivatives() -> None:
    """|He_(p-2)(u)| exp(-u^2/4) / sqrt(2 pi)."""
    u = torch.linspace(-12, 12, 200_001, dtype=F64)
    before, now = torch.zeros_like(u), torch.ones_like(u)
    for p in range(2, 9):
        peak = float((now.abs() * torch.exp(-0.25 * u * u)).max()) / math.sqrt(2 * math.pi)
        assert peak <= local_derivatives._PEAKS[p] <= peak * 1.0001
        before, now = now, u * now - (p - 2) * before


@pytest.mark.parametrize("act", ["relu", "leaky_relu", "hard_tanh"])
def test_derivatives_near_a_gaussian(act: str) -> None:
    """Norms of G_p(M + L, sqrt S) by autograd of G on a grid of L."""
    first, second, x = FIRST["shared"], SECOND["linear"], records.normal(3, seed=1)
    pre, phi = pre_of(first, "relu", second, x, 0.0), activation(act)
    v = pre.noise.upper
    xi = torch.linspace(-8, 8, 801, dtype=F64)
    weight = torch.exp(-0.5 * xi * xi)
    weight = weight / weight.sum()
    for share in (0.3, 1.0):
        m = (pre.mean.lower[0] + (share * v[0]).sqrt() * xi[:, None]).requires_grad_(True)
        value = phi.mean(m, pre.spread.upper[0].sqrt().expand_as(m))
        for p in range(1, 6):
            (value,) = torch.autograd.grad(value.sum(), m, create_graph=True)
            if p < 2:
                continue
            for norm in (2, 4):
                truth = (weight @ value.detach().abs() ** norm) ** (1 / norm)
                found = local_derivatives.local_norm(phi.shape, pre, v, p, norm)[0]
                assert bool((truth <= found * (1 + 1e-9)).all()), (p, norm)


@pytest.mark.parametrize("act", ["relu", "tanh", "hard_tanh"])
@pytest.mark.parametrize(("one", "two"), [("shared", "rows"), ("strong", "linear"), ("strong", "matrix normal")])
def test_linear_parts_of_s_and_what_a_line_leaves(one: str, two: str, act: str) -> None:
    """E (G_2(m) - G_2(M + L)) H / 2 for a sine, H the part of degree one of s; and the deviations of both parts."""
    first, second, x = FIRST[one], SECOND[two], records.normal(3, seed=1)
    pre, at = pre_of(first, act, second, x, 0.0), above(first, act, second, x)
    mean, covariance = records.law(first, x)
    nodes, _ = outcomes(mean, covariance, 201 if float(covariance.diagonal().max()) < 2 else 401)
    delta = at.s - at.mean(at.s)
    load = torch.einsum("p,po,pj->oj", at.weight, delta, nodes - mean)
    linear = (nodes - mean) @ (load @ torch.linalg.pinv(covariance, rtol=1e-9)).mT
    assert pre.expansion is not None
    local = pre.expansion.series.local
    assert local is not None
    straight, plain = local.parts[2]
    curved = local.parts[1][1][3, 0]
    rest = at.m - at.mean(at.m) - at.line
    sd = at.mean(rest.square()).sqrt()
    assert bool((0.5 * sd * at.mean(linear.square()).sqrt() <= plain[3, 0][0] * (1 + 1e-3) + 1e-5).all())
    assert bool((0.5 * sd * at.mean((delta - linear).square()).sqrt() <= curved[0] * (1 + 1e-3) + 1e-5).all())
    spread, middle = at.mean(at.s), at.mean(at.m)
    for rate in (0.3, 1.0, 2.0, 4.0):
        for turn in (0.0, 1.0, 2.0):
            smooth = torch.exp(-0.5 * rate**2 * spread)
            moved = torch.sin(rate * at.m + turn) - torch.sin(rate * (middle + at.line) + turn)
            truth = 0.5 * rate**2 * smooth * at.mean(moved * linear).abs()
            claim = sum(rate**p * smooth * factor[0] for (p, _), factor in straight.items())
            assert bool((truth <= claim * (1 + 1e-3) + 2e-5 * rate**2).all()), (rate, turn)
