r"""Lines above the mean of a logistic function of a margin, as functions of an affine bound of the margin's mean.

A plane :math:`\pi_i(x)\le\mathbb ED_i(x)` is known, and :math:`\mathbb E\sigma(-D_i)` is at most a decreasing function
of it; so a line of slope :math:`-\beta\le0` above that function on the range of :math:`\pi_i` gives
:math:`\mathbb E\sigma(-D_i(x))\le\alpha-\beta\,\pi_i(x)`, which can be added over the members of a mixture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.activations import Sigmoid
from bnndp.engine.margins import LARGEST
from bnndp.geometry.bounds import Affine
from bnndp.maths.logistic import HALF_CURVATURE, logistic_tail
from bnndp.maths.rounding import ELEMENTARY, TINY

SHARES = (0.05, 0.5)
"""Where on the range of a plane its line is chosen to be lowest; every share gives a bound, the better one counts."""

_CALM = 0.05  # up to this variance the parabolas that touch are as good as any
_STEPS = 8  # of the grid for lines above a bound that is neither convex nor concave


@dataclass(frozen=True, slots=True)
class MarginPlanes:
    """What is known of the margins D of some reference classes of one member, for every x of each box.

    Of several members at once the batch holds all boxes of the first, then all of the second, and so on. All but the
    planes are (batch, references, classes). The planes have finite coefficients; where nothing is known they are zero,
    and ``least`` is minus infinity.
    """

    plane: Affine  # (batch, references * classes): functions of x below E D
    least: Tensor  # E D is at least this; not below the least value of the plane
    middle: Tensor  # value of the plane in the middle of the box, roughly
    most: Tensor  # the plane is at most this
    size: Tensor  # |matrix| |x| + |offset| of the plane is at most this
    variance: Tensor  # Var D is at most this
    tails: Tensor  # E sigma(-D) is at most this on the whole box
    random: bool  # whether D is random at all
    gaussian: bool  # whether D is Gaussian


@dataclass(frozen=True, slots=True)
class Lines:
    """``E sigma(-D_i(x)) <= intercept - slope plane_i(x)`` with slopes >= 0: (batch, references, classes) each."""

    intercept: Tensor
    slope: Tensor


def tail_lines(known: MarginPlanes) -> tuple[Lines, ...]:
    r"""Lines that are proved to lie above :math:`\mathbb E\sigma(-D)`: for each of SHARES the lowest at that share.

    D is any random variable whose mean is at least :math:`d\in[a,b]`, of at most this variance V. The lines are

    * the constant ``tails``, which holds for all means from a on;
    * lines above :math:`\sigma(-d)`, raised by :math:`\tfrac{\sqrt3}{36}V` (the parabola that touches at d);
    * for Gaussian D and :math:`a\ge0` the chord: the mean is convex there (``questions/softmax.py``);
    * else on a grid :math:`g_i`: with values :math:`T_i\ge\mathbb E\sigma(-D)` for means from :math:`g_i` on, a falling
      line that is at least :math:`T_i` at :math:`g_{i+1}` is above on the whole step.
    """
    a, b, fine = _ends(known)
    spread = torch.where(fine, known.variance, 0.0) if known.random else torch.zeros_like(a)
    constant = known.tails.nan_to_num(1.0).clamp_max(1.0)
    found = [(top + HALF_CURVATURE * spread, slope) for top, slope in _above_logistic(a, b)]
    if known.gaussian and known.random:
        found.append(_gaussian_chord(a, b, spread))
    elif known.random and bool((spread > _CALM).any()):
        found.append(_grid_line(a, b, spread))
    size = torch.maximum(a.abs(), b.abs())
    safe = [(top + ELEMENTARY * (1 + tilt * size), tilt) for top, tilt in found]
    flat = Lines(torch.where(fine, constant, 1.0), torch.zeros_like(a))
    return tuple(_lowest(flat, safe, a + share * (b - a), fine) for share in SHARES)


def _lowest(best: Lines, others: list[tuple[Tensor, Tensor]], at: Tensor, fine: Tensor) -> Lines:
    """The line with the least value at ``at``; NaN never."""
    for top, tilt in others:
        take = fine & (top - tilt * at < best.intercept - best.slope * at)
        best = Lines(torch.where(take, top, best.intercept), torch.where(take, tilt, best.slope))
    return best


def _ends(known: MarginPlanes) -> tuple[Tensor, Tensor, Tensor]:
    """Range [a, b] of the larger of plane and least mean, and where it is known at all; zero elsewhere."""
    fine = known.least.isfinite() & known.most.isfinite() & (known.variance.isfinite() | (not known.random))
    a = torch.where(fine, known.least, 0.0)
    return a, torch.maximum(torch.where(fine, known.most, 0.0), a), fine


def _above_logistic(a: Tensor, b: Tensor) -> list[tuple[Tensor, Tensor]]:
    r"""Lines :math:`\alpha-\beta d\ge\sigma(-d)` on [a, b], with the slopes of the chord, of the middle and of a.

    :math:`h(d)=\sigma(-d)+\beta d` has its one local maximum where :math:`\sigma(d)\sigma(-d)=\beta` and d < 0, so its
    largest value is there, if that lies between, or at an end. An error of d there counts by its square.
    """
    middle = 0.5 * a + 0.5 * b
    chord = (torch.sigmoid(-a) - torch.sigmoid(-b)) / (b - a).clamp_min(TINY)
    found = []
    for slope in (torch.minimum(chord, _density(a)), chord, _density(middle)):
        beta = slope.nan_to_num(0.0).clamp(0.0, 0.25)
        p = 2 * beta / (1 + (1 - 4 * beta).clamp_min(0).sqrt())  # sigma(d) at the local maximum
        top = (p / (1 - p)).clamp_min(TINY).log().clamp(a, b)
        value = torch.stack([torch.sigmoid(-d) + beta * d for d in (a, b, top)]).amax(0)
        found.append((value, beta))
    return found


def _density(d: Tensor) -> Tensor:
    return torch.sigmoid(d) * torch.sigmoid(-d)


def _gaussian_chord(a: Tensor, b: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """The chord of E sigma(-d - sqrt(V) xi), convex for d >= 0; infinite where a < 0 (the variance is not exact)."""
    phi, root = Sigmoid(), variance.sqrt()
    ends = [phi.mean(-d, root) + phi.error(-d, root) for d in (a, b)]
    slope = ((ends[0] - ends[1]) / (b - a).clamp_min(TINY)).clamp(0.0, 0.25)
    top = torch.maximum(ends[0] + slope * a, ends[1] + slope * b)
    return torch.where((a >= 0) & (variance <= LARGEST), top, torch.inf), slope


def _grid_line(a: Tensor, b: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    share = torch.arange(_STEPS + 1, dtype=a.dtype, device=a.device) / _STEPS
    points = (a[..., None] + share * (b - a)[..., None]).clamp(a[..., None], b[..., None])  # (..., steps + 1)
    points[..., -1] = b
    tails = logistic_tail(points, variance[..., None].expand_as(points))
    slope = ((tails[..., 0] - tails[..., -1]) / (b - a).clamp_min(TINY)).clamp(0.0, 1.0)
    top = (tails[..., :-1] + slope[..., None] * points[..., 1:]).amax(-1)
    return top, slope
