r"""Upper bounds of E sigma(-D) for margins D of large variance, by exponential moments.

:math:`\sigma(-D)\le\lambda^\lambda(1-\lambda)^{1-\lambda}e^{-\lambda D}` for :math:`0<\lambda\le1`. Given the last
hidden layer z it is Gaussian: :math:`\mathbb E[e^{-\lambda D}|z]=\exp(\text{const}+\sum_i(a_iz_i+c_iz_i^2))` with
:math:`a=-\lambda(\mu_c-\mu_j)`, :math:`c=\lambda^2(\sigma_c^2+\sigma_j^2)/2`. With one hidden layer the :math:`z_i` are
independent rectified Gaussians and the mean is the product of :math:`e^{L(m_i,r_i;a_i,c_i)}` (maths/exponential.py);
on a box :math:`\sum_iL` is bounded by an affine function of x. Two hidden layers: engine/tails/two_layers.py. Proofs:
docs/theory-exponential.md.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.tails.first_layer import Ranges
from bnndp.geometry.box import Box, apply_rows
from bnndp.layers import Linear
from bnndp.maths.exponential import chernoff_constant, log_moment, tilted
from bnndp.maths.rounding import ELEMENTARY, TINY, gamma, up

__all__ = ["Rows", "in_x", "largest_log_moment", "margin_exponents", "one_layer"]

_GRID = (0.06, 0.1, 0.16, 0.25, 0.4, 0.6, 0.8, 1.0)
_FLAT = 1e-9  # relative width below which a chord's slope is not worth its rounding error


@dataclass(frozen=True, slots=True)
class Rows:
    """``E[e^(-lam D) | z] = exp(constant + linear . z + square . z^2)``, z the last hidden layer."""

    linear: Tensor  # (batch, rows, n)
    square: Tensor  # (batch, rows, n), >= 0
    constant: Tensor  # (batch, rows)


def margin_exponents(layer: Linear, label: Tensor, rival: Tensor, lam: Tensor) -> Rows:  # (batch, rows) each
    """The exponents of the margins of the classes ``label`` against the classes ``rival``."""
    mu, variance = layer.weight_mean, layer.weight_std.square()
    bias, constant = layer.bias_mean, layer.bias_std.square()
    spread = constant[label] + constant[rival]
    value = -lam * (bias[label] - bias[rival]) + 0.5 * lam.square() * spread
    size = lam * (bias[label].abs() + bias[rival].abs()) + lam.square() * spread
    return Rows(
        linear=-lam[..., None] * (mu[label] - mu[rival]),
        square=0.5 * lam[..., None].square() * (variance[label] + variance[rival]) * (1 + ELEMENTARY),
        constant=value + ELEMENTARY * size,
    )


def one_layer(layers: tuple[Linear, Linear], box: Box, ranges: Ranges, label: Tensor, rival: Tensor) -> Tensor:
    """Bounds u >= E sigma(-D) with one hidden layer; ``label``, ``rival`` and u are (batch, rows).

    Lambda is the best at the centre of each box.
    """
    first, last = layers
    m, r = ranges.m_centre[:, None], ranges.r_centre[:, None]
    best = torch.full(rival.shape, torch.inf, dtype=m.dtype, device=m.device)
    lam = torch.ones_like(best)
    for value in _GRID:
        trial = torch.full_like(best, value)
        rows = margin_exponents(last, label, rival, trial)
        total = log_moment(m, r, rows.linear, rows.square).sum(-1) + rows.constant + chernoff_constant(trial).log()
        lam, best = torch.where(total < best, trial, lam), torch.minimum(total, best)
    rows = margin_exponents(last, label, rival, lam)
    total = largest_log_moment(first, box, ranges, rows.linear, rows.square) + rows.constant
    return chernoff_constant(lam) * torch.exp(total + ELEMENTARY * total.abs())


def largest_log_moment(
    layer: Linear,
    box: Box,
    ranges: Ranges,
    a: Tensor,  # (batch, rows, n)
    c: Tensor,  # (batch, rows, n), >= 0
) -> Tensor:  # (batch, rows)
    r"""Upper bound over the box of :math:`\sum_iL(m_i(x),r_i(x);a_i,c_i)` for the first hidden layer.

    Each L lies below a plane :math:`\alpha m+\beta r+\text{const}` on its rectangle. r(x) lies above
    :math:`(q(x)+\sigma_b^2)/r(x_c)` (Cauchy and Schwarz) and below :math:`(s(x)+\rho^2)/(2\rho)`,
    :math:`s(x)\le2q(x)-\sum_j\sigma_j^2\check x_j\hat x_j+\sigma_b^2`, with :math:`q` as in ``first_layer.py``.
    """
    return box.maximum(*in_x(layer, box, ranges, *_plane(ranges, a, c)))


def in_x(
    layer: Linear, box: Box, ranges: Ranges, alpha: Tensor, beta: Tensor, constant: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows and offsets of affine functions of x above ``sum of alpha m(x) + beta r(x) + constant`` on the box."""
    variance, bias_variance = layer.weight_std.square(), layer.bias_std.square()
    r_high, centre = ranges.r.upper[:, None], ranges.r_centre[:, None]
    middle = 0.5 * (ranges.r.lower + ranges.r.upper)[:, None]
    rise, fall = beta.clamp_min(0), beta.clamp_max(0)
    slope = rise / middle + fall / centre
    chord = apply_rows(variance, box.lower * box.upper)[:, None]
    offset = alpha * layer.bias_mean + constant + fall * bias_variance / centre
    offset = offset + 0.5 * rise * ((bias_variance - chord) / middle + middle)
    matrix = alpha @ layer.weight_mean + (slope @ variance) * box.centre[:, None]
    m_size = up(apply_rows(layer.weight_mean.abs(), box.magnitude) + layer.bias_mean.abs(), box.n)[:, None]
    q_size = up(apply_rows(variance, box.magnitude.square()) + bias_variance, box.n)[:, None]
    size = alpha.abs() * m_size + slope.abs() * q_size + beta.abs() * r_high + offset.abs()
    lost = gamma(2 * (layer.n_in + layer.n_out) + 16) * size.sum(-1)
    return matrix, offset.sum(-1) + lost


def _plane(ranges: Ranges, a: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Slopes in m and in r and the constant of a plane above L on the rectangle of (m, r): (batch, rows, n) each.

    For :math:`a\ge0` L is convex in (m, r): any slopes, and the constant from the four corners. For :math:`a<0` its
    second derivative in a direction (dm, dr) is at most
    :math:`(a^2+4c^2U^2)\,dr^2+2cw(|dm|+|dr|B)^2`, :math:`U^2\ge\mathbb E_tZ^2`,
    :math:`B=(U+|m|)/r+r(|a|+2cU)`: the tangent plane at the centre plus half of that at the corners.
    """
    m, r = (ranges.m.lower[:, None], ranges.m.upper[:, None]), (ranges.r.lower[:, None], ranges.r.upper[:, None])
    m_mid, r_mid = 0.5 * (m[0] + m[1]), 0.5 * (r[0] + r[1])
    at = tilted(m_mid, r_mid, a, c)
    corners = [[log_moment(x, y, a, c) for y in r] for x in m]
    rise = 0.5 * ((corners[1][0] - corners[0][0]) + (corners[1][1] - corners[0][1])) / (m[1] - m[0]).clamp_min(TINY)
    grow = 0.5 * ((corners[0][1] - corners[0][0]) + (corners[1][1] - corners[1][0])) / (r[1] - r[0]).clamp_min(TINY)
    convex = a >= 0
    alpha = torch.where(convex & (m[1] - m[0] > _FLAT * (1 + m_mid.abs())), rise, at.in_mean)
    beta = torch.where(convex & (r[1] - r[0] > _FLAT * (1 + r_mid)), grow, at.in_std)
    above = torch.stack([corners[i][j] - alpha * m[i] - beta * r[j] for i in (0, 1) for j in (0, 1)]).amax(0)
    value = log_moment(m_mid, r_mid, a, c)
    below = value - alpha * m_mid - beta * r_mid + _bend(m, r, a, c)
    below = torch.where(torch.isfinite(corners[0][1]), below, torch.inf)  # the largest r is too near the pole
    size = alpha.abs() * torch.maximum(m[0].abs(), m[1].abs()) + beta.abs() * r[1] + value.abs() + 1
    return alpha, beta, torch.where(convex, above, below) + 16 * ELEMENTARY * size


def bend(m: tuple[Tensor, Tensor], r: tuple[Tensor, Tensor], a: Tensor, c: Tensor, dr: Tensor) -> tuple[Tensor, Tensor]:
    """For a < 0 and a tangent plane of L at a point within dr in r: constant and curvature in m of what it lacks."""
    top = tilted(m[1], r[1], torch.zeros_like(c), c)  # E_t Z^2 <= E Z^2 e^(c Z^2), which increases in m and in r
    second = top.second * torch.exp(top.log) * (1 + 8 * ELEMENTARY) + ELEMENTARY * r[1].square()
    root, w = second.sqrt(), 1 / (1 - 2 * c * r[1].square())
    reach = (root + torch.maximum(m[0].abs(), m[1].abs())) / r[0].clamp_min(TINY) + r[1] * (a.abs() + 2 * c * root)
    slack = 0.5 * (a.square() + 4 * c * c * second) * dr.square() + 2 * c * w * (dr * reach).square()
    return slack * (1 + 16 * ELEMENTARY), 4 * c * w * (1 + 16 * ELEMENTARY)


def _bend(m: tuple[Tensor, Tensor], r: tuple[Tensor, Tensor], a: Tensor, c: Tensor) -> Tensor:
    """Half the second derivative of L for a < 0 in the direction of a corner, at most (see ``_plane``)."""
    dm, dr = 0.5 * (m[1] - m[0]) * (1 + ELEMENTARY), 0.5 * (r[1] - r[0]) * (1 + ELEMENTARY)
    top = tilted(m[1], r[1], torch.zeros_like(c), c)  # E_t Z^2 <= E Z^2 e^(c Z^2), which increases in m and in r
    second = top.second * torch.exp(top.log) * (1 + 8 * ELEMENTARY) + ELEMENTARY * r[1].square()
    root, w = second.sqrt(), 1 / (1 - 2 * c * r[1].square())
    reach = (root + torch.maximum(m[0].abs(), m[1].abs())) / r[0].clamp_min(TINY) + r[1] * (a.abs() + 2 * c * root)
    bend = 0.5 * (a.square() + 4 * c * c * second) * dr.square() + c * w * (dm + dr * reach).square()
    return bend * (1 + 16 * ELEMENTARY)
