r"""How far a sum of independent rectified Gaussians is from Gaussian, inside a rectified mean: Lindeberg's replacement.

Let :math:`T=\sum_jw_jA_j` with independent :math:`A_j=z_j-\mathbb Ez_j`, z_j rectified Gaussians with variances
:math:`v_j` and third central moments :math:`\kappa_j\ge0`, and :math:`F=g(M+\cdot,\sqrt{s_0})`. Replacing the terms one
after the other by Gaussians of the same variance turns :math:`\mathbb E F(T)` into
:math:`g(M,\sqrt{s_0+\sum w_j^2v_j})`. At step j the terms before are already Gaussian and smooth F, so that its third
derivative there is that of :math:`g(\cdot,\rho_j)`, :math:`\rho_j^2=s_0+\sum_{l<j}w_l^2v_l`, at most
:math:`\varphi(1)/\rho_j^2`.

**What a step costs.** For laws A, B of equal mean and variance (Peano's kernel)

.. math::
   \mathbb E F(A)-\mathbb E F(B)=\int F'''(t)\,D(t)\,dt,\qquad
   D(t)=\tfrac12\mathbb E(A-t)_+^2-\tfrac12\mathbb E(B-t)_+^2,\qquad \int D=\tfrac16(\mathbb EA^3-\mathbb EB^3).

For A a centred convex and increasing function of a Gaussian variable, such as a rectified Gaussian, and B = N(0, v),
:math:`D\ge0` everywhere, so :math:`\int|D|=\kappa/6` and

.. math:: |\mathbb E F(wA)-\mathbb E F(wB)|\le\tfrac16|w|^3\kappa\,\sup|F'''|,

which no smaller number can replace: it is attained by a cubic. Proof of :math:`D\ge0`. As functions of one standard
Gaussian variable A is convex and B a line, so A - B is convex: it is first positive, then negative, then positive (or a
part of that). The quantiles of A and B are in that order too, and so :math:`\Delta=P(A>t)-P(B>t)` has the signs +, -, +
as t increases. :math:`D_1(t)=\int_t^\infty\Delta` vanishes at both ends (equal means) and falls, rises, falls: it is
first negative, then positive. Hence :math:`D(t)=\int_t^\infty D_1` first rises and then falls; it vanishes at both ends
too (equal second moments). With Taylor's formula for F''' the step is also known to higher order, as
:math:`\int t^2D=\tfrac1{60}\mathbb EA^5`.

So :math:`|\mathbb E F(T)-g(M,\sqrt{s_0+\sum w_j^2v_j})|\le\sum_j\varphi(1)|w_j|^3\kappa_j/(6\rho_j^2)`, in any order of
the terms.

For terms of other laws and for other activations the error is that of ``_swap`` in ``engine/general/expectation.py``.
"""

import math

import torch
from torch import Tensor

from bnndp.maths.rounding import TINY
from bnndp.maths.tails import PEAK

_PHI_1 = math.exp(-0.5) / math.sqrt(2 * math.pi)  # sup |u phi(u)|
_BLOCKS = 8
_GROWTH = 0.6  # below 1 the first blocks, which have least smoothing, are small
_SKEWNESS = 0.5777  # sup of kappa / sqrt(v) over the rectified N(u, 1)

ABSOLUTE_THIRD = 1.6
r"""Above :math:`\mathbb E|B|^3/\sigma^3=2\sqrt{2/\pi}=1.5958` of a Gaussian B; E|B|^3 is at most this times E|A|^3 for
any centred A of the same variance."""

TO_SECOND_MOMENT = 2 * PEAK / _PHI_1
r"""Times :math:`\sqrt{s_0+V}`: the error of the mean of ReLU^2, whose third derivative is at most 2 phi(0)/rho."""

TO_CDF = PEAK / _PHI_1
r"""Over :math:`\sqrt{s_0}`: the error of the mean of Phi(. / sqrt(s0)), whose third derivative is phi(0)/rho^3."""

TO_DENSITY_SQUARE = 2.5678
r"""Over :math:`\sqrt{s_0}`: error of :math:`\mathbb E\,\varphi(\cdot/\sqrt{s_0})^2` (docs/theory.md, section 4.12)."""


def replacement_error(
    base: Tensor,  # (..., batch, rows): s0 > 0
    weight: Tensor,  # (rows, n)
    variance: Tensor,  # (batch, n): Var z_j is at least this
    third: Tensor,  # (batch, n): E (z_j - E z_j)^3 is at most this
) -> Tensor:  # (..., batch, rows)
    """Upper bound of the error for rectified Gaussians z_j; infinite where ``base`` is zero and the sum is random.

    It holds for no other laws. The terms are taken in blocks, the most nearly Gaussian ones first, as they smooth for
    the others; within a block only the smoothing by the blocks before it is used, which makes the bound larger.
    """
    w = weight.abs()
    cubes = torch.where(w > 0, (w * w * w).clamp_min(TINY), 0.0)  # it may underflow while z is large
    block = blocks_of(third / variance.clamp_min(TINY))  # (batch, blocks, n)
    smooth = torch.cumsum(torch.where(block, variance[:, None], 0.0) @ w.square().mT, dim=1)  # (batch, blocks, rows)
    rho2 = base[..., None, :] + torch.nn.functional.pad(smooth[:, :-1], (0, 0, 1, 0))  # only the blocks before
    cost = torch.where(block, third[:, None], 0.0) @ cubes.mT
    step = torch.where(cost == 0, 0.0, (_PHI_1 / 6) * cost / rho2)
    return step.nan_to_num(torch.inf, posinf=torch.inf).sum(-2)  # NaN is no bound


def blocks_of(key: Tensor) -> Tensor:
    """Masks (batch, blocks, n) of a partition of the terms, in which ``key`` (batch, n) increases with the block."""
    n = key.shape[-1]
    of_rank = (_BLOCKS * (torch.arange(n, device=key.device) / n) ** _GROWTH).long()
    order = key.argsort(dim=-1, stable=True)
    block = torch.empty_like(order).scatter_(-1, order, of_rank.expand_as(order))
    return block[:, None] == torch.arange(_BLOCKS, device=key.device)[:, None]


def conditional_replacement_error(base: Tensor, cube: Tensor) -> Tensor:
    r"""The same given a random layer y, averaged over y: :math:`\varphi(1)\cdot0.5777\,\text{cube}/(6s_0)`.

    ``cube`` (batch, rows) bounds :math:`\sum_j|w_j|^3\sqrt{\mathbb Ev_j\,\mathbb Es_j^2}`, or some of its terms
    :math:`2|w_j|^3\,\mathbb Ez_j^3`. A rectified Gaussian of variance v made from variance s has
    :math:`\kappa\le0.5777\,s\sqrt v`, so :math:`\mathbb E\kappa\le0.5777\sqrt{\mathbb Ev\,\mathbb Es^2}` by Cauchy and
    Schwarz; and :math:`\kappa\le\mathbb E[z^3\mid y]` as z and its mean are not negative.
    """
    return (_PHI_1 / 6) * _SKEWNESS * cube / base
