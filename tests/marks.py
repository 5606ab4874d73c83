"""Which cases of a test run every time; the others have the mark ``slow`` and run with ``make test-all``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(values: Iterable[Any], *kept: Any) -> list[Any]:
    """The values of a parameter, all but those ``kept`` marked as slow; a kept value may be part of a tuple."""
    return [each if each in kept else pytest.param(*_row(each), marks=pytest.mark.slow) for each in values]


def _row(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
