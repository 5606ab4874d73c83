r"""Training against the worst case: interval bounds of the network of mean weights, over balls around the points.

With centre m and radius r of a box, a layer of weights gives :math:`Wm+b` and :math:`|W|r`, and an increasing
activation the images of both ends (Gowal et al. 2018, arXiv:1810.12715). The worst case of a label y has the lower end
of its logit and the upper ends of all others; the objective has a share of the log-softmax there. Radius and share rise
from zero over the first half of the steps. Dropout and variances are left out of the bounds: this makes networks whose
bounds are tight, it proves nothing of the posterior.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from bnndp.training.forward import affine, apply_fixed
from bnndp.training.mean_field import FreeLayer
from bnndp.training.options import Robust

_RISE = 0.5  # share of the steps


def robust_objective(
    gain: Tensor, layers: Sequence[FreeLayer], x: Tensor, y: Tensor, robust: Robust, progress: float
) -> Tensor:
    """The mean log-likelihood ``gain`` with its share of the worst case, after ``progress`` in [0, 1] of the steps."""
    risen = min(1.0, progress / _RISE)
    if risen == 0:
        return gain
    worst = worst_log_probability(layers, x, y, robust.eps * risen).mean()
    return (1 - robust.share * risen) * gain + robust.share * risen * worst


def worst_log_probability(layers: Sequence[FreeLayer], x: Tensor, y: Tensor, eps: float) -> Tensor:
    """The log-softmax of the labels (points,) at the worst ends of the logits, for the network of mean weights."""
    centre, radius = x, torch.full_like(x, eps)
    for k, layer in enumerate(layers):
        step = layer.stage
        radius = affine(step, layer.weight_mean.abs(), None, step.as_image(radius))
        centre = layer.mean(centre)
        if k < len(layers) - 1:
            low, high = (apply_fixed(step.after, end, None) for end in (centre - radius, centre + radius))
            centre, radius = 0.5 * (low + high), 0.5 * (high - low)
    right = functional.one_hot(y, centre.shape[-1]).bool()
    worst = torch.where(right, centre - radius, centre + radius)
    return worst.log_softmax(-1).gather(-1, y[:, None])[:, 0]
