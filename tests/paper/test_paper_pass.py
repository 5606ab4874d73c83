"""The partition method behind the protocol: means of the outputs and of their softmax, and nothing else."""

from __future__ import annotations

import pytest
import torch
from support import oracles
from support.dice import Dice
from support.passes import ends
from tests.paper.truth import network_of, points_of

from bnndp.engine.protocol import Margins, both_signs
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.paper.paper_pass import PaperPass
from bnndp.paper.softmax import bound_rows


def passed(network: BayesianNetwork, box: Box) -> PaperPass:
    return PaperPass(network, box, mass=0.9, cells=3)


@pytest.mark.parametrize("std", [0.0, 0.3, 50.0])
def test_all_that_it_says_of_the_outputs_holds(std: float) -> None:
    network, box = network_of((2, 7, 3), 1, std), Box.ball([0.3, -0.4], 0.2)
    found = ends(passed(network, box), 3)
    for x in points_of(box, 0).tolist():
        means = oracles.exact_mean(network, x)
        assert oracles.all_below(found.lower[0], means)
        assert oracles.all_above(found.upper[0], means)


@pytest.mark.parametrize("count", [1, 3, 6])
@pytest.mark.parametrize("std", [0.0, 0.3])
def test_rows_of_any_number_are_bounded(std: float, count: int) -> None:
    """Also as many of them as there are outputs, or outputs and negatives."""
    network, box, dice = network_of((2, 7, 3), 1, std), Box.ball([[0.3, -0.4], [0.1, 0.9]], 0.2), Dice(count)
    pass_, rows = passed(network, box), dice.normal(2, count, 3)
    for asked in (rows, rows[0]):
        found = pass_.affine(asked)
        for b in range(2):
            mine = asked if asked.ndim == 2 else asked[b]
            for x in points_of(box[torch.tensor([b])], 0):
                exact = [float(m.mid()) for m in oracles.exact_mean(network, x.tolist())]
                truth = mine @ torch.tensor(exact, dtype=torch.float64)
                values = found.affine(torch.stack([x, x]))[b]
                assert bool((values <= truth + 1e-12).all())
                assert bool((found.least[b] <= values + 1e-12).all())


def test_what_it_does_not_know_it_refuses_or_leaves_open() -> None:
    network, box = network_of((2, 5, 3), 1, 0.2), Box.ball([[0.3, -0.4], [1.0, 0.0]], 0.1)
    found, margins = passed(network, box), Margins(torch.zeros(2, 3), torch.ones(2, 3))
    for question in (lambda: found.variance(both_signs(3, box)), found.output_variance):
        with pytest.raises(InputError, match="bounds the mean only"):
            question()
    assert (found.tails(torch.arange(2), torch.zeros(2, dtype=torch.int64), margins) == 1).all()
    assert (found.random, found.moments, found.tailed, found.branchable) == (True, False, False, None)
    assert not found.gaussian


def test_overflow_is_no_bound() -> None:
    network, box = network_of((2, 3, 3, 1), 7, 1e200), Box([-1.0, 0.5], [1.0, 0.5])
    least = passed(network, box).least(both_signs(1, box))
    assert (least == -torch.inf).all()


def test_rows_of_the_softmax_are_those_of_the_method() -> None:
    network, box = network_of((2, 5, 3), 2, 0.1), Box.ball([[0.3, -0.4], [1.0, 0.0]], 0.05)
    rows = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64).expand(2, -1, -1)
    assert torch.equal(passed(network, box).softmax(rows), bound_rows(network, box, rows, cells=3))
