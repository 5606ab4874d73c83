"""Norms of what a line leaves of a hinge, against quadrature with panels between kinks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.dice import Dice
from support.layer_networks import activation
from tests.engine.explicit_laws import of_gaussian
from tests.engine.gaussian_truths import F64, standard, value_of
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import LeakyRelu
from bnndp.engine.inequalities import hinge_remainder
from bnndp.engine.inequalities.hinge_remainder import remainder_norms
from bnndp.engine.moments.signal import POWERS
from bnndp.geometry.bounds import Interval

PHIS = {"relu": activation("relu"), "leaky_relu": activation("leaky_relu"), "hard_tanh": activation("hard_tanh")}


def truth(act: str, m: float, r: float, p: float) -> Tensor:  # (q,)
    """Norms of phi(X) - E phi(X) - p (X - m)."""
    xi, weight = standard(act, m, r)
    values = value_of(act, m + r * xi)
    left = (values - weight @ values - p * r * xi).abs()
    return torch.stack([(weight @ left**q) ** (1 / q) for q in POWERS])


@pytest.mark.parametrize("act", PHIS)
@pytest.mark.parametrize("width", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("seed", slow_but(range(6), 0))
def test_norms_hold_on_ranges(act: str, width: float, seed: int) -> None:
    phi, dice, count = PHIS[act], Dice(seed), 60
    m, r = 4 * dice.uniform(shape=(count, 1)) - 2, 10 ** (-3 * dice.uniform(shape=(count, 1)))
    m[:5] = 0.0
    mean = Interval(m - width * r, m + width * dice.uniform(shape=(count, 1)))
    root = Interval(r * (1 - 0.9 * width), r * (1 + width * dice.uniform(shape=(count, 1))))
    x = of_gaussian(mean, Interval(root.lower.square(), root.upper.square()))
    p = phi.slope(m, r) + 2 * dice.normal(count, 1) * (dice.uniform(shape=(count, 1)) < 0.3)
    found = remainder_norms(phi.shape, x, p)
    for share_m, share_r in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.4, 0.7)):
        for i in range(count):
            at = float(mean.lower[i] + share_m * (mean.upper - mean.lower)[i])
            rr = float(root.lower[i] + share_r * (root.upper - root.lower)[i])
            exact = truth(act, at, rr, float(p[i]))
            assert bool((exact <= found[i, 0] * (1 + 1e-9) + 1e-13).all()), (at, rr, exact, found[i, 0])


def test_the_fourth_norm_is_exact_at_a_point() -> None:
    m = torch.linspace(-3, 3, 25, dtype=F64)[None]
    phi = PHIS["relu"]
    x = of_gaussian(Interval(m, m), Interval(torch.ones_like(m), torch.ones_like(m)))
    p = phi.slope(m, torch.ones_like(m))
    found = remainder_norms(phi.shape, x, p)[0, :, 0]
    exact = torch.stack([truth("relu", float(at), 1.0, float(slope))[0] for at, slope in zip(m[0], p[0], strict=True)])
    assert bool((found >= exact).all())
    assert torch.allclose(found, exact, rtol=1e-6)


def test_far_from_a_kink_nothing_is_left() -> None:
    m = torch.tensor([[-30.0, 30.0]], dtype=F64)
    phi = PHIS["relu"]
    x = of_gaussian(Interval(m, m), Interval(torch.ones_like(m), torch.ones_like(m)))
    assert float(remainder_norms(phi.shape, x, torch.tensor([[0.0, 1.0]], dtype=F64)).max()) < 1e-6


def test_without_variance_nothing_is_left() -> None:
    zero = torch.zeros(1, 3, dtype=F64)
    mean = Interval(zero - 1, zero + 1)
    for phi in PHIS.values():
        assert float(remainder_norms(phi.shape, of_gaussian(mean, Interval(zero, zero)), zero).max()) == 0


@pytest.mark.parametrize("slope", [-2.0, -0.5, 0.3, 2.5])
def test_slopes_before_the_first_kink(slope: float) -> None:
    assert hinge_remainder._first_slope(LeakyRelu(slope).shape) == pytest.approx(slope, abs=1e-15)
    assert hinge_remainder._first_slope(PHIS["hard_tanh"].shape) == 0.0


def _derivatives(t: float) -> Any:
    """Norms in L4 of the derivatives of R in m and in r, at r = 1 and m - k = t."""
    xi, weight = standard("relu", t, 1.0)
    on, density = (xi > -t).double(), math.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)
    chance = weight @ on
    in_mean = on - chance - density * xi
    in_root = xi * on - weight @ (xi * on) - chance * xi + t * density * xi
    return [float((weight @ part.abs() ** 4) ** 0.25) for part in (in_mean, in_root)]


def test_what_moves_the_fourth_norm() -> None:
    for t in torch.linspace(-6, 6, 121, dtype=F64).tolist():
        in_mean, in_root = _derivatives(t)
        assert in_mean <= hinge_remainder._IN_MEAN
        assert in_root <= hinge_remainder._IN_ROOT
