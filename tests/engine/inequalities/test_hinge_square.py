"""E[X_+^2 | y] less its line at the middle, on hostile laws of few outcomes (m, s)."""

from __future__ import annotations

import math

import torch
from flint import arb
from tests.engine.inequalities.test_given import norm, pre_of, row
from torch import Tensor

from bnndp.engine.inequalities import hinge_square as subject
from bnndp.engine.inequalities.hinge_square import hinge_square
from bnndp.maths.normal import cdf
from bnndp.maths.rectified import moments


def _laws(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Chances, means and variances (1, 3): rare outcomes, kinks near and far, variances that jump or vanish."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(count: int) -> Tensor:
        return torch.rand(1, count, generator=generator, dtype=torch.float64)

    chance = 10 ** (-8 * uniform(3) * (uniform(1) < 0.7))
    m = 12 * uniform(1) - 6 + 10 ** (3 * uniform(1) - 2) * (2 * uniform(3) - 1) * (uniform(1) < 0.8)
    s = 10 ** (2 * uniform(1) - 1) * (1 + 10 ** (3 * uniform(1) - 2) * uniform(3)) * (uniform(3) > 0.15)
    return chance / chance.sum(), m, s


def test_remainders_hold() -> None:
    sharp = math.inf
    for seed in range(600):
        chance, m, s = _laws(seed)
        x = pre_of(chance, m, s, half=0.3 * (seed % 3 == 2))
        middle, spread = 0.5 * (x.mean.lower + x.mean.upper), x.spread.lower
        if float(spread) == 0:
            continue
        at, found = moments(middle, spread.sqrt()), hinge_square(x)
        in_s = cdf(middle / spread.sqrt())
        assert float(in_s) <= float(found.slope) <= float(in_s) + 1e-9
        rest = moments(m, s.sqrt()).second - at.second - 2 * at.mean * (m - middle) - in_s * (s - spread)
        for q, claim in zip((2, 4, 8), found.remainders, strict=True):
            truth = float(norm(chance, rest, q))
            assert truth <= float(claim) * (1 + 1e-9) + 1e-12, (seed, q)
            if truth > 1e-9:
                sharp = min(sharp, float(claim) / truth)
    assert sharp < 1.5


def test_far_from_the_kink_nothing_is_left_but_for_tails() -> None:
    """On the left F is nearly zero; a global second derivative would leave the square of the change."""
    chance, s = row(0.5, 0.5), row(0.9, 1.1)
    far, near = (float(hinge_square(pre_of(chance, row(at - 0.05, at + 0.05), s)).remainders[1]) for at in (-6.0, 0.0))
    assert far < 0.05 * near


def test_the_constant_of_large_and_small_variances() -> None:
    """sup |v^3 f(v)| / 4 is at the root of three."""
    v = arb(3).sqrt()
    largest = v**3 * (-v * v / 2).exp() / (2 * arb.pi()).sqrt() / 4
    assert largest < subject._FAR < 1.001 * float(largest)
