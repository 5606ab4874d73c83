"""Bounds for most weights against weights that are drawn: how often they fail, and that it is not far less often."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from support import records
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import Relu, Tanh
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.deadline import NEVER
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.propagation.forward import activations_of
from bnndp.engine.protocol import BranchablePass, Deviations, both_signs
from bnndp.geometry.box import Box
from bnndp.layers import WEIGHTED, AveragePool, Concatenate, Conv2d, Dropout, Flatten, Linear, MaxPool, Residual
from bnndp.maths.normal import cdf
from bnndp.network import BayesianNetwork, Layer
from bnndp.tighten.branching import Branching
from bnndp.tighten.hidden_ranges import with_branched_ranges

F64 = torch.float64
DRAWS = 4000


def dense(std: float) -> list[Layer]:
    return [records.linear(5, 3, 1, std), Relu(), records.linear(4, 5, 5, std), Relu(), records.linear(2, 4, 9, std)]


def with_rows(std: float) -> list[Layer]:
    layer = records.correlated(5, 4, 11, shared=False, std=std)
    return [records.linear(4, 3, 1, std), Relu(), layer, Relu(), records.linear(2, 5, 9, std)]


def with_factor(std: float) -> list[Layer]:
    layer = records.correlated(5, 4, 11, shared=True, std=std)
    return [records.linear(4, 3, 1, std), Relu(), layer, Relu(), records.linear(2, 5, 9, std)]


def with_kronecker(std: float) -> list[Layer]:
    layer = records.matrix_normal(5, 4, 11, std=std)
    return [records.linear(4, 3, 1, std), Relu(), layer, Relu(), records.linear(2, 5, 9, std)]


def with_block(std: float) -> list[Layer]:
    inner = (records.linear(4, 4, 21, std), Relu(), records.linear(4, 4, 25, std))
    return [records.linear(4, 3, 1, std), Relu(), Residual(inner), Relu(), records.linear(2, 4, 9, std)]


def side_by_side(std: float) -> list[Layer]:
    branches = ((records.linear(3, 4, 21, std), Relu()), (records.linear(2, 4, 25, std), Relu()))
    return [records.linear(4, 3, 1, std), Relu(), Concatenate(branches), records.linear(2, 5, 9, std)]


def images(std: float) -> list[Layer]:
    first, second = records.conv(3, 1, 31, std=std, padding=1), records.conv(2, 3, 35, std=std)
    return [first, Relu(), AveragePool(2), second, Relu(), Flatten(), records.linear(2, 2, 9, std)]


def maxima(std: float) -> list[Layer]:
    return [records.conv(3, 1, 31, std=std, padding=1), Relu(), MaxPool(2), Flatten(), records.linear(2, 27, 9, std)]


def fixed(n_out: int, n_in: int, seed: int) -> Linear:
    layer = records.linear(n_out, n_in, seed)
    return Linear.fixed(layer.weight_mean, layer.bias_mean)


def fixed_first_and_last(std: float) -> list[Layer]:
    return [fixed(4, 3, 1), Relu(), records.linear(5, 4, 5, std), Relu(), fixed(2, 5, 9)]


def fixed_between(std: float) -> list[Layer]:
    return [records.linear(4, 3, 1, std), Relu(), fixed(5, 4, 5), Relu(), records.linear(2, 5, 9, std)]


KINDS = (
    fixed_first_and_last,
    fixed_between,
    dense,
    with_rows,
    with_factor,
    with_kronecker,
    with_block,
    side_by_side,
    images,
    maxima,
)


def network(kind: object, std: float) -> BayesianNetwork:
    assert callable(kind)
    layers = kind(std)
    shape = (1, 6, 6) if isinstance(layers[0], Conv2d) else None
    return BayesianNetwork(tuple(layers), "classification", input_shape=shape)


def bounds_of(net: BayesianNetwork, box: Box, hidden: float, rows: float) -> MomentPass:
    found = MomentPass.of(net, box).for_most_weights(Deviations(hidden, rows))
    assert found is not None
    return found


def failures(net: BayesianNetwork, found: MomentPass, seed: int) -> Tensor:  # (boxes, rows)
    """How often rows are below their bounds, each at the x of its box where its plane is least."""
    rows = both_signs(net.n_out, found.box)
    planes = found.affine(rows)
    matrix, box = planes.affine.matrix, found.box
    worst = torch.where(matrix > 0, box.lower[:, None], box.upper[:, None])  # (boxes, rows, n)
    values = evaluate(draw_networks(net, DRAWS, seed=seed), worst.flatten(0, 1))
    values = values.unflatten(1, worst.shape[:2])  # (draws, boxes, rows, outputs)
    return ((values * rows).sum(-1) < planes.least).double().mean(0)


@pytest.mark.parametrize("kind", KINDS[:-1], ids=lambda kind: kind.__name__)  # maxima are no linear functions
def test_noise_of_all_layers_is_counted_once(kind: object) -> None:
    """Where all neurons are active and weights hardly vary, rows are Gaussian with the variance that is taken off."""
    net = network(kind, 0.01)
    for layer in net.layers[:-1]:
        for part in [layer, *(each for branch in getattr(layer, "branches", ()) for each in branch)]:
            if isinstance(part, WEIGHTED):
                part.weight_mean.abs_()
                part.bias_mean.add_(6.0)
    box = Box.ball(0.5 * records.normal(2, net.n_in, seed=3), 1e-6)
    found = bounds_of(net, box, 6.0, 1.0)
    assert all(bool((each.lower > 0).all()) for each in found.ranges_of_means)
    often, true = failures(net, found, 7), float(cdf(torch.tensor(-1.0, dtype=F64)))
    assert bool(((often - true).abs() < 6 * (true / DRAWS) ** 0.5).all()), often


@pytest.mark.parametrize("deviations", [1.0, 2.0])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("std", slow_but((0.3, 0.05, 0.6), 0.3))
def test_bounds_fail_for_no_more_weights_than_they_say(kind: object, std: float, deviations: float) -> None:
    net = network(kind, std)
    box = Box.ball(records.normal(4, net.n_in, seed=3), torch.tensor([0.01, 0.1, 0.3, 1.0], dtype=F64))
    often = failures(net, bounds_of(net, box, 6.0, deviations), 8)
    most = 2 * float(cdf(torch.tensor(-deviations, dtype=F64)))
    assert bool((often <= most + 6 * (most / DRAWS) ** 0.5).all()), often


@pytest.mark.parametrize("kind", KINDS[:4], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("branched", [False, True])
def test_ranges_hold_also_where_some_layers_do_not_vary(kind: object, *, branched: bool) -> None:
    """Of every hidden layer, at the corners of the boxes: 3 deviations, and twice the share of a Gaussian beyond."""
    net = network(kind, 0.3)
    box = Box.ball(records.normal(3, 3, seed=3), torch.tensor([0.01, 0.1, 0.5], dtype=F64))
    found: BranchablePass = bounds_of(net, box, 3.0, 3.0)
    if branched:
        found, _ = with_branched_ranges(found, Branching(4, 5, 3, 256, NEVER))
    most = 2 * float(cdf(torch.tensor(-3.0, dtype=F64)))
    corners = torch.where(records.normal(8, 1, 3, seed=1) > 0, box.lower, box.upper)  # (corners, boxes, n)
    for number, known in enumerate(found.ranges_of_means):
        below = BayesianNetwork(tuple(net.layers[: 2 * number + 1]), "classification")
        values = evaluate(draw_networks(below, DRAWS, seed=number), corners.flatten(0, 1)).unflatten(
            1, corners.shape[:2]
        )
        bounds_below = sum(2 * each.lower.shape[1] for each in found.ranges_of_means[:number])  # may fail, too
        for outside in (values < known.lower, values > known.upper):
            often = outside.double().mean(0)
            assert bool((often <= most * (1 + bounds_below) + 6 * (most / DRAWS) ** 0.5).all()), often.amax()


@pytest.mark.parametrize("smooth", [False, True])
def test_ranges_of_hidden_values_hold_for_most_weights(*, smooth: bool) -> None:
    sizes, std, deviations = (3, 6, 5, 4, 2), 0.2, 2.0
    layers: list[Layer] = []
    for i, (n_in, n_out) in enumerate(pairwise(sizes)):
        layers += [records.linear(n_out, n_in, 10 * i, std), Tanh() if smooth else Relu()]
    net = BayesianNetwork(tuple(layers[:-1]), "classification")
    box = Box.ball(records.normal(3, 3, seed=3), torch.tensor([0.01, 0.1, 0.5], dtype=F64))
    for number in range(1, 3):
        # ranges below that fail for next to no weights, and those of this layer for a share
        below = MomentPass.of(net, box).for_most_weights(Deviations(6.0, deviations))
        assert below is not None
        part = BayesianNetwork(tuple(layers[: 2 * number + 1]), "classification")
        often = failures(part, bounds_of(part, box, 6.0, deviations), 9)
        most = 2 * float(cdf(torch.tensor(-deviations, dtype=F64)))
        assert bool((often <= most + 6 * (most / DRAWS) ** 0.5).all())
        known = below.ranges_of_means[number]
        values = evaluate(draw_networks(part, DRAWS, seed=number), box.centre)
        outside = (values < known.lower) | (values > known.upper)
        assert not bool(outside.any())


def test_cells_of_signs_hold_for_most_weights() -> None:
    """On each side of a hidden value the rows hold where it has that sign: pathwise, for the same weights."""
    net = network(dense, 0.2)
    box, rows = Box.ball(records.normal(3, 3, seed=3), 0.3), both_signs(2, Box([[0.0] * 3], [[1.0] * 3]))
    root = bounds_of(net, box, 6.0, 4.0)
    drawn = draw_networks(net, DRAWS, seed=5)
    first = BayesianNetwork(tuple(net.layers[:1]), "classification")
    for neuron in range(5):
        values = evaluate(draw_networks(first, DRAWS, seed=5), box.centre)[..., neuron]
        outputs = evaluate(drawn, box.centre)  # the first layer is drawn first, from the same seed
        for side in (-1, 1):
            signs = tuple(torch.zeros(3, width, dtype=torch.int8) for width in root.widths)
            signs[0][:, neuron] = side
            cells = root.restricted(torch.arange(3), signs)
            least = cells.least(rows)
            inside = ((side * values > 0) & ~cells.empty)[..., None]
            failed = inside & (outputs @ rows.mT < least)
            assert float(failed.double().mean(0).amax()) < 1e-3
            assert not bool((cells.empty & ((side * values > 0).double().mean(0) > 1e-3)).any())


def test_there_are_none_without_variance_or_with_other_noise() -> None:
    box = Box([[0.0] * 3], [[1.0] * 3])
    fixed = BayesianNetwork((Linear.fixed(torch.ones(2, 3)), Relu(), Linear.fixed(torch.ones(2, 2))), "classification")
    dropped = BayesianNetwork(
        (records.linear(4, 3, 1), Relu(), Dropout(0.1), records.linear(2, 4, 5)), "classification"
    )
    for net in (fixed, dropped):
        assert MomentPass.of(net, box).for_most_weights(Deviations(5.0, 5.0)) is None


def test_their_outputs_do_not_vary() -> None:
    found = bounds_of(network(dense, 0.2), Box([[0.0] * 3], [[1.0] * 3]), 5.0, 5.0)
    unit = torch.eye(2, dtype=F64)[None]
    assert not found.random
    assert not found.variance(unit).any()
    assert not found.covariance(unit, unit).any()


def test_the_spread_of_a_layer_is_at_most_what_is_taken_for_it() -> None:
    """Of chains of single neurons, whose values get to the ends of their ranges, and of a wider network."""
    for sizes in ((2, 1, 3, 2), (2, 3, 4, 2)):
        layers: list[Layer] = []
        for i, (n_in, n_out) in enumerate(pairwise(sizes)):
            layers += [records.linear(n_out, n_in, 50 + 10 * i, 0.1), Relu()]
        net = BayesianNetwork(tuple(layers[:-1]), "classification")
        box = Box.ball(records.normal(1, 2, seed=6), 1.0)
        found = bounds_of(net, box, 6.0, 6.0).hidden
        axis = torch.linspace(0, 1, 9, dtype=F64)
        x = box.lower + torch.cartesian_prod(axis, axis) * (box.upper - box.lower)
        for number, weighted in enumerate(
            (*(node.weighted for node in activations_of(found.nodes).values()), found.output)
        ):
            assert weighted is not None
            assert weighted.own_noise is not None
            z = x[None]
            if number:
                below = BayesianNetwork(tuple(layers[: 2 * number - 1]), "classification")
                z = evaluate(draw_networks(below, DRAWS, seed=number), x).clamp_min(0)
            layer = net.linears[number]
            spread = z.square() @ layer.weight_std.square().mT + layer.bias_std.square()
            most = weighted.own_noise[0]
            assert bool((spread <= most).all())
            assert float((spread / most).amax()) > 0.1
