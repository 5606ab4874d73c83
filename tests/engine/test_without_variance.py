"""Networks without variance: the pass holds in exact arithmetic, and is as tight as a plain CROWN written here."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.dice import Dice
from support.ensembles import outputs
from support.oracles import rational_outputs
from support.passes import ends
from torch import Tensor

from bnndp.activations import HardTanh, LeakyRelu, Relu
from bnndp.engine.laws import mean_matrix
from bnndp.engine.margins import margins
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.nodes import first_layer
from bnndp.engine.propagation import mean_range
from bnndp.engine.protocol import Margins, both_signs
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, Layer

Array = NDArray[np.float64]

SIZES = [(2, 3, 2), (3, 8, 2), (2, 6, 5, 3), (5, 16, 12, 4), (3, 7, 8, 6, 2), (2, 5, 5, 5, 5, 3)]


# --- A plain CROWN in numpy, one box and one row at a time. -----------------------------------------------------------


@dataclass(frozen=True)
class Ranges:
    """Weights, and the range of the pre-activations on the box."""

    weight: Array
    bias: Array
    low: Array
    high: Array


def crown(network: BayesianNetwork, low: Array, high: Array, *, meet: bool) -> tuple[Array, Array]:
    """Lower and upper ends of the outputs over one box.

    With ``meet`` ranges of hidden layers are intersected with interval arithmetic, and left at that where it knows the
    sign; without, they are those of the rows carried down to x alone.
    """
    hidden: list[Ranges] = []
    z_low, z_high = low, high
    for linear in network.linears:
        weight, bias = linear.weight_mean.numpy(), linear.bias_mean.numpy()
        own_low = np.array([_row(w, b, hidden, low, high) for w, b in zip(weight, bias, strict=True)])
        own_high = np.array([-_row(-w, -b, hidden, low, high) for w, b in zip(weight, bias, strict=True)])
        if meet:
            plus, minus = np.maximum(weight, 0), np.minimum(weight, 0)
            coarse_low, coarse_high = plus @ z_low + minus @ z_high + bias, plus @ z_high + minus @ z_low + bias
            signed = ((coarse_low >= 0) | (coarse_high <= 0)) & (linear is not network.linears[-1])
            own_low = np.where(signed, coarse_low, np.maximum(own_low, coarse_low))
            own_high = np.where(signed, coarse_high, np.minimum(own_high, coarse_high))
        hidden.append(Ranges(weight, bias, own_low, own_high))
        z_low, z_high = np.maximum(own_low, 0), np.maximum(own_high, 0)
    return hidden[-1].low, hidden[-1].high


def _row(row: Array, constant: float, hidden: list[Ranges], low: Array, high: Array) -> float:
    """The least value of ``row . z + constant``, z the output of the last hidden layer or x."""
    for layer in reversed(hidden):
        new = np.zeros_like(row)
        for i, m in enumerate(row):
            below, above = layer.low[i], layer.high[i]
            if below >= 0:
                new[i] = m
            elif above > 0 and m >= 0:
                new[i] = m if above > -below else 0.0
            elif above > 0:
                new[i] = m * above / (above - below)
                constant -= m * above * below / (above - below)
        constant += float(new @ layer.bias)
        row = new @ layer.weight
    return constant + float(np.where(row > 0, row * low, row * high).sum())


def _network(sizes: tuple[int, ...], seed: int) -> BayesianNetwork:
    """He-scaled means."""
    dice = Dice(seed)
    pairs = itertools.pairwise(sizes)
    layers = [Linear.fixed(dice.normal(b, a) * math.sqrt(2 / a), dice.normal(b)) for a, b in pairs]
    return BayesianNetwork.from_linears(layers)


def _boxes(batch: int, n: int, eps: float, seed: int = 3) -> Box:
    return Box.ball(Dice(seed).normal(batch, n), eps)


def _ends(network: BayesianNetwork, box: Box) -> Interval:
    return ends(MomentPass.of(network, box), network.n_out)


def _all_margins(bounds: MomentPass, classes: int) -> Margins:
    """Of all classes against all: (batch, classes, classes)."""
    return margins(bounds, torch.arange(classes).expand(bounds.box.batch, -1), classes)


EPS = [0.01, 0.3, 2.0]


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_same_as_crown_on_these_ranges(sizes: tuple[int, ...], eps: float) -> None:
    """Both are the same function of the same planes: only rounding, below 1e-9 of the width, is between them."""
    network, box = _network(sizes, seed=len(sizes)), _boxes(5, sizes[0], eps)
    found = _ends(network, box)
    for i in range(box.batch):
        low, high = map(torch.from_numpy, crown(network, box.lower[i].numpy(), box.upper[i].numpy(), meet=True))
        slack = 1e-9 * (high - low) + 1e-12  # some of these outputs do not move on the box
        assert ((found.lower[i] - low).abs() <= slack).all()
        assert ((found.upper[i] - high).abs() <= slack).all()


def test_as_tight_as_crown_without_intervals() -> None:
    """Narrower ranges may choose another slope, so that a bound may be looser: seldom."""
    better = []
    for sizes, eps in itertools.product(SIZES, EPS):
        network, box = _network(sizes, seed=11), _boxes(4, sizes[0], eps, seed=12)
        found = _ends(network, box)
        for i in range(box.batch):
            low, high = crown(network, box.lower[i].numpy(), box.upper[i].numpy(), meet=False)
            slack = 1e-9 * (high - low) + 1e-12
            better += [found.lower[i].numpy() >= low - slack, found.upper[i].numpy() <= high + slack]
    assert np.concatenate([part.ravel() for part in better]).mean() >= 0.95


@pytest.mark.parametrize("few", [-1.0, 2.0], ids=["all rows", "picked rows"])
@pytest.mark.parametrize("numbers", [1, 2**30], ids=["row by row", "at once"])
def test_how_the_work_is_cut_does_not_matter(monkeypatch: pytest.MonkeyPatch, few: float, numbers: int) -> None:
    network, box = _network((4, 20, 20, 20, 3), seed=1), _boxes(9, 4, 0.2)
    usual = _ends(network, box)
    monkeypatch.setattr(mean_matrix, "MOST", few)
    for module in (first_layer, mean_range):
        monkeypatch.setattr(module, "NUMBERS", numbers)
    found = _ends(network, box)
    slack = 1e-11 * (usual.upper - usual.lower)  # sums in another order
    assert ((found.lower - usual.lower).abs() <= slack).all()
    assert ((found.upper - usual.upper).abs() <= slack).all()


# --- Soundness in exact arithmetic, without tolerance. ----------------------------------------------------------------


def _corners_and_more(box: Box, i: int, seed: int) -> list[list[Fraction]]:
    """Vertices, centre and a few other points of a box."""
    low, high = ([Fraction(v) for v in end[i].tolist()] for end in (box.lower, box.upper))
    corners = [list(corner) for corner in itertools.product(*zip(low, high, strict=True))]
    rng = np.random.default_rng(seed)
    shares = [[Fraction(1, 2)] * box.n, *([Fraction(float(t)) for t in row] for row in rng.random((6, box.n)))]
    return corners + [[a + t * (b - a) for a, b, t in zip(low, high, share, strict=True)] for share in shares]


def _holds(network: BayesianNetwork, box: Box, seed: int) -> None:
    """Ends, affine functions and margins hold at every point tried, as real numbers."""
    found, n = MomentPass.of(network, box), network.n_out
    rows = both_signs(n, box)
    planes, least, every = found.affine(rows).affine, ends(found, n), _all_margins(found, n)
    for i in range(box.batch):
        for x in _corners_and_more(box, i, seed):
            value = rational_outputs(network, x)
            assert all(_at_most(every.mean[i, c, j], value[c] - value[j]) for c in range(n) for j in range(n))
            for j, truth in enumerate([*value, *(-v for v in value)]):
                assert _at_most(least.lower[i, j] if j < n else -least.upper[i, j - n], truth)
                offset = planes.offset[i, j].item()
                if offset != -math.inf:
                    pairs = zip(planes.matrix[i, j].tolist(), x, strict=True)
                    assert sum((Fraction(a) * v for a, v in pairs), Fraction(offset)) <= truth


def _at_most(bound: Tensor, value: Fraction) -> bool:
    number = bound.item()
    return number == -math.inf or Fraction(number) <= value  # NaN is no Fraction


@pytest.mark.parametrize("eps", [0.0, 1e-12, 0.05, 1.0])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_holds_in_exact_arithmetic(sizes: tuple[int, ...], eps: float) -> None:
    _holds(_network(sizes, seed=7), _boxes(2, sizes[0], eps, seed=8), seed=9)


def _scaled(network: BayesianNetwork, scales: tuple[float, ...], bias: float = 1.0) -> BayesianNetwork:
    pairs = zip(network.linears, scales, strict=True)
    return BayesianNetwork.from_linears(Linear.fixed(a.weight_mean * c, a.bias_mean * bias) for a, c in pairs)


@pytest.mark.parametrize(
    "scales",
    [
        (1e-170, 1e-170, 1e300), (1e300, 1e-170, 1e-170), (1e-300, 1e300, 1.0), (1e-160, 1e-160, 1e-160),
        (1e150, 1e150, 1e-300), (1e8, 1e-8, 1e8), (1e200, 1e200, 1.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("size", [1e-150, 1.0, 1e150])
def test_holds_for_hostile_weights(scales: tuple[float, ...], bias: float, size: float) -> None:
    """What underflows may be multiplied by something large later, and what overflows is no bound."""
    network = _scaled(_network((2, 4, 4, 2), seed=5), scales, bias)
    centre = size * Dice(6).normal(2, 2)
    _holds(network, Box(centre - 0.1 * centre.abs(), centre + 0.1 * centre.abs()), seed=1)


def test_slopes_that_underflow_meet_large_inputs() -> None:
    network = _scaled(_network((2, 4, 2), seed=5), (1e-170, 1e-170), bias=0.0)  # f is about 1e-40, its slopes 1e-340
    centre = 1e300 * Dice(6).normal(2, 2)
    _holds(network, Box(centre - 0.1 * centre.abs(), centre + 0.1 * centre.abs()), seed=1)


def test_overflow_is_an_infinite_end() -> None:
    network, box = _scaled(_network((2, 4, 4, 2), seed=5), (1e200, 1e200, 1.0)), _boxes(3, 2, 0.1, seed=6)
    found = _ends(network, box)
    assert (found.lower == -torch.inf).all()
    assert (found.upper == torch.inf).all()
    far = _scaled(_network((2, 4, 2), seed=5), (1e155, 1e155))  # only outputs overflow, to either side
    _holds(far, box, seed=1)


@pytest.mark.parametrize("norm", [1, 2])
def test_balls_hold_and_help(norm: float) -> None:
    network, dice = _network((6, 12, 10, 3), seed=2), Dice(4)
    x = dice.normal(4, 6)
    found, wide = _ends(network, Box.ball(x, 0.5, norm=norm)), _ends(network, Box.ball(x, 0.5))
    assert (found.upper - found.lower < wide.upper - wide.lower).all()
    step = dice.normal(2000, 4, 6) / 6
    step = step * (0.4999 / torch.linalg.vector_norm(step, ord=norm, dim=-1, keepdim=True).clamp_min(0.4999))
    values = outputs(network, x + step)[0]
    assert ((values >= found.lower - 1e-12) & (values <= found.upper + 1e-12)).all()


# --- The other questions. ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.0, 0.05, 0.5])
def test_margins_are_outputs_of_a_network_of_differences(eps: float) -> None:
    network, box = _network((3, 9, 8, 4), seed=1), _boxes(6, 3, eps)
    found, (*hidden, output) = _all_margins(MomentPass.of(network, box), 4), network.linears
    for label in range(4):
        weight, bias = output.weight_mean, output.bias_mean
        difference = Linear.fixed(weight[label] - weight, bias[label] - bias)
        other = _ends(BayesianNetwork.from_linears([*hidden, difference]), box)
        slack = 1e-9 * (other.upper - other.lower) + 1e-12
        assert ((found.mean[:, label] - other.lower).abs() <= slack).all()
        assert (found.mean[:, label, label] == 0).all()


def test_nothing_varies() -> None:
    network, box = _network((3, 8, 8, 3), 1), _boxes(4, 3, 0.1)
    found = MomentPass.of(network, box)
    unknown = Margins(torch.zeros(4, 3), torch.ones(4, 3))
    assert not found.random
    assert not found.variance(both_signs(3, box)).any()
    assert not found.output_variance().upper.any()
    assert (found.tails(torch.arange(4), torch.zeros(4, dtype=torch.int64), unknown) == 1).all()


@pytest.mark.parametrize("activation", [Relu(), HardTanh(), LeakyRelu(0.1)], ids=lambda phi: phi.kind)
def test_a_box_does_not_depend_on_the_others(activation: Layer) -> None:
    """Which rows are carried down is decided box by box: a wide one beside it changes nothing but the order of sums."""
    linears = _network((4, 20, 20, 20, 3), seed=1).linears
    layers = [layer for one in linears for layer in (one, activation)][:-1]
    network, centre = BayesianNetwork(tuple(layers)), Dice(2).normal(6, 4)
    box = Box.ball(centre, torch.tensor([1e-3, 0.01, 0.05, 0.1, 0.3, 2.0], dtype=torch.float64))
    together = _ends(network, box)
    for i in range(box.batch):
        alone = _ends(network, box[i : i + 1])
        slack = 1e-11 * (alone.upper - alone.lower) + 1e-13
        assert ((together.lower[i] - alone.lower[0]).abs() <= slack[0]).all()
        assert ((together.upper[i] - alone.upper[0]).abs() <= slack[0]).all()
