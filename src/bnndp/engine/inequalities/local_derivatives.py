r"""Derivatives of a smoothed activation near a Gaussian: norms of :math:`G_p(M+L,\sqrt S)`, L Gaussian of variance v.

For an activation that is affine between kinks k with jumps J, :math:`G_p(m,r)` is the sum of
:math:`J_kr^{-(p-1)}\Phi^{(p-1)}((m-k)/r)`, :math:`\Phi` the normal distribution function, and
:math:`|\Phi^{(p-1)}(u)|=|He_{p-2}(u)|\Phi'(u)\le A_pe^{-u^2/4}`. With :math:`\mathbb Ee^{-a(M+L-k)^2/4S}\le
e^{-a(M-k)^2/(4S+2av)}`,

.. math:: \lVert G_p(M+L,\sqrt S)\rVert_a\le A_pS^{-(p-1)/2}\sum_k|J_k|e^{-(M-k)^2/(4S+2av)} .

Neurons that are far from their kinks cost little. Of all other activations only the supremum is known.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.activations.activation import Shape
from bnndp.engine.moments.intervals import product
from bnndp.engine.moments.pre_activation import Local, PreActivation
from bnndp.maths.rounding import TINY, UP, power_of

__all__ = ["local_norm", "local_remainder"]

_PEAKS = {2: 0.398943, 3: 0.342199, 4: 0.457196, 5: 0.764839, 6: 1.492004, 7: 3.272094, 8: 7.888768}
"""A_p, rounded up."""


def local_remainder(shape: Shape, x: PreActivation, terms: Local) -> Tensor:  # (batch, n)
    """The sum over the parts of the least of their ways."""
    total = torch.zeros_like(terms.variance)
    for ways in terms.parts:
        found = [
            sum((product(local_norm(shape, x, terms.variance, *key), value) for key, value in way.items()), 0 * total)
            for way in ways
        ]
        total = total + torch.stack(found).nan_to_num(torch.inf, posinf=torch.inf).amin(0)
    return total


def local_norm(shape: Shape, x: PreActivation, variance: Tensor, order: int, norm: int) -> Tensor:  # (batch, n)
    """Of the derivative of this order at M + L, at most; of the second one the width of its range, if not local."""
    root = x.spread.lower.sqrt()
    most = sum(shape.curvature(root)) if order == 2 else shape.derivative(order, root)
    if norm == 0 or not shape.kinks or (order == 2 and shape.fall > 0 and shape.rise > 0):
        return most  # type: ignore[return-value]
    scale = _PEAKS[order] / power_of(root.clamp_min(TINY), order - 1) * UP
    wide = (4 * x.spread.upper + 2 * norm * variance).clamp_min(TINY) * UP
    near = torch.zeros_like(root)
    for where, jump in shape.kinks:
        apart = torch.maximum(x.mean.lower - where, where - x.mean.upper).clamp_min(0)
        near = near + abs(jump) * torch.exp(-apart.square() / wide)
    return torch.fmin(scale * near * UP, most)  # type: ignore[arg-type]
