r"""How the central moments of a smooth function of a Gaussian vary with its mean and variance.

:math:`z=\varphi(X)`, X Gaussian of mean m and variance s given a random input y, and :math:`\mu_n` is the n-th central
moment of z given y. With :math:`a=\varphi-G` and :math:`a_j=\varphi^{(j)}-G_j`, whose derivatives in m are
:math:`a_1` and :math:`a_{j+1}`, the derivatives of :math:`\mu_n=\mathbb Ea^n` in m are means of sums of products of n
of them,

.. math:: \mu_n'=n\,\mathbb Ea^{n-1}a_1,\qquad\mu_n''=\mathbb E\bigl(n(n-1)a^{n-2}a_1^2+n\,a^{n-1}a_2\bigr),\ \ldots

and in s, by the heat equation :math:`\partial_s\mathbb Ef(X)=\tfrac12\mathbb Ef''(X)`,

.. math:: \partial_s\mu_n=\tfrac12\mu_n''+nG_1\mu_{n-1}'+\tfrac12n(n-1)G_1^2\mu_{n-2} .

Let :math:`c_j=\sup|\varphi^{(j)}|`. :math:`a_j` is below :math:`c_{j+1}\sqrt s\,\xi` in convex order (docs/theory.md,
section 4.1), and at most :math:`2c_j` in size for j >= 1: that bounds its norms in :math:`L^n`, and by Hoelder all of
these means. So, with :math:`\tau=m-m_0` and :math:`\delta=s-s_0`, first in m at s_0 and then in s,

.. math:: |\mu_n-\mu_n(m_0,s_0)|\le|\mu_n'\tau|+|\partial_s\mu_n\delta|+\tfrac12|\mu_n''|\tau^2+\tfrac16T|\tau|^3
          +D|\tau\delta|+\tfrac12E\delta^2

with the derivatives at (m_0, s_0), T and D the largest sizes of :math:`\mu_n'''` and :math:`\partial_s\mu_n'` at s_0,
and E that of :math:`\partial_s^2\mu_n` for :math:`s\le2s_0`. Beyond, both moments are at most :math:`\mathbb
E|\xi|^n(c_1\sqrt s)^n` and :math:`s\le2\delta`, so all of it is less than :math:`\delta^2` times what E is raised to.
Derivatives in m at m_0 are central differences with a step h, off by :math:`\tfrac16h^2T` and :math:`\tfrac13hT`. In
the mean over y the linear terms are those of the means of :math:`\tau` and :math:`\delta`. Norms of products over y:
:math:`\lVert\tau^3\rVert_q\le\lVert\tau\rVert_{2q}\lVert\tau\rVert_{4q}^2`, and so on (Hoelder).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.activations.activation import Activation, Central, Shape
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import TINY, UP

__all__ = ["SmoothDrift", "smooth_drift"]

_SLOPE = 1e-9  # error granted to a slope
_STEP = 0.02  # of the differences, times 0.2 and the root of s
_ABSOLUTE = (1.0, 0.7979, 1.0, 1.5958, 3.0)  # E |xi|^n, rounded up
_WHOLE = (1.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class SmoothDrift:
    """How far the moments of order 2, 3 and 4 are off those at the middle: in the mean, in L2 and in L4 over y."""

    mean: tuple[Tensor, Tensor, Tensor]  # (batch, n) each; so below
    deviation: tuple[Tensor, Tensor, Tensor]
    norm4: tuple[Tensor, Tensor, Tensor]


def smooth_drift(phi: Activation, x: PreActivation, at: Central) -> SmoothDrift | None:
    """Around the moments ``at`` the middle of the box; None unless five derivatives and the slope are known."""
    shape = phi.shape
    if not (shape.slope_known and math.isfinite(shape.bend_up + shape.bend_down + shape.third + shape.fifth)):
        return None
    m = (0.5 * x.mean.lower + 0.5 * x.mean.upper).clamp(x.mean.lower, x.mean.upper)
    s = (0.5 * (x.spread.lower + x.spread.upper)).clamp(x.spread.lower, x.spread.upper)
    root = s.sqrt()
    half, wide = (0.5 * (end.upper - end.lower) * UP for end in (x.mean, x.spread))
    tau = [half, *(half + norm for norm in (x.mean_variance.sqrt(), *x.norms.unbind(-1)))]  # of order 1, 2, 4, 8, 16
    delta = [wide, *(wide + norm for norm in (x.spread_deviation, *x.spread_deltas.unbind(-1)))]  # 1, 2, 4, 8
    found = [taylor.over(tau, delta) for taylor in _taylors(phi, m, root, at)]
    mean, deviation, norm4 = zip(*found, strict=True)
    return SmoothDrift(mean, deviation, norm4)


def _taylors(phi: Activation, m: Tensor, root: Tensor, at: Central) -> list[_Taylor]:
    """Of the moments of order 2, 3 and 4."""
    near, wider = _Sizes(phi.shape, root), _Sizes(phi.shape, math.sqrt(2) * root * UP)
    h, steep = _STEP * (0.2 + root), phi.shape.steepest
    slope, least = phi.slope(m, root).abs() + _SLOPE, root.clamp_min(TINY)
    sides = phi.central(m - h, root), phi.central(m + h, root)
    zero = torch.zeros_like(root)
    values, firsts, found = [torch.ones_like(root), zero], [zero, zero], []
    for n, name in ((2, "variance"), (3, "third"), (4, "fourth")):
        three = [getattr(moments, name) for moments in (at, *sides)]
        first, second = _differences(three, h, near.in_m(n)[3])
        in_s = 0.5 * second + n * slope * firsts[n - 1] + 0.5 * n * (n - 1) * slope.square() * values[n - 2]
        far = 2 * _ABSOLUTE[n] * (math.sqrt(2) * steep) ** n * least ** (n - 4) + in_s / least.square()
        more = torch.maximum(wider.in_s_twice(n), 2 * far)
        found.append(_Taylor(first, in_s, second, near.in_m(n)[3], near.mixed(n), more))
        values.append(three[0].magnitude)
        firsts.append(first)
    return found


def _differences(values: list[Interval], h: Tensor, third: Tensor) -> tuple[Tensor, Tensor]:
    """Sizes of the first and second derivative from values in the middle, on the left and on the right; at most."""
    middle, left, right = (0.5 * (value.lower + value.upper) for value in values)
    off = torch.stack([0.5 * (value.upper - value.lower) + 1e-15 * value.magnitude for value in values]).amax(0) * UP
    first = 0.5 * (right - left).abs() / h + off / h + h.square() / 6 * third
    second = (right - 2 * middle + left).abs() / h.square() + 4 * off / h.square() + h / 3 * third
    return first * UP, second * UP


@dataclass(frozen=True, slots=True)
class _Taylor:
    """The coefficients of the polynomial: (batch, n) each."""

    in_m: Tensor
    in_s: Tensor
    second: Tensor
    third: Tensor
    mixed: Tensor
    in_s2: Tensor

    def over(self, tau: list[Tensor], delta: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Its norms of order 1, 2 and 4 over y; ``tau`` and ``delta`` are those of order 1 (of the mean), 2, 4, ..."""
        found = []
        for i in range(3):
            linear = self.in_m * tau[i] + self.in_s * delta[i] + 0.5 * self.second * tau[i + 1].square()
            more = self.third * tau[i + 1] * tau[i + 2].square() / 6 + self.mixed * tau[i + 1] * delta[i + 1]
            found.append((linear + more + 0.5 * self.in_s2 * delta[i + 1].square()) * UP)
        return found[0], found[1], found[2]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bounds of derivatives of moments for every m and every standard deviation up to r."""

    shape: Shape
    r: Tensor

    @property
    def _largest(self) -> tuple[float, ...]:
        """c_0 (unknown) to c_5."""
        shape = self.shape
        bend = max(shape.bend_up, shape.bend_down)
        return (math.inf, shape.steepest, bend, shape.third, shape.fourth, shape.fifth)

    def in_m(self, n: int) -> list[Tensor]:
        """The n-th moment and its derivatives in m, up to the fourth."""
        if n < 2:
            return [torch.full_like(self.r, by if n == 0 else 0.0) for by in _WHOLE]
        c, norm = self._largest, _ABSOLUTE[n] ** (1 / n) * UP
        a, a1, a2, a3, a4 = ((norm * c[j + 1] * self.r).clamp_max(2 * c[j]) for j in range(5))

        def times(count: int) -> Tensor:  # n (n - 1) ... a^(n - count)
            return math.perm(n, count) * a ** (n - count) if count <= n else torch.zeros_like(a)

        return [
            a**n,
            times(1) * a1,
            times(2) * a1**2 + times(1) * a2,
            times(3) * a1**3 + 3 * times(2) * a1 * a2 + times(1) * a3,
            times(4) * a1**4 + 6 * times(3) * a1**2 * a2 + times(2) * (3 * a2**2 + 4 * a1 * a3) + times(1) * a4,
        ]

    def in_s(self, n: int) -> Tensor:
        """Its derivative in s."""
        c1, (_, first, *_), below = self._largest[1], self.in_m(n - 1), self.in_m(n - 2)
        return 0.5 * self.in_m(n)[2] + n * c1 * first + 0.5 * n * (n - 1) * c1**2 * below[0]

    def mixed(self, n: int) -> Tensor:
        """That in m and s."""
        if n < 2:
            return torch.zeros_like(self.r)
        _, c1, c2, *_ = self._largest
        one, two = self.in_m(n - 1), self.in_m(n - 2)
        found = 0.5 * self.in_m(n)[3] + n * (c2 * one[1] + c1 * one[2])
        return (found + 0.5 * n * (n - 1) * (2 * c1 * c2 * two[0] + c1**2 * two[1])) * UP

    def in_s_twice(self, n: int) -> Tensor:
        """The second one in s: half the second derivative in m of the first one, and what its factors change in s."""
        _, c1, c2, c3, *_ = self._largest
        one, two, pairs = self.in_m(n - 1), self.in_m(n - 2), 0.5 * n * (n - 1)
        bent = 0.5 * self.in_m(n)[4] + n * (c3 * one[1] + 2 * c2 * one[2] + c1 * one[3])
        bent = bent + pairs * (2 * (c2**2 + c1 * c3) * two[0] + 4 * c1 * c2 * two[1] + c1**2 * two[2])
        moved = n * (0.5 * c3 * one[1] + c1 * self.mixed(n - 1))
        lowest = self.in_s(n - 2) if n > 3 else torch.zeros_like(self.r)
        return (0.5 * bent + moved + pairs * (c1 * c3 * two[0] + c1**2 * lowest)) * UP
