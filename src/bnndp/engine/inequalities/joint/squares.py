r"""How the square of what a line leaves varies with that line, for values of a jointly Gaussian vector.

With L and R of ``expansion.py``, :math:`\rho_j` the correlation of L and X_j and a smooth f,

.. math:: |\operatorname{Cov}(f(L),R^2)|\le|\mathbb Ef'|\,|\mathbb ELR^2|
          +\tfrac1{\sqrt2}\lVert f''(L)\rVert_2\,v\sum_{jk}|\mu_j\mu_k|\varepsilon_{jk}^2\lVert R_jR_k\rVert_2 .

Proof. f(L) is its mean plus :math:`\mathbb Ef'\,L` plus a part of degree two and more, of standard deviation at most
:math:`v\lVert f''\rVert_2/\sqrt2`. That meets only what the mean of :math:`R_jR_k` given L has of these degrees. A
function of X_j and X_k loses at least the square of their multiple correlation :math:`\varepsilon_{jk}` with L there:
E[ . | L] is a contraction by :math:`\varepsilon` of degree one in the direction of L, and by :math:`\varepsilon^q` of
degree q (Mehler). Here :math:`\varepsilon_{jk}^2=(\rho_j^2+\rho_k^2-2\rho_j\rho_k\rho_{jk})/(1-\rho_{jk}^2)\le
(\rho_j^2+\rho_k^2)/(1-|\rho_{jk}|)`, and :math:`\rho_j^2` for j = k.

:math:`\mathbb ELR^2=2\sum_{jk}\mu_j\mu_kc_j\mathbb E\delta_jR_k`, :math:`\delta_j=\varphi'(X_j)-p_j` (Stein), and
:math:`|\mathbb E\delta_jR_k|\le\rho_{jk}^2` times the deviations of what is of degree two and more in both (Mehler).
:math:`\mathbb ER_j^2R_k^2\le u_j^2u_k^2+|\rho_{jk}|\lVert R_j\rVert_4^2\lVert R_k\rVert_4^2` (Gebelein).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.moments.intervals import BLUR
from bnndp.engine.moments.joint_gaussian import Joint
from bnndp.maths.rounding import TINY, UP

__all__ = ["SquareWithLine", "square_with_line"]


@dataclass(frozen=True, slots=True)
class SquareWithLine:
    """Factors of the covariance of f(L) and R^2, at most: (batch, n_out) each."""

    first: Tensor  # of the mean of f': |E L R^2|
    second: Tensor  # of ||f''(L)||_2 / sqrt(2)


def square_with_line(
    joint: Joint,
    mu: Tensor,  # (1, n_out, n)
    c: Tensor,  # (batch, n_out, n): |Cov(L, X_j)|
    each: Tensor,  # (batch, n_out, n): |Cov(L, X_j)| / r_j
    norm4: Tensor,  # (batch, n): of R
) -> SquareWithLine:
    """Of rows ``mu``."""
    size, rho = mu.abs(), joint.correlation
    left, right = size * c * joint.slope_second[:, None], size * joint.second[:, None]
    first = 2 * (joint.apply(left, rho.square()) * right).sum(-1)
    near, wide = size * each.square(), joint.second
    groups = rho.shape[:-1]
    pairs = joint.pair_norms(norm4) / (1 - rho).clamp_min(TINY)
    pairs = torch.diagonal_scatter(pairs, 0.5 * norm4.square().reshape(groups), dim1=-2, dim2=-1)
    own = wide.reshape(groups)[..., :, None] * wide.reshape(groups)[..., None, :]
    all_pairs = (near * wide[:, None]).sum(-1) * (size * wide[:, None]).sum(-1)  # those of two groups are independent
    second = 2 * (all_pairs + (joint.apply(near, pairs - own) * size).sum(-1))
    blur = 4 * BLUR * (all_pairs + (joint.apply(near, own + pairs) * size).sum(-1))
    return SquareWithLine(first * UP, (second + blur) * UP)
