"""Norms of sums, of centred variables and of martingales against exact enumeration and against known best constants."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from flint import arb, ctx
from tests.engine.sums.test_terms import SETTINGS, laws
from torch import Tensor

from bnndp.engine.moments.signal import CENTRED, GAUSSIAN, POWERS, RIO
from bnndp.engine.rows import DenseRows
from bnndp.engine.sums.norms import independent_norms, norm_of_moments


def rows_of(*rows: list[float]) -> DenseRows:
    return DenseRows(torch.tensor([list(rows)], dtype=torch.float64))


@pytest.mark.parametrize("setting", SETTINGS, ids=[str(i) for i in range(len(SETTINGS))])
@pytest.mark.parametrize("many", [1, 2, 5])
def test_sums_given_a_history(setting: dict[str, float], many: int) -> None:
    """A sum of independent copies with coefficients, given Y: all atoms of it, for each of both values of Y."""
    law = laws(many, **setting, atoms=2)
    centred = law.values - (law.chance * law.values).sum(-1, keepdim=True)  # (batch, Y, 2, atoms)
    which = [k % 2 for k in range(many)]
    values, chance = centred[:, :, which], law.chance[:, :, which]
    norms = torch.stack([law.over_history((chance * values.abs() ** q).sum(-1)) ** (1 / q) for q in POWERS], -1)
    v = (chance * values.square()).sum(-1)
    deviations = torch.stack([law.over_history(v ** (q / 2)) ** (1 / q) for q in POWERS], -1)
    generator = torch.Generator().manual_seed(many)
    rows = torch.randn(3, many, generator=generator, dtype=torch.float64)
    rows[1] = rows[1] ** 5
    found = independent_norms(DenseRows(rows[None].expand(len(norms), -1, -1)), norms, deviations)
    grid = torch.cartesian_prod(*[torch.arange(2)] * many).reshape(-1, many)
    place = torch.arange(many)
    sums = values[:, :, place, grid] @ rows.T  # (batch, Y, outcomes, rows)
    weight = law.history[..., None] * chance[:, :, place, grid].prod(-1)
    for i, q in enumerate(POWERS):
        truth = (weight[..., None] * sums.abs() ** q).sum((1, 2)) ** (1 / q)
        assert bool((truth <= found[..., i] * (1 + 1e-9)).all()), q


def test_sums_of_many_signs_are_nearly_gaussian() -> None:
    n = 5000
    ones = torch.ones(1, n, 3, dtype=torch.float64)
    found = independent_norms(DenseRows(torch.full((1, 1, n), n**-0.5, dtype=torch.float64)), ones, ones)[0, 0]
    for norm, gaussian in zip(found.tolist(), GAUSSIAN, strict=True):
        assert gaussian * (1 - 1e-2) <= norm <= gaussian * (1 + 3e-2)


def test_no_row_makes_a_norm_too_small_or_no_number() -> None:
    """Rows of zeros, of tiny numbers, and on values that are tiny beside others: at least the norm of one term."""
    norms = torch.tensor([[[1.0, 1.2, 1.4], [1e-22, 2e-22, 3e-22], [1e-9, 1e-9, 1e-9]]], dtype=torch.float64)
    rows = rows_of(
        [0.0, 0.0, 0.0], [1e-25, 0.0, 0.0], [0.0, 1e4, 0.0], [0.0, 1e20, 0.0], [0.0, 0.0, 1e-15], [1.0, 1.0, 1.0]
    )
    for share in (1.0, 0.1, 1e-3, 1e-9, 0.0):
        found = independent_norms(rows, norms, share * norms)
        assert not found.isnan().any()
        single = (rows.values.abs()[..., None] * norms[:, None]).amax(2)
        assert bool((found >= single * (1 - 1e-9)).all())


def test_the_series_is_the_sum_over_partitions() -> None:
    """E (X_1 + ... + X_n)^4 = M_4 + 3 M_2^2 and so on, with all products of the moments."""
    moments = {p: torch.tensor(0.3 + 0.1 * p, dtype=torch.float64) for p in range(3, 9)}
    moments[2] = torch.tensor(1.0, dtype=torch.float64)
    fourth = 3 + float(moments[4])
    assert float(norm_of_moments(moments, 4)) == pytest.approx(fourth**0.25, rel=1e-13)
    m = {p: float(x) for p, x in moments.items()}
    eighth = m[8] + 28 * m[6] + 56 * m[5] * m[3] + 35 * m[4] ** 2 + 210 * m[4] + 280 * m[3] ** 2 + 105
    assert float(norm_of_moments(moments, 8)) == pytest.approx(eighth**0.125, rel=1e-13)


@pytest.mark.parametrize("i", range(3))
def test_centring(i: int) -> None:
    r"""The norm of the map X -> X - E X in L^p (Franchetti 1992, Mori 2009).

    Its p-th power is the maximum over a of :math:`(a^{p-1}+(1-a)^{p-1})(a^{1/(p-1)}+(1-a)^{1/(p-1)})^{p-1}`, which is
    bounded here on all of (0, 1/2]: increasing factors at the right end of each piece, decreasing ones at the left.
    """
    p, claim = POWERS[i], CENTRED[i]
    with ctx.workprec(80):
        pieces = [arb(0), *(arb(10) ** (-40 + arb(k) / 500) for k in range(int(500 * (40 - 0.3010)) + 2)), arb(0.5)]
        largest = 0.0
        for low, high in itertools.pairwise(pieces):
            first = (1 - low) ** (p - 1) + low ** (p - 1)  # decreasing up to 1/2
            second = (high ** (arb(1) / (p - 1)) + (1 - high) ** (arb(1) / (p - 1))) ** (p - 1)  # increasing
            bound = (first * second) ** (arb(1) / p)
            assert bound < arb(claim) * (1 + arb(5e-4)), float(low)
            largest = max(largest, float(bound))
    assert largest >= claim * (1 - 1e-4)
    best = 0.0
    for k in range(200_000):  # and the claim itself on a fine grid
        a = 0.5 * (k + 1) / 200_000
        best = max(
            best, (a ** (p - 1) + (1 - a) ** (p - 1)) * (a ** (1 / (p - 1)) + (1 - a) ** (1 / (p - 1))) ** (p - 1)
        )
    assert claim * (1 - 1e-4) <= best ** (1 / p) <= claim


def test_no_law_of_few_atoms_is_beyond_the_constants_of_centring() -> None:
    generator = torch.Generator().manual_seed(5)
    for atoms in (2, 3, 6):
        chance = torch.rand(20_000, atoms, generator=generator, dtype=torch.float64) ** 6 + 1e-12
        chance = chance / chance.sum(-1, keepdim=True)
        values = torch.randn(20_000, atoms, generator=generator, dtype=torch.float64)
        centred = values - (chance * values).sum(-1, keepdim=True)
        for q, constant in zip(POWERS, CENTRED, strict=True):
            before, after = ((chance * x.abs() ** q).sum(-1) ** (1 / q) for x in (values, centred))
            assert bool((after <= constant * before * (1 + 1e-12)).all())


def test_sums_of_independent_groups() -> None:
    """``RIO``: a root of q - 1, which many equal terms need up to the norm of a Gaussian."""
    for q, constant, gaussian in zip(POWERS, RIO, GAUSSIAN, strict=True):
        assert math.isclose(constant, math.sqrt(q - 1), rel_tol=1e-9)
        assert constant >= math.sqrt(q - 1)
        assert gaussian <= constant
    generator = torch.Generator().manual_seed(6)
    for _ in range(300):
        share = torch.rand(4, generator=generator, dtype=torch.float64) ** 3 * 0.98 + 0.01
        up, down = ((1 - share) / share).sqrt(), -(share / (1 - share)).sqrt()
        values = torch.stack([up, down], -1) * torch.rand(4, 1, generator=generator, dtype=torch.float64)
        chance = torch.stack([share, 1 - share], -1)
        grid = torch.cartesian_prod(*[torch.arange(2)] * 4)
        place = torch.arange(4)
        sums, weight = values[place, grid].sum(-1), chance[place, grid].prod(-1)
        for q, constant in zip(POWERS, RIO, strict=True):
            truth = float((weight * sums.abs() ** q).sum() ** (1 / q))
            parts: Tensor = (chance * values.abs() ** q).sum(-1) ** (2 / q)
            assert truth <= constant * float(parts.sum().sqrt()) * (1 + 1e-12)
