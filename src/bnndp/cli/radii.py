"""The radii of many inputs in batches, stage by stage: by one pass and an attack, then with what the effort adds.

What is known of some inputs is an :class:`Evaluation` while it is computed, an answer per input in a journal, and a row
per input of the output.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from bnndp.cli.job import Job
from bnndp.cli.output import finite_or_none
from bnndp.questions.evaluate import Evaluation, better_evaluations
from bnndp.questions.radius import Search
from bnndp.runs.columns import RADIUS_COLUMNS, row_of
from bnndp.runs.job import Shard
from bnndp.runs.journal import Answer, Journal
from bnndp.runs.sealed_lines import exact, number

_INPUTS = 256  # inputs per batch
_STAGED = 16  # inputs per batch of a later stage: a trial of a batch is what an interruption loses
_KEYS = ("label", "decision", "radius", "attack", "seconds")


@dataclass(frozen=True, slots=True)
class RadiusResult:
    """What is known of some inputs, on the CPU wherever it was computed."""

    evaluation: Evaluation
    seconds: Tensor  # (inputs,)

    @classmethod
    def read(cls, answers: Sequence[Answer], upper: float) -> RadiusResult:
        """From the answers of a journal, of radii up to ``upper``, without the witnesses."""
        label, decision = (torch.tensor([answer[name] for answer in answers]) for name in _KEYS[:2])
        columns = ([number(answer[name]) for answer in answers] for name in _KEYS[2:])
        radius, attack, seconds = (torch.tensor(column, dtype=torch.float64) for column in columns)
        return cls(Evaluation(label, decision, radius, attack, upper), seconds)


@dataclass(frozen=True, slots=True)
class RadiusJob(Job):
    """The radii of inputs for ``bnndp radius`` and ``bnndp evaluate``."""

    x: Tensor  # (inputs, n)
    domain: tuple[float, float] | None
    how: Search
    eps: Sequence[float] = ()  # the radii of bnndp evaluate
    decides = True

    @property
    def points(self) -> int:
        """How many inputs there are."""
        return self.x.shape[0]

    def certified(self, answer: Answer) -> bool:
        """Whether the decision is proved, at the input at least."""
        return number(answer["radius"]) >= 0

    def where(self, part: range) -> str:
        """The file and its rows."""
        return f"{self.source}: inputs from {part.start} (input 0 is {part.start})"

    def size(self, stage: int) -> int:
        """How many inputs are worked on at once."""
        return _STAGED if stage else _INPUTS

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        """The inputs, and the labels."""
        return {"x": self.x, "label": self.label}

    @property
    def details(self) -> dict[str, Any]:
        """How the radii are searched, and the attack."""
        how = self.how
        searched = {"norm": how.norm, "upper": how.upper, "radius_tolerance": how.tolerance}
        return searched | {"attack": how.attack, "seed": how.seed, "domain": self.domain}

    def question(self) -> dict[str, Any]:
        """With the radii that were given."""
        return Job.question(self) | {"eps": list(self.eps) or None}

    def search(self, shard: Shard) -> Iterator[RadiusResult]:
        """One pass and the attack in the first stage; in the others the radii after every trial."""
        begin = time.perf_counter()
        known = RadiusResult.read(shard.known, self.how.upper) if shard.stage else None
        spent = torch.zeros(len(shard.part), dtype=torch.float64) if known is None else known.seconds
        found = better_evaluations(
            self.network,
            self.x[shard.slice],
            None if self.label is None else self.label[shard.slice],
            self.domain,
            search=self.how,
            options=self.options_of(shard),
            known=None if known is None else known.evaluation.to(self.x.device),
        )

        def timed(evaluation: Evaluation) -> RadiusResult:
            return RadiusResult(evaluation.to("cpu"), spent + (time.perf_counter() - begin) / len(spent))

        return map(timed, found if shard.stage else islice(found, 1))

    def answers(self, result: RadiusResult) -> Sequence[Answer]:
        """One per input, exact; of the first stage, which attacks, with the witness where there is one."""
        found = result.evaluation
        whole = (found.label.tolist(), found.decision.tolist())
        real = (exact(column.tolist()) for column in (found.radius, found.attack, result.seconds))
        answers = [dict(zip(_KEYS, values, strict=True)) for values in zip(*whole, *real, strict=True)]
        if found.witness is not None and found.rival is not None:
            for i in ((found.attack > 0) & found.attack.isfinite()).nonzero()[:, 0].tolist():
                answers[i] |= {"rival": int(found.rival[i]), "witness": exact(found.witness[i].tolist())}
        return answers

    def unanswered(self, index: int) -> Answer:
        """No decision and no radius."""
        label = None if self.label is None else int(self.label[index])
        return dict(zip(_KEYS, (label, None, "nan", "nan", 0.0), strict=True))

    def row(self, index: int, level: str | None, answer: Answer) -> dict[str, object]:
        """With the ratio of the radii where there are both."""
        radius, attack = number(answer["radius"]), number(answer["attack"])
        proved = 0.0 if math.isnan(radius) else radius
        cells = {"index": index, "label": answer["label"], "decision": answer["decision"]}
        cells |= {"radius": finite_or_none(radius), "capped": radius >= self.how.upper}
        cells |= {"attack_radius": finite_or_none(attack), "ratio": proved / attack if 0 < attack < math.inf else None}
        return row_of(RADIUS_COLUMNS, cells | {"effort": level, "seconds": number(answer["seconds"])})

    def witness(self, journal: Journal, index: int) -> Mapping[str, Any]:
        """In the answers of the first stage."""
        first = journal.before(1, range(index, index + 1))[0] if journal.answered(index) else {}
        return first if first.get("witness") is not None else {}
