"""Every moment that the moment pass knows of a network of Linear and Relu, against draws and in other units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise

import pytest
import torch
from support import oracles
from support.dice import Dice
from support.quadrature import rectified_law
from tests.engine.plain_cases import CASES, Case, cases, network, points, region
from tests.engine.truth import Draws, at_least, at_most, bounds, central, draw, inside, mean
from tests.paper.truth import linear
from torch import Tensor

from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.moments.signal import POWERS
from bnndp.engine.nodes.activation import Activated
from bnndp.engine.nodes.node import row_std
from bnndp.engine.propagation.forward import activations_of
from bnndp.engine.rows import DenseRows
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, normal_form


def hidden(model: BayesianNetwork, box: Box) -> list[Activated]:
    """The hidden layers, first to last."""
    return list(activations_of(MomentPass.of(model, box).hidden.nodes).values())


@dataclass(frozen=True)
class Subject:
    """The hidden layers of a pass, and for every point of the box the draws of all of them."""

    case: Case
    network: BayesianNetwork
    nodes: list[Activated]
    points: Tensor
    draws: list[list[Draws]]

    def pairs(self) -> list[tuple[Linear, Activated, bool, Draws, Draws]]:
        """Each hidden layer after the first at each point: layer, node, whether it is the second, both draws."""
        return [
            (self.network.linears[k + 1], self.nodes[k + 1], k == 0, below, at)
            for layers in self.draws
            for k, (below, at) in enumerate(pairwise(layers))
        ]

    def layers(self) -> list[tuple[Activated, bool, Draws]]:
        """Every hidden layer at each point: its node, whether it is the first, its draws."""
        return [
            (node, k == 0, at)
            for layers in self.draws
            for k, (node, at) in enumerate(zip(self.nodes, layers, strict=True))
        ]


@pytest.fixture(scope="module", params=cases())
def subject(request: pytest.FixtureRequest) -> Subject:
    case = request.param
    net, x = network(case), points(case)
    return Subject(case, net, hidden(net, region(case)), x, [draw(net, p, seed=i) for i, p in enumerate(x)])


def test_outputs(subject: Subject) -> None:
    last = subject.network.linears[-1]
    planes, ends = bounds(subject.network, region(subject.case))
    for x, layers in zip(subject.points, subject.draws, strict=True):
        output = mean(layers[-1].h @ last.weight_mean.T + last.bias_mean)
        inside(output, Interval(planes.lower(x[None]), planes.upper(x[None])), "E f(x)")
        inside(output, ends, "E f(x)")


def norms_hold(values: Tensor, bounds: Tensor, what: str) -> None:
    """Of values (samples, n) about their mean, in Lq for the first two q; bounds (1, n, q)."""
    for index, q in enumerate(POWERS[:2]):
        at_most(central(values, q), bounds[0, :, index] ** q, f"||{what}||_{q}^{q}")


def test_signals(subject: Subject) -> None:
    """The moments of the outputs z of all hidden layers; of the first one all randomness is its own."""
    for node, first, at in subject.layers():
        z, size = node.signal, at.q.mean(0)
        inside(mean(at.h), z.mean, "E z")
        variance = mean(at.v + (at.h - at.h.mean(0)) ** 2, size)
        inside(variance, Interval(z.variance_low, z.variance), "Var z")
        inside(mean(at.q), z.second, "E z^2")
        norms_hold(at.z, z.norms, "z - E z")
        norms_hold(at.h, z.inner, "E[z | y] - E z")
        norms_hold(at.z - at.h, z.given, "z - E[z | y]")
        inside(mean(at.v, size), z.noise, "E Var(z | y)")
        at_most(central(at.v), z.noise_deviation[0] ** 2, "Var Var(z | y)")
        inside(mean(at.central_third, at.third.mean(0)), z.third, "E (z - E[z | y])^3")
        inside(mean(at.central_fourth, at.fourth.mean(0)), z.noise_fourth, "E (z - E[z | y])^4")
        for index, q in enumerate(POWERS[:2]):
            at_most(mean(at.v ** (q // 2), size ** (q // 2)), z.deviations[0, :, index] ** q, "the norm of sd(z | y)")
        if z.squares is not None and not first:
            square = at.fourth - at.q**2  # Var(z^2 | y)
            at_most(mean(square, at.fourth.mean(0)), z.squares.variance[0], "E Var(z^2 | y)")
            at_most(mean(square**2, at.fourth.mean(0) ** 2), z.squares.size[0] ** 2, "E Var(z^2 | y)^2")


def test_pre_activations(subject: Subject) -> None:
    """The moments of m and s given the layer before."""
    for layer, node, second, below, at in subject.pairs():
        x, mu, mu2 = node.pre, layer.weight_mean.T, layer.weight_mean.T**2
        noise, size = below.v @ mu2, below.q.mean(0) @ mu2
        inside(mean(at.m), x.mean, "E X")
        inside(mean(at.s), x.spread, "E s")
        at_most(central(at.s), x.spread_deviation[0] ** 2, "Var s")
        at_most(central(at.m), x.mean_variance[0], "Var m")
        if second:
            inside(central(at.m), x.noise, "Var m")
        else:
            inside(mean(noise, size), x.noise, "E Var(m | y)")
            at_most(central(noise), x.noise_deviation[0] ** 2, "Var Var(m | y)")
            at_most(central(below.h @ mu), x.central[0], "Var E[m | y]")
            if not x.source:  # else E[m | y] is a constant
                assert x.central_norm4 is not None
                assert x.central_least is not None
                at_least(central(below.h @ mu), x.central_least[0], "Var E[m | y]")
                at_most(central(below.h @ mu, 4), x.central_norm4[0] ** 4, "||E[m | y] - E m||_4^4")
        norms_hold(at.m, x.norms, "m - E m")
        norms_hold(at.s, x.spread_deltas, "s - S")
        norms_hold(at.m + at.s.sqrt() * Dice(99).normal(*at.m.shape), x.total_norms, "X - E X")
        for index, q in enumerate(POWERS[:2]):
            at_most(mean(at.s ** (q // 2)), x.spread_norms[0, :, index] ** q, "||sqrt s||_q^q")


def test_planes(subject: Subject) -> None:
    """Of E z in M and T; the same draws serve both sides, so that their errors nearly cancel. T = S + N."""
    for layer, node, second, below, at in subject.pairs():
        found, size = node.planes, at.h.abs().mean(0) + at.m.abs().mean(0)
        noise = (at.m - at.m.mean(0)) ** 2 if second else below.v @ layer.weight_mean.T**2
        total, size = at.s + noise, size + at.s.mean(0).sqrt() + noise.mean(0).sqrt()
        below_plane = at.h - found.lower_alpha[0] * at.m - found.lower_beta[0] * total
        above_plane = at.h - found.upper_alpha[0] * at.m - found.upper_beta[0] * total
        at_least(mean(below_plane, size), found.lower_offset[0], "E z")
        at_most(mean(above_plane, size), found.upper_offset[0], "E z")
        if node.hinge is not None:
            for move in (0.0, -0.7, 1.3):
                slope, tilt, level = node.hinge.at(node.hinge.start[:, None] + move)
                at_least(mean(at.h - slope[0, 0] * at.m - tilt[0, 0] * total, size), level[0, 0], "E z")


def test_variances_of_rows(subject: Subject) -> None:
    """Combinations of the neurons of a layer: random signs, one sign, nearly nothing, single neurons."""
    for node, _, at in subject.layers():
        n = at.z.shape[1]
        dense = Dice(n).normal(4, n)
        rows = torch.cat([dense, torch.ones(1, n), dense[:1] * 1e-8, torch.eye(n, dtype=torch.float64)[:4]])
        at_most(central(at.z @ rows.T), row_std(node, DenseRows(rows[None]))[0] ** 2, "Var(u z)")
        noise, inner = node.parts(DenseRows(rows[None]))
        at_most(mean(at.v @ rows.T**2, at.q @ rows.T**2), noise[0], "E Var(u z | y)")
        at_most(central(at.h @ rows.T), inner[0] ** 2, "Var E[u z | y]")


# Sources that are hardly ever active, and neurons made from them: laws that can be written down


def second_layer(u: float, weight: float, bias: float, bias_std: float) -> tuple[Activated, float]:
    """The node of ``X = weight z + bias + bias_std xi``, z = ReLU(N(u, 1)); and E z."""
    first = linear([[0.0]], [[0.0]], [u], [1.0])
    layers = [first, linear([[weight]], [[0.0]], [bias], [bias_std]), linear([[1.0]], [[0.0]], [0.0], [0.0])]
    return hidden(BayesianNetwork.from_linears(layers), Box([0.0], [0.0]))[1], float(oracles.expected_relu(u, 1.0))


@pytest.mark.parametrize("u", [-3.0, -4.6, -6.0])
@pytest.mark.parametrize("weight", [0.5, 1e3])
def test_moments_of_a_neuron_that_a_rare_source_wakes(u: float, weight: float) -> None:
    """``ReLU(weight z - 1)`` without other noise: its moments are those of a shifted rectified Gaussian."""
    node, _ = second_layer(u, weight, -1.0, 0.0)
    truth, z = oracles.rectified(weight * u - 1, weight), node.signal
    assert oracles.above(z.mean.upper.item(), truth.mean)
    assert oracles.above(z.second.upper.item(), truth.second)
    assert oracles.above(z.variance.item(), truth.variance)
    assert oracles.below(z.variance_low.item(), truth.variance)
    assert float(truth.fourth - 4 * truth.mean * truth.third) <= z.fourth.item()  # E (z - E z)^4 is more than that
    assert oracles.above(node.pre.mean_variance.item(), oracles.rectified(u, 1.0).variance * weight**2)


@pytest.mark.parametrize("u", [-3.0, -4.6, -6.5])
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_neuron_that_a_rare_source_holds_down(u: float, share: float) -> None:
    """Its mean is below zero because of an event that hardly ever happens; it is active all the same."""
    weight = -1e6
    shift = share * -weight * float(oracles.expected_relu(u, 1.0))
    node, _ = second_layer(u, weight, shift, shift / 20)
    usual = 1 - float(oracles.cdf(u))  # then X is N(shift, (shift / 20)^2)
    assert node.signal.second.upper.item() >= usual * shift**2
    assert node.signal.mean.upper.item() >= usual * shift


def test_a_neuron_far_below_zero_is_known_to_be_quiet() -> None:
    first = Linear(torch.ones(50, 1), torch.full((50, 1), 0.1), torch.zeros(50), torch.full((50,), 0.1))
    second = Linear(torch.full((1, 50), 0.02), torch.full((1, 50), 0.02), torch.tensor([-4.0]), torch.full((1,), 0.1))
    model = BayesianNetwork.from_linears([first, second, linear([[1.0]], [[0.0]], [0.0], [0.0])])
    assert hidden(model, Box([1.0], [1.0]))[1].signal.second.upper.item() < 1e-4


def test_eighth_powers_of_tiny_weights() -> None:
    """||s - S||_4 with a rare, huge source and tiny deviations, against quadrature."""
    scale, std = 1e34, 1.5e-42
    first = linear([[0.0]], [[0.0]], [-3.7 * scale], [scale])
    layers = [first, linear([[0.0]], [[std]], [0.0], [1e-8]), linear([[1.0]], [[0.0]], [0.0], [0.0])]
    node = hidden(normal_form(BayesianNetwork.from_linears(layers)), Box([0.0], [0.0]))[1]
    z, chance = rectified_law(-3.7, 1.0)
    s = (std * scale * z) ** 2
    truth = (chance @ (s - chance @ s) ** 4).item() ** 0.25
    assert node.pre.spread_deltas[0, 0, 0].item() >= truth


# Rows of which one part is all there is: what the others would hide has to be there


def above_sources(weight: Tensor, bias_std: float, level: float = 5.0) -> tuple[BayesianNetwork, Activated]:
    """Independent sources ReLU(N(level, 1)) and a second layer of these mean weights about zero; its node."""
    n_out, n = weight.shape
    mean = float(oracles.expected_relu(level, 1.0))
    zero = torch.zeros(n, 1, dtype=torch.float64)
    first = Linear(zero, zero, zero[:, 0] + level, zero[:, 0] + 1)
    second = Linear(weight, 0 * weight, -mean * weight.sum(-1), torch.full((n_out,), bias_std, dtype=torch.float64))
    model = BayesianNetwork.from_linears([first, second, Linear.fixed(torch.ones(1, n_out, dtype=torch.float64))])
    return model, hidden(model, Box([0.0], [0.0]))[1]


def check_rows(weight: Tensor, bias_std: float, rows: Tensor, loosest: float) -> None:
    """The deviation of ``rows . E[z_2 | z_1]`` is bounded, and its square by no more than ``loosest`` times itself."""
    model, node = above_sources(weight, bias_std)
    truth = central(draw(model, torch.zeros(1, dtype=torch.float64), seed=0)[1].h @ rows.T)
    bound = node.parts(DenseRows(rows[None]))[1][0] ** 2
    at_most(truth, bound, "Var E[u z | y]")
    assert bool((bound <= loosest * truth.value).all())


def random_weight(rows: int, size: float) -> Tensor:
    return size * Dice(rows).normal(rows, 80) / 80**0.5


def test_mirrored_neurons_leave_the_quadratic_part() -> None:
    """``h(m) + h(-m)`` has no linear part: g is even but for half of m."""
    one, four = random_weight(1, 0.5), random_weight(4, 0.5)
    check_rows(torch.cat([one, -one]), 3.0, torch.ones(1, 2, dtype=torch.float64), loosest=2.0)
    rows = torch.tensor([[1.0, 1, 1, 1] * 2, [1.0, -1, 1, -1] * 2, [1.0, 0, 0, 0] * 2], dtype=torch.float64)
    check_rows(torch.cat([four, -four]), 3.0, rows, loosest=5.0)


def test_equal_neurons_are_fully_correlated() -> None:
    """Eight copies of one neuron: the sum has 64 times the variance of one, whatever the order of the remainders."""
    weight = random_weight(1, 1.0).expand(8, -1)
    for bias_std, loosest in ((3.0, 1.5), (0.3, 4.0)):
        check_rows(weight, bias_std, torch.ones(1, 8, dtype=torch.float64), loosest)


def test_differences_of_equal_neurons_vanish_but_for_the_rests() -> None:
    _, node = above_sources(random_weight(1, 0.3).expand(2, -1), 3.0)
    rows = torch.tensor([[[1.0, -1.0], [1.0, 1.0]]], dtype=torch.float64)
    bound = node.parts(DenseRows(rows))[1][0] ** 2
    assert bound[0] <= 0.01 * bound[1]


def test_the_noise_of_the_layer_itself() -> None:
    """No mean weights and no spread: z is a rectified Gaussian of its own, independent of the first layer."""
    _, node = above_sources(torch.zeros(3, 80, dtype=torch.float64), 2.0)
    rows = torch.tensor([[[1.0, -2.0, 0.5]]], dtype=torch.float64)
    truth = float(oracles.rectified(0.0, 2.0).variance) * rows.square().sum().item()
    found = row_std(node, DenseRows(rows)).item() ** 2
    assert truth * (1 - 1e-12) <= found <= 1.001 * truth


# Other units: ReLU(t x) = t ReLU(x), so a hidden layer whose weights and biases are t times as large, with the biases
# of all that follows, multiplies every moment of degree d after it by t^d. A bound in which a power is wrong may be
# right in one unit, but then it is too small in another. Powers of two are exact in float64.

MEASURED = ("narrow", "wide box", "large deviations", "all scales", "dead neurons", "nearly dead second layer",
            "active in a box", "some zeros", "negative inputs", "deep", "one source", "l2 ball")  # fmt: skip
DEGREES = {
    # Signal
    "mean": 1, "variance": 2, "variance_low": 2, "norms": 1, "inner": 1, "given": 1, "deviations": 1, "roughness": 1,
    "noise": 2, "noise_deviation": 2, "third": 3, "third_deviation": 3, "noise_fourth": 4, "excess": 4,
    "squares.variance": 4, "squares.size": 4, "squares.norm4": 2, "kernel.mean": 2, "kernel.std": 2,
    # PreActivation
    "spread": 2, "spread_deviation": 2, "central": 2, "central_norm4": 1, "central_least": 2,
    "absolute_third": 3, "quartic": 4, "spread_norms": 1,
    "spread_away": 1, "spread_deltas": 2, "fourth": 4, "linear_fourth": 4, "before": 2, "spread_variance": 4,
    "spread_third": 6, "spread_fourth": 8, "spread_norm8": 2, "spread_low": 8,
    # Planes
    "lower_alpha": 0, "upper_alpha": 0, "lower_beta": -1, "upper_beta": -1, "lower_offset": 1, "upper_offset": 1,
    "range": 1, "size": 1,
    # MeanSlopes
    "slopes.slope": 0, "slopes.stray": 0, "slopes.std": 0, "slopes.norm4": 0, "slopes.widest": 0,
    "slopes.curvature": -1, "slopes.third": -2, "slopes.spread": -1, "slopes.remainder": 1,
}  # fmt: skip


def in_units(model: BayesianNetwork, unit: float, start: int) -> BayesianNetwork:
    """Everything from the layer ``start`` on, measured in 1 / unit."""
    layers = list(model.linears)
    for k in range(start, len(layers)):
        layer, weight = layers[k], unit if k == start else 1.0
        layers[k] = Linear(
            weight * layer.weight_mean, weight * layer.weight_std, unit * layer.bias_mean, unit * layer.bias_std
        )
    return BayesianNetwork.from_linears(layers)


def tensors(record: object, name: str) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a record, by the path of their names; ends of an interval by that of the interval."""
    if isinstance(record, Tensor):
        yield name, record
    elif is_dataclass(record):
        for field in fields(record):
            inner = name if field.name in ("lower", "upper") else f"{name}.{field.name}"
            yield from tensors(getattr(record, field.name), inner)


def everything(model: BayesianNetwork, box: Box) -> Iterator[tuple[str, Tensor]]:
    """All that is known of the layers after the first."""
    for node in hidden(model, box)[1:]:
        for name in ("pre", "signal", "planes", "slopes"):
            yield from tensors(getattr(node, name), name)


def degree(name: str) -> int:
    """The power of the unit in a tensor."""
    short = ".".join(name.split(".")[-2:])
    return DEGREES[short if short in DEGREES else name.rpartition(".")[-1]]


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize(
    "case", cases("wide box", "all scales", "deep", of=tuple(c for c in CASES if c.name in MEASURED))
)
def test_every_moment_in_other_units(case: Case, start: int) -> None:
    model, box = network(case), region(case)
    plain, planes = list(everything(model, box)), bounds(model, box)[0]
    for unit in (2.0**-20, 2.0**30):
        other = in_units(model, unit, start)
        for (name, a), (_, b) in zip(plain, everything(other, box), strict=True):
            power, finite = unit ** degree(name), a[torch.isfinite(a)].abs()
            size = finite.max().item() if finite.numel() else 1.0  # absolute terms stand against underflow only
            same = torch.isclose(b / power, a, rtol=1e-9, atol=1e-20 * size + 1e-30, equal_nan=True)
            assert same.all(), (name, unit, a[~same][0].item(), (b / power)[~same][0].item())
        there = bounds(other, box)[0]
        for plane, scaled in ((planes.lower, there.lower), (planes.upper, there.upper)):
            for want, found in ((plane.matrix, scaled.matrix / unit), (plane.offset, scaled.offset / unit)):
                assert torch.allclose(found, want, rtol=1e-7, atol=1e-9 * want.abs().max().item())
