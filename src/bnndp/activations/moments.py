r"""From raw to central moments of an activation, with errors, and what the Lipschitz constant alone says of them.

With :math:`|\varphi'|\le L`, :math:`Z=\varphi(m+r\xi)` less its mean is below :math:`Lr\xi` in convex order: by the
Gaussian isoperimetric inequality the increasing rearrangement f of :math:`\varphi(m+r\,\cdot)` is Lr-Lipschitz too, and
:math:`Lr\xi=f(\xi)+(Lr\xi-f(\xi))` is a sum of two increasing functions of one variable, of which adding the second
only spreads the law. So :math:`\operatorname{Var}Z\le L^2r^2`, :math:`\mathbb E|Z-\mathbb EZ|^3\le2\sqrt{2/\pi}L^3r^3`,
:math:`\mathbb E(Z-\mathbb EZ)^4\le3L^4r^4`. A Z within a range of width b has a variance of at most :math:`b^2/4`
(Popoviciu), a third moment of at most :math:`b^3/(6\sqrt3)` and a fourth of at most :math:`b^4/12`: a central moment is
largest for laws on two points, :math:`p(1-p)(1-2p)b^3` and :math:`p(1-p)(1-3p(1-p))b^4`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.activations.activation import Central
from bnndp.geometry.bounds import Interval
from bnndp.maths.gaussian_rule import SMALLEST, analytic_raw, levels, norms_above, raw_error
from bnndp.maths.hinge import hinge_raw, root_of, tail_norms
from bnndp.maths.rectified import ratio
from bnndp.maths.rounding import ELEMENTARY, TINY, UNIT, power_of

_Rule = Callable[[Tensor, Tensor], Tensor]

_SLACK = 1 + 2.0**-46
_THIRD = 1.5957691216057308 * _SLACK  # 2 sqrt(2 / pi)
_ORDERS = (8, 16)
_NORMS = (105**0.125 * _SLACK, 2027025**0.0625 * _SLACK)  # ||xi||_8, ||xi||_16
_THIRD_RANGE = 0.09622504486493763 * _SLACK  # 1 / (6 sqrt 3)


def lipschitz_central(r: Tensor, steepest: float, width: float = math.inf) -> Central:
    """What holds for every activation with this Lipschitz constant and a range of this width."""
    scale = steepest * r * _SLACK + TINY  # (...)
    square = scale * scale
    variance = square.clamp_max(width**2 / 4) * _SLACK + TINY
    third = (_THIRD * (square * scale)).clamp_max(_THIRD_RANGE * width**3) * _SLACK + TINY
    fourth = (3 * (square * square)).clamp_max(width**4 / 12) * _SLACK + TINY
    zero = torch.zeros_like(r)

    def norms() -> tuple[Tensor, Tensor]:
        norm8, norm16 = ((norm * scale).clamp_max(width) * _SLACK for norm in _NORMS)
        return norm8, norm16

    return Central(Interval(zero, variance), Interval(-third, third), Interval(zero, fourth), norms)


def central_of(values: Sequence[Tensor], errors: Sequence[Tensor], r: Tensor, known: Central) -> Central:
    r"""Central moments of Z from those of :math:`(Z-c)/r` about 0, cut to what is known otherwise.

    Each is a polynomial of the raw ones; with its coefficients made positive it bounds the effect of their errors,
    :math:`|p(y)-p(y')|\le\bar p(|y|+e)-\bar p(|y|)` for :math:`|y_k-y'_k|\le e_k`. NaN never replaces what is known.
    """
    variance, third, fourth = _from_raw((_second, _third, _fourth), values, errors, r)
    return Central(
        Interval(_most(variance.lower, known.variance.lower), _least(variance.upper, known.variance.upper)),
        Interval(_most(third.lower, known.third.lower), _least(third.upper, known.third.upper)),
        Interval(_most(fourth.lower, known.fourth.lower), _least(fourth.upper, known.fourth.upper)),
        known.norms,
    )


def _from_raw(
    polynomials: Sequence[Callable[..., Tensor]], values: Sequence[Tensor], errors: Sequence[Tensor], r: Tensor
) -> list[Interval]:
    """Central moments from raw ones, up to as many."""
    size = [y.abs() for y in values]
    reach = [a + e for a, e in zip(size, errors, strict=True)]
    scale = r
    found = []
    for polynomial in polynomials:
        scale = scale * r
        most = polynomial(1, *reach)
        off = most - polynomial(1, *size) + 64 * UNIT * most
        value = polynomial(-1, *values)
        below, above = value - off, value + off
        slack = 16 * UNIT * scale  # of the products with powers of r
        found.append(Interval(below * scale - slack * below.abs() - TINY, above * scale + slack * above.abs() + TINY))
    return found


def perturbed(units: Central, off: Tensor, r: Tensor, known: Central) -> Central:
    r"""Central moments of :math:`r(A+B)` from those of A and :math:`\|B\|_4\le` ``off``, cut to what is known.

    With both centred, :math:`\|B\|_2\le` off and :math:`\|B\|_4\le2` off: norms add (Minkowski), and
    :math:`|\mathbb E(A+B)^3-\mathbb EA^3|\le3\|A\|_4^2\|B\|_2+3\|A\|_2\|B\|_4^2+\|B\|_4^3`.
    """
    low, high = units.variance.lower.clamp_min(0).sqrt(), units.variance.upper.clamp_min(0).sqrt()
    fourth, least = units.fourth.upper.sqrt().sqrt(), units.fourth.lower.clamp_min(0).sqrt().sqrt()
    change = (3 * fourth**2 * off + 12 * high * off**2 + 8 * off**3) * (1 + 1e-12)
    up, down = 1 + 1e-12, 1 - 1e-12
    s = r * r
    third = Interval((units.third.lower - change) * s * r, (units.third.upper + change) * s * r)
    slack = 1e-12 * third.magnitude + TINY
    return Central(
        Interval(
            _most((low * down - off).clamp_min(0) ** 2 * s * down - TINY, known.variance.lower),
            _least((high + off) ** 2 * s * up + TINY, known.variance.upper),
        ),
        Interval(_most(third.lower - slack, known.third.lower), _least(third.upper + slack, known.third.upper)),
        Interval(
            _most((least * down - 2 * off).clamp_min(0) ** 4 * s * s * down * down - TINY, known.fourth.lower),
            _least((fourth + 2 * off) ** 4 * s * s * up * up + TINY, known.fourth.upper),
        ),
        known.norms,
    )


@dataclass(frozen=True, slots=True)
class Analytic:
    """What the trapezoid rule needs to know of an activation."""

    difference: Callable[[Tensor, Tensor], Tensor]  # (m, delta) -> phi(m + delta) - phi(m), all digits for small delta
    strip: float  # analytic, and with the next bound, where the imaginary part is at most this
    widened: float  # at least |phi'| in that strip
    steepest: float  # at least |phi'| on the real line
    width: float = math.inf  # of the range of phi
    monotone: bool = False

    @property
    def coarsest(self) -> tuple[float, float]:
        """The largest r of the rule with the fewest nodes, and its step."""
        return levels(self.strip)[0]


def analytic_central(phi: Analytic, m: Tensor, r: Tensor, rounding: Tensor) -> Central:  # (...) each
    """Central moments by the trapezoid rule where r is small enough for it, else by the Lipschitz constant.

    ``rounding`` is the factor of ``gaussian_rule.raw_error``: how far the computed difference may be off.
    """
    flat_m, flat_r, flat_rounding = m.flatten(), r.flatten(), rounding.flatten()
    known = lipschitz_central(flat_r + 0 * flat_m, phi.steepest, phi.width)
    found = torch.stack(fields(known))  # (6, n)
    below, rules = 0.0, []
    for limit, step in levels(phi.strip):
        at = ((flat_r >= below) & (flat_r <= limit)).nonzero()[:, 0]
        below = math.nextafter(limit, math.inf)
        if not len(at):
            continue
        rules.append((at, step))
        values = analytic_raw(phi.difference, flat_m[at], flat_r[at], step)
        errors = [raw_error(k, phi.steepest, phi.widened, flat_rounding[at]) for k in range(1, 5)]
        found[:, at] = torch.stack(fields(central_of(values, errors, flat_r[at], record(found[:, at], known.norms))))

    def norms() -> tuple[Tensor, Tensor]:
        eight, sixteen = (norm.clone() for norm in known.norms())
        for at, step in rules:
            off = raw_error(1, phi.steepest, phi.widened, flat_rounding[at]) * 2  # of the mean, and of the values
            sums = norms_above(
                phi.difference, flat_m[at], flat_r[at], step, phi.steepest, phi.width, monotone=phi.monotone
            )
            for norm, value in zip((eight, sixteen), sums, strict=True):
                norm[at] = _least((value + off) * flat_r[at].clamp_min(SMALLEST) * _SLACK, norm[at])
        return eight.reshape(m.shape), sixteen.reshape(m.shape)

    return record(found.reshape(6, *m.shape), norms)


def split(m: Tensor, r: Tensor, limit: float, narrow: _Rule, wide: _Rule) -> Tensor:
    """``narrow(m, r)`` where r is at most the limit, ``wide(m, r)`` elsewhere; the rules take flat tensors."""
    flat_m, flat_r = m.flatten(), r.flatten()
    near = flat_r <= limit
    if bool(near.all()):
        return narrow(flat_m, flat_r).reshape(m.shape)
    found = torch.empty_like(flat_m)
    found[near] = narrow(flat_m[near], flat_r[near])
    found[~near] = wide(flat_m[~near], flat_r[~near])
    return found.reshape(m.shape)


def hinged_central(slope: float, m: Tensor, r: Tensor) -> Central:  # number, (...), (...)
    r"""Central moments of the function with one kink at zero, this slope on the left and one on the right.

    :math:`(\varphi(m+r\xi)-\varphi(m))/r` has, with :math:`t=|m|/r`, the law of :math:`a\xi+(1-a)(\xi-t)_+` for m < 0,
    and of :math:`-\xi+(1-a)(\xi-t)_+` for :math:`m\ge0` (write :math:`-\xi` for :math:`\xi`).
    """
    known = lipschitz_central(r + 0 * m, max(1.0, abs(slope)))
    found = central_of(*_hinged_raw(slope, m, r, 4), r, known)

    def norms() -> tuple[Tensor, Tensor]:
        norm8, norm16 = (torch.minimum(*both) for both in zip(known.norms(), _hinged_norms(slope, m, r), strict=True))
        return norm8, norm16

    return replace(found, norms=norms)


def hinged_variance(slope: float, m: Tensor, r: Tensor) -> Interval:  # number, (...), (...)
    """The variance of :func:`hinged_central`, without the other moments."""
    (found,) = _from_raw((_second,), *_hinged_raw(slope, m, r, 2), r)
    scale = max(1.0, abs(slope)) * r * _SLACK + TINY
    return Interval(_most(found.lower, torch.zeros_like(scale)), _least(found.upper, scale * scale * _SLACK + TINY))


def _hinged_raw(slope: float, m: Tensor, r: Tensor, count: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The raw moments of the law above up to order ``count``, and what they may be off."""
    bend = 1 - slope
    line = torch.where(m >= 0, -torch.ones_like(m), torch.full_like(m, slope))
    size = line.abs() + abs(bend)
    errors = [ELEMENTARY * power_of(size, k) for k in range(1, count + 1)]
    return hinge_raw(line, bend, ratio(m, r).abs(), count), errors


def _hinged_norms(slope: float, m: Tensor, r: Tensor) -> list[Tensor]:
    r"""The norms in L8 and L16 of the centred value for m < 0, at most; infinite elsewhere.

    :math:`\varphi(X)=aX+(1-a)X_+`, and the q-th moment of :math:`X_+-\mathbb EX_+` is at most
    :math:`\mathbb EX_+^q+(\mathbb EX_+)^q`.
    """
    mean, norms = tail_norms(_ORDERS, ratio(m, r).clamp_max(0).abs())
    found = []
    for q, gaussian, norm in zip(_ORDERS, _NORMS, norms, strict=True):
        centred = norm * root_of(1 + power_of(mean / norm.clamp_min(TINY), q), q)
        value = (abs(slope) * gaussian + abs(1 - slope) * centred) * r * (1 + 1e-12) + TINY
        found.append(torch.where(m < 0, value, torch.inf))
    return found


def fields(central: Central) -> list[Tensor]:
    """The six ends of the moments of a record."""
    parts = (central.variance, central.third, central.fourth)
    return [end for part in parts for end in (part.lower, part.upper)]


def record(found: Tensor, norms: Callable[[], tuple[Tensor, Tensor]]) -> Central:  # (6, ...)
    """The record of six ends and the norms."""
    variance, third, fourth = (Interval(found[i], found[i + 1]) for i in (0, 2, 4))
    return Central(variance, third, fourth, norms)


def _second(sign: int, y1: Tensor, y2: Tensor, *_: Tensor) -> Tensor:
    return y2 + sign * y1 * y1


def _third(sign: int, y1: Tensor, y2: Tensor, y3: Tensor, *_: Tensor) -> Tensor:
    return y3 + sign * 3 * y1 * y2 + 2 * y1 * y1 * y1


def _fourth(sign: int, y1: Tensor, y2: Tensor, y3: Tensor, y4: Tensor) -> Tensor:
    a = y1 * y1
    return y4 + sign * 4 * y1 * y3 + 6 * a * y2 + sign * 3 * a * a


def _least(value: Tensor, known: Tensor) -> Tensor:
    """The smaller of two upper bounds; NaN does not count."""
    return torch.where(value < known, value, known)


def _most(value: Tensor, known: Tensor) -> Tensor:
    """The larger of two lower bounds; NaN does not count."""
    return torch.where(value > known, value, known)
