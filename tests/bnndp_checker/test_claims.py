"""The lemmas of docs/certificates.md, and whole bounds against means that are known: none passes the truth.

Each of them also shows that the term it is about is needed: without it a false claim would pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from support.handmade import cdf, hexed, rectified, relu_step

pytest.importorskip("flint", reason="the checker needs python-flint")
from flint import arb

from bnndp_checker import chain, claims
from bnndp_checker.ball_arithmetic import ONE, ZERO, Rejected
from bnndp_checker.chain import Chain, Drop, Form, Maximum
from bnndp_checker.claims import _chord, mean_bounds, norms, softmax_bounds
from bnndp_checker.layers import Box
from bnndp_checker.read_model import Layer, Tensor
from bnndp_checker.strict_json import Unreadable

NODES = [(i + 0.5) / 10 - 8 for i in range(160)]
WEIGHTS = [math.exp(-0.5 * t * t) / math.sqrt(2 * math.pi) / 10 for t in NODES]
RELU = Layer("relu", {}, {})


def normal(f: Callable[[float], float]) -> float:
    """E f(xi)."""
    return math.fsum(w * f(t) for w, t in zip(WEIGHTS, NODES, strict=True))


def dense(mean: list[list[float]], std: list[list[float]], bias: list[float], bias_std: list[float]) -> Layer:
    shape = (len(mean), len(mean[0]))
    tensors = {
        "weight_mean": Tensor(shape, tuple(x for row in mean for x in row)),
        "weight_std": Tensor(shape, tuple(x for row in std for x in row)),
        "bias_mean": Tensor(shape[:1], tuple(bias)),
        "bias_std": Tensor(shape[:1], tuple(bias_std)),
    }
    return Layer("linear", {}, tensors)


def box(low: list[float], high: list[float]) -> Box:
    return Box([arb(x) for x in low], [arb(x) for x in high])


def excess(t: float) -> float:
    """E (xi - t)_+."""
    return rectified(-t, 1.0)


# --- lemmas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9, 0.99])
def test_bernoulli_factors_are_dominated_and_by_nothing_less(rate: float) -> None:
    proved = Chain(box([1.0], [1.0]), arb(12))
    after = chain._dropout(
        Layer("dropout", {"rate": rate, "law": "bernoulli", "channels": False}, {}), (1,), proved.start, proved
    )
    (step,) = proved.steps
    assert isinstance(step, Drop)
    assert proved.failures == 0
    kappa, keep = math.sqrt(float(step.square)), 1 - rate
    assert after.low[0].contains(arb(0))
    assert abs(float(after.high[0]) - 1 / keep) < 1e-12

    def gap(scale: float) -> float:
        ends = [i / 50 for i in range(-200, int(50 / keep) + 200)]
        return min(scale * excess(t / scale) - (keep * max(1 / keep - 1 - t, 0) + rate * max(-1 - t, 0)) for t in ends)

    assert gap(kappa) > -1e-9
    assert gap(0.98 * kappa) < -1e-9


@pytest.mark.parametrize("f", [math.tanh, abs, lambda t: max(t, 0.3), math.sin, lambda t: t])
def test_lipschitz_functions_of_a_gaussian_are_dominated(f: Callable[[float], float]) -> None:
    centre = normal(f)

    def beyond(t: float) -> float:
        return normal(lambda x: max(f(x) - centre - t, 0.0))

    for t in (-2.0, -0.5, 0.0, 0.4, 1.5):
        assert beyond(t) <= excess(t) + 1e-3


def test_events_are_as_rare_as_they_are_counted() -> None:
    for exponent in (1.0, 3.0, 12.0):
        reach = float(Chain(box([0.0], [0.0]), arb(exponent)).reach)
        assert 2 * cdf(-reach) <= math.exp(-exponent)  # both sides of one value
    proved = Chain(box([0.0], [0.0]), arb(3.0), failures=4)
    assert abs(float(proved.outside) - 4 * math.exp(-3)) < 1e-12
    assert Chain(box([0.0], [0.0]), arb(1.0), failures=40).outside == 1


@pytest.mark.parametrize("tilt", [0.05, 0.5, 0.9, 1.0])
def test_a_chord_is_above_the_mean_of_the_sigmoid(tilt: float) -> None:
    square, outside = 0.49, 0.001

    def raised(at: float) -> arb:  # log E exp(tilt S) of S = at + 0.7 xi
        return arb(tilt) * arb(at) + arb(tilt) ** 2 * arb(square) / 2

    low, high = raised(-3.0), raised(-1.0)
    slope, constant = map(float, _chord(arb(tilt), low, high, arb(outside)))

    def truth(t: float) -> float:
        return normal(lambda x: 1 / (1 + math.exp(-t - 0.7 * x)))

    gaps = [slope * float(raised(t)) + constant - outside - truth(t) for t in (-3.0, -2.5, -2.0, -1.5, -1.0)]
    assert min(gaps) >= 0
    assert min(gaps) < 0.06 or tilt < 0.9
    assert abs(constant - outside - float(_chord(arb(tilt), low, high, ZERO)[1])) < 1e-15
    point = _chord(arb(tilt), arb(tilt) * arb(-3), arb(tilt) * arb(-3), ZERO)
    assert point[0] == 0
    assert point[1] >= arb(1) / (1 + arb(3).exp())
    with pytest.raises(Rejected):
        _chord(arb("nan"), low, high, ZERO)


def test_the_tilted_bound_touches_the_sigmoid() -> None:
    """At e^S = (1 - tilt) / tilt the two are the same, so that no smaller factor would do."""
    for tilt in (0.25, 0.5, 0.75):
        at = math.log((1 - tilt) / tilt)
        _, value = _chord(arb(tilt), arb(tilt) * arb(at), arb(tilt) * arb(at), ZERO)
        assert abs(float(value) - 1 / (1 + math.exp(-at))) < 1e-15


@pytest.mark.parametrize("slopes", [[], [0.3, 0.6, -0.2], [0.0, 1.0, 1.0]])
def test_lines_over_a_maximum(slopes: list[float]) -> None:
    before, at = box([0.0, -0.3, 0.1], [0.5, 0.6, 0.4]), 0
    proved = Chain(before, arb(12))
    after = chain._maximum([[0, 1, 2]], before, proved, hexed({"chosen": [at], "slopes": [slopes]}), "pool")
    (step,) = proved.steps
    assert isinstance(step, Maximum)
    form = Form([[ONE], [-ONE]], [ZERO, ZERO], [ZERO, ZERO])
    step.back(form)
    up, down = ([float(a) for a in row] for row in form.rows)
    over, touched = float(form.constants[0]), math.inf
    for y in [(a, b, c) for a in (0.0, 0.2, 0.5) for b in (-0.3, 0.1, 0.6) for c in (0.1, 0.3, 0.4)]:
        line = sum(a * v for a, v in zip(up, y, strict=True)) + over
        touched = min(touched, line - max(y))
        assert line >= max(y) - 1e-12
        assert sum(a * v for a, v in zip(down, y, strict=True)) + float(form.constants[1]) >= -max(y)
        assert float(after.low[0]) - 1e-15 <= max(y) <= float(after.high[0]) + 1e-15
    assert touched < 0.3


@pytest.mark.parametrize("chosen", [3, -1, True, 0.0, "0", None])
def test_the_chosen_value_is_an_index_of_its_window(chosen: object) -> None:
    before = box([0.0] * 4, [1.0] * 4)
    with pytest.raises((Rejected, TypeError)):
        chain._maximum([[0, 1, 2]], before, Chain(before, arb(9)), {"chosen": [chosen], "slopes": [[]]}, "pool")


def test_norms_hold_the_second_moments() -> None:
    """Every kind of step once: the second moment is known, or an upper bound of what it can be is met."""
    gauss = dense([[2.0]], [[0.5]], [1.0], [0.25])
    sizes = norms([gauss], (1,), [arb(3)])
    assert abs(float(sizes[0]) - (7 + math.hypot(1.5, 0.25))) < 1e-12
    drop = Layer("dropout", {"rate": 0.5, "law": "gaussian", "channels": False}, {})
    assert abs(float(norms([drop], (1,), [arb(3)])[0]) - 3 * math.sqrt(2)) < 1e-12
    for branches, truth in ((((gauss,), ()), 3.0), (((gauss,), (gauss,)), float(sizes[0]))):
        found = norms([Layer("residual", {}, {}, branches)], (1,), [arb(3)])
        assert abs(float(found[0]) - truth - float(sizes[0])) < 1e-12
        found = norms([Layer("concatenate", {}, {}, branches)], (1,), [arb(3)])
        assert [float(x) for x in found] == pytest.approx([float(sizes[0]), truth])
    pool = Layer("max_pool", {"size": [1, 2], "stride": [1, 1]}, {})
    assert [float(x) for x in norms([pool], (1, 1, 3), [arb(1), arb(2), arb(4)])] == [3, 6]
    assert [float(x) for x in norms([Layer("sigmoid", {}, {})], (1,), [arb(2)])] == [1.0]
    user = {"knots": Tensor((2,), (-1.0, 1.0)), "values": Tensor((2,), (5.0, 5.0))}
    curve = Layer("piecewise_affine", {"lipschitz": 2.0, "inner_error": 0.5, "curvature": None}, user)
    assert float(norms([curve], (1,), [arb(3)])[0]) >= 5.5 + 2 * (3 + 1)


# --- whole bounds: a value that is hidden from the box ---------------------------------------------------------------
# z = xi; then ReLU(z - 2.5) of it, which is zero on the box of z at the exponent 3 (reach 2.45) and not in the mean.

RARE = [
    dense([[0.0]], [[0.0]], [0.0], [1.0]),
    dense([[1.0]], [[0.0]], [-2.5], [0.0]),
    RELU,
    dense([[1.0]], [[0.0]], [0.0], [0.0]),
]
RARE_TRUTH = excess(2.5)
REACH = math.sqrt(6.0)
RARE_STEPS = [
    {"mean": [[0.0], [0.0]], "deviation": [[1.0], [1.0]]},
    {
        "mean": [[-REACH - 2.6], [REACH - 2.5 + 1e-9]], "deviation": [[0.0], [0.0]],
        "above": [[0.0], [1e-12]], "below": [[0.0], [-1e-12]],
    },
]  # fmt: skip


def _rare(proof: dict[str, Any]) -> float:
    return float(mean_bounds(RARE, (1,), box([0.0], [0.0]), [[-ONE]], hexed(proof)).least[0])


def test_what_is_off_the_event_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = {"exponent": 3.0, "steps": RARE_STEPS}
    assert _rare(proof) <= -RARE_TRUTH
    with monkeypatch.context() as patch:  # without the norm of what is outside
        patch.setattr(claims, "norms", lambda *_: [ZERO])
        assert _rare(proof) > -RARE_TRUTH
    with monkeypatch.context() as patch:  # without its probability
        patch.setattr(Chain, "outside", ZERO)
        assert _rare(proof) > -RARE_TRUTH


@pytest.mark.parametrize("exponent", [1.0, 2.0])
def test_a_form_holds_for_the_activation_of_what_is_cut_off(exponent: float) -> None:
    """Forms are of values whose noise stops at the reach, where the mean of ReLU(xi) is lower than without a limit."""
    steps = hexed({"exponent": exponent, "steps": [relu_step([0.0], [0.0], [1.0], [1.0], slack=1e-6)]})
    layers = [dense([[0.0]], [[0.0]], [0.0], [1.0]), RELU]
    proved = chain.chain(layers, (1,), box([0.0], [0.0]), steps)[0]
    found = proved.form([[ONE], [-ONE]], [ZERO, ZERO]).constants
    reach = math.sqrt(2 * exponent)
    truth = excess(0.0) - excess(reach)  # E min(xi_+, reach)
    assert float(found[0]) >= truth - 1e-9
    assert float(found[1]) >= -truth - 1e-9
    assert -excess(0.0) + 1e-6 < -truth  # so the line below alone would not do


def test_a_larger_exponent_needs_larger_boxes() -> None:
    with pytest.raises(Rejected, match="mean"):
        _rare({"exponent": 4.0, "steps": RARE_STEPS})


@pytest.mark.parametrize(("half", "failures"), [(0.5, 2), (0.4, 4), (0.2, None)])
def test_ranges_that_are_forms_are_counted(half: float, failures: int | None) -> None:
    """A range narrower than the box allows (0.1 c = 0.49) needs a form (0.1 c / sqrt 2 = 0.35), which may fail."""
    step = relu_step([0.5] * 2, [0.5] * 2, [0.1 - 1e-12] * 2, [0.1 + 1e-12] * 2)
    layers = [
        dense([[0.5]] * 2, [[0.1]] * 2, [0.0] * 2, [0.0] * 2),
        RELU,
        dense([[0.5, 0.5]], [[0.0, 0.0]], [0.0], [0.0]),
    ]
    last = {"mean": [[0.5 - half], [0.5 + half]], "deviation": [[0.0], [0.0]]}
    proof = hexed({"exponent": 12.0, "steps": [step, last]})
    if failures is None:
        with pytest.raises(Rejected, match="mean"):
            chain.chain(layers, (1,), box([1.0], [1.0]), proof)
    else:
        assert chain.chain(layers, (1,), box([1.0], [1.0]), proof)[0].failures == failures


# --- whole bounds: the softmax of one hidden value -------------------------------------------------------------------

HIDDEN = dense([[1.0]], [[0.3]], [0.2], [0.1])
LAST = dense([[-1.5], [1.0]], [[0.2], [0.3]], [-0.4, 0.6], [0.1, 0.2])
LOW, HIGH = 0.5, 0.9


def _probability(x: float) -> float:
    """E p of the second class: X, z and the difference of the logits are integrated."""
    m, r = x + 0.2, math.hypot(0.3 * x, 0.1)

    def given(t: float) -> float:
        z = max(m + r * t, 0.0)
        centre, noise = 2.5 * z + 1.0, math.sqrt((0.2**2 + 0.3**2) * z * z + 0.1**2 + 0.2**2)
        return normal(lambda s: 1 / (1 + math.exp(-centre - noise * s)))

    return normal(given)


def _softmax(exponent: float, tilt: float, noise: float, corner: float, point: bool = False) -> list[float]:
    high = LOW if point else HIGH
    means = [LOW + 0.2 - 1e-9], [high + 0.2 + 1e-9]
    step = relu_step(*means, [math.hypot(0.3 * LOW, 0.1) - 1e-9], [math.hypot(0.3 * high, 0.1) + 1e-9])
    final = {"reference": 1, "noise": [noise], "tilts": [tilt], "exponent": corner}
    proof = {"exponent": exponent, "steps": [step], "final": final}
    rows = [[ZERO, ONE], [-ONE, ONE], [-ONE, ZERO], [ONE, -ONE]]
    found = softmax_bounds([HIDDEN, RELU, LAST], (1,), box([LOW], [high]), rows, hexed(proof))
    return [float(x) for x in found.least]


@pytest.mark.parametrize("point", [True, False])
def test_probabilities_are_not_passed(point: bool) -> None:
    p = _probability(LOW)  # the least: it rises with x
    assert p < _probability(HIGH)
    truth = [p, 2 * p - 1, p - 1, 1 - 2 * _probability(LOW if point else HIGH)]
    best = [-math.inf] * 4
    for exponent in (6.0, 9.0, 14.0):
        for tilt in (0.5, 0.7, 0.85, 1.0):
            for corner in (3.0, 6.0, 12.0):
                found = _softmax(exponent, tilt, 1.2, corner, point)
                assert all(a <= b + 1e-6 for a, b in zip(found, truth, strict=True))
                best = [max(a, b) for a, b in zip(best, found, strict=True)]
    assert best[0] > p - 0.1
    assert best[1] > 2 * p - 1 - 0.2
    assert best[3] == -1.0


def test_the_noise_of_the_last_layer_counts() -> None:
    for noise in (0.0, 0.05, -1.0):
        with pytest.raises(Rejected, match="noise"):
            _softmax(12.0, 0.8, noise, 6.0)


def test_references_and_rows_must_fit_the_classes() -> None:
    step = relu_step([0.7 - 1e-9], [0.7 + 1e-9], [0.1], [0.2])
    final = {"reference": 2, "noise": [1.0], "tilts": [1.0], "exponent": 3.0}
    for reference, row in ((2, [ZERO, ONE]), (0, [ZERO]), (0, [ZERO] * 3)):
        proof = hexed({"exponent": 9.0, "steps": [step], "final": final | {"reference": reference}})
        with pytest.raises(Unreadable):
            softmax_bounds([HIDDEN, RELU, LAST], (1,), box([0.5], [0.5]), [row], proof)


def _last_layer(
    layer: Layer, region: Box, rows: list[list[arb]], noise: list[float], tilts: list[float], exponent: float
) -> list[float]:
    """What is proved of the softmax of one layer alone, with its first class as the reference."""
    final = {"reference": 0, "noise": noise, "tilts": tilts, "exponent": exponent}
    proof = hexed({"exponent": 12.0, "steps": [], "final": final})
    return [float(x) for x in softmax_bounds([layer], (1,), region, rows, proof).least]


@pytest.mark.parametrize(("centre", "square"), [(2.0, 4.0), (6.0, 0.25), (4.0, 16.0), (-1.0, 1.0), (3.0, 0.0)])
def test_the_difference_of_two_logits_alone(centre: float, square: float) -> None:
    """One layer: the difference is Gaussian, and all that is proved of it comes from its variance."""
    layer = dense([[0.0], [0.0]], [[0.0], [0.0]], [centre, 0.0], [math.sqrt(square / 2)] * 2)
    p = normal(lambda x: 1 / (1 + math.exp(-centre - math.sqrt(square) * x)))
    best = [-1.0, -1.0]
    for tilt in (0.05, 0.3, 0.6, 0.9, 1.0):
        for corner in (0.01, 0.3, 1.0, 4.0, 9.0):
            rows = [[ONE, ZERO], [ONE, -ONE]]
            found = _last_layer(layer, box([0.0], [1.0]), rows, [square + 1e-12], [tilt], corner)
            for k, truth in enumerate((p, 2 * p - 1)):
                assert found[k] <= truth + 1e-6
                best[k] = max(best[k], found[k])
    if centre / math.sqrt(square + 1e-9) > 3:
        assert best[0] > p - 0.02
        assert best[1] > 2 * p - 1 - 0.03


def test_three_classes_in_a_corner() -> None:
    """No variance at all: the lead of a class over another is smaller if there is a third."""
    layer = dense([[0.0]] * 3, [[0.0]] * 3, [1.0, 0.5, 0.9], [0.0] * 3)
    sizes = [math.exp(x) for x in (1.0, 0.5, 0.9)]
    (found,) = _last_layer(layer, box([0.0], [1.0]), [[ONE, -ONE, ZERO]], [0.0, 0.0], [1.0, 1.0], 60.0)
    truth = (sizes[0] - sizes[1]) / sum(sizes)
    assert truth - 1e-12 <= found <= truth + 1e-15


def test_a_corner_is_for_leads_only() -> None:
    """Where the other class is ahead, a third one that may be large says nothing."""
    layer = dense([[0.0], [0.0], [1.0]], [[0.0]] * 3, [0.0, 1.0, 0.0], [0.0] * 3)
    (found,) = _last_layer(layer, box([-10.0], [10.0]), [[ONE, -ONE, ZERO]], [0.0, 0.0], [1.0, 1.0], 60.0)
    assert found <= (1 - math.e) / (1 + math.e + math.exp(-10))


def test_the_corner_is_what_it_says() -> None:
    layer = dense([[0.0]] * 2, [[0.0]] * 2, [6.0, 0.0], [0.5, 0.5])
    (found,) = _last_layer(layer, box([0.0], [1.0]), [[ONE, -ONE]], [0.5], [1e-3], 2.0)  # of the tilt nothing comes
    h, rare = -6 + math.sqrt(2 * 2.0 * 0.5), math.exp(-2)
    assert abs(found - ((1 - rare) * (1 - math.exp(h)) / (1 + math.exp(h)) - rare)) < 1e-12


def test_the_mean_is_what_it_says() -> None:
    """Two values of variance one, added to five: top, tau and the norm are known."""
    layers = [dense([[0.0]] * 2, [[0.0]] * 2, [0.0] * 2, [1.0] * 2), dense([[3.0, 4.0]], [[0.5, 0.0]], [5.0], [0.25])]
    proof = hexed({"exponent": 3.0, "steps": [{"mean": [[0.0] * 2] * 2, "deviation": [[1.0] * 2] * 2}]})
    found = mean_bounds(layers, (1,), box([0.0], [1.0]), [[ONE], [arb(-2)]], proof)
    delta = 2 * math.exp(-3)
    whole = 3 + 4 + 5 + math.hypot(0.5, 0.25)
    for factor, top, least in zip((1.0, 2.0), (-5.0, 10.0), found.least, strict=True):
        assert abs(float(least) + top + abs(top) * delta + factor * (5.0 + whole) * math.sqrt(delta)) < 1e-12
