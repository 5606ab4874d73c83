"""The comparisons of ``make bench``: what they compare with is what it says it is."""

from __future__ import annotations

import pytest
import torch
from benchmarks import alternatives, crown
from support.networks import make_network


def test_so_many_draws_make_the_interval_as_narrow() -> None:
    std, width = torch.tensor([1.0, 2.0, 1e-9]), torch.tensor([0.1, 0.1, 0.1])
    found = alternatives.draws_needed(std, width)
    half = 3.890592 * std / found.sqrt()  # P(|N(0, 1)| <= 3.890592) = 0.9999
    assert (2 * half <= width * (1 + 1e-6)).all()
    assert (2 * 3.890592 * std[:2] / (found[:2] - 2).sqrt() > width[:2]).all()
    assert found[2] == 30


def test_the_table_of_ways_has_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    case = alternatives.Case("own", lambda: make_network((2, 8, 8, 1), 1, std=0.1), "sine2d", 1e-2)
    monkeypatch.setattr(alternatives, "CASES", (case,))
    ours, wide, *others, sampled = alternatives.measure(boxes=4)
    assert (ours.way, wide.way, sampled.way) == ("bnndp", "intervals of moments", "sampling, one point")
    assert len(others) == crown.available()
    assert ours.width < wide.width
    assert all(row.wall > 0 and row.cpu > 0 for row in (ours, wide, *others, sampled))
