r"""Margins :math:`D_j=\zeta_c-\zeta_j` of the logits of a network of any layers: their mean and variance on a box.

Given the signal below the last layer the logits are Gaussian, with the covariances of its posterior: what two logits
share cancels in the mean and in the variance. If that signal is a function of x (nothing is random before the last
layer, as in last-layer Laplace), the margins are Gaussian and :math:`\mathbb E\sigma(-D)` is that of a Gaussian.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.activations import Sigmoid
from bnndp.engine.dense.margins import Margins
from bnndp.engine.general.forward import Passed, hidden, row_variance
from bnndp.engine.general.optimise import best_rows
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

__all__ = ["gaussian_tails", "margins", "margins_above"]


def margins(network: BayesianNetwork, box: Box, reference: Tensor) -> Margins:  # reference (batch, references)
    """Bounds of the mean and variance of the margins of ``reference`` for every x of each box."""
    return margins_above(hidden(network, box), reference)


def margins_above(passed: Passed, reference: Tensor, *, steps: int = 0) -> Margins:
    """The same from a pass that is known already: (batch, references, classes) each; with ``steps`` of ascent."""
    classes, box = passed.output.weights.n_out, passed.box
    one = torch.eye(classes, dtype=box.lower.dtype, device=box.lower.device)
    rows = (one[reference][:, :, None] - one).reshape(box.batch, -1, classes)
    affine = best_rows(passed, rows, steps)
    mean, variance = box.minimum(affine.matrix, affine.offset), row_variance(passed, rows)
    fine = mean.isfinite() & variance.isfinite()
    own = (rows == 0).all(-1)
    mean, variance = torch.where(fine, mean, -torch.inf), torch.where(fine, variance, torch.inf)
    zero = torch.zeros_like(mean)
    mean, variance = torch.where(own, zero, mean), torch.where(own, zero, variance)
    return Margins(mean, variance).reshape(*reference.shape, -1)


def gaussian_tails(passed: Passed, known: Margins) -> Tensor:
    r"""u_j >= E sigma(-D_j) of the shape of the margins; 1 where they are not Gaussian or the mean may be negative.

    For d >= 0, :math:`\mathbb E\sigma(-d-\sqrt V\xi)` falls in d and rises in V: its second derivative in d is that of
    :math:`\sigma(-d)`, odd and positive for d > 0, smoothed by a symmetric kernel that falls on both sides.
    """
    if not passed.last.signal.fixed:
        return torch.ones_like(known.mean)
    phi = Sigmoid()
    mean, root = -known.mean.clamp_min(0), known.variance.clamp_max(1e200).sqrt()
    found = phi.mean(mean, root) + phi.error(mean, root)
    return torch.where((known.mean > 0) & known.variance.isfinite(), found.clamp_max(1.0), 1.0).nan_to_num(1.0)
