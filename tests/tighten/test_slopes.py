"""Slopes by gradient ascent: never worse than one pass, row by row, whatever is no number, until the clock stops it."""

from __future__ import annotations

import itertools
import math
import time

import pytest
import torch
from support.classifiers import classifier
from support.dice import Dice
from support.ensembles import outputs
from support.networks import make_network
from tests.marks import slow_but
from torch import Tensor

from bnndp.deadline import NEVER, Deadline
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.protocol import Climbable, Slopes
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.tighten.slopes import Sloped, climb

BOX = Box.ball([[0.3, -0.5, 0.2], [-1.0, 0.4, 0.0]], 0.3)


def rows_of(network: BayesianNetwork) -> Tensor:
    return torch.eye(network.n_out, dtype=torch.float64)


def value(bounds: Climbable, rows: Tensor, steps: int) -> Tensor:
    """The least values of the planes (batch, rows), which hold by themselves."""
    plane = climb(bounds, rows, steps, NEVER)[0].affine
    return bounds.box.minimum(plane.matrix, plane.offset)


@pytest.mark.parametrize("sizes", [(3, 8, 4), (3, 6, 5, 5, 3)])
@pytest.mark.parametrize("radius", slow_but([0.0, 0.05, 0.5], 0.5))
def test_more_steps_are_never_worse(sizes: tuple[int, ...], radius: float) -> None:
    network = make_network(sizes, seed=3, std=0.3)
    bounds = MomentPass.of(network, Box.ball(BOX.centre, radius))
    rows = rows_of(network)
    found = [value(bounds, rows, steps) for steps in (0, 1, 4, 16)]
    assert all((after >= before).all() for before, after in itertools.pairwise(found))
    assert torch.equal(found[0], bounds.box.minimum(*_parts(bounds, rows)))
    if radius == 0.5 and bounds.slopes(rows) is not None:
        assert (found[-1] > found[0] + 1e-3).any()  # and they do gain
    wrapped, planes = Sloped(bounds, 4, NEVER), climb(bounds, rows, 4, NEVER)[0]
    assert torch.equal(wrapped.least(rows), planes.least)
    assert (planes.least >= torch.maximum(found[2], bounds.least(rows)) - 1e-12).all()
    assert torch.equal(wrapped.variance(rows), bounds.variance(rows))


def _parts(bounds: Climbable, rows: Tensor) -> tuple[Tensor, Tensor]:
    plane = bounds.affine(rows).affine
    return plane.matrix, plane.offset


def test_rows_and_boxes_do_not_mix() -> None:
    network = make_network((3, 7, 6, 4), seed=4, std=0.3)
    rows = rows_of(network)
    together = value(MomentPass.of(network, BOX), rows, 5)
    for b, row in itertools.product(range(2), range(4)):
        alone = value(MomentPass.of(network, BOX[b : b + 1]), rows[row : row + 1], 5)
        assert torch.allclose(together[b, row], alone[0, 0], rtol=1e-9, atol=1e-9)


def test_slopes_that_are_not_numbers_never_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ascent of one row starts at NaN: that row keeps the planes of one pass, the others are optimised."""
    network = make_network((3, 7, 6, 4), seed=5, std=0.3)
    bounds, rows, usual = MomentPass.of(network, BOX), rows_of(network), MomentPass.slopes

    def spoiled(self: MomentPass, asked: Tensor) -> tuple[Slopes, Slopes]:
        found = usual(self, asked)
        assert found is not None
        best, start = found
        start.tangents[0][:, 1, 0] = math.nan
        return best, start

    plain, good = value(bounds, rows, 0), value(bounds, rows, 6)
    monkeypatch.setattr(MomentPass, "slopes", spoiled)
    found, slopes = climb(bounds, rows, 6, NEVER)
    assert not any(tensor.isnan().any() for tensor in slopes.tensors)
    now = bounds.box.minimum(found.affine.matrix, found.affine.offset)
    assert torch.equal(now[:, 1], plain[:, 1])
    others = [0, 2, 3]
    assert torch.allclose(now[:, others], good[:, others])


def test_it_works_without_gradients_around_it() -> None:
    network = make_network((3, 5, 3), seed=7, std=0.3)
    bounds, rows = MomentPass.of(network, BOX), rows_of(network)
    with torch.no_grad():
        found, slopes = climb(bounds, rows, 4, NEVER)
    assert not any(tensor.requires_grad for tensor in (*slopes.tensors, found.affine.matrix, found.least))
    assert torch.equal(found.least, climb(bounds, rows, 4, NEVER)[0].least)


def test_the_clock_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by one second a look; when the time is over at once, what one pass and one look found."""
    network = make_network((3, 8, 4), seed=3, std=0.3)
    bounds, rows = MomentPass.of(network, BOX), rows_of(network)
    found = [value(bounds, rows, steps) for steps in (0, 3, 50)]
    seconds = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    stopped = climb(bounds, rows, 50, Deadline.after(3.5))[0].least
    assert next(seconds) < 8
    assert (stopped >= found[0]).all()
    assert (stopped <= found[2] + 1e-12).all()


@pytest.mark.parametrize("seed", slow_but(range(4), 0))
def test_climbed_planes_hold_at_points(seed: int) -> None:
    """Without variance a classifier is a function of x, and its planes are below it in the whole box."""
    network = classifier((3, 8, 7, 4), seed, std=0.0)
    rows, bounds = Dice(seed).normal(2, 5, 4), MomentPass.of(network, BOX)  # of each box its own
    plane = climb(bounds, rows, 10, NEVER)[0].affine
    x = BOX.lower + Dice(seed).uniform(shape=(300, 2, 3)) * (BOX.upper - BOX.lower)
    low = torch.einsum("brn,pbn->pbr", plane.matrix, x) + plane.offset
    assert (low <= torch.einsum("brc,pbc->pbr", rows, outputs(network, x)[0]) + 1e-12).all()
