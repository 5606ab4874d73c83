"""What a run found, as columns: radii of decisions, or intervals of outputs, with verdicts where labels were given.

The answers are checked when they are read: a bound that is crossed or is not a number is refused, and nothing is
counted as certified but what the numbers themselves say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnndp.errors import RunStateError
from bnndp.questions.verdict import Verdict, judge
from bnndp.report.page.record import Record
from bnndp.runs.journal import Answer


@dataclass(frozen=True, slots=True)
class Radii:
    """Of every input: how far its decision is proved to be the label, and where an attack found another one."""

    label: np.ndarray  # (inputs,)
    decision: np.ndarray  # (inputs,): of the network at the input, by sampling
    radius: np.ndarray  # (inputs,): NaN where nothing is proved, not even at the input
    attack: np.ndarray  # (inputs,): infinite where no attack succeeded, NaN where none was asked for
    seconds: np.ndarray  # (inputs,)
    capped: np.ndarray  # (inputs,): whether the search ended at the largest radius that was tried

    @property
    def attacked(self) -> bool:
        """Whether an attack was asked for."""
        return not bool(np.isnan(self.attack).any())

    @property
    def correct(self) -> np.ndarray:
        """Where the decision at the input is the label: (inputs,)."""
        return self.decision == self.label

    @property
    def breaking(self) -> np.ndarray:
        """The radius at which each decision is known to be another: (inputs,), 0 where it is wrong at the input."""
        return np.where(self.correct, self.attack, 0.0)

    @property
    def ratio(self) -> np.ndarray:
        """Certified over attacked radius, NaN where there is none: (inputs,)."""
        comparable = np.isfinite(self.attack) & (self.attack > 0)
        return np.where(comparable, np.nan_to_num(self.radius) / np.where(comparable, self.attack, 1.0), np.nan)

    def verdicts(self, eps: float) -> list[Verdict]:
        """On the claim that each decision is the label on the whole ball of radius ``eps``."""
        pairs = zip((self.radius >= eps).tolist(), (self.breaking <= eps).tolist(), strict=True)
        return [judge(proved=proved, broken=broken) for proved, broken in pairs]


@dataclass(frozen=True, slots=True)
class Claims:
    """Of every box: whether its decision is the label on all of it."""

    label: np.ndarray  # (boxes,)
    verdict: tuple[Verdict, ...]
    lead: np.ndarray  # (boxes,): the label is ahead of every other class by at least this
    broken: np.ndarray  # (boxes,): whether an attack found another decision


@dataclass(frozen=True, slots=True)
class Intervals:
    """Of every box: bounds of each output, what an attack found inside, and the verdict on a decision."""

    lower: np.ndarray  # (boxes, outputs)
    upper: np.ndarray  # (boxes, outputs)
    inside_lower: np.ndarray | None  # (boxes, outputs)
    inside_upper: np.ndarray | None  # (boxes, outputs)
    method: tuple[str, ...]
    seconds: np.ndarray  # (boxes,)
    claims: Claims | None

    @property
    def beyond(self) -> np.ndarray:
        """Where the range from inside reaches beyond the bounds, as the noise of sampled means may: (boxes,)."""
        if self.inside_lower is None or self.inside_upper is None:
            return np.zeros(len(self.method), dtype=bool)
        return np.asarray(((self.inside_lower < self.lower) | (self.inside_upper > self.upper)).any(1))

    @property
    def widest(self) -> np.ndarray:
        """The output with the widest interval: (boxes,)."""
        return np.asarray((self.upper - self.lower).argmax(1))

    @property
    def width(self) -> np.ndarray:
        """The width of the widest interval, rounded up where the subtraction rounded down: (boxes,)."""
        upper, lower = self.upper, self.lower
        with np.errstate(invalid="ignore", over="ignore"):  # of infinite widths, which need no rounding
            width = upper - lower
            back = upper - width
            remainder = (upper - (width + back)) + (back - lower)  # what the subtraction lost, exactly: Knuth's TwoSum
            return np.asarray(np.where(remainder > 0, np.nextafter(width, np.inf), width).max(1))

    @property
    def inside(self) -> np.ndarray | None:
        """The width of the range that was found from inside, of the same output: (boxes,)."""
        if self.inside_lower is None or self.inside_upper is None:
            return None
        return (self.inside_upper - self.inside_lower)[np.arange(len(self.widest)), self.widest]


Outcome = Radii | Intervals


def outcome_of(record: Record) -> Outcome:
    """The answers of a run as columns, checked; what is wrong is one line that names the input."""
    name = str(record.folder)
    columns = _Columns(name, record.index, record.answers)
    return _intervals(columns) if record.command == "certify" else _radii(columns, record.largest_tried)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Entries of answers, one after the other, that must be of a kind."""

    name: str
    index: Sequence[int]
    answers: Sequence[Answer]

    def of(self, key: str, read: Callable[[Any], Any]) -> list[Any]:
        return [self._one(at, answer, key, read) for at, answer in zip(self.index, self.answers, strict=True)]

    def _one(self, at: int, answer: Answer, key: str, read: Callable[[Any], Any]) -> Any:
        try:
            return read(answer[key])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self.fault(at, f"has no {key} that can be read ({answer.get(key)!r:.60})") from error

    def array(self, key: str, read: Callable[[Any], Any]) -> np.ndarray:
        return np.array(self.of(key, read))

    def expect(self, good: np.ndarray, what: str) -> None:  # good (inputs,) or (inputs, outputs)
        rows = good if good.ndim == 1 else good.all(1)
        if not rows.all():
            raise self.fault(self.index[int(np.flatnonzero(~rows)[0])], what)

    def fault(self, at: int, what: str) -> RunStateError:
        return RunStateError(f"{self.name}: the answer for input {at} {what}; the run cannot be shown: start it again.")


def _radii(columns: _Columns, largest: float) -> Radii:
    label, decision = columns.array("label", _whole), columns.array("decision", _whole)
    radius, attack = columns.array("radius", _real), columns.array("attack", _real)
    columns.expect(np.isnan(radius) | ((radius >= 0) & np.isfinite(radius)), "has a radius that is none")
    columns.expect(np.isnan(attack) | (attack >= 0), "has an attack radius that is none")
    capped = np.array([answer.get("capped") is True for answer in columns.answers])  # absent in older versions
    capped = (capped & ~np.isnan(radius)) | (radius >= largest)
    return Radii(label, decision, radius, attack, columns.array("seconds", _real), capped)


def _intervals(columns: _Columns) -> Intervals:
    lower, upper = _matrix(columns, "lower"), _matrix(columns, "upper")
    if lower.shape != upper.shape:
        raise columns.fault(columns.index[0], "does not have as many lower as upper ends")
    columns.expect((lower <= upper) & (lower < np.inf) & (upper > -np.inf), "has an interval that is none")
    inside: list[np.ndarray] = []
    if columns.answers[0].get("inside_lower") is not None:
        inside = [_matrix(columns, "inside_lower"), _matrix(columns, "inside_upper")]
        if any(end.shape != lower.shape for end in inside):
            raise columns.fault(columns.index[0], "has a range from inside of other outputs")
    claims = None
    if "label" in columns.answers[0]:
        lead = columns.array("lead", _real)
        broken = [text == Verdict.FALSIFIED.value for text in columns.of("verdict", str)]
        pairs = zip((lead > 0).tolist(), broken, strict=True)  # certified by the lead alone, not by the stored verdict
        verdicts = tuple(judge(proved=ahead, broken=shown) for ahead, shown in pairs)
        claims = Claims(columns.array("label", _whole), verdicts, lead, np.array(broken))
    low, high = inside or (None, None)
    method = tuple(columns.of("method", str))
    return Intervals(lower, upper, low, high, method, columns.array("seconds", _real), claims)


def _matrix(columns: _Columns, key: str) -> np.ndarray:
    rows = columns.of(key, lambda values: [_real(value) for value in values])
    columns.expect(np.array([len(row) == len(rows[0]) > 0 for row in rows]), f"has a {key} of another length")
    return np.array(rows, dtype=np.float64)


def _real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    if isinstance(value, str) and value not in ("inf", "-inf", "nan"):
        raise ValueError
    return float(value)


def _whole(value: object) -> int:
    if type(value) is not int or abs(value) >= 2**31:
        raise TypeError
    return value
