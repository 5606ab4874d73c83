"""Truth for the moment method: the records of a pass, and draws of all hidden layers at a point of the box.

The draws use local reparametrisation: given the layer below, pre-activations are independent Gaussians. Closed forms
given that layer (mean, second moment, variance of a rectified Gaussian) are written out here once more, in their
textbook form: their rounding is absolute, which :data:`ROUNDING` allows for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import pytest
import torch
from torch import Tensor

from bnndp.engine.dense import forward
from bnndp.engine.dense.conditional import Layers, conditional
from bnndp.engine.dense.first import FirstLayer
from bnndp.engine.dense.records import Latent, PreActivation, Relaxation
from bnndp.geometry.bounds import AffineBounds, Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

SAMPLES = 40_000
DEVIATIONS = 5.0  # standard errors by which an estimate may lie on the wrong side of a bound
ROUNDING = 1e-11  # of the draws, relative to the size of what was averaged


# The records of a pass


@dataclass(frozen=True)
class Hidden:
    """What the pass found for a hidden layer after the first."""

    before: PreActivation
    mean: Interval
    relaxation: Relaxation
    latent: Latent


@dataclass(frozen=True)
class Pass:
    """All records of one call of ``forward.bound``."""

    network: BayesianNetwork
    box: Box
    first: FirstLayer
    hidden: list[Hidden]
    bounds: AffineBounds

    @cached_property
    def latents(self) -> list[Latent]:
        return [self.first.latent, *(h.latent for h in self.hidden)]

    @cached_property
    def given(self) -> Layers:
        """The hidden layers from the second on, taken apart (the pass itself leaves out the last one)."""
        parts: Layers = []
        for k, h in enumerate(self.hidden):
            sources = self.first.sources if k == 0 else None
            parts.append((h.before, conditional(h.before, h.mean, h.latent, self.latents[k], sources)))
        return parts


def run(network: BayesianNetwork, box: Box, parameters: forward.Parameters | None = None) -> Pass:
    """Run the pass and keep what its steps returned."""
    firsts: list[FirstLayer] = []
    hidden: list[Hidden] = []
    first_layer, relax = forward.first_layer, forward.relax

    def keep_first(*args: object) -> FirstLayer:
        firsts.append(first_layer(*args))
        return firsts[-1]

    def keep_relaxed(before: PreActivation, mean: Interval, *args: object) -> tuple[Relaxation, Latent]:
        hidden.append(Hidden(before, mean, *relax(before, mean, *args)))
        return hidden[-1].relaxation, hidden[-1].latent

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forward, "first_layer", keep_first)
        patch.setattr(forward, "relax", keep_relaxed)
        bounds = forward.bound(network, box, parameters)
    return Pass(network, box, firsts[0], hidden, bounds)


# Draws


@dataclass(frozen=True)
class Draws:
    """A hidden layer, drawn: m and s are the mean and variance of X given the layer before; (samples, n) each."""

    m: Tensor
    s: Tensor
    z: Tensor

    @cached_property
    def _normal(self) -> tuple[Tensor, Tensor, Tensor]:
        r = self.s.sqrt()
        u = torch.where(r > 0, self.m / r.clamp_min(1e-300), torch.where(self.m > 0, 1e3, -1e3)).clamp(-1e3, 1e3)
        return r, *normal(u)

    @cached_property
    def slope(self) -> Tensor:
        """P(X > 0 | before)."""
        return self._normal[1]

    @cached_property
    def h(self) -> Tensor:
        """E[z | before]."""
        r, cdf, pdf = self._normal
        return self.m * cdf + r * pdf

    @cached_property
    def q(self) -> Tensor:
        """E[z^2 | before]."""
        r, cdf, pdf = self._normal
        return (self.m * self.m + self.s) * cdf + self.m * r * pdf

    @cached_property
    def v(self) -> Tensor:
        """Var(z | before)."""
        return (self.q - self.h * self.h).clamp_min(0)

    @cached_property
    def fourth(self) -> Tensor:
        """E[z^4 | before]."""
        r, cdf, pdf = self._normal
        m, m2 = self.m, self.m * self.m
        return (m2 * m2 + 6 * m2 * self.s + 3 * self.s * self.s) * cdf + m * r * (m2 + 5 * self.s) * pdf


def normal(u: Tensor) -> tuple[Tensor, Tensor]:
    """Distribution function and density of the standard normal law."""
    return 0.5 * torch.special.erfc(-u / math.sqrt(2)), torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)


def relu_mean(m: Tensor, r: Tensor) -> Tensor:
    """``E max(N(m, r^2), 0)`` for r > 0."""
    cdf, pdf = normal((m / r).clamp(-1e3, 1e3))
    return m * cdf + r * pdf


def draw(network: BayesianNetwork, x: Tensor, seed: int, samples: int = SAMPLES) -> list[Draws]:
    """Every hidden layer at ``x`` (n,), first to last."""
    generator = torch.Generator().manual_seed(seed)
    z = x[None]
    layers = []
    for layer in network.linears[:-1]:
        m, s = pre_activation(layer, z)
        noise = torch.randn(samples, layer.n_out, generator=generator, dtype=torch.float64)
        z = (m + s.sqrt() * noise).clamp_min(0)
        layers.append(Draws(m.expand_as(z), s.expand_as(z), z))
    return layers


def pre_activation(layer: Linear, z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``W z + b`` given z (samples, n_in)."""
    m = z @ layer.weight_mean.T + layer.bias_mean
    return m, (z * z) @ (layer.weight_std**2).T + layer.bias_std**2


# Comparison of estimates with bounds


@dataclass(frozen=True)
class Estimate:
    """A mean of draws with its standard error, and the size of what was averaged."""

    value: Tensor
    error: Tensor
    size: Tensor

    @property
    def lowest(self) -> Tensor:
        return self.value - DEVIATIONS * self.error - ROUNDING * self.size

    @property
    def highest(self) -> Tensor:
        return self.value + DEVIATIONS * self.error + ROUNDING * self.size


def mean(values: Tensor, size: Tensor | None = None) -> Estimate:
    """The mean over the draws; ``size`` where the values come from a difference of larger ones."""
    error = values.std(0) / math.sqrt(values.shape[0])
    return Estimate(values.mean(0), error, values.abs().mean(0) if size is None else size)


def central(values: Tensor, power: int = 2) -> Estimate:
    """The mean of ``(value - E value)^power``."""
    return mean((values - values.mean(0)) ** power, values.abs().mean(0) ** power)


def at_most(estimate: Estimate, bound: Tensor, what: str) -> None:
    """Fail unless the estimate is compatible with ``truth <= bound``; a bound that is NaN fails."""
    bad = ~(estimate.lowest <= bound)
    _report(bad, estimate, bound, f"{what} is larger than its upper bound")


def at_least(estimate: Estimate, bound: Tensor, what: str) -> None:
    """Fail unless the estimate is compatible with ``truth >= bound``; a bound that is NaN fails."""
    bad = ~(estimate.highest >= bound)
    _report(bad, estimate, bound, f"{what} is smaller than its lower bound")


def inside(estimate: Estimate, interval: Interval, what: str) -> None:
    """Fail unless the estimate is compatible with both ends of an interval of one box."""
    at_least(estimate, interval.lower[0], what)
    at_most(estimate, interval.upper[0], what)


def _report(bad: Tensor, estimate: Estimate, bound: Tensor, what: str) -> None:
    if bool(bad.any()):
        i = int(bad.nonzero()[0, -1])
        pytest.fail(
            f"{what} at {i} ({int(bad.sum())} of {bad.numel()}): sampled {estimate.value[i].item():.9g} "
            f"+- {estimate.error[i].item():.2g}, bound {bound.expand_as(bad)[i].item():.9g}"
        )
