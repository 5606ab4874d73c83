"""Slopes by gradient ascent: each row of each box gets the lower planes that bound it best.

The lower plane of a neuron may touch at any point, and on a cell of known signs any multiplier of a sign may be used
(``engine/protocol.Slopes``). The lower bound of a row at the worst x of its box is a function of all of them. It is
climbed by Adam from the planes of one pass, all rows and boxes at once, with the upper planes and the ranges of the
means as they are (the slopes of alpha-CROWN, Xu et al. 2021, in the smooth setting). Whatever the search finds is a
bound: every choice holds, and the best value found is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.deadline import Deadline
from bnndp.engine.protocol import Climbable, ClimbablePass, Planes, Slopes, Wrapped, known
from bnndp.geometry.bounds import Affine
from bnndp.geometry.box import Box

_RATE, _DECAY, _END = 0.5, 0.93, 0.05  # of the first step, from each to the next, and at least of the last
_LONG = 30  # steps on a cell, half of which begin anew
_FIRST, _SECOND, _LEAST = 0.9, 0.999, 1e-8  # of Adam: decays of the means of gradients and squares, least root
_MULTIPLIER_RATE = 0.1  # of the multipliers, in units of the largest coefficient of a row


@dataclass(frozen=True)
class Sloped(Wrapped):
    """A pass whose planes are optimised, row by row, by at most ``steps`` steps."""

    inner: ClimbablePass
    steps: int
    deadline: Deadline

    def affine(self, rows: Tensor) -> Planes:
        """The best planes found; no worse than those of one pass."""
        return climb(self.inner, rows, self.steps, self.deadline)[0]

    def least(self, rows: Tensor) -> Tensor:
        """Their least values."""
        return self.affine(rows).least


def climb(
    bounds: Climbable, rows: Tensor, steps: int, deadline: Deadline, begin: Slopes | None = None
) -> tuple[Planes, Slopes | None]:
    """The best planes below ``rows . E f`` that ``steps`` steps find, and their slopes; None: there is no choice.

    The ascent begins at ``begin``, the slopes of a larger cell; without them, at the planes of one pass. A long one
    comes to a halt at times: its second half begins at these planes, too.
    """
    with torch.no_grad():
        choice = bounds.slopes(rows)
        if choice is None or not steps:
            return bounds.affine(rows), None if choice is None else choice[0]
        best, start = choice if begin is None else (begin, begin.map([tensor.clone() for tensor in begin.tensors]))
        found = bounds.affine(rows) if begin is None else _nothing(bounds.box, rows)
        plane, value = found.affine, known(bounds.least_of(found.affine)) if begin is None else found.least
        free = start.map([tensor.requires_grad_() for tensor in start.tensors])
    turn = steps // 2 if begin is not None and steps >= _LONG else 0
    decay = max(_DECAY, _END ** (1 / (turn or steps)))
    climbers = _climbers(free, bounds.multiplier_scale(rows))
    for step in range(steps + 1):
        if step == turn and step:
            free = choice[1].map([tensor.requires_grad_() for tensor in choice[1].tensors])
            climbers = _climbers(free, bounds.multiplier_scale(rows))
        with torch.enable_grad():
            trial = bounds.affine_at(rows, free)
            reached = bounds.least_of(trial)
            loss = -reached.nan_to_num(0.0, neginf=0.0, posinf=0.0).sum()
        with torch.no_grad():
            better = (reached > value) & reached.isfinite()  # false for NaN
            value = torch.where(better, reached, value)
            plane = Affine(
                torch.where(better[..., None], trial.matrix, plane.matrix),
                torch.where(better, trial.offset, plane.offset),
            )
            pairs = zip(free.tensors, best.tensors, strict=True)
            best = best.map([torch.where(better[..., None], new, old) for new, old in pairs])
        if step == steps or deadline.passed:
            break
        torch.autograd.backward(loss)
        for climber in climbers:
            climber.move(step - turn if step >= turn else step, decay)
    return Planes(plane, torch.maximum(found.least, value), found.method), best


def _nothing(box: Box, rows: Tensor) -> Planes:
    """Before anything is known of the rows."""
    least = rows.new_full((box.batch, rows.shape[-2]), -torch.inf)
    return Planes(Affine(rows.new_zeros(*least.shape, box.n), least), least, ("",) * box.batch)


@dataclass(frozen=True, slots=True)
class _Climber:
    """The steps of Adam (Kingma and Ba 2015) for one tensor; ``torch.optim`` takes seconds to import its compiler."""

    at: Tensor
    rate: float
    mean: Tensor
    square: Tensor

    @torch.no_grad()
    def move(self, step: int, decay: float) -> None:
        """Move the tensor along its gradient; the gradient is gone then."""
        slope, self.at.grad = self.at.grad, None
        if slope is None:
            return
        self.mean.lerp_(slope, 1 - _FIRST)
        self.square.mul_(_SECOND).addcmul_(slope, slope, value=1 - _SECOND)
        scale = (self.square / (1 - _SECOND ** (step + 1))).sqrt_().add_(_LEAST)
        self.at.addcdiv_(self.mean, scale, value=-self.rate * decay**step / (1 - _FIRST ** (step + 1)))


def _climbers(free: Slopes, scale: float) -> list[_Climber]:
    rates = [_RATE] * len(free.tangents) + [_MULTIPLIER_RATE * scale] * len(free.multipliers)
    return [
        _Climber(tensor, rate, torch.zeros_like(tensor), torch.zeros_like(tensor))
        for tensor, rate in zip(free.tensors, rates, strict=True)
    ]
