"""A made data set in the form of the UCI sets, in units far from one."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from bnndp.data import registry
from bnndp.data.uci import FOLDS, TABLES, Table

NAME = "synthetic"
ROWS, HELD = 400, 60
SHIFT, SCALE = np.array([3e6, -2e-4]), np.array([4e4, 1e-5])  # of the inputs
OFFSET, FACTOR, NOISE = 5e8, 2e6, 2e5  # of the target


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put the set ``synthetic`` into the registry and its files into ``folder``: a curved function of two inputs."""
    rng = np.random.default_rng(5)
    z = rng.normal(size=(ROWS, 2))
    y = OFFSET + FACTOR * (np.abs(z[:, 0]) - z[:, 1]) + NOISE * rng.normal(size=ROWS)
    table = np.column_stack([SHIFT + SCALE * z, y])
    index = np.stack([rng.permutation(ROWS)[:HELD] for _ in range(FOLDS)])
    (folder / NAME).mkdir(parents=True)
    _put(folder, f"{NAME}.csv.gz", "\n".join(["a,b,y", *(",".join(map(repr, row)) for row in table.tolist())]))
    _put(folder, f"{NAME}_test_index.csv.gz", "\n".join(",".join(map(str, row)) for row in index.tolist()))
    monkeypatch.setitem(TABLES, NAME, Table(NAME, NAME, ROWS, HELD, "synthetic", "none", "a b y", "", ""))
    monkeypatch.setitem(registry._SETS, NAME, registry._table(TABLES[NAME]))


def _put(folder: Path, name: str, text: str) -> None:
    (folder / NAME / name).write_bytes(gzip.compress(text.encode()))
