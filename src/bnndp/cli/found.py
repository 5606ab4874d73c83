"""What is known of some boxes: as tensors while it is computed, as answers in a journal, as rows of the output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bnndp.cli.rows import plain
from bnndp.questions.bounds import Bounds
from bnndp.questions.decision import Decision
from bnndp.questions.verdict import Verdict, judge
from bnndp.runs.journal import Answer
from bnndp.runs.lines import exact, number, numbers

__all__ = ["Claim", "Found", "lead_by_bounds", "row_of", "verdict_of", "width_of"]


@dataclass(frozen=True, slots=True)
class Claim:
    """Verdicts on the decisions of some boxes: certified by a lead over all others, or falsified by a witness."""

    label: Tensor  # (boxes,)
    lead: Tensor  # (boxes,): the label is ahead of every other class by at least this
    verdict: tuple[Verdict, ...]
    rival: Tensor  # (boxes,): the class that is ahead at the witness
    witness: Tensor  # (boxes, n)

    @classmethod
    def of(cls, decision: Decision) -> Claim:
        """What a row says of a decision."""
        label, lead, rival, witness = (
            tensor.cpu() for tensor in (decision.label, decision.bound, decision.rival, decision.witness)
        )
        return cls(label, lead, decision.verdict, rival, witness)

    def raised(self, at: Tensor, lead: Tensor) -> Claim:
        """With leads (some,) that were proved, too, for the boxes ``at`` (some,); the larger counts."""
        better = self.lead.index_copy(0, at, torch.maximum(self.lead[at], lead))
        pairs = zip((better > 0).tolist(), self.verdict, strict=True)
        verdict = tuple(judge(proved=ahead, broken=old is Verdict.FALSIFIED) for ahead, old in pairs)
        return replace(self, lead=better, verdict=verdict)

    def answer(self, i: int) -> dict[str, Any]:
        """The entries of one box."""
        shown = self.verdict[i] is Verdict.FALSIFIED
        return {
            "label": int(self.label[i]),
            "verdict": self.verdict[i].value,
            "lead": exact([self.lead[i].item()])[0],
            "rival": int(self.rival[i]) if shown else None,
            "witness": exact(self.witness[i].tolist()) if shown else None,
        }

    @classmethod
    def read(cls, answers: Sequence[Answer], n: int) -> Claim:
        """From the answers of a journal; what is not falsified has no witness there."""
        label = torch.tensor([answer["label"] for answer in answers])
        lead = _column([number(answer["lead"]) for answer in answers])
        rival = [answer["label"] if answer["rival"] is None else answer["rival"] for answer in answers]
        witness = [[torch.nan] * n if answer["witness"] is None else numbers(answer["witness"]) for answer in answers]
        return cls(label, lead, tuple(map(verdict_of, answers)), torch.tensor(rival), _column(witness))


@dataclass(frozen=True, slots=True)
class Found:
    """Bounds of some boxes, and what goes with them, on the CPU wherever they were computed."""

    lower: Tensor  # (boxes, outputs)
    upper: Tensor  # (boxes, outputs)
    method: tuple[str, ...]
    seconds: Tensor  # (boxes,): of the certification, without the attack
    inside: tuple[Tensor, Tensor] | None = None  # (boxes, outputs) each
    claim: Claim | None = None

    def met(self, bounds: Bounds) -> Found:
        """The intersection with other bounds, under their method."""
        lower = torch.maximum(self.lower, bounds.lower.cpu())
        upper = torch.minimum(self.upper, bounds.upper.cpu())
        return replace(self, lower=lower, upper=upper, method=tuple(bounds.method)).led()

    def led(self) -> Found:
        """With leads that are at least those which the bounds of the classes give."""
        if self.claim is None:
            return self
        lead = lead_by_bounds(self.lower, self.upper, self.claim.label)
        return replace(self, claim=self.claim.raised(torch.arange(len(lead)), lead))

    def answers(self) -> list[Answer]:
        """One a box, exact."""
        nothing = [None] * len(self.method)
        low, high = (_exact_rows(end) for end in (self.lower, self.upper))
        inner_low, inner_high = (nothing, nothing) if self.inside is None else map(_exact_rows, self.inside)
        columns = zip(low, high, inner_low, inner_high, self.method, self.seconds.tolist(), strict=True)
        found = (dict(zip(_KEYS, values, strict=True)) for values in columns)
        return [answer if self.claim is None else answer | self.claim.answer(i) for i, answer in enumerate(found)]

    @classmethod
    def read(cls, answers: Sequence[Answer], n: int) -> Found:
        """From the answers of a journal, for boxes with ``n`` inputs."""
        lower, upper = (_column([numbers(answer[end]) for answer in answers]) for end in ("lower", "upper"))
        attacked = answers[0]["inside_lower"] is not None
        inner = ("inside_lower", "inside_upper") if attacked else ()
        inside = [_column([numbers(answer[end]) for answer in answers]) for end in inner]
        return cls(
            lower,
            upper,
            tuple(answer["method"] for answer in answers),
            _column([answer["seconds"] for answer in answers]),
            (inside[0], inside[1]) if attacked else None,
            Claim.read(answers, n) if "label" in answers[0] else None,
        )


_KEYS = ("lower", "upper", "inside_lower", "inside_upper", "method", "seconds")


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


def width_of(answer: Answer) -> list[float]:
    """The widths of the intervals of an answer, rounded up."""
    lower, upper = numbers(answer["lower"]), numbers(answer["upper"])
    widths = (high - low for low, high in zip(lower, upper, strict=True))
    return [math.nextafter(width, math.inf) if width > 0 else width for width in widths]


def verdict_of(answer: Answer) -> Verdict:
    """Certified by the lead, whatever else the answer says."""
    return judge(proved=number(answer["lead"]) > 0, broken=answer["verdict"] == Verdict.FALSIFIED.value)


def row_of(index: int, level: str, answer: Answer) -> dict[str, object]:
    """The row of a box: numbers for one output, lists for several, null for what is not finite."""
    row: dict[str, object] = {"index": index}
    ends = ("lower", "upper", "width", "inside_lower", "inside_upper")
    columns = {"width": width_of(answer)} | {end: answer[end] for end in ends if end != "width"}
    row |= {end: None if columns[end] is None else plain(numbers(columns[end])) for end in ends}
    row |= {"method": answer["method"], "effort": level, "seconds": answer["seconds"]}
    if "label" in answer:
        row |= {"label": answer["label"], "verdict": verdict_of(answer).value}
        row |= {"lead": plain([number(answer["lead"])])}
        row |= {"rival": answer["rival"], "witness": answer["witness"]}
    return row
