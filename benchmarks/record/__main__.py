"""The answers of bnndp to some hundreds of small questions, kept in a file and compared with it later.

    python -m benchmarks.record write FILE.npz      # before a change that must not change what is computed
    python -m benchmarks.record compare FILE.npz    # after it: exit status 1 if any answer differs

Compare on the machine that wrote the file. Numbers may differ by 1e-12, relative to the larger of both and to the width
of their interval; verdicts, labels and methods must be equal. Only ``record/engine.py`` knows bnndp.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record.cases import cases
from benchmarks.record.engine import SENSES
from benchmarks.record.networks import Dice

__all__ = ["main"]

TOLERANCE = 1e-12
Arrays = dict[str, np.ndarray]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record", description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of names of cases")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    start, only = time.monotonic(), tuple(given.only)
    status = (_write if given.action == "write" else _compare)(given.file, only)
    print(f"{time.monotonic() - start:.0f} s")
    return status


def _answer(name: str, ask: Callable[[Dice], Any]) -> Arrays:
    dice = Dice(name)
    return {key: np.asarray(value) for key, value in ask(dice).items()} | {"drawn": np.asarray(dice.checksum)}


def _write(path: Path, only: tuple[str, ...]) -> int:
    arrays: Arrays = {}
    number, seconds = Counter[str](), defaultdict[str, float](float)
    for name, ask in cases():
        if name.startswith(only):
            start, question = time.monotonic(), name.partition("/")[0]
            arrays.update({f"{name}:{key}": array for key, array in _answer(name, ask).items()})
            number[question] += 1
            seconds[question] += time.monotonic() - start
    np.savez(path, **arrays)
    for question, count in number.items():
        print(f"{question:12} {count:4} cases {seconds[question]:6.1f} s")
    print(f"{number.total()} cases written to {path}")
    return 0


def _compare(path: Path, only: tuple[str, ...]) -> int:
    kept: dict[str, Arrays] = {}
    with np.load(path) as file:
        for entry in file.files:
            name, _, key = entry.rpartition(":")
            kept.setdefault(name, {})[key] = file[entry]
    asked, tally = dict(cases()), Counter[str]()
    for name in [name for name in kept | asked if name.startswith(only)]:
        if name not in asked or name not in kept:
            outcome, text = "missing", "there is no such case any more" if name in kept else "it is not in the file"
        else:
            outcome, text = _judged(kept[name], name, asked[name])
        tally[outcome] += 1
        print(f"{name}: {outcome}{text and f', {text}'}", flush=True)
    print(", ".join(f"{number} {outcome}" for outcome, number in tally.most_common()))
    return int(not tally or not tally.keys() <= {"same", "same up to rounding"})


def _judged(old: Arrays, name: str, ask: Callable[[Dice], Any]) -> tuple[str, str]:
    """What became of a case, in a word, and the array that has changed most."""
    try:
        new = _answer(name, ask)
    except Exception as error:  # noqa: BLE001 (the other cases are compared all the same)
        return "failed", f"{type(error).__name__}: {error}"
    if old.keys() != new.keys():
        return "different", f"arrays in one of both only: {sorted(old.keys() ^ new.keys())}"
    changes = {key: _change(key, old, new) for key in old}
    largest, worst = max((float(np.abs(change).max(initial=0)), key) for key, change in changes.items())
    if largest == 0:
        return "same", ""
    text = f"{worst} by {largest:.1e}"
    if largest <= TOLERANCE:
        return "same up to rounding", text
    beyond = {SENSES.get(key, 0) * np.sign(c) for key, all_ in changes.items() for c in all_[np.abs(all_) > TOLERANCE]}
    return {(): "different", (1,): "tighter", (-1,): "looser"}.get(tuple(beyond - {0}), "tighter and looser"), text


def _change(key: str, old: Arrays, new: Arrays) -> np.ndarray:
    """The signed relative change of each number; infinite where only one is finite, or other values differ."""
    a, b = old[key], new[key]
    if a.dtype.kind != "f" or a.shape != b.shape:
        return np.asarray([0.0 if np.array_equal(a, b) else np.inf])
    scale = np.maximum(np.abs(a), np.abs(b))
    if key in ("lower", "upper"):
        width = old["upper"] - old["lower"]
        scale = np.maximum(scale, np.where(np.isfinite(width), width, 0.0))
    elif a.ndim > 1:  # entries of a plane or of an input
        scale = scale.max(-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        change = (b - a) / scale
    a, b = (np.where(np.isnan(each), -np.inf, each) for each in (a, b))  # of a radius: nothing is certified
    return np.where(a == b, 0.0, np.where(np.isfinite(change), change, np.where(b > a, np.inf, -np.inf)))


if __name__ == "__main__":
    sys.exit(main())
