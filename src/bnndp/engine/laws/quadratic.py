"""Quadratic forms of a signal, for posteriors that couple the weights of a row: their means and cumulants."""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.engine.laws.weights import SpreadRemainder, Weights, spread_around
from bnndp.engine.moments.intervals import BLUR
from bnndp.engine.moments.joint_gaussian import Coupling
from bnndp.engine.moments.pre_activation import Expansion
from bnndp.engine.moments.signal import Signal
from bnndp.engine.sums.expansion import expansion_of
from bnndp.engine.sums.series import History, Products
from bnndp.engine.sums.terms import sums_of
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import SMALL, TINY, UP

__all__ = ["LARGEST", "form_expansion", "mean_form", "spread_remainder"]


LARGEST = 2**24  # numbers in matrices of covariances that are formed


def mean_form(weights: Weights, z: Signal, diagonal: Tensor, covariance: Tensor | None) -> Interval:
    r"""Range of :math:`\mathbb Es(z)=s(\mathbb Ez)+\mathbb E\,d^\top\Sigma d`, d = z - E z: (batch, n_out).

    s at the mean lies between its tangent at the middle c of the means and the tangent plus the excess; the second
    part is :math:`\sum_j\Sigma_{jj}\operatorname{Var}z_j` for independent coordinates, at least the same with
    :math:`\mathbb E\operatorname{Var}(z_j\mid Y)` always, and at most the excess of the standard deviations.
    ``diagonal`` (n_out, n_in) and ``covariance`` (n_out, n_in + 1, n_in + 1), if it fits, are those of the forms.
    """
    at, reach = spread_around(weights, z.mean)
    # |grad s . d| <= 2 sqrt(s(c)) sqrt(excess), by Cauchy and Schwarz.
    slope, excess = 2 * at.sqrt() * reach, reach.square()
    low, high = (at / UP - slope * UP).clamp_min(0), at + slope + excess
    if covariance is not None:
        direct = _range(covariance, z.mean)
        low, high = torch.maximum(low, direct.lower), torch.minimum(high, direct.upper)
    random = z.variance @ diagonal.mT if z.source else weights.spread_excess(z.variance.sqrt())
    least = z.noise.lower @ diagonal.mT / UP
    if z.joint is not None and covariance is not None:
        apart = z.joint.products(Coupling.of(covariance))
        off = apart.off + BLUR * (z.variance.sqrt() @ diagonal.sqrt().mT).square()  # the forms are rounded themselves
        least = torch.maximum(least, z.variance_low @ diagonal.mT / UP + apart.value - off)
        random = torch.minimum(random, z.variance @ diagonal.mT * UP + apart.value + off)
    return Interval((low + least) / UP, (high + random) * UP)


def _range(covariance: Tensor, mean: Interval) -> Interval:
    """Of the forms for all (z, 1) with z of this range: squares by their ends, products of two around the middle."""
    one = torch.ones_like(mean.lower[:, :1])
    low, high = torch.cat([mean.lower, one], -1), torch.cat([mean.upper, one], -1)
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    off = covariance - torch.diag_embed(diagonal)
    middle, radius = 0.5 * (low + high), 0.5 * (high - low) * UP
    least = torch.maximum(low, -high).clamp_min(0).square() @ diagonal.mT
    most = torch.maximum(low.abs(), high.abs()).square() @ diagonal.mT
    at = torch.einsum("bk,okl,bl->bo", middle, off, middle)
    reach = torch.einsum("bk,okl,bl->bo", 2 * middle.abs() + radius, off.abs(), radius)
    slack = reach * UP + BLUR * torch.einsum("bk,okl,bl->bo", middle.abs(), off.abs(), middle.abs())
    return Interval((least / UP + at - slack).clamp_min(0), most * UP + at + slack)


def form_expansion(
    z: Signal, mean: Tensor, covariance: Tensor, history: History | None
) -> Expansion:  # (n_out, n_in), (n_out, n_in + 1, n_in + 1)
    """Cumulants of sums of independent z_k with weights of these means, covariances within a row and a last bias.

    Given a history only the squares of s are expanded, and its ``extra`` stands for the rest.
    """
    form, size = covariance[:, :-1, :-1], covariance[:, :-1].abs()
    diagonal = form.diagonal(dim1=-2, dim2=-1)  # (n_out, n_in)
    off = form - torch.diag_embed(diagonal)

    def apply(values: Tensor, matrix: Tensor) -> Tensor:  # (batch, n_in) or (batch, n_out, n_in), (n_out, n_in)
        return values @ matrix.mT if values.ndim == 2 else (values * matrix).sum(-1)

    if history is not None:
        return expansion_of(z, *sums_of(mean, diagonal, apply), history)
    middle, radius = 0.5 * (z.mean.lower + z.mean.upper), 0.5 * (z.mean.upper - z.mean.lower)
    at = torch.einsum("okl,bl->bok", covariance[:, :-1, :-1], middle) + covariance[:, :-1, -1]  # half the slope of s
    reach = radius * UP + BLUR * middle.abs()
    around = torch.einsum("okl,bl->bok", size[..., :-1], reach) + BLUR * size[..., -1]
    safe = torch.where(diagonal > 0, diagonal, torch.inf)
    effective = Interval((at - around) / safe - TINY, (at + around) / safe + TINY)
    return expansion_of(z, *sums_of(mean, diagonal, apply), None, effective, _products(z, mean, off))


def spread_remainder(z: Signal, covariance: Tensor) -> SpreadRemainder:  # (n_out, n_in + 1, n_in + 1)
    r"""What is off the diagonal of :math:`s=\tilde z^\top\Sigma\tilde z`.

    With :math:`d=z-\mathbb Ez` it is :math:`2(\Sigma\,\mathbb E\tilde z)\cdot d+\sum_{j\ne k}\Sigma_{jk}d_jd_k`.
    """
    off = Coupling.of(covariance).forms
    size, border = off.abs(), covariance[:, :-1, -1]
    middle, radius = 0.5 * (z.mean.lower + z.mean.upper), 0.5 * (z.mean.upper - z.mean.lower) * UP
    rows = 2 * (torch.einsum("okl,bl->bok", off, middle) + border)
    slack = 2 * torch.einsum("okl,bl->bok", size, radius + BLUR * middle.abs()) + BLUR * border.abs()
    products = [torch.einsum("bk,okl,bl->bo", norm, size, norm) for norm in z.norms.unbind(-1)]
    return SpreadRemainder(rows, slack * UP, torch.stack(products, -1) * UP)


def _products(z: Signal, mean: Tensor, off: Tensor) -> Products:  # off (n_out, n_in, n_in), zero on the diagonal
    v, fourth = z.noise.upper.clamp_min(SMALL**2), z.noise_fourth.upper.clamp_min(SMALL**4)
    cube, norm4, norm8 = (v * fourth).sqrt(), fourth.sqrt().sqrt(), z.norms[..., 1].clamp_min(SMALL)
    size, weight = off.abs().clamp_min(SMALL**2), mean.abs().clamp_min(SMALL)
    both, both_size = off * mean[:, :, None] * mean[:, None, :], size * weight[:, :, None] * weight[:, None, :]

    def pairs(matrix: Tensor, left: Tensor, right: Tensor) -> Tensor:  # (n_out, n_in, n_in), (batch, n_in) each
        return torch.einsum("bk,okl,bl->bo", left, matrix, right) * UP

    middle, half = 0.5 * (z.noise.lower + v), 0.5 * (v - z.noise.lower)
    cross = torch.einsum("bk,okl,bl->bo", middle, both, middle)
    slack = 2 * pairs(both_size, half, v) + BLUR * pairs(both_size, v, v)
    square = weight.square()
    return Products(
        variance=2 * pairs(size.square(), v, v),
        norm4=_product_norm(4, size, norm4),
        norm8=_product_norm(8, size, norm8),
        cross=Interval(cross - slack, cross + slack),
        fifth=pairs(size * square[:, :, None] * weight[:, None, :], cube, v),
        sixth=pairs(both_size * square[:, :, None], v.square(), v),
        size=pairs(both_size, v, v),
    )


def _product_norm(
    q: int, size: Tensor, norms: Tensor
) -> Tensor:  # (n_out, n_in, n_in), (batch, n_in) -> (batch, n_out)
    r"""The norm in Lq of :math:`\chi=\sum_{k\ne l}\Sigma_{kl}A_kA_l` for independent centred A, at most.

    By adding, or as sums of martingale differences: :math:`\lVert\chi\rVert_q^2\le2(q-1)^2\sum_{k\ne l}\Sigma_{kl}^2
    \lVert A_k\rVert_q^2\lVert A_l\rVert_q^2`. Proof. :math:`\chi=\sum_lA_l\,2\sum_{k<l}\Sigma_{kl}A_k`, the factors of
    a term are independent, and :math:`\lVert\sum X_k\rVert_q^2\le(q-1)\sum\lVert X_k\rVert_q^2` for martingale
    differences (Rio 2009), of the terms and of the inner sums.
    """
    added = torch.einsum("bk,okl,bl->bo", norms, size, norms)
    square = norms.square()
    drawn = (2 * (q - 1) ** 2 * torch.einsum("bk,okl,bl->bo", square, size.square(), square)).sqrt()
    return torch.minimum(added, drawn) * UP
