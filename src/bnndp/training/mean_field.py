r"""Layers of independent Gaussian weights with free parameters, and draws of what they compute.

Given the layer below, the pre-activations of such a layer are independent Gaussians, so one may draw them instead of
the weights, afresh for every point: local reparametrisation (Kingma, Salimans and Welling 2015, arXiv:1506.02557).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.network import BayesianNetwork, Linear
from bnndp.training.options import DTYPES, TrainingOptions

__all__ = ["FreeLayer", "divergence", "draw", "free_layers", "freeze", "output_moments", "sampled_output", "start"]


@dataclass(frozen=True, slots=True, eq=False)
class FreeLayer:
    """Free parameters of a mean-field layer, and the standard deviations of its prior."""

    weight_mean: Tensor  # (n_out, n_in)
    weight_log_std: Tensor  # (n_out, n_in)
    bias_mean: Tensor  # (n_out,)
    bias_log_std: Tensor  # (n_out,)
    weight_prior_std: float
    bias_prior_std: float

    @property
    def free(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What training moves."""
        return self.weight_mean, self.weight_log_std, self.bias_mean, self.bias_log_std

    def moments(self, z: Tensor) -> tuple[Tensor, Tensor]:  # z (points, n_in)
        """Mean and variance of ``W z + b`` given ``z``: (points, n_out) each."""
        mean = torch.addmm(self.bias_mean, z, self.weight_mean.T)
        variance = torch.addmm((2 * self.bias_log_std).exp(), z * z, (2 * self.weight_log_std).exp().T)
        return mean, variance

    def divergence(self) -> Tensor:
        """KL from the prior, of weights and biases together."""
        weights = _gaussian_divergence(self.weight_mean, self.weight_log_std, self.weight_prior_std)
        return weights + _gaussian_divergence(self.bias_mean, self.bias_log_std, self.bias_prior_std)

    def linear(self) -> Linear:
        """The frozen layer, in float64."""
        mean, log_std, bias, bias_log_std = (t.detach().to(torch.float64) for t in self.free)
        return Linear(mean, log_std.exp(), bias, bias_log_std.exp())


def start(options: TrainingOptions, n_in: int, n_out: int, generator: torch.Generator) -> list[FreeLayer]:
    """Layers at their starting values: means uniform in +-gain/sqrt(n_in), every standard deviation ``init_std``."""
    sizes = (n_in, *options.hidden, n_out)
    log_std = math.log(options.init_std)
    dtype = DTYPES[options.dtype]
    layers = []
    for below, above in itertools.pairwise(sizes):
        scale = options.init_gain / math.sqrt(below)
        weight, bias = (
            ((2 * torch.rand(shape, generator=generator, dtype=dtype) - 1) * scale).requires_grad_()
            for shape in ((above, below), (above,))
        )
        weight_log_std, bias_log_std = (torch.full_like(t, log_std).requires_grad_() for t in (weight, bias))
        layers.append(FreeLayer(weight, weight_log_std, bias, bias_log_std, *_prior_stds(options, below)))
    return layers


def free_layers(network: BayesianNetwork, options: TrainingOptions | None = None) -> list[FreeLayer]:
    """The parameters of a finished posterior, with the prior of ``options``."""
    given = options or TrainingOptions()
    return [
        FreeLayer(
            linear.weight_mean,
            linear.weight_std.log(),
            linear.bias_mean,
            linear.bias_std.log(),
            *_prior_stds(given, linear.n_in),
        )
        for linear in network.linears
    ]


def freeze(layers: Sequence[FreeLayer], task: str) -> BayesianNetwork:
    """The finished posterior of these layers."""
    try:
        return BayesianNetwork.from_linears((layer.linear() for layer in layers), task)
    except InputError as error:
        raise InputError(f"training diverged: {error} Give a smaller learning_rate.") from error


def divergence(layers: Sequence[FreeLayer]) -> Tensor:
    """KL(q || p) of all layers."""
    return torch.stack([layer.divergence() for layer in layers]).sum()


def draw(mean: Tensor, variance: Tensor, generator: torch.Generator) -> Tensor:
    """One draw of independent Gaussians, of the shape of ``mean``."""
    noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
    return mean + variance.sqrt() * noise


def output_moments(
    layers: Sequence[FreeLayer],
    x: Tensor,  # (points, n_in)
    generator: torch.Generator,
    *,
    draws: int = 1,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the outputs given drawn hidden layers: (points * draws, n_out) each.

    Draws of a point follow one another. The first layer's moments, the same for all of them, are computed once.
    """
    mean, variance = layers[0].moments(x)
    if draws > 1:
        mean, variance = (t.repeat_interleave(draws, dim=0) for t in (mean, variance))
    for layer in layers[1:]:
        mean, variance = layer.moments(draw(mean, variance, generator).relu())
    return mean, variance


def sampled_output(layers: Sequence[FreeLayer], x: Tensor, generator: torch.Generator) -> Tensor:  # x (points, n_in)
    """The outputs of one network drawn from the posterior, the same for all points: (points, n_out)."""
    z = x
    for k, layer in enumerate(layers):
        weight, bias = (
            mean + log_std.exp() * torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
            for mean, log_std in ((layer.weight_mean, layer.weight_log_std), (layer.bias_mean, layer.bias_log_std))
        )
        z = torch.addmm(bias, z.relu() if k else z, weight.T)
    return z


def _prior_stds(options: TrainingOptions, n_in: int) -> tuple[float, float]:
    """Prior standard deviations of the weights and of the biases of a layer with ``n_in`` inputs."""
    weight = options.prior_std / math.sqrt(n_in) if options.prior == "fan_in" else options.prior_std
    return weight, options.prior_std


def _gaussian_divergence(mean: Tensor, log_std: Tensor, prior_std: float) -> Tensor:
    """KL(N(mu, sigma^2) || N(0, tau^2)) = ((sigma^2 + mu^2) / tau^2 - 1) / 2 - log(sigma / tau), summed."""
    scaled = ((2 * log_std).exp() + mean.square()) / prior_std**2
    return (0.5 * (scaled - 1) - log_std + math.log(prior_std)).sum()
