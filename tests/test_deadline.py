"""Deadlines pass at their moment, and the module says who asks them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bnndp import deadline
from bnndp.deadline import NEVER, Deadline

SRC = Path(deadline.__file__).parent


def test_a_deadline_passes_at_its_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    at = Deadline.after(2.0)
    for now, passed in ((100.0, False), (101.9, False), (102.0, True), (1e9, True)):
        clock[0] = now
        assert at.passed is passed
    assert not NEVER.passed
    assert Deadline.after(None) == NEVER


def test_the_module_names_those_who_ask() -> None:
    found = {
        path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py") if "deadline.passed" in path.read_text("utf-8")
    }
    named = re.findall(r"``([a-z_/]+\.py)``", (deadline.__doc__ or "").partition("How a command")[0])
    assert found == {*named, "options.py"}  # there in an example
