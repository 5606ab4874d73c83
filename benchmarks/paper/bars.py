"""Bars of widths or radii, network by network (Tables 1a, 1b and 2, Figure 3), and widths against their causes.

What is missing (None or NaN) leaves a gap. A bar of 0 or of infinity, which a logarithmic axis cannot show, is written
at the foot of its place, so that it is not taken for a gap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bnndp.report.figure import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Panel", "Point", "Series", "bars_figure", "scatter_figure"]

Value = float | None

_GROUP = 0.78  # of the distance between two groups: the width of all bars of one
_PER_ROW = 4  # panels, at most
_CROWDED = 20  # letters of all labels of a panel: beyond, they are turned
_LEAST, _APART = 3.0, 0.15  # of a logarithmic axis: the least ratio of its ends; between labels, of its length
_OUTLINED: dict[str, Any] = {"markeredgecolor": "white", "alpha": 0.85, "linestyle": "none"}
_MARKERS = ("o", "s", "^", "D", "v", "P")  # by depth


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one kind, one for every label of a panel.

    ``solid`` and ``hatched`` values are bars side by side; a ``tick`` is a horizontal line across the bars, for figures
    of other networks.
    """

    name: str
    values: tuple[Value, ...]
    style: Literal["solid", "hatched", "tick"] = "solid"


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes: a group of bars for every label, and a black star for every value of ``stars``."""

    title: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    stars: tuple[Value, ...] = ()  # none, or one for every label


@dataclass(frozen=True, slots=True)
class Point:
    """A network in the scatter: its data, the widths of its hidden layers, certified width, and std of f(x)."""

    data: str
    hidden: tuple[int, ...]
    gamma: Value
    spread: Value


def bars_figure(panels: Sequence[Panel], ylabel: str, *, xlabel: str, stars: str) -> Figure:
    """All panels with one logarithmic scale and one legend; ``stars`` is what the legend calls the stars."""
    rows = -(-len(panels) // _PER_ROW)
    columns = -(-len(panels) // rows)
    figure = new_figure(max(5.5, 2.7 * columns + 0.6), 2.7 * rows + 0.6)
    colours = _colours(panels)
    entries: dict[str, Any] = {}  # of the legend: label and artist
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        axes.set_yscale("log")
        entries = _bars(axes, panel, colours) | entries
        if panel.stars:
            places = _places(panel.stars)
            entries[stars] = axes.plot(*places, "*", color="black", markeredgecolor="white", markersize=11, zorder=4)[0]
        axes.set_title(panel.title, fontsize="medium")
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes in grid.flat[max(0, len(panels) - columns) : len(panels)]:  # the lowest of every column
        axes.set_xlabel(xlabel)
    for axes in grid[:, 0]:
        axes.set_ylabel(ylabel)
    rows_of_values = [row for panel in panels for row in (*(series.values for series in panel.series), panel.stars)]
    values = [value for row in rows_of_values for value in _places(row)[1]] or [1.0]
    grid[0, 0].set_ylim(min(values) / 2.5, max(values) * 1.8)
    names = [name for name in (*colours, stars) if name in entries]
    handles = [entries[name] for name in names]
    figure.legend(handles, names, loc="outside lower center", ncols=min(4, 1 + columns), fontsize="small")
    return figure


def scatter_figure(points: Sequence[Point]) -> Figure:
    """Width against size and against std of f(x): log-log, a colour for each data set, a marker for each depth.

    A point is left out where one of its numbers is missing, zero or infinite.
    """
    from matplotlib.lines import Line2D

    figure = new_figure(8.0, 3.4)
    left, right = figure.subplots(1, 2, sharey=True)
    data = dict(zip(dict.fromkeys(point.data for point in points), itertools.cycle(COLOURS), strict=False))
    widths = sorted({max(point.hidden) for point in points})
    depths = {d: _MARKERS[(d - 1) % len(_MARKERS)] for d in sorted({len(point.hidden) for point in points})}
    for (name, colour), (depth, marker) in itertools.product(data.items(), depths.items()):
        own = sorted((p for p in points if (p.data, len(p.hidden)) == (name, depth)), key=lambda p: max(p.hidden))
        left.plot(*_pairs((max(p.hidden), p.gamma) for p in own), linewidth=0.8, color=colour, marker=marker)
        for p in own:
            size = 5 + 1.5 * widths.index(max(p.hidden))
            right.plot(*_pairs([(p.spread, p.gamma)]), color=colour, marker=marker, markersize=size, **_OUTLINED)
    left.set(xscale="log", yscale="log", xlabel="neurons in a hidden layer", ylabel="certified γ")
    right.set(xscale="log", yscale="log", xlabel="std of f(x); larger marks: wider networks")
    left.set_xticks(widths, [str(width) for width in widths])
    spreads, marks = _log_range(_pairs((p.spread, p.gamma) for p in points)[0])
    right.set(xlim=spreads)
    right.set_xticks(marks, [f"{mark:g}" for mark in marks])
    gammas, marks = _log_range(_pairs((1, p.gamma) for p in points)[1])
    left.set(ylim=gammas)  # of both: the axis is shared
    left.set_yticks(marks, [f"{mark:g}" for mark in marks])
    for axis in (left.xaxis, left.yaxis, right.xaxis):
        axis.set_ticks([], minor=True)
    handles = [Line2D([], [], color=colour, linewidth=4, label=name) for name, colour in data.items()]
    for depth, marker in depths.items():
        label = f"{depth} hidden layer{'s' if depth > 1 else ''}"
        handles.append(Line2D([], [], color="0.3", marker=marker, linestyle="none", label=label))
    figure.legend(handles=handles, loc="outside right center", fontsize="small")
    return figure


def _bars(axes: Axes, panel: Panel, colours: dict[str, str]) -> dict[str, Any]:
    """The series of one panel; what the legend needs, by name, but for series that are all gaps."""
    from matplotlib.patheffects import withStroke

    entries: dict[str, Any] = {}
    beside = [series for series in panel.series if series.style != "tick"]
    width = _GROUP / max(1, len(beside))
    for series in panel.series:
        colour = colours[series.name]
        shift = 0.0 if series.style == "tick" else (beside.index(series) + 0.5) * width - _GROUP / 2
        at, height = _places(series.values)
        at = [x + shift for x in at]
        drawn: Any
        if series.style == "tick":
            ends = [x - _GROUP / 2 for x in at], [x + _GROUP / 2 for x in at]
            halo = [withStroke(linewidth=4.5, foreground="white")]
            drawn = axes.hlines(height, *ends, color=colour, linewidth=2.2, zorder=3, path_effects=halo)
        elif series.style == "solid":
            drawn = axes.bar(at, height, 0.92 * width, color=colour, zorder=2)
        else:
            drawn = axes.bar(at, height, 0.92 * width, facecolor="white", edgecolor=colour, hatch="////", zorder=2)
        if at:
            entries[series.name] = drawn
        for i, value in enumerate(series.values):
            if value in (0, math.inf):
                text, place = "∞" if value else "0", (i + shift, 0.01)
                axes.annotate(text, place, xycoords=("data", "axes fraction"), color=colour, ha="center", va="bottom")
    crowded = sum(len(label) for label in panel.labels) > _CROWDED
    axes.set_xticks(range(len(panel.labels)), panel.labels, rotation=45 if crowded else 0)
    axes.set_xlim(-0.6, len(panel.labels) - 0.4)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    return entries


def _places(values: Sequence[Value]) -> tuple[list[float], list[float]]:
    """Index and height of the values that the axis shows."""
    pairs = [(float(i), v) for i, v in enumerate(values) if v is not None and 0 < v < math.inf]
    return [i for i, _ in pairs], [v for _, v in pairs]


def _log_range(values: Sequence[float]) -> tuple[tuple[float, float], list[float]]:
    """Ends of a logarithmic axis with a margin around the values, and as many round numbers as there is place for."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    margin = max(1.3, (_LEAST * low / high) ** 0.5)
    low, high = low / margin, high * margin
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks: list[float] = []
    for digits, every in (((1, 2, 3, 4, 6, 8), 1), ((1, 2, 5), 1), ((1,), 1), ((1,), 2), ((1,), 5), ((1,), 50)):
        marks = [digit * 10.0**decade for decade in decades if decade % every == 0 for digit in digits]
        marks = [mark for mark in marks if low <= mark <= high]
        apart = min((math.log(right / left) for left, right in itertools.pairwise(marks)), default=math.inf)
        if apart >= _APART * math.log(high / low):
            break
    return (low, high), marks


def _colours(panels: Iterable[Panel]) -> dict[str, str]:
    """A colour for every name, the same in all panels; ticks have their own, to be seen on the bars."""
    styles = {series.name: series.style for panel in panels for series in panel.series}
    bars, ticks = itertools.cycle(COLOURS[:4]), itertools.cycle((COLOURS[4], "0.35", COLOURS[5]))
    return {name: next(ticks if style == "tick" else bars) for name, style in styles.items()}


def _pairs(pairs: Iterable[tuple[Value, Value]]) -> tuple[list[float], list[float]]:
    """The pairs that logarithmic axes show, as two lists."""
    whole = [(x, y) for x, y in pairs if x is not None and y is not None and 0 < x < math.inf and 0 < y < math.inf]
    return [x for x, _ in whole], [y for _, y in whole]
