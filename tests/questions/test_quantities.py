"""Variance, probabilities of intervals and noise, against closed forms, quadrature and drawn networks."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from support.oracles import rectified
from torch import Tensor

from bnndp.activations import Tanh
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.errors import InputError, UnsupportedLayerError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Dropout, Linear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.options import Options
from bnndp.questions.certify import certify, probability
from bnndp.questions.quantities import Between, _by_moments, _gaussian

F64 = torch.float64
DRAWS = 20_000


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def linear(n_out: int, n_in: int, seed: int, std: float = 0.3) -> Linear:
    parts = [normal(n_out, n_in, seed=4 * seed), normal(n_out, seed=4 * seed + 1)]
    spreads = [std * normal(n_out, n_in, seed=4 * seed + 2).abs(), std * normal(n_out, seed=4 * seed + 3).abs()]
    return Linear(parts[0] / n_in**0.5, spreads[0], parts[1], spreads[1])


def points_of(box: Box, count: int) -> Tensor:
    """Corners and inner points: (count, batch, n)."""
    share = torch.rand(count, box.batch, box.n, generator=torch.Generator().manual_seed(count), dtype=F64)
    share[::2] = share[::2].round()
    return (box.lower + share * (box.upper - box.lower)).clamp(box.lower, box.upper)


def phi(t: float) -> float:
    return 0.5 * math.erfc(-t / math.sqrt(2))


def gaussian(m: float, r: float, a: float, b: float) -> float:
    return phi((b - m) / r) - phi((a - m) / r)


# Variance


def test_the_variance_of_a_linear_network_is_known() -> None:
    layer = linear(3, 4, 1)
    box = Box.ball(normal(5, 4, seed=9), 0.3)
    bounds = certify(BayesianNetwork((layer,)), box, quantity="variance")
    x = points_of(box, 64)
    truth = x.square() @ layer.weight_std.square().T + layer.bias_std.square()
    assert bool((bounds.lower <= truth.amin(0)).all())
    assert bool((bounds.upper >= truth.amax(0)).all())
    corner = box.magnitude.square() @ layer.weight_std.square().T + layer.bias_std.square()
    assert bool((bounds.upper <= corner * (1 + 1e-8)).all())
    point = certify(BayesianNetwork((layer,)), Box(box.centre, box.centre), quantity="variance")
    assert bool((point.width <= 1e-8 * point.upper).all())
    assert bounds.affine is None


def test_one_hidden_layer_in_closed_form() -> None:
    first, last = linear(6, 2, 2), linear(2, 6, 3)
    network = BayesianNetwork.from_linears([first, last])
    x = normal(4, 2, seed=5)
    bounds = certify(network, Box(x, x), quantity="variance")
    for b, point in enumerate(x):
        m = first.weight_mean @ point + first.bias_mean
        r = (first.weight_std.square() @ point.square() + first.bias_std.square()).sqrt()
        z = [rectified(mean, std) for mean, std in zip(m.tolist(), r.tolist(), strict=True)]
        mean = torch.tensor([float(part.mean) for part in z], dtype=F64)
        second = torch.tensor([float(part.second) for part in z], dtype=F64)
        truth = (last.weight_mean.square() + last.weight_std.square()) @ second
        truth = truth - last.weight_mean.square() @ mean.square() + last.bias_std.square()
        assert bool((bounds.lower[b] <= truth).all())
        assert bool((bounds.upper[b] >= truth).all())
        assert bool((bounds.width[b] <= 1e-3 * truth).all())
    wide = certify(network, Box.ball(x, 0.2), quantity="variance")
    assert bool((wide.lower <= bounds.lower * (1 + 1e-9)).all() & (wide.upper >= bounds.upper * (1 - 1e-9)).all())
    fine = certify(network, Box.ball(x, 0.2), Options(refine=16), quantity="variance")
    assert bool((fine.width < wide.width).all())


@pytest.mark.parametrize("kind", ["relu", "tanh", "dropout"])
def test_deep_networks_against_drawn_ones(kind: str) -> None:
    layers = {
        "relu": BayesianNetwork.from_linears([linear(8, 2, 10), linear(8, 8, 11), linear(2, 8, 12)]).layers,
        "tanh": (linear(8, 2, 13), Tanh(), linear(8, 8, 14), Tanh(), linear(2, 8, 15)),
        "dropout": (linear(8, 2, 16, 0.0), Tanh(), Dropout(0.3), linear(2, 8, 17, 0.0)),
    }[kind]
    network = BayesianNetwork(layers)
    box = Box.ball(normal(4, 2, seed=6), 0.1)
    bounds = certify(network, box, quantity="variance")
    x = points_of(box, 4)
    found = evaluate(draw_networks(network, DRAWS, seed=3), x.reshape(-1, 2)).unflatten(1, (4, 4))
    away = (found - found.mean(0)).square()
    error = 5 * away.std(0) / DRAWS**0.5
    assert bool((bounds.lower <= away.mean(0) + error).all())
    assert bool((bounds.upper >= away.mean(0) - error).all())
    assert bool((bounds.lower > 0).all())
    for a, b in ((-0.5, 0.5), (-math.inf, 1.0), (0.0, math.inf), (-20.0, 20.0), (30.0, 31.0)):
        inside = ((found >= a) & (found <= b)).to(F64).mean(0)
        chance = probability(network, box, a, b)
        blur = 5 * (inside * (1 - inside) / DRAWS).sqrt() + 1e-3
        assert bool((chance.lower <= inside + blur).all())
        assert bool((chance.upper >= inside - blur).all())
    assert bool((probability(network, box, -20.0, 20.0).lower > 0.9).all())
    assert bool((probability(network, box, 30.0, 31.0).upper < 0.1).all())


def test_a_deterministic_network_has_no_variance_and_a_shift_is_seen() -> None:
    fixed = BayesianNetwork((Linear.fixed(normal(3, 2, seed=1)), Tanh(), Linear.fixed(normal(1, 3, seed=2))))
    bounds = certify(fixed, Box.ball([[0.1, 0.2]], 0.5), quantity="variance")
    assert bounds.lower.tolist() == [[0.0]]
    assert bounds.upper.item() < 1e-200
    layer = linear(1, 2, 5)
    shifted = BayesianNetwork((layer,), shift=torch.tensor([1.0, -2.0]))
    x = torch.tensor([[1.5, 0.5]], dtype=F64)
    truth = torch.tensor([[0.5, 2.5]], dtype=F64).square() @ layer.weight_std.square().T + layer.bias_std.square()
    found = certify(shifted, Box(x, x), quantity="variance")
    assert torch.allclose(found.lower, truth, rtol=1e-8)
    assert torch.allclose(found.upper, truth, rtol=1e-8)


def test_the_variance_of_an_ensemble_is_within_and_between_its_members() -> None:
    layers = [linear(2, 3, seed) for seed in (21, 22, 23)]
    w = torch.tensor([0.5, 0.3, 0.2], dtype=F64)
    ensemble = Ensemble(tuple(BayesianNetwork((layer,)) for layer in layers), w)

    def exact(x: Tensor) -> Tensor:
        means = torch.stack([x @ layer.weight_mean.T + layer.bias_mean for layer in layers])
        spreads = [x.square() @ layer.weight_std.square().T + layer.bias_std.square() for layer in layers]
        mean = torch.einsum("k,k...->...", w, means)
        return torch.einsum("k,k...->...", w, torch.stack(spreads) + (means - mean).square())

    x = normal(6, 3, seed=8)
    point = certify(ensemble, Box(x, x), quantity="variance")
    assert bool((point.lower <= exact(x)).all() & (point.upper >= exact(x)).all())
    assert bool((point.width <= 1e-8 * exact(x)).all())
    box = Box.ball(x, 0.2)
    bounds = certify(ensemble, box, quantity="variance")
    truth = exact(points_of(box, 200))
    assert bool((bounds.lower <= truth.amin(0)).all())
    assert bool((bounds.upper >= truth.amax(0)).all())


# Probabilities


def test_gaussian_outputs_over_boxes() -> None:
    first, last = Linear.fixed(normal(5, 2, seed=31)), linear(2, 5, 32)
    network = BayesianNetwork((first, Tanh(), last))
    box = Box.ball(normal(4, 2, seed=33), 0.15)
    ends = [-math.inf, -1.0, 0.0, 0.4, math.inf]
    for a, b in itertools.combinations(ends, 2):
        bounds = probability(network, box, a, b)
        for x in points_of(box, 30):
            z = torch.tanh(x @ first.weight_mean.T)
            m = z @ last.weight_mean.T + last.bias_mean
            r = (z.square() @ last.weight_std.square().T + last.bias_std.square()).sqrt()
            pairs = zip(m.flatten().tolist(), r.flatten().tolist(), strict=True)
            truth = torch.tensor([gaussian(*pair, a, b) for pair in pairs], dtype=F64).reshape(4, 2)
            assert bool((bounds.lower <= truth + 1e-14).all())
            assert bool((bounds.upper >= truth - 1e-14).all())
        point = probability(network, Box(x, x), a, b)
        assert bool((point.lower <= truth + 1e-14).all() & (point.upper >= truth - 1e-14).all())
        assert bool((point.width < 1e-7).all())
    pair = Ensemble((network, BayesianNetwork((first, Tanh(), linear(2, 5, 34)))), torch.tensor([0.25, 0.75]))
    parts = [probability(member, box, -1.0, 0.4) for member in pair.members]
    found = probability(pair, box, -1.0, 0.4)
    assert torch.allclose(found.lower, 0.25 * parts[0].lower + 0.75 * parts[1].lower, rtol=0, atol=1e-12)
    assert torch.allclose(found.upper, 0.25 * parts[0].upper + 0.75 * parts[1].upper, rtol=0, atol=1e-12)


def test_a_rectangle_of_gaussians_by_search() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        m = torch.randn(2, generator=generator, dtype=F64).sort().values
        v = torch.rand(2, generator=generator, dtype=F64).sort().values * 4
        a, b = torch.randn(2, generator=generator, dtype=F64).mul(2).sort().values.tolist()
        low, high = _gaussian(Interval(m[:1, None], m[1:, None]), Interval(v[:1, None], v[1:, None]), Between(a, b))
        means = torch.linspace(*m.tolist(), 41, dtype=F64)
        roots = torch.linspace(*v.sqrt().tolist(), 41, dtype=F64)
        values = [gaussian(x, r, a, b) for x in means.tolist() for r in roots.tolist()]
        assert low.item() <= min(values)
        assert high.item() >= max(values)
        assert low.item() >= min(values) - 1e-12
        assert high.item() <= max(values) + 5e-3


def test_probabilities_hold_for_every_law_of_two_or_three_points() -> None:
    for mean, variance in ((0.0, 1.0), (0.7, 0.2), (-2.0, 3.0), (0.3, 1e-8)):
        for a, b in ((-1.0, 1.0), (-0.5, 4.0), (-3.0, 0.5), (1.0, 2.0), (-math.inf, 0.5), (-1.0, math.inf)):
            ends = Interval(*(torch.tensor([[mean + step]], dtype=F64) for step in (-0.01, 0.01)))
            low, high = _by_moments(ends, torch.tensor([[variance]], dtype=F64), Between(a, b))
            for p in torch.linspace(0.01, 0.99, 99).tolist():
                for middle in (0.0, 0.5):  # mass at the mean itself
                    sd = math.sqrt(variance / (1 - middle))
                    atoms = (mean - sd * math.sqrt((1 - p) / p), mean + sd * math.sqrt(p / (1 - p)), mean)
                    masses = ((1 - middle) * p, (1 - middle) * (1 - p), middle)
                    inside = sum(mass for atom, mass in zip(atoms, masses, strict=True) if a <= atom <= b)
                    assert low.item() <= inside + 1e-12
                    assert high.item() >= inside - 1e-12
    unit = Interval(*(torch.zeros(1, 1, dtype=F64) for _ in range(2)))
    assert _by_moments(unit, torch.ones(1, 1, dtype=F64), Between(-2.0, 2.0))[0].item() == pytest.approx(0.75)
    assert _by_moments(unit, torch.ones(1, 1, dtype=F64), Between(-2.0, 5.0))[0].item() == pytest.approx(0.8)  # Selberg
    assert _by_moments(unit, torch.ones(1, 1, dtype=F64), Between(-2.0, math.inf))[0].item() == pytest.approx(0.8)
    assert _by_moments(unit, torch.ones(1, 1, dtype=F64), Between(2.0, 3.0))[1].item() == pytest.approx(0.2)


def test_outputs_without_spread_are_inside_or_not() -> None:
    network = BayesianNetwork((Linear.fixed(torch.ones(1, 1)),))
    box = Box([[0.0], [0.9], [2.0]], [[0.5], [1.1], [2.5]])
    bounds = probability(network, box, 0.0, 1.0)
    assert torch.allclose(bounds.upper, torch.tensor([[1.0], [1.0], [0.0]], dtype=F64), atol=1e-12)
    assert bounds.lower[1].item() == 0.0
    assert probability(network, box, -1.0, 5.0).lower.min().item() > 1 - 1e-12
    assert probability(network, Box([[1.0]], [[1.0]]), 1.0, 1.0).upper.item() == 1.0


# Noise


def test_noise_of_a_heteroscedastic_head() -> None:
    first, last = Linear.fixed(normal(5, 2, seed=41)), linear(2, 5, 42, 0.2)
    network = BayesianNetwork((first, Tanh(), last))
    box = Box.ball(normal(3, 2, seed=43), 0.1)
    bounds = certify(network, box, quantity="noise")
    x = points_of(box, 100)
    z = torch.tanh(x @ first.weight_mean.T)
    mean = z @ last.weight_mean.T + last.bias_mean
    spread = z.square() @ last.weight_std.square().T + last.bias_std.square()
    truth = torch.exp(mean + 0.5 * spread)
    assert bool((bounds.lower <= truth.amin(0)).all())
    assert bool((bounds.upper >= truth.amax(0)).all())
    assert bool((bounds.upper < 3 * truth.amax(0)).all())
    drawn = evaluate(draw_networks(network, DRAWS, seed=0), box.centre).exp()
    error = 5 * drawn.std(0) / DRAWS**0.5
    assert bool((bounds.lower <= drawn.mean(0) + error).all() & (bounds.upper >= drawn.mean(0) - error).all())
    pair = certify(Ensemble((network, network)), box, quantity="noise")
    assert torch.allclose(pair.upper, bounds.upper, rtol=1e-12)
    assert bool((pair.upper >= bounds.upper * (1 - 1e-15)).all())


def test_noise_that_may_be_infinite_is_refused() -> None:
    network = BayesianNetwork.from_linears([linear(3, 2, 1), linear(2, 3, 2)])
    with pytest.raises(
        UnsupportedLayerError, match="not known to be finite: something before its last layer is random"
    ):
        certify(network, Box.ball([[0.0, 0.0]], 0.1), quantity="noise")
    with pytest.raises(UnsupportedLayerError, match="not known to be finite"):
        certify(Ensemble((network,)), Box.ball([[0.0, 0.0]], 0.1), quantity="noise")


def test_very_large_noise_is_infinite_above_and_finite_below() -> None:
    layer = Linear(torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor([5000.0, -5000.0]), torch.ones(2))
    bounds = certify(BayesianNetwork((layer,)), Box([[0.0]], [[0.0]]), quantity="noise")
    assert bounds.upper[0, 0].item() == math.inf
    assert 1e307 < bounds.lower[0, 0].item() < math.inf
    assert bounds.lower[0, 1].item() == 0.0
    assert bounds.upper[0, 1].item() < 1e-280


# Questions that are refused, and several outputs


def test_wrong_questions_are_refused() -> None:
    network, box = BayesianNetwork((linear(2, 2, 1),)), Box.ball([[0.0, 0.0]], 0.1)
    with pytest.raises(InputError, match="one of mean, variance, noise, got 'median'"):
        certify(network, box, quantity="median")
    for quantity in ("variance", "noise"):
        with pytest.raises(InputError, match="regression network; this one is for classification"):
            certify(BayesianNetwork((linear(2, 2, 1),), "classification"), box, quantity=quantity)
        with pytest.raises(InputError, match="the network takes 2"):
            certify(network, Box.ball([[0.0]], 0.1), quantity=quantity)
        with pytest.raises(InputError, match="bounds the mean only"):
            certify(network, box, Options(method="best"), quantity=quantity)
    for a, b in ((1.0, 0.0), (math.nan, 1.0), (math.inf, math.inf), (-math.inf, -math.inf)):
        with pytest.raises(InputError, match="a <= b"):
            probability(network, box, a, b)
    with pytest.raises(InputError, match="batch is empty"):
        probability(network, box[:0], 0.0, 1.0)


def test_overflow_is_no_bound() -> None:
    large = torch.full((4, 2), 1e200, dtype=F64)
    huge = Linear(large, large, torch.zeros(4), torch.zeros(4))
    network = BayesianNetwork.from_linears([huge, linear(1, 4, 3)])
    bounds = certify(network, Box.ball([[1.0, 1.0]], 0.1), quantity="variance")
    assert bounds.upper.item() == math.inf
    chance = probability(network, Box.ball([[1.0, 1.0]], 0.1), -1.0, 1.0)
    assert (chance.lower.item(), chance.upper.item()) == (0.0, 1.0)


def test_several_outputs_are_bounded_one_by_one() -> None:
    first, last = linear(5, 2, 51), linear(4, 5, 52)
    box = Box.ball(normal(3, 2, seed=53), 0.2)
    whole = certify(BayesianNetwork.from_linears([first, last]), box)
    spread = certify(BayesianNetwork.from_linears([first, last]), box, quantity="variance")
    for j in range(4):
        one = Linear(
            last.weight_mean[j : j + 1], last.weight_std[j : j + 1], last.bias_mean[j : j + 1], last.bias_std[j : j + 1]
        )
        alone = BayesianNetwork.from_linears([first, one])
        assert torch.allclose(whole.lower[:, j], certify(alone, box).lower[:, 0], rtol=1e-12)
        assert torch.allclose(whole.upper[:, j], certify(alone, box).upper[:, 0], rtol=1e-12)
        assert torch.allclose(spread.upper[:, j], certify(alone, box, quantity="variance").upper[:, 0], rtol=1e-12)
