"""The pass as a whole: exact where a closed form exists, quadrature for narrow networks, any choice of parameters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

import pytest
import torch
from flint import arb, ctx
from support import oracles
from support.oracles import Rectified, above, below
from tests.engine.dense.cases import CASES, network, points, region
from tests.engine.dense.truth import Pass, draw, inside, mean, run
from tests.paper.truth import narrow_mean
from torch import Tensor

from bnndp.engine.dense.forward import Parameters, bound
from bnndp.engine.dense.slope import slope
from bnndp.geometry.bounds import AffineBounds, Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

F64 = torch.float64


@pytest.fixture(autouse=True)
def many_bits() -> Iterator[None]:
    with ctx.workprec(oracles.PRECISION):
        yield


def random_network(sizes: tuple[int, ...], seed: int, std: float, shift: float = 0.0) -> BayesianNetwork:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=F64)

    return BayesianNetwork.from_linears(
        Linear(normal(b, a), std * normal(b, a).abs(), normal(b) + shift, std * normal(b).abs())
        for a, b in pairwise(sizes)
    )


def plane(found: AffineBounds, side: str, x: list[float], i: int) -> arb:
    """Value of an affine bound in real numbers."""
    affine = getattr(found, side)
    terms = (arb(a) * arb(b) for a, b in zip(affine.matrix[0, i].tolist(), x, strict=True))
    return sum(terms, arb(affine.offset[0, i].item()))


# One hidden layer: exact means, no tolerance


@pytest.mark.parametrize("std", [0.0, 1e-200, 1e-6, 0.3, 3.0, 1e20])
@pytest.mark.parametrize("width", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("n_in", [1, 3, 6])
def test_one_hidden_layer_holds_in_real_numbers(n_in: int, width: float, std: float) -> None:
    net = random_network((n_in, 7, 2), n_in, std)
    generator = torch.Generator().manual_seed(n_in)
    centre = torch.randn(n_in, generator=generator, dtype=F64)
    box = Box(centre - width, centre + width)
    found = bound(net, box)
    interval = found.interval()
    share = torch.rand(6, n_in, generator=generator, dtype=F64)
    share[:3] = share[:3].round()
    for x in ((1 - share) * box.lower + share * box.upper).clamp(box.lower, box.upper).tolist():
        for i, truth in enumerate(oracles.exact_mean(net, x)):
            assert plane(found, "lower", x, i) <= truth
            assert plane(found, "upper", x, i) >= truth
            assert below(interval.lower[0, i].item(), truth)
            assert above(interval.upper[0, i].item(), truth)
    if width == 0.0 and std < 1e10:
        assert (interval.upper - interval.lower).max() <= 1e-9


def test_no_hidden_layer_is_exact() -> None:
    net = random_network((3, 2), 1, 5.0)
    box = Box([-1.0, 0.0, 2.0], [1.0, 0.5, 2.0])
    found = bound(net, box)
    layer = net.linears[0]
    for side in (found.lower, found.upper):
        assert torch.equal(side.matrix[0], layer.weight_mean)
        assert torch.equal(side.offset[0], layer.bias_mean)


# Two hidden layers at a point: what the second one is made of has closed forms


def sources(net: BayesianNetwork, x: list[float]) -> list[Rectified]:
    return [oracles.rectified(m, r) for m, r in oracles.pre_activation(net, x)]


def combined(weights: Tensor, values: list[arb], constant: float = 0.0) -> list[arb]:
    return [sum((arb(w) * v for w, v in zip(row, values, strict=True)), arb(constant)) for row in weights.tolist()]


@pytest.mark.parametrize("shift", [0.0, 4.0])
@pytest.mark.parametrize("std", [0.0, 1e-6, 0.3, 2.0])
def test_second_layer_at_a_point_is_exact(std: float, shift: float) -> None:
    net = random_network((2, 6, 5, 1), 3, std, shift)
    x = [0.4, -0.7]
    found = run(net, Box(x, x)).hidden[0]
    z, layer, before = sources(net, x), net.linears[1], found.before
    sigma2 = layer.weight_std.tolist()
    for i in range(layer.n_out):
        mu, s2 = [arb(w) for w in layer.weight_mean[i].tolist()], [arb(w) ** 2 for w in sigma2[i]]
        b2 = arb(layer.bias_std[i].item()) ** 2
        spread = sum((a * t.second for a, t in zip(s2, z, strict=True)), b2)
        noise = sum((a**2 * t.variance for a, t in zip(mu, z, strict=True)), arb(0))
        spread_variance = sum((a**2 * t.square_variance for a, t in zip(s2, z, strict=True)), arb(0))
        at = sum((a * t.mean for a, t in zip(mu, z, strict=True)), arb(layer.bias_mean[i].item()))
        jensen = sum((a * t.mean**2 for a, t in zip(s2, z, strict=True)), b2)
        pairs = [(before.spread, spread), (before.noise, noise), (found.mean, at)]
        for interval, truth in pairs:
            low, high = interval.lower[0, i].item(), interval.upper[0, i].item()
            assert low == 0 or below(low, truth)  # a truth of zero has a ball around it
            assert above(high, truth)
            assert high - low <= 1e-10 * (1 + abs(float(truth)))
        assert above(before.spread_variance[0, i].item(), spread_variance)
        assert before.spread_variance[0, i].item() <= float(spread_variance) * (1 + 1e-9) + 1e-11
        assert below(before.jensen[0, i].item() ** 2, jensen + arb("1e-290"))
        assert before.jensen[0, i].item() ** 2 >= float(jensen) * (1 - 1e-9) - 1e-12
        assert before.central[0, i].item() == 0
        assert before.noise_variance[0, i].item() == 0


def test_central_moments_of_the_second_layer_are_exact() -> None:
    """``E (m - M)^4 = sum of mu^4 (c_4 - 3 v^2) + 3 V^2``: the bound leaves out the negative part only."""
    net, x = random_network((2, 6, 5, 1), 3, 0.5), [0.4, -0.7]
    fourth = run(net, Box(x, x)).hidden[0].before.fourth[0].tolist()
    z, mu = sources(net, x), net.linears[1].weight_mean
    c4 = [t.fourth - 4 * t.mean * t.third + 6 * t.mean**2 * t.second - 3 * t.mean**4 for t in z]
    total = combined(mu**4, c4)
    variance = combined(mu**2, [t.variance for t in z])
    for found, a, v in zip(fourth, total, variance, strict=True):
        assert found == pytest.approx(float(a + 3 * v**2), rel=1e-9)


# Narrow networks: nested quadrature


@pytest.mark.parametrize("std", [0.0, 1e-4, 0.1, 1.0, 20.0])
@pytest.mark.parametrize(
    ("sizes", "width"),
    [((1, 1, 3, 1), 0.1), ((2, 1, 4, 2), 0.0), ((3, 1, 1, 1), 1.0), ((2, 1, 1, 3, 1), 1e-3), ((6, 1, 1, 1, 1), 0.0)],
)
def test_deep_narrow_networks_enclose_the_integrated_mean(sizes: tuple[int, ...], width: float, std: float) -> None:
    for seed in range(4):
        net = random_network(sizes, seed, std, shift=0.5)
        generator = torch.Generator().manual_seed(seed)
        centre = 2 * torch.rand(sizes[0], generator=generator, dtype=F64) - 1
        found = bound(net, Box(centre - width, centre + width))
        x = centre + width * (2 * torch.rand(2, sizes[0], generator=generator, dtype=F64) - 1)
        for point in x if width else x[:1]:
            truth = torch.from_numpy(narrow_mean(net, point.tolist()))
            error = (1e-11 if std > 0 else 1e-9) * (1 + truth.abs())  # of the quadrature
            assert (found.lower(point[None])[0] <= truth + error).all()
            assert (found.upper(point[None])[0] >= truth - error).all()


def test_a_single_chain_at_a_point_is_tight_for_small_deviations() -> None:
    net = random_network((1, 1, 1, 1), 2, 1e-4, shift=1.5)
    point = torch.tensor([[0.3]], dtype=F64)
    interval = bound(net, Box(point, point)).interval()
    truth = narrow_mean(net, [0.3])[0]
    assert interval.lower.item() - 1e-11 <= truth <= interval.upper.item() + 1e-11
    assert (interval.upper - interval.lower).item() <= 1e-6


@pytest.mark.parametrize("power", [-900, -300, -120, 120, 300, 900])
@pytest.mark.parametrize("sizes", [(2, 1, 4, 2), (2, 1, 1, 3, 1)])
def test_units_of_a_layer_do_not_matter(sizes: tuple[int, ...], power: int) -> None:
    """A layer times 2^power and the next one divided by it is the same network, at the ends of float64 too."""
    for seed, k in product(range(2), range(len(sizes) - 2)):
        net = random_network(sizes, seed, 0.3, shift=0.5)
        layers, c = list(net.linears), 2.0**power
        a, b = layers[k], layers[k + 1]
        layers[k] = Linear(c * a.weight_mean, c * a.weight_std, c * a.bias_mean, c * a.bias_std)
        layers[k + 1] = Linear(b.weight_mean / c, b.weight_std / c, b.bias_mean, b.bias_std)
        x = torch.full((1, 2), 0.3, dtype=F64)
        truth = torch.from_numpy(narrow_mean(net, x[0].tolist()))
        interval = bound(BayesianNetwork.from_linears(layers), Box(x, x)).interval()
        # Not bounded at all is an answer; a NaN is one, too, that the caller turns into it.
        assert not (interval.lower > truth + 1e-10 * (1 + truth.abs())).any()
        assert not (interval.upper < truth - 1e-10 * (1 + truth.abs())).any()


# Free parameters


def scrambled(net: BayesianNetwork, seed: int) -> Parameters:
    generator = torch.Generator().manual_seed(seed)
    sizes = net.sizes[1:-1]
    tangents = tuple(4 * torch.randn(1, n, generator=generator, dtype=F64) for n in sizes)
    return Parameters(tangents, deltas=(0.0, 3.0, 0.1, 40.0))


@pytest.mark.parametrize("case", CASES[1:12:5], ids=str)
def test_any_parameters_are_sound(case: object) -> None:
    net, x = network(case), points(case)
    last = net.linears[-1]
    draws = [mean(draw(net, p, seed=i)[-1].h @ last.weight_mean.T + last.bias_mean) for i, p in enumerate(x)]
    default = bound(net, region(case)).interval()
    for seed in range(3):
        found = bound(net, region(case), scrambled(net, seed))
        assert not torch.equal(found.interval().lower, default.lower)  # they do have an effect
        for point, truth in zip(x, draws, strict=True):
            inside(truth, Interval(found.lower(point[None]), found.upper(point[None])), "E f(x)")


def test_missing_tangents_mean_the_middle() -> None:
    net, box = random_network((2, 5, 4, 1), 0, 0.3), Box([0.1, 0.2], [0.2, 0.3])
    default = bound(net, box).interval()
    again = bound(net, box, Parameters((None,))).interval()
    assert torch.equal(default.lower, again.lower)
    assert Parameters((None, torch.zeros(1))).tangent(0) is None
    assert Parameters().tangent(7) is None


# Tightness: a bound that silently fell back to a crude one would pass every test of soundness


def typical(depth: int) -> Pass:
    net = random_network((2, *(20,) * depth, 1), 5, 0.0)
    scaled = BayesianNetwork.from_linears(
        Linear(a.weight_mean / a.n_in**0.5, torch.full_like(a.weight_mean, 0.1 / a.n_in**0.5), 0.2 * a.bias_mean,
               torch.full_like(a.bias_mean, 0.05))
        for a in net.linears
    )  # fmt: skip
    return run(scaled, Box([0.5, -0.3], [0.5, -0.3]))


def test_quantities_of_an_ordinary_network_are_near_the_truth() -> None:
    found = typical(3)
    draws = draw(found.network, found.box.lower[0], seed=0)
    second, third = found.hidden
    mu = third.before.layer.weight_mean.T
    noise, middle = (draws[1].v @ mu**2).mean(0), (draws[1].h @ mu).var(0)
    cdf = 0.5 * torch.special.erfc(-draws[1].m / second.before.spread.upper[0].sqrt() / 2**0.5)
    ratios = {
        "Var m": third.before.mean_variance[0] / draws[2].m.var(0),  # 2.2 when this was written, and so on
        "N above": third.before.noise.upper[0] / noise,  # 1.13
        "N below": noise / third.before.noise.lower[0],  # 1.23
        "Vc": third.before.central[0] / middle,  # 6.1
        "Vs of the second layer": second.before.spread_variance[0] / draws[1].s.var(0),  # 1
        "Vs": third.before.spread_variance[0] / draws[2].s.var(0),  # 2.8
        "Var Phi": slope(second.before, second.mean).variance[0].sum() / cdf.var(0).sum(),
    }
    most = {
        "Var m": 2.6,
        "N above": 1.2,
        "N below": 1.35,
        "Vc": 8.0,
        "Vs of the second layer": 1.05,
        "Vs": 3.5,
        "Var Phi": 9.0,
    }
    assert {name: ratio.max().item() for name, ratio in ratios.items() if not (ratio <= most[name]).all()} == {}


@pytest.mark.parametrize(("depth", "most"), [(1, 1e-9), (2, 3e-3), (3, 4e-2)])
def test_gap_at_a_point(depth: int, most: float) -> None:
    interval = typical(depth).bounds.interval()
    assert (interval.upper - interval.lower).item() <= most


# Batches


@pytest.mark.parametrize("sizes", [(2, 5, 1), (2, 6, 5, 2), (2, 5, 5, 4, 1), (7, 5, 5, 4, 1)])
def test_a_batch_is_the_boxes_one_by_one(sizes: tuple[int, ...]) -> None:
    net = random_network(sizes, 2, 0.3)
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(5, sizes[0], generator=generator, dtype=F64)
    radius = torch.tensor([0.0, 1e-3, 0.1, 1.0, 0.3], dtype=F64)[:, None]
    boxes = Box(centre - radius, centre + radius)
    together = bound(net, boxes).interval()
    for i in range(5):
        alone = bound(net, boxes[i : i + 1]).interval()
        assert torch.allclose(together.lower[i], alone.lower[0], rtol=1e-9, atol=1e-12)
        assert torch.allclose(together.upper[i], alone.upper[0], rtol=1e-9, atol=1e-12)
