"""Throughput of the engines: the workers of a Ray cluster on this machine beside this process with as many threads.

    python -m benchmarks.engines [--model FILE] [--images 1024] [--rounds 3]

The radius of the first MNIST test images (to 1 %, without the attack), in the batches of ``bnndp radius``, for the 2x64
network of the classification benchmark unless another is given. The time is that of the work: Ray is started, its
workers have joined and computed a batch each before it counts; starting them is timed apart. The engines take turns,
and the median of their rounds counts. Answers must be equal bit for bit where the number of threads is. Prints one JSON
object; exit status 1 if Ray has less than 0.8 of the throughput of this process, with one thread or with as many as
there are cores, whichever is more.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

import bnndp.files.posterior
from benchmarks.networks import authors
from bnndp.cli.radii import RadiusJob
from bnndp.data import mnist
from bnndp.options import Options
from bnndp.questions.radius import Search
from bnndp.runs.job import Shard
from bnndp.runs.journal import Answer
from bnndp.runs.ray_cluster.crew import Crew, open_crew
from bnndp.runs.work import Keeping

__all__ = ["main"]

_ASKED = 0.8


def job_of(model: Path | None, images: int) -> RadiusJob:
    test = mnist("test")
    network = authors("mnist_2x64_vogn") if model is None else bnndp.files.posterior.load(model)
    x, label = test.x[:images].clone(), test.y[:images]
    how = Search(attack=False)
    return RadiusJob("radius", network, Options(), label, "mnist (test)", x=x, domain=(0.0, 1.0), how=how)


def timed(crew: Crew | None, job: RadiusJob) -> tuple[float, dict[int, Any]]:
    """The seconds that all batches take, of workers or of this process, and the answers of each but for their times."""
    found: dict[int, Any] = {}

    def keep(shard: Shard, answers: Sequence[Answer], _whole: bool) -> None:
        found[shard.part.start] = [{**each, "seconds": 0.0} for each in answers]

    begin, shards = time.perf_counter(), (Shard(0, part) for part in job.parts(0))
    if crew is not None:
        crew.compute(shards, keep)
    else:
        for shard in shards:
            with Keeping(job, shard, keep) as keeping:
                for keeping.latest in job.search(shard):
                    pass
                keeping.whole = True
    return time.perf_counter() - begin, found


def with_threads(count: int, job: RadiusJob) -> tuple[float, dict[int, Any]]:
    torch.set_num_threads(count)
    try:
        return timed(None, job)
    finally:
        torch.set_num_threads(1)


def warmed(crew: Crew, job: RadiusJob) -> None:
    """Have all workers join, and compute a batch each."""
    shards = (Shard(0, part) for part in itertools.islice(itertools.cycle(job.parts(0)), 2 * crew.width))
    crew.compute(shards, lambda *_: None)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    job = job_of(given.model, given.images)
    ways: dict[str, Callable[[], tuple[float, dict[int, Any]]]] = {
        "local, 1 thread": lambda: with_threads(1, job),
        f"local, {cores} threads": lambda: with_threads(cores, job),
    }
    begin = time.perf_counter()
    with open_crew(job) as crew:
        warmed(crew, job)
        start = time.perf_counter() - begin
        ways[f"Ray, {crew.width} workers of 1 thread"] = lambda: timed(crew, job)
        rounds = [{name: way() for name, way in ways.items()} for _ in range(given.rounds)]
    seconds = {name: median(each[name][0] for each in rounds) for name in ways}
    one, many, ray = ways
    equal = all(each[one][1] == each[ray][1] for each in rounds)
    speed = {name: given.images / value for name, value in seconds.items()}
    ratio = speed[ray] / max(speed[one], speed[many])
    found = {
        "images a second": speed,
        "Ray over the faster local": ratio,
        "equal bits": equal,
        "seconds to start Ray": start,
    }
    print(json.dumps(found))
    return 0 if equal and ratio >= _ASKED else 1


if __name__ == "__main__":
    sys.exit(main())
