"""Tests of the checker work with its precision; those that run without python-flint need none."""

from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def precision() -> None:
    if find_spec("flint") is not None:
        from bnndp_checker.ball_arithmetic import use_precision

        use_precision()
