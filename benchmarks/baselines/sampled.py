r"""Statistical baselines: networks drawn from the posterior stand for it (Cardelli et al. 2019; Wicker et al. 2021).

*Sampled intervals.* The box is propagated through each of n drawn networks by intervals, and the intervals of their
outputs are averaged: for every x of the box

.. math:: \frac1n\sum_s\underline f_s\ \le\ \frac1n\sum_s f_s(x)\ \le\ \frac1n\sum_s\overline f_s .

A classifier's averaged logits, not its averaged softmax, are then in :math:`[\underline l,\overline l]`, so that

.. math:: \frac{e^{\underline l_i}}{e^{\underline l_i}+\sum_{j\ne i}e^{\overline l_j}}\le p_i\le
          \frac{e^{\overline l_i}}{e^{\overline l_i}+\sum_{j\ne i}e^{\underline l_j}} .

*FGSM* (Goodfellow et al. 2015): one step of length r along the signs of the gradient of the mean probability of the
label; the smallest r at which the mean softmax of the drawn networks decides otherwise. An attack: a radius that is
proved for the same networks is below it.

Both are about the drawn networks only: neither bounds the mean over the posterior, from any side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.baselines.search import asked_ball, bracket, shifted_ball
from benchmarks.paper.columns import Subject, labels_of
from bnndp.errors import InputError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

__all__ = ["DRAWS", "Drawn", "draw", "fgsm_radius", "mean_interval", "mean_log_softmax", "radius", "softmax", "width"]

DRAWS = 50
SEED = 0
_GROW = 1.2  # steps of the attack's radius: the first change met in growing is the one that is refined
_MEMORY = 2**26  # bytes of activations at a time


@dataclass(frozen=True, slots=True)
class Drawn:
    """Networks drawn from a posterior, as functions of what the first layer sees."""

    weights: tuple[Tensor, ...]  # (draws, n_out, n_in) a layer
    biases: tuple[Tensor, ...]  # (draws, 1, n_out) a layer

    @property
    def points(self) -> int:
        """Inputs at a time, so that the activations of all draws fit into memory."""
        widest = max(weight.shape[1] for weight in self.weights)
        return max(1, _MEMORY // (32 * self.weights[0].shape[0] * widest))


def draw(network: BayesianNetwork, draws: int = DRAWS, *, seed: int = SEED) -> Drawn:
    """``draws`` networks of the posterior, determined by the seed."""
    if draws < 1:
        raise InputError(f"draws must be at least 1, got {draws}.")
    generator = torch.Generator().manual_seed(seed)

    def some(mean: Tensor, std: Tensor) -> Tensor:
        noise = torch.randn((draws, *mean.shape), generator=generator, dtype=torch.float64)
        return noise.mul_(std).add_(mean)

    pairs = [(some(a.weight_mean, a.weight_std), some(a.bias_mean, a.bias_std)[:, None]) for a in network.linears]
    return Drawn(tuple(weight for weight, _ in pairs), tuple(bias for _, bias in pairs))


def mean_interval(drawn: Drawn, shifted: Box) -> Interval:
    """The averages over the drawn networks of the intervals of their outputs on the boxes: (boxes, n_out)."""
    size = drawn.points
    parts = [_mean_interval(drawn, shifted[start : start + size]) for start in range(0, shifted.batch, size)]
    return Interval(torch.cat([part.lower for part in parts]), torch.cat([part.upper for part in parts]))


def _mean_interval(drawn: Drawn, shifted: Box) -> Interval:
    lower, upper = shifted.lower, shifted.upper  # (boxes, n_in), then (draws, boxes, n_out)
    for k, (weight, bias) in enumerate(zip(drawn.weights, drawn.biases, strict=True)):
        if k:
            lower, upper = lower.clamp_min(0), upper.clamp_min(0)
        middle = ((lower + upper) / 2) @ weight.mT + bias
        reach = ((upper - lower) / 2) @ weight.abs().mT
        lower, upper = middle - reach, middle + reach
    return Interval(lower.mean(0), upper.mean(0))


def softmax(logits: Interval) -> Interval:  # (boxes, classes)
    """Exact ranges of the logarithm of each softmax probability over a box of logits: (boxes, classes)."""
    return Interval(_log_share(logits.lower, logits.upper), _log_share(logits.upper, logits.lower))


def _log_share(own: Tensor, others: Tensor) -> Tensor:
    """``own_i - log(e^own_i + sum_{j != i} e^others_j)``: (boxes, classes)."""
    itself = torch.eye(own.shape[-1], dtype=torch.bool)
    return own - torch.where(itself, own[:, :, None], others[:, None, :]).logsumexp(-1)


def width(subject: Subject) -> Tensor:
    """Widths of the averaged intervals over the balls, the largest output's: (points,)."""
    found = mean_interval(draw(subject.network), asked_ball(subject))
    return (found.upper - found.lower).amax(-1)


def radius(subject: Subject) -> Tensor:
    """Largest radii, to 1 %, at which the softmax of the averaged intervals decides for the label; NaN: (points,)."""
    label, drawn = labels_of(subject), draw(subject.network)

    def holds(trial: Tensor, at: Tensor) -> Tensor:
        share = softmax(mean_interval(drawn, shifted_ball(subject, trial, at)))
        own = label[at, None]
        others = share.upper.scatter(1, own, -torch.inf).amax(-1)
        return share.lower.gather(1, own)[:, 0] > others

    return bracket(holds, subject.x.shape[0]).largest


def mean_log_softmax(drawn: Drawn, shifted: Tensor) -> Tensor:  # (points, n_in)
    """Logarithm of the mean over the drawn networks of each softmax probability: (points, classes)."""
    z = shifted
    for k, (weight, bias) in enumerate(zip(drawn.weights, drawn.biases, strict=True)):
        z = (z.clamp_min(0) if k else z) @ weight.mT + bias  # (draws, points, n_out)
    return z.log_softmax(-1).logsumexp(0) - math.log(z.shape[0])


def fgsm_radius(subject: Subject) -> Tensor:
    """Smallest radii, to 1 %, at which one signed step changes the decision: (points,).

    Zero where the drawn networks decide otherwise at the input, infinite where no step up to 1 changes the decision.
    """
    label, drawn, network = labels_of(subject), draw(subject.network), subject.network
    chunks = zip(network.centred(subject.x).split(drawn.points), label.split(drawn.points), strict=True)
    sign = torch.cat([_descent(drawn, shifted, some) for shifted, some in chunks])

    def holds(trial: Tensor, at: Tensor) -> Tensor:
        x = subject.x[at] + trial[:, None] * sign[at]
        x = x if subject.domain is None else x.clamp(*subject.domain)
        decisions = [mean_log_softmax(drawn, some).argmax(-1) for some in network.centred(x).split(drawn.points)]
        return torch.cat(decisions) == label[at]

    return bracket(holds, subject.x.shape[0], grow=_GROW).smallest


def _descent(drawn: Drawn, shifted: Tensor, label: Tensor) -> Tensor:  # (points, n_in), (points,)
    """Signs of the direction in which the mean probability of the label falls fastest: (points, n_in).

    Those of the gradient of ``log(1 - E p_label)``: it does not vanish by rounding where the probability is nearly 1.
    """
    with torch.enable_grad():
        leaf = shifted.detach().requires_grad_()
        others = mean_log_softmax(drawn, leaf).scatter(1, label[:, None], -torch.inf)
        return torch.autograd.grad(others.logsumexp(-1).sum(), leaf)[0].sign()
