"""Sums and means over the rows of ``bnndp certify``, for the table and for ``--json``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from bnndp.cli.kept import End
from bnndp.cli.rows import finite_or_none
from bnndp.questions.verdict import Verdict

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """Sums over the rows."""

    boxes: int = 0
    outputs: int = 0
    methods: set[str] = field(default_factory=set)
    width: float = 0.0
    largest: float = 0.0
    inside: float | None = None
    verdicts: Counter[str] | None = None
    seconds: float = 0.0

    def write(self, row: Mapping[str, Any]) -> None:
        """Take one box into account."""
        widths = _numbers(row["width"])
        self.boxes, self.outputs = self.boxes + 1, len(widths)
        self.methods.add(row["method"])
        self.width += sum(widths)
        self.largest = max(self.largest, *widths)
        self.seconds += row["seconds"]
        if row["inside_lower"] is not None:
            self.inside = (self.inside or 0.0) + sum(_numbers(row["inside_upper"])) - sum(_numbers(row["inside_lower"]))
        if "label" in row:
            self.verdicts = self.verdicts or Counter()
            self.verdicts[row["verdict"]] += 1

    @property
    def mean_width(self) -> float:
        """Over all boxes and outputs."""
        return self.width / (self.boxes * self.outputs)

    @property
    def mean_inside(self) -> float | None:
        """Of the ranges from inside; None without an attack."""
        return None if self.inside is None else self.inside / (self.boxes * self.outputs)

    @property
    def ratio(self) -> float | None:
        """Certified over inside: a ratio of means, as single ranges may be zero."""
        return self.width / self.inside if self.inside is not None and self.inside > 0 else None

    def summary(self, end: End) -> dict[str, Any]:
        """The sums and means for programs (docs/runs.md)."""
        counts = {verdict.value: None if self.verdicts is None else self.verdicts[verdict.value] for verdict in Verdict}
        certified = counts.pop("certified")
        share = None if certified is None else certified / self.boxes
        values = {"command": "certify", "points": self.boxes, **end.summary(), "seconds": self.seconds}
        values |= {"certified": certified, "certified_share": share}
        values |= {"outputs": self.outputs, "methods": sorted(self.methods)}
        means: dict[str, float | None] = {"mean_width": self.mean_width, "largest_width": self.largest}
        means |= {"mean_inside": self.mean_inside, "ratio": self.ratio}
        return values | {name: finite_or_none(value) for name, value in means.items()} | counts

    def table(self) -> Table:
        """The sums and means on one line."""
        table = Table("boxes", "outputs", "method", "mean width", "largest width")
        cells = [str(self.boxes), str(self.outputs), ", ".join(sorted(self.methods))]
        cells += [f"{self.mean_width:.4g}", f"{self.largest:.4g}"]
        if self.mean_inside is not None:
            table.add_column("mean inside")
            table.add_column("ratio")
            cells += [f"{self.mean_inside:.4g}", "-" if self.ratio is None else f"{self.ratio:.3f}"]
        for verdict in Verdict if self.verdicts is not None else ():
            table.add_column(verdict.value)
            cells.append(str(self.verdicts[verdict.value]) if self.verdicts is not None else "-")
        table.add_column("seconds")
        table.add_row(*cells, f"{self.seconds:.3g}")
        return table


def _numbers(value: Any) -> list[float]:
    """The entry of a row as a list; what is not finite stands as null there and is infinite again."""
    return [math.inf if number is None else number for number in (value if isinstance(value, list) else [value])]
