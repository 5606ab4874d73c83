"""Members that go through a pass together: the bounds of the loop over them, truths from exact evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from bnndp.activations import Gelu, HardTanh, LeakyRelu, Relu, Tanh
from bnndp.activations.piecewise import PiecewiseAffine
from bnndp.attack import decision_rows
from bnndp.attack.draws import evaluate, stacked
from bnndp.engine import mixture_softmax
from bnndp.engine.general.forward import hidden, mean_rows
from bnndp.engine.general.laws.dense import Dense
from bnndp.engine.general.planes import planes_of_exact
from bnndp.engine.general.pre_activation import pre_of_signal
from bnndp.engine.general.rows import DenseRows
from bnndp.engine.general.signal import fixed
from bnndp.engine.general.stacked import StackedLinear
from bnndp.engine.members import parts
from bnndp.engine.methods import members_together, one_pass, piece_size
from bnndp.engine.mixture import mixed, summed
from bnndp.engine.mixture_softmax import mixture_bound, mixture_classes
from bnndp.errors import InputError
from bnndp.geometry.bounds import Affine, AffineBounds, Interval
from bnndp.geometry.box import Box
from bnndp.layers import Conv2d, Flatten, Linear
from bnndp.network import BayesianNetwork, Ensemble, Layer
from bnndp.options import Options
from bnndp.questions.certify import certify
from bnndp.questions.softmax import bound_rows, expected_softmax

F64 = torch.float64
ACTIVATIONS = (Relu(), LeakyRelu(0.1), HardTanh(), Tanh(), Gelu())
NEAR = 1e-10  # of the widths: what the rounding terms of two passes may differ by


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def dense(
    sizes: Sequence[int], seed: int, *, task: str = "regression", activation: Layer | None = None, shift: bool = False
) -> BayesianNetwork:
    """A network without variance."""
    layers: list[Layer] = []
    for index, (n, m) in enumerate(pairwise(sizes)):
        layers += [activation or Relu()] if layers else []
        weight, bias = draw(m, n, seed=97 * seed + index) * (2 / n) ** 0.5, 0.3 * draw(m, seed=97 * seed + index + 50)
        layers.append(Linear.fixed(weight, bias))
    return BayesianNetwork(tuple(layers), task, draw(sizes[0], seed=seed) if shift else None)


def weights(count: int, seed: int = 0) -> Tensor:
    """Weights with zeros among them."""
    w = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=F64)
    w[1::3] = 0.0
    return w / w.sum()


def boxes(batch: int, n: int, eps: float = 0.2, norm: float = math.inf) -> Box:
    return Box.ball(draw(batch, n, seed=5), eps, norm=norm)


def one_by_one(ensemble: Ensemble, box: Box, options: Options) -> AffineBounds:
    """The affine bounds of the members, each found as a network of its own."""
    pairs = zip(ensemble.probabilities, ensemble.members, strict=True)
    return mixed(((w[None], one_pass(member, box, options)[0]) for w, member in pairs), box, ensemble.n_out)


def exact(ensemble: Ensemble, x: Tensor) -> Tensor:
    """Outputs (members, points, batch, n_out) at x (points, batch, n)."""
    found = []
    for member in ensemble.members:
        chain = stacked([member])
        assert chain is not None
        found.append(evaluate(chain, x.flatten(0, 1))[0].unflatten(0, x.shape[:2]))
    return torch.stack(found)


def points_of(box: Box, count: int) -> Tensor:
    """Vertices and inner points of each region: (count, batch, n)."""
    share = torch.rand(count, box.batch, box.n, generator=torch.Generator().manual_seed(1), dtype=F64)
    share[::2] = share[::2].round()
    return box.project(box.lower + share * (box.upper - box.lower))


# What goes together


def test_members_are_grouped_by_structure_and_variance() -> None:
    surrogate = PiecewiseAffine.of(torch.sin, 1.0, reach=3.0, pieces=8)
    last = Linear(draw(1, 3, seed=1), torch.full((1, 3), 0.1), torch.zeros(1), torch.zeros(1))
    random = BayesianNetwork((*dense((2, 3, 1), 0).layers[:2], last))
    members = (
        dense((2, 3, 1), 0),
        random,
        dense((2, 3, 1), 1),
        dense((2, 4, 1), 2),
        dense((2, 3, 1), 3, activation=Tanh()),
        dense((2, 3, 1), 4, shift=True),
        dense((2, 3, 1), 5, activation=LeakyRelu(0.1)),
        dense((2, 3, 1), 6, activation=LeakyRelu(0.2)),
        random,
        dense((2, 3, 1), 7),
        dense((2, 3, 1), 8, activation=surrogate),
        dense((2, 3, 1), 9, activation=surrogate),
        dense((2, 3, 1), 9, activation=PiecewiseAffine(surrogate.knots, surrogate.values, 1.0, 0.5)),
    )
    ensemble = Ensemble(members)
    assert ensemble.alike == ((0, 2, 9), (1,), (3,), (4,), (5,), (6,), (7,), (8,), (10, 11), (12,))
    assert len(ensemble.examples) == len(ensemble.alike)
    found = list(parts(ensemble, 2))
    assert [len(part.members) for part in found[:3]] == [2, 1, 1]
    assert [part.stacked for part in found[:3]] == [True, True, False]
    assert found[0].members[1] is members[2]
    assert sum(len(part.members) for part in found) == len(members)
    alone = list(parts(ensemble, 99, stacked=False))
    assert {len(part.members) for part in alone} == {1}
    assert not any(part.stacked for part in alone)
    assert Ensemble((random, random)).alike == ((0,), (1,))


def test_members_without_weight_are_left_out() -> None:
    ensemble = Ensemble(tuple(dense((2, 3, 1), seed) for seed in range(5)), torch.tensor([0.5, 0.0, 0.25, 0.0, 0.25]))
    (part,) = parts(ensemble, 10)
    assert [member is ensemble.members[i] for member, i in zip(part.members, (0, 2, 4), strict=True)] == [True] * 3
    assert part.weights.tolist() == [0.5, 0.25, 0.25]


def test_boxes_are_repeated_member_by_member() -> None:
    ensemble = Ensemble(tuple(dense((2, 3, 1), seed, shift=True) for seed in range(3)))
    (part,) = parts(ensemble, 3)
    box = boxes(4, 2, norm=2.0)
    every, shift = part.repeated(box), part.shift(4)
    assert every.batch == 12
    assert torch.equal(every.lower[4:8], box.lower)
    assert every.within is not None
    assert every.within.radius.shape == (12,)
    assert shift is not None
    assert torch.equal(shift[4:8], ensemble.members[1].shift.expand(4, -1))  # type: ignore[union-attr]
    values = torch.arange(24.0, dtype=F64).reshape(12, 2)
    truth = sum(w * values[4 * k : 4 * k + 4] for k, w in enumerate(part.weights))
    torch.testing.assert_close(summed(part.weights, values), truth, rtol=1e-15, atol=0)


def test_so_many_members_go_together_as_the_memory_holds() -> None:
    ensemble = Ensemble(tuple(dense((784, 64, 64, 10), seed) for seed in range(2)))
    for memory in (2**20, 2**25, 2**30, 2**34):
        options = Options(memory=memory)
        size = piece_size(ensemble, options)
        for batch in (1, 7, 500):
            box = Box(torch.zeros(batch, 784), torch.ones(batch, 784))
            found = members_together(box, size, options)
            assert found >= 1
            assert found == 1 or found * batch <= size
            assert found == 1 or found * batch * 8 * 2 * 64 * (64 + 784) <= 2**27  # even one copy of the largest matrix


# Stacked layers


def test_stacked_layers_are_the_layers_of_the_members() -> None:
    members, count = 3, 4
    layers = [Linear.fixed(draw(5, 6, seed=k), draw(5, seed=k + 9)) for k in range(members)]
    stack = StackedLinear(
        torch.stack([x.weight_mean for x in layers]), torch.stack([x.bias_mean for x in layers]), count
    )
    z, rows = draw(members * count, 6, seed=1), draw(members * count, 7, 5, seed=2)
    for k, layer in enumerate(layers):
        own, at = Dense(layer, False), slice(k * count, (k + 1) * count)
        torch.testing.assert_close(stack.apply(z)[at], own.apply(z[at]), rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(stack.power(z, 3)[at], own.power(z[at], 3), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(stack.bias[at], layer.bias_mean.expand(count, -1), rtol=0, atol=0)
        pulled = stack.pull(DenseRows(rows)).dense().values[at]
        torch.testing.assert_close(pulled, rows[at] @ layer.weight_mean, rtol=1e-13, atol=1e-13)
        pieces = [(part, own_rows.dense().values[at]) for part, own_rows in stack.own_rows(2 * 6)]
        assert [part.stop - part.start for part, _ in pieces] == [2, 2, 1]
        whole = torch.cat([values for _, values in pieces], 1)
        assert torch.equal(whole, layer.weight_mean.expand(count, -1, -1))
    assert not stack.random
    assert stack.out_shape((6,)) == (5,)
    with pytest.raises(InputError, match="vectors of 6"):
        stack.out_shape((5,))
    with pytest.raises(InputError, match="biases"):
        StackedLinear(stack.weight, stack.offsets[:, :2], count)


@pytest.mark.parametrize("phi", ACTIVATIONS, ids=lambda phi: phi.kind)
def test_planes_of_values_without_spread_enclose_the_activation(phi: Layer) -> None:
    a = torch.tensor([-9.0, -1.5, -1.0, -0.7, -1e-9, 0.0, 0.4, 1.0, 3.0], dtype=F64)
    width = torch.tensor([0.0, 1e-9, 0.7, 2.5, 12.0], dtype=F64)
    low, wide = (grid.reshape(1, -1) for grid in torch.meshgrid(a, width, indexing="ij"))
    found = planes_of_exact(phi, pre_of_signal(fixed(Interval(low, low + wide))))  # type: ignore[arg-type]
    for share in torch.linspace(0, 1, 301, dtype=F64):
        t = (low + share * wide).clamp(low, low + wide)
        value = phi(t)  # type: ignore[operator]
        assert bool((found.lower_alpha * t + found.lower_offset <= value).all())
        assert bool((found.upper_alpha * t + found.upper_offset >= value).all())
        assert bool(((found.range.lower <= value) & (value <= found.range.upper)).all())
    if isinstance(phi, Relu):  # the best lines there are: the chord, and in the middle the function itself
        middle, end = low + 0.5 * wide, low + wide
        above = 0.5 * (phi(low) + phi(end))
        torch.testing.assert_close(found.upper_alpha * middle + found.upper_offset, above, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.lower_alpha * middle + found.lower_offset, phi(middle), rtol=1e-12, atol=1e-12)


# The bounds of the loop


@pytest.mark.parametrize("norm", [math.inf, 2.0])
@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("phi", ACTIVATIONS, ids=lambda phi: phi.kind)
def test_regression_agrees_with_the_loop(phi: Layer, shift: bool, norm: float) -> None:
    members = tuple(dense((3, 9, 7, 2), seed, activation=phi, shift=shift) for seed in range(6))
    ensemble, box = Ensemble(members, weights(6)), boxes(4, 3, norm=norm)
    loop = one_by_one(ensemble, box, Options())
    affine, interval, names = one_pass(ensemble, box, Options())
    ends = loop.interval()
    width = ends.upper - ends.lower
    assert bool(((interval.lower - ends.lower).abs() <= NEAR * width).all())
    assert bool(((interval.upper - ends.upper).abs() <= NEAR * width).all())
    torch.testing.assert_close(affine.lower.matrix, loop.lower.matrix, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(affine.upper.offset, loop.upper.offset, rtol=1e-9, atol=1e-11)
    assert names == ("moment",) * 4
    values = torch.einsum("k,kpbo->pbo", ensemble.probabilities, exact(ensemble, points_of(box, 100)))
    assert bool((interval.lower <= values.amin(0)).all())
    assert bool((interval.upper >= values.amax(0)).all())


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("steps", [0, 4])
def test_classification_agrees_with_the_loop(monkeypatch: pytest.MonkeyPatch, steps: int, shift: bool) -> None:
    members = tuple(dense((3, 9, 7, 4), seed, task="classification", shift=shift) for seed in range(6))
    ensemble, box, options = Ensemble(members, weights(6)), boxes(4, 3, eps=0.1), Options(optimise=steps)
    label = torch.tensor([0, 1, 2, 3])
    rows = decision_rows(label, 4)[0]
    together = (
        mixture_classes(ensemble, box, options, together=9)[0],
        mixture_bound(ensemble, box, rows, label, options, together=9),
    )
    monkeypatch.setattr(mixture_softmax, "_stacks", lambda options: False)
    loop = mixture_classes(ensemble, box, options)[0], mixture_bound(ensemble, box, rows, label, options)
    torch.testing.assert_close(together[0].lower, loop[0].lower, rtol=0, atol=1e-10)
    torch.testing.assert_close(together[0].upper, loop[0].upper, rtol=0, atol=1e-10)
    torch.testing.assert_close(together[1], loop[1], rtol=0, atol=1e-10)
    p = torch.einsum("k,kpbo->pbo", ensemble.probabilities, exact(ensemble, points_of(box, 100)).softmax(-1))
    assert bool((together[0].lower <= p.amin(0)).all())
    assert bool((together[0].upper >= p.amax(0)).all())
    assert bool((together[1] <= torch.einsum("brc,pbc->pbr", rows, p).amin(0)).all())


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_the_number_of_members_together_does_not_matter(task: str) -> None:
    members = tuple(dense((2, 8, 3), seed, task=task, activation=Tanh()) for seed in range(7))
    ensemble, box = Ensemble(members, weights(7)), boxes(5, 2)
    label, found = torch.zeros(5, dtype=torch.int64), []
    for together in (1, 2, 3, 100):
        if task == "classification":
            rows = decision_rows(label, 3)[0]
            ends, _ = mixture_classes(ensemble, box, Options(), together=together)
            bound = mixture_bound(ensemble, box, rows, label, Options(), together=together)
            found.append(torch.cat([ends.lower, ends.upper, bound], 1))
        else:
            few = Options(memory=max(2**20, together * 2**20))
            ends = one_pass(ensemble, box, few)[1]
            found.append(torch.cat([ends.lower, ends.upper], 1))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-12)


def test_mixed_architectures_and_random_members() -> None:
    """Two groups of dense members, one that is random and one with a convolution, against exact and sampled values."""
    kernel = Conv2d(draw(2, 1, 2, 2, seed=3), torch.zeros(2, 1, 2, 2), draw(2, seed=4), torch.zeros(2))
    image = (kernel, Relu(), Flatten(), Linear.fixed(draw(2, 2, seed=5)))
    last = Linear(draw(2, 5, seed=6), torch.full((2, 5), 0.2), draw(2, seed=7), torch.full((2,), 0.1))
    random = (Linear.fixed(draw(5, 4, seed=8)), Relu(), last)
    plain = [dense((4, 6, 2), seed) for seed in range(3)] + [dense((4, 5, 5, 2), seed) for seed in range(2)]
    vectors = Ensemble((*plain, BayesianNetwork(random)), weights(6))
    assert [len(group) for group in vectors.alike] == [3, 2, 1]
    box = boxes(3, 4)
    found = certify(vectors, box)
    still = BayesianNetwork((*random[:2], Linear.fixed(last.weight_mean, last.bias_mean)))  # the same mean
    truth = exact(Ensemble((*plain, still)), points_of(box, 100))
    values = torch.einsum("k,kpbo->pbo", vectors.probabilities, truth)
    assert bool((found.lower <= values.amin(0)).all())
    assert bool((found.upper >= values.amax(0)).all())
    images = Ensemble((BayesianNetwork(image, input_shape=(1, 2, 2)),) * 2)
    assert images.alike == ((0,), (1,))
    ends = certify(images, box)
    values = exact(images, points_of(box, 100))[0]
    assert bool((ends.lower <= values.amin(0)).all() & (ends.upper >= values.amax(0)).all())


def test_a_single_member_has_the_bounds_of_its_network() -> None:
    for task in ("regression", "classification"):
        network, box = dense((3, 8, 6, 3), 1, task=task), boxes(4, 3, eps=0.05)
        alone, whole = certify(network, box), certify(Ensemble((network,)), box)
        width = alone.upper - alone.lower
        # An ensemble of classifiers may add planes of its margins to what the intervals say: it is never worse.
        assert bool((whole.lower >= alone.lower - NEAR * width - 1e-12).all())
        assert bool((whole.upper <= alone.upper + NEAR * width + 1e-12).all())


def test_refinement_and_variance_of_many_members() -> None:
    ensemble, box = Ensemble(tuple(dense((2, 6, 1), seed) for seed in range(20))), boxes(2, 2, eps=0.3)
    x = points_of(box, 300)
    each = exact(ensemble, x)
    one, refined = certify(ensemble, box), certify(ensemble, box, Options(refine=16))
    assert bool((refined.width < 0.8 * one.width).all())
    assert bool((refined.lower <= each.mean(0).amin(0)).all() & (refined.upper >= each.mean(0).amax(0)).all())
    spread = certify(ensemble, box, quantity="variance")
    truth = each.var(0, correction=0)
    assert bool((spread.lower <= truth.amin(0)).all() & (spread.upper >= truth.amax(0)).all())
    point = Box(box.centre, box.centre)
    there = exact(ensemble, point.lower[None]).var(0, correction=0)[0]
    torch.testing.assert_close(certify(ensemble, point, quantity="variance").upper, there, rtol=1e-9, atol=1e-9)


# Rounding


def rational(network: BayesianNetwork, x: Sequence[float]) -> Fraction:
    """The output at x in exact arithmetic."""
    z = [Fraction(v) for v in x]
    for layer in network.layers:
        if isinstance(layer, Linear):
            pairs = zip(layer.weight_mean.tolist(), layer.bias_mean.tolist(), strict=True)
            z = [sum((Fraction(w) * v for w, v in zip(row, z, strict=True)), Fraction(b)) for row, b in pairs]
        else:
            z = [max(v, Fraction(0)) for v in z]
    return z[0]


@pytest.mark.parametrize("scale", [1.0, 1e9, 1e-120])
def test_bounds_at_a_point_hold_the_exact_value_though_terms_cancel(scale: float) -> None:
    members = []
    for seed in range(12):
        first = scale * draw(6, 3, seed=seed)
        last = draw(1, 6, seed=seed + 20)
        # The mean over pairs of members is what rounding leaves of terms that are 1e9 times as large.
        sign = 1.0 if seed % 2 else -1.0
        bias = torch.tensor([sign * 1e9 * scale / 3], dtype=F64)
        members.append(BayesianNetwork((Linear.fixed(first), Relu(), Linear.fixed(last, bias))))
    ensemble = Ensemble(tuple(members))
    assert len(ensemble.alike) == 1
    x = draw(5, 3, seed=2)
    found = certify(ensemble, Box(x, x))
    for low, high, point in zip(found.lower[:, 0].tolist(), found.upper[:, 0].tolist(), x.tolist(), strict=True):
        truth = sum(
            (Fraction(w) * rational(m, point) for m, w in zip(members, ensemble.probabilities.tolist(), strict=True)),
            Fraction(0),
        )
        assert Fraction(low) <= truth <= Fraction(high)
        assert high - low <= 1e-3 * scale  # 1e-12 of the largest terms


def test_the_sum_over_members_is_rounded_outward() -> None:
    """Functions that are known exactly and cancel: what is left are the rounding errors of the sum."""
    count, box = 60, Box(torch.zeros(4, 1), torch.ones(4, 1))
    share = torch.rand(count, generator=torch.Generator().manual_seed(3), dtype=F64)
    share = share / share.sum()
    plane = Affine(1e9 * draw(count * 4, 2, 1, seed=1), 1e9 * draw(count * 4, 2, seed=2))
    every = box[torch.arange(4).repeat(count)]
    found = mixed([(share, AffineBounds(plane, plane, every))], box, 2)
    for at in (0.0, 1.0):
        for b in range(4):
            for row in range(2):
                truth = Fraction(0)
                for k in range(count):
                    slope, level = plane.matrix[4 * k + b, row, 0].item(), plane.offset[4 * k + b, row].item()
                    truth += Fraction(share[k].item()) * (Fraction(slope) * Fraction(at) + Fraction(level))
                for side, sign in ((found.lower, -1), (found.upper, 1)):
                    slope, level = side.matrix[b, row, 0].item(), side.offset[b, row].item()
                    assert sign * (Fraction(slope) * Fraction(at) + Fraction(level) - truth) > 0
    assert bool((found.upper.offset - found.lower.offset <= 1e-3).all())  # 1e-12 of the terms


def test_members_that_overflow_leave_no_bound() -> None:
    big = Linear.fixed(1e200 * draw(3, 2, seed=1).abs()), Linear.fixed(1e200 * draw(2, 3, seed=2))
    broken = BayesianNetwork((big[0], Relu(), big[1]), "classification")
    ensemble = Ensemble((dense((2, 3, 2), 1, task="classification"), broken))
    assert ensemble.alike == ((0, 1),)
    box, label = Box.ball([[1.0, 1.0]], 0.1), torch.tensor([0])
    assert not bool((bound_rows(ensemble, box, decision_rows(label, 2)[0], label, Options()) > 0).any())
    ends, _ = expected_softmax(ensemble, box, Options())
    assert bool((ends.lower >= 0).all() & (ends.upper <= 1).all())
    assert bool((ends.upper - ends.lower >= 0.5).all())  # nothing is known of half of the mixture
    pair = Ensemble(tuple(BayesianNetwork(member.layers) for member in ensemble.members))
    assert certify(pair, box).lower.tolist() == [[-math.inf, -math.inf]]


def test_mean_rows_of_a_stack_are_those_of_each_member() -> None:
    ensemble, box = Ensemble(tuple(dense((3, 7, 5, 2), seed, activation=Tanh()) for seed in range(3))), boxes(2, 3)
    (part,) = parts(ensemble, 3)
    rows = draw(6, 4, 2, seed=1)
    found = mean_rows(part.hidden(part.repeated(box)), rows)
    for k, member in enumerate(part.members):
        own, at = mean_rows(hidden(member, box), rows[2 * k : 2 * k + 2]), slice(2 * k, 2 * k + 2)
        torch.testing.assert_close(found.matrix[at], own.matrix, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(found.offset[at], own.offset, rtol=1e-12, atol=1e-12)
