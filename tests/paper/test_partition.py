"""The main rectangle holds its mass everywhere, and REFINE is a partition."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from flint import arb
from support import oracles
from tests.paper.truth import gaussians, linear, random_linear

from bnndp.paper.layers import Layer, Region
from bnndp.paper.partition import Rectangle, main_rectangle, nominal_probability, refine


def box(lower: list[float], upper: list[float]) -> Region:
    low, high = (torch.tensor([[end]], dtype=torch.float64) for end in (lower, upper))
    return Region(low, high, low)


def mass_inside(one: object, rectangle: Rectangle, z: list[float]) -> arb:
    total = arb(1)
    ends = zip(rectangle.lower[0, 0].tolist(), rectangle.upper[0, 0].tolist(), strict=True)
    for (m, r), (a, b) in zip(gaussians(one, z), ends, strict=True):
        total *= arb(int(a <= m and m <= b)) if r == 0 else oracles.cdf((b - m) / r) - oracles.cdf((a - m) / r)
    return total


@pytest.mark.parametrize("mass", [1e-12, 1e-3, 0.5, 0.99])
@pytest.mark.parametrize("std", [0.0, 1e-9, 1.0, 1e3])
def test_main_rectangle_holds_its_mass_for_every_input(mass: float, std: float) -> None:
    one = random_linear(6, 3, seed=1, std=std)
    lower, upper = [-1.0, 0.0, 2.0], [0.5, 3.0, 2.0]
    rectangle = main_rectangle(Layer.of(one).ranges(box(lower, upper)), mass)
    rng = random.Random(0)
    inside = [[rng.uniform(a, b) for a, b in zip(lower, upper, strict=True)] for _ in range(8)]
    for z in [*map(list, itertools.product(*zip(lower, upper, strict=True))), *inside]:
        assert mass_inside(one, rectangle, z) >= 1 - arb(mass)


def test_main_rectangle_is_sharp_at_a_point() -> None:
    one = random_linear(6, 3, seed=2)
    z = [0.5, 1.0, -1.0]
    rectangle = main_rectangle(Layer.of(one).ranges(box(z, z)), 0.1)
    assert float(mass_inside(one, rectangle, z)) == pytest.approx(0.9, abs=1e-9)


def pair(batch: int, n: int, seed: int) -> tuple[Rectangle, Rectangle, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(batch, n, generator=generator, dtype=torch.float64)
    std = torch.rand(batch, n, generator=generator, dtype=torch.float64)
    main, reach = (Rectangle((mean - c * std)[:, None], (mean + c * std)[:, None]) for c in (2.0, 6.0))
    return main, reach, mean, std


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_refine_partitions_both_rectangles(parts: int) -> None:
    main, reach, mean, std = pair(5, 4, seed=3)
    inner, outer = refine(main, reach, torch.ones(5, 4, dtype=torch.float64), mean, std, parts)
    for whole, cells in ((main, inner), (reach, outer)):
        assert cells.lower.shape == (5, parts, 4)
        assert (cells.lower <= cells.upper).all()
        volume = (cells.upper - cells.lower).prod(-1).sum(-1)
        assert torch.allclose(volume, (whole.upper - whole.lower).prod(-1)[:, 0], rtol=1e-12)
        for i, j in itertools.combinations(range(parts), 2):
            low = torch.maximum(cells.lower[:, i], cells.lower[:, j])
            high = torch.minimum(cells.upper[:, i], cells.upper[:, j])
            assert ((high - low).amin(-1) <= 0).all()  # they meet in a face at most
    # a cell of the reach is the cell of the main rectangle, continued only where that one lies on the rim
    assert ((outer.lower == inner.lower) | ((inner.lower == main.lower) & (outer.lower == reach.lower))).all()
    assert ((outer.upper == inner.upper) | ((inner.upper == main.upper) & (outer.upper == reach.upper))).all()
    share = nominal_probability(outer, mean[:, None], std[:, None])
    assert torch.allclose(share.sum(-1), torch.ones(5, 1, dtype=torch.float64))


def test_refine_cuts_the_neuron_that_matters_and_survives_dead_ones() -> None:
    main, reach, mean, std = pair(2, 3, seed=4)
    weight = torch.tensor([[0.0, 1e3, 0.0], [1e3, 0.0, 0.0]], dtype=torch.float64)
    main = Rectangle(main.lower.abs(), main.lower.abs() + 1)
    reach = Rectangle(main.lower - 1, main.upper + 1)
    inner, _ = refine(main, reach, weight, mean, std, 2)
    cut = (inner.upper[:, 0] != main.upper[:, 0]).nonzero().tolist()
    assert cut == [[0, 1], [1, 0]]
    dead = Rectangle(-main.upper - 1, -main.lower - 1)
    inner, outer = refine(dead, Rectangle(dead.lower - 1, dead.upper + 1), weight, mean, std, 3)
    volume = (outer.upper - outer.lower).prod(-1).sum(-1)
    assert torch.allclose(volume, (dead.upper - dead.lower + 2).prod(-1)[:, 0])


def test_image_is_rectified_and_holds_its_point() -> None:
    rectangle = Rectangle(torch.tensor([[[-1.0, 0.5, -3.0]]]), torch.tensor([[[2.0, 1.0, -1.0]]]))
    image = rectangle.image(torch.tensor([[[5.0, 0.0, 1.0]]]))
    assert image.lower.tolist() == [[[0.0, 0.5, 0.0]]]
    assert image.upper.tolist() == [[[2.0, 1.0, 0.0]]]
    assert image.at.tolist() == [[[2.0, 0.5, 0.0]]]


def test_ranges_are_outer_and_free_of_underflow() -> None:
    one = linear([[1.0, -2.0]], [[1e-170, 0.0]], [0.0], [0.0])
    found = Layer.of(one).ranges(box([-1.0, 0.5], [2.0, 0.5]))
    assert found.mean_lower.item() <= -2.0
    assert found.mean_upper.item() >= 1.0
    assert found.std_upper.item() >= 2e-170
    assert found.std_upper.item() < 1e-100
    assert found.std_lower.item() == 0.0
