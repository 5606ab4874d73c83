"""Bounds of the expected softmax against quadrature, exact linear classifiers and networks drawn weight by weight."""

from __future__ import annotations

import pytest
import torch
from support.classifiers import classifier, linear, logistic_mean, random_linear, sampled_softmax
from support.passes import holds
from tests.marks import slow_but

from bnndp.attack import decision_rows
from bnndp.errors import InputError, MagnitudeError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.options import Options
from bnndp.questions import softmax
from bnndp.questions.certify import certify
from bnndp.questions.softmax import bound_rows, expected_softmax

METHODS = ("moment", "partition", "best")


def corners(box: Box) -> torch.Tensor:
    """All corners of each box: (corners, batch, n)."""
    choices = torch.cartesian_prod(*[torch.tensor([0, 1])] * box.n).reshape(-1, 1, box.n)
    return torch.where(choices == 1, box.upper, box.lower)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("std", [1e-3, 0.1, 1.0, 5.0])
def test_two_classes_without_hidden_layers_by_quadrature(std: float, method: str) -> None:
    weight = torch.tensor([[1.0, -0.5], [-0.4, 0.8]], dtype=torch.float64)
    bias = torch.tensor([0.2, 0.0], dtype=torch.float64)
    network = linear(weight, bias)
    layer = network.linears[0]
    noisy = type(layer)(layer.weight_mean, torch.zeros(2, 2), layer.bias_mean, torch.tensor([std, 0.0]))
    network = BayesianNetwork.from_linears([noisy], "classification")
    box = Box.ball([[0.3, 0.1], [-1.0, 2.0], [3.0, 0.0]], 0.2)
    interval, _ = expected_softmax(network, box, Options(method=method))
    at = corners(box) @ (weight[0] - weight[1]) + bias[0] - bias[1]  # the mean margin, (corners, batch)
    for b in range(3):
        truth = [logistic_mean(mean, std) for mean in (at[:, b].min().item(), at[:, b].max().item())]
        for p in truth:  # E sigma(D) rises with the mean margin
            own = Interval(interval.lower[b], interval.upper[b])
            assert holds(own, torch.tensor([p, 1 - p], dtype=torch.float64), 1e-13)
        if std == 1e-3 and method != "partition":  # hardly random: nothing may be lost
            assert interval.lower[b, 0] >= truth[0] - 1e-5
            assert interval.upper[b, 0] <= truth[1] + 1e-5


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_a_linear_network_at_a_point_is_evaluated_exactly(classes: int) -> None:
    network = random_linear(4, classes, classes)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = torch.softmax(x @ network.linears[0].weight_mean.T + network.linears[0].bias_mean, -1)
    bounds = certify(network, Box(x, x))
    assert bool((bounds.lower <= exact + 1e-15).all())
    assert bool((bounds.upper >= exact - 1e-15).all())
    assert bool((bounds.width < 1e-12).all())
    assert bounds.affine is None


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("sizes", "std"),
    [((2, 3), 0.5), ((2, 5, 3), 0.1), *slow_but([((3, 8, 4), 0.6), ((2, 6, 6, 3), 0.1), ((2, 6, 6, 3), 0.8)])],
)
def test_drawn_networks_stay_inside(sizes: tuple[int, ...], std: float, method: str) -> None:
    network = classifier(sizes, 7, std=std)
    centre = torch.randn(3, sizes[0], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    box = Box.ball(centre, torch.tensor([0.0, 0.05, 0.5], dtype=torch.float64))
    interval, _ = expected_softmax(network, box, Options(method=method))
    for x in (*corners(box), box.centre):
        mean, error = sampled_softmax(network, x, 4000, seed=5)
        assert holds(interval, mean, 5 * error + 1e-12)
    assert bool((interval.lower.sum(-1) <= 1).all() & (interval.upper.sum(-1) >= 1).all())
    assert bool(((interval.lower >= 0) & (interval.upper <= 1)).all())
    if std == 0.1:  # a narrow posterior at a point: something is known
        assert bool((interval.upper - interval.lower)[0].max() < 0.5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("std", "eps"), [(0.3, 0.1), (0.02, 0.0)])
def test_rows_are_below_the_sampled_combination(std: float, eps: float, method: str) -> None:
    network = classifier((2, 6, 4), 3, std=std)
    generator = torch.Generator().manual_seed(1)
    box = Box.ball(torch.randn(4, 2, generator=generator, dtype=torch.float64), eps)
    rows = torch.randn(4, 5, 4, generator=generator, dtype=torch.float64)
    label = torch.tensor([0, 1, 2, 3])
    found = bound_rows(network, box, rows, label, Options(method=method))
    assert found.shape == (4, 5)
    for x in (*corners(box), box.centre):
        mean, error = sampled_softmax(network, x, 4000, seed=3)
        value = (rows @ mean[..., None])[..., 0]
        assert bool((found <= value + 5 * (rows.abs() @ error[..., None])[..., 0]).all())


def test_best_is_at_least_as_tight_as_either() -> None:
    network = classifier((2, 6, 3), 1, std=0.3)
    box = Box.ball([[0.1, 0.2], [1.0, -1.0]], 0.05)
    found = {method: expected_softmax(network, box, Options(method=method))[0] for method in METHODS}
    for method in ("moment", "partition"):
        assert bool((found["best"].lower >= found[method].lower).all())
        assert bool((found["best"].upper <= found[method].upper).all())


def test_optimised_planes_hold_and_help() -> None:
    network = classifier((3, 12, 10, 4), 5, std=0.05)
    box = Box.ball([[0.2, 0.1, -0.3]], 0.1)
    once, many = (expected_softmax(network, box, Options(optimise=steps))[0] for steps in (0, 15))
    assert bool((many.upper - many.lower).sum() < (once.upper - once.lower).sum())
    for x in corners(box):
        mean, error = sampled_softmax(network, x, 4000, seed=9)
        assert bool(((many.lower <= mean + 5 * error) & (many.upper >= mean - 5 * error)).all())


def test_cells_of_a_refinement_cover_the_box() -> None:
    network = classifier((2, 6, 3), 2, std=0.1)
    box = Box.ball([[0.1, 0.4], [0.0, 0.0]], 0.3)
    once, refined = certify(network, box), certify(network, box, Options(refine=16))
    assert bool((refined.width <= once.width).all())
    assert bool((refined.width < once.width).any())
    for x in (*corners(box), box.centre):
        mean, error = sampled_softmax(network, x, 4000, seed=4)
        assert bool(((refined.lower <= mean + 5 * error) & (refined.upper >= mean - 5 * error)).all())


def test_little_memory_gives_the_same_bounds() -> None:
    network = classifier((3, 16, 16, 5), 4, std=0.01)
    box = Box.ball(torch.rand(60, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64), 0.01)
    whole, parts = (expected_softmax(network, box, Options(memory=memory)) for memory in (2**30, 2**20))
    assert torch.allclose(whole[0].lower, parts[0].lower, rtol=0, atol=1e-12)
    assert torch.allclose(whole[0].upper, parts[0].upper, rtol=0, atol=1e-12)
    assert whole[1] == parts[1] == ("moment",) * 60


@pytest.mark.parametrize("method", ["moment", "partition", "best"])
@pytest.mark.parametrize("size", [1e9, 1e15, 1e19])
def test_of_large_margins_nothing_is_claimed(size: float, method: str) -> None:
    weight = torch.tensor([[size, -size], [-size, size], [size / 2, size]], dtype=torch.float64)
    network, how = linear(weight, torch.zeros(3), std=size), Options(method=method)
    box = Box.ball([[1.0, 1.0]], 0.1)
    rows = torch.tensor([[[1.0, -1.0, 0.0], [1.0, 0.0, -1.0]]], dtype=torch.float64)
    interval, _ = expected_softmax(network, box, how)
    assert bool(((interval.lower >= 0) & (interval.upper <= 1) & (interval.lower <= interval.upper)).all())
    layer, noise = network.linears[0], torch.randn(4000, 3, 2, generator=torch.Generator().manual_seed(1)).double()
    truth = (layer.weight_mean + layer.weight_std * noise).sum(-1).softmax(-1).mean(0)  # at the centre, without biases
    assert bool(((interval.lower[0] <= truth + 0.05) & (truth - 0.05 <= interval.upper[0])).all())
    assert not bool((bound_rows(network, box, rows, torch.tensor([0]), how) > 0).any())


@pytest.mark.parametrize("size", [2e19, 1e160, 1e300])
def test_beyond_the_range_a_classifier_is_refused(size: float) -> None:
    weight = torch.tensor([[size, -size], [-size, size]], dtype=torch.float64)
    with pytest.raises(MagnitudeError, match=r"weight_mean\[0, 0\] of layer 0 \(linear\)"):
        expected_softmax(linear(weight, torch.zeros(2), std=size), Box.ball([[1.0, 1.0]], 0.1), Options())


def test_wrong_sizes_are_refused() -> None:
    network = classifier((2, 3), 0)
    with pytest.raises(InputError, match="the boxes have 3 inputs, the network takes 2"):
        expected_softmax(network, Box.ball([[0.0, 0.0, 0.0]], 0.1), Options())
    with pytest.raises(InputError, match="at least 2 logits, the network has 1"):
        expected_softmax(classifier((2, 1), 0), Box.ball([[0.0, 0.0]], 0.1), Options())


@pytest.mark.parametrize("several", [False, True])
def test_rows_that_are_no_number_are_no_bound(monkeypatch: pytest.MonkeyPatch, several: bool) -> None:
    network = classifier((2, 4, 3), 1)
    monkeypatch.setattr(softmax, "mixture_rows", lambda _, rows, __: torch.nan * rows[..., 0])
    monkeypatch.setattr(softmax, "row_bound", lambda rows, *_: torch.nan * rows[..., 0])
    label = torch.tensor([0, 1])
    asked = Ensemble((network, classifier((2, 4, 3), 2))) if several else network
    found = bound_rows(asked, Box.ball([[0.2, -0.4], [0.5, 0.1]], 0.01), decision_rows(label, 3)[0], label, Options())
    assert (found == -torch.inf).all()
