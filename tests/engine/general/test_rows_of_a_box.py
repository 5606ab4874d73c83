"""The deviation of a row of a random layer on a box of inputs, against its explicit covariance at points of the box."""

from __future__ import annotations

import math

import pytest
import torch
from support import records
from torch import Tensor

from bnndp.engine.general import laws as rules
from bnndp.engine.general.rows import DenseRows
from bnndp.engine.general.signal import POWERS, of_box
from bnndp.engine.general.weights import weights_of
from bnndp.geometry.box import Box
from bnndp.layers import Dropout

KINDS = {name: pair for name, pair in records.RANDOM.items() if not isinstance(pair[0], Dropout)}
F64 = torch.float64


def points(box: Box, count: int, seed: int) -> Tensor:
    """Corners and inner points: (count, n)."""
    share = records.uniform(count, box.n, seed=seed)
    share[: count // 2] = share[: count // 2].round()
    return box.lower[0] + share * (box.upper - box.lower)[0]


@pytest.mark.parametrize("radius", [0.0, 0.2, 2.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", KINDS)
def test_no_point_of_the_box_has_a_larger_deviation(name: str, seed: int, radius: float) -> None:
    layer, shape = KINDS[name]
    assert rules.__all__  # importing them registers them
    weights = weights_of(layer, shape)
    n = math.prod(shape)
    box = Box.ball(2 * records.normal(1, n, seed=seed), radius)
    rows = records.normal(1, 5, weights.n_out, seed=seed + 1)
    found, _ = weights.row_parts(DenseRows(rows), of_box(box), torch.zeros(1, n, len(POWERS), dtype=F64))
    deepest = torch.zeros(5, dtype=F64)
    for z in points(box, 40, seed):
        covariance = records.law(layer, z.reshape(shape))[1]
        deviation = torch.einsum("ri,ik,rk->r", rows[0], covariance, rows[0]).clamp_min(0).sqrt()
        assert (found[0] >= deviation * (1 - 1e-9)).all()
        deepest = torch.maximum(deepest, deviation)
    if radius == 0:
        assert torch.allclose(found[0], deepest, rtol=1e-6)
