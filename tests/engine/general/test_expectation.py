"""E phi(X) lies in each of the three bounds, for thousands of explicit laws of (m, s)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.layer_networks import ACTS, activation
from tests.engine.general.laws import Law, laws, of_gaussian

from bnndp.engine.general import expectation
from bnndp.engine.general.expectation import Around, around
from bnndp.engine.general.hinge import hinge_of
from bnndp.engine.general.planes import planes, planes_of_fixed
from bnndp.geometry.bounds import Interval

ROUTES = {"plain": expectation._plain, "curvature": expectation._curvature, "replacement": expectation._replacement}
FAST = tuple(act for act in ACTS if act != "piecewise_affine")


def _truth(phi: Any, law: Law) -> torch.Tensor:
    if phi.kind == "piecewise_affine":  # the sine itself, not its surrogate
        return law.mean(torch.exp(-0.5 * law.s) * torch.sin(law.m))
    return law.mean(phi.mean(law.m, law.s.sqrt()))


def _holds(phi: Any, law: Law, found: Around) -> None:
    truth, mean = _truth(phi, law), law.mean(law.m)
    low = phi.mean(mean, found.lower_rho) - phi.error(mean, found.lower_rho) - found.lower_error
    high = phi.mean(mean, found.upper_rho) + phi.error(mean, found.upper_rho) + found.upper_error
    slack = 1e-12 * (1 + mean.abs() + law.mean(law.s).sqrt())
    worst = torch.maximum(low - truth, truth - high) - slack
    assert not bool((worst > 0).any()), f"off by {worst.max().item():.3e} at law {int(worst.argmax())}"


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("route", sorted(ROUTES))
def test_every_route_holds_for_explicit_laws(act: str, route: str) -> None:
    phi = activation(act)
    count = 200 if act == "piecewise_affine" else 1500
    for seed, (source, scale, fluctuation) in enumerate(
        [(True, 0.3, 0.0), (True, 3.0, 1.0), (False, 0.5, 0.0), (False, 2.0, 5.0)]
    ):
        law = laws(count, 10 * seed, source=source, scale=scale, fluctuation=fluctuation)
        _holds(phi, law, ROUTES[route](phi.shape, law.pre))


@pytest.mark.parametrize("act", FAST)
def test_the_best_holds_where_means_and_spreads_are_ranges(act: str) -> None:
    phi = activation(act)
    for source in (True, False):
        law = laws(1000, 5, source=source, scale=1.0, wide=0.5)
        _holds(phi, law, around(phi, law.pre))
        for route in ROUTES.values():
            _holds(phi, law, route(phi.shape, law.pre))


@pytest.mark.parametrize("act", FAST)
def test_errors_vanish_without_randomness(act: str) -> None:
    m = torch.linspace(-3, 3, 41, dtype=torch.float64)[:, None]
    s = torch.full_like(m, 0.49)
    found = around(activation(act), of_gaussian(Interval(m, m), Interval(s, s)))
    assert float(found.lower_error.max()) == float(found.upper_error.max()) == 0
    if act != "identity":  # whose mean does not depend on the spread
        assert torch.allclose(found.lower_rho, torch.full_like(m, 0.7), rtol=1e-14, atol=0)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("width", [0.0, 1e-6, 0.1, 3.0])
def test_planes_hold_on_rectangles(act: str, width: float) -> None:
    phi, generator = activation(act), torch.Generator().manual_seed(3)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    count = 40 if act == "piecewise_affine" else 400
    m, s = 6 * uniform(count, 1) - 3, 10 ** (5 * uniform(count, 1) - 4)
    s[: count // 8] = 0.0
    mean = Interval(m, m + width * uniform(count, 1))
    spread = Interval(s, s * (1 + width * uniform(count, 1)) + width * 0.1 * uniform(count, 1))
    x = of_gaussian(mean, spread)
    share_m, share_s = uniform(count, 30), uniform(count, 30)
    share_m[:, :4] = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    share_s[:, :4] = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    at_m = mean.lower + share_m * (mean.upper - mean.lower)
    at_s = (spread.lower + share_s * (spread.upper - spread.lower)).minimum(spread.upper)
    truth = torch.exp(-0.5 * at_s) * torch.sin(at_m) if act == "piecewise_affine" else phi.mean(at_m, at_s.sqrt())
    near = around(phi, x)
    slack = 1e-12 * (1 + at_m.abs() + at_s.sqrt())
    for found in (planes(phi, x, near), planes_of_fixed(phi, x, near)):
        low = found.lower_alpha * at_m + found.lower_beta * at_s + found.lower_offset
        high = found.upper_alpha * at_m + found.upper_beta * at_s + found.upper_offset
        for bound in (low, found.range.lower):
            assert bool((bound <= truth + slack).all()), float((bound - truth).max())
        for bound in (high, found.range.upper):
            assert bool((bound >= truth - slack).all()), float((truth - bound).max())


def test_planes_of_a_point_lie_on_the_function() -> None:
    for act in FAST:
        phi = activation(act)
        m = torch.linspace(-3, 3, 31, dtype=torch.float64)[:, None]
        s = torch.full_like(m, 0.3)
        x = of_gaussian(Interval(m, m), Interval(s, s))
        found = planes_of_fixed(phi, x, around(phi, x))
        truth = phi.mean(m, s.sqrt())
        assert float((found.range.upper - truth).abs().max()) < 1e-11, act
        assert float((truth - found.range.lower).abs().max()) < 1e-11, act


def test_a_kink_at_zero_with_ranges_that_underflow_still_has_a_bound() -> None:
    """The square of a step of 1e-290 is zero, and the curvature at a kink infinite: their product is no number."""
    tiny = torch.full((1, 1), 1e-290, dtype=torch.float64)
    x = of_gaussian(Interval(-tiny, tiny), Interval(0 * tiny, 0 * tiny))
    for act in FAST:
        phi = activation(act)
        found = planes(phi, x, around(phi, x))
        assert bool(found.range.lower.isfinite() & found.range.upper.isfinite()), act


@pytest.mark.parametrize("act", FAST)
def test_slopes_are_known_to_the_error_that_is_granted(act: str) -> None:
    phi = activation(act)
    assert phi.shape.slope_known
    m, r = torch.meshgrid(
        torch.linspace(-6, 6, 25, dtype=torch.float64),
        10 ** torch.linspace(-3, 1, 13, dtype=torch.float64),
        indexing="ij",
    )
    xi = torch.linspace(-9, 9, 6001, dtype=torch.float64)
    weight = torch.exp(-0.5 * xi.square())
    weight = weight / weight.sum()
    x = m[..., None] + r[..., None] * xi
    # dG/dm = E (phi(X) - phi(m)) xi / r: no derivative of phi is needed
    truth = ((phi(x) - phi(m)[..., None]) * xi) @ weight / r
    loose = 2e-5 if phi.shape.bend_up == float("inf") else 1e-9  # the trapezoid rule at a kink
    assert float((phi.slope(m, r) - truth).abs().max()) < loose


def test_a_function_of_the_user_has_no_known_slope() -> None:
    assert not activation("piecewise_affine").shape.slope_known


@pytest.mark.parametrize("act", ["relu", "leaky_relu"])
@pytest.mark.parametrize("width", [0.0, 0.3, 3.0])
def test_hinge_planes_hold_wherever_they_touch(act: str, width: float) -> None:
    phi, generator = activation(act), torch.Generator().manual_seed(5)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    count = 300
    m, s = 4 * uniform(count, 1) - 2, 10 ** (4 * uniform(count, 1) - 3)
    s[:20] = 0.0
    mean = Interval(m, m + width * uniform(count, 1))
    spread = Interval(s, s * (1 + width * uniform(count, 1)) + 0.1 * width * uniform(count, 1))
    x = of_gaussian(mean, spread)
    hinge = hinge_of(phi, x, around(phi, x))
    assert hinge is not None
    at_m = mean.lower + uniform(count, 20) * (mean.upper - mean.lower)
    at_s = spread.lower + uniform(count, 20) * (spread.upper - spread.lower)
    truth = phi.mean(at_m, at_s.sqrt())
    for u in (hinge.start, 6 * uniform(count, 1) - 3, torch.full((count, 1), 40.0, dtype=torch.float64)):
        alpha, beta, constant = (part[..., 0] for part in hinge.at(u[:, None]))
        assert bool((alpha * at_m + beta * at_s + constant <= truth + 1e-13).all())
    law = laws(800, 5, source=False, scale=1.0, wide=0.3)
    hinge = hinge_of(phi, law.pre, around(phi, law.pre))
    assert hinge is not None
    truth, centre = _truth(phi, law), law.mean(law.m)
    for u in (hinge.start, 2 * torch.randn(800, 1, generator=generator, dtype=torch.float64)):
        alpha, beta, constant = (part[..., 0] for part in hinge.at(u[:, None]))
        assert not bool((beta != 0).any())
        assert bool((alpha * centre + constant <= truth + 1e-12).all())


def test_only_hinges_have_planes_that_move() -> None:
    m = torch.zeros(1, 1, dtype=torch.float64)
    x = of_gaussian(Interval(m, m), Interval(m + 1, m + 1))
    for act in FAST:
        found = hinge_of(activation(act), x, around(activation(act), x))
        assert (found is not None) == (act in {"relu", "leaky_relu"}), act
