r"""Suprema of the derivatives of a smoothed function, from its Fourier transform.

Let :math:`G(m,r)=\mathbb E\varphi(m+r\xi)`, let :math:`\varphi''` be integrable, and let
:math:`w(\omega)\ge|\int\varphi''(x)e^{-i\omega x}dx|`, w even. For every m, r and p >= 2 with a finite integral,

.. math:: |\partial_m^pG(m,r)|\le M_p(r^2),\qquad
          M_p(s)=\frac1\pi\int_0^\infty\omega^{p-2}w(\omega)e^{-s\omega^2/2}d\omega .

Proof: :math:`\partial_m^pG` is the derivative of order p - 2 of :math:`\varphi''` convolved with the density of
:math:`r\xi`, whose transform is :math:`(i\omega)^{p-2}\hat\varphi''(\omega)e^{-r^2\omega^2/2}`; take sizes in its
inverse. Where :math:`\hat\varphi''` has the phase of a constant times :math:`i^{p-2}`, the bound is attained at m = 0:
for odd functions at odd p, for even second derivatives at even p.

M_p falls in s, and its logarithm is convex in s (Hoelder), so that of its chord between two knots is an upper bound.
The integrals at the knots are computed by Gauss and Legendre's rule on panels of a quarter, with 1e-9 for the error:
the tests hold them in ball arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

__all__ = ["Spectrum", "gelu", "sigmoid", "sigmoid_square", "silu", "softplus", "spectral_bound", "tanh", "tanh_square"]

Spectrum = Callable[[Tensor], Tensor]
"""w at positive frequencies; below, of the second derivatives of activations and of squares of them."""

_LARGEST_ORDER = 8
_KNOTS = (0.0, *(2.0 ** (0.25 * k) for k in range(-40, 25)))  # of s
_END, _PANELS, _NODES = 64.0, 256, 16
_SLACK = 1e-9


def tanh(frequency: Tensor) -> Tensor:
    r"""Of :math:`1/\cosh^2`, whose transform is :math:`\pi\omega/\sinh\tfrac{\pi\omega}2`, one derivative later."""
    x = 0.5 * math.pi * frequency
    return 2 * x * frequency / torch.sinh(x)


def tanh_square(frequency: Tensor) -> Tensor:
    r"""Of :math:`\tanh^2=1-\tanh'`."""
    return frequency * tanh(frequency)


def softplus(frequency: Tensor) -> Tensor:
    r"""Of the derivative of the sigmoid, :math:`1/(4\cosh^2\tfrac x2)`."""
    x = math.pi * frequency
    return x / torch.sinh(x)


def sigmoid(frequency: Tensor) -> Tensor:
    """One derivative later."""
    return frequency * softplus(frequency)


def sigmoid_square(frequency: Tensor) -> Tensor:
    r"""Of :math:`\sigma^2=\sigma-\sigma'`."""
    return torch.sqrt(1 + frequency.square()) * sigmoid(frequency)


def silu(frequency: Tensor) -> Tensor:
    r"""Of :math:`2\sigma'+x\sigma''`: with t the transform of :math:`\sigma'` it is :math:`t-\omega t'`."""
    x = math.pi * frequency
    return x * softplus(frequency) / torch.tanh(x)


def gelu(frequency: Tensor) -> Tensor:
    r"""Of :math:`(2-x^2)` times the normal density."""
    return (1 + frequency.square()) * torch.exp(-0.5 * frequency.square())


def spectral_bound(spectrum: Spectrum, order: int, r: Tensor) -> Tensor:
    """M_p(r^2), at most, for p = ``order`` from 2 to 8; it does not grow with r.

    Examples:
        >>> spectral_bound(tanh, 3, torch.tensor([0.0, 1.0], dtype=torch.float64))
        tensor([2.0000, 0.3636], dtype=torch.float64)
    """
    knots, logs = (part.to(r) for part in _table(spectrum))
    s, values = r.square(), logs[order - 2]
    at = torch.searchsorted(knots, s.detach().contiguous(), right=True).clamp(1, len(_KNOTS) - 1)
    share = ((s - knots[at - 1]) / (knots[at] - knots[at - 1])).clamp_max(1)
    return torch.exp(values[at - 1] + share * (values[at] - values[at - 1]))


@cache
def _table(spectrum: Spectrum) -> tuple[Tensor, Tensor]:
    """The knots, and the logarithms of M_p there: (knots,), (orders, knots)."""
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(_NODES))
    step = _END / _PANELS
    middles = step * (torch.arange(_PANELS, dtype=torch.float64) + 0.5)
    omega = (middles[:, None] + 0.5 * step * nodes).flatten()
    mass = (0.5 * step * weights).repeat(_PANELS) * spectrum(omega) / math.pi
    knots = torch.tensor(_KNOTS, dtype=torch.float64)
    decay = torch.exp(-0.5 * knots[:, None] * omega.square())  # (knots, nodes)
    powers = torch.stack([omega ** (p - 2) * mass for p in range(2, _LARGEST_ORDER + 1)])  # (orders, nodes)
    return knots, torch.log((powers @ decay.mT) * (1 + _SLACK))
