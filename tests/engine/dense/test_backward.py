"""Rows carried down to x: the same planes in every way of asking for them, rounded down in exact arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from support.dice import Dice
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.dense.backward import Choice, least, lower_bound, narrowed
from bnndp.engine.dense.dense_pass import DensePass
from bnndp.engine.dense.forward import HiddenLayers
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

NetworkFactory = Callable[..., BayesianNetwork]
SIZES = [(2, 6, 3), (2, 6, 5, 3), (2, 5, 5, 4, 3)]


def asked(layers: HiddenLayers, rows: Linear, tangents: list[Tensor | None]) -> Affine:
    return lower_bound(
        rows.weight_mean, rows.bias_mean, layers.relaxed, layers.first, layers.box, Choice(tangents=tangents)
    )


def same(a: Affine, b: Affine) -> bool:
    return torch.allclose(a.matrix, b.matrix, rtol=1e-12, atol=1e-13) and torch.allclose(
        a.offset, b.offset, rtol=1e-12, atol=1e-12
    )


def passed(seed: int, depth: int = 2) -> tuple[HiddenLayers, Linear]:
    """Hidden layers on eleven boxes, and a layer of eight rows on top of them."""
    dice = Dice(seed)

    def layer(n_out: int, n_in: int) -> Linear:
        weight, bias = dice.normal(n_out, n_in), dice.normal(n_out)
        return Linear(weight, 0.1 * dice.uniform(shape=weight.shape), bias, 0.1 * dice.uniform(shape=bias.shape))

    box, hidden = Box.ball(dice.normal(11, 6), 0.1), [layer(7, 6), layer(5, 7)][:depth]
    return DensePass((*hidden, hidden[-1]), box).layers, layer(8, hidden[-1].n_out)


@pytest.mark.parametrize("sizes", SIZES)
def test_tangents_of_each_row(random_network: NetworkFactory, sizes: tuple[int, ...]) -> None:
    """The usual ones may be left out or repeated; those of one row are not those of another."""
    network = random_network(sizes, seed=1, std=0.4)
    *hidden, last = network.linears
    layers = DensePass((*hidden, hidden[-1]), Box.ball([[0.3, -0.4], [1.0, 0.2]], 0.2)).layers
    plain = asked(layers, last, [])
    points = [layers.first.tangent, *(h.relaxation.tangent for h in layers.chain)]
    assert same(plain, asked(layers, last, [None] * len(points)))
    assert same(plain, asked(layers, last, [u[:, None].expand(-1, last.n_out, -1) for u in points]))
    each = last.weight_mean.expand(2, -1, -1), last.bias_mean.expand(2, -1)
    assert same(plain, lower_bound(*each, layers.relaxed, layers.first, layers.box))
    dice = Dice(0)
    wild = [dice.normal(2, 3, k.n_out) for k in hidden]
    together = asked(layers, last, list(wild))
    for row in range(3):
        one, only = Linear.fixed(last.weight_mean[row : row + 1], last.bias_mean[row : row + 1]), slice(row, row + 1)
        alone = asked(layers, one, [u[:, only] for u in wild])
        assert same(Affine(together.matrix[:, only], together.offset[:, only]), alone)


@pytest.mark.parametrize("rows_of_each", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_least_values_a_few_boxes_at_a_time(monkeypatch: pytest.MonkeyPatch, depth: int, rows_of_each: bool) -> None:
    """The pieces say what the whole says, to rounding; and that is the least value of the affine functions."""
    layers, last = passed(depth, depth)
    box, weight, bias = layers.box, last.weight_mean, last.bias_mean
    if rows_of_each:
        share = Dice(9).uniform(shape=(11, 1, 1))
        weight, bias = share * weight, share[..., 0] * bias
    affine = lower_bound(weight, bias, layers.relaxed, layers.first, box)
    whole = least(weight, bias, layers.relaxed, layers.ground)
    corner = torch.where(affine.matrix > 0, box.lower[:, None], box.upper[:, None])
    truth = (affine.matrix * corner).sum(-1) + affine.offset
    monkeypatch.setattr("bnndp.engine.dense.backward._CACHED", 8 * 4 * 7 * 3)
    for found in (whole, least(weight, bias, layers.relaxed, layers.ground)):
        assert (found <= truth + 1e-12).all()
        assert torch.allclose(found, truth, rtol=1e-9, atol=1e-9)
        assert torch.allclose(found, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows_of_each", [False, True])
@pytest.mark.parametrize("cached", [8 * 7 * 3, 2**20])
def test_rows_that_are_asked_for(monkeypatch: pytest.MonkeyPatch, cached: int, rows_of_each: bool) -> None:
    """They are those of the whole, whatever goes with them; of the others nothing is said."""
    monkeypatch.setattr("bnndp.engine.dense.backward._CACHED", cached)
    layers, last = passed(3)
    weight, bias = last.weight_mean, last.bias_mean
    if rows_of_each:
        weight, bias = weight.expand(11, -1, -1), bias.expand(11, -1)
    whole = least(weight, bias, layers.relaxed, layers.ground)
    for share in (0.0, 0.3, 1.0):
        wanted = torch.rand(11, 8, generator=torch.Generator().manual_seed(4)) < share
        wanted[2], wanted[7] = False, share > 0
        found = least(weight, bias, layers.relaxed, layers.ground, wanted)
        assert torch.allclose(found[wanted], whole[wanted], rtol=1e-13, atol=1e-13)
        assert bool((found[~wanted] == -torch.inf).all())


def test_ranges_are_narrowed_unless_a_neuron_is_dead() -> None:
    layers, last = passed(5)
    weight, bias = last.weight_mean, last.bias_mean
    low, high = (sign * least(sign * weight, sign * bias, layers.relaxed, layers.ground) for sign in (1, -1))
    known, never = Interval(low - 1, high + 1), torch.full_like(low, -torch.inf)
    found = narrowed(last, layers.relaxed, layers.ground, known, never)
    assert torch.allclose(found.lower, low, rtol=1e-13, atol=1e-13)
    assert torch.allclose(found.upper, high, rtol=1e-13, atol=1e-13)
    # Dead by what is known, dead by the rows, alive: by turns.
    dead = torch.where(torch.arange(8) % 3 == 0, known.upper + 1, never)
    dead[:, 1::3] = high[:, 1::3] + 0.5
    found = narrowed(last, layers.relaxed, layers.ground, known, dead)
    assert bool((found.lower <= low + 1e-12).all())
    assert bool((found.upper >= high - 1e-12).all())
    assert bool((found.upper[:, 0::3] <= known.upper[:, 0::3]).all())
    assert torch.allclose(found.upper[:, 1::3], high[:, 1::3], rtol=1e-13, atol=1e-13)
    assert torch.allclose(found.lower[:, 2::3], low[:, 2::3], rtol=1e-13, atol=1e-13)


# Rounding, in rational numbers


def fractions(values: Tensor) -> list[Fraction]:
    return [Fraction(value) for value in values.tolist()]


def dot(a: list[Fraction], b: list[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def test_the_least_value_is_rounded_down() -> None:
    """Terms that cancel, of rows whose slopes cancel too, at the edge of wide boxes."""
    dice = Dice(6)
    size = 2.0 ** torch.randint(-8, 9, (9, 12), generator=dice.generator)
    weight = dice.normal(9, 12) * size
    first = Linear(weight, 0.05 * weight.abs(), 30 * dice.normal(9), size[:, 0].double())
    box = Box.ball(100 * dice.normal(4, 12), 3.0)
    layers = DensePass((first, first), box).layers
    rows = dice.normal(10, 9)
    rows[5:] = rows[:5] * (1 + 2.0**-50)
    rows[5:, 0] *= -1
    bias = 1e3 * dice.normal(10)
    found, planes = least(rows, bias, layers.relaxed, layers.ground), layers.first.planes()
    mean, variance = ([fractions(column) for column in part.T] for part in (first.weight_mean, first.weight_std))
    variance = [[sigma**2 for sigma in column] for column in variance]
    for b in range(4):
        centre, low, high = (fractions(part[b]) for part in (layers.first.centre, box.lower, box.upper))
        for row in range(10):
            alpha, beta, value = [], [], Fraction(bias[row].item())
            for i, w in enumerate(fractions(rows[row])):
                side, at = (planes.lower, (b, 0, i)) if w > 0 else (planes.upper, (b, i))
                alpha.append(w * Fraction(side.alpha[at].item()))
                beta.append(w * Fraction(side.beta[at].item()))
                value += w * Fraction(side.offset[at].item()) + alpha[-1] * Fraction(first.bias_mean[i].item())
            for j in range(12):
                slope = dot(alpha, mean[j]) + dot(beta, variance[j]) * centre[j]
                value += min(slope * low[j], slope * high[j])
            assert Fraction(found[b, row].item()) <= value
            assert float(value) - found[b, row].item() <= 1e-6 * (1 + abs(float(value)))


@pytest.mark.parametrize("size", [1.0, 1e6, 1e12])
@pytest.mark.parametrize("seed", slow_but(range(4), 0))
def test_large_multipliers_are_rounded_down(seed: int, size: float) -> None:
    """On the face of a cell its multiplier counts for nothing, however large: there the rounding shows."""
    dice, n_in, n = Dice(seed), 5, 4
    first = Linear.fixed(dice.uniform(-1, 1, (n, n_in)), dice.uniform(-1, 1, (n,)))
    weight, bias = dice.uniform(-1, 1, (3, n)), dice.uniform(shape=(3,))
    rows, offsets = [fractions(row) for row in first.weight_mean], fractions(first.bias_mean)
    box = Box(torch.full((1, n_in), -1.0), torch.full((1, n_in), 1.0))
    looked_at = 0
    for side in (1, -1):
        signs = torch.tensor([[0, side, 0, 0]], dtype=torch.int8)
        layers = DensePass((first, first), box, (signs,)).layers
        multiplier = side * size * dice.uniform(0.5, 1.5, (1, 3, 1)) * signs.abs()
        found = lower_bound(weight, bias, [], layers.first, box, Choice(multipliers=[multiplier]))
        for _ in range(20):
            x = fractions(dice.uniform(-1, 1, (n_in,)))
            # Onto the face M_1(x) = 0, along the first input, if that stays in the box.
            x[0] -= (dot(rows[1], x) + offsets[1]) / rows[1][0]
            if abs(x[0]) > 1:
                continue
            z = [max(dot(row, x) + b, Fraction(0)) for row, b in zip(rows, offsets, strict=True)]
            for k in range(3):
                truth = dot(fractions(weight[k]), z) + Fraction(bias[k].item())
                assert dot(fractions(found.matrix[0, k]), x) + Fraction(found.offset[0, k].item()) <= truth
                looked_at += 1
    assert looked_at > 10
