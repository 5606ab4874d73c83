r"""True values of what the moment method bounds, at one input x* for each box: sampled, with the same draws everywhere.

Notation of docs/theory.md, sections 1.3 and 4.2: given the layer z before, X has mean m and variance s; given the
layer y before that one, m has mean c(y) and variance V(y). Only z and y are sampled, everything given them is a closed
form. For any constants s0 and n0 the mean of a neuron is taken apart exactly,

.. math:: \mathbb E\,\mathrm{ReLU}(X)=g(M,\sqrt{s_0+n_0})+e_1+e_2+e_3+e_4,

one term for each of the four steps of the proof (:meth:`LayerTruth.steps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bnndp.attack.noise import LayerNoise, gaussian_noise
from bnndp.attack.pathwise import marginals
from bnndp.layers import Linear
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import moments
from bnndp.network import BayesianNetwork

__all__ = ["FirstTruth", "LayerTruth", "Steps", "Truth", "draw", "mean_relu", "sample"]

_TINY = 1e-300


def mean_relu(mean: Tensor, variance: Tensor) -> Tensor:
    """g(m, sqrt s), the mean of a rectified Gaussian; its far left tail is good enough for a diagnosis."""
    root = variance.clamp_min(_TINY).sqrt()
    u = mean / root
    return (mean * cdf(u) + root * pdf(u)).clamp_min(0)


@dataclass(frozen=True, slots=True)
class Steps:
    """True errors of the four steps at given levels s0 and n0, signed: (batch, n) each."""

    spread: Tensor  # e1: s becomes s0
    spread_linear: Tensor  # the part of e1 that is linear in s - s0: E[d_s g(m, sqrt s0) (s - s0)]
    replacement: Tensor  # e2: the independent terms become Gaussian
    noise: Tensor  # e3: V(y) becomes n0
    noise_linear: Tensor  # the part of e3 that is linear in V(y) - n0
    jensen: Tensor  # e4: c(y) becomes M


@dataclass(frozen=True, slots=True)
class FirstTruth:
    """Mean and standard deviation of the first pre-activations at x*: exact, (batch, n) each."""

    x: Tensor  # (batch, n_in)
    mean: Tensor
    std: Tensor


@dataclass(frozen=True, slots=True)
class LayerTruth:
    """A hidden layer after the first at x*: draws of its conditional moments."""

    m: Tensor  # (batch, draws, n)
    s: Tensor  # (batch, draws, n)
    c: Tensor  # (batch, draws or 1, n): E[m | y]
    v: Tensor  # (batch, draws or 1, n): Var(m | y)
    spread: Tensor  # (batch, n): E s
    spread_variance: Tensor  # (batch, n): Var s
    output: Tensor  # (batch, n): E z of this layer
    _known: list[tuple[Tensor, Tensor, Steps]] = field(default_factory=list)  # steps at the levels asked for before

    @property
    def mean(self) -> Tensor:
        """M = E X: (batch, n)."""
        return self.c.mean(1)

    @property
    def noise(self) -> Tensor:
        """N = E Var(m | y): (batch, n)."""
        return self.v.mean(1)

    @property
    def central(self) -> Tensor:
        """Vc = Var E[m | y]: (batch, n)."""
        return self.c.var(1, correction=0)

    @property
    def noise_variance(self) -> Tensor:
        """Var Var(m | y): (batch, n)."""
        return self.v.var(1, correction=0)

    def norm(self, p: int) -> Tensor:
        """The L_p norm of m - E m: (batch, n)."""
        return (self.m - self.mean[:, None]).abs().pow(p).mean(1).pow(1 / p)

    def spread_norm4(self) -> Tensor:
        """E (s - E s)^4: (batch, n)."""
        return (self.s - self.spread[:, None]).pow(4).mean(1)

    def steps(self, s0: Tensor, n0: Tensor) -> Steps:  # (batch, n) each
        """The errors of the four steps at these levels; with g(M, sqrt(s0 + n0)) they add up to E z."""
        for s_known, n_known, found in self._known:
            if torch.equal(s0, s_known) and torch.equal(n0, n_known):
                return found
        at, level = s0[:, None], (s0 + n0)[:, None]
        smooth, spread_slope = _mean_and_slope(self.m, at)
        gaussian = mean_relu(self.c, at + self.v)
        calm, noise_slope = _mean_and_slope(self.c, level)
        found = Steps(
            spread=self.output - smooth.mean(1),
            spread_linear=(spread_slope * (self.s - at)).mean(1),
            replacement=smooth.mean(1) - gaussian.mean(1),
            noise=gaussian.mean(1) - calm.mean(1),
            noise_linear=(noise_slope * (at + self.v - level)).mean(1),
            jensen=calm.mean(1) - mean_relu(self.mean, s0 + n0),
        )
        self._known.append((s0, n0, found))
        return found


@dataclass(frozen=True, slots=True)
class Truth:
    """All layers at x*, with the draws of the last hidden layer and of the outputs above it."""

    first: FirstTruth
    hidden: tuple[LayerTruth, ...]  # hidden layers 2 to K
    z: Tensor  # (batch, draws, n_K): draws of the last hidden layer
    z_mean: Tensor  # (batch, n_K): E z
    z_second: Tensor  # (batch, n_K): E z^2
    output: Tensor  # (batch, n_out): mean of the outputs, or of the logits
    draws: Tensor  # (batch, draws, n_out): draws of the outputs


def draw(network: BayesianNetwork, draws: int, *, seed: int) -> LayerNoise:
    """One replicate of antithetic noise of all linear layers."""
    widths = [layer.n_out if layer.random else 0 for layer in network.linears]
    return gaussian_noise(widths, draws, seed=seed, replicates=1, antithetic=True)


def sample(layers: Sequence[Linear], x: Tensor, noise: LayerNoise) -> Truth:  # x (batch, n)
    """Run the network at x (as its first layer sees it); ``noise`` has one part with all linear layers."""
    eps = noise.part(0)
    mean, std = marginals(layers[0], x[:, None])  # (batch, 1, n)
    first = FirstTruth(x, mean[:, 0], std[:, 0])
    z, given = _draw(mean, std, eps[0]), moments(mean, std)
    hidden = []
    for layer, own in zip(layers[1:-1], eps[1:-1], strict=True):
        c = given.mean @ layer.weight_mean.T + layer.bias_mean
        v = given.variance @ layer.weight_mean.square().T
        variance = layer.weight_std.square()
        spread = given.second @ variance.T + layer.bias_std.square()  # E[s | y]
        inner = given.square_variance @ variance.square().T  # Var(s | y)
        mean, std = marginals(layer, z)
        z, given = _draw(mean, std, own), moments(mean, std)
        hidden.append(
            LayerTruth(
                m=mean,
                s=std.square(),
                c=c,
                v=v,
                spread=spread.mean(1),
                spread_variance=inner.mean(1) + spread.var(1, correction=0),
                output=given.mean.mean(1),
            )
        )
    mean, std = marginals(layers[-1], z)
    z_mean = given.mean.mean(1)
    output = z_mean @ layers[-1].weight_mean.T + layers[-1].bias_mean
    draws = mean if eps[-1] is None else mean + std * eps[-1]
    return Truth(first, tuple(hidden), z, z_mean, given.second.mean(1), output, draws)


def _mean_and_slope(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """g(m, sqrt s) and its derivative phi(m / sqrt s) / (2 sqrt s) in s."""
    root = variance.clamp_min(_TINY).sqrt()
    u = mean / root
    density = pdf(u)
    return (mean * cdf(u) + root * density).clamp_min(0), 0.5 * density / root


def _draw(mean: Tensor, std: Tensor, eps: Tensor | None) -> Tensor:
    return torch.relu(mean if eps is None else mean + std * eps)
