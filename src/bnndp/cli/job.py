"""What a command asks of many inputs: the network, the inputs, the options and, by its kind, the question.

The kinds are :class:`bnndp.cli.boxes.BoxJob` (bounds and verdicts on boxes) and :class:`bnndp.cli.radii.RadiusJob`.
Once all inputs have had the first stage there is a valid answer for every one, whenever the work stops.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.runs import job as runs
from bnndp.runs.exports import Row
from bnndp.runs.identity import Identity, data_digest, program
from bnndp.runs.journal import Answer, Journal
from bnndp.runs.sealed_lines import json_values
from bnndp.tighten.effort import Stage
from bnndp.tighten.pass_choice import plan


@dataclass(frozen=True, slots=True)
class Job(runs.Job[Any]):
    """The job of one command; tensors lie on the device that computes."""

    command: str
    network: Posterior
    options: Options
    label: Tensor | None  # (inputs,): the decisions in question
    source: str  # of the inputs, in messages

    @abstractmethod
    def size(self, stage: int) -> int:
        """How many inputs are worked on at once; fixed, so that the same command gives the same bits."""

    @abstractmethod
    def row(self, index: int, level: str | None, answer: Answer) -> dict[str, object]:
        """The row of an input, by the last level that was completed for it; what is not finite is null."""

    @abstractmethod
    def unanswered(self, index: int) -> Answer:
        """What is known of an input that was not reached: nothing."""

    @property
    @abstractmethod
    def tensors(self) -> dict[str, Tensor | None]:
        """The inputs and labels, whose digest is that of the data of a run."""

    @property
    @abstractmethod
    def details(self) -> dict[str, Any]:
        """What the answers depend on beside the options, by the names of ``run.json``."""

    @property
    def quantity(self) -> str:
        """What is asked about, by the names of ``run.json``."""
        return "decision"

    @property
    def plan(self) -> tuple[Stage, ...]:
        """What is done one after the other."""
        return plan(self.network, self.options)

    @property
    def stages(self) -> tuple[str, ...]:
        """The levels that are completed one after the other."""
        return tuple(stage.level for stage in self.plan)

    def title(self, stage: int) -> str:
        """The name of a stage, for the progress."""
        return f"{self.command}, {self.stages[stage]} effort" if stage else self.command

    def parts(self, stage: int) -> Iterator[range]:
        """The inputs that are worked on at once."""
        size = self.size(stage)
        for start in range(0, self.points, size):
            yield range(start, min(start + size, self.points))

    def options_of(self, shard: runs.Shard) -> Options:
        """The options of its stage, with the time that is left."""
        return replace(self.plan[shard.stage].options, time_limit=shard.time_limit)

    def identity(self) -> Identity:
        """What the answers of a run depend on. How long it may take is not part of it."""
        chosen = asdict(self.options) | {"fixed": sorted(self.options.fixed)}
        del chosen["time_limit"], chosen["deadline"]
        options = {name: json_values(value) for name, value in {**chosen, **self.details}.items()}
        digests = self.network.digest(), data_digest(**self.tensors)
        return Identity(self.command, *digests, options, program(), self.points, self.stages)

    def question(self) -> dict[str, Any]:
        """The entry ``question`` of ``run.json``."""
        usual = {"eps": None, "upper": None, "between": None} | self.details
        norm, quantity = f"{usual['norm']:g}", self.quantity
        names = ("norm", "eps", "upper", "domain", "quantity", "between", "attack", "seed")
        return {name: json_values((usual | {"norm": norm, "quantity": quantity})[name]) for name in names}

    def rows(self, journal: Journal) -> Iterator[tuple[Row, str | None, Answer]]:
        """Of every input: its row, the last level that was completed, and the answer."""
        stages = self.stages
        for index in range(self.points):
            stage, answer = journal.best(index) if journal.answered(index) else (-1, self.unanswered(index))
            level = stages[stage] if stage >= 0 else None
            yield self.row(index, level, answer), level, answer

    def witness(self, journal: Journal, index: int) -> Mapping[str, Any]:  # noqa: ARG002 (of other jobs)
        """The ``rival`` and the ``witness`` of an input, where its row does not have them."""
        return {}
