r"""Gradients of single points in a network of linear layers, in closed form and without one loop over points.

With inputs :math:`a_i` of a layer and :math:`\delta_i`, the gradient of the log-likelihood of point i with respect to
its pre-activations, the gradient for the weights is the outer product :math:`\delta_i a_i^\top`. So the sum over points
of the gradients is :math:`\delta^\top a`, and that of their squares :math:`(\delta^2)^\top(a^2)` (squares of elements).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.training.likelihoods import Likelihood

__all__ = ["Slopes", "slopes"]


@dataclass(frozen=True, slots=True, eq=False)
class Slopes:
    """Of the log-likelihood of a batch at given weights; lists go weight, bias, weight, bias, ... as the parameters."""

    gain: Tensor  # (): mean log-likelihood of a point
    gradient: list[Tensor]  # of the mean log-likelihood, each of the shape of its parameter
    square: list[Tensor]  # the curvature asked for, of the same shapes, >= 0


@dataclass(frozen=True, slots=True, eq=False)
class _Forward:
    inputs: list[Tensor]  # (points, n_in) of each layer
    outputs: Tensor  # (points, n_out)


@torch.no_grad()
def slopes(
    likelihood: Likelihood,
    parameters: Sequence[Tensor],
    x: Tensor,  # (points, n_in)
    y: Tensor,  # (points, n_out) or (points,)
    curvature: str,
    generator: torch.Generator,
) -> Slopes:
    """Mean gradient and curvature of the log-likelihood of a batch; see :class:`NaturalGradient` for the curvatures."""
    points = x.shape[0]
    forward = _forward(parameters, x)
    deltas = _backward(parameters, forward, likelihood.slope(forward.outputs, y))
    gradient = [total / points for total in _sums(forward.inputs, deltas)]
    if curvature == "batch":
        square = [value.square() for value in gradient]
    else:
        if curvature == "fisher":
            drawn = likelihood.targets(forward.outputs, generator)
            deltas = _backward(parameters, forward, likelihood.slope(forward.outputs, drawn))
        squared = ([t.square() for t in tensors] for tensors in (forward.inputs, deltas))
        square = [total / points for total in _sums(*squared)]
    return Slopes(likelihood.log_probability(forward.outputs, y).mean(), gradient, square)


def _forward(parameters: Sequence[Tensor], x: Tensor) -> _Forward:  # x (points, n_in)
    *hidden, (last, last_bias) = zip(parameters[::2], parameters[1::2], strict=True)
    inputs = [x]
    for weight, bias in hidden:
        inputs.append(torch.addmm(bias, inputs[-1], weight.T).relu_())
    return _Forward(inputs, torch.addmm(last_bias, inputs[-1], last.T))


def _backward(parameters: Sequence[Tensor], forward: _Forward, slope: Tensor) -> list[Tensor]:
    """Gradients with respect to the pre-activations of each layer, first to last: (points, n_out of the layer)."""
    deltas = [slope]
    for weight, a in zip(reversed(parameters[2::2]), reversed(forward.inputs[1:]), strict=True):
        deltas.append((deltas[-1] @ weight) * (a > 0))
    return deltas[::-1]


def _sums(inputs: list[Tensor], deltas: list[Tensor]) -> list[Tensor]:
    """Sums over points of outer products for the weights, of the deltas for the biases."""
    return [total for a, delta in zip(inputs, deltas, strict=True) for total in (delta.T @ a, delta.sum(0))]
