"""Rows of all kinds are the dense rows that they stand for."""

from __future__ import annotations

import pytest
import torch
from support import records

from bnndp.engine.rows import DenseRows, JoinedRows, LocalRows, split, sum_of

SHAPE, GRID = (2, 4, 5), (3, 2)


def local(window: tuple[int, int], offset: tuple[int, int], seed: int) -> LocalRows:
    values = records.normal(2, 3, 6, SHAPE[0], *window, seed=seed)  # (batch, outputs, positions, channels, window)
    return LocalRows(values, SHAPE, GRID, (1, 2), offset)


@pytest.mark.parametrize("other", [((1, 1), (0, 0)), ((3, 2), (1, 0)), ((2, 4), (0, 2)), ((3, 3), (1, 1))])
def test_sums_of_local_rows(other: tuple[tuple[int, int], tuple[int, int]]) -> None:
    a, b = local((3, 3), (1, 1), 1), local(*other, 2)
    found = sum_of(a, b)
    assert isinstance(found, LocalRows)
    assert torch.allclose(found.dense().values, a.dense().values + b.dense().values)
    v = records.normal(2, 40, seed=3)
    assert torch.allclose(found.dot(v), a.dot(v) + b.dot(v))


def test_sums_of_rows_of_other_kinds_are_dense() -> None:
    a, b = local((3, 3), (1, 1), 1), DenseRows(records.normal(1, 18, 40, seed=2))
    moved = LocalRows(a.values, SHAPE, GRID, (1, 1), (1, 1))
    for left, right in ((a, b), (b, a), (a, moved)):
        assert torch.allclose(sum_of(left, right).dense().values, left.dense().values + right.dense().values)


def test_joined_rows() -> None:
    parts = local((3, 3), (1, 1), 1), DenseRows(records.normal(2, 18, 7, seed=2))
    rows = JoinedRows(parts, (40, 7))
    dense, v, many = rows.dense(), records.normal(2, 47, seed=4), records.normal(2, 47, 3, seed=5)
    assert dense.values.shape == (2, 18, 47)
    assert (rows.count, rows.batch) == (18, 2)
    assert torch.allclose(rows.dot(v), dense.dot(v))
    assert torch.allclose(rows.dots(many), dense.dots(many))
    assert torch.allclose(rows.times(v).dense().values, dense.times(v).values)
    assert torch.allclose(rows.abs().square().dense().values, dense.square().values)
    assert torch.allclose(rows.with_negatives().dense().values, dense.with_negatives().values)
    assert torch.allclose(rows.plus(rows).dense().values, 2 * dense.values)
    assert torch.allclose(rows.add_times(rows, v).dense().values, dense.plus(dense.times(v)).values)
    assert torch.allclose(rows.group_dots(many[:, :, :1], 47)[..., 0], dense.values * many[:, None, :, 0])
    assert split(rows, (40, 7)) is rows
    assert torch.equal(split(rows, (20, 27)).dense().values, dense.values)


def test_channels_of_local_rows_apart() -> None:
    rows = local((3, 3), (1, 1), 1)
    found = split(rows, (20, 20))
    assert all(isinstance(part, LocalRows) and part.shape == (1, 4, 5) for part in found.parts)
    assert torch.equal(found.dense().values, rows.dense().values)
