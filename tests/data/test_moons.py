"""Two moons: on their circles without noise, both classes alike, the same for the same seed."""

from __future__ import annotations

import math

import pytest
import torch

from bnndp.data.moons import two_moons
from bnndp.errors import InputError


def test_without_noise_the_points_lie_on_their_half_circles() -> None:
    data = two_moons(500, noise_std=0.0, seed=3)
    centres = torch.tensor([[0.0, 0.0], [1.0, 0.5]], dtype=torch.float64)
    step = data.x - centres[data.y]
    assert torch.allclose(step.norm(dim=-1), torch.ones(500, dtype=torch.float64))
    assert bool((step[data.y == 0, 1] >= 0).all() & (step[data.y == 1, 1] <= 0).all())
    assert data.y.bincount().tolist() == [250, 250]
    assert step[:, 0].min() < -0.99 < 0.99 < step[:, 0].max()


def test_the_noise_has_its_standard_deviation() -> None:
    clean, noisy = (two_moons(20_000, noise_std=std, seed=1) for std in (0.0, 0.3))
    noise = noisy.x - clean.x
    assert noise.std().item() == pytest.approx(0.3, rel=0.02)
    assert noise.mean().abs().item() < 0.01


def test_a_seed_is_a_set() -> None:
    assert torch.equal(two_moons(50, seed=4).x, two_moons(50, seed=4).x)
    assert not torch.equal(two_moons(50, seed=4).x, two_moons(50, seed=5).x)


@pytest.mark.parametrize(("points", "noise_std"), [(0, 0.1), (5, -0.1), (5, math.nan), (5, math.inf)])
def test_refusals(points: int, noise_std: float) -> None:
    with pytest.raises(InputError, match=r"points must|noise_std must"):
        two_moons(points, noise_std=noise_std)
