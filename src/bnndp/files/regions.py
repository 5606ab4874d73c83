"""Properties of VNN-LIB files as regions: tensors that say the same, ends rounded outward, rows exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.files.vnnlib import Case, Inequality, Property, rounded
from bnndp.geometry.box import Box
from bnndp.geometry.unsafe_set import Region, UnsafeSet

__all__ = ["regions_of"]


def regions_of(property_: Property) -> tuple[Region, ...]:
    """The regions of a property; one without any constraint of outputs is refused."""
    return tuple(_region(case, property_.inputs, property_.outputs) for case in property_.cases)


def _region(case: Case, inputs: int, outputs: int) -> Region:
    down, up = -math.inf, math.inf
    box = Box(_ends(case.lower, down), _ends(case.upper, up))
    low, high = _ends(case.lower, up), _ends(case.upper, down)
    fixed = low > high  # the input is one number that is no float64, or two between neighbouring float64s
    inner = Box(torch.where(fixed, box.lower[0], low), torch.where(fixed, box.upper[0], high))
    return Region(box, _unsafe(case, inputs, outputs), inner)


def _ends(ends: Sequence[Fraction], direction: float) -> Tensor:
    return torch.tensor([rounded(end, direction) for end in ends], dtype=torch.float64)


def _unsafe(case: Case, inputs: int, outputs: int) -> UnsafeSet:
    if not case.unsafe or any(not any(each.outputs for each in rows) for rows in case.unsafe):
        raise InputError("it has no constraint of the outputs Y_0, ...; there is nothing to verify.")
    flat = [(index, _whole(each)) for index, rows in enumerate(case.unsafe) for each in rows]
    rows = torch.zeros(len(flat), outputs, dtype=torch.float64)
    of_inputs = torch.zeros(len(flat), inputs, dtype=torch.float64)
    for at, (_, each) in enumerate(flat):
        for target, pairs in ((rows, each.outputs), (of_inputs, each.inputs)):
            for index, value in pairs:
                target[at, index] = float(value)
    bounds = [_ends([each.bound for _, each in flat], way) for way in (math.inf, -math.inf)]
    owner = torch.tensor([index for index, _ in flat])
    return UnsafeSet(rows, bounds[0], owner, of_inputs if bool((of_inputs != 0).any()) else None, bounds[1])


def _whole(row: Inequality) -> Inequality:
    """The same inequality with coefficients that float64 holds: if they are not, whole multiples of them."""
    values = [value for _, value in (*row.outputs, *row.inputs)]
    if all(Fraction(float(value)) == value for value in values):
        return row
    scale = math.lcm(*(value.denominator for value in values))
    outputs, inputs = (tuple((i, value * scale) for i, value in pairs) for pairs in (row.outputs, row.inputs))
    if any(abs(value) > 2**53 for _, value in (*outputs, *inputs)):
        raise InputError("a coefficient has more digits than can be kept exactly; write it with fewer.")
    return Inequality(outputs, inputs, row.bound * scale)
