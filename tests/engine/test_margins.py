"""E sigma(-D) of Gaussian margins, against a fine sum over the normal law."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bnndp.engine.dense.margins import Margins
from bnndp.engine.general.forward import Passed, hidden
from bnndp.engine.general.margins import gaussian_tails
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

F64 = torch.float64
MEANS = torch.tensor([-3.0, -1e-9, 0.0, 1e-9, 0.3, 2.0, 10.0, 40.0], dtype=F64)
VARIANCES = torch.tensor([0.0, 1e-6, 0.2, 3.0, 50.0, 1e4], dtype=F64)


def passed(*, random: bool) -> Passed:
    """The pass of a network of which only the last layer is random, or all of it."""
    std = torch.full((3, 2), 0.2 if random else 0.0)
    first = Linear(torch.ones(3, 2), std, torch.zeros(3), torch.zeros(3))
    last = Linear(torch.ones(2, 3), torch.ones(2, 3), torch.zeros(2), torch.ones(2))
    network = BayesianNetwork.from_linears([first, last], "classification")
    return hidden(network, Box.ball([0.3, 0.1], 0.01))


def truth(mean: Tensor, variance: Tensor) -> Tensor:
    xi = torch.linspace(-12, 12, 400_001, dtype=F64)
    weight = torch.exp(-0.5 * xi**2)
    return torch.stack([(torch.sigmoid(-(mean + v.sqrt() * xi)) * weight).sum() / weight.sum() for v in variance])


@pytest.mark.parametrize("mean", MEANS.tolist())
def test_they_are_those_of_the_normal_law(mean: float) -> None:
    """Where the mean may be negative nothing is claimed; else hardly more than the truth."""
    given = Margins(torch.full((1, 1, len(VARIANCES)), mean, dtype=F64), VARIANCES[None, None])
    found, exact = gaussian_tails(passed(random=False), given)[0, 0], truth(torch.tensor(mean, dtype=F64), VARIANCES)
    assert (found >= exact * (1 - 1e-9) - 1e-300).all()
    if mean > 0:
        assert (found <= exact + 1e-9).all()
    else:
        assert (found == 1).all()


def test_margins_that_are_not_gaussian_or_not_known_have_none() -> None:
    given = Margins(torch.full((1, 1, 2), 5.0, dtype=F64), torch.tensor([[[1.0, 2.0]]], dtype=F64))
    assert (gaussian_tails(passed(random=True), given) == 1).all()
    unknown = Margins(
        torch.tensor([[[torch.nan, 5.0, 5.0]]], dtype=F64), torch.tensor([[[1.0, torch.nan, torch.inf]]], dtype=F64)
    )
    assert (gaussian_tails(passed(random=False), unknown) == 1).all()
