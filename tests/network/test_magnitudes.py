"""Numbers beyond the range of magnitudes are scaled into it or refused by name; ordinary ones never are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import records

from bnndp.activations import Tanh
from bnndp.errors import InputError, MagnitudeError
from bnndp.geometry.box import Box
from bnndp.layers import Flatten, Linear, Residual
from bnndp.network import BayesianNetwork, Ensemble, normal_form
from bnndp.questions.certify import certify, probability
from bnndp.questions.decision import robust_decision
from bnndp.questions.evaluate import evaluate
from bnndp.questions.radius import Search, certified_radius

F64 = torch.float64
BOX = Box.ball(torch.ones(1, 3, dtype=F64), 0.1)


def network(task: str = "regression") -> BayesianNetwork:
    return BayesianNetwork((records.linear(4, 3, 1), Tanh(), records.linear(2, 4, 5)), task)


def with_number(chain: BayesianNetwork, layer: int, name: str, value: float) -> BayesianNetwork:
    """The last number of a tensor replaced."""
    tensor = getattr(chain.layers[layer], name).clone()
    tensor.view(-1)[-1] = value
    layers: list[Any] = list(chain.layers)
    layers[layer] = replace(layers[layer], **{name: tensor})
    return replace(chain, layers=tuple(layers))


LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    kind: records.RANDOM[kind] for kind in ("linear", "rows", "matrix normal", "conv")
}
TENSORS = [(kind, name) for kind, (layer, _) in LAYERS.items() for name in layer.tensors]


@pytest.mark.parametrize(("kind", "name"), TENSORS)
def test_a_large_number_of_any_tensor_is_refused_by_name(kind: str, name: str) -> None:
    layer, shape = LAYERS[kind]
    n = torch.Size(layer.out_shape(shape)).numel()
    chain = BayesianNetwork((layer, Tanh(), Flatten(), records.linear(2, n, 5)), input_shape=shape)
    x = torch.zeros(1, chain.n_in, dtype=F64)
    certify(with_number(chain, 0, name, 4e9), Box(x, x))
    with pytest.raises(MagnitudeError) as caught:
        certify(with_number(chain, 0, name, 2e10), Box(x, x))
    last = [size - 1 for size in getattr(layer, name).shape]
    assert f"{name}{last} of layer 0 ({layer.kind}) is 2e+10; " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_inside_blocks_and_ensembles() -> None:
    large = with_number(network(), 2, "weight_std", 1e40)
    with pytest.raises(InputError, match=r"weight_std\[1, 3\] of layer 2 \(linear\) is 1e\+40"):
        certify(Ensemble((network(), large)), BOX)
    last = replace(records.linear(3, 3, 9), bias_mean=torch.full((3,), -1e40, dtype=F64))
    block = Residual((records.linear(3, 3, 7), Tanh(), last))
    with pytest.raises(InputError, match=r"bias_mean\[0\] of layer 0, layer 2 \(linear\) is -1e\+40"):
        certify(BayesianNetwork((block, records.linear(2, 3, 5)), input_shape=(3,)), BOX)


def test_every_question_asks() -> None:
    regression, classifier = (
        with_number(network(task), 0, "weight_mean", 1e40) for task in ("regression", "classification")
    )
    x, only = BOX.centre, Search(attack=False)
    questions = (
        lambda: certify(regression, BOX),
        lambda: certify(regression, BOX, quantity="variance"),
        lambda: certify(regression, BOX, quantity="noise"),
        lambda: probability(regression, BOX, 0.0, 1.0),
        lambda: certify(classifier, BOX),
        lambda: robust_decision(classifier, x, BOX, 0),
        lambda: certified_radius(classifier, x, 0, search=only),
        lambda: evaluate(classifier, x, torch.tensor([0]), search=only),
    )
    for ask in questions:
        with pytest.raises(InputError, match=r"weight_mean\[3, 2\] of layer 0 \(linear\) is 1e\+40"):
            ask()


def test_boxes_shifts_and_the_product_of_the_weights() -> None:
    far = Box([[0.0, 0.0, 0.0]] * 2, [[1.0, 1.0, 1.0], [1.0, 1e16, 1.0]])
    with pytest.raises(MagnitudeError, match=r"box 1 reaches 1e\+16 at input 1; .* up to 2.81e\+14"):
        certify(network(), far)
    with pytest.raises(MagnitudeError, match=r"shift\[2\] is 1e\+16; .* up to 2.81e\+14"):
        certify(replace(network(), shift=torch.tensor([0.0, 0.0, 1e16])), BOX)
    layer = Linear(1e9 * torch.eye(2), torch.eye(2), torch.zeros(2), torch.zeros(2))
    steep = [record for _ in range(11) for record in (layer, Tanh())][:-1]
    with pytest.raises(MagnitudeError, match=r"row sums of the weights of all layers is 1e\+99"):
        certify(BayesianNetwork(tuple(steep)), Box(torch.zeros(1, 2), torch.ones(1, 2)))


def test_networks_without_variance_have_the_same_range() -> None:
    fixed = BayesianNetwork((Linear.fixed(1e200 * torch.eye(2, dtype=F64)), Tanh(), Linear.fixed(torch.eye(2))))
    with pytest.raises(MagnitudeError, match=r"weight_mean\[0, 0\] of layer 0 \(linear\) is 1e\+200"):
        certify(fixed, Box([[1.0, -1.0]], [[2.0, -1.0]]))


def test_hidden_layers_are_scaled_exactly() -> None:
    """From one half to one; the bits of every number stay."""
    first, last = records.linear(4, 3, 1), records.linear(2, 4, 5)
    large = Linear(*(getattr(first, name) * 2.0**700 for name in first.tensors))
    small = replace(last, weight_mean=last.weight_mean * 2.0**-700, weight_std=last.weight_std * 2.0**-700)
    found = normal_form(BayesianNetwork((large, records.activation("relu"), small))).members[0].linears
    largest = max(float(getattr(found[0], name).abs().max()) for name in first.tensors)
    assert 0.5 <= largest < 1
    for name in first.tensors:
        parts = (getattr(found[0], name), getattr(first, name)), (getattr(found[1], name), getattr(last, name))
        for new, old in parts:
            assert torch.equal(torch.frexp(new).mantissa, torch.frexp(old).mantissa)


def test_what_cannot_be_scaled_exactly_is_refused() -> None:
    wide = torch.tensor([[1e300, 0.1], [1.0, 1e-20]], dtype=F64)
    layers = (Linear.fixed(wide), records.activation("relu"), Linear.fixed(1e-290 * torch.eye(2, dtype=F64)))
    with pytest.raises(MagnitudeError, match=r"^1e-20 in layer 0 \(linear\) cannot be scaled by 2\^-997, "):
        certify(BayesianNetwork(layers), Box(torch.ones(1, 2), torch.ones(1, 2)))


def test_nothing_is_scaled_through_other_activations() -> None:
    """Nor across a block: the numbers of the layer before stay, small ones are covered and large ones refused."""
    for between in (Tanh(), Residual((records.linear(4, 4, 3),))):
        layers = (records.linear(4, 3, 1), between, records.linear(2, 4, 5))
        small = Linear(*(getattr(layers[0], name) * 1e-100 for name in Linear.tensors))
        network = BayesianNetwork((small, *layers[1:]))
        assert normal_form(network) is network
        with pytest.raises(MagnitudeError, match=r"weight_mean\[0, 0\] of layer 0"):
            normal_form(BayesianNetwork((Linear(*(getattr(small, n) * 1e200 for n in Linear.tensors)), *layers[1:])))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_ordinary_networks_are_not_refused(activation: str) -> None:
    """Deviations of 1e-12 or zero, weights that single precision left subnormal, inputs next to zero by a shift."""
    layers = [replace(records.linear(4, 3, 1), weight_std=torch.full((4, 3), 1e-12)), records.linear(2, 4, 5)]
    layers[0].weight_mean[0, :2] = torch.tensor([1e-45, 0.0], dtype=F64)
    layers[0].weight_std[1] = 0.0
    for shift in (None, torch.ones(3, dtype=F64)):
        chain = BayesianNetwork((layers[0], records.activation(activation), layers[1]), shift=shift)
        for box in (BOX, Box(BOX.centre, BOX.centre), Box(0 * BOX.centre, 0 * BOX.centre)):
            for quantity in ("mean", "variance"):
                bounds = certify(chain, box, quantity=quantity)
                assert bool((bounds.upper - bounds.lower < 2.0).all())
