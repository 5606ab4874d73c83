"""Lines in the mean margins of the members below a row of their expected softmax, as rows of their outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.engine.side_by_side import Group
from bnndp.geometry.bounds import Affine
from bnndp.maths.rounding import TINY
from bnndp.questions.known_margins import KnownMargins, margin_tails
from bnndp.questions.margin_threshold import margin_above
from bnndp.questions.softmax_lines import SHARES, MarginPlanes
from bnndp.questions.softmax_sums import Combination, best_rows

__all__ = ["as_rows", "lines_of_members"]

_BITS = 40  # of coefficients: sums of up to 2^12 of them are exact


def lines_of_members(group: Group, rows: Tensor, label: Tensor, known: KnownMargins, need: Tensor) -> Combination:
    """Lines in the margins below the rows (members * cells, few, classes), once for each of SHARES.

    They hold where the claim may fail: a member that is more than ``need`` (members * cells, few) is not asked.
    """
    few, classes = rows.shape[1:]
    flat, labels = rows.flatten(0, 1)[:, None], label.repeat_interleave(few)
    least, most, variance = (t.repeat_interleave(few, 0) for t in (known.least, known.most, known.variance))
    rival = flat[:, 0].argmin(-1, keepdim=True)  # (members * cells * few, 1)
    most = most.scatter(
        1,
        rival,
        margin_above(
            group, flat, labels, KnownMargins(least, most, variance, variance), rival, need.flatten()[:, None]
        ),
    )
    fine = least.isfinite() & most.isfinite() & variance.isfinite()
    most = torch.maximum(most, least)
    planes = MarginPlanes(
        plane=Affine(least, least),
        least=torch.where(fine, least, -torch.inf)[:, None],
        middle=torch.where(fine, 0.5 * least + 0.5 * most, 0.0)[:, None],
        most=torch.where(fine, most, 0.0)[:, None],
        size=torch.zeros_like(least)[:, None],
        variance=torch.where(fine, variance, torch.inf)[:, None],
        tails=margin_tails(group.bounds, least, variance)[:, None],
        random=group.bounds.random,
        gaussian=group.bounds.gaussian,
    )
    found = best_rows(
        flat, labels, planes, floor=torch.full_like(flat[..., 0], -torch.inf)
    )  # (members * cells * few, shares)
    shape = (rows.shape[0], few, len(SHARES))
    constant, size = (t.reshape(shape).mT.flatten(1) for t in (found.constant, found.size))
    return Combination(constant, found.tilt.reshape(*shape, classes).transpose(1, 2).flatten(1, 2), size)


def as_rows(weight: Tensor, tilt: Tensor, label: Tensor, known: KnownMargins) -> tuple[Tensor, Tensor]:
    """Rows (batch, rows, classes) of the outputs for ``weight sum_i tilt_i (f_c - f_i)``, and what that may lose.

    The coefficients are rounded to multiples of a power of two, so that their sum is exact: weight (batch,), tilt
    (batch, rows, classes), label (batch,).
    """
    own = label[:, None] == torch.arange(tilt.shape[-1], device=label.device)
    exact = (weight[:, None, None] * tilt).masked_fill(own[:, None], 0.0)
    unit = torch.exp2(exact.amax(-1, keepdim=True).clamp_min(TINY).log2().ceil() - _BITS)
    rest = (exact / unit).round() * unit
    size = torch.maximum(known.least.abs(), known.most.abs())[:, None]
    lost = torch.where(exact > 0, 2 * unit * size, 0.0).sum(-1)
    return torch.where(own[:, None], rest.sum(-1, keepdim=True), -rest), lost
