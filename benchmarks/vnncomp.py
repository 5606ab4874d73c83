"""Instances of the verification competition: what is decided within their limits, beside what is known of them.

``python -m benchmarks.vnncomp`` reads the sets in ``$BNNDP_BENCHMARKS/vnncomp``, one after the other, and writes every
answer into a journal at once; the same command goes on from there. No answer may contradict a known one.

``--traps`` asks again, at every effort, for all instances of the journal with a counterexample that bounds have
confirmed, and without looking for one: nothing that is false may be proved.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from bnndp.files.compressed import read_compressed
from bnndp.files.regions import regions_of
from bnndp.files.vnnlib import read_vnnlib
from bnndp.importers.onnx.read import read_onnx
from bnndp.options import LEVELS, Options
from bnndp.questions import constraint
from bnndp.questions.constraint import verify
from bnndp.questions.verdict import Verdict

SETS = ("acasxu_2023", "mnist_fc", "oval21", "sri_resnet_a")
WORDS = {Verdict.CERTIFIED: "unsat", Verdict.FALSIFIED: "sat", Verdict.UNDECIDED: "unknown"}


@dataclass(frozen=True)
class Instance:
    """A network and a property, and what is known of them."""

    set: str
    onnx: str
    vnnlib: str
    limit: float
    known: str


@dataclass(frozen=True)
class Answer:
    """Ours, and how long it took."""

    set: str
    onnx: str
    vnnlib: str
    known: str
    answer: str
    seconds: float
    cells: int
    onnxruntime: float | None  # by how much outputs in float32 miss the unsafe set; not positive: they are in it


def instances(folder: Path, name: str) -> list[Instance]:
    """Those of a set, in the order of its file."""
    with (folder / name / "known.csv").open(newline="") as file:
        rows = csv.DictReader(file)
        return [Instance(name, row["onnx"], row["vnnlib"], float(row["limit_s"]), row["known"]) for row in rows]


def answered(folder: Path, instance: Instance, limit: float, effort: str, device: str = "cpu") -> Answer:
    """The answer to one instance; reading the files is a part of its time."""
    begin = time.monotonic()
    path = folder / instance.set
    network, asked = (path / f"{name}.gz" for name in (instance.onnx, instance.vnnlib))
    regions = [region.to(device) for region in regions_of(read_vnnlib(asked))]
    posterior = read_onnx(network).to(device)
    left = max(1.0, min(limit, instance.limit) - (time.monotonic() - begin))
    found = verify(posterior, regions, Options(effort=effort, time_limit=left))
    seconds = time.monotonic() - begin
    missed = None
    if found.witness is not None and importlib.util.find_spec("onnxruntime"):
        x = found.witness.cpu()
        y = by_onnxruntime(network, x)
        excess = [region.to("cpu").unsafe.excess(y[None], x[None]).amin().item() for region in regions]
        missed = min(excess)
    names = (instance.set, instance.onnx, instance.vnnlib, instance.known)
    return Answer(*names, WORDS[found.verdict], seconds, found.cells, missed)


def proved_traps(folder: Path, answers: Sequence[Answer], limit: float, device: str) -> Iterator[tuple[Answer, str]]:
    """The instances with a counterexample that are proved all the same, each with the effort; none are to be."""
    for answer in answers:
        if answer.answer == "sat":
            instance = Instance(answer.set, answer.onnx, answer.vnnlib, limit, "sat")
            for effort in LEVELS:
                with mock.patch.object(constraint, "_confirmed", return_value=None):
                    found = answered(folder, instance, limit, effort, device)
                print(answer.set, Path(answer.vnnlib).stem, effort, found.answer, f"{found.seconds:.1f} s", flush=True)
                if found.answer == "unsat":
                    yield answer, effort


def by_onnxruntime(path: Path, x: torch.Tensor) -> torch.Tensor:  # (n,) -> (outputs,)
    """The outputs in float32, as the competition computes them."""
    import onnxruntime

    session = onnxruntime.InferenceSession(read_compressed(path, 2**31), providers=["CPUExecutionProvider"])
    names = {tensor.name for tensor in session.get_overridable_initializers()}
    taken = next(tensor for tensor in session.get_inputs() if tensor.name not in names)
    shape = [size if isinstance(size, int) else 1 for size in taken.shape]
    found = session.run(None, {taken.name: x.float().reshape(shape).numpy()})[0]
    return torch.from_numpy(found).double().flatten()


def journalled(path: Path) -> dict[tuple[str, str, str], Answer]:
    """The answers that are there already; a torn last line counts as none."""
    found = {}
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            answer = Answer(**json.loads(line))
        except (json.JSONDecodeError, TypeError):
            continue
        found[answer.set, answer.onnx, answer.vnnlib] = answer
    return found


def contradicts(answer: Answer) -> bool:
    """Whether the answer is not the one that is known."""
    return {answer.answer, answer.known} == {"sat", "unsat"}


def table(answers: Sequence[Answer]) -> Iterator[str]:
    """One line for each set."""
    yield "| set | instances | unsat: proved | sat: found | others: decided | contradictions | seconds, mean |"
    yield "|---|---|---|---|---|---|---|"
    for name in dict.fromkeys(answer.set for answer in answers):
        own = [answer for answer in answers if answer.set == name]
        counts = []
        for known in ("unsat", "sat"):
            of = [answer for answer in own if answer.known == known]
            counts.append(f"{sum(answer.answer == known for answer in of)} of {len(of)}")
        others = [answer for answer in own if answer.known not in ("unsat", "sat")]
        counts.append(f"{sum(answer.answer != 'unknown' for answer in others)} of {len(others)}")
        wrong, seconds = sum(map(contradicts, own)), sum(answer.seconds for answer in own) / len(own)
        yield f"| {name} | {len(own)} | {' | '.join(counts)} | {wrong} | {seconds:.1f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--only", choices=SETS, action="append", help="a set; repeatable")
    parser.add_argument("--known", choices=("unsat", "sat", "contested", "open"), help="only those with this answer")
    parser.add_argument("--limit", type=int, help="at most so many instances of each set, evenly chosen")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for an instance, if it has no less")
    parser.add_argument("--effort", choices=LEVELS, default="medium")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--traps", action="store_true", help="prove what is known to be false, without an attack")
    parser.add_argument("--journal", type=Path, default=Path(".cache/vnncomp.jsonl"))
    given = parser.parse_args()
    place = os.environ.get("BNNDP_BENCHMARKS")
    if place is None:
        print("BNNDP_BENCHMARKS does not name the folder of the benchmarks; nothing is run.")
        return 0
    folder, done, answers = Path(place) / "vnncomp", journalled(given.journal), list[Answer]()
    given.journal.parent.mkdir(parents=True, exist_ok=True)
    if given.traps:
        asked = [answer for answer in done.values() if answer.set in (given.only or SETS)]
        wrong = list(proved_traps(folder, asked, given.time_limit, given.device))
        print(f"{sum(answer.answer == 'sat' for answer in asked)} traps, at {len(LEVELS)} efforts: {len(wrong)} proved")
        return int(bool(wrong))
    for name in given.only or SETS:
        chosen = [each for each in instances(folder, name) if given.known in (None, each.known)]
        chosen = chosen[:: max(1, -(-len(chosen) // given.limit))] if given.limit else chosen
        for each in chosen:
            answer = done.get((each.set, each.onnx, each.vnnlib))
            if answer is None:
                answer = answered(folder, each, given.time_limit, given.effort, given.device)
                with given.journal.open("a") as file:
                    file.write(json.dumps(asdict(answer)) + "\n")
                said: list[Any] = [Path(each.onnx).stem, Path(each.vnnlib).stem, each.known, answer.answer]
                print(*said, f"{answer.seconds:.1f} s", "CONTRADICTION" if contradicts(answer) else "", flush=True)
            answers.append(answer)
    print(*table(answers), sep="\n")
    return int(any(map(contradicts, answers)))


if __name__ == "__main__":
    sys.exit(main())
