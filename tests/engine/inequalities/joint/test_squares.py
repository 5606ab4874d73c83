"""Squares of what a line leaves of rows of jointly Gaussian values, and how they vary with it, on dense grids."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import records
from tests.engine.gaussian_truths import F64, ball, matrix_normal, outcomes, shared, slope_of, value_of
from tests.engine.laws.test_weights import points
from tests.engine.moments.test_joint_gaussian import joint_at, node_of
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.inequalities.joint.squares import SquareWithLine, square_with_line
from bnndp.engine.moments.joint_gaussian import Joint
from bnndp.engine.propagation.row_moments import _remainder_norms
from bnndp.layers import Conv2d

_TWO_CHANNELS = Conv2d(
    records.normal(2, 1, 1, 1, seed=1), 0.6 * torch.ones(2, 1, 1, 1, dtype=F64), *(torch.zeros(2, 2, dtype=F64))
)
FIRST: dict[str, tuple[Any, tuple[int, ...]]] = {
    "rank two": (shared(5, 3, 70, 0.4), (3,)),
    "matrix normal": (matrix_normal(5, 3, 80, 0.3), (3,)),
    "one noise": (matrix_normal(4, 3, 80, 0.3, rank=1), (3,)),
    "strong": (shared(4, 3, 71, 1.5), (3,)),
    "two channels": (_TWO_CHANNELS, (1, 1, 3)),
}


def bound_of(joint: Joint, mu: Tensor, norm4: Tensor) -> SquareWithLine:  # (rows, n), (batch, n)
    """With covariances of L and X that hold on the box."""
    w = mu * joint.slope.value
    c = joint.apply(w[None], joint.gaussian.value).abs()
    c = c + joint.apply(mu[None].abs() * joint.slope.off, joint.gaussian.size)
    c = c + joint.apply(w[None].abs(), joint.gaussian.off)
    return square_with_line(joint, mu[None], c, c / joint.root[:, None].clamp_min(1e-150), norm4)


def parts_of(act: str, mu: Tensor, m: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L, R (nodes, rows) and weights."""
    x, weight = outcomes(m, covariance)
    z, p = value_of(act, x), weight @ slope_of(act, x)
    line = ((x - m) * p) @ mu.mT
    return line, (z - weight @ z) @ mu.mT - line, weight


@pytest.mark.parametrize("act", slow_but(["relu", "tanh", "hard_tanh", "gelu"], "relu", "hard_tanh"))
@pytest.mark.parametrize("radius", [0.0, 0.1])
@pytest.mark.parametrize("name", FIRST)
def test_squares_vary_with_their_line_by_no_more(name: str, radius: float, act: str) -> None:
    layer, shape = FIRST[name]
    x = records.normal(3, seed=1)
    node = node_of(layer, shape, act, x, radius)
    joint = node.signal.joint
    assert joint is not None
    mu = records.normal(4, joint.root.shape[-1], seed=6)
    found = bound_of(joint, mu, _remainder_norms(node, joint)[..., 0])
    for at in points(ball(x, radius), 3 if radius else 1, 2):
        line, rest, weight = parts_of(act, mu, *records.law(layer, at.reshape(shape)))
        square, slack = rest.square(), 2e-5
        assert bool(((weight @ (line * square)).abs() <= found.first[0] * (1 + 1e-6) + slack).all())
        for turn, rate in ((0.0, 0.3), (0.0, 2.0), (math.pi / 2, 0.3), (1.0, 4.0)):
            f = torch.cos(turn + rate * line)
            slope, bend = weight @ (-rate * torch.sin(turn + rate * line)), (weight @ (rate**2 * f).square()).sqrt()
            covariance = weight @ ((f - weight @ f) * square)
            claim = slope.abs() * found.first[0] + bend * found.second[0] / math.sqrt(2)
            assert bool((covariance.abs() <= claim * (1 + 1e-6) + slack).all()), (turn, rate)


def test_one_value_nearly_attains_it() -> None:
    """For one value R^2 is a function of L: its part of degree two and more is nearly all of it."""
    joint = joint_at("relu", torch.zeros(1, dtype=F64), torch.ones(1, 1, dtype=F64))
    xi = torch.linspace(-9, 9, 20001, dtype=F64)
    weight = torch.exp(-0.5 * xi * xi) / torch.exp(-0.5 * xi * xi).sum()
    rest = xi.clamp_min(0) - weight @ xi.clamp_min(0) - 0.5 * xi
    norm4 = (weight @ rest**4) ** 0.25
    found = bound_of(joint, torch.ones(1, 1, dtype=F64), norm4.reshape(1, 1))
    # v = 1/4 = (c/r)^2, the multiple correlation is one
    assert float(found.second) == pytest.approx(0.25 * float(norm4) ** 2, rel=1e-6)
    spread = (weight @ (rest.square() - weight @ rest.square()).square()).sqrt()
    assert float(found.second) < 0.25 * 1.2 * float(spread)


@pytest.mark.parametrize("act", slow_but(["relu", "leaky_relu", "softplus", "tanh"], "relu", "tanh"))
@pytest.mark.parametrize("radius", [0.0, 0.2])
def test_convex_values_are_above_their_line_less_the_dip(act: str, radius: float) -> None:
    """z - E z - p (X - E X) on a fine grid; the kink of a hinge attains it."""
    layer, x = shared(5, 3, 70, 0.6), records.normal(3, seed=1)
    joint = node_of(layer, (3,), act, x, radius).signal.joint
    assert joint is not None
    if act == "tanh":
        assert bool(joint.dip.isinf().all())
        return
    for at in points(ball(x, radius), 4 if radius else 1, 2):
        m, covariance = records.law(layer, at)
        for j, r in enumerate(covariance.diagonal().sqrt().tolist()):
            xi = torch.linspace(-9, 9, 40001, dtype=F64)
            weight = torch.exp(-0.5 * xi * xi) / torch.exp(-0.5 * xi * xi).sum()
            value = value_of(act, m[j] + r * xi)
            p = weight @ (value * xi) / r
            least = float((value - weight @ value - p * r * xi).min())
            assert -least <= float(joint.dip[0, j]) * (1 + 1e-6) + 1e-6
            if act == "relu" and radius == 0 and abs(float(m[j])) < 8 * r:
                assert -least >= float(joint.dip[0, j]) * 0.999 - 1e-5
