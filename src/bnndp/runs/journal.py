"""The answers of a run, kept as they come: an append-only file of sealed lines, and an index of where each stands.

A line names its point, by number, and its stage (see :mod:`bnndp.runs.work`); lines may come in any order. An answer is
*whole* when its stage was completed; one that is not is what a stage had reached when it was stopped, kept because it
is better than that of the stage before, or than none; the next time its stage begins anew. Of two whole answers to the
same question the first counts, which is how nothing is done twice.

In memory there are a few bytes per point: where its lines stand. The answers themselves stay in the file.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias

from bnndp.errors import RunStateError
from bnndp.runs.sealed_lines import seal, unseal

Answer: TypeAlias = Mapping[str, Any]
"""What is known of a point, in JSON-compatible values."""

# A process that is killed loses no line; to outlast a power cut the disk must be asked. That is done every second, or
# as seldom as is needed for it to take a five hundredth of the time.
_SYNC_SECONDS, _SYNC_SHARE = 1.0, 0.002
_IN_MEMORY = 2**22  # bytes of a journal that nobody keeps, before it goes to a temporary file
_ADVICE = "free some disk space and give the same command again"


@dataclass(slots=True)
class _Places:
    """Where the lines of one kind stand, by point."""

    start: array[int]  # -1: there is none
    length: array[int]
    count: int = 0

    @classmethod
    def empty(cls, points: int) -> _Places:
        return cls(array("q", [-1]) * points, array("q", [0]) * points)

    def put(self, point: int, start: int, length: int) -> None:
        self.count += self.start[point] < 0
        self.start[point], self.length[point] = start, length


@dataclass(slots=True)
class Journal:
    """An open file of answers of ``points`` points at ``stages`` stages; ``durable``: it is to outlast the process.

    The file has been read up to ``end``: what stands behind is not in the index and is cut off before anything is
    added, so that a write that was interrupted half way leaves no torn line in the middle.
    """

    file: IO[bytes]
    name: str
    points: int
    stages: int
    durable: bool = False
    end: int = 0
    _places: dict[int, _Places] = field(default_factory=dict)
    _fresh: bool = False  # whether anything was written since the disk was asked to keep it
    _due: float = 0.0  # when the disk is to be asked again

    @classmethod
    def scratch(cls, points: int, stages: int) -> Journal:
        """A journal that is gone at its end."""
        file: Any = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 (closed at the end)
        return cls(file, "the temporary file of the answers", points, stages)

    def count(self, stage: int) -> int:
        """How many points have a whole answer of this stage."""
        found = self._places.get(_rank(stage, whole=True))
        return 0 if found is None else found.count

    def has(self, stage: int, part: range) -> bool:
        """Whether all points of ``part`` have a whole answer of this stage."""
        found = self._places.get(_rank(stage, whole=True))
        return found is not None and all(found.start[point] >= 0 for point in part)

    def before(self, stage: int, part: range) -> list[Answer]:
        """The best answers of earlier stages than this one, for the points of ``part``."""
        return [self._at(self._best(point, _rank(stage, whole=False)), point) for point in part]

    def answered(self, point: int) -> bool:
        """Whether there is any answer for a point."""
        return any(places.start[point] >= 0 for places in self._places.values())

    def best(self, point: int) -> tuple[int, Answer]:
        """The last stage that was completed for a point, or -1, and the best answer, which may be of a later one."""
        rank = self._best(point, _rank(self.stages, whole=False))
        return (rank - 1) // 2, self._at(rank, point)

    def add(self, stage: int, part: range, answers: Sequence[Answer], *, whole: bool = True) -> None:
        """Append the answers of the points of ``part``, but for whole ones that are there already."""
        rank = _rank(stage, whole=whole)
        known = self._places.get(rank)
        lines = {
            point: seal({"id": point, "stage": stage, "whole": whole, "answer": answer})
            for point, answer in zip(part, answers, strict=True)
            if not whole or known is None or known.start[point] < 0
        }
        start = self._append(b"".join(lines.values()))
        for point, line in lines.items():
            self._put(rank, point, start, len(line))
            start += len(line)

    def index(self, lines: Iterator[bytes]) -> None:
        """Take up lines that stand in the file from ``end`` on; those after the last whole one are left behind.

        Whole lines after a broken one are not left by an interruption, and are refused.
        """
        torn: int | None = None
        position = self.end
        for number, line in enumerate(lines, start=2):
            record = unseal(line)
            if record is None:
                torn = number if torn is None else torn
            elif torn is not None:
                raise RunStateError(
                    f"{self.name}: line {torn} is damaged, but whole lines follow, so no interruption did this; delete "
                    "that line, for its point to be computed again, or start again in another folder."
                )
            else:
                self._take(record, number, position, len(line))
                self.end = position + len(line)
            position += len(line)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        """Make sure of what was written, and close the file."""
        try:
            with self._one_line():
                self._sync()
        finally:
            self.file.close()

    def _take(self, record: Mapping[str, Any], line: int, start: int, length: int) -> None:
        try:
            point, stage, whole, answer = (record[key] for key in ("id", "stage", "whole", "answer"))
            fits = type(point) is int and type(stage) is int and type(whole) is bool and isinstance(answer, dict)
            fits = fits and 0 <= point < self.points and 0 <= stage < self.stages
        except KeyError:
            fits = False
        if not fits:
            raise RunStateError(
                f"{self.name}: line {line} is not an answer of this run; start again in another folder."
            )
        self._put(_rank(stage, whole=whole), point, start, length)

    def _put(self, rank: int, point: int, start: int, length: int) -> None:
        if rank not in self._places:
            self._places[rank] = _Places.empty(self.points)
        places = self._places[rank]
        if rank % 2 == 0 or places.start[point] < 0:  # the latest of those that are not whole
            places.put(point, start, length)

    def _best(self, point: int, below: int) -> int:
        """The highest rank of an answer, of those below another."""
        for rank in range(below - 1, -1, -1):
            if rank in self._places and self._places[rank].start[point] >= 0:
                return rank
        raise RunStateError(f"{self.name}: has no answer for point {point}; give the same command again.")

    def _at(self, rank: int, point: int) -> Answer:
        places = self._places[rank]
        self.file.seek(places.start[point])
        record = unseal(self.file.read(places.length[point]))
        if record is None or record.get("id") != point:
            raise RunStateError(f"{self.name}: was changed by another program; give the same command again.")
        return record["answer"]

    def _append(self, payload: bytes) -> int:
        """Write at the end, all or nothing, and return where."""
        start = self.end
        with self._one_line():
            self.file.truncate(start)
            self.file.seek(start)
            left = memoryview(payload)
            while left:
                left = left[self.file.write(left) :]
            self._fresh = self.durable
            if time.monotonic() > self._due:
                self._sync()
        self.end = start + len(payload)
        return start

    @contextlib.contextmanager
    def _one_line(self) -> Iterator[None]:
        """A write that fails is undone and told in one line."""
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError):
                self.file.truncate(self.end)
            kept = "; what was done before is kept" if self.durable else ""
            raise RunStateError(f"{self.name}: cannot be written: {error.strerror}{kept}; {_ADVICE}.") from error

    def _sync(self) -> None:
        begin = time.monotonic()
        if self._fresh:
            os.fsync(self.file.fileno())
        end = time.monotonic()
        self._fresh, self._due = False, end + max(_SYNC_SECONDS, (end - begin) / _SYNC_SHARE)


def _rank(stage: int, *, whole: bool) -> int:
    """The order of answers: each is better than those below."""
    return 2 * stage + whole
