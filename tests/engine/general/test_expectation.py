"""E phi(X) lies in each of the three bounds, for thousands of explicit laws of (m, s)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.layer_networks import ACTS, activation
from tests.engine.general.explicit_laws import Law, laws, of_gaussian, true_mean
from tests.marks import slow_but

from bnndp.engine.general import expectation
from bnndp.engine.general.expectation import Around, around
from bnndp.geometry.bounds import Interval

ROUTES = {"plain": expectation._plain, "curvature": expectation._curvature, "replacement": expectation._replacement}
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


@pytest.mark.parametrize("act", FAST)
def test_errors_vanish_without_randomness(act: str) -> None:
    m = torch.linspace(-3, 3, 41, dtype=torch.float64)[:, None]
    s = torch.full_like(m, 0.49)
    found = around(activation(act), of_gaussian(Interval(m, m), Interval(s, s)))
    assert float(found.lower_error.max()) == float(found.upper_error.max()) == 0
    if act != "identity":  # whose mean does not depend on the spread
        assert torch.allclose(found.lower_rho, torch.full_like(m, 0.7), rtol=1e-14, atol=0)
