r"""Value functions on a partition, and the expected differences by which its regions correct an affine base function.

Rows are signed, ``S = (V, -V)``, and bounded from above. With a base :math:`S_0` the recursion needs upper bounds of
:math:`\mathbb E[(S-S_0)(z_k)1_j]` for the cells and for what lies outside; every function here returns one, as a
constant over each region of :math:`z_{k-1}`: (batch, regions, rows).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.geometry.bounds import Affine
from bnndp.maths.rounding import TINY, UNIT, gamma, up
from bnndp.paper.conditional import Outside, conditional_mean, inside_probability, outside
from bnndp.paper.layers import Ranges
from bnndp.paper.outer import Outer
from bnndp.paper.partition import Rectangle


@dataclass(frozen=True, slots=True)
class Cells:
    """A refinement of the main rectangle, with an affine bound on each cell.

    ``pieces`` hold on the images of the cells of the main rectangle. ``rectangles`` are the same cells, but those at
    its rim are continued to ``reach``, a rectangle that leaves next to nothing outside.
    """

    pieces: Affine  # matrix (batch, cells, rows, n), offset (batch, cells, rows)
    rectangles: Rectangle
    reach: Rectangle  # one per box


@dataclass(frozen=True, slots=True)
class Value:
    """Upper bounds of the signed value functions of one layer."""

    outer: Outer  # on the whole orthant
    main: Affine  # (batch, rows, n): on the image of ``rectangle``, or everywhere where there is none
    rectangle: Rectangle | None = None  # the main rectangle, one per box
    cells: Cells | None = None


def complement(value: Value, rectangle: Rectangle, ranges: Ranges) -> Tensor:
    r"""At least :math:`\mathbb E[(S-S_{main})(z)1\{\zeta\notin R\}]`, the smaller of two bounds.

    Either the affine bound on the orthant against the moments of the complement (errata items 2 and 3), or the main
    bound continued (:func:`_continuation`), which needs no probability at all.
    """
    beyond = outside(ranges, rectangle.lower, rectangle.upper)
    main = Affine(value.main.matrix[:, None], value.main.offset[:, None])
    outer = Affine(value.outer.matrix[:, None], value.outer.offset[:, None])
    first = _expected(_difference(outer, main), beyond)
    return torch.minimum(first, _continuation(value.outer, main.matrix, main.matrix, beyond))


def refined(value: Value, cells: Cells, rectangle: Rectangle, ranges: Ranges, base: Affine) -> Tensor:
    r"""At least :math:`\mathbb E[(S-S_0)(z)]` for a base with matrix (batch, regions, rows, n).

    With C the continuation, :math:`S\le S_j+C` on a continued cell and :math:`S\le S_{main}+C` beyond the reach.
    """
    main = Affine(value.main.matrix[:, None], value.main.offset[:, None])
    every = torch.cat([main.matrix, cells.pieces.matrix], 1)  # (batch, 1 + cells, rows, n)
    beyond = outside(ranges, rectangle.lower, rectangle.upper)
    step = _continuation(value.outer, every.amin(1, keepdim=True), every.amax(1, keepdim=True), beyond)
    far = _expected(_difference(main, base), outside(ranges, cells.reach.lower, cells.reach.upper))
    return add_up(_inside(cells, ranges, base), up(step + far, 1))


def blended(cells: Cells, chance: Tensor) -> Affine:  # chance (batch, regions, cells)
    """The mean of the pieces under ``chance``: any base is sound, this one makes the differences cancel."""
    return Affine(
        torch.einsum("blj,bjrn->blrn", chance, cells.pieces.matrix),
        torch.einsum("blj,bjr->blr", chance, cells.pieces.offset),
    )


def add_up(first: Tensor, second: Tensor) -> Tensor:
    """At least ``first + second``; exactly zero where they cancel exactly."""
    return first + second + 2 * UNIT * (first.abs() + second.abs()) * (first != -second)


def _inside(cells: Cells, ranges: Ranges, base: Affine) -> Tensor:
    r"""At least :math:`\sum_j\mathbb E[(S_j-S_0)(z)1\{\zeta\in R_j\}]=\sum_jP_j(D_j\mathbb E[z\mid\zeta\in R_j]+d_j)`.

    Given z the coordinates are independent, so the conditional mean is one coordinate at a time (``prop:nnCondExpect``
    with the product of errata item 1 collected in :math:`P_j`).
    """
    n = ranges.mean_lower.shape[-1]
    wide = Ranges(*(t[:, :, None] for t in (ranges.mean_lower, ranges.mean_upper, ranges.std_lower, ranges.std_upper)))
    a, b = cells.rectangles.lower[:, None], cells.rectangles.upper[:, None]  # (batch, 1, cells, n)
    least, most = (p.prod(-1, keepdim=True) for p in inside_probability(wide, a, b))
    low, high = conditional_mean(wide, a, b)
    gap = _difference(
        Affine(cells.pieces.matrix[:, None], cells.pieces.offset[:, None]),
        Affine(base.matrix[:, :, None], base.offset[:, :, None]),
    )  # (batch, regions, cells, rows, n)
    tau = (gap.matrix.clamp_min(0) @ high[..., None] + gap.matrix.clamp_max(0) @ low[..., None])[..., 0] + gap.offset
    size = (gap.matrix.abs() @ high[..., None])[..., 0] + gap.offset.abs()
    return _mixture(tau + gamma(2 * n + 8) * size + TINY, least * (1 - gamma(n + 4)), up(most, n).clamp_max(1))


def _mixture(tau: Tensor, least: Tensor, most: Tensor) -> Tensor:  # (batch, regions, cells, rows or 1)
    r"""At least :math:`\sum_jP_j\tau_j` for all :math:`P_j` in ``[least, most]`` with :math:`\sum_jP_j\le1`.

    For any :math:`\lambda\ge0`, :math:`\sum_jP_j\tau_j\le\lambda+\sum_j\max((\tau_j-\lambda)\check P_j,(\tau_j-\lambda)
    \hat P_j)`; the best :math:`\lambda` of this linear program is zero or one of the :math:`\tau_j`.
    """
    rate = torch.cat([torch.zeros_like(tau[:, :, :1]), tau.clamp_min(0)], 2)[:, :, :, None]  # (.., rates, 1, rows)
    gap = tau[:, :, None] - rate
    terms = torch.maximum(gap * least[:, :, None], gap * most[:, :, None])
    size = (rate + gap.abs() + tau.abs()[:, :, None]).sum(3)
    total = rate[:, :, :, 0] + terms.sum(3) + gamma(tau.shape[2] + 16) * size
    return total.amin(2)


def _continuation(outer: Outer, smallest: Tensor, largest: Tensor, beyond: Outside) -> Tensor:
    r"""At least :math:`\mathbb E(S-S_j)_+(z)` where :math:`S\le S_j` on a box and the slopes of S_j lie in a range.

    From the nearest point of the box to z, :math:`S-S_j` grows by at most ``rise - smallest`` a unit upward in each
    coordinate and ``fall + largest`` a unit downward; the mean distances are those of :class:`Outside`.
    """
    upward = add_up(outer.rise, -smallest).clamp_min(0)
    downward = add_up(outer.fall, largest).clamp_min(0)
    step = (upward @ beyond.above[..., None] + downward @ beyond.below[..., None])[..., 0]
    return up(step, 2 * upward.shape[-1] + 8)


def _expected(function: Affine, beyond: Outside) -> Tensor:
    """At least ``E[(matrix @ z + offset) 1{outside}]``, as both moments lie between 0 and their bounds."""
    value = (function.matrix.clamp_min(0) @ beyond.mean[..., None])[..., 0]
    return up(value + function.offset.clamp_min(0) * beyond.probability, function.matrix.shape[-1] + 8)


def _difference(first: Affine, second: Affine) -> Affine:
    """At least ``first - second`` at every z >= 0."""
    return Affine(add_up(first.matrix, -second.matrix), add_up(first.offset, -second.offset))
