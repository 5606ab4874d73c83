r"""Last-layer Laplace: a Gaussian of the last layer's weights around the maximum of the posterior, all else fixed.

With features :math:`\tilde\varphi_i=(\varphi(x_i),1)` of the network below its last layer, the generalised Gauss-Newton
matrix of the log-likelihood is

.. math:: H=\sum_i\Lambda_i\otimes\tilde\varphi_i\tilde\varphi_i^\top,\qquad
          \Lambda_i=\mathrm{diag}(p_i)-p_ip_i^\top\ \text{(softmax)}\quad\text{or}\quad\Lambda_i=I/\sigma^2

(Daxberger et al. 2021, arXiv:2106.14806), and the posterior is :math:`N(\theta,(H/T+\delta I)^{-1})` with all its
covariances. The prior precision :math:`\delta` maximises the Laplace estimate of the marginal likelihood on a grid. Its
logarithm is, up to terms without :math:`\delta` and with the eigenvalues of H,

.. math:: \tfrac P2\log\delta-\tfrac\delta2\|\theta\|^2-\tfrac12\sum_i\log(\lambda_i/T+\delta),

T is the temperature: every point counts 1/T times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.data import ClassificationData, Data
from bnndp.errors import InputError
from bnndp.layers import CorrelatedLinear, Linear
from bnndp.network import BayesianNetwork
from bnndp.training.forward import apply_fixed
from bnndp.training.mean_field import free_layers

_CHUNK = 4096  # points at a time
_MOST = 4096  # weights and biases of a last layer, whose covariance has as many rows
_GRID = torch.logspace(-6, 6, 481, dtype=torch.float64)  # prior precisions


@dataclass(frozen=True, slots=True)
class Laplace:
    """A network with a Gaussian last layer, and the prior precision that it was given."""

    network: BayesianNetwork
    prior_precision: float


@torch.no_grad()
def last_layer(network: BayesianNetwork, data: Data, *, noise_std: float, temperature: float = 1.0) -> Laplace:
    """The posterior of the module's text for a trained network without variances, on its training set."""
    last = network.layers[-1]
    if network.random or not isinstance(last, Linear):
        raise InputError(f"last-layer Laplace needs a network without variances, got {network}; train it by map.")
    n_out, n_in = last.weight_mean.shape
    check_size(n_out, n_in)
    mode = torch.cat([last.weight_mean, last.bias_mean[:, None]], 1)  # (n_out, n_in + 1)
    noise = None if isinstance(data, ClassificationData) else noise_std
    values, vectors = torch.linalg.eigh(gauss_newton(features(network, data.x), mode, noise))
    values = values.clamp_min(0) / temperature
    precision = float(_GRID[evidence(values, mode, _GRID).argmax()])
    covariance = (vectors / (values + precision)) @ vectors.T
    head = CorrelatedLinear.whole(last.weight_mean, last.bias_mean, 0.5 * (covariance + covariance.T))
    return Laplace(replace(network, layers=(*network.layers[:-1], head)), precision)


def check_size(n_out: int, n_in: int) -> None:
    """Refuse a last layer whose covariance would be too large."""
    if n_out * (n_in + 1) > _MOST:
        raise InputError(
            f"the last layer has {n_out * (n_in + 1)} weights and biases, and its covariance that many rows; "
            f"the limit is {_MOST}: give a smaller last hidden layer."
        )


def features(network: BayesianNetwork, x: Tensor) -> Tensor:  # (points, n_in)
    """What the last layer sees of each point, and a one: (points, n_last + 1)."""
    found = []
    for chunk in x.split(_CHUNK):
        z = chunk
        for layer in free_layers(network)[:-1]:
            z = apply_fixed(layer.stage.after, layer.mean(z), None)
        found.append(torch.cat([z, z.new_ones(z.shape[0], 1)], 1))
    return torch.cat(found)


def gauss_newton(phi: Tensor, mode: Tensor, noise_std: float | None) -> Tensor:  # (points, n + 1), (n_out, n + 1)
    """The matrix H of the module's text, rows ordered as ``mode`` row by row; ``noise_std`` None: softmax."""
    n_out, n = mode.shape
    matrix = phi.new_zeros(n_out, n, n_out, n)
    if noise_std is not None:
        block = phi.T @ phi / noise_std**2
        for k in range(n_out):
            matrix[k, :, k] = block
        return matrix.reshape(n_out * n, n_out * n)
    p = (phi @ mode.T).softmax(-1)  # (points, n_out)
    for k in range(n_out):
        for j in range(k + 1):
            weight = p[:, k] * ((1 - p[:, k]) if j == k else -p[:, j])
            matrix[k, :, j] = (phi * weight[:, None]).T @ phi
            matrix[j, :, k] = matrix[k, :, j]
    return matrix.reshape(n_out * n, n_out * n)


def evidence(values: Tensor, mode: Tensor, precision: Tensor) -> Tensor:
    """Log marginal likelihood up to a constant for each ``precision`` (grid,); ``values`` (P,) are those of H / T."""
    fit = 0.5 * values.numel() * precision.log() - 0.5 * precision * mode.square().sum()
    return fit - 0.5 * (values + precision[:, None]).log().sum(-1)
