"""The workers of a cluster: every shard is kept once whoever dies, and what kills its workers is never answered."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from tests.runs.jobs import Squares, answers_of, silent
from tests.runs.ray_cluster.pretended import PretendedRay

from bnndp.errors import InputError, RunStateError
from bnndp.runs.identity import program
from bnndp.runs.job import Shard
from bnndp.runs.journal import Journal
from bnndp.runs.ray_cluster import crew as crews
from bnndp.runs.ray_cluster import worker as workers
from bnndp.runs.ray_cluster.crew import Crew, open_crew
from bnndp.runs.ray_cluster.worker import Badge, Parcel, Worker
from bnndp.runs.work import Schedule, work

Kept = tuple[Shard, Sequence[Any], bool]
JOB = Squares(points=40, sizes=(4, 3, 5))


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Workers set the number of threads of their process, which is this one here."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal.scratch(JOB.points, 3) as journal:
        yield journal


def crew_of(ray: PretendedRay, width: int = 2, job: Squares = JOB) -> Crew:
    return Crew(ray, Parcel.of(job), 1, width)


def local() -> list[Any]:
    with Journal.scratch(JOB.points, 3) as journal:
        work(JOB, journal, silent, Schedule())
        return answers_of(JOB, journal)


@pytest.mark.parametrize("width", [1, 2, 7, 100])
def test_answers_are_those_of_this_process(journal: Journal, width: int) -> None:
    assert work(JOB, journal, silent, Schedule(), crew_of(PretendedRay(), width)) is False
    assert answers_of(JOB, journal) == local()


def kept(ray: PretendedRay, shards: Sequence[Shard], width: int = 2) -> Counter[int]:
    """How often each shard was kept, by its first point."""
    found: list[Kept] = []
    crew_of(ray, width).compute(iter(shards), lambda *kept: found.append(kept))
    assert all(whole for *_, whole in found)
    return Counter(shard.part.start for shard, *_ in found)


SHARDS = [Shard(0, part) for part in JOB.parts(0)]


@pytest.mark.parametrize("seed", range(20))
def test_whoever_dies_every_shard_is_kept_once(seed: int) -> None:
    ray = PretendedRay()
    deaths: Counter[int] = Counter()
    ray.dice.seed(seed)

    def dies(name: str, given: Sequence[Any]) -> bool:
        start = given[1].start if name == "compute" else -1
        if start >= 0 and deaths[start] < 2 and ray.dice.random() < 0.4:
            deaths[start] += 1
            return True
        return False

    ray.dies = dies
    assert kept(ray, SHARDS, width=3) == Counter(shard.part.start for shard in SHARDS)
    assert deaths.total() > 0
    assert len(ray.hired) <= 3 + deaths.total()  # one for every one that died


def test_a_shard_that_kills_its_workers_is_left_and_the_others_are_done(journal: Journal) -> None:
    ray = PretendedRay(dies=lambda name, given: name == "compute" and 8 in given[1])
    with pytest.raises(
        RunStateError, match=r"the inputs 8 to 11 lack answers of stage 0: 3 workers died .* was killed"
    ):
        work(JOB, journal, silent, Schedule(), crew_of(ray))
    assert [point for point in range(40) if not journal.has(0, range(point, point + 1))] == [8, 9, 10, 11]
    assert work(JOB, journal, silent, Schedule()) is False  # this process goes on
    assert answers_of(JOB, journal) == local()


@pytest.mark.parametrize("width", [1, 3])
def test_no_more_shards_are_made_than_are_computed(width: int) -> None:
    waiting = done = 0

    def shards() -> Iterator[Shard]:
        nonlocal waiting
        for shard in SHARDS:
            waiting += 1
            assert waiting <= width + 1  # those of all workers, and one whose answers are just being kept
            yield shard

    def keep(*_: object) -> None:
        nonlocal waiting, done
        waiting -= 1
        done += 1

    crew_of(PretendedRay(), width).compute(shards(), keep)
    assert done == len(SHARDS)


def test_where_nothing_is_to_be_done_nobody_is_hired() -> None:
    ray = PretendedRay()
    assert kept(ray, []) == Counter()
    assert ray.hired == []


def test_workers_stay_for_the_next_stage(journal: Journal) -> None:
    ray = PretendedRay()
    work(JOB, journal, silent, Schedule(), crew_of(ray))
    assert len(ray.hired) == 2


def test_an_interruption_keeps_what_is_done_and_ends_the_rest() -> None:
    count = itertools.count()

    def interrupt(_: int) -> None:
        if next(count) == 5:
            raise KeyboardInterrupt

    ray = PretendedRay(before_wait=interrupt)
    found: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        crew_of(ray).compute(iter(SHARDS), lambda shard, *_: found.append(shard.part.start))
    # Two have joined and three shards were kept one by one; the two that were under way are done, as all are here.
    assert len(set(found)) == len(found) == 5


class Fault(Exception):
    """Whatever a shard may raise."""


def test_what_a_shard_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Fault("no bounds")

    monkeypatch.setattr(workers, "Keeping", fail)
    with pytest.raises(Fault, match="no bounds"):
        kept(PretendedRay(), SHARDS)


def test_a_worker_of_another_program_is_refused_before_it_gets_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    other = program() | {"source": "f" * 64}
    monkeypatch.setattr(workers, "program", lambda: other)
    monkeypatch.setattr(Parcel, "open", lambda self: pytest.fail("it was given the job"))
    with pytest.raises(RunStateError, match=rf"source {'f' * 12}, here {program()['source'][:12]}; install the same"):
        kept(PretendedRay(), SHARDS)


def test_a_job_that_was_changed_on_its_way_is_refused() -> None:
    parcel = Parcel.of(JOB)
    flipped = bytes([parcel.content[0] ^ 1]) + parcel.content[1:]
    with pytest.raises(RunStateError, match=hashlib.sha256(flipped).hexdigest()[:12]):
        Worker(1).join(Parcel(flipped, parcel.sha256), program())
    assert Worker(1).join(parcel, program()) == Badge(Worker(1).join(parcel, program()).machine, program())
    with pytest.raises(RunStateError, match="before it had its job"):
        Worker(1).compute(0, range(4), (), 1.0)


def test_workers_that_never_begin_are_not_hired_for_ever() -> None:
    ray = PretendedRay(dies=lambda name, _: name == "join")
    with pytest.raises(RunStateError, match="3 workers in a row died before they could begin: it was killed"):
        kept(ray, SHARDS)
    assert len(ray.hired) <= 4


def test_a_cluster_that_is_taken_by_others_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = PretendedRay()
    monkeypatch.setattr(ray, "wait", lambda calls, num_returns, timeout: ([], calls))
    with pytest.raises(RunStateError, match="no worker has begun within 180 s"):
        kept(ray, SHARDS)


@pytest.mark.parametrize(("cpus", "width"), [((2,), 1), ((5, 4), 4), ((1, 1), None)])
def test_a_worker_takes_as_many_cpus_as_there_are_threads(
    monkeypatch: pytest.MonkeyPatch, cpus: tuple[int, ...], width: int | None
) -> None:
    monkeypatch.setattr(crews, "connected", lambda address: contextlib.nullcontext(PretendedRay(cpus=cpus)))
    torch.set_num_threads(2)
    if width is None:
        with pytest.raises(InputError, match="no machine of the cluster has 2 CPUs"), open_crew(JOB):
            pass
        return
    with open_crew(JOB) as crew:
        assert (crew.width, crew.threads) == (width, 2)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_shard_whose_time_is_over_gives_what_it_reached(stage: int) -> None:
    found: list[Kept] = []
    known = [{"value": 0.0}] * 3
    crew_of(PretendedRay()).compute(iter([Shard(stage, range(3), known, 0.0)]), lambda *kept: found.append(kept))
    ((_, answers, whole),) = found
    assert not whole
    assert [answer["part"] for answer in answers] == [[stage, 0]] * 3
