"""Where an attack may go: the farthest points of a ball in a box, and steps that stay inside."""

from __future__ import annotations

import math

import pytest
import torch
from support.dice import Dice
from torch import Tensor

from bnndp.attack.surroundings import Surroundings
from bnndp.geometry.box import Box

NORMS = [math.inf, 2.0, 1.0]


def case(norm: float, *, bounded: bool = True) -> tuple[Surroundings, Tensor, Tensor]:
    """Surroundings of 5 centres in 7 dimensions, slopes (3, 5, 7) with a zero, and radii (3, 5)."""
    dice = Dice(2)
    centre = dice.uniform(0, 1, (5, 7))
    slope = dice.normal(3, 5, 7)
    slope[:, :, 0] = 0
    domain = (0.0, 1.0) if bounded else None
    return Surroundings.of_domain(centre, domain, norm), slope, dice.uniform(0.05, 2, (3, 5))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bounded", [True, False])
def test_nothing_in_the_ball_lies_farther(norm: float, bounded: bool) -> None:
    home, slope, radius = case(norm, bounded=bounded)
    far = home.farthest(slope, radius)
    assert (home.length(far - home.centre) <= radius * (1 + 1e-12)).all()
    assert ((far >= home.lower) & (far <= home.upper)).all()
    assert torch.equal(far[..., 0], home.centre[:, 0].expand(3, 5))
    best = ((far - home.centre) * slope).sum(-1)
    dice = Dice(3)
    for scale in (0.02, 0.2, 1.0):  # points around the farthest, pulled back into the ball
        near = (far + scale * dice.normal(4000, 3, 5, 7)).clamp(home.lower, home.upper) - home.centre
        near = near * (radius / home.length(near)).clamp_max(1)[..., None]
        assert ((near * slope).sum(-1) <= best + 1e-9).all()


@pytest.mark.parametrize("norm", NORMS)
def test_the_reach_is_the_least_radius_that_attains_the_need(norm: float) -> None:
    home, slope, radius = case(norm)
    need = ((home.farthest(slope, radius) - home.centre) * slope).sum(-1)
    most = torch.full((5,), 50.0, dtype=torch.float64)
    found = home.reach(slope, need, most)
    assert (found <= radius * (1 + 1e-9)).all()
    gained = ((home.farthest(slope, found) - home.centre) * slope).sum(-1)
    assert (gained > 0.97 * need).all()  # quotients come from below
    free = Surroundings.of_domain(home.centre, None, norm)
    assert torch.allclose(free.reach(slope, need, most), need / free.speed(slope), rtol=1e-12)
    assert not home.reach(slope, -need, most).any()
    assert (home.reach(slope, 1e9 * need, most) == 50).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_steps_stay_in_the_ball_and_the_box(norm: float, dtype: torch.dtype) -> None:
    home, slope, radius = case(norm)
    home, slope, radius = home.to(dtype), slope.to(dtype), radius.to(dtype)
    x = home.centre.expand(3, -1, -1)
    for share in (1.0, 0.3, 0.0):
        x = home.moved(x, slope, share, 0.5 * slope, radius)
        assert x.dtype == dtype
        assert (home.length(x - home.centre) <= radius * (1 + 1e-5)).all()
        assert ((x >= home.lower - 1e-6) & (x <= home.upper + 1e-6)).all()


@pytest.mark.parametrize("norm", NORMS)
def test_a_region_and_its_surroundings_are_the_same(norm: float) -> None:
    centre = torch.tensor([[0.2, 0.5], [0.9, 0.1]], dtype=torch.float64)
    box = Box.ball(centre, 0.3, domain=(0, 1), norm=norm)
    home, radius = Surroundings.of_region(box)
    again = home.region(radius)
    torch.testing.assert_close(again.lower, box.lower, rtol=0, atol=1e-15)  # those are rounded outward
    torch.testing.assert_close(again.upper, box.upper, rtol=0, atol=1e-15)
    assert (again.within is None) == (norm == math.inf)
