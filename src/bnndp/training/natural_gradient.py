r"""What the two natural-gradient methods share: a mean-field Gaussian kept as means and curvatures.

For N points, prior precision :math:`\delta` and a KL term of weight T, with :math:`\tilde\delta=T\delta/N`,

.. math:: q(w)=N\Bigl(\mu,\ \frac{T}{N(s+\tilde\delta)}\Bigr),\qquad\text{precision}\ \frac{Ns}{T}+\delta,

for every parameter by itself. The gradient of :math:`\sum_i\mathbb E_q\log p(y_i\mid w)-T\,\mathrm{KL}(q\,\|\,p)`
vanishes where :math:`s` is the mean over points of the expected second derivatives of :math:`-\log p(y_i\mid w)`, and
:math:`\tilde\delta\mu` that of the expected gradients of :math:`\log p(y_i\mid w)` (theorems of Bonnet and Price; Khan
et al. 2018, arXiv:1806.04854). Neither method knows second derivatives: both put squares of gradients in their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from bnndp.data import Data
from bnndp.training.forward import Stage
from bnndp.training.likelihoods import Likelihood, likelihood_of
from bnndp.training.mean_field import FreeLayer, initial_layers
from bnndp.training.method import StepSettings
from bnndp.training.options import NaturalGradient, TrainingOptions
from bnndp.training.per_example import BatchGradients, batch_gradients

_Method = TypeVar("_Method", bound="NaturalPosterior")


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The weights or the biases of a layer; training moves the tensors in place."""

    mean: Tensor  # mu
    momentum: Tensor  # m
    square: Tensor  # s (VOGN) or f (Noisy Adam): the curvature of a point
    prior_precision: float  # delta, or 1 / eta

    def log_std(self, points: int, weight: float) -> Tensor:
        """Logarithm of the posterior's standard deviation under a KL term of this weight T."""
        return -0.5 * (self.square * (points / weight) + self.prior_precision).log()


@dataclass(frozen=True, slots=True, eq=False)
class NaturalPosterior:
    """The posterior of a natural-gradient method; VOGN and Noisy Adam add the step."""

    blocks: tuple[Block, ...]  # weight, bias, weight, bias, ...
    steps: tuple[Stage, ...]  # what the layers are
    likelihood: Likelihood
    settings: NaturalGradient
    points: int
    temperature: float
    generator: torch.Generator

    @classmethod
    def begin(cls: type[_Method], data: Data, options: TrainingOptions, generator: torch.Generator) -> _Method:
        """Start from the means of :func:`initial_layers`; the standard deviations are ``init_std``, or the prior's.

        A precision below that of the prior would need a negative curvature.
        """
        layers = initial_layers(options, data.n_in, data.n_out, generator)
        blocks = []
        for layer in layers:
            for mean, prior_std in (
                (layer.weight_mean.detach(), layer.weight_prior_std),
                (layer.bias_mean.detach(), layer.bias_prior_std),
            ):
                precision = prior_std**-2
                square = max(0.0, options.init_std**-2 - precision) * options.temperature / data.points
                blocks.append(Block(mean, torch.zeros_like(mean), torch.full_like(mean, square), precision))
        settings = options.natural or NaturalGradient()
        steps = tuple(layer.stage for layer in layers)
        likelihood = likelihood_of(data, options)
        return cls(tuple(blocks), steps, likelihood, settings, data.points, options.temperature, generator)

    def draw(self, schedule: StepSettings) -> list[Tensor]:
        """One draw of all parameters."""
        return [
            torch.addcmul(
                block.mean,
                block.log_std(self.points, schedule.kl_weight).exp_(),
                torch.randn(block.mean.shape, generator=self.generator, dtype=block.mean.dtype),
            )
            for block in self.blocks
        ]

    def gradients(self, parameters: Sequence[Tensor], x: Tensor, y: Tensor, curvature: str) -> BatchGradients:
        """Gradients of a batch; ``curvature`` is the method's own, unless the settings name one."""
        kind = self.settings.curvature or curvature
        return batch_gradients(self.likelihood, parameters, x, y, kind, self.generator, self.steps)

    def layers(self) -> list[FreeLayer]:
        """The posterior under the full temperature."""
        return [
            FreeLayer(
                weight.mean,
                weight.log_std(self.points, self.temperature),
                bias.mean,
                bias.log_std(self.points, self.temperature),
                weight.prior_precision**-0.5,
                bias.prior_precision**-0.5,
                step,
            )
            for weight, bias, step in zip(self.blocks[::2], self.blocks[1::2], self.steps, strict=True)
        ]

    def state(self) -> dict[str, Tensor]:
        """The tensors of all blocks."""
        return {
            f"{i}.{name}": getattr(block, name)
            for i, block in enumerate(self.blocks)
            for name in ("mean", "momentum", "square")
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Copy the tensors of all blocks."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
