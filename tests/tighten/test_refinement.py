"""Refinement: true on every cell, never wider, within its limits, and converging to the exact range."""

from __future__ import annotations

import itertools
import math
import time
from fractions import Fraction
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from flint import arb
from support import oracles
from support.dice import Dice
from support.networks import make_network
from support.passes import holds
from tests.engine.truth import pre_activation, relu_mean
from tests.marks import slow_but
from torch import Tensor

from bnndp.files.posterior import load
from bnndp.geometry.bounds import Interval, PiecewiseAffine
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.questions import mean as questions
from bnndp.questions.bounds import Bounds
from bnndp.questions.certify import certify

F64 = torch.float64


def exact_mean(network: BayesianNetwork, x: Tensor) -> Tensor:
    """The mean output of one hidden layer at x (points, n), in float64 by the textbook form."""
    hidden, last = network.linears
    m, s = pre_activation(hidden, x)
    return relu_mean(m, s.sqrt().clamp_min(1e-300)) @ last.weight_mean.T + last.bias_mean


def grid(box: Box, each: int) -> Tensor:
    """A grid on the first box with its ends, without what lies outside a ball: (points, n)."""
    axes = [torch.linspace(a, b, each, dtype=F64) for a, b in zip(box.lower[0], box.upper[0], strict=True)]
    points = torch.cartesian_prod(*axes).reshape(-1, box.n)
    return points if box.within is None else points[box.contains(points[:, None])[:, 0]]


def exact_range(network: BayesianNetwork, box: Box, each: int = 2001) -> Interval:
    """Of the outputs on the first box, up to the grid."""
    values = exact_mean(network, grid(box, each))
    return Interval(values.amin(0), values.amax(0))


def boxes(centres: list[list[float]], radius: float) -> Box:
    centre = torch.tensor(centres, dtype=F64)
    return Box(centre - radius, centre + radius)


def contains(bounds: Bounds, exact: Interval, box: int = 0) -> bool:
    found = Interval(bounds.lower[box], bounds.upper[box])
    return holds(found, exact.lower, 1e-13) and holds(found, exact.upper, 1e-13)


def within(narrow: Bounds, wide: Bounds) -> bool:
    return bool((narrow.lower >= wide.lower).all() & (narrow.upper <= wide.upper).all())


def pieces(bounds: Bounds) -> PiecewiseAffine:
    if bounds.cells is None:
        pytest.fail("a refined result has no cells")
    return bounds.cells


@pytest.mark.parametrize("method", ["moment", "partition", "best"])
@pytest.mark.parametrize("cells", [2, 5, 16])
def test_one_hidden_layer_contains_the_exact_range(method: str, cells: int) -> None:
    network, box = make_network((1, 12, 2), 1), boxes([[0.3], [-1.0]], 0.8)
    once, bounds = (certify(network, box, Options(method=method, refine=count)) for count in (1, cells))
    assert all(contains(bounds, exact_range(network, box[i : i + 1]), i) for i in range(2))
    assert within(bounds, once)
    assert (bounds.width < once.width).all()
    assert torch.equal(bounds.affine.lower.matrix, once.affine.lower.matrix)  # the one of the whole box


@pytest.mark.parametrize("sizes", [(1, 12, 1), (2, 8, 2)])
def test_it_converges_to_the_exact_range(sizes: tuple[int, ...]) -> None:
    """The gap of one hidden layer is of second order in the width of a cell: four times the cells of one input leave a
    tenth of it, sixteen times those of two.
    """
    n = sizes[0]
    network, box = make_network(sizes, 2), boxes([[0.3] * n], 0.8)
    exact = exact_range(network, box, 4001 if n == 1 else 161)
    found = (certify(network, box, Options(refine=cells)) for cells in (1, 4**n, 16**n))
    gaps = [float((bounds.width[0] - (exact.upper - exact.lower)).max()) for bounds in found]
    assert gaps[1] <= 0.4 * gaps[0]
    assert -1e-12 <= gaps[2] <= 0.15 * gaps[1] + (1e-6 if n == 1 else 1e-3)  # of the grid


@pytest.mark.parametrize("method", ["moment", "partition", "best"])
@pytest.mark.parametrize("sizes", [(2, 6, 5, 2), (3, 5, 5, 4, 1)])
def test_deep_networks_are_never_wider(method: str, sizes: tuple[int, ...]) -> None:
    network, box = make_network(sizes, 3), boxes([[0.2] * sizes[0], [-0.5] * sizes[0]], 0.4)
    results = [certify(network, box, Options(method=method, refine=cells)) for cells in (1, 2, 6)]
    assert all(within(narrow, wide) for wide, narrow in itertools.pairwise(results))
    assert (results[-1].width < results[0].width).all()


def volume(lower: list[float], upper: list[float]) -> Fraction:
    return math.prod((Fraction(b) - Fraction(a) for a, b in zip(lower, upper, strict=True)), start=Fraction(1))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_cells_cover_the_boxes_exactly(n: int) -> None:
    """They lie inside their box, do not overlap, and their volumes add up: in rational numbers."""
    network, box = make_network((n, 7, 2), 4), boxes([[0.1] * n, [1.0] * n, [-2.0] * n], 0.7)
    cells = pieces(certify(network, box, Options(refine=9)))
    region = cells.pieces.region
    assert ((region.lower >= box.lower[cells.owner]) & (region.upper <= box.upper[cells.owner])).all()
    for i in range(3):
        own = [(region.lower[c].tolist(), region.upper[c].tolist()) for c in range(region.batch) if cells.owner[c] == i]
        assert 1 <= len(own) <= 9
        for (a, b), (c, d) in itertools.combinations(own, 2):
            assert any(b[k] <= c[k] or d[k] <= a[k] for k in range(n))
        assert sum(volume(*cell) for cell in own) == volume(box.lower[i].tolist(), box.upper[i].tolist())


@pytest.mark.parametrize("method", ["moment", "partition"])
@oracles.precise
def test_the_bounds_of_each_cell_hold_in_it(method: str) -> None:
    """In ball arithmetic at random points and ends of every cell: the affine functions and the interval."""
    network, box = make_network((2, 8, 2), 5), boxes([[0.1, 0.6], [-1.0, 0.3]], 0.6)
    bounds, dice = certify(network, box, Options(method=method, refine=7)), Dice(0)
    cells = pieces(bounds)
    region = cells.pieces.region
    for c in range(region.batch):
        share = dice.uniform(shape=(4, 2))
        share[0] = share[0].round()
        points = torch.lerp(region.lower[c], region.upper[c], share).clamp(region.lower[c], region.upper[c])
        for x in points.tolist():
            for j, truth in enumerate(oracles.exact_mean(network, x)):
                for side, sign in ((cells.pieces.lower, 1), (cells.pieces.upper, -1)):
                    row = side.matrix[c, j].tolist()
                    value = sum((arb(a) * arb(b) for a, b in zip(row, x, strict=True)), arb(side.offset[c, j].item()))
                    assert sign * value <= sign * truth
                assert oracles.below(cells.interval.lower[c, j].item(), truth)
                assert oracles.above(cells.interval.upper[c, j].item(), truth)
    for i in range(2):
        own = cells.owner == i
        assert torch.equal(bounds.lower[i], cells.interval.lower[own].amin(0))
        assert torch.equal(bounds.upper[i], cells.interval.upper[own].amax(0))


@pytest.mark.parametrize("cells", [2, 3, 10, 33])
def test_the_number_of_cells_is_respected_and_used(cells: int) -> None:
    network, box = make_network((1, 20, 1), 6), boxes([[0.0], [0.5], [1.5]], 0.9)
    assert certify(network, box).cells is None
    counts = torch.bincount(pieces(certify(network, box, Options(refine=cells))).owner, minlength=3)
    assert ((counts <= cells) & (counts >= 2)).all()
    assert counts.max() == cells


def test_a_point_is_not_split() -> None:
    network, box = make_network((2, 6, 5, 1), 7), Box([[0.1, 0.2], [0.0, 0.0]], [[0.1, 0.2], [0.5, 0.0]])
    cells = pieces(certify(network, box, Options(refine=8)))
    assert torch.bincount(cells.owner, minlength=2).tolist() == [1, 8]
    assert (cells.pieces.region.lower[cells.owner == 1][:, 1] == 0).all()  # an input without width is never cut


@pytest.mark.parametrize("tolerance", [0.3, 0.03, 0.003])
def test_the_tolerance_stops_and_is_kept(tolerance: float) -> None:
    network, box = make_network((1, 15, 1), 8), boxes([[0.2], [-0.6]], 0.9)
    loose, tight = (certify(network, box, Options(refine=200, tolerance=t)) for t in (tolerance, tolerance / 30))
    for i in range(2):
        exact, slack = exact_range(network, box[i : i + 1], 4001), tolerance + 1e-6
        assert contains(loose, exact, i)
        assert (exact.lower - slack <= loose.lower[i]).all()
        assert (exact.upper + slack >= loose.upper[i]).all()
    few, many = (torch.bincount(pieces(b).owner, minlength=2) for b in (loose, tight))
    assert ((few < 200) & (few < many)).all()


@pytest.mark.parametrize("norm", [1.0, 2.0])
@pytest.mark.parametrize("seed", slow_but([9, 10, 11], 9))
def test_the_tolerance_is_kept_on_balls(norm: float, seed: int) -> None:
    """Cells in the corners of the box lie outside the ball, or have their centre there, which says nothing."""
    network = make_network((2, 10, 1), seed)
    ball = Box.ball(torch.tensor([[0.2, -0.1]], dtype=F64), 0.8, norm=norm)
    bounds, exact = certify(network, ball, Options(refine=2000, tolerance=0.02)), exact_range(network, ball, 401)
    tolerance = 0.02
    assert contains(bounds, exact)
    if pieces(bounds).owner.numel() < 2000:  # it stopped because it was content
        assert bounds.lower[0] >= exact.lower - tolerance - 5e-3
        assert bounds.upper[0] <= exact.upper + tolerance + 5e-3


@pytest.mark.parametrize("norm", [1.0, 2.0])
def test_a_refined_ball_is_no_wider_and_true(norm: float) -> None:
    network = make_network((3, 8, 2), 12)
    ball = Box.ball(torch.tensor([[0.2, -0.1, 0.4]], dtype=F64), 0.5, norm=norm)
    once, fine = (certify(network, ball, Options(refine=cells)) for cells in (1, 12))
    assert within(fine, once)
    assert contains(fine, exact_range(network, ball, 21))


def test_the_clock_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by one second a look, which is looked at a few times in every round."""
    network, box = make_network((1, 10, 1), 13), boxes([[0.3]], 0.9)
    seconds, spy = itertools.count(), Mock(wraps=questions.one_pass)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(questions, "one_pass", spy)
    bounds = certify(network, box, Options(refine=10**6, time_limit=25.5))
    assert 2 < spy.call_count < 25
    assert contains(bounds, exact_range(network, box))


def test_a_short_limit_is_kept() -> None:
    network, box = make_network((2, 20, 1), 14), boxes([[0.3, 0.3]] * 4, 0.9)
    start, once = time.monotonic(), certify(network, box)
    bounds = certify(network, box, Options(refine=10**7, time_limit=0.2))
    assert time.monotonic() - start < 10  # the limit, one round more, and a busy machine
    assert within(bounds, once) or bounds.width.isinf().any()  # of what was not reached nothing is known


def test_boxes_are_refined_as_if_alone() -> None:
    network, box = make_network((2, 8, 1), 15), boxes([[0.3, 0.1], [-0.5, 0.9], [2.0, -1.0]], 0.5)
    together = certify(network, box, Options(refine=6))
    for i in range(3):
        alone = certify(network, box[i : i + 1], Options(refine=6))
        assert torch.allclose(together.lower[i], alone.lower[0], rtol=1e-9, atol=1e-11)
        assert torch.allclose(together.upper[i], alone.upper[0], rtol=1e-9, atol=1e-11)


def test_hidden_values_that_are_too_large_are_refined_to_no_bound() -> None:
    huge = BayesianNetwork.from_linears(
        type(a)(4e9 * a.weight_mean.clamp(-1, 1), a.weight_std, a.bias_mean, a.bias_std)
        for a in make_network((1, 4, 3, 2, 1), 16).linears
    )
    assert (certify(huge, boxes([[1e14]], 0.5), Options(refine=4)).width == torch.inf).all()  # false for NaN


@pytest.mark.parametrize(("cells", "most"), [(1, 0.39), (16, 0.3135), (64, 0.3123)])
def test_the_shared_posterior_of_256_neurons(posteriors: Path, cells: int, most: float) -> None:
    """0.7 +- 0.075: its exact range is 0.3113 wide."""
    path = posteriors / "sine1d_1x256.safetensors"
    if not path.is_file():
        pytest.skip(f"no {path.name} among the shared posteriors")
    sine, box = load(path), Box.ball([0.7], 0.075)
    bounds = certify(sine, box, Options(refine=cells))
    assert bounds.width.item() <= most
    x = grid(box, 4001)
    values = exact_mean(sine, x)
    for at in (values.argmin(), values.argmax()):
        truth = oracles.exact_mean(sine, x[at].tolist())[0]
        assert oracles.below(bounds.lower.item(), truth)
        assert oracles.above(bounds.upper.item(), truth)
