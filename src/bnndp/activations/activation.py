r"""What the pass asks of an activation: its mean under a Gaussian, central moments there, and bounds of its shape.

With :math:`G(m,r)=\mathbb E\,\varphi(m+r\xi)` the heat equation :math:`\partial_sG=\tfrac12\partial_m^2G`,
:math:`s=r^2`, turns bounds of derivatives in m into those in s. Smoothing bounds them for any activation: with
:math:`l\le\varphi'\le u` and the masses :math:`T^\pm` of the positive and negative parts of the measure
:math:`d\varphi'`,

.. math:: \partial_m^kG=r^{-(k-1)}\,\mathbb E[(\varphi'(m+r\xi)-\tfrac{l+u}2)He_{k-1}(\xi)]
          =\int\phi_r^{(k-2)}(m-t)\,d\varphi'(t),\qquad k\ge2,

so it is at most :math:`\tfrac{u-l}2\mathbb E|He_{k-1}|\,r^{-(k-1)}` and at most :math:`(T^++T^-)\sup|\phi_r^{(k-2)}|`
in size; the same with one order less by the range and the variation of :math:`\varphi''`; and always at most
:math:`\sup|\varphi^{(k)}|`; where the Fourier transform of :math:`\varphi''` is known, also by ``maths/spectrum.py``.
None of them grows with r.

The planes below and above G over ranges of m and s are made in ``engine/planes/mean.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from bnndp.geometry.bounds import Interval
from bnndp.layers.record import Weightless
from bnndp.maths.rounding import TINY, power_of
from bnndp.maths.spectrum import Spectrum, spectral_bound

_PEAKS = (
    0.39894228040143276,
    0.24197072451914340,
    0.39894228040143276,
    0.5505878396,
    1.196826841205,
    2.307105930,
    5.984134207,
)
"""sup |phi^(k)| of the normal density for k = 0 to 6, rounded up."""

_HERMITE = (
    0.79788456080286546,
    0.9678828980765736,
    1.5100130002,
    2.8006003009,
    5.9100858214,
    13.8155970473,
    35.147887226,
)
"""E |He_k(xi)| for k = 1 to 7, rounded up."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Bounds of the derivatives of an activation on the whole line, each on the safe side; infinite where unknown."""

    slopes: tuple[float, float]  # inf and sup of phi'
    rise: float  # mass of the positive part of d phi'
    fall: float  # mass of the negative part of d phi'
    bend_up: float  # sup of the positive part of phi''; infinite at a kink
    bend_down: float  # sup of the negative part of phi''
    third: float = math.inf  # sup |phi'''|
    fourth: float = math.inf  # sup |phi''''|
    fifth: float = math.inf  # sup of the fifth derivative, of either sign; so below
    sixth: float = math.inf
    seventh: float = math.inf
    eighth: float = math.inf
    kinks: tuple[tuple[float, float], ...] = ()  # (where, jump of the slope) of a function that is affine between them
    variation: float = math.inf  # total variation of phi''
    bumps: tuple[tuple[float, float], ...] = ()  # (where, jump of phi'') of a function that is quadratic between them
    spectrum: Spectrum | None = None  # of phi'', where it is known
    slope_known: bool = True  # whether ``Activation.slope`` is dG/dm to 1e-9: Taylor expansions rest on it

    @property
    def steepest(self) -> float:
        """The Lipschitz constant."""
        return max(abs(self.slopes[0]), abs(self.slopes[1]))

    @property
    def swing(self) -> float:
        """Half the range of the slope: the Lipschitz constant of phi less its best line."""
        return 0.5 * (self.slopes[1] - self.slopes[0]) * (1 + 1e-15)

    @property
    def convex(self) -> bool:
        """Whether the function is convex and does not fall."""
        return self.fall == 0 and self.slopes[0] >= 0

    def curvature(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """(below, above) with ``-below <= G_mm(., r') <= above`` for every r' >= r."""
        below, above = (
            _least(r, bend, min(mass, 2 * self.swing) * _PEAKS[0], 1)
            for bend, mass in ((self.bend_down, self.fall), (self.bend_up, self.rise))
        )
        if self.spectrum is None:
            return below, above
        both = spectral_bound(self.spectrum, 2, r)
        return torch.minimum(below, both), torch.minimum(above, both)

    def derivative(self, order: int, r: Tensor) -> Tensor:
        """Upper bound of the size of the derivative of G(., r') in m of this order, 3 to 8, for every r' >= r."""
        plain = (self.third, self.fourth, self.fifth, self.sixth, self.seventh, self.eighth)[order - 3]
        smooth = min((self.rise + self.fall) * _PEAKS[order - 2], self.swing * _HERMITE[order - 2])
        bent = min(self.variation * _PEAKS[order - 3], 0.5 * (self.bend_up + self.bend_down) * _HERMITE[order - 3])
        ways = [
            _least(r, plain, way, power) for way, power in ((smooth, order - 1), (bent, order - 2)) if way < math.inf
        ]
        if self.spectrum is not None:
            ways.append(spectral_bound(self.spectrum, order, r).clamp_max(plain))
        return reduce(torch.minimum, ways) if ways else torch.full_like(r, plain)


ANY_SLOPE = (-math.inf, math.inf)
"""The slopes of a function that grows faster than a line."""

UNKNOWN = Shape(ANY_SLOPE, math.inf, math.inf, math.inf, math.inf, slope_known=False)
"""The shape of a function of which nothing is known."""


@dataclass(frozen=True, eq=False)
class Central:
    """Central moments of ``phi(m + r xi)`` at a point (m, r), with all errors of their computation in the bounds."""

    variance: Interval
    third: Interval  # signed
    fourth: Interval
    norms: Callable[[], tuple[Tensor, Tensor]]  # of the centred value in L8 and L16, at most: found where asked for

    @cached_property
    def _norms(self) -> tuple[Tensor, Tensor]:
        return self.norms()

    @property
    def norm8(self) -> Tensor:
        """The norm of the centred value in L8, at most."""
        return self._norms[0]

    @property
    def norm16(self) -> Tensor:
        """The norm of the centred value in L16, at most."""
        return self._norms[1]


class Activation(Protocol):
    """One activation. Tensors ``m`` and ``r >= 0`` have one shape, and so have the results."""

    kind: ClassVar[str]
    tensors: ClassVar[tuple[str, ...]]  # names of the fields that are tensors, for files
    settings: ClassVar[tuple[str, ...]]  # names of the other fields

    @property
    def shape(self) -> Shape:
        """Bounds of its derivatives."""
        ...

    @property
    def square(self) -> Shape:
        """The same of phi^2, for second moments; :data:`UNKNOWN` where nothing is known."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """phi(x); differentiable by autograd almost everywhere."""
        ...

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        """G(m, r), computed; phi(m) where r = 0."""
        ...

    def error(self, m: Tensor, r: Tensor) -> Tensor:
        """What :meth:`mean` may be off, at most: rounding, quadrature and surrogates."""
        ...

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        """dG/dm to 1e-9 if the shape says ``slope_known``; else planes are chosen by it, and no bound rests on it."""
        ...

    def central(self, m: Tensor, r: Tensor) -> Central:
        """Central moments at (m, r); never looser than those of ``r * steepest`` times a Gaussian."""
        ...

    def variance(self, m: Tensor, r: Tensor) -> Interval:
        """The first of them alone."""
        ...


class Elementwise(Weightless):
    """What all records of activations share: a function of each value by itself."""

    __slots__ = ()

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same shape."""
        return shape

    def variance(self: Activation, m: Tensor, r: Tensor) -> Interval:
        """The variance at (m, r)."""
        return self.central(m, r).variance


def _least(r: Tensor, plain: float, smooth: float, power: int) -> Tensor:
    """``min(plain, smooth / r^power)``, rounded up; plain where r is below TINY."""
    if plain == 0 or smooth == 0:
        return torch.zeros_like(r)  # not 0 / 0 where the power of r underflows
    if smooth == math.inf:
        return torch.full_like(r, plain * (1 + 1e-14))
    found = smooth * (1 + 1e-14) / power_of(r.clamp_min(TINY), power)
    found = found if power > 1 else torch.where(r >= TINY, found, torch.inf)  # higher powers underflow, to infinity
    return found if plain == math.inf else found.clamp_max(plain * (1 + 1e-14))
