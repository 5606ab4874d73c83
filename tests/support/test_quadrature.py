"""The nodes and weights of a rectified Gaussian, against its moments in ball arithmetic."""

from __future__ import annotations

import pytest
from flint import ctx
from support import oracles
from support.quadrature import rectified_law


@pytest.mark.parametrize(("m", "r"), [(0.0, 1.0), (-2.0, 1.0), (3.0, 2.0), (20.0, 1.0), (-6.0, 1.0), (-16.0, 2.0)])
def test_moments_of_the_law(m: float, r: float) -> None:
    z, weight = rectified_law(m, r)
    with ctx.workprec(1000):
        moments = [oracles.cdf(oracles.exact(m) / r), oracles.expected_relu(m, r)]
        for k in range(2, 9):  # integration by parts
            moments.append(m * moments[-1] + (k - 1) * r * r * moments[-2])
    assert weight.sum().item() == pytest.approx(1, rel=1e-12)
    assert weight[1:].sum().item() == pytest.approx(float(moments[0]), rel=1e-10)
    for k in (1, 2, 4, 8):
        assert (weight @ z**k).item() == pytest.approx(float(moments[k]), rel=1e-9)
