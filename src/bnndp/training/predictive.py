r"""Predictions of a classifier at many points, sampled: :math:`\log\mathbb E\,\mathrm{softmax}`, spread of the logits.

Every point has draws of its own, so that errors of sampling are independent from point to point and average out in the
figures of a card. Nothing here proves a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.network import BayesianNetwork
from bnndp.training.mean_field import draw, free_layers, output_moments

__all__ = ["Predictive", "calibration_error", "predict"]

_VALUES = 2**21  # of a layer, in memory at a time


@dataclass(frozen=True, slots=True, eq=False)
class Predictive:
    """Sampled predictions of a classifier."""

    log_probability: Tensor  # (points, classes): log E softmax
    logit_std: Tensor  # (points, classes): standard deviation of each logit over the posterior


@torch.no_grad()
def predict(network: BayesianNetwork, x: Tensor, *, draws: int, seed: int = 0) -> Predictive:  # x (points, n_in)
    """Predictions of ``network`` from ``draws`` draws a point, determined by ``seed``."""
    if draws < 2:
        raise InputError(f"draws must be at least 2 for a standard deviation, got {draws}.")
    generator = torch.Generator().manual_seed(seed)
    layers = free_layers(network)
    piece = max(1, _VALUES // (draws * max(network.sizes[1:])))
    probabilities, deviations = [], []
    for points in x.to(torch.float64).split(piece):
        shape = (points.shape[0], draws, network.n_out)
        mean, variance = output_moments(layers, points, generator, draws=draws)
        logits = draw(mean, variance, generator).reshape(shape)
        probabilities.append(logits.log_softmax(-1).logsumexp(1) - math.log(draws))
        # law of total variance, given the hidden layers: only the second term is left to the draws of the logits
        deviations.append((variance.reshape(shape).mean(1) + mean.reshape(shape).var(1)).sqrt())
    return Predictive(torch.cat(probabilities), torch.cat(deviations))


def calibration_error(probability: Tensor, labels: Tensor, *, bins: int = 15) -> float:  # (points, classes), (points,)
    r"""Expected calibration error: :math:`\sum_b\frac{n_b}{n}\,|\text{accuracy}_b-\text{confidence}_b|`.

    Points are put into ``bins`` equal bins of (0, 1] by the probability of the class they are given (Guo et al. 2017,
    arXiv:1706.04599, equation 3).

    >>> says = torch.tensor([[0.75, 0.25], [0.75, 0.25]])
    >>> calibration_error(says, torch.tensor([0, 1]))  # right half the time
    0.25
    """
    confidence, decision = probability.to(torch.float64).max(-1)
    excess = (decision == labels).to(torch.float64) - confidence
    index = (confidence * bins).ceil().long().clamp(1, bins) - 1
    total = torch.zeros(bins, dtype=torch.float64).index_add_(0, index, excess)
    return float(total.abs().sum() / labels.numel())
