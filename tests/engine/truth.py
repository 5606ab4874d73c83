"""Truth for networks of Linear and Relu: draws of all hidden layers at a point of the box, and exact margins.

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
from flint import arb
from support import oracles
from support.dice import Dice
from torch import Tensor

from bnndp.engine.margins import margins
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.protocol import Margins, Pass, both_signs, known
from bnndp.geometry.bounds import AffineBounds, Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.questions.mean import sides

SAMPLES = 20_000
DEVIATIONS = 5.0  # standard errors by which an estimate may lie on the wrong side of a bound
ROUNDING = 1e-11  # of the draws, relative to the size of what was averaged


# Bounds of a pass


def enclosed(found: Pass, outputs: int) -> tuple[AffineBounds, Interval]:
    """Affine bounds of every mean output by a pass, and their ends."""
    planes = found.affine(both_signs(outputs, found.box))
    least = known(planes.least)
    return sides(planes.affine, found.box), Interval(least[:, :outputs], -least[:, outputs:])


def bounds(network: BayesianNetwork, box: Box) -> tuple[AffineBounds, Interval]:
    """Those of the moment pass."""
    return enclosed(MomentPass.of(network, box), network.n_out)


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
    def third(self) -> Tensor:
        """E[z^3 | before]."""
        r, cdf, pdf = self._normal
        m2 = self.m * self.m
        return self.m * (m2 + 3 * self.s) * cdf + r * (m2 + 2 * self.s) * pdf

    @cached_property
    def central_third(self) -> Tensor:
        """E[(z - h)^3 | before]."""
        return self.third - 3 * self.h * self.q + 2 * self.h**3

    @cached_property
    def central_fourth(self) -> Tensor:
        """E[(z - h)^4 | before]."""
        return self.fourth - 4 * self.h * self.third + 6 * self.h**2 * self.q - 3 * self.h**4

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
    dice, z, layers = Dice(seed), x[None], []
    for layer in network.linears[:-1]:
        m, s = pre_activation(layer, z)
        z = (m + s.sqrt() * dice.normal(samples, layer.n_out)).clamp_min(0)
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


# Margins


@dataclass(frozen=True)
class Exact:
    """Balls of the mean and variance of every margin at a point: [c][j]."""

    mean: list[list[arb]]
    variance: list[list[arb]]

    def holds(self, found: Margins, box: int) -> bool:
        """Whether what was found of all margins on a box holds at this point, without tolerance."""
        low, high = found.mean[box].tolist(), found.variance[box].tolist()
        pairs = [(c, j) for c in range(len(low)) for j in range(len(low))]
        return all(arb(low[c][j]) <= self.mean[c][j] and arb(high[c][j]) >= self.variance[c][j] for c, j in pairs)


@oracles.precise
def exact_margins(network: BayesianNetwork, x: list[float]) -> Exact:
    """Without or with one hidden layer: z independent, given z the logits are independent Gaussians."""
    last = network.linears[-1]
    if network.depth == 0:
        z = [(arb(v), arb(v) ** 2, arb(0)) for v in x]
    else:
        moments = [oracles.rectified(m, r) for m, r in oracles.pre_activation(network, x)]
        z = [(m.mean, m.second, m.variance) for m in moments]
    mean, std, bias, bias_std = (t.tolist() for t in (last.weight_mean, last.weight_std, last.bias_mean, last.bias_std))

    def pair(c: int, j: int) -> tuple[arb, arb]:
        if c == j:
            return arb(0), arb(0)
        d, v = arb(bias[c]) - arb(bias[j]), arb(bias_std[c]) ** 2 + arb(bias_std[j]) ** 2
        for i, (first, second, variance) in enumerate(z):
            w = arb(mean[c][i]) - arb(mean[j][i])
            d += w * first
            v += w * w * variance + (arb(std[c][i]) ** 2 + arb(std[j][i]) ** 2) * second
        return d, v

    pairs = [[pair(c, j) for j in range(last.n_out)] for c in range(last.n_out)]
    return Exact([[d for d, _ in row] for row in pairs], [[v for _, v in row] for row in pairs])


def all_margins(found: Pass, classes: int) -> Margins:
    """Those of every class against every class: (batch, classes, classes)."""
    return margins(found, torch.arange(classes).expand(found.box.batch, -1), classes)
