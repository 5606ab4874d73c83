"""What a picture of a network with one input and one output shows: its mean, its spread, and affine bounds of a box.

The mean and the spread are from inside: exact or sampled, not certified. The affine bounds are certified, by one pass.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bnndp.attack.draws import draw_networks, evaluate
from bnndp.attack.sampling import draw_noise, estimate
from bnndp.errors import CertError, RunStateError
from bnndp.files.posterior import read_model
from bnndp.geometry.bounds import AffineBounds
from bnndp.geometry.box import Box
from bnndp.network import Posterior
from bnndp.questions.certify import certify
from bnndp.report.page.charts import Band
from bnndp.report.page.frame import Point
from bnndp.report.page.record import Record

_POINTS = 161  # of the curves
_SAMPLES = 2048  # behind the mean
_CLOSE = (33, 1024)  # points and samples of a picture of one box, which must come quickly
_NETWORKS = 400  # drawn from the posterior for its spread
_SPREAD = (0.05, 0.95)  # quantiles of their outputs


def model_of(record: Record, path: Path | None) -> Posterior | None:
    """The network of a run: that of ``path``, which must be it, or where the run says; None: it is not there."""
    named = record.lookup("model", "path")
    if path is None and not (isinstance(named, str) and named.endswith(".safetensors")):
        return None
    place = record.folder / str(named) if path is None else path
    if path is None and not place.is_file():
        return None
    try:
        found = read_model(place).posterior
    except CertError:
        if path is None:
            return None
        raise
    if found.digest() == record.identity["model"]:
        return found
    if path is not None:
        raise RunStateError(
            f"{path}: is not the network of this run, by its digest; leave out --model or give the right one."
        )
    return None


def band_of(network: Posterior, low: float, high: float) -> Band:
    """Mean and spread over an interval of inputs."""
    x = torch.linspace(low, high, _POINTS, dtype=torch.float64)[:, None]  # (points, 1)
    mean = estimate(network, x, draw_noise(network, _SAMPLES, seed=0)).mean[:, 0]
    outputs = evaluate(draw_networks(network, _NETWORKS, seed=0), x)[..., 0]  # (networks, points)
    below, above = outputs.quantile(torch.tensor(_SPREAD, dtype=torch.float64), dim=0)
    return Band(x[:, 0].tolist(), mean.tolist(), below.tolist(), above.tolist())


def affine_bounds(network: Posterior, lower: np.ndarray, upper: np.ndarray) -> AffineBounds | None:
    """Affine bounds of the mean over boxes (boxes, 1), by one pass."""
    return certify(network, Box(torch.from_numpy(lower), torch.from_numpy(upper))).affine


def affine_lines(bounds: AffineBounds) -> list[list[Point]]:
    """The bounds of every box as lines from its left to its right end, first the lower ones."""
    left, right = bounds.region.lower, bounds.region.upper  # (boxes, 1)
    lines: list[list[Point]] = []
    for side in (bounds.lower, bounds.upper):
        ends = (left[:, 0], side(left)[:, 0], right[:, 0], side(right)[:, 0])
        lines += [[(a, b), (c, d)] for a, b, c, d in zip(*(end.tolist() for end in ends), strict=True)]
    return lines


def distances(network: Posterior, bounds: AffineBounds) -> list[list[Point]]:
    """The lower and the upper bound of one box less the mean, from its left to its right end."""
    low, high = bounds.region.lower.item(), bounds.region.upper.item()
    x = torch.linspace(low, high, _CLOSE[0], dtype=torch.float64)[:, None]  # (points, 1)
    mean = estimate(network, x, draw_noise(network, _CLOSE[1], seed=0)).mean  # (points, 1)
    lines = (side.matrix[0, 0] * x + side.offset[0, 0] - mean for side in (bounds.lower, bounds.upper))
    return [list(zip(x[:, 0].tolist(), line[:, 0].tolist(), strict=True)) for line in lines]
