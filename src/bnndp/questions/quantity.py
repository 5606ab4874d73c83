"""What the questions about a regression network share: bounds chunk by chunk, and the law of the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.mixture import Mixture
from bnndp.engine.protocol import both_signs, known
from bnndp.errors import InputError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.tighten.pass_choice import chunked


@dataclass(frozen=True, slots=True)
class Law:
    """Mean and variance of every output for every x of each box: (batch, outputs) each."""

    mean: Interval
    variance: Interval
    gaussian: bool


def laws(passes: Mixture) -> Iterator[tuple[Tensor, Law]]:
    """Weights (members,) and law of each part; of several members their boxes stand one after the other."""
    n = passes.outputs
    for part in passes.parts():
        least = known(part.bounds.affine(both_signs(n, part.bounds.box)).least)
        mean = Interval(least[:, :n], -least[:, n:])
        yield part.weights, Law(mean, part.bounds.output_variance(), part.bounds.gaussian)


def quantity_bounds(
    network: Posterior, box: Box, options: Options, found: Callable[[Mixture], Interval], most: float = torch.inf
) -> Interval:
    """Bounds (batch, outputs) of something that lies between 0 and ``most``, chunk by chunk; NaN says nothing."""
    if network.task != "regression":
        raise InputError(
            f"variance, probability and noise are those of a regression network; this one is for {network.task}, "
            "whose expected softmax has bounds by quantity='mean'."
        )
    low = box.lower.new_zeros(box.batch, network.n_out)
    high = torch.full_like(low, most)
    for part, passes in chunked(network, box, options, rows=2 * network.n_out):
        ends = found(passes)
        low[part] = ends.lower.nan_to_num(0.0, posinf=torch.finfo(low.dtype).max)
        high[part] = ends.upper.nan_to_num(torch.inf, posinf=torch.inf)
    return Interval(low, high)
