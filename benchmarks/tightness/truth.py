r"""True values of what the moment method bounds, at one input x* for each box: sampled, with the same draws everywhere.

Notation of docs/theory.md: given the layer z before, X has mean m and variance s; given the layer y before that one, m
has mean c(y) and variance V(y). Only z and y are sampled, everything given them is a closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.attack.noise import LayerNoise, gaussian_noise
from bnndp.attack.pathwise import marginals
from bnndp.layers import Linear
from bnndp.maths.rectified import moments
from bnndp.network import BayesianNetwork

__all__ = ["LayerTruth", "Truth", "draw", "norms", "sample"]


@dataclass(frozen=True, slots=True)
class LayerTruth:
    """A hidden layer at x*: draws of its conditional moments; a single one where they are no random variables."""

    below: Tensor  # (batch, n_in): E z of the layer before
    m: Tensor  # (batch, draws, n)
    s: Tensor  # (batch, draws, n)
    c: Tensor  # (batch, draws or 1, n): E[m | y]
    v: Tensor  # (batch, draws or 1, n): Var(m | y)
    e: Tensor  # (batch, draws or 1, n): E[s | y]
    spread_noise: Tensor  # (batch, n): E Var(s | y)
    output: Tensor  # (batch, n): E z of this layer

    @property
    def mean(self) -> Tensor:
        """M = E X: (batch, n)."""
        return self.c.mean(1)

    @property
    def spread(self) -> Tensor:
        """S = E s: (batch, n)."""
        return self.e.mean(1)

    @property
    def noise(self) -> Tensor:
        """N = E Var(m | y): (batch, n)."""
        return self.v.mean(1)

    @property
    def total(self) -> Tensor:
        """T = S + N: (batch, n)."""
        return self.spread + self.noise

    @property
    def central(self) -> Tensor:
        """Var E[m | y]: (batch, n)."""
        return self.c.var(1, correction=0)

    @property
    def spread_deviation(self) -> Tensor:
        """Standard deviation of s: (batch, n)."""
        return (self.spread_noise + self.e.var(1, correction=0)).sqrt()

    def mean_norms(self, powers: Sequence[int]) -> Tensor:
        """Of m - E m: (batch, n, q)."""
        return norms(self.m - self.mean[:, None], powers)

    def spread_norms(self, powers: Sequence[int]) -> Tensor:
        """Of s - E s: (batch, n, q)."""
        return norms(self.s - self.spread[:, None], powers)


def norms(values: Tensor, powers: Sequence[int]) -> Tensor:  # (batch, draws, n) -> (batch, n, q)
    """Norms in Lq over the draws."""
    return torch.stack([values.abs().pow(q).mean(1).pow(1 / q) for q in powers], -1)


@dataclass(frozen=True, slots=True)
class Truth:
    """All layers at x*, with the draws of the last hidden layer and of the outputs above it."""

    hidden: tuple[LayerTruth, ...]
    z: Tensor  # (batch, draws, n_K): draws of the last hidden layer
    z_second: Tensor  # (batch, n_K): E z^2
    output: Tensor  # (batch, n_out): mean of the outputs, or of the logits
    draws: Tensor  # (batch, draws, n_out): draws of the outputs


def draw(network: BayesianNetwork, draws: int, *, seed: int) -> LayerNoise:
    """One replicate of antithetic noise of all linear layers."""
    widths = [layer.n_out if layer.random else 0 for layer in network.linears]
    return gaussian_noise(widths, draws, seed=seed, replicates=1, antithetic=True)


def sample(layers: Sequence[Linear], x: Tensor, noise: LayerNoise) -> Truth:  # x (batch, n)
    """Run the network at x (as its first layer sees it); ``noise`` has one part with all linear layers."""
    eps, hidden, z = noise.part(0), [], x[:, None]
    zero = torch.zeros_like(z)
    mean, variance, second, square_variance = z, zero, z.square(), zero  # of z given y: (batch, draws or 1, n)
    for layer, own in zip(layers[:-1], eps[:-1], strict=True):
        weights, spreads = layer.weight_mean, layer.weight_std.square()
        m, std = marginals(layer, z)
        z, given = torch.relu(m if own is None else m + std * own), moments(m, std)
        hidden.append(
            LayerTruth(
                below=mean.mean(1),
                m=m,
                s=std.square(),
                c=mean @ weights.T + layer.bias_mean,
                v=variance @ weights.square().T,
                e=second @ spreads.T + layer.bias_std.square(),
                spread_noise=(square_variance @ spreads.square().T).mean(1),
                output=given.mean.mean(1),
            )
        )
        mean, variance, second, square_variance = given.mean, given.variance, given.second, given.square_variance
    last, own = layers[-1], eps[-1]
    m, std = marginals(last, z)
    output = mean.mean(1) @ last.weight_mean.T + last.bias_mean
    return Truth(tuple(hidden), z, second.mean(1), output, m if own is None else m + std * own)
