"""Bounds of the moment pass on one network held against draws: of the output, and of every node of the pass.

Means, variances of random rows, norms and the standard deviations of random rows are compared with draws at points of
the box. A suspicion counts as a violation if sixteen times as many new draws confirm it.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bnndp.activations import Identity
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.moments.signal import POWERS
from bnndp.engine.nodes.node import Node, row_std
from bnndp.engine.rows import DenseRows
from bnndp.layers import WEIGHTED, Dropout, Flatten
from bnndp.network import BayesianNetwork, is_activation
from support.layer_draws import draw_nodes
from support.layer_networks import Case
from support.passes import ends

__all__ = ["Report", "examine", "judge", "node_layers"]

_SIGMAS = 6.0
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Report:
    """What was found on the boxes of one network."""

    case: Case
    violations: list[str] = field(default_factory=list)
    failure: str = ""
    unbounded: int = 0  # boxes with an infinite interval
    ratios: list[float] = field(default_factory=list)  # certified width : range from inside


def examine(case: Case, *, draws: int, seed: int) -> Report:
    """Judge one case; a suspicion is settled with sixteen times the draws."""
    try:
        found, ratios, unbounded = judge(case, draws=draws, seed=seed)
        if found:
            found = sorted(set(found) & set(judge(case, draws=16 * draws, seed=seed + 1)[0]))
    except Exception:  # noqa: BLE001 (a crash is a result of the campaign, not its end)
        return Report(case, failure=traceback.format_exc())
    return Report(case, found, "", unbounded, ratios)


def judge(case: Case, *, draws: int, seed: int) -> tuple[list[str], list[float], int]:
    """Claims that the draws contradict, ratios of widths, and the number of boxes without a bound."""
    network, box = case.network, case.box
    bounds = MomentPass.of(network, box)
    interval = ends(bounds, network.n_out)
    generator = torch.Generator().manual_seed(case.index * 7919 + seed)
    inner = torch.rand(3, box.batch, box.n, generator=generator, dtype=torch.float64)
    corner = (torch.rand(1, box.batch, box.n, generator=generator) < 0.5).to(torch.float64)
    share = torch.cat([torch.zeros_like(corner), torch.ones_like(corner), corner, inner])  # (points, batch, n)
    points = box.lower + share * (box.upper - box.lower)
    count = len(points)
    drawn = draw_nodes(network, points.flatten(0, 1), draws, generator)
    *sampled, (_, y) = ((name, z.unflatten(1, (count, box.batch))) for name, z in drawn)  # (draws, points, batch, n)
    rows = torch.randn(box.batch, 3, network.n_out, generator=generator, dtype=torch.float64)
    rows = torch.cat([torch.eye(network.n_out, dtype=torch.float64).expand(box.batch, -1, -1), rows], 1)
    variance = bounds.variance(rows)
    found = list(_contradicted("output", y, interval.lower, interval.upper, variance[:, : network.n_out]))
    found += _rows("output", y, rows, variance.sqrt(), None)
    for (name, values), node in zip(sampled, bounds.hidden.nodes[1:], strict=True):
        found += _node(f"after {name}", values, node, generator)
    mean = y.mean(0)  # (points, batch, n_out)
    inside, width = mean.amax(0) - mean.amin(0), interval.upper - interval.lower
    noise = 4 * (y.std(0) / math.sqrt(draws)).amax(0)
    wide = (inside > noise) & width.isfinite()
    return found, (width / inside)[wide].tolist(), int((~width.isfinite()).any(-1).sum())


def node_layers(network: BayesianNetwork) -> list[int]:
    """Index of the layer whose outputs each node of the pass describes."""
    layers = network.layers
    last = max(i for i, layer in enumerate(layers) if isinstance(layer, WEIGHTED))
    found = []
    for i, layer in enumerate(layers[:last]):
        if isinstance(layer, WEIGHTED):
            if is_activation(layers[i + 1]):
                continue
        elif isinstance(layer, Flatten) or (isinstance(layer, Dropout) and not layer.random):
            continue
        if isinstance(layer, Identity) and not isinstance(layers[max(i - 1, 0)], WEIGHTED):
            continue
        found.append(i)
    return found


def _contradicted(
    name: str, z: Tensor, lower: Tensor, upper: Tensor, variance: Tensor
) -> Iterator[str]:  # z (draws, points, batch, n), others (batch, n)
    draws, mean = z.shape[0], z.mean(0)
    centred = z - mean
    if not bool((lower <= upper).all()):
        yield f"{name}: mean crossed or NaN"
    scale = _ROUNDING * (1 + mean.abs())
    slack = _SIGMAS * torch.maximum(z.std(0), variance.nan_to_num(0.0).sqrt()) / math.sqrt(draws) + scale
    if bool(((mean < lower - slack) | (mean > upper + slack)).any()):
        yield f"{name}: mean"
    if _above(centred.square(), variance):
        yield f"{name}: variance"


def _above(values: Tensor, claim: Tensor) -> bool:  # (draws, points, batch, n) and (batch, n)
    """Whether the mean of values lies above the claim beyond the noise."""
    error = _SIGMAS * values.std(0) / math.sqrt(values.shape[0])
    mean = values.mean(0)
    return bool((mean > claim * (1 + _ROUNDING) + error + _ROUNDING * 1e-3).any())


def _rows(name: str, z: Tensor, rows: Tensor, sd: Tensor, norms: Tensor | None) -> Iterator[str]:
    along = torch.einsum("dpbn,brn->dpbr", z, rows)
    along = along - along.mean(0)
    if _above(along.square(), sd.square()):
        yield f"{name}: deviation of rows"
    for i, q in enumerate(POWERS[:2]):
        if norms is not None and _above(along.abs() ** q, norms[..., i] ** q):
            yield f"{name}: norm {q} of rows"


def _node(name: str, z: Tensor, node: Node, generator: torch.Generator) -> Iterator[str]:
    signal = node.signal
    yield from _contradicted(name, z, signal.mean.lower, signal.mean.upper, signal.variance)
    centred = z - z.mean(0)
    for i, q in enumerate(POWERS[:2]):
        if _above(centred.abs() ** q, signal.norms[..., i] ** q):
            yield f"{name}: norm {q}"
    # Draws may miss rare events, so the noise of a sampled variance is bounded by the claimed fourth moment.
    rare = _SIGMAS * signal.norms[..., 0] ** 2 / math.sqrt(z.shape[0])
    if bool((centred.square().mean(0) < signal.variance_low * (1 - _ROUNDING) - rare - _ROUNDING * 1e-3).any()):
        yield f"{name}: variance from below"
    if signal.source and not signal.fixed:
        if _above(centred.square(), signal.noise.upper):
            yield f"{name}: noise of a source"
        # The draws may miss a rare tail: their noise is that of the claimed sixth moment, between fourth and eighth.
        sixth = signal.norms[..., 0] ** 2 * signal.norms[..., 1] ** 4
        noise = _SIGMAS * (sixth / centred.shape[0]).sqrt()
        for sign in (1, -1):
            most = signal.third.upper if sign > 0 else -signal.third.lower
            if _above(sign * centred**3, most + noise):
                yield f"{name}: third moment"
        if _above(centred**4, signal.noise_fourth.upper):
            yield f"{name}: fourth moment"
    n = z.shape[-1]
    rows = torch.randn(z.shape[2], 4, n, generator=generator, dtype=torch.float64)
    rows[:, 0] = 1.0  # the sum: what perfect correlation makes largest
    rows[:, 1] = rows[:, 1] * (torch.rand(n, generator=generator) < 0.3)
    u = DenseRows(rows)
    yield from _rows(name, z, rows, row_std(node, u), node.norms(u))
    squares = node.sums_of_squares(u.square())
    if squares is not None:  # of s, for weights of these variances
        yield from _rows(f"{name}, squares", z.square(), rows.square(), squares.std, squares.norms)
