"""The networks and test images of the benchmark, in one folder, so that they can be carried to a machine with a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import bnndp.files.posterior
from bnndp.network import Posterior

__all__ = ["ENSEMBLE", "NAMES", "REGRESSION", "Case", "pack", "read"]

_MNIST = {"mnist-2x64": (64, 64), "mnist-2x256": (256, 256), "mnist-3x256": (256, 256, 256)}
_LAYERS = {"fashion-cnn": "fashion_mnist", "mnist-ensemble": "mnist"}  # of benchmarks.networks, and their data
NAMES = (*_MNIST, "fashion-cnn")
"""Of the table."""
ENSEMBLE, REGRESSION = "mnist-ensemble", "kin8nm-2x64"


@dataclass(frozen=True, slots=True)
class Case:
    """A network and inputs; images have their pixels in [0, 1]."""

    name: str
    network: Posterior
    x: Tensor  # (points, n), on the host

    def first(self, count: int) -> Case:
        """With the first inputs only."""
        return Case(self.name, self.network, self.x[:count])


def read(folder: Path, name: str) -> Case:
    """A case that :func:`pack` has written."""
    x = np.load(folder / f"{_data_of(name)}.npz")["x"]
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    return Case(
        name,
        bnndp.files.posterior.load(folder / f"{name}.safetensors"),
        torch.as_tensor(x, dtype=torch.float64) / scale,
    )


def pack(folder: Path) -> None:
    """Write the cases: trained networks from ``.cache/networks`` (trained now, if they are not there), test inputs."""
    from benchmarks.networks import posterior, vogn
    from bnndp.data import load

    folder.mkdir(parents=True, exist_ok=True)
    networks: dict[str, Posterior] = {name: vogn("mnist", sizes) for name, sizes in _MNIST.items()}
    networks |= {name: posterior(name) for name in _LAYERS}
    networks[REGRESSION] = vogn("kin8nm", (64, 64))
    for name, own in networks.items():
        bnndp.files.posterior.save(own, folder / f"{name}.safetensors", source="benchmarks/gpu")
    for data in sorted({_data_of(name) for name in networks}):
        x = np.asarray(load(data, "test").x)
        images = (x * 255).round().astype(np.uint8)
        np.savez_compressed(folder / f"{data}.npz", x=images if np.array_equal(images / 255.0, x) else x)


def _data_of(name: str) -> str:
    return _LAYERS.get(name, name.partition("-")[0])
