"""Margins as rows of the outputs, and E sigma(-D) of Gaussian ones against a fine sum over the normal law."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bnndp.engine.margins import by_class, gaussian_tails, margin_rows
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.protocol import Margins
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

F64 = torch.float64
MEANS = (-3.0, -1e-9, 0.0, 1e-9, 0.3, 2.0, 10.0, 40.0)
VARIANCES = torch.tensor([0.0, 1e-6, 0.2, 3.0, 50.0, 1e4], dtype=F64)


def bounds(*, random: bool) -> MomentPass:
    """The pass of a network of which only the last layer is random, or all of it."""
    std = torch.full((3, 2), 0.2 if random else 0.0)
    first = Linear(torch.ones(3, 2), std, torch.zeros(3), torch.zeros(3))
    last = Linear(torch.ones(2, 3), torch.ones(2, 3), torch.zeros(2), torch.ones(2))
    return MomentPass.of(BayesianNetwork.from_linears((first, last)), Box.ball([0.3, 0.1], 0.01))


def truth(mean: float, variance: Tensor) -> Tensor:
    xi = torch.linspace(-12, 12, 400_001, dtype=F64)
    weight = torch.exp(-0.5 * xi**2)
    return torch.stack([(torch.sigmoid(-(mean + v.sqrt() * xi)) * weight).sum() / weight.sum() for v in variance])


@pytest.mark.parametrize("mean", MEANS)
def test_tails_are_those_of_the_normal_law(mean: float) -> None:
    """Where the mean may be negative nothing is claimed; else hardly more than the truth."""
    given = Margins(torch.full((1, 1, len(VARIANCES)), mean, dtype=F64), VARIANCES[None, None])
    found, exact = gaussian_tails(bounds(random=False), given)[0, 0], truth(mean, VARIANCES)
    assert (found >= exact * (1 - 1e-9) - 1e-300).all()
    assert (found <= exact + 1e-9).all() if mean > 0 else (found == 1).all()


@pytest.mark.parametrize("scale", [1e90, 1e100, 1e101, 1e150, 1e154])
def test_tails_of_huge_margins(scale: float) -> None:
    """A deviation of 2.4 times the mean: about a third of D is below zero, whatever its unit."""
    given = Margins(torch.full((1, 1, 1), scale, dtype=F64), torch.full((1, 1, 1), 6 * scale * scale, dtype=F64))
    assert gaussian_tails(bounds(random=False), given).item() >= 0.34


def test_margins_that_are_not_gaussian_or_not_known_have_no_tails() -> None:
    given = Margins(torch.full((1, 1, 2), 5.0, dtype=F64), torch.tensor([[[1.0, 2.0]]], dtype=F64))
    assert (gaussian_tails(bounds(random=True), given) == 1).all()
    unknown = Margins(
        torch.tensor([[[torch.nan, 5.0, 5.0]]], dtype=F64), torch.tensor([[[1.0, torch.nan, torch.inf]]], dtype=F64)
    )
    assert (gaussian_tails(bounds(random=False), unknown) == 1).all()


def test_rows_are_differences_of_two_outputs() -> None:
    reference = torch.tensor([[2, 0], [1, 1]])
    outputs = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    found = (margin_rows(reference, 3) @ outputs[..., None])[..., 0].reshape(2, 2, 3)
    assert torch.equal(found, outputs.gather(1, reference)[..., None] - outputs[:, None])


def test_a_class_against_itself_is_zero_and_half_known_is_not_known() -> None:
    mean = torch.tensor([[1.0, 2.0, torch.nan, torch.nan]], dtype=F64)
    variance = torch.tensor([[3.0, torch.nan, 4.0, torch.inf]], dtype=F64)
    found = by_class(mean, variance, torch.tensor([[3]]))
    assert found.mean.tolist() == [[[1.0, -torch.inf, -torch.inf, 0.0]]]
    assert found.variance.tolist() == [[[3.0, torch.inf, torch.inf, 0.0]]]
