r"""Means of logistic functions of a wide Gaussian, by the trapezoid rule on the side of the logistic density.

For :math:`\sigma(t)=1/(1+e^{-t})` and X normal with mean m and std r, integration by parts swaps the roles:

.. math:: \mathbb E\,\sigma(X)=\int\sigma'(t)\,\Phi(\tfrac{m-t}r)\,dt,\quad
          \mathbb E\log(1+e^X)=\int\sigma'(t)\,g(m-t,r)\,dt,\quad
          \mathbb E\,\sigma'(X)=\int\sigma'(t)\,\tfrac1r\varphi(\tfrac{m-t}r)\,dt,

and :math:`\mathbb E X\sigma(X)=m\,\mathbb E\sigma(X)+r^2\,\mathbb E\sigma'(X)` (Stein). The integrands are analytic for
:math:`|\operatorname{Im}t|<\pi`; on the line of height y the density integrates to
:math:`\int|\sigma'(t+iy)|dt=\int\frac{dt}{2(\cosh t+\cos y)}=\frac y{\sin y}`, 8.36 at y = 2.8, and for
:math:`r\ge2` there :math:`|\Phi|\le1+1.4\,\varphi(0)e^{0.98}\le2.5`, :math:`|\varphi|\le1.07`,
:math:`|g|\le|m|+|t|+0.4r+7`. With the step 15/32 the strip theorem (see ``gaussian_rule``) leaves
:math:`2M/(e^{2\pi\cdot2.8\cdot32/15}-1)\le1.1\cdot10^{-16}M`, the cut at 37.5 at most
:math:`2\sigma(-37.5)<2\cdot10^{-16}` times a value of the kernel there, the sum of 161 terms 170 units: together less
than ``ELEMENTARY`` times the scale (1 for the sigmoid and r times the density, :math:`1+|m|+r` for the softplus).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bnndp.maths.gaussian_rule import in_chunks
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import expected_relu, ratio

WIDE = 2.0
"""The least standard deviation for which the functions of this module are meant."""

_STEP = 15 / 32
_COUNT = 80


def wide_sigmoid(m: Tensor, r: Tensor) -> Tensor:  # (n,) each
    """E sigmoid(m + r xi) for r >= 2."""
    return _swapped(lambda x, r, _: cdf(ratio(x, r)), m, r).clamp(0, 1)


def wide_softplus(m: Tensor, r: Tensor) -> Tensor:  # (n,) each
    """E softplus(m + r xi) for r >= 2."""
    return _swapped(lambda x, r, _: expected_relu(x, r), m, r)


def wide_density(m: Tensor, r: Tensor) -> Tensor:  # (n,) each
    """The mean of r sigmoid'(m + r xi) for r >= 2."""
    return _swapped(lambda x, r, _: pdf(ratio(x, r)), m, r)


def wide_silu_slope(m: Tensor, r: Tensor) -> Tensor:  # (n,) each
    r"""The derivative of :math:`\mathbb E X\sigma(X)` in m for r >= 2.

    With :math:`s\,\mathbb E\sigma''=-\int\sigma'(t)\,(m-t)\,\tfrac1r\varphi(\tfrac{m-t}r)dt` the parts in m cancel.
    """
    return _swapped(lambda x, r, t: cdf(ratio(x, r)) + t * pdf(ratio(x, r)) / r, m, r)


def _swapped(kernel: Callable[[Tensor, Tensor, Tensor], Tensor], m: Tensor, r: Tensor) -> Tensor:
    """The integral of ``sigma'(t) kernel(m - t, r, t)`` over t by the rule."""
    t = _STEP * torch.arange(-_COUNT, _COUNT + 1, dtype=m.dtype, device=m.device)  # (nodes,)
    weight = _STEP * torch.sigmoid(t) * torch.sigmoid(-t)
    return in_chunks(lambda m, r: kernel(m[:, None] - t, r[:, None], t) @ weight, m, r, len(t))
