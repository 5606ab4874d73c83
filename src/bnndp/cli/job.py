"""Certifying many boxes in chunks, stage by stage: one pass for all of them, then what the effort adds.

For a classifier with labels every row also has the verdict on its decision. Once all boxes have had their first pass
there is a valid answer for every one, whenever the work stops.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.attack import decision_rows
from bnndp.attack.inside import inside_range
from bnndp.cli.found import Claim, Found, row_of, verdict_of
from bnndp.cli.inputs import Neighbourhood
from bnndp.cli.kept import Asked
from bnndp.errors import CertError, InputError
from bnndp.geometry.box import Box
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.questions.bounds import Bounds
from bnndp.questions.certify import better_bounds, better_probabilities
from bnndp.questions.decision import robust_decision
from bnndp.questions.interval_probability import Between
from bnndp.questions.softmax import bound_rows
from bnndp.questions.verdict import Verdict
from bnndp.runs.identity import data_digest
from bnndp.runs.journal import Answer, Journal
from bnndp.tighten.choice import plan
from bnndp.tighten.effort import Stage

__all__ = ["Job", "rows_of"]

_CELLS = 4096  # cells a chunk: enough to fill the machine, few enough that the progress bar moves
_BOXES = 256  # boxes a chunk; fixed, so that the same command gives the same bits
_ATTACKED = 16  # boxes a chunk when they are attacked too


@dataclass(frozen=True, slots=True)
class Job:
    """What one command computes: a :class:`bnndp.runs.work.Job`."""

    network: Posterior
    box: Box
    options: Options
    attack: bool = False
    seed: int = 0
    label: Tensor | None = None  # (boxes,): the decisions in question
    quantity: str = "mean"
    between: Between | None = None  # bounds of the probability of this interval of outputs, and of nothing else
    source: str = "the boxes"  # their name in messages

    @property
    def plan(self) -> tuple[Stage, ...]:
        """What is done one after the other."""
        return plan(self.network, self.options)

    @property
    def points(self) -> int:
        """How many boxes there are."""
        return self.box.batch

    @property
    def stages(self) -> tuple[str, ...]:
        """The levels that are completed one after the other."""
        return tuple(stage.level for stage in self.plan)

    def bounds(self, box: Box, options: Options) -> Iterator[Bounds]:
        """Better and better bounds of what is asked for."""
        if self.between is not None:
            return better_probabilities(self.network, box, options, self.between)
        if self.quantity != "mean":
            return better_bounds(self.network, box, options, quantity=self.quantity)
        return better_bounds(self.network, box, options)

    def parts(self, stage: int) -> Iterator[range]:
        """The boxes that are worked on at once."""
        options = self.plan[stage].options
        step = max(1, min(_BOXES, _CELLS // (options.refine * options.branch)))
        step = min(step, _ATTACKED) if self.attack or self.label is not None else step
        for start in range(0, self.points, step):
            yield range(start, min(start + step, self.points))

    def search(self, stage: int, part: range, known: Sequence[Answer]) -> Iterator[Found]:
        """Better and better bounds of some boxes; the verdict on their decisions comes last."""
        with _located(self.source, part):
            yield from _first(self, part) if stage == 0 else _better(self, stage, part, known)

    def answers(self, found: Found) -> list[Answer]:
        """One a box."""
        return found.answers()

    @property
    def decides(self) -> bool:
        """Whether there are verdicts."""
        return self.label is not None

    def certified(self, answer: Answer) -> bool:
        """Whether the verdict is that the decision is certified."""
        return verdict_of(answer) is Verdict.CERTIFIED

    @property
    def chance(self) -> dict[str, object]:
        """Whether there is an attack, and its seed."""
        return {"attack": self.attack, "seed": self.seed}

    def asked(self, around: Neighbourhood) -> Asked:
        """What the answers depend on."""
        ball = self.box.within
        centre, radius = (None, None) if ball is None else (ball.centre, ball.radius)
        data = data_digest(lower=self.box.lower, upper=self.box.upper, centre=centre, radius=radius, label=self.label)
        more: dict[str, object] = {
            "eps": around.eps,
            "norm": around.norm,
            "domain": around.domain,
        }
        between = None if self.between is None else (self.between.lower, self.between.upper)
        more |= {**self.chance, "quantity": self.quantity, "between": between}
        return Asked("certify", self.network.digest(), data, self.options, more)


def _slice(part: range) -> slice:
    return slice(part.start, part.stop)


def _first(job: Job, part: range) -> Iterator[Found]:
    """One pass, and the attack."""
    box, options, begin = job.box[_slice(part)], job.plan[0].options, time.perf_counter()
    bounds = next(job.bounds(box, options))
    seconds = torch.full((box.batch,), (time.perf_counter() - begin) / box.batch, dtype=torch.float64)
    claim = None
    if job.label is not None:
        label = job.label[_slice(part)]
        claim = Claim.of(
            robust_decision(job.network, box.project(box.centre), box, label, options=options, seed=job.seed)
        )
    inside = inside_range(job.network, box, seed=job.seed) if job.attack else None
    ends = None if inside is None else (inside.lower.cpu(), inside.upper.cpu())
    yield Found(bounds.lower.cpu(), bounds.upper.cpu(), tuple(bounds.method), seconds, ends, claim).led()


def _better(job: Job, index: int, part: range, known: Sequence[Answer]) -> Iterator[Found]:
    """A later stage: every round of better bounds, each valid by itself, then the verdicts."""
    begin, box = time.perf_counter(), job.box[_slice(part)]
    found = before = Found.read(known, box.n)
    options = job.plan[index].options
    earlier = {replace(stage.options, branch=1) for stage in job.plan[:index]}

    def timed(found: Found) -> Found:
        return replace(found, seconds=before.seconds + (time.perf_counter() - begin) / box.batch)

    if replace(options, branch=1) not in earlier:  # signs are for decisions only
        for bounds in job.bounds(box, options):
            found = found.met(bounds)
            yield timed(found)
    if found.claim is not None:
        found = replace(found, claim=_better_claim(job, options, box, found.claim))
    yield timed(found)


def _better_claim(job: Job, options: Options, box: Box, known: Claim) -> Claim:
    """With the verdicts by these options on what is undecided."""
    left = [i for i, verdict in enumerate(known.verdict) if verdict is Verdict.UNDECIDED]
    if not left:
        return known
    at = torch.tensor(left)
    label = known.label[at].to(box.lower.device)
    rows = decision_rows(label, job.network.n_out)[0]
    with torch.no_grad():
        return known.raised(at, bound_rows(job.network, box[at], rows, label, options).amin(-1).cpu())


@contextlib.contextmanager
def _located(source: str, part: range) -> Iterator[None]:
    """Put the file and its rows in front of whatever is wrong with a chunk."""
    try:
        yield
    except CertError as error:
        where = f"{source}: rows {part.start} to {part.stop - 1} (box 0 is row {part.start})"
        raise InputError(f"{where}: {error}") from error


def rows_of(job: Job, journal: Journal) -> Iterator[dict[str, object]]:
    """The row of every box, one after the other."""
    for index in range(job.points):
        stage, answer = journal.best(index)
        yield row_of(index, job.stages[stage], answer)
