"""E phi(X) lies in each of the three bounds, for thousands of explicit laws of (m, s)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.layer_networks import ACTS, activation
from tests.engine.general.explicit_laws import Law, laws, of_gaussian, quadrature, true_mean
from tests.marks import slow_but

from bnndp.activations import LeakyRelu
from bnndp.engine.general import expectation
from bnndp.engine.general.activation_planes import planes
from bnndp.engine.general.expectation import Around, around
from bnndp.engine.general.second_moment import second_moment
from bnndp.geometry.bounds import Interval

ROUTES = {
    "plain": expectation._plain,
    "curvature": expectation._curvature,
    "replacement": lambda shape, x: expectation._replacement(shape, x).at_one_spread(shape),
}
FAST = tuple(act for act in ACTS if act != "piecewise_affine")


def _holds(phi: Any, law: Law, found: Around) -> None:
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
        _holds(phi, law, ROUTES[route](phi.shape, law.pre))


@pytest.mark.parametrize("act", slow_but(FAST, "relu", "tanh", "gelu"))
def test_the_best_holds_where_means_and_spreads_are_ranges(act: str) -> None:
    phi = activation(act)
    for source in (True, False):
        law = laws(1000, 5, source=source, scale=1.0, wide=0.5)
        _holds(phi, law, around(phi, law.pre))
        for route in ROUTES.values():
            _holds(phi, law, route(phi.shape, law.pre))


@pytest.mark.parametrize("act", slow_but(FAST, "relu", "tanh", "gelu"))
def test_planes_in_means_and_variances_hold_for_explicit_laws(act: str) -> None:
    """At the mean and at S + N of the law itself, anywhere in their ranges."""
    phi = activation(act)
    for source in (True, False):
        law = laws(1000, 6, source=source, scale=1.0, wide=0.3, fluctuation=0.3)
        near, truth, mean = around(phi, law.pre), true_mean(phi, law), law.mean(law.m)
        assert near.along is not None
        total = law.mean(law.s) + law.noise
        rho, slack = total.sqrt(), 1e-12 * (1 + mean.abs() + total.sqrt())
        value, error = phi.mean(mean, rho), phi.error(mean, rho) + slack
        assert bool((value - near.along.lower_error <= truth + error).all())
        assert bool((value + near.along.upper_error >= truth - error).all())
        found = planes(phi, law.pre, near)
        assert found.tilted or act == "identity"
        low = found.lower_alpha * mean + found.lower_beta * total + found.lower_offset
        high = found.upper_alpha * mean + found.upper_beta * total + found.upper_offset
        assert bool(((low <= truth + slack) & (truth <= high + slack)).all())


@pytest.mark.parametrize("act", FAST)
def test_errors_vanish_without_randomness(act: str) -> None:
    m = torch.linspace(-3, 3, 41, dtype=torch.float64)[:, None]
    s = torch.full_like(m, 0.49)
    found = around(activation(act), of_gaussian(Interval(m, m), Interval(s, s)))
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
