r"""The partition of the pre-activations of a layer: its main rectangle, and the refinement of that into cells.

Nothing here has to be proved: the recursion bounds the probability and the mean outside *any* rectangle, so a poor
choice costs tightness and never soundness. ``main_rectangle`` still keeps its promise outward.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.maths.normal import interval_probability, rectangle_quantile
from bnndp.maths.rectified import ratio
from bnndp.maths.rounding import TINY, gamma
from bnndp.paper.layers import Ranges, Region


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Closed rectangles ``lower <= zeta <= upper`` of pre-activations, ``cells`` for every box of the batch."""

    lower: Tensor  # (batch, cells, n)
    upper: Tensor  # (batch, cells, n)

    def image(self, at: Tensor) -> Region:  # at (batch, 1, n)
        """The boxes ``ReLU(rectangle)``, each with the point of it that is nearest to ``at``."""
        lower, upper = self.lower.clamp_min(0), self.upper.clamp_min(0)
        return Region(lower, upper, torch.minimum(torch.maximum(at, lower), upper))


def main_rectangle(ranges: Ranges, mass: float) -> Rectangle:
    r"""A rectangle with :math:`P(\zeta\in R\mid z)\ge1-\varepsilon` for every z of the region behind ``ranges``.

    .. math:: \check\zeta_i=\min_zm_i(z)-c\max_zr_i(z),\quad\hat\zeta_i=\max_zm_i(z)+c\max_zr_i(z)

    with :math:`c=\sqrt2\operatorname{erf}^{-1}((1-\varepsilon)^{1/n})` (Prop. ``prop:FindRectForProbBounds``; its max
    and min are swapped as printed, errata item 4; interval outer values instead of its non-convex problems).
    """
    reach = rectangle_quantile(mass, ranges.std_upper.shape[-1]) * ranges.std_upper
    slack = gamma(8) * (ranges.mean_lower.abs() + ranges.mean_upper.abs() + reach) + TINY
    return Rectangle(ranges.mean_lower - reach - slack, ranges.mean_upper + reach + slack)


def refine(
    main: Rectangle,  # one cell per box
    reach: Rectangle,  # one cell per box, not smaller
    weight: Tensor,  # (batch, n), what one unit of width of a neuron costs
    mean: Tensor,  # (batch, n), of a typical Gaussian on the rectangle
    std: Tensor,  # (batch, n)
    parts: int,
) -> tuple[Rectangle, Rectangle]:
    """REFINE by interval splitting: ``parts`` cells that cover ``main``, and the same cuts of ``reach``.

    Each step halves one cell in one neuron: the pair with the largest ``weight * width of the image * probability``.
    The cut halves the image ``[max(lower, 0), max(upper, 0)]``, where the value function lives. Cells meet only in
    faces, and a cell of ``reach`` is the cell of ``main`` continued where that one touches the rim.
    """
    lower, upper = torch.stack([main.lower, reach.lower]), torch.stack([main.upper, reach.upper])
    for _ in range(parts - 1):
        low, high = lower[0].clamp_min(0), upper[0].clamp_min(0)
        chance = nominal_probability(Rectangle(lower[0], upper[0]), mean[:, None], std[:, None])[:, 0]
        cell, neuron = _best(weight[:, None] * (high - low) * chance[..., None])
        lower, upper = _cut(lower, upper, cell, neuron)
    return Rectangle(lower[0], upper[0]), Rectangle(lower[1], upper[1])


def _cut(lower: Tensor, upper: Tensor, cell: Tensor, neuron: Tensor) -> tuple[Tensor, Tensor]:  # (2, batch, cells, n)
    """Both halves of one cell per box; the right halves are appended."""
    rows = torch.arange(lower.shape[1], device=lower.device)
    a, b = lower[0, rows, cell, neuron], upper[0, rows, cell, neuron]
    middle = (0.5 * a.clamp_min(0) + 0.5 * b.clamp_min(0)).clamp(a, b)  # of a dead neuron one half is flat
    left, right = upper[:, rows, cell].clone(), lower[:, rows, cell].clone()
    last = upper[:, rows, cell]
    left[:, rows, neuron] = middle
    right[:, rows, neuron] = middle
    upper = upper.clone()
    upper[:, rows, cell] = left
    return torch.cat([lower, right[:, :, None]], 2), torch.cat([upper, last[:, :, None]], 2)


def nominal_probability(cells: Rectangle, mean: Tensor, std: Tensor) -> Tensor:  # mean, std (batch, points, n)
    """Share of each cell at each point, for independent Gaussians: (batch, points, cells), adding up to one."""
    a = ratio(cells.lower[:, None] - mean[:, :, None], std[:, :, None])
    b = ratio(cells.upper[:, None] - mean[:, :, None], std[:, :, None])
    chance = interval_probability(a, b).prod(-1) + TINY
    return chance / chance.sum(-1, keepdim=True)


def _best(score: Tensor) -> tuple[Tensor, Tensor]:  # score (batch, cells, n)
    flat = score.flatten(1).argmax(1)
    return flat // score.shape[-1], flat % score.shape[-1]
