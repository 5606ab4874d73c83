"""The variance of quadratic forms of independent sources, against sources on two points: every mean is a finite sum."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from bnndp.engine.dense.conditional import Conditional, Through
from bnndp.engine.dense.records import Latent, PreActivation, Sources
from bnndp.engine.dense.variance import central_variance
from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear

F64 = torch.float64
SOURCES, NEURONS, ROWS = 5, 4, 6


def bound(rows: Tensor, mu: Tensor, kappa: Tensor, variance: Tensor, fourth: Tensor) -> Tensor:
    """Var of ``rows . (kappa T^2 / 2)`` for T = mu @ (z - E z), by the package, with no other part of z than that."""
    none, zero = torch.zeros(1, NEURONS, dtype=F64), torch.zeros(1, SOURCES, dtype=F64)
    through = Through(
        top=none[:, :1] + 1, rare=zero, curved=torch.arange(NEURONS)[None],
        gram=((mu * variance) @ mu.T).square()[None],
        kurtosis=(fourth - 3 * variance**2).clamp_min(0)[None],
    )  # fmt: skip
    given = Conditional(
        noise=Interval(none, none), slope=none, psi=none, curvature=kappa[None],
        slope_rest=none, largest=none, plain_rest=none, through=through,
    )  # fmt: skip
    before = PreActivation(
        layer=Linear.fixed(mu), jensen=none, spread=Interval(none, none), spread_variance=none, spread_fourth=none,
        noise=Interval(none, none), noise_variance=none, central=none, fourth=none, norm8=none,
        replacement=Interval(none, none), tail=None, energy=None,
    )  # fmt: skip
    latents = [
        Latent(Interval(part, part), Interval(part, part), part, part, torch.ones_like(part)) for part in (zero, none)
    ]
    sources = Sources(
        Interval(variance[None], variance[None]), zero, fourth[None], zero, Interval(zero, zero), zero, zero
    )
    return central_variance(rows, [(before, given)], latents, sources)[0]


@pytest.mark.parametrize("rare", [0.5, 0.2, 0.02])
@pytest.mark.parametrize("seed", range(5))
def test_the_variance_of_a_quadratic_form(seed: int, rare: float) -> None:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=F64)

    size, mu, kappa, rows = normal(SOURCES), normal(NEURONS, SOURCES), normal(NEURONS).abs(), normal(ROWS, NEURONS)
    rows[0] = 0
    rows[0, 0] = 1
    p = torch.full((SOURCES,), rare, dtype=F64)
    variance = p * (1 - p) * size**2
    fourth = p * (1 - p) * ((1 - p) ** 3 + p**3) * size**4
    atoms = torch.tensor(list(product((0.0, 1.0), repeat=SOURCES)), dtype=F64)
    weight = torch.where(atoms > 0, p, 1 - p).prod(-1)
    t = ((atoms - p) * size) @ mu.T
    values = (0.5 * kappa * t**2) @ rows.T  # (atoms, rows)
    truth = weight @ (values - weight @ values) ** 2
    found = bound(rows, mu, kappa, variance, fourth)
    assert (found >= truth * (1 - 1e-12)).all()
    if rare < 0.2:  # fourth moments above those of a Gaussian: then the formula is exact
        assert torch.allclose(found, truth, rtol=1e-8)
