"""Every piece of a value function holds where it says it does: main, cells, orthant, growth along coordinates."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from flint import arb
from tests.paper.truth import plane, random_linear
from torch import Tensor

from bnndp.geometry.bounds import Affine
from bnndp.maths.rectified import expected_relu
from bnndp.network import BayesianNetwork
from bnndp.paper.layers import Layer, Ranges, Region
from bnndp.paper.outer import Outer
from bnndp.paper.partition import Rectangle
from bnndp.paper.planes import compose, lower_planes, upper_planes
from bnndp.paper.recursion import _forward, _relax
from bnndp.paper.values import Value, _mixture, complement


def scalar(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def exact_value(network: BayesianNetwork, z: Tensor) -> Tensor:  # z (points, n): (points, 2 outputs)
    """The signed value function of the inputs of the last hidden layer."""
    hidden, last = network.linears[-2:]
    std = (z**2 @ (hidden.weight_std**2).T + hidden.bias_std**2).sqrt()
    value = expected_relu(z @ hidden.weight_mean.T + hidden.bias_mean, std) @ last.weight_mean.T + last.bias_mean
    return torch.cat([value, -value], -1)


def relaxed(network: BayesianNetwork, region: Region, mass: float, parts: int) -> tuple[Value, Tensor, Tensor]:
    layers = [Layer.of(one) for one in network.linears[:-1]]
    last = network.linears[-1]
    matrix = torch.cat([last.weight_mean, -last.weight_mean])
    offset = torch.cat([last.bias_mean, -last.bias_mean])
    start = Value(Outer.of(matrix, offset), Affine(matrix[None], offset[None]))
    stage = _forward(layers[:-1], region, mass)[-1]
    return _relax(layers[-1], start, stage, parts), stage.rectangle.lower[0], stage.rectangle.upper[0]


@pytest.fixture(params=[0.0, 0.1, 1.0, 30.0])
def network(request: pytest.FixtureRequest) -> BayesianNetwork:
    sizes = [(4, 2), (5, 4), (2, 5)]
    return BayesianNetwork.from_linears(
        random_linear(n_out, n_in, seed=20 + k, std=request.param) for k, (n_out, n_in) in enumerate(sizes)
    )


def start() -> Region:
    centre = torch.tensor([[[0.3, -0.4]]], dtype=torch.float64)
    return Region(centre - 0.1, centre + 0.1, centre)


def slack(values: Tensor) -> Tensor:
    return 1e-9 * (1 + values.abs())


@pytest.mark.parametrize("mass", [1e-3, 0.9])
def test_main_bound_holds_on_the_image_of_the_rectangle(network: BayesianNetwork, mass: float) -> None:
    value, lower, upper = relaxed(network, start(), mass, 1)
    share = torch.rand(500, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    share[:100] = share[:100].round()  # vertices
    z = (lower + share * (upper - lower)).clamp_min(0)
    truth = exact_value(network, z)
    bound = z @ value.main.matrix[0].T + value.main.offset[0]
    assert (bound >= truth - slack(truth)).all()


def test_pieces_hold_on_their_cells(network: BayesianNetwork) -> None:
    """Errata item 7: there is a bound for every cell of the layer's partition, and each holds on its own cell."""
    value, lower, upper = relaxed(network, start(), 0.5, 5)
    assert value.cells is not None
    cells = value.cells.rectangles
    assert cells.lower.shape[1] == 5
    generator = torch.Generator().manual_seed(1)
    for j in range(5):
        a, b = cells.lower[0, j].clamp_min(lower[0]), cells.upper[0, j].clamp_max(upper[0])
        z = (a + torch.rand(300, 4, generator=generator, dtype=torch.float64) * (b - a)).clamp_min(0)
        truth = exact_value(network, z)
        bound = z @ value.cells.pieces.matrix[0, j].T + value.cells.pieces.offset[0, j]
        assert (bound >= truth - slack(truth)).all()


def test_outer_bound_holds_on_the_orthant(network: BayesianNetwork) -> None:
    value, _, _ = relaxed(network, start(), 1e-3, 1)
    generator = torch.Generator().manual_seed(2)
    for scale in (0.0, 1e-3, 1.0, 1e3, 1e8):
        z = scale * torch.rand(200, 4, generator=generator, dtype=torch.float64) ** 4
        truth = exact_value(network, z)
        bound = z @ value.outer.matrix[0].T + value.outer.offset[0]
        assert (bound >= truth - slack(truth)).all()


def test_growth_bounds_hold_along_every_coordinate(network: BayesianNetwork) -> None:
    value, _, _ = relaxed(network, start(), 1e-3, 1)
    generator = torch.Generator().manual_seed(3)
    for scale in (0.1, 1.0, 100.0):
        z = scale * torch.rand(200, 4, generator=generator, dtype=torch.float64)
        for i in range(4):
            moved = z.clone()
            moved[:, i] += scale
            step = (exact_value(network, moved) - exact_value(network, z)) / scale
            assert (step <= value.outer.rise[:, i] + slack(step)).all()
            assert (-step <= value.outer.fall[:, i] + slack(step)).all()


def test_composition_rounds_upward() -> None:
    """The composed function is above the exact combination of the planes, where the float sum alone is not."""
    layer = Layer.of(random_linear(64, 8, seed=30))
    corner = torch.tensor([[[3.0, -7.0, 0.1, 1e3, -0.3, 2.0, 5e-3, 1.0]]], dtype=torch.float64) / 3
    region = Region(corner, corner, corner)
    low, high = lower_planes(layer, corner), upper_planes(layer, region, layer.ranges(region))
    matrix = torch.randn(1, 1, 40, 64, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    offset = -(matrix * high.offset[:, :, None]).sum(-1)
    found = compose(layer, Affine(matrix, offset), region, low, high, torch.zeros_like(offset))
    z = corner.flatten().tolist()
    upper = [plane(layer, high, layer.var_upper, z, h) for h in range(64)]
    lower = [plane(layer, low, layer.var_lower, z, h) for h in range(64)]
    close = 0
    for row in range(40):
        exact = arb(offset[0, 0, row].item())
        for h, w in enumerate(matrix[0, 0, row].tolist()):
            exact += arb(w) * (upper[h] if w > 0 else lower[h])
        slope, top = found.matrix[0, 0, row], found.offset[0, 0, row].item()
        value = sum((arb(a) * arb(x) for a, x in zip(slope.tolist(), z, strict=True)), arb(top))
        assert value >= exact
        close += bool(value - exact < arb(1e-6))
    assert close == 40  # and not by much: the terms are about 1e3


def test_mixture_is_the_linear_program() -> None:
    """Largest sum P_j tau_j over a box of probabilities that add up to at most one, by the greedy solution."""
    generator = torch.Generator().manual_seed(4)
    for _ in range(50):
        tau = torch.randn(1, 1, 4, 1, generator=generator, dtype=torch.float64)
        ends = torch.rand(2, 1, 1, 4, 1, generator=generator, dtype=torch.float64).sort(0).values
        least, most = ends[0] / 4, ends[1]
        chance, left = least.flatten().tolist(), 1 - least.sum().item()
        for j in tau.flatten().argsort(descending=True).tolist():
            if tau.flatten()[j] > 0:
                more = min(left, most.flatten()[j].item() - chance[j])
                chance[j] += more
                left -= more
        best = sum(p * t for p, t in zip(chance, tau.flatten().tolist(), strict=True))
        assert _mixture(tau, least, most).item() == pytest.approx(best, abs=1e-12)


# What lies outside the main rectangle, against quadrature over one Gaussian: also below it, where a function falls

NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)


def outside_mean(slope: float, constant: float, m: float, r: float, a: float, b: float) -> float:
    """E[(slope z + constant) 1{zeta < a or zeta > b}], z = max(zeta, 0), zeta ~ N(m, r^2)."""
    total = 0.0
    for low, high in ((m - 12 * r, a), (b, m + 12 * r)):
        cuts = sorted({low, high, *(cut for cut in (0.0, m) if low < cut < high)})
        for left, right in pairwise(cuts):
            zeta = 0.5 * (left + right) + 0.5 * (right - left) * NODES
            density = np.exp(-0.5 * ((zeta - m) / r) ** 2) / (r * math.sqrt(2 * math.pi))
            values = (slope * np.maximum(zeta, 0) + constant) * density
            total += 0.5 * (right - left) * float(WEIGHTS @ values)
    return total


@pytest.mark.parametrize("tilt", [-1.0, -0.3, 0.0, 0.4, 1.5])
@pytest.mark.parametrize("slope", [-2.0, -0.5, 0.7])
@pytest.mark.parametrize(("a", "b"), [(0.4, 1.1), (-0.5, 0.6), (0.1, 3.0)])
def test_the_complement_is_not_below_the_truth(a: float, b: float, slope: float, tilt: float) -> None:
    """S = slope z; the main bound has another slope and meets S at the worse end of the rectangle's image."""
    m, r = 0.5, 0.6
    low, high = max(a, 0.0), max(b, 0.0)
    offset = max((slope - tilt) * low, (slope - tilt) * high)
    value = Value(Outer.of(scalar(slope)[None], scalar(0.0)), Affine(scalar(tilt)[None, None], scalar(offset)[None]))
    ranges = Ranges(*(scalar(end)[None, None] for end in (m, m, r, r)))
    rectangle = Rectangle(scalar(a)[None, None], scalar(b)[None, None])
    found = complement(value, rectangle, ranges).item()
    truth = outside_mean(slope - tilt, -offset, m, r, a, b)
    assert found >= truth - 1e-12  # the quadrature
    # Far below and above the rectangle the difference itself is the bound, so nothing is given away there.
    assert found <= outside_mean(abs(slope - tilt), abs(offset), m, r, a, b) + 1e-9
