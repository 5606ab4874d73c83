"""The backward pass with tangent points of each row: the same planes in every way of asking for them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from flint import arb
from support.oracles import all_below, expected_relu
from torch import Tensor

from bnndp.engine.dense.backward import Choice, backward, least, lower_bound, narrowed, ranges
from bnndp.engine.dense.forward import HiddenLayers, Parameters, hidden_layers
from bnndp.engine.dense.records import Relaxation
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

NetworkFactory = Callable[..., BayesianNetwork]
SIZES = [(2, 6, 3), (2, 6, 5, 3), (2, 5, 5, 4, 3)]


def asked(layers: HiddenLayers, weight: Tensor, bias: Tensor, tangents: list[Tensor | None]) -> Affine:
    return lower_bound(weight, bias, layers.relaxed, layers.first, layers.box, Choice(tangents))


def same(a: Affine, b: Affine) -> bool:
    return torch.allclose(a.matrix, b.matrix, rtol=1e-12, atol=1e-13) and torch.allclose(
        a.offset, b.offset, rtol=1e-12, atol=1e-12
    )


def test_the_plane_of_a_layer_touches_from_below() -> None:
    """``slope M + offset <= g(M, rho) - loss`` for every tangent point, with equality at ``u = M / rho``."""
    generator = torch.Generator().manual_seed(0)
    rho = torch.rand(1, 40, generator=generator, dtype=torch.float64) * 3
    loss = 0.1 * torch.rand(1, 40, generator=generator, dtype=torch.float64)
    zero = torch.zeros_like(rho)
    relaxation = Relaxation(zero, rho, loss, zero, zero, zero)
    mean = 3 * torch.randn(40, generator=generator, dtype=torch.float64)
    numbers = (t.flatten().tolist() for t in (mean, rho, loss))
    truth = [expected_relu(m, r) - arb(x) for m, r, x in zip(*numbers, strict=True)]
    tangent = 4 * torch.randn(1, 25, 40, generator=generator, dtype=torch.float64)
    slope, offset = relaxation.lower(tangent)
    for row in (slope * mean + offset)[0]:
        assert all_below(row - 1e-14, truth)
    slope, offset = relaxation.lower((mean / rho)[:, None])
    at = (slope * mean + offset)[0, 0].tolist()
    assert all(abs(arb(value) - exact) < 1e-13 for value, exact in zip(at, truth, strict=True))
    slope, offset = relaxation.lower()
    assert slope.shape == offset.shape == (1, 1, 40)


@pytest.mark.parametrize("sizes", SIZES)
def test_default_tangents_may_be_left_out_or_repeated(random_network: NetworkFactory, sizes: tuple[int, ...]) -> None:
    network = random_network(sizes, seed=1, std=0.4)
    box = Box.ball([[0.3, -0.4], [1.0, 0.2]], 0.2)
    layers = hidden_layers(network.linears[:-1], box, Parameters())
    last = network.linears[-1]
    plain = asked(layers, last.weight_mean, last.bias_mean, [])
    points = [layers.first.tangent, *(h.relaxation.tangent for h in layers.chain)]
    rows = [u[:, None].expand(-1, last.n_out, -1) for u in points]
    assert same(plain, asked(layers, last.weight_mean, last.bias_mean, [None] * len(points)))
    assert same(plain, asked(layers, last.weight_mean, last.bias_mean, list(rows)))
    each = last.weight_mean.expand(2, -1, -1), last.bias_mean.expand(2, -1)
    assert same(plain, asked(layers, *each, []))


@pytest.mark.parametrize("sizes", SIZES)
def test_tangents_of_a_row_are_those_of_the_layer_for_this_row(
    random_network: NetworkFactory, sizes: tuple[int, ...]
) -> None:
    """One row at a time with the tangents of the first layer given to the pass itself."""
    network = random_network(sizes, seed=2, std=0.4)
    box = Box.ball([0.3, -0.4], 0.2)
    last, hidden = network.linears[-1], network.linears[:-1]
    layers = hidden_layers(hidden, box, Parameters())
    generator = torch.Generator().manual_seed(0)
    points = [torch.randn(1, 3, k.n_out, generator=generator, dtype=torch.float64) for k in hidden]
    together = asked(layers, last.weight_mean, last.bias_mean, list(points))
    for row in range(3):
        one = asked(
            layers, last.weight_mean[row : row + 1], last.bias_mean[row : row + 1],
            [u[:, row : row + 1] for u in points],
        )  # fmt: skip
        assert same(Affine(together.matrix[:, row : row + 1], together.offset[:, row : row + 1]), one)
    if len(hidden) == 1:
        own = hidden_layers(hidden, box, Parameters(tangents=(points[0][:, 1],)))
        alone = asked(own, last.weight_mean, last.bias_mean, [])
        assert torch.allclose(alone.matrix[:, 1], together.matrix[:, 1], rtol=1e-12)


@pytest.mark.parametrize("sizes", SIZES)
def test_an_upper_bound_is_the_lower_bound_of_the_negated_row(
    random_network: NetworkFactory, sizes: tuple[int, ...]
) -> None:
    network = random_network(sizes, seed=3, std=0.4)
    box = Box.ball([0.3, -0.4], 0.2)
    layers = hidden_layers(network.linears[:-1], box, Parameters())
    last = network.linears[-1]
    both = backward(last, layers.relaxed, layers.first, box)
    low = asked(layers, last.weight_mean, last.bias_mean, [])
    high = asked(layers, -last.weight_mean, -last.bias_mean, [])
    assert same(both.lower, low)
    assert same(both.upper, Affine(-high.matrix, -high.offset))
    assert (both.lower(box.centre) <= both.upper(box.centre)).all()


@pytest.mark.parametrize("rows_of_each", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_least_values_a_few_boxes_at_a_time(monkeypatch: pytest.MonkeyPatch, depth: int, rows_of_each: bool) -> None:
    """The pieces say what the whole says, to rounding; and that is the least value of the affine functions."""
    generator = torch.Generator().manual_seed(depth)

    def layer(n_out: int, n_in: int) -> Linear:
        weight, std = torch.randn(n_out, n_in, generator=generator, dtype=torch.float64), 0.3 / n_in**0.5
        bias = torch.randn(n_out, generator=generator, dtype=torch.float64)
        return Linear(weight, std * torch.rand_like(weight), bias, 0.1 * torch.rand_like(bias))

    hidden, box = (
        [layer(6, 5), layer(7, 6)][:depth],
        Box.ball(torch.randn(11, 5, generator=generator, dtype=torch.float64), 0.2),
    )
    passed, last = hidden_layers(hidden, box, Parameters()), layer(4, hidden[-1].n_out)
    weight, bias = last.weight_mean, last.bias_mean
    if rows_of_each:
        share = torch.rand(11, 1, 1, generator=generator, dtype=torch.float64)
        weight, bias = share * weight, share[..., 0] * bias
    affine = lower_bound(weight, bias, passed.relaxed, passed.first, box)
    whole = least(weight, bias, passed.relaxed, passed.ground)
    assert torch.allclose(whole, box.minimum(affine.matrix, affine.offset), rtol=1e-12, atol=1e-12)
    monkeypatch.setattr("bnndp.engine.dense.backward._CACHED", 8 * 4 * 7 * 3)
    cut = least(weight, bias, passed.relaxed, passed.ground)
    assert torch.allclose(cut, whole, rtol=1e-12, atol=1e-12)
    corner = torch.where(affine.matrix > 0, box.lower[:, None], box.upper[:, None])
    truth = (affine.matrix * corner).sum(-1) + affine.offset
    assert (cut <= truth + 1e-12).all()
    assert torch.allclose(cut, truth, rtol=1e-9, atol=1e-9)
    found = ranges(last, passed.relaxed, passed.ground)
    other = backward(last, passed.relaxed, passed.first, box).interval()
    assert torch.allclose(found.lower, other.lower, rtol=1e-12, atol=1e-12)
    assert torch.allclose(found.upper, other.upper, rtol=1e-12, atol=1e-12)


def _passed(seed: int, batch: int = 11) -> tuple[HiddenLayers, Linear]:
    generator = torch.Generator().manual_seed(seed)

    def layer(n_out: int, n_in: int) -> Linear:
        weight = torch.randn(n_out, n_in, generator=generator, dtype=torch.float64)
        bias = torch.randn(n_out, generator=generator, dtype=torch.float64)
        return Linear(weight, 0.1 * torch.rand_like(weight), bias, 0.1 * torch.rand_like(bias))

    box = Box.ball(torch.randn(batch, 6, generator=generator, dtype=torch.float64), 0.1)
    return hidden_layers([layer(7, 6), layer(5, 7)], box, Parameters()), layer(8, 5)


@pytest.mark.parametrize("rows_of_each", [False, True])
@pytest.mark.parametrize("cached", [8 * 7 * 3, 2**20])
def test_rows_that_are_asked_for(monkeypatch: pytest.MonkeyPatch, cached: int, rows_of_each: bool) -> None:
    """They are those of the whole, whatever goes with them; of the others nothing is said."""
    monkeypatch.setattr("bnndp.engine.dense.backward._CACHED", cached)
    passed, last = _passed(3)
    weight, bias = last.weight_mean, last.bias_mean
    if rows_of_each:
        weight, bias = weight.expand(11, -1, -1), bias.expand(11, -1)
    whole = least(weight, bias, passed.relaxed, passed.ground)
    for share in (0.0, 0.3, 1.0):
        asked_for = torch.rand(11, 8, generator=torch.Generator().manual_seed(4)) < share
        asked_for[2], asked_for[7] = False, share > 0
        found = least(weight, bias, passed.relaxed, passed.ground, asked_for)
        assert torch.allclose(found[asked_for], whole[asked_for], rtol=1e-13, atol=1e-13)
        assert bool((found[~asked_for] == -torch.inf).all())


def test_ranges_are_narrowed_unless_a_neuron_is_dead() -> None:
    passed, last = _passed(5)
    whole = ranges(last, passed.relaxed, passed.ground)
    known = Interval(whole.lower - 1, whole.upper + 1)
    never = torch.full_like(whole.lower, -torch.inf)
    found = narrowed(last, passed.relaxed, passed.ground, known, never)
    assert torch.allclose(found.lower, whole.lower, rtol=1e-13, atol=1e-13)
    assert torch.allclose(found.upper, whole.upper, rtol=1e-13, atol=1e-13)
    # Dead by what is known, dead by the rows, alive: by turns.
    dead = torch.where(torch.arange(8) % 3 == 0, known.upper + 1, torch.where(torch.arange(8) % 3 == 1, 0.0, never))
    dead[:, 1::3] = whole.upper[:, 1::3] + 0.5
    found = narrowed(last, passed.relaxed, passed.ground, known, dead)
    assert bool((found.lower <= whole.lower + 1e-12).all())
    assert bool((found.upper >= whole.upper - 1e-12).all())
    assert bool((found.upper[:, 0::3] <= known.upper[:, 0::3]).all())
    assert torch.allclose(found.upper[:, 1::3], whole.upper[:, 1::3], rtol=1e-13, atol=1e-13)
    assert torch.allclose(found.lower[:, 2::3], whole.lower[:, 2::3], rtol=1e-13, atol=1e-13)


def test_the_least_value_is_rounded_down() -> None:
    """Against exact arithmetic: terms that cancel, of rows whose slopes cancel too, at the edge of wide boxes."""
    generator = torch.Generator().manual_seed(6)
    size = 2.0 ** torch.randint(-8, 9, (9, 12), generator=generator)
    weight = torch.randn(9, 12, generator=generator, dtype=torch.float64) * size
    first = Linear(
        weight, 0.05 * weight.abs(), 30 * torch.randn(9, generator=generator, dtype=torch.float64), size[:, 0].double()
    )
    box = Box.ball(100 * torch.randn(4, 12, generator=generator, dtype=torch.float64), 3.0)
    passed = hidden_layers([first], box, Parameters())
    rows = torch.randn(10, 9, generator=generator, dtype=torch.float64)
    rows[5:] = rows[:5] * (1 + 2.0**-50)
    rows[5:, 0] *= -1
    bias = 1e3 * torch.randn(10, generator=generator, dtype=torch.float64)
    found = least(rows, bias, passed.relaxed, passed.ground)
    planes = passed.first.planes()
    for b in range(4):
        c = [Fraction(v) for v in passed.first.centre[b].tolist()]
        ends = [
            (Fraction(low), Fraction(high))
            for low, high in zip(box.lower[b].tolist(), box.upper[b].tolist(), strict=True)
        ]
        for row in range(10):
            alpha, beta, offset = [], [], Fraction(bias[row].item())
            for i in range(9):
                w = Fraction(rows[row, i].item())
                side, at = (planes.lower, (b, 0, i)) if w > 0 else (planes.upper, (b, i))
                alpha.append(w * Fraction(side.alpha[at].item()))
                beta.append(w * Fraction(side.beta[at].item()))
                offset += w * Fraction(side.offset[at].item()) + alpha[-1] * Fraction(first.bias_mean[i].item())
            least_value = offset
            for j, (low, high) in enumerate(ends):
                slope = sum(
                    alpha[i] * Fraction(first.weight_mean[i, j].item())
                    + beta[i] * Fraction(first.weight_std[i, j].item()) ** 2 * c[j]
                    for i in range(9)
                )
                least_value += min(slope * low, slope * high)
            assert Fraction(found[b, row].item()) <= least_value
            assert float(least_value) - found[b, row].item() <= 1e-9 * (1 + abs(float(least_value))) * 1e3
