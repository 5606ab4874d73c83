"""Classifiers whose answers are known otherwise: linear ones by hand, small ones by drawing their weights."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from bnndp.layers import Linear
from bnndp.network import BayesianNetwork


def classifier(sizes: tuple[int, ...], seed: int, *, std: float = 0.2, gain: float = 1.0) -> BayesianNetwork:
    """A random classifier; ``std`` scales the standard deviations and ``gain`` the logits."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def std_of(*shape: int) -> Tensor:
        return std * torch.rand(shape, generator=generator, dtype=torch.float64)

    linears = []
    for index, (n_in, n_out) in enumerate(pairwise(sizes)):
        scale = gain if index == len(sizes) - 2 else 1.0
        mean = scale * normal(n_out, n_in) * (2 / n_in) ** 0.5
        linears.append(Linear(mean, std_of(n_out, n_in) / n_in**0.5, scale * normal(n_out), std_of(n_out)))
    return BayesianNetwork.from_linears(linears, "classification")


def linear(weight: Tensor, bias: Tensor, *, std: float = 0.0) -> BayesianNetwork:
    """Logits ``weight @ x + bias``, every weight and bias with standard deviation ``std``."""
    weight, bias = weight.to(torch.float64), bias.to(torch.float64)
    layer = Linear(weight, torch.full_like(weight, std), bias, torch.full_like(bias, std))
    return BayesianNetwork.from_linears([layer], "classification")


def random_linear(n: int, classes: int, seed: int, *, std: float = 0.0) -> BayesianNetwork:
    """A linear classifier with Gaussian weights."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, n, generator=generator, dtype=torch.float64)
    return linear(weight, torch.randn(classes, generator=generator, dtype=torch.float64), std=std)


def exact_radius(network: BayesianNetwork, x: Tensor, label: Tensor, *, norm: float = math.inf) -> Tensor:
    """Distance of each x (batch, n) from where the mean logit of another class reaches that of the label: (batch,).

    That is where the decision of a linear classifier changes if no weight is random, and for two classes whatever the
    variances: the margin is Gaussian, so E sigma(D) > 1/2 if and only if E D > 0. Not positive where it is wrong at x.
    """
    (layer,) = network.linears
    dual = {math.inf: 1, 2: 2, 1: math.inf}[norm]
    logits = x @ layer.weight_mean.T + layer.bias_mean
    margin = logits.gather(1, label[:, None]) - logits  # (batch, classes)
    length = torch.linalg.vector_norm(layer.weight_mean[label][:, None] - layer.weight_mean, ord=dual, dim=-1)
    own = torch.nn.functional.one_hot(label, network.n_out).bool()
    return (margin / length).masked_fill(own, math.inf).amin(1)


def logistic_mean(mean: float, std: float) -> float:
    """E sigma(D) for D ~ N(mean, std^2) by the trapezoidal rule, which converges exponentially here."""
    t = torch.arange(-1200, 1201, dtype=torch.float64) / 100
    weight = torch.exp(-0.5 * t * t) / math.sqrt(2 * math.pi) / 100
    return float((weight * torch.sigmoid(mean + std * t)).sum())


def sampled_softmax(network: BayesianNetwork, x: Tensor, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """Mean of the softmax at x (points, n) over networks drawn weight by weight, and its standard error."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(mean: Tensor, std: Tensor) -> Tensor:
        return mean + std * torch.randn(draws, *mean.shape, generator=generator, dtype=torch.float64)

    z = x.expand(draws, *x.shape)
    for index, layer in enumerate(network.linears):
        z = z.clamp_min(0) if index else z
        z = z @ drawn(layer.weight_mean, layer.weight_std).mT + drawn(layer.bias_mean, layer.bias_std)[:, None]
    p = torch.softmax(z, dim=-1)
    return p.mean(0), p.std(0) / math.sqrt(draws)
