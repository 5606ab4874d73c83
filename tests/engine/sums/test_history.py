"""The expansion given a random history: Y has two values, and given Y few independent values with few atoms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from support.layer_networks import ACTS, activation
from tests.engine.sums.test_expansion import Sine, layer_of
from tests.marks import slow_but
from torch import Tensor

import bnndp.engine.laws  # noqa: F401 - registers the weights of layers
from bnndp.engine.inequalities.expectation import _expanded, expectation_bounds
from bnndp.engine.laws.weights import weights_of
from bnndp.engine.moments.pre_activation import PreActivation, RowMoments, Squares
from bnndp.engine.moments.signal import POWERS, Signal
from bnndp.engine.nodes.activation import Activated
from bnndp.engine.propagation.pre_activation import pre_of_weights
from bnndp.engine.rows import DenseRows
from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear

ATOMS, HISTORIES = 3, 2
UP = 1 + 1e-11


@dataclass(frozen=True, slots=True)
class Laws:
    """Chances of Y (batch, Y), and given Y of the atoms of each value (batch, Y, n_in, atoms)."""

    history: Tensor
    values: Tensor
    chance: Tensor
    layer: Linear

    def outcomes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Chances (batch, Y, outcomes) and (m, s), (batch, Y, outcomes, n_out)."""
        n_in, atoms = self.values.shape[-2:]
        grid = torch.cartesian_prod(*[torch.arange(atoms)] * n_in).reshape(-1, n_in)
        place = torch.arange(n_in)
        z, chance = self.values[..., place, grid], self.chance[..., place, grid].prod(-1)
        weights = weights_of(self.layer, (n_in,))
        return self.history[..., None] * chance, weights.apply(z) + weights.bias, weights.spread(z)

    def over_history(self, values: Tensor) -> Tensor:  # (batch, Y, n) -> (batch, n)
        return (self.history[..., None] * values).sum(1)

    def norm(self, values: Tensor, q: int) -> Tensor:  # (batch, Y, n) -> (batch, n): of the centred values
        return self.over_history((values - self.over_history(values)[:, None]).abs() ** q) ** (1 / q)


def laws(seed: int, n_in: int, batch: int, **settings: float) -> Laws:
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    change = settings.pop("change")
    base = torch.randn(batch, 1, n_in, ATOMS, generator=generator, dtype=torch.float64)
    values = base + change * torch.randn(batch, HISTORIES, n_in, ATOMS, generator=generator, dtype=torch.float64)
    values = values * 10 ** (-1.5 * uniform(batch, 1, n_in, 1)) + torch.where(
        uniform(batch, 1, n_in, 1) < 0.3, 2.0, 0.0
    )
    chance = uniform(batch, 1, n_in, ATOMS) ** 3 + 1e-3 + change * uniform(batch, HISTORIES, n_in, ATOMS)
    first = 0.02 + 0.96 * uniform(batch, 1)
    layer = layer_of(generator, 10, n_in, **settings)  # type: ignore[arg-type]
    return Laws(torch.cat([first, 1 - first], -1), values, chance / chance.sum(-1, keepdim=True), layer)


def signal_of(law: Laws) -> Signal:
    """Its moments, exactly."""
    h = (law.chance * law.values).sum(-1)  # (batch, Y, n_in)
    centred = law.values - h[..., None]
    v, k3, c = ((law.chance * centred**k).sum(-1) for k in (2, 3, 4))
    mean = law.over_history(h)
    whole = law.values - mean[:, None, :, None]

    def norms(values: Tensor) -> Tensor:  # (batch, Y, n_in, atoms)
        return torch.stack([law.over_history((law.chance * values.abs() ** q).sum(-1)) ** (1 / q) for q in POWERS], -1)

    def point(value: Tensor) -> Interval:
        return Interval(value - 1e-12 * value.abs(), value + 1e-12 * value.abs())

    variance = law.over_history(v) + law.norm(h, 2).square()
    return Signal(
        mean=point(mean),
        variance=variance * UP,
        variance_low=variance / UP,
        norms=norms(whole) * UP,
        inner=torch.stack([law.norm(h, q) for q in POWERS], -1) * UP,
        given=norms(centred) * UP,
        deviations=torch.stack([law.over_history(v ** (q / 2)) ** (1 / q) for q in POWERS], -1) * UP,
        roughness=(2 * law.over_history(v)).sqrt() * UP,
        noise=point(law.over_history(v)),
        noise_deviation=law.norm(v, 2) * UP,
        third=point(law.over_history(k3)),
        third_deviation=law.norm(k3, 2) * UP,
        noise_fourth=Interval(law.over_history(c) / UP, law.over_history(c.square()).sqrt() * UP),
        fixed=False,
        source=False,
        excess=law.over_history((c - 3 * v.square()).square()).sqrt() * UP,
    )


def pre_of(law: Laws, *, known_below: bool = False) -> PreActivation:
    weights = weights_of(law.layer, (law.values.shape[-2],))
    chance, m, s = law.outcomes()
    given = chance / chance.sum(-1, keepdim=True)
    centre, spread = ((given[..., None] * values).sum(2) for values in (m, s))  # given Y: (batch, Y, n_out)

    def norm(values: Tensor, q: int) -> Tensor:
        mean = (chance[..., None] * values).sum((1, 2), keepdim=True)
        return (chance[..., None] * (values - mean).abs() ** q).sum((1, 2)) ** (1 / q)

    through = RowMoments(
        law.norm(centre, 2).square() * UP,
        torch.stack([norm(m, q) for q in POWERS], -1) * UP,
        Squares(
            norm(s, 2) * UP,
            law.norm(spread, 2) * UP,
            law.norm(spread, 4) * UP,
            torch.stack([norm(s, q) for q in (4, 8)], -1) * UP,
            torch.zeros_like(m[:, 0, 0]),
            torch.zeros_like(m[:, 0, 0]),
            _below(chance, s) * UP if known_below else None,
        ),
        law.norm(centre, 4) * UP,
        law.norm(centre, 2).square() / UP,
    )
    true = (chance[..., None] * m).sum((1, 2))
    slack = 1e-12 * (1 + m.abs().amax((1, 2)))
    return pre_of_weights(weights, signal_of(law), Interval(true - slack, true + slack), lambda: through)


def _below(chance: Tensor, s: Tensor) -> Tensor:
    """The norm in L4 of what s falls below its mean by."""
    mean = (chance[..., None] * s).sum((1, 2), keepdim=True)
    return (chance[..., None] * (mean - s).clamp_min(0) ** 4).sum((1, 2)) ** 0.25


SETTINGS: list[dict[str, float]] = [
    {"mean": 1.0, "std": 0.3, "bias": 1.0, "change": 0.3},
    {"mean": 0.1, "std": 0.02, "bias": 0.5, "change": 1.0},
    {"mean": 5.0, "std": 0.01, "bias": 0.1, "change": 0.05},
    {"mean": 0.0, "std": 1.0, "bias": 0.1, "change": 0.5},
    {"mean": 1.0, "std": 0.0, "bias": 0.7, "change": 2.0},
    {"mean": 0.3, "std": 0.3, "bias": 0.0, "change": 0.1},
    {"mean": 1.0, "std": 0.3, "bias": 2.0, "change": 0.001},
    {"mean": 0.5, "std": 0.5, "bias": 0.3, "change": 3.0},
]


@pytest.mark.parametrize("act", [*slow_but(ACTS, "relu", "tanh"), "sine 0.05", "sine 0.3", "sine 1", "sine 3"])
def test_the_expansion_given_a_history_holds(act: str) -> None:
    phi: Any = Sine(float(act.split()[1])) if act.startswith("sine") else activation(act)
    for number, setting in enumerate(SETTINGS):
        for n_in in (1, 2, 4):
            law = laws(10 * number + n_in, n_in, 4 if act == "piecewise_affine" else 40, **setting)
            chance, m, s = law.outcomes()
            pre = pre_of(law, known_below=n_in > 1)
            if pre.expansion is None:
                assert setting["std"] == 0
                continue
            values = torch.exp(-0.5 * s) * torch.sin(m) if act == "piecewise_affine" else phi.mean(m, s.sqrt())
            truth, at = ((chance[..., None] * x).sum((1, 2)) for x in (values, m))
            size = 1e-12 * (1 + m.abs().amax((1, 2)) + s.amax((1, 2)).sqrt())
            expanded = _expanded(phi, pre, pre.expansion).at_one_spread(phi.shape)
            for found in (expanded,) if act.startswith("sine") else (expanded, expectation_bounds(phi, pre)):
                low = phi.mean(at, found.lower_rho) - phi.error(at, found.lower_rho) - found.lower_error
                high = phi.mean(at, found.upper_rho) + phi.error(at, found.upper_rho) + found.upper_error
                worst = torch.maximum(low - truth, truth - high) - size
                assert not bool((worst > 0).any()), (number, n_in, float(worst.max()))


@pytest.mark.parametrize("known_below", [False, True])
def test_moments_of_the_variance_given_a_history_hold(known_below: bool) -> None:
    for number, setting in enumerate(SETTINGS):
        law = laws(100 + number, 3, 40, **setting)
        chance, _, s = law.outcomes()
        found = pre_of(law, known_below=known_below).expansion
        if found is None:
            continue
        delta = s - (chance[..., None] * s).sum((1, 2), keepdim=True)
        for name, values, claim in (
            ("third", delta.abs() ** 3, found.spread_third),
            ("fourth", delta**4, found.spread_fourth),
            ("from below", (-delta).clamp_min(0) ** 4, found.spread_low),
        ):
            truth = (chance[..., None] * values).sum((1, 2))
            assert bool((truth <= claim * (1 + 1e-9) + 1e-14).all()), (number, name)


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_the_fourth_norm_of_a_mean_given_a_history_and_its_noise(share: float) -> None:
    """H is 1 or -1, and the noise has two values, of the same variance: with a third moment of the sign of H or not."""
    high, low = math.sqrt((1 - share) / share), -math.sqrt(share / (1 - share))
    noise = share * high**4 + (1 - share) * low**4
    third = share * high**3 + (1 - share) * low**3
    truth = sum(
        0.5 * chance * (h + 2 * h * value) ** 4  # a coefficient of 2
        for h in (1.0, -1.0)
        for value, chance in ((high, share), (low, 1 - share))
    )
    one = torch.ones(1, 1, dtype=torch.float64)
    signal = SimpleNamespace(deviations=one[..., None], third_deviation=third * one)
    node = cast("Activated", SimpleNamespace(signal=signal))
    found = Activated._fourth_norm(node, DenseRows(-2 * one[None]), one, 2 * noise**0.25 * one)
    assert found.item() == pytest.approx(truth**0.25, rel=1e-12)
