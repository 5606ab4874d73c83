r"""The gap at single points as networks of two hidden layers become wider while their predictive variance stays equal.

Random posteriors: means :math:`N(0,2/n)` (:math:`N(0,1/n)` in the output layer), standard deviations
:math:`\tau/\sqrt n`, n the inputs of the layer; biases as a weight of an input of one tenth. :math:`\tau` is set for
every network so that the mean predictive standard deviation over the points is the one asked for. Trained ones: the
``scaled`` family on the 2D sine, whose predictive standard deviations are not equal and are printed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from benchmarks.tightness.regression import break_down
from benchmarks.tightness.suite import posterior
from benchmarks.tightness.truth import draw, sample
from bnndp import Options, certify
from bnndp.attack.inside import Inside
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

__all__ = ["WIDTHS", "Posteriors", "growth", "of_width", "predictive_std", "random_posterior"]

WIDTHS = (64, 128, 256, 512)
_CALIBRATIONS = 4  # steps of the fixed-point iteration for tau: the standard deviation is nearly proportional to it
_BIAS = 0.1


@dataclass(frozen=True, slots=True)
class Posteriors:
    """A family of networks that differ in width only; ``std`` is the predictive std, None for trained ones."""

    std: float | None
    seeds: Sequence[int] = (0, 1, 2)

    @property
    def name(self) -> str:
        """How the tables call it."""
        return "trained, sine2d scaled" if self.std is None else f"random, sd {self.std:g}"

    def members(self, width: int, x: Tensor) -> list[BayesianNetwork]:
        """The networks of that width; the random ones have their predictive standard deviation at the points x."""
        if self.std is None:
            return [posterior(f"sine2d-2x{width}-scaled")]
        return [random_posterior(width, seed, self.std, x) for seed in self.seeds]


def of_width(family: Posteriors, width: int, *, points: int = 10, draws: int = 2048) -> dict[str, Any]:
    """Predictive std and point gap, means over networks and points, and the breakdown of the first network."""
    start = time.process_time()
    generator = torch.Generator().manual_seed(1)
    x = 2 * torch.rand(points, 2, generator=generator, dtype=torch.float64) - 1
    networks = family.members(width, x)
    with torch.no_grad():
        gaps = [float(certify(net, Box(x, x), Options(method="moment")).width.mean()) for net in networks]
    std = [float(predictive_std(net, x).mean()) for net in networks]
    here = x[:, None]
    zero = torch.zeros(points, 1, dtype=torch.float64)
    broken = break_down(networks[0], Box(x, x), Inside(zero, zero, here, here, zero, zero), draws=draws)
    return {
        "family": family.name,
        "width": width,
        "std": fmean(std),
        "std_range": [min(std), max(std)],
        "point_gap": fmean(gaps),
        "shares": broken.shares,
        "gap_broken_down": broken.gap,
        "seconds": round(time.process_time() - start, 1),
    }


def growth(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """From the narrowest to the widest network: the factors of the point gap, and the source that grows most.

    ``factor`` is that of the gap itself, ``factor_per_std`` that of the gap in predictive stds, which is the one
    to look at where the stds differ.
    """
    rows = sorted(rows, key=lambda row: row["width"])
    first, last = rows[0], rows[-1]
    parts = {
        name: [row["gap_broken_down"] * row["shares"][name] for row in (first, last)]
        for name in first["shares"]
        if name != "all"
    }
    most = max(parts, key=lambda name: parts[name][1] - parts[name][0])
    factor = last["point_gap"] / first["point_gap"]
    return {
        "family": first["family"],
        "widths": [first["width"], last["width"]],
        "factor": factor,
        "factor_per_std": factor * first["std"] / last["std"],
        "grows_most": most if factor > 1 else None,
    }


def random_posterior(width: int, seed: int, std: float, x: Tensor) -> BayesianNetwork:
    """A network 2-width-width-1 with this mean predictive standard deviation at the points x (points, 2)."""
    generator = torch.Generator().manual_seed(seed)
    means = []
    for n_in, n_out in pairwise((2, width, width, 1)):
        gain = math.sqrt((1.0 if n_out == 1 else 2.0) / n_in)
        weight = gain * torch.randn(n_out, n_in, generator=generator, dtype=torch.float64)
        means.append((weight, _BIAS * gain * torch.randn(n_out, generator=generator, dtype=torch.float64)))

    def network(tau: float) -> BayesianNetwork:
        return BayesianNetwork.from_linears(
            Linear(
                weight,
                torch.full_like(weight, tau / math.sqrt(weight.shape[1])),
                bias,
                torch.full_like(bias, _BIAS * tau / math.sqrt(weight.shape[1])),
            )
            for weight, bias in means
        )

    tau = std
    for _ in range(_CALIBRATIONS):
        tau *= std / float(predictive_std(network(tau), x).mean())
    return network(tau)


def predictive_std(network: BayesianNetwork, x: Tensor, draws: int = 1024) -> Tensor:  # x (points, n)
    """Standard deviation of the first output over the posterior, sampled: (points,)."""
    noise = draw(network, draws, seed=11)
    with torch.no_grad():
        truth = sample(network.linears, network.centred(x), noise)
        last = network.linears[-1]
        spread = truth.z_second @ last.weight_std.square().T + last.bias_std.square()
        through = (truth.z @ last.weight_mean.T).var(1, correction=0)
        return (spread + through).sqrt()[:, 0]
