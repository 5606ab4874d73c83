"""A chart that stands alone: as a figure of the page, and as an SVG file for a paper or a slide.

The file is on white and has its style, its title and its legend inside. It names no font that would have to be
fetched, and its colours are those of the light page.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bnndp.report.page.document import asset
from bnndp.report.page.frame import HEIGHT, WIDTH, Chart, Key, figure, legend
from bnndp.report.page.markup import Child, Markup, tag

__all__ = ["HEAD", "Plot", "plot_figure", "svg_file"]

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!-- made by bnndp report -->\n'
"""What every file begins with, by which it is known again."""

_FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
_TITLE, _ROW, _MARGIN = 30.0, 20.0, 12.0  # heights of the title and of a row of text, room around these
_SIDE = 4.0  # room beside the chart, whose labels stand at its edge
_WIDTH = WIDTH + 2 * _SIDE
_LETTER = 7.3  # width of a letter of the legend, generously: the font is not known
_SWATCH = 24.0  # width of the sign of an entry with its room
_LINES = {"attacked": "line attacked", "mean": "line mean", "bound": "line certified", "equal": "equal"}
_BOXES = {"certified": "bar", "gap": "gap", "interval": "interval", "inside": "inside", "band": "band"}


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart with what is needed to read it without the page."""

    name: str  # of its file, without the suffix
    title: str
    chart: Chart
    keys: Sequence[Key] = ()
    note: str = ""  # what must be known to read it right


def plot_figure(plot: Plot, *under: Child) -> Markup:
    """The plot as a figure of the page."""
    keys, note = legend(plot.keys) if plot.keys else None, tag("p", plot.note, class_="small") if plot.note else None
    return figure(plot.chart.inline(), keys, note, *under, caption=plot.title)


def svg_file(plot: Plot) -> str:
    """The plot as a file; the same plot always gives the same text."""
    rows = list(_rows(plot.keys))
    lines = textwrap.wrap(plot.note, int((_WIDTH - 2 * _MARGIN) / _LETTER))
    below = _TITLE + HEIGHT + _MARGIN
    height = below + _ROW * (len(rows) + len(lines))
    drawn = tag(
        "svg",
        tag("title", plot.title),
        tag("desc", plot.chart.label),
        tag("style", _style()),
        tag("rect", width=_WIDTH, height=height, fill="#ffffff"),
        tag("text", plot.title, x=_MARGIN, y=0.68 * _TITLE, class_="start title"),
        tag("g", plot.chart.content, transform=f"translate({_SIDE:g} {_TITLE:g})"),
        (_legend_row(row, below + _ROW * at) for at, row in enumerate(rows)),
        (
            tag("text", line, x=_MARGIN, y=below + _ROW * (len(rows) + at) + 9, class_="start")
            for at, line in enumerate(lines)
        ),
        xmlns="http://www.w3.org/2000/svg",
        width=_WIDTH,
        height=height,
        viewBox=f"0 0 {_WIDTH:g} {height:g}",
        font_family=_FONTS,
        role="img",
        class_="chart",
    )
    return f"{HEAD}{drawn}\n"


def _style() -> Markup:
    """The style of charts with the colours of the light page in their places."""
    text = str(asset("chart.css"))
    light = dict(re.findall(r"--(\w+): light-dark\((#\w+), #\w+\);", text))
    rules = text[text.index("\n}\n") + 3 :]  # after the colours
    return Markup(re.sub(r"var\(--(\w+)\)", lambda found: light[found[1]], rules))


def _width(key: Key) -> float:
    return _SWATCH + _LETTER * len(key[1]) + _MARGIN


def _rows(keys: Sequence[Key]) -> Iterator[list[Key]]:
    """The entries of a legend, as many in a row as there is room for."""
    row: list[Key] = []
    for key in keys:
        if row and sum(map(_width, (*row, key))) > _WIDTH - _MARGIN:
            yield row
            row = []
        row.append(key)
    if row:
        yield row


def _legend_row(row: Sequence[Key], y: float) -> Iterator[Markup]:
    x = _MARGIN
    for kind, text in row:
        line = kind in _LINES
        shape = f"M{x:g} {y + 5:g}h16" if line else f"M{x:g} {y - 1:g}h12v12h-12Z"
        yield tag("path", d=shape, class_=_LINES[kind] if line else _BOXES[kind])
        yield tag("text", text, x=x + _SWATCH - 3, y=y + 9, class_="start")
        x += _width((kind, text))
