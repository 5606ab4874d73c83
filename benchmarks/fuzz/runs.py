"""The campaign of long runs: killed at random moments, its journal torn and damaged, a run ends as if nothing had been.

    python -m benchmarks.fuzz.runs [--points N] [--kills K] [--torn T] [--flips F] [--seed S] [--only PART]

*kills*: ``bnndp certify --run`` of N points with verdicts, at medium effort, is killed (SIGKILL) K times at random
moments, from the start of the process on. Of the journals that are left behind T are cut off at a random byte of their
last lines, and of F others a random bit of the last line is flipped. In the end there must be exactly one whole answer
for every point and stage, equal bit for bit to that of a run that was never interrupted. *refusals*: a second process,
other options, another model, other data, damage in the middle of the journal and a full disk each give one line and
status 2, and lose nothing. *cost*: time with against without ``--run``, one after the other, and the share of the time
that goes into the journal. Exit status 1 on any fault.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bnndp.data.demo import CLASSIFIER, NAME, network_path
from bnndp.data.moons import two_moons
from bnndp.runs.sealed_lines import unseal

__all__ = ["answers_of", "cut_tail", "flip_tail"]

PROGRAM = (sys.executable, "-c", "from bnndp.cli.main import run; run()")
JOURNAL = "results.jsonl"
_EARLY = 0.25  # share of the kills that fall before the first new answer
_TAIL = 3  # lines that a cut may reach
_POLL = 0.002  # seconds
_TINY = "tiny"  # a file system of its own
_SECONDS = "seconds"  # the one entry of an answer that is another one each time


@dataclass(frozen=True, slots=True)
class Setting:
    """The folder of the campaign, and the files in it that its commands read."""

    folder: Path
    classifier: Path
    regression: Path

    def labelled(self, count: int) -> Path:
        """Two moons with labels."""
        path = self.folder / f"moons-{count}.npz"
        if not path.exists():
            data = two_moons(count, noise_std=0.2, seed=2)
            np.savez(path, x=data.x.numpy(), y=data.y.numpy())
        return path

    def points(self, count: int) -> Path:
        """Inputs of the noisy sine."""
        path = self.folder / f"sine-{count}.npz"
        np.savez(path, x=np.random.default_rng(0).uniform(-1, 1, (count, 1)))
        return path


def certify(model: Path, inputs: Path, *more: object) -> list[str]:
    return [*PROGRAM, "certify", str(model), str(inputs), "--quiet", *map(str, more)]


def finished(arguments: Sequence[str], **given: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, check=False, **given)  # noqa: S603 (our own)


def answers_of(run: Path) -> dict[tuple[int, int], Any]:
    """The whole answers of a journal by point and stage, without their times; every line must be whole, and alone."""
    found: dict[tuple[int, int], Any] = {}
    with (run / JOURNAL).open("rb") as lines:
        next(lines)
        for number, line in enumerate(lines, start=2):
            record = unseal(line)
            if record is None or not record["whole"]:
                raise SystemExit(f"{run}: line {number} is not a whole answer: {line[:80]!r}")
            key = record["id"], record["stage"]
            if key in found:
                raise SystemExit(f"{run}: point and stage {key} have two answers")
            found[key] = {name: value for name, value in record["answer"].items() if name != _SECONDS}
    return found


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != _SECONDS} for row in rows]


def cut_tail(path: Path, dice: random.Random) -> bool:
    """Cut the journal at a random byte of its last lines, never its first; whether it had others."""
    payload = path.read_bytes()
    starts = [0, *(place + 1 for place, byte in enumerate(payload) if byte == 10)]
    first = max(starts[1], starts[max(0, len(starts) - 1 - _TAIL)])
    if first >= len(payload):
        return False
    os.truncate(path, dice.randrange(first, len(payload)))
    return True


def flip_tail(path: Path, dice: random.Random) -> bool:
    """Flip a random bit of the last line, unless it is the first; whether it was not."""
    payload = path.read_bytes()
    first = payload.rstrip(b"\n").rfind(b"\n") + 1
    if first == 0:
        return False
    place = dice.randrange(first, len(payload))
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes([payload[place] ^ (1 << dice.randrange(8))]))
    return True


def torn(path: Path) -> bool:
    """Whether the last line of a journal is not whole."""
    payload = path.read_bytes()
    return unseal(payload[payload.rstrip(b"\n").rfind(b"\n") + 1 :]) is None


@dataclass(slots=True)
class Killed:
    """What happened on the way."""

    early: int = 0  # before the first new answer
    late: int = 0
    torn: int = 0  # journals that a kill alone has torn
    cut: int = 0
    flipped: int = 0
    ends: int = 0  # of the process before it was killed

    @property
    def kills(self) -> int:
        """In all."""
        return self.early + self.late


def life(arguments: Sequence[str], journal: Path, early: float | None, late: float) -> bool | None:
    """Run until killed: ``early`` seconds after the start, or ``late`` seconds after the journal has grown.

    Whether the journal had grown; None if the process had ended by then.
    """
    before = journal.stat().st_size if journal.exists() else 0
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
        begin = time.monotonic()
        if early is not None:
            time.sleep(early)
        else:
            while process.poll() is None and time.monotonic() - begin < 300:
                if journal.exists() and journal.stat().st_size > max(before, 2000):
                    break
                time.sleep(_POLL)
            time.sleep(late)
        if process.poll() is not None:
            if process.returncode != 0:
                raise SystemExit(f"a resumed run failed: {process.stderr and process.stderr.read()}")
            return None
        process.send_signal(signal.SIGKILL)
        process.wait()
    return journal.exists() and journal.stat().st_size > before


def kills(setting: Setting, asked: argparse.Namespace, dice: random.Random) -> list[str]:
    """The first part of the campaign; its faults."""
    command = certify(setting.classifier, setting.labelled(asked.points), "--eps", 0.05, "--effort", "medium")
    begin = time.monotonic()
    whole, run = setting.folder / "whole", setting.folder / "run"
    result = finished([*command, "--run", str(whole), "--out", str(setting.folder / "want.jsonl")])
    if result.returncode:
        return [f"the run without interruption failed: {result.stderr}"]
    seconds, want = time.monotonic() - begin, answers_of(whole)
    print(f"uninterrupted: {asked.points} points, {len(want)} answers, {seconds:.0f} s", flush=True)
    killed, start, report = Killed(), 3.0, 0.0
    damage = ["cut"] * asked.torn + ["flip"] * asked.flips
    damage += ["none"] * max(0, asked.kills - len(damage))
    dice.shuffle(damage)
    while killed.kills < asked.kills:
        done = (run / JOURNAL).read_bytes().count(b"\n") if (run / JOURNAL).exists() else 0
        left = max(0.0, 1 - done / len(want)) * seconds / max(1.0, (1 - _EARLY) * (asked.kills - killed.kills))
        early = dice.uniform(0, start) if dice.random() < _EARLY else None
        grown = life([*command, "--run", str(run)], run / JOURNAL, early, dice.uniform(0, 1.2 * left))
        if grown is None:
            killed.ends += 1
            return [f"the run ended after {killed.kills} kills; give more --points"]
        killed.early, killed.late = killed.early + (not grown), killed.late + grown
        if (run / JOURNAL).exists():
            killed.torn += torn(run / JOURNAL)
            harm = damage[killed.kills - 1]
            killed.cut += harm == "cut" and cut_tail(run / JOURNAL, dice)
            killed.flipped += harm == "flip" and flip_tail(run / JOURNAL, dice)
        if time.monotonic() - report > 60:
            report = time.monotonic()
            print(f"  {killed}, {done} of {len(want)} answers", flush=True)
    result = finished([*command, "--run", str(run), "--out", str(setting.folder / "found.jsonl")])
    print(f"killed {killed.kills} times: {killed}; then it ended with status {result.returncode}")
    faults = [] if result.returncode == 0 else [f"the last run failed: {result.stderr}"]
    found = answers_of(run)
    if found != want:
        faults.append(f"{len(found)} answers, {sum(found.get(key) == want[key] for key in want)} of {len(want)} equal")
    rows = rows_of(setting.folder / "found.jsonl")
    if len(rows) != asked.points or rows != rows_of(setting.folder / "want.jsonl"):
        faults.append(f"{len(rows)} rows, and not those of the run without interruption")
    print(f"{len(rows)} results, {len(found)} answers: {'NOT ' if faults else ''}those of the uninterrupted run")
    return faults


def refusals(setting: Setting, asked: argparse.Namespace, dice: random.Random) -> list[str]:
    """The second part of the campaign; its faults."""
    faults: list[str] = []
    inputs, run = setting.labelled(400), setting.folder / "refused"
    command = certify(setting.classifier, inputs, "--eps", 0.05)
    whole = setting.folder / "refused-want"
    finished([*command, "--run", str(whole)])

    def expect(name: str, words: str, arguments: Sequence[str], **given: Any) -> None:
        before = (run / JOURNAL).read_bytes() if (run / JOURNAL).exists() else b""
        result = finished([*arguments, "--run", str(run)], **given)
        after = (run / JOURNAL).read_bytes()
        fine = result.returncode == 2 and result.stderr.count("\n") == 1 and words in result.stderr
        fine = fine and after.startswith(before) and "Traceback" not in result.stderr
        print(f"{'refused' if fine else 'NOT REFUSED'}: {name}: {result.stderr.strip()}")
        if not fine:
            faults.append(name)

    with subprocess.Popen([*command, "--run", str(run)], stdout=subprocess.DEVNULL) as first:  # noqa: S603
        while not (run / JOURNAL).exists():
            time.sleep(_POLL)
        second = finished([*command, "--run", str(run)])
        print(f"two processes: status {second.returncode}: {second.stderr.strip()}")
        if second.returncode != 2 or "is in use by process" not in second.stderr:
            faults.append("two processes")
        first.wait()
    if answers_of(run) != answers_of(whole):
        faults.append("the answers of the first of two processes")
    expect("options", "refine 1, now 4", [*command, "--refine", "4"])
    expect("model", "model ", certify(setting.regression, setting.points(400), "--eps", 0.05))
    expect("data", "data ", certify(setting.classifier, setting.labelled(401), "--eps", 0.05))
    lines = (run / JOURNAL).read_bytes().splitlines(keepends=True)
    for _ in range(asked.flips):
        number = dice.randrange(1, len(lines) - 1)
        wrong = bytearray(lines[number])
        wrong[dice.randrange(len(wrong))] ^= 1 << dice.randrange(8)
        (run / JOURNAL).write_bytes(b"".join([*lines[:number], wrong, *lines[number + 1 :]]))
        expect("damage in the middle", f"line {number + 1} is damaged, but whole lines follow", command)
    for name, place, words, given in full_disks(setting.folder):
        run = place
        expect(name, words, command, **given)
        if run.parent.name == _TINY:
            mounted("-o", "remount,size=8m", str(run.parent))
        finished([*command, "--run", str(run)])
        if answers_of(run) != answers_of(whole):
            faults.append(f"the answers after a full disk ({name})")
    return faults


def full_disks(folder: Path) -> Iterator[tuple[str, Path, str, dict[str, Any]]]:
    """Places that take some of the answers and no more."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))

    yield (
        "limit of the system",
        folder / "limited",
        "File too large; what was done before is kept",
        {"preexec_fn": limit},
    )
    tiny = folder / _TINY
    tiny.mkdir()
    if not mounted("-t", "tmpfs", "-o", "size=80k", "tmpfs", str(tiny)):
        print("not tried: a tiny file system, which this user may not mount")
        return
    try:
        yield "tiny file system", tiny / "run", "No space left on device; what was done before is kept", {}
    finally:
        finished(["umount", str(tiny)])


def mounted(*arguments: str) -> bool:
    return finished(["mount", *arguments]).returncode == 0


SHARE = """
import sys, time
from bnndp.cli.main import main
from bnndp.runs.journal import Journal
spent = 0.0
def timed(real):
    def call(*arguments, **given):
        global spent
        begin = time.perf_counter()
        try:
            return real(*arguments, **given)
        finally:
            spent += time.perf_counter() - begin
    return call
for name in ("add", "before", "best", "index", "has", "__exit__"):
    setattr(Journal, name, timed(getattr(Journal, name)))
import torch, bnndp.questions.certify
begin = time.perf_counter()
main(sys.argv[1:])
print(spent, time.perf_counter() - begin, file=sys.stderr)
"""


def cost(setting: Setting, asked: argparse.Namespace, _dice: random.Random) -> list[str]:
    """The third part of the campaign; its faults."""
    faults = []
    questions: dict[
        str, tuple[Any, ...]
    ] = {  # the first is that of the kills; the others show how the cost grows as the answers get cheaper
        "two moons, verdicts, medium effort": (setting.classifier, setting.labelled(640), "--effort", "medium"),
        "noisy sine, medium effort": (setting.regression, setting.points(4096), "--effort", "medium"),
        "noisy sine, one pass": (setting.regression, setting.points(10_000)),
    }
    for number, (name, (model, inputs, *more)) in enumerate(questions.items()):
        command = certify(model, inputs, "--eps", 0.05, *more)
        with_run, without, shares, each = [], [], [], 0.0
        for index in range(asked.repeats):
            run = setting.folder / f"cost-{number}-{index}"
            with_run.append(processor_time([*command, "--run", str(run)]))
            without.append(processor_time([*command, "--out", str(setting.folder / "cost.jsonl")]))
            timed = [sys.executable, "-c", SHARE, *command[len(PROGRAM) :], "--run", f"{run}-timed"]
            spent, total = map(float, finished(timed).stderr.split()[-2:])
            shares.append(spent / total)
            each = total / np.load(inputs)["x"].shape[0]
        ratio, share = median(a / b for a, b in zip(with_run, without, strict=True)), median(shares)
        figures = f"with : without --run {ratio:.4f}; journal {100 * share:.2f} % of the time"
        print(f"{name}: {1e3 * each:.2f} ms per point; {figures}", flush=True)
        if number == 0 and not share <= 0.01:
            faults.append(f"journalling takes {100 * share:.2f} % of the time: {name}")
    return faults


def processor_time(arguments: Sequence[str]) -> float:
    """Seconds of the processor that a command takes, whatever else the machine does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = finished(arguments)
    if result.returncode:
        raise SystemExit(result.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


PARTS: dict[str, Callable[[Setting, argparse.Namespace, random.Random], list[str]]] = {
    "kills": kills,
    "refusals": refusals,
    "cost": cost,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"points": 10_000, "kills": 200, "torn": 50, "flips": 10, "seed": 0, "repeats": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--only", choices=PARTS, action="append")
    asked = parser.parse_args()
    faults: list[str] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bnndp-runs-")))
        paths = (stack.enter_context(network_path(name)) for name in (CLASSIFIER, NAME))
        setting = Setting(folder, *paths)
        for name in asked.only or PARTS:
            faults += PARTS[name](setting, asked, random.Random(asked.seed))
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "no fault")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
