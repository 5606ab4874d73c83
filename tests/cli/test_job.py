"""Chunks of a job: the time for splitting is kept, whatever the number of cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bnndp.cli.job import Job, _parts
from bnndp.options import Options
from bnndp.regions import Box


def test_when_the_time_is_over_the_rest_is_one_pass_in_large_chunks(random_network: Any) -> None:
    network, box = random_network((1, 4, 1), 0), Box.ball(torch.zeros(600, 1, dtype=torch.float64), 0.1)
    parts = list(_parts(Job(network, box, Options(refine=1000, time_limit=1e-9)), Path("inputs.npz")))
    assert sum(part.bounds.lower.shape[0] for part in parts) == 600
    assert [part.start for part in parts][1:] == sorted(part.start for part in parts)[1:]
    assert len(parts) <= 4  # with chunks for 1000 cells there would be 150
    assert all(part.bounds.cells is None for part in parts[1:])


def test_without_a_limit_every_chunk_is_refined(random_network: Any) -> None:
    network, box = random_network((1, 4, 1), 0), Box.ball(torch.zeros(5, 1, dtype=torch.float64), 0.1)
    parts = list(_parts(Job(network, box, Options(refine=4)), Path("inputs.npz")))
    assert all(part.bounds.cells is not None for part in parts)
