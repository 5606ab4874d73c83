"""The radii of many inputs in batches, stage by stage: by one pass and an attack, then with what the effort adds.

Once all inputs have had the first there is a valid answer for every one, whenever the work stops.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from bnndp.cli.kept import Asked, End
from bnndp.cli.labelled import Points
from bnndp.cli.rows import finite_or_none
from bnndp.errors import CertError, InputError
from bnndp.network import Posterior
from bnndp.options import LEVELS, Options
from bnndp.questions.evaluate import Evaluation, better_evaluations
from bnndp.questions.radius import Search
from bnndp.runs.exports import Exports
from bnndp.runs.identity import data_digest
from bnndp.runs.journal import Answer, Journal
from bnndp.runs.lines import exact, number, numbers
from bnndp.tighten.choice import plan
from bnndp.tighten.effort import Stage

__all__ = ["DoneRadii", "FoundRadii", "RadiusJob", "curve_summary", "summary", "table_of"]

_INPUTS = 256  # inputs a batch; fixed, so that the same command gives the same bits
_ATTACKED = 64  # inputs a batch when they are attacked too
_ROWS = 4096  # rows that are made at once
_STAGED = 16  # inputs a batch of a later stage: a trial of a batch is what an interruption loses


@dataclass(frozen=True, slots=True)
class FoundRadii:
    """What is known of some inputs, on the CPU wherever it was computed."""

    evaluation: Evaluation
    seconds: Tensor  # (inputs,)

    @classmethod
    def read(cls, answers: Sequence[Answer], upper: float) -> FoundRadii:
        """From the answers of a journal, of radii up to ``upper``, without the witnesses."""
        label, decision = (torch.tensor([answer[name] for answer in answers]) for name in _KEYS[:2])
        columns = ([number(answer[name]) for answer in answers] for name in _KEYS[2:])
        radius, attack, seconds = (torch.tensor(column, dtype=torch.float64) for column in columns)
        return cls(Evaluation(label, decision, radius, attack, upper), seconds)

    def answers(self) -> list[Answer]:
        """One an input, exact."""
        found = self.evaluation
        whole = (found.label.tolist(), found.decision.tolist())
        real = (exact(column.tolist()) for column in (found.radius, found.attack, self.seconds))
        rows = (dict(zip(_KEYS, values, strict=True)) for values in zip(*whole, *real, strict=True))
        return [row | self._witness(i) for i, row in enumerate(rows)]

    def _witness(self, i: int) -> dict[str, Any]:
        """Where the attack changed the decision: only the first stage attacks, so later answers have none."""
        found = self.evaluation
        if found.witness is None or found.rival is None or not 0 < found.attack[i] < math.inf:
            return {}
        return {"rival": int(found.rival[i]), "witness": exact(found.witness[i].tolist())}


_KEYS = ("label", "decision", "radius", "attack", "seconds")


@dataclass(frozen=True, slots=True)
class RadiusJob:
    """What one command computes: a :class:`bnndp.runs.work.Job`."""

    network: Posterior
    inputs: Points
    domain: tuple[float, float] | None
    how: Search
    options: Options
    device: str = "cpu"  # that of the network

    @property
    def plan(self) -> tuple[Stage, ...]:
        """What is done one after the other."""
        return plan(self.network, self.options)

    @property
    def points(self) -> int:
        """How many inputs there are."""
        return self.inputs.x.shape[0]

    @property
    def stages(self) -> tuple[str, ...]:
        """The levels that are completed one after the other."""
        return tuple(stage.level for stage in self.plan)

    def parts(self, stage: int) -> Iterator[range]:
        """The inputs that are worked on at once."""
        size = _STAGED if stage else _ATTACKED if self.how.attack else _INPUTS
        for start in range(0, self.points, size):
            yield range(start, min(start + size, self.points))

    def search(self, stage: int, part: range, known: Sequence[Answer]) -> Iterator[FoundRadii]:
        """One pass and the attack in the first stage; in the others the radii after every trial."""
        begin = time.perf_counter()
        before = FoundRadii.read(known, self.how.upper) if stage else None
        spent = 0.0 if before is None else before.seconds
        for found in self._evaluations(stage, part, None if before is None else before.evaluation):
            each = (time.perf_counter() - begin) / len(part)
            yield FoundRadii(found.to("cpu"), spent + torch.full((len(part),), each, dtype=torch.float64))
            if stage == 0:
                return

    def answers(self, found: FoundRadii) -> list[Answer]:
        """One an input."""
        return found.answers()

    @property
    def decides(self) -> bool:
        """Always: an input has a radius or none."""
        return True

    def certified(self, answer: Answer) -> bool:
        """Whether the decision is proved, at the input at least."""
        return number(answer["radius"]) >= 0

    def asked(self, command: str) -> Asked:
        """What the answers depend on."""
        how = self.how
        more: dict[str, Any] = {
            "norm": how.norm,
            "upper": how.upper,
            "radius_tolerance": how.tolerance,
            "attack": how.attack,
        }
        more |= {"seed": how.seed}
        data = data_digest(x=self.inputs.x, label=self.inputs.label)
        return Asked(command, self.network.digest(), data, self.options, more | {"domain": self.domain})

    def _evaluations(self, stage: int, part: range, known: Evaluation | None) -> Iterator[Evaluation]:
        points = self.inputs[part.start : part.stop]
        try:
            yield from better_evaluations(
                self.network,
                points.x.to(self.device),
                points.label,
                self.domain,
                search=self.how,
                options=self.plan[stage].options,
                known=None if known is None else known.to(self.device),
            )
        except CertError as error:
            where = f"{points.source}: inputs from {part.start} (input 0 is {part.start})"
            raise InputError(f"{where}: {error}") from error


@dataclass(frozen=True, slots=True)
class DoneRadii:
    """The answers for all inputs."""

    found: Evaluation
    levels: tuple[str, ...]  # of every input: the last that was completed
    seconds: Tensor  # (inputs,)

    @classmethod
    def read(cls, job: RadiusJob, journal: Journal) -> DoneRadii:
        """The best ones of a journal that has one for every input."""
        levels, parts = [], []
        for part in job.parts(0):
            best = [journal.best(index) for index in part]
            levels += [job.stages[stage] for stage, _ in best]
            parts.append(FoundRadii.read([answer for _, answer in best], job.how.upper))
        found = Evaluation.joined([part.evaluation for part in parts])
        return cls(found, tuple(levels), torch.cat([part.seconds for part in parts]))

    @property
    def level(self) -> str:
        """The last that was completed for all inputs."""
        return min(self.levels, key=LEVELS.index)

    @property
    def capped(self) -> Tensor:
        """Where the radius is the largest that was tried, so that the true one may be larger: (inputs,)."""
        return self.found.radius >= self.found.upper

    def rows(self) -> Iterator[dict[str, object]]:
        """One an input."""
        found = self.found
        columns = {"label": found.label, "decision": found.decision, "radius": found.radius, "capped": self.capped}
        columns |= {"attack_radius": found.attack, "ratio": found.ratio, "seconds": self.seconds}
        for start in range(0, len(self.levels), _ROWS):
            some = slice(start, start + _ROWS)
            lists = {
                name: [finite_or_none(value) for value in column[some].tolist()] for name, column in columns.items()
            }
            seconds = lists.pop("seconds")
            for i, level in enumerate(self.levels[some]):
                row: dict[str, object] = {"index": start + i} | {name: values[i] for name, values in lists.items()}
                yield row | {"effort": level, "seconds": seconds[i]}

    def export(self, journal: Journal, exports: Exports) -> None:
        """All rows and witnesses, for a run folder; the witnesses are in the answers of the first stage."""
        for index, row in enumerate(self.rows()):
            exports.write(row)
            (first,) = journal.before(1, range(index, index + 1))
            if first.get("witness") is not None:
                exports.witness(index, first["rival"], np.array(numbers(first["witness"])))


@dataclass(frozen=True, slots=True)
class Means:
    """Means over the inputs that are classified correctly; what is not certified counts as a radius of zero."""

    radius: float | None
    attack: float | None  # of those that the attack changed
    ratio: float | None  # of the same
    right: int  # inputs that are classified correctly
    broken: int  # those of them that the attack changed

    @classmethod
    def of(cls, found: Evaluation) -> Means:
        """None where there is nothing to take the mean of."""
        right = found.correct
        broken, ratio = found.attack[right], found.ratio[right]
        broken, ratio = broken[broken.isfinite()], ratio[ratio.isfinite()]
        radius = _mean(found.radius[right].nan_to_num(0.0))
        return cls(radius, _mean(broken), _mean(ratio), int(right.sum()), broken.numel())

    @property
    def over(self) -> str:
        """What the means of the attack are over, where that is not what the mean radius is over."""
        return "" if self.broken == self.right else f" ({self.broken} of {self.right})"


def summary(done: DoneRadii, end: End, *, labelled: bool = True) -> dict[str, Any]:
    """Counts and means for programs (docs/runs.md); nothing is correct where decisions are not compared to labels."""
    found, means = done.found, Means.of(done.found)
    n, certified = found.label.numel(), int(found.radius.isfinite().sum())
    values: dict[str, Any] = {"command": "radius", "points": n, **end.summary()}
    values |= {"seconds": done.seconds.sum().item(), "certified": certified, "certified_share": certified / n}
    values |= {
        "correct": means.right if labelled else None,
        "capped": int(done.capped.sum()),
        "mean_radius": means.radius,
    }
    return values | {"mean_attack_radius": means.attack, "mean_ratio": means.ratio}


def curve_summary(done: DoneRadii, end: End, curve: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same of ``bnndp evaluate``: certified is what is so at the last radius of its lines."""
    values, last = summary(done, end), curve[-1]
    certified = int(done.found.certified(last["eps"]).sum())
    values |= {"command": "evaluate", "certified": certified, "certified_share": certified / values["points"]}
    for name in ("mean_radius", "mean_attack_radius", "mean_ratio"):
        del values[name]
    return values | {"accuracy": last["accuracy"], "curve": [dict(line) for line in curve]}


def table_of(done: DoneRadii, *, labelled: bool = True) -> Table:
    """The same for people."""
    found, means, capped = done.found, Means.of(done.found), int(done.capped.sum())
    right = found.correct
    table = Table("inputs", "correct", "certified", "mean certified radius")
    cells = [str(right.numel()), str(means.right) if labelled else "-", str(int(found.radius.isfinite().sum()))]
    cells.append(f"{'>= ' if bool(done.capped[right].any()) else ''}{_shown(means.radius)}")
    if capped:
        table.add_column(f"radius >= {found.upper:.4g}")
        cells.append(str(capped))
    if not found.attack.isnan().any():
        table.add_column(f"mean attack radius{means.over}")
        table.add_column(f"mean ratio{means.over}")
        cells += [_shown(means.attack), _shown(means.ratio)]
    table.add_column("seconds")
    table.add_row(*cells, f"{done.seconds.sum().item():.3g}")
    return table


def _mean(values: Tensor) -> float | None:
    return values.mean().item() if values.numel() else None


def _shown(mean: float | None) -> str:
    return "-" if mean is None else f"{mean:.4g}"
