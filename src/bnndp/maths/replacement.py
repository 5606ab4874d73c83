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

Blocks of terms share their smoothing (``engine/sums/lindeberg.py``), which makes the bound larger. For terms of
other laws and for other activations the error is that of ``_swap`` in ``engine/inequalities/expectation.py``.
"""

import torch
from torch import Tensor

_BLOCKS = 8
_GROWTH = 0.6  # below 1 the first blocks, which have least smoothing, are small

ABSOLUTE_THIRD = 1.6
r"""Above :math:`\mathbb E|B|^3/\sigma^3=2\sqrt{2/\pi}=1.5958` of a Gaussian B; E|B|^3 is at most this times E|A|^3 for
any centred A of the same variance."""


def blocks_of(key: Tensor) -> Tensor:
    """Masks (batch, blocks, n) of a partition of the terms, in which ``key`` (batch, n) increases with the block."""
    n = key.shape[-1]
    of_rank = (_BLOCKS * (torch.arange(n, dtype=torch.float64, device=key.device) / n) ** _GROWTH).long()
    order = key.argsort(dim=-1, stable=True)
    block = torch.empty_like(order).scatter_(-1, order, of_rank.expand_as(order))
    return block[:, None] == torch.arange(_BLOCKS, device=key.device)[:, None]
