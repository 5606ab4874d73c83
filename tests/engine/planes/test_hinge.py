"""Lower planes of hinges hold wherever they touch."""

from __future__ import annotations

import pytest
import torch
from support.dice import Dice
from support.layer_networks import ACTS, activation
from tests.engine.explicit_laws import laws, of_gaussian, true_mean

from bnndp.engine.inequalities.expectation import expectation_bounds
from bnndp.engine.planes.hinge import hinge_of
from bnndp.geometry.bounds import Interval


@pytest.mark.parametrize("act", ["relu", "leaky_relu"])
@pytest.mark.parametrize("width", [0.0, 0.3, 3.0])
def test_hinge_planes_hold_wherever_they_touch(act: str, width: float) -> None:
    phi, dice = activation(act), Dice(5)
    count = 300
    m, s = 4 * dice.uniform(shape=(count, 1)) - 2, 10 ** (4 * dice.uniform(shape=(count, 1)) - 3)
    s[:20] = 0.0
    mean = Interval(m, m + width * dice.uniform(shape=(count, 1)))
    spread = Interval(
        s, s * (1 + width * dice.uniform(shape=(count, 1))) + 0.1 * width * dice.uniform(shape=(count, 1))
    )
    x = of_gaussian(mean, spread)
    hinge = hinge_of(phi, x, expectation_bounds(phi, x))
    assert hinge is not None
    at_m = mean.lower + dice.uniform(shape=(count, 20)) * (mean.upper - mean.lower)
    at_s = spread.lower + dice.uniform(shape=(count, 20)) * (spread.upper - spread.lower)
    truth = phi.mean(at_m, at_s.sqrt())
    for u in (hinge.start, 6 * dice.uniform(shape=(count, 1)) - 3, torch.full((count, 1), 40.0, dtype=torch.float64)):
        alpha, beta, constant = (part[..., 0] for part in hinge.at(u[:, None]))
        assert bool((alpha * at_m + beta * at_s + constant <= truth + 1e-13).all())
    law = laws(800, 5, source=False, scale=1.0, wide=0.3)
    hinge = hinge_of(phi, law.pre, expectation_bounds(phi, law.pre))
    assert hinge is not None
    truth, centre = true_mean(phi, law), law.mean(law.m)
    for u in (hinge.start, 2 * dice.normal(800, 1)):
        alpha, beta, constant = (part[..., 0] for part in hinge.at(u[:, None]))
        assert bool((alpha * centre + beta * (law.mean(law.s) + law.noise) + constant <= truth + 1e-12).all())


def test_only_hinges_have_planes_that_move() -> None:
    m = torch.zeros(1, 1, dtype=torch.float64)
    x = of_gaussian(Interval(m, m), Interval(m + 1, m + 1))
    for act in set(ACTS) - {"piecewise_affine"}:
        found = hinge_of(activation(act), x, expectation_bounds(activation(act), x))
        assert (found is not None) == (act in {"relu", "leaky_relu"}), act
