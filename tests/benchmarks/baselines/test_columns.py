"""The columns of the baselines, and the bisection that they share."""

from __future__ import annotations

import pytest
import torch
from benchmarks.baselines import COLUMNS
from benchmarks.baselines.search import bracket
from benchmarks.paper.columns import Subject
from support.networks import make_network

from bnndp.errors import InputError


@pytest.mark.parametrize("table", sorted(COLUMNS))
def test_every_column_gives_a_number_for_every_input(table: str) -> None:
    task, n_out = ("regression", 1) if table == "table-1a" else ("classification", 3)
    network = make_network((2, 5, 5, n_out), 3, std=0.01, task=task)
    x = torch.tensor([[0.2, 0.9], [0.5, 0.5], [0.8, 0.1]], dtype=torch.float64)
    label = torch.zeros(3, dtype=torch.int64)
    subject = (
        Subject(network, x, eps=0.01) if table == "table-1a" else Subject(network, x, label=label, domain=(0.0, 1.0))
    )
    names = [column.name for column in COLUMNS[table]]
    assert len(set(names)) == len(names)
    for column in COLUMNS[table]:
        assert not column.whole  # all of them cut or sample the posterior
        value = column.measure(subject)
        assert value.shape == (3,), column.name
        assert value.dtype == torch.float64, column.name
        assert torch.equal(value.nan_to_num(-1.0), column.measure(subject).nan_to_num(-1.0)), column.name  # fixed seeds


@pytest.mark.parametrize("table", sorted(COLUMNS))
def test_a_subject_that_does_not_fit_is_refused(table: str) -> None:
    subject = Subject(make_network((2, 3, 2)), torch.zeros(1, 2, dtype=torch.float64))
    for column in COLUMNS[table]:
        with pytest.raises(InputError, match="eps=None" if table == "table-1a" else "label=None"):
            column.measure(subject)


def test_the_widths_of_columns_are_in_order() -> None:
    network = make_network((2, 6, 6, 1), 5, std=0.05)
    subject = Subject(network, torch.tensor([[0.3, -0.4], [0.0, 0.1]], dtype=torch.float64), eps=0.05)
    width = {column.name: column.measure(subject) for column in COLUMNS["table-1a"]}
    assert (width["intervals, 1 sd"] < width["intervals, 3 sd"]).all()
    assert (width["intervals, 3 sd"] < width["intervals, 5 sd"]).all()
    assert (width["FL (LP), 3 sd"] < width["FL (LP), 5 sd"]).all()
    for k in (3, 5):
        assert (width[f"FL (LP), {k} sd"] <= width[f"intervals, {k} sd"]).all()


class TestBracket:
    def test_the_ends_enclose_the_threshold_within_the_tolerance(self) -> None:
        generator = torch.Generator().manual_seed(0)
        threshold = 10 ** (-5 * torch.rand(200, generator=generator, dtype=torch.float64))  # 1e-5 to 1
        found = bracket(lambda radius, at: radius <= threshold[at], 200)
        assert (found.low <= threshold).all()
        assert (found.high > threshold).all()
        assert (found.high <= 1.01 * found.low).all()

    def test_beyond_the_largest_below_the_smallest_and_nowhere(self) -> None:
        threshold = torch.tensor([7.0, 1e-9, -1.0], dtype=torch.float64)
        found = bracket(lambda radius, at: radius <= threshold[at], 3)
        assert found.largest[:2].tolist() == [1.0, 0.0]
        assert found.largest[2].isnan()
        assert found.smallest[0].isinf()
        assert 1e-9 < found.smallest[1] <= 1e-6
        assert found.smallest[2] == 0

    def test_of_a_claim_that_comes_back_the_first_change_met_is_taken(self) -> None:
        found = bracket(lambda radius, at: (radius < 0.1) | (radius > 0.2), 1, grow=1.2)
        assert found.low < 0.1 <= found.high <= 0.1 * 1.01
