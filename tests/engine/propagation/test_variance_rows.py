"""Rows of means and of variances, carried down to x, lie below the truth at every x of the box."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import records
from support.dice import Dice
from support.layer_networks import ACTS, activation
from tests.engine.cases import dropouts, outcomes
from tests.engine.explicit_laws import laws, of_gaussian
from tests.engine.laws.test_weights import KINDS, points
from tests.engine.sums.test_expansion import SETTINGS, random_case
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import Identity, Relu
from bnndp.engine.inequalities.expectation import expectation_bounds
from bnndp.engine.inequalities.second_moment import second_moment
from bnndp.engine.laws.weights import weights_of
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.nodes.activation import Activated
from bnndp.engine.nodes.bound import Bound
from bnndp.engine.nodes.weighted import Weighted
from bnndp.engine.planes.variance import variance_planes
from bnndp.engine.propagation.backward import lower_bound
from bnndp.engine.rows import DenseRows
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import CorrelatedLinear, Dropout, Linear
from bnndp.network import BayesianNetwork

F64 = torch.float64
FAST = tuple(act for act in ACTS if act != "piecewise_affine")


def _planes_hold(found: Any, m: Tensor, s: Tensor, low: Tensor, high: Tensor) -> None:  # truth within [low, high]
    below = found.lower_alpha * m + found.lower_beta * s + found.lower_offset
    above = found.upper_alpha * m + found.upper_beta * s + found.upper_offset
    assert not bool((below > high + 1e-12).any()), float((below - high).max())
    assert not bool((above < low - 1e-12).any()), float((low - above).max())


@pytest.mark.parametrize("act", slow_but(FAST, "relu", "tanh", "gelu", "hard_tanh"))
@pytest.mark.parametrize("width", [0.0, 1e-6, 0.1, 3.0])
def test_planes_of_variances_hold_on_rectangles(act: str, width: float) -> None:
    phi, dice, count = activation(act), Dice(4), 400
    m, s = 6 * dice.uniform(shape=(count, 1)) - 3, 10 ** (5 * dice.uniform(shape=(count, 1)) - 4)
    s[:50] = 0.0
    mean = Interval(m, m + width * dice.uniform(shape=(count, 1)))
    spread = Interval(
        s, s * (1 + width * dice.uniform(shape=(count, 1))) + 0.1 * width * dice.uniform(shape=(count, 1))
    )
    x = of_gaussian(mean, spread)
    found = variance_planes(phi, x, expectation_bounds(phi, x), Interval(0 * m, 0 * m + 1e6))
    share_m, share_s = dice.uniform(shape=(count, 30)), dice.uniform(shape=(count, 30))
    share_m[:, :4] = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=F64)
    share_s[:, :4] = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=F64)
    at_m = mean.lower + share_m * (mean.upper - mean.lower)
    at_s = (spread.lower + share_s * (spread.upper - spread.lower)).minimum(spread.upper)
    truth = phi.central(at_m, at_s.sqrt()).variance
    _planes_hold(found, at_m, at_s, truth.lower, truth.upper)


@pytest.mark.parametrize("act", ["relu", "tanh", "hard_tanh"])
def test_planes_of_variances_hold_on_wide_ranges_of_the_mean(act: str) -> None:
    phi, dice, count = activation(act), Dice(5), 400
    m, s = 4 * dice.uniform(shape=(count, 1)) - 3, 10 ** (-3 * dice.uniform(shape=(count, 1)))
    mean = Interval(m, m + 3 * dice.uniform(shape=(count, 1)))
    x = of_gaussian(mean, Interval(s, s * (1 + 1e-9)))
    found = variance_planes(phi, x, expectation_bounds(phi, x), Interval(0 * m, 0 * m + 1e6))
    at_m = mean.lower + torch.linspace(0, 1, 60, dtype=F64) * (mean.upper - mean.lower)
    truth = phi.central(at_m, s.sqrt().expand_as(at_m)).variance
    _planes_hold(found, at_m, s, truth.lower, truth.upper)


@pytest.mark.parametrize("act", slow_but(FAST, "relu", "tanh", "softplus"))
@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_planes_of_variances_hold_for_sums(act: str, setting: int) -> None:
    """With known cumulants means are off by known amounts, of either sign."""
    phi = activation(act)
    for n_in in (1, 3):
        law = random_case(10 * setting + n_in, n_in, **SETTINGS[setting])
        zero = torch.zeros_like(law.pre.central)
        found = variance_planes(phi, law.pre, expectation_bounds(phi, law.pre), Interval(zero, zero + 1e6))
        at, mean = second_moment(phi, law.m, law.s.sqrt()), law.mean(law.m)
        low, high = (law.mean(end) - law.truth(phi) ** 2 for end in (at.lower, at.upper))
        _planes_hold(found, mean, law.mean(law.s) + law.mean((law.m - mean).square()), low - 1e-12, high + 1e-12)


@pytest.mark.parametrize("act", slow_but(FAST, "relu", "tanh", "softplus"))
@pytest.mark.parametrize("wide", [0.0, 0.3])
def test_planes_of_variances_hold_for_explicit_laws(act: str, wide: float) -> None:
    phi = activation(act)
    for seed, source in enumerate((True, False)):
        law = laws(400, seed, source=source, scale=0.7, wide=wide, fluctuation=0.3)
        near = expectation_bounds(phi, law.pre)
        zero = torch.zeros_like(law.pre.central)
        found = variance_planes(phi, law.pre, near, Interval(zero, zero + 1e6))
        at = second_moment(phi, law.m, law.s.sqrt())
        mean = law.mean(phi.mean(law.m, law.s.sqrt()))
        low, high = (law.mean(end) - mean.square() for end in (at.lower, at.upper))
        _planes_hold(found, law.mean(law.m), law.mean(law.s) + law.noise, low - 1e-9, high + 1e-9)


def _first(n: int) -> Linear:
    """From three inputs."""
    mean, std = records.normal(n, 3, seed=1), records.uniform(n, 3, seed=2)
    return Linear(mean, std, records.normal(n, seed=3), records.uniform(n, seed=4))


def _holds_at(bound: Bound, x: Tensor, truth: Tensor) -> None:  # (n,), (rows,)
    assert bound.variances is None
    found = bound.rows.dense().values[0] @ x + bound.constant[0]
    assert not bool((found > truth + 1e-11 * (1 + truth.abs())).any()), float((found - truth).max())


@pytest.mark.parametrize("act", ["relu", "tanh"])
@pytest.mark.parametrize("radius", [0.0, 0.05, 0.5])
def test_rows_of_variances_against_all_masks(act: str, radius: float) -> None:
    for index, (name, network) in enumerate(dropouts(act, 0.3).items()):
        n = math.prod(network.shapes[0])
        centre = records.normal(1, n, seed=20 + index)
        box = Box.ball(centre, radius)
        chain = MomentPass.of(network, box).hidden.nodes
        for k in range(1, len(chain)):
            size = chain[k].mean.lower.shape[-1]
            rows, variances = (DenseRows(records.normal(1, 6, size, seed=s)) for s in (30, 31))
            bound = lower_bound(chain[: k + 1], Bound(rows, torch.zeros(1, 6, dtype=F64), variances))
            for x in points(box, 12, index):
                chance, values = outcomes(network, x)
                z = values[_place(network, k)]
                mean = chance @ z
                variance = chance @ (z - mean).square()
                truth = rows.values[0] @ mean + variances.values[0] @ variance
                _holds_at(bound, x, truth)
        assert name


def _place(network: BayesianNetwork, k: int) -> int:
    """Index of the layer after which the k-th node of a chain stands."""
    kinds = [layer.kind for layer in network.layers]
    weighted = {"linear", "conv2d"}
    places = [i for i, kind in enumerate(kinds) if kind not in weighted and kind != "flatten"]
    return places[k - 1]


@pytest.mark.parametrize("radius", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("name", [name for name, (_, shape) in KINDS.items() if len(shape) == 1])
def test_total_variances_of_all_posteriors_hold_on_boxes(name: str, radius: float) -> None:
    """Of a Gaussian z with independent coordinates: E s is that at E z plus what each coordinate adds."""
    layer, shape = KINDS[name]
    n = shape[0]
    first = _first(n)
    network = BayesianNetwork((first, Relu(), Linear.fixed(torch.ones(1, n, dtype=F64))))
    box = Box.ball(records.normal(1, 3, seed=5), radius)
    chain = MomentPass.of(network, box).hidden.nodes
    weights, below = weights_of(layer, shape), chain[1]
    weighted = Weighted(weights, below, weights.power(below.mean.magnitude, 1) + weights.bias.abs())
    rows, beta = records.normal(1, 6, weights.n_out, seed=8), records.normal(1, 6, weights.n_out, seed=9)
    bound = lower_bound(chain, weighted.lower(DenseRows(rows), DenseRows(beta), torch.zeros(1, 6, dtype=F64)))
    relu = Relu()
    for x in points(box, 20, 0):
        m, s = first.weight_mean @ x + first.bias_mean, first.weight_std**2 @ x**2 + first.bias_std**2
        mean, central = relu.mean(m, s.sqrt()), relu.central(m, s.sqrt()).variance.upper
        at, covariance = records.law(layer, mean)
        spread = covariance.diagonal()
        for j in range(n):
            step = torch.zeros(n, dtype=F64)
            step[j] = central[j].sqrt()
            ends = [records.law(layer, mean + sign * step)[1].diagonal() for sign in (-1, 1)]
            spread = spread + 0.5 * (ends[0] + ends[1]) - covariance.diagonal()
        noise = layer.weight_mean.square() @ central
        _holds_at(bound, x, rows[0] @ at + beta[0] @ (spread + noise))


@pytest.mark.parametrize("radius", [0.0, 0.3])
@pytest.mark.parametrize("name", ["weakly coupled", *(name for name, (_, shape) in KINDS.items() if len(shape) == 1)])
def test_total_variances_behind_a_shared_noise_hold_on_boxes(name: str, radius: float) -> None:
    """Of a Gaussian z with any covariance: nothing is independent, and N is the variance of the mean."""
    weak = torch.eye(4, dtype=F64) + 0.05
    coupled = CorrelatedLinear.rows(records.normal(2, 3, seed=1), records.normal(2, seed=2), weak.expand(2, 4, 4))
    layer, shape = (coupled, (3,)) if name == "weakly coupled" else KINDS[name]
    n = shape[0]
    first = CorrelatedLinear(
        records.normal(n, 3, seed=1),
        0.3 * records.uniform(n, 3, seed=2),
        records.normal(n, seed=3),
        records.uniform(n, seed=4),
        records.normal(n, 4, 2, seed=6),
        shared=True,
    )
    network = BayesianNetwork((first, Identity(), Linear.fixed(torch.ones(1, n, dtype=F64))))
    box = Box.ball(records.normal(1, 3, seed=5), radius)
    chain = MomentPass.of(network, box).hidden.nodes
    weights, below = weights_of(layer, shape), chain[1]
    assert not below.signal.source
    weighted = Weighted(weights, below, weights.power(below.mean.magnitude, 1) + weights.bias.abs())
    beta = records.normal(1, 6, weights.n_out, seed=9)
    beta[:, 0], beta[:, 1] = beta[:, 0].abs(), -beta[:, 1].abs()
    rows = DenseRows(0 * beta)
    bound = lower_bound(chain, weighted.lower(rows, DenseRows(beta), torch.zeros(1, 6, dtype=F64)))
    for x in points(box, 20, 0):
        mean, covariance = records.law(first, x)
        at = records.law(layer, mean)[1].diagonal()
        spread = at
        for step in torch.linalg.cholesky(covariance).mT:
            ends = [records.law(layer, mean + sign * step)[1].diagonal() for sign in (-1, 1)]
            spread = spread + 0.5 * (ends[0] + ends[1]) - at
        mu = weights.pull(DenseRows(torch.eye(weights.n_out, dtype=F64)[None])).dense().values[0]
        _holds_at(bound, x, beta[0] @ (spread + ((mu @ covariance) * mu).sum(-1)))


@pytest.mark.parametrize("radius", [0.0, 0.2])
def test_variances_behind_dropout_of_random_values_hold(radius: float) -> None:
    first = _first(5)
    network = BayesianNetwork((first, Identity(), Dropout(0.3), Linear.fixed(torch.ones(1, 5, dtype=F64))))
    box = Box.ball(records.normal(1, 3, seed=5), radius)
    chain = MomentPass.of(network, box).hidden.nodes
    variances = torch.cat([torch.eye(5, dtype=F64), -torch.eye(5, dtype=F64)])[None]
    bound = lower_bound(chain, Bound(DenseRows(0 * variances), torch.zeros(1, 10, dtype=F64), DenseRows(variances)))
    for x in points(box, 20, 0):
        mean, s = first.weight_mean @ x + first.bias_mean, first.weight_std**2 @ x**2 + first.bias_std**2
        truth = variances[0] @ (s / 0.7 + mean.square() * 0.3 / 0.7)
        _holds_at(bound, x, truth)
        if radius == 0:
            found = bound.rows.dense().values[0] @ x + bound.constant[0]
            assert torch.allclose(found, truth, rtol=1e-6)


@pytest.mark.parametrize("act", ["relu", "tanh"])
def test_a_point_loses_nothing_behind_one_layer(act: str) -> None:
    first = _first(5)
    network = BayesianNetwork((first, activation(act), Linear.fixed(torch.ones(1, 5, dtype=F64))))
    x = records.normal(1, 3, seed=5)
    chain = MomentPass.of(network, Box(x, x)).hidden.nodes
    node = chain[1]
    assert isinstance(node, Activated)
    rows = DenseRows(torch.eye(5, dtype=F64)[None])
    zero = torch.zeros(1, 5, dtype=F64)
    ends = []
    for sign in (1, -1):
        bound = lower_bound(chain, Bound(DenseRows(0 * rows.values), zero, DenseRows(sign * rows.values)))
        ends.append(sign * (bound.rows.dense().values[0] @ x[0] + bound.constant[0]))
    m, s = first.weight_mean @ x[0] + first.bias_mean, first.weight_std**2 @ x[0] ** 2 + first.bias_std**2
    truth = activation(act).central(m, s.sqrt()).variance
    assert torch.allclose(ends[0], truth.lower, rtol=1e-6)
    assert torch.allclose(ends[1], truth.upper, rtol=1e-6)


@pytest.mark.parametrize("radius", [0.0, 0.05])
def test_the_smoothing_of_a_third_layer_against_draws(radius: float) -> None:
    """T = S + N of a layer whose inputs are independent only given those below: from rows of means and variances."""
    generator, draws, phi = torch.Generator().manual_seed(4), 40_000, Relu()

    def layer(n_out: int, n_in: int) -> Linear:
        mean, std = torch.randn(2, n_out, n_in, generator=generator, dtype=F64)
        return Linear(mean, 0.3 * std.abs(), torch.zeros(n_out, dtype=F64), torch.full((n_out,), 0.2, dtype=F64))

    one, two, last = layer(5, 2), layer(4, 5), layer(3, 4)
    x = torch.tensor([[0.4, -0.7]], dtype=F64)
    passed = MomentPass.of(BayesianNetwork((one, Relu(), two, Relu(), last)), Box.ball(x, radius)).hidden
    assert not passed.last.signal.source
    unit = torch.eye(3, dtype=F64)
    beta = torch.cat([unit, -unit, unit[:1] - unit[1:]])[None]
    found = passed.output.lower(DenseRows(0 * beta), DenseRows(beta), torch.zeros(1, beta.shape[1], dtype=F64))
    assert found.variances is not None
    for corner in torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=F64)] * 2):
        at = x + radius * corner
        xi = torch.randn(draws, 5, generator=generator, dtype=F64)
        y = phi(at @ one.weight_mean.mT + (at.square() @ one.weight_std.square().mT + 0.04).sqrt() * xi)
        m, r = y @ two.weight_mean.mT, (y.square() @ two.weight_std.square().mT + 0.04).sqrt()
        h, noise = phi.mean(m, r), phi.central(m, r).variance.upper
        mean, variance = h.mean(0), noise.mean(0) + h.var(0)
        spread = (mean.square() + variance) @ last.weight_std.square().mT + 0.04
        total = spread + noise.mean(0) @ last.weight_mean.square().mT
        bound = found.rows.dot(mean) + found.variances.dot(variance) + found.constant
        assert bool((bound[0] <= beta[0] @ total + 0.02 * beta[0].abs() @ total).all())
