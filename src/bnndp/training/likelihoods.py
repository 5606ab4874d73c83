r"""How targets depend on a network's outputs: Gaussian noise for regression, the softmax of logits for classes.

A likelihood gives, one number per point, the log-probability of the targets given the outputs, and its expectation when
the outputs are independent Gaussians, as those of a mean-field last layer are; and, for the methods of natural
gradients, its gradient with respect to the outputs and targets drawn from the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from bnndp.data import ClassificationData, Data
from bnndp.training.mean_field import draw
from bnndp.training.options import TrainingOptions


class Likelihood(Protocol):
    """What the training loop asks of a likelihood."""

    task: ClassVar[str]
    closed_form: ClassVar[bool]  # whether ``expected`` draws nothing

    def log_probability(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log-probability of the targets given the outputs (points, n_out), one per point: (points,)."""

    def expected(self, mean: Tensor, variance: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The expectation of it, or an unbiased estimate, for outputs N(mean, variance) (points, n_out): (points,)."""

    def output_gradient(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Gradient of the log-probability of each point with respect to its outputs: (points, n_out)."""

    def sample_targets(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Targets drawn given the outputs (points, n_out), of the shape of ``y``."""


@dataclass(frozen=True, slots=True)
class Gaussian:
    r"""Targets (points, n_out) are the outputs with independent noise N(0, noise_std^2).

    For outputs :math:`N(m,v)`: :math:`\mathbb E\log N(y)=-\frac{(y-m)^2+v}{2\sigma^2}-\log(\sigma\sqrt{2\pi})` exactly.
    """

    noise_std: float
    task: ClassVar[str] = "regression"
    closed_form: ClassVar[bool] = True

    def log_probability(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log-density of the targets given the outputs."""
        return -(y - outputs).square().sum(-1) / (2 * self.noise_std**2) - self._constant(y)

    def expected(
        self,
        mean: Tensor,  # (points, n_out)
        variance: Tensor,  # (points, n_out)
        y: Tensor,  # (points, n_out)
        generator: torch.Generator,  # noqa: ARG002 (nothing is drawn)
    ) -> Tensor:
        """The expected log-density in closed form."""
        return -((y - mean).square() + variance).sum(-1) / (2 * self.noise_std**2) - self._constant(y)

    def output_gradient(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(y - outputs) / noise_std^2."""
        return (y - outputs) / self.noise_std**2

    def sample_targets(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """The outputs with noise."""
        return outputs + self.noise_std * torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype)

    def _constant(self, y: Tensor) -> float:
        return y.shape[-1] * math.log(self.noise_std * math.sqrt(2 * math.pi))


@dataclass(frozen=True, slots=True)
class Categorical:
    """Labels (points,) are drawn with the probabilities softmax(outputs); the expectation is sampled."""

    task: ClassVar[str] = "classification"
    closed_form: ClassVar[bool] = False

    def log_probability(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The log-softmax of the right class."""
        return outputs.log_softmax(-1).gather(-1, y[:, None])[:, 0]

    def expected(
        self,
        mean: Tensor,  # (points, classes)
        variance: Tensor,  # (points, classes)
        y: Tensor,  # (points,)
        generator: torch.Generator,
    ) -> Tensor:
        """The log-softmax of the right class at one draw of the logits per point: unbiased."""
        return self.log_probability(draw(mean, variance, generator), y)

    def output_gradient(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The indicator of the right class less softmax(outputs)."""
        slope = outputs.softmax(-1).neg_()
        return slope.scatter_add_(-1, y[:, None], slope.new_ones(y.numel(), 1))

    def sample_targets(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Labels with the probabilities softmax(outputs): (points,)."""
        return torch.multinomial(outputs.softmax(-1), 1, generator=generator)[:, 0]


def likelihood_of(data: Data, options: TrainingOptions) -> Likelihood:
    """The likelihood that belongs to a kind of data."""
    return Categorical() if isinstance(data, ClassificationData) else Gaussian(options.noise_std)
