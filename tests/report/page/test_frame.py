"""Paths keep every point that can be told apart."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bnndp.report.page.charts import stairs
from bnndp.report.page.frame import Frame


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_a_path_goes_where_its_points_are(points: list[tuple[int, int]]) -> None:
    """What is left out lies on the way: every point and every stretch of the line is still drawn."""
    frame = Frame.over((0.0, 4.0), (0.0, 4.0), ("x", "y"))
    kept = [
        tuple(map(float, corner.split())) for corner in frame.path(points).removeprefix("M").split("L")
    ]  # a corner of the path
    whole = [(round(frame.x(x), 1), round(frame.y(y), 1)) for x, y in points]
    at = 0
    for corner in whole:  # one after the other, each is on the stretch where the one before was, or on a later one
        while not _on(corner, kept[at], kept[min(at + 1, len(kept) - 1)]):
            at += 1
    assert kept[0] == whole[0]
    assert kept[-1] == whole[-1]


def _on(point: tuple[float, ...], start: tuple[float, ...], end: tuple[float, ...]) -> bool:
    """Whether a point is one of the ends, or between them on a level or upright line."""
    straight = start[0] == end[0] or start[1] == end[1]
    between = all(min(a, b) <= p <= max(a, b) for p, a, b in zip(point, start, end, strict=True))
    return point in (start, end) or (straight and between)


def test_a_path_of_many_stairs_is_short() -> None:
    """As long as there are places to be told apart, not as there are values."""
    frame = Frame.over((0.0, 1.0), (0.0, 1.0), ("x", "y"))
    steep = stairs(0.5 + np.linspace(0, 1e-6, 10_000), 10_000, 1.0, rising=True)
    assert frame.path(steep).count("L") == 3  # level, upright, level


def test_a_path_draws_what_coincides_once() -> None:
    frame = Frame.over((0.0, 1.0), (0.0, 1.0), ("x", "y"))
    assert frame.path([(0.0, 0.0), (1e-9, 0.0), (1.0, 1.0)]).count("L") == 1
    assert frame.path([]) == ""
