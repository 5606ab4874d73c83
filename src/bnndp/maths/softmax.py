r"""Bounds of :math:`\mathbb E\,\mathrm{softmax}` from what is known of the margins :math:`D_i=\zeta_c-\zeta_i`.

With :math:`D_c=0`, :math:`p_i=e^{-D_i}/\sum_ke^{-D_k}`. Two routes bound a combination :math:`A\cdot\mathbb Ep` below:

* **union**: :math:`p_i\le\sigma(-D_i)` for :math:`i\ne c` and :math:`\sum_ip_i=1`, so :math:`A\cdot p=A_c-\sum_{i\ne
  c}(A_c-A_i)p_i\ge A_c-\sum_{i\ne c}(A_c-A_i)_+\,\sigma(-D_i)`; exact for two classes.
* **second order**: by Taylor's formula at the mean logits, whose linear term has mean zero. For a direction v,
  :math:`v^T\nabla^2p_iv=p_i[(v_i-\bar v)^2-\operatorname{Var}_pv]`, and :math:`(v_i-\bar v)^2+\operatorname{Var}_pv=
  \sum_kp_k(v_i-v_k)^2`. As :math:`p_ip_k\le\tfrac14`, :math:`|\mathbb Ep_i-p_i(\mathbb E\zeta)|\le\tfrac18\sum_k
  \operatorname{Var}(\zeta_i-\zeta_k)`.
"""

import torch
from torch import Tensor

from bnndp.maths.rounding import TINY, gamma

_LARGEST = 700.0  # exp of more overflows


def _slack(classes: int) -> float:
    """Relative error of the sums over classes below, including those of the functions in them."""
    return gamma(4 * classes + 32)


def union_bound(rows: Tensor, tails: Tensor, reference: Tensor) -> Tensor:
    r"""Lower bound of :math:`A\cdot\mathbb Ep` (batch, rows) from upper bounds of the means of sigma(-D_i).

    ``rows`` are (batch, rows, classes), ``tails`` (batch, classes) those bounds, ``reference`` (batch,) the classes c;
    the entry c of ``tails`` is not used.
    """
    own = rows.gather(-1, reference[:, None, None].expand(-1, rows.shape[1], 1))  # (batch, rows, 1): A_c
    lost = (own - rows).clamp_min(0) * tails[:, None]  # zero at c
    lost = torch.where(own == rows, 0.0, lost)
    return own[..., 0] - lost.sum(-1) - _slack(rows.shape[-1]) * (own[..., 0].abs() + lost.sum(-1)) - TINY


def second_order_bound(rows: Tensor, mean: Tensor, variance: Tensor, reference: Tensor) -> Tensor:
    r"""Lower bound of :math:`A\cdot\mathbb Ep` (batch, rows) for margins of at least this mean, at most this variance.

    :math:`A\cdot p(\mathbb E\zeta)=\sum_iA_ie^{-D_i}/\sum_ie^{-D_i}\ge\bigl(A_c-\sum_i(A_i)_-e^{-d_i}\bigr)/
    \sum_ie^{-d_i}` where the numerator is positive (the denominator is then at its largest), and at least the
    numerator where it is not (the denominator is at least one).
    """
    classes = mean.shape[1]
    slack = _slack(classes)
    own = reference[:, None] == torch.arange(classes, device=mean.device)  # (batch, classes)
    weight = torch.where(own, 1.0, torch.exp(-mean.clamp_min(-_LARGEST)))  # e^{-d_i}
    positive = rows.gather(-1, reference[:, None, None].expand(-1, rows.shape[1], 1))[..., 0]
    negative = (torch.where(own[:, None], 0.0, rows.clamp_max(0)) * weight[:, None]).sum(-1)
    top = positive + negative - slack * (positive.abs() + negative.abs())
    at_mean = torch.where(top > 0, top / (weight.sum(-1, keepdim=True) * (1 + slack)), top)
    known = (mean >= -_LARGEST) | own  # beyond it the exponential would be cut off
    at_mean = torch.where(known.all(-1, keepdim=True), at_mean - TINY, -torch.inf)
    sd = torch.where(own, 0.0, variance).sqrt()
    pairs = (sd[:, :, None] + sd[:, None, :]).square()  # Var(zeta_i - zeta_k) <= (sd D_i + sd D_k)^2
    pairs = pairs.masked_fill(torch.eye(classes, dtype=torch.bool, device=mean.device), 0.0)
    remainder = 0.125 * (rows.abs() * pairs.sum(-1)[:, None]).sum(-1) * (1 + slack)
    return torch.where(remainder < torch.inf, at_mean - remainder, -torch.inf).nan_to_num(-torch.inf, neginf=-torch.inf)


def consistent(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:  # (batch, classes) each
    """Bounds of probabilities, tightened by their range [0, 1] and by their sum of one; NaN says nothing."""
    low, high = low.nan_to_num(0.0).clamp(0, 1), high.nan_to_num(1.0).clamp(0, 1)
    slack = _slack(low.shape[-1]) * low.shape[-1]
    remaining = 1 - low.sum(-1, keepdim=True) + low + slack
    high = torch.minimum(high, remaining)
    remaining = 1 - high.sum(-1, keepdim=True) + high - slack
    low = torch.maximum(low, remaining)
    return low.clamp(0, 1), high.clamp(0, 1)
