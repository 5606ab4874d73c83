"""Tails of margins by exponential moments, as a whole: draws, and nested quadrature for narrow networks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support.dice import Dice
from tests.engine.tails.cases import Layers, draw, gaussian, inside, lie_above_draws, make, regions, tails
from tests.engine.tails.nested import narrow_box, narrow_layers, nodes, points
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.margins import margins
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.tails.tails import hoped_tails, margin_tails, useful_tails
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.maths.logistic import logistic_tail
from bnndp.network import BayesianNetwork

F64 = torch.float64


@pytest.mark.parametrize("sizes", [(4, 8, 3), (4, 12, 10, 3)])
@pytest.mark.parametrize("radius", slow_but([0.0, 0.02, 0.3], 0.02))
@pytest.mark.parametrize("std", slow_but([0.1, 0.6, 1.5], 0.1, 1.5))
def test_they_lie_above_draws(sizes: tuple[int, ...], radius: float, std: float) -> None:
    layers, box = make(sizes, len(sizes), std=std, margin=5.0), regions(sizes[0], radius, 5)
    label = torch.tensor([0, 0, 1])
    got = tails(layers, box, label)
    assert got.shape == (3, sizes[-1])
    assert all(lie_above_draws(got, layers, x, label, seed=k) for k, x in enumerate(inside(box, 3, 1)))
    if std == 0.1 and radius <= 0.02:
        assert got[:2, 1:].max() < 0.6  # a bound that says something


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("radius", slow_but([0.05, 0.4], 0.05))
def test_they_lie_above_draws_on_balls(norm: int, radius: float) -> None:
    layers, centre = make((12, 10, 8, 3), norm, std=0.3, margin=5.0), Dice(norm).normal(2, 12)
    label = torch.tensor([0, 0])
    box = Box.ball(centre, radius, norm=norm)
    got = tails(layers, box, label)
    x = box.project(centre + 10 * radius * (inside(box, 6, 1) - centre))
    assert box.contains(x).all()
    assert all(lie_above_draws(got, layers, each, label, seed=k) for k, each in enumerate(x))
    assert radius > 0.1 or got[:, 1:].max() < 1


def nested_tail(layers: Layers, label: int, other: int, x: Tensor) -> float:
    """E sigma(-D) at x by quadrature over all hidden layers and the noise of the margin."""
    z, weight = nodes(*gaussian(layers[0], x), reach=9.0, panels=3 if layers[0].n_out == 1 else 2)
    for layer in layers[1:-1]:
        z, share = nodes(*gaussian(layer, z), reach=9.0, panels=3 if layer.n_out == 1 else 2)
        weight, z = (weight[..., None] * share).flatten(), z.flatten(0, -2)
    last = layers[-1]
    mean = z @ (last.weight_mean[label] - last.weight_mean[other]) + last.bias_mean[label] - last.bias_mean[other]
    s = z.square() @ (last.weight_std[label].square() + last.weight_std[other].square())
    s = s + last.bias_std[label].square() + last.bias_std[other].square()
    xi = torch.linspace(-8, 8, 49, dtype=F64)  # the trapezoidal rule converges exponentially
    density = torch.exp(-0.5 * xi.square()) / math.sqrt(2 * math.pi) * (xi[1] - xi[0])
    return (weight * (torch.sigmoid(-(mean[:, None] + s.sqrt()[:, None] * xi)) @ density)).sum().item()


@pytest.mark.parametrize("hidden", slow_but([[1], [2], [1, 1], [2, 1], [1, 2]], [2], [1, 1]))
def test_they_lie_above_nested_quadrature(hidden: list[int]) -> None:
    dice, useful = Dice(len(hidden) * 10 + hidden[0]), 0
    for case in range(4):
        layers, label = narrow_layers(dice, (1 + case % 2, *hidden, 3)), case % 3
        last, lead = layers[-1], torch.zeros(3, dtype=F64)
        lead[label] = 8 * dice.uniform().item()
        layers = (*layers[:-1], Linear(last.weight_mean, last.weight_std, last.bias_mean + lead, last.bias_std))
        box, guess = narrow_box(dice, layers[0].n_in, case >= 2), 6 * dice.normal(1, 3)  # only to choose lambda by
        bound = margin_tails(layers, box, torch.tensor([label]), guess, torch.ones(1, 3, dtype=torch.bool))[0]
        for other in {0, 1, 2} - {label}:
            truth = max(nested_tail(layers, label, other, x) for x in points(box))
            assert bound[other].item() >= truth * (1 - 1e-5), (case, other)
            useful += bound[other].item() < 1
    assert useful >= 4


def test_an_uncertain_posterior_is_decided_where_two_moments_cannot() -> None:
    """Margins of mean about 11 and variance above 2: Cantelli's inequality gives 0.02, this a fifth of it."""
    layers, box = make((4, 40, 30, 3), 0, std=0.7, margin=9.0), regions(4, 0.0, 2, count=1)
    got = tails(layers, box, torch.tensor([0]))
    logits = draw(layers, box.centre[0], 20_000, seed=1)
    margin = logits[:, :1] - logits[:, 1:]
    assert (margin.var(0) > 1).all()
    assert (got[0, 1:] < 0.25 * margin.var(0) / (margin.var(0) + margin.mean(0) ** 2)).all()


@pytest.mark.parametrize("sizes", [(3, 6, 2), (3, 6, 5, 2)])
def test_a_wild_posterior_and_one_without_noise(sizes: tuple[int, ...]) -> None:
    box, label = regions(3, 0.1, 0), torch.tensor([0, 1, 0])
    assert (tails(make(sizes, 0, std=1e4), box, label) == 1).all()
    still = make(sizes, 0, std=0.0, margin=3.0)
    got = tails(still, box[:1], label[:1])
    values = torch.stack([draw(still, x[0], 1, 0)[0] for x in inside(box, 50, 0)])
    assert got[0, 0] == 1
    assert 1 >= got[0, 1] >= torch.sigmoid(values[:, 1] - values[:, 0]).max()
    silent = replace(still[0], weight_std=0 * still[0].weight_std, bias_std=0 * still[0].bias_std)
    noisy = (silent, *make(sizes, 4, margin=3.0)[1:])  # zero deviations in the first layer only
    for radius in (0.0, 0.05):
        box, label = regions(3, radius, 4), torch.zeros(3, dtype=torch.int64)
        got = tails(noisy, box, label)
        assert all(lie_above_draws(got, noisy, x, label, seed=k) for k, x in enumerate(inside(box, 4, 4)))


@pytest.mark.parametrize("value", slow_but([1e8, 1e150], 1e150))
@pytest.mark.parametrize("part", ["weight_mean", "weight_std", "bias_mean", "bias_std"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_huge_parameters_give_no_small_bound(part: str, value: float, which: int) -> None:
    """One parameter is absurd: the answer is 1, or above the tail of draws (the sign may decide the margin)."""
    layers = list(make((3, 5, 4, 2), 1, margin=2.0))
    changed = getattr(layers[which], part).clone()
    changed[0] = value
    layers[which] = replace(layers[which], **{part: changed})
    box, label = regions(3, 0.1, 0), torch.tensor([0, 1, 0])
    got = tails(tuple(layers), box, label, trials=1)
    assert ((got >= 0) & (got <= 1)).all()
    assert lie_above_draws(got + 1e-3, tuple(layers), box.centre, label, count=1000)


def test_chunks_and_pairs_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, box, label = make((4, 8, 6, 3), 2, margin=3.0), regions(4, 0.05, 1), torch.tensor([0, 1, 2])
    whole = tails(layers, box, label, trials=1)
    wanted = torch.tensor([[True, False, True], [False] * 3, [True] * 3])
    some, asked = tails(layers, box, label, wanted, trials=1), wanted.scatter(1, label[:, None], False)
    assert (some[~asked] == 1).all()
    assert torch.allclose(some[asked], whole[asked], rtol=1e-9, atol=0)
    monkeypatch.setattr("bnndp.engine.tails.tails._MOST_NUMBERS", 1)
    assert torch.allclose(whole, tails(layers, box, label, trials=1), rtol=1e-9, atol=0)


def test_a_label_for_every_box() -> None:
    with pytest.raises(InputError, match=r"one class for each of 3 boxes, got shape \(2,\)"):
        tails(make((3, 4, 2), 0), regions(3, 0.1, 0), torch.tensor([0, 1]))


@pytest.mark.parametrize("sizes", [(5, 8, 4), (5, 8, 7, 4)])
def test_useful_tails_are_those_of_the_pairs_that_may_gain(sizes: tuple[int, ...]) -> None:
    """Every bound is one of margin_tails or 1, some are below those from two moments, and no hope was too small."""
    layers, box = make(sizes, 3, std=0.6, margin=9.0), regions(5, 1e-3, 3, count=6)
    label = torch.zeros(6, dtype=torch.int64)
    known = margins(MomentPass.of(BayesianNetwork.from_linears(layers), box), label[:, None], 4)
    mean, variance = known.mean[:, 0], known.variance[:, 0]
    useful = useful_tails(layers, box, label, mean, variance)
    every = margin_tails(layers, box, label, mean, torch.ones_like(mean, dtype=torch.bool))
    assert ((useful == 1) | torch.isclose(useful, every, rtol=1e-9, atol=0)).all()
    usual = logistic_tail(mean, variance)
    assert (useful < usual).any()
    assert torch.allclose(torch.minimum(useful, usual), torch.minimum(every, usual), atol=2e-3)
    assert (hoped_tails(mean, variance) <= torch.minimum(every, usual) + 1e-12).all()
