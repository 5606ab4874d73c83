"""A chart that stands alone: as a figure of the page, and as an SVG file for a paper or a slide.

The file is on white and has its style, its title and its legend inside. It names no font that would have to be
fetched, and its colours are those of the light page.
"""

from __future__ import annotations

import re
import stat
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bnndp.errors import CertError, InputError
from bnndp.files.posterior import write_whole
from bnndp.files.regular import cause_of, open_regular
from bnndp.report.page.document import asset
from bnndp.report.page.frame import HEIGHT, WIDTH, Chart, Key, figure, legend
from bnndp.report.page.markup import Child, Markup, tag

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!-- made by bnndp report -->\n'
"""What every file begins with, by which it is known again."""

_INSTEAD = "move it, or give --no-plots"
_FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
_TITLE, _ROW, _MARGIN = 30.0, 20.0, 12.0  # heights of the title and of a row of text, margin around these
_SIDE = 4.0  # margin beside the chart, whose labels stand at its edge
_WIDTH = WIDTH + 2 * _SIDE
_LETTER = 7.3  # width of a letter of the legend, generously: the font is not known
_SWATCH = 24.0  # width of the sign of an entry with its margin
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
    """The entries of a legend, as many in a row as fit."""
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


def expect_plots(folder: Path, plots: Sequence[Plot]) -> None:
    """Refuse, before anything is written, a folder or a file in it that is not ours to write."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder}: is not a folder, so that no plots can go there; {_INSTEAD}.")
    for plot in plots:
        _expect_own(_place(folder, plot))


def write_plots(folder: Path, plots: Sequence[Plot]) -> list[Path]:
    """Write each plot as an SVG file into the folder, which is made if need be: the files, in order."""
    expect_plots(folder, plots)
    try:
        folder.mkdir(exist_ok=True)
        for plot in plots:
            write_whole(_place(folder, plot), svg_file(plot).encode("utf-8"))
    except (OSError, CertError) as error:
        reason = f"{error}" if isinstance(error, CertError) else f"{folder}: cannot be made: {cause_of(error)}"
        raise InputError(f"{reason}; change --out, or give --no-plots.") from error
    return [_place(folder, plot) for plot in plots]


def _place(folder: Path, plot: Plot) -> Path:
    return folder / f"{plot.name}.svg"


def _expect_own(path: Path) -> None:
    """Refuse a file that is there and was not made by ``bnndp report``, or that somebody keeps from being changed."""
    if path.is_symlink():
        raise InputError(f"{path}: is a link, and what it names was not made by bnndp report; {_INSTEAD}.")
    try:
        with open_regular(path) as file:
            own = file.read(len(HEAD)) == HEAD.encode()
        kept = not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    except FileNotFoundError:
        return
    except (OSError, CertError) as error:
        raise InputError(f"{path}: cannot be replaced: {cause_of(error)}; {_INSTEAD}.") from error
    if not own:
        raise InputError(f"{path}: was not made by bnndp report and would be lost; {_INSTEAD}.")
    if kept:
        raise InputError(f"{path}: is read-only and is left as it is; {_INSTEAD}.")
