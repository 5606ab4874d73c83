r"""Affine functions of x below combinations of the expected softmax of one member of an ensemble.

With planes :math:`\pi_i(x)\le\mathbb ED_i(x)` of its margins (``softmax_lines.py``) every bound here is a
:class:`Combination`: a constant plus non-negative multiples of planes. They go two ways, as the bounds of one network
(``maths/softmax.py``), and the better one is taken for each row:

* **union**: with lines above :math:`\mathbb E\sigma(-D_i)`.
* **second order**: :math:`A\cdot\mathbb Ep\ge\varphi(\pi)-r` with a constant remainder r from the variances. With
  :math:`u_i=e^{-\pi_i}`, :math:`N=A_c-\sum_i(A_i)_-u_i` and :math:`S=1+\sum_iu_i`, :math:`\varphi` is N / S where
  :math:`N\ge0` and N where :math:`N\le0`. Let 1 mark the corner where all planes are least. For :math:`N_1\ge0`
  the tangent there is below: :math:`N/S\ge N(2S_1-S)/S_1^2` and :math:`(N-N_1)(S_1-S)\ge0`. For :math:`N_1<0`,
  :math:`\varphi\ge\min(N,N/S_1)`, concave in N, so above its chord. Either way :math:`u_i` has a negative
  coefficient and is at most its chord in :math:`\pi_i`, as the exponential is convex.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.mixture import LowerSum, summed
from bnndp.maths.rounding import ELEMENTARY, TINY
from bnndp.questions.duel_lines import duel_lines
from bnndp.questions.softmax_lines import SHARES, Lines, MarginPlanes, tail_lines

_FARTHEST = 30.0  # margins further off zero than this to the wrong side are left to the other bounds


@dataclass(frozen=True, slots=True)
class Combination:
    """``constant + sum_i tilt_i plane_i(x)`` with tilts >= 0, below what is asked for."""

    constant: Tensor  # (batch, rows)
    tilt: Tensor  # (batch, rows, classes)
    size: Tensor  # (batch, rows): of the terms of the constant


def plus(
    total: LowerSum,
    weights: Tensor,  # (members,)
    part: Combination,  # of batch members * batch
    matrix: Tensor,  # (members * batch, rows or 1, classes, n): of the planes
    offset: Tensor,  # (members * batch, rows or 1, classes)
    size: Tensor,  # as the offset
) -> LowerSum:
    """The sum with the weighted sum over the members of combinations of their planes."""
    tilt, count = part.tilt, len(weights)
    if matrix.shape[1] == 1:  # one matrix product for all members of a box
        shares, planes = (t.unflatten(0, (count, -1)) for t in (tilt, matrix[:, 0]))
        rows = torch.einsum("kbrc,kbcn->brn", weights[:, None, None, None] * shares, planes)
    else:
        rows = summed(weights, (tilt[..., None, :] @ matrix)[..., 0, :])
    return LowerSum(
        total.matrix + rows,
        total.offset + summed(weights, part.constant + (tilt * offset).sum(-1)),
        total.size + summed(weights, part.size + (tilt * size).sum(-1)),
        total.terms + count * (2 * tilt.shape[-1] + 3),
    )


def best_rows(rows: Tensor, label: Tensor, known: MarginPlanes, floor: Tensor | None = None) -> Combination:
    """Below ``rows . E softmax``, all rows once for each of SHARES: rows (batch, rows, classes), label (batch,).

    The better one at that share of the ranges of the planes; no worse than ``floor`` (batch, rows), which is the least
    coefficient of the row if not given.
    """
    floor = rows.amin(-1) if floor is None else floor
    flat = Combination(floor, torch.zeros_like(rows), floor.abs().nan_to_num(0.0, posinf=0.0))
    own = label[:, None] == torch.arange(rows.shape[-1], device=label.device)  # (batch, classes)
    second = _second_order(rows, own, known)
    pairs = zip(SHARES, tail_lines(known), strict=True)
    found = []
    for share, lines in pairs:
        ways = [_union(rows, own, lines), second]
        if not known.random:
            constant, slope = duel_lines(rows, own, known.least, known.most, share)
            ways.append(Combination(constant, slope, constant.abs()))
        found.append(_best(flat, ways, _at(known, share)))
    return Combination(
        *(torch.cat([getattr(part, name) for part in found], 1) for name in ("constant", "tilt", "size"))
    )


def _at(known: MarginPlanes, share: float) -> Tensor:
    """Values of the planes at which bounds are compared: (batch, references, classes)."""
    rise = 2 * share * (known.middle - known.least).clamp_min(0)
    return torch.where(known.least.isfinite(), known.least + rise, 0.0)


def _best(best: Combination, others: Sequence[Combination], at: Tensor) -> Combination:
    """For each row the combination with the largest value where the planes have the values ``at``; NaN never."""
    for other in others:
        take = other.constant + (other.tilt * at).sum(-1) > best.constant + (best.tilt * at).sum(-1)
        best = Combination(
            torch.where(take, other.constant, best.constant),
            torch.where(take[..., None], other.tilt, best.tilt),
            torch.where(take, other.size, best.size),
        )
    return best


def _union(rows: Tensor, own: Tensor, lines: Lines) -> Combination:
    """``A_c - sum_i (A_c - A_i)_+ sigma(-D_i)`` with lines for the means of the last."""
    first = (rows * own[:, None]).sum(-1)  # (batch, rows): A_c
    lost = (first[..., None] - rows).clamp_min(0)  # (batch, rows, classes), zero at the reference itself
    weighty = (lost * lines.intercept).sum(-1)
    return Combination(first - weighty, lost * lines.slope, first.abs() + weighty.abs())


@dataclass(frozen=True, slots=True)
class _Powers:
    """``u_i = exp(-plane_i)``: its largest and least value and the chord ``top - fall plane_i`` above; zero for c."""

    largest: Tensor  # (batch, references, classes), as are the others
    least: Tensor
    top: Tensor
    fall: Tensor
    fine: Tensor  # (batch, references): whether all are known


def _powers(known: MarginPlanes, own: Tensor) -> _Powers:  # own (batch, references, classes)
    a, b = known.least.clamp(-_FARTHEST, 700.0), known.most.clamp(-_FARTHEST, 700.0)
    b = torch.maximum(a, b)
    near = (known.least >= -_FARTHEST) & (known.least <= 700.0) & (known.most <= 700.0) | own
    largest, least = (
        (torch.exp(-end) * (1 + sign * ELEMENTARY)).masked_fill(own, 0.0) for end, sign in ((a, 1), (b, -1))
    )
    fall = ((largest - least) / (b - a).clamp_min(TINY)).clamp_max(largest).clamp_min(0)
    top = torch.maximum(largest + fall * a, least + fall * b + 2 * ELEMENTARY * least)
    return _Powers(largest, least, top + ELEMENTARY * fall * torch.maximum(a.abs(), b.abs()), fall, near.all(-1))


def _second_order(rows: Tensor, own: Tensor, known: MarginPlanes) -> Combination:
    powers = _powers(known, own[:, None])
    u, top, fall = powers.largest, powers.top, powers.fall  # (batch, 1, classes)
    first = (rows * own[:, None]).sum(-1, keepdim=True)  # (batch, rows, 1)
    beta = -rows.clamp_max(0) * ~own[:, None]
    n1, n2 = first - (beta * u).sum(-1, keepdim=True), first - (beta * powers.least).sum(-1, keepdim=True)
    s1 = 1 + u.sum(-1, keepdim=True)
    kappa = torch.where(n2 > 0, (n2 / s1 - n1) / (n2 - n1).clamp_min(TINY), 1.0)
    weight = torch.where(n1 >= 0, beta / s1 + n1 / s1.square() * ~own[:, None], kappa * beta)  # (batch, rows, classes)
    start = torch.where(n1 >= 0, n1 / s1, n1)
    constant = start[..., 0] - (weight * (top - u)).sum(-1)
    size = start.abs()[..., 0] + first.abs()[..., 0] + (weight * (top.abs() + u)).sum(-1) + (beta * u).sum(-1)
    remainder = 0.0 if not known.random else _row_remainder(rows, known.variance.masked_fill(own[:, None], 0.0))
    constant = torch.where(powers.fine, constant - remainder - ELEMENTARY * size, -torch.inf)
    return Combination(constant, weight * fall, size)


def _row_remainder(rows: Tensor, variance: Tensor) -> Tensor:
    r""":math:`\tfrac18\sum_i|A_i|\sum_{k\ne i}\operatorname{Var}(\zeta_i-\zeta_k)`: (batch, rows).

    The standard deviation of a difference of two logits is at most the sum of those of their margins.
    """
    sd = variance.sqrt()[:, 0]  # (batch, classes)
    pairs = (sd[:, :, None] + sd[:, None, :]).square()
    pairs = pairs.masked_fill(torch.eye(sd.shape[-1], dtype=torch.bool, device=sd.device), 0.0).sum(-1)
    return 0.125 * (rows.abs() * pairs[:, None]).sum(-1) * (1 + ELEMENTARY)


def lower_classes(known: MarginPlanes, lines: Lines, share: float) -> Combination:
    r"""Below every :math:`\mathbb Ep_c`, from the margins of c itself: the tilts (batch, c, i) are of its planes."""
    itself, at = _itself(known), _at(known, share)
    powers = _powers(known, itself)
    intercept = lines.intercept.masked_fill(itself, 0.0).sum(-1)
    union = Combination(1 - intercept, lines.slope.masked_fill(itself, 0.0), 1 + intercept.abs())
    s1 = 1 + powers.largest.sum(-1)  # (batch, c)
    weight = s1[..., None] ** -2
    size = 1 + weight[..., 0] * (powers.top.abs() + powers.largest).sum(-1)
    constant = 1 / s1 - weight[..., 0] * (powers.top - powers.largest).sum(-1) - _class_remainder(known, itself, -1)
    constant = torch.where(powers.fine, constant - ELEMENTARY * size, -torch.inf)
    zero = torch.zeros_like(s1)
    flat = Combination(zero, torch.zeros_like(at), zero)
    return _best(flat, (union, Combination(constant, weight * powers.fall, size)), at)


def upper_classes(known: MarginPlanes, lines: Lines, share: float) -> Combination:
    r"""Below every :math:`-\mathbb Ep_i`, from the margins of all others against i: tilts (batch, i, c).

    By one duel, :math:`p_i\le\sigma(-D_{ci})`, or by all of them at the mean logits:
    :math:`p_i\le1/(1+T)`, :math:`T=\sum_{c\ne i}e^{\pi_{ci}}`, convex in T and so below its chord, which falls in T;
    and :math:`e^\pi\ge e^{d}(1+\pi-d)` for any d.
    """
    itself = _itself(known)
    at, intercept, slope = _at(known, share).mT, lines.intercept.mT, lines.slope.mT  # (batch, i, c)
    duel = (slope * at - intercept).masked_fill(itself, -torch.inf)
    best = duel.argmax(-1, keepdim=True)
    chosen = torch.zeros_like(slope).scatter(-1, best, slope.gather(-1, best))
    top = intercept.gather(-1, best)[..., 0]
    one = Combination(-top, chosen, top.abs())
    a, b = known.least.mT, torch.maximum(known.most, known.least).mT
    fine = (((a >= -700.0) & (b <= _FARTHEST)) | itself).all(-1)  # (batch, i)
    a, b = (end.clamp(-700.0, _FARTHEST).masked_fill(itself, 0.0) for end in (a, b))
    d = torch.minimum(torch.maximum(at, a), b)
    low, high = ((torch.exp(end) * (1 + sign * ELEMENTARY)).masked_fill(itself, 0.0) for end, sign in ((a, -1), (b, 1)))
    power = torch.exp(d).masked_fill(itself, 0.0)
    t1, t2 = low.sum(-1), high.sum(-1)
    beta = 1 / ((1 + t1) * (1 + t2))
    constant = 1 / (1 + t1) + beta * t1 - beta * (power * (1 - d)).sum(-1)
    size = 2 + beta * (power * (1 + d.abs())).sum(-1)
    constant = constant + _class_remainder(known, itself, -2) + ELEMENTARY * size
    every = Combination(torch.where(fine, -constant, -torch.inf), beta[..., None] * power, size)
    minus = torch.full_like(t1, -1.0)
    return _best(Combination(minus, torch.zeros_like(slope), -minus), (one, every), at)


def _itself(known: MarginPlanes) -> Tensor:
    """Which margins (c, i) are those of a class with itself."""
    return torch.eye(known.least.shape[-1], dtype=torch.bool, device=known.least.device)


def _class_remainder(known: MarginPlanes, itself: Tensor, axis: int) -> Tensor | float:
    r""":math:`\tfrac18\sum_k\operatorname{Var}(\zeta_i-\zeta_k)`."""
    return 0.125 * known.variance.masked_fill(itself, 0.0).sum(axis) * (1 + ELEMENTARY) if known.random else 0.0
