r"""The line :math:`p_im_i` near :math:`h_i=\mathbb E[z_i\mid y]`, m the conditional mean of X, and how h varies."""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.inequalities.remainders import moved_by_spread
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import UP

__all__ = ["central_std", "slope_of"]


def slope_of(phi: Activation, mean: Interval, root: Tensor) -> Tensor:
    """The middle of the slopes at the ends of the range of the mean."""
    return (0.5 * (phi.slope(mean.lower, root) + phi.slope(mean.upper, root))).clamp(*phi.shape.slopes)


def central_std(phi: Activation, x: PreActivation, slope: Tensor, remainder: Tensor, root: Tensor) -> Tensor:
    """Standard deviation of E[z | y]: by the line and what it leaves, or by the Lipschitz constant."""
    sd = x.mean_variance.sqrt()
    return torch.minimum(slope.abs() * sd + remainder, phi.shape.steepest * sd + moved_by_spread(phi, x, root)) * UP
