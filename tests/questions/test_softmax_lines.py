"""Lines above the mean of the logistic function of a margin: for every law of two points, and Gaussian ones."""

from __future__ import annotations

import pytest
import torch
from support.classifiers import logistic_mean
from torch import Tensor

from bnndp.geometry.bounds import Affine
from bnndp.questions.softmax_lines import SHARES, MarginPlanes, tail_lines

F64 = torch.float64


def margins_on(least: Tensor, most: Tensor, variance: Tensor, *, random: bool, gaussian: bool) -> MarginPlanes:
    shape = least.shape
    plane = Affine(torch.zeros(shape[0], shape[1] * shape[2], 1, dtype=F64), torch.zeros(shape[0], shape[1] * shape[2]))
    one = torch.ones(shape, dtype=F64)
    middle = 0.5 * (least + most)
    return MarginPlanes(plane, least, middle, most, one, variance, one, random=random, gaussian=gaussian)


def ranges() -> tuple[Tensor, Tensor]:
    a = torch.tensor([-40.0, -6.0, -3.0, -1.0, -0.1, 0.0, 0.3, 2.0, 9.0, 80.0], dtype=F64)
    width = torch.tensor([0.0, 1e-12, 0.1, 1.0, 4.0, 30.0], dtype=F64)
    a, width = (grid.reshape(1, 1, -1) for grid in torch.meshgrid(a, width, indexing="ij"))
    return a, a + width


def test_lines_lie_above_the_logistic_function_and_touch_it() -> None:
    a, b = ranges()
    found = tail_lines(margins_on(a, b, torch.zeros_like(a), random=False, gaussian=False))
    assert len(found) == len(SHARES)
    for lines in found:
        assert bool((lines.slope >= 0).all())
        for share in torch.linspace(0, 1, 401, dtype=F64).tolist():
            d = (a + share * (b - a)).clamp(a, b)
            assert bool((lines.intercept - lines.slope * d >= torch.sigmoid(-d)).all())
    sharp = found[1].intercept - found[1].slope * 0.5 * (a + b)
    chord = torch.maximum(0.5 * (torch.sigmoid(-a) + torch.sigmoid(-b)), torch.sigmoid(-0.5 * (a + b)))
    assert bool((sharp <= chord + 1e-9)[a >= 0].all())  # convex there: the chord is the least line


@pytest.mark.parametrize("variance", [1e-6, 0.04, 0.5, 3.0, 40.0])
def test_lines_hold_for_every_law_of_two_points(variance: float) -> None:
    a, b = ranges()
    for lines in tail_lines(margins_on(a, b, torch.full_like(a, variance), random=True, gaussian=False)):
        for share in (0.0, 0.1, 0.37, 0.5, 0.8, 0.99, 1.0):
            d = (a + share * (b - a)).clamp(a, b)
            for p in (0.01, 0.1, 0.5, 0.9, 0.99):  # mass p below the mean
                low, high = d - (variance * (1 - p) / p) ** 0.5, d + (variance * p / (1 - p)) ** 0.5
                mean = p * torch.sigmoid(-low) + (1 - p) * torch.sigmoid(-high)
                assert bool((lines.intercept - lines.slope * d >= mean - 1e-15).all())


@pytest.mark.parametrize("variance", [0.2, 2.0])
def test_lines_of_gaussian_margins_against_quadrature(variance: float) -> None:
    a, b = torch.tensor([[[-1.0, 0.0, 0.5, 3.0]]], dtype=F64), torch.tensor([[[1.0, 0.7, 6.0, 3.2]]], dtype=F64)
    known = margins_on(a, b, torch.full_like(a, variance), random=True, gaussian=True)
    wider = margins_on(a, b, torch.full_like(a, variance), random=True, gaussian=False)
    for lines, others in zip(tail_lines(known), tail_lines(wider), strict=True):
        for share in (0.0, 0.25, 0.5, 1.0):
            d = a + share * (b - a)
            for spread in (variance, 0.3 * variance):  # the variance is an upper bound
                truth = torch.tensor([logistic_mean(-m, spread**0.5) for m in d.flatten().tolist()], dtype=F64)
                assert bool((lines.intercept - lines.slope * d >= truth - 1e-12).all())
        at = 0.5 * (a + b)
        assert bool((lines.intercept - lines.slope * at)[..., 2] < (others.intercept - others.slope * at)[..., 2])


@pytest.mark.parametrize("scale", [1e90, 1e100, 1e101, 1e150])
def test_lines_of_huge_gaussian_margins(scale: float) -> None:
    """A deviation of 2.4 times the largest mean: a third of D is below zero, whatever its unit."""
    a, b = torch.tensor([[[0.9]]], dtype=F64) * scale, torch.tensor([[[1.0]]], dtype=F64) * scale
    for lines in tail_lines(margins_on(a, b, torch.full_like(a, 6 * scale * scale), random=True, gaussian=True)):
        for d in (a, b):
            assert bool((lines.intercept - lines.slope * d >= 0.34).all())


def test_nothing_is_said_where_nothing_is_known() -> None:
    a = torch.tensor([[[-torch.inf, 0.0, 1.0]]], dtype=F64)
    most, variance = torch.tensor([[[3.0, torch.inf, 2.0]]], dtype=F64), torch.tensor([[[0.1, 0.1, torch.inf]]])
    for lines in tail_lines(margins_on(a, most, variance.to(F64), random=True, gaussian=False)):
        assert lines.intercept.tolist() == [[[1.0, 1.0, 1.0]]]
        assert lines.slope.tolist() == [[[0.0, 0.0, 0.0]]]
