r"""VOGN, variational online Gauss-Newton (Khan et al. 2018, arXiv:1806.04854; Osawa et al. 2019).

With N points, M of them in the batch, prior precision :math:`\delta`, temperature T,
:math:`\tilde\delta=T\delta/N`, and :math:`g_i(\theta)=-\nabla\log p(y_i\mid\theta)`, step t is

.. math::
   \theta&=\mu+\sigma\circ\epsilon,\quad\epsilon\sim N(0,I),\quad\sigma^2=T/(N(s+\tilde\delta))\\
   \hat g&=\tfrac1M\sum_ig_i(\theta),\qquad\hat h=\tfrac1M\sum_ig_i(\theta)^2\\
   m&\leftarrow\beta_1m+(1-\beta_1)(\hat g+\tilde\delta\mu)\\
   s&\leftarrow\beta_2s+(1-\beta_2)\hat h\\
   \mu&\leftarrow\mu-\alpha_t\,\frac{m/(1-\beta_1^t)}{s+\tilde\delta+\gamma}

element by element; with several draws of :math:`\theta` a step, :math:`\hat g` and :math:`\hat h` are their means.
:math:`\gamma` is the damping (unlike Osawa et al. it does not enter :math:`\sigma`). T = 1 gives the papers' letters,
with :math:`\gamma=0` unless set; where T differs the update is that of the natural gradient with a KL term of weight T,
see :mod:`.natural_gradient`. For T < 1 :math:`\gamma=(1-T)\delta/N` unless set: steps along weights without curvature
stay as long as at T = 1, where those of the natural gradient grow with 1/T and the training does not settle
(MNIST, 3x64, T = 1e-4: accuracy 35 % without, 97.6 % with it). What the training converges to is the same.

The squares :math:`g_i^2` stand for second derivatives: the diagonal of the Gauss-Newton matrix if the model is right.
Where residuals are larger than the noise of the likelihood, standard deviations come out too small, and conversely.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.training.method import StepSettings
from bnndp.training.natural_gradient import NaturalPosterior


class Vogn(NaturalPosterior):
    """The method ``vogn``."""

    __slots__ = ()

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, schedule: StepSettings) -> Tensor:  # x (points, n_in)
        """The update of the module's text; the log-likelihood is that at the drawn weights."""
        own = self.settings
        drawn = [self.gradients(self.draw(schedule), x, y, "examples") for _ in range(own.samples)]
        correction = 1 - own.momentum ** (schedule.step + 1)
        for i, block in enumerate(self.blocks):
            gradient = torch.stack([-found.gradient[i] for found in drawn]).mean(0)
            square = torch.stack([found.square[i] for found in drawn]).mean(0)
            prior = block.prior_precision * schedule.kl_weight / self.points
            block.momentum.lerp_(gradient.add_(block.mean, alpha=prior), 1 - own.momentum)
            block.square.lerp_(square, 1 - own.decay)
            usual = max(0.0, 1 - self.temperature) * block.prior_precision / self.points
            damping = usual if own.damping is None else own.damping
            block.mean.addcdiv_(
                block.momentum, block.square + (prior + damping), value=-schedule.learning_rate / correction
            )
        return torch.stack([found.gain for found in drawn]).mean()
