"""How the tables are written: their headings, in Markdown and as comma-separated values."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from benchmarks.cache import size_of
from benchmarks.paper.columns import ATTACK, CLIPPED, INSIDE, MOMENT, NO_DOMAIN, PARTITION, POINT, Cell, Column
from benchmarks.paper.rows import Measured

__all__ = ["Heading", "csv_text", "headings_1a", "headings_1b", "headings_2", "markdown"]


@dataclass(frozen=True, slots=True)
class Heading:
    """A column of the written table: its title, its name in the .csv file, and the number (or text) of a row.

    The written table has two parts, ours beside the paper and ours beside the baselines: ``part`` is the one in which
    the column stands; None: in both; ``csv``: in neither, as it stands in the heading.
    """

    title: str
    key: str
    value: Callable[[Measured], float | str | None]
    digits: int = 3  # significant ones in the written table; the .csv has them all
    part: Literal["paper", "baselines", "csv"] | None = "paper"


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
    gone = {"data", "hidden", _key(PARTITION)}
    return [
        Heading("data", "data", lambda m: m.row.plan.data, part="csv"),
        Heading("convolutions", "convolutions", lambda m: m.row.published.convolutions, part=None),
        Heading("kernels", "kernels", lambda m: m.row.published.kernels, part=None),
        Heading("hidden", "hidden", lambda m: size_of(m.row.published.hidden) or "-", part=None),
        *(heading for heading in headings_1b(baselines) if heading.key not in gone),
    ]


def markdown(headings: Sequence[Heading], measured: Sequence[Measured]) -> str:
    """The table in Markdown, one line per network, in its two parts."""
    tables = []
    for part in ("paper", "baselines"):
        chosen = [heading for heading in headings if heading.part in (part, None)]
        lines = [[heading.title for heading in chosen], ["---"] * len(chosen)]
        lines += [[_shown(heading.value(m), heading.digits) for heading in chosen] for m in measured]
        tables.append("".join(f"| {' | '.join(line)} |\n" for line in lines))
    return "\n".join(tables)


def csv_text(headings: Sequence[Heading], measured: Iterable[Measured]) -> str:
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
        Heading("ms per input", "milliseconds", lambda m: 1e3 * m.cells[MOMENT].seconds_per_point),
        Heading("forward passes", "forward_passes", lambda m: m.passes(MOMENT)),
        Heading("paper's s", "paper_seconds", lambda m: m.row.published.seconds),
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
