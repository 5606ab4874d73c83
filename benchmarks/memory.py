"""Peak memory of a large batch, measured in a process of its own: ``python -m benchmarks.memory``."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.networks import authors
from benchmarks.timing import random_network
from bnndp import certify
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

__all__ = ["Peak", "measure"]


@dataclass(frozen=True, slots=True)
class Peak:
    """Resident memory in bytes before and at the peak of certifying ``boxes`` boxes, and the time it took."""

    network: str
    boxes: int
    before: int
    peak: int
    seconds: float


def measure(boxes: int) -> Peak:
    """Certify ``boxes`` boxes of a 784-input 2x64 network in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.memory", str(boxes)]
    root = Path(__file__).resolve().parent.parent
    answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)  # noqa: S603
    return Peak(**json.loads(answer.stdout))


def _posterior() -> tuple[str, BayesianNetwork]:
    """The authors' MNIST network (its logits as outputs of a regression), or random weights of the same sizes."""
    try:
        posterior = authors("mnist_2x64_vogn")
    except InputError:
        return "random 784-64-64-10", random_network((784, 64, 64, 10))
    return "authors' mnist_2x64_vogn", BayesianNetwork.from_linears(posterior.linears)


def _peak() -> int:
    """Highest resident memory of this process in bytes.

    ``ru_maxrss`` of a started process counts the memory of the one that started it, so Linux's own mark comes first.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _child(boxes: int) -> None:
    torch.set_num_threads(1)
    name, posterior = _posterior()
    generator = torch.Generator().manual_seed(0)
    box = Box.ball(torch.rand(boxes, posterior.n_in, generator=generator, dtype=torch.float64), 1e-3, domain=(0, 1))
    before, start = _peak(), time.perf_counter()
    certify(posterior, box)
    print(json.dumps(asdict(Peak(name, boxes, before, _peak(), time.perf_counter() - start))))


if __name__ == "__main__":
    _child(int(sys.argv[1]))
