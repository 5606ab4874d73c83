"""Figure 1: the lines are the certified ones, the mean lies between them, and every mark is drawn or written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.paper.affine import Panel, affine_figure, output_std
from support.networks import make_network

from bnndp.attack.sampling import draw_noise, estimate
from bnndp.geometry.bounds import Affine, AffineBounds
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.questions.bounds import Bounds
from bnndp.questions.certify import certify
from bnndp.report.figure import COLOURS

BLUE, RED = COLOURS[0], COLOURS[4]


def made(network: BayesianNetwork, box: Box, *marks: tuple[str, float, float], refine: int = 1) -> Panel:
    return Panel("a network", network, box, certify(network, box, Options(refine=refine)), marks)


def lines(axes: Any, colour: str) -> list[np.ndarray]:
    """Points (n, 2) of every line of this colour."""
    return [np.asarray(line.get_xydata()) for line in axes.lines if line.get_color() == colour]


def sloped(box: Box) -> Bounds:
    """Bounds 2x - 1 and 3x + 1; nothing here asks whether they are true."""
    sides = [
        Affine(torch.full((1, 1, 1), slope, dtype=torch.float64), torch.full((1, 1), offset, dtype=torch.float64))
        for slope, offset in ((2.0, -1.0), (3.0, 1.0))
    ]
    bounds = AffineBounds(sides[0], sides[1], box)
    interval = bounds.interval()
    return Bounds(interval.lower, interval.upper, bounds, ("moment",))


def exact_std(network: BayesianNetwork, x: torch.Tensor) -> torch.Tensor:
    """For one hidden layer: moments of rectified Gaussians by a fine sum, then of a sum of products."""
    first, last = network.linears
    mean = x @ first.weight_mean.T + first.bias_mean  # (points, hidden)
    std = (x.square() @ first.weight_std.square().T + first.bias_std.square()).sqrt()
    step = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    weight = torch.exp(-step.square() / 2)
    value = (mean[..., None] + std[..., None] * step).clamp_min(0)
    one, two = (((value**power) * weight).sum(-1) / weight.sum() for power in (1, 2))
    squares = last.weight_mean.square() + last.weight_std.square()
    variance = two @ squares.T - one.square() @ last.weight_mean.square().T + last.bias_std.square()
    return variance.sqrt()


def test_std_agrees_with_the_closed_form() -> None:
    network, draws = make_network((2, 6, 1), 3, std=0.8), 40_000
    x = torch.tensor([[-1.0, 0.5], [0.0, 0.0], [0.7, 1.0]], dtype=torch.float64)
    mean = estimate(network, x, draw_noise(network, 1, seed=0)).mean
    found = output_std(network, x, mean, draws=draws, seed=1)
    assert found.shape == (3, 1)
    assert torch.allclose(found, exact_std(network, x), rtol=0.04)  # one part in sqrt(2 draws), heavier tails


def test_std_does_not_hang_on_how_the_draws_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = make_network((1, 4, 4, 1)), torch.linspace(-1, 1, 3, dtype=torch.float64)[:, None]
    mean = estimate(network, x, draw_noise(network, 4096, seed=0)).mean
    whole = output_std(network, x, mean, draws=5001)
    monkeypatch.setattr("benchmarks.paper.affine._MEMORY", 8 * 16 * 100)
    cut = output_std(network, x, mean, draws=5001)
    assert not torch.equal(whole, cut)  # other networks: there were many parts
    assert torch.allclose(whole, cut, rtol=0.1)


def test_the_lines_are_the_affine_bounds_over_the_interval_only() -> None:
    box = Box([[0.25]], [[0.5]])
    left, right = affine_figure([Panel("p", make_network((1, 4, 1)), box, sloped(box))]).axes
    for axes in (left, right):
        lower, upper = (line[~np.isnan(line).any(1)] for line in lines(axes, BLUE))
        assert np.allclose(lower, [[0.25, -0.5], [0.5, 0.0]], atol=1e-12)
        assert np.allclose(upper, [[0.25, 1.75], [0.5, 2.5]], atol=1e-12)
    assert right.get_xlim() == (0.25, 0.5)
    assert left.get_xlim() == (-1.0, 1.0)


@pytest.mark.parametrize("refine", [1, 4])
def test_the_mean_lies_between_the_lines(refine: int) -> None:
    panel = made(make_network((1, 8, 1), 2), Box([[0.2]], [[0.6]]), refine=refine)
    right = affine_figure([panel]).axes[1]
    (mean,) = lines(right, RED)
    exact = estimate(panel.network, torch.from_numpy(mean[:, :1]), draw_noise(panel.network, 1, seed=0)).mean
    assert np.allclose(mean[:, 1:], exact.numpy(), atol=1e-12)
    pieces = [line.reshape(-1, 3, 2)[:, :2] for line in lines(right, BLUE)]  # (cells, ends, x and y)
    assert all(len(piece) == (1 if refine == 1 else len(panel.bounds.cells.owner)) for piece in pieces)
    seen = 0
    for lower, upper in zip(*pieces, strict=True):
        inside = mean[(mean[:, 0] >= lower[0, 0]) & (mean[:, 0] <= lower[1, 0])]
        low, high = (np.interp(inside[:, 0], side[:, 0], side[:, 1]) for side in (lower, upper))
        assert bool(((low - 1e-12 <= inside[:, 1]) & (inside[:, 1] <= high + 1e-12)).all())
        seen += len(inside)
    assert seen >= len(mean)


def test_the_band_is_three_deviations_around_the_mean() -> None:
    panel = made(make_network((1, 6, 1), 1), Box([[0.2]], [[0.3]]))
    left = affine_figure([panel]).axes[0]
    (band,) = left.collections
    corners = np.asarray(band.get_paths()[0].vertices)
    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    reach = 6 * exact_std(panel.network, x)[:, 0]
    heights = torch.tensor([np.ptp(corners[np.isclose(corners[:, 0], at), 1]) for at in (-1.0, 1.0)])
    assert torch.allclose(heights, reach, rtol=0.12)


def test_marks_are_drawn_where_they_fit_and_written_otherwise() -> None:
    box = Box([[0.0]], [[1.0]])  # the lines of these bounds lie between -1 and 4
    marks = (("near", -2.0, 5.0), ("half", -3.0, 900.0), ("far", -70.5, 90.25))
    panel = Panel("p", make_network((1, 4, 1), std=0.0), box, sloped(box), marks)
    figure = affine_figure([panel])
    left, right = figure.axes
    flat = sorted(line[0, 1] for axes in (left, right) for line in lines(axes, COLOURS[2]) + lines(axes, COLOURS[3]))
    assert flat == [-3.0, -2.0, 5.0]
    note = right.get_title(loc="right")
    assert "far: [-70.5, 90.25]" in note
    assert "half: [-3, 900]" in note
    assert "near" not in note
    low, high = right.get_ylim()
    assert (low, high) == (pytest.approx(-3, abs=0.6), pytest.approx(5, abs=0.6))
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names.count("near") == names.count("half") == 1
    assert "far" not in names


def test_one_legend_and_two_axes_a_panel() -> None:
    panels = [made(make_network((1, 4, 1), seed), Box([[0.1]], [[0.2]]), ("FL", -9, 9)) for seed in range(3)]
    figure = affine_figure(panels)
    assert len(figure.axes) == 6
    figure.draw_without_rendering()
    places = [axes.get_window_extent() for axes in figure.axes]
    starts = [(-round(place.y0), round(place.x0)) for place in places]
    assert starts == sorted(starts)  # panel by panel, in reading order
    for panel, right in zip(panels, figure.axes[1::2], strict=True):
        upper = lines(right, BLUE)[1][:2]
        assert np.isclose(upper[:, 1].max(), panel.bounds.affine.interval().upper.item(), atol=1e-9)
    titles = [vars(part)["_suptitle"].get_window_extent() for part in figure.subfigs[: len(panels)]]
    notes = [vars(right)["_right_title"].get_window_extent() for right in figure.axes[1::2]]
    assert not any(title.overlaps(note) for title in titles for note in notes)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(names) == len(set(names)) == 4
