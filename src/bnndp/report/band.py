"""The picture of a one-dimensional network: certified band, mean from inside, networks drawn from the posterior."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bnndp.bounds import Bounds
from bnndp.errors import CertError, InputError
from bnndp.network import BayesianNetwork
from bnndp.regions import Box
from bnndp.sampling import draw_noise, estimate

__all__ = ["draw_band", "sample_outputs"]

_POINTS = 401  # of the curves
_NETWORKS = 30  # drawn from the posterior
_SAMPLES = 4096  # behind the mean


def draw_band(network: BayesianNetwork, box: Box, bounds: Bounds, path: Path, *, seed: int = 0) -> None:
    """Write the picture of a network with one input and one output to ``path``; no window is opened."""
    if network.n_in != 1 or network.n_out != 1:
        raise InputError(f"only a network with one input and one output can be drawn, got sizes {network.sizes}.")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.collections import PolyCollection
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CertError("a picture needs matplotlib, which is not installed; install bnndp[plot].") from error
    x = torch.linspace(box.lower.min().item(), box.upper.max().item(), _POINTS, dtype=torch.float64)[:, None]
    mean = estimate(network, x, draw_noise(network, _SAMPLES, seed=seed)).mean[:, 0]
    samples = sample_outputs(network, x, _NETWORKS, seed=seed)[..., 0]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would choose a backend, and might open a window
    axes = figure.add_subplot()
    drawn = axes.plot(x[:, 0].numpy(), samples.T.numpy(), color="0.75", linewidth=0.6)
    band = axes.add_collection(PolyCollection(list(_corners(bounds)), facecolors="C0", alpha=0.45, linewidths=0))
    (curve,) = axes.plot(x[:, 0].numpy(), mean.numpy(), color="C3", linewidth=1.2)
    axes.legend([band, curve, drawn[0]], ["certified for E f(x)", "E f(x), from inside", "networks of the posterior"])
    axes.set(xlabel="x", ylabel="f(x)")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the picture cannot be written: {error}; change --out.") from error


def sample_outputs(network: BayesianNetwork, x: Tensor, count: int, *, seed: int) -> Tensor:
    """Outputs at ``x`` (points, n_in) of ``count`` networks drawn from the posterior: (count, points, n_out)."""
    generator = torch.Generator().manual_seed(seed)
    z = x.expand(count, *x.shape)
    for index, layer in enumerate(network.linears):
        weight = _draw(layer.weight_mean, layer.weight_std, count, generator)
        bias = _draw(layer.bias_mean, layer.bias_std, count, generator)
        z = (z.clamp_min(0) if index else z) @ weight.mT + bias[:, None]
    return z


def _draw(mean: Tensor, std: Tensor, count: int, generator: torch.Generator) -> Tensor:
    noise = torch.randn(count, *mean.shape, generator=generator, dtype=mean.dtype)
    return mean + std * noise


def _corners(bounds: Bounds) -> np.ndarray:
    """Quadrilaterals between the affine bounds of every box or, after a refinement, of every cell: (cells, 4, 2)."""
    cells = bounds.affine if bounds.cells is None else bounds.cells.pieces
    left, right = cells.region.lower, cells.region.upper
    across = torch.cat([left, right, right, left], dim=-1)
    height = torch.cat([cells.lower(left), cells.lower(right), cells.upper(right), cells.upper(left)], dim=-1)
    return torch.stack([across, height], dim=-1).numpy()
