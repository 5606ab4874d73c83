r"""Margins :math:`D_j=\zeta_c-\zeta_j` of the logits: rows of the outputs like any others.

What two logits share cancels in the row, so in the mean and in the variance. Where the outputs are Gaussian at a given
x (nothing is random before the last layer, as in last-layer Laplace), so are the margins, and
:math:`\mathbb E\sigma(-D)` is that of a Gaussian.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.activations import Sigmoid
from bnndp.engine.protocol import Margins, Pass
from bnndp.maths.exponential import chernoff_gaussian

LARGEST = 1e200
"""Variances of more have no Gaussian tails here: their roots leave the range of the closed formulas."""


def margin_rows(reference: Tensor, classes: int) -> Tensor:  # reference (batch, references)
    """The rows of the margins of the reference classes against all: (batch, references * classes, classes)."""
    one = torch.eye(classes, dtype=torch.float64, device=reference.device)
    return (one[reference][:, :, None] - one).flatten(1, 2)


def middle_rows(reference: Tensor, classes: int) -> Tensor:  # reference (batch,)
    """The rows of (f_c + f_k) / 2 - f_i for the reference class c and all k and i: (batch, k * i, classes)."""
    one = torch.eye(classes, dtype=torch.float64, device=reference.device)
    return (0.5 * (one[reference][:, None, None] + one[:, None]) - one).flatten(1, 2)


def margins(bounds: Pass, reference: Tensor, classes: int) -> Margins:  # reference (batch, references)
    """Bounds of mean and variance of the margins of ``reference`` for every x of each box."""
    rows = margin_rows(reference, classes)
    return by_class(bounds.least(rows), bounds.variance(rows), reference)


def by_class(mean: Tensor, variance: Tensor, reference: Tensor) -> Margins:  # (batch, references * classes), ...
    """Moments of the margins of ``reference`` (batch, references), by reference and class.

    Zero for a class against itself; where either moment is not known, neither is.
    """
    classes = mean.shape[1] // reference.shape[1]
    own = (reference[..., None] == torch.arange(classes, device=reference.device)).flatten(1)
    fine = mean.isfinite() & variance.isfinite()
    mean = torch.where(fine, mean, -torch.inf).masked_fill(own, 0.0)
    variance = torch.where(fine, variance, torch.inf).masked_fill(own, 0.0)
    return Margins(mean, variance).reshape(*reference.shape, classes)


def gaussian_tails(bounds: Pass, known: Margins) -> Tensor:
    r"""u_j >= E sigma(-D_j) of the shape of the margins; 1 where they are not Gaussian or the mean may be negative.

    For d >= 0, :math:`\mathbb E\sigma(-d-\sqrt V\xi)` falls in d and rises in V: its second derivative in d is that of
    :math:`\sigma(-d)`, odd and positive for d > 0, smoothed by a symmetric kernel that falls on both sides.
    """
    if not bounds.gaussian:
        return torch.ones_like(known.mean)
    phi = Sigmoid()
    mean, root = -known.mean.clamp_min(0), known.variance.sqrt()
    found = phi.mean(mean, root) + phi.error(mean, root)
    found = torch.fmin(found, chernoff_gaussian(-mean, known.variance))  # far out the error of the first is larger
    return torch.where((known.mean > 0) & (known.variance <= LARGEST), found.clamp_max(1.0), 1.0).nan_to_num(1.0)
