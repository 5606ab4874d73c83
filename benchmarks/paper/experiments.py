"""The paper's tables and figures: train the networks or take them from the cache, measure, write text and picture."""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from benchmarks.cache import NetworkCache, size_of
from benchmarks.networks import COLD
from benchmarks.paper import affine, bars, published
from benchmarks.paper.columns import ATTACK, COLUMNS, INSIDE, MOMENT, Column
from benchmarks.paper.journal import Journal
from benchmarks.paper.rows import QUICK_WIDTH, Measured, Row, fill, rows_of
from benchmarks.paper.tables import Heading, csv_text, headings_1a, headings_1b, headings_2, markdown
from benchmarks.pool import mapped
from bnndp.data import cifar
from bnndp.data.folder import open_store
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.layers import Dropout
from bnndp.options import Options
from bnndp.questions.certify import certify
from bnndp.report.figure import save_figure
from bnndp.training.fit import Plan

__all__ = ["EXPERIMENTS", "Setting", "reproduce", "rows_2"]

_TITLES = {
    "sine2d": "2D noisy sine",
    "kin8nm": "Kin8nm",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar10_subset": "CIFAR-10 (subset)",
}
DROPPED = 0.1
CONVOLUTIONAL: dict[str, Any] = {
    "inference": "bbb",
    "temperature": 1e-5,
    "init_std": 0.005,
    "steps": 2000,
    "batch": 100,
    "dropout_last": True,
}
"""Rate of the dropout of units in Table 2, after the last convolution, and the training of its dense layers, which come
out nearly deterministic; the paper names neither place nor rate nor temperature."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What decides a reproduction: where things go, how the networks are trained, how much is measured."""

    out: Path
    cache: NetworkCache
    plan: Mapping[str, Any] = field(default_factory=dict)  # fields of the plan that are given: inference, ...
    quick: bool = False
    points: int | None = None
    only: str | None = None  # one of the data sets
    more: Mapping[str, Sequence[Column]] = field(default_factory=dict)  # further columns by table
    restart: bool = False
    jobs: int = 1  # processes, one thread each, that measure a row each
    command: str = "python -m benchmarks.paper"

    def plan_of(self, data: str, **usual: Any) -> Plan:
        """The plan of the networks; its data set and size are filled in row by row."""
        return Plan(data, **({"inference": "vogn"} | usual | dict(self.plan)))

    def rows(self, table: Sequence[published.Row], plan: Plan, sets: Mapping[str, str] | None = None) -> list[Row]:
        """The rows of a table that are asked for."""
        rows = rows_of(table, plan, sets or {}, quick=self.quick)
        chosen = [row for row in rows if self.only in (None, row.published.data)]
        if not chosen:
            names = ", ".join(dict.fromkeys(row.published.data for row in rows))
            raise InputError(f"no row of the table is on {self.only!r}; its data sets are {names}.")
        return chosen if self.points is None else [replace(row, points=self.points) for row in chosen]

    def measured(self, rows: Sequence[Row], columns: Sequence[Column]) -> list[Measured]:
        """The rows with all cells."""
        path = self.out / "journal.jsonl"
        journal = Journal(path, restart=self.restart)
        if self.jobs > 1:
            longest_first = sorted(rows, key=_size, reverse=True)
            list(mapped(partial(_keep, columns, self.cache, path), longest_first, self.jobs))
            journal = Journal(path)
        return list(fill(rows, columns, self.cache, journal))

    def write(self, name: str, title: str, *parts: str) -> tuple[Path, str]:
        """The page of an experiment: a title, paragraphs, and how it was made."""
        text = "\n\n".join((f"# {title}", *parts, _made_by(self.command))) + "\n"
        path = self.out / f"{name}.md"
        path.write_text(text, encoding="utf-8")
        return path, text


def _keep(columns: Sequence[Column], cache: NetworkCache, path: Path, row: Row) -> None:
    """Measure one row in a process of its own; what it finds is in the journal."""
    for _ in fill([row], columns, cache, Journal(path)):
        pass


def _size(row: Row) -> int:
    """Weights between hidden layers, roughly: the row that takes longest first."""
    return sum(n * n for n in row.plan.hidden) * (len(row.plan.conv) + 1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The files that were written, and the text of the first of them."""

    files: tuple[Path, ...]
    text: str


def table_1a(setting: Setting) -> Outcome:
    """Certified widths of regression, beside the paper's."""
    rows = setting.rows(published.TABLE_1A, setting.plan_of("sine2d"))
    return _table(setting, "table-1a", rows, headings_1a, _width_figure)


def table_1b(setting: Setting) -> Outcome:
    """Certified radii of classification, beside the paper's."""
    rows = setting.rows(published.TABLE_1B, setting.plan_of("mnist", temperature=COLD))
    return _table(setting, "table-1b", rows, headings_1b, _radius_figure)


def table_2(setting: Setting) -> Outcome:
    """Certified radii of convolutional networks, beside the paper's."""
    return _table(setting, "table-2", rows_2(setting), headings_2, _kernel_figure)


def rows_2(setting: Setting) -> list[Row]:
    """The rows of Table 2."""
    dropped = setting.plan.get("inference", "bbb") in ("bbb", "map")
    plan = setting.plan_of("fashion_mnist", **CONVOLUTIONAL, dropout=Dropout(DROPPED) if dropped else None, conv="2x4")
    return setting.rows(published.TABLE_2, plan, _at_hand(setting.cache))


def figure_1(setting: Setting) -> Outcome:
    """Certified affine bounds over an interval of the 1D noisy sine."""
    if setting.only not in (None, "sine1d"):
        raise InputError(f"figure-1 is on sine1d alone, got --only {setting.only}; leave it out.")
    panels = []
    lines = ["| hidden | interval | certified | FL, 1 sd (published) | FL, 3 sd (published) |", "|---|---|---|---|---|"]
    for printed in published.FIGURE_1:
        hidden = tuple(min(QUICK_WIDTH, n) for n in printed.hidden) if setting.quick else printed.hidden
        network = setting.cache.get(replace(setting.plan_of("sine1d"), hidden=hidden)).single
        box = Box.ball([printed.centre], printed.eps)
        found = certify(network, box, Options(method="moment"))
        marks = (("FL, 1 sd (published)", *printed.fl_1), ("FL, 3 sd (published)", *printed.fl_3))
        title = f"{len(hidden)} hidden layer{'s' if len(hidden) > 1 else ''} of {hidden[0]}"
        panels.append(affine.Panel(title, network, box, found, marks))
        ends = ((found.lower.item(), found.upper.item()), printed.fl_1, printed.fl_3)
        intervals = (f"[{low:.3f}, {high:.3f}]" for low, high in ends)
        lines.append(f"| {' | '.join((size_of(hidden), f'{printed.centre} ± {printed.eps}', *intervals))} |")
    picture = setting.out / "figure-1.png"
    save_figure(affine.affine_figure(panels), picture, option="--out")
    title = "Figure 1: affine bounds on 1D noisy sine"
    path, text = setting.write("figure-1", title, _NOTES["figure-1"], "\n".join(lines), f"![]({picture.name})")
    return Outcome((path, picture), text)


def figure_3(setting: Setting) -> Outcome:
    """Widths against the size of the network and the spread of its posterior; the rows are those of Table 1a."""
    rows = setting.rows(published.TABLE_1A, setting.plan_of("sine2d"))
    measured = setting.measured(rows, [c for c in COLUMNS["table-1a"] if c.name in (MOMENT, INSIDE)])
    picture, spread = setting.out / "figure-3.png", setting.out / "figure-3-spread.png"
    save_figure(_width_figure(measured), picture, option="--out")
    save_figure(bars.scatter_figure([_point(m) for m in measured]), spread, option="--out")
    pictures = (f"![]({picture.name})", f"![]({spread.name})")
    path, text = setting.write("figure-3", "Figure 3: γ, size and posterior", _NOTES["figure-3"], *pictures)
    return Outcome((path, picture, spread), text)


EXPERIMENTS: Mapping[str, Callable[[Setting], Outcome]] = {
    "table-1a": table_1a,
    "table-1b": table_1b,
    "table-2": table_2,
    "figure-1": figure_1,
    "figure-3": figure_3,
}


def reproduce(name: str, setting: Setting) -> Outcome:
    """Make the table or figure of this name in ``setting.out``; what an earlier run has measured is not done again."""
    new = not setting.out.exists()
    setting.out.mkdir(parents=True, exist_ok=True)
    try:
        return EXPERIMENTS[name](setting)
    finally:
        if new and not any(setting.out.iterdir()):  # nothing came of it
            setting.out.rmdir()


def _table(
    setting: Setting,
    name: str,
    rows: Sequence[Row],
    headings: Callable[[Sequence[Column]], list[Heading]],
    draw: Callable[[Sequence[Measured]], Any],
) -> Outcome:
    more = setting.more.get(name, ())
    measured, columns = setting.measured(rows, [*COLUMNS[name], *more]), headings(more)
    picture, table = setting.out / f"{name}.png", setting.out / f"{name}.csv"
    save_figure(draw(measured), picture, option="--out")
    table.write_text(csv_text(columns, measured), encoding="utf-8")
    parts = [f"## {_title(data)}\n\n{markdown(columns, own)}" for data, own in _by_data(measured)]
    title, about = _NOTES[name].split("\n", 1)
    about = about.format(points=max(row.points for row in rows))
    path, text = setting.write(name, title, about, *parts, f"![]({picture.name})")
    return Outcome((path, table, picture), text)


def _at_hand(cache: NetworkCache) -> dict[str, str]:
    """CIFAR-10's subset in its place where only that is there; elsewhere the whole set is downloaded."""
    store = open_store(cache.store)
    whole = store.find("cifar10/cifar-10-batches-bin/data_batch_1.bin") or store.find(cifar.ARCHIVE.path)
    return {"cifar10": "cifar10_subset"} if not whole and store.find(cifar.SUBSET.path) else {}


def _title(data: str) -> str:
    return _TITLES.get(data, data)


def _by_data(measured: Iterable[Measured]) -> list[tuple[str, list[Measured]]]:
    return [(data, list(rows)) for data, rows in groupby(measured, key=lambda m: m.row.plan.data)]


def _by_depth(measured: Iterable[Measured]) -> list[tuple[str, list[Measured]]]:
    """The rows of one data set and depth, with a title."""
    found = groupby(measured, key=lambda m: (m.row.published.data, len(m.row.published.hidden)))
    return [(f"{_title(data)}, {depth} layer{'s' if depth > 1 else ''}", list(rows)) for (data, depth), rows in found]


def _width_figure(measured: Sequence[Measured]) -> Any:
    panels = [
        _panel(title, [str(m.row.published.hidden[0]) for m in rows], rows, widths=True)
        for title, rows in _by_depth(measured)
    ]
    return bars.bars_figure(panels, "γ, mean over the inputs", xlabel="neurons in a hidden layer", stars="std of f(x)")


def _radius_figure(measured: Sequence[Measured]) -> Any:
    panels = [
        _panel(title, [str(m.row.published.hidden[0]) for m in rows], rows) for title, rows in _by_depth(measured)
    ]
    return _radius_bars(panels, "neurons in a hidden layer")


def _kernel_figure(measured: Sequence[Measured]) -> Any:
    panels = []
    for data, rows in _by_data(measured):
        labels = [f"{m.row.published.convolutions} of {m.row.published.kernels}" for m in rows]
        panels.append(_panel(_title(data), labels, rows))
    return _radius_bars(panels, "convolutions, number of kernels")


def _radius_bars(panels: Sequence[bars.Panel], xlabel: str) -> Any:
    return bars.bars_figure(panels, "radius, mean over the inputs", xlabel=xlabel, stars="std of the logits")


def _panel(title: str, labels: Sequence[str], rows: Sequence[Measured], *, widths: bool = False) -> bars.Panel:
    """What is certified, what is found from inside, and the paper's figure."""
    paper = bars.Series("paper (BNN-DP, its own networks)", tuple(m.row.published.bnn_dp for m in rows), "tick")
    if widths:
        certified = bars.Series("certified (moment)", tuple(m.cells[MOMENT].width for m in rows))
        inside = bars.Series("from inside", tuple(m.cells[INSIDE].width for m in rows), "hatched")
    else:
        certified = bars.Series("certified", tuple(m.cells[MOMENT].radius for m in rows))
        inside = bars.Series("attack", tuple(m.cells[ATTACK].broken for m in rows), "hatched")
    spread = "output_std" if widths else "logit_std"
    return bars.Panel(title, tuple(labels), (certified, inside, paper), tuple(m.card["test"][spread] for m in rows))


def _point(m: Measured) -> bars.Point:
    own = m.row.published
    return bars.Point(_title(own.data), own.hidden, m.cells[MOMENT].width, m.card["test"]["output_std"])


def _made_by(command: str) -> str:
    """One sentence that says how to make the result again and where it was made."""
    versions = f"bnndp {metadata.version('bnndp')}, torch {torch.__version__.split('+')[0]}"
    threads = torch.get_num_threads()
    used = "one thread" if threads == 1 else f"{threads} threads"
    day = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    machine = f"{used} of a machine with {os.cpu_count()} cores ({_processor()})"
    return f"Made by `{command}` on {day} with {versions}, {machine}."


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


_NOTES = {
    "table-1a": """Table 1a: certified widths of regression
Means over {points} test inputs of the certified width γ of E f(x) on the ball of radius eps (l-infinity, in the units
of the data set), for networks trained by `bnndp train`; the paper's networks are not public, its figures are of others
of the same size. *Ratio*: certified over found from inside. *At the point*: the width at radius 0, all of which the
posterior costs. *Ours, its boxes*: the paper's code clips every box to inputs >= 0, so that a coordinate below zero
becomes the point zero and the box loses that side; its figures are to be compared with ours on the same clipped boxes.
*FL*: as published; it cuts the posterior off. † does not hold for the whole posterior. *Forward passes*: the time of an
input in forward passes with drawn weights, on the same machine. *Paper's s*: seconds per input on eight cores, a mean
over all its networks on the data set.""",
    "table-1b": """Table 1b: certified radii of classification
Means over {points} test images of the largest radius (l-infinity, to 1 %) at which the decision of E softmax is proved
not to change; an image that is not certified counts as 0. Pixels stay in [0, 1]; *no domain* lets them leave it (the
paper's code lets them leave it upwards). *Certified at 0*: the share of images whose own decision is certified.
*Attack*: the smallest radius at which one changes the decision; *mean ratio*: the certified radius over it. The paper's
networks are not public but for two, and those are nearly deterministic (2x64: standard deviation of the logits 0.005);
so are these, unless the command says otherwise, trained by VOGN at a temperature of 1e-6. *FL*: as published; it cuts
the posterior off. † does not hold for the whole posterior. *Forward passes*: the time of an image in forward passes
with drawn weights, on the same machine. *Paper's s*: seconds per image on eight cores, a mean over all its
networks on the data set.""",
    "table-2": """Table 2: certified radii of convolutional networks
Means over {points} test images of the largest radius (l-infinity, to 1 %) at which the decision of E softmax is proved
not to change; an image that is not certified counts as 0. *Convolutions* have *kernels* kernels of 4 x 4 with stride 1
and ReLU, then hidden dense layers. As in the paper convolutions are trained by dropout (of units, after the last of
them) and dense layers by Bayes by backprop; place, rate and temperature are ours, as the paper names none. Where only
the subset of CIFAR-10 is at hand networks are trained and tested on it. The other columns are those of Table 1b.""",
    "figure-1": """The affine bounds hold for E f(x) on the grey interval, over the whole posterior; the band is three
standard deviations of f(x), sampled. Networks trained by `bnndp train sine1d`; FL's intervals are the paper's, of its
own networks.""",
    "figure-3": """The widths of Table 1a by size of the network, with the standard deviation of f(x) as stars; and
the same widths against it.""",
}
