"""Options refuse what makes no sense, NaN included, and say what was given."""

from __future__ import annotations

import dataclasses

import pytest

from bnndp.deadline import NEVER
from bnndp.errors import InputError
from bnndp.options import METHODS, Options

NAN = float("nan")


def test_the_defaults_are_sound_choices() -> None:
    options = Options()
    assert options.method == "auto"
    assert options.refine == 1
    assert options.tolerance == 0.0
    assert options.time_limit is None
    assert 0 < options.mass < 1


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_accepted(method: str) -> None:
    assert Options(method=method).method == method


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "moments"}, "method must be one of .*got 'moments'"),
        ({"method": ""}, "method must be one of"),
        ({"method": None}, "method must be one of"),
        ({"refine": 0}, "refine .*>= 1, got 0"),
        ({"refine": -3}, "refine .*>= 1, got -3"),
        ({"refine": NAN}, "refine .*got nan"),
        ({"tolerance": -1e-9}, "tolerance must be >= 0, got -1e-09"),
        ({"tolerance": NAN}, "tolerance must be >= 0, got nan"),
        ({"time_limit": 0.0}, "time_limit must be a positive number of seconds or None, got 0.0"),
        ({"time_limit": -1}, "time_limit .*got -1"),
        ({"time_limit": NAN}, "time_limit .*got nan"),
        ({"memory": 2**20 - 1}, "memory must be at least 1048576 bytes, got 1048575"),
        ({"memory": NAN}, "memory .*got nan"),
        ({"mass": 0.0}, "mass must lie between 0 and 1, got 0.0"),
        ({"mass": 1.0}, "mass must lie between 0 and 1, got 1.0"),
        ({"mass": NAN}, "mass .*got nan"),
        ({"cells": 1}, "cells .*>= 2, got 1"),
        ({"cells": NAN}, "cells .*got nan"),
        ({"effort": "huge"}, "effort must be one of low, medium, high, got 'huge'"),
        ({"fixed": frozenset({"cels"})}, "fixed names the option 'cels'"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Options(**change)


def test_the_smallest_and_largest_values_are_accepted() -> None:
    Options(refine=1, tolerance=0.0, time_limit=1e-9, memory=2**20, mass=1e-300, cells=2)
    Options(refine=10**9, tolerance=float("inf"), time_limit=1e9, memory=2**50, mass=1 - 1e-16, cells=1000)


def test_options_cannot_be_changed_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().refine = 0  # type: ignore[misc]
    with pytest.raises(InputError):
        dataclasses.replace(Options(), refine=0)
    with pytest.raises(InputError, match=r"refine .*>= 1, got 0"):
        Options.of("high", refine=0)
    with pytest.raises(TypeError, match="cels"):
        Options.of("high", cels=3)


def test_a_time_limit_becomes_a_deadline_when_a_question_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    options = Options(time_limit=2.0, refine=3)
    assert not options.deadline.passed
    started = options.started()
    assert started.started() is started  # asked within another question: the deadline stays
    assert (started.time_limit, started.refine) == (None, 3)
    for now, passed in ((101.9, False), (102.0, True), (1e9, True)):
        clock[0] = now
        assert started.deadline.passed is passed
    assert options.started().deadline.at == 1e9 + 2  # every question has its own
    assert not options.deadline.passed
    assert Options().started() is not started
    assert Options().started().deadline == NEVER


def test_a_deadline_is_not_an_option_that_a_user_has_chosen() -> None:
    assert "deadline" not in Options(time_limit=2.0).own
    assert Options(time_limit=2.0).started().own <= {"deadline"}
    assert "deadline" not in repr(Options(time_limit=2.0).started())
