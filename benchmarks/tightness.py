"""Tightness: certified width against the range that an attack finds from inside, and the gap at single points."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import bnndp.files.posterior
from benchmarks.networks import network
from bnndp import Options, certify
from bnndp.attack.inside import Inside, inside_range
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

__all__ = ["CASES", "Case", "Row", "measure", "measure_shared", "posteriors"]

METHODS = ("moment", "partition", "best")
BOXES = 100


@dataclass(frozen=True, slots=True)
class Case:
    """A network of the benchmarks and the radius of its boxes, with the paper's figure for that size (Table 1a)."""

    name: str
    eps: float
    paper: float


CASES = (
    Case("sine2d-1x64", 1e-2, 0.041),
    Case("sine2d-2x64", 1e-3, 0.109),
    Case("sine2d-2x128", 1e-3, 0.239),
    Case("sine2d-3x64", 5e-4, 0.477),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Means over the boxes; ``ratio`` is mean width over mean range from inside."""

    network: str
    box: str
    method: str
    width: float
    inside: float
    inside_error: float  # half-width of the confidence interval of ``inside``; 0 where means are exact
    ratio: float
    point_gap: float
    paper: float | None  # the paper's width for its own posterior of that size
    lower: float  # smallest certified bound of all boxes: for the checks against known ranges
    upper: float


def posteriors() -> Path | None:
    """The folder of the authors' posteriors beside the data folder, if there is one."""
    data = os.environ.get("BNNDP_DATA")
    folder = Path(data).parent / "posteriors" if data else None
    return folder if folder is not None and folder.is_dir() else None


def measure(case: Case, suffix: str = "", *, methods: tuple[str, ...] = METHODS, boxes: int = BOXES) -> list[Row]:
    """One row a method: mean over ``boxes`` random boxes in [-1, 1]^n of radius ``case.eps``."""
    posterior = network(case.name + suffix)
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.rand(boxes, posterior.n_in, generator=generator, dtype=torch.float64) - 1
    box = Box.ball(centres, case.eps)
    # In boxes this small the mean is nearly linear: a short search finds what a long one does (checked to 2e-4).
    inside = inside_range(posterior, box, samples=2048, restarts=1, steps=10)
    rows = [_row(posterior, box, inside, Options(method=method)) for method in methods]
    return [_named(row, case.name + suffix, f"{boxes} x eps {case.eps:g}", case.paper) for row in rows]


def measure_shared(refine: int = 64) -> list[Row]:
    """The authors' 1x256 network on 0.7 +- 0.075, in one pass and refined; empty where the file is absent."""
    folder = posteriors()
    if folder is None or not (folder / "sine1d_1x256.safetensors").exists():
        return []
    posterior = bnndp.files.posterior.load(folder / "sine1d_1x256.safetensors")
    box = Box.ball([0.7], 0.075)
    inside = inside_range(posterior, box)
    rows = [_row(posterior, box, inside, Options(method=method)) for method in METHODS]
    rows.append(_row(posterior, box, inside, Options(refine=refine)))
    return [_named(row, "authors' sine1d_1x256", "0.7 +- 0.075", None) for row in rows]


def _row(posterior: BayesianNetwork, box: Box, inside: Inside, options: Options) -> Row:
    bounds = certify(posterior, box, options)
    point = certify(posterior, Box(box.centre, box.centre), Options(method=options.method))
    width, found = float(bounds.width.mean()), float(inside.width.mean())
    return Row(
        network="",
        box="",
        method=options.method if options.refine == 1 else f"{options.method}, {options.refine} cells",
        width=width,
        inside=found,
        inside_error=float(inside.width_error.mean()),
        ratio=width / found,
        point_gap=float(point.width.mean()),
        paper=None,
        lower=float(bounds.lower.min()),
        upper=float(bounds.upper.max()),
    )


def _named(row: Row, name: str, box: str, paper: float | None) -> Row:
    return replace(row, network=name, box=box, paper=paper)
