r"""The variance of outputs that are Gaussian at a given x, by how far the features below the last layer can reach.

Nothing is random before the last layer, so :math:`u\cdot f(x)` has the standard deviation :math:`|R\tilde z|`, z the
features at x and :math:`R^\top R=\Sigma_u` the covariance of the row u of the weights. It is small where the features
are like those of the data, and large in directions that no x takes them. So the map from x to z is followed: with
lines of one slope below and above each activation, :math:`\varphi(y)=sy+t+e`, :math:`|e|\le g`,

.. math:: R\tilde z=y_0+\sum_kR_ke_k+R_0(x-c),\qquad
          |R\tilde z|\le|y_0|+\sum_k\sup_{|e|\le g_k}|R_ke|+\sup_{|d|\le h}|R_0d|,

R_k being R carried down to the k-th activation and h the half-widths of the box. For any weights w > 0,
:math:`|Re|\le\lVert R\,\mathrm{diag}(w)^{1/2}\rVert_2\,(\sum_ie_i^2/w_i)^{1/2}` (Cauchy and Schwarz), here with w = g;
the triangle inequality gives :math:`\sum_ig_i|R_{\cdot i}|`. The spectral norm is at most
:math:`(\operatorname{tr}(RR^\top)^{16})^{1/32}`, as all eigenvalues are non-negative.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

import torch
from torch import Tensor

from bnndp.engine.laws.correlated import Correlated
from bnndp.engine.laws.matrix_normal import MatrixNormal
from bnndp.engine.nodes.activation import Activated
from bnndp.engine.nodes.node import Node
from bnndp.engine.nodes.weighted import Weighted
from bnndp.engine.rows import DenseRows
from bnndp.maths.rounding import SMALL, TINY, UP, gamma

__all__ = ["reached_covariance", "reached_variance"]

_LARGEST = 2**24  # numbers in the matrices of one box
_HELD = 2**23  # and of those that are formed at a time
_BLUR = 1e-10  # of the sizes of the terms of a covariance: above all rounding of it and of its root
_SQUARINGS = 4


def reached_variance(output: Weighted, last: Node, rows: Tensor) -> Tensor | None:  # rows (batch, rows, n_out)
    """Upper bounds (batch, rows) of ``Var(rows . f(x))`` on the box; None where nothing is known.

    The features after the node ``last`` are functions of x.
    """

    def root(part: slice) -> Tensor | None:
        covariance = row_covariance(output.weights, rows[part])
        return None if covariance is None else _root(*covariance)

    found = _reached(output, last, rows, root)
    return None if found is None else found.square() * UP + SMALL**2


def reached_covariance(output: Weighted, last: Node, left: Tensor, right: Tensor) -> Tensor | None:
    r"""Upper bounds (batch, rows) of ``Cov(left . f(x), right . f(x))``, rows (batch, rows, n_out) both, or None.

    As a form of the features it is a quarter of the difference of the variances of the sum and of the difference. It is
    at most its positive part, :math:`\tilde z^\top Q_+\tilde z=|R\tilde z|^2`.
    """

    def root(part: slice) -> Tensor | None:
        forms = [row_covariance(output.weights, left[part] + sign * right[part]) for sign in (1, -1)]
        if forms[0] is None or forms[1] is None:
            return None
        (plus, size), (minus, more) = forms[0], forms[1]
        return _positive_root(0.25 * (plus - minus), 0.25 * (size + more))

    found = _reached(output, last, left, root)
    return None if found is None else found.square() * UP + SMALL**2


def _reached(
    output: Weighted, last: Node, rows: Tensor, root: Callable[[slice], Tensor | None]
) -> Tensor | None:  # (batch, rows)
    """The largest norms of ``root (z, 1)``, a few boxes at a time."""
    batch, count, n = *rows.shape[:2], output.weights.n_in + 1
    if not last.signal.fixed or count * n * max(n, last.signal.variance.shape[-1]) > _LARGEST:
        return None
    rank = output.weights.layer.rank if isinstance(output.weights, Correlated) else n
    step = max(1, _HELD // (count * n * max(n, rank)))
    found = []
    for start in range(0, batch, step):
        part = slice(start, min(start + step, batch))
        matrix = root(part)
        if matrix is None:
            return None
        found.append(_largest_norm(matrix, last, part))
    return torch.cat(found)


@singledispatch
def row_covariance(weights: object, rows: Tensor) -> tuple[Tensor, Tensor] | None:
    """Covariances (batch, rows, n_in + 1, n_in + 1) of rows of weights, the bias last, and the sizes of their terms.

    The sizes (batch, rows) are at least the largest eigenvalue of the sum of the absolute terms. None: not known.
    """
    return None


@row_covariance.register
def _(weights: Correlated, rows: Tensor) -> tuple[Tensor, Tensor] | None:
    layer, size = weights.layer, rows.abs()
    factor = layer.factor  # (n_out, n_in + 1, rank)
    plain = torch.cat([layer.weight_std, layer.bias_std[:, None]], -1).square()  # (n_out, n_in + 1)
    own = rows.square() @ plain
    norms = torch.linalg.vector_norm(factor.flatten(1), dim=-1)
    if layer.shared:
        joint = torch.einsum("bri,ijq->brjq", rows, factor)
        form, scale = joint @ joint.mT, (size @ norms).square()
    else:
        form, scale = torch.einsum("bri,ijk->brjk", rows.square(), factor @ factor.mT), rows.square() @ norms.square()
    return form + torch.diag_embed(own), scale + own.sum(-1)


@row_covariance.register
def _(weights: MatrixNormal, rows: Tensor) -> tuple[Tensor, Tensor] | None:
    layer = weights.layer
    across = torch.linalg.vector_norm(rows @ layer.row_factor, dim=-1).square()
    size = torch.linalg.vector_norm(rows.abs() @ layer.row_factor.abs(), dim=-1).square()
    columns = layer.column_factor
    return across[..., None, None] * (columns @ columns.mT), size * columns.square().sum()


def _root(covariance: Tensor, size: Tensor) -> Tensor:
    r"""R (batch, rows, n, n) with :math:`R^\top R` at least the covariance; NaN where that is no number."""
    blur = _BLUR * size + SMALL**2
    unit = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    found, failed = torch.linalg.cholesky_ex(covariance + blur[..., None, None] * unit)
    return torch.where((failed == 0)[..., None, None], found.mT, torch.nan)


def _positive_root(form: Tensor, size: Tensor) -> Tensor:
    r"""R (batch, rows, n, n) with :math:`R^\top R` at least the symmetric form; NaN where that is no number."""
    fine = form.isfinite().all(-1).all(-1) & size.isfinite()
    values, vectors = torch.linalg.eigh(torch.where(fine[..., None, None], form, 0.0))
    root = (values.clamp_min(0) + (_BLUR * size + TINY)[..., None]).sqrt()[..., None] * vectors.mT
    return torch.where(fine[..., None, None], root, torch.nan)


def _largest_norm(root: Tensor, last: Node, part: slice) -> Tensor:
    """What the norm of ``root (z, 1)`` is at most, for the features z after ``last``: (batch, rows)."""
    matrix, constant = root[..., :-1], root[..., -1]  # (batch, rows, n, n_in), (batch, rows, n)
    lost, total, node = torch.zeros_like(constant), torch.zeros_like(constant[..., 0]), last
    while isinstance(node, Activated) and node.weighted is not None:
        slope, middle, gap = (each[part] for each in _parallel(node))
        scale, weights = node.weighted.scale[part], node.weighted.weights
        total = total + _reach(matrix, gap)
        size = matrix.abs()
        met = slope.abs() * scale + middle.abs() + gap
        lost = lost + gamma(8 * (weights.n_in + weights.n_out) + 64) * (_dot(size, met) + constant.abs())
        constant = constant + _dot(matrix, middle)
        matrix = matrix * slope[:, None, None]
        constant = constant + _dot(matrix, weights.bias.expand_as(node.weighted.scale)[part])
        pulled = weights.pull(DenseRows(matrix.flatten(1, 2))).dense().values
        matrix, node = pulled.unflatten(1, matrix.shape[1:3]), node.below
    mean = node.signal.mean
    low, high = mean.lower[part], mean.upper[part]
    middle, radius = 0.5 * (low + high), 0.5 * (high - low) * UP
    lost = lost + gamma(8 * matrix.shape[-1] + 64) * (_dot(matrix.abs(), middle.abs() + radius) + constant.abs())
    constant = constant + _dot(matrix, middle)
    norms = torch.linalg.vector_norm(constant, dim=-1) + torch.linalg.vector_norm(lost, dim=-1)
    return (norms + total + _reach(matrix, radius)) * UP + TINY


def _dot(matrix: Tensor, v: Tensor) -> Tensor:  # (batch, rows, q, n), (batch, n) -> (batch, rows, q)
    return (matrix @ v[:, None, :, None])[..., 0]


def _parallel(node: Activated) -> tuple[Tensor, Tensor, Tensor]:
    """Slope, middle and half the distance of two parallel lines below and above the activation: (batch, n) each."""
    planes, mean, hinge = node.planes, node.pre.mean, node.hinge
    slope, top = planes.upper_alpha, planes.upper_offset
    tilt = planes.lower_alpha - slope
    bottom = planes.lower_offset + torch.minimum(tilt * mean.lower, tilt * mean.upper)
    if hinge is not None and bool((hinge.root == 0).all() & (hinge.tilt == 0).all()):
        # Convex with its kink at zero, where it is zero: above every line through zero of a slope between its two.
        within = (slope >= hinge.slope) & (slope <= hinge.slope + hinge.jump)
        bottom = torch.where(within, bottom.clamp_min(0), bottom)
    return slope, 0.5 * (top + bottom), 0.5 * (top - bottom).clamp_min(0) * UP + gamma(16) * planes.size


def _reach(matrix: Tensor, radius: Tensor) -> Tensor:  # (batch, rows, q, n), (batch, n) -> (batch, rows)
    """Sup of ``|matrix e|`` over ``|e| <= radius``, at most."""
    columns = _dot(torch.linalg.vector_norm(matrix, dim=-2, keepdim=True), radius)[..., 0]
    weighted = matrix * radius.sqrt()[:, None, None]
    spectral = _spectral_norm(weighted) * radius.sum(-1).sqrt()[:, None]
    return torch.fmin(columns, spectral) * UP


def _spectral_norm(matrix: Tensor) -> Tensor:  # (..., q, n) -> (...)
    """The largest singular value, at most; its square is taken from the smaller of both products."""
    gram = matrix @ matrix.mT if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT @ matrix
    n, exponent = gram.shape[-1], 1.0
    total = torch.zeros_like(gram[..., 0, 0])  # logarithm of the factors taken out
    for _ in range(_SQUARINGS):
        trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(TINY)
        total, gram = total + exponent * trace.log(), gram / trace[..., None, None]
        gram, exponent = gram @ gram, exponent / 2
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    largest = torch.exp(total + exponent * trace.log())
    return (largest * (1 + 64 * n * gamma(max(*matrix.shape[-2:]) + 64))).sqrt() * UP
