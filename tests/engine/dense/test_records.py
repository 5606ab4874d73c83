"""Every field of the records of the moment pass, against draws of the hidden layers and in other units."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise

import pytest
import torch
from flint import arb
from support.dice import Dice
from support.oracles import all_below, expected_relu
from tests.engine.dense.cases import CASES, Case, cases, network, points, region
from tests.engine.dense.truth import (
    Draws,
    Estimate,
    Run,
    at_least,
    at_most,
    bounds,
    central,
    draw,
    inside,
    mean,
    normal,
    relu_mean,
    run,
)  # fmt: skip
from torch import Tensor

from bnndp.engine.dense.forward import Hidden
from bnndp.engine.dense.rare_neurons import rarity, stability
from bnndp.engine.dense.records import Relaxation
from bnndp.engine.dense.slope import slope
from bnndp.engine.dense.variance import central_variance, linear_variance, square_sum_variance
from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork


@dataclass(frozen=True)
class Subject:
    """The records of a pass, and for every point of the box the draws of all layers."""

    case: Case
    found: Run
    points: Tensor
    draws: list[list[Draws]]

    def pairs(self) -> list[tuple[Hidden, Draws, Draws]]:
        """(records, draws of the layer before, draws) of each hidden layer after the first, at each point."""
        return [
            (h, below, layer)
            for layers in self.draws
            for h, (below, layer) in zip(self.found.hidden, pairwise(layers), strict=True)
        ]

    def layers(self, start: int = 0) -> list[tuple[int, Draws]]:
        """The layers from ``start`` on with their numbers, at each point."""
        return [(k, at) for layers in self.draws for k, at in enumerate(layers) if k >= start]


@pytest.fixture(scope="module", params=cases())
def subject(request: pytest.FixtureRequest) -> Subject:
    case = request.param
    net, x = network(case), points(case)
    return Subject(case, run(net, region(case)), x, [draw(net, p, seed=i) for i, p in enumerate(x)])


def slopes(h: Hidden, at: Draws) -> Tensor:
    """Phi(m / sqrt(s0)) at the largest s0."""
    return normal((at.m / h.before.spread.upper[0].clamp_min(1e-280).sqrt()).clamp(-1e3, 1e3))[0]


def test_outputs(subject: Subject) -> None:
    last = subject.found.network.linears[-1]
    planes, ends = bounds(subject.found.network, region(subject.case))
    for x, layers in zip(subject.points, subject.draws, strict=True):
        output = mean(layers[-1].h @ last.weight_mean.T + last.bias_mean)
        inside(output, Interval(planes.lower(x[None]), planes.upper(x[None])), "E f(x)")
        inside(output, ends, "E f(x)")


def test_latents(subject: Subject) -> None:
    """The moments of the outputs z of all hidden layers."""
    for k, at in subject.layers():
        latent = subject.found.latents[k]
        inside(mean(at.h), latent.mean, f"E z_{k + 1}")
        inside(mean(at.q), latent.second, f"E z_{k + 1}^2")
        at_most(mean(at.v + (at.h - at.h.mean(0)) ** 2, at.q.mean(0)), latent.variance[0], f"Var z_{k + 1}")
        at_most(mean(at.fourth), latent.fourth[0], f"E z_{k + 1}^4")
        at_most(mean(at.slope**4), latent.activity[0] ** 2, f"E Phi^4 of layer {k + 1}")
        s0 = at.s.mean(0).clamp_min(1e-280)  # and at a constant spread
        cdf, _ = normal((at.m / s0.sqrt()).clamp(-1e3, 1e3))
        at_most(mean(cdf**4), latent.activity[0] ** 2, "E Phi(m / sqrt(S))^4")


def test_pre_activations(subject: Subject) -> None:
    """The moments of m and s given the layer before."""
    for h, below, at in subject.pairs():
        before, mu, mu2 = h.before, h.before.layer.weight_mean.T, h.before.layer.weight_mean.T**2
        inside(mean(at.m), h.mean, "E X")
        inside(mean(at.s), before.spread, "E s")
        inside(mean(below.v @ mu2, below.q.mean(0) @ mu2), before.noise, "E Var(m | y)")
        for what, found, bound in (
            ("Var s", central(at.s), before.spread_variance),
            ("E (s - E s)^4", central(at.s, 4), before.spread_fourth),
            ("Var Var(m | y)", central(below.v @ mu2), before.noise_variance),
            ("Var E[m | y]", central(below.h @ mu), before.central),
            ("Var m", central(at.m), before.mean_variance),
            ("E (m - E m)^4", central(at.m, 4), before.fourth),
            ("E (m - E m)^8", central(at.m, 8), before.norm8**8),
        ):
            at_most(found, bound[0], what)
        s = below.h.mean(0).square() @ before.layer.weight_std.T**2 + before.layer.bias_std**2
        # E z is estimated: its error moves s by at most twice the deviation times its root.
        error = mean(below.h).error.square() @ before.layer.weight_std.T**2
        at_least(Estimate(s, 2 * (s * error).sqrt() + error, s), before.jensen[0] ** 2, "s(E z)")


def test_replacements(subject: Subject) -> None:
    """Given y, m is a sum of independent terms; a Gaussian of the same variance would give nearly the same."""
    for h, below, at in subject.pairs():
        layer, before = h.before.layer, h.before
        centre, variance = below.h @ layer.weight_mean.T + layer.bias_mean, below.v @ layer.weight_mean.T**2
        ends = zip((before.spread.lower, before.spread.upper),
                   (before.replacement.lower, before.replacement.upper), strict=True)  # fmt: skip
        for s0, error in ends:
            base = s0[0].clamp_min(1e-280)
            difference = relu_mean(at.m, base.sqrt()) - relu_mean(centre, (base + variance).sqrt())
            size = at.m.abs().mean(0) + base.sqrt()
            at_most(mean(difference, size), error[0], "effect of the replacement")
            at_most(mean(-difference, size), error[0], "effect of the replacement")


def test_concentration_in_the_second_layer(subject: Subject) -> None:
    """Levels, norms, and the Poincare inequality for Phi(m / sqrt(t)) at wide and narrow t."""
    for layers in subject.draws:
        at, before = layers[1], subject.found.hidden[0].before
        wide = mean(at.m).error + 1e-12 * at.m.abs().mean(0)
        for level in before.tail.levels:
            outside = (at.m > at.m.mean(0) + level.above[0] + wide) | (at.s > level.spread[0] * (1 + 1e-12))
            outside |= at.m < at.m.mean(0) - level.below[0] - wide
            at_most(mean(outside.double()), level.probability[0], "P(m or s outside of its level)")
        at_most(central(at.m, 8), before.tail.mean8[0] ** 8, "E (m - M)^8")
        at_most(mean(at.s**4), before.tail.spread8[0] ** 8, "E s^4")
        at_most(mean(at.s**8), before.tail.spread16[0] ** 16, "E s^8")
        for factor in (0.1, 1.0, 10.0):
            t = factor * (before.spread.upper[0] + before.noise.upper[0]).clamp_min(1e-200)
            cdf, pdf = normal((at.m / t.sqrt()).clamp(-1e3, 1e3))
            bound = (before.energy.usual[0] * mean(pdf**2).highest + before.energy.rare[0] / (2 * math.pi)) / t
            at_most(central(cdf), bound, "Var Phi(m / sqrt(t))")


def test_slopes(subject: Subject) -> None:
    """Phi(m / sqrt(s0)) as a random variable."""
    for h, _, at in subject.pairs():
        found, values = slope(h.before, h.mean), slopes(h, at)
        at_most(central(values), found.variance[0], "Var Phi")
        at_most(mean((values - found.centre[0]) ** 2), found.square[0], "E (Phi - p)^2")


def test_relaxations(subject: Subject) -> None:
    """The affine bounds of E z in M; the same draws serve both sides, so their errors nearly cancel."""
    for h, _, at in subject.pairs():
        r, size, m = h.relaxation, at.h.abs().mean(0) + at.m.abs().mean(0), at.m.mean(0).abs() * (1 - 1e-9)
        planes = [r.lower(None if move is None else r.tangent[:, None] + move) for move in (None, 0.0, -0.7, 1.3)]
        for a, b in planes:
            at_least(mean(at.h - a[0, 0] * at.m, size), b[0, 0], "E z")
        at_most(mean(at.h - r.upper_slope[0] * at.m, size), r.upper_offset[0], "E z")
        for a, b in (*((a[0], b[0]) for a, b in planes), (r.upper_slope, r.upper_offset)):
            largest = a[0].abs() * m + b[0].abs()
            at_most(Estimate(largest, mean(at.m).error, largest), r.size[0], "|slope M| + |offset|")


def test_layers_given_the_one_before(subject: Subject) -> None:
    for k, at in subject.layers(1):
        parts = subject.found.given[k - 1][1]
        cube, size = parts.beyond.cube[0], at.q.mean(0)
        inside(mean(at.v, size), parts.noise, "E Var(z | y)")
        at_most(central(at.v), parts.beyond.noise_deviation[0] ** 2, "Var Var(z | y)")
        at_most(mean(at.v**1.5, size**1.5), cube, "E Var(z | y)^1.5")
        at_most(mean((at.z - at.h).abs() ** 3), math.sqrt(3) * cube, "E |z - E[z | y]|^3")


def test_slope_rests(subject: Subject) -> None:
    """``g(m, sqrt(s0)) - p m`` less its quadratic part, neuron by neuron."""
    for k, at in subject.layers(1):
        before, parts = subject.found.given[k - 1]
        root = before.spread.upper[0].clamp_min(1e-280).sqrt()
        bend = 0.5 * parts.curvature[0] * (at.m - at.m.mean(0)) ** 2
        rest = relu_mean(at.m, root) - parts.slope[0] * at.m - bend
        whole = (parts.slope[0] == 0) & (parts.psi[0] == 0)  # then all of h is in the plain rest
        rare = 0.0 if before.energy is None else parts.largest[0] * before.energy.rare[0].sqrt()
        bound = parts.slope_rest[0] + rare + parts.plain_rest[0]
        centred = torch.where(whole, at.h, rest)
        at_most(mean((centred - centred.mean(0)) ** 2, at.m.abs().mean(0).square()), bound**2, "slope rest")


def test_gradients(subject: Subject) -> None:
    """In the second layer: the slope at the actual s, the density, and s where the neuron is active."""
    known = subject.found.given[0][1].beyond.gradients
    for layers in subject.draws:
        at = layers[1]
        distance = at.slope - known.centre[0]
        assert (distance.abs() <= known.widest[0] * (1 + 1e-12)).all()
        at_most(mean(distance**8), known.delta[0] ** 8, "E (Phi - p)^8")
        density = torch.where(at.s > 0, normal((at.m / at.s.sqrt().clamp_min(1e-300)).clamp(-1e3, 1e3))[1], 0.0)
        at_most(mean(density**8), known.density[0] ** 8, "E phi^8")
        at_most(mean(at.s**4 * at.slope), known.active_spread[0] ** 4, "E s^4 1[X > 0]")


def test_variances_of_rows(subject: Subject) -> None:
    """Combinations of the neurons of a layer: random signs, one sign, nearly nothing, single neurons."""
    found = subject.found
    for k, at in subject.layers():
        n = at.z.shape[1]
        dense = Dice(n).normal(4, n)
        rows = torch.cat([dense, torch.ones(1, n), dense[:1] * 1e-8, torch.eye(n, dtype=torch.float64)[:4]])
        known = found.given[:k], found.latents[: k + 1], found.first.sources
        at_most(central(at.z @ rows.T), linear_variance(rows, *known)[0], f"Var(u z_{k + 1})")
        at_most(central(at.z**2 @ rows.T), square_sum_variance(rows, *known)[0], f"Var(u z_{k + 1}^2)")
        if k:  # given x nothing of the first layer's mean is random
            bound = central_variance(rows, *known)
            at_most(central(at.h @ rows.T), bound[0], f"Var(u E[z_{k + 1} | before])")
            again = central_variance(rows[None], *known)  # rows of each box
            assert torch.allclose(again, bound, rtol=1e-12, atol=0)


def test_the_plane_of_a_relaxation_touches_from_below() -> None:
    """``slope M + offset <= g(M, rho) - loss`` for every tangent point, with equality at ``u = M / rho``."""
    dice = Dice(0)
    rho, loss = 3 * dice.uniform(shape=(1, 40)), 0.1 * dice.uniform(shape=(1, 40))
    zero, m = torch.zeros_like(rho), 3 * dice.normal(40)
    relaxation = Relaxation(zero, rho, loss, zero, zero, zero)
    numbers = (t.flatten().tolist() for t in (m, rho, loss))
    truth = [expected_relu(a, r) - arb(x) for a, r, x in zip(*numbers, strict=True)]
    slope_, offset = relaxation.lower(4 * dice.normal(1, 25, 40))
    assert all(all_below(row - 1e-14, truth) for row in (slope_ * m + offset)[0])
    slope_, offset = relaxation.lower((m / rho)[:, None])
    at = (slope_ * m + offset)[0, 0].tolist()
    assert all(abs(arb(value) - exact) < 1e-13 for value, exact in zip(at, truth, strict=True))


# Other units: ReLU(t x) = t ReLU(x), so a hidden layer whose weights and biases are t times as large, with the biases
# of all that follows, multiplies every moment of degree d after it by t^d. A bound in which a power is wrong may be
# right in one unit, but then it is too small in another. Powers of two are exact in float64.

MEASURED = ("narrow", "wide box", "large deviations", "all scales", "dead neurons", "nearly dead second layer",
            "active in a box", "some zeros", "negative inputs", "deep", "one source", "l2 ball")  # fmt: skip
DEGREES = {
    # PreActivation
    "jensen": 1, "spread": 2, "spread_variance": 4, "spread_fourth": 8, "noise": 2, "noise_variance": 4, "central": 2,
    "fourth": 4, "norm8": 1, "replacement": 1, "above": 1, "below": 1, "probability": 0, "mean8": 1, "spread8": 1,
    "spread16": 1, "usual": 2, "rare": 2, "unlikely": 2, "kept": 2, "left": 2, "covariance": 3, "absolute": 3,
    # Conditional and Through
    "noise_deviation": 2, "cube": 3, "slope": 0, "psi": -1, "curvature": -1, "slope_rest": 1, "largest": 0,
    "plain_rest": 1, "top": 0, "square_usual": 2, "square_extra": 2, "gram": 4, "kurtosis": 4, "centre": 0,
    "delta": 0, "widest": 0, "density": 0, "active_spread": 2,
    # Latent, Relaxation, Slope
    "mean": 1, "second": 2, "variance": 2, "activity": 0, "tangent": 0, "rho": 1, "loss": 1, "upper_slope": 0,
    "upper_offset": 1, "size": 1,
    # Names that mean something else elsewhere
    "cross.second": 4, "cross.third": 5, "at.variance": 0, "at.square": 0, "at.norm4": 0,
}  # fmt: skip
OF_SOURCES = ("energy.kept", "energy.left", "through.kurtosis", "through.rare")  # of the first layer, whatever follows


def in_units(model: BayesianNetwork, unit: float, start: int) -> BayesianNetwork:
    """Everything from the layer ``start`` on, measured in 1 / unit."""
    layers = list(model.linears)
    for k in range(start, len(layers)):
        layer, weight = layers[k], unit if k == start else 1.0
        layers[k] = Linear(
            weight * layer.weight_mean, weight * layer.weight_std, unit * layer.bias_mean, unit * layer.bias_std
        )
    return BayesianNetwork.from_linears(layers)


def tensors(record: object, name: str) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a record, by the path of their names; ends of an interval by that of the interval."""
    if isinstance(record, Tensor):
        if record.is_floating_point():  # no index
            yield name, record
    elif isinstance(record, tuple):
        for part in record:
            yield from tensors(part, name)
    elif is_dataclass(record) and not isinstance(record, Linear):
        for field in fields(record):
            inner = name if field.name in ("lower", "upper") else f"{name}.{field.name}"
            yield from tensors(getattr(record, field.name), inner)


def everything(found: Run) -> Iterator[tuple[str, Tensor]]:
    """All that is known of the layers after the first."""
    for (before, given), layer in zip(found.given, found.hidden, strict=True):
        parts = {"before": before, "given": given, "latent": layer.latent, "relaxation": layer.relaxation}
        parts["at"] = slope(before, layer.mean)
        if before.tail is not None:
            parts["stable"] = stability(before.tail, layer.mean)
            parts["rare"] = rarity(before.tail, layer.mean, layer.latent.fourth)
        for name, part in parts.items():
            yield from tensors(part, name)


def degree(name: str, start: int) -> int:
    """The power of the unit in a tensor."""
    short = ".".join(name.split(".")[-2:])
    known = short if short in DEGREES else name.rpartition(".")[-1]
    return 0 if start and short in OF_SOURCES else DEGREES[known]


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize(
    "case", cases("wide box", "all scales", "deep", of=tuple(c for c in CASES if c.name in MEASURED))
)
def test_every_record_in_other_units(case: Case, start: int) -> None:
    model, box = network(case), region(case)
    plain, planes = list(everything(run(model, box))), bounds(model, box)[0]
    for unit in (2.0**-20, 2.0**30):
        other = in_units(model, unit, start)
        for (name, a), (_, b) in zip(plain, everything(run(other, box)), strict=True):
            power, finite = unit ** degree(name, start), a[torch.isfinite(a)].abs()
            size = finite.max().item() if finite.numel() else 1.0  # absolute terms stand against underflow only
            same = torch.isclose(b / power, a, rtol=1e-9, atol=1e-20 * size + 1e-200, equal_nan=True)
            assert same.all(), (name, unit, a[~same][0].item(), (b / power)[~same][0].item())
        there = bounds(other, box)[0]
        for plane, scaled in ((planes.lower, there.lower), (planes.upper, there.upper)):
            for want, found in ((plane.matrix, scaled.matrix / unit), (plane.offset, scaled.offset / unit)):
                assert torch.allclose(found, want, rtol=1e-7, atol=1e-9 * want.abs().max().item())
