"""Outward rounding against exact rational arithmetic, on data made to cancel, overflow their digits and underflow."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from flint import arb, ctx
from support.oracles import above, below
from torch import Tensor

from bnndp.maths.rounding import ELEMENTARY, TINY, UNIT, UP, down, gamma, power_of, up


def exact_dot(a: list[float], b: list[float]) -> Fraction:
    return sum((Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), Fraction(0))


def ill_conditioned(n: int, seed: int, spread: float) -> tuple[Tensor, Tensor]:
    """Two vectors whose products span ``spread`` decades and nearly cancel in pairs."""
    generator = torch.Generator().manual_seed(seed)

    def wide(size: int) -> Tensor:
        sign = torch.randn(size, generator=generator, dtype=torch.float64)
        return sign * 10 ** (spread * (torch.rand(size, generator=generator, dtype=torch.float64) - 0.5))

    half = n // 2
    a, b = wide(half), wide(half)
    a = torch.cat(
        [a, -a * (1 + 2.0**-40 * torch.randn(half, generator=generator, dtype=torch.float64)), wide(n - 2 * half)]
    )
    b = torch.cat([b, b, wide(n - 2 * half)])
    order = torch.randperm(n, generator=generator)
    return a[order], b[order]


def sums(a: Tensor, b: Tensor) -> dict[str, float]:
    """The same dot product in several orders of summation."""
    n = a.numel()
    running = torch.zeros((), dtype=torch.float64)
    for x in (a * b).flip(0):
        running = running + x
    return {
        "dot": (a @ b).item(),
        "matmul": (torch.stack([a, a]) @ b[:, None])[1, 0].item(),
        "batched": torch.bmm(a.expand(2, 1, n), b.expand(2, n)[..., None])[0, 0, 0].item(),
        "sum": (a * b).sum().item(),
        "cumulated": torch.cumsum(a * b, 0)[-1].item(),
        "one by one, backwards": running.item(),
        "sorted": (a * b).sort().values.sum().item(),
    }


@pytest.mark.parametrize("spread", [0.0, 20.0, 200.0])
@pytest.mark.parametrize("n", [1, 2, 3, 17, 300, 2048])
def test_gamma_bounds_the_error_of_a_dot_product_in_any_order(n: int, spread: float) -> None:
    inexact = 0
    for seed in range(3):
        a, b = ill_conditioned(n, seed, spread)
        truth = exact_dot(a.tolist(), b.tolist())
        size = exact_dot(a.abs().tolist(), b.abs().tolist())
        for order, got in sums(a, b).items():
            assert abs(Fraction(got) - truth) <= Fraction(gamma(n)) * size + Fraction(TINY), order
            inexact += Fraction(got) != truth
    assert inexact > 0 or n < 3  # otherwise nothing was tested


@pytest.mark.parametrize("n", [1, 2, 17, 300, 2048])
def test_up_and_down_enclose_sums_of_non_negative_numbers(n: int) -> None:
    for seed in range(4):
        a, b = (x.abs() for x in ill_conditioned(n, seed, 30.0))
        truth = exact_dot(a.tolist(), b.tolist())
        for order, got in sums(a, b).items():
            x = torch.tensor(got, dtype=torch.float64)
            assert Fraction(down(x, n).item()) <= truth <= Fraction(up(x, n).item()), order
            assert up(x, n) <= x * (1 + 8 * (n + 4) * UNIT) + TINY  # and no wider than it need be
            assert down(x, n) >= x * (1 - 8 * (n + 4) * UNIT) - TINY


def test_up_and_down_enclose_a_chain_of_operations() -> None:
    """n operations of every kind that keeps non-negative numbers so: product, sum, quotient, square root."""
    generator = torch.Generator().manual_seed(3)
    steps, wrong = 60, 0
    x = torch.rand(200, generator=generator, dtype=torch.float64)
    truth = [arb(v) for v in x.tolist()]
    with ctx.workprec(2000):
        for k in range(1, steps + 1):
            y = 0.5 + torch.rand(200, generator=generator, dtype=torch.float64)
            kind = k % 4
            x = x * y if kind == 0 else x + y if kind == 1 else x / y if kind == 2 else torch.sqrt(x)
            exact = [arb(v) for v in y.tolist()]
            truth = [
                t * e if kind == 0 else t + e if kind == 1 else t / e if kind == 2 else t.sqrt()
                for t, e in zip(truth, exact, strict=True)
            ]
            for low, mid, high, t in zip(down(x, k).tolist(), x.tolist(), up(x, k).tolist(), truth, strict=True):
                assert below(low, t)
                assert above(high, t)
                wrong += not above(mid, t)
    assert wrong > 1000  # without the margin the upper value would be wrong in many places


def test_underflow_is_covered() -> None:
    a = torch.full((1000,), 1e-170, dtype=torch.float64)
    got = a @ a
    truth = exact_dot(a.tolist(), a.tolist())
    assert got == 0 < truth
    assert truth <= Fraction(up(got, 1000).item())
    assert down(got, 1000) == 0


def test_down_never_goes_below_zero_and_up_is_always_above() -> None:
    x = torch.tensor([0.0, 5e-324, 1e-300, 1e-280, 1.0, 1e308, torch.inf], dtype=torch.float64)
    assert (down(x, 10) >= 0).all()
    assert (up(x, 10)[:-1] > x[:-1]).all()
    assert (down(x, 10)[1:-1] < x[1:-1]).all()
    assert up(x, 10)[-1] == torch.inf
    assert up(torch.tensor(torch.nan), 3).isnan()


def test_gamma_increases_and_exceeds_the_classical_bound() -> None:
    values = [gamma(n) for n in (1, 2, 10, 1000, 10**6, 10**9)]
    assert values == sorted(values)
    for n, value in zip((1, 2, 10, 1000, 10**6, 10**9), values, strict=True):
        assert Fraction(value) >= Fraction(n, 2**53) / (1 - Fraction(n, 2**53))
    assert gamma(1000) < 1e-12
    assert UNIT < ELEMENTARY < 1e-13


def test_one_factor_covers_many_operations() -> None:
    assert Fraction(gamma(400_000)) < Fraction(UP) - 1 < Fraction(gamma(500_000))
    assert (1 + Fraction(gamma(50_000))) ** 8 < Fraction(UP)
    assert (1 - Fraction(gamma(400_000))) * Fraction(UP) > 1


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 15, 16])
def test_powers_by_products_are_off_by_a_few_units(n: int) -> None:
    x = torch.tensor([-3.7, -1.0, -1e-3, 0.0, 1e-12, 0.3, 1.1, 1e15], dtype=torch.float64)
    for value, found in zip(x.tolist(), power_of(x, n).tolist(), strict=True):
        truth = Fraction(value) ** n
        assert abs(Fraction(found) - truth) <= n * Fraction(UNIT) * abs(truth)
    assert power_of(torch.tensor(1e-200, dtype=torch.float64), 2).item() == 0.0
    assert power_of(torch.tensor(torch.nan), n).isnan()
