"""Every pass keeps the protocol: its bounds hold for the closed moments of a network with one hidden layer or none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from support.ensembles import points_of
from support.records import linear, normal
from tests.marks import slow_but
from torch import Tensor

from bnndp.deadline import NEVER
from bnndp.engine.combined import Best, Shifted
from bnndp.engine.margins import margins
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.protocol import Pass, Slopes, both_signs, finite, known
from bnndp.engine.tails.tailed import Tailed
from bnndp.geometry.bounds import Affine
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.paper.paper_pass import PaperPass
from bnndp.tighten.slopes import Sloped

F64 = torch.float64
SHIFT = normal(2, seed=9)
RANDOM = (linear(5, 2, 1), linear(3, 5, 2))
CERTAIN = tuple(Linear.fixed(layer.weight_mean, layer.bias_mean) for layer in RANDOM)
LAST = (CERTAIN[0], RANDOM[1])  # only the last layer is random
# Of which layers, and how the pass is made.
PASSES: dict[str, tuple[tuple[Linear, ...], Callable[[BayesianNetwork, Box], Pass]]] = {
    "general": (RANDOM, MomentPass.of),
    "general, last layer": (LAST, MomentPass.of),
    "general, certain": (CERTAIN, MomentPass.of),
    "general, linear": (RANDOM[:1], MomentPass.of),
    "tailed": (RANDOM, lambda n, box: Tailed(MomentPass.of(n, box), n.linears)),
    "partition": (RANDOM, lambda n, box: PaperPass(n, box, 0.9, 2)),
    "sloped": (RANDOM, lambda n, box: Sloped(MomentPass.of(n, box), 5, NEVER)),
    "best": (RANDOM, lambda n, box: Best(MomentPass.of(n, box), PaperPass(n, box, 0.9, 2))),
    "shifted": (RANDOM, lambda n, box: Shifted(MomentPass.of(n, box.moved(SHIFT)), SHIFT, box)),
}


def moments(layers: tuple[Linear, ...], x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (..., rows) of ``rows . f(x)``."""
    first, last = layers[0], layers[-1]
    mean, square = x, x.square()
    variance = torch.zeros_like(x)
    if len(layers) == 2:
        m = x @ first.weight_mean.T + first.bias_mean
        r = (square @ first.weight_std.square().T + first.bias_std.square()).sqrt()
        u = m / r.clamp_min(1e-300)
        active = torch.special.ndtr(u)
        mean = m * active + r * torch.exp(-0.5 * u.square()) / math.sqrt(2 * math.pi)
        square = m * mean + r.square() * active
        variance = (square - mean.square()).clamp_min(0)
    spread = square @ last.weight_std.square().T + last.bias_std.square()  # of each output given z
    through = variance @ (rows @ last.weight_mean).square().T
    return (mean @ last.weight_mean.T + last.bias_mean) @ rows.T, through + spread @ rows.square().T


@pytest.mark.parametrize("radius", slow_but((0.0, 0.3), 0.3))
@pytest.mark.parametrize("name", PASSES)
def test_bounds_hold_at_points_of_the_boxes(name: str, radius: float) -> None:
    layers, make = PASSES[name]
    network, box = BayesianNetwork.from_linears(layers), Box.ball(normal(4, 2, seed=3), radius)
    bounds = make(network, box)
    x, outputs = points_of(box, 40), network.n_out
    shifted = x - SHIFT if name == "shifted" else x
    both = both_signs(outputs, box)
    for rows in (both, normal(4, outputs, seed=5)) if bounds.moments else (both,):
        if name == "best" and rows is not both:
            continue  # the partition method knows the outputs only
        found, (mean, variance) = bounds.affine(rows), moments(layers, shifted, rows)
        plane = torch.einsum("brn,pbn->pbr", found.affine.matrix, x) + found.affine.offset
        assert bool((plane <= mean + 1e-12).all())
        for least in (found.least, bounds.least(rows) if bounds.moments else found.least):
            assert bool((least <= mean.amin(0) + 1e-12).all())
            assert bool(least.isfinite().all())
        if bounds.moments:
            assert bool((bounds.variance(rows) >= variance.amax(0) * (1 - 1e-9) - 1e-15).all())
        assert found.method == (bounds.name,) * 4 or name == "best"
    assert bounds.box is box
    assert bounds.random == network.random
    assert not bounds.gaussian or not any(layer.random for layer in layers[:-1])


@pytest.mark.parametrize("name", [name for name in PASSES if name != "partition"])
def test_output_variances_and_margins_hold(name: str) -> None:
    layers, make = PASSES[name]
    network, box = BayesianNetwork.from_linears(layers), Box.ball(normal(4, 2, seed=3), 0.2)
    bounds = make(network, box)
    x, outputs = points_of(box, 40), network.n_out
    shifted = x - SHIFT if name == "shifted" else x
    _, variance = moments(layers, shifted, torch.eye(outputs, dtype=F64))
    found = bounds.output_variance()
    assert bool((found.lower <= variance.amin(0) + 1e-12).all() & (found.upper >= variance.amax(0) - 1e-12).all())
    label = torch.tensor([0, 1, 2, 0])
    known_margins = margins(bounds, label[:, None], outputs)
    for b, own in enumerate(label.tolist()):
        rows = -torch.eye(outputs, dtype=F64)
        rows[:, own] += 1
        mean, variance = moments(layers, shifted[:, b], rows)
        assert bool((known_margins.mean[b, 0] <= mean.amin(0) + 1e-12).all())
        assert bool((known_margins.variance[b, 0] >= variance.amax(0) * (1 - 1e-9) - 1e-15).all())
        assert known_margins.mean[b, 0, own] == known_margins.variance[b, 0, own] == 0


def test_what_is_no_number_is_no_bound() -> None:
    inf, nan = torch.inf, torch.nan
    assert known(torch.tensor([1.0, nan, inf, -inf])).tolist() == [1.0, -inf, -inf, -inf]
    matrix = torch.tensor([[[1.0, 2.0], [nan, 0.0], [inf, 0.0], [inf, -inf], [1.0, 2.0]]], dtype=F64)
    offset = torch.tensor([[3.0, 3.0, 3.0, 3.0, inf]], dtype=F64)
    found = finite(Affine(matrix, offset))
    assert found.offset.tolist() == [[3.0, -inf, -inf, -inf, -inf]]
    assert found.matrix.tolist() == [[[1.0, 2.0], *[[0.0, 0.0]] * 4]]
    fine = Affine(matrix[:, :1], offset[:, :1])
    assert finite(fine) is fine


def test_slopes_keep_tangents_and_multipliers_apart() -> None:
    a, b, c = (torch.full((1,), value) for value in (1.0, 2.0, 3.0))
    found = Slopes([a, b], [c]).map([c, b, a])
    assert (found.tangents, found.multipliers) == ([c, b], [a])
    assert replace(found, multipliers=()).tensors == [c, b]
