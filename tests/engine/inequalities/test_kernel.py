"""Klaassen's kernel of a source, and what it says of rows: quadrature over one, two and three Gaussian sources."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from support.dice import Dice
from support.layer_networks import ACTS, activation
from support.quadrature import density
from tests.engine.explicit_laws import of_gaussian
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import Identity, Relu
from bnndp.activations.activation import Activation
from bnndp.engine.inequalities.efron_stein import MeanSlopes, conditional_mean_std
from bnndp.engine.inequalities.expectation import expectation_bounds
from bnndp.engine.laws.weights import weights_of
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.moments.signal import Signal
from bnndp.engine.nodes.activation import Activated
from bnndp.engine.nodes.activation_moments import activated
from bnndp.engine.planes.mean import planes
from bnndp.engine.propagation.forward import activations_of
from bnndp.engine.rows import DenseRows
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

F64 = torch.float64
FAST = [act for act in ACTS if act not in ("piecewise_affine", "identity")]
MEANS, DEVIATIONS = (-6.0, -3.0, -1.0, -0.3, 0.0, 0.2, 1.0, 2.5, 8.0), (1e-3, 0.1, 1.0, 5.0, 300.0)


def source(phi: Activation, m: Interval, r: Interval) -> Signal:
    """The signal after an activation of Gaussian values with these means and deviations, (batch, n) each."""
    x = of_gaussian(m, Interval(r.lower.square(), r.upper.square()))
    near = expectation_bounds(phi, x)
    return activated(phi, x, near, planes(phi, x, near))[0]


def exactly(value: Tensor) -> Interval:
    return Interval(value, value)


# Of one source


@dataclass(frozen=True)
class Kernel:
    """At points of a grid of the Gaussian: chances, z, and tau = phi' H / p as it is defined."""

    chance: Tensor
    z: Tensor
    tau: Tensor

    def mean(self, values: Tensor) -> float:
        return float(self.chance @ values)

    def variance(self, values: Tensor) -> float:
        return self.mean((values - self.mean(values)).square())


def kernel_of(phi: Activation, m: float, r: float) -> Kernel:
    """By sums over a fine grid, the kinks among its points."""
    kinks = [(k - m) / r for k, _ in phi.shape.kinks if abs(k - m) < 9 * r]
    ends = [-9.0, *sorted(kinks), 9.0]
    points = [torch.linspace(a, b, 3 + int((b - a) * 3000), dtype=F64) for a, b in pairwise(ends)]
    xi = torch.cat([0.5 * (part[1:] + part[:-1]) for part in points])  # midpoints
    width = torch.cat([part.diff() for part in points])
    chance = width * density(xi)
    z = phi(m + r * xi)
    mean = float(chance @ z)
    terms = chance * (z - mean)
    above, below = (side - 0.5 * terms for side in (terms.flip(0).cumsum(0).flip(0), terms.cumsum(0)))
    inside = torch.where(z > mean, above, -below)  # Cov(phi(zeta), 1[zeta > s]) at the midpoints, of terms of one sign
    t = (m + r * xi).requires_grad_()
    (slope,) = torch.autograd.grad(phi(t).sum(), t)
    return Kernel(chance, z, slope * inside * r / density(xi))


# Functions of z in units of its deviation around its mean, and their derivatives.
FUNCTIONS = {
    "line": (lambda u: u, torch.ones_like),
    "square": (lambda u: u.square(), lambda u: 2 * u),
    "rectifier": (lambda u: (u - 0.3).clamp_min(0), lambda u: (u > 0.3).double()),
    "other rectifier": (lambda u: (-0.5 - u).clamp_min(0), lambda u: -(u < -0.5).double()),
    "size": (lambda u: (u - 0.1).abs(), lambda u: (u - 0.1).sign()),
    "sine": (lambda u: torch.sin(3 * u), lambda u: 3 * torch.cos(3 * u)),
    "logistic": (lambda u: torch.sigmoid(8 * u), lambda u: 8 * torch.sigmoid(8 * u) * torch.sigmoid(-8 * u)),
}


@pytest.mark.parametrize("act", slow_but(FAST, "relu", "leaky_relu", "tanh", "sigmoid", "softplus", "hard_tanh"))
def test_the_kernel_bounds_variances(act: str) -> None:
    """Var f(z) <= E tau f'(z)^2, E tau = Var z and 0 <= tau <= L^2 r^2; with r^2 phi'^2 where phi turns around."""
    phi = activation(act)
    rising = not phi.shape.slopes[0] < 0 < phi.shape.slopes[1]
    for m in MEANS:
        for r in DEVIATIONS:
            found = kernel_of(phi, m, r)
            variance, top = found.variance(found.z), (phi.shape.steepest * r) ** 2
            if variance < 1e-4 * top:  # too few points of the grid count
                continue
            if rising:
                assert found.mean(found.tau) == pytest.approx(variance, rel=1e-5)
                assert float(found.tau.min()) >= -1e-5 * top
                assert float(found.tau[(found.chance > 1e-12)].max()) <= top * (1 + 1e-5)
            else:
                assert float(found.mean(found.tau)) == pytest.approx(variance, rel=1e-5)  # but tau may be negative
                found = replace(found, tau=torch.full_like(found.tau, top))
            u = (found.z - found.mean(found.z)) / math.sqrt(variance)
            for name, (f, slope) in FUNCTIONS.items():
                bound = found.mean(found.tau * slope(u).square()) / variance
                assert found.variance(f(u)) <= bound * (1 + 1e-4), (name, m, r)


@pytest.mark.parametrize(
    "act", slow_but(FAST, "relu", "leaky_relu", "tanh", "sigmoid", "softplus", "hard_tanh", "gelu")
)
@pytest.mark.parametrize("wide", [0.0, 0.5])
def test_what_is_known_of_the_kernel(act: str, wide: float) -> None:
    """Mean and deviation at every (m, r) of a range: the centre and the ends."""
    phi = activation(act)
    m, r = (
        grid.reshape(1, -1)
        for grid in torch.meshgrid(*(torch.tensor(t, dtype=F64) for t in (MEANS, DEVIATIONS)), indexing="ij")
    )
    low, high = Interval(m - wide * r, m + wide * r), Interval(r * (1 - wide), r * (1 + wide))
    known = source(phi, low, high).kernel
    assert known is not None
    rising = not phi.shape.slopes[0] < 0 < phi.shape.slopes[1]
    for i in range(m.shape[1]):
        top = (phi.shape.steepest * high.upper[0, i].item()) ** 2
        for a in {low.lower[0, i].item(), m[0, i].item(), low.upper[0, i].item()}:
            for b in {high.lower[0, i].item(), high.upper[0, i].item()}:
                truth = kernel_of(phi, a, b)
                if not rising:
                    assert known.mean[0, i] >= (phi.shape.steepest * b) ** 2 * (1 - 1e-12)
                    continue
                assert truth.mean(truth.tau) <= known.mean[0, i].item() * (1 + 1e-5) + 1e-9 * top
                assert math.sqrt(truth.variance(truth.tau)) <= known.std[0, i].item() * (1 + 1e-5) + 1e-6 * top


def test_a_source_without_variance_has_a_kernel_of_zero() -> None:
    m, zero = torch.tensor([[-1.0, 0.0, 2.0]], dtype=F64), torch.zeros(1, 3, dtype=F64)
    known = source(Relu(), exactly(m), exactly(zero)).kernel
    assert known is not None
    assert not known.mean.any()
    assert not known.std.any()


# Rows by derivatives, one part at a time: slopes are made up, so that nothing else counts


def by_derivatives(
    z: Signal, mean: Tensor, rows: Tensor, *, slope: float = 0.0, norm4: float = 0.0, spread: float = 0.0
) -> Tensor:
    """The bound for a layer of these mean weights whose activations have made up slopes: (rows,)."""
    n = mean.shape[0]
    zero, unknown = torch.zeros(1, n, dtype=F64), torch.full((1, n), torch.inf, dtype=F64)
    slopes = MeanSlopes(zero + slope, unknown, unknown, zero + norm4, *(unknown,) * 3, zero + spread, zero)
    layer = Linear(mean, torch.full_like(mean, 0.1) if spread else 0 * mean, 0 * mean[:, 0], 0 * mean[:, 0])
    return conditional_mean_std(slopes, weights_of(layer, (mean.shape[1],)), DenseRows(rows[None]), z)[0]


def test_sources_that_are_gaussian_lose_nothing() -> None:
    """tau is a constant: with a slope that is off by 0.3 all of 0.3 m counts, neurons with their correlations."""
    m, r = torch.tensor([[30.0, 40.0, 50.0]], dtype=F64), torch.tensor([[0.7, 1.3, 0.2]], dtype=F64)
    mean = Dice(1).normal(4, 3).abs()
    rows = torch.cat([torch.eye(4, dtype=F64), torch.ones(1, 4, dtype=F64)])
    found = by_derivatives(source(Relu(), exactly(m), exactly(r)), mean, rows, norm4=0.3)
    truth = 0.3 * torch.linalg.vector_norm((rows @ mean) * r, dim=-1)
    assert bool((found >= truth * (1 - 1e-12)).all())
    assert torch.allclose(found, truth, rtol=1e-4)


def test_neurons_that_cancel_count_by_their_sizes() -> None:
    """Errors of slopes have signs of their own."""
    m, r = torch.full((1, 2), 30.0, dtype=F64), torch.ones(1, 2, dtype=F64)
    mean, rows = torch.ones(2, 2, dtype=F64), torch.tensor([[1.0, -1.0]], dtype=F64)
    found = by_derivatives(source(Relu(), exactly(m), exactly(r)), mean, rows, norm4=0.3)
    assert found.item() >= 0.3 * 2 * math.sqrt(2) * (1 - 1e-12)


@pytest.mark.parametrize("level", [-0.5, -1.5, -2.5, -3.5])
def test_slopes_that_are_off_exactly_where_the_kernel_is_large(level: float) -> None:
    """A rare source wakes a neuron: g' - p is one where tau is not zero. Nothing but the deviation of tau covers it."""
    one = torch.ones(1, 1, dtype=F64)
    z = source(Relu(), exactly(level * one), exactly(one))
    truth = kernel_of(Relu(), level, 1.0)
    awake = 0.5 * math.erfc(-level / math.sqrt(2))
    found = by_derivatives(z, one, one, norm4=awake**0.25).item()
    assert math.sqrt(truth.variance(truth.z)) <= found * (1 + 1e-6)
    assert z.kernel is not None
    alone = by_derivatives(replace(z, kernel=replace(z.kernel, std=0 * one)), one, one, norm4=awake**0.25)
    assert alone.item() < 0.9 * math.sqrt(truth.variance(truth.z))


def test_what_is_left_is_a_sum_of_independent_terms() -> None:
    """Lines and squares of each source: exact for lines; d^2 by its fourth moment, sqrt(3) for sqrt(2)."""
    m, r = torch.tensor([[0.0, 0.0, 0.0]], dtype=F64), torch.tensor([[0.7, 1.3, 0.2]], dtype=F64)
    z, mean = source(Identity(), exactly(m), exactly(r)), Dice(2).normal(4, 3)
    rows = torch.cat([torch.eye(4, dtype=F64), torch.ones(1, 4, dtype=F64), torch.tensor([[1.0, -1, 1, -1]])])
    lines = by_derivatives(z, mean, rows, slope=0.8)
    truth = 0.8 * torch.linalg.vector_norm((rows @ mean) * r, dim=-1)
    assert bool((lines >= truth * (1 - 1e-12)).all())
    assert torch.allclose(lines, truth, rtol=1e-6)
    squares = by_derivatives(z, 0 * mean, rows, spread=0.5)
    truth = 0.5 * 0.01 * rows.sum(-1).abs() * torch.linalg.vector_norm(math.sqrt(2) * r.square())
    assert bool((squares >= truth * (1 - 1e-12)).all())
    assert bool((squares <= 1.3 * truth + 1e-9).all())
    both = by_derivatives(source(Identity(), exactly(m + 2), exactly(r)), mean, rows, slope=0.8, spread=0.5)
    slopes = 0.8 * rows @ mean + 0.5 * 0.01 * rows.sum(-1, keepdim=True) * 2 * 2
    curved = 0.5 * 0.01 * rows.sum(-1, keepdim=True) * math.sqrt(2) * r.square()
    truth = (slopes.square() * r.square() + curved.square()).sum(-1).sqrt()
    assert bool((both >= truth * (1 - 1e-12)).all())


# Rows of networks, by tensor quadrature


@dataclass(frozen=True)
class Sources:
    """A first layer of two or three neurons of one input, on a box."""

    layer: Linear
    phi: Activation
    box: Box

    def law(self, x: float, panels: int) -> tuple[Tensor, Tensor]:
        """Nodes (nodes, n) and weights (nodes,) of its outputs at x."""
        m = self.layer.weight_mean[:, 0] * x + self.layer.bias_mean
        r = ((self.layer.weight_std[:, 0] * x) ** 2 + self.layer.bias_std**2).sqrt()
        laws = [one_law(self.phi, a, b, panels) for a, b in zip(m.tolist(), r.tolist(), strict=True)]
        z = torch.cartesian_prod(*(law[0] for law in laws)).reshape(-1, len(laws))
        return z, torch.cartesian_prod(*(law[1] for law in laws)).reshape(-1, len(laws)).prod(-1)


def one_law(phi: Activation, m: float, r: float, panels: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of phi(N(m, r^2)): midpoints of equal panels on each side of every kink."""
    if r == 0:
        return phi(torch.tensor([m], dtype=F64)), torch.ones(1, dtype=F64)
    ends = [-8.5, *sorted((k - m) / r for k, _ in phi.shape.kinks if abs(k - m) < 8 * r), 8.5]
    parts = [torch.linspace(a, b, 2 + int(panels * (b - a) / 17), dtype=F64) for a, b in pairwise(ends)]
    xi, width = (torch.cat(t) for t in ([0.5 * (p[1:] + p[:-1]) for p in parts], [p.diff() for p in parts]))
    chance = width * density(xi)
    return phi(m + r * xi), chance / chance.sum()


def sources_of(seed: int, act: str, n: int) -> Sources:
    """Usual, dead, certain and huge ones; points, narrow and wide boxes."""
    dice = Dice(seed)
    level = torch.where(dice.uniform(shape=(n,)) < 0.3, -2.0 - 2 * dice.uniform(shape=(n,)), 2 * dice.normal(n))
    std = 10 ** (2 * dice.uniform(shape=(n,)) - 1) * (dice.uniform(shape=(n,)) > 0.15)
    weight = 3 * dice.normal(n, 1)
    layer = Linear(weight, 0.3 * dice.uniform(shape=(n, 1)) * (std > 0)[:, None], level, std)
    radius = (0.0, 0.05, 0.5, 2.0)[seed % 4]
    return Sources(layer, activation(act), Box([0.5 - radius], [0.5 + radius]))


def second(first: Sources, seed: int, act: str, n: int) -> tuple[Linear, Activated, Signal]:
    """A second layer above the sources, and its node."""
    dice, n_in = Dice(1000 + seed), first.layer.n_out
    scale = 10 ** (2 * dice.uniform(shape=(1,)) - 1)
    layer = Linear(
        scale * dice.normal(n, n_in),
        0.3 * dice.uniform(shape=(n, n_in)) * (dice.uniform(shape=(n, n_in)) > 0.3) * (seed % 3 > 0),
        scale * dice.normal(n),
        10 ** (-3 * dice.uniform(shape=(n,))) * (dice.uniform(shape=(n,)) > 0.1),
    )
    layers = (first.layer, first.phi, layer, activation(act), Linear.fixed(torch.ones(1, n, dtype=F64)))
    found = MomentPass.of(BayesianNetwork(layers), first.box).hidden
    node = list(activations_of(found.nodes).values())[-1]
    return layer, node, node.below.signal


def deviations(first: Sources, layer: Linear, phi: Activation, rows: Tensor, x: float, panels: int) -> Tensor:
    """Of ``rows . E[z | y]``: (rows,)."""
    y, chance = first.law(x, panels)
    m, s = y @ layer.weight_mean.T + layer.bias_mean, y.square() @ layer.weight_std.square().T + layer.bias_std**2
    h = phi.mean(m, s.sqrt()) @ rows.T
    return (chance @ (h - chance @ h).square()).sqrt()


PAIRS = [("relu", "relu"), ("relu", "tanh"), ("tanh", "relu"), ("gelu", "relu"), ("leaky_relu", "hard_tanh")]
MORE = [("hard_tanh", "sigmoid"), ("softplus", "gelu"), ("sigmoid", "leaky_relu"), ("elu", "relu"), ("silu", "silu")]


@pytest.mark.parametrize(("below", "above"), slow_but([*PAIRS, *MORE], *PAIRS))
@pytest.mark.parametrize("n_in", [1, 2, 3])
def test_rows_above_gaussian_sources(below: str, above: str, n_in: int) -> None:
    """Each of the three ways by itself, at the ends of the box and between."""
    panels, slack = {1: (1500, 1e-4), 2: (120, 1e-3), 3: (36, 1.5e-2)}[n_in]
    closest = 0.0
    for seed in range(8):
        first, n = sources_of(seed, below, n_in), 5
        layer, node, z = second(first, seed, above, n)
        if z.fixed:
            continue
        assert node.slopes is not None
        assert node.weighted is not None
        assert z.kernel is not None
        free = Dice(seed).normal(4, n)
        rows = torch.cat([free, free[:1].abs(), torch.eye(n, dtype=F64)])
        unknown = torch.full_like(node.slopes.slope, torch.inf)
        ways = (
            (node.slopes, z),
            (replace(node.slopes, widest=unknown), replace(z, kernel=None)),
            (replace(node.slopes, curvature=unknown, third=unknown), z),
            (replace(node.slopes, curvature=unknown, third=unknown), replace(z, kernel=None)),
        )
        bounds = [
            conditional_mean_std(slopes, node.weighted.weights, DenseRows(rows[None]), w)[0] for slopes, w in ways
        ]
        low, high = first.box.lower.item(), first.box.upper.item()
        for x in sorted({low, 0.5, high, low + 0.3 * (high - low)}):
            truth = deviations(first, layer, activation(above), rows, x, panels)
            size = (rows.abs() * activation(above).shape.steepest) @ node.pre.mean_variance[0].sqrt()
            for bound in bounds:
                assert not bound.isnan().any()
                assert bool((truth <= bound * (1 + slack) + 1e-9 * (1 + size)).all()), (seed, x)
            closest = max(closest, float((truth / bounds[2].clamp_min(1e-6)).max()))
    assert closest > 0.5
