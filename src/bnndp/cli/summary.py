"""Counts and means over the answers of a command, for the table and for ``--json`` (docs/runs.md)."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from bnndp.cli.messages import row_table
from bnndp.cli.output import finite_or_none
from bnndp.options import LEVELS
from bnndp.questions.evaluate import Evaluation
from bnndp.questions.verdict import Verdict
from bnndp.runs.exports import Row
from bnndp.runs.journal import Answer
from bnndp.runs.sealed_lines import number, numbers


@dataclass(slots=True)
class BoxSummary:
    """Sums over the rows of ``bnndp certify``."""

    boxes: int = 0
    outputs: int = 0
    methods: set[str] = field(default_factory=set)
    width: float = 0.0
    largest: float = 0.0
    inside: float | None = None
    verdicts: Counter[str] | None = None
    seconds: float = 0.0

    def add(self, row: Row, _level: str | None, answer: Answer) -> None:
        """Take one box into account."""
        widths = _numbers(row["width"])
        self.boxes, self.outputs = self.boxes + 1, len(widths)
        self.methods |= {row["method"]} - {None}
        self.width += sum(widths)
        self.largest = max(self.largest, *widths)
        self.seconds += row["seconds"]
        if answer["inside_lower"] is not None:
            low, high = (sum(numbers(answer[end])) for end in ("inside_lower", "inside_upper"))
            self.inside = (self.inside or 0.0) + high - low
        if "label" in row:
            self.verdicts = self.verdicts or Counter()
            self.verdicts[row["verdict"]] += 1

    @property
    def means(self) -> dict[str, float | None]:
        """Over all boxes and outputs; the ratio, certified over inside, is one of means, as ranges may be zero."""
        count, inside = self.boxes * self.outputs, self.inside
        means: dict[str, float | None] = {"mean_width": self.width / count, "largest_width": self.largest}
        means["mean_inside"] = None if inside is None else inside / count
        return means | {"ratio": self.width / inside if inside is not None and inside > 0 else None}

    def values(self) -> dict[str, Any]:
        """For programs."""
        counts = {verdict.value: None if self.verdicts is None else self.verdicts[verdict.value] for verdict in Verdict}
        certified = counts.pop("certified")
        values: dict[str, Any] = {"points": self.boxes, "seconds": self.seconds, "certified": certified}
        values |= {"certified_share": None if certified is None else certified / self.boxes}
        values |= {"outputs": self.outputs, "methods": sorted(self.methods)}
        return values | {name: finite_or_none(value) for name, value in self.means.items()} | counts

    def table(self) -> Table:
        """For people, on one line."""
        width, largest, inside, ratio = self.means.values()
        cells = {"boxes": str(self.boxes), "outputs": str(self.outputs), "method": ", ".join(sorted(self.methods))}
        cells |= {"mean width": _shown(width), "largest width": _shown(largest)}
        if inside is not None:
            cells |= {"mean inside": _shown(inside), "ratio": "-" if ratio is None else f"{ratio:.3f}"}
        if self.verdicts is not None:
            cells |= {verdict.value: str(self.verdicts[verdict.value]) for verdict in Verdict}
        return row_table(cells | {"seconds": f"{self.seconds:.3g}"})


@dataclass(slots=True)
class RadiusSummary:
    """The answers of ``bnndp radius`` and ``bnndp evaluate``; ``labelled``: decisions are compared to labels."""

    upper: float  # the largest radius that was tried
    labelled: bool = True
    levels: set[str | None] = field(default_factory=set)
    _label: array[int] = field(default_factory=lambda: array("q"))
    _decision: array[int] = field(default_factory=lambda: array("q"))
    _radius: array[float] = field(default_factory=lambda: array("d"))
    _attack: array[float] = field(default_factory=lambda: array("d"))
    _seconds: float = 0.0

    def add(self, row: Row, level: str | None, answer: Answer) -> None:
        """Take one input into account; what was not reached has no decision, which is then not that of its label."""
        self.levels.add(level)
        self._label.append(-1 if answer["label"] is None else answer["label"])
        self._decision.append(-2 if answer["decision"] is None else answer["decision"])
        self._radius.append(number(answer["radius"]))
        self._attack.append(number(answer["attack"]))
        self._seconds += row["seconds"]

    @property
    def evaluation(self) -> Evaluation:
        """All radii."""
        label, decision = (torch.tensor(column) for column in (self._label, self._decision))
        radius, attack = (torch.tensor(column, dtype=torch.float64) for column in (self._radius, self._attack))
        return Evaluation(label, decision, radius, attack, self.upper)

    @property
    def level(self) -> str | None:
        """The last that was completed for all inputs."""
        return None if None in self.levels else min((level for level in self.levels if level), key=LEVELS.index)

    def values(self) -> dict[str, Any]:
        """For programs: means are over the inputs that are right, those of the attack over those that it changed."""
        found = self.evaluation
        n, certified, right = found.label.numel(), int(found.radius.isfinite().sum()), found.correct
        values: dict[str, Any] = {"points": n, "seconds": self._seconds, "certified": certified}
        values |= {"certified_share": certified / n, "correct": int(right.sum()) if self.labelled else None}
        values |= {"capped": int((found.radius >= found.upper).sum())}
        values |= {"mean_radius": _mean(found.radius[right].nan_to_num(0.0))}  # what is not certified counts as zero
        return values | {"mean_attack_radius": _mean(found.attack[right]), "mean_ratio": _mean(found.ratio[right])}

    def curve_values(self, curve: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The same of ``bnndp evaluate``: certified is what is so at the last radius of its lines."""
        values, last = self.values(), curve[-1]
        certified = int(self.evaluation.certified(last["eps"]).sum())
        values |= {"certified": certified, "certified_share": certified / values["points"]}
        kept = {name: value for name, value in values.items() if not name.startswith("mean_")}
        return kept | {"accuracy": last["accuracy"], "curve": [dict(line) for line in curve]}

    def table(self) -> Table:
        """For people, on one line."""
        found, values, right = self.evaluation, self.values(), self.evaluation.correct
        most = ">= " if bool((found.radius >= found.upper)[right].any()) else ""
        cells = {"inputs": str(values["points"]), "correct": str(int(right.sum())) if self.labelled else "-"}
        cells |= {"certified": str(values["certified"]), "mean certified radius": most + _shown(values["mean_radius"])}
        if values["capped"]:
            cells[f"radius >= {found.upper:.4g}"] = str(values["capped"])
        if not found.attack.isnan().any():
            broken, all_right = int(found.attack[right].isfinite().sum()), int(right.sum())
            over = "" if broken == all_right else f" ({broken} of {all_right})"
            cells |= {f"mean attack radius{over}": _shown(values["mean_attack_radius"])}
            cells |= {f"mean ratio{over}": _shown(values["mean_ratio"])}
        return row_table(cells | {"seconds": f"{self._seconds:.3g}"})


def _numbers(value: Any) -> list[float]:
    """The entry of a row as a list; what is not finite stands as null there and is infinite again."""
    return [math.inf if each is None else each for each in (value if isinstance(value, list) else [value])]


def _mean(values: Tensor) -> float | None:
    """Of those that are finite."""
    values = values[values.isfinite()]
    return values.mean().item() if values.numel() else None


def _shown(mean: float | None) -> str:
    return "-" if mean is None else f"{mean:.4g}"
