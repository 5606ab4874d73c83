"""Constants of remainders of a line: what centring costs, and the norms of a smooth function of a Gaussian variable."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bnndp.engine.inequalities.remainders import _DOUBLE
from bnndp.engine.moments.signal import CENTRED, GAUSSIAN, POWERS

_TURN = math.sqrt(2 / math.pi) * (1 - math.sqrt(0.5))  # E |xi| |r - r_0| for r = 1 and r_0^2 = 1/2


def _density(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _largest(x: Tensor) -> Tensor:
    r"""H(x), the largest :math:`|f(x)-\mathbb Ef(\xi)|` of all f with :math:`|f''|\le1` and :math:`\mathbb Ef'(\xi)=0`.

    The integral over t of the size of :math:`(x-t)_+-\mathbb E(\xi-t)_+-x\mathbb P(\xi>t)`, by the rule of midpoints;
    both parts of the kernel are written so that they vanish at the far end of their side.
    """
    step = 2e-3
    t = torch.arange(-12, 12, step, dtype=torch.float64) + 0.5 * step
    far = -t.abs()
    beyond = far * torch.special.ndtr(far) + _density(far)  # E (xi - |t|)_+
    chance = torch.special.ndtr(far)
    at = x[:, None]
    above = (at - t).clamp_min(0) - beyond - at * chance
    below = (t - at).clamp_min(0) - beyond + at * chance
    return torch.where(t > 0, above, below).abs().sum(-1) * step


@pytest.mark.parametrize(("q", "constant"), list(zip(POWERS, CENTRED, strict=True)))
def test_centring_costs_no_more_than_for_laws_on_two_points(q: int, constant: float) -> None:
    p = torch.linspace(1e-6, 0.5, 200_001, dtype=torch.float64)
    root = 1 / (q - 1)
    power = (p ** (q - 1) + (1 - p) ** (q - 1)) * (p**root + (1 - p) ** root) ** (q - 1)  # Mori 2009
    largest = float(power.max()) ** (1 / q)
    assert largest < constant < largest + 1e-3


@pytest.mark.parametrize(("k", "q"), list(enumerate(POWERS)))
def test_norms_of_smooth_functions_of_gaussians(k: int, q: int) -> None:
    """docs/theory.md, section 4.10: what a line leaves of a function of curvature one, at r = 1 and without a width."""
    step = 1e-2
    x = torch.arange(-11, 11, step, dtype=torch.float64) + 0.5 * step
    norm = float((_density(x) * _largest(x) ** q).sum() * step) ** (1 / q)
    parabola = float((_density(x) * (0.5 * (x * x - 1)).abs() ** q).sum() * step) ** (1 / q)
    assert parabola < norm  # one of these functions
    assert norm + _TURN * GAUSSIAN[k] < 0.5 * CENTRED[k] * _DOUBLE[k] ** 2
