r"""The first hidden layer: x is not random, so its pre-activations are exactly Gaussian.

With :math:`m_i(x)=\mu_i\cdot x+b_i` and :math:`r_i(x)=\sqrt{\sum_j\sigma_{ij}^2x_j^2+\sigma_{b,i}^2}` the mean output
is :math:`\mathbb Ez_i=g(m_i(x),r_i(x))`, convex in x (Prop. ``prop:neuron``, corrected by errata items 5 and 6).

Both planes are written as :math:`\alpha\,m_i(x)+\beta\,q_i(x)+\text{offset}+\text{dense}\cdot x` with
:math:`q_i(x)=\sum_j\sigma_{ij}^2c_jx_j` and c the centre of the box, so that composing them costs two matrix products
with the shared matrices :math:`\mu` and :math:`\sigma^2` and no matrix of each box.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine.dense.records import Latent, Sources
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box, apply_rows
from bnndp.layers import Linear
from bnndp.maths.central import fourth_central, third_central
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import Moments, expected_relu, moments, ratio
from bnndp.maths.rounding import ELEMENTARY, SMALL, TINY, down, gamma, up
from bnndp.maths.tails import PEAK

__all__ = ["FirstLayer", "Plane", "Planes", "Ranges", "first_layer", "first_ranges"]

_MOST_VERTICES = 16  # boxes with at most so many vertices get the chord over all of them


@dataclass(frozen=True, slots=True)
class Plane:
    """``alpha m(x) + beta q(x) + offset + dense @ x``; see the module docstring."""

    alpha: Tensor  # (batch, n)
    beta: Tensor  # (batch, n)
    offset: Tensor  # (batch, n)
    dense: Tensor | None  # (batch, n, n_in), or None for zero


@dataclass(frozen=True, slots=True)
class Planes:
    """Those of a layer, on both sides."""

    lower: Plane  # (batch, 1, n) each, or (batch, rows, n): every row of a sum may have its own
    upper: Plane
    size: Tensor  # (batch, n): sum of the absolute values of a plane's terms, the scale of rounding errors


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges over the box of m(x) and r(x), and r(x) at the centre."""

    m: Interval
    r: Interval
    m_centre: Tensor
    r_centre: Tensor


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """Bounds of the first hidden layer on a box: planes in x, moments, and the independent sources."""

    layer: Linear
    centre: Tensor  # (batch, n_in)
    tangent: Tensor  # (batch, n): u* of the lower planes where nobody asks for another one
    ranges: Ranges
    upper: Plane
    size: Tensor  # (batch, n): sum of the absolute values of a plane's terms, the scale of rounding errors
    latent: Latent
    sources: Sources

    @property
    def lower(self) -> Plane:
        """The lower planes at the default tangent points."""
        return self.lower_at(self.tangent)

    def planes(self, tangent: Tensor | None = None) -> Planes:  # tangent (batch, rows, n)
        """Both sides, below at the default tangent points or at those of each row."""
        lower = self.lower_at(self.tangent[:, None] if tangent is None else tangent)
        return Planes(lower, self.upper, self.size)

    def lower_at(self, u: Tensor) -> Plane:  # u (batch, n) or (batch, rows, n)
        r"""``g(m, r) >= Phi(u) m + phi(u) r`` (g is convex and of degree one), ``r(x) >= (q(x) + sigma_b^2)/r(c)``.

        The second is the inequality of Cauchy and Schwarz; both hold for every x and every u.
        """
        m, r, r_centre = self.ranges.m, self.ranges.r.upper, self.ranges.r_centre
        root = up(r_centre, self.layer.n_in + 8)
        slack = ELEMENTARY * (m.magnitude + r)
        if u.ndim == 3:
            root, slack = root[:, None], slack[:, None]
        beta = pdf(u) / root
        return Plane(cdf(u), beta, beta * self.layer.bias_std.square() - slack, None)


def first_layer(layer: Linear, box: Box, signs: Tensor | None = None) -> FirstLayer:
    """Relax the first layer on ``box``; ``signs`` (batch, n) of -1, 0 and 1 restricts it to the cell of these signs.

    That is the cell of the x with ``signs * m(x) >= 0``.
    """
    ranges = first_ranges(layer, box)
    if signs is not None:
        ranges = replace(ranges, m=ranges.m.where_sign(signs))
    u = ratio(ranges.m_centre, ranges.r_centre)
    high = _upper_plane(layer, box, ranges)
    m_size = up(apply_rows(layer.weight_mean.abs(), box.magnitude) + layer.bias_mean.abs(), box.n)
    q_size = apply_rows(layer.weight_std.square(), box.magnitude * box.centre.abs())
    steepest = PEAK / ranges.r_centre  # beta of any lower plane
    any_lower = m_size + steepest * (q_size + layer.bias_std.square()) + ELEMENTARY * (m_size + ranges.r.upper)
    size = torch.maximum(any_lower, _size(high, m_size, q_size, box))
    ends = moments(ranges.m.lower, ranges.r.lower), moments(ranges.m.upper, ranges.r.upper)
    return FirstLayer(layer, box.centre, u, ranges, high, size, _latent(*ends, ranges), _sources(*ends, ranges))


def first_ranges(layer: Linear, box: Box) -> Ranges:
    """Ranges of m and r on ``box``, and their values at its centre.

    From above r is at least ``SMALL``: what squares lose that underflow is far less, and no plane is steeper than that.
    """
    m = Interval(*box.range(layer.weight_mean, layer.bias_mean))
    variance, constant = layer.weight_std.square(), layer.bias_std.square()
    least = torch.maximum(box.lower, -box.upper).clamp_min(0).square()  # min x_j^2: zero where the box holds 0
    most = box.magnitude.square()
    s_low = (down(apply_rows(variance, least) + constant, box.n + 2) - SMALL**2).clamp_min(0)
    s_high = up(apply_rows(variance, most) + constant, box.n + 3) + SMALL**2
    r = Interval(down(s_low.sqrt(), 1), up(s_high.sqrt(), 1))
    m_centre = apply_rows(layer.weight_mean, box.centre) + layer.bias_mean
    r_centre = (apply_rows(variance, box.centre.square()) + constant + SMALL**2).sqrt()
    return Ranges(m, r, m_centre, r_centre)


def _upper_plane(layer: Linear, box: Box, ranges: Ranges) -> Plane:
    """The lowest at the centre of the candidates: chord in m at the largest r, plane on the rectangle, vertices."""
    candidates = [_interval_plane(ranges), _rectangle_plane(layer, box, ranges)]
    q_centre = apply_rows(layer.weight_std.square(), box.centre.square())
    values = [plane.alpha * ranges.m_centre + plane.beta * q_centre + plane.offset for plane in candidates]
    better = values[1] < values[0]
    alpha, beta, offset = (
        torch.where(better, getattr(candidates[1], name), getattr(candidates[0], name))
        for name in ("alpha", "beta", "offset")
    )
    if 2**box.n > _MOST_VERTICES:
        return Plane(alpha, beta, offset, None)
    matrix, constant = _vertex_plane(layer, box)
    better = apply_rows(matrix, box.centre) + constant < values[1].minimum(values[0])
    zero = torch.zeros_like(alpha)
    return Plane(
        torch.where(better, zero, alpha),
        torch.where(better, zero, beta),
        torch.where(better, constant, offset),
        torch.where(better[..., None], matrix, 0.0),
    )


def _interval_plane(ranges: Ranges) -> Plane:
    """Chord of the convex ``g(., r_upper)`` over the range of m; g increases in r."""
    low, high = (expected_relu(end, ranges.r.upper) for end in (ranges.m.lower, ranges.m.upper))
    alpha = ((high - low) / (ranges.m.upper - ranges.m.lower).clamp_min(TINY)).clamp(0, 1)
    slack = ELEMENTARY * (ranges.m.magnitude + ranges.r.upper)
    offset = torch.maximum(low - alpha * ranges.m.lower, high - alpha * ranges.m.upper) + slack
    return Plane(alpha, torch.zeros_like(alpha), offset, None)


def _rectangle_plane(layer: Linear, box: Box, ranges: Ranges) -> Plane:
    r"""Plane ``alpha m + slope r + const`` above g on the rectangle of (m, r), then r(x) by an affine bound above.

    Any slopes will do with the constant from all four corners (errata item 5). ``slope >= 0``, and
    :math:`r\le(s+s^*)/(2\sqrt{s^*})`, :math:`s(x)\le 2q(x)-\sum_j\sigma_j^2\check x_j\hat x_j+\sigma_b^2` (chord of
    each coordinate's square).
    """
    m, r = ranges.m, ranges.r
    middle_m, middle_r = 0.5 * (m.lower + m.upper), 0.5 * (r.lower + r.upper)
    alpha = (expected_relu(m.upper, middle_r) - expected_relu(m.lower, middle_r)) / (m.upper - m.lower).clamp_min(TINY)
    slope = (expected_relu(middle_m, r.upper) - expected_relu(middle_m, r.lower)) / (r.upper - r.lower).clamp_min(TINY)
    alpha, slope = alpha.clamp(0, 1), slope.clamp(0, 1)
    corners = [(a, b) for a in (m.lower, m.upper) for b in (r.lower, r.upper)]
    const = torch.stack([expected_relu(a, b) - alpha * a - slope * b for a, b in corners]).amax(0)
    chord = apply_rows(layer.weight_std.square(), box.lower * box.upper)
    beta = slope / middle_r
    slack = 4 * (ELEMENTARY + gamma(box.n + 8)) * (m.magnitude + (1 + slope) * r.upper + beta * r.upper.square())
    offset = const + 0.5 * beta * (layer.bias_std.square() - chord) + 0.5 * slope * middle_r + slack
    return Plane(alpha, beta, offset, None)


def _vertex_plane(layer: Linear, box: Box) -> tuple[Tensor, Tensor]:
    """Affine bound above g(m(x), r(x)) from its values at all vertices: convex in x, so the vertices suffice.

    Slopes are the mean differences across the box; for one input this is the chord.
    """
    corner = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=box.lower.dtype, device=box.lower.device)] * box.n)
    corner = corner.reshape(-1, box.n)  # (vertices, n_in)
    points = torch.where(corner[:, None, :] > 0, box.upper, box.lower)  # (vertices, batch, n_in)
    m = points @ layer.weight_mean.mT + layer.bias_mean
    s = points.square() @ layer.weight_std.square().mT + layer.bias_std.square() + TINY  # squares may underflow
    scale = points.abs() @ layer.weight_mean.abs().mT + layer.bias_mean.abs() + s.sqrt()
    value = expected_relu(m, s.sqrt()) + (ELEMENTARY + gamma(box.n + 8)) * scale
    weight = (2 * corner - 1) / corner.shape[0]
    width = box.upper - box.lower
    matrix = torch.einsum("vj,vbi->bij", weight, value) * 2 / width.clamp_min(TINY)[:, None, :]
    matrix = torch.where(width[:, None, :] > 0, matrix, 0.0)
    flat = torch.einsum("bij,vbj->vbi", matrix, points)
    lost = gamma(box.n + 8) * torch.einsum("bij,bj->bi", matrix.abs(), box.magnitude) + TINY
    return matrix, (value - flat).amax(0) + lost


def _latent(low: Moments, high: Moments, at: Ranges) -> Latent:
    """Moments of z_i over the box: all increase in m and in r, so the ends of the ranges bound them."""
    scale_low = at.m.lower.clamp_min(0) + at.r.lower
    scale = at.m.upper.clamp_min(0) + at.r.upper
    return Latent(
        mean=Interval((low.mean - ELEMENTARY * scale_low).clamp_min(0), high.mean + ELEMENTARY * scale),
        second=Interval((low.second - ELEMENTARY * scale_low**2).clamp_min(0), high.second + ELEMENTARY * scale**2),
        variance=high.variance + ELEMENTARY * at.r.upper.square(),
        fourth=high.fourth + ELEMENTARY * scale**4,
        activity=torch.ones_like(scale),
    )


def _sources(low: Moments, high: Moments, at: Ranges) -> Sources:
    m, r = at.m, at.r
    u_low = torch.minimum(ratio(m.lower, r.lower), ratio(m.lower, r.upper))
    u_high = torch.maximum(ratio(m.upper, r.lower), ratio(m.upper, r.upper))
    scale, square = m.upper.clamp_min(0) + r.upper, r.upper.square()
    return Sources(
        variance=Interval(
            (low.variance - ELEMENTARY * r.lower.square()).clamp_min(0), high.variance + ELEMENTARY * square
        ),
        third=r.upper * square * third_central(u_low, u_high) * (1 + ELEMENTARY),
        fourth=square * square * fourth_central(u_high) * (1 + ELEMENTARY),
        square_variance=high.square_variance + ELEMENTARY * (scale * r.upper).square(),
        cross=_cross(low, high, at),
        noise=square,
        active=(cdf(u_high) + ELEMENTARY).clamp_max(1),
    )


def _cross(low: Moments, high: Moments, at: Ranges) -> Interval:
    r"""Range over the box of C = Cov(z, z^2), which increases in m and in r.

    :math:`\partial_mC=\operatorname{Cov}(\mathbf 1_{z>0},z^2)+2\operatorname{Cov}(z,z)\ge0`. By the heat equation, with
    s = r^2 and g, Phi, phi at u = m/r, :math:`\partial_sC=\partial_s(\mathbb Ez^3-g\,\mathbb Ez^2)
    =(3-\Phi)g-\tfrac12(\varphi/r)\mathbb Ez^2\ge g`: for r = 1, :math:`\varphi\,\mathbb Ez^2\le\tfrac54g`
    (docs/theory.md, section 4.9).
    """
    slack_low = ELEMENTARY * (at.m.lower.clamp_min(0) + at.r.lower) * at.r.lower.square()
    slack_high = ELEMENTARY * (at.m.upper.clamp_min(0) + at.r.upper) * at.r.upper.square()
    return Interval((low.cross - slack_low).clamp_min(0), high.cross + slack_high)


def _size(plane: Plane, m_size: Tensor, q_size: Tensor, box: Box) -> Tensor:
    size = plane.alpha.abs() * m_size + plane.beta.abs() * q_size + plane.offset.abs()
    return size if plane.dense is None else size + apply_rows(plane.dense.abs(), box.magnitude)
