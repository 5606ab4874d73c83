"""Attacks on a decision in a region: exact cases, planted changes, inputs that lie in their region, honest margins."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from support.classifiers import logistic_mean
from support.records import uniform
from tests.marks import slow_but
from torch import Tensor

from bnndp.attack import AttackBudget, evade
from bnndp.attack import search as searching
from bnndp.attack.sampled_softmax import draw_softmax_noise, estimate_softmax
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

NetworkFactory = Callable[..., BayesianNetwork]


def layer(weight: list[list[float]], bias: list[float], std: float = 0.0) -> Linear:
    mean = torch.tensor(weight, dtype=torch.float64)
    offset = torch.tensor(bias, dtype=torch.float64)
    return Linear(mean, torch.full_like(mean, std), offset, torch.full_like(offset, std))


def two_classes(n: int, std: float) -> BayesianNetwork:
    """A random linear classifier."""
    weight = torch.randn(2, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return BayesianNetwork.from_linears([layer(weight.tolist(), [2.0, -1.0], std)], "classification")


def tent(peak: float, h: float, std: float, height: float) -> BayesianNetwork:
    """Class 0 leads by 4 but around ``peak``, where class 1 leads by ``height - 4``; class 2 never does."""
    first = layer([[1.0], [1.0], [1.0]], [h - peak, -peak, -h - peak], std)
    up = [height / h, -2 * height / h, height / h]
    return BayesianNetwork.from_linears([first, layer([[0.0] * 3, up, [0.0] * 3], [4.0, 0.0, -3.0], std)])


def margin_by_quadrature(network: BayesianNetwork, x: Tensor) -> Tensor:
    """``E [p_0 - p_1] = 2 E sigma(D) - 1`` of a linear classifier with two classes: (points,)."""
    (only,) = network.linears
    m = x @ (only.weight_mean[0] - only.weight_mean[1]) + only.bias_mean[0] - only.bias_mean[1]
    s = (x.square() @ only.weight_std.square().T + only.bias_std.square()).sum(-1).sqrt()
    return 2 * torch.tensor(list(map(logistic_mean, m.tolist(), s.tolist())), dtype=torch.float64) - 1


@pytest.mark.parametrize(("norm", "dual"), [(math.inf, 1), (2, 2), (1, math.inf)])
def test_linear_classifiers_reach_the_dual_norm(norm: float, dual: float) -> None:
    network = two_classes(9, 0.0)
    (only,) = network.linears
    centre = torch.linspace(-1, 1, 18, dtype=torch.float64).reshape(2, 9)
    found = evade(network, Box.ball(centre, 0.25, norm=norm), torch.zeros(2, dtype=torch.int64))
    w = only.weight_mean[0] - only.weight_mean[1]
    least = centre @ w + 3 - 0.25 * torch.linalg.vector_norm(w, ord=dual)
    torch.testing.assert_close(found.margin, torch.tanh(least / 2), rtol=1e-6, atol=1e-9)
    assert not found.error.any()
    assert found.rival.tolist() == [1, 1]


def test_an_uncertain_linear_classifier_is_attacked_as_well_as_by_a_grid() -> None:
    network = two_classes(2, 1.0)
    box = Box([[-1.0, -1.0]], [[2.0, 1.0]])
    line = torch.linspace(0, 1, 41, dtype=torch.float64)[:, None]
    ends = box.lower + line * (box.upper - box.lower)
    grid = torch.cartesian_prod(ends[:, 0], ends[:, 1])
    found = evade(network, box, torch.tensor([0]))
    truth = margin_by_quadrature(network, found.x)
    assert truth.item() <= margin_by_quadrature(network, grid).min().item() + 1e-4
    assert 0 < found.error.item() < 0.01
    assert (found.margin - truth).abs().item() <= found.error.item()


@pytest.mark.parametrize("std", [0.0, 1e-4, 0.02])
@pytest.mark.parametrize("peak", [-0.83, -0.01234, 0.377])
def test_a_planted_change_is_found(peak: float, std: float) -> None:
    h = 0.01 if std < 0.01 else 0.1
    box = Box([[-1.0], [-1.0]], [[1.0], [peak - 1.5 * h]])
    found = evade(tent(peak, h, std, 8.0), box, torch.tensor([0, 0]))
    assert found.succeeds.tolist() == [True, False]
    assert abs(found.x[0].item() - peak) < h
    assert found.rival[0].item() == 1
    if std == 0:
        # softmax of (4, 8, -3) at the peak; elsewhere class 0 leads by 4
        best = torch.softmax(torch.tensor([4.0, 8.0, -3.0], dtype=torch.float64), 0)
        assert found.margin[0].item() == pytest.approx((best[0] - best[1]).item(), abs=1e-3)
        assert found.margin[1].item() == pytest.approx(math.tanh(2.0), abs=1e-3)


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
@pytest.mark.parametrize("std", [0.0, 1.0])
def test_inputs_lie_in_their_regions_and_have_the_margins(
    random_network: NetworkFactory, norm: float, std: float
) -> None:
    network = random_network((8, 12, 12, 5), seed=3, std=std)
    centre = uniform(4, 8, seed=1) * 2 - 1
    box = Box.ball(centre, 0.5, norm=norm, domain=(-1, 1))
    clean = estimate_softmax(network, centre, draw_softmax_noise(network, 4096, seed=99)).mean
    label = clean.argmax(-1)
    found = evade(network, box, label)
    assert box.contains(found.x).all()
    fresh = estimate_softmax(network, found.x, draw_softmax_noise(network, 16384, seed=77))
    each = torch.arange(4)
    margins = fresh.replicates[:, each, label] - fresh.replicates[:, each, found.rival]
    error = 5 * margins.std(0) / math.sqrt(len(margins)) if std else 1e-13
    assert ((margins.mean(0) - found.margin).abs() <= error + 5 / 4 * found.error).all()
    before = clean.gather(1, label[:, None])[:, 0] - clean.scatter(1, label[:, None], -1).amax(-1)
    assert (found.margin < before - 0.01).all()


def test_a_piece_of_a_ball_never_gives_an_input_outside() -> None:
    box = Box.ball([[0.0, 0.0]], 1.0, norm=1).split(torch.tensor([0]))[torch.tensor([1])]
    corner = Box(torch.tensor([[0.9, 0.9]]), torch.tensor([[1.0, 1.0]]), box.within)  # misses the ball
    found = evade(two_classes(2, 0.0), corner, torch.tensor([0]))
    assert found.margin.item() == math.inf
    assert not found.succeeds.item()


@pytest.mark.parametrize("std", [0.0, 1.0])
def test_a_box_is_attacked_alike_in_any_batch(random_network: NetworkFactory, std: float) -> None:
    network = random_network((5, 12, 12, 4), seed=3, std=std)
    box = Box.ball(uniform(5, 5, seed=1), 0.3)
    label = torch.tensor([0, 1, 2, 3, 0])
    whole = evade(network, box, label)
    pick = torch.tensor([3, 1])
    part = evade(network, box[pick], label[pick])
    torch.testing.assert_close(part.margin, whole.margin[pick], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(part.x, whole.x[pick], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_pieces_of_both_kinds_come_back_in_order(
    random_network: NetworkFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = random_network((5, 12, 4), seed=3, std=0.2)
    x = uniform(7, 5, seed=1)
    box, label = Box.ball(x, 0.3), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    whole = evade(network, box, label)
    monkeypatch.setattr(searching, "_MEMORY", 1)
    torch.testing.assert_close(evade(network, box, label).x, whole.x, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(searching, "_narrow", lambda network, x: torch.arange(len(x)) % 2 == 0)
    mixed = evade(network, box, label)
    assert box.contains(mixed.x).all()
    torch.testing.assert_close(mixed.x[1::2], whole.x[1::2], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(mixed.margin, whole.margin, rtol=0, atol=0.05)


def test_narrow_posteriors_are_told_from_wide_ones(random_network: NetworkFactory) -> None:
    x = uniform(6, 5, seed=1)
    for std, narrow in ((0.0, True), (1e-3, True), (1.0, False)):
        network = random_network((5, 12, 4), seed=3, std=std)
        assert (searching._narrow(network, x) == narrow).all()


def test_weights_move_the_decision() -> None:
    # Logits (2x, 0): p_0 = sigmoid(2x). Missing class 1 costs nine times as much: decide 0 only where p_0 >= 0.9.
    network = BayesianNetwork.from_linears([layer([[2.0], [0.0]], [0.0, 0.0])])
    weights = torch.tensor([[0.0, 9.0], [1.0, 0.0]], dtype=torch.float64)
    even = math.log(9) / 2
    box = Box([[even + 0.01], [even - 0.01]], [[3.0], [3.0]])
    label = torch.tensor([0, 0])
    found = evade(network, box, label, losses=weights)
    assert found.succeeds.tolist() == [False, True]
    p = 1 / (1 + math.exp(-2 * (even - 0.01)))
    assert found.margin[1].item() == pytest.approx(p - 9 * (1 - p), rel=1e-9)
    assert not evade(network, box, label).succeeds.any()


def test_decisions_of_equal_loss_cannot_be_changed() -> None:
    network = two_classes(3, 0.5)
    found = evade(network, Box.ball([[0.0, 0.0, 0.0]], 9.0), torch.tensor([0]), losses=torch.ones(2, 2))
    assert not found.succeeds.any()


@pytest.mark.parametrize("std", slow_but([0.0, 0.5], 0.0))
def test_more_effort_finds_hardly_more(random_network: NetworkFactory, std: float) -> None:
    network = random_network((12, 24, 24, 6), seed=4, std=std)
    centre = uniform(6, 12, seed=2) * 2 - 1
    box = Box.ball(centre, 0.2)
    label = estimate_softmax(network, centre, draw_softmax_noise(network, 1024, seed=99)).mean.argmax(-1)
    found = evade(network, box, label)
    more = evade(network, box, label, budget=AttackBudget(restarts=24, steps=24, targets=5))
    assert (found.margin <= more.margin + 0.02).all()


@pytest.mark.parametrize(
    ("box", "label", "words"),
    [
        (Box([[0.0]], [[1.0]]), [0], "takes 2 inputs, but the points have 1"),
        (Box([[0.0, 0.0]], [[1.0, 1.0]]), [0, 1], r"one class for each of 1 inputs, got shape \(2,\)"),
        (Box([[0.0, 0.0]], [[1.0, 1.0]]), [4], "label 0 is 4"),
        (Box(torch.zeros(0, 2), torch.ones(0, 2)), [], "batch of inputs is empty"),
    ],
)
def test_what_cannot_be_attacked_is_refused(
    random_network: NetworkFactory, box: Box, label: list[int], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        evade(random_network((2, 3, 4)), box, torch.tensor(label, dtype=torch.int64))
