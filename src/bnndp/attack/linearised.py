"""Where the decision of the mean weights would change if its log odds were linear in the input: a first guess.

The certified radius is usually some 0.6 to 1.2 times as large, so that a search that begins there is short. Nothing is
proved by it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnndp.attack.sampled_softmax import Contest, mean_path, odds_direction
from bnndp.engine.chunks import cache_size
from bnndp.network import Posterior

_MOST = 2**19  # numbers in the gradients taken at a time, on a CPU


def linear_radius(
    network: Posterior,
    x: Tensor,  # (batch, n)
    rows: Tensor,  # (batch, rows, classes), see bnndp.questions.decision
    norm: float,
) -> Tensor:  # (batch,)
    """The least radius over the rows; not positive where the mean weights decide otherwise at x, or NaN."""
    size = max(1, cache_size(_MOST, x.device) // (rows.shape[1] * x.shape[1]))
    chunks = zip(x.split(size), rows.split(size), strict=True)
    return torch.cat([_least(network, point, row, norm) for point, row in chunks])


def _least(network: Posterior, x: Tensor, rows: Tensor, norm: float) -> Tensor:  # (batch,)
    batch, several = rows.shape[:2]
    points = x.repeat_interleave(several, 0)
    contest = Contest.of(rows.flatten(0, 1)[:, None])
    odds, slope = odds_direction(network, points, contest, mean_path(network))
    dual = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}[float(norm)]
    speed = torch.linalg.vector_norm(slope, ord=dual, dim=-1)
    radius = torch.where(odds < 0, -odds / speed, odds.new_zeros(()))  # a row of zeros: infinite
    return radius.reshape(batch, several).amin(-1)
