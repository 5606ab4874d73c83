"""Filling a table: what is measured, what is taken from earlier runs, and on which inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.cache import NetworkCache, file_name
from benchmarks.paper import published
from benchmarks.paper.columns import (
    CLIPPED,
    COLUMNS,
    EFFORT,
    INSIDE,
    MOMENT,
    POINT,
    Column,
    Subject,
    broken_radius,
    width,
)
from benchmarks.paper.journal import Journal
from benchmarks.paper.rows import Row, fill
from torch import Tensor

from bnndp.data import load
from bnndp.errors import InputError
from bnndp.files.posterior import training_card
from bnndp.options import Options
from bnndp.questions.decision import decide
from bnndp.training.fit import Plan

PLAN = Plan("sine2d", "vogn", (8,), steps=30)
ROW = Row(published.Row("sine2d", (8,), 0.04, 1.0, 2.0, 8.0, eps=1e-2), PLAN, 5)


class Counted:
    """A column that counts how often it is asked, and may stop the run."""

    def __init__(self, *, stop: bool = False) -> None:
        self.subjects: list[Subject] = []
        self.stop = stop

    def __call__(self, subject: Subject) -> Tensor:
        self.subjects.append(subject)
        if self.stop:
            raise KeyboardInterrupt
        return subject.x.sum(-1)


def test_a_row_is_measured_on_the_first_test_inputs_and_once_only(tmp_path: Path) -> None:
    cache, first, few = NetworkCache(tmp_path / "networks"), Counted(), Counted()
    columns = [Column("first", first), Column("few", few, points=2)]
    (measured,) = fill([ROW], columns, cache, Journal(tmp_path / "journal.jsonl"))
    test = load("sine2d", "test")
    assert torch.equal(first.subjects[0].x, test.x[:5])
    assert torch.equal(few.subjects[0].x, test.x[:2])
    assert first.subjects[0].eps == 1e-2
    assert measured.cells["first"].values == tuple(test.x[:5].sum(-1).tolist())
    assert measured.seconds_per_pass > 0
    assert measured.passes("first") == measured.cells["first"].seconds_per_point / measured.seconds_per_pass
    (again,) = fill([ROW], columns, cache, Journal(tmp_path / "journal.jsonl"))
    assert again.cells == measured.cells
    assert again.seconds_per_pass == measured.seconds_per_pass
    assert len(first.subjects) == len(few.subjects) == 1


def test_an_interrupted_run_goes_on_with_the_missing_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache, journal, done = NetworkCache(tmp_path / "networks"), tmp_path / "journal.jsonl", Counted()
    with pytest.raises(KeyboardInterrupt):
        list(fill([ROW], [Column("a", done), Column("b", Counted(stop=True))], cache, Journal(journal)))
    last = Counted()
    capsys.readouterr()
    list(fill([ROW], [Column("a", done), Column("b", last)], cache, Journal(journal)))
    assert len(done.subjects) == len(last.subjects) == 1
    assert capsys.readouterr().err == "sine2d 1x8: b\nsine2d 1x8: one forward pass\n"


def test_another_network_is_measured_anew(tmp_path: Path) -> None:
    cache, journal, column = NetworkCache(tmp_path / "networks"), tmp_path / "journal.jsonl", Counted()
    list(fill([ROW], [Column("a", column)], cache, Journal(journal)))
    other = replace(ROW, plan=replace(PLAN, seed=1))
    list(fill([other], [Column("a", column)], cache, Journal(journal)))
    list(fill([replace(ROW, points=4)], [Column("a", column)], cache, Journal(journal)))
    assert len(column.subjects) == 3
    assert column.subjects[0].network.digest() != column.subjects[1].network.digest()


def test_a_classifier_is_asked_about_its_own_decisions(tmp_path: Path) -> None:
    row = Row(published.Row("digits", (8,), 0.01, 0.01, 0.01, 1.0), Plan("digits", "vogn", (8,), steps=30), 6)
    column = Counted()
    list(fill([row], [Column("a", column)], NetworkCache(tmp_path / "networks"), Journal(tmp_path / "j")))
    (subject,) = column.subjects
    assert subject.domain == (0.0, 1.0)
    assert subject.eps is None
    assert subject.label is not None
    assert torch.equal(subject.label, decide(subject.network, subject.x))


def test_a_network_is_trained_once_and_found_by_what_decides_it(tmp_path: Path) -> None:
    cache = NetworkCache(tmp_path / "new" / "networks")
    posterior = cache.get(PLAN)
    stamp = cache.path(PLAN).stat().st_mtime_ns
    again = cache.get(PLAN)
    assert again.network.digest() == posterior.network.digest()
    assert cache.path(PLAN).stat().st_mtime_ns == stamp
    assert posterior.card["seconds"] > 0
    assert posterior.card == training_card(cache.path(PLAN))
    assert sorted(path.name for path in cache.folder.iterdir()) == [file_name(PLAN)]  # no checkpoint is left
    changes = ({"seed": 1}, {"steps": 31}, {"temperature": 0.5}, {"hidden": (9,)}, {"prior": "unit"})
    names = {file_name(replace(PLAN, **change)) for change in changes}
    assert len(names | {file_name(PLAN)}) == 1 + len(changes)


def test_the_columns_of_widths_say_what_they_name(tmp_path: Path) -> None:
    subject = Subject(NetworkCache(tmp_path).get(PLAN).network, load("sine2d", "test").x[:6], eps=1e-2)
    found = {column.name: column.measure(subject) for column in COLUMNS["table-1a"]}
    assert all(values.shape == (6,) for values in found.values())
    assert (found[INSIDE] <= found[MOMENT] + 1e-12).all()
    assert (found[POINT] <= 1e-9).all()  # one hidden layer: exact at a point
    below = (subject.x + 1e-2 <= 0).all(-1)
    both = (subject.x - 1e-2 >= 0).all(-1)
    assert below.any()
    assert (found[CLIPPED][below] <= 1e-9).all()  # such a box is clipped to the origin
    assert torch.equal(found[CLIPPED][both], found[MOMENT][both])
    assert torch.equal(width(subject[:2], Options(method="moment")), found[MOMENT][:2])


def test_the_columns_of_effort_are_no_wider(tmp_path: Path) -> None:
    subject = Subject(NetworkCache(tmp_path).get(PLAN).network, load("sine2d", "test").x[:6], eps=1e-2)
    medium, high = (column.measure(subject) for column in EFFORT["table-1a"])
    low = width(subject, Options(method="moment"))
    assert (high < medium).all()
    assert (medium < low).all()


def test_a_question_that_a_column_cannot_answer_is_refused(tmp_path: Path) -> None:
    subject = Subject(NetworkCache(tmp_path).get(PLAN).network, load("sine2d", "test").x[:2])
    with pytest.raises(InputError, match="eps=None"):
        width(subject, Options())
    with pytest.raises(InputError, match="label=None"):
        broken_radius(subject)
