"""Hostile numbers: every row ends in a bound that holds, or in an error that names tensor and index; never in NaN."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import pytest
import torch
from flint import arb
from support import oracles
from support.ensembles import outputs
from tests.faults.hostile import BOUNDED, REFUSED, Ingredients
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import Tanh
from bnndp.attack import decision_rows
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.errors import CertError, InputError, MagnitudeError
from bnndp.geometry.box import Box
from bnndp.layers import Conv2d, CorrelatedLinear, Dropout, Linear, MatrixNormalLinear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.options import Options
from bnndp.questions.bounds import Bounds
from bnndp.questions.certify import certify, probability
from bnndp.questions.decision import robust_decision
from bnndp.questions.radius import Search, certified_radius
from bnndp.questions.robustness import adversarial_robustness
from bnndp.questions.softmax import bound_rows
from bnndp.questions.verdict import Verdict

METHODS = {
    "moment": Options(),
    "partition": Options(method="partition"),
    "best, refined": Options(method="best", refine=4),
    "optimised": Options(optimise=2, branch=2),
}
METHOD_OF = dict(zip(BOUNDED, itertools.cycle(METHODS), strict=False))
USUAL = (
    *("no variance", "variance of the last layer only, 1e101", "all zero", "smallest deviations", "deviations 1e-162"),
    *("deviations 4e9", "deviations 1e154", "means 4e9", "largest means", "dead neurons", "largest outputs"),
    *("all times 1e75", "output weights cancel", "a point at 2e14", "a width of one step", "a width of 1e14"),
    *("the whole line", "float16", "integers", "weights of 1e-85, then of 1e70"),
)
ROWS = slow_but(itertools.product(BOUNDED, METHODS), *((row, METHOD_OF[row]) for row in USUAL))
DRAWS = 2000
HOEFFDING = math.sqrt(math.log(2 / 1e-9) / (2 * DRAWS))  # a mean of numbers in [0, 1] is off by more once in 1e9


@pytest.mark.parametrize("row", REFUSED)
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_what_is_no_number_is_refused_by_name(row: str, task: str) -> None:
    change, words = REFUSED[row]
    made = change(Ingredients.usual(task))
    with pytest.raises(InputError, match=re.escape(words)):
        certify(made.network(), made.box())  # whichever of the three comes first


def places(box: Box) -> Tensor:
    """Some points of a box: (points, n)."""
    draw = torch.rand(1, box.n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    inner = box.lower * (1 - draw) + box.upper * draw
    return torch.cat([box.lower, box.upper, box.centre, inner.clamp(box.lower, box.upper)])


def answer(made: Ingredients, options: Options) -> Bounds | None:
    """The bounds; None where a number is beyond the range, or has overflowed, which an error says."""
    try:
        bounds = certify(made.network(), made.box(), options)
    except InputError as error:
        if not (isinstance(error, MagnitudeError) or "No bound for box 0, output" in str(error)):
            raise
        return None
    assert not bounds.lower.isnan().any()
    assert not bounds.upper.isnan().any()
    return bounds


@pytest.mark.parametrize(("row", "method"), ROWS)
def test_means_are_within_their_bounds(row: str, method: str) -> None:
    made = BOUNDED[row](Ingredients.usual("regression"))
    network = made.network()
    bounds = answer(made, METHODS[method])
    if bounds is None:
        return
    for x in places(made.box()):
        (truth,) = oracles.exact_mean(network, x.tolist())
        assert not arb(bounds.lower.item()) > truth, (x, truth)
        assert not arb(bounds.upper.item()) < truth, (x, truth)


def drawn_softmax(network: BayesianNetwork, x: Tensor) -> Tensor | None:  # x (n,)
    """The mean softmax of draws, (classes,); None where float64 overflows."""
    logits = outputs(network, x, DRAWS, seed=2)
    return logits.softmax(-1).mean(0) if bool(logits.isfinite().all()) else None


@pytest.mark.parametrize(("row", "method"), ROWS)
def test_probabilities_are_within_their_bounds(row: str, method: str) -> None:
    made = BOUNDED[row](Ingredients.usual("classification"))
    network, box = made.network(), made.box()
    bounds = answer(made, METHODS[method])
    if bounds is None:
        return
    assert bool((bounds.lower >= 0).all() & (bounds.upper <= 1).all())
    for x in places(box):
        truth = drawn_softmax(network, x)
        if truth is not None:
            assert bool((bounds.lower[0] <= truth + HOEFFDING).all()), (bounds.lower, truth)
            assert bool((bounds.upper[0] >= truth - HOEFFDING).all()), (bounds.upper, truth)


def leads(network: BayesianNetwork, box: Box, label: int, options: Options) -> bool:
    """Whether the decision would be certified: that of robust_decision, without its attack."""
    at = torch.tensor([label])
    with torch.no_grad():
        bound = bound_rows(network, box, decision_rows(at, network.n_out)[0], at, options)
    assert not bound.isnan().any()
    return bool((bound > 0).all())


@pytest.mark.parametrize(("row", "method"), ROWS)
def test_wrong_decisions_are_not_certified(row: str, method: str) -> None:
    made = BOUNDED[row](Ingredients.usual("classification"))
    network, box = made.network(), made.box()
    try:
        certified = [label for label in range(network.n_out) if leads(network, box, label, METHODS[method])]
    except MagnitudeError:
        return
    assert len(certified) <= 1  # a decision is one class
    for x in places(box):
        truth = drawn_softmax(network, x)
        if truth is not None:
            for label in certified:
                assert float(truth[label]) >= float(truth.max()) - 2 * HOEFFDING


@pytest.mark.parametrize("row", ["usual", "deviations 4e9", "means 4e9", "weights of 1e-85, then of 1e70"])
def test_verdicts_on_wrong_decisions(row: str) -> None:
    made = BOUNDED[row](Ingredients.usual("classification"))
    network, box = made.network(), made.box()
    found = [robust_decision(network, box.centre, box, label).verdict[0] for label in range(network.n_out)]
    assert found.count(Verdict.CERTIFIED) <= 1


# Layers of other kinds, and settings


def general(task: str, value: float, field: str) -> BayesianNetwork:
    """Tanh and dropout between dense layers, one tensor of the first scaled."""
    made = Ingredients.usual(task)
    first = Linear(**(made.hidden | {field: made.hidden[field] * value}))
    return BayesianNetwork((first, Tanh(), Dropout(0.1), Linear(**made.output)), task)


@pytest.mark.parametrize(
    "value", slow_but([0.0, 5e-324, 1e-170, 1e-30, 1.0, 1e10, 1e30, 1e100, 1e200], 1e-170, 1e-30, 1e30, 1e100)
)
@pytest.mark.parametrize("field", ["weight_mean", "weight_std", "bias_std"])
def test_other_layers_with_hostile_numbers(value: float, field: str) -> None:
    box = Ingredients.usual("regression").box()
    for task in ("regression", "classification"):
        network = general(task, value, field)
        try:
            bounds = certify(network, box)
        except CertError:
            continue
        assert not (bounds.lower.isnan() | bounds.upper.isnan()).any()
        mean, spread = drawn_general(network, box.centre)
        slack = 6 * spread / math.sqrt(DRAWS) + 1e-9 * (1 + mean.abs())
        assert bool((bounds.lower <= mean + slack).all() & (bounds.upper >= mean - slack).all())


def drawn_general(network: BayesianNetwork, x: Tensor) -> tuple[Tensor, Tensor]:  # x (1, n)
    """Mean and standard deviation of draws of the output, or of the softmax: (1, outputs) each."""
    values = evaluate(draw_networks(network, DRAWS, seed=4), x)
    values = values.softmax(-1) if network.task == "classification" else values
    return values.mean(0), values.std(0)


CORRELATED = (torch.ones(2, 2), torch.ones(2, 2), torch.ones(2), torch.ones(2))
RECORDS = {
    "factor": lambda bad: CorrelatedLinear(*CORRELATED, torch.full((2, 3, 1), bad), shared=True),
    "row_factor": lambda bad: MatrixNormalLinear(
        CORRELATED[0], CORRELATED[2], torch.full((2, 1), bad), torch.ones(3, 1)
    ),
    "column_factor": lambda bad: MatrixNormalLinear(*CORRELATED[0::2], torch.ones(2, 1), torch.full((3, 1), bad)),
    "weight[": lambda bad: Conv2d.fixed(torch.full((1, 1, 2, 2), bad)),
    "rate": Dropout,
    "shift": lambda bad: BayesianNetwork((Linear(*CORRELATED),), shift=torch.full((2,), bad)),
    "weights": lambda bad: Ensemble((BayesianNetwork((Linear(*CORRELATED),)),) * 2, torch.tensor([bad, 1.0])),
    "eps": lambda bad: Box.ball([[0.0]], bad),
    "gamma": lambda bad: adversarial_robustness(*usual(), gamma=bad if bad != math.inf else -1.0),
    "tolerance": lambda bad: Search(tolerance=bad),
    "upper": lambda bad: Search(upper=bad),
    "time_limit": lambda bad: Options(time_limit=bad if bad != math.inf else -1.0),
    "interval": lambda bad: probability(usual()[0], usual()[2], bad, bad),
    "domain": lambda bad: Box.ball([[0.0]], 1.0, domain=(bad, bad)),
}


def usual() -> tuple[BayesianNetwork, Tensor, Box]:
    made = Ingredients.usual("regression")
    return made.network(), made.box().centre, made.box()


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=str)
def test_settings_that_are_no_numbers_are_refused(name: str, bad: float) -> None:
    with pytest.raises(InputError) as caught:
        RECORDS[name](bad)
    assert name in str(caught.value)


# Sizes


@pytest.mark.parametrize(("n_in", "width"), [(2, 100_000), (100_000, 2)], ids=["units", "inputs"])
def test_a_hundred_thousand_units(n_in: int, width: int) -> None:
    made = Ingredients.usual("regression", n_in, width)
    made = replace(made, output=made.output | {"weight_mean": made.output["weight_mean"] / width})
    bounds = answer(made, Options())
    z = made.network().linears[0]
    x = made.box().centre[0]
    mean = z.weight_mean @ x + z.bias_mean
    std = (z.weight_std.square() @ x.square() + z.bias_std.square()).sqrt()
    t = mean / std
    relu = mean * torch.special.ndtr(t) + std * torch.exp(-t.square() / 2) / math.sqrt(2 * math.pi)
    last = made.network().linears[1]
    truth = last.weight_mean @ relu + last.bias_mean
    assert bool((bounds.lower[0] <= truth + 1e-9).all() & (bounds.upper[0] >= truth - 1e-9).all())


@pytest.mark.parametrize(
    "row", ["deviations 4e9", "means 4e9", "largest outputs", "weights of 1e-85, then of 1e70", "no variance"]
)
def test_radii_of_hostile_classifiers(row: str) -> None:
    made = BOUNDED[row](Ingredients.usual("classification"))
    network, x = made.network(), Ingredients.usual("classification").box().centre
    labels = torch.tensor([0, 1, 2])
    found = certified_radius(network, x.expand(3, -1), labels, search=Search(attack=False, tolerance=0.3))
    assert int((found.radius >= 0).sum()) <= 1  # x itself has one decision


@pytest.mark.parametrize("row", BOUNDED)
def test_only_numbers_beyond_the_range_are_refused(row: str) -> None:
    """Those of tensors and boxes are compared; hidden layers of small or large numbers are scaled."""
    made = BOUNDED[row](Ingredients.usual("classification"))
    network, box = made.network(), made.box()
    sizes = [float(getattr(layer, name).abs().max()) for layer in network.linears for name in layer.tensors]
    if max(sizes) <= 2**32 and float(box.magnitude.max()) <= 2**48:
        certify(network, box)
