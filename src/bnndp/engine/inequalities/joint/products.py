r"""Products of two values of a jointly Gaussian vector: how q = sum of Sigma_jk d_j d_k varies, j != k, d = z - E z.

With :math:`D_j=p_j(X_j-\mathbb EX_j)`, of covariance K, and :math:`d=D+R`, q is :math:`D^\top\Sigma D+2D^\top\Sigma
R+R^\top\Sigma R`. The first part has the variance :math:`2\operatorname{tr}(\Sigma K)^2`, and a norm in L4 of at most
:math:`15^{1/4}` times its standard deviation: for eigenvalues :math:`\lambda` its fourth moment is
:math:`12(\sum\lambda^2)^2+48\sum\lambda^4\le15(2\sum\lambda^2)^2`. For the others :math:`\operatorname{Var}F\le\mathbb
E|\nabla F|^2` and :math:`\lVert F-\mathbb EF\rVert_4\le\sqrt3\,\lVert|\nabla F|\rVert_4` (Poincare; Aida and Stroock
1994), the gradient being that in noise. With :math:`\delta_j=\varphi'(X_j)-p_j` and the covariances C of X they have
the gradients :math:`2C^{1/2}(p\circ\Sigma R+\delta\circ\Sigma D)` and :math:`2C^{1/2}(\delta\circ\Sigma R)`.

Traces and diagonals of this kind do not fall if K or Cov R become larger as forms, and a matrix that is within some
numbers of another one is at most that with the sums of these numbers over rows added to its diagonal.

Here :math:`\mathbb E|C^{1/2}(p\circ\Sigma R)|^2=\operatorname{tr}(\Sigma K\Sigma\operatorname{Cov}R)`, and
:math:`\mathbb E|C^{1/2}y|^2\le\sum_{jk}|\rho_{jk}|r_jr_k\lVert y_j\rVert_2\lVert y_k\rVert_2`. Of
:math:`(\Sigma D)_j=a_j\xi_j+G`, :math:`\xi_j=(X_j-\mathbb EX_j)/r_j`, G is independent of X_j, so
:math:`\lVert\delta_j(\Sigma D)_j\rVert_2\le\lVert\delta_j\rVert_2(\Sigma K\Sigma)_{jj}^{1/2}
+|a_j|\lVert\delta_j\rVert_4g_4`: slopes of neurons that are far from their kinks hardly move. The last
part is also at most the sum of :math:`|\Sigma_{jk}|\lVert R_jR_k\rVert_2`, and :math:`\mathbb ER_j^2R_k^2\le u_j^2u_k^2
+|\rho_{jk}|\lVert R_j\rVert_4^2\lVert R_k\rVert_4^2` (Gebelein).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.moments.intervals import BLUR
from bnndp.engine.moments.joint_gaussian import Coupling, Joint, Near
from bnndp.engine.moments.signal import GAUSSIAN
from bnndp.maths.rounding import TINY, UP

__all__ = ["products_deviation"]

_HELD = 2**22  # numbers of products that are held at a time
_FORM = 15**0.25 * UP
_ROOT3 = 3**0.5 * UP


@dataclass(frozen=True, slots=True)
class _Sized:
    """Products of matrices (batch, n_out, n, n), and those of their lengths: (batch, n_out)."""

    value: Tensor
    size: Tensor


def products_deviation(
    joint: Joint,
    coupling: Coupling,
    remainders: Tensor,  # (batch, n, q): norms of R
) -> tuple[Tensor, Tensor]:
    """Standard deviation of q, and the norm of q - E q in L4, at most: (batch, n_out) each."""
    forms = coupling.forms
    step = max(1, _HELD // forms.numel())
    root = joint.spread_root
    fourth = (joint.widest * joint.slope_deviation).sqrt()  # ||delta||_4
    eighth = (joint.widest**3 * joint.slope_deviation) ** 0.25  # ||delta||_8
    pairs, size, above = (
        joint.blocks(forms),
        forms.abs(),
        [_above(matrix) for matrix in (joint.linear, joint.remainder)],
    )
    found = []
    for start in range(0, remainders.shape[0], step):
        part = slice(start, start + step)
        (linear, straight), (remainder, bent) = (_sizes(joint, matrix[part], forms) for matrix in above)
        r, w, p = (values[part, None] for values in (root, joint.widest, joint.slope.size))
        gauss = (2 * _trace(linear, linear)).sqrt()
        shared = _shared(joint, pairs, part)
        moved = joint.slope_deviation[part, None] * straight.sqrt() + GAUSSIAN[0] * fourth[part, None] * shared
        mixed = _trace(linear, remainder).sqrt() + joint.length(r * moved, part)
        left, left8 = (torch.einsum("ojk,bk->boj", size, remainders[part, :, q]) for q in (0, 1))  # of (Sigma R)_j
        sway = torch.fmin(w * bent.sqrt(), fourth[part, None] * left)
        curved = torch.fmin(2 * joint.length(r * sway, part), _added(joint, forms, remainders, part))
        deviation = gauss + 2 * mixed + curved
        mixed4 = joint.length(r * (p * left + GAUSSIAN[1] * eighth[part, None] * straight.sqrt()), part)
        curved4 = joint.length(r * torch.fmin(w * left, eighth[part, None] * left8), part)
        norm4 = _FORM * gauss + _ROOT3 * (2 * mixed4 + 2 * curved4)
        found.append(torch.stack([deviation, norm4]))
    deviation, norm4 = torch.cat(found, 1) * coupling.scale * UP
    return deviation, norm4


def _added(joint: Joint, coupling: Tensor, remainders: Tensor, part: slice) -> Tensor:  # -> (batch, n_out)
    """The sum of |Sigma_jk| ||R_j R_k||_2."""
    own = joint.second[part]
    apart = torch.einsum("bj,ojk,bk->bo", own, coupling.abs(), own)
    shape = joint.correlation[part].shape[:3]
    pairs = own.reshape(shape)[..., :, None] * own.reshape(shape)[..., None, :]
    more = joint.pair_norms(remainders[..., 0], part) - pairs  # of pairs of one group
    return (apart + torch.einsum("ogjk,bgjk->bo", joint.blocks(coupling).abs(), more) + BLUR * apart) * UP


def _shared(joint: Joint, pairs: Tensor, part: slice) -> Tensor:  # (n_out, groups, g, g) -> (batch, n_out, n)
    """What (Sigma D)_j has in common with X_j: the size of its covariance with it over r_j, at most."""
    slope, gaussian = joint.slope, joint.gaussian
    shape = gaussian.value[part].shape[:3]
    line = Near(*(values[part].reshape(shape).unsqueeze(-2) for values in (slope.value, slope.off)))
    each = line.times(Near(gaussian.value[part], gaussian.off[part]))  # p_k C_jk
    value = torch.einsum("ogjk,bgjk->bogj", pairs, each.value).flatten(2)
    off = torch.einsum("ogjk,bgjk->bogj", pairs.abs(), each.off + BLUR * each.value.abs()).flatten(2)
    return (value.abs() + off) / joint.root[part, None].clamp_min(TINY) * UP


def _above(matrix: Near) -> Tensor:  # (batch, groups, g, g)
    """A matrix that is above it as a form: a symmetric one is at most the sums of the sizes of its rows."""
    off = matrix.off + BLUR * matrix.value.abs()
    return matrix.value + torch.diag_embed(off.sum(-1) * UP)


def _sizes(joint: Joint, matrix: Tensor, forms: Tensor) -> tuple[_Sized, Tensor]:
    """Sigma M, and the diagonal of Sigma M Sigma: (batch, n_out, n, n), (batch, n_out, n)."""
    n_out, n, _ = forms.shape
    found = joint.apply(forms.reshape(1, -1, n), matrix).reshape(-1, n_out, n, n)
    length = matrix.square().sum((-1, -2, -3)).sqrt()[:, None, None]  # (batch, 1, 1)
    each = torch.linalg.vector_norm(forms, dim=-1)  # (n_out, n)
    diagonal = (found * forms).sum(-1) + BLUR * each.square() * length
    return _Sized(found, torch.linalg.vector_norm(each, dim=-1) * length[..., 0]), diagonal.clamp_min(0) * UP


def _trace(a: _Sized, b: _Sized) -> Tensor:  # (batch, n_out)
    """The trace of the product, at most."""
    value = torch.einsum("bojk,bokj->bo", a.value, b.value)
    return (value + BLUR * a.size * b.size).clamp_min(0) * UP
