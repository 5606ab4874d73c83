r"""Standard deviations :math:`r(z)=\lVert(\sigma\circ z,\sigma_b)\rVert` of a layer on a chain of rectangles.

At the corner of a rectangle all coordinates of z are large at once, and r is far above what it ever is. Two bounds
that are not: r squared is below a linear form of z, and r is a Lipschitz function of the noise in z.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnndp.geometry.bounds import Affine
from bnndp.maths.rectified import second_moment
from bnndp.maths.rounding import ELEMENTARY, TINY, UNIT, gamma
from bnndp.paper.layers import Layer, Ranges, Region


def chord_square(layer: Layer, region: Region) -> Affine:
    r"""At least :math:`r_h(z)^2` on a region of z >= 0, by the chords :math:`z_j^2\le(a_j+b_j)z_j-a_jb_j`.

    Matrix (batch, n_out, n_in); rounding a coefficient up is safe as z >= 0.
    """
    slope = (region.lower + region.upper) * (1 + 4 * UNIT)  # (batch, 1, n_in)
    chord = (region.lower * region.upper)[:, 0] @ layer.var_upper.T
    error = gamma(2 * layer.n_in + 8) * (layer.bias_var_upper + chord) + TINY
    return Affine(layer.var_upper * slope * (1 + 4 * UNIT), layer.bias_var_upper - chord + error)


def mean_square(layer: Layer, before: Layer, ranges: Ranges, region: Region) -> Affine:
    r"""A form of z_{k-1} above :math:`\mathbb E[r_h(z_k)^2\mid z_{k-1}]=\sum_j\sigma_{hj}^2q(m_j,r_j)+\sigma_{b,h}^2`.

    ``ranges`` are those of m and r of the layer ``before``, z_{k-1} lies in ``region``. The second moment q of a
    rectified Gaussian increases in r and is convex and increasing in m: it lies below its chord over the range of m at
    the largest r, whose slope is not negative.
    """
    low, high, std = ranges.mean_lower, ranges.mean_upper, ranges.std_upper  # (batch, 1, n)
    first, last = second_moment(low, std), second_moment(high, std)
    run = high - low
    slope = torch.where(run > 0, (last - first) / run, 0.0).clamp_min(0)
    size = (low.abs() + high.abs() + std) ** 2 + slope * (low.abs() + high.abs())
    level = torch.maximum(first - slope * low, last - slope * high) + 4 * ELEMENTARY * size + TINY
    weight = layer.var_upper * slope  # (batch, n_out, n)
    offset = (layer.var_upper * level).sum(-1) + (weight * before.bias).sum(-1) + layer.bias_var_upper
    total = (layer.var_upper * level.abs()).sum(-1) + (weight * before.bias.abs()).sum(-1) + layer.bias_var_upper
    total = total + (weight * (region.magnitude @ before.mean.abs().T)).sum(-1)
    return Affine(weight @ before.mean, offset + gamma(2 * (layer.n_in + before.n_in) + 32) * total + TINY)


def lipschitz_excess(layer: Layer, ranges: Ranges, chance: float) -> Tensor:  # ranges of the layer before
    r"""What :math:`r_h(z_k)` exceeds :math:`(\mathbb E[r_h^2\mid z_{k-1}])^{1/2}` by with at most this probability.

    Given z_{k-1} it is a Lipschitz function of the standard noise of the layer k with the constant
    :math:`L=\max_j\sigma_{hj}\hat r_j`, and so exceeds its mean by :math:`tL` with a probability of at most
    :math:`e^{-t^2/2}` (Gaussian concentration: Cirel'son, Ibragimov and Sudakov 1976). (batch, n_out).
    """
    steepest = (layer.var_upper.sqrt() * ranges.std_upper).amax(-1)
    return math.sqrt(-2 * math.log(chance)) * steepest * (1 + gamma(16))
