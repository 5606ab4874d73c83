"""What the nodes below say of the rows of a layer with weights: variances and norms, row by row."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bnndp.engine.chunks import device_size
from bnndp.engine.inequalities.joint.expansion import Moments, gradient_of, joint_expansion, side_by_side
from bnndp.engine.laws.weights import SpreadRemainder
from bnndp.engine.moments.joint_gaussian import Joint
from bnndp.engine.moments.pre_activation import JointRowMoments, RowMoments, Squares
from bnndp.engine.moments.signal import CENTRED, GAUSSIAN
from bnndp.engine.nodes.activation import Activated
from bnndp.engine.nodes.node import Node, row_std
from bnndp.engine.nodes.weighted import Weighted
from bnndp.engine.rows import DenseRows
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import UP

__all__ = ["row_moments", "with_remainder"]

_NUMBERS = 2**23  # entries of the matrices of rows held at a time


def row_moments(weighted: Weighted) -> RowMoments:
    """What the nodes below say of the rows of a layer, in pieces."""
    below, batch = weighted.below, weighted.scale.shape[0]
    numbers = device_size(_NUMBERS, weighted.scale.device) // batch
    central, norms, apart = [], [], []
    for _, rows in weighted.weights.own_rows(numbers):
        central.append(below.parts(rows)[1].square())
        norms.append(below.norms(rows))
        if isinstance(below, Activated) and (found := below.apart(rows)) is not None:
            apart.append(found)
    if weighted.joint is not None:
        return _jointly(weighted, weighted.joint, torch.cat(central, 1) * UP, torch.cat(norms, 1))
    squares = [below.sums_of_squares(rows) for _, rows in weighted.weights.square_rows(numbers) or ()]
    known = [found for found in squares if found is not None]
    names = ("std", "central", "central_norm4", "norms", "extra", "extra_norm4")
    spread = Squares(*(torch.cat([getattr(s, name) for s in known], 1) for name in names)) if known else None
    low4 = [found.low4 for found in known if found.low4 is not None]
    if spread is not None and len(low4) == len(known):
        spread = replace(spread, low4=torch.cat(low4, 1))
    remainder = weighted.weights.spread_remainder(below.signal) if spread is not None else None
    spread = spread if spread is None or remainder is None else with_remainder(spread, remainder, below)
    norm4, least = (torch.cat(part, 1) for part in zip(*apart, strict=True)) if apart else (None, None)
    return RowMoments(torch.cat(central, 1) * UP, torch.cat(norms, 1), spread, norm4, least)


def with_remainder(squares: Squares, remainder: SpreadRemainder, node: Node) -> Squares:
    """With what else there is in s than squares of the signal after the node."""
    rows, z, slack = DenseRows(remainder.rows), node.signal, DenseRows(remainder.slack)
    extra = row_std(node, rows) + slack.dot(z.variance.sqrt()) + remainder.products[..., 0]
    centred = z.norms.new_tensor(CENTRED[:2])  # the means of products are not zero
    norms = (node.norms(rows) + slack.dots(z.norms))[..., :2] + centred * remainder.products[..., 1:]
    return Squares(
        (squares.std + extra) * UP,
        squares.central,
        squares.central_norm4,
        (squares.norms + norms) * UP,
        extra * UP,
        norms[..., 0] * UP,
        None if squares.low4 is None else (squares.low4 + norms[..., 0]) * UP,
    )


def _jointly(weighted: Weighted, joint: Joint, most: Tensor, norms: Tensor) -> RowMoments:
    """The same where the values below are made of jointly Gaussian ones; some rows at a time.

    ``most`` (batch, n_out) is at least the variance of the means, norms are (batch, n_out, q).
    """
    weights, z = weighted.weights, weighted.below.signal
    unit = torch.eye(weights.n_out, dtype=norms.dtype, device=norms.device)[None]
    mu, remainders = weights.pull(DenseRows(unit)).dense().values, _remainder_norms(weighted.below, joint)
    variance = joint.form(joint.covariance, mu).interval
    noise = Interval(variance.lower.clamp_min(0) / UP, torch.fmin(variance.upper.clamp_min(0) * UP, most))
    zero = torch.zeros_like(noise.upper)
    spread = weights.mean_spread(z).upper if weights.random else zero
    step = max(1, device_size(_NUMBERS, norms.device) // (4 * len(norms) * weights.n_in))
    pieces = []
    for start in range(0, weights.n_out, step):
        part = slice(start, start + step)
        coupling = None if weighted.coupling is None else weighted.coupling[part]
        gradient = gradient_of(weights, z, coupling, unit[:, part])
        straight = zero[:, part] if gradient is None else weighted.below.norms(DenseRows(gradient.rows.value))[..., 0]
        pieces.append(
            joint_expansion(joint, mu[:, part], gradient, Moments(z.norms, remainders), spread[:, part], straight)
        )
    found = side_by_side(pieces)
    known = torch.stack([found.spread_fourth.sqrt().sqrt() * UP, torch.full_like(zero, torch.inf)], -1)
    squares = Squares(found.spread_variance.sqrt() * UP, zero, zero, known, zero, zero)
    return RowMoments(zero, norms, squares if weights.random else None, jointly=JointRowMoments(noise, found))


def _remainder_norms(below: Node, joint: Joint) -> Tensor:  # (batch, n, q)
    """Norms of what the line of slope E phi'(X) leaves of the values after an activation."""
    if not isinstance(below, Activated):
        return torch.full_like(below.signal.norms, torch.inf)
    away = (joint.slope.value - below.linear.slope).abs() + joint.slope.off
    more = (away * joint.spread_root)[..., None] * away.new_tensor(GAUSSIAN)
    return (below.linear.remainder.norms + more) * UP
