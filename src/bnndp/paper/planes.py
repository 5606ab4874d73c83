r"""Affine bounds of :math:`\mathbb E[\mathrm{ReLU}(\zeta_h)\mid z]=g(m_h(z),r_h(z))` on a region (``prop:neuron``).

Every plane has the form :math:`a_h\,\mu_h z+c_h\,\sigma_h^2(t\circ z)+\text{offset}_h`, so that a combination of all
neurons costs two products with the layer's own matrices, and no matrix per box is ever built.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.geometry.bounds import Affine
from bnndp.maths.normal import pdf
from bnndp.maths.rectified import expected_relu, ratio, relu_probability
from bnndp.maths.rounding import ELEMENTARY, TINY, gamma
from bnndp.paper.layers import Layer, Ranges, Region

_FEW = 3  # up to this many inputs the 2^n vertices of a region are enumerated
_SMALL = 1e-100  # a tangent of the square root at a smaller standard deviation is replaced by a constant


@dataclass(frozen=True, slots=True)
class Planes:
    """``a * (mean @ z) + c * (var @ (t * z)) + offset`` for every neuron, region and box."""

    a: Tensor  # (batch, cells, n_out)
    c: Tensor  # (batch, cells, n_out), >= 0
    t: Tensor  # (batch, cells, n_in)
    offset: Tensor  # (batch, cells, n_out)

    def __call__(self, layer: Layer, z: Tensor) -> Tensor:  # z (batch, cells, n_in)
        """Values at ``z`` to working accuracy: (batch, cells, n_out)."""
        return self.a * (z @ layer.mean.T) + self.c * ((self.t * z) @ layer.var_upper.T) + self.offset


def lower_planes(layer: Layer, at: Tensor) -> Planes:
    r"""Tangent planes at ``at``: below :math:`g(m(z),r(z))` for *every* real z, not only on a region.

    .. math:: g(m,r)=\max_u\,[\Phi(u)m+\varphi(u)r],\qquad r(z)\ge(\sigma^2\circ z^*)z/r(z^*)+\sigma_b^2/r(z^*)

    (``g`` is convex and homogeneous; Cauchy-Schwarz). Hence :math:`p\,m(z)+(q/r^*)(\dots)` is a lower bound for any
    :math:`0\le p\le1`, :math:`0\le q\le\varphi(\Phi^{-1}(p))`: the rounding error of ``p`` is taken from ``q``, with
    :math:`|d\varphi(\Phi^{-1}(p))/dp|=|u|`, and no error is left that would grow with z.
    """
    mean, _ = layer.point(at)
    std = layer.std_upper(at.abs())
    u = ratio(mean, std)
    p = relu_probability(mean, std).clamp(0, 1)
    q = (pdf(u) * (1 - ELEMENTARY) - 4 * ELEMENTARY * (u.abs() + 1) * p).clamp_min(0)
    c = torch.where(std > _SMALL, q / std.clamp_min(_SMALL) * (1 - ELEMENTARY), 0.0)
    offset = p * layer.bias + c * layer.bias_var_lower
    error = gamma(8) * (p * layer.bias.abs() + c * layer.bias_var_lower) + TINY
    return Planes(p, c, at, offset - error)


def upper_planes(layer: Layer, region: Region, ranges: Ranges) -> Planes:
    r"""Planes above :math:`g(m(z),r(z))` on each region (``prop:neuron`` with errata item 5).

    For slopes :math:`\alpha,\beta\ge0` and :math:`\gamma=\max(g-\alpha m-\beta r)` over the **four** vertices of the
    rectangle of (m, r), convexity of ``g`` gives :math:`g\le\alpha m+\beta r+\gamma`; and
    :math:`r\le\rho/2+\hat s(z)/(2\rho)` for any :math:`\rho>0`, where :math:`\hat s` replaces every :math:`z_j^2` by
    its chord. The slopes are those of the plane through three vertices that is lowest at ``region.at``.
    """
    alpha, beta = vertex_slopes(ranges)  # (5, batch, cells, n_out)
    gamma_ = _intercept(ranges, alpha, beta)
    t = region.lower + region.upper
    chord = region.lower * region.upper
    rho = ((region.at * t - chord) @ layer.var_upper.T + layer.bias_var_upper).clamp_min(0).sqrt()
    curved = rho > _SMALL
    rho = rho.clamp_min(_SMALL)
    c = torch.where(curved, beta / (2 * rho), 0.0)
    const = layer.bias_var_upper - chord @ layer.var_upper.T
    size = layer.bias_var_upper + (chord.abs() + t.abs() * region.magnitude) @ layer.var_upper.T  # t is rounded, too
    rise = torch.where(curved, beta * rho / 2 + c * const, beta * ranges.std_upper)
    offset = gamma_ + alpha * layer.bias + rise
    error = gamma_.abs() + alpha * layer.bias.abs() + beta * (rho + ranges.std_upper) + c * size
    offset = offset + gamma(layer.n_in + 16) * error + TINY
    if layer.n_in <= _FEW:
        alpha, c, offset = _tighten(layer, region, alpha, c, t, offset)
    height = alpha * (region.at @ layer.mean.T) + c * ((t * region.at) @ layer.var_upper.T) + offset
    best = height.argmin(0, keepdim=True)
    a, c, offset = (value.expand_as(height).gather(0, best)[0] for value in (alpha, c, offset))
    return Planes(a, c, t, offset)


def compose(layer: Layer, base: Affine, region: Region, low: Planes, high: Planes, extra: Tensor) -> Affine:
    """Above ``base`` at E[z_k | z] plus ``extra`` for every z of the regions, with all rounding in the offset.

    ``base`` has a matrix (batch, regions or 1, rows, n_out); that of the result is (batch, regions, rows, n_in).
    """
    plus, minus = base.matrix.clamp_min(0), base.matrix.clamp_max(0)
    a = plus * high.a[:, :, None] + minus * low.a[:, :, None]
    spread_high = ((plus * high.c[:, :, None]) @ layer.var_upper) * high.t[:, :, None]
    spread_low = ((minus * low.c[:, :, None]) @ layer.var_lower) * low.t[:, :, None]
    matrix = a @ layer.mean + spread_high + spread_low
    size = a.abs() @ layer.mean.abs() + spread_high.abs() + spread_low.abs()  # sums of one sign: no cancellation
    high_offset, low_offset = high.offset[:, :, None], low.offset[:, :, None]
    offset = (plus * high_offset + minus * low_offset).sum(-1) + base.offset + extra
    total = (size @ region.magnitude[..., None])[..., 0] + base.offset.abs() + extra.abs()
    total = total + (plus * high_offset.abs() - minus * low_offset.abs()).sum(-1)
    met = layer.met * (1 + region.magnitude.sum(-1, keepdim=True)).square()  # by coefficients that may underflow
    error = gamma(sum(layer.mean.shape) + 32) * total + TINY * met
    return Affine(matrix, offset + error)


def vertex_slopes(ranges: Ranges) -> tuple[Tensor, Tensor]:
    """Slopes in (m, r) of the four planes through three vertices, and of the chord at the largest r: (5, ...) each.

    Two of the four are the facets of the concave envelope over the rectangle, so the lowest of all at a point is the
    best plane there; but a plane through three vertices need not dominate the fourth (errata item 5), so the
    intercept must be taken over all of them.
    """
    m, m2, r, r2 = ranges.mean_lower, ranges.mean_upper, ranges.std_lower, ranges.std_upper
    low, high = expected_relu(m, r), expected_relu(m, r2)
    low2, high2 = expected_relu(m2, r), expected_relu(m2, r2)
    alpha_low = torch.where(m2 > m, (low2 - low) / (m2 - m), relu_probability(m, r)).clamp(0, 1)
    alpha_high = torch.where(m2 > m, (high2 - high) / (m2 - m), relu_probability(m, r2)).clamp(0, 1)
    beta_low = torch.where(r2 > r, (high - low) / (r2 - r), 0.0).clamp(0, 1)
    beta_high = torch.where(r2 > r, (high2 - low2) / (r2 - r), 0.0).clamp(0, 1)
    alpha = torch.stack([alpha_low, alpha_low, alpha_high, alpha_high, alpha_high])
    beta = torch.stack([beta_low, beta_high, beta_low, beta_high, torch.zeros_like(beta_low)])
    return alpha, beta


def _intercept(ranges: Ranges, alpha: Tensor, beta: Tensor) -> Tensor:
    """``max (g - alpha m - beta r)`` over the four vertices, rounded up."""
    corners = itertools.product((ranges.mean_lower, ranges.mean_upper), (ranges.std_lower, ranges.std_upper))
    best = torch.full_like(alpha, -torch.inf)
    for m, r in corners:
        error = 2 * ELEMENTARY * (m.abs() + r) + TINY
        best = torch.maximum(best, expected_relu(m, r) - alpha * m - beta * r + error)
    return best


def _tighten(
    layer: Layer, region: Region, alpha: Tensor, c: Tensor, t: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Offsets from the 2^n vertices of a region of few inputs, with the exact chord as one more candidate if n = 1.

    ``g(m(z), r(z))`` minus a plane is convex in z itself (errata item 6), so its maximum is at a vertex.
    """
    picks = torch.tensor(list(itertools.product((0.0, 1.0), repeat=layer.n_in)), dtype=t.dtype, device=t.device)
    vertices = torch.where(picks[:, None, None] > 0, region.upper, region.lower)  # (2^n, batch, cells, n_in)
    size = vertices.abs() @ layer.mean.abs().T
    linear = vertices @ layer.mean.T
    std = layer.std_upper(vertices.abs())
    error = gamma(2 * layer.n_in + 8) * (size + layer.bias.abs()) + TINY
    height = expected_relu(linear + layer.bias + error, std)
    if layer.n_in == 1:
        run = linear[1] - linear[0]
        exact = torch.where(run != 0, (height[1] - height[0]) / torch.where(run != 0, run, 1.0), 0.0)
        alpha = torch.cat([alpha, exact[None]])
        c = torch.cat([c, torch.zeros_like(exact)[None]])
        offset = torch.cat([offset, torch.full_like(exact, torch.inf)[None]])
    spread, spread_size = (t * vertices) @ layer.var_upper.T, (t * vertices).abs() @ layer.var_upper.T
    best = torch.full_like(offset, -torch.inf)
    for v in range(len(vertices)):
        scale = height[v] + alpha.abs() * size[v] + c * spread_size[v] + std[v]
        slack = (2 * ELEMENTARY + gamma(2 * layer.n_in + 8)) * scale + TINY
        best = torch.maximum(best, height[v] - alpha * linear[v] - c * spread[v] + slack)
    return alpha, c, torch.minimum(offset, best)
