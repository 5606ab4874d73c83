r"""Noisy Adam (Zhang, Sun, Duvenaud and Grosse 2018, arXiv:1712.02390, algorithm 1), fully factorised.

With N points, KL weight :math:`\lambda` (the temperature), prior variance :math:`\eta`, intrinsic damping
:math:`\gamma_{in}=\lambda/(N\eta)` and extrinsic damping :math:`\gamma_{ex}`, step k is

.. math::
   w&\sim N\bigl(\mu,\ \tfrac\lambda N\,\mathrm{diag}(f+\gamma_{in})^{-1}\bigr)\\
   v&\leftarrow\nabla_w\log p(y\mid x,w)-\gamma_{in}w\\
   m&\leftarrow\beta_1m+(1-\beta_1)v\\
   f&\leftarrow\beta_2f+(1-\beta_2)\bigl(\nabla_w\log p(y\mid x,w)\bigr)^2\\
   \mu&\leftarrow\mu+\alpha\,\frac{m/(1-\beta_1^k)}{f+\gamma_{in}+\gamma_{ex}}

element by element, where :math:`\log p(y\mid x,w)` is the mean over the batch. With several draws of :math:`w` a step,
:math:`v` and the square are their means.

The square of the mean gradient of M points is, where gradients cancel on average, an M-th of the mean of their squares:
the larger the batch, the wider the posterior. ``curvature="examples"`` or ``"fisher"`` has no such dependence, see
:class:`NaturalGradient`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.training.method import StepSettings
from bnndp.training.natural_gradient import NaturalPosterior


class NoisyAdam(NaturalPosterior):
    """The method ``noisy-adam``."""

    __slots__ = ()

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, schedule: StepSettings) -> Tensor:  # x (points, n_in)
        """The update of the module's text; the log-likelihood is that at the drawn weights."""
        own = self.settings
        weights = [self.draw(schedule) for _ in range(own.samples)]
        found = [self.gradients(w, x, y, "batch") for w in weights]
        correction = 1 - own.momentum ** (schedule.step + 1)
        for i, block in enumerate(self.blocks):
            intrinsic = block.prior_precision * schedule.kl_weight / self.points
            v = torch.stack([at.gradient[i] - intrinsic * w[i] for at, w in zip(found, weights, strict=True)]).mean(0)
            square = torch.stack([at.square[i] for at in found]).mean(0)
            block.momentum.lerp_(v, 1 - own.momentum)
            block.square.lerp_(square, 1 - own.decay)
            shared = block.square + (intrinsic + (own.damping or 0.0))
            block.mean.addcdiv_(block.momentum, shared, value=schedule.learning_rate / correction)
        return torch.stack([at.gain for at in found]).mean()
