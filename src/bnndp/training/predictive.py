r"""Predictive distributions at many points, sampled: of the classes, or of real targets.

Every point has draws of its own, so that errors of sampling are independent from point to point and average out in the
figures of a card; of layers that training does not know (correlated weights) whole networks are drawn for all points at
once. An ensemble is the mixture of its members' predictions. Nothing here proves a bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.attack.draws import draw_networks, evaluate
from bnndp.data import ClassificationData, Data, RegressionData
from bnndp.errors import InputError
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.training.mean_field import draw, free_layers, is_mean_field, output_moments
from bnndp.training.options import TrainingOptions

_VALUES = 2**21  # of a layer, in memory at a time


@dataclass(frozen=True, slots=True, eq=False)
class Predictive:
    """Sampled predictions of a classifier."""

    log_probability: Tensor  # (points, classes): log E softmax
    logit_mean: Tensor  # (points, classes)
    logit_std: Tensor  # (points, classes): standard deviation of each logit over the posterior


@torch.no_grad()
def predict(
    network: BayesianNetwork | Ensemble,
    x: Tensor,  # (points, n_in)
    *,
    draws: int,
    seed: int = 0,
) -> Predictive:
    """Predictions of ``network`` from ``draws`` draws per point and member, determined by ``seed``."""
    _check_draws(draws)
    members = [_predicted(member, x, draws, seed) for member in network.members]
    weight = network.probabilities[:, None, None]
    probability = torch.stack([member.log_probability for member in members]) + weight.log()
    means, stds = (torch.stack([getattr(m, name) for m in members]) for name in ("logit_mean", "logit_std"))
    return Predictive(probability.logsumexp(0), *_mixed_moments(weight, means, stds))


def _predicted(network: BayesianNetwork, x: Tensor, draws: int, seed: int) -> Predictive:
    generator = torch.Generator().manual_seed(seed)
    probabilities, means, stds = [], [], []
    for mean, variance in _moments(network, x, draws, generator):  # (points, draws, classes)
        logits = draw(mean, variance, generator)
        probabilities.append(logits.log_softmax(-1).logsumexp(1) - math.log(mean.shape[1]))
        means.append(mean.mean(1))
        # law of total variance, given the hidden layers: only the second term is left to the draws of the logits
        stds.append((variance.mean(1) + mean.var(1)).sqrt())
    return Predictive(torch.cat(probabilities), torch.cat(means), torch.cat(stds))


def _mixed_moments(weight: Tensor, means: Tensor, stds: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of a mixture; members are in the first axis."""
    mean = (weight * means).sum(0)
    return mean, (weight * (stds.square() + (means - mean).square())).sum(0).sqrt()


@dataclass(frozen=True, slots=True, eq=False)
class TargetPredictive:
    """Sampled predictive distribution of real targets, judged at the targets that came."""

    log_density: Tensor  # (points,): log E N(y; f(x), noise^2), all outputs together
    level: Tensor  # (points, n_out): probability that the target is at most the one that came
    output_mean: Tensor  # (points, n_out)
    output_std: Tensor  # (points, n_out): standard deviation of f(x) over the posterior


@torch.no_grad()
def predict_targets(
    network: BayesianNetwork | Ensemble, data: RegressionData, noise_std: float, *, draws: int, seed: int = 0
) -> TargetPredictive:
    """The distribution of f(x) + N(0, noise_std^2); given drawn hidden layers that of a mean-field output is exact."""
    _check_draws(draws)
    found = [_predicted_targets(member, data, noise_std, draws, seed) for member in network.members]
    weight = network.probabilities
    density = (torch.stack([member.log_density for member in found]) + weight[:, None].log()).logsumexp(0)
    weight = weight[:, None, None]
    level = (weight * torch.stack([member.level for member in found])).sum(0)
    moments = (torch.stack([getattr(m, name) for m in found]) for name in ("output_mean", "output_std"))
    return TargetPredictive(density, level, *_mixed_moments(weight, *moments))


def _predicted_targets(
    network: BayesianNetwork, data: RegressionData, noise_std: float, draws: int, seed: int
) -> TargetPredictive:
    generator = torch.Generator().manual_seed(seed)
    densities, levels, means, stds = [], [], [], []
    targets = data.y.split(_chunk_size(network, _draws(network, draws)))
    for y, (mean, variance) in zip(targets, _moments(network, data.x, draws, generator), strict=True):
        std = (variance + noise_std**2).sqrt()
        scaled = (y[:, None] - mean) / std
        density = (-0.5 * scaled.square() - std.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
        densities.append(density.logsumexp(1) - math.log(mean.shape[1]))
        levels.append(torch.special.ndtr(scaled).mean(1))
        means.append(mean.mean(1))
        stds.append((variance.mean(1) + mean.var(1)).sqrt())
    return TargetPredictive(torch.cat(densities), torch.cat(levels), torch.cat(means), torch.cat(stds))


def _moments(
    network: BayesianNetwork, x: Tensor, draws: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Mean and variance of the outputs given drawn hidden layers, chunk by chunk: (points, draws, n_out) each."""
    draws = _draws(network, draws)
    x = network.centred(x.to(torch.float64))
    network = network.unshifted()
    known = free_layers(network) if is_mean_field(network) else None
    drawn = None if known else draw_networks(network, draws, seed=generator.initial_seed())
    for points in x.split(_chunk_size(network, draws)):
        shape = (points.shape[0], draws, network.n_out)
        if known is not None:
            mean, variance = output_moments(known, points, generator, draws=draws)
            yield mean.reshape(shape), variance.reshape(shape)
        elif drawn is not None:
            mean = evaluate(drawn, points).transpose(0, 1)
            yield mean, torch.zeros_like(mean)


def _draws(network: BayesianNetwork, draws: int) -> int:
    """Two are enough where nothing is random."""
    return draws if network.random else 2


def negative_log_likelihood(
    network: BayesianNetwork | Ensemble,
    data: Data,
    options: TrainingOptions,
    *,
    draws: int,
) -> float:
    """Mean over the points of -log of the predictive probability, or density, of the target; always the same draws."""
    if isinstance(data, ClassificationData):
        found = predict(network, data.x, draws=draws).log_probability
        return float(-found.gather(-1, data.y[:, None]).mean())
    return float(-predict_targets(network, data, options.noise_std, draws=draws).log_density.mean())


def coverage_error(level: Tensor, *, levels: int = 19) -> float:  # (points, ...)
    r"""Mean over :math:`p=\frac1{20},\dots,\frac{19}{20}` of \|share of ``level`` up to p, less p\|.

    Zero if quantiles of the predictive distribution are what they say (Kuleshov, Fenner and Ermon 2018,
    arXiv:1807.00263, with absolute values for squares).

    >>> round(coverage_error(torch.full((10,), 0.5)), 4)  # half the quantiles are always exceeded, half never
    0.2632
    """
    wanted = torch.arange(1, levels + 1, dtype=torch.float64) / (levels + 1)
    share = (level.reshape(-1, 1) <= wanted).to(torch.float64).mean(0)
    return float((share - wanted).abs().mean())


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


def _check_draws(draws: int) -> None:
    if draws < 2:
        raise InputError(f"draws must be at least 2 for a standard deviation, got {draws}.")


def _chunk_size(network: BayesianNetwork, draws: int) -> int:
    """Points at a time, so that no layer's values exceed the memory meant for them."""
    widest = max(network.sizes[1:]) if network.plain else network.widest
    return max(1, _VALUES // (draws * widest))
