"""Bounds on many boxes in chunks, stage by stage, and the verdicts on decisions: ``bnndp certify``.

What is known of some boxes is a record of tensors while it is computed, an answer per box in a journal, and a row per
box of the output.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, islice
from typing import Any

import torch
from torch import Tensor

from bnndp.attack import decision_rows
from bnndp.attack.inside import inside_range
from bnndp.cli.inputs import Neighbourhood
from bnndp.cli.job import Job
from bnndp.cli.output import plain
from bnndp.geometry.box import Box
from bnndp.options import Options
from bnndp.questions.bounds import Bounds
from bnndp.questions.certify import better_bounds, better_probabilities
from bnndp.questions.decision import Decision, robust_decision
from bnndp.questions.interval_probability import Between
from bnndp.questions.softmax import bound_rows
from bnndp.questions.verdict import Verdict, judge
from bnndp.runs.columns import BOX_COLUMNS, DECISION_COLUMNS, row_of
from bnndp.runs.job import Shard
from bnndp.runs.journal import Answer
from bnndp.runs.sealed_lines import exact, number, numbers

_CELLS = 4096  # cells per chunk: enough to fill the machine, few enough that the progress bar moves
_BOXES = 256  # boxes per chunk
_ATTACKED = 16  # boxes per chunk when they are attacked too


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is known of the decisions of some boxes: certified by a lead over all others, or falsified by a witness."""

    label: Tensor  # (boxes,)
    lead: Tensor  # (boxes,): the label is ahead of every other class by at least this
    broken: Tensor  # (boxes,) of truth values: another class is ahead at the witness
    rival: Tensor  # (boxes,): that class
    witness: Tensor  # (boxes, n)

    @classmethod
    def of(cls, found: Decision) -> Decisions:
        """The results of the library."""
        label, lead, rival, witness = (each.cpu() for each in (found.label, found.bound, found.rival, found.witness))
        return cls(label, lead, torch.tensor([each is Verdict.FALSIFIED for each in found.verdict]), rival, witness)

    @classmethod
    def unknown(cls, label: Tensor, n: int) -> Decisions:  # label (boxes,)
        """Nothing of boxes with ``n`` inputs."""
        none = torch.full((len(label), n), torch.nan, dtype=torch.float64)
        lead = torch.full((len(label),), -torch.inf, dtype=torch.float64)
        return cls(label.cpu(), lead, torch.zeros(len(label), dtype=torch.bool), label.cpu(), none)

    @property
    def verdict(self) -> tuple[Verdict, ...]:
        """Certified by the lead, whatever else is known: NaN is none."""
        pairs = zip((self.lead > 0).tolist(), self.broken.tolist(), strict=True)
        return tuple(judge(proved=ahead, broken=broken) for ahead, broken in pairs)

    def raised(self, at: Tensor, lead: Tensor) -> Decisions:
        """With leads (some,) that were proved, too, for the boxes ``at`` (some,); the larger counts."""
        return replace(self, lead=self.lead.index_copy(0, at, torch.maximum(self.lead[at], lead)))

    def columns(self) -> dict[str, Sequence[object]]:
        """The entries of answers; only what is falsified has a witness."""
        shown = [verdict is Verdict.FALSIFIED for verdict in self.verdict]
        return {
            "label": self.label.tolist(),
            "verdict": [verdict.value for verdict in self.verdict],
            "lead": exact(self.lead.tolist()),
            "rival": [int(rival) if there else None for rival, there in zip(self.rival, shown, strict=True)],
            "witness": [exact(x.tolist()) if there else None for x, there in zip(self.witness, shown, strict=True)],
        }

    @classmethod
    def read(cls, answers: Sequence[Answer], n: int) -> Decisions:
        """From the answers of a journal."""
        label = torch.tensor([answer["label"] for answer in answers])
        lead = _column([number(answer["lead"]) for answer in answers])
        broken = torch.tensor([answer["verdict"] == Verdict.FALSIFIED.value for answer in answers])
        rival = torch.tensor([answer["label"] if answer["rival"] is None else answer["rival"] for answer in answers])
        witness = [[torch.nan] * n if answer["witness"] is None else numbers(answer["witness"]) for answer in answers]
        return cls(label, lead, broken, rival, _column(witness))


@dataclass(frozen=True, slots=True)
class BoxResult:
    """Bounds of some boxes, and what goes with them, on the CPU wherever they were computed."""

    lower: Tensor  # (boxes, outputs)
    upper: Tensor  # (boxes, outputs)
    method: tuple[str | None, ...]
    seconds: Tensor  # (boxes,): of the certification, without the attack
    inside: tuple[Tensor, ...] | None = None  # lower and upper: (boxes, outputs) each
    decisions: Decisions | None = None

    def met(self, bounds: Bounds) -> BoxResult:
        """The intersection with other bounds, under their method."""
        lower = torch.maximum(self.lower, bounds.lower.cpu())
        upper = torch.minimum(self.upper, bounds.upper.cpu())
        method = tuple(None if name == "none" else name for name in bounds.method)  # none: the time was over
        return replace(self, lower=lower, upper=upper, method=method).led(self.decisions)

    def led(self, decisions: Decisions | None) -> BoxResult:
        """With these decisions, whose leads are at least those that the bounds of the classes give."""
        if decisions is None:
            return self
        lead = lead_by_bounds(self.lower, self.upper, decisions.label)
        return replace(self, decisions=decisions.raised(torch.arange(len(lead)), lead))

    def answers(self) -> list[Answer]:
        """One per box, exact."""
        nothing = [None] * len(self.method)
        inside = (nothing, nothing) if self.inside is None else tuple(map(_exact_rows, self.inside))
        columns: dict[str, Sequence[object]] = {"lower": _exact_rows(self.lower), "upper": _exact_rows(self.upper)}
        columns |= {"inside_lower": inside[0], "inside_upper": inside[1], "method": self.method}
        columns |= {"seconds": self.seconds.tolist()} | ({} if self.decisions is None else self.decisions.columns())
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    @classmethod
    def read(cls, answers: Sequence[Answer], n: int) -> BoxResult:
        """From the answers of a journal, for boxes with ``n`` inputs."""

        def ends(*names: str) -> tuple[Tensor, ...]:
            return tuple(_column([numbers(answer[name]) for answer in answers]) for name in names)

        lower, upper = ends("lower", "upper")
        method = tuple(answer["method"] for answer in answers)
        inside = ends("inside_lower", "inside_upper") if answers[0]["inside_lower"] is not None else None
        decisions = Decisions.read(answers, n) if "label" in answers[0] else None
        return cls(lower, upper, method, _column([answer["seconds"] for answer in answers]), inside, decisions)


@dataclass(frozen=True, slots=True)
class BoxJob(Job):
    """Bounds of a quantity on boxes; with labels also the verdicts on decisions."""

    box: Box
    around: Neighbourhood = field(default_factory=Neighbourhood)  # how the boxes were given
    attack: bool = False
    seed: int = 0
    bounded: str = "mean"  # of the outputs: or variance, or noise
    between: Between | None = None  # bounds of the probability of this interval of outputs, and of nothing else

    @property
    def points(self) -> int:
        """How many boxes there are."""
        return self.box.batch

    @property
    def decides(self) -> bool:
        """Whether there are verdicts."""
        return self.label is not None

    def certified(self, answer: Answer) -> bool:
        """Whether the verdict is that the decision is certified."""
        return verdict_of(answer) is Verdict.CERTIFIED

    def where(self, part: range) -> str:
        """The file and its rows."""
        return f"{self.source}: rows {part.start} to {part.stop - 1} (box 0 is row {part.start})"

    def size(self, stage: int) -> int:
        """How many boxes are worked on at once."""
        options = self.plan[stage].options
        size = max(1, min(_BOXES, _CELLS // (options.refine * options.branch)))
        return min(size, _ATTACKED) if self.attack or self.label is not None else size

    @property
    def quantity(self) -> str:
        """What is bounded, or decided."""
        return "between" if self.between is not None else "decision" if self.decides else self.bounded

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        """The regions, and the labels."""
        ball = self.box.within
        ends: dict[str, Tensor | None] = {"lower": self.box.lower, "upper": self.box.upper}
        ends |= {"centre": None, "radius": None} if ball is None else {"centre": ball.centre, "radius": ball.radius}
        return ends | {"label": self.label}

    @property
    def details(self) -> dict[str, Any]:
        """How the boxes were given, what is bounded, and the attack."""
        between = None if self.between is None else (self.between.lower, self.between.upper)
        ball = {"eps": self.around.eps, "norm": self.around.norm, "domain": self.around.domain}
        return ball | {"attack": self.attack, "seed": self.seed, "quantity": self.bounded, "between": between}

    def search(self, shard: Shard) -> Iterator[BoxResult]:
        """Better and better bounds of some boxes, each valid by itself; attacks and verdicts come last.

        The iterators of the library are gone through as they are, so that between them and the caller there is nothing.
        """
        box, label = self.box[shard.slice], None if self.label is None else self.label[shard.slice]
        options, begin = self.options_of(shard), time.perf_counter()
        if shard.stage == 0:
            known = self._unknown(box, label)
            bounds: Iterator[Bounds] = islice(self._bounds(box, options), 1)
        else:
            known, bounds = BoxResult.read(shard.known, box.n), self._bounds(box, options)
            earlier = {replace(stage.options, branch=1) for stage in self.plan[: shard.stage]}
            if replace(options, branch=1, time_limit=None) in earlier:  # signs are for decisions only
                bounds = iter(())

        def better(found: BoxResult, more: Bounds | None) -> BoxResult:
            if more is not None:
                found = found.met(more)
            elif shard.stage == 0:  # where there was no time for bounds there is none for an attack
                return found if found is known else self._attacked(found, box, label, options)
            elif found.decisions is not None:
                found = replace(found, decisions=self._decided(found.decisions, box, options))
            return replace(found, seconds=known.seconds + (time.perf_counter() - begin) / box.batch)

        return islice(accumulate(chain(bounds, (None,)), better, initial=known), 1, None)

    def _bounds(self, box: Box, options: Options) -> Iterator[Bounds]:
        """Better and better bounds of what is asked for."""
        if self.between is not None:
            return better_probabilities(self.network, box, options, self.between)
        if self.bounded != "mean":
            return better_bounds(self.network, box, options, quantity=self.bounded)
        return better_bounds(self.network, box, options)

    def _unknown(self, box: Box, label: Tensor | None) -> BoxResult:  # label (boxes,)
        """Nothing."""
        infinite = torch.full((box.batch, self.network.n_out), torch.inf, dtype=torch.float64)
        nothing = (torch.full_like(infinite, torch.nan),) * 2 if self.attack else None
        decisions = None if label is None else Decisions.unknown(label, box.n)
        seconds = torch.zeros(box.batch, dtype=torch.float64)
        return BoxResult(-infinite, infinite, (None,) * box.batch, seconds, nothing, decisions)

    def _attacked(self, found: BoxResult, box: Box, label: Tensor | None, options: Options) -> BoxResult:
        """The end of the first stage: verdicts, and the range from inside."""
        if label is not None:
            centre = box.project(box.centre)
            decision = robust_decision(self.network, centre, box, label, options=options, seed=self.seed)
            found = found.led(Decisions.of(decision))
        if not self.attack:
            return found
        inside = inside_range(self.network, box, seed=self.seed)
        return replace(found, inside=(inside.lower.cpu(), inside.upper.cpu()))

    def _decided(self, known: Decisions, box: Box, options: Options) -> Decisions:
        """The end of a later stage: verdicts by its options on what is undecided."""
        at = (~(known.lead > 0) & ~known.broken).nonzero()[:, 0]
        if not at.numel():
            return known
        label = known.label[at].to(box.lower.device)
        rows = decision_rows(label, self.network.n_out)[0]
        with torch.no_grad():
            return known.raised(at, bound_rows(self.network, box[at], rows, label, options).amin(-1).cpu())

    def answers(self, result: BoxResult) -> Sequence[Answer]:
        """One per box."""
        return result.answers()

    def unanswered(self, index: int) -> Answer:
        """Bounds that are infinite, and no verdict."""
        outputs = self.network.n_out
        nothing = ["nan"] * outputs if self.attack else None
        answer: dict[str, Any] = {"lower": ["-inf"] * outputs, "upper": ["inf"] * outputs}
        answer |= {"inside_lower": nothing, "inside_upper": nothing, "method": None, "seconds": 0.0}
        if self.label is None:
            return answer
        undecided = {"verdict": Verdict.UNDECIDED.value, "lead": "-inf", "rival": None, "witness": None}
        return answer | {"label": int(self.label[index])} | undecided

    def row(self, index: int, level: str | None, answer: Answer) -> dict[str, object]:
        """Numbers for one output, lists for several."""
        widths = (high - low for low, high in zip(numbers(answer["lower"]), numbers(answer["upper"]), strict=True))
        upward = [math.nextafter(width, math.inf) if width > 0 else width for width in widths]
        ends = {"lower": answer["lower"], "upper": answer["upper"], "width": upward}
        ends |= {name: answer[name] for name in ("inside_lower", "inside_upper")}
        cells: dict[str, object] = {"index": index}
        cells |= {name: None if end is None else plain(numbers(end)) for name, end in ends.items()}
        cells |= {"method": answer["method"], "effort": level, "seconds": answer["seconds"]}
        if "label" not in answer:
            return row_of(BOX_COLUMNS, cells)
        cells |= {"label": answer["label"], "verdict": verdict_of(answer).value}
        cells |= {"lead": plain([number(answer["lead"])]), "rival": answer["rival"], "witness": answer["witness"]}
        return row_of(DECISION_COLUMNS, cells)


def verdict_of(answer: Answer) -> Verdict:
    """Certified by the lead, whatever else the answer says."""
    return judge(proved=number(answer["lead"]) > 0, broken=answer["verdict"] == Verdict.FALSIFIED.value)


def lead_by_bounds(lower: Tensor, upper: Tensor, label: Tensor) -> Tensor:
    r"""A lower bound (boxes,) of the lead of the label c over all others: :math:`l_c-\max_{k\ne c}u_k`, rounded down.

    ``lower`` and ``upper`` (boxes, classes) bound the expected softmax on the whole box, ``label`` is (boxes,). Where
    an end is not finite nothing is known, and the bound is minus infinity.

    >>> lower, upper = torch.tensor([[0.5, 0.25, 0.0]]), torch.tensor([[0.75, 0.375, 0.125]])
    >>> f"{lead_by_bounds(lower.double(), upper.double(), torch.tensor([0])).item():.3f}"
    '0.125'
    """
    own = torch.zeros_like(lower, dtype=torch.bool).scatter(1, label[:, None], value=True)
    lead = lower[own] - upper.masked_fill(own, -torch.inf).amax(-1)
    known = lower.isfinite().all(-1) & upper.isfinite().all(-1)
    return torch.where(known, lead.nextafter(torch.tensor(-torch.inf, dtype=lead.dtype)), -torch.inf)


def _exact_rows(values: Tensor) -> list[list[float | str]]:  # values (boxes, outputs)
    return [exact(row) for row in values.tolist()]


def _column(values: Sequence[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
