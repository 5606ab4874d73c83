"""E phi(X) lies in each of the three bounds, for thousands of explicit laws of (m, s)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.dice import Dice
from support.layer_networks import ACTS, activation
from tests.engine.explicit_laws import Law, laws, of_gaussian, quadrature, true_mean
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import LeakyRelu
from bnndp.engine.inequalities import expectation
from bnndp.engine.inequalities.expectation import _TIMES, ExpectationBounds, _above_convex, expectation_bounds
from bnndp.engine.inequalities.second_moment import second_moment
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.moments.signal import POWERS
from bnndp.engine.planes.mean import _scarf_line, planes
from bnndp.geometry.bounds import Interval

ROUTES = {
    "plain": lambda phi, x: expectation._plain(phi.shape, x),
    "curvature": lambda phi, x: expectation._curvature(phi.shape, x),
    "replacement": lambda phi, x: expectation._replacement(phi, x).at_one_spread(phi.shape),
}
FAST = tuple(act for act in ACTS if act != "piecewise_affine")


def _holds(phi: Any, law: Law, found: ExpectationBounds) -> None:
    truth, mean = true_mean(phi, law), law.mean(law.m)
    low = phi.mean(mean, found.lower_rho) - phi.error(mean, found.lower_rho) - found.lower_error
    high = phi.mean(mean, found.upper_rho) + phi.error(mean, found.upper_rho) + found.upper_error
    slack = 1e-12 * (1 + mean.abs() + law.mean(law.s).sqrt())
    worst = torch.maximum(low - truth, truth - high) - slack
    assert not bool((worst > 0).any()), f"off by {worst.max().item():.3e} at law {int(worst.argmax())}"


@pytest.mark.parametrize("act", slow_but(ACTS, "relu", "tanh", "gelu"))
@pytest.mark.parametrize("route", sorted(ROUTES))
def test_every_route_holds_for_explicit_laws(act: str, route: str) -> None:
    phi = activation(act)
    count = 200 if act == "piecewise_affine" else 1500
    for seed, (source, scale, fluctuation) in enumerate(
        [(True, 0.3, 0.0), (True, 3.0, 1.0), (False, 0.5, 0.0), (False, 2.0, 5.0)]
    ):
        law = laws(count, 10 * seed, source=source, scale=scale, fluctuation=fluctuation)
        _holds(phi, law, ROUTES[route](phi, law.pre))


@pytest.mark.parametrize("act", slow_but(FAST, "relu", "tanh", "gelu"))
def test_the_best_holds_where_means_and_spreads_are_ranges(act: str) -> None:
    phi = activation(act)
    for source in (True, False):
        law = laws(1000, 5, source=source, scale=1.0, wide=0.5)
        _holds(phi, law, expectation_bounds(phi, law.pre))
        for route in ROUTES.values():
            _holds(phi, law, route(phi, law.pre))


@pytest.mark.parametrize("act", slow_but(FAST, "relu", "tanh", "gelu"))
def test_planes_in_means_and_variances_hold_for_explicit_laws(act: str) -> None:
    """At the mean and at S + N of the law itself, anywhere in their ranges."""
    phi = activation(act)
    for source in (True, False):
        law = laws(1000, 6, source=source, scale=1.0, wide=0.3, fluctuation=0.3)
        near, truth, mean = expectation_bounds(phi, law.pre), true_mean(phi, law), law.mean(law.m)
        assert near.pointwise is not None
        total = law.mean(law.s) + law.noise
        rho, slack = total.sqrt(), 1e-12 * (1 + mean.abs() + total.sqrt())
        value, error = phi.mean(mean, rho), phi.error(mean, rho) + slack
        assert bool((value - near.pointwise.lower_error <= truth + error).all())
        assert bool((value + near.pointwise.upper_error >= truth - error).all())
        found = planes(phi, law.pre, near)
        assert found.tilted or act == "identity"
        low = found.lower_alpha * mean + found.lower_beta * total + found.lower_offset
        high = found.upper_alpha * mean + found.upper_beta * total + found.upper_offset
        assert bool(((low <= truth + slack) & (truth <= high + slack)).all())


@pytest.mark.parametrize("act", FAST)
def test_errors_vanish_without_randomness(act: str) -> None:
    m = torch.linspace(-3, 3, 41, dtype=torch.float64)[:, None]
    s = torch.full_like(m, 0.49)
    found = expectation_bounds(activation(act), of_gaussian(Interval(m, m), Interval(s, s)))
    assert float(found.lower_error.max()) == float(found.upper_error.max()) == 0
    if act != "identity":  # whose mean does not depend on the spread
        assert torch.allclose(found.lower_rho, torch.full_like(m, 0.7), rtol=1e-14, atol=0)


@pytest.mark.parametrize("act", ["tanh", "relu"])
@pytest.mark.parametrize("least", [0.0, 1e-6, 0.05, 0.5, 2.0])
def test_steps_in_the_variance_hold_for_squares(act: str, least: float) -> None:
    """What the Taylor polynomials of F(m, s) = E phi(m + sqrt(s) xi)^2 in s of first and second order leave.

    The derivatives in s are E (phi^2)'' / 2 and E (phi^2)'''' / 4. Without any spread a hinge has no bound, a smooth
    function still has that of its sixth derivative.
    """
    xi, weight = quadrature()
    m = torch.linspace(-3, 3, 41, dtype=torch.float64)[:, None]
    s = torch.tensor([0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 20.0], dtype=torch.float64)
    base = torch.full_like(m, least)

    def mean(function: Any, spread: torch.Tensor) -> torch.Tensor:
        return function(m[..., None] + spread.sqrt()[..., None] * xi) @ weight

    if act == "tanh":
        value = mean(lambda x: x.tanh().square(), s.expand(41, -1))
        at = mean(lambda x: x.tanh().square(), base)
        first = mean(lambda x: (1 - x.tanh() ** 2) * (1 - 3 * x.tanh() ** 2), base)
        second = mean(lambda x: _fourth_of_square(x.tanh()) / 4, base)
    elif least == 0:
        return
    else:
        relu, root = activation("relu"), base.sqrt()
        u = m / root
        density = torch.exp(-0.5 * u * u) / (2 * torch.pi) ** 0.5
        value = _square_mean(relu, m.expand(-1, len(s)), s.sqrt().expand(41, -1))
        at, first = _square_mean(relu, m, root), relu.slope(m, root)
        second = -0.5 * u * density / base
    delta = s - base
    plain = value - at - first * delta
    shape = activation(act).square
    third = SimpleNamespace(spread_third=delta.abs() ** 3, spread_low=(-delta).clamp_min(0) ** 4)
    for found, left in (
        (expectation._second_step(shape, base.expand_as(delta), delta), plain),
        (expectation._third_step(shape, third, base.expand_as(delta)), plain - 0.5 * second * delta.square()),  # type: ignore[arg-type]
    ):
        low, high = found
        assert bool((left <= high * (1 + 1e-9) + 1e-9).all()), float((left - high).max())
        assert bool((-left <= low * (1 + 1e-9) + 1e-9).all()), float((-left - low).max())


@pytest.mark.parametrize("act", ["relu", "leaky_relu", "abs"])
def test_first_order_in_the_variance_with_its_lower_side(act: str) -> None:
    """For a law in one point the moments are powers of its distance."""
    phi: Any = LeakyRelu(-1.0) if act == "abs" else activation(act)
    m = torch.linspace(-4, 4, 161, dtype=torch.float64)[:, None]
    for base in (1e-4, 1.0, 3.0):
        s = base * torch.linspace(0, 6, 241, dtype=torch.float64).expand(161, -1)
        root, delta = torch.full_like(s, base).sqrt(), s - base
        jump = phi.shape.rise - phi.shape.fall
        density = jump * torch.exp(-0.5 * (m / root).square()) / (2 * torch.pi) ** 0.5 / root
        left = phi.mean(m.expand_as(s), s.sqrt()) - phi.mean(m.expand_as(s), root) - 0.5 * density * delta
        below = (-delta).clamp_min(0) ** 4
        low, high = expectation._second_step(phi.shape, torch.full_like(s, base), delta.abs(), below)
        slack = 1e-12 * (1 + base**0.5)
        assert bool((left <= high + slack).all()), float((left - high).max())
        assert bool((-left <= low + slack).all()), float((-left - low).max())
        plain = expectation._second_step(phi.shape, torch.full_like(s, base), delta.abs())
        assert bool((low <= plain[0]).all() & (high <= plain[1]).all())
        near = delta.abs() < 0.2 * base  # there it gains a factor of three
        assert bool((low + high)[near & (delta != 0)].lt(0.45 * (plain[0] + plain[1])[near & (delta != 0)]).all())


def _fourth_of_square(t: torch.Tensor) -> torch.Tensor:
    """The fourth derivative of tanh^2, in t = tanh x: three times p -> p' (1 - t^2) from 2 t (1 - t^2)."""
    return 8 * (1 - t**2) * (-2 + 15 * t**2 - 15 * t**4)


def _square_mean(phi: Any, m: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    found = second_moment(phi, m, r)
    return 0.5 * (found.lower + found.upper)


# Convex activations on hostile laws of few atoms (m, s), M at the ends of its range


def _of_atoms(chance: Tensor, m: Tensor, s: Tensor, wide: float, end: int) -> PreActivation:  # (laws, atoms) each
    """What ``PreActivation`` says of the law, all of its randomness being history; M is the ``end`` of its range."""

    def mean(values: Tensor) -> Tensor:
        return (chance * values).sum(-1, keepdim=True)

    def norm(values: Tensor, q: int) -> Tensor:
        return mean(values.abs() ** q) ** (1 / q)

    centre, spread = mean(m), mean(s)
    zero, ends = torch.zeros_like(centre), (centre, centre + wide) if end < 0 else (centre - wide, centre)
    none = Interval(zero, zero)
    norms, roots, away = (
        torch.stack([norm(values, q) for q in POWERS], -1)
        for values in (m - centre, s.sqrt(), s.sqrt() - spread.sqrt())
    )
    return PreActivation(
        mean=Interval(*ends),
        spread=Interval(spread, spread),
        spread_deviation=norm(s - spread, 2),
        noise=none,
        noise_deviation=zero,
        central=mean((m - centre).square()),
        third=zero,
        absolute_third=zero,
        convex=False,
        quartic=zero,
        norms=norms,
        spread_norms=roots,
        spread_away=away,
        spread_deltas=torch.stack([norm(s - spread, q) for q in POWERS[:2]], -1),
        expansion=None,
        fixed=False,
        source=False,
        central_norm4=norm(m - centre, 4),
        central_least=mean((m - centre).square()),
    )


def _hostile(seed: int, atoms: int) -> tuple[Tensor, Tensor, Tensor]:
    """Chances, m and s (laws, atoms): Scarf's own laws first, then any; rare atoms, s of zero, s that jumps."""
    dice, count = Dice(seed), 400
    chance = 10 ** (-5 * dice.uniform(shape=(count, atoms)) * (dice.uniform(shape=(count, 1)) < 0.7))
    chance = chance / chance.sum(-1, keepdim=True)
    scale = 10 ** (3 * dice.uniform(shape=(count, 1)) - 2)
    m = 2 * dice.normal(count, 1) + scale * dice.normal(count, atoms) * (dice.uniform(shape=(count, 1)) < 0.8)
    s = 10 ** (3 * dice.uniform(shape=(count, 1)) - 3) * (1 + 30 * dice.uniform(shape=(count, atoms)) ** 4)
    s = s * (dice.uniform(shape=(count, atoms)) > 0.2)
    # X on both sides of a kink at zero, as far: then E X_+ is what Scarf says.
    half, reach = count // 4, 10 ** (2 * dice.uniform(shape=(count // 4, 1)) - 1)
    m[:half], s[:half] = reach * torch.tensor([1.0, *[-1.0] * (atoms - 1)], dtype=torch.float64), 0.0
    # s is nothing but for a rare value.
    s[half : half + 50, 1:], m[half : half + 50] = 1e-6, 0.1 * dice.normal(50, 1)
    return chance, m, s


@pytest.mark.parametrize("act", slow_but(["relu", "leaky_relu", "softplus", "identity"], "relu", "softplus"))
@pytest.mark.parametrize("atoms", [2, 3])
@pytest.mark.parametrize("wide", [0.0, 0.5, 5.0])
def test_convex_activations_of_few_atoms(act: str, atoms: int, wide: float) -> None:
    """Scarf's line, both bounds with a larger s in place of s, and all that is made of them."""
    phi = activation(act)
    for end in (-1, 1):
        chance, m, s = _hostile(atoms, atoms)
        x = _of_atoms(chance, m, s, wide, end)
        truth = (chance * phi.mean(m, s.sqrt())).sum(-1, keepdim=True)
        at, slack = (chance * m).sum(-1, keepdim=True), 1e-12 * (1 + m.abs().amax() + s.sqrt().amax())
        if phi.shape.kinks:
            slope, offset = _scarf_line(phi, x)
            assert bool((truth <= slope * at + offset + slack).all())
            if wide == 0.0 and act == "relu":
                assert float((slope * at + offset - truth)[:100].abs().max()) < 1e-9  # attained
        for times in _TIMES:
            for way in _above_convex(phi, x, times):
                assert bool((truth <= phi.mean(at, way.upper_rho) + way.upper_error + slack).all())
        near = expectation_bounds(phi, x)
        found = planes(phi, x, near)
        assert bool((truth <= found.upper_alpha * at + found.upper_offset + slack).all())
        assert bool((truth >= found.lower_alpha * at + found.lower_offset - slack).all())
        assert bool((truth <= found.range.upper + slack).all())
        assert bool((truth >= found.range.lower - slack).all())


@pytest.mark.parametrize("at", [-3.0, -1.0, 0.0, 2.0])
def test_a_rare_large_spread_is_paid_for(at: float) -> None:
    """s is zero but for a chance p and m is constant: far from the kink nothing but what s exceeds s_0 by counts."""
    p = torch.tensor([[0.5, 0.5], [0.1, 0.9], [1e-3, 1 - 1e-3]], dtype=torch.float64)
    s, m = torch.tensor([[4.0, 0.0]], dtype=torch.float64).expand(3, -1), torch.full((3, 2), at, dtype=torch.float64)
    x, phi = _of_atoms(p, m, s, 0.0, 1), activation("relu")
    truth = (p * phi.mean(m, s.sqrt())).sum(-1, keepdim=True)
    for times in _TIMES:
        for way in _above_convex(phi, x, times):
            assert bool((truth <= phi.mean(m[:, :1], way.upper_rho) + way.upper_error).all())


@pytest.mark.parametrize("act", slow_but(FAST, "relu", "tanh", "gelu"))
@pytest.mark.parametrize("scale", [0.03, 0.3, 1.0])
def test_a_history_of_few_atoms_becomes_its_mean(act: str, scale: float) -> None:
    """c and V vary together; where their third derivative is zero at M (tanh: at some |M|) the fourth one counts."""
    phi, dice, count = activation(act), Dice(5), 3000
    chance = dice.uniform(0.02, 1.0, (count, 2))
    chance = chance / chance.sum(-1, keepdim=True)
    middle, least = 3 * dice.uniform(-1.0, 1.0, (count, 1)), 10 ** dice.uniform(-1.0, 0.5, (count, 1))
    c = middle + scale * least.sqrt() * dice.normal(count, 2)
    v = scale * least * dice.uniform(0.0, 1.0, (count, 2))
    x = _of_atoms(chance, c, v, 0.0, 1)
    x = replace(x, spread=Interval(least, least), noise=x.spread, noise_deviation=x.spread_deviation)
    at, rho = (chance * c).sum(-1, keepdim=True), x.smoothing.upper.sqrt()
    truth = (chance * phi.mean(c, (least + v).sqrt())).sum(-1, keepdim=True) - phi.mean(at, rho)
    low, high = expectation._history(phi, x, x.smoothing)
    assert bool((truth <= high + 1e-12).all()), float((truth - high).max())
    assert bool((-truth <= low + 1e-12).all()), float((-truth - low).max())
