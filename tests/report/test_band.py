"""The picture: what it draws from the posterior has the posterior's mean, and only 1D networks are drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bnndp.attack.sampling import draw_noise, estimate
from bnndp.errors import InputError
from bnndp.geometry.bounds import Affine, AffineBounds
from bnndp.geometry.box import Box
from bnndp.questions.bounds import Bounds
from bnndp.report.band import draw_band, sample_outputs


def constant_bounds(box: Box, lower: float, upper: float) -> Bounds:
    """Bounds that do not depend on x; nothing here asks whether they are true."""
    flat = torch.zeros(box.batch, 1, box.n, dtype=torch.float64)
    low, high = (torch.full((box.batch, 1), value, dtype=torch.float64) for value in (lower, upper))
    return Bounds(low, high, AffineBounds(Affine(flat, low), Affine(flat, high), box), ("moment",) * box.batch)


def test_networks_drawn_from_the_posterior_have_its_mean(random_network: Any) -> None:
    network = random_network((1, 8, 1), 2)
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
    drawn = sample_outputs(network, x, 20_000, seed=1)
    exact = estimate(network, x, draw_noise(network, 1, seed=0)).mean  # one hidden layer: a closed form
    error = drawn.std(0) / 20_000**0.5
    assert bool(((drawn.mean(0) - exact).abs() < 6 * error).all())


def test_networks_without_variance_are_all_the_same(random_network: Any) -> None:
    network = random_network((1, 4, 4, 1), 1, std=0.0)
    x = torch.linspace(-1, 1, 3, dtype=torch.float64)[:, None]
    drawn = sample_outputs(network, x, 2, seed=0)
    assert drawn.shape == (2, 3, 1)
    assert torch.equal(drawn[0], drawn[1])


def test_only_one_input_and_output_can_be_drawn(random_network: Any, tmp_path: Path) -> None:
    network = random_network((2, 4, 1))
    box = Box([[0.0, 0.0]], [[1.0, 1.0]])
    with pytest.raises(InputError, match=r"one input and one output.*2-4-1"):
        draw_band(network, box, constant_bounds(box, 0, 1), tmp_path / "p.png")
    assert not list(tmp_path.iterdir())


def test_the_same_call_draws_the_same_picture(random_network: Any, tmp_path: Path) -> None:
    network, box = random_network((1, 4, 1)), Box([[0.0], [0.5]], [[0.5], [1.0]])
    for name in ("a.png", "b.png"):
        draw_band(network, box, constant_bounds(box, -1, 1), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
