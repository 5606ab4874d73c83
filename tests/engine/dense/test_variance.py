"""Variances of which one part is all there is: what the others would hide has to be there."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from flint import arb
from support import oracles
from support.dice import Dice
from tests.engine.dense.truth import Run, at_most, central, draw, run
from torch import Tensor

from bnndp.engine.dense.conditional import Conditional, Through
from bnndp.engine.dense.records import Latent, PreActivation, Sources
from bnndp.engine.dense.variance import central_variance, linear_variance, square_sum_variance
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

F64 = torch.float64
SOURCES = 80
FEW, NEURONS = 5, 4  # of the quadratic forms


def network(weight: Tensor, bias_std: float, *, level: float = 5.0) -> BayesianNetwork:
    """Independent sources ReLU(N(level, 1)), a second layer of these mean weights about zero, one sum of it on top."""
    n_out, n = weight.shape
    mean = math.erfc(-level / math.sqrt(2)) / 2 * level + math.exp(-level * level / 2) / math.sqrt(2 * math.pi)
    zero = torch.zeros(n, 1, dtype=F64)
    first = Linear(zero, zero, torch.full((n,), level, dtype=F64), torch.ones(n, dtype=F64))
    second = Linear(weight, torch.zeros_like(weight), -mean * weight.sum(-1), torch.full((n_out,), bias_std, dtype=F64))
    third = Linear(torch.ones(1, n_out), torch.zeros(1, n_out), torch.zeros(1), torch.ones(1))
    last = Linear(torch.ones(1, 1), torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))
    return BayesianNetwork.from_linears([first, second, third, last])


def check(found: Run, rows: Tensor, loosest: float) -> None:
    """The variance of ``rows . E[z_2 | z_1]`` is bounded, and by no more than ``loosest`` times itself."""
    truth = central(draw(found.network, torch.zeros(1, dtype=F64), seed=0)[1].h @ rows.T)
    bound = central_variance(rows, found.given[:1], found.latents[:2], found.first.sources)[0]
    at_most(truth, bound, "Var(u E[z | before])")
    assert (bound <= loosest * truth.value).all()


def random_weight(rows: int, size: float) -> Tensor:
    return size * Dice(rows).normal(rows, SOURCES) / SOURCES**0.5


def test_mirrored_neurons_leave_the_quadratic_part() -> None:
    """``h(m) + h(-m)`` has no linear part: g is even but for half of m."""
    weight = random_weight(1, 0.5)
    found = run(network(torch.cat([weight, -weight]), 3.0), Box([0.0], [0.0]))
    check(found, torch.ones(1, 2, dtype=F64), loosest=4.0)


def test_mirrored_pairs_add_up() -> None:
    weight = random_weight(4, 0.5)
    found = run(network(torch.cat([weight, -weight]), 3.0), Box([0.0], [0.0]))
    rows = torch.tensor([[1.0, 1, 1, 1] * 2, [1.0, -1, 1, -1] * 2, [1.0, 0, 0, 0] * 2], dtype=F64)
    check(found, rows, loosest=10.0)


def test_equal_neurons_are_fully_correlated() -> None:
    """Eight copies of one neuron: the sum has 64 times the variance of one, whatever the order of the rests."""
    weight = random_weight(1, 1.0).expand(8, -1)
    for bias_std, loosest in ((3.0, 2.0), (0.3, 6.0)):
        check(run(network(weight, bias_std), Box([0.0], [0.0])), torch.ones(1, 8, dtype=F64), loosest)


def test_differences_of_equal_neurons_vanish_but_for_the_rests() -> None:
    weight = random_weight(1, 0.3).expand(2, -1)
    found = run(network(weight, 3.0), Box([0.0], [0.0]))
    rows = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=F64)
    bound = central_variance(rows, found.given[:1], found.latents[:2], found.first.sources)[0]
    assert bound[0] <= 0.01 * bound[1]


def test_a_root_varies_more_than_its_tangent() -> None:
    """m = 0 and s = z^2 of one source: E[z_2 | z] = phi(0) z has 5 % more variance than its linear part in s."""
    source = Linear(torch.zeros(1, 1), torch.zeros(1, 1), torch.tensor([3.0]), torch.ones(1))
    second = Linear(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1), torch.zeros(1))
    last = Linear(torch.ones(1, 1), torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))
    found = run(BayesianNetwork.from_linears([source, second, last, last]), Box([0.0], [0.0]))
    truth = (oracles.rectified(3.0, 1.0).variance / (2 * arb.pi())).mid()
    bound = central_variance(torch.ones(1, 1, dtype=F64), found.given[:1], found.latents[:2], found.first.sources)
    assert oracles.above(bound.item(), truth)
    assert bound.item() <= 6 * float(truth)


def test_the_noise_of_the_layer_itself() -> None:
    """No mean weights and no spread: z_2 is a rectified Gaussian of its own, independent of the first layer."""
    found = run(network(torch.zeros(3, SOURCES, dtype=F64), 2.0), Box([0.0], [0.0]))
    rows = torch.tensor([[1.0, -2.0, 0.5]], dtype=F64)
    each = 4.0 * (0.5 - 1 / (2 * math.pi))  # Var ReLU(N(0, 4))
    square = 16.0 * (1.5 - 0.25)  # Var ReLU(N(0, 4))^2
    args = (rows, found.given[:1], found.latents[:2], found.first.sources)
    weights = rows.square().sum().item()
    linear, squares = linear_variance(*args).item(), square_sum_variance(*args).item()
    assert each * weights <= linear <= 1.001 * each * weights
    assert square * weights <= squares <= 1.7 * square * weights  # Poincare: 4 s E z^2 = 32 for 20


# Quadratic forms of sources on two points: every mean is a finite sum


def quadratic_variance(rows: Tensor, mu: Tensor, kappa: Tensor, variance: Tensor, fourth: Tensor) -> Tensor:
    """Var of ``rows . (kappa T^2 / 2)`` for T = mu @ (z - E z), by the package, with no other part of z than that."""
    none, zero = torch.zeros(1, NEURONS, dtype=F64), torch.zeros(1, FEW, dtype=F64)
    through = Through(
        top=none[:, :1] + 1, rare=zero, curved=torch.arange(NEURONS)[None],
        gram=((mu * variance) @ mu.T).square()[None],
        kurtosis=(fourth - 3 * variance**2).clamp_min(0)[None],
    )  # fmt: skip
    given = Conditional(
        noise=Interval(none, none), slope=none, psi=none, curvature=kappa[None],
        slope_rest=none, largest=none, plain_rest=none, through=through,
    )  # fmt: skip
    before = PreActivation(
        layer=Linear.fixed(mu), jensen=none, spread=Interval(none, none), spread_variance=none, spread_fourth=none,
        noise=Interval(none, none), noise_variance=none, central=none, fourth=none, norm8=none,
        replacement=Interval(none, none), tail=None, energy=None,
    )  # fmt: skip
    latents = [
        Latent(Interval(part, part), Interval(part, part), part, part, torch.ones_like(part)) for part in (zero, none)
    ]
    sources = Sources(
        Interval(variance[None], variance[None]), zero, fourth[None], zero, Interval(zero, zero), zero, zero
    )
    return central_variance(rows, [(before, given)], latents, sources)[0]


@pytest.mark.parametrize("rare", [0.5, 0.2, 0.02])
@pytest.mark.parametrize("seed", range(5))
def test_the_variance_of_a_quadratic_form(seed: int, rare: float) -> None:
    normal = Dice(seed).normal
    size, mu, kappa, rows = normal(FEW), normal(NEURONS, FEW), normal(NEURONS).abs(), normal(6, NEURONS)
    rows[0] = 0
    rows[0, 0] = 1
    p = torch.full((FEW,), rare, dtype=F64)
    variance = p * (1 - p) * size**2
    fourth = p * (1 - p) * ((1 - p) ** 3 + p**3) * size**4
    atoms = torch.tensor(list(product((0.0, 1.0), repeat=FEW)), dtype=F64)
    weight = torch.where(atoms > 0, p, 1 - p).prod(-1)
    t = ((atoms - p) * size) @ mu.T
    values = (0.5 * kappa * t**2) @ rows.T  # (atoms, rows)
    truth = weight @ (values - weight @ values) ** 2
    found = quadratic_variance(rows, mu, kappa, variance, fourth)
    assert (found >= truth * (1 - 1e-12)).all()
    if rare < 0.2:  # fourth moments above those of a Gaussian: then the formula is exact
        assert torch.allclose(found, truth, rtol=1e-8)
