"""Networks of Linear and Relu: exact for one layer and one hidden layer (Arb), quadrature and draws beyond."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from flint import arb, ctx
from support import oracles
from support.dice import Dice
from support.networks import make_network
from tests.engine import plain_cases as cases
from tests.engine import truth
from tests.engine.plain_cases import gaussian_network
from tests.engine.truth import all_margins, bounds, exact_margins
from tests.marks import slow_but
from tests.paper.truth import narrow_mean
from torch import Tensor

from bnndp.attack.inside import candidates
from bnndp.deadline import NEVER
from bnndp.engine.margins import margins
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.protocol import Slopes, both_signs
from bnndp.geometry.bounds import Affine
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.questions.from_margins import class_interval
from bnndp.tighten.slopes import Sloped, climb

INF = math.inf


@pytest.fixture(autouse=True)
def many_bits() -> Iterator[None]:
    """Ball arithmetic in 256 bits, also where a test combines balls itself."""
    with ctx.workprec(oracles.PRECISION):
        yield


def general(network: BayesianNetwork, box: Box) -> MomentPass:
    return MomentPass.of(network, box)


def plane(affine: Affine, x: list[float], i: int, box: int = 0) -> arb:
    """Value of an affine bound in real numbers."""
    terms = (arb(a) * arb(b) for a, b in zip(affine.matrix[box, i].tolist(), x, strict=True))
    return sum(terms, arb(affine.offset[box, i].item()))


# Mean outputs


@pytest.mark.parametrize("std", [0.0, 1e-200, 1e-6, 0.3, 3.0, 1e20])
@pytest.mark.parametrize("width", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("n_in", [1, 3, 6])
def test_one_hidden_layer_holds_in_real_numbers(n_in: int, width: float, std: float) -> None:
    net, dice = gaussian_network((n_in, 7, 2), n_in, std), Dice(n_in)
    centre = dice.normal(n_in)
    box = Box(centre - width, centre + width)
    planes, ends = bounds(net, box)
    share = dice.uniform(shape=(6, n_in))
    share[:3] = share[:3].round()
    for x in ((1 - share) * box.lower + share * box.upper).clamp(box.lower, box.upper).tolist():
        for i, value in enumerate(oracles.exact_mean(net, x)):
            assert plane(planes.lower, x, i) <= value <= plane(planes.upper, x, i)
            assert oracles.below(ends.lower[0, i].item(), value)
            assert oracles.above(ends.upper[0, i].item(), value)
    if width == 0.0 and std < 1e10:
        assert (ends.upper - ends.lower).max() <= 1e-9


NARROW = [((1, 1, 3, 1), 0.1), ((2, 1, 1, 3, 1), 1e-3)]
MORE = [((2, 1, 4, 2), 0.0), ((3, 1, 1, 1), 1.0), ((6, 1, 1, 1, 1), 0.0)]


@pytest.mark.parametrize("std", slow_but([0.0, 1e-4, 0.1, 1.0, 20.0], 0.1, 1.0))
@pytest.mark.parametrize(("sizes", "width"), slow_but([*NARROW, *MORE], *NARROW))
def test_deep_narrow_networks_enclose_the_integrated_mean(sizes: tuple[int, ...], width: float, std: float) -> None:
    for seed in range(4):
        net, dice = gaussian_network(sizes, seed, std, shift=0.5), Dice(seed)
        centre = dice.uniform(-1, 1, (sizes[0],))
        planes, _ = bounds(net, Box(centre - width, centre + width))
        x = centre + width * dice.uniform(-1, 1, (2, sizes[0]))
        for point in x if width else x[:1]:
            value = torch.from_numpy(narrow_mean(net, point.tolist()))
            error = (1e-11 if std > 0 else 1e-9) * (1 + value.abs())  # of the quadrature
            assert (planes.lower(point[None])[0] <= value + error).all()
            assert (planes.upper(point[None])[0] >= value - error).all()


def test_a_single_chain_at_a_point_is_tight_for_small_deviations() -> None:
    net, point = gaussian_network((1, 1, 1, 1), 2, 1e-4, shift=1.5), Box([[0.3]], [[0.3]])
    _, ends = bounds(net, point)
    assert ends.lower.item() - 1e-11 <= narrow_mean(net, [0.3])[0] <= ends.upper.item() + 1e-11
    assert (ends.upper - ends.lower).item() <= 1e-6


def value_of(network: BayesianNetwork, x: Tensor) -> Tensor:
    """The network of the means."""
    for index, layer in enumerate(network.linears):
        x = (x.clamp_min(0) if index else x) @ layer.weight_mean.T + layer.bias_mean
    return x


@pytest.mark.parametrize("seed", slow_but(range(4), 0))
@pytest.mark.parametrize("sizes", [(3, 6, 2), (2, 5, 4, 3), (3, 5, 5, 4, 2), (2, 4, 4, 4, 4, 2)], ids=str)
def test_without_variance_the_bounds_are_those_of_the_network(sizes: tuple[int, ...], seed: int) -> None:
    network, dice = make_network(sizes, seed=seed, std=0.0), Dice(seed)
    x = dice.normal(6, sizes[0])
    _, point = bounds(network, Box(x, x))
    value = value_of(network, x)
    assert ((point.lower <= value) & (value <= point.upper)).all()
    assert (point.upper - point.lower).max() <= 1e-9
    box = Box.ball(x, 0.4)
    planes, ends = bounds(network, box)
    for inside in candidates(box, seed=seed, points=50):
        value = value_of(network, inside)
        for low, high in ((planes.lower(inside), planes.upper(inside)), (ends.lower, ends.upper)):
            assert ((low <= value + 1e-12) & (high >= value - 1e-12)).all()


@pytest.mark.parametrize("sizes", [(2, 5, 1), (2, 6, 5, 2), (7, 5, 5, 4, 1)])
def test_a_batch_is_the_boxes_one_by_one(sizes: tuple[int, ...]) -> None:
    """Of means and of variances; also where neurons that boxes ask for are taken together."""
    net = gaussian_network(sizes, 2, 0.3)
    boxes = Box.ball(Dice(0).normal(5, sizes[0]), torch.tensor([0.0, 1e-3, 0.1, 1.0, 0.3], dtype=torch.float64))
    rows = both_signs(net.n_out, boxes)
    together = general(net, boxes)
    for i in range(5):
        alone = general(net, boxes[i : i + 1])
        for name in ("least", "variance"):
            whole, one = (getattr(found, name)(rows) for found in (together, alone))
            assert torch.allclose(whole[i], one[0], rtol=1e-9, atol=1e-12)
        assert torch.allclose(together.affine(rows).least[i], alone.affine(rows).least[0], rtol=1e-9, atol=1e-12)


# Margins: their mean and variance


EXACT = [
    ((3, 4), 0.3, 0.0), ((1, 2), 2.0, 0.3), ((40, 3), 1e-6, 0.0), ((3, 5, 3), 0.3, 0.0), ((2, 12, 4), 1.0, 0.3),
    ((2, 1, 2), 3.0, 0.0), ((4, 6, 3), 1e-6, 0.0), ((4, 6, 3), 0.0, 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "std", "zeros"), EXACT)
@pytest.mark.parametrize("radius", [0.0, 1e-3, 0.1, 1.0])
def test_exact_margins_lie_within(sizes: tuple[int, ...], std: float, zeros: float, radius: float) -> None:
    """At the centre, vertices and random points, on both sides of zero; no tolerance. At a point nothing is lost."""
    network = make_network(sizes, seed=sum(sizes), std=std, zeros=zeros)
    box = Box.ball(Dice(1).normal(2, sizes[0]), radius)
    found = all_margins(general(network, box), network.n_out)
    for b in range(box.batch):
        for x in candidates(box, seed=3, points=3, vertices=4)[:8, b].tolist():
            exact = exact_margins(network, x)
            assert exact.holds(found, b)
            if radius == 0:
                for got, want in ((found.mean, exact.mean), (found.variance, exact.variance)):
                    flat = [float(ball) for row in want for ball in row]
                    assert got[b].flatten().tolist() == pytest.approx(flat, rel=1e-6, abs=1e-11)


@pytest.mark.parametrize("radius", [0.0, 0.1, 1.0])
def test_the_variance_of_each_output_lies_within(radius: float) -> None:
    """It is that of a margin against an output of nothing."""
    network, box = make_network((2, 8, 3), seed=4, std=0.6), Box.ball([[0.3, -0.5], [1.0, 2.0]], radius)
    found, (first, last) = general(network, box).output_variance(), network.linears
    parts = (last.weight_mean, last.weight_std, last.bias_mean, last.bias_std)
    nothing = Linear(*(torch.cat([part, torch.zeros_like(part[:1])]) for part in parts))
    for b in range(2):
        for x in candidates(box, seed=0, points=3)[:, b].tolist():
            exact = exact_margins(BayesianNetwork.from_linears([first, nothing]), x).variance
            assert all(oracles.below(found.lower[b, i].item(), exact[i][3]) for i in range(3))
            assert all(oracles.above(found.upper[b, i].item(), exact[i][3]) for i in range(3))
    if radius == 0:
        assert torch.allclose(found.lower, found.upper, rtol=1e-8)


def sampled(last: Linear, z: Tensor) -> tuple[Tensor, Tensor]:
    """Given the last hidden layer: mean (samples, pairs) and variance of all margins, [c * classes + j]."""
    pairs = (last.weight_mean[:, None] - last.weight_mean).flatten(0, 1)
    bias = (last.bias_mean[:, None] - last.bias_mean).flatten()
    other = 1 - torch.eye(last.n_out, dtype=torch.float64).flatten()
    spread = (last.weight_std.square()[:, None] + last.weight_std.square()).flatten(0, 1) * other[:, None]
    bias_spread = (last.bias_std.square()[:, None] + last.bias_std.square()).flatten() * other
    return z @ pairs.T + bias, z.square() @ spread.T + bias_spread


def with_logits(case: cases.Case, depth: int, classes: int = 4) -> BayesianNetwork:
    """The first hidden layers of a case and a layer of logits of the same kind on top."""
    hidden = cases.network(case).linears[:depth]
    dice, n, (low, high) = Dice(5000 + case.seed), hidden[-1].n_out, case.std
    weight = dice.normal(classes, n) * 2 / n**0.5
    std = [
        low * (high / low) ** dice.uniform(shape=shape) * (dice.uniform(shape=shape) >= case.zeros)
        for shape in ((classes, n), (classes,))
    ]
    return BayesianNetwork.from_linears([*hidden, Linear(weight, std[0] / n**0.5, dice.normal(classes), std[1])])


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("case", cases.cases("wide box", "all scales"))
def test_sampled_margins_lie_within(case: cases.Case, depth: int) -> None:
    """Mean and variance at the centre, a vertex and a random point; and E softmax by them."""
    network, box = with_logits(case, depth), cases.region(case)
    plain = general(network, box)
    found, climbed = all_margins(plain, 4), all_margins(Sloped(plain, 3, NEVER), 4)
    assert (climbed.mean >= found.mean - 1e-13 * found.mean.abs().max()).all()  # of another order of sums
    assert torch.equal(climbed.variance, found.variance)
    classes = class_interval(found)
    for index, x in enumerate(cases.points(case)):
        last, z = network.linears[-1], truth.draw(network, x, index)[-1].z
        m, s = sampled(last, z)
        truth.at_least(truth.mean(m), found.mean[0].flatten(), "a mean margin")
        truth.at_least(truth.mean(m), climbed.mean[0].flatten(), "an optimised mean margin")
        estimate = truth.mean((m - m.mean(0)).square() + s, m.abs().mean(0).square() + s.mean(0))
        truth.at_most(estimate, found.variance[0].flatten(), "the variance of a margin")
        logits, spread = truth.pre_activation(last, z)
        p = torch.softmax(logits + spread.sqrt() * Dice(index).normal(*logits.shape), -1)
        truth.inside(truth.mean(p), classes, "E softmax")


@pytest.mark.parametrize("scale", [1e-150, 1e-30, 1.0, 1e30])
@pytest.mark.parametrize("bias", [-1e3, -5.0, 0.0, 5.0])
def test_scales_from_tiny_to_huge(scale: float, bias: float) -> None:
    first = Linear(torch.tensor([[1.0]]), torch.tensor([[0.3]]), torch.tensor([bias]), torch.tensor([0.3]))
    last = Linear(torch.tensor([[scale], [-scale]]), scale * torch.ones(2, 1), torch.zeros(2), torch.zeros(2))
    network = BayesianNetwork.from_linears([first, last])
    found = all_margins(general(network, Box([[-0.5]], [[0.5]])), 2)
    assert all(exact_margins(network, [x]).holds(found, 0) for x in (-0.5, 0.0, 0.5))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_what_overflows_has_no_bound(depth: int) -> None:
    calm = make_network((2, *(4,) * depth, 3), seed=1, std=0.3)
    loud = [Linear(1e120 * k.weight_mean, 1e120 * k.weight_std, k.bias_mean, k.bias_std) for k in calm.linears]
    box = Box.ball(torch.tensor([[1e80, -1e80]], dtype=torch.float64), 1.0)
    found = all_margins(general(BayesianNetwork.from_linears(loud), box), 3)
    other = ~torch.eye(3, dtype=torch.bool)
    assert (found.variance[0][other] == INF).all()
    assert (found.mean[0][other] == -INF).all()


@pytest.mark.parametrize("depth", [1, 2])
def test_references_do_not_mix(depth: int) -> None:
    network = make_network((3, *(6,) * depth, 4), seed=2, std=0.4)
    found = general(network, Box.ball(Dice(0).normal(5, 3), 0.1))
    whole, reference = all_margins(found, 4), torch.tensor([[2], [0], [3], [1], [1]])
    some = margins(found, reference, 4)
    at = torch.arange(5), reference[:, 0]
    assert torch.allclose(some.mean[:, 0], whole.mean[at], rtol=1e-12, atol=1e-13)
    assert torch.allclose(some.variance[:, 0], whole.variance[at], rtol=1e-12, atol=1e-13)


def test_margins_keep_what_two_logits_share() -> None:
    """Both logits move together: two separate intervals would leave a range of two for a margin that is constant."""
    one = torch.ones(1, 1, dtype=torch.float64)
    layers = Linear.fixed(one, 5 * one[0]), Linear.fixed(one.expand(2, 1), torch.tensor([0.5, 0.0]))
    found = all_margins(general(BayesianNetwork.from_linears(layers), Box([[-1.0]], [[1.0]])), 2)
    assert found.mean[0, 0, 1].item() == pytest.approx(0.5, abs=1e-12)
    assert found.variance[0, 0, 1].item() == pytest.approx(0.0, abs=1e-12)


# Slopes: any choice holds


def wild(network: BayesianNetwork, batch: int, seed: int) -> list[Tensor]:
    """Tangent points of every layer for every output: from near zero to far beyond what a slope can tell."""
    dice, result = Dice(seed), []
    for layer in network.linears[:-1]:
        shape = (batch, network.n_out, layer.n_out)
        result.append(10 ** dice.uniform(-2, 2, shape) * dice.normal(*shape))
    result[0][0, 0, 0], result[-1][-1, -1, -1] = INF, -INF
    return result


def least_at(found: MomentPass, slopes: Slopes) -> Tensor:
    """Lower bounds of the outputs on each box: (batch, outputs)."""
    n = found.hidden.output.weights.n_out
    affine = found.affine_at(torch.eye(n, dtype=torch.float64), slopes)
    return found.box.minimum(affine.matrix, affine.offset)


@pytest.mark.parametrize("std", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("radius", [0.0, 0.1, 1.0])
def test_any_tangents_are_sound_with_one_hidden_layer(std: float, radius: float) -> None:
    """Against exact means in Arb at points of the box, without tolerance."""
    network = make_network((2, 6, 3), seed=1, std=std)
    box = Box.ball([[0.3, -0.5], [0.0, 0.0]], radius)
    lows = [least_at(general(network, box), Slopes(wild(network, 2, seed))) for seed in range(5)]
    for b in range(2):
        for x in candidates(box, seed=0, points=2)[:, b].tolist():
            means = oracles.exact_mean(network, x)
            assert all(oracles.all_below(low[b], means) for low in lows)


@pytest.mark.parametrize("sizes", [(2, 6, 5, 3), (2, 5, 5, 4, 2)])
@pytest.mark.parametrize("std", [0.1, 1.0])
def test_any_tangents_are_sound_deeper(sizes: tuple[int, ...], std: float) -> None:
    network = make_network(sizes, seed=2, std=std)
    found, last = general(network, Box.ball([0.3, -0.5], 0.2)), network.linears[-1]
    lows = [least_at(found, Slopes(wild(network, 1, seed)))[0] for seed in range(5)]
    for index, x in enumerate((found.box.centre[0], found.box.lower[0], found.box.upper[0])):
        h = truth.draw(network, x, seed=index)[-1].h  # the last hidden layer integrated out
        estimate = truth.mean(h @ last.weight_mean.T + last.bias_mean)
        for low in lows:
            truth.at_least(estimate, low, "an output with random tangents")


@pytest.mark.parametrize("sizes", [(2, 4, 3), (2, 4, 3, 2)])
def test_the_gradient_is_that_of_the_bound(sizes: tuple[int, ...]) -> None:
    network, dice = make_network(sizes, seed=6, std=0.3), Dice(0)
    found = general(network, Box.ball([0.3, -0.5], 0.3))
    points = tuple(dice.normal(1, network.n_out, k.n_out).requires_grad_() for k in network.linears[:-1])
    assert torch.autograd.gradcheck(lambda *u: least_at(found, Slopes(u)), points, eps=1e-6, atol=1e-6)
    slopes = torch.autograd.grad(least_at(found, Slopes(points)).sum(), points)
    assert all(slope.abs().max() > 1e-4 for slope in slopes)


# Cells of known signs


def signs_at(network: BayesianNetwork, x: Tensor, share: float, seed: int) -> tuple[Tensor, ...]:
    """Signs of the mean pre-activations at x (n,), with only a share of them told: (1, n) of each hidden layer."""
    dice, signs, z = Dice(seed), [], x
    for layer in network.linears[:-1]:
        mean = layer.weight_mean @ z + layer.bias_mean
        told = dice.uniform(shape=(layer.n_out,)) < share
        signs.append(torch.where(told, mean.sign(), 0.0).to(torch.int8)[None])
        z = mean.clamp_min(0)
    return tuple(signs)


def on_cell(network: BayesianNetwork, x: Tensor, signs: tuple[Tensor, ...]) -> Tensor:
    """The points (points, n) of a cell; exact for one hidden layer, or without variance."""
    inside, z = torch.ones(len(x), dtype=torch.bool), x
    for layer, sign in zip(network.linears, signs, strict=False):
        mean = z @ layer.weight_mean.T + layer.bias_mean
        inside &= (mean * sign >= 0).all(-1)
        z = mean.clamp_min(0)
    return x[inside]


@pytest.mark.parametrize(("sizes", "std"), [((2, 6, 3), 0.0), ((2, 6, 3), 0.3), ((2, 6, 5, 3), 0.0)])
@pytest.mark.parametrize("share", [0.4, 1.0])
def test_any_multipliers_are_sound_on_their_cell(sizes: tuple[int, ...], std: float, share: float) -> None:
    """The cell of a point is known with one hidden layer, or without variance: look at points of that cell."""
    network, dice = make_network(sizes, seed=8, std=std), Dice(0)
    box, rows = Box.ball([0.3, -0.5], 0.8), torch.eye(3, dtype=torch.float64)
    points = box.lower + (box.upper - box.lower) * dice.uniform(shape=(400, 2))
    looked_at = 0
    for seed in range(6):
        signs = signs_at(network, points[seed], share, seed)
        found = general(network, box).restricted(torch.tensor([0]), signs)
        assert not found.empty.any()
        x = on_cell(network, points, signs)
        hidden, last = network.linears[-2:]
        m, s = truth.pre_activation(hidden, x if len(sizes) == 3 else value_of_hidden(network, x))
        z = truth.relu_mean(m, s.sqrt()) if std else m.clamp_min(0)
        value = z @ last.weight_mean.T + last.bias_mean
        free = Slopes(wild(network, 1, seed), [3 * dice.uniform(shape=(1, 3, k)) for k in found.widths])
        for affine in (found.affine_at(rows, free), climb(found, rows, 5, NEVER)[0].affine):
            assert (x @ affine.matrix[0].T + affine.offset[0] <= value + 1e-12).all()
        looked_at += len(x)
    assert looked_at > 50


def value_of_hidden(network: BayesianNetwork, x: Tensor) -> Tensor:
    """The outputs of the first hidden layer without variance."""
    layer = network.linears[0]
    return (x @ layer.weight_mean.T + layer.bias_mean).clamp_min(0)


def test_a_cell_is_empty_or_bounded_better_than_the_box() -> None:
    """The signs and their multipliers gain what they are for."""
    network, x = make_network((2, 8, 3), seed=9, std=0.0), torch.tensor([0.3, -0.5], dtype=torch.float64)
    signs, rows, only = signs_at(network, x, 1.0, 0), torch.eye(3, dtype=torch.float64), torch.tensor([0])
    whole = general(network, Box.ball(x, 0.8))
    part = climb(whole.restricted(only, signs), rows, 20, NEVER)[0].least
    gain = part - climb(whole, rows, 20, NEVER)[0].least
    assert (gain >= -1e-9).all()
    assert (gain > 0.1).any()
    near = general(network, Box.ball(x, 1e-3))
    assert not near.restricted(only, signs).empty.any()
    assert near.restricted(only, tuple(-s for s in signs)).empty.all()


# Rounding: in rational numbers


def fractions(values: Tensor) -> list[Fraction]:
    return [Fraction(value) for value in values.tolist()]


def dot(a: list[Fraction], b: list[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


@pytest.mark.parametrize("size", [1.0, 1e6, 1e12])
@pytest.mark.parametrize("seed", slow_but(range(4), 0))
def test_large_multipliers_are_rounded_down(seed: int, size: float) -> None:
    """On the face of a cell its multiplier counts for nothing, however large: there the rounding shows."""
    dice, n_in, n = Dice(seed), 5, 4
    first = Linear.fixed(dice.uniform(-1, 1, (n, n_in)), dice.uniform(-1, 1, (n,)))
    last = Linear.fixed(dice.uniform(-1, 1, (3, n)), dice.uniform(shape=(3,)))
    rows, offsets = [fractions(row) for row in first.weight_mean], fractions(first.bias_mean)
    box = Box(torch.full((1, n_in), -1.0), torch.full((1, n_in), 1.0))
    whole, unit = general(BayesianNetwork.from_linears((first, last)), box), torch.eye(3, dtype=torch.float64)
    looked_at = 0
    for side in (1, -1):
        signs = torch.tensor([[0, side, 0, 0]], dtype=torch.int8)
        cell = whole.restricted(torch.tensor([0]), (signs,))
        usual = cell.slopes(unit)
        assert usual is not None
        multiplier = size * dice.uniform(0.5, 1.5, (1, 3, 1)) * signs.abs()
        found = cell.affine_at(unit, Slopes(usual[0].tangents, [multiplier]))
        for _ in range(20):
            x = fractions(dice.uniform(-1, 1, (n_in,)))
            # Onto the face M_1(x) = 0, along the first input, if that stays in the box.
            x[0] -= (dot(rows[1], x) + offsets[1]) / rows[1][0]
            if abs(x[0]) > 1:
                continue
            z = [max(dot(row, x) + b, Fraction(0)) for row, b in zip(rows, offsets, strict=True)]
            for k in range(3):
                truth = dot(fractions(last.weight_mean[k]), z) + Fraction(last.bias_mean[k].item())
                assert dot(fractions(found.matrix[0, k]), x) + Fraction(found.offset[0, k].item()) <= truth
                looked_at += 1
    assert looked_at > 10


def test_sums_that_cancel_are_rounded_down() -> None:
    """Terms of all sizes, of rows whose coefficients cancel too, at points of wide boxes; in ball arithmetic."""
    dice = Dice(6)
    size = 2.0 ** torch.randint(-8, 9, (9, 12), generator=dice.generator)
    weight = dice.normal(9, 12) * size
    first = Linear(weight, 0.05 * weight.abs(), 30 * dice.normal(9), size[:, 0].double())
    rows = dice.normal(10, 9)
    rows[5:] = rows[:5] * (1 + 2.0**-50)
    rows[5:, 0] *= -1
    net = BayesianNetwork.from_linears((first, Linear.fixed(rows, 1e3 * dice.normal(10))))
    for radius in (0.0, 3.0):
        box = Box.ball(100 * dice.normal(12), radius)
        planes, ends = bounds(net, box)
        for x in candidates(box, seed=2, points=3)[:5, 0].tolist():
            for i, value in enumerate(oracles.exact_mean(net, x)):
                assert plane(planes.lower, x, i) <= value <= plane(planes.upper, x, i)
                assert oracles.below(ends.lower[0, i].item(), value)
                assert oracles.above(ends.upper[0, i].item(), value)


@pytest.mark.parametrize(("std", "weight"), [(1e-163, 1.0), (1e-170, 1e200), (1e-150, 1.0), (1e-100, 1e90)])
def test_tiny_deviations(std: float, weight: float) -> None:
    """Their squares underflow; E f(x) = weight * std * x / sqrt(2 pi)."""
    zero, one = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    network = BayesianNetwork.from_linears([Linear(zero, std * one, zero[0], zero[0]), Linear.fixed(weight * one)])
    _, ends = bounds(network, Box([[1.0]], [[2.0]]))
    assert ends.lower.item() <= weight * std / math.sqrt(2 * math.pi) * (1 + 1e-12)
    assert ends.upper.item() >= 2 * weight * std / math.sqrt(2 * math.pi) * (1 - 1e-12)
