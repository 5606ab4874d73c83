"""Malformed and malicious model files: nothing in them may run, and every one gets one clear line, soon.

``make campaign-files`` writes at least 200 malformed and 20 malicious files, opens each with :func:`bnndp.load` and the
pickles with ``bnndp convert`` too, and flips every bit of a sealed file. It fails on: a file that loads, an error that
is not one :class:`ModelFileError` of one line naming the file, code that ran (audit hook, and marks that the files
leave), more than 2 s, more memory than 2 x file + 200 MB, a flipped bit that is not noticed.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from support.hostile_files import Case, good_network, malformed, malicious, sealed_flips

from bnndp.errors import ModelFileError
from bnndp.files.posterior import load, save
from bnndp.importers.architecture import Architecture
from bnndp.importers.convert import convert
from bnndp.importers.pickles import open_in_child

__all__ = ["Trial", "flips_unnoticed", "open_file", "watch"]

_SECONDS = 2.0
_EXTRA = 200 * 2**20
_WATCHED = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "socket.",
    "exec",
    "compile",
    "pickle.",
)
_events: list[str] = []
_watching = threading.local()


@dataclass(frozen=True)
class Trial:
    """What came of opening one file."""

    name: str
    way: str  # load, convert or child
    fault: str | None  # what was wrong with how it went; None: refused as it should be
    line: str
    seconds: float
    memory: int  # bytes that the peak grew by


@contextlib.contextmanager
def watch() -> Iterator[list[str]]:
    """Collect what the audit hook sees that no reading of data may do."""
    if not getattr(watch, "installed", False):
        sys.addaudithook(_hook)
        watch.installed = True  # type: ignore[attr-defined]
    _events.clear()
    _watching.on = True
    try:
        yield _events
    finally:
        _watching.on = False


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if getattr(_watching, "on", False) and event.startswith(_WATCHED):
        _events.append(f"{event} {arguments!r:.120}")


def open_file(case: Case, path: Path, mark: Path, way: str = "load") -> Trial:
    """Write the file, open it, say what went wrong."""
    case.write(path)
    opened: dict[str, Callable[[Path], object]] = {"load": load, "convert": _converted, "child": _by_child}
    before, start = _peak(way) if way == "load" else 0, _clock(way)
    line, fault, allowed = "", None, set() if way == "load" else {"subprocess.Popen", "os.posix_spawn"}
    with watch() as events:
        try:
            opened[way](path)
            fault = "was accepted"
        except ModelFileError as error:
            line = str(error)
            fault = _wording(line, path)
        except BaseException as error:  # noqa: BLE001 (the campaign is about what else may come)
            fault = f"gave {type(error).__name__}: {error}"[:200]
    seconds, memory = _clock(way) - start, _peak(way) - before
    ran = sorted(event for event in set(events) if event.split(" ")[0] not in allowed)
    if ran or mark.exists():
        fault = f"ran code: {', '.join(ran) or 'the mark is there'}"
    size = path.stat().st_size if path.is_file() and not path.is_symlink() else 0
    if memory > 2 * size + _EXTRA:
        fault = fault or f"took {memory / 2**20:.0f} MB for a file of {size} bytes"
    if seconds > _SECONDS and way != "child":  # which nobody calls but this campaign
        fault = fault or f"took {seconds:.1f} s"
    return Trial(case.name, way, fault, line, seconds, memory)


def _converted(path: Path) -> object:
    """With all that a file need not say, so that this is not what is refused."""
    return convert(path, Architecture("regression", "relu"))


def _by_child(path: Path) -> object:
    """By the child process alone, without the look that comes before it."""
    return open_in_child(path.read_bytes(), path)


def _wording(line: str, path: Path) -> str | None:
    if "\n" in line or not line.isprintable() or len(line) > 800:
        return f"has no clear line: {line!r:.200}"
    return None if line.startswith(f"{path}: ") else f"is not named: {line:.200}"


def _peak(way: str) -> int:
    """Largest memory of this process so far; of all children, that of the largest beyond its libraries."""
    if way != "load":
        return max(0, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 - _libraries())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _clock(way: str) -> float:
    """Seconds on the clock; of processor time where a process is started, which waits for other work on the machine."""
    if way == "load":
        return time.perf_counter()
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def _libraries() -> int:
    """Memory of a process that has imported torch and done nothing."""
    if not hasattr(_libraries, "found"):
        program = "import torch, safetensors.torch, resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
        _libraries.found = int(result.stdout) * 1024  # type: ignore[attr-defined]
    return _libraries.found  # type: ignore[attr-defined]


def flips_unnoticed(folder: Path, step: int = 1) -> tuple[int, int]:
    """How many flips of single bits in a sealed file were not refused, and how many were tried."""
    content, bits = sealed_flips(folder)
    path, missed, tried = folder / "flipped", 0, 0
    for bit in range(0, bits, step):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        tried += 1
        with contextlib.suppress(ModelFileError):
            load(path)
            missed += 1
    return missed, tried


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400, help="malformed files")
    parser.add_argument("--step", type=int, default=1, help="flip only every STEP-th bit")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mark = folder / "mark"
        _warm_up(folder)
        for index, case in enumerate(malformed(folder, given.count, given.seed)):
            trials.append(open_file(case, folder / f"malformed-{index}", mark))
            print(".", end="", flush=True)
        for index, case in enumerate(malicious(mark)):
            trials.append(open_file(case, folder / f"malicious-{index}", mark))
            if case.convertible:
                trials.append(open_file(case, folder / f"converted-{index}", mark, "convert"))
                trials.append(open_file(case, folder / f"child-{index}", mark, "child"))
            print(":", end="", flush=True)
        missed, tried = flips_unnoticed(folder, given.step)
    return _report(trials, missed, tried)


def _warm_up(folder: Path) -> None:
    """Open good files both ways, so that no import of ours is taken for code of theirs."""
    "".encode("cp437")  # of zipfile
    save(good_network(), folder / "warm")
    load(folder / "warm")
    torch.save({"weight": torch.ones(1, 1)}, folder / "warm.pt")
    _converted(folder / "warm.pt")
    torch.save({"a": torch.nn.Linear(1, 1)}, folder / "warm.pt")
    with contextlib.suppress(ModelFileError):
        open_in_child((folder / "warm.pt").read_bytes(), "warm")


def _report(trials: list[Trial], missed: int, tried: int) -> int:
    print()
    for trial in trials:
        if trial.fault is not None or trial.way != "load":
            print(
                f"{'FAULT' if trial.fault else 'ok':6}{trial.way:8} {trial.name:32} {trial.fault or trial.line[-110:]}"
            )
    for way in ("load", "convert", "child"):
        some = [trial for trial in trials if trial.way == way]
        faults = sum(trial.fault is not None for trial in some)
        slowest, largest = max(trial.seconds for trial in some), max(trial.memory for trial in some)
        print(f"{way}: {len(some)} files, {faults} faults, at most {slowest:.2f} s and {largest / 2**20:.0f} MB")
    print(f"flipped bits of a sealed file: {tried}, not noticed: {missed}")
    return int(missed > 0 or any(trial.fault for trial in trials))


if __name__ == "__main__":
    sys.exit(main())
