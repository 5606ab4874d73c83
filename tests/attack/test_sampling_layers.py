"""Means from inside of any layers and ensembles against networks drawn one at a time, with honest standard errors."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from support.records import classifier, conv, correlated, linear, matrix_normal, networks, normal, outputs
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import ACTIVATIONS, Relu, Tanh
from bnndp.attack import AttackBudget, Reach, attack_radius, evade, sampler
from bnndp.attack import noise as noise_module
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.attack.inside import inside_range
from bnndp.attack.noise import Noise, gaussian_noise
from bnndp.attack.sampled_softmax import (
    Contest,
    draw_softmax_noise,
    estimate_softmax,
    log_means,
    mean_path,
    odds_direction,
    quick_path,
)
from bnndp.attack.sampler import sampled_at
from bnndp.attack.sampling import MEAN_OUTPUT, ascent_direction, draw_noise, estimate, is_exact
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.layers import AveragePool, Conv2d, Dropout, Flatten, Linear
from bnndp.network import BayesianNetwork, Ensemble

NETWORKS = networks() | {"plain": BayesianNetwork.from_linears([linear(6, 4, 1), linear(5, 6, 2), linear(3, 5, 3)])}
every = pytest.mark.parametrize("name", NETWORKS)
few = pytest.mark.parametrize("name", slow_but(NETWORKS, "plain", "dropout", "mixture"))
SMALL = AttackBudget(restarts=2, steps=4, targets=2, draws=8, samples=256)


@cache
def one_at_a_time(name: str) -> tuple[Tensor, Tensor]:
    """Three inputs and the outputs of networks drawn one after the other: (draws, 3, n_out)."""
    network = NETWORKS[name]
    x = normal(3, network.n_in, seed=1)
    return x, outputs(network, x, 800, seed=3)


def apart(mean: Tensor, error: Tensor, samples: Tensor) -> float:
    """Distance of an estimate from the mean of samples (draws, ...), in standard errors of the difference."""
    own = samples.var(0) / len(samples)
    return float(((mean - samples.mean(0)).abs() / (own + error**2).sqrt()).max())


@few
def test_means_are_those_of_networks_drawn_one_at_a_time(name: str) -> None:
    network = NETWORKS[name]
    x, samples = one_at_a_time(name)
    found = estimate(network, x, draw_noise(network, 4096, seed=2))
    assert apart(found.mean, found.std_error, samples) < 5
    assert bool((found.std_error == 0).all()) is is_exact(network)
    assert found.std_error.max() < 0.5 * samples.std(0).max() / math.sqrt(4096)  # what is integrated out counts


@few
def test_mean_probabilities_are_those_of_networks_drawn_one_at_a_time(name: str) -> None:
    network = classifier(NETWORKS[name])
    x, samples = one_at_a_time(name)
    found = estimate_softmax(network, x, draw_softmax_noise(network, 4096, seed=2))
    assert apart(found.mean, found.std_error, samples.softmax(-1)) < 5
    torch.testing.assert_close(found.mean.sum(-1), torch.ones(3, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", slow_but(["tanh", "matrix normal", "dropout", "convolution last", "mixture"], "tanh"))
def test_standard_errors_are_honest(name: str) -> None:
    """Estimates with other seeds scatter as much as their standard errors say."""
    network = NETWORKS[name]
    x = normal(2, network.n_in, seed=1)
    for draw, value, chain in (
        (draw_noise, estimate, network),
        (draw_softmax_noise, estimate_softmax, classifier(network)),
    ):
        found = [value(chain, x, draw(chain, 128, seed=seed)) for seed in range(10)]
        scatter = torch.stack([one.mean for one in found]).var(0).mean()
        claimed = torch.stack([one.std_error**2 for one in found]).mean()
        if value is estimate and is_exact(network):
            assert scatter == claimed == 0
        else:
            assert 0.3 < scatter / claimed < 3


EXACT: dict[str, Any] = {
    "one hidden layer": (linear(5, 4, 1), Tanh(), linear(3, 5, 2)),
    "rows": (correlated(5, 4, 1, shared=False), Tanh(), linear(3, 5, 2)),
    "low rank": (correlated(5, 4, 1, shared=True), Relu(), correlated(3, 5, 2, shared=True)),
    "matrix normal": (matrix_normal(5, 4, 1), Tanh(), matrix_normal(3, 5, 2)),
    "dropout above": (linear(5, 4, 1), Tanh(), Dropout(0.3), linear(3, 5, 2)),
    "no activation": (Dropout(0.2), linear(5, 4, 1), linear(3, 5, 2)),
    "fixed below": (Linear.fixed(normal(6, 4, seed=1)), Tanh(), linear(5, 6, 1), Relu(), linear(3, 5, 2)),
}


@pytest.mark.parametrize("name", EXACT)
def test_closed_forms_are_exact(name: str) -> None:
    network = BayesianNetwork(EXACT[name])
    x = normal(3, 4, seed=1)
    found = estimate(network, x, draw_noise(network, 64, seed=2))
    assert is_exact(network)
    assert not found.std_error.any()
    assert apart(found.mean, found.std_error, evaluate(draw_networks(network, 40000, seed=3), x)) < 5


def test_a_convolution_seen_by_the_last_activation_is_exact() -> None:
    layers = (conv(2, 1, 1), Tanh(), AveragePool(2), Dropout(0.3, channels=True), Flatten(), linear(3, 8, 2))
    network = BayesianNetwork(layers, input_shape=(1, 6, 6))
    x = normal(2, 36, seed=1)
    found = estimate(network, x, draw_noise(network, 64, seed=2))
    assert is_exact(network)
    assert apart(found.mean, found.std_error, evaluate(draw_networks(network, 20000, seed=3), x)) < 5


@pytest.mark.parametrize("kind", sorted(set(ACTIVATIONS) - {"piecewise_affine"}))
def test_networks_without_variance_are_exact_with_one_draw(kind: str) -> None:
    act = ACTIVATIONS[kind]()
    layers = (Linear.fixed(normal(5, 4, seed=1)), act, Linear.fixed(normal(3, 5, seed=2)))
    network, x = BayesianNetwork(layers), normal(3, 4, seed=3)
    want = act(x @ layers[0].weight_mean.T) @ layers[2].weight_mean.T
    noise = draw_noise(network, 4096, seed=0)
    assert (noise.replicates, noise.draws) == (1, 1)
    torch.testing.assert_close(estimate(network, x, noise).mean, want, rtol=1e-13, atol=1e-13)
    probabilities = estimate_softmax(network, x, draw_softmax_noise(network, 4096, seed=0))
    torch.testing.assert_close(probabilities.mean, want.softmax(-1), rtol=1e-13, atol=1e-13)
    assert not probabilities.std_error.any()


# Ensembles


def fixed(seed: int, width: int = 5, act: Any = None) -> BayesianNetwork:
    layers = (Linear.fixed(normal(width, 4, seed=seed)), act or Tanh(), Linear.fixed(normal(3, width, seed=seed + 1)))
    return BayesianNetwork(layers, shift=normal(4, seed=seed))


@pytest.mark.parametrize("alike", [True, False])
def test_members_without_variance_are_exact(alike: bool) -> None:
    members = tuple(fixed(k, 5 if alike else 5 + k, Tanh() if alike or k else Relu()) for k in range(4))
    weights = torch.tensor([0.1, 0.0, 0.3, 0.6], dtype=torch.float64)
    ensemble, x = Ensemble(members, weights), normal(6, 4, seed=9)
    each = torch.stack([evaluate(draw_networks(member, 1, seed=0), x)[0] for member in members])
    noise = draw_noise(ensemble, 4096, seed=0)
    assert (noise.chain is not None) is alike
    assert noise.replicates == 1
    found = estimate(ensemble, x, noise)
    assert is_exact(ensemble)
    assert not found.std_error.any()
    torch.testing.assert_close(found.mean, torch.einsum("m,mpo->po", weights, each), rtol=1e-13, atol=1e-13)
    for path in (draw_softmax_noise(ensemble, 64, seed=0), mean_path(ensemble)):
        p = estimate_softmax(ensemble, x, path)
        torch.testing.assert_close(p.mean, torch.einsum("m,mpo->po", weights, each.softmax(-1)), rtol=1e-13, atol=1e-13)
        assert not p.std_error.any()


@pytest.mark.parametrize("alike", [True, False])
def test_members_without_weight_change_nothing(alike: bool) -> None:
    members = tuple(fixed(k, 5 if alike else 5 + k) for k in range(3))
    x, rows = normal(4, 4, seed=9), torch.tensor([[[-1.0, 1.0, 0.0]]], dtype=torch.float64).expand(4, -1, -1)
    whole = Ensemble(members, torch.tensor([0.4, 0.0, 0.6], dtype=torch.float64))
    part = Ensemble((members[0], members[2]), torch.tensor([0.4, 0.6], dtype=torch.float64))
    (value, slope), (own, steep) = (odds_direction(one, x, Contest.of(rows), mean_path(one)) for one in (whole, part))
    torch.testing.assert_close(value, own, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope, steep, rtol=1e-12, atol=1e-12)


def test_members_have_noise_of_their_own() -> None:
    network = NETWORKS["tanh"]
    assert isinstance(network, BayesianNetwork)
    noise = draw_noise(Ensemble((network, network)), 256, seed=0)
    first, second = (member.part(0)[0] for member in noise.members)
    assert first is not None
    assert second is not None
    assert first.shape == second.shape
    assert (first != second).all()
    assert noise.draws * noise.replicates * 2 >= 256


# Noise


def test_noise_that_is_not_held_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    network = classifier(NETWORKS["convolutions"])
    x = normal(3, network.n_in, seed=1)
    for draw, value in ((draw_noise, estimate), (draw_softmax_noise, estimate_softmax)):
        held = value(network, x, draw(network, 128, seed=4))
        with monkeypatch.context() as patch:
            patch.setattr(noise_module, "_HELD", 0)
            noise = draw(network, 128, seed=4)
            assert not noise.members[0].held
            assert torch.equal(value(network, x, noise).replicates, held.replicates)
        assert noise.replicates * noise.draws >= 128


def test_many_gaussians_are_pseudo_random(monkeypatch: pytest.MonkeyPatch) -> None:
    network = NETWORKS["convolutions"]
    x = normal(2, network.n_in, seed=1)
    monkeypatch.setattr(noise_module, "_SOBOL", 1)
    found = estimate(network, x, draw_noise(network, 2048, seed=4))
    assert apart(found.mean, found.std_error, evaluate(draw_networks(network, 4000, seed=5), x)) < 5


@pytest.mark.parametrize("name", ["plain", *slow_but(["low rank", "convolutions", "mixture"], "convolutions")])
def test_pieces_do_not_matter(name: str) -> None:
    network = NETWORKS[name]
    x = normal(5, 2, network.n_in, seed=1)
    noise = draw_noise(network, 64, seed=2)
    whole, pieces = (estimate(network, x, noise, memory=memory) for memory in (2**23, 1))
    assert whole.mean.shape == (5, 2, network.n_out)
    torch.testing.assert_close(pieces.replicates, whole.replicates, rtol=1e-12, atol=1e-12)
    other = draw_softmax_noise(network, 64, seed=2)
    whole_logs, piece_logs = (log_means(network, x, other, memory=memory) for memory in (2**23, 1))
    torch.testing.assert_close(piece_logs, whole_logs, rtol=1e-12, atol=1e-12)


def test_wrong_numbers_are_refused() -> None:
    for name in ("plain", "tanh", "mixture"):
        with pytest.raises(InputError, match="samples and replicates must be at least 1, got 0 and"):
            draw_noise(NETWORKS[name], 0, seed=0)
        with pytest.raises(InputError, match=r"samples and replicates must be at least 1, got . and 0"):
            draw_softmax_noise(NETWORKS[name], 8, seed=0, replicates=0)


# Directions


@every
def test_directions_are_derivatives(name: str) -> None:
    network = NETWORKS[name]
    x, rows = normal(3, network.n_in, seed=1), normal(3, network.n_out, seed=2)
    noise = draw_noise(network, 64, seed=3, replicates=2)
    value, slope = ascent_direction(network, x, rows, noise)
    torch.testing.assert_close(value, (estimate(network, x, noise).mean * rows).sum(-1), rtol=1e-10, atol=1e-10)
    h = 1e-5 * normal(3, network.n_in, seed=4)
    up, down = ((estimate(network, x + sign * h, noise).mean * rows).sum(-1) for sign in (1, -1))
    torch.testing.assert_close((slope * h).sum(-1), (up - down) / 2, rtol=2e-3, atol=1e-9)


@every
def test_directions_of_odds_are_derivatives(name: str) -> None:
    network = classifier(NETWORKS[name])
    x = normal(3, network.n_in, seed=1)
    rows = torch.tensor([[[-1.0, 1.0, 0.0]]], dtype=torch.float64).expand(3, -1, -1)
    noise = draw_softmax_noise(network, 32, seed=3, replicates=1)
    value, slope = odds_direction(network, x, Contest.of(rows), noise)
    p = log_means(network, x, noise)[0]
    torch.testing.assert_close(value, p[:, 0] - p[:, 1], rtol=1e-10, atol=1e-10)
    h = 1e-6 * normal(3, network.n_in, seed=4)
    up, down = (log_means(network, x + sign * h, noise)[0] for sign in (1, -1))
    change = (up - down)[:, 0] - (up - down)[:, 1]
    torch.testing.assert_close((slope * h).sum(-1), change / 2, rtol=1e-4, atol=1e-12)


@every
def test_replicates_side_by_side_are_those_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = classifier(NETWORKS[name])
    x = normal(3, network.n_in, seed=1)
    noise, own = draw_softmax_noise(network, 96, seed=3), draw_noise(network, 96, seed=3)
    together = log_means(network, x, noise), estimate(network, x, own).replicates
    monkeypatch.setattr(sampler, "_TOGETHER", 1)
    alone = log_means(network, x, noise), estimate(network, x, own).replicates
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@every
def test_the_quick_path_is_the_mean_path_to_single_precision(name: str) -> None:
    network = classifier(NETWORKS[name])
    x, quick = normal(3, network.n_in, seed=1), quick_path(network)
    if quick is None:
        assert len(network.members) > 1
        return
    found = log_means(network, x.float(), quick)
    torch.testing.assert_close(found.double(), log_means(network, x, mean_path(network)), rtol=1e-4, atol=1e-5)
    still = [gaussian_noise([0] * len(member.layers), 1, seed=0) for member in network.members]  # layer by layer
    by_layers = log_means(network, x, Noise(tuple(still)))
    torch.testing.assert_close(log_means(network, x, mean_path(network)), by_layers, rtol=1e-10, atol=1e-12)


def test_a_draw_of_every_layer_is_shared_by_all_points() -> None:
    network = NETWORKS["tanh"]
    noise = draw_noise(network, 4, seed=0, replicates=1).part(0)
    x = normal(3, 4, seed=1)
    together = sampled_at(MEAN_OUTPUT, network, x, noise)
    torch.testing.assert_close(together[1:2], sampled_at(MEAN_OUTPUT, network, x[1:2], noise), rtol=1e-12, atol=1e-12)


# Attacks that do not know the kind


@few
def test_the_range_from_inside_is_of_means_at_inputs_of_the_box(name: str) -> None:
    network = NETWORKS[name]
    box = Box.ball(normal(1, network.n_in, seed=1), 0.3)
    found = inside_range(network, box, samples=512, restarts=2, steps=6)
    assert (found.lower <= found.upper).all()
    assert bool(is_exact(network)) is not bool(found.error.any())
    noise = draw_noise(network, 2048, seed=99)
    for value, inputs in ((found.lower, found.x_lower), (found.upper, found.x_upper)):
        assert box.contains(inputs[:, 0]).all()
        fresh = estimate(network, inputs, noise)  # (batch, outputs, outputs)
        own = fresh.mean.diagonal(dim1=1, dim2=2), fresh.std_error.diagonal(dim1=1, dim2=2)
        assert ((value - own[0]).abs() <= found.error + 5 * own[1] + 1e-12).all()
    centre = estimate(network, box.centre, noise)
    slack = found.error + 5 * centre.std_error
    assert ((found.lower - slack <= centre.mean) & (centre.mean <= found.upper + slack)).all()
    assert (found.width > 0).all()


def balanced(*layers: Any, **settings: Any) -> BayesianNetwork:
    """A classifier whose decisions change: a last layer without biases whose rows are far apart."""
    last = layers[-1]
    mean = 3 * torch.eye(3, last.n_in, dtype=torch.float64) - 1
    end = replace(last, weight_mean=mean, bias_mean=torch.zeros(3, dtype=torch.float64))
    return BayesianNetwork((*layers[:-1], end), "classification", **settings)


ATTACKED: dict[str, Any] = {
    "tanh": balanced(linear(6, 4, 1, 0.1), Tanh(), linear(3, 6, 2, 0.1), Tanh(), linear(3, 3, 3, 0.1)),
    "low rank": balanced(linear(3, 4, 1, 0.1), Tanh(), correlated(3, 3, 2, shared=True, std=0.1)),
    "dropout": balanced(Linear.fixed(normal(3, 4, seed=1)), Tanh(), Dropout(0.2), linear(3, 3, 3, 0.0)),
    "convolution": balanced(
        conv(3, 1, 1, std=0.1), Tanh(), AveragePool((3, 2)), Flatten(), linear(3, 3, 2, 0.1), input_shape=(1, 5, 4)
    ),
}
ATTACKED["mixture"] = Ensemble((ATTACKED["tanh"], ATTACKED["low rank"], ATTACKED["dropout"]))


@pytest.mark.parametrize("name", slow_but(ATTACKED, "low rank", "dropout"))
def test_attacks_on_decisions_find_inputs_that_change_them(name: str) -> None:
    network = ATTACKED[name]
    x = normal(2, network.n_in, seed=1)
    label = estimate_softmax(network, x, draw_softmax_noise(network, 512, seed=0)).mean.argmax(-1)
    found = attack_radius(network, x, label, reach=Reach(upper=4), budget=SMALL)
    at = found.radius.isfinite() & (found.radius > 0)
    assert at.any()
    p = estimate_softmax(network, found.x[at], draw_softmax_noise(network, 4096, seed=7)).mean
    assert (p.argmax(-1) != label[at]).all()
    assert ((found.x - x)[at].abs().amax(-1) <= found.radius[at] * (1 + 1e-9)).all()
    radius = float(found.radius[at].max())
    evasion = evade(network, Box.ball(x, 1.5 * radius), label, budget=SMALL)
    assert evasion.succeeds[at].all()


def test_attacks_on_ensembles_and_images_without_variance_need_no_draws() -> None:
    shape = (1, 5, 5)
    members = tuple(
        BayesianNetwork(
            (Conv2d.fixed(normal(2, 1, 3, 3, seed=k)), Relu(), Flatten(), Linear.fixed(normal(3, 18, seed=k + 9))),
            "classification",
            input_shape=shape,
        )
        for k in range(3)
    )
    for network in (members[0], Ensemble(members)):
        x = normal(2, 25, seed=1)
        p = estimate_softmax(network, x, mean_path(network)).mean
        found = attack_radius(network, x, p.argmax(-1), budget=SMALL)
        assert not found.error.any()
        at = found.radius.isfinite()
        assert at.any()
        after = estimate_softmax(network, found.x[at], mean_path(network)).mean
        assert (after.argmax(-1) != p.argmax(-1)[at]).all()
