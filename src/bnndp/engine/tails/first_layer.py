r"""The pre-activations of the first hidden layer: Gaussian, as x is not random, with mean m(x) and deviation r(x).

:math:`m_i(x)=\mu_i\cdot x+b_i` and :math:`r_i(x)=\sqrt{\sum_j\sigma_{ij}^2x_j^2+\sigma_{b,i}^2}`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box, apply_rows
from bnndp.layers import Linear
from bnndp.maths.rounding import SMALL, down, up

__all__ = ["Ranges", "first_ranges"]


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges over the box of m(x) and r(x), and r(x) at the centre."""

    m: Interval
    r: Interval
    m_centre: Tensor
    r_centre: Tensor


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
