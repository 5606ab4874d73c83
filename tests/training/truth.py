"""Networks drawn weight by weight, and the expected log-sigmoid by quadrature: truth for the tests of training."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from bnndp.layers import Linear
from bnndp.network import BayesianNetwork


def random_network(
    sizes: tuple[int, ...], seed: int = 0, scale: float = 0.3, task: str = "regression"
) -> BayesianNetwork:
    """A network of these sizes with standard deviations about ``scale``."""
    generator = torch.Generator().manual_seed(seed)
    linears = []
    for n_in, n_out in pairwise(sizes):
        shapes = ((n_out, n_in), (n_out, n_in), (n_out,), (n_out,))
        w, ws, b, bs = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        linears.append(Linear(w, scale * ws.abs() + 0.01, b, scale * bs.abs() + 0.01))
    return BayesianNetwork.from_linears(linears, task)


def divergence(network: BayesianNetwork, prior_std: float) -> Tensor:
    """KL from N(0, prior_std^2) on every weight and bias, by torch's own formula."""
    parts = [
        torch.distributions.kl_divergence(
            torch.distributions.Normal(mean, std), torch.distributions.Normal(torch.zeros_like(mean), prior_std)
        ).sum()
        for layer in network.linears
        for mean, std in ((layer.weight_mean, layer.weight_std), (layer.bias_mean, layer.bias_std))
    ]
    return torch.stack(parts).sum()


def gauss_hermite(nodes: int = 80) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the mean of a standard Gaussian, (nodes,) each."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return torch.from_numpy(points), torch.from_numpy(weights / weights.sum())


def expected_log_sigmoid(mean: Tensor, std: Tensor) -> Tensor:
    """E log sigmoid(D) for D ~ N(mean, std^2), by quadrature, of the shape of ``mean``; differentiable."""
    points, weights = gauss_hermite()
    return (torch.nn.functional.logsigmoid(mean[..., None] + std[..., None] * points) * weights).sum(-1)
