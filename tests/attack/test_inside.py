"""The range from inside: planted maxima, known extremes, convergence, points that lie in their region."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from support.networks import layer_of, make_network
from support.records import uniform
from tests.marks import slow_but
from torch import Tensor

from bnndp.attack import inside as attacks
from bnndp.attack.inside import candidates, inside_range
from bnndp.attack.sampling import draw_noise, estimate
from bnndp.errors import InputError
from bnndp.files.posterior import load
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork


def tent(peak: float, h: float, *, sign: float = 1.0, std: float = 1e-4, deep: bool = False) -> BayesianNetwork:
    """Zero but for a tent of height one and half-width ``h`` around ``peak``; one or two hidden layers."""
    first = layer_of([[1.0], [1.0], [1.0]], [h - peak, -peak, -h - peak], std)
    slopes = [[1 / h, -2 / h, 1 / h]]
    if not deep:
        return BayesianNetwork.from_linears([first, layer_of([[sign * v for v in slopes[0]]], [0.0], std)])
    return BayesianNetwork.from_linears([first, layer_of(slopes, [0.0], std), layer_of([[sign]], [0.0], std)])


def grid_range(network: BayesianNetwork, box: Box, count: int) -> tuple[Tensor, Tensor]:
    """Extremes over a dense grid of the only box: (outputs,) each."""
    ends = zip(box.lower[0].tolist(), box.upper[0].tolist(), strict=True)
    lines = [torch.linspace(a, b, count, dtype=torch.float64) for a, b in ends]
    points = torch.cartesian_prod(*lines).reshape(-1, box.n)
    mean = estimate(network, points, draw_noise(network, 1, seed=0)).mean
    return mean.amin(0), mean.amax(0)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("peak", [-0.83, -0.01234, 0.377])
def test_a_planted_maximum_is_found(peak: float, deep: bool) -> None:
    found = inside_range(tent(peak, 0.02, deep=deep), Box([[-1.0]], [[1.0]]))
    assert found.upper.item() > 0.97
    assert abs(found.x_upper.item() - peak) < 1e-3
    assert abs(found.lower.item()) < 0.05


def test_a_planted_minimum_is_found() -> None:
    found = inside_range(tent(0.6, 0.02, sign=-1.0), Box([[-1.0]], [[1.0]]))
    assert found.lower.item() < -0.97
    assert abs(found.x_lower.item() - 0.6) < 1e-3


def test_the_published_range_of_the_sine_network(posteriors: Path) -> None:
    found = inside_range(load(posteriors / "sine1d_1x256.safetensors"), Box.ball([0.7], 0.075))
    assert found.lower.item() == pytest.approx(-0.8914, abs=1e-4)
    assert found.upper.item() == pytest.approx(-0.5793, abs=1e-4)
    assert found.error.item() == 0


@pytest.mark.parametrize("n", [1, 2])
def test_as_good_as_a_dense_grid(n: int) -> None:
    network = make_network((n, 40, 2), seed=2, std=0.3)
    box = Box([[-1.0] * n], [[1.5] * n])
    low, high = grid_range(network, box, 2001 if n == 1 else 301)
    found = inside_range(network, box)
    width = high - low
    assert (found.lower[0] <= low + 1e-5 * width).all()
    assert (found.upper[0] >= high - 1e-5 * width).all()


@pytest.mark.parametrize(("norm", "dual"), [(math.inf, 1), (2, 2), (1, math.inf)])
def test_affine_networks_reach_the_dual_norm(norm: float, dual: float) -> None:
    weight = torch.randn(3, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    network = BayesianNetwork.from_linears([layer_of(weight, [0.1, -0.2, 0.3], 0.5)])
    box = Box.ball(torch.linspace(-1, 1, 18, dtype=torch.float64).reshape(2, 9), 0.25, norm=norm)
    found = inside_range(network, box)
    centre = torch.linspace(-1, 1, 18, dtype=torch.float64).reshape(2, 9) @ weight.T + torch.tensor([0.1, -0.2, 0.3])
    reach = 0.25 * torch.linalg.vector_norm(weight, ord=dual, dim=1)
    torch.testing.assert_close(found.upper, (centre + reach), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found.lower, (centre - reach), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
@pytest.mark.parametrize("n", [2, 8])
def test_the_inputs_lie_in_their_regions_and_give_the_values(norm: float, n: int) -> None:
    network = make_network((n, 12, 2), seed=3, std=0.5)
    centre = uniform(4, n, seed=1) * 2 - 1
    box = Box.ball(centre, 0.3, norm=norm, domain=(-1, 1))
    found = inside_range(network, box, restarts=4, steps=20)
    noise = draw_noise(network, 1, seed=0)
    for x, value in ((found.x_lower, found.lower), (found.x_upper, found.upper)):
        assert box.contains(x.transpose(0, 1)).all()
        mean = estimate(network, x, noise).mean.diagonal(dim1=1, dim2=2)
        torch.testing.assert_close(mean, value, rtol=1e-13, atol=1e-13)
    assert box.contains(candidates(box)).all()


@pytest.mark.parametrize(
    ("sizes", "radius"),
    slow_but(itertools.product([(2, 32, 1), (2, 16, 16, 1), (12, 16, 16, 1)], [0.01, 0.3]), ((2, 32, 1), 0.3)),
)
def test_more_effort_changes_the_range_by_less_than_one_percent(sizes: tuple[int, ...], radius: float) -> None:
    network = make_network(sizes, seed=4, std=0.2)
    centre = uniform(3, sizes[0], seed=2) * 2 - 1
    box = Box.ball(centre, radius)
    found = inside_range(network, box)
    more = inside_range(network, box, restarts=16, steps=120)
    assert (((more.width - found.width) / more.width).abs() < 0.01).all()
    assert (found.width > 0).all()


def test_sampled_values_hold_their_confidence_interval() -> None:
    network = make_network((2, 4, 10, 2), seed=5, std=1.0)
    box = Box.ball(uniform(10, 2, seed=3) * 2 - 1, 0.2)
    found = inside_range(network, box, restarts=2, steps=10, samples=1024)
    noise = draw_noise(network, 2**14, seed=999)
    low, high = (estimate(network, x, noise).mean.diagonal(dim1=1, dim2=2) for x in (found.x_lower, found.x_upper))
    assert (found.error > 0).all()
    assert ((found.lower - low).abs() <= found.error).all()
    assert ((found.upper - high).abs() <= found.error).all()
    assert ((found.width - (high - low)).abs() <= found.width_error).all()
    assert (found.width_error < 0.5 * found.error).any()  # common noise: the range is known better than its ends


def test_a_point_has_no_range() -> None:
    x = torch.tensor([[0.3, -0.7]], dtype=torch.float64)
    for sizes in ((2, 8, 2), (2, 5, 5, 2)):
        found = inside_range(make_network(sizes), Box(x, x), restarts=2, steps=5)
        torch.testing.assert_close(found.lower, found.upper, rtol=1e-13, atol=1e-13)
        assert torch.equal(found.x_upper, x[:, None].expand(-1, 2, -1))


def test_a_box_is_attacked_alike_in_any_batch_and_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network((2, 6, 6, 1), std=0.3)
    box = Box.ball(uniform(5, 2, seed=4), 0.2)
    whole = inside_range(network, box, restarts=4, steps=10)
    monkeypatch.setattr(attacks, "_MEMORY", 1)
    pieces = inside_range(network, box, restarts=4, steps=10)
    torch.testing.assert_close(whole.upper, pieces.upper, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(whole.lower, pieces.lower, rtol=1e-9, atol=1e-9)


def test_candidates_hold_the_centre_and_all_vertices() -> None:
    box = Box([[-1.0, 0.1, 2.0]], [[0.3, 0.2, 5.0]])
    points = candidates(box)[:, 0]
    assert torch.equal(points[0], box.centre[0])
    for a in (-1.0, 0.3):
        for b in (0.1, 0.2):
            for c in (2.0, 5.0):
                assert (points == torch.tensor([a, b, c], dtype=torch.float64)).all(-1).any()  # exactly


def test_wrong_arguments_are_refused() -> None:
    network = make_network((2, 3, 1))
    with pytest.raises(InputError, match="takes 2 inputs, but the box has 1"):
        inside_range(network, Box([[0.0]], [[1.0]]))
    with pytest.raises(InputError, match="restarts must be at least 1, got 0"):
        inside_range(network, Box([[0.0, 0.0]], [[1.0, 1.0]]), restarts=0)
