"""Intervals of the cut posterior: exact for one layer, sound for more, and the figures measured before."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from benchmarks.baselines import truncated
from benchmarks.paper.columns import Subject
from support.networks import make_network
from torch import Tensor

import bnndp.files.posterior
from bnndp.data import mnist
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

SIGNS = Box(
    [[0.2, 0.1], [-0.7, -0.3], [-0.4, -0.1], [0.1, -0.9], [0.0, -0.2]],
    [[0.5, 1.0], [-0.1, 0.0], [0.6, 0.9], [0.3, -0.2], [0.0, 0.3]],
)


def corners(lower: Tensor, upper: Tensor) -> Tensor:  # (n,) each
    """All 2**n corners of a box: (corners, n)."""
    picks = torch.tensor(list(itertools.product((0.0, 1.0), repeat=lower.numel())), dtype=torch.float64)
    return torch.where(picks > 0, upper, lower)


@pytest.mark.parametrize("cut", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_one_layer_is_exact(cut: float, seed: int) -> None:
    network = make_network((2, 3), seed, std=1.0)
    layer = network.linears[0]
    found = truncated.propagate(network, SIGNS, cut)[-1]
    for row in range(3):  # w z + b is linear in each of its variables: its extremes are at corners
        mean = torch.cat([layer.weight_mean[row], layer.bias_mean[row, None]])
        std = torch.cat([layer.weight_std[row], layer.bias_std[row, None]])
        weights = corners(mean - cut * std, mean + cut * std)  # (8, 3)
        for box in range(SIGNS.batch):
            z = corners(SIGNS.lower[box], SIGNS.upper[box])  # (4, 2)
            values = weights[:, :2] @ z.T + weights[:, 2:]
            torch.testing.assert_close(found.lower[box, row], values.min(), rtol=0, atol=1e-13)
            torch.testing.assert_close(found.upper[box, row], values.max(), rtol=0, atol=1e-13)


def test_the_pieces_of_mixed_products_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network((2, 4, 2), 1)
    whole = truncated.propagate(network, SIGNS, 2.0)[-1]
    monkeypatch.setattr(truncated, "_MEMORY", 1)
    pieces = truncated.propagate(network, SIGNS, 2.0)[-1]
    torch.testing.assert_close(pieces.lower, whole.lower, rtol=0, atol=1e-14)
    torch.testing.assert_close(pieces.upper, whole.upper, rtol=0, atol=1e-14)


def test_without_a_cut_it_is_interval_propagation_of_the_means() -> None:
    network = make_network((2, 5, 4, 2), 7)
    found = truncated.propagate(network, SIGNS, 0.0)[-1]
    for box in range(SIGNS.batch):
        z = list(zip(SIGNS.lower[box].tolist(), SIGNS.upper[box].tolist(), strict=True))
        for k, layer in enumerate(network.linears):
            if k:
                z = [(max(low, 0.0), max(high, 0.0)) for low, high in z]
            ends = []
            for weights, bias in zip(layer.weight_mean.tolist(), layer.bias_mean.tolist(), strict=True):
                pairs = [(w * low, w * high) for w, (low, high) in zip(weights, z, strict=True)]
                ends.append((bias + sum(map(min, pairs)), bias + sum(map(max, pairs))))
            z = ends
        assert found.lower[box].tolist() == pytest.approx([low for low, _ in z], abs=1e-13)
        assert found.upper[box].tolist() == pytest.approx([high for _, high in z], abs=1e-13)


@pytest.mark.parametrize("cut", [1.0, 3.0])
def test_every_network_in_the_cut_stays_inside(cut: float) -> None:
    network = make_network((2, 3, 3, 2), 11, std=0.5)
    found = truncated.propagate(network, SIGNS, cut)
    generator = torch.Generator().manual_seed(1)
    for _ in range(2000):

        def pick(mean: Tensor, std: Tensor) -> Tensor:
            side = 2 * torch.rand(mean.shape, generator=generator, dtype=torch.float64) - 1
            return mean + cut * std * side.sign()  # corners reach further than what lies between

        share = torch.rand(SIGNS.lower.shape, generator=generator, dtype=torch.float64).round()
        z = SIGNS.lower + share * (SIGNS.upper - SIGNS.lower)
        for k, layer in enumerate(network.linears):
            weight, bias = pick(layer.weight_mean, layer.weight_std), pick(layer.bias_mean, layer.bias_std)
            z = (z.clamp_min(0) if k else z) @ weight.T + bias
            assert (z >= found[k].lower - 1e-12).all()
            assert (z <= found[k].upper + 1e-12).all()


def test_a_cut_that_is_no_number_is_refused() -> None:
    for cut in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="cut must be"):
            truncated.propagate(make_network((2, 2)), SIGNS, cut)


def test_the_inputs_are_shifted() -> None:
    plain = make_network((2, 4, 1), 2)
    shift = torch.tensor([5.0, -3.0], dtype=torch.float64)
    moved = BayesianNetwork.from_linears(plain.linears, shift=shift)
    x = torch.tensor([[0.3, -0.2], [1.0, 0.5]], dtype=torch.float64)
    expected = truncated.width(Subject(plain, x, eps=0.1), cut=3)
    torch.testing.assert_close(truncated.width(Subject(moved, x + shift, eps=0.1), cut=3), expected, rtol=1e-12, atol=0)


def _two_classes(x: float, domain: tuple[float, float] | None = None, label: int = 0) -> Subject:
    """Logits w x and v x with w in 1 +- 0.1 and v in 0 +- 0.2 at one standard deviation."""
    layer = Linear(
        weight_mean=torch.tensor([[1.0], [0.0]], dtype=torch.float64),
        weight_std=torch.tensor([[0.1], [0.2]], dtype=torch.float64),
        bias_mean=torch.zeros(2),
        bias_std=torch.zeros(2),
    )
    network = BayesianNetwork.from_linears([layer], "classification")
    return Subject(network, torch.tensor([[x]], dtype=torch.float64), label=torch.tensor([label]), domain=domain)


@pytest.mark.parametrize(
    ("domain", "truth"),
    [
        (None, 0.7 / 1.1),  # 0.9 (1 - r) = 0.2 (1 + r)
        ((0.0, 1.05), 1 - 0.2 * 1.05 / 0.9),  # 0.9 (1 - r) = 0.2 * 1.05
    ],
)
def test_the_radius_of_one_layer_is_known(domain: tuple[float, float] | None, truth: float) -> None:
    found = truncated.radius(_two_classes(1.0, domain), cut=1).item()
    assert 0.99 * truth <= found <= truth


def test_there_is_no_radius_where_the_input_itself_fails() -> None:
    assert truncated.radius(_two_classes(1.0, label=1), cut=1).isnan().all()
    assert truncated.radius(_two_classes(1.0), cut=4).isnan().all()  # 0.6 < 0.8
    assert truncated.radius(_two_classes(0.0), cut=1).isnan().all()  # a tie is no decision


def test_the_mass_is_that_of_the_random_weights_only() -> None:
    normal = torch.distributions.Normal(0.0, 1.0)
    one = (1 - 2 * normal.cdf(torch.tensor(-2.0, dtype=torch.float64))).item()
    assert truncated.mass(_two_classes(1.0).network, 2.0) == pytest.approx(one**2, rel=1e-12)


def test_figures_of_the_published_sine_network(posteriors: Path) -> None:
    network = bnndp.files.posterior.load(posteriors / "sine1d_1x256.safetensors")
    found = truncated.propagate(network, Box.ball([[0.7]], 0.075), 3.0)[-1]
    assert (round(found.lower.item(), 1), round(found.upper.item(), 1)) == (-12.4, 13.0)
    assert truncated.mass(network, 3.0) == pytest.approx(0.125, abs=5e-4)


def test_figures_of_the_published_mnist_network(posteriors: Path, data_folder: Path) -> None:
    network = bnndp.files.posterior.load(posteriors / "mnist_2x64_vogn.safetensors")
    images = mnist("test", folder=data_folder)
    subject = Subject(network, images.x[:50], label=images.y[:50], domain=(0.0, 1.0))
    radius = truncated.radius(subject, cut=3.0)
    assert round(radius.nan_to_num(0.0).mean().item(), 4) == 0.0049
