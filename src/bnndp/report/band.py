"""The picture of a one-dimensional network: certified boxes, mean from inside, networks drawn from the posterior."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bnndp.attack.draws import draw_networks, evaluate
from bnndp.attack.sampling import draw_noise, estimate
from bnndp.errors import InputError
from bnndp.geometry.bounds import AffineBounds
from bnndp.geometry.box import Box
from bnndp.network import Posterior
from bnndp.questions.bounds import Bounds
from bnndp.report.figure import expect_picture, new_figure, save_figure

_POINTS = 401  # of the curves
_NETWORKS = 30  # drawn from the posterior
_POINTS_PER_CELL = 17  # of the distances
_SAMPLES = 4096  # behind the mean


def draw_band(network: Posterior, box: Box, bounds: Bounds, path: Path, *, seed: int = 0) -> None:
    """Write the picture of a network with one input and one output to ``path``; no window is opened."""
    if bounds.affine is None or network.n_in != 1 or network.n_out != 1:
        raise InputError(f"only a network with one input and one output can be drawn, got {network!r}.")
    expect_picture(path, option="--out")
    from matplotlib.collections import PolyCollection

    x = torch.linspace(box.lower.min().item(), box.upper.max().item(), _POINTS, dtype=torch.float64)[:, None]
    mean = estimate(network, x, draw_noise(network, _SAMPLES, seed=seed)).mean[:, 0]
    samples = evaluate(draw_networks(network, _NETWORKS, seed=seed), x)[..., 0]
    figure = new_figure(8, 6.5)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    drawn = top.plot(x[:, 0].numpy(), samples.T.numpy(), color="0.8", linewidth=0.6)
    whole = top.add_collection(
        PolyCollection(list(_rectangles(box, bounds)), facecolors="C0", alpha=0.25, edgecolors="C0", linewidths=0.8)
    )
    (curve,) = top.plot(x[:, 0].numpy(), mean.numpy(), color="C3", linewidth=1.2)
    top.legend(
        [whole, curve, drawn[0]],
        ["certified interval of each box", "E f(x), from inside", "networks of the posterior"],
        fontsize="small",
    )
    top.set(ylabel="f(x)")
    bottom.axhline(0, color="C3", linewidth=1.2)
    cells = bounds.affine if bounds.cells is None else bounds.cells.pieces
    for low, high, at in _distances(network, cells, seed):
        bottom.fill_between(at, low, high, color="C0", alpha=0.45, linewidth=0)
    bottom.set(xlabel="x", ylabel="certified affine bounds - E f(x)")
    save_figure(figure, path, option="--out")


def _rectangles(box: Box, bounds: Bounds) -> np.ndarray:
    """The certified interval over each box: (boxes, 4, 2)."""
    across = torch.cat([box.lower, box.upper, box.upper, box.lower], dim=-1)
    height = torch.cat([bounds.lower, bounds.lower, bounds.upper, bounds.upper], dim=-1)
    return torch.stack([across, height], dim=-1).numpy()


def _distances(network: Posterior, cells: AffineBounds, seed: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Affine bounds less the mean, and where: (points,) each, for every box or, after a refinement, every cell."""
    share = torch.linspace(0, 1, _POINTS_PER_CELL, dtype=torch.float64)
    x = cells.region.lower + share * (cells.region.upper - cells.region.lower)  # (cells, points)
    mean = estimate(network, x.reshape(-1, 1), draw_noise(network, _SAMPLES, seed=seed)).mean.reshape(x.shape)
    low, high = (side.matrix[:, 0] * x + side.offset for side in (cells.lower, cells.upper))
    return [(a.numpy(), b.numpy(), c.numpy()) for a, b, c in zip(low - mean, high - mean, x, strict=True)]
