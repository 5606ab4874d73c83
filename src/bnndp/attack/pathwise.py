r"""One pass through any layers on given noise: every layer as a smooth function of its input and of Gaussian numbers.

Given the layer below, a layer is written with as few Gaussians as its law needs, the same for all inputs (each input
sees the right law; two inputs together do not):

- independent weights: :math:`X_i=m_i(z)+r_i(z)\,\varepsilon_i`, and so with rows of their own covariance;
- a factor shared by all rows: one more Gaussian for each of its columns;
- a matrix normal: :math:`A\,\Xi\,v` with :math:`v=B^\top\tilde z` has the law of :math:`\lVert v\rVert A\,\eta`,
  :math:`\eta\sim N(0,I)`;
- kernels are the same at all positions, so they are drawn themselves;
- dropout: the factor is a function of one Gaussian (Bernoulli: above the quantile of its rate).

Without noise a layer stands for its mean. Tensors are (draws, points, *shape), with one draw until a layer is random.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.attack.draws import affine, convolve, plain_step
from bnndp.errors import UnsupportedLayerError
from bnndp.layers import DENSE, WEIGHTED, Branched, Conv2d, CorrelatedLinear, Dropout, Linear, MatrixNormalLinear
from bnndp.maths.normal import cdf, pdf
from bnndp.network import Layer

_NO_VARIANCE = 1e-300  # stands for zero under a square root, whose slope at zero would make NaN of 0 * inf


def noise_width(layer: Layer, shape: tuple[int, ...]) -> int:
    """How many Gaussians a layer with inputs of this shape needs for one draw; zero where nothing is random."""
    if not layer.random:
        return 0
    if isinstance(layer, Branched):
        return sum(map(sum, _inner_widths(layer, shape)))
    if isinstance(layer, Conv2d):
        return layer.weight_mean.numel() + layer.bias_mean.numel()
    if isinstance(layer, Dropout):
        return shape[0] if layer.channels else math.prod(shape)
    if isinstance(layer, MatrixNormalLinear):
        return layer.row_factor.shape[1]
    if not isinstance(layer, Linear | CorrelatedLinear):
        raise UnsupportedLayerError(f"{layer.kind} cannot be sampled here; this is a bug in bnndp.")
    return layer.n_out + (layer.rank if isinstance(layer, CorrelatedLinear) and layer.shared else 0)


def _inner_widths(block: Branched, shape: tuple[int, ...]) -> list[list[int]]:
    """Gaussians of every layer of each branch of a block."""
    pairs = zip(block.branches, block.shapes(shape), strict=True)
    return [list(map(noise_width, branch, shapes)) for branch, shapes in pairs]


def breadth(layer: Layer, shape: tuple[int, ...]) -> int:
    """Numbers that a layer makes of one input of this shape and one draw, roughly, for the memory they take."""
    if isinstance(layer, Branched):
        inner = [map(breadth, *pair) for pair in zip(layer.branches, layer.shapes(shape), strict=True)]
        return max([math.prod(layer.out_shape(shape)), *(size for branch in inner for size in branch)])
    own = layer.n_out * min(layer.rank, layer.n_in + 1) if isinstance(layer, CorrelatedLinear) else 0
    return max(math.prod(layer.out_shape(shape)), own)


def step(layer: Layer, z: Tensor, eps: Tensor | None) -> Tensor:
    """The layer on z (draws or 1, points, *shape) with noise (draws, width), or its mean where that is None."""
    if isinstance(layer, Branched):
        return _block(layer, z, eps)
    if isinstance(layer, DENSE):
        return _mean(layer, z) if eps is None else _dense(layer, z, eps)
    if isinstance(layer, Conv2d):
        return _mean(layer, z) if eps is None else _kernels(layer, z, eps)
    if isinstance(layer, Dropout):
        return z if eps is None else z * _factors(layer, eps, tuple(z.shape[2:]))
    return plain_step(layer, z)


def _block(block: Branched, z: Tensor, eps: Tensor | None) -> Tensor:
    """A block, with the noise of its branches one after the other."""
    found, start = [], 0
    for branch, widths in zip(block.branches, _inner_widths(block, tuple(z.shape[2:])), strict=True):
        own = z
        for layer, width in zip(branch, widths, strict=True):
            own = step(layer, own, eps[..., start : start + width] if eps is not None and width else None)
            start += width
        found.append(own)
    return block.joined(found)


def marginals(layer: Layer, z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every output of a layer with weights, given z; both (draws, points, *shape)."""
    mean = _mean(layer, z)
    if isinstance(layer, Conv2d):
        variance = convolve(z * z, layer.weight_std[None] ** 2, layer.stride, layer.padding)
        variance = variance + (layer.bias_std**2)[:, None, None]
    elif isinstance(layer, MatrixNormalLinear):
        length = (_extended(z) @ layer.column_factor).square().sum(-1, keepdim=True)
        variance = length * layer.row_factor.square().sum(-1)
    else:
        if not isinstance(layer, Linear | CorrelatedLinear):
            raise UnsupportedLayerError(f"{layer.kind} cannot be sampled here; this is a bug in bnndp.")
        variance = (z * z) @ (layer.weight_std**2).T + layer.bias_std**2
        if isinstance(layer, CorrelatedLinear):
            variance = variance + _correlated(layer, _extended(z))
    return mean, variance.clamp_min(_NO_VARIANCE).sqrt()


def integrated(activation: Activation, mean: Tensor, std: Tensor) -> Tensor:
    """``E phi(mean + std xi)``, with gradients that are good enough to climb on."""
    if not mean.requires_grad:
        return activation.mean(mean, std)
    function, settings = (_ExpectedRelu, ()) if activation.kind == "relu" else (_Integrated, (activation,))
    result: Tensor = function.apply(*settings, mean, std)  # type: ignore[no-untyped-call]
    return result


def symmetric(activation: Activation, mean: Tensor, std: Tensor, eps: Tensor) -> Tensor:
    r"""An unbiased estimate of ``E phi(mean + std xi)`` from noise (draws, 3 * outputs), exact where phi is a cubic.

    .. math:: \varphi(m)+\frac{\varphi(m+r\rho)-2\varphi(m)+\varphi(m-r\rho)}{2\rho^2},\qquad\rho\sim\chi_3,

    the radial rule of degree three of Genz and Monahan (1998): the density :math:`\sqrt{2/\pi}\,\rho^2e^{-\rho^2/2}`
    of :math:`\rho` cancels the denominator. Below 1/100, which has probability 3e-7, the radius is rounded up: the
    quotient hardly changes there, but would lose its digits.
    """
    radius = torch.linalg.vector_norm(eps.unflatten(-1, (3, -1)), dim=1).clamp_min(0.01)  # (draws, outputs)
    radius = radius.reshape(len(eps), 1, *mean.shape[2:])
    centre = activation(mean)
    change = activation(mean + std * radius) - 2 * centre + activation(mean - std * radius)
    return centre + change / (2 * radius**2)


class _ExpectedRelu(torch.autograd.Function):
    """``g(m, r)`` with its derivatives dg/dm = Phi(m/r), dg/dr = phi(m/r); its left tail is good enough to climb on."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, std: Tensor) -> Tensor:
        u = mean / std
        active, density = cdf(u), pdf(u)
        ctx.save_for_backward(active, density)
        return (mean * active).addcmul_(std, density).clamp_min_(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        active, density = ctx.saved_tensors
        return gradients[0] * active, gradients[0] * density


class _Integrated(torch.autograd.Function):
    """``G(m, r)`` with dG/dm from the activation and dG/dr = r d^2G/dm^2 by a central difference of that."""

    @staticmethod
    def forward(ctx: Any, activation: Activation, mean: Tensor, std: Tensor) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(mean, std)
        return activation.mean(mean, std)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor]:
        mean, std = ctx.saved_tensors
        h = 1e-3 * (std + 1e-6)
        up, down = (ctx.activation.slope(mean + sign * h, std) for sign in (1, -1))
        return None, gradients[0] * 0.5 * (up + down), gradients[0] * std * (up - down) / (2 * h)


def _mean(layer: Layer, z: Tensor) -> Tensor:
    """The layer with its mean weights."""
    if not isinstance(layer, WEIGHTED):
        raise UnsupportedLayerError(f"{layer.kind} cannot be sampled here; this is a bug in bnndp.")
    if isinstance(layer, Conv2d):
        return convolve(z, layer.weight_mean[None], layer.stride, layer.padding) + layer.bias_mean[:, None, None]
    return z @ layer.weight_mean.T + layer.bias_mean


def _dense(layer: Layer, z: Tensor, eps: Tensor) -> Tensor:
    """A dense layer on noise: (draws, points, n_out)."""
    if isinstance(layer, MatrixNormalLinear):
        length = (_extended(z) @ layer.column_factor).square().sum(-1, keepdim=True).clamp_min(_NO_VARIANCE).sqrt()
        return _mean(layer, z) + length * (eps @ layer.row_factor.T)[:, None]
    if isinstance(layer, CorrelatedLinear) and layer.shared:
        variance = (z * z) @ (layer.weight_std**2).T + layer.bias_std**2
        own, shared = eps.split([layer.n_out, layer.rank], dim=-1)
        joint = torch.einsum("ojq,dq->doj", layer.factor, shared)  # what is common to the rows, as weights
        return _mean(layer, z) + variance.clamp_min(_NO_VARIANCE).sqrt() * own[:, None] + _extended(z) @ joint.mT
    return torch.addcmul(*marginals(layer, z), eps[:, None])


def _correlated(layer: CorrelatedLinear, z: Tensor) -> Tensor:
    """Variance by the factor, ``|F_i^T z|^2`` for z (draws, points, n_in + 1): (draws, points, n_out)."""
    if layer.rank <= z.shape[-1]:
        return torch.einsum("dpj,ojq->dpoq", z, layer.factor).square().sum(-1)
    gram = layer.factor @ layer.factor.mT  # (n_out, n_in + 1, n_in + 1)
    return (torch.einsum("dpj,ojk->dpok", z, gram) * z[:, :, None]).sum(-1)


def _extended(z: Tensor) -> Tensor:
    """``(z, 1)``."""
    return F.pad(z, (0, 1), value=1.0)


def _kernels(layer: Conv2d, z: Tensor, eps: Tensor) -> Tensor:
    """A convolution with drawn kernels: (draws, points, channels, height, width)."""
    weights, biases = eps.split([layer.weight_mean.numel(), layer.bias_mean.numel()], dim=-1)
    weight = layer.weight_mean + layer.weight_std * weights.unflatten(-1, layer.weight_mean.shape)
    return affine(layer, z, weight, layer.bias_mean + layer.bias_std * biases)


def _factors(layer: Dropout, eps: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The factors of dropout: (draws, 1, *shape) or (draws, 1, channels, 1, 1)."""
    noise = eps.reshape(len(eps), 1, *((shape[0], 1, 1) if layer.channels else shape))
    if layer.law == "gaussian":
        return 1 + math.sqrt(layer.rate / (1 - layer.rate)) * noise
    quantile = torch.special.ndtri(torch.tensor(layer.rate, dtype=torch.float64)).item()
    return (noise >= quantile).to(noise.dtype) / (1 - layer.rate)
