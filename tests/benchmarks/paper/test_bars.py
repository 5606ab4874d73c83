"""Bars and scatter: the artists have the numbers that were given, gaps stay gaps, and no text overlaps another."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from benchmarks.paper.bars import Panel, Point, Series, bars_figure, scatter_figure
from matplotlib.collections import LineCollection

NAN = math.nan


def drawn(panels: list[Panel]) -> Any:
    return bars_figure(panels, "width", xlabel="neurons", stars="std of f(x)")


def networks(count: int = 4) -> list[Panel]:
    """Panels of about the size and range of the paper's figure."""
    series = (
        Series("certified", (0.085, 0.0106, 0.12)),
        Series("from inside", (0.084, 0.0085, 0.004), "hatched"),
        Series("paper (BNN-DP, its own networks)", (0.041, 0.239, 14.18), "tick"),
    )
    stars = (0.05, 0.08, 0.2)
    return [Panel(f"2D noisy sine, {k + 1} hidden layers", ("64", "256", "512"), series, stars) for k in range(count)]


def heights(axes: Any) -> list[list[float]]:
    """Heights of the bars, container by container."""
    return [[patch.get_height() for patch in container] for container in axes.containers]


def ticks(axes: Any) -> np.ndarray:
    """Horizontal lines: (lines, 2 ends, x and y)."""
    (found,) = [item for item in axes.collections if isinstance(item, LineCollection)]
    return np.array(found.get_segments())


def overlaps(figure: Any) -> list[tuple[str, str]]:
    """Pairs of texts whose rectangles on the picture meet."""
    figure.draw_without_rendering()
    texts = []
    for axes in figure.axes:
        if axes.get_visible():
            shown = [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
            for axis in (axes.xaxis, axes.yaxis):
                low, high = sorted(axis.get_view_interval())
                shown += [
                    tick.label1
                    for tick in axis.get_major_ticks() + axis.get_minor_ticks()
                    if low <= tick.get_loc() <= high and tick.label1.get_visible()
                ]
            texts += [text for text in shown if text.get_text()]
    for legend in figure.legends:
        texts += legend.get_texts()
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    page = figure.bbox
    outside = [(name, "the page") for name, box in boxes if box.x0 < page.x0 or box.x1 > page.x1 or box.y0 < page.y0]
    return outside + [(a, b) for (a, x), (b, y) in itertools.combinations(boxes, 2) if x.overlaps(y)]


def test_bars_ticks_and_stars_have_the_numbers() -> None:
    (axes,) = drawn(networks(1)).axes
    assert heights(axes) == [[0.085, 0.0106, 0.12], [0.084, 0.0085, 0.004]]
    assert ticks(axes)[:, :, 1].tolist() == [[0.041] * 2, [0.239] * 2, [14.18] * 2]
    (stars,) = (line for line in axes.lines if line.get_marker() == "*")
    assert np.asarray(stars.get_xydata()).tolist() == [[0, 0.05], [1, 0.08], [2, 0.2]]
    assert axes.get_yscale() == "log"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["64", "256", "512"]
    low, high = axes.get_ylim()
    assert low < 0.004
    assert high > 14.18


def test_bars_of_a_group_stand_side_by_side_around_its_label() -> None:
    series = tuple(Series(name, (1.0, 2.0)) for name in "abc")
    (axes,) = drawn([Panel("p", ("x", "y"), series)]).axes
    for group in (0, 1):
        spans = [(c[group].get_x(), c[group].get_x() + c[group].get_width()) for c in axes.containers]
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
        assert (spans[0][0] + spans[-1][1]) / 2 == pytest.approx(group)


@pytest.mark.parametrize("missing", [None, NAN])
def test_what_is_missing_leaves_a_gap(missing: float | None) -> None:
    series = (
        Series("a", (1.0, missing, 3.0)),
        Series("b", (missing, 2.0, missing), "hatched"),
        Series("c", (missing, missing, 5.0), "tick"),
        Series("d", (missing,) * 3),
        Series("e", (missing,) * 3, "tick"),
    )
    figure = drawn([Panel("p", ("x", "y", "z"), series, (missing, 0.5, missing))])
    (axes,) = figure.axes
    assert [row for row in heights(axes) if row] == [[1.0, 3.0], [2.0]]
    assert [round(patch.get_x() + patch.get_width() / 2) for patch in axes.containers[0]] == [0, 2]
    segments = [s for item in axes.collections for s in item.get_segments()]
    assert [s[0][1] for s in segments] == [5.0]
    (stars,) = axes.lines
    assert np.asarray(stars.get_xydata()).tolist() == [[1, 0.5]]
    assert [text.get_text() for text in axes.texts] == []
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c", "std of f(x)"]


def test_zero_and_infinity_are_written_not_left_out() -> None:
    panel = Panel("p", ("x", "y", "z"), (Series("a", (0.0, math.inf, 1.0)),))
    (axes,) = drawn([panel]).axes
    assert [(text.get_text(), text.xy[0]) for text in axes.texts] == [("0", 0.0), ("∞", 1.0)]


def test_nothing_at_all_is_still_a_picture() -> None:
    drawn([Panel("p", ("x",), (Series("a", (None,)),), (None,))]).draw_without_rendering()
    scatter_figure([Point("sine", (8,), None, 1.0), Point("sine", (8, 8), 0.0, NAN)]).draw_without_rendering()


def test_a_name_has_one_colour_in_all_panels_and_one_line_in_the_legend() -> None:
    one = Panel("1", ("x",), (Series("a", (1.0,)), Series("b", (2.0,))))
    two = Panel("2", ("x",), (Series("b", (3.0,)), Series("c", (4.0,), "tick"), Series("d", (4.0,))))
    figure = drawn([one, two])
    colour = [[container[0].get_facecolor() for container in axes.containers] for axes in figure.axes]
    assert colour[0][1] == colour[1][0]
    assert len({colour[0][0], colour[0][1], colour[1][1]}) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_no_text_overlaps(count: int) -> None:
    figure = drawn(networks(count))
    assert overlaps(figure) == []
    limits = {axes.get_ylim() for axes in figure.axes}
    assert len(limits) == 1
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == count
    assert len({round(axes.get_position().y0, 3) for axes in shown}) == (1 if count <= 4 else 2)


def test_long_labels_do_not_overlap_either() -> None:
    labels = ("1x64", "1x128", "1x256", "1x512", "2x64", "2x128", "2x256", "3x64", "3x256")
    panel = Panel("MNIST", labels, (Series("certified", (0.01,) * 9), Series("attack", (0.05,) * 9, "hatched")))
    figure = drawn([panel, panel])
    figure.draw_without_rendering()
    assert {text.get_rotation() for axes in figure.axes for text in axes.get_xticklabels()} == {45.0}


def test_the_scatter_has_every_network_in_both_panels() -> None:
    points = [
        Point("sine", (64,), 0.08, 0.05),
        Point("sine", (256,), 0.09, 0.06),
        Point("kin", (64, 64), 0.01, 0.1),
        Point("kin", (128, 128), 0.02, None),
        Point("kin", (256, 256), NAN, 0.3),
    ]
    figure = scatter_figure(points)
    left, right = figure.axes

    def marks(axes: Any) -> list[tuple[float, float]]:
        return sorted((x, y) for line in axes.lines for x, y in np.asarray(line.get_xydata()).tolist())

    assert marks(left) == [(64, 0.01), (64, 0.08), (128, 0.02), (256, 0.09)]
    assert marks(right) == [(0.05, 0.08), (0.06, 0.09), (0.1, 0.01)]
    assert (right.get_xscale(), right.get_yscale()) == ("log", "log")
    looks = {(line.get_color(), line.get_marker()) for line in right.lines if len(line.get_xydata())}
    assert len(looks) == 2
    assert len({look[0] for look in looks}) == len({look[1] for look in looks}) == 2
    sizes = {np.asarray(line.get_xdata())[0]: line.get_markersize() for line in right.lines if len(line.get_xydata())}
    assert sizes[0.06] > sizes[0.05]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["sine", "kin", "1 hidden layer", "2 hidden layers"]


@pytest.mark.parametrize("ratio", [1.0, 1.8, 5.0, 30.0, 1e3, 1e9])
def test_the_scatter_has_labels_that_do_not_overlap(ratio: float) -> None:
    for start in (0.0021, 0.0061):
        points = [Point("sine", (64,), start, start), Point("sine", (512,), start * ratio, start * ratio)]
        figure = scatter_figure(points)
        assert overlaps(figure) == []
        for axis in (figure.axes[1].xaxis, figure.axes[0].yaxis):
            low, high = axis.get_view_interval()
            assert low <= start <= start * ratio <= high
            assert sum(low <= tick.get_loc() <= high for tick in axis.get_major_ticks()) >= 2
