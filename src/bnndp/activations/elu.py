r"""The exponential linear unit: x above zero, :math:`\alpha(e^x-1)` below."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.activations.activation import ANY_SLOPE, Central, Elementwise, Shape
from bnndp.activations.moments import central_of, fields, lipschitz_central, record
from bnndp.activations.settings import finite
from bnndp.maths.gaussian_rule import ABSOLUTE, SMALLEST, in_chunks
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.panels import NODES, SIXTEEN, panels
from bnndp.maths.rectified import expected_relu, ratio, relu_probability
from bnndp.maths.rounding import ELEMENTARY

_SQRT1_2 = math.sqrt(0.5)
_CUT = 8.8125  # standard deviations; beyond is less than 9e-15 of any moment, see gaussian_rule
_LIMIT = 2.0  # largest r for which central moments are computed


@dataclass(frozen=True, slots=True)
class Elu(Elementwise):
    r"""The activation ``x`` for ``x > 0`` and ``alpha * (exp(x) - 1)`` otherwise.

    Its mean is :math:`g(m,r)+\alpha(e^{m+r^2/2}\Phi(-\tfrac mr-r)-\Phi(-\tfrac mr))`.

    Args:
        alpha: The scale of the exponential, at least 0.

    Examples:
        >>> Elu()(torch.tensor([1.0, -1.0]))
        tensor([ 1.0000, -0.6321])
    """

    kind: ClassVar[str] = "elu"
    settings: ClassVar[tuple[str, ...]] = ("alpha",)

    alpha: float = 1.0

    def __post_init__(self) -> None:
        finite(self, "alpha", least=0.0)

    @property
    def shape(self) -> Shape:
        r"""The slope rises from 0 to alpha, by :math:`\alpha e^x`, and jumps to 1."""
        jump = 1 - self.alpha
        rise = max(1.0, self.alpha)  # alpha + (1 - alpha) where it jumps up
        fall = math.nextafter(-jump, math.inf) if jump < 0 else 0.0
        up = math.inf if jump > 0 else self.alpha
        return Shape((0.0, max(1.0, self.alpha)), rise, fall, up, math.inf if jump < 0 else 0.0)

    @property
    def square(self) -> Shape:
        r"""The second derivative :math:`\alpha^2(4e^{2x}-2e^x)` falls to :math:`-\alpha^2/4`, rises and jumps to 2."""
        square = self.alpha**2 * (1 + 1e-15)
        variation = 2.5 * square + abs(2 - 2 * square) + 4e-15 * (1 + square)
        return Shape(
            ANY_SLOPE, math.inf, math.inf, max(2.0, 2 * square), 0.25 * square, slope_known=False, variation=variation
        )

    def __call__(self, x: Tensor) -> Tensor:
        """The value where positive, alpha (exp(x) - 1) elsewhere."""
        return torch.where(x > 0, x, self.alpha * torch.expm1(x.clamp_max(0)))

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        r"""For :math:`w=m/r+r\ge0` the product is :math:`\tfrac12\operatorname{erfcx}(w/\sqrt2)e^{-m^2/2r^2}`."""
        u = ratio(m, r)
        w = u + r
        inside = 0.5 * torch.special.erfcx(_SQRT1_2 * w.clamp_min(0)) * torch.exp(-0.5 * u * u)
        exponent = (m + 0.5 * r * r).clamp_max(0)  # w < 0 means m < -r^2
        # The difference e^b Phi(-w) - Phi(-u) = expm1(b) Phi(-w) + (Phi(-w) - Phi(-u)) keeps its small values.
        outside = torch.expm1(exponent) * cdf(-w) + (cdf(-w) - cdf(-u))
        below = torch.where(w < 0, outside, inside - cdf(-u))
        return torch.where(r > 0, expected_relu(m, r) + self.alpha * below.clamp(-1, 0), self(m) + 0 * r)

    def error(self, m: Tensor, r: Tensor) -> Tensor:
        """Rounding."""
        return ELEMENTARY * (self.alpha + m.abs() + r)

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        r""":math:`\Phi(m/r)+\alpha\,e^{m+r^2/2}\Phi(-w)`."""
        u = ratio(m, r)
        w = u + r
        inside = 0.5 * torch.special.erfcx(_SQRT1_2 * w.clamp_min(0)) * torch.exp(-0.5 * u * u)
        outside = torch.exp((m + 0.5 * r * r).clamp_max(0)) * cdf(-w)
        # Not from the mean: for a large r nothing of this term is left in it.
        return relu_probability(m, r) + self.alpha * torch.where(w < 0, outside, inside)

    def central(self, m: Tensor, r: Tensor) -> Central:
        """By quadrature on both sides of the kink up to r = 2."""
        steepest = max(1.0, self.alpha)
        flat_m, flat_r = m.flatten(), r.flatten()
        known = lipschitz_central(flat_r + 0 * flat_m, steepest)
        found = torch.stack(fields(known))  # (6, n)
        at = (flat_r <= _LIMIT).nonzero()[:, 0]
        if len(at):
            m_at, r_at = flat_m[at], flat_r[at]
            values = in_chunks(self._raw, m_at, r_at, NODES).unbind(0)
            widest = 20 * (steepest * torch.exp(1.25 * r_at) + 1)
            errors = [
                2 * ELEMENTARY * ABSOLUTE[k - 1] * steepest**k + 3.4 * _CUT * SIXTEEN * widest**k for k in range(1, 5)
            ]
            found[:, at] = torch.stack(fields(central_of(values, errors, r_at, record(found[:, at], known.norms))))
        norm8, norm16 = (norm.reshape(m.shape) for norm in known.norms())
        return record(found.reshape(6, *m.shape), lambda: (norm8, norm16))

    def _raw(self, m: Tensor, r: Tensor) -> Tensor:  # (n,) each
        r"""Moments of :math:`\nu=(\varphi(m+r\xi)-\varphi(m))/r`: (4, n), for r <= 2.

        Panels have half lengths of at most 17.625 / 16, so the ellipses of ``panels`` reach 1.24 beyond an interval
        and 2.07 to its sides: the density is at most 3.4 there, :math:`|e^{m+rz}|\le e^{1.24r}`, :math:`|z|\le10.3`,
        and the part of m in nu at most 8.9 where its side is not empty: :math:`|\nu|\le20(\max(1,\alpha)e^{1.24r}+1)`.
        """
        # In units of a tiny r only the place of the kink matters: it is kept where r is replaced.
        m = torch.where((r < SMALLEST) & (m.abs() < 1e3 * SMALLEST), ratio(m, r) * SMALLEST, m)
        r = r.clamp_min(SMALLEST)
        kink = (-ratio(m, r)).clamp(-_CUT, _CUT)
        cut = torch.full_like(kink, _CUT)
        m, r = m[:, None], r[:, None]
        total = m.new_zeros(4, len(kink))
        for lower, upper, left in ((-cut, kink, True), (kink, cut, False)):
            xi, weight = panels(lower, upper)  # (n, NODES) each
            if left:
                plain = self.alpha * torch.exp(m.clamp_max(0)) * torch.expm1(r * xi)
                crossed = self.alpha * torch.expm1((m + r * xi).clamp_max(0)) - m
                difference = torch.where(m < 0, plain, crossed)
            else:
                difference = torch.where(m < 0, m + r * xi - self.alpha * torch.expm1(m.clamp_max(0)), r * xi)
            bound = 9 * max(1.0, self.alpha)  # |nu| <= steepest |xi|; beyond it only where the side is empty
            nu = (difference / r).clamp(-bound, bound)
            power = weight * pdf(xi)
            for k in range(4):
                power = power * nu
                total[k] += power.sum(-1)
        return total
