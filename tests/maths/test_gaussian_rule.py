"""The constants of the trapezoid rule, proved in ball arithmetic; the rule on functions with known moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from flint import acb, arb, ctx
from support.layer_networks import activation

from bnndp.activations import gelu, sigmoid, silu, softplus, tanh
from bnndp.activations.moments import Analytic
from bnndp.maths import gaussian_rule as subject
from bnndp.maths.rounding import ELEMENTARY


@pytest.fixture(autouse=True)
def _digits() -> Iterator[None]:
    with ctx.workprec(120):
        yield


def absolute_moment(k: int) -> arb:
    """E |xi|^k = 2^(k/2) Gamma((k + 1) / 2) / sqrt(pi)."""
    return arb(2) ** (arb(k) / 2) * (arb(k + 1) / 2).gamma() / arb.pi().sqrt() if k else arb(1)


def test_constants() -> None:
    d = arb(12) / 10
    assert arb(subject.STRIP) >= 2 * (d * d / 2).exp() / ((arb("12.8") * arb.pi()).exp() - 1)
    for k in range(1, 5):
        widened = sum((math.comb(k, j) * d ** (k - j) * absolute_moment(j) for j in range(k + 1)), arb(0))
        assert arb(subject.WIDENED[k - 1]) >= widened
        assert arb(subject.ABSOLUTE[k - 1]) >= absolute_moment(k) - 1e-30  # 1 and 3 are exact


@pytest.mark.parametrize("strip", [1.2, 2.4])
def test_every_level_has_the_exponent_that_the_constant_assumes(strip: float) -> None:
    levels = subject.levels(strip)
    assert [limit for limit, _ in levels] == pytest.approx([strip / 1.2 * n for n in (1, 2, 4)])
    for limit, step in levels:
        d = strip / limit
        assert d <= 1.2 * (1 + 1e-12)
        assert 2 * math.pi * d / step >= 12.8 * math.pi * (1 - 1e-12)
        xi, weight = subject.nodes(step, torch.zeros(1, dtype=torch.float64))
        assert xi.dtype == weight.dtype == torch.float64
        assert xi[-1] == 8.8125 == -xi[0]
        assert torch.equal(xi.diff(), torch.full_like(xi[1:], step))  # exact in binary
        assert len(xi) <= 377


def test_what_is_cut_is_below_what_rounding_is_granted() -> None:
    """2 int_c^inf x^4 w = 2 (c^3 + 3 c) w(c) + 6 Q(c) for k = 4, the largest."""
    c = arb(8.8125)
    w = (-c * c / 2).exp() / (2 * arb.pi()).sqrt()
    tail = (c / arb(2).sqrt()).erfc() / 2
    assert 2 * (c**3 + 3 * c) * w + 6 * tail < 9e-15


# |phi'(z)| in the strip, by balls: x in boxes, y up to the strip. Beyond the boxes the closed forms say it.
def _sigma(z: acb) -> acb:
    return 1 / (1 + (-z).exp())


def _density(z: acb) -> acb:
    return _sigma(z) * _sigma(-z)


def _normal(z: acb) -> acb:
    return (-z * z / 2).exp() / (2 * acb.pi()).sqrt()


SLOPES: list[tuple[str, Analytic, Callable[[acb], acb]]] = [
    ("sigmoid", sigmoid._ANALYTIC, _density),
    ("tanh", tanh._ANALYTIC, lambda z: 4 * _density(2 * z)),
    ("softplus", softplus._ANALYTIC, _sigma),
    ("silu", silu._ANALYTIC, lambda z: _sigma(z) + z * _density(z)),
    ("gelu", gelu._ANALYTIC, lambda z: (-z / acb(2).sqrt()).erfc() / 2 + z * _normal(z)),
]


@pytest.mark.parametrize(("name", "record", "slope"), SLOPES, ids=[name for name, *_ in SLOPES])
def test_slope_in_the_strip(name: str, record: Analytic, slope: Callable[[acb], acb]) -> None:
    """On |x| <= 12 and the edge y = strip: by the maximum principle (all are bounded) the edge decides."""
    todo = [(-12.0, 12.0)]
    y = arb(record.strip)
    while todo:
        a, b = todo.pop()
        found = abs(slope(acb(arb((a + b) / 2, (b - a) / 2), y)))
        if found <= record.widened:
            continue
        assert b - a > 1e-6, (name, a)
        todo += [(a, (a + b) / 2), ((a + b) / 2, b)]
    # Beyond 12: |sigma| <= 1 / (1 - e^-12), |z sigma'| <= (|x| + y) e^-|x| / (1 - e^-12)^2, |phi(z)| tiny.
    assert 1 / (1 - arb(-12).exp()) ** 2 * (1 + (12 + y) * arb(-12).exp()) < record.widened or name == "sigmoid"
    assert record.widened >= record.steepest


def test_the_moments_of_a_sine() -> None:
    """E sin(r xi) = 0, E sin^2 = (1 - e^(-2 r^2)) / 2 and E sin^4 = (3 - 4 e^(-2 r^2) + e^(-8 r^2)) / 8."""
    r = torch.tensor([1e-100, 1e-8, 0.1, 0.5, 1.0], dtype=torch.float64)
    _, step = subject.levels(1.2)[0]
    found = subject.analytic_raw(lambda m, delta: torch.sin(m + delta) - torch.sin(m), torch.zeros_like(r), r, step)
    assert found[0].abs().max() < 1e-16
    assert found[2].abs().max() < 1e-15
    for i, s in enumerate((r * r).tolist()):
        a, b = arb(-2 * s).expm1(), arb(-8 * s).expm1()
        if s > 1e-30:
            assert abs(arb(found[1][i].item()) + a / 2 / arb(s)) < 1e-14
        if s > 1e-12:
            assert abs(arb(found[3][i].item()) - (-4 * a + b) / 8 / arb(s) ** 2) < 1e-13
    assert found[1][0].item() == pytest.approx(1, abs=1e-14)
    assert found[3][0].item() == pytest.approx(3, abs=1e-13)


def test_error_has_a_part_for_rounding_and_one_for_the_rule() -> None:
    one = torch.ones(2, dtype=torch.float64)
    error = subject.raw_error(2, 0.5, 3.0, one * torch.tensor([1.0, 10.0]))
    rule = subject.STRIP * 9 * subject.WIDENED[1]
    assert error.tolist() == pytest.approx([ELEMENTARY / 4 + rule, 10 * ELEMENTARY / 4 + rule])


def test_a_coarser_rule_would_be_seen() -> None:
    """The bound of the error has teeth: with three times the step tanh at r = 1 is off by more than it grants."""
    limit, step = subject.levels(1.2)[0]
    m, r = torch.tensor([0.3], dtype=torch.float64), torch.tensor([limit], dtype=torch.float64)
    difference = tanh._ANALYTIC.difference
    right, wrong = (subject.analytic_raw(difference, m, r, h)[3].item() for h in (step, 3 * step))
    granted = subject.raw_error(4, 1.0, tanh._ANALYTIC.widened, torch.ones_like(m)).item()
    finer = subject.analytic_raw(difference, m, r, step / 4)[3].item()
    assert abs(right - finer) < granted / 8 < granted < abs(wrong - finer)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "softplus", "silu", "gelu"])
def test_norms_are_upper_sums(name: str) -> None:
    """Above those of a rule with a hundred times as many nodes, and close to them where the function bends."""
    phi = activation(name)
    xi = torch.linspace(-14, 14, 20001, dtype=torch.float64)
    weight = torch.exp(-0.5 * xi * xi)
    weight = weight / weight.sum()
    m = torch.tensor([-30.0, -8.0, -3.0, -1.0, 0.0, 0.4, 2.0, 5.0, 12.0], dtype=torch.float64)
    for r in (1e-6, 1e-2, 0.3, 1.0, 1.7, 3.9, 30.0):
        values = phi(m[:, None] + r * xi)
        away = (values - (values @ weight)[:, None]).abs()
        found = phi.central(m, torch.full_like(m, r))
        for q, norm in ((8, found.norm8), (16, found.norm16)):
            truth = (away**q @ weight) ** (1 / q)
            assert bool((truth * (1 - 1e-9) <= norm).all()), (name, r, q)
            if 0.01 <= r <= 1:
                assert float((norm / truth)[4]) < 1.15


def test_what_is_beyond_the_last_node() -> None:
    """By arb: the chance, and the means of (1.1 |xi|)^q."""
    cut = arb(subject._CUT)
    chance = (cut / arb(2).sqrt()).erfc()
    assert chance < subject._CHANCE
    for q, claim in zip((8, 16), subject._BEYOND, strict=True):
        # E |xi|^q 1[|xi| > c] = 2^(q/2) Gamma((q + 1) / 2, c^2 / 2) / sqrt(pi)
        tail = arb(2) ** (q // 2) * (cut * cut / 2).gamma_upper(arb(q + 1) / 2) / arb.pi().sqrt()
        assert arb("1.1") ** q * tail < claim


def test_chunks_cover_all_entries_in_order() -> None:
    m = torch.arange(10_007, dtype=torch.float64)
    for width in (1, 100, 1 << 14, 1 << 20):
        assert torch.equal(subject.in_chunks(lambda m, r: torch.stack([m, r]), m, -m, width), torch.stack([m, -m]))
    assert subject.in_chunks(lambda m, r: m + r, m[:0], m[:0], 9).shape == (0,)
