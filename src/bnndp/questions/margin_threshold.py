"""By how much the largest rival must be behind in the mean for a row of the expected softmax to be positive."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.protocol import BranchablePass
from bnndp.maths.rounding import ELEMENTARY
from bnndp.tighten.unproved_points import POSITIVE

__all__ = ["CUT", "POSITIVE", "KnownMargins", "turned_covariance", "turned_threshold"]

CUT = 1e-6
"""Points x with more than this are left out; a decision needs no more."""
_AHEAD, _NEAR = 1e-3, 300.0  # mean margins: by how much they must be ahead, and their largest size
_WIDE, _CLASSES = 100.0, 1000  # variances of margins and numbers of classes up to which that is known


@dataclass(frozen=True, slots=True)
class KnownMargins:
    """Margins of the label: (cells, classes) each."""

    least: Tensor  # E D_j is at least this
    most: Tensor  # and at most this
    variance: Tensor  # Var D_j is at most this
    turned: Tensor  # Cov(f_j - (f_c + f_k) / 2, f_c - f_k) is at most this, k the rival


def turned_covariance(bounds: BranchablePass, rows: Tensor, label: Tensor) -> Tensor:
    """Upper bounds (cells, classes) of the covariances of f_j - (f_c + f_k) / 2 and f_c - f_k."""
    one = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
    own, rival = one[label], one[rows[:, 0].argmin(-1)]
    left = one - (0.5 * own + 0.5 * rival)[:, None]
    return bounds.covariance(left, (own - rival)[:, None].expand_as(left))


def turned_threshold(rows: Tensor, label: Tensor, known: KnownMargins, *, random: bool) -> Tensor:  # (cells, 1)
    r"""Mean margins from which on a row of one rival is positive, if the outputs are Gaussian at every x.

    Let D be the margin of the rival k, of mean M and variance V at x, and :math:`R_j=\zeta_j-(\zeta_c+\zeta_k)/2`.
    Then :math:`p_c-p_k=2\sinh(D/2)/(2\cosh(D/2)+\sum_je^{R_j})`, and :math:`R_j=\kappa_jD+R_j^0` with
    :math:`\kappa_j=\operatorname{Cov}(R_j,D)/V` and :math:`R^0` independent of D. Given :math:`R^0`, the values at
    D = d and D = -d, d > 0, have densities of ratio :math:`1:e^{-2Md/V}`, so they add up to a multiple of

    .. math:: \frac1A-\frac{e^{-2Md/V}}B,\qquad A,B=2\cosh(d/2)+\sum_je^{R_j^0\pm\kappa_jd},\qquad
              \frac BA\ge\min(1,\min_je^{-2\kappa_jd}).

    It is positive if :math:`M>\max_j\operatorname{Cov}(R_j,D)` and M > 0, whatever the other means are: for logits of
    equal variances that are independent the threshold is zero. Without variance M > 0 is enough.

    ``POSITIVE``: with M ahead by :math:`\delta=10^{-3}`, means of at most 300 and variances of margins of at most 100,
    D lies in [M, M + sd] and all :math:`R_j` (up to 1000 of them) within 4 sd with probability 0.3; there the sum of
    both values is at least :math:`n(d)\tanh(\delta/2)(1-e^{-2\delta^2/V})/(1+\tfrac12\sum_je^{R_j})`, above 1e-240.
    """
    classes = torch.arange(rows.shape[-1], device=rows.device)
    rival = rows[:, 0].argmin(-1, keepdim=True)
    own = classes == label[:, None]
    pair = own | (classes == rival)
    alike = (rows[:, 0] == (own.double() - (classes == rival).double())).all(-1, keepdim=True)
    fine = (known.least >= -_NEAR).all(-1, keepdim=True) & (known.most <= _NEAR).all(-1, keepdim=True)
    fine &= rows.shape[-1] <= _CLASSES
    if not random:
        return torch.where(alike & fine, _AHEAD, torch.inf)
    most = known.turned.masked_fill(pair, 0.0).amax(-1, keepdim=True)
    fine &= (known.variance <= _WIDE).all(-1, keepdim=True)
    return torch.where(alike & fine & ~most.isnan(), most * (1 + ELEMENTARY) + _AHEAD, torch.inf)
