"""The contract of every activation with every kind of posterior and layer (docs/theory.md).

Without variance the bounds on a point are the network's value; the mean of a first layer is that of Arb's integrals;
bounds on random boxes hold for draws; what has no rule is refused with the list of what has one.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import records
from support.activation_truths import TRUTHS
from support.dice import Dice
from support.layer_draws import draw_layers
from support.layer_judge import examine
from support.layer_networks import ACTS, DENSE_KINDS, KINDS, Case, activation, dense, make_case
from support.passes import ends, holds
from tests.marks import slow_but

from bnndp.activations import Relu
from bnndp.engine.laws.weights import weights_of
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.nodes.step import step
from bnndp.errors import MagnitudeError, UnsupportedLayerError
from bnndp.geometry.box import Box
from bnndp.layers import WEIGHTED, AveragePool, Branched, Conv2d, Dropout, Flatten, Linear, MaxPool
from bnndp.network import KINDS as KNOWN
from bnndp.network import BayesianNetwork
from bnndp.questions.certify import certify

FIRST = (*DENSE_KINDS, "conv", "conv_fixed")


def _pairs(kinds: tuple[str, ...]) -> list[Any]:
    """Every kind with every activation; those that run every time have each kind and each activation."""
    each = zip(kinds, itertools.cycle(ACTS), strict=False)
    return slow_but(itertools.product(kinds, ACTS), *each)


def _seed(*names: str) -> int:
    return sum(ord(c) * (i + 1) for i, c in enumerate(" ".join(names)))


def _certain(layer: Any) -> Any:
    """The same layer without variance."""
    if isinstance(layer, Dropout):
        return Dropout(0.0, layer.law, layer.channels)
    if isinstance(layer, Branched):
        return layer.with_branches([[_certain(part) for part in branch] for branch in layer.branches])
    if not isinstance(layer, WEIGHTED):
        return layer
    names = [n for n in ("weight_std", "bias_std", "factor", "row_factor") if n in layer.tensors]
    return replace(layer, **{n: torch.zeros_like(getattr(layer, n)) for n in names})


@pytest.mark.parametrize(("kind", "act"), _pairs(KINDS))
def test_without_variance_the_bounds_are_the_network(kind: str, act: str) -> None:
    case = make_case(2, kind, ACTS.index(act))
    network = BayesianNetwork(
        tuple(_certain(layer) for layer in case.network.layers), input_shape=case.network.input_shape
    )
    assert not network.random
    x = case.box.centre
    truth = draw_layers(network, x, 1, torch.Generator())[-1][0]
    interval, scale = ends(MomentPass.of(network, Box(x, x)), network.n_out), 1 + truth.abs()
    lost = 0.2 if act == "piecewise_affine" else 1e-9  # what lines between the knots miss, through all later layers
    assert holds(interval, truth, 1e-12 * scale)
    assert float(((interval.upper - interval.lower) / scale).max()) < lost


@pytest.mark.parametrize(("kind", "act"), _pairs(FIRST))
def test_the_first_layer_agrees_with_integrals(kind: str, act: str) -> None:
    dice, phi = Dice(_seed(kind, act)), activation(act)
    if kind.startswith("conv"):
        scale = 0.0 if kind == "conv_fixed" else 0.5
        layer = Conv2d(
            dice.normal(2, 1, 2, 2),
            scale * dice.uniform(shape=(2, 1, 2, 2)),
            dice.normal(2),
            scale * dice.uniform(shape=(2,)),
        )
        shape: tuple[int, ...] = (1, 3, 3)
    else:
        layer, shape = dense(dice, kind, 4, 3, 0.7), (3,)
    n = math.prod(layer.out_shape(shape))
    network = BayesianNetwork((layer, phi, Flatten(), Linear.fixed(torch.eye(n))), input_shape=shape)
    x = dice.normal(2, math.prod(shape))
    laws = [records.law(layer, point.reshape(shape)) for point in x]
    pairs = [zip(mean.tolist(), covariance.diagonal().sqrt().tolist(), strict=True) for mean, covariance in laws]
    truth = torch.tensor([[float(TRUTHS[act].mean(m, r)) for m, r in pair] for pair in pairs], dtype=torch.float64)
    interval = ends(MomentPass.of(network, Box(x, x)), n)
    lost = 2.6e-3 if act == "piecewise_affine" else 1e-9
    assert holds(interval, truth, 1e-12)
    assert float((interval.upper - interval.lower).max()) < lost


@pytest.mark.parametrize(("kind", "act"), _pairs(KINDS))
def test_bounds_hold_for_draws_on_random_boxes(kind: str, act: str) -> None:
    index = ACTS.index(act) + len(ACTS) * (_seed(kind, act) % 6)
    case = make_case(3, kind, index, boxes=2)
    report = examine(case, draws=150, seed=1)
    assert not report.failure, report.failure
    assert not report.violations, report.violations
    assert not report.unbounded


def test_a_broken_bound_is_found_by_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge of the campaign sees a bound that lies by a fifth."""
    layer = Linear(torch.ones(3, 2), torch.ones(3, 2), torch.zeros(3), torch.zeros(3))
    x = torch.ones(1, 2, dtype=torch.float64)
    case = _case(BayesianNetwork((layer, activation("identity"), Linear.fixed(torch.ones(1, 3)))), Box(x, x))
    assert not examine(case, draws=3000, seed=1).violations
    honest = MomentPass.variance
    monkeypatch.setattr(MomentPass, "variance", lambda *args: 0.8 * honest(*args))
    assert any("variance" in name or "rows" in name for name in examine(case, draws=3000, seed=1).violations)


class _Strange:
    kind = "strange"
    tensors = settings = ()
    random = False

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape


def test_unknown_records_are_refused_with_the_list_of_known_kinds() -> None:
    last = Linear.fixed(torch.ones(1, 2))
    with pytest.raises(UnsupportedLayerError) as caught:
        BayesianNetwork((last, _Strange(), last))
    for kind in KNOWN:
        assert kind in str(caught.value)
    with pytest.raises(UnsupportedLayerError, match="_Strange"):
        weights_of(_Strange(), (2,))
    with pytest.raises(UnsupportedLayerError, match="_Strange"):
        step(_Strange(), None, (2,))


def test_every_kind_of_layer_has_a_rule() -> None:
    """A record that a network takes is known to the pass."""
    shape = (2, 4, 4)
    layers = (Conv2d.fixed(torch.ones(2, 2, 2, 2)), Relu(), Dropout(0.5), AveragePool(2, 1), MaxPool(2), Flatten())
    network = BayesianNetwork((*layers, Linear.fixed(torch.ones(1, 2))), input_shape=shape)
    x = torch.ones(1, 32, dtype=torch.float64)
    assert bool(ends(MomentPass.of(network, Box(x, x)), 1).lower.isfinite().all())
    assert {layer.kind for layer in network.layers} | {
        "correlated_linear",
        "matrix_normal_linear",
        "residual",
        "concatenate",
    } | set(ACTS) == set(KNOWN)


@pytest.mark.parametrize("value", slow_but((1e100, 1e160, 1e300), 1e160))
@pytest.mark.parametrize("kind", DENSE_KINDS)
def test_inputs_out_of_reach_are_refused_or_have_no_bound(kind: str, value: float) -> None:
    dice = Dice(4)
    layers = (dense(dice, kind, 3, 2, 0.5), activation("tanh"), dense(dice, kind, 3, 3, 0.5), activation("relu"))
    network = BayesianNetwork((*layers, Linear.fixed(torch.ones(1, 3))))
    x = torch.full((1, 2), value, dtype=torch.float64)
    with pytest.raises(MagnitudeError, match=r"box 0 reaches 1e\+"):
        certify(network, Box(x, x))
    if network.random:
        assert MomentPass.of(network, Box(x, x)).least(torch.ones(1, 1, dtype=torch.float64)).item() == -math.inf
    else:
        truth = draw_layers(network, x, 1, torch.Generator())[-1][0]
        assert holds(ends(MomentPass.of(network, Box(x, x)), 1), truth, 1e-12 * truth.abs())


def _case(network: BayesianNetwork, box: Box) -> Case:
    return Case("own", "own", "own", 0, network, box)


ADVERSARIAL: dict[str, Any] = {
    "gelu at its minimum": lambda: _stack("gelu", bias=-0.751791524693564457, std=0.3),
    "silu at its minimum": lambda: _stack("silu", bias=-1.278464542761073795, std=0.3),
    "hard tanh between its kinks": lambda: _stack("hard_tanh", bias=1.0, std=0.5),
    "huge sigma": lambda: _stack("tanh", bias=0.0, std=50.0),
    "tiny sigma at a kink": lambda: _stack("relu", bias=0.0, std=1e-7),
    "rectified and dropped nine times of ten": lambda: _dropped(0.9),
    "dropped ninety-nine times of a hundred": lambda: _dropped(0.99),
}


def _stack(act: str, bias: float, std: float) -> BayesianNetwork:
    """Two layers of equal weights: neurons of the second are perfectly correlated given the first."""
    phi = activation(act)
    first = Linear(
        torch.zeros(4, 2), torch.full((4, 2), std), torch.full((4,), bias, dtype=torch.float64), torch.zeros(4)
    )
    second = Linear(
        torch.tensor([[1.0, -1.0, 1.0, -1.0]] * 3),
        torch.full((3, 4), 0.01 * std),
        torch.full((3,), bias),
        torch.zeros(3),
    )
    return BayesianNetwork((first, phi, second, phi, Linear.fixed(torch.ones(1, 3))))


def _dropped(rate: float) -> BayesianNetwork:
    first, second = Linear.fixed(torch.ones(4, 2)), Linear.fixed(torch.ones(3, 4) / 4, torch.full((3,), -2.0))
    return BayesianNetwork(
        (first, Relu(), Dropout(rate), second, Relu(), Dropout(rate), Linear.fixed(torch.ones(1, 3)))
    )


@pytest.mark.parametrize("name", slow_but(ADVERSARIAL, "gelu at its minimum", "huge sigma", "tiny sigma at a kink"))
def test_adversarial_networks(name: str) -> None:
    network = ADVERSARIAL[name]()
    centre = torch.tensor([[0.4, -0.3], [1.0, 1.0]], dtype=torch.float64)
    radius = torch.tensor([[0.0], [0.2]], dtype=torch.float64)
    report = examine(_case(network, Box(centre - radius, centre + radius)), draws=20000, seed=5)
    assert not report.failure, report.failure
    assert not report.violations, report.violations
    assert not report.unbounded
