"""FL with linear multipliers as a linear programme: known optima, the dual itself, and the figures measured before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benchmarks.baselines import functional_lagrangian as fl
from benchmarks.baselines.truncated import propagate
from torch import Tensor

import bnndp.files.posterior
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork


def _certain(weight: list[list[float]], bias: list[float]) -> Linear:
    no_weight, no_bias = torch.zeros(len(weight), len(weight[0])), torch.zeros(len(bias))
    return Linear(torch.tensor(weight), no_weight, torch.tensor(bias), no_bias)


@pytest.mark.parametrize(
    ("first", "bias", "last", "expected"),
    [
        ([[1.0], [-1.0]], [0.0, 0.0], [[1.0, 1.0]], (0.0, 1.0)),  # |x|, convex: exact
        ([[1.0], [1.0]], [0.0, 0.0], [[1.0, -1.0]], (-0.5, 0.5)),  # 0, but the two neurons part at x = 0
        ([[1.0], [1.0]], [2.0, 0.0], [[1.0, -3.0]], (0.0, 2.0)),  # x + 2 - 3 [x]_+
        ([[1.0], [1.0]], [-2.0, 2.0], [[5.0, 1.0]], (1.0, 3.0)),  # one never active, one always: x + 2
    ],
)
def test_optima_known_by_hand(
    first: list[list[float]], bias: list[float], last: list[list[float]], expected: tuple[float, float]
) -> None:
    network = BayesianNetwork.from_linears([_certain(first, bias), _certain(last, [0.0])])
    found = fl.mean_range(network, Box([[-1.0]], [[1.0]]), 0.0)
    assert (found.lower.item(), found.upper.item()) == pytest.approx(expected, abs=1e-9)


def test_without_hidden_layers_it_is_the_exact_range_of_the_mean(
    random_network: Callable[..., BayesianNetwork],
) -> None:
    network, box = random_network((3, 2), 1), Box([[-0.5, 0.1, -1.0]], [[0.2, 0.3, 1.5]])
    layer = network.linears[0]
    found = fl.mean_range(network, box, 3.0)
    torch.testing.assert_close(found.lower, box.minimum(layer.weight_mean, layer.bias_mean), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.upper, box.maximum(layer.weight_mean, layer.bias_mean), rtol=0, atol=1e-9)


@pytest.mark.parametrize("cut", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_one_hidden_layer_on_one_input_needs_no_solver(
    cut: float, seed: int, random_network: Callable[..., BayesianNetwork]
) -> None:
    network, box = random_network((1, 6, 1), seed), Box([[-0.6]], [[0.9]])
    hidden, last = network.linears
    shifted, row = propagate(network, box, cut)[0], last.weight_mean[0]
    low, high = shifted.lower[0], shifted.upper[0]
    # For given x every activation is best at its least or largest value; what is left is piecewise linear in x, with
    # breaks where a mean pre-activation is zero.
    breaks = -hidden.bias_mean / hidden.weight_mean[:, 0]
    x = torch.cat([box.lower[0], box.upper[0], breaks[(breaks > -0.6) & (breaks < 0.9)]])
    a = x[:, None] * hidden.weight_mean[:, 0] + hidden.bias_mean  # (points, 6)
    chord = torch.where(low >= 0, a, torch.where(high <= 0, 0.0, high * (a - low) / (high - low)))
    relu = a.clamp_min(0)
    most = (row * torch.where(row > 0, chord, relu)).sum(-1).max() + last.bias_mean
    least = (row * torch.where(row > 0, relu, chord)).sum(-1).min() + last.bias_mean
    found = fl.mean_range(network, box, cut)
    torch.testing.assert_close(found.upper[0], most, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.lower[0], least, rtol=0, atol=1e-8)


def _dual(network: BayesianNetwork, box: Box, cut: float, multipliers: list[Tensor]) -> Tensor:
    """The dual of FL with linear multipliers as it is written, an upper bound of the mean: a scalar."""
    intervals = propagate(network, box, cut)
    first, last = network.linears[0], torch.ones(1, dtype=torch.float64)
    row = multipliers[0] @ first.weight_mean
    total = (row.clamp_min(0) * box.upper[0] + row.clamp_max(0) * box.lower[0]).sum() + multipliers[0] @ first.bias_mean
    for k, layer in enumerate(network.linears[1:]):
        above = multipliers[k + 1] if k + 1 < len(multipliers) else last
        low, high = intervals[k].lower[0], intervals[k].upper[0]
        ends = torch.stack([low, high, torch.zeros_like(low).clamp(low, high)])  # a piecewise linear function's maximum
        values = (above @ layer.weight_mean) * ends.clamp_min(0) - multipliers[k] * ends  # (3, n_out)
        total = total + values.amax(0).sum() + above @ layer.bias_mean
    return total


@pytest.mark.parametrize("seed", range(2))
def test_the_dual_of_the_functional_lagrangian_converges_to_it(
    seed: int, random_network: Callable[..., BayesianNetwork]
) -> None:
    network, box, cut = random_network((2, 4, 4, 1), seed, std=0.1), Box([[-0.5, -0.2]], [[0.3, 0.6]]), 1.0
    optimum = fl.mean_range(network, box, cut).upper.item()
    multipliers = [torch.zeros(4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    optimiser = torch.optim.Adam(multipliers, lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.992)
    best = float("inf")
    for _ in range(1000):
        optimiser.zero_grad()
        value = _dual(network, box, cut, multipliers)
        value.backward()
        optimiser.step()
        schedule.step()
        best = min(best, value.item())
        assert value.item() >= optimum - 1e-8  # weak duality
    assert best <= optimum + 2e-3 * (1 + abs(optimum))


def _drawn_mean(network: BayesianNetwork, x: Tensor, cut: float, draws: int) -> tuple[Tensor, Tensor]:
    """Mean and standard error of the outputs over networks drawn from the cut posterior: (n_out,) each."""
    generator = torch.Generator().manual_seed(3)

    def pick(mean: Tensor, std: Tensor) -> Tensor:
        end = torch.special.ndtr(torch.tensor(-cut, dtype=torch.float64))
        level = end + (1 - 2 * end) * torch.rand((draws, *mean.shape), generator=generator, dtype=torch.float64)
        return mean + std * torch.special.ndtri(level)

    z = x.expand(draws, 1, -1)
    for k, layer in enumerate(network.linears):
        weight, bias = pick(layer.weight_mean, layer.weight_std), pick(layer.bias_mean, layer.bias_std)
        z = (z.clamp_min(0) if k else z) @ weight.mT + bias[:, None]
    return z[:, 0].mean(0), z[:, 0].std(0) / draws**0.5


@pytest.mark.parametrize("cut", [0.5, 2.0])
def test_it_holds_the_mean_of_the_cut_posterior_and_lies_in_the_intervals(
    cut: float, random_network: Callable[..., BayesianNetwork]
) -> None:
    network = random_network((2, 5, 5, 2), 4, std=0.6)
    box = Box([[-0.5, 0.1], [0.2, -0.3]], [[0.1, 0.4], [0.2, -0.3]])
    found, wide = fl.mean_range(network, box, cut), propagate(network, box, cut)[-1]
    assert (found.lower >= wide.lower).all()
    assert (found.upper <= wide.upper).all()
    assert ((found.upper - found.lower) < 0.9 * (wide.upper - wide.lower)).all()
    for index in range(2):
        for x in (box.lower[index], box.upper[index]):
            mean, error = _drawn_mean(network, x, cut, 20_000)
            assert (mean >= found.lower[index] - 5 * error).all()
            assert (mean <= found.upper[index] + 5 * error).all()


def test_an_unsolved_programme_leaves_the_intervals_and_says_so(
    random_network: Callable[..., BayesianNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, box = random_network((1, 3, 1)), Box([[-0.1]], [[0.1]])
    unsolved = SimpleNamespace(status=1, message="time is up", fun=None)
    monkeypatch.setattr("scipy.optimize.linprog", lambda *_, **__: unsolved)
    with pytest.warns(UserWarning, match="time is up"):
        found = fl.mean_range(network, box, 1.0)
    wide = propagate(network, box, 1.0)[-1]
    assert torch.equal(found.lower, wide.lower)
    assert torch.equal(found.upper, wide.upper)


def test_balls_are_refused(random_network: Callable[..., BayesianNetwork]) -> None:
    with pytest.raises(InputError, match="takes boxes"):
        fl.mean_range(random_network((2, 2, 1)), Box.ball([[0.0, 0.0]], 0.1, norm=2), 1.0)


@pytest.mark.parametrize(("cut", "expected"), [(1.0, (-0.948, -0.466)), (3.0, (-1.346, 0.473)), (5.0, (-2.228, 1.630))])
def test_figures_of_the_published_sine_network(cut: float, expected: tuple[float, float], posteriors: Path) -> None:
    network = bnndp.files.posterior.load(posteriors / "sine1d_1x256.safetensors")
    found = fl.mean_range(network, Box.ball([[0.7]], 0.075), cut)
    assert (round(found.lower.item(), 3), round(found.upper.item(), 3)) == expected
