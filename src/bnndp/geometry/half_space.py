r"""Half-spaces that cut boxes: minima of affine functions over what is left.

For every :math:`\lambda\ge0` and every x of the box with :math:`a\cdot x\le t`,

.. math:: g\cdot x+h\ \ge\ (g+\lambda a)\cdot x+h-\lambda t\ \ge\ \min_{\text{box}}(g+\lambda a)\cdot x+h-\lambda t

(Lagrange). The right side is concave in :math:`\lambda`, and the best one makes it the minimum over the cut box. Any
other is a bound, too, so it is searched on some of the inputs only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.geometry.box import Box, apply_rows
from bnndp.maths.rounding import TINY, gamma

__all__ = ["HalfSpace"]

_INPUTS = 128  # by which the multiplier is searched, about
_LEAST, _MOST = -6.0, 6.0  # of the logarithm to base 2 of the multiplier, in units of the sizes of both functions
_HALVINGS = 7  # of that range
_SMALL = 1e-30  # of float32
_NUMBERS = 2**18  # in the matrices made at a time on a CPU: in its caches


@dataclass(frozen=True, slots=True)
class HalfSpace:
    """The points x with ``normal . x <= level``, one half-space for each box; all of them where the normal is zero."""

    normal: Tensor  # (batch, n)
    level: Tensor  # (batch,), >= 0 where the normal is zero

    def __getitem__(self, index: slice | Tensor) -> HalfSpace:
        """The half-spaces at ``index`` of the batch."""
        return HalfSpace(self.normal[index], self.level[index])

    def moved(self, step: Tensor) -> HalfSpace:  # step (n,) or (batch, n)
        """Half-spaces that hold every ``x - step`` of these."""
        at = (self.normal * step).sum(-1)
        size = (self.normal * step).abs().sum(-1) + self.level.abs()
        return HalfSpace(self.normal, self.level - at + gamma(2 * self.normal.shape[-1] + 8) * size + TINY)

    @torch.no_grad()
    def minimum(self, box: Box, matrix: Tensor, offset: Tensor) -> Tensor:  # (batch, rows, n), (batch, rows)
        """Lower bounds (batch, rows) of ``matrix @ x + offset`` over the cut boxes, no less than over the boxes."""
        weight = self._multipliers(box, matrix)
        size = max(1, _NUMBERS // matrix[0].numel()) if matrix.device.type == "cpu" else box.batch
        parts = [slice(start, min(start + size, box.batch)) for start in range(0, box.batch, size)]
        return torch.cat([self[i]._mixed(box[i], matrix[i], offset[i], weight[i]) for i in parts])

    def least(self, box: Box, matrix: Tensor, offset: Tensor) -> Tensor:  # (batch, rows, n), (batch, rows)
        """As :meth:`minimum`, differentiable in the functions; the multipliers are taken as they are."""
        with torch.no_grad():
            weight = self._multipliers(box, matrix)
        return self._mixed(box, matrix, offset, weight)

    def _mixed(self, box: Box, matrix: Tensor, offset: Tensor, weight: Tensor) -> Tensor:  # weight (batch, rows)
        """The bounds with these multipliers, and with none."""
        mixed = torch.addcmul(matrix, weight[..., None], self.normal[:, None])
        constant = offset - weight * self.level[:, None]
        largest = box.magnitude.amax(-1, keepdim=True)
        met = torch.linalg.vector_norm(mixed, ord=1, dim=-1) * largest + offset.abs()
        met = met + 2 * weight * (self.normal.abs().sum(-1, keepdim=True) * largest + self.level.abs()[:, None])
        found = box.minimum(mixed, constant) - gamma(32) * met - TINY  # of forming the row and its constant
        usual = box.minimum(matrix, offset)
        return torch.where(found.isfinite(), torch.maximum(found, usual), usual)

    def _multipliers(self, box: Box, matrix: Tensor) -> Tensor:  # (batch, rows)
        """Where the derivative of the bound changes its sign, about; zero where it falls from the beginning.

        By halving, in float32 and on every few of the inputs.
        """
        step = max(1, box.n // _INPUTS)
        some, normal = matrix[..., ::step].float(), self.normal[:, ::step].float()
        reach = box.half[:, ::step].float() * normal  # (batch, some)
        whole, seen = (box.half * self.normal).abs().sum(-1).float(), reach.abs().sum(-1)
        share = torch.where(seen > 0, whole / seen, 0.0)[:, None]
        left = ((self.normal * box.centre).sum(-1) - self.level)[:, None].float()
        unit = apply_rows(some.abs(), box.half[:, ::step].float()) / seen.clamp_min(_SMALL)[:, None]
        low, high = torch.full_like(unit, _LEAST), torch.full_like(unit, _MOST)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            mixed = torch.addcmul(some, (unit * middle.exp2())[..., None], normal[:, None])
            rising = left - share * apply_rows(mixed.sign_(), reach) > 0
            low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
        found = torch.where(low > _LEAST, unit * low.exp2(), 0.0)
        return torch.where(found.isfinite(), found, 0.0).double()
