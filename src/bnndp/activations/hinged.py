r"""Central moments of a function with one kink at zero, slope a on the left and one on the right.

:math:`(\varphi(m+r\xi)-\varphi(m))/r` has, with :math:`t=|m|/r`, the law of :math:`a\xi+(1-a)(\xi-t)_+` for m < 0, and
of :math:`-\xi+(1-a)(\xi-t)_+` for :math:`m\ge0` (write :math:`-\xi` for :math:`\xi`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.activations.activation import Central
from bnndp.activations.moments import central_of, lipschitz_central
from bnndp.maths.hinge import hinge_raw
from bnndp.maths.rectified import ratio
from bnndp.maths.rounding import ELEMENTARY

__all__ = ["hinged_central"]


def hinged_central(slope: float, m: Tensor, r: Tensor) -> Central:  # number, (...), (...)
    """Central moments of the function with this slope on the left of zero and one on the right."""
    bend = 1 - slope
    line = torch.where(m >= 0, -torch.ones_like(m), torch.full_like(m, slope))
    values = hinge_raw(line, bend, ratio(m, r).abs())
    size = line.abs() + abs(bend)
    errors = [ELEMENTARY * size**k for k in range(1, 5)]
    return central_of(values, errors, r, lipschitz_central(r + 0 * m, max(1.0, abs(slope))))
