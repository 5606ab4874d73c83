"""What runs on the machines of a cluster: a process that gets a job once and computes shards of it, one at a time.

A worker shows what it is before it is given anything: its program must be that of the command, source and torch
included, and the job must have arrived bit for bit. So every answer is one of the same model, data, options and code.
"""

from __future__ import annotations

import hashlib
import pickle
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bnndp.errors import RunStateError
from bnndp.runs.identity import program
from bnndp.runs.job import Job, Shard
from bnndp.runs.journal import Answer
from bnndp.runs.work import Keeping


@dataclass(frozen=True, slots=True)
class Parcel:
    """A job on its way to workers: the model, the data and the options."""

    content: bytes
    sha256: str

    @classmethod
    def of(cls, job: Job[Any]) -> Parcel:
        """That of a job."""
        content = pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL)
        return cls(content, hashlib.sha256(content).hexdigest())

    def open(self) -> Job[Any]:
        """The job; refused if it is not as it was sent."""
        found = hashlib.sha256(self.content).hexdigest()
        if found != self.sha256:
            raise RunStateError(
                f"a worker on {socket.gethostname()} received a job with SHA-256 {found[:12]} instead of "
                f"{self.sha256[:12]}; give the same command again."
            )
        return pickle.loads(self.content)  # noqa: S301 (made by this command, and known by its digest)


@dataclass(frozen=True, slots=True)
class Badge:
    """What a worker is: the name of its machine, and its program."""

    machine: str
    program: dict[str, str]

    def differences(self, wanted: Mapping[str, str]) -> list[str]:
        """What is not as ``wanted``, in words."""
        names = [name for name in wanted if self.program.get(name) != wanted[name]]
        return [f"{name} {self.program.get(name, 'none')[:12]}, here {wanted[name][:12]}" for name in names]


class Worker:
    """A process of a cluster; Ray makes it an actor."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._job: Job[Any] | None = None

    def join(self, parcel: Parcel, wanted: Mapping[str, str]) -> Badge:
        """Who this is; with the program that is ``wanted`` it takes the job of all shards that follow."""
        badge = Badge(socket.gethostname(), program())
        if badge.program == wanted:
            self._job = parcel.open()
        return badge

    def compute(
        self, stage: int, part: range, known: Sequence[Answer], seconds: float
    ) -> tuple[Sequence[Answer], bool]:
        """The answers of a shard, and whether its stage was completed within ``seconds``; none: nothing was reached."""
        if self._job is None:
            raise RunStateError("a worker was asked for a shard before it had its job; give the same command again.")
        done: tuple[Sequence[Answer], bool] = ((), False)

        def keep(_shard: Shard, answers: Sequence[Answer], whole: bool) -> None:
            nonlocal done
            done = answers, whole

        shard = Shard(stage, part, known, time.monotonic() + seconds)
        with Keeping(self._job, shard, keep) as keeping:
            for keeping.latest in self._job.search(shard):
                if shard.over:
                    break
            else:
                keeping.whole = True
        return done
