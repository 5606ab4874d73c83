r"""Lower bounds of the lead :math:`\mathbb E(p_c-p_k)` of a class over another, sharp for decisions of low confidence.

All classes but c and k are *near* or *far*. With :math:`p'` the softmax of c, k and the near classes alone,
:math:`p_c-p_k=(p'_c-p'_k)(1-\sum_{\text{far}}p_i)\ge p'_c-p'_k-\sum_{\text{far}}\sigma(-D_i)`. With
:math:`D=D_k`, :math:`B_i=\tfrac12(\zeta_c+\zeta_k)-\zeta_i` and :math:`T=\sum_{\text{near}}e^{-B_i}`,

.. math:: p'_c-p'_k=h(D,T)=\tanh\tfrac D2\,q(D,T),\qquad q=\frac{2\cosh(D/2)}{2\cosh(D/2)+T}=\sigma(a(D)-\log T).

So the sign is that of D, and the others only weigh it. At one x let M and V be mean and variance of D,
:math:`\beta_i=B_i-\mathbb EB_i`, :math:`\Lambda^2=\sum_{\text{near}}\operatorname{Var}B_i` and
:math:`t=\sum_{\text{near}}e^{-\mathbb EB_i}`. For :math:`M\ge0`:

* *T becomes t.* :math:`\lambda=\log T-\log t` has :math:`|\lambda|\le\max|\beta_i|`, so
  :math:`\lVert\lambda\rVert_2\le\Lambda`. As :math:`\sigma'\le\tfrac14` and :math:`|\tanh\tfrac D2|\le\min(1,
  \tfrac12|D|)`, it costs at most :math:`\tfrac14\Lambda\min(1,\tfrac12\sqrt{M^2+V})`. Or, with
  :math:`\tanh\tfrac D2=\tanh\tfrac M2+O(\tfrac12|D-M|)` and Taylor's formula in :math:`\beta`, whose linear term meets
  :math:`\sigma'(a(D)-\log t)`, at most :math:`\tfrac18\sqrt V\Lambda+\tanh\tfrac M2(\tfrac18\Lambda^2+
  \tfrac12\sup|\sigma''|\sqrt V\Lambda)`. Both rise in M.
* *D becomes M.* :math:`h''=\tfrac14h(1-3q+2h^2)` in D is at most :math:`1/(3\sqrt3)` in size, by
  :math:`|h|\le q\le1`, so :math:`\mathbb Eh(D,t)\ge h(M,t)-V/(6\sqrt3)`. Or, with :math:`k=\tanh\tfrac D2-h`,
  :math:`\mathbb Eh(D,t)\ge1-2\,\mathbb E\sigma(-D)-k(M,t)-\tfrac12V\sup k''`, and :math:`k''=\int_q^1\tfrac14\tau(1-6s
  +6\tau^2s^2)ds`, :math:`\tau=\tanh\tfrac D2`, is at most :math:`0.4393(1-q)\le0.4393\,t/(2+t)`.

Without near classes that is the union bound. With :math:`u_i=e^{-\mathbb ED_i}` and :math:`U=\sum_{\text{near}}u_i`,
:math:`h(M,t)=(1-u_k)/(1+u_k+U)`, :math:`k(M,t)=(1-u_k)U/((1+u_k)(1+u_k+U))` and :math:`t=e^{M/2}U`. The first rises in
M, the others as well, and U is at most that of the least margins. On a grid of M from its least value on, what rises
is taken at the lower end of each step where it is added, and at the upper end where it is subtracted.
"""

import torch
from torch import Tensor

from bnndp.maths.logistic import logistic_tail
from bnndp.maths.rounding import TINY, gamma

__all__ = ["lead_bound", "leads"]

_STEPS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0, 1.4, 2.0, 3.0)  # of the grid of M
_HALF_BEND = 0.0962251  # half of sup |h''|, and sup |sigma''|
_HALF_WEIGHED = 0.21965  # half of what bounds k'' / (1 - q)
_FARTHEST = 300.0  # margins further off are taken as this


def leads(
    mean: Tensor,  # (batch, classes): E D_i is at least this
    variance: Tensor,  # (batch, classes): Var D_i is at most this
    middles: Tensor,  # (batch, k, i): Var B_i of the pair c and k is at most this
    tails: Tensor,  # (batch, classes): E sigma(-D_i) is at most this
    reference: Tensor,  # (batch,): the class c
) -> Tensor:
    """Lower bounds of E (p_c - p_k) for every k: (batch, classes); -1 where nothing better is known, 0 for c itself.

    The far classes are those with the least tails: as many as serve each k best.
    """
    classes = mean.shape[1]
    own = reference[:, None] == torch.arange(classes, device=mean.device)
    known = ((mean >= 0) & (variance < torch.inf)) | own
    least = torch.where(known & ~own, mean, 0.0).clamp_max(_FARTHEST)
    spread = torch.where(known, variance, torch.inf).masked_fill(own, 0.0)
    tails = torch.fmin(tails.nan_to_num(1.0), logistic_tail(mean, spread)).masked_fill(own, 0.0)  # (batch, i)
    order = torch.where(known, tails, -1.0).argsort(-1).argsort(-1)  # the rank of every class; unknown ones are far
    near = order[:, None] >= torch.arange(classes + 1, device=mean.device)[:, None]  # (batch, f, i)
    near = near & (known & ~own)[:, None]
    itself = torch.eye(classes, dtype=torch.bool, device=mean.device)[:, None]  # (k, 1, i)
    near, far = near[:, None] & ~itself, ~near[:, None] & ~itself & ~own[:, None, None]  # (batch, k, f, i)
    weight = torch.exp(-least)
    others = torch.where(near, weight[:, None, None], 0.0).sum(-1)  # U: (batch, k, f)
    sway = torch.where(near, middles[:, :, None], 0.0).sum(-1).sqrt()  # Lambda
    lost = torch.where(far, tails[:, None, None], 0.0).sum(-1)
    found = _on_grid(least, spread, tails, others, sway) - lost
    slack = gamma(8 * classes + 64)
    found = (found - slack * (4 + lost + others + sway.square())).nan_to_num(-1.0, neginf=-1.0).amax(-1)
    found = torch.where(known, found, -1.0).clamp_min(-1.0)
    return found.masked_fill(own, 0.0)


def _on_grid(least: Tensor, variance: Tensor, tails: Tensor, others: Tensor, sway: Tensor) -> Tensor:
    """Lower bounds of E h(D, T) for any M >= ``least`` (batch, k): (batch, k, f)."""
    steps = least.new_tensor(_STEPS)
    low = least[..., None] + steps  # (batch, k, steps)
    high = torch.cat([low[..., 1:], torch.full_like(low[..., :1], torch.inf)], -1)
    tail = torch.minimum(tails[..., None], logistic_tail(low, variance[..., None].expand_as(low)))
    low, high, tail, v = low[:, :, None], high[:, :, None], tail[:, :, None], variance[:, :, None, None]
    u, last, rest, sway = torch.exp(-low), torch.exp(-high), others[..., None], sway[..., None]
    t = torch.where(rest > 0, torch.exp((0.5 * high).clamp_max(_FARTHEST)) * rest, 0.0)  # (batch, k, f, steps)
    plain = (1 - u) / (1 + u + rest) - _HALF_BEND * v
    heavy = (1 - last) * rest / ((1 + last) * (1 + last + rest)) + _HALF_WEIGHED * v * t / (2 + t)
    heavy = torch.where(high < torch.inf, heavy, rest / (1 + rest) + torch.where(rest > 0, _HALF_WEIGHED * v, 0.0))
    mixed = v.sqrt() * sway
    first = 0.25 * sway * (0.5 * (high.square() + v).sqrt()).clamp_max(1.0)
    second = 0.125 * mixed + torch.tanh(0.5 * high) * (0.125 * sway.square() + 0.5 * _HALF_BEND * mixed)
    worst = torch.where(sway > 0, torch.minimum(first, second), 0.0)
    return (torch.maximum(plain, 1 - 2 * tail - heavy) - worst).amin(-1)


def lead_bound(rows: Tensor, found: Tensor, reference: Tensor) -> Tensor:
    r"""Lower bounds of :math:`A\cdot\mathbb Ep` (batch, rows) from the leads (batch, classes) of the reference class.

    With b the mean of A, :math:`A\cdot p=b+\sum_{k\ne c}(b-A_k)(p_c-p_k)`. So there is one if no :math:`A_k`,
    :math:`k\ne c`, is above b; elsewhere minus infinity.
    """
    classes = rows.shape[-1]
    own = (reference[:, None] == torch.arange(classes, device=rows.device))[:, None]
    size, mean = rows.abs().sum(-1), rows.mean(-1)
    factor = (mean[..., None] - rows).masked_fill(own, 0.0)
    slack = gamma(4 * classes + 16) * size
    fine = (factor >= -slack[..., None]).all(-1)
    value = mean + (factor.clamp_min(0) * found[:, None]).sum(-1)
    return torch.where(fine, value - classes * slack - TINY, -torch.inf).nan_to_num(-torch.inf, neginf=-torch.inf)
