r"""Raw moments of an analytic function of a Gaussian by the trapezoid rule, with the error of the rule.

For :math:`\nu(\xi)=(\varphi(m+r\xi)-\varphi(m))/r` and a step h the rule is :math:`h\sum_jw(jh)\nu(jh)^k`, w the
standard normal density. If the integrand is analytic for :math:`|\operatorname{Im}\xi|<d` and the integral of its size
over each line there is at most M, the rule is off by at most :math:`2M/(e^{2\pi d/h}-1)` (Trefethen and Weideman, The
exponentially convergent trapezoidal rule, 2014, theorem 5.1). With :math:`\kappa\ge|\varphi'(z)|` for
:math:`|\operatorname{Im}z|\le y` and :math:`d=y/r`,

.. math:: |\nu(z)|\le\kappa|z|,\qquad |w(x+iy)|=w(x)e^{y^2/2},\qquad
          M\le\kappa^ke^{d^2/2}\,\mathbb E(|\xi|+d)^k .

Steps are taken with :math:`2\pi d/h\ge12.8\,\pi` and :math:`d\le1.2`. Units of r keep all digits for small r.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bnndp.maths.normal import INV_SQRT_2PI, cdf
from bnndp.maths.rounding import ELEMENTARY, power_of

_STEPS = (3 / 16, 3 / 32, 3 / 64)  # exact in binary; a wider law takes the next
_STRIP = 1.2  # half width of the strip of xi for the first step, half of it for the next
_CUT = 8.8125  # the last node; a multiple of all steps
_TEMPORARY = 1 << 17  # numbers in one temporary tensor: they stay in the cache of a core (32 times as many on a GPU)

SMALLEST = 1e-100
"""Smaller standard deviations are replaced by this one: the moments in units of r differ by less than any rounding."""

STRIP = 1.5e-17
"""At least ``2 exp(0.72) / (exp(12.8 pi) - 1)``: error of the rule in units of ``kappa^k E(|xi| + 1.2)^k``."""

WIDENED = (2.0, 4.36, 10.4, 26.9)
r"""Upper bounds of :math:`\mathbb E(|\xi|+1.2)^k`, k = 1 to 4."""

_CHANCE, _BEYOND = 1.3e-18, (2e-10, 1e-2)  # beyond the cut: of it, and of E (1.1 |xi|)^q for q = 8, 16, at most

ABSOLUTE = (0.7979, 1.0, 1.5958, 3.0)
r"""Upper bounds of :math:`\mathbb E|\xi|^k`, k = 1 to 4."""


def levels(strip: float) -> tuple[tuple[float, float], ...]:
    """Pairs (largest r, step) for functions whose strip is ``strip`` wide on each side of the real line."""
    return tuple((strip / _STRIP * _STEPS[0] / step, step) for step in _STEPS)


def nodes(step: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the rule, up to the cut: (n,) each."""
    count = round(_CUT / step)
    xi = step * torch.arange(-count, count + 1, dtype=like.dtype, device=like.device)
    return xi, step * INV_SQRT_2PI * torch.exp(-0.5 * xi * xi)


def analytic_raw(
    difference: Callable[[Tensor, Tensor], Tensor],  # (m, delta) -> phi(m + delta) - phi(m)
    m: Tensor,  # (n,)
    r: Tensor,  # (n,)
    step: float,
    orders: int = 4,
) -> tuple[Tensor, ...]:
    """The rule for the first moments of nu, each (n,)."""
    xi, weight = nodes(step, m)

    def sums(m: Tensor, r: Tensor) -> Tensor:
        r = r.clamp_min(SMALLEST)[:, None]  # (chunk, 1)
        nu = difference(m[:, None], r * xi) / r  # (chunk, nodes)
        power, found = nu, [nu @ weight]
        for _ in range(1, orders):
            power = power * nu
            found.append(power @ weight)
        return torch.stack(found)

    return tuple(in_chunks(sums, m, r, len(xi)).unbind(0))


def norms_above(  # noqa: PLR0913 (what is known of one function)
    difference: Callable[[Tensor, Tensor], Tensor],  # (m, delta) -> phi(m + delta) - phi(m)
    m: Tensor,  # (n,)
    r: Tensor,  # (n,)
    step: float,
    steepest: float,
    width: float,
    *,
    monotone: bool,
) -> tuple[Tensor, Tensor]:
    r"""Norms in L8 and L16 of :math:`\nu-c` by upper sums, c the mean of :math:`\nu` by the rule: at most, (n,) each.

    With L the Lipschitz constant of :math:`\nu`, between two nodes at a distance h :math:`|\nu-c|\le\tfrac12(|\nu_j-c|
    +|\nu_{j+1}-c|+Lh)`, and for a monotone function no more than at one of them. Beyond the last node it is at most
    :math:`1.1L|\xi|`, as :math:`|c|\le0.8L`, and at most the width of the range over r; ``_BEYOND`` are the means of
    :math:`(1.1|\xi|)^q` there, ``_CHANCE`` its probability.
    """
    xi, weight = nodes(step, m)
    cells = torch.diff(cdf(xi)) + 2.0**-51  # (nodes - 1,)

    def sums(m: Tensor, r: Tensor) -> Tensor:
        r = r.clamp_min(SMALLEST)[:, None]
        nu = difference(m[:, None], r * xi) / r  # (chunk, nodes)
        away = (nu - (nu @ weight)[:, None]).abs()
        most = 0.5 * (away[:, 1:] + away[:, :-1] + steepest * step)
        eighth = power_of(torch.minimum(most, torch.maximum(away[:, 1:], away[:, :-1])) if monotone else most, 8)
        return torch.stack([eighth @ cells, (eighth * eighth) @ cells])

    most = width / r.clamp_min(SMALLEST)
    eight, sixteen = (
        value + torch.minimum(_CHANCE * most**q, torch.full_like(most, beyond * steepest**q))
        for value, q, beyond in zip(in_chunks(sums, m, r, len(xi)), (8, 16), _BEYOND, strict=True)
    )
    return eight.sqrt().sqrt().sqrt() * (1 + 1e-12), sixteen.sqrt().sqrt().sqrt().sqrt() * (1 + 1e-12)


def gaussian_mean(function: Callable[[Tensor], Tensor], m: Tensor, r: Tensor) -> Tensor:  # (n,) each
    """E function(m + r xi), for slopes: to 1e-9 for those that are analytic in the strip, up to the coarsest r."""
    xi, weight = nodes(2 * _STEPS[0], m)
    return in_chunks(lambda m, r: function(m[:, None] + r[:, None] * xi) @ weight, m, r, len(xi))


def raw_error(k: int, steepest: float, widened: float, rounding: Tensor) -> Tensor:
    r"""Error of the k-th moment of :func:`analytic_raw`: of the rule, of its cut, of rounding.

    ``steepest`` bounds :math:`|\varphi'|` on the line and ``widened`` in the strip; the difference is computed within
    ``8 * UNIT * rounding * steepest * |delta|``. Beyond the cut is less than 9e-15 (k = 4), and the sum has at most 377
    terms, so ``ELEMENTARY`` (512 units) covers both: 377 + 4 * 8 + 80.
    """
    exact = STRIP * widened**k * WIDENED[k - 1]
    return ELEMENTARY * rounding * (steepest**k * ABSOLUTE[k - 1]) + exact


def in_chunks(function: Callable[[Tensor, Tensor], Tensor], m: Tensor, r: Tensor, width: int) -> Tensor:
    """Apply a function of flat tensors, (n,) to (..., n), so that ``n * width`` stays below the size of a temporary."""
    size, n = max(1, (_TEMPORARY << 5 if m.is_cuda else _TEMPORARY) // width), m.numel()
    first = function(m[:size], r[:size])
    if n <= size:
        return first
    # One tensor for all results: small ones kept between large temporaries would fragment the heap.
    found = first.new_empty(*first.shape[:-1], n)
    found[..., :size] = first
    for start in range(size, n, size):
        found[..., start : start + size] = function(m[start : start + size], r[start : start + size])
    return found
