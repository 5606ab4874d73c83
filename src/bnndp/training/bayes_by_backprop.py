r"""Bayes by backprop: a mean-field Gaussian posterior fitted by stochastic gradients of the ELBO.

.. math::
   \sum_i\mathbb E_{w\sim q}\log p(y_i\mid f_w(x_i))-T\,\mathrm{KL}(q\,\|\,p),\qquad
   q(w)=\prod_j N(\mu_j,\sigma_j^2),\quad p(w)=\prod_j N(0,\tau_j^2)

(Blundell et al. 2015, arXiv:1505.05424; T, the temperature, is one unless the options say otherwise). One loop serves
regression and classification. Gradients use local reparametrisation: given the layer below, the pre-activations of a
mean-field layer are independent Gaussians, so one draws them, afresh for every point, instead of the weights. In the
last layer of regression the expectation is taken in closed form, so a network without hidden layers is trained without
any sampling; logits are drawn as the hidden layers are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.data import ClassificationData, RegressionData
from bnndp.network import BayesianNetwork
from bnndp.training.cards import Card, evaluate
from bnndp.training.elbo import FITS, elbo
from bnndp.training.likelihoods import likelihood_of
from bnndp.training.mean_field import divergence, start
from bnndp.training.options import DTYPES, TrainingOptions

__all__ = ["Trained", "TrainingOptions", "elbo", "evaluate", "train"]


@dataclass(frozen=True, slots=True)
class Trained:
    """A posterior and its training card."""

    network: BayesianNetwork
    card: Card


def train(
    data: RegressionData | ClassificationData,
    options: TrainingOptions,
    *,
    held_out: RegressionData | ClassificationData | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Trained:
    """Fit a posterior to ``data``; ``progress`` is told the number of each step and the estimate of the objective."""
    begun = time.perf_counter()
    generator = torch.Generator().manual_seed(options.seed)
    dtype = DTYPES[options.dtype]
    x, y = data.x.to(dtype), data.y.to(dtype) if data.y.is_floating_point() else data.y
    likelihood, fit = likelihood_of(data, options), FITS[options.sampling]
    layers = start(options, data.n_in, data.n_out, generator)
    optimiser = torch.optim.Adam([t for layer in layers for t in layer.free], lr=options.learning_rate)
    batches = _batches(data.points, options.batch, generator)
    with torch.enable_grad():
        for step in range(options.steps):
            for group in optimiser.param_groups:
                group["lr"] = options.learning_rate * _rate(options, step)
            rows = next(batches)
            gain = fit(likelihood, layers, x[rows], y[rows], generator).mean()
            objective = gain * data.points - _weight(options, step) * divergence(layers)
            optimiser.zero_grad(set_to_none=True)
            (-objective / data.points).backward()
            optimiser.step()
            if progress is not None:
                progress(step, float(objective.detach()))
    network = BayesianNetwork.from_linears((layer.linear() for layer in layers), likelihood.task)
    seconds = time.perf_counter() - begun
    return Trained(network, evaluate(network, data, options, held_out=held_out, seconds=seconds))


def _batches(points: int, size: int | None, generator: torch.Generator) -> Iterator[slice | Tensor]:
    """Rows of one step after another: all points, or pieces of a fresh permutation in each epoch."""
    while size is None or size >= points:
        yield slice(None)
    while True:
        order = torch.randperm(points, generator=generator)
        yield from order[: points - points % size].split(size)


def _rate(options: TrainingOptions, step: int) -> float:
    return 1.0 if options.schedule == "constant" else 0.5 * (1 + math.cos(math.pi * step / options.steps))


def _weight(options: TrainingOptions, step: int) -> float:
    """Weight of the KL term: the temperature, or less during the warm-up."""
    warmth = min(1.0, (step + 1) / (options.warm_up * options.steps)) if options.warm_up else 1.0
    return options.temperature * warmth
