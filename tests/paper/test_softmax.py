"""Soundness of the bounds of E softmax: exact and sampled means, corners of rectangles, the errata 7 and 8."""

from __future__ import annotations

import gzip
import itertools
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.dice import Dice
from support.passes import holds
from tests.marks import slow_but
from tests.paper.truth import drawn, linear, moments, network_of, points_of, rectified_mean
from torch import Tensor

from bnndp.errors import InputError
from bnndp.files.posterior import load
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.paper.chain import links_of
from bnndp.paper.layers import Layer, Region
from bnndp.paper.partition import main_rectangle
from bnndp.paper.softmax import MASSES, bound_rows, bound_softmax, footprint, least_average

D = torch.float64


def sampled_logits(network: BayesianNetwork, x: Tensor, samples: int, seed: int) -> Tensor:  # x (points, n)
    """Logits of drawn networks, (samples, points, classes)."""
    dice, z = Dice(seed), x.expand(samples, *x.shape)
    for k, layer in enumerate(network.linears):
        z = drawn(layer, z.clamp_min(0) if k else z, dice)
    return z


def logistic_means(centre: float, spread: float, top: float = 12.0) -> Tensor:
    """E[p_1 - p_2], E p_1 and -E p_2 of two logits of a difference N(centre, spread^2), by a fine sum: (3,)."""
    t = torch.linspace(-top, top, 100_001, dtype=D)
    density = torch.exp(-0.5 * t * t)
    p = (torch.sigmoid(centre + spread * t) * density).sum() / density.sum()
    return torch.stack([2 * p - 1, p, p - 1])


ROWS = torch.tensor([[[1.0, -1.0], [1.0, 0.0], [0.0, -1.0]]], dtype=D)


def assert_below(network: BayesianNetwork, box: Box, *, mass: float | None, cells: int, samples: int = 4000) -> None:
    """All bounds of the first box against sampled means at points of it, with five standard errors."""
    found = bound_softmax(network, box, mass=mass, cells=cells)
    n = network.n_out
    for x in points_of(box, 7):
        p = torch.softmax(sampled_logits(network, x[None], samples, 11)[:, 0], -1)
        error = 5 * p.std(0) / samples**0.5 + 1e-9
        assert (found.probability.lower[0] <= p.mean(0) + error).all()
        assert (found.probability.upper[0] >= p.mean(0) - error).all()
        gaps = (p[:, :, None] - p[:, None]).reshape(samples, n * n)
        error = 5 * gaps.std(0) / samples**0.5 + 1e-9
        assert (found.difference[0].flatten() <= gaps.mean(0) + error).all()


# least_average


def vertex_minimum(values: list[float], low: list[float], high: list[float]) -> float:
    """By enumeration of all vertices; the weights are exact fractions."""
    best = math.inf
    for logs in itertools.product(*zip(low, high, strict=True)):
        weights = [Fraction(math.exp(t)) for t in logs]
        total = sum(w * Fraction(v) for w, v in zip(weights, values, strict=True)) / sum(weights)
        best = min(best, float(total))
    return best


@pytest.mark.parametrize("seed", range(30))
def test_least_average_is_that_of_all_vertices(seed: int) -> None:
    dice, n = Dice(seed), 2 + seed % 6
    values = dice.normal(n)
    if seed % 3 == 0:
        values = values.round()  # ties
    low = 6 * dice.normal(n)
    high = low + 4 * dice.uniform(shape=(n,)) * (seed % 4 > 0)
    truth = vertex_minimum(values.tolist(), low.tolist(), high.tolist())
    found = least_average(values, low, high).item()
    assert truth - 1e-11 <= found <= truth + 1e-15
    inner = torch.softmax(low + (high - low) * dice.uniform(shape=(200, n)), -1)
    assert ((inner * values).sum(-1) >= found).all()


def test_least_average_has_the_sharp_forms_of_the_paper() -> None:
    """``(1 - e^-d) / sum e^-d_l`` for a difference, ``1 / sum e^-d_l`` for one class (``al:softmaxIBP``, item 7)."""
    high = torch.tensor([0.0, -1.5, -0.2, -3.0], dtype=D)  # zeta_l - zeta_0 at most
    low = high - 1.0
    total = float(torch.exp(high).sum())
    difference = least_average(torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=D), low * (high != 0), high).item()
    assert difference == pytest.approx((1 - math.exp(-1.5)) / total, abs=1e-11)
    assert least_average(torch.tensor([1.0, 0, 0, 0], dtype=D), low * (high != 0), high).item() == pytest.approx(
        1 / total, abs=1e-11
    )


def test_item_7_a_sum_over_regions_instead_of_classes_is_wrong() -> None:
    """Two regions, three classes with equal logits: the printed denominator has two terms and gives one half."""
    network = BayesianNetwork.from_linears([linear([[0.0]] * 3, [[0.0]] * 3, [1.0] * 3, [0.0] * 3)], "classification")
    printed = math.exp(1) / (math.exp(1) + math.exp(1))
    found = bound_softmax(network, Box([0.0], [1.0])).probability
    assert printed > 1 / 3
    assert (found.lower <= 1 / 3).all()
    assert (found.lower > 1 / 3 - 1e-9).all()
    assert (found.upper < 1 / 3 + 1e-9).all()


@pytest.mark.parametrize(("level", "lead", "printed"), [(0.0, 10.0, True), (-1.0, 5.0, False)])
def test_item_8_the_probability_must_be_that_of_the_whole_chain(level: float, lead: float, printed: bool) -> None:
    """D = lead - 10 z, z = ReLU(N(level, 1)), half of the mass left outside: outside the decision may be lost.

    In the first case the printed form, with the probability of the last layer alone, is sure of itself; in the second z
    is at most 0.15 on the rectangle, and its noise is clipped.
    """
    hidden = linear([[0.0]], [[0.0]], [level], [1.0])
    last = linear([[-10.0], [0.0]], [[0.0], [0.0]], [lead, 0.0], [0.0, 0.0])
    network, box = BayesianNetwork.from_linears([hidden, last], task="classification"), Box([0.0], [0.0])
    truth = float(rectified_mean(lambda z: np.tanh(0.5 * (lead - 10 * z)), level, 1.0))
    if printed:
        ranges = Layer.of(hidden).ranges(Region(box.lower[:, None], box.upper[:, None], box.centre[:, None]))
        assert math.tanh(0.5 * (lead - 10 * main_rectangle(ranges, 0.5).upper.item())) > truth + 0.2
    else:
        assert links_of(network, box, 0.5).end.upper.item() < 0.16
    row = ROWS[:, :1]
    assert bound_rows(network, box, row, mass=0.5).item() < truth
    assert (0 if printed else 0.3 * truth) < bound_rows(network, box, row).item() < truth


# whole bounds


@pytest.mark.parametrize("cells", [2, 5])
@pytest.mark.parametrize("std", slow_but([0.0, 1e-200, 1e-6, 0.3, 3.0, 50.0], 0.0, 0.3, 50.0))
def test_without_hidden_layers_two_classes_are_integrated(std: float, cells: int) -> None:
    for seed in range(2):
        network = network_of((3, 2), seed, std)
        box, (one,) = Box.ball(torch.tensor([-1.0, 0.3, 2.0], dtype=D), 0.05 * seed), network.linears
        truths = []
        for x in points_of(box, seed)[:: 4 if seed else 12]:
            mean, spread = moments(one, x)
            truths.append(logistic_means((mean[0] - mean[1]).item(), spread.square().sum().sqrt().item()))
        for mass in (None, 0.1, 1e-8):
            found = bound_rows(network, box, ROWS, mass=mass, cells=cells)[0]
            assert all((found <= truth + 1e-10).all() for truth in truths)
        if std <= 1e-6 and seed == 0:  # a point and nearly no noise: nothing may be lost
            assert (found >= truths[0] - 2e-5).all()


S = 200.0  # so wide that the sigmoid is a step


@pytest.mark.parametrize("cells", [2, 4])
@pytest.mark.parametrize("mass", [0.5, 0.2, 0.02])
@pytest.mark.parametrize("lead", [0.3, 1.0, 1.3, 2.0, 3.0])
def test_logits_that_are_nothing_but_noise(lead: float, mass: float, cells: int) -> None:
    """From the last layer itself, or from a hidden neuron that is always active: every rectangle may be left."""
    zero, noise = torch.zeros(2, 1, dtype=D), torch.full((2,), S / math.sqrt(2), dtype=D)
    alone = Linear(zero, zero, torch.tensor([lead * S, 0.0], dtype=D), noise)
    hidden = Linear(zero[:1], zero[:1], zero[0] + 10 * S, zero[0] + S)
    bias = torch.tensor([lead * S - 10 * S, 0.0], dtype=D)
    output = Linear(torch.tensor([[1.0], [0.0]]), zero, bias, torch.full((2,), 1e-3, dtype=D))
    for layers, top in (([alone], 10.0), ([hidden, output], 9.9)):
        network, box = BayesianNetwork.from_linears(layers, "classification"), Box([0.0], [0.0])
        found = bound_rows(network, box, ROWS, mass=mass, cells=cells)[0]
        assert (found <= logistic_means(lead * S, S, top) + 2e-4).all()  # the step of the sum


USUAL = [((2, 5, 3), 0.1, 1.0), ((2, 6, 5, 3), 0.05, 0.7), ((4, 6), 0.5, 1.0)]
MORE = [((3, 1, 4), 1.0, 2.0), ((2, 4, 4, 2), 0.5, 1.0), ((3, 5, 4, 4, 3), 0.1, 0.5), ((1, 3, 1, 3, 5), 0.02, 1.0),
        ((2, 3, 3), 30.0, 1.0)]  # fmt: skip


@pytest.mark.parametrize(("mass", "cells"), slow_but([(None, 2), (0.2, 2), (1e-2, 6), (1e-6, 3)], (None, 2), (1e-2, 6)))
@pytest.mark.parametrize(("sizes", "std", "scale"), slow_but([*USUAL, *MORE], *USUAL))
def test_never_tighter_than_the_sampled_mean(
    sizes: tuple[int, ...], std: float, scale: float, mass: float | None, cells: int
) -> None:
    for seed, radius in ((1, 0.0), (2, 0.02), (3, 0.3)):
        centre = 2 * torch.rand(sizes[0], generator=torch.Generator().manual_seed(seed), dtype=D) - 1
        assert_below(network_of(sizes, seed, std, scale), Box.ball(centre, radius), mass=mass, cells=cells)


@pytest.mark.parametrize("norm", [1, 2])
def test_balls_are_tighter_than_boxes_and_hold(norm: float) -> None:
    network = network_of((4, 6, 3), 5, 0.05)
    x = torch.tensor([0.5, -0.5, 0.2, 0.9], dtype=D)
    ball, box = Box.ball(x, 0.3, norm=norm), Box.ball(x, 0.3)
    found, wide = bound_softmax(network, ball), bound_softmax(network, box)
    assert found.difference.sum() > wide.difference.sum() + 1e-3
    direction = Dice(0).normal(40, 4)
    inside = x + 0.299 * direction / torch.linalg.vector_norm(direction, ord=norm, dim=-1, keepdim=True)
    p = torch.softmax(sampled_logits(network, inside, 4000, 3), -1)
    error = 5 * p.std(0) / 4000**0.5
    assert holds(found.probability, p.mean(0), error)


@pytest.mark.parametrize("radius", [0.0, 0.1])
def test_an_ordinary_network(radius: float) -> None:
    """Its bounds hold at the points of a box, and at a point it is evaluated."""
    network, box = network_of((2, 8, 8, 3), 6, 0.0), Box.ball(torch.tensor([0.3, -0.4], dtype=D), radius)
    found = bound_softmax(network, box)
    p = torch.softmax(sampled_logits(network, points_of(box, 1, 2000), 1, 0)[0], -1)
    assert holds(found.probability, p, 0.0)
    assert (found.difference <= p[:, :, None] - p[:, None] + 1e-15).all()
    if radius == 0:
        assert (found.probability.upper - found.probability.lower).max() < 1e-9
        assert (found.difference - (p[:, :, None] - p[:, None])).abs().max() < 1e-9
        assert links_of(network, box, 0.5).outside == 0


@pytest.mark.parametrize("std", [1e8, 1e100, 1e200, 1e300])
def test_huge_deviations_give_the_trivial_bounds_and_never_nan(std: float) -> None:
    for sizes in ((2, 3), (2, 4, 3), (2, 4, 4, 3)):
        found = bound_softmax(network_of(sizes, 1, std), Box([-1.0, 0.5], [1.0, 0.7]), cells=3)
        assert not found.difference.isnan().any()
        assert (found.difference <= 0).all()
        assert (found.difference >= -1 - 1e-9).all()
        assert holds(found.probability, 1 / 3, 0.0)


def test_cells_of_the_logits_are_never_looser_and_here_tighter() -> None:
    """Noise in the last layer only, where the sum over regions of ``prop:decisionLayer`` is what there is to gain."""
    network = BayesianNetwork.from_linears([linear([[1.0], [0.0]], [[0.0], [0.0]], [0.0, 0.0], [3.0, 0.0])])
    found = [bound_rows(network, Box([-0.6], [-0.6]), ROWS[:, 1:2], cells=cells).item() for cells in (2, 3, 9, 33)]
    truth = logistic_means(-0.6, 3.0)[1].item()
    assert found == sorted(found)
    assert found[0] < 0.8 * truth
    assert 0.9 * truth < found[-1] < truth


def test_any_row_is_bounded_and_rows_scale() -> None:
    network = network_of((2, 5, 4), 3, 0.1)
    box = Box.ball(torch.tensor([0.2, 0.9], dtype=D), 0.05)
    rows = Dice(1).normal(1, 12, 4)
    found = bound_rows(network, box, rows)
    for x in points_of(box, 3):
        p = torch.softmax(sampled_logits(network, x[None], 4000, 5)[:, 0], -1)
        value = p @ rows[0].T
        assert (found[0] <= value.mean(0) + 5 * value.std(0) / 4000**0.5 + 1e-12).all()
    assert torch.allclose(bound_rows(network, box, 4 * rows), 4 * found, rtol=1e-9)
    assert torch.allclose(bound_rows(network, box, rows + 2), found + 2, rtol=1e-9)
    assert (found >= rows.amin(-1)).all()


def test_a_batch_is_the_boxes_one_by_one() -> None:
    network = network_of((2, 5, 4, 3), 3, 0.1)
    boxes = Box(
        torch.tensor([[-1.0, 0.0], [0.2, 0.2], [1.0, -3.0]]), torch.tensor([[-0.9, 0.0], [0.3, 0.9], [1.1, -2.9]])
    )
    together = bound_softmax(network, boxes, mass=1e-2, cells=4)
    for i in range(3):
        alone = bound_softmax(network, boxes[i : i + 1], mass=1e-2, cells=4)
        assert torch.allclose(together.difference[i], alone.difference[0], rtol=1e-10, atol=1e-10)
        assert torch.allclose(together.probability.upper[i], alone.probability.upper[0], rtol=1e-10, atol=1e-10)


def test_without_a_mass_the_best_of_several_is_taken() -> None:
    network = network_of((2, 5, 4, 3), 8, 0.05)
    box = Box.ball(torch.tensor([0.2, 0.9], dtype=D), 0.02)
    each = torch.stack([bound_softmax(network, box, mass=mass).difference for mass in MASSES])
    assert torch.equal(bound_softmax(network, box).difference, each.amax(0))


def test_mnist_is_certified_beyond_the_authors_radius(posteriors: Path, data_folder: Path) -> None:
    """The authors' code reaches 0.0061 on average on these images; here every image has twice that."""
    network = load(posteriors / "mnist_2x64_vogn.safetensors")
    raw = gzip.decompress((data_folder / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())
    x = torch.from_numpy(np.frombuffer(raw, np.uint8, 10 * 784, 16).astype(np.float64) / 255).reshape(10, 784)
    label = torch.tensor([7, 2, 1, 0, 4, 1, 4, 9, 5, 9])
    found = bound_softmax(network, Box.ball(x, 0.0125, domain=(0, 1)), mass=1e-3)
    certified = found.difference[torch.arange(10), label].amin(-1) >= 0
    assert certified.double().mean() >= 0.9
    wide = bound_softmax(network, Box.ball(x, 0.15, domain=(0, 1)), mass=1e-3)
    assert (wide.difference[torch.arange(10), label].amin(-1) < 0).all()
    assert footprint(network) * 10 < 2**30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mass": 1.0}, "mass must lie"),
        ({"mass": float("nan")}, "mass must lie"),
        ({"cells": 1}, "cells must be"),
        ({"rows": torch.ones(1, 2, 4, dtype=D)}, "rows must have shape"),
        ({"rows": torch.ones(2, 2, 3, dtype=D)}, "rows must have shape"),
        ({"rows": torch.full((1, 1, 3), torch.nan, dtype=D)}, "rows must be finite"),
        ({"rows": torch.ones(1, 1, 3, dtype=torch.float32)}, "rows must be finite float64"),
        ({"box": Box([0.0], [1.0])}, "takes 2 inputs"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "box": Box([0.0, 0.0], [1.0, 1.0]),
        "rows": torch.ones(1, 2, 3, dtype=D),
        "mass": None,
        "cells": 2,
    }
    given |= change
    with pytest.raises(InputError, match=message):
        bound_rows(network_of((2, 4, 3), 0, 0.1), given["box"], given["rows"], mass=given["mass"], cells=given["cells"])
