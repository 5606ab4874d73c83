"""The picture of a network with one input and one output."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.networks import make_network

from bnndp.errors import InputError
from bnndp.geometry.bounds import Affine, AffineBounds
from bnndp.geometry.box import Box
from bnndp.questions.bounds import Bounds
from bnndp.report.band import draw_band


def constant_bounds(box: Box, lower: float, upper: float) -> Bounds:
    """Bounds that do not depend on x; nothing here asks whether they are true."""
    flat = torch.zeros(box.batch, 1, box.n, dtype=torch.float64)
    low, high = (torch.full((box.batch, 1), value, dtype=torch.float64) for value in (lower, upper))
    return Bounds(low, high, AffineBounds(Affine(flat, low), Affine(flat, high), box), ("moment",) * box.batch)


def test_only_one_input_and_output_can_be_drawn(tmp_path: Path) -> None:
    network = make_network((2, 4, 1))
    box = Box([[0.0, 0.0]], [[1.0, 1.0]])
    with pytest.raises(InputError, match=r"one input and one output.*2-4-1"):
        draw_band(network, box, constant_bounds(box, 0, 1), tmp_path / "p.png")
    assert not list(tmp_path.iterdir())


def test_the_same_call_draws_the_same_picture(tmp_path: Path) -> None:
    network, box = make_network((1, 4, 1)), Box([[0.0], [0.5]], [[0.5], [1.0]])
    for name in ("a.png", "b.png"):
        draw_band(network, box, constant_bounds(box, -1, 1), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
