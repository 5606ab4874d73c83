"""Planes by gradient ascent for networks of any layers: each row of each box gets its own tangent points.

The lower planes of hinges (ReLU, leaky ReLU) may touch anywhere. The lower bound of a row at the worst x of its box is
climbed by Adam over all of them, with the ranges of the means as they are (the slopes of alpha-CROWN, Xu et al. 2021).
Every choice is a bound, and the best value seen is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.engine.general.forward import Passed, mean_rows, output_bounds
from bnndp.engine.general.nodes import Activated, Bound
from bnndp.engine.general.rows import DenseRows, Rows
from bnndp.geometry.bounds import Affine, AffineBounds
from bnndp.maths.rounding import TINY, gamma

__all__ = ["best_bounds", "best_rows"]

_RATE, _DECAY = 0.5, 0.93  # of the first step, and from each to the next
_START = 2.0  # tangents of neurons that may be on either side start within this, where the slope still moves


def best_bounds(passed: Passed, steps: int) -> AffineBounds:
    """Affine bounds of the mean output from a pass that is known already, optimised by ``steps`` steps."""
    return output_bounds(passed, lambda known, rows: best_rows(known, rows, steps))


def best_rows(passed: Passed, rows: Tensor, steps: int) -> Affine:  # rows (batch, rows, n_out)
    """Affine functions of x below ``rows . E f(x)``, at least as good as those of one pass at the worst x of each."""
    found, box = mean_rows(passed, rows), passed.box
    free = [i for i, node in enumerate(passed.chain) if isinstance(node, Activated) and node.hinge is not None]
    if not steps or not free:
        return found
    best = box.minimum(found.matrix, found.offset)
    points = {i: _start(passed.chain[i], rows.shape[1]) for i in free}
    climber = torch.optim.Adam(list(points.values()), lr=_RATE, maximize=True)
    for step in range(steps + 1):
        with torch.enable_grad():
            again = _carried(passed, rows, points)
            value = box.minimum(again.matrix, again.offset)
            total = value.nan_to_num(0.0, neginf=0.0, posinf=0.0).sum()
        with torch.no_grad():
            better = value > best  # false for NaN
            best = torch.where(better, value, best)
            found = Affine(
                torch.where(better[..., None], again.matrix, found.matrix).detach(),
                torch.where(better, again.offset, found.offset).detach(),
            )
        if step < steps:
            climber.zero_grad()
            total.backward()
            climber.step()
            for group in climber.param_groups:
                group["lr"] *= _DECAY
    return found


def _start(node: object, rows: int) -> Tensor:
    """Tangent points (batch, rows, n) of the usual planes, pulled to where the slope still moves."""
    if not isinstance(node, Activated) or node.hinge is None:
        raise TypeError(f"{type(node).__name__} has no free planes.")
    mean = node.linear.pre.mean
    either = (mean.lower < 0) & (mean.upper > 0)
    start = torch.where(either, node.hinge.start.clamp(-_START, _START), node.hinge.start)
    return start[:, None].repeat(1, rows, 1).requires_grad_()


def _carried(passed: Passed, rows: Tensor, points: dict[int, Tensor]) -> Affine:
    bound: Bound = passed.output.lower(DenseRows(rows), None, rows.new_zeros(rows.shape[:2]))
    for i in range(len(passed.chain) - 1, -1, -1):
        node = passed.chain[i]
        free = i in points and isinstance(node, Activated)
        bound = _through(node, *bound, points[i]) if free else node.lower(*bound)  # type: ignore[arg-type]
    return Affine(bound[0].dense().values, bound[1])


def _through(node: Activated, rows: Rows, constant: Tensor, points: Tensor) -> Bound:
    """As ``Activated.lower``, with other lower planes for every row."""
    hinge, planes = node.hinge, node.planes
    if hinge is None or node.weighted is None:
        return node.lower(rows, constant)
    values = rows.dense().values
    positive, negative = values.clamp_min(0), values.clamp_max(0)
    slope, tilt, level = hinge.at(points)
    alpha = positive * slope + negative * planes.upper_alpha[:, None]
    beta = positive * tilt + negative * planes.upper_beta[:, None]
    offset = (positive * level).sum(-1) + DenseRows(negative).dot(planes.upper_offset)
    lost = DenseRows(values.abs()).dot(torch.maximum(planes.size, hinge.size)) + constant.abs()
    constant = constant + offset - gamma(2 * values.shape[-1] + 8) * lost - TINY
    sloped = bool((hinge.tilt != 0).any() | (planes.upper_beta != 0).any())
    return node.weighted.lower(DenseRows(alpha), DenseRows(beta) if sloped else None, constant)
