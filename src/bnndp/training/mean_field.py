r"""Layers of independent Gaussian weights with free parameters, and draws of what they compute.

Given the layer below, the pre-activations of a dense layer are independent Gaussians, so one may draw them instead of
the weights, afresh for every point: local reparametrisation (Kingma, Salimans and Welling 2015, arXiv:1506.02557).

A kernel is the same at all positions, so the pre-activations of a convolution are correlated and are not drawn one by
one. With one draw :math:`\Delta` of the noise of all kernels, and signs :math:`r,s` drawn for every point, one for
each channel out and in,

.. math:: \mu*z+r\circ\bigl(\Delta*(s\circ z)\bigr)

has for every point the law of a network drawn for it alone, as :math:`r_o\Delta_{oc}s_c` has that of
:math:`\Delta_{oc}` (flipout: Wen et al. 2018, arXiv:1803.04386). Points share the sizes of the noise, so a mean
over points is unbiased, and for many draws of one point the kernels are drawn anew for each.

A layer may be fixed: then it has no standard deviations, and in the place of its KL term stands
:math:`\|w\|^2/(2\tau^2)`, minus the logarithm of the prior up to a constant. All layers fixed, the ELBO is the
logarithm of the posterior density up to a constant, and its maximum the estimate ``map``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.layers import Conv2d, Linear, Record
from bnndp.network import BayesianNetwork
from bnndp.training.forward import Fixed, Stage, affine, apply_fixed
from bnndp.training.options import DTYPES, TrainingOptions


@dataclass(frozen=True, slots=True, eq=False)
class FreeLayer:
    """Free parameters of a layer of weights, the standard deviations of its prior, and what follows the layer."""

    weight_mean: Tensor  # (n_out, n_in), or (channels out, channels in, height, width)
    weight_log_std: Tensor | None  # the same; None: fixed
    bias_mean: Tensor  # (n_out,)
    bias_log_std: Tensor | None  # (n_out,)
    weight_prior_std: float
    bias_prior_std: float
    stage: Stage = field(default_factory=Stage)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """What training moves: weight means and log-stds, bias means and log-stds; only the means of a fixed layer."""
        if self.weight_log_std is None or self.bias_log_std is None:
            return self.weight_mean, self.bias_mean
        return self.weight_mean, self.weight_log_std, self.bias_mean, self.bias_log_std

    @property
    def fixed(self) -> bool:
        """Whether it has no variance."""
        return self.weight_log_std is None

    @property
    def is_convolution(self) -> bool:
        """Whether it is a convolution."""
        return self.weight_mean.ndim == 4

    def with_parameters(self, free: Sequence[Tensor]) -> FreeLayer:
        """The same layer with other values of what training moves."""
        if self.fixed:
            return replace(self, weight_mean=free[0], bias_mean=free[1])
        weight, weight_log_std, bias, bias_log_std = free
        return replace(
            self, weight_mean=weight, weight_log_std=weight_log_std, bias_mean=bias, bias_log_std=bias_log_std
        )

    def mean(self, z: Tensor) -> Tensor:  # z (points, ...)
        """Mean of the pre-activations given ``z``."""
        return affine(self.stage, self.weight_mean, self.bias_mean, self.stage.as_image(z))

    def moments(self, z: Tensor) -> tuple[Tensor, Tensor]:  # z (points, ...)
        """Mean and variance of the pre-activations given ``z``, each position by itself: (points, n_out) each."""
        mean = self.mean(z)
        if self.weight_log_std is None or self.bias_log_std is None:
            return mean, torch.zeros_like(mean)
        z = self.stage.as_image(z)
        squares = (2 * self.weight_log_std).exp(), (2 * self.bias_log_std).exp()
        return mean, affine(self.stage, *squares, z * z)

    def sample(self, z: Tensor, generator: torch.Generator) -> Tensor:  # z (points, ...)
        """Pre-activations drawn for every point, see the module."""
        if self.weight_log_std is None or self.bias_log_std is None:
            return self.mean(z)
        if not self.is_convolution:
            return draw(*self.moments(z), generator)
        z, mean = self.stage.as_image(z), self.mean(z)
        change = self.weight_log_std.exp() * _noise(self.weight_mean.shape, z, generator)
        into, out = (_signs((z.shape[0], n, 1, 1), z, generator) for n in (z.shape[1], mean.shape[1]))
        lift = self.bias_log_std.exp() * _noise((z.shape[0], mean.shape[1]), z, generator)  # (points, channels)
        return mean + out * affine(self.stage, change, None, into * z) + lift[..., None, None]

    def divergence(self) -> Tensor:
        """KL from the prior, of weights and biases together; of a fixed layer see the module."""
        if self.weight_log_std is None or self.bias_log_std is None:
            weights = self.weight_mean.square().sum() / (2 * self.weight_prior_std**2)
            return weights + self.bias_mean.square().sum() / (2 * self.bias_prior_std**2)
        weights = _gaussian_divergence(self.weight_mean, self.weight_log_std, self.weight_prior_std)
        return weights + _gaussian_divergence(self.bias_mean, self.bias_log_std, self.bias_prior_std)

    def record(self) -> Linear | Conv2d:
        """The frozen layer, in float64."""
        if self.fixed:
            weight, bias = (t.detach().to(torch.float64) for t in self.parameters)
            return self.stage.record(weight, torch.zeros_like(weight), bias, torch.zeros_like(bias))
        mean, log_std, bias, bias_log_std = (t.detach().to(torch.float64) for t in self.parameters)
        return self.stage.record(mean, log_std.exp(), bias, bias_log_std.exp())


def initial_layers(options: TrainingOptions, n_in: int, n_out: int, generator: torch.Generator) -> list[FreeLayer]:
    """Layers at their starting values: means uniform in +-gain/sqrt(fan in), every standard deviation ``init_std``."""
    layers = []
    for spec in options.layer_specs(n_in, n_out):
        scale = options.init_gain / math.sqrt(spec.fan_in)
        weight, bias = (
            ((2 * torch.rand(shape, generator=generator, dtype=DTYPES[options.dtype]) - 1) * scale).requires_grad_()
            for shape in (spec.shape, spec.shape[:1])
        )
        stds = (
            None if spec.fixed else torch.full_like(t, math.log(options.init_std)).requires_grad_()
            for t in (weight, bias)
        )
        weight_log_std, bias_log_std = stds
        priors = _prior_stds(options, spec.fan_in)
        layers.append(FreeLayer(weight, weight_log_std, bias, bias_log_std, *priors, spec.stage))
    return layers


def is_mean_field(network: BayesianNetwork) -> bool:
    """Whether :func:`free_layers` knows all layers: independent weights, such a layer first, a dense one last."""
    weights = [isinstance(layer, Linear | Conv2d) for layer in network.layers]
    return (
        weights[0]
        and isinstance(network.layers[-1], Linear)
        and not any(
            hasattr(layer, "weight_mean") and not known for layer, known in zip(network.layers, weights, strict=True)
        )
    )


def free_layers(network: BayesianNetwork, options: TrainingOptions | None = None) -> list[FreeLayer]:
    """The parameters of a finished posterior of independent weights, with the prior of ``options``."""
    if not is_mean_field(network):
        raise InputError(f"{network} has layers that are not trained by one of the methods; give independent weights.")
    given = options or TrainingOptions()
    layers: list[FreeLayer] = []
    for record in network.layers:
        if isinstance(record, Linear | Conv2d):
            layers.append(_freed(record, given, None if layers else network.input_shape))
        else:
            stage = layers[-1].stage
            layers[-1] = replace(layers[-1], stage=replace(stage, after=(*stage.after, cast(Fixed, record))))
    return layers


def _freed(record: Linear | Conv2d, options: TrainingOptions, shape: tuple[int, ...] | None) -> FreeLayer:
    step = Stage()
    if isinstance(record, Conv2d):
        step = Stage(stride=record.stride, padding=record.padding, image=shape)  # type: ignore[arg-type]
    stds = (record.weight_std.log(), record.bias_std.log()) if record.random else (None, None)
    priors = _prior_stds(options, math.prod(record.weight_mean.shape[1:]))
    return FreeLayer(record.weight_mean, stds[0], record.bias_mean, stds[1], *priors, step)


def freeze(layers: Sequence[FreeLayer], task: str) -> BayesianNetwork:
    """The finished posterior of these layers."""
    chain = tuple(cast(Record, record) for layer in layers for record in (layer.record(), *layer.stage.after))
    try:
        return BayesianNetwork(chain, task, input_shape=layers[0].stage.image)
    except InputError as error:
        raise InputError(f"training diverged: {error} Give a smaller learning_rate.") from error


def divergence(layers: Sequence[FreeLayer]) -> Tensor:
    """KL(q || p) of all layers."""
    return torch.stack([layer.divergence() for layer in layers]).sum()


def draw(mean: Tensor, variance: Tensor, generator: torch.Generator) -> Tensor:
    """One draw of independent Gaussians, of the shape of ``mean``."""
    return mean + variance.sqrt() * _noise(mean.shape, mean, generator)


def output_moments(
    layers: Sequence[FreeLayer],
    x: Tensor,  # (points, n_in)
    generator: torch.Generator,
    *,
    draws: int = 1,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the outputs given drawn hidden layers: (points * draws, n_out) each.

    The draws of a point are adjacent. The output of the first layer is the same for all of them and computed once.
    """
    if draws > 1 and any(layer.is_convolution and not layer.fixed for layer in layers):
        drawn = [output_moments(layers, x, generator) for _ in range(draws)]  # with kernels drawn anew each time
        mean, variance = (torch.stack(moments, 1).flatten(0, 1) for moments in zip(*drawn, strict=True))
        return mean, variance
    first, *rest = layers
    if first.is_convolution:  # fixed, if there is more than one draw
        z = first.sample(x, generator)
        z = z if draws == 1 else z.repeat_interleave(draws, dim=0)
    else:
        mean, variance = first.moments(x)
        if draws > 1:
            mean, variance = (t.repeat_interleave(draws, dim=0) for t in (mean, variance))
        if not rest:
            return mean, variance
        z = mean if first.fixed else draw(mean, variance, generator)
    z = apply_fixed(first.stage.after, z, generator)
    for layer in rest[:-1]:
        z = apply_fixed(layer.stage.after, layer.sample(z, generator), generator)
    return rest[-1].moments(z)


def sampled_output(layers: Sequence[FreeLayer], x: Tensor, generator: torch.Generator) -> Tensor:  # x (points, n_in)
    """The outputs of one network drawn from the posterior, the same for all points: (points, n_out).

    Dropout is drawn for every point.
    """
    z = x
    for layer in layers:
        weight, bias = layer.weight_mean, layer.bias_mean
        if layer.weight_log_std is not None and layer.bias_log_std is not None:
            weight = weight + layer.weight_log_std.exp() * _noise(weight.shape, weight, generator)
            bias = bias + layer.bias_log_std.exp() * _noise(bias.shape, bias, generator)
        z = apply_fixed(layer.stage.after, affine(layer.stage, weight, bias, layer.stage.as_image(z)), generator)
    return z


def _noise(shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, dtype=like.dtype)


def _signs(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    return 2 * torch.randint(2, shape, generator=generator).to(like.dtype) - 1


def _prior_stds(options: TrainingOptions, fan_in: int) -> tuple[float, float]:
    """Prior standard deviations of the weights and of the biases of a layer whose outputs have ``fan_in`` weights."""
    weight = options.prior_std / math.sqrt(fan_in) if options.prior == "fan_in" else options.prior_std
    return weight, options.prior_std


def _gaussian_divergence(mean: Tensor, log_std: Tensor, prior_std: float) -> Tensor:
    """KL(N(mu, sigma^2) || N(0, tau^2)) = ((sigma^2 + mu^2) / tau^2 - 1) / 2 - log(sigma / tau), summed."""
    scaled = ((2 * log_std).exp() + mean.square()) / prior_std**2
    return (0.5 * (scaled - 1) - log_std + math.log(prior_std)).sum()
