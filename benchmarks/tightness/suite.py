"""The networks that ``make tightness`` measures, and the inputs they are measured on.

Names: ``sine2d-2x64`` and ``sine2d-2x64-scaled`` are those of :mod:`benchmarks.networks`, so are ``mnist-1x128`` and
``mnist-2x64`` (really uncertain posteriors); ``kin8nm-2x64-vogn`` and ``mnist-2x64-vogn`` are those of the tables of
the paper (classifiers at a temperature of 1e-6, nearly deterministic); ``authors-mnist-2x64`` is the
posterior that the paper's authors published.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.networks import authors, network, vogn
from benchmarks.paper.published import TABLE_1A
from bnndp.data import load
from bnndp.network import BayesianNetwork

__all__ = ["CLASSIFICATION", "QUICK", "REGRESSION", "ClassificationCase", "RegressionCase", "inputs", "posterior"]

AUTHORS = "authors-mnist-2x64"
_VOGN = re.compile(r"[a-z0-9_]+-\d+x\d+-vogn")


@dataclass(frozen=True, slots=True)
class RegressionCase:
    """A network, the radius of its balls, and the width that the paper printed for that size (Table 1a), if any."""

    name: str
    eps: float
    paper: float | None = None


@dataclass(frozen=True, slots=True)
class ClassificationCase:
    """A classifier and the radius of the balls on which its lead is broken down."""

    name: str
    eps: float
    uncertain: bool = False  # measured on images that it decides with a mean probability of at least 0.9


RADII = {1: 1e-2, 2: 1e-3, 3: 5e-4}  # of regression by number of hidden layers, as in the paper's Table 1a


def _regression(name: str) -> RegressionCase:
    """A network of regression with the radius and the figure of the paper for its size."""
    data, hidden = _parts(name)
    printed = [row.bnn_dp for row in TABLE_1A if (row.data, row.hidden) == (data, hidden)]
    return RegressionCase(name, RADII[len(hidden)], printed[0] if printed else None)


def _parts(name: str) -> tuple[str, tuple[int, ...]]:
    """Data set and hidden layers of a name such as ``kin8nm-2x64-vogn``.

    >>> _parts("kin8nm-2x64-vogn")
    ('kin8nm', (64, 64))
    """
    data, size = name.split("-")[:2]
    depth, width = map(int, size.split("x"))
    return data, (width,) * depth


REGRESSION = tuple(
    _regression(name)
    for name in (
        "sine1d-1x64",
        "sine1d-2x64",
        "sine1d-2x64-scaled",
        *(f"sine2d-1x{width}{family}" for family in ("", "-scaled") for width in (64, 256)),
        *(f"sine2d-2x{width}{family}" for family in ("", "-scaled") for width in (64, 128, 256)),
        *(f"sine2d-3x{width}" for width in (64, 128)),
        "kin8nm-1x64-vogn",
        *(f"kin8nm-2x{width}-vogn" for width in (64, 128, 256)),
        "kin8nm-3x64-vogn",
    )
)

CLASSIFICATION = (
    ClassificationCase(AUTHORS, 0.03),
    ClassificationCase("mnist-1x128-vogn", 0.03),
    ClassificationCase("mnist-2x64-vogn", 0.03),
    ClassificationCase("mnist-2x256-vogn", 0.03),
    ClassificationCase("mnist-3x64-vogn", 0.02),
    ClassificationCase("fashion_mnist-1x128-vogn", 0.02),
    ClassificationCase("fashion_mnist-2x64-vogn", 0.02),
    ClassificationCase("fashion_mnist-3x64-vogn", 0.01),
    ClassificationCase("mnist-1x128", 0.03, uncertain=True),
    ClassificationCase("mnist-2x64", 0.01, uncertain=True),
)

QUICK = ("sine2d-1x64", "sine2d-2x64", "sine2d-3x64", "kin8nm-2x64-vogn", AUTHORS, "mnist-2x64")
"""The networks of ``--quick``."""


def posterior(name: str) -> BayesianNetwork:
    """The network of that name; one that is not in the cache is trained now."""
    if name == AUTHORS:
        return authors("mnist_2x64_vogn")
    return vogn(*_parts(name)) if _VOGN.fullmatch(name) else network(name)


def inputs(name: str, count: int) -> Tensor:  # (count, n)
    """The first test inputs of the data set; on the sine sets, random ones in [-1, 1]^n as in ``make bench``."""
    data = "mnist" if name == AUTHORS else _parts(name)[0]
    if not data.startswith("sine"):
        return load(data, "test").x[:count]
    n = int(data.removeprefix("sine").removesuffix("d"))
    generator = torch.Generator().manual_seed(0)
    return 2 * torch.rand(count, n, generator=generator, dtype=torch.float64) - 1
