"""The variance of the outputs against closed forms, drawn networks and ensembles known one by one."""

from __future__ import annotations

import pytest
import torch
from support.ensembles import average, certain_ensemble, outputs, points_of
from support.oracles import rectified
from support.passes import holds
from support.records import linear, normal
from tests.questions.cases import DEEP, interval
from torch import Tensor

from bnndp.activations import Tanh
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, Ensemble, Posterior
from bnndp.options import Options
from bnndp.questions.bounds import Bounds
from bnndp.questions.certify import certify

F64 = torch.float64
DRAWS = 10_000


def variance(network: Posterior, box: Box, **options: object) -> Bounds:
    return certify(network, box, Options(**options), quantity="variance")


def test_a_linear_network_is_known() -> None:
    layer, box = linear(3, 4, 1), Box.ball(normal(5, 4, seed=9), 0.3)
    network, x = BayesianNetwork((layer,)), points_of(box, 64)
    bounds = variance(network, box)
    assert holds(interval(bounds), _of_layer(layer, x), 0.0)
    corner = _of_layer(layer, box.magnitude)
    assert bool((bounds.upper <= corner * (1 + 1e-8)).all())
    point = variance(network, Box(box.centre, box.centre))
    assert bool((point.width <= 1e-8 * point.upper).all())
    assert bounds.affine is None
    shift = torch.tensor([1.0, -2.0, 0.5, 0.0])
    shifted = BayesianNetwork((layer,), shift=shift)
    assert holds(interval(variance(shifted, box)), _of_layer(layer, x - shift), 0.0)


def _of_layer(layer: Linear, x: Tensor) -> Tensor:
    return x.square() @ layer.weight_std.square().T + layer.bias_std.square()


def test_one_hidden_layer_in_closed_form() -> None:
    first, last = linear(6, 2, 2), linear(2, 6, 3)
    network, x = BayesianNetwork.from_linears([first, last]), normal(4, 2, seed=5)
    bounds = variance(network, Box(x, x))
    for b, point in enumerate(x):
        m, r = first.weight_mean @ point + first.bias_mean, _of_layer(first, point).sqrt()
        z = [rectified(mean, std) for mean, std in zip(m.tolist(), r.tolist(), strict=True)]
        mean, second = (torch.tensor([float(getattr(part, n)) for part in z], dtype=F64) for n in ("mean", "second"))
        truth = (last.weight_mean.square() + last.weight_std.square()) @ second
        truth = truth - last.weight_mean.square() @ mean.square() + last.bias_std.square()
        assert bool(((bounds.lower[b] <= truth) & (bounds.upper[b] >= truth)).all())
        assert bool((bounds.width[b] <= 1e-3 * truth).all())
    wide, fine = variance(network, Box.ball(x, 0.2)), variance(network, Box.ball(x, 0.2), refine=16)
    assert holds(interval(wide), bounds.lower, 1e-9 * bounds.lower)
    assert holds(interval(wide), bounds.upper, 1e-9 * bounds.upper)
    assert bool((fine.width < wide.width).all())


@pytest.mark.parametrize("kind", DEEP)
def test_deep_networks_by_draws(kind: str) -> None:
    network, box = DEEP[kind], Box.ball(normal(4, 2, seed=6), 0.1)
    bounds, found = variance(network, box), outputs(network, points_of(box, 4), DRAWS)
    away = (found - found.mean(0)).square()
    assert holds(interval(bounds), away.mean(0), 5 * away.std(0) / DRAWS**0.5)
    assert bool((bounds.lower > 0).all())


def test_without_variance_there_is_none() -> None:
    fixed = BayesianNetwork((Linear.fixed(normal(3, 2, seed=1)), Tanh(), Linear.fixed(normal(1, 3, seed=2))))
    bounds = variance(fixed, Box.ball([[0.1, 0.2]], 0.5))
    assert bounds.lower.tolist() == [[0.0]]
    assert bounds.upper.item() < 1e-200


def test_an_ensemble_has_that_within_and_that_between_its_members() -> None:
    layers = [linear(2, 3, 10 * seed) for seed in range(3)]
    ensemble = Ensemble(tuple(BayesianNetwork((layer,)) for layer in layers), torch.tensor([0.5, 0.3, 0.2], dtype=F64))

    def exact(x: Tensor) -> Tensor:
        means = torch.stack([x @ layer.weight_mean.T + layer.bias_mean for layer in layers])
        within = torch.stack([_of_layer(layer, x) for layer in layers])
        return average(ensemble, list(within + (means - average(ensemble, list(means))).square()))

    x = normal(6, 3, seed=8)
    point, box = variance(ensemble, Box(x, x)), Box.ball(x, 0.2)
    assert holds(interval(point), exact(x), 0.0)
    assert bool((point.width <= 1e-8 * exact(x)).all())
    assert holds(interval(variance(ensemble, box)), exact(points_of(box, 200)), 0.0)


def test_many_members_without_variance() -> None:
    ensemble, box = certain_ensemble(20, (2, 6, 1)), Box.ball(normal(2, 2, seed=5), 0.3)

    def exact(x: Tensor) -> Tensor:
        each = [outputs(member, x)[0] for member in ensemble.members]
        return average(ensemble, [(one - average(ensemble, each)).square() for one in each])

    assert holds(interval(variance(ensemble, box)), exact(points_of(box, 300)), 0.0)
    there = variance(ensemble, Box(box.centre, box.centre))
    assert torch.allclose(there.upper, exact(box.centre), rtol=1e-9, atol=1e-9)


def test_numbers_whose_squares_overflow_are_refused() -> None:
    large = torch.full((4, 2), 1e200, dtype=F64)
    network = BayesianNetwork.from_linears([Linear(large, large, torch.zeros(4), torch.zeros(4)), linear(1, 4, 3)])
    words = r"weight_mean\[0, 0\] of layer 2 \(linear\) is .* for inputs in units of 2\^665, .* other units"
    with pytest.raises(InputError, match=words):
        variance(network, Box.ball([[1.0, 1.0]], 0.1))
