r"""The evidence lower bound of a mean-field posterior, and its two estimates by sampling.

.. math:: \mathrm{ELBO}(q)=\sum_i\mathbb E_{w\sim q}\log p(y_i\mid f_w(x_i))-\mathrm{KL}(q\,\|\,p)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bnndp.data import Data
from bnndp.network import BayesianNetwork
from bnndp.training.likelihoods import Likelihood, likelihood_of
from bnndp.training.mean_field import FreeLayer, divergence, free_layers, output_moments, sampled_output
from bnndp.training.options import TrainingOptions

Fit = Callable[[Likelihood, Sequence[FreeLayer], Tensor, Tensor, torch.Generator], Tensor]
"""Unbiased estimate of :math:`\\mathbb E_q\\log p(y\\mid f_w(x))`, one per point: (points,)."""

_CHUNK = 8192  # points at a time in ``elbo``


@torch.no_grad()
def elbo(
    network: BayesianNetwork,
    data: Data,
    options: TrainingOptions,
    *,
    samples: int = 8,
) -> float:
    """Unbiased estimate of the ELBO of ``network`` on all of ``data`` in float64; exact for Bayesian linear regression.

    Prior and noise are those of ``options``, the KL term has weight one whatever its temperature, and the seed of the
    samples is ``options.seed + 1``.
    """
    generator = torch.Generator().manual_seed(options.seed + 1)
    likelihood = likelihood_of(data, options)
    layers = free_layers(network, options)
    chunks = list(zip(data.x.split(_CHUNK), data.y.split(_CHUNK), strict=True))
    exact = likelihood.closed_form and network.depth == 0
    draws = [
        torch.stack([_local(likelihood, layers, x, y, generator).sum() for x, y in chunks]).sum()
        for _ in range(1 if exact else samples)
    ]
    return float(torch.stack(draws).mean() - divergence(layers))


def _local(
    likelihood: Likelihood,
    layers: Sequence[FreeLayer],
    x: Tensor,  # (points, n_in)
    y: Tensor,  # (points, n_out) or (points,)
    generator: torch.Generator,
) -> Tensor:
    """Hidden layers drawn afresh for every point; over the outputs, the likelihood's own expectation."""
    mean, variance = output_moments(layers, x, generator)
    return likelihood.expected(mean, variance, y, generator)


def _weights(
    likelihood: Likelihood,
    layers: Sequence[FreeLayer],
    x: Tensor,  # (points, n_in)
    y: Tensor,  # (points, n_out) or (points,)
    generator: torch.Generator,
) -> Tensor:
    """One draw of the weights shared by all points: unbiased as well, with far noisier gradients."""
    return likelihood.log_probability(sampled_output(layers, x, generator), y)


FITS: dict[str, Fit] = {"local": _local, "weights": _weights}
