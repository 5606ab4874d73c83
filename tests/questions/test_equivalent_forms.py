"""The same function written in other layers gets the same answers: random networks, both tasks, every question.

Forms that the normal form knows (``network/normal_form.py``) are equal up to rounding. Forms that it does not know, as
they are other functions by very little, are the engine's own business (``engine/test_equivalent_forms.py``);
here their bounds hold the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import Identity, LeakyRelu, PiecewiseAffine, Relu
from bnndp.attack import decision_rows
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.geometry.box import Box
from bnndp.layers import (
    AveragePool,
    Concatenate,
    Conv2d,
    CorrelatedLinear,
    Dropout,
    Flatten,
    Linear,
    MatrixNormalLinear,
    MaxPool,
    Residual,
)  # fmt: skip
from bnndp.network import BayesianNetwork, Ensemble, Posterior, normal_form
from bnndp.options import Options
from bnndp.questions.certify import certify, probability
from bnndp.questions.radius import Search, certified_radius
from bnndp.questions.softmax import bound_rows

F64 = torch.float64
INPUTS = 3
HIDDEN = {1: (7,), 2: (6, 5), 3: (5, 4, 4)}  # by depth
ROUNDING = 1e-9  # of the size of a bound, and of its width: products of factors, sums in another order


def random_network(hidden: Sequence[int], task: str, seed: int, *, kronecker: bool = False) -> BayesianNetwork:
    """Linear and Relu; with ``kronecker`` the standard deviations are products of numbers of rows and columns."""
    dice = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=dice, dtype=F64)

    linears = []
    for n_in, n_out in pairwise((INPUTS, *hidden, 2 if task == "regression" else 3)):
        stds = 0.3 / n_in**0.5 * draw(n_out, n_in + 1).abs()
        if kronecker:
            stds = 0.3 / n_in**0.5 * draw(n_out, 1).abs() * draw(1, n_in + 1).abs()
        linears.append(Linear(draw(n_out, n_in) / n_in**0.5, stds[:, :-1], 0.3 * draw(n_out), stds[:, -1]))
    return BayesianNetwork.from_linears(linears, task)


Form = Callable[[BayesianNetwork], Posterior]


def each(change: Callable[[Any], Sequence[Any]]) -> Form:
    """Every layer replaced by others."""
    return lambda network: replace(network, layers=tuple(new for layer in network.layers for new in change(layer)))


def for_relu(*layers: Any) -> Form:
    return each(lambda layer: layers if isinstance(layer, Relu) else [layer])


def after_relu(*layers: Any) -> Form:
    return for_relu(Relu(), *layers)


def stds_of(layer: Linear) -> Tensor:  # (n_out, n_in + 1)
    return torch.cat([layer.weight_std, layer.bias_std[:, None]], 1)


def rows(layer: Any) -> Sequence[Any]:
    """With diagonal factors, in the order of an eigendecomposition."""
    if not isinstance(layer, Linear):
        return [layer]
    zero, stds = torch.zeros_like(layer.weight_mean), stds_of(layer)
    order = torch.randperm(stds.shape[1], generator=torch.Generator().manual_seed(1))
    factor = torch.diag_embed(stds)[..., order]
    return [CorrelatedLinear(layer.weight_mean, zero, layer.bias_mean, zero[:, 0], factor, False)]


def covariances(layer: Any) -> Sequence[Any]:
    if not isinstance(layer, Linear):
        return [layer]
    return [CorrelatedLinear.rows(layer.weight_mean, layer.bias_mean, torch.diag_embed(stds_of(layer).square()))]


def whole(layer: Any) -> Sequence[Any]:
    if not isinstance(layer, Linear):
        return [layer]
    stds = stds_of(layer)
    factor = torch.diag(stds.flatten()).reshape(*stds.shape, -1)
    zero = torch.zeros_like(layer.weight_mean)
    return [CorrelatedLinear(layer.weight_mean, zero, layer.bias_mean, zero[:, 0], factor, True)]


def low_rank_of_nothing(layer: Any) -> Sequence[Any]:
    if not isinstance(layer, Linear):
        return [layer]
    fields = {name: getattr(layer, name) for name in layer.tensors}
    return [CorrelatedLinear.low_rank(**fields, factor=torch.zeros(layer.n_out, layer.n_in + 1, 2))]


def kronecker(layer: Any) -> Sequence[Any]:
    """Of stds that are products: the factors of the first row and column are found by division, and rounded."""
    if not isinstance(layer, Linear):
        return [layer]
    stds = stds_of(layer)
    factors = torch.diag(stds[:, 0]), torch.diag(stds[0] / stds[0, 0])
    return [MatrixNormalLinear(layer.weight_mean, layer.bias_mean, *factors)]


def on_pixels(
    network: BayesianNetwork, between: Sequence[Any] = (), size: int = 1, padding: int = 0
) -> BayesianNetwork:
    """All layers but the last as convolutions of images of one pixel, where padding meets most of a larger kernel."""
    *most, last = network.layers
    layers: list[Any] = []
    for layer in most:
        if not isinstance(layer, Linear):
            layers += [layer, *between]
            continue
        mean, std = (torch.full((*layer.weight_mean.shape, size, size), 7.0, dtype=F64) for _ in range(2))
        mean[..., padding, padding], std[..., padding, padding] = layer.weight_mean, layer.weight_std
        layers.append(Conv2d(mean, std, layer.bias_mean, layer.bias_std, (1, 1), (padding, padding)))
    return BayesianNetwork((*layers, Flatten(), last), network.task, input_shape=(INPUTS, 1, 1))


def nothing_added(layer: Any) -> Sequence[Any]:
    if not isinstance(layer, Linear):
        return [layer]
    n = layer.n_in
    return [Residual((Linear.fixed(torch.ones(4, n)), Relu(), Linear.fixed(torch.zeros(n, 4)))), layer]


def beside_zeros(layer: Any) -> Sequence[Any]:
    """A layer as the shortcut of a block that adds zeros, and the block in another one of the same kind."""
    if not isinstance(layer, Linear):
        return [layer]
    zeros = Linear.fixed(torch.zeros(layer.n_out, layer.n_in))
    return [Residual((Relu(), zeros), (Residual((layer,), (zeros,)),))]


def alone(layer: Any) -> Sequence[Any]:
    return [Concatenate(((layer,),))]


def in_branches(layer: Any) -> Sequence[Any]:
    """The rows of a layer as branches side by side."""
    if not isinstance(layer, Linear):
        return [layer]
    rows = zip(*(getattr(layer, name).split(2) for name in layer.tensors), strict=True)
    return [Concatenate(tuple((Linear(*each),) for each in rows))]


def hidden(change: Callable[[Any], Sequence[Any]]) -> Form:
    """All layers but the last replaced by others, of which the first may not say how many inputs it takes."""

    def changed(network: BayesianNetwork) -> BayesianNetwork:
        *most, last = network.layers
        layers = (new for layer in most for new in change(layer))
        return replace(network, layers=(*layers, last), input_shape=(INPUTS,))

    return changed


def permuted(network: BayesianNetwork) -> BayesianNetwork:
    """The neurons of every hidden layer in another order."""
    linears, order = list(network.linears), None
    for k, layer in enumerate(linears):
        mean, std, bias, bias_std = (getattr(layer, name) for name in layer.tensors)
        if order is not None:
            mean, std = mean[:, order], std[:, order]
        order = torch.randperm(layer.n_out, generator=torch.Generator().manual_seed(k))
        if k + 1 < len(linears):
            mean, std, bias, bias_std = (tensor[order] for tensor in (mean, std, bias, bias_std))
        linears[k] = Linear(mean, std, bias, bias_std)
    return BayesianNetwork.from_linears(linears, network.task)


def scaled(*powers: int) -> Form:
    """Hidden layer k in units of 2^-powers[k], the next in theirs."""

    def change(network: BayesianNetwork) -> BayesianNetwork:
        below, linears = 0, []
        for k, layer in enumerate(network.linears):
            above = powers[k % len(powers)] if k + 1 < len(network.linears) else 0
            weights = [getattr(layer, name) * 2.0**above * 2.0**-below for name in ("weight_mean", "weight_std")]
            biases = [getattr(layer, name) * 2.0**above for name in ("bias_mean", "bias_std")]
            linears.append(Linear(*weights, *biases))
            below = above
        return BayesianNetwork.from_linears(linears, network.task)

    return change


FORMS: dict[str, Form] = {
    "leaky of slope 0": for_relu(LeakyRelu(0.0)),
    "piecewise affine": for_relu(PiecewiseAffine.of(torch.relu, 1.0, pieces=100)),
    "piecewise affine of a module": for_relu(PiecewiseAffine.of(torch.nn.ReLU(), 1.0, pieces=100)),
    "diagonal factors": each(rows),
    "a diagonal factor of the layer": each(whole),
    "low rank of nothing": each(low_rank_of_nothing),
    "dropout of nothing": after_relu(Dropout(0.0)),
    "dropout first": lambda network: replace(network, layers=(Dropout(0.0), *network.layers)),
    "identities": after_relu(Identity(), LeakyRelu(1.0)),
    "flattened": lambda network: replace(after_relu(Flatten())(network), input_shape=(INPUTS,)),
    "inputs of an image": lambda network: replace(
        network, layers=(Flatten(), *network.layers), input_shape=(1, 1, INPUTS)
    ),
    "pixels": on_pixels,
    "pixels with padding": lambda network: on_pixels(network, size=5, padding=2),
    "pixels, pooled": lambda network: on_pixels(network, (AveragePool(1), MaxPool(1), Dropout(0.0, channels=True))),
    "blocks that add nothing": lambda network: each(nothing_added)(replace(network, input_shape=(INPUTS,))),
    "blocks beside zeros": hidden(beside_zeros),
    "concatenations of one branch": hidden(alone),
    "rows as branches": hidden(in_branches),
    "an ensemble of one": lambda network: Ensemble((network,)),
    "equal members": lambda network: Ensemble((network, for_relu(LeakyRelu(0.0))(network), network), [0.2, 0.3, 0.5]),
    "a member of no weight": lambda network: Ensemble((network, permuted(network)), [1.0, 0.0]),
    "permuted": permuted,
    "scaled up and down": scaled(10, -7),
    "scaled far up": scaled(300, 250),
    "scaled far down": scaled(-400, -380),
    "scaled far both ways": scaled(500, -450),
    "all at once": lambda network: Ensemble((scaled(90, -100)(permuted(network)),)),
}  # fmt: skip


def answers(network: Posterior, box: Box) -> dict[str, Tensor]:
    """Bounds of all questions: infinite ends, verdicts and radii included."""
    found: dict[str, Tensor] = {}
    if network.task == "regression":
        for quantity in ("mean", "variance"):
            bounds = certify(network, box, quantity=quantity)
            found |= {f"{quantity}, lower": bounds.lower, f"{quantity}, upper": bounds.upper}
        chance = probability(network, box, -0.5, 0.7)
        return found | {"probability, lower": chance.lower, "probability, upper": chance.upper}
    bounds = certify(network, box)
    label = bounds.lower.argmax(-1)
    with torch.no_grad():
        lead = bound_rows(network, box, decision_rows(label, network.n_out)[0], label, Options())
    radius = certified_radius(network, box.centre, label, search=Search(attack=False, tolerance=0.05)).radius
    return {"softmax, lower": bounds.lower, "softmax, upper": bounds.upper, "lead": lead, "radius": radius}


def boxes(radius: float, seed: int) -> Box:
    return Box.ball(torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(seed), dtype=F64), radius)


def assert_same(one: Posterior, other: Posterior, box: Box) -> None:
    here, there = answers(one, box), answers(other, box)
    for name, value in here.items():
        rough = 0.1 if name == "radius" else ROUNDING  # the search ends within its tolerance
        assert torch.allclose(there[name], value, rtol=rough, atol=ROUNDING, equal_nan=True), (name, value, there[name])


@pytest.mark.parametrize("radius", [0.01])
@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("depth", slow_but(HIDDEN, 2))
@pytest.mark.parametrize("form", FORMS)
def test_the_same_function_gets_the_same_answers(form: str, depth: int, task: str, radius: float) -> None:
    network = random_network(HIDDEN[depth], task, seed=len(form) + depth)
    assert_same(network, FORMS[form](network), boxes(radius, len(form)))


@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("depth", HIDDEN)
@pytest.mark.parametrize("form", [each(covariances), each(kronecker)], ids=["covariances", "kronecker"])
def test_laws_that_are_the_same_up_to_rounding(form: Form, depth: int, task: str) -> None:
    """Roots of squares, and products of quotients, differ by units in the last place."""
    network = random_network(HIDDEN[depth], task, seed=depth, kronecker=True)
    other = form(network)
    assert normal_form(other).members[0].plain
    assert_same(network, other, boxes(0.01, 1))


@pytest.mark.parametrize("form", FORMS)
def test_a_pass_sees_dense_layers_and_relus(form: str) -> None:
    network = random_network((5, 4), "regression", 1)
    found = normal_form(FORMS[form](network))
    assert isinstance(found, BayesianNetwork)
    assert found.plain
    assert found.sizes == network.sizes


@pytest.mark.parametrize(
    "options", [Options(method="partition"), Options(effort="medium")], ids=["partition", "effort"]
)
@pytest.mark.parametrize("form", ["leaky of slope 0", "pixels", "scaled far up", "equal members"])
def test_methods_and_effort_reach_every_form(form: str, options: Options) -> None:
    network, box = random_network((5, 4), "regression", 3), boxes(0.1, 3)
    here, there = certify(network, box, options), certify(FORMS[form](network), box, options)
    assert torch.allclose(here.lower, there.lower, rtol=ROUNDING, atol=ROUNDING)
    assert torch.allclose(here.upper, there.upper, rtol=ROUNDING, atol=ROUNDING)


def correlated(layer: Any) -> Sequence[Any]:
    """Correlations of 1e-12 within each row."""
    if not isinstance(layer, Linear):
        return [layer]
    stds = stds_of(layer)
    covariance = torch.diag_embed(stds.square()) * (1 - 1e-12) + 1e-12 * stds[:, :, None] * stds[:, None]
    return [CorrelatedLinear.rows(layer.weight_mean, layer.bias_mean, covariance)]


def residual_forms(task: str, *, image: bool) -> list[BayesianNetwork]:
    """A residual network with the identity as its shortcut, and the same with it as a layer, and with both swapped."""
    dice = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=dice, dtype=F64)

    def layer(n_out: int, n_in: int) -> Linear:
        return Linear(
            draw(n_out, n_in) / n_in**0.5, 0.1 * draw(n_out, n_in).abs(), 0.3 * draw(n_out), 0.1 * draw(n_out).abs()
        )

    def kernel(out: int, into: int) -> Conv2d:
        shape = (out, into, 2, 1)
        return Conv2d(draw(*shape) / 2, 0.1 * draw(*shape).abs(), draw(out), 0.1 * draw(out).abs(), 1, (1, 0))

    ends = 2 if task == "regression" else 3
    inner: tuple[Any, ...]
    unit: Any
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    shape: tuple[int, ...]
    if image:
        inner, unit = (
            (kernel(2, 2), Relu(), replace(kernel(2, 2), padding=(0, 0))),
            Conv2d.fixed(torch.eye(2)[..., None, None]),
        )
        before, after, shape = (Conv2d.fixed(draw(2, 1, 1, 1)), Relu()), (Relu(), Flatten(), layer(ends, 6)), (1, 3, 1)
    else:
        inner, unit = (layer(5, 4), Relu(), layer(4, 5)), Linear.fixed(torch.eye(4))
        before, after, shape = (layer(4, INPUTS), Relu()), (Relu(), layer(ends, 4)), (INPUTS,)
    blocks = [
        Residual(inner),
        Residual(inner, (unit,)),
        Residual((unit,), inner),
        Residual(inner, (Concatenate(((),)),)),
    ]
    return [BayesianNetwork((*before, block, *after), task, input_shape=shape) for block in blocks]


@pytest.mark.parametrize("image", [False, True], ids=["dense", "image"])
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_shortcuts_that_are_the_identity(task: str, image: bool) -> None:
    one, *others = residual_forms(task, image=image)
    for other in others:
        assert_same(one, other, boxes(0.01, 4))


NEARLY: dict[str, Form] = {
    "leaky of slope 1e-12": for_relu(LeakyRelu(1e-12)),
    "correlations of 1e-12": each(correlated),
}


@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("depth", HIDDEN)
@pytest.mark.parametrize("form", NEARLY)
def test_forms_that_are_nearly_the_same_have_bounds_that_hold(form: str, depth: int, task: str) -> None:
    """Against draws of the plain network, which differ by less than 1e-9."""
    network, box, draws = random_network(HIDDEN[depth], task, 5), boxes(0.05, 5), 20_000
    values = evaluate(draw_networks(network, draws, seed=2), box.centre)
    values = values.softmax(-1) if task == "classification" else values
    mean, slack = values.mean(0), 6 * values.std(0) / draws**0.5 + 1e-9
    other = NEARLY[form](network)
    assert not normal_form(other).members[0].plain
    bounds = certify(other, box)
    assert bool(((bounds.lower <= mean + slack) & (mean - slack <= bounds.upper)).all())


@pytest.mark.parametrize("radius", [1e-3, 0.05])
@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("form", NEARLY)
def test_forms_that_are_nearly_the_same_have_nearly_the_same_bounds(
    form: str, depth: int, task: str, radius: float
) -> None:
    """Only the widths: that the bounds hold is tested above, at every depth."""
    network, box = random_network((16,) * depth, task, 6), boxes(radius, 6)
    plain, other = certify(network, box), certify(NEARLY[form](network), box)
    assert bool((other.width <= 1.02 * plain.width + 1e-9).all()), (other.width / plain.width).max()
