r"""From margins of the logits on a box to the expected softmax, by the best of all routes.

With the margins of one class c, :math:`A\cdot\mathbb Ep` is bounded for any coefficients A (``row_bound``). With those
of every class, each probability is bounded from both sides (``class_interval``): from above by its duel with any other
class, :math:`p_i\le\sigma(\zeta_i-\zeta_c)`; from below by one less all the others, or by its share of the duel,
:math:`p_i=\sigma(\zeta_i-\zeta_c)(1-\sum_{k\ne i,c}p_k)`; and by the second order where the variance is small.
"""

import torch
from torch import Tensor

from bnndp.engine.chunks import device_size
from bnndp.engine.protocol import Margins, Pass, both_signs
from bnndp.geometry.bounds import Interval
from bnndp.maths.joint_lead import joint_leads
from bnndp.maths.lead import lead_bound, leads
from bnndp.maths.logistic import logistic_tail
from bnndp.maths.rounding import UNIT
from bnndp.maths.softmax import consistent, second_order_bound, union_bound

CALM = 0.02
"""Margins of less variance than this need no exponential moments: the second order is as good."""

_SLACK = 256 * UNIT  # times the number of classes: of sums over them and of the functions in them


def row_bound(
    rows: Tensor, margins: Margins, reference: Tensor, tails: Tensor | None = None, middles: Tensor | None = None
) -> Tensor:
    """Lower bound of ``rows . E softmax`` on each box: (batch, rows).

    ``rows`` are (batch, rows, classes), ``margins`` (batch, 1, classes) those of the class ``reference`` (batch,);
    ``tails`` (batch, classes) other upper bounds of the means of sigma(-D_i), and ``middles`` (batch, classes, classes)
    variances of :func:`bnndp.engine.margins.middle_rows`, where they are known.
    """
    mean, variance = margins.mean[:, 0], margins.variance[:, 0]
    best, found = quick_row_bound(rows, margins, reference, tails)
    at = undecided(best, margins).nonzero()[:, 0]
    if at.numel() == 0:
        return best
    sd = variance[at].sqrt()  # of D_i, and B_i = D_i - D_k / 2
    spread = (sd[:, None] + 0.5 * sd[..., None]).square() * (1 + _SLACK) if middles is None else middles[at]
    moments = mean[at], variance[at], spread, found[at], reference[at]
    ahead = leads(*moments)
    if middles is not None:
        ahead = joint_leads(*moments, ahead, device_size(1, mean.device))
    more = lead_bound(rows[at], ahead, reference[at])
    return best.index_copy(0, at, torch.maximum(best[at], more))


def quick_row_bound(
    rows: Tensor, margins: Margins, reference: Tensor, tails: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same (batch, rows) without leads, in a fraction of the time; and the tails (batch, classes) behind it."""
    mean, variance = margins.mean[:, 0], margins.variance[:, 0]
    found = logistic_tail(mean, variance)
    if tails is not None:
        found = torch.minimum(found, tails.nan_to_num(1.0))
    best = torch.maximum(union_bound(rows, found, reference), second_order_bound(rows, mean, variance, reference))
    return best, found


def undecided(bound: Tensor, margins: Margins) -> Tensor:
    """Boxes (batch,) that their mean logits would decide, but for the variance."""
    calm = margins.variance.amax((-1, -2))
    return ~(bound > 0).all(-1) & (margins.mean >= 0).all((-1, -2)) & (calm > 0) & (calm < torch.inf)


def class_interval(margins: Margins, tails: Tensor | None = None) -> Interval:
    """Bounds of every E p_i from the margins (batch, classes, classes) of each class c (second axis) against each i."""
    classes = margins.mean.shape[-1]
    duel = logistic_tail(margins.mean, margins.variance)  # (batch, c, i): E sigma(zeta_i - zeta_c) is at most this
    if tails is not None:
        duel = torch.minimum(duel, tails.nan_to_num(1.0))
    itself = torch.eye(classes, dtype=torch.bool, device=duel.device)
    low = 1 - duel.masked_fill(itself, 0.0).sum(-1) - _SLACK * classes
    high = duel.masked_fill(itself, torch.inf).amin(1)
    near = _second_order(margins, itself)
    low, high = consistent(torch.maximum(low, near.lower), torch.minimum(high, near.upper))
    # E p_i >= 1 - E sigma(zeta_c - zeta_i) - sum of the other E p_k, for any c.
    others = high.sum(-1, keepdim=True) - high  # (batch, i): all but i
    share = 1 - duel - others[:, :, None] + high[:, None, :] - _SLACK * classes  # (batch, i, c)
    share = share.masked_fill(itself, -torch.inf).amax(-1)
    return Interval(*consistent(torch.maximum(low, share), high))


def _second_order(margins: Margins, itself: Tensor) -> Interval:
    """Probabilities at the mean logits, widened by the second-order remainder: (batch, classes)."""
    slack = _SLACK * itself.shape[0]
    remainder = 0.125 * margins.variance.masked_fill(itself, 0.0).sum(-1) * (1 + slack) + slack
    least = torch.softmax(_with_own(margins.mean, itself), -1)
    low = least.diagonal(dim1=1, dim2=2) * (1 - slack)
    # D of i against k is at most minus the least D of k against i.
    most = torch.softmax(_with_own(-margins.mean.mT, itself), -1)
    high = most.diagonal(dim1=1, dim2=2) * (1 + slack)
    return Interval((low - remainder).nan_to_num(0.0), (high + remainder).nan_to_num(1.0))


def _with_own(margin: Tensor, itself: Tensor) -> Tensor:
    """Logits (batch, c, i) relative to that of class c: minus the margins, zero for c itself."""
    return (-margin).masked_fill(itself, 0.0)


def own_classes(bounds: Pass, classes: int) -> Interval | None:
    """The ranges of every E p_i that a pass knows without margins, if it does."""
    found = bounds.softmax(both_signs(classes, bounds.box).expand(bounds.box.batch, -1, -1))
    if found is None:
        return None
    return Interval(found[:, :classes].clamp(0, 1), (-found[:, classes:]).clamp(0, 1))


def strongest_tails(bounds: Pass, known: Margins) -> Tensor:
    """Bounds of E sigma(-D) by exponential moments (batch, classes, classes), 1 where there are none.

    Only margins of the strongest class: those of the others have no tails to speak of.
    """
    tails, classes = torch.ones_like(known.mean), known.mean.shape[-1]
    at = (
        (known.variance.amax((-1, -2)) > CALM).nonzero()[:, 0]
        if bounds.tailed
        else tails.new_empty(0, dtype=torch.int64)
    )
    if at.numel():
        least = known.mean[at].masked_fill(torch.eye(classes, dtype=torch.bool, device=tails.device), torch.inf)
        best = least.amin(-1).argmax(-1)
        tails[at, best] = bounds.tails(at, best, Margins(known.mean[at, best], known.variance[at, best]))
    return tails
