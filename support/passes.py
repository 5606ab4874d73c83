"""What a pass says about the mean outputs of its network, put together for comparison with the truth."""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.engine.protocol import Pass, both_signs, known
from bnndp.geometry.bounds import Interval


def ends(bounds: Pass, outputs: int) -> Interval:
    """The tightest range (batch, outputs) of every mean output by all that a pass gives: each must hold by itself."""
    rows, box = both_signs(outputs, bounds.box), bounds.box
    found = bounds.affine(rows)
    planes = box.minimum(found.affine.matrix, found.affine.offset)
    least = torch.stack([known(each) for each in (found.least, planes, bounds.least(rows))]).amax(0)
    return Interval(least[:, :outputs], -least[:, outputs:])


def holds(interval: Interval, truth: Tensor, slack: float | Tensor = 1e-11) -> bool:
    """Whether the truth lies in the interval everywhere, up to the rounding of the truth; false for NaN."""
    return bool(((interval.lower <= truth + slack) & (interval.upper >= truth - slack)).all())
