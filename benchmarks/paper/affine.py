"""Figure 1 of the paper: affine bounds on the mean of a network with one input, over one interval of it.

Only the two affine lines are certified, and only over the interval. The mean is exact or sampled
(:mod:`bnndp.attack.sampling`), the standard deviation is sampled, and ``marks`` are drawn as they are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bnndp.attack.draws import draw_networks, evaluate
from bnndp.attack.sampling import draw_noise, estimate
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.questions.bounds import Bounds
from bnndp.report.figure import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Panel", "affine_figure", "output_std"]

_RANGE = (-1.0, 1.0)  # of inputs on the left
_POINTS = 201  # of the curves
_SAMPLES = 4096  # behind the mean
_DRAWS = 2048  # networks behind the standard deviation, whose error is then about 2 %
_MEMORY = 2**23  # bytes of activations at a time; small, so that they stay in the cache (measured faster)
_STDS = 3  # half the height of the band
_MARGIN = 0.8  # of the height of the bounds: how far the right axis may reach beyond them for the sake of a mark
_BLUE, _RED, _BAND = COLOURS[0], COLOURS[4], COLOURS[5]  # bounds, mean, band
_MARKS = ((COLOURS[2], (4, 2)), (COLOURS[3], (2, 1.5)), (COLOURS[1], (6, 1.5)), ("0.3", (1, 1)))  # colour, dashes


@dataclass(frozen=True, slots=True)
class Panel:
    """A network with one input and one output, an interval of its input, and certified bounds over that interval.

    ``marks`` are intervals of E f(x) that others gave for the same interval: a label, the lower and the upper end.
    """

    title: str
    network: BayesianNetwork
    box: Box  # (1, 1)
    bounds: Bounds  # (1, 1), with affine bounds
    marks: tuple[tuple[str, float, float], ...] = ()


def affine_figure(panels: Sequence[Panel], *, seed: int = 0) -> Figure:
    """For each panel the whole range of inputs and the interval enlarged; two panels per row, one legend for all."""
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(6.2 * columns, 3.0 * rows + 0.5)
    styles = _mark_styles(panels)
    entries: dict[str, Any] = {}  # of the legend: label and artist
    for part, panel in zip(figure.subfigures(rows, columns, squeeze=False).flat, panels, strict=False):
        part.suptitle(panel.title, fontsize="medium")
        left, right = part.subplots(1, 2)
        for label, artist in (*_whole(left, panel, seed), *_zoom(right, panel, styles, seed)):
            entries.setdefault(label, artist)
        notes = _beyond(panel, right.get_ylim())
        missing = max(len(other.marks) for other in panels) - len(notes)  # so that all axes are of one height
        right.set_title("\n".join([" "] * missing + notes), fontsize="x-small", loc="right")
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncols=3 * columns, fontsize="small"
    )
    return figure


def output_std(
    network: BayesianNetwork,
    x: Tensor,  # (points, n_in)
    mean: Tensor,  # (points, n_out), of the outputs at x
    *,
    draws: int = _DRAWS,
    seed: int = 0,
) -> Tensor:
    r"""Standard deviation of f(x) over the posterior, from ``draws`` networks: (points, n_out).

    .. math:: \hat s(x)^2=\frac1D\sum_{d=1}^{D}\big(f_d(x)-\mathbb E f(x)\big)^2

    It is an estimate, not a bound; all points see the same networks, so that it is smooth in x.
    """
    each = 8 * max(len(x) * max(network.sizes), *(layer.weight_mean.numel() for layer in network.linears))
    size = max(1, _MEMORY // each)
    total = torch.zeros_like(mean)
    for index, start in enumerate(range(0, draws, size)):
        drawn = evaluate(draw_networks(network, min(size, draws - start), seed=seed * draws + index), x)
        total += (drawn - mean).square().sum(0)  # (points, n_out)
    return (total / draws).sqrt()


def _mark_styles(panels: Sequence[Panel]) -> dict[str, tuple[str, tuple[float, float]]]:
    """Colour and dashes of every label of a mark, the same in all panels."""
    labels = dict.fromkeys(label for panel in panels for label, _, _ in panel.marks)
    return {label: _MARKS[index % len(_MARKS)] for index, label in enumerate(labels)}


def _mean(panel: Panel, x: Tensor, seed: int) -> Tensor:  # x (points, 1), result (points, 1)
    return estimate(panel.network, x, draw_noise(panel.network, _SAMPLES, seed=seed)).mean


def _grid(lower: float, upper: float) -> Tensor:
    return torch.linspace(lower, upper, _POINTS, dtype=torch.float64)[:, None]  # (points, 1)


def _whole(axes: Axes, panel: Panel, seed: int) -> Iterator[tuple[str, Any]]:
    """The left axes: mean and band over the whole range, the interval in grey."""
    low, high = panel.box.lower.item(), panel.box.upper.item()
    x = _grid(min(_RANGE[0], low), max(_RANGE[1], high))
    mean = _mean(panel, x, seed)
    reach = _STDS * output_std(panel.network, x, mean, seed=seed)
    at, middle, below, above = (t[:, 0].numpy() for t in (x, mean, mean - reach, mean + reach))
    yield "certified interval of x", axes.axvspan(low, high, color="0.8", linewidth=0, zorder=0)
    band = axes.fill_between(at, below, above, color=_BAND, alpha=0.35, linewidth=0, zorder=1)
    yield f"f(x): mean ± {_STDS} std, sampled", band
    yield from _curves(axes, panel, at, middle)
    axes.set(xlabel="x", ylabel="f(x)", xlim=(at[0], at[-1]))


def _zoom(
    axes: Axes, panel: Panel, styles: dict[str, tuple[str, tuple[float, float]]], seed: int
) -> Iterator[tuple[str, Any]]:
    """The right axes: the interval, with the ends of marks that fit."""
    low, high = panel.box.lower.item(), panel.box.upper.item()
    x = _grid(low, high)
    axes.set_facecolor("0.92")
    yield from _curves(axes, panel, x[:, 0].numpy(), _mean(panel, x, seed)[:, 0].numpy())
    heights = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines])
    bottom, top = np.nanmin(heights), np.nanmax(heights)
    margin = _MARGIN * max(top - bottom, 1e-6 * max(1.0, abs(top)))
    ends = [bottom, top]
    for label, *interval in panel.marks:
        colour, dashes = styles[label]
        for value in interval:
            if bottom - margin <= value <= top + margin:
                yield label, axes.axhline(value, color=colour, linewidth=1.3, dashes=dashes)
                ends.append(value)
    space = 0.06 * max(max(ends) - min(ends), margin)
    axes.set(xlabel="x", xlim=(low, high), ylim=(min(ends) - space, max(ends) + space))
    axes.locator_params(axis="x", nbins=5)


def _beyond(panel: Panel, limits: tuple[float, float]) -> list[str]:
    """The marks of which an end lies outside the axis, in numbers."""
    return [
        f"{label}: [{lower:g}, {upper:g}], beyond the axis"
        for label, lower, upper in panel.marks
        if lower < limits[0] or upper > limits[1]
    ]


def _curves(axes: Axes, panel: Panel, x: np.ndarray, mean: np.ndarray) -> Iterator[tuple[str, Any]]:
    """The mean at ``x`` (points,), and the affine bounds over the interval, or over its cells after a refinement."""
    pieces = panel.bounds.affine if panel.bounds.cells is None else panel.bounds.cells.pieces
    if pieces is not None:
        gap = torch.full_like(pieces.region.lower, torch.nan)  # lifts the pen between two cells
        at = torch.cat([pieces.region.lower, pieces.region.upper, gap], dim=1)  # (cells, 3)
        for side in (pieces.lower, pieces.upper):
            height = side.matrix[:, 0] * at + side.offset  # (cells, 3)
            (line,) = axes.plot(at.flatten().numpy(), height.flatten().numpy(), color=_BLUE, linewidth=2.4, zorder=2.5)
            yield "certified affine bounds of E f(x)", line
    (line,) = axes.plot(x, mean, color=_RED, linewidth=1.0, zorder=3)
    yield "E f(x), from inside", line
