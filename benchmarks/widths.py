"""``make bench-widths``: certified widths of regression beside the range from inside, for depths, activations and laws.

Names are ``DATA-SHAPE`` for the networks of the paper's tables (``kin8nm-3x64``), with an activation
(``sine2d-3x64-tanh``, by one recipe for each depth), with a law (``kin8nm-2x64-kronecker``: the network of the tables
with its variances spread over other weights, see ``LAWS``), or ``sine2d-4x64-scaled``. One pass on balls of the radius
that the paper has for the depth (four layers: that of three). *Ratio*: of the mean widths; *median*: of the ratios.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import networks
from benchmarks.cache import NetworkCache
from benchmarks.pool import mapped
from benchmarks.results import FOLDER, keep, show
from benchmarks.tightness.suite import RADII, inputs
from bnndp import certify
from bnndp.attack.inside import inside_range
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.layers import CorrelatedLinear, Linear, MatrixNormalLinear
from bnndp.network import BayesianNetwork, Layer
from bnndp.options import Options

__all__ = ["LAWS", "NAMES", "main", "of_name"]

Law = Callable[[Linear, torch.Generator], Layer]

_RANK = 20  # of the factor that all weights share
_ROWS = 0.2  # correlation of two rows, up to its sign


def correlated_rows(layer: Linear, generator: torch.Generator) -> Layer:
    """The same variances; correlations within each row, half of a random correlation matrix and half of the unit."""
    mean, std = layer.weight_mean, torch.cat([layer.weight_std, layer.bias_std[:, None]], 1)
    n_out, n = std.shape
    root = torch.randn(n_out, n, n, generator=generator, dtype=mean.dtype)
    found = root @ root.mT
    scale = found.diagonal(dim1=1, dim2=2).rsqrt()
    correlation = 0.5 * scale[:, :, None] * found * scale[:, None] + 0.5 * torch.eye(n, dtype=mean.dtype)
    factor = std[..., None] * torch.linalg.cholesky(correlation)
    return CorrelatedLinear(mean, torch.zeros_like(mean), layer.bias_mean, torch.zeros(n_out), factor, shared=False)


def kronecker(layer: Linear, generator: torch.Generator) -> Layer:
    """Variances by row times variances by column, the rows correlated by 0.2 of either sign."""
    variance = torch.cat([layer.weight_std, layer.bias_std[:, None]], 1).square()
    columns = variance.mean(0)
    rows = variance.mean(1) / columns.mean()
    sign = torch.randn(rows.shape[0], generator=generator, dtype=rows.dtype).sign()
    correlation = (1 - _ROWS) * torch.eye(rows.shape[0], dtype=rows.dtype) + _ROWS * torch.outer(sign, sign)
    factor = rows.sqrt()[:, None] * torch.linalg.cholesky(correlation)
    return MatrixNormalLinear(layer.weight_mean, layer.bias_mean, factor, torch.diag(columns.sqrt()))


def low_rank(layer: Linear, generator: torch.Generator) -> Layer:
    """Half of the variance in a random factor of rank 20 that all weights share, as in SWAG."""
    std = torch.cat([layer.weight_std, layer.bias_std[:, None]], 1)
    noise = torch.randn(*std.shape, _RANK, generator=generator, dtype=std.dtype)
    factor = std[..., None] * noise * (0.5 / _RANK) ** 0.5
    half = 0.5**0.5
    return CorrelatedLinear(
        layer.weight_mean, half * layer.weight_std, layer.bias_mean, half * layer.bias_std, factor, shared=True
    )


LAWS: dict[str, Law] = {"rows": correlated_rows, "kronecker": kronecker, "swag": low_rank}
"""Other weights with about the same variances."""

NAMES = (
    *(f"{data}-{shape}" for data in ("sine2d", "kin8nm") for shape in ("2x64", "2x256", "3x64", "3x256")),
    "sine2d-4x64-scaled",
    *(f"sine2d-{shape}-{name}" for shape in ("2x64", "3x64") for name in ("tanh", "sigmoid", "gelu")),
    *(f"{data}-2x64-{law}" for data in ("sine2d", "kin8nm") for law in LAWS),
)


def of_name(name: str) -> BayesianNetwork:
    """The network of that name; one that is not in the cache is trained now."""
    data, shape, *kind = name.split("-")
    depth, width = map(int, shape.split("x"))
    if kind in ([], ["vogn"]):
        return networks.vogn(data, (width,) * depth)
    if kind == ["scaled"]:
        return networks.network(name)
    if kind[0] in networks.ACTIVATIONS:
        plan = replace(networks.PLANS[f"{data}-2x{width}-{kind[0]}"], hidden=(width,) * depth)
        return NetworkCache().get(plan).single
    if kind[0] not in LAWS:
        raise InputError(f"{name!r} is not a network of these; there are {', '.join(NAMES)}.")
    generator = torch.Generator().manual_seed(0)
    usual = networks.vogn(data, (width,) * depth)
    layers = [LAWS[kind[0]](each, generator) if isinstance(each, Linear) else each for each in usual.layers]
    return replace(usual, layers=tuple(layers))


def measured(name: str, count: int) -> dict[str, Any]:
    """Certified and inside widths of the first outputs, means over the inputs."""
    depth = int(name.split("-")[1].split("x", maxsplit=1)[0])
    own, eps = of_name(name), RADII[min(depth, max(RADII))]
    box = Box.ball(inputs(name, count), eps)
    found = certify(own, box, Options(method="moment"))
    inside = inside_range(own, box, samples=2048, restarts=1, steps=10)
    width, true = found.width[:, 0], inside.width[:, 0]
    outside = (found.lower > inside.lower + inside.error) | (found.upper < inside.upper - inside.error)
    return {
        "network": name,
        "eps": eps,
        "certified": width.mean().item(),
        "inside": true.mean().item(),
        "ratio": (width.mean() / true.mean()).item(),
        "median": (width / true).median().item(),
        "worst": (width / true).max().item(),
        "broken": int(outside.sum()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the networks that are asked for, print their table, write their figures."""
    parser = argparse.ArgumentParser(description="Certified widths of regression networks.")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--inputs", type=int, default=100, help="number of balls")
    parser.add_argument("--jobs", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the file of figures")
    options = parser.parse_args(arguments)
    rows = list(mapped(partial(measured, count=options.inputs), options.only, options.jobs))
    show(f"Certified width of E f(x), {options.inputs} balls", rows)
    keep("widths", "regression", rows, options.out)


if __name__ == "__main__":
    main()
