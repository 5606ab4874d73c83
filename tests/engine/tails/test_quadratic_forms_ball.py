"""The largest value of a quadratic form of the means on a ball: its linear part counts there as on a box."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bnndp.engine.tails import quadratic_forms as subject
from bnndp.geometry.box import Box
from bnndp.layers import Linear

F64 = torch.float64


@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("seed", range(4))
def test_no_point_of_the_ball_has_a_larger_value(seed: int, norm: float) -> None:
    """``(y + b)' P (y + b) / 2`` with y = W (x - x0): along its gradient, the worst direction to first order."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=F64)

    n_in, n, radius = 12, 3, 0.01
    layer = Linear(normal(n, n_in), torch.full((n, n_in), 0.1), normal(n), torch.full((n,), 0.1))
    x0 = normal(1, n_in)
    box, base = Box.ball(x0, radius, norm=norm), subject.base_at(layer, x0[:, None])
    root = normal(n, n)
    p, middle = (root @ root.T)[None, None], normal(1, 1, n)
    gradient = (p @ middle[..., None])[..., 0] @ layer.weight_mean  # (1, 1, n_in)
    zero = torch.zeros(1, 1, n, dtype=F64)
    above = subject._Above(torch.zeros(1, 1, n_in, dtype=F64), zero[..., 0], zero)
    shift = subject._Shift(torch.ones_like(zero), middle, zero)
    problem = subject._Problem(layer, box, base, above, shift, subject._weights(layer, box, gradient))
    found = subject._largest(problem, p).item()
    steps = {
        1: torch.nn.functional.one_hot(gradient.abs().argmax(-1), n_in) * gradient.sign(),
        2: gradient / torch.linalg.vector_norm(gradient),
        math.inf: gradient.sign(),
    }
    away = (radius * steps[norm][0, 0]) @ layer.weight_mean.T + middle[0, 0]
    truth = (0.5 * away @ p[0, 0] @ away).item()
    assert found >= truth * (1 - 1e-12)
    assert found <= truth * 1.1 + 0.1  # the ball is small: hardly more than the linear part
