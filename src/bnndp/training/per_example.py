r"""Gradients of single points in a network, without one loop over points.

With inputs :math:`a_i` of a dense layer and :math:`\delta_i`, the gradient of the log-likelihood of point i with
respect to its pre-activations, the gradient for the weights is the outer product :math:`\delta_i a_i^\top`. So the sum
over points of the gradients is :math:`\delta^\top a`, and that of their squares :math:`(\delta^2)^\top(a^2)` (squares
of elements). A convolution is a dense layer at every position l with the window :math:`a_{il}` for its input: the
gradient of a point is :math:`\sum_l\delta_{il}a_{il}^\top`, and is squared after the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bnndp.activations import Relu
from bnndp.training.forward import Stage, affine, apply_fixed
from bnndp.training.likelihoods import Likelihood


@dataclass(frozen=True, slots=True, eq=False)
class BatchGradients:
    """Of the log-likelihood of a batch at given weights; lists go weight, bias, weight, bias, ... as the parameters."""

    gain: Tensor  # (): mean log-likelihood of a point
    gradient: list[Tensor]  # of the mean log-likelihood, each of the shape of its parameter
    square: list[Tensor]  # the curvature asked for, of the same shapes, >= 0


@dataclass(frozen=True, slots=True, eq=False)
class _Forward:
    inputs: list[Tensor]  # (points, ...) of each layer
    sums: list[Tensor]  # its pre-activations
    outputs: Tensor  # (points, n_out)


@torch.no_grad()
def batch_gradients(  # noqa: PLR0913 (the likelihood of a batch at given weights)
    likelihood: Likelihood,
    parameters: Sequence[Tensor],
    x: Tensor,  # (points, n_in)
    y: Tensor,  # (points, n_out) or (points,)
    curvature: str,
    generator: torch.Generator,
    steps: Sequence[Stage] | None = None,
) -> BatchGradients:
    """Mean gradient and curvature of the log-likelihood of a batch; see :class:`NaturalGradient` for the curvatures.

    ``steps`` say what the layers are and what follows each; None: dense layers with ReLU between them.
    """
    points = x.shape[0]
    if steps is None:
        steps = [Stage((Relu(),))] * (len(parameters) // 2 - 1) + [Stage()]
    forward = _forward(parameters, steps, x)
    outputs = forward.outputs.detach()
    deltas = _backward(forward, likelihood.output_gradient(outputs, y))
    layers = [_Layer(step, weight) for step, weight in zip(steps, parameters[::2], strict=True)]
    gradient = [
        total / points for layer, a, d in zip(layers, forward.inputs, deltas, strict=True) for total in layer.sums(a, d)
    ]
    if curvature == "batch":
        square = [value.square() for value in gradient]
    else:
        if curvature == "fisher":
            drawn = likelihood.sample_targets(outputs, generator)
            deltas = _backward(forward, likelihood.output_gradient(outputs, drawn))
        found = zip(layers, forward.inputs, deltas, strict=True)
        square = [total / points for layer, a, d in found for total in layer.squares(a, d)]
    return BatchGradients(likelihood.log_probability(outputs, y).mean(), gradient, square)


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    step: Stage
    weight: Tensor

    def sums(self, a: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over points of the gradients for the weights and for the biases."""
        if self.weight.ndim == 2:
            return delta.T @ a, delta.sum(0)
        return self._each(a, delta).sum(0), delta.sum((0, 2, 3))

    def squares(self, a: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """The same of the squares of the gradients of single points."""
        if self.weight.ndim == 2:
            return delta.square().T @ a.square(), delta.square().sum(0)
        return self._each(a, delta).square().sum(0), delta.sum((2, 3)).square().sum(0)

    def _each(self, a: Tensor, delta: Tensor) -> Tensor:  # (points, channels, rows, columns) each
        """Gradients for the kernels, one per point: (points, *kernels)."""
        step, kernel = self.step, tuple(self.weight.shape[2:])
        windows = functional.unfold(a, kernel, padding=step.padding, stride=step.stride)  # (points, window, positions)
        return (delta.flatten(2) @ windows.mT).reshape(a.shape[0], *self.weight.shape)


@torch.enable_grad()
def _forward(parameters: Sequence[Tensor], steps: Sequence[Stage], x: Tensor) -> _Forward:  # x (points, n_in)
    inputs: list[Tensor] = []
    sums: list[Tensor] = []
    z = x
    for step, weight, bias in zip(steps, parameters[::2], parameters[1::2], strict=True):
        inputs.append(step.as_image(z).detach())
        found = affine(step, weight, bias, step.as_image(z))
        sums.append(found if found.requires_grad else found.requires_grad_())
        z = apply_fixed(step.after, sums[-1], None)
    return _Forward(inputs, sums, z)


def _backward(forward: _Forward, slope: Tensor) -> list[Tensor]:
    """Gradients with respect to the pre-activations of each layer, first to last: (points, ...)."""
    return list(torch.autograd.grad(forward.outputs, forward.sums, slope, retain_graph=True))
