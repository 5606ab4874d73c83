"""L8 norms of the means of the third hidden layer: closed forms, and quadrature over one or two sources."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from support.dice import Dice
from support.quadrature import rectified_law
from tests.engine.dense import cases
from tests.engine.dense.truth import Draws, Run, draw, normal, run
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.dense.forward import Hidden
from bnndp.engine.dense.norms import _linear, _slope, _spread_slope
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

F64 = torch.float64
INF = math.inf
XI_8 = 105**0.125  # of a standard Gaussian
QUADRATURE = 1e-5  # relative error granted to the quadrature


def filled(rows: int, columns: int, value: float) -> Tensor:
    return torch.full((rows, columns), value, dtype=F64)


def vector(values: list[float] | Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=F64)


def source_layer(levels: list[float], std: float = 1.0) -> Linear:
    """Sources ``N(level, std^2)``, whatever the input."""
    n = len(levels)
    return Linear(filled(n, 1, 0), filled(n, 1, 0), vector(levels), filled(1, n, std)[0])


def neurons(weight: float, std: float, bias: float, noise: float, n: int = 1) -> Linear:
    """Equal neurons of one source."""
    return Linear(filled(n, 1, weight), filled(n, 1, std), filled(1, n, bias)[0], filled(1, n, noise)[0])


def norms(first: Linear, second: Linear, rows: list[list[float]], box: Box | None = None) -> Run:
    """The pass of a network whose third hidden layer has these mean weights."""
    weight = vector(rows)
    third = Linear(weight, 0 * weight, 0 * weight[:, 0], 1 + 0 * weight[:, 0])
    last = Linear(filled(1, len(rows), 1.0), filled(1, len(rows), 0.0), torch.zeros(1), torch.ones(1))
    return run(BayesianNetwork.from_linears([first, second, third, last]), box or Box([0.0], [0.0]))


def found_norm(found: Run) -> Tensor:
    """(rows,)"""
    return found.hidden[1].before.norm8[0]


# Laws by quadrature


def source_law(first: Linear, x: float, panels: int) -> tuple[Tensor, Tensor]:
    """Nodes (nodes, sources) and weights (nodes,) of the outputs of a first layer with one or two neurons."""
    m = first.weight_mean[:, 0] * x + first.bias_mean
    r = ((first.weight_std[:, 0] * x) ** 2 + first.bias_std**2).sqrt()
    laws = [rectified_law(a, b, panels) for a, b in zip(m.tolist(), r.tolist(), strict=True)]
    z = torch.cartesian_prod(*(law[0] for law in laws)).reshape(-1, len(laws))
    weight = torch.cartesian_prod(*(law[1] for law in laws)).reshape(-1, len(laws)).prod(-1)
    return z, weight


def second_layer(layer: Linear, z: Tensor) -> Draws:
    """Mean and variance of the second layer at the nodes (there are no draws of it)."""
    m = z @ layer.weight_mean.T + layer.bias_mean
    return Draws(m, z**2 @ (layer.weight_std**2).T + layer.bias_std**2, m)


def power_mean(values: Tensor, weight: Tensor, power: int) -> Tensor:
    return (weight @ values.abs() ** power) ** (1 / power)


def central_norm(values: Tensor, weight: Tensor) -> Tensor:
    """Norm of the values about their mean: a lower bound of that of T if they are E[m | first layer]."""
    return power_mean(values - weight @ values, weight, 8)


# One part of the bound at a time


def holds(truth: float, bound: float, loosest: float) -> None:
    assert truth * (1 - QUADRATURE) <= bound <= loosest * truth


@pytest.mark.parametrize(("row", "size"), [([3.0], 3.0), ([1.0, -1.0, 1.0, -1.0], 2.0)])
def test_own_noise_of_active_neurons(row: list[float], size: float) -> None:
    """Silent sources; T is Gaussian, sqrt(7) against its 105^(1/8); the noises of neurons add up in squares."""
    found = norms(source_layer([0.0], std=0.0), neurons(0, 0, 30, 1, len(row)), [row])
    holds(size * XI_8, found_norm(found).item(), loosest=1.48)


def truth_of(part: str, level: float) -> tuple[Linear, Linear, float, float]:
    """Both layers, the norm of T, and how loose a bound may be, where one part is all there is."""
    source, (z, weight) = source_layer([level]), rectified_law(level, 1.0)
    own = central_norm(z[:, None], weight).item()
    if part == "own noise of random size":  # T = sigma z xi about a large bias: E T^8 = 105 sigma^8 E z^8
        return source, neurons(0, 0.2, 100, 0), XI_8 * 0.2 * power_mean(z, weight, 8).item(), 5 if level >= 3 else INF
    if part == "own noise of a neuron hardly ever active":  # no randomness below: T is rectified about its mean
        return source_layer([0.0], std=0.0), neurons(0, 0, level, 1), own, 3 + 0.2 * level**2
    if part == "rare source":  # T = z - E z through an active neuron
        return source, neurons(1, 0, 200, 0), own, 12
    if part == "spread":  # E[z_2 | z] = phi(0) sigma z at a zero mean; of many equal neurons the own noise is small
        return source, neurons(0, 3, 0, 0, 400), 3 / math.sqrt(2 * math.pi) * own, 30
    second = neurons(0, 1, level, 0.1, 400)  # "usually dead": its density is small, but not when the source is large
    z, weight = rectified_law(3.0, 1.0)
    return source_layer([3.0]), second, central_norm(second_layer(second, z[:, None]).h[:, :1], weight).item(), INF


PARTS = {
    "own noise of random size": (-6.0, -2.0, 0.0, 3.0, 8.0),
    "own noise of a neuron hardly ever active": (-8.0, -5.0, -3.0, -1.0, 0.0, 2.0),
    "rare source": (-3.0, -5.0, -5.9, -6.5, -7.0),
    "spread": (8.0, 2.0, 0.0, -3.0, -5.0, -6.0, -6.5, -7.0),
    "usually dead": (-0.5, -3.0, -8.0, -20.0),
}


@pytest.mark.parametrize(("part", "level"), [(part, level) for part, levels in PARTS.items() for level in levels])
def test_one_part_alone(part: str, level: float) -> None:
    first, second, truth, loosest = truth_of(part, level)
    n = second.n_out
    holds(truth, found_norm(norms(first, second, [[1 / n] * n])).item(), loosest)


@pytest.mark.parametrize("rows", [[1.0, 1.0], [1.0, -3.0], [0.0, 2.0]])
def test_linear_part(rows: list[float]) -> None:
    """Active sources and neurons without noise of their own: T is Gaussian, weights may cancel."""
    second = Linear(vector([[1.0, 2.0], [1.0, 0.5]]), filled(2, 2, 0), vector([30.0, 30.0]), vector([0.0, 0.0]))
    size = math.hypot(rows[0] + rows[1], 2 * rows[0] + 0.5 * rows[1])
    found = norms(source_layer([40.0, 40.0]), second, [rows])
    holds(size * XI_8, found_norm(found).item(), loosest=1.49)
    holds(3 * size**4, found.hidden[1].before.fourth.item(), loosest=17.0)  # 49 for 3


def test_weights_whose_squares_underflow_and_neurons_that_cancel() -> None:
    first = source_layer([40.0])
    assert found_norm(norms(first, neurons(1, 0, 30, 0), [[1e-170]])).item() >= 1e-170 * XI_8
    assert found_norm(norms(first, neurons(1, 0, 30, 0, 2), [[1.0, -1.0]])).item() < 0.01  # XI_8 for each alone


@pytest.mark.parametrize("level", [40.0, 0.0, -3.0, -5.0, -6.0, -6.5, -7.0])
@pytest.mark.parametrize("copies", [1, 3])
def test_slope_part(level: float, copies: int) -> None:
    """A neuron and its mirror image: the linear rows cancel, and F = |m| has the slopes +-1."""
    first, n = source_layer([level]), copies
    sign = vector([[1.0]] * n + [[-1.0]] * n)
    z, weight = rectified_law(level, 1.0)
    shift = (weight @ z).item()
    second = Linear(sign, 0 * sign, -shift * sign[:, 0], filled(1, 2 * n, 1e-3 * shift)[0])
    found = norms(first, second, [[1.0] * (2 * n)])
    truth = central_norm(second_layer(second, z[:, None]).h.sum(-1, keepdim=True), weight).item()
    holds(truth, found_norm(found).item(), loosest=30.0)


@pytest.mark.parametrize("level", [-6.0, -6.5, -7.0])
def test_slope_part_of_a_neuron_that_a_rare_source_wakes(level: float) -> None:
    """Nearly always dead, so that ``||Phi - p||_8`` is small; but whenever the source is active so is the neuron."""
    found = norms(source_layer([level]), neurons(1e9, 0, -1, 0.01), [[1.0]])
    before, parts = found.given[0]
    known = parts.beyond.gradients
    bound = _slope(filled(1, 1, 1.0), before, parts.through.top, known, before.energy, found.first.sources).item()
    awake = (1 - known.centre.item()) * 1e9 * (0.5 * math.erfc(-level / math.sqrt(2))) ** 0.125
    assert known.delta.item() < 0.2
    assert known.centre.item() < 0.1
    holds(awake, bound, loosest=1.3)


# Random networks over one or two sources, in boxes


@dataclass(frozen=True)
class Narrow:
    """Records of a pass on a box, and the second layer at the nodes of its law, with weights, at points of the box."""

    found: Run
    laws: list[tuple[Draws, Tensor]]
    nodes: list[tuple[Tensor, Tensor]]  # outputs of the sources (nodes, sources), and their r (sources,)

    @property
    def second(self) -> Hidden:
        return self.found.hidden[0]


def narrow(seed: int) -> Narrow:
    """One or two sources (also dead and rare ones), one to six neurons above, three rows; points and boxes."""
    dice = Dice(seed)
    randn = dice.normal

    def rand(*shape: int) -> Tensor:
        return dice.uniform(shape=shape)

    sources, n = 1 + seed % 2, 1 + seed // 2 % 6
    radius = (0.0, 0.02, 0.3)[seed % 3]
    level = 6 * rand(sources) - 3 if seed % 5 else -3 - 3 * rand(sources)
    first = Linear(randn(sources, 1), 0.5 * rand(sources, 1), level, 0.2 + rand(sources))
    weight = randn(n, sources) * 10 ** (2 * rand(1) - 1)
    std = 10 ** (1 - 4 * rand(n, sources)) * (rand(n, sources) > 0.2)
    bias = randn(n) * 10 ** (2 * rand(n) - 0.5)
    second = Linear(weight, std, bias, 10 ** (0.5 - 4 * rand(n)) * (rand(n) > 0.2))
    box = Box([0.5 - radius], [0.5 + radius])
    found = norms(first, second, randn(3, n).tolist(), box)
    laws, nodes = [], []
    for x in {0.5 - radius, 0.5, 0.5 + radius, 0.5 + 0.37 * radius}:
        z, probability = source_law(first, x, 40 if sources == 1 else 12)
        laws.append((second_layer(second, z), probability))
        nodes.append((z, ((first.weight_std[:, 0] * x) ** 2 + first.bias_std**2).sqrt()))
    return Narrow(found, laws, nodes)


@pytest.fixture(scope="module", params=slow_but(range(40), 1, 4, 6, 10, 17, 20))  # one and two sources, rare ones
def subject(request: pytest.FixtureRequest) -> Narrow:
    return narrow(request.param)


def below(values: Tensor, bound: Tensor, what: str) -> None:
    bad = ~(values <= (1 + QUADRATURE) * bound + 1e-12)
    assert not bad.any(), f"{what}: {values[bad].tolist()} above {bound.expand_as(bad)[bad].tolist()}"


def test_second_layer(subject: Narrow) -> None:
    """Levels and norms; the slope about its constant, the density, and E s^4 1[X > 0] = E s^4 Phi."""
    tail, known = subject.second.before.tail, subject.found.given[0][1].beyond.gradients
    for at, weight in subject.laws:
        m, r = weight @ at.m, at.s.sqrt()
        for level in tail.levels:
            wide = 1e-10 * (1 + m.abs())
            outside = (at.m > m + level.above[0] + wide) | (at.m < m - level.below[0] - wide)
            outside |= at.s > level.spread[0] * (1 + 1e-10)
            below(weight @ outside.double(), 1.1 * level.probability[0], "probability outside of a level")
        below(power_mean(r, weight, 8), tail.spread8[0], "||sqrt s||_8")
        below(power_mean(r, weight, 16), tail.spread16[0], "||sqrt s||_16")
        distance = at.slope - known.centre[0]
        below(power_mean(distance, weight, 8), known.delta[0], "||Phi - p||_8")
        below(distance.abs().amax(0), known.widest[0], "sup |Phi - p|")
        below(power_mean(density_at(at), weight, 8), known.density[0], "||phi||_8")
        below((weight @ (at.s**4 * at.slope)) ** 0.25, known.active_spread[0], "||s 1||_4")


def density_at(at: Draws) -> Tensor:
    """phi(m / sqrt(s)), zero without any spread."""
    r = at.s.sqrt()
    return torch.where(r > 0, normal((at.m / r.clamp_min(1e-300)).clamp(-1e3, 1e3))[1], 0.0)


def test_parts_of_the_gradient(subject: Narrow) -> None:
    """The three parts of the module docstring of ``norms.py``, each by itself: (nodes, rows, sources)."""
    sources, (before, parts) = subject.found.first.sources, subject.found.given[0]
    known, mu, layer = parts.beyond.gradients, subject.found.hidden[1].before.layer.weight_mean, before.layer
    bounds = (
        _linear(mu, before, known.centre, sources)[0],
        _slope(mu, before, parts.through.top, known, before.energy, sources)[0],
        (mu.abs() @ _spread_slope(layer, known.density, sources)[0]),
    )
    for (at, weight), (z, r) in zip(subject.laws, subject.nodes, strict=True):
        scale = (r * (z > 0))[:, None]  # (nodes, 1, sources)
        steep = density_at(at) / at.s.sqrt().clamp_min(1e-150)  # s may be zero, then so are the z that it is made of
        values = (
            (mu * known.centre[0]) @ layer.weight_mean * scale,
            (mu * (at.slope - known.centre[0])[:, None]) @ layer.weight_mean * scale,
            (mu * steep[:, None]) @ layer.weight_std**2 * scale * z[:, None],
        )
        for value, bound, what in zip(values, bounds, ("linear", "slope", "spread"), strict=True):
            below(power_mean(value.norm(dim=-1), weight, 8), bound, f"{what} part of the gradient")


def test_slope_rest_of_the_second_layer(subject: Narrow) -> None:
    """``g(m, sqrt(s0)) - p m - kappa (m - M)^2 / 2`` about its mean, for one neuron."""
    before, parts = subject.found.given[0]
    root = before.spread.upper[0].sqrt()
    for at, weight in subject.laws:
        centre = at.m - weight @ at.m
        u = (at.m / root).clamp(-1e3, 1e3)
        cdf, pdf = normal(u)
        rest = at.m * cdf + root * pdf - parts.slope[0] * at.m - 0.5 * parts.curvature[0] * centre**2
        deviation = (weight @ (rest - weight @ rest) ** 2).sqrt()
        bound = parts.slope_rest[0] + parts.largest[0] * before.energy.rare[0].sqrt() + parts.plain_rest[0]
        whole = parts.slope[0] + parts.psi[0] == 0  # then all of h is in the rest
        below(torch.where(whole, 0.0, deviation), bound, "slope rest")


def test_third_layer(subject: Narrow) -> None:
    """``E[m | sources]`` has the smaller norm of the two, and with one neuron T itself by a second quadrature."""
    before = subject.found.hidden[1].before
    mu = before.layer.weight_mean
    for at, weight in subject.laws:
        bound = found_norm(subject.found)
        below(central_norm(at.h @ mu.T, weight), bound, "||F||_8")
        own = at.v @ (mu**2).T  # ||T||_8 >= ||T||_2
        below(
            (weight @ own + weight @ (at.h @ mu.T) ** 2 - (weight @ at.h @ mu.T) ** 2).clamp_min(0).sqrt(), bound, "sd"
        )
        if mu.shape[1] == 1 and at.m.shape[0] < 1000:
            below(mu[:, 0].abs() * nested(at, weight), bound, "||T||_8")


def nested(at: Draws, weight: Tensor) -> Tensor:
    """Norm of z_2 - E z_2 of one neuron, by quadrature over its own Gaussian as well."""
    xi = (torch.arange(600, dtype=F64) + 0.5) / 600 * 20 - 10
    density = torch.exp(-0.5 * xi**2)
    keep = weight > 1e-14
    z = (at.m[keep] + at.s[keep].sqrt() * xi).clamp_min(0)  # (nodes, 600)
    joint = weight[keep][:, None] * (density / density.sum())
    return ((joint * (z - (joint * z).sum()) ** 8).sum()) ** 0.125


@pytest.mark.parametrize("scale", slow_but([1e-170, 1e-80, 1e-30, 1e-10, 1e10, 1e30], 1e-80, 1e30))
@pytest.mark.parametrize("at", [0, 1, 2])
def test_scales_of_one_layer(scale: float, at: int) -> None:
    """The norm grows with every layer; where powers under- or overflow it is still at least the deviation."""
    case = cases.Case("scaled", sizes=(2, 3, 4, 3, 1), std=(0.1, 1.0), radius=0.01, seed=60)
    layers, size = [], 1.0
    for k, layer in enumerate(cases.network(case).linears):
        factor = scale if k == at else 1.0
        size *= factor
        layers.append(
            Linear(factor * layer.weight_mean, factor * layer.weight_std, size * layer.bias_mean, size * layer.bias_std)
        )
    net = BayesianNetwork.from_linears(layers)
    found = run(net, cases.region(case))
    before = found.hidden[1].before
    at_x = draw(net, cases.region(case).centre[0], seed=0, samples=4000)[2]
    assert not before.norm8.isnan().any()
    assert not before.fourth.isnan().any()
    assert (0.9 * at_x.m.std(0) <= before.norm8[0]).all()
    for _, parts in found.given:
        assert not any(part.isnan().any() for part in (parts.noise.upper, parts.plain_rest, parts.slope))


def test_what_overflows_is_infinite_and_not_nan() -> None:
    first = source_layer([1.0, 2.0])
    second = Linear(filled(2, 2, 1e200), filled(2, 2, 1e200), vector([0.0, 1e200]), vector([1.0, 0.0]))
    before = norms(first, second, [[1.0, 0.0], [0.0, 0.0]]).hidden[1].before
    assert torch.equal(before.norm8, torch.full((1, 2), torch.inf, dtype=F64))
