"""Networks without variance: the pass holds in exact arithmetic, and is as tight as a plain CROWN written here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnndp import Options, certify
from bnndp.engine import certain
from bnndp.engine.dense import margins as moment_margins
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

Array = NDArray[np.float64]

SIZES = [(2, 3, 2), (3, 8, 2), (2, 6, 5, 3), (5, 16, 12, 4), (3, 7, 8, 6, 2), (2, 5, 5, 5, 5, 3)]


# --- A plain CROWN in numpy, one box and one row at a time. -----------------------------------------------------------


@dataclass(frozen=True)
class Layer:
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
    hidden: list[Layer] = []
    z_low, z_high = low, high
    for linear in network.linears:
        weight, bias = linear.weight_mean.numpy(), linear.bias_mean.numpy()
        own_low = np.array([_row(w, b, hidden, low, high) for w, b in zip(weight, bias, strict=True)])
        own_high = np.array([-_row(-w, -b, hidden, low, high) for w, b in zip(weight, bias, strict=True)])
        if meet and linear is not network.linears[-1]:
            plus, minus = np.maximum(weight, 0), np.minimum(weight, 0)
            coarse_low, coarse_high = plus @ z_low + minus @ z_high + bias, plus @ z_high + minus @ z_low + bias
            signed = (coarse_low >= 0) | (coarse_high <= 0)
            own_low = np.where(signed, coarse_low, np.maximum(own_low, coarse_low))
            own_high = np.where(signed, coarse_high, np.minimum(own_high, coarse_high))
        hidden.append(Layer(weight, bias, own_low, own_high))
        z_low, z_high = np.maximum(own_low, 0), np.maximum(own_high, 0)
    return hidden[-1].low, hidden[-1].high


def _row(row: Array, constant: float, hidden: list[Layer], low: Array, high: Array) -> float:
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
        constant += new @ layer.bias
        row = new @ layer.weight
    return constant + float(np.where(row > 0, row * low, row * high).sum())


def _network(sizes: tuple[int, ...], seed: int, task: str = "regression", std: float = 0.0) -> BayesianNetwork:
    """He-scaled means, all deviations ``std``."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def linear(n_in: int, n_out: int) -> Linear:
        weight, bias = normal(n_out, n_in) * math.sqrt(2 / n_in), normal(n_out)
        return Linear(weight, torch.full_like(weight, std), bias, torch.full_like(bias, std))

    return BayesianNetwork.from_linears((linear(*pair) for pair in itertools.pairwise(sizes)), task)


def _points(batch: int, n: int, seed: int) -> Tensor:
    return torch.randn(batch, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


EPS = [0.01, 0.3, 2.0]


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_same_as_crown_on_these_ranges(sizes: tuple[int, ...], eps: float) -> None:
    """Both are the same function of the same planes: only rounding, below 1e-9 of the width, is between them."""
    network = _network(sizes, seed=len(sizes))
    box = Box.ball(_points(5, sizes[0], seed=3), eps)
    found = certain.bound(network, box).interval()
    for i in range(box.batch):
        ends = crown(network, box.lower[i].numpy(), box.upper[i].numpy(), meet=True)
        low, high = (torch.from_numpy(end) for end in ends)
        slack = 1e-9 * (high - low) + 1e-12  # some of these outputs do not move on the box
        assert ((found.lower[i] - low).abs() <= slack).all()
        assert ((found.upper[i] - high).abs() <= slack).all()


def test_as_tight_as_crown_without_intervals() -> None:
    """Narrower ranges may choose another slope, so that a bound may be looser: seldom."""
    better = []
    for sizes, eps in itertools.product(SIZES, EPS):
        network, box = _network(sizes, seed=11), Box.ball(_points(4, sizes[0], seed=12), eps)
        found = certain.bound(network, box).interval()
        for i in range(box.batch):
            low, high = crown(network, box.lower[i].numpy(), box.upper[i].numpy(), meet=False)
            slack = 1e-9 * (high - low) + 1e-12
            better += [found.lower[i].numpy() >= low - slack, found.upper[i].numpy() <= high + slack]
    assert np.concatenate(better).mean() >= 0.95


@pytest.mark.parametrize("few", [-1.0, 2.0], ids=["all rows", "picked rows"])
@pytest.mark.parametrize("cached", [1, 2**30], ids=["box by box", "at once"])
def test_how_the_work_is_cut_does_not_matter(monkeypatch: pytest.MonkeyPatch, few: float, cached: int) -> None:
    network, box = _network((4, 20, 20, 20, 3), seed=1), Box.ball(_points(9, 4, seed=2), 0.2)
    usual = certain.bound(network, box).interval()
    monkeypatch.setattr(certain, "_FEW", few)
    monkeypatch.setattr(certain, "_CACHED", cached)
    found = certain.bound(network, box).interval()
    slack = 1e-11 * (usual.upper - usual.lower)  # sums in another order
    assert ((found.lower - usual.lower).abs() <= slack).all()
    assert ((found.upper - usual.upper).abs() <= slack).all()


# --- Soundness in exact arithmetic, without tolerance. ----------------------------------------------------------------


def exact(network: BayesianNetwork, x: list[Fraction]) -> list[Fraction]:
    """The outputs of the network at x, in rational numbers."""
    z = x
    for k, linear in enumerate(network.linears):
        z = [max(v, Fraction(0)) for v in z] if k else z
        rows = zip(linear.weight_mean.tolist(), linear.bias_mean.tolist(), strict=True)
        z = [sum((Fraction(w) * v for w, v in zip(row, z, strict=True)), Fraction(b)) for row, b in rows]
    return z


def _corners_and_more(box: Box, i: int, seed: int) -> list[list[Fraction]]:
    """Vertices, centre and a few other points of a box."""
    low, high = ([Fraction(v) for v in end[i].tolist()] for end in (box.lower, box.upper))
    corners = [list(corner) for corner in itertools.product(*zip(low, high, strict=True))]
    rng = np.random.default_rng(seed)
    shares = [[Fraction(1, 2)] * box.n, *([Fraction(float(t)) for t in row] for row in rng.random((6, box.n)))]
    return corners + [[a + t * (b - a) for a, b, t in zip(low, high, share, strict=True)] for share in shares]


def _holds(network: BayesianNetwork, box: Box, seed: int) -> None:
    """Intervals and affine functions hold at every point tried, as real numbers."""
    affine = certain.bound(network, box)
    interval = affine.interval()
    for i in range(box.batch):
        for x in _corners_and_more(box, i, seed):
            for j, value in enumerate(exact(network, x)):
                assert _at_most(interval.lower[i, j], value)
                assert _at_most(-interval.upper[i, j], -value)
                for side, sign in ((affine.lower, 1), (affine.upper, -1)):
                    offset = sign * side.offset[i, j].item()
                    if math.isinf(offset):
                        assert offset < 0
                        continue
                    line = sum(
                        (Fraction(a) * v for a, v in zip(side.matrix[i, j].tolist(), x, strict=True)), Fraction()
                    )
                    assert sign * line + Fraction(offset) <= sign * value


def _at_most(bound: Tensor, value: Fraction) -> bool:
    number = bound.item()
    return number == -math.inf or Fraction(number) <= value  # NaN is no Fraction


@pytest.mark.parametrize("eps", [0.0, 1e-12, 0.05, 1.0])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_holds_in_exact_arithmetic(sizes: tuple[int, ...], eps: float) -> None:
    _holds(_network(sizes, seed=7), Box.ball(_points(2, sizes[0], seed=8), eps), seed=9)


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
    centre = size * _points(2, 2, seed=6)
    _holds(network, Box(centre - 0.1 * centre.abs(), centre + 0.1 * centre.abs()), seed=1)


def test_slopes_that_underflow_meet_large_inputs() -> None:
    network = _scaled(_network((2, 4, 2), seed=5), (1e-170, 1e-170), bias=0.0)  # f is about 1e-40, its slopes 1e-340
    centre = 1e300 * _points(2, 2, seed=6)
    _holds(network, Box(centre - 0.1 * centre.abs(), centre + 0.1 * centre.abs()), seed=1)


def test_overflow_is_an_infinite_end() -> None:
    network = _scaled(_network((2, 4, 4, 2), seed=5), (1e200, 1e200, 1.0))
    box = Box.ball(_points(3, 2, seed=6), 0.1)
    found = certain.bound(network, box).interval()
    assert (found.lower == -torch.inf).all()
    assert (found.upper == torch.inf).all()
    label = torch.zeros(3, 1, dtype=torch.long)
    assert (certain.margins(network, box, label).mean[..., 1] == -torch.inf).all()
    far = _scaled(_network((2, 4, 2), seed=5), (1e155, 1e155))  # only outputs overflow, to either side
    for reference in (label, label + 1):
        own, found_there = int(reference[0]), certain.margins(far, box, reference).mean[:, 0]
        for i in range(3):
            value = exact(far, [Fraction(v) for v in box.centre[i].tolist()])
            assert _at_most(found_there[i, 1 - own], value[own] - value[1 - own])


@pytest.mark.parametrize("norm", [1, 2])
def test_balls_hold_and_help(norm: float) -> None:
    network, x = _network((6, 12, 10, 3), seed=2), _points(4, 6, seed=3)
    ball, box = Box.ball(x, 0.5, norm=norm), Box.ball(x, 0.5)
    found, wide = certain.bound(network, ball).interval(), certain.bound(network, box).interval()
    assert (found.upper - found.lower < wide.upper - wide.lower).all()
    rng = torch.Generator().manual_seed(4)
    step = torch.randn(2000, 4, 6, generator=rng, dtype=torch.float64)
    step *= 0.5 * torch.rand(2000, 4, 1, generator=rng, dtype=torch.float64) ** 0.2
    inside = x + step / torch.linalg.vector_norm(step, ord=norm, dim=-1, keepdim=True).clamp_min(1e-9) * 0.4999
    values = _forward(network, inside)
    assert ((values >= found.lower - 1e-12) & (values <= found.upper + 1e-12)).all()


def _forward(network: BayesianNetwork, x: Tensor) -> Tensor:
    for k, linear in enumerate(network.linears):
        x = (x.clamp_min(0) if k else x) @ linear.weight_mean.T + linear.bias_mean
    return x


# --- Margins and where the pass is used. ------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.0, 0.05, 0.5])
def test_margins_are_outputs_of_a_network_of_differences(eps: float) -> None:
    network = _network((3, 9, 8, 4), seed=1, task="classification")
    box, reference = Box.ball(_points(6, 3, seed=2), eps), torch.tensor([[0, 3]] * 6)
    found = certain.margins(network, box, reference)
    assert (found.variance == 0).all()
    *hidden, output = network.linears
    for column, label in enumerate((0, 3)):
        weight, bias = output.weight_mean[label] - output.weight_mean, output.bias_mean[label] - output.bias_mean
        other = BayesianNetwork.from_linears([*hidden, Linear.fixed(weight, bias)])
        interval = certain.bound(other, box).interval()
        slack = 1e-9 * (interval.upper - interval.lower) + 1e-12
        assert (found.mean[:, column] >= interval.lower - slack).all()
        assert (found.mean[:, column, label] == 0).all()
        for x in _corners_and_more(box, 0, seed=3):
            value = exact(network, x)
            assert all(_at_most(found.mean[0, column, j], value[label] - value[j]) for j in range(4))


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_certify_takes_this_pass_where_nothing_varies(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    box = Box.ball(_points(4, 3, seed=2), 0.1)
    calls: list[str] = []
    for name in ("bound", "margins"):
        monkeypatch.setattr(certain, name, _counted(getattr(certain, name), calls))
    certify(_network((3, 8, 8, 3), 1, task, std=1e-3), box)
    certify(_network((3, 3), 1, task), box)  # no hidden layer: an affine function
    assert calls == []
    certify(_network((3, 8, 8, 3), 1, task), box)
    assert len(calls) == 1


def _counted(function: Callable[..., object], calls: list[str]) -> Callable[..., object]:
    def called(*args: object) -> object:
        calls.append(function.__name__)
        return function(*args)

    return called


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_optimised_planes_are_no_worse(task: str) -> None:
    network, box = _network((3, 12, 12, 3), 4, task), Box.ball(_points(5, 3, seed=2), 0.3)
    once, climbed = certify(network, box), certify(network, box, Options(optimise=10))
    assert ((climbed.lower >= once.lower) & (climbed.upper <= once.upper)).all()
    assert (climbed.width < once.width).any()


def test_at_least_as_tight_as_by_moments() -> None:
    """The general pass by moments has the same planes; its ranges were never better."""
    network, box = _network((5, 20, 20, 4), seed=4, task="classification"), Box.ball(_points(8, 5, seed=2), 0.1)
    reference = torch.arange(4).expand(8, -1)
    ours, theirs = certain.margins(network, box, reference).mean, moment_margins.margins(network, box, reference).mean
    assert (ours >= theirs - 1e-9).double().mean() >= 0.95
