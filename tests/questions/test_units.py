"""A change of units by powers of two is exact in float64, so it must never tighten a bound, whatever underflows.

A network that takes inputs 2^k times as large, with the weights of its first layer 2^-k times as large, is the same
network; so is one whose outputs are read in other units, and, between layers that keep a factor (ReLU, leaky ReLU,
identity), one whose hidden values are. Its bounds are the same, or looser, or refused: never tighter, and nothing is
certified that was not before.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from flint import arb
from support import oracles, records
from support.records import conv, correlated, linear, matrix_normal, normal, uniform
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import ACTIVATIONS
from bnndp.attack import decision_rows
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.errors import InputError, MagnitudeError, UnsupportedLayerError
from bnndp.geometry.box import Box
from bnndp.layers import WEIGHTED, AveragePool, Dropout, Flatten, Linear, MatrixNormalLinear, MaxPool
from bnndp.network import BayesianNetwork, Ensemble, Posterior
from bnndp.options import Options
from bnndp.questions.certify import certify, probability
from bnndp.questions.radius import Search, certified_radius
from bnndp.questions.softmax import bound_rows

POWERS = (-900, -500, -300, -200, -120, -60, 20, 60, 110, 300, 500, 900)
PAIRS = ((60, -60), (110, -900), (-540, -440), (-110, 0), (500, -500))
ROUNDING = 1e-9  # of the size of a bound
EXACT = 1e-6  # of its width: where 1e-30 just counts, another of two bounds may be the better one
CHOICE = 0.01  # the same on a box: where a power overflows other planes are chosen

Ends = tuple[Tensor, Tensor]  # (batch, outputs)


def fixed(n_out: int, n_in: int, seed: int) -> Linear:
    return Linear.fixed(normal(n_out, n_in, seed=seed) / math.sqrt(n_in), 0.3 * normal(n_out, seed=seed + 1))


def biases(n_out: int, n_in: int, seed: int) -> Linear:
    return replace(fixed(n_out, n_in, seed), bias_std=0.4 * uniform(n_out, seed=seed + 2))


def some_zeros(n_out: int, n_in: int, seed: int) -> Linear:
    layer = linear(n_out, n_in, seed)
    kept = (uniform(n_out, n_in, seed=seed + 9) > 0.5).double()
    return replace(layer, weight_std=layer.weight_std * kept, bias_std=0 * layer.bias_std)


DENSE: dict[str, Callable[[int, int, int], Any]] = {
    "linear": linear,
    "biases": biases,
    "some zeros": some_zeros,
    "rows": lambda o, i, seed: correlated(o, i, seed, shared=False),
    "shared": lambda o, i, seed: correlated(o, i, seed, shared=True),
    "matrix normal": matrix_normal,
    "fixed": fixed,
}


def chain(kind: str, act: str, last: Callable[[int, int, int], Any] = linear, depth: int = 2) -> BayesianNetwork:
    layers: list[Any] = []
    sizes = (3, 5, 4, 4)[: depth + 1]
    for k, (n_in, n_out) in enumerate(pairwise(sizes)):
        layers += [DENSE[kind](n_out, n_in, 40 * k + 1), records.activation(act)]
    return BayesianNetwork((*layers, last(2, sizes[-1], 180)))


HOMOGENEOUS: dict[str, Posterior] = {
    f"{kind}, {act}": chain(kind, act)
    for kind in DENSE
    for act in ("relu", "leaky_relu", "identity")
    if act == "leaky_relu" or kind in ("linear", "matrix normal", "fixed")
}
HOMOGENEOUS |= {
    "no hidden layer": chain("linear", "relu", depth=0),
    "one hidden layer": chain("linear", "relu", depth=1),
    "three hidden layers": chain("linear", "relu", depth=3),
    "certain": chain("fixed", "relu", fixed),
    "certain, general": chain("fixed", "leaky_relu", fixed),
    "dropout": BayesianNetwork(
        (Dropout(0.2), fixed(5, 3, 1), records.activation("relu"), Dropout(0.3), linear(4, 5, 40),
         records.activation("relu"), Dropout(0.1, "gaussian"), linear(2, 4, 80))
    ),
    "images": BayesianNetwork(
        (conv(2, 1, 1, padding=1), records.activation("relu"), Dropout(0.2, channels=True), AveragePool(2),
         conv(2, 2, 9, size=2), records.activation("leaky_relu"), Flatten(), linear(2, 8, 80)),
        input_shape=(1, 6, 6),
    ),
    "maxima": BayesianNetwork(
        (conv(2, 1, 1, std=0.0), MaxPool(2), Flatten(), fixed(3, 8, 40), records.activation("relu"),
         fixed(2, 3, 80)),
        input_shape=(1, 6, 6),
    ),
    "stacked members": Ensemble(tuple(BayesianNetwork(
        (fixed(5, 3, k), records.activation("relu"), fixed(2, 5, k + 9))) for k in range(3)
    )),
    "members": Ensemble((chain("linear", "relu"), chain("shared", "leaky_relu"))),
}  # fmt: skip
OTHERS: dict[str, Posterior] = {
    f"{kind}, {act}": chain(kind, act)
    for act in ACTIVATIONS
    for kind in ("linear", "matrix normal")
    if act not in ("relu", "leaky_relu", "identity") and (kind == "linear" or act in ("tanh", "elu"))
}
OTHERS["fixed, tanh"] = chain("fixed", "tanh")


def times(tensor: Tensor, power: int) -> Tensor:
    """``tensor * 2**power``, exactly; the powers of this file lose no digit of ordinary numbers."""
    half = power // 2
    found = tensor * 2.0**half * 2.0 ** (power - half)
    assert torch.equal(found * 2.0**-half * 2.0 ** (half - power), tensor)
    return found


def layer_in_units(layer: Any, below: int, above: int) -> Any:
    """Of inputs 2^below and of outputs 2^above times as large."""
    if isinstance(layer, MatrixNormalLinear):
        columns = torch.cat([times(layer.column_factor[:-1], -below), layer.column_factor[-1:]])
        mean, bias = times(layer.weight_mean, above - below), times(layer.bias_mean, above)
        return MatrixNormalLinear(mean, bias, times(layer.row_factor, above), columns)
    powers = {"weight_mean": above - below, "weight_std": above - below, "bias_mean": above, "bias_std": above}
    changed = {name: times(getattr(layer, name), power) for name, power in powers.items()}
    if "factor" in layer.tensors:
        parts = times(layer.factor[:, :-1], above - below), times(layer.factor[:, -1:], above)
        changed["factor"] = torch.cat(parts, 1)
    return replace(layer, **changed)


def in_units(network: Posterior, powers: tuple[int, ...]) -> Posterior:
    """With the inputs, then the outputs of each layer with weights, 2^power times as large."""
    if isinstance(network, Ensemble):
        return Ensemble(tuple(in_units(member, powers) for member in network.members), network.weights)  # type: ignore[misc]
    left, layers = list(powers), []
    for layer in network.layers:
        if isinstance(layer, WEIGHTED):
            layers.append(layer_in_units(layer, left[0], left[1]))
            left.pop(0)
        else:
            layers.append(layer)
    return replace(network, layers=tuple(layers))


def depth(network: Posterior) -> int:
    member = network.members[0] if isinstance(network, Ensemble) else network
    return sum(isinstance(layer, WEIGHTED) for layer in member.layers)


def region(network: Posterior, eps: float, power: int) -> Box:
    x = normal(1, network.n_in, seed=3)
    return Box(times(x - eps, power), times(x + eps, power))


def mean(network: Posterior, box: Box, power: int, options: Options) -> Ends:
    found = certify(network, box, options)
    return found.lower * 2.0**-power, found.upper * 2.0**-power


def variance(network: Posterior, box: Box, power: int, options: Options) -> Ends:
    found = certify(network, box, options, quantity="variance")
    return found.lower * 2.0**-power * 2.0**-power, found.upper * 2.0**-power * 2.0**-power


def chance(network: Posterior, box: Box, power: int, options: Options) -> Ends:
    found = probability(network, box, -0.4 * 2.0**power, 0.9 * 2.0**power, options)
    return found.lower, found.upper


def softmax(network: Posterior, box: Box, power: int, options: Options) -> Ends:
    found = certify(records.classifier(network), box, options)
    return found.lower, found.upper


def lead(network: Posterior, box: Box, power: int, options: Options) -> Ends:
    at = torch.zeros(box.batch, dtype=torch.long)
    with torch.no_grad():
        found = bound_rows(records.classifier(network), box, decision_rows(at, network.n_out)[0], at, options)
    return found, torch.full_like(found, math.inf)


QUESTIONS: dict[str, Callable[..., Ends]] = {
    "mean": mean,
    "variance": variance,
    "chance": chance,
    "softmax": softmax,
    "lead": lead,
}


def changes(network: Posterior, *, hidden: bool) -> list[tuple[int, ...]]:
    """Powers of the inputs, of each hidden layer and of the outputs: one of them changed, or two."""
    places = depth(network) + 1
    free = range(places) if hidden else (0, places - 1)
    found = [{place: power} for place in free for power in POWERS]
    found += [{a: first, b: second} for a, b in pairwise(free) for first, second in PAIRS]
    return [tuple(change.get(place, 0) for place in range(places)) for change in found]


def assert_never_tighter(network: Posterior, *, hidden: bool, method: str = "auto") -> None:
    how = Options(method=method)
    questions = {"mean": mean, "softmax": softmax, "lead": lead} if method == "partition" else QUESTIONS
    for name, eps in [("mean", 0.0), *((name, 0.0 if name in ("variance", "softmax") else 0.05) for name in questions)]:
        ask = questions[name]
        low, high = ask(network, region(network, eps, 0), 0, how)
        size = torch.maximum(low.abs(), torch.where(high.isfinite(), high, low).abs())
        slack = ROUNDING * size + torch.where(high.isfinite(), (CHOICE if eps else EXACT) * (high - low), 0.0)
        for powers in changes(network, hidden=hidden):
            if name in ("softmax", "lead") and powers[-1] != 0:
                continue  # the softmax knows units
            try:
                found = ask(in_units(network, powers), region(network, eps, powers[0]), powers[-1], how)
            except InputError:
                continue
            where = (name, powers, (low, high), found)
            assert bool((found[0] <= low + slack).all()), where
            assert bool((found[1] >= high - slack).all()), where
            assert name != "lead" or bool(((found[0] <= 0) | (low > 0)).all()), where


@pytest.mark.parametrize("name", slow_but(HOMOGENEOUS, "certain", "stacked members"))
def test_units_of_inputs_hidden_values_and_outputs(name: str) -> None:
    assert_never_tighter(HOMOGENEOUS[name], hidden=True)


@pytest.mark.parametrize("name", slow_but(OTHERS, "linear, tanh"))
def test_units_of_inputs_and_outputs(name: str) -> None:
    assert_never_tighter(OTHERS[name], hidden=False)


@pytest.mark.parametrize("name", slow_but(HOMOGENEOUS, "linear, relu", "matrix normal, leaky_relu", "images"))
def test_units_of_hidden_values_change_nothing(name: str) -> None:
    """Layers are scaled into one range, whatever their units: the bounds are the same, and nothing is refused."""
    network, dice = HOMOGENEOUS[name], random.Random(name)
    places = depth(network) + 1
    for question, ask in QUESTIONS.items():
        want = ask(network, region(network, 0.05, 0), 0, Options())
        for _ in range(3):
            powers = (0, *(dice.choice((-450, -300, -40, 35, 100, 280, 450)) for _ in range(places - 2)), 0)
            found = ask(in_units(network, powers[:places]), region(network, 0.05, 0), 0, Options())
            for a, b in zip(want, found, strict=True):
                assert torch.allclose(a, b, rtol=ROUNDING, atol=ROUNDING), (question, powers, a, b)


@pytest.mark.parametrize("seed", slow_but(range(100), *range(15)))
def test_tensors_and_entries_of_any_size_against_draws(seed: int) -> None:
    """Scales of tensors, rows, entries and boxes from 1e-300 to 1e300: draws are linear in them, and lose nothing."""
    dice, draws = random.Random(seed), 2000

    def scale() -> float:
        exponent = dice.choice((9, 15, 30, 40, 53, 70, 85, 100, 150, 200, 300)[: dice.choice((3, 7, 11))])
        return 10.0 ** (dice.choice((-1, 1)) * exponent) if dice.random() < 0.3 else 1.0

    layers: list[Any] = []
    for k, (n_in, n_out) in enumerate(pairwise((3, *dice.choice([(4,), (4, 4), (4, 3, 4)]), 2))):
        tensors = [getattr(linear(n_out, n_in, seed + k), field) * scale() for field in Linear.tensors]
        dice.choice(tensors).view(-1)[dice.randrange(n_out)] *= scale()
        tensors = [tensor.clamp(-1e305, 1e305) for tensor in tensors]
        layers += [records.activation(dice.choice(("relu", "leaky_relu"))), Linear(*tensors)]
    network = BayesianNetwork(tuple(layers[1:]))
    size = scale()
    x = size * normal(1, 3, seed=seed)
    values = evaluate(draw_networks(network, draws, seed=1), x)[:, 0]
    unit = values.abs().max()
    if not 0 < unit < 1e140:
        pytest.skip("the outputs themselves are no numbers, or their squares are not")
    values = values / unit
    mean, spread = values.mean(0), values.var(0)
    slack = 8 * (spread / draws).sqrt() + 1e-12
    box = Box(x, x) if dice.random() < 0.7 else Box(x - 1e-3 * size, x + 1e-3 * size)
    with contextlib.suppress(MagnitudeError):
        found = certify(network, box)
        assert bool(((found.lower[0] / unit <= mean + slack) & (found.upper[0] / unit >= mean - slack)).all())
        found = certify(network, box, quantity="variance")
        low, high = (end[0] / unit / unit for end in (found.lower, found.upper))
        assert bool(((low <= 3 * spread + 1e-12) & (high >= 0.3 * spread - 1e-12)).all())
        a, b = values.quantile(0.3), values.quantile(0.8)
        chance = ((values >= a) & (values <= b)).double().mean(0)
        got = probability(network, box, float(a * unit), float(b * unit))
        assert bool(((got.lower[0] <= chance + 0.1) & (got.upper[0] >= chance - 0.1)).all())
        shares = (values * unit).softmax(-1).mean(0)
        for label in (0, 1):
            at = torch.tensor([label])
            with torch.no_grad():
                led = bound_rows(records.classifier(network), box, decision_rows(at, 2)[0], at, Options())
            assert bool((led <= shares[label] - shares[1 - label] + 0.12).all())


@pytest.mark.parametrize("name", slow_but(["linear, relu", "one hidden layer"], "one hidden layer"))
def test_units_with_the_partition_method(name: str) -> None:
    assert_never_tighter(HOMOGENEOUS[name], hidden=True, method="partition")


@pytest.mark.parametrize("act", ["relu", "tanh"])
def test_noise_in_other_units(act: str) -> None:
    """Only the last layer is random: E exp f is known, and does not depend on the units of x."""
    network = chain("fixed", act)
    plain = certify(network, region(network, 0.05, 0), quantity="noise")
    for power in POWERS:
        try:
            found = certify(in_units(network, (power, 0, 0, 0)), region(network, 0.05, power), quantity="noise")
        except (InputError, UnsupportedLayerError):
            continue
        assert bool((found.lower <= plain.lower * (1 + ROUNDING)).all()), power
        assert bool((found.upper >= plain.upper * (1 - ROUNDING)).all()), power


@pytest.mark.parametrize(
    "name", slow_but(["linear, relu", "linear, leaky_relu", "certain", "stacked members"], "certain")
)
def test_radii_in_other_units(name: str) -> None:
    network = records.classifier(HOMOGENEOUS[name])
    x, tolerance = normal(1, 3, seed=3), 0.1

    def radius(powers: tuple[int, ...], label: int) -> float:
        search = Search(attack=False, upper=2.0 ** powers[0], tolerance=tolerance)
        found = certified_radius(in_units(network, powers), times(x, powers[0]), label, search=search)
        return found.radius.item() * 2.0 ** -powers[0]

    places = depth(network) + 1
    for label in (0, 1):
        plain = radius((0,) * places, label)
        for place in range(places - 1):
            for power in (-300, -200, -110, 110, 200):
                try:
                    found = radius(tuple(power if i == place else 0 for i in range(places)), label)
                except InputError:
                    continue
                assert math.isnan(found) or found <= plain * (1 + 2 * tolerance), (label, place, power, found, plain)


# Truth


@pytest.mark.parametrize(
    "options", [Options(), Options(optimise=2), Options(method="partition")], ids=["moment", "optimised", "partition"]
)
@pytest.mark.parametrize(("below", "above"), [(-540, 0), (-540, 40), (-1000, -900), (-300, -250), (30, 0), (40, 20)])
def test_one_hidden_layer_against_ball_arithmetic(below: int, above: int, options: Options) -> None:
    """Inputs whose squares vanish, weights whose squares are large, outputs whose coefficients vanish."""
    plain = chain("linear", "relu", depth=1)
    first, _, last = plain.layers
    grown, last = layer_in_units(first, -20, 0), layer_in_units(last, 0, above)  # 2^20 times the weights
    for share in (1.0, 0.0):  # of the biases, which hide the rest
        layers = [
            replace(layer, bias_mean=share * layer.bias_mean, bias_std=share * layer.bias_std)
            for layer in (grown, last)
        ]
        network = BayesianNetwork.from_linears(layers)
        box = region(plain, 0.05, below)
        found = certify(network, box, options)
        for x in (box.lower[0], box.upper[0], box.centre[0]):
            truth = oracles.exact_mean(network, x.tolist())
            for low, high, ball in zip(found.lower[0].tolist(), found.upper[0].tolist(), truth, strict=True):
                assert not arb(low) > ball, (low, ball)
                assert not arb(high) < ball, (high, ball)


@pytest.mark.parametrize(
    ("rows", "columns"), [(1e-90, 1e-90), (1e-170, 1e30), (1e30, 1e-170), (1e-60, 1e-30), (1e-3, 1e-3)]
)
def test_kronecker_factors_against_ball_arithmetic(rows: float, columns: float) -> None:
    """X of deviation r = a b: E leaky(X) = 0.99 r / sqrt(2 pi), Var leaky(X) = r^2 (0.50005 - 0.99^2 / 2 pi)."""
    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    layer = MatrixNormalLinear(zero, zero[0], rows * one, torch.cat([columns * one, zero]))
    network = BayesianNetwork((layer, records.activation("leaky_relu"), Linear.fixed(1e15 * one)))
    deviation = arb(rows) * arb(columns) * arb(1e15)
    truth = deviation * (1 - arb(0.01)) / (2 * arb.pi()).sqrt()
    spread = deviation**2 * ((1 + arb(0.01) ** 2) / 2 - (1 - arb(0.01)) ** 2 / (2 * arb.pi()))
    mean, variance = certify(network, Box(one, one)), certify(network, Box(one, one), quantity="variance")
    for found, ball in ((mean, truth), (variance, spread)):
        assert not arb(found.lower.item()) > ball
        assert not arb(found.upper.item()) < ball


@pytest.mark.parametrize("power", [-900, -500, -120, -60, 0, 20, 40])
def test_maxima_under_dropout_against_all_masks(power: int) -> None:
    """Which value of a window bounds its maximum may change with the units, so that truth must decide."""
    rate, x = 0.4, normal(1, 4, seed=3)
    masks = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 4)
    chances = (1 - rate) ** masks.sum(-1) * rate ** (4 - masks.sum(-1))
    values = (masks * x / (1 - rate)).amax(-1)
    mean = float(chances @ values)
    variance = float(chances @ (values - mean).square())
    layers = (Dropout(rate), MaxPool(2), Flatten(), Linear.fixed(torch.ones(1, 1)))
    network, point = BayesianNetwork(layers, input_shape=(1, 2, 2)), times(x, power)
    found = certify(network, Box(point, point))
    assert found.lower.item() <= mean * 2.0**power * (1 + ROUNDING)
    assert found.upper.item() >= mean * 2.0**power * (1 - ROUNDING)
    spread = certify(network, Box(point, point), quantity="variance")
    assert spread.upper.item() >= variance * 4.0**power * (1 - ROUNDING)
    assert spread.lower.item() <= variance * 4.0**power * (1 + ROUNDING)


@pytest.mark.parametrize("power", [-900, -700, -300, -60, 0, 60])
def test_chances_of_a_gaussian_against_ball_arithmetic(power: int) -> None:
    """f = N(1, 1) in other units: distances to both ends of an interval, whose product may underflow."""
    one, unit = torch.ones(1, 1, dtype=torch.float64), torch.tensor([2.0**power], dtype=torch.float64)
    network = BayesianNetwork((Linear(0 * one, 0 * one, unit, unit),))
    for a, b in ((-0.5, 0.25), (0.5, 2.0), (3.0, 3.5), (-math.inf, -1.0)):
        found = probability(network, Box(one, one), a * 2.0**power, b * 2.0**power)
        truth = oracles.cdf(b - 1) - oracles.cdf(a - 1)
        assert not arb(found.lower.item()) > truth, (a, b, found)
        assert not arb(found.upper.item()) < truth, (a, b, found)
