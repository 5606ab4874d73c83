"""Refinement: true on every cell, never wider, within its limits, and converging to the exact range."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from flint import arb, ctx
from support import oracles
from torch import Tensor

from bnndp.files.posterior import load
from bnndp.geometry.bounds import PiecewiseAffine
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.questions import mean as questions
from bnndp.questions.bounds import Bounds
from bnndp.questions.certify import certify

F64 = torch.float64


@pytest.fixture(autouse=True)
def many_bits() -> Iterator[None]:
    with ctx.workprec(oracles.PRECISION):
        yield


def exact_mean(network: BayesianNetwork, x: Tensor) -> Tensor:
    """The mean output of one hidden layer at x (points, n), in float64 by the textbook form."""
    hidden, last = network.linears
    m = x @ hidden.weight_mean.T + hidden.bias_mean
    r = (x**2 @ hidden.weight_std.T**2 + hidden.bias_std**2).sqrt().clamp_min(1e-300)
    u = (m / r).clamp(-40, 40)
    cdf, pdf = 0.5 * torch.special.erfc(-u / math.sqrt(2)), torch.exp(-u * u / 2) / math.sqrt(2 * math.pi)
    return (m * cdf + r * pdf) @ last.weight_mean.T + last.bias_mean


def grid(box: Box, i: int, each: int) -> Tensor:
    """A grid on box i with its ends: (each ** n, n)."""
    axes = [torch.linspace(a, b, each, dtype=F64) for a, b in zip(box.lower[i], box.upper[i], strict=True)]
    return torch.cartesian_prod(*axes).reshape(-1, box.n)


def exact_range(network: BayesianNetwork, box: Box, i: int, each: int = 2001) -> tuple[Tensor, Tensor]:
    values = exact_mean(network, grid(box, i, each))
    return values.amin(0), values.amax(0)


def boxes(centres: list[list[float]], radius: float) -> Box:
    centre = torch.tensor(centres, dtype=F64)
    return Box(centre - radius, centre + radius)


def pieces(bounds: Bounds) -> PiecewiseAffine:
    if bounds.cells is None:
        pytest.fail("a refined result has no cells")
    return bounds.cells


@pytest.mark.parametrize("method", ["moment", "partition", "best"])
@pytest.mark.parametrize("cells", [2, 5, 16])
def test_one_hidden_layer_contains_the_exact_range(random_network: object, method: str, cells: int) -> None:
    network, box = random_network((1, 12, 2), 1), boxes([[0.3], [-1.0]], 0.8)
    once = certify(network, box, Options(method=method))
    bounds = certify(network, box, Options(method=method, refine=cells))
    for i in range(2):
        low, high = exact_range(network, box, i)
        assert (bounds.lower[i] <= low + 1e-13).all()
        assert (bounds.upper[i] >= high - 1e-13).all()
    assert (bounds.lower >= once.lower).all()
    assert (bounds.upper <= once.upper).all()
    assert (bounds.width < once.width).all()
    assert torch.equal(bounds.affine.lower.matrix, once.affine.lower.matrix)  # the one of the whole box


@pytest.mark.parametrize("sizes", [(1, 12, 1), (2, 8, 2)])
def test_it_converges_to_the_exact_range(random_network: object, sizes: tuple[int, ...]) -> None:
    """The gap of one hidden layer is of second order in the width of a cell: four times the cells of one input leave a
    tenth of it, sixteen times those of two.
    """
    n = sizes[0]
    network, box = random_network(sizes, 2), boxes([[0.3] * n], 0.8)
    low, high = exact_range(network, box, 0, 4001 if n == 1 else 161)
    slack = 1e-6 if n == 1 else 1e-3  # of the grid
    gaps = []
    for cells in (1, 4**n, 16**n):
        bounds = certify(network, box, Options(refine=cells))
        gaps.append(float((bounds.width[0] - (high - low)).max()))
    assert gaps[1] <= 0.4 * gaps[0]
    assert gaps[2] <= 0.15 * gaps[1] + slack
    assert gaps[2] >= -1e-12


@pytest.mark.parametrize("method", ["moment", "partition", "best"])
@pytest.mark.parametrize("sizes", [(2, 6, 5, 2), (3, 5, 5, 4, 1)])
def test_deep_networks_are_never_wider(random_network: object, method: str, sizes: tuple[int, ...]) -> None:
    network, box = random_network(sizes, 3), boxes([[0.2] * sizes[0], [-0.5] * sizes[0]], 0.4)
    results = [certify(network, box, Options(method=method, refine=cells)) for cells in (1, 2, 6)]
    for wide, narrow in itertools.pairwise(results):
        assert (narrow.lower >= wide.lower).all()
        assert (narrow.upper <= wide.upper).all()
    assert (results[-1].width < results[0].width).all()


def volume(lower: list[float], upper: list[float]) -> Fraction:
    return math.prod((Fraction(b) - Fraction(a) for a, b in zip(lower, upper, strict=True)), start=Fraction(1))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_cells_cover_the_boxes_exactly(random_network: object, n: int) -> None:
    """They lie inside their box, do not overlap, and their volumes add up: in rational numbers."""
    network, box = random_network((n, 7, 2), 4), boxes([[0.1] * n, [1.0] * n, [-2.0] * n], 0.7)
    cells = pieces(certify(network, box, Options(refine=9)))
    region = cells.pieces.region
    for i in range(3):
        own = [(region.lower[c].tolist(), region.upper[c].tolist()) for c in range(region.batch) if cells.owner[c] == i]
        assert 1 <= len(own) <= 9
        for low, high in own:
            assert (torch.tensor(low, dtype=F64) >= box.lower[i]).all()
            assert (torch.tensor(high, dtype=F64) <= box.upper[i]).all()
        for (a, b), (c, d) in itertools.combinations(own, 2):
            assert any(b[k] <= c[k] or d[k] <= a[k] for k in range(n))
        assert sum(volume(*cell) for cell in own) == volume(box.lower[i].tolist(), box.upper[i].tolist())


@pytest.mark.parametrize("method", ["moment", "partition"])
def test_the_bounds_of_each_cell_hold_in_it(random_network: object, method: str) -> None:
    """In ball arithmetic at random points and ends of every cell: the affine functions and the interval."""
    network, box = random_network((2, 8, 2), 5), boxes([[0.1, 0.6], [-1.0, 0.3]], 0.6)
    bounds = certify(network, box, Options(method=method, refine=7))
    cells = pieces(bounds)
    generator = torch.Generator().manual_seed(0)
    region = cells.pieces.region
    for c in range(region.batch):
        share = torch.rand(4, 2, generator=generator, dtype=F64)
        share[0] = share[0].round()
        points = ((1 - share) * region.lower[c] + share * region.upper[c]).clamp(region.lower[c], region.upper[c])
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


@pytest.mark.parametrize("cells", [1, 2, 3, 10, 33])
def test_the_number_of_cells_is_respected_and_used(random_network: object, cells: int) -> None:
    network, box = random_network((1, 20, 1), 6), boxes([[0.0], [0.5], [1.5]], 0.9)
    bounds = certify(network, box, Options(refine=cells))
    if cells == 1:
        assert bounds.cells is None
        return
    counts = torch.bincount(pieces(bounds).owner, minlength=3)
    assert (counts <= cells).all()
    assert (counts >= 2).all()
    assert counts.max() == cells


def test_a_point_is_not_split(random_network: object) -> None:
    network, box = random_network((2, 6, 5, 1), 7), Box([[0.1, 0.2], [0.0, 0.0]], [[0.1, 0.2], [0.5, 0.0]])
    cells = pieces(certify(network, box, Options(refine=8)))
    counts = torch.bincount(cells.owner, minlength=2)
    assert counts[0] == 1
    assert counts[1] == 8
    flat = cells.pieces.region
    assert (flat.lower[cells.owner == 1][:, 1] == 0).all()  # an input without width is never cut


@pytest.mark.parametrize("tolerance", [0.3, 0.03, 0.003])
def test_the_tolerance_stops_and_is_kept(random_network: object, tolerance: float) -> None:
    network, box = random_network((1, 15, 1), 8), boxes([[0.2], [-0.6]], 0.9)
    loose, tight = (certify(network, box, Options(refine=200, tolerance=t)) for t in (tolerance, tolerance / 30))
    for i in range(2):
        low, high = exact_range(network, box, i, 4001)
        assert (low - tolerance - 1e-6 <= loose.lower[i]).all()
        assert (loose.lower[i] <= low).all()
        assert (high + tolerance + 1e-6 >= loose.upper[i]).all()
        assert (loose.upper[i] >= high).all()
    few, many = (torch.bincount(pieces(b).owner, minlength=2) for b in (loose, tight))
    assert (few < 200).all()
    assert (few < many).all()


@pytest.mark.parametrize("norm", [1.0, 2.0])
@pytest.mark.parametrize("seed", [9, 10, 11])
def test_the_tolerance_is_kept_on_balls(random_network: object, norm: float, seed: int) -> None:
    """Cells in the corners of the box have their centre outside the ball: it says nothing about the range there."""
    network = random_network((2, 10, 1), seed)
    ball = Box.ball(torch.tensor([[0.2, -0.1]], dtype=F64), 0.8, norm=norm)
    tolerance = 0.02
    bounds = certify(network, ball, Options(refine=2000, tolerance=tolerance))
    points = grid(ball, 0, 401)
    inside = points[ball.contains(points[:, None])[:, 0]]
    values = exact_mean(network, inside)
    low, high = values.amin(0), values.amax(0)
    assert bounds.lower[0] <= low
    assert bounds.upper[0] >= high
    count = pieces(bounds).owner.numel()
    if count < 2000:  # it stopped because it was content
        assert bounds.lower[0] >= low - tolerance - 5e-3
        assert bounds.upper[0] <= high + tolerance + 5e-3


@pytest.mark.parametrize("norm", [1.0, 2.0])
def test_a_refined_ball_is_no_wider_and_true(random_network: object, norm: float) -> None:
    network = random_network((3, 8, 2), 12)
    ball = Box.ball(torch.tensor([[0.2, -0.1, 0.4]], dtype=F64), 0.5, norm=norm)
    once, fine = (certify(network, ball, Options(refine=cells)) for cells in (1, 12))
    assert (fine.lower >= once.lower).all()
    assert (fine.upper <= once.upper).all()
    points = grid(ball, 0, 21)
    inside = exact_mean(network, points[ball.contains(points[:, None])[:, 0]])
    assert (fine.lower[0] <= inside + 1e-13).all()
    assert (fine.upper[0] >= inside - 1e-13).all()


def test_the_clock_stops_it(random_network: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by one second a look, which is looked at a few times in every round."""
    network, box = random_network((1, 10, 1), 13), boxes([[0.3]], 0.9)
    seconds = itertools.count()
    rounds: list[int] = []
    one_pass = questions._one_pass
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(questions, "_one_pass", lambda *args: rounds.append(1) or one_pass(*args))
    bounds = certify(network, box, Options(refine=10**6, time_limit=12.5))
    assert 2 < len(rounds) < 12
    low, high = exact_range(network, box, 0)
    assert bounds.lower[0] <= low
    assert bounds.upper[0] >= high


def test_a_short_limit_is_kept(random_network: object) -> None:
    network, box = random_network((2, 20, 1), 14), boxes([[0.3, 0.3]] * 4, 0.9)
    start = time.monotonic()
    bounds = certify(network, box, Options(refine=10**7, time_limit=0.2))
    assert time.monotonic() - start < 10  # the limit, one round more, and a busy machine
    once = certify(network, box)
    assert (bounds.lower >= once.lower).all()
    assert (bounds.upper <= once.upper).all()


def test_boxes_are_refined_as_if_alone(random_network: object) -> None:
    network, box = random_network((2, 8, 1), 15), boxes([[0.3, 0.1], [-0.5, 0.9], [2.0, -1.0]], 0.5)
    together = certify(network, box, Options(refine=6))
    for i in range(3):
        alone = certify(network, box[i : i + 1], Options(refine=6))
        assert torch.allclose(together.lower[i], alone.lower[0], rtol=1e-9, atol=1e-11)
        assert torch.allclose(together.upper[i], alone.upper[0], rtol=1e-9, atol=1e-11)


def test_overflow_is_refined_to_no_bound(random_network: object) -> None:
    small = random_network((1, 4, 3, 1), 16)
    huge = BayesianNetwork.from_linears(
        type(a)(1e200 * a.weight_mean, 1e200 * a.weight_std, a.bias_mean, a.bias_std) for a in small.linears
    )
    bounds = certify(huge, boxes([[1.0]], 0.5), Options(refine=4))
    assert not torch.isnan(bounds.lower).any()
    assert not torch.isnan(bounds.upper).any()
    assert (bounds.width == torch.inf).all()


@pytest.fixture(scope="module")
def sine(posteriors: Path) -> BayesianNetwork:
    path = posteriors / "sine1d_1x256.safetensors"
    if not path.is_file():
        pytest.skip(f"no {path.name} among the shared posteriors")
    return load(path)


class TestSine:
    """The shared posterior of 256 neurons, 0.7 +- 0.075: its exact range is 0.3113 wide."""

    @pytest.mark.parametrize(("cells", "most"), [(1, 0.39), (16, 0.3135)])
    def test_width(self, sine: BayesianNetwork, cells: int, most: float) -> None:
        bounds = certify(sine, Box.ball([0.7], 0.075), Options(refine=cells))
        assert bounds.width.item() <= most

    @pytest.mark.parametrize("cells", [1, 16, 64])
    def test_it_contains_the_exact_range(self, sine: BayesianNetwork, cells: int) -> None:
        box = Box.ball([0.7], 0.075)
        bounds = certify(sine, box, Options(refine=cells))
        x = grid(box, 0, 4001)
        values = exact_mean(sine, x)
        for at in (values.argmin(), values.argmax()):
            truth = oracles.exact_mean(sine, x[at].tolist())[0]
            assert oracles.below(bounds.lower.item(), truth)
            assert oracles.above(bounds.upper.item(), truth)
        if cells == 64:
            assert bounds.width.item() <= float(values.max() - values.min()) + 1e-3
