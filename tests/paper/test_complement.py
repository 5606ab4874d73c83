"""What lies outside the main rectangle, against quadrature over one Gaussian: also below it, where a function falls."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from bnndp.geometry.bounds import Affine
from bnndp.paper.layers import Ranges
from bnndp.paper.outer import Outer
from bnndp.paper.rectangles import Rectangle
from bnndp.paper.values import Value, complement

F64 = torch.float64
NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def outside_mean(slope: float, constant: float, m: float, r: float, a: float, b: float) -> float:
    """E[(slope z + constant) 1{zeta < a or zeta > b}], z = max(zeta, 0), zeta ~ N(m, r^2)."""
    total = 0.0
    for low, high in ((m - 12 * r, a), (b, m + 12 * r)):
        cuts = sorted({low, high, *(cut for cut in (0.0, m) if low < cut < high)})
        for left, right in pairwise(cuts):
            zeta = 0.5 * (left + right) + 0.5 * (right - left) * NODES
            density = np.exp(-0.5 * ((zeta - m) / r) ** 2) / (r * math.sqrt(2 * math.pi))
            values = (slope * np.maximum(zeta, 0) + constant) * density
            total += 0.5 * (right - left) * float(WEIGHTS @ values)
    return total


@pytest.mark.parametrize("tilt", [-1.0, -0.3, 0.0, 0.4, 1.5])
@pytest.mark.parametrize("slope", [-2.0, -0.5, 0.7])
@pytest.mark.parametrize(("a", "b"), [(0.4, 1.1), (-0.5, 0.6), (0.1, 3.0)])
def test_the_complement_is_not_below_the_truth(a: float, b: float, slope: float, tilt: float) -> None:
    """S = slope z; the main bound has another slope and meets S at the worse end of the rectangle's image."""
    m, r = 0.5, 0.6
    low, high = max(a, 0.0), max(b, 0.0)
    offset = max((slope - tilt) * low, (slope - tilt) * high)
    value = Value(Outer.of(tensor(slope)[None], tensor(0.0)), Affine(tensor(tilt)[None, None], tensor(offset)[None]))
    ranges = Ranges(*(tensor(end)[None, None] for end in (m, m, r, r)))
    rectangle = Rectangle(tensor(a)[None, None], tensor(b)[None, None])
    found = complement(value, rectangle, ranges).item()
    truth = outside_mean(slope - tilt, -offset, m, r, a, b)
    assert found >= truth - 1e-12  # the quadrature
    # Far below and above the rectangle the difference itself is the bound, so nothing is given away there.
    assert found <= outside_mean(abs(slope - tilt), abs(offset), m, r, a, b) + 1e-9
