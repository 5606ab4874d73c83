"""Tables 1a, 1b and 2 of the paper: which networks, which columns, and how the results are written."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from benchmarks.paper.columns import ATTACK, CLIPPED, INSIDE, MOMENT, NO_DOMAIN, PARTITION, POINT
from benchmarks.paper.grid import Cell, Column
from benchmarks.paper.networks import size_of
from benchmarks.paper.paper import SECONDS, SECONDS_2, TABLE_1A, TABLE_1B, TABLE_2, Convolutional, Radius, Width
from benchmarks.paper.rows import Measured, Row
from bnndp.training.fit import Plan

__all__ = [
    "POINTS",
    "QUICK_POINTS",
    "QUICK_WIDTH",
    "Heading",
    "csv_text",
    "headings_1a",
    "headings_1b",
    "headings_2",
    "markdown",
    "plain_table",
    "rows_1a",
    "rows_1b",
    "rows_2",
]

POINTS, QUICK_POINTS, QUICK_WIDTH = 100, 10, 64


@dataclass(frozen=True, slots=True)
class Heading:
    """A column of the written table: its title, its name in the .csv file, and the number (or text) of a row.

    The written table has two parts, ours beside the paper and ours beside the baselines: ``part`` is the one in which
    the column stands; None: in both; ``csv``: in neither, as it stands in the heading.
    """

    title: str
    key: str
    value: Callable[[Measured[Any]], float | str | None]
    digits: int = 3  # significant ones in the written table; the .csv has them all
    part: Literal["paper", "baselines", "csv"] | None = "paper"


def rows_1a(plan: Plan, *, quick: bool = False, points: int | None = None) -> list[Row[Width]]:
    """The rows of Table 1a, trained as ``plan`` says; its data set and sizes are those of the row."""
    return [_row(published, plan, quick, points) for published in TABLE_1A if not quick or _small(published)]


def rows_1b(plan: Plan, *, quick: bool = False, points: int | None = None) -> list[Row[Radius]]:
    """The same for Table 1b."""
    return [_row(published, plan, quick, points) for published in TABLE_1B if not quick or _small(published)]


def rows_2(
    plan: Plan, sets: Mapping[str, str], *, quick: bool = False, points: int | None = None
) -> list[Row[Convolutional]]:
    """The same for Table 2; ``sets`` has the data set in the place of a published one, where it is another."""
    found = []
    for published in TABLE_2:
        row = _row(published, replace(plan, conv=published.conv), quick, points)
        data = sets.get(published.data, published.data)
        found.append(replace(row, plan=replace(row.plan, data=data)))
    return found


def _row(published: Any, plan: Plan, quick: bool, points: int | None) -> Row[Any]:
    own = replace(plan, data=published.data, hidden=published.hidden)
    return Row(published, own, points or (QUICK_POINTS if quick else POINTS))


def _small(published: Width | Radius) -> bool:
    return max(published.hidden) <= QUICK_WIDTH


def headings_1a(baselines: Sequence[Column] = ()) -> list[Heading]:
    """Certified widths, the range from inside, the paper's figures, the baselines, and what an input costs."""
    return [
        *_first(),
        Heading("eps", "eps", lambda m: m.row.published.eps),
        Heading("test RMSE", "test_rmse", lambda m: m.card["test"]["rmse"]),
        Heading("sd of f", "output_std", lambda m: m.card["test"]["output_std"], 2),
        _width(MOMENT, "**certified**, moment", None),
        _width(PARTITION, "partition"),
        _width(INSIDE, "from inside"),
        Heading("ratio", "ratio", lambda m: _over(m.cells[MOMENT].width, m.cells[INSIDE].width)),
        _width(POINT, "at the point"),
        *_published(),
        _width(CLIPPED, "ours, its boxes"),
        *(_width(column.name, _marked(column), "baselines") for column in baselines),
        *_cost(),
    ]


def headings_1b(baselines: Sequence[Column] = ()) -> list[Heading]:
    """Certified radii, the attack's, the paper's figures, the baselines, and what an input costs."""
    return [
        *_first(),
        Heading("accuracy", "test_accuracy", lambda m: m.card["test"]["accuracy"]),
        Heading("sd of logits", "logit_std", lambda m: m.card["test"]["logit_std"], 2),
        _radius(MOMENT, "**certified**, moment", None),
        Heading("certified at 0", "certified_share", lambda m: _certified(m.cells[MOMENT])),
        _radius(PARTITION, "partition"),
        _radius(ATTACK, "attack", attack=True),
        Heading("mean ratio", "ratio", lambda m: _mean_ratio(m.cells[MOMENT], m.cells[ATTACK])),
        _radius(NO_DOMAIN, "no domain"),
        *_published(),
        Heading("ours : paper", "gain", lambda m: _over(m.cells[MOMENT].radius, m.row.published.bnn_dp)),
        *(_radius(column.name, _marked(column), "baselines", attack=column.attack) for column in baselines),
        *_cost(),
    ]


def headings_2(baselines: Sequence[Column] = ()) -> list[Heading]:
    """The same as of Table 1b, but for the columns that convolutions do not have."""
    gone = {"hidden", _key(PARTITION), "paper_seconds"}
    return [
        Heading("data", "data", lambda m: m.row.plan.data, part="csv"),
        Heading("convolutions", "convolutions", lambda m: m.row.published.convolutions, part=None),
        Heading("kernels", "kernels", lambda m: m.row.published.kernels, part=None),
        Heading("hidden", "hidden", lambda m: size_of(m.row.published.hidden) or "-", part=None),
        *(heading for heading in headings_1b(baselines) if heading.key not in gone | {"data"}),
        Heading("paper's s", "paper_seconds", lambda m: SECONDS_2[m.row.published.data]),
    ]


def markdown(headings: Sequence[Heading], measured: Sequence[Measured[Any]]) -> str:
    """The table in Markdown, one line a network, in its two parts."""
    parts = [[heading for heading in headings if heading.part in (part, None)] for part in ("paper", "baselines")]
    return "\n".join(plain_table(part, measured) for part in parts)


def plain_table(headings: Sequence[Heading], measured: Iterable[Measured[Any]]) -> str:
    """A table in Markdown with exactly these columns."""
    lines = [[heading.title for heading in headings], ["---"] * len(headings)]
    lines += [[_shown(heading.value(m), heading.digits) for heading in headings] for m in measured]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def csv_text(headings: Sequence[Heading], measured: Iterable[Measured[Any]]) -> str:
    """The same as comma-separated values, all digits, empty where there is no number."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([heading.key for heading in headings])
    for m in measured:
        values = [heading.value(m) for heading in headings]
        writer.writerow(["" if value is None or value != value else value for value in values])
    return file.getvalue()


def _first() -> list[Heading]:
    return [
        Heading("data", "data", lambda m: m.row.published.data, part="csv"),
        Heading("hidden", "hidden", lambda m: size_of(m.row.published.hidden), part=None),
    ]


def _published() -> list[Heading]:
    return [
        Heading("paper's BNN-DP", "paper_bnn_dp", lambda m: m.row.published.bnn_dp),
        Heading("FL, 3 sd (published) †", "paper_fl_3", lambda m: m.row.published.fl_3, part="baselines"),
        Heading("FL, 5 sd (published) †", "paper_fl_5", lambda m: m.row.published.fl_5, part="baselines"),
    ]


def _cost() -> list[Heading]:
    return [
        Heading("ms an input", "milliseconds", lambda m: 1e3 * m.cells[MOMENT].seconds_a_point),
        Heading("forward passes", "forward_passes", lambda m: m.passes(MOMENT)),
        Heading("paper's s", "paper_seconds", lambda m: SECONDS[m.row.published.data]),
        Heading("training s", "training_seconds", lambda m: m.card.get("seconds"), 2),
    ]


def _width(column: str, title: str, part: Literal["paper", "baselines"] | None = "paper") -> Heading:
    return Heading(title, _key(column), lambda m: m.cells[column].width, part=part)


def _radius(
    column: str, title: str, part: Literal["paper", "baselines"] | None = "paper", *, attack: bool = False
) -> Heading:
    return Heading(
        title, _key(column), lambda m: m.cells[column].broken if attack else m.cells[column].radius, part=part
    )


def _key(column: str) -> str:
    """The name of a column in the .csv file."""
    return "".join(letter if letter.isalnum() else "_" for letter in column.replace(">=", "from"))


def _marked(column: Column) -> str:
    """The title of a baseline: marked where it does not hold for the whole posterior, or saw fewer inputs."""
    some = f" ({column.points} inputs)" if column.points is not None else ""
    return f"{column.name}{some}{'' if column.whole else ' †'}"


def _certified(cell: Cell) -> float:
    """Share of the inputs of which at least the decision at the input itself is certified."""
    return fmean(float(value == value) for value in cell.values)


def _mean_ratio(certified: Cell, attack: Cell) -> float | None:
    """Mean of certified over attacked radius, over the inputs that an attack broke away from the input itself."""
    pairs = zip(certified.values, attack.values, strict=True)
    ratios = [(low if low == low else 0.0) / high for low, high in pairs if 0 < high < math.inf]
    return fmean(ratios) if ratios else None


def _over(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _shown(value: float | str | None, digits: int) -> str:
    if value is None or value != value:
        return "-"
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return str(value)
    return f"{value:.{digits}g}" if abs(value) < 10**digits or value == 0 else f"{value:,.0f}"
