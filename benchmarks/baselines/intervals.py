r"""Moments by intervals alone: what is left of the bounds without planes.

Each mean and each variance is a number between two others, layer by layer, and nothing is remembered of how it depends
on x. In the first layer X is Gaussian with :math:`m=\mu\cdot x+\mu_b` and :math:`s=\sigma^2\cdot x^2+\sigma_b^2`, and
the mean of ReLU(X) increases in both. After it, with :math:`V\ge\operatorname{Var}X`,

.. math:: [M]_+\ \le\ \mathbb E\,\mathrm{ReLU}(X)\ \le\ \tfrac12\bigl(M+\sqrt{M^2+V}\bigr),\qquad
          \operatorname{Var}\mathrm{ReLU}(X)\le V

(Jensen, Scarf 1958, and that ReLU is a contraction). The variance of a sum over the outputs z of a layer is the sum of
the variances where these are independent, after the first layer, and at most the square of the sum of the standard
deviations elsewhere. Sound for the whole posterior but for rounding: computed in float64, not rounded outward.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.protocol import Margins
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.maths.rectified import moments
from bnndp.network import BayesianNetwork
from bnndp.questions.from_margins import class_interval

__all__ = ["Spread", "outputs", "probabilities"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Ranges of the means and upper bounds of the variances: (boxes, n) each."""

    mean: Interval
    variance: Tensor


def outputs(network: BayesianNetwork, box: Box) -> Spread:
    """Those of the outputs of a plain network for every x of each box."""
    shifted = box if network.shift is None else box.moved(network.shift)
    first, *others = network.linears
    least = torch.where(
        (shifted.lower <= 0) & (shifted.upper >= 0), 0.0, torch.minimum(shifted.lower.abs(), shifted.upper.abs())
    )
    variance = Interval(_noise(first, least.square()), _noise(first, shifted.magnitude.square()))
    x = Spread(_linear(first, Interval(shifted.lower, shifted.upper)), variance.upper)
    for k, layer in enumerate(others):
        z = _relu(x) if k else _gaussian(x.mean, variance)
        through = _independent(layer, z) if k == 0 else _dependent(layer, z)
        second = z.variance + z.mean.upper.square()
        x = Spread(_linear(layer, z.mean), _noise(layer, second) + through)
    return x


def probabilities(network: BayesianNetwork, box: Box) -> Interval:
    """Ranges (boxes, classes) of E softmax from the means and variances of the logits."""
    logits = outputs(network, box)
    mean = logits.mean.lower[:, :, None] - logits.mean.upper[:, None]
    root = logits.variance.sqrt()
    variance = (root[:, :, None] + root[:, None]).square()
    itself = torch.eye(mean.shape[-1], dtype=torch.bool)
    return class_interval(Margins(mean.masked_fill(itself, 0.0), variance.masked_fill(itself, 0.0)))


def _linear(layer: Linear, z: Interval) -> Interval:
    middle = 0.5 * (z.lower + z.upper) @ layer.weight_mean.T + layer.bias_mean
    reach = 0.5 * (z.upper - z.lower) @ layer.weight_mean.abs().T
    return Interval(middle - reach, middle + reach)


def _noise(layer: Linear, square: Tensor) -> Tensor:  # (boxes, n_in)
    """The variance that the weights add to inputs with these second moments."""
    return square @ layer.weight_std.square().T + layer.bias_std.square()


def _independent(layer: Linear, z: Spread) -> Tensor:
    return z.variance @ layer.weight_mean.square().T


def _dependent(layer: Linear, z: Spread) -> Tensor:
    return (z.variance.sqrt() @ layer.weight_mean.abs().T).square()


def _gaussian(mean: Interval, variance: Interval) -> Spread:
    low, high = moments(mean.lower, variance.lower.sqrt()), moments(mean.upper, variance.upper.sqrt())
    return Spread(Interval(low.mean, high.mean), torch.minimum(variance.upper, high.second - low.mean.square()))


def _relu(x: Spread) -> Spread:
    top = x.mean.upper
    return Spread(Interval(x.mean.lower.clamp_min(0), 0.5 * (top + (top.square() + x.variance).sqrt())), x.variance)
