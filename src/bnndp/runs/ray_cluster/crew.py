"""The workers of a Ray cluster: one for every ``threads`` CPUs, each with one shard at a time.

A shard is made when a worker is free for it, so that however long a run is no more of it is in memory than is being
computed. A worker that dies is replaced, and its shard goes to another; answers come only from workers that are alive
at the end of a shard, and each shard is kept once. A shard at which three workers died is left: the others are
completed, then the command ends with an error that names it. Its points have no answer, so nothing is certified.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from bnndp.errors import InputError, RunStateError, one_line
from bnndp.runs.identity import program
from bnndp.runs.job import Job, Keep, Shard
from bnndp.runs.ray_cluster.connection import connected
from bnndp.runs.ray_cluster.worker import Badge, Parcel, Worker

_DEATHS = 3  # of workers at one shard, before it is left; and of workers in a row before any could begin
_PATIENCE = 180.0  # seconds without any worker that could begin


@contextlib.contextmanager
def open_crew(job: Job[Any], address: str | None = None) -> Iterator[Crew]:
    """Workers for a job, on the cluster at ``address`` (see :func:`bnndp.runs.ray_cluster.connection.connected`).

    Each has as many CPUs and threads as torch has here, which is what makes its answers equal to those of this process.
    """
    threads = torch.get_num_threads()
    with connected(address) as ray:
        crew = Crew(ray, ray.put(Parcel.of(job)), threads, _width(ray, threads))
        yield crew


def _width(ray: Any, threads: int) -> int:
    """How many workers fit on the cluster."""
    cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    width = sum(count // threads for count in cpus)
    if width == 0:
        raise InputError(
            f"--engine ray: no machine of the cluster has {threads} CPUs, as many as there are threads (their CPUs: "
            f"{', '.join(map(str, cpus)) or 'none'}); set OMP_NUM_THREADS to fewer."
        )
    return width


@dataclass(slots=True, eq=False)
class Crew:
    """All workers (:class:`bnndp.runs.work.Workers`), by what they do."""

    ray: Any
    parcel: Any  # where the job lies, for all of them
    threads: int
    width: int
    _joining: dict[Any, Any] = field(default_factory=dict)  # the badge that is waited for: the worker
    _idle: list[Any] = field(default_factory=list)
    _busy: dict[Any, tuple[Any, Shard]] = field(default_factory=dict)  # the answers that are waited for
    _failed: int = 0  # workers in a row that died before they could begin
    _cause: str = ""  # of the last death

    def compute(self, shards: Iterator[Shard], keep: Keep) -> None:
        """Every shard, each by one worker; those at which workers died are begun again."""
        load = _Load(shards)
        try:
            while self._assign(load):
                self._step(load, keep)
        except BaseException as error:
            if not isinstance(error, Exception):  # told to stop: what is done by now is kept
                self._collect(keep)
            raise
        finally:
            self._dismiss()
        if load.left:
            raise RunStateError(self._told(load.left))

    def _assign(self, load: _Load) -> bool:
        """A shard for every worker that has none, and workers for shards; whether there is anything to wait for."""
        while self._idle:
            shard = load.take()
            if shard is None:
                return bool(self._busy)
            self._begin(self._idle.pop(), shard)
        if not self._busy and not self._joining:  # nobody is here: is there anything to do?
            shard = load.take()
            if shard is None:
                return False
            load.put_back(shard)
        if not load.empty:
            for _ in range(self.width - len(self._joining) - len(self._busy)):
                self._hire()
        return True

    def _hire(self) -> None:
        actor = self.ray.remote(num_cpus=self.threads, max_restarts=0)(Worker)
        worker = actor.remote(self.threads)
        self._joining[worker.join.remote(self.parcel, program())] = worker

    def _begin(self, worker: Any, shard: Shard) -> None:
        seconds = shard.until - time.monotonic()
        self._busy[worker.compute.remote(shard.stage, shard.part, shard.known, seconds)] = worker, shard

    def _step(self, load: _Load, keep: Keep) -> None:
        """Wait until something is there, and see to it."""
        waiting = [*self._busy, *self._joining]
        patience = None if self._busy else _PATIENCE
        ready, _ = self.ray.wait(waiting, num_returns=1, timeout=patience)
        if not ready:
            raise RunStateError(
                f"no worker has begun within {_PATIENCE:.0f} s; the cluster has CPUs for {self.width}, which others "
                "may use; wait for them, or leave out --engine ray."
            )
        (answer,) = ready
        if answer in self._joining:
            self._join(answer)
        else:
            self._take(answer, load, keep)

    def _join(self, answer: Any) -> None:
        """A worker has come: it may begin if it is of the same program."""
        worker = self._joining.pop(answer)
        try:
            badge: Badge = self.ray.get(answer)
        except self.ray.exceptions.RayTaskError as error:
            raise RunStateError(f"a worker cannot begin: {one_line(str(error.cause))}") from error
        except self.ray.exceptions.RayError as error:
            self._failed, cause = self._failed + 1, one_line(str(error))
            if self._failed >= _DEATHS:
                raise RunStateError(
                    f"{self._failed} workers in a row died before they could begin: {cause}; bnndp must be installed "
                    "on every machine of the cluster."
                ) from error
            return
        changed = badge.differences(program())
        if changed:
            raise RunStateError(
                f"a worker on {badge.machine} is of another program: {'; '.join(changed)}; install the same versions "
                "there, or leave out --engine ray."
            )
        self._failed = 0
        self._idle.append(worker)

    def _take(self, answer: Any, load: _Load, keep: Keep) -> None:
        """A worker has ended its shard, or died at it; it gets its next one before its answers are kept."""
        worker, shard = self._busy.pop(answer)
        try:
            answers, whole = self.ray.get(answer)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from error  # what the shard raised
        except self.ray.exceptions.RayError as error:
            self._cause = one_line(str(error))
            self.ray.kill(worker)
            load.again(shard)
            return
        following = load.take()
        if following is None:
            self._idle.append(worker)
        else:
            self._begin(worker, following)
        if answers:
            keep(shard, answers, whole)

    def _collect(self, keep: Keep) -> None:
        """Keep the answers that are there already."""
        ready, _ = self.ray.wait(list(self._busy), num_returns=len(self._busy), timeout=0) if self._busy else ([], [])
        for answer in ready:
            _, shard = self._busy.pop(answer)
            with contextlib.suppress(self.ray.exceptions.RayError):
                answers, whole = self.ray.get(answer)
                if answers:
                    keep(shard, answers, whole)

    def _dismiss(self) -> None:
        """End what is under way; workers that have nothing to do stay for the next stage."""
        for worker, _ in self._busy.values():
            self.ray.kill(worker)
        self._busy.clear()

    def _told(self, left: list[Shard]) -> str:
        parts = ", ".join(f"{shard.part.start} to {shard.part.stop - 1}" for shard in left)
        return (
            f"the inputs {parts} lack answers of stage {left[0].stage}: {_DEATHS} workers died at them, the last with: "
            f"{self._cause.rstrip('.')}; all others are done, and kept with --run FOLDER; give the cluster more "
            "memory, or leave out --engine ray, and give the command again."
        )


@dataclass(slots=True, eq=False)
class _Load:
    """The shards that are still to be begun: those of dead workers first, then new ones."""

    shards: Iterator[Shard]
    empty: bool = False
    left: list[Shard] = field(default_factory=list)  # given up
    _again: deque[Shard] = field(default_factory=deque)
    _deaths: Counter[int] = field(default_factory=Counter)  # by the first point of the shard

    def take(self) -> Shard | None:
        """The next one; None: there is none now."""
        if self._again:
            return self._again.popleft()
        shard = next(self.shards, None)
        self.empty = shard is None
        return shard

    def put_back(self, shard: Shard) -> None:
        """It was not begun."""
        self._again.appendleft(shard)

    def again(self, shard: Shard) -> None:
        """Its worker died."""
        self._deaths[shard.part.start] += 1
        if self._deaths[shard.part.start] < _DEATHS:
            self._again.append(shard)
            self.empty = False
        else:
            self.left.append(shard)
