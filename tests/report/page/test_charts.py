"""Charts show the data."""

from __future__ import annotations

import numpy as np
import pytest

from bnndp.report.page.charts import histogram, stairs


@pytest.mark.parametrize("rising", [False, True])
def test_stairs_are_the_shares(rising: bool) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.uniform(0, 1, 50).round(1), [np.nan] * 5, [np.inf] * 3])
    corners = stairs(values, 58, 1.2, rising=rising)
    for eps in (0.05, 0.15, 0.55, 0.95, 1.1):
        height = [y for x, y in corners if x <= eps][-1]
        expected = (values <= eps).sum() if rising else (values >= eps).sum()
        assert height == pytest.approx(expected / 58)
    assert corners[0][0] == 0
    assert corners[-1][0] == 1.2


def test_a_histogram_has_every_number_once() -> None:
    values = np.array([0.0, 0.01, 0.5, 1.0, np.nan, np.inf])
    chart = histogram(values, np.empty(0), 1.0, ("x", "y"), "text")
    counts = [int(part.split(": ")[1].split("<")[0]) for part in chart.content.split("<title>")[1:]]
    assert sum(counts) == 4
