"""The paper's tables and figures, each one function: train or reuse the networks, measure, write text and picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.paper.columns import ATTACK, CONVOLUTION_COLUMNS, INSIDE, MOMENT, RADIUS_COLUMNS, WIDTH_COLUMNS
from benchmarks.paper.grid import Column
from benchmarks.paper.journal import Journal
from benchmarks.paper.networks import Shelf, size_of
from benchmarks.paper.paper import FIGURE_1, Convolutional, Radius, Width
from benchmarks.paper.provenance import made_by
from benchmarks.paper.rows import Measured, Row, Task, Told, fill
from benchmarks.paper.tables import (
    QUICK_WIDTH,
    Heading,
    csv_text,
    headings_1a,
    headings_1b,
    headings_2,
    markdown,
    plain_table,
    rows_1a,
    rows_1b,
    rows_2,
)
from bnndp.data import cifar
from bnndp.data.folder import open_store
from bnndp.errors import InputError
from bnndp.files.posterior import write_whole
from bnndp.geometry.box import Box
from bnndp.layers import Dropout
from bnndp.options import Options
from bnndp.questions.certify import certify
from bnndp.report import affine, bars
from bnndp.training.fit import Plan

__all__ = ["EXPERIMENTS", "Outcome", "Setting", "reproduce"]

_TITLES = {
    "sine2d": "2D noisy sine",
    "kin8nm": "Kin8nm",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar10_subset": "CIFAR-10 (subset)",
}
_BRIEF = ("convolutions", "kernels", "hidden", "moment", "inside", "attack", "ratio", "paper_bnn_dp", "forward_passes")
COLD = 1e-6
"""Temperature of the classifiers of Table 1b. The posterior that the paper's authors published (MNIST, 2x64) is nearly
deterministic, its logits have a standard deviation of 0.005; this temperature gives 0.006 to 0.03."""


DROPPED = 0.1
CONVOLUTIONAL = {
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
    shelf: Shelf
    plan: Mapping[str, Any]  # fields of the plan that are not the default: inference, temperature, ...
    quick: bool = False
    points: int | None = None
    only: str | None = None  # one of the data sets
    baselines: Mapping[str, Sequence[Column]] | None = None  # columns by table
    restart: bool = False
    command: str = "bnndp reproduce"

    def journal(self) -> Journal:
        """The cells that were measured already, of all tables."""
        return Journal(self.out / "journal.jsonl", restart=self.restart)

    def columns(self, table: str) -> Sequence[Column]:
        """The baselines of a table."""
        return () if self.baselines is None else self.baselines.get(table, ())

    def started(self, data: str, usual: Mapping[str, Any]) -> Plan:
        """The plan of the networks; its data set and size are filled in row by row."""
        return Plan(data, **({"inference": "vogn"} | dict(usual) | dict(self.plan)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The files that were written, the text of the first of them, and its tables with few columns for a terminal."""

    files: tuple[Path, ...]
    text: str
    brief: str


def table_1a(setting: Setting, told: Told | None) -> Outcome:
    """Certified widths of regression, beside the paper's."""
    extra = setting.columns("table-1a")
    rows = _chosen(rows_1a(setting.started("sine2d", {}), quick=setting.quick, points=setting.points), setting)
    measured = list(fill(rows, [*WIDTH_COLUMNS, *extra], setting.shelf, setting.journal(), told))
    picture = setting.out / "table-1a.png"
    bars.draw_bars(_width_panels(measured), picture, "γ, mean over the inputs")
    return _write(setting, "table-1a", _NOTES_1A, headings_1a(extra), measured, picture)


def table_1b(setting: Setting, told: Told | None) -> Outcome:
    """Certified radii of classification, beside the paper's."""
    extra = setting.columns("table-1b")
    plan = setting.started("mnist", {"temperature": COLD})
    rows = _chosen(rows_1b(plan, quick=setting.quick, points=setting.points), setting)
    measured = list(fill(rows, [*RADIUS_COLUMNS, *extra], setting.shelf, setting.journal(), told))
    picture = setting.out / "table-1b.png"
    bars.draw_bars(_radius_panels(measured), picture, "radius, mean over the inputs", stars="std of the logits")
    return _write(setting, "table-1b", _NOTES_1B, headings_1b(extra), measured, picture)


def table_2(setting: Setting, told: Told | None) -> Outcome:
    """Certified radii of convolutional networks, beside the paper's."""
    extra = setting.columns("table-2")
    dropped = setting.plan.get("inference", "bbb") in ("bbb", "map")
    usual = CONVOLUTIONAL | {"dropout": Dropout(DROPPED) if dropped else None, "conv": "2x4"}
    plan = setting.started("fashion_mnist", usual)
    rows = _chosen(rows_2(plan, _at_hand(setting.shelf), quick=setting.quick, points=setting.points), setting)
    measured = list(fill(rows, [*CONVOLUTION_COLUMNS, *extra], setting.shelf, setting.journal(), told))
    picture = setting.out / "table-2.png"
    bars.draw_bars(_kernel_panels(measured), picture, "radius, mean over the inputs", stars="std of the logits")
    return _write(setting, "table-2", _NOTES_2, headings_2(extra), measured, picture)


def _at_hand(shelf: Shelf) -> dict[str, str]:
    """CIFAR-10's subset in its place where only that is there; elsewhere the whole set is downloaded."""
    store = open_store(shelf.store)
    whole = store.find("cifar10/cifar-10-batches-bin/data_batch_1.bin") or store.find(cifar.ARCHIVE.path)
    return {"cifar10": "cifar10_subset"} if not whole and store.find(cifar.SUBSET.path) else {}


def figure_1(setting: Setting, told: Told | None) -> Outcome:
    """Certified affine bounds over an interval of the 1D noisy sine."""
    panels, lines = (
        [],
        [
            "| hidden | interval | certified | FL, 1 sd (published) | FL, 3 sd (published) |\n",
            "|---|---|---|---|---|\n",
        ],
    )
    if setting.only not in (None, "sine1d"):
        raise InputError(f"figure-1 is on sine1d alone, got --only {setting.only}; leave it out.")
    for printed in FIGURE_1:
        case = replace(printed, hidden=tuple(min(QUICK_WIDTH, n) for n in printed.hidden)) if setting.quick else printed
        plan = replace(setting.started("sine1d", {}), hidden=case.hidden)
        name = f"sine1d {size_of(case.hidden)}"
        watcher = None if told is None or setting.shelf.has(plan) else told(Task.training(name, plan))
        network = setting.shelf.take(plan, watcher).single
        box = Box.ball([case.centre], case.eps)
        found = certify(network, box, Options(method="moment"))
        marks = (("FL, 1 sd (published)", *case.fl_1), ("FL, 3 sd (published)", *case.fl_3))
        title = f"{len(case.hidden)} hidden layer{'s' if len(case.hidden) > 1 else ''} of {case.hidden[0]}"
        panels.append(affine.Panel(title, network, box, found, marks))
        ends = found.lower.item(), found.upper.item()
        cells = (size_of(case.hidden), f"{case.centre} ± {case.eps}", *map(_interval, (ends, case.fl_1, case.fl_3)))
        lines.append(f"| {' | '.join(cells)} |\n")
    picture = setting.out / "figure-1.png"
    affine.draw_affine(panels, picture)
    text = (
        f"# Figure 1: affine bounds on 1D noisy sine\n\n{_NOTES_FIGURE_1}\n\n{''.join(lines)}\n![]({picture.name})\n\n"
    )
    path = setting.out / "figure-1.md"
    text += made_by(setting.command) + "\n"
    write_whole(path, text.encode())
    return Outcome((path, picture), text, "".join(lines))


def figure_3(setting: Setting, told: Told | None) -> Outcome:
    """Widths against the size of the network and the spread of its posterior; the rows are those of Table 1a."""
    rows = _chosen(rows_1a(setting.started("sine2d", {}), quick=setting.quick, points=setting.points), setting)
    wanted = [column for column in WIDTH_COLUMNS if column.name in (MOMENT, INSIDE)]
    measured = list(fill(rows, wanted, setting.shelf, setting.journal(), told))
    picture, spread = setting.out / "figure-3.png", setting.out / "figure-3-spread.png"
    bars.draw_bars(_width_panels(measured), picture, "γ, mean over the inputs")
    bars.draw_scatter([_point(m) for m in measured], spread)
    path = setting.out / "figure-3.md"
    text = f"# Figure 3: γ, size and posterior\n\n{_NOTES_FIGURE_3}\n\n![]({picture.name})\n\n![]({spread.name})\n\n"
    text += made_by(setting.command) + "\n"
    write_whole(path, text.encode())
    return Outcome((path, picture, spread), text, _NOTES_FIGURE_3)


EXPERIMENTS: Mapping[str, Callable[[Setting, Told | None], Outcome]] = {
    "table-1a": table_1a,
    "table-1b": table_1b,
    "table-2": table_2,
    "figure-1": figure_1,
    "figure-3": figure_3,
}


def reproduce(name: str, setting: Setting, told: Told | None = None) -> Outcome:
    """Make the table or figure of this name in ``setting.out``; what an earlier run has measured is not done again."""
    if name not in EXPERIMENTS:
        raise InputError(f"{name!r} is not one of the experiments {', '.join(EXPERIMENTS)}.")
    new = not setting.out.exists()
    try:
        setting.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{setting.out}: cannot be made: {error.strerror}; change --out.") from error
    try:
        return EXPERIMENTS[name](setting, told)
    finally:
        if new and not any(setting.out.iterdir()):  # nothing came of it
            setting.out.rmdir()


def _chosen(rows: Sequence[Row[Any]], setting: Setting) -> list[Row[Any]]:
    chosen = [row for row in rows if setting.only in (None, row.published.data)]
    if not chosen:
        names = ", ".join(dict.fromkeys(row.published.data for row in rows))
        raise InputError(f"no row of the table is on {setting.only!r}; its data sets are {names}.")
    return chosen


def _write(
    setting: Setting,
    name: str,
    notes: str,
    headings: Sequence[Heading],
    measured: Sequence[Measured[Any]],
    picture: Path,
) -> Outcome:
    parts = [f"## {_TITLES.get(data, data)}\n\n{markdown(headings, rows)}" for data, rows in _by_data(measured)]
    title, about = notes.split("\n", 1)
    points = max(m.row.points for m in measured)
    text = "\n\n".join(
        (f"# {title}", about.format(points=points).strip(), *parts, f"![]({picture.name})", made_by(setting.command))
    )
    path, table = setting.out / f"{name}.md", setting.out / f"{name}.csv"
    write_whole(path, (text + "\n").encode())
    write_whole(table, csv_text(headings, measured).encode())
    few = [heading for heading in headings if heading.key in _BRIEF]
    brief = "\n\n".join(
        f"## {_TITLES.get(data, data)}\n\n{plain_table(few, rows)}" for data, rows in _by_data(measured)
    )
    return Outcome((path, table, picture), text, brief)


def _by_data(measured: Iterable[Measured[Any]]) -> list[tuple[str, list[Measured[Any]]]]:
    return [(data, list(rows)) for data, rows in groupby(measured, key=lambda m: m.row.plan.data)]


def _by_depth(measured: Iterable[Measured[Any]]) -> list[tuple[str, list[Measured[Any]]]]:
    """Panels: the rows of one data set and depth, with a title."""
    found = groupby(measured, key=lambda m: (m.row.published.data, len(m.row.published.hidden)))
    return [
        (f"{_TITLES.get(data, data)}, {depth} layer{'s' if depth > 1 else ''}", list(rows))
        for (data, depth), rows in found
    ]


def _width_panels(measured: Iterable[Measured[Width]]) -> list[bars.Panel]:
    return [
        bars.width_panel(
            title,
            [
                bars.Bar(
                    str(m.row.published.hidden[0]),
                    m.cells[MOMENT].width,
                    m.cells[INSIDE].width,
                    m.row.published.bnn_dp,
                    m.card["test"]["output_std"],
                )
                for m in rows
            ],
        )
        for title, rows in _by_depth(measured)
    ]


def _radius_panels(measured: Iterable[Measured[Radius]]) -> list[bars.Panel]:
    return [
        bars.Panel(
            title,
            tuple(str(m.row.published.hidden[0]) for m in rows),
            (
                bars.Series("certified", tuple(m.cells[MOMENT].radius for m in rows)),
                bars.Series("attack", tuple(m.cells[ATTACK].broken for m in rows), "hatched"),
                bars.Series("paper (BNN-DP, its own networks)", tuple(m.row.published.bnn_dp for m in rows), "tick"),
            ),
            tuple(m.card["test"]["logit_std"] for m in rows),
        )
        for title, rows in _by_depth(measured)
    ]


def _kernel_panels(measured: Iterable[Measured[Convolutional]]) -> list[bars.Panel]:
    return [
        bars.Panel(
            _TITLES.get(data, data),
            tuple(f"{m.row.published.convolutions} of {m.row.published.kernels}" for m in rows),
            (
                bars.Series("certified", tuple(m.cells[MOMENT].radius for m in rows)),
                bars.Series("attack", tuple(m.cells[ATTACK].broken for m in rows), "hatched"),
                bars.Series("paper (BNN-DP, its own networks)", tuple(m.row.published.bnn_dp for m in rows), "tick"),
            ),
            tuple(m.card["test"]["logit_std"] for m in rows),
        )
        for data, rows in _by_data(measured)
    ]


def _point(m: Measured[Width]) -> bars.Point:
    published = m.row.published
    return bars.Point(
        _TITLES.get(published.data, published.data),
        published.hidden,
        m.cells[MOMENT].width,
        m.card["test"]["output_std"],
    )


def _interval(ends: tuple[float, float]) -> str:
    return f"[{ends[0]:.3f}, {ends[1]:.3f}]"


_NOTES_1A = """Table 1a: certified widths of regression
Means over {points} test inputs of the certified width γ of E f(x) on the ball of radius eps (l-infinity, in the units
of the data set), for networks trained by `bnndp train`; the paper's networks are not public, its figures are of others
of the same size. *Ratio*: certified over found from inside. *At the point*: the width at radius 0, all of which the
posterior costs. *Ours, its boxes*: the paper's code clips every box to inputs >= 0, so that a coordinate below zero
becomes the point zero and the box loses that side; its figures are to be compared with ours on the same clipped boxes.
*FL*: as published; it cuts the posterior off. † does not hold for the whole posterior. *Forward passes*: the time of an
input in forward passes with drawn weights, on the same machine. *Paper's s*: seconds an input on eight cores, a mean
over all its networks on the data set."""

_NOTES_1B = """Table 1b: certified radii of classification
Means over {points} test images of the largest radius (l-infinity, to 1 %) at which the decision of E softmax is proved
not to change; an image that is not certified counts as 0. Pixels stay in [0, 1]; *no domain* lets them leave it (the
paper's code lets them leave it upwards). *Certified at 0*: the share of images whose own decision is certified.
*Attack*: the smallest radius at which one changes the decision; *mean ratio*: the certified radius over it. The paper's
networks are not public but for two, and those are nearly deterministic (2x64: standard deviation of the logits 0.005);
so are these, unless the command says otherwise, trained by VOGN at a temperature of 1e-6. *FL*: as published; it cuts
the posterior off. † does not hold for the whole posterior. *Forward passes*: the time of an image in forward passes
with drawn weights, on the same machine. *Paper's s*: seconds an image on eight cores, a mean over all its
networks on the data set."""

_NOTES_2 = """Table 2: certified radii of convolutional networks
Means over {points} test images of the largest radius (l-infinity, to 1 %) at which the decision of E softmax is proved
not to change; an image that is not certified counts as 0. *Convolutions* of so many *kernels* of 4 x 4 with stride 1
and ReLU, then hidden dense layers. As in the paper convolutions are trained by dropout (of units, after the last of
them) and dense layers by Bayes by backprop; place, rate and temperature are ours, as the paper names none. Where only
the subset of CIFAR-10 is at hand networks are trained and tested on it. The other columns are those of Table 1b."""

_NOTES_FIGURE_1 = """The affine bounds hold for E f(x) on the grey interval, over the whole posterior; the band is three
standard deviations of f(x), sampled. Networks trained by `bnndp train sine1d`; FL's intervals are the paper's, of its
own networks."""

_NOTES_FIGURE_3 = """The widths of Table 1a by size of the network, with the standard deviation of f(x) as stars; and
the same widths against it."""
