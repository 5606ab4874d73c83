"""Central moments over rectangles contain those at every point of them, which the contract of activations proves."""

from __future__ import annotations

import math

import pytest
import torch
from support.activation_truths import TRUTHS
from support.layer_networks import ACTS, activation
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.general.central_range import _SLOPES, BENDS, central_range
from bnndp.geometry.bounds import Interval

WIDTHS = (0.0, 1e-3, 0.1, 1.0, 10.0)


def rectangles(count: int, seed: int) -> tuple[Interval, Interval]:
    generator = torch.Generator().manual_seed(seed)

    def uniform() -> Tensor:
        return torch.rand(count, 1, generator=generator, dtype=torch.float64)

    r = 10 ** (3 * uniform() - 2)
    wide = torch.tensor(WIDTHS, dtype=torch.float64)[torch.randint(len(WIDTHS), (2, count, 1), generator=generator)]
    m = (3 * uniform() - 1.5) + (4 * uniform() - 2) * r
    low = torch.where(uniform() < 0.1, 0.0, r)  # r = 0 is an end
    return Interval(m, m + wide[0] * r * uniform()), Interval(low, r + wide[1] * r * uniform())


@pytest.mark.parametrize("act", slow_but(ACTS, "relu", "hard_tanh", "tanh", "elu", "gelu"))
def test_moments_of_every_point_are_inside(act: str) -> None:
    phi = activation(act)
    count = 20 if act == "piecewise_affine" else 300
    m, r = rectangles(count, 3)
    found = central_range(phi, m, r)
    generator = torch.Generator().manual_seed(4)
    for _ in range(4 if act == "piecewise_affine" else 40):
        a, b = torch.rand(2, count, 1, generator=generator, dtype=torch.float64)
        at_m, at_r = m.lower + a * (m.upper - m.lower), r.lower + b * (r.upper - r.lower)
        at = phi.central(at_m, at_r)
        for name, degree in (("variance", 2), ("third", 3), ("fourth", 4)):
            inner, outer, slack = getattr(at, name), getattr(found, name), 1e-12 * r.upper**degree
            assert bool((outer.lower <= inner.upper + slack).all()), name
            assert bool((inner.lower <= outer.upper + slack).all()), name
        # The norms of points are upper bounds themselves, most of them those of Lipschitz functions.
        assert bool((found.norm8 >= at.fourth.lower.clamp_min(0) ** 0.25 * (1 - 1e-9)).all())
        assert bool((found.norm16 >= found.variance.lower.sqrt() * (1 - 1e-9)).all())


@pytest.mark.parametrize("act", ["relu", "leaky_relu"])
def test_norms_of_rectangles_below_a_kink(act: str) -> None:
    m = Interval(torch.tensor([[-3.0]], dtype=torch.float64), torch.tensor([[-2.0]], dtype=torch.float64))
    r = Interval(torch.tensor([[0.5]], dtype=torch.float64), torch.tensor([[0.8]], dtype=torch.float64))
    found, truth = central_range(activation(act), m, r), TRUTHS[act]
    for a in (-3.0, -2.5, -2.0):
        for b in (0.5, 0.65, 0.8):
            assert found.norm8.item() >= float(truth.norm(a, b, 8))
            assert found.norm16.item() >= float(truth.norm(a, b, 16))


def test_a_point_is_left_as_it_is() -> None:
    phi = activation("tanh")
    m, r = torch.tensor([[0.3, -1.0]], dtype=torch.float64), torch.tensor([[0.2, 1.0]], dtype=torch.float64)
    found, at = central_range(phi, Interval(m, m), Interval(r, r)), phi.central(m, r)
    assert torch.equal(found.third.lower, at.third.lower)
    assert torch.equal(found.fourth.upper, at.fourth.upper)


def test_constants() -> None:
    """The terms of the second derivatives one by one, with L = r = 1, as they are left after those of phi'^2 cancel.

    In both directions: -2 h^2 for the variance, -12 h E A phi' eta for the third moment and -24 h E A^2 phi' eta +
    12 h^2 v for the fourth, h the derivative of the mean, at most 1 and E |xi|; and n E phi' (A^(n-1) - E A^(n-1))
    times xi or xi^3 - 2 xi, whose deviations are 1 and sqrt 7.
    """
    bend, mean = math.sqrt(7), math.sqrt(2 / math.pi)
    sizes = (1.0, math.sqrt(3), math.sqrt(15))  # deviations of A^(n-1), at most those of a Gaussian
    for n, size, first, (in_m, in_r) in zip((2, 3, 4), sizes, _SLOPES, BENDS, strict=True):
        assert first >= n * size
        left_m = {2: 2.0, 3: 12.0, 4: 24.0 + 12.0}[n]
        left_r = {2: 2 * mean**2, 3: 12 * mean, 4: 24 * mean * math.sqrt(3) + 12 * mean**2}[n]
        assert in_m >= left_m + n * size
        assert in_r >= left_r + n * size * bend
