"""The change of the mean output within a region: proved by bounds, broken at a witness, or undecided."""

from __future__ import annotations

import math

import pytest
import torch
from flint import arb, ctx
from support import oracles
from support.ensembles import certain_ensemble, points_of
from support.networks import make_network
from tests.marks import slow_but
from tests.paper.truth import narrow_mean
from torch import Tensor

from bnndp.errors import CertError, InputError
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.questions.certify import certify
from bnndp.questions.robustness import adversarial_robustness
from bnndp.questions.verdict import Verdict

INF = math.inf
METHODS = ("moment", "partition", "best")


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def linear_network(rows: list[list[float]]) -> BayesianNetwork:
    w = tensor(rows)
    return BayesianNetwork.from_linears([Linear(w, torch.ones_like(w), torch.zeros(len(w)), torch.ones(len(w)))])


@pytest.mark.parametrize(
    ("norm", "rows", "change"),
    [
        (1.0, [[1.0, 2.0], [2.0, 4.0]], 0.9),
        (2.0, [[3.0, 0.0], [4.0, 0.0]], 0.5),
        (INF, [[1.0, 2.0], [2.0, 4.0]], 0.6),
        (INF, [[1.0, -2.0]], 0.3),
        (1.0, [[-1.0, -2.0]], 0.3),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_verdicts_of_linear_networks(method: str, norm: float, rows: list[list[float]], change: float) -> None:
    """The rows are proportional, so that the corner that is worst for one output is worst for all."""
    network, x = linear_network(rows), tensor([[0.2, -0.4], [5.0, 1.0]])
    box = Box.ball(x, 0.1)
    for gamma, verdict in ((change * (1 + 1e-6), Verdict.CERTIFIED), (change * (1 - 1e-6), Verdict.FALSIFIED)):
        answer = adversarial_robustness(network, x, box, gamma, norm=norm, options=Options(method=method))
        assert answer.verdict == (verdict, verdict)
        assert answer.change.tolist() == pytest.approx([change, change], rel=1e-9)
        found = 0 if verdict is Verdict.CERTIFIED else change  # what is certified is not attacked
        assert answer.found.tolist() == pytest.approx([found, found], rel=1e-9)
        assert (answer.found <= answer.change).all()
        assert box.contains(answer.witness).all()


@pytest.mark.parametrize("norm", [1.0, 2.0, INF])
def test_a_falsified_claim_is_false_at_its_witness(norm: float) -> None:
    """In ball arithmetic, with one hidden layer."""
    network = make_network((3, 8, 2), 12)
    x = tensor([[0.1, 0.5, -0.3]])
    box = Box.ball(x, 0.2)
    answer = adversarial_robustness(network, x, box, 0.01, norm=norm)
    assert answer.verdict == (Verdict.FALSIFIED,)
    assert box.contains(answer.witness).all()
    with ctx.workprec(oracles.PRECISION):
        there, here = (oracles.exact_mean(network, p[0].tolist()) for p in (answer.witness, x))
        moved = [abs(a - b) for a, b in zip(there, here, strict=True)]
    size = {1.0: sum(moved, arb(0)), 2.0: sum((m * m for m in moved), arb(0)).sqrt(), INF: max(moved, key=float)}[norm]
    assert size >= answer.found.item() > 0.01
    assert answer.found.item() >= 0.99 * float(size)  # nothing lost at a point with one hidden layer


@pytest.mark.parametrize("norm", [1.0, 2.0, INF])
def test_a_certified_change_holds_everywhere(norm: float) -> None:
    network = make_network((3, 8, 2), 13)
    x = tensor([[0.1, 0.5, -0.3]])
    box = Box.ball(x, 0.2, norm=2)
    answer = adversarial_robustness(network, x, box, 10.0, norm=norm)
    assert answer.verdict == (Verdict.CERTIFIED,)
    here = [float(y) for y in oracles.exact_mean(network, x[0].tolist())]
    for point in points_of(box, 40)[:, 0].tolist():
        there = [float(y) for y in oracles.exact_mean(network, point)]
        moved = torch.linalg.vector_norm(tensor(there) - tensor(here), ord=norm).item()
        assert moved <= answer.change.item()


def test_between_what_is_found_and_what_is_proved_it_stays_undecided() -> None:
    network, x = make_network((2, 12, 10, 1), 14), tensor([[0.3, 0.2], [1.0, -1.0]])
    box = Box.ball(x, 0.5)
    loose = adversarial_robustness(network, x, box, 0.0)
    assert (loose.found < loose.change).all()
    gamma = 0.5 * (loose.found.max() + loose.change.min()).item()
    assert loose.found.max().item() < gamma < loose.change.min().item()
    answer = adversarial_robustness(network, x, box, gamma)
    assert answer.verdict == (Verdict.UNDECIDED, Verdict.UNDECIDED)


@pytest.mark.parametrize("norm", slow_but([1.0, 2.0, INF], 2.0))
def test_the_gap_at_a_point_counts_against_both_verdicts(norm: float) -> None:
    """With two hidden layers even single points have an interval; its far end counts, for what is proved and found."""
    for seed in range(3):
        network = make_network((2, 1, 5, 2), seed, std=1.5)
        x = tensor([[0.4, 0.9]])
        box = Box.ball(x, 0.1)
        answer = adversarial_robustness(network, x, box, 0.0, norm=norm)
        at, region = certify(network, Box(x, x)), certify(network, box)
        assert (at.width > 1e-3).any()
        largest = torch.maximum(region.upper - at.lower, at.upper - region.lower)
        change = torch.linalg.vector_norm(largest, ord=norm).item()
        assert answer.change.item() == pytest.approx(change, rel=1e-9)
        there, here = (tensor(narrow_mean(network, p[0].tolist()).tolist()) for p in (answer.witness, x))
        moved = torch.linalg.vector_norm(there - here, ord=norm).item()
        assert answer.found.item() <= moved + 1e-10 * (1 + here.abs().max().item())  # of the quadrature


def test_a_point_does_not_change() -> None:
    x = tensor([[0.3, 0.2]])
    answer = adversarial_robustness(make_network((2, 5, 1), 15), x, Box(x, x), 1e-9)
    assert answer.verdict == (Verdict.CERTIFIED,)
    exact = adversarial_robustness(make_network((2, 5, 1), 15), x, Box(x, x), 0.0)
    assert exact.verdict == (Verdict.UNDECIDED,)  # rounding leaves a gap, and zero is less than that


@pytest.mark.parametrize("size", [1e120, 1e200, 1e300])
def test_no_verdict_is_won_by_overflow(size: float) -> None:
    """The true change is about ``size**2`` times what a network of ordinary weights does, far above gamma."""
    small = make_network((2, 4, 4, 1), 16)
    network = BayesianNetwork.from_linears(
        Linear(size * a.weight_mean, size * a.weight_std, a.bias_mean, a.bias_std) for a in small.linears
    )
    x = tensor([[0.3, -0.8]])
    try:
        answer = adversarial_robustness(network, x, Box.ball(x, 0.5), 1.0)
    except CertError:
        return
    assert answer.verdict[0] is not Verdict.CERTIFIED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": -1e-9}, "gamma must be >= 0, got -1e-09"),
        ({"gamma": math.nan}, "gamma must be >= 0, got nan"),
        ({"norm": 0.5}, "norm must be >= 1, got 0.5"),
        ({"norm": math.nan}, "norm must be >= 1, got nan"),
        ({"x": torch.ones(3, 2)}, "must lie in its region"),
        ({"x": torch.zeros(2)}, r"x has shape \(1, 2\), the regions \(3, 2\)"),
    ],
)
def test_robustness_refuses_nonsense(change: dict[str, object], message: str) -> None:
    x = torch.zeros(3, 2)
    right = {"network": make_network((2, 4, 1)), "x": x, "box": Box.ball(x, 0.1), "gamma": 1.0}
    with pytest.raises(InputError, match=message):
        adversarial_robustness(**(right | change))


def test_an_ensemble_is_certified_and_falsified() -> None:
    ensemble, x = certain_ensemble(3, (2, 6, 1)), tensor([[0.2, -0.1]])
    box = Box.ball(x, 0.2)
    change = adversarial_robustness(ensemble, x, box, 1e9).change.item()
    assert adversarial_robustness(ensemble, x, box, 1.01 * change).verdict == (Verdict.CERTIFIED,)
    assert adversarial_robustness(ensemble, x, box, 0.2 * change).verdict == (Verdict.FALSIFIED,)
