"""The contract of ``certify`` and ``adversarial_robustness``, over all methods."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flint import arb, ctx
from support import oracles
from tests.paper.truth import narrow_mean
from torch import Tensor

import bnndp
from bnndp.errors import CertError, InputError
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.questions.certify import adversarial_robustness, certify
from bnndp.questions.verdict import Verdict, judge

F64 = torch.float64
METHODS = ("moment", "partition", "best")
INF = math.inf


@pytest.fixture(autouse=True)
def many_bits() -> Iterator[None]:
    with ctx.workprec(oracles.PRECISION):
        yield


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=F64)


def random_boxes(batch: int, n: int, radii: list[float], seed: int = 0) -> Box:
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(batch, n, generator=generator, dtype=F64)
    radius = tensor(list(itertools.islice(itertools.cycle(radii), batch)))[:, None]
    return Box(centre - radius, centre + radius)


def some_points(box: Box, i: int, count: int = 5, seed: int = 0) -> Tensor:
    """Points of box i: the centre, two vertices and random ones, inside a ball if it has one."""
    one = box[i : i + 1]
    share = torch.rand(count, box.n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    share[0], share[1:3] = 0.5, share[1:3].round()
    return one.project(((1 - share) * one.lower + share * one.upper)[:, None])[:, 0]


def sampled_mean(network: BayesianNetwork, x: Tensor, samples: int = 20000) -> tuple[Tensor, Tensor]:
    """Mean and standard error of the outputs at x (n,); the last hidden layer is drawn, too."""
    generator = torch.Generator().manual_seed(1)
    z = x.expand(samples, -1)
    for layer in network.linears[:-1]:
        m, s = z @ layer.weight_mean.T + layer.bias_mean, z**2 @ layer.weight_std.T**2 + layer.bias_std**2
        z = (m + s.sqrt() * torch.randn(samples, layer.n_out, generator=generator, dtype=F64)).clamp_min(0)
    y = z @ network.linears[-1].weight_mean.T + network.linears[-1].bias_mean
    return y.mean(0), y.std(0) / math.sqrt(samples)


@pytest.mark.parametrize("method", METHODS)
class TestContract:
    """What every method has to keep."""

    def test_shapes(self, random_network: object, method: str) -> None:
        network, box = random_network((3, 5, 4, 2), 1), random_boxes(4, 3, [0.1])
        bounds = certify(network, box, Options(method=method))
        assert bounds.lower.shape == bounds.upper.shape == bounds.width.shape == (4, 2)
        assert bounds.lower.dtype == F64
        assert bounds.affine.lower.matrix.shape == (4, 2, 3)
        assert bounds.affine.upper.offset.shape == (4, 2)
        assert torch.equal(bounds.affine.region.lower, box.lower)
        assert len(bounds.method) == 4
        assert set(bounds.method) <= {"moment", "partition", "moment+partition"}
        assert bounds.cells is None
        assert torch.isfinite(bounds.width).all()

    @pytest.mark.parametrize("sizes", [(2, 4), (2, 6, 3), (2, 6, 5, 2), (2, 5, 4, 4, 1)])
    def test_a_batch_is_its_boxes(self, random_network: object, method: str, sizes: tuple[int, ...]) -> None:
        network, box = random_network(sizes, 2), random_boxes(5, 2, [0.0, 1e-3, 0.1, 1.0])
        together = certify(network, box, Options(method=method))
        for i in range(5):
            alone = certify(network, box[i : i + 1], Options(method=method))
            assert torch.allclose(together.lower[i], alone.lower[0], rtol=1e-9, atol=1e-11)
            assert torch.allclose(together.upper[i], alone.upper[0], rtol=1e-9, atol=1e-11)

    @pytest.mark.parametrize(("n_in", "std"), [(1, 0.3), (3, 1e-6), (6, 1.0)])
    def test_one_hidden_layer_encloses_exact_means(
        self, random_network: object, method: str, n_in: int, std: float
    ) -> None:
        """No tolerance: ball arithmetic at points of each box, for one box and for the batch."""
        network = random_network((n_in, 9, 2), 3, std=std, zeros=0.2)
        box = random_boxes(4, n_in, [0.0, 1e-3, 0.3, 2.0])
        bounds = certify(network, box, Options(method=method))
        for i in range(4):
            for x in some_points(box, i).tolist():
                for j, truth in enumerate(oracles.exact_mean(network, x)):
                    assert oracles.below(bounds.lower[i, j].item(), truth)
                    assert oracles.above(bounds.upper[i, j].item(), truth)

    @pytest.mark.parametrize("std", [0.0, 1e-6, 0.3, 3.0])
    def test_a_point_of_one_hidden_layer_is_exact(self, random_network: object, method: str, std: float) -> None:
        network = random_network((4, 30, 3), 4, std=std)
        box = random_boxes(3, 4, [0.0])
        bounds = certify(network, box, Options(method=method))
        assert (bounds.width <= 1e-9).all()
        for i, x in enumerate(box.lower.tolist()):
            for j, truth in enumerate(oracles.exact_mean(network, x)):
                assert oracles.below(bounds.lower[i, j].item(), truth)
                assert oracles.above(bounds.upper[i, j].item(), truth)

    @pytest.mark.parametrize(("sizes", "std"), [((2, 8, 6, 2), 0.5), ((3, 6, 6, 5, 1), 0.2), ((2, 4, 4, 4, 4, 1), 1.0)])
    def test_deep_networks_enclose_sampled_means(
        self, random_network: object, method: str, sizes: tuple[int, ...], std: float
    ) -> None:
        network, box = random_network(sizes, 5, std=std), random_boxes(2, sizes[0], [0.0, 0.2], seed=3)
        bounds = certify(network, box, Options(method=method))
        for i in range(2):
            for x in some_points(box, i, 3):
                mean, error = sampled_mean(network, x)
                assert (bounds.lower[i] <= mean + 5 * error).all()
                assert (bounds.upper[i] >= mean - 5 * error).all()

    def test_no_hidden_layer_is_exact(self, random_network: object, method: str) -> None:
        network, box = random_network((5, 3), 6, std=9.0), random_boxes(3, 5, [0.0, 0.5, 100.0])
        bounds = certify(network, box, Options(method=method))
        layer = network.linears[0]
        for i, j in itertools.product(range(3), range(3)):
            low = high = arb(layer.bias_mean[j].item())
            for w, a, b in zip(
                layer.weight_mean[j].tolist(), box.lower[i].tolist(), box.upper[i].tolist(), strict=True
            ):
                low += arb(w) * arb(a if w > 0 else b)
                high += arb(w) * arb(b if w > 0 else a)
            assert oracles.below(bounds.lower[i, j].item(), low)
            assert oracles.above(bounds.upper[i, j].item(), high)
            assert arb(bounds.width[i, j].item()) <= high - low + 1e-12 * (1 + abs(high) + abs(low))

    @pytest.mark.parametrize("norm", [1.0, 2.0])
    def test_balls_are_tighter_than_their_boxes_and_hold(
        self, random_network: object, method: str, norm: float
    ) -> None:
        network = random_network((4, 7, 2), 7)
        centre = random_boxes(3, 4, [0.0]).lower
        ball, box = Box.ball(centre, 0.5, norm=norm), Box.ball(centre, 0.5)
        tight, loose = (certify(network, region, Options(method=method)) for region in (ball, box))
        assert (tight.lower >= loose.lower).all()
        assert (tight.upper <= loose.upper).all()
        assert (tight.width < 0.9 * loose.width).all()
        for i in range(3):
            ends = centre[i] + 0.5 * (1 - 1e-9) * torch.cat([torch.eye(4, dtype=F64), -torch.eye(4, dtype=F64)])
            for x in torch.cat([some_points(ball, i), ends]).tolist():
                for j, truth in enumerate(oracles.exact_mean(network, x)):
                    assert oracles.below(tight.lower[i, j].item(), truth)
                    assert oracles.above(tight.upper[i, j].item(), truth)

    @pytest.mark.parametrize("size", [1e100, 1e154, 1e200, 1e300])
    @pytest.mark.parametrize("where", ["weights", "deviations", "inputs"])
    def test_huge_numbers_give_a_true_bound_or_none(
        self, random_network: object, method: str, where: str, size: float
    ) -> None:
        """Never NaN, and never a bound that the truth (in ball arithmetic) breaks; an error is an answer, too."""
        small = random_network((2, 4, 2), 8)
        mean, std, at = (size if where == name else 1.0 for name in ("weights", "deviations", "inputs"))
        network = BayesianNetwork.from_linears(
            Linear(mean * a.weight_mean, std * a.weight_std, a.bias_mean, std * a.bias_std) for a in small.linears
        )
        x = at * tensor([[0.3, -0.8]])
        try:
            bounds = certify(network, Box(x, x), Options(method=method))
        except CertError:
            return
        for j, truth in enumerate(oracles.exact_mean(network, x[0].tolist())):
            low, high = bounds.lower[0, j].item(), bounds.upper[0, j].item()
            assert low == -INF or oracles.below(low, truth)
            assert high == INF or oracles.above(high, truth)

    def test_overflow_is_not_a_bound_at_the_largest_number(self, method: str) -> None:
        """The mean is -1e400, a real number like any other."""
        network = BayesianNetwork.from_linears(
            [Linear(tensor([[1e200]]), tensor([[0.0]]), tensor([0.0]), tensor([0.0]))]
        )
        x = tensor([[-1e200]])
        bounds = certify(network, Box(x, x), Options(method=method))
        assert bounds.lower.item() == -INF

    def test_a_classifier_gets_probabilities(self, random_network: object, method: str) -> None:
        network = random_network((2, 4, 3), 0, task="classification")
        found = certify(network, random_boxes(2, 2, [0.1]), Options(method=method))
        assert found.affine is None
        assert bool(((found.lower >= 0) & (found.upper <= 1) & (found.lower <= found.upper)).all())
        assert bool((found.lower.sum(-1) <= 1).all() & (found.upper.sum(-1) >= 1).all())

    def test_wrong_number_of_inputs_is_refused(self, random_network: object, method: str) -> None:
        with pytest.raises(InputError, match="the boxes have 3 inputs, the network takes 2"):
            certify(random_network((2, 4, 3)), random_boxes(1, 3, [0.1]), Options(method=method))

    def test_nothing_is_left_to_differentiate(self, random_network: object, method: str) -> None:
        bounds = certify(random_network((2, 4, 3)), random_boxes(1, 2, [0.1]), Options(method=method))
        assert not bounds.lower.requires_grad


def test_rare_events_of_huge_weights_are_not_lost() -> None:
    """``E ReLU(w (z - 2)) = w g(-2, 1)``; the square of the mean overflows, the variance does not."""
    w = 1e154
    layers = [
        Linear(tensor([[0.0]]), tensor([[0.0]]), tensor([0.0]), tensor([1.0])),
        Linear(tensor([[w]]), tensor([[0.0]]), tensor([-2 * w]), tensor([0.0])),
        Linear(tensor([[1.0]]), tensor([[0.0]]), tensor([0.0]), tensor([0.0])),
    ]
    truth = arb(w) * oracles.expected_relu(-2.0, 1.0)
    for method in METHODS:
        bounds = certify(BayesianNetwork.from_linears(layers), Box([0.0], [0.0]), Options(method=method))
        assert bounds.upper.item() == INF or oracles.above(bounds.upper.item(), truth)
        assert oracles.below(bounds.lower.item(), truth)


def test_best_is_no_wider_than_either(random_network: object) -> None:
    network, box = random_network((2, 6, 5, 2), 9), random_boxes(4, 2, [0.0, 0.1, 1.0])
    moment, partition, best = (certify(network, box, Options(method=m)) for m in METHODS)
    assert torch.equal(best.lower, torch.maximum(moment.lower, partition.lower))
    assert torch.equal(best.upper, torch.minimum(moment.upper, partition.upper))
    auto = certify(network, box)
    assert torch.equal(auto.lower, moment.lower)


# Networks without variance: linear bound propagation, written down once more


def crown(network: BayesianNetwork, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of an ordinary ReLU network on one box (n,): below the ReLU slope 1 or 0 by the sign of the middle of its
    range, above the chord; ranges from the pass backwards, cut by interval arithmetic.
    """
    linears = network.linears
    relaxed: list[tuple[Tensor, Tensor, Tensor]] = []  # slope below, slope above, offset above
    low, high = lower, upper  # of the outputs of the layer below
    for k, layer in enumerate(linears):
        w, b = layer.weight_mean, layer.bias_mean
        ends = []
        for sign in (1.0, -1.0):  # the upper end is minus the lower end of the negated rows
            rows, constant = sign * w, sign * b
            for (slope_low, slope_high, offset), below in zip(reversed(relaxed), reversed(linears[:k]), strict=True):
                constant = constant + rows.clamp_max(0) @ offset
                rows = rows.clamp_min(0) * slope_low + rows.clamp_max(0) * slope_high
                constant = constant + rows @ below.bias_mean
                rows = rows @ below.weight_mean
            ends.append(sign * (rows.clamp_min(0) @ lower + rows.clamp_max(0) @ upper + constant))
        if k == len(linears) - 1:
            break
        plain = [w.clamp_min(0) @ a + w.clamp_max(0) @ c + b for a, c in ((low, high), (high, low))]
        m_low, m_high = torch.maximum(ends[0], plain[0]), torch.minimum(ends[1], plain[1])
        low, high = m_low.clamp_min(0), m_high.clamp_min(0)
        chord = (high - low) / (m_high - m_low)
        relaxed.append(((m_low + m_high > 0).double(), chord, high - chord * m_high))
    return ends[0], ends[1]


@pytest.mark.parametrize("sizes", [(5, 8, 2), (6, 10, 8, 3), (5, 9, 8, 7, 2), (8, 6, 6, 6, 6, 1)])
@pytest.mark.parametrize("radius", [0.01, 0.2, 2.0])
def test_without_variance_it_is_linear_bound_propagation(
    random_network: object, sizes: tuple[int, ...], radius: float
) -> None:
    network, box = random_network(sizes, 10, std=0.0), random_boxes(3, sizes[0], [radius])
    bounds = certify(network, box, Options(method="moment"))
    for i in range(3):
        low, high = crown(network, box.lower[i], box.upper[i])
        assert torch.allclose(bounds.lower[i], low, rtol=1e-9, atol=1e-9)
        assert torch.allclose(bounds.upper[i], high, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sizes", [(1, 5, 4, 1), (2, 6, 5, 2), (7, 6, 5, 4, 2)])
def test_without_variance_every_output_is_inside(random_network: object, method: str, sizes: tuple[int, ...]) -> None:
    network, box = random_network(sizes, 11, std=0.0), random_boxes(3, sizes[0], [0.0, 0.1, 1.0])
    bounds = certify(network, box, Options(method=method))
    for i in range(3):
        z = some_points(box, i, 400)
        for layer in network.linears[:-1]:
            z = (z @ layer.weight_mean.T + layer.bias_mean).clamp_min(0)
        y = z @ network.linears[-1].weight_mean.T + network.linears[-1].bias_mean
        assert (bounds.lower[i] <= y + 1e-13 * y.abs()).all()
        assert (bounds.upper[i] >= y - 1e-13 * y.abs()).all()
        if i % 3 == 0:
            assert (bounds.width[i] <= 1e-9).all()


# Verdicts


def test_a_verdict_has_no_truth_value() -> None:
    for verdict in Verdict:
        with pytest.raises(TypeError, match="no truth value"):
            bool(verdict)
    assert {verdict.name for verdict in Verdict} == {"CERTIFIED", "FALSIFIED", "UNDECIDED"}


@pytest.mark.parametrize(
    ("change", "found", "gamma", "verdict"),
    [
        (0.5, 0.4, 0.5, "CERTIFIED"),
        (0.5, 0.4, 0.4, "UNDECIDED"),
        (0.5, 0.4, 0.39, "FALSIFIED"),
        (INF, 0.0, 1.0, "UNDECIDED"),
        (INF, 2.0, 1.0, "FALSIFIED"),
        (math.nan, 0.0, 1.0, "UNDECIDED"),
        (math.nan, math.nan, 1.0, "UNDECIDED"),
        (2.0, math.nan, 1.0, "UNDECIDED"),
    ],
)
def test_the_decision(change: float, found: float, gamma: float, verdict: str) -> None:
    assert judge(proved=change <= gamma, broken=found > gamma) is Verdict[verdict]


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
def test_a_falsified_claim_is_false_at_its_witness(random_network: object, norm: float) -> None:
    """In ball arithmetic, with one hidden layer."""
    network = random_network((3, 8, 2), 12)
    x = tensor([[0.1, 0.5, -0.3]])
    box = Box.ball(x, 0.2)
    answer = adversarial_robustness(network, x, box, 0.01, norm=norm)
    assert answer.verdict == (Verdict.FALSIFIED,)
    assert box.contains(answer.witness).all()
    there, here = (oracles.exact_mean(network, p[0].tolist()) for p in (answer.witness, x))
    moved = [abs(a - b) for a, b in zip(there, here, strict=True)]
    size = {1.0: sum(moved, arb(0)), 2.0: sum((m * m for m in moved), arb(0)).sqrt(), INF: max(moved, key=float)}[norm]
    assert size >= answer.found.item() > 0.01
    assert answer.found.item() >= 0.99 * float(size)  # nothing lost at a point with one hidden layer


@pytest.mark.parametrize("norm", [1.0, 2.0, INF])
def test_a_certified_change_holds_everywhere(random_network: object, norm: float) -> None:
    network = random_network((3, 8, 2), 13)
    x = tensor([[0.1, 0.5, -0.3]])
    box = Box.ball(x, 0.2, norm=2)
    answer = adversarial_robustness(network, x, box, 10.0, norm=norm)
    assert answer.verdict == (Verdict.CERTIFIED,)
    here = [float(y) for y in oracles.exact_mean(network, x[0].tolist())]
    for point in some_points(box, 0, 40).tolist():
        there = [float(y) for y in oracles.exact_mean(network, point)]
        moved = torch.linalg.vector_norm(tensor(there) - tensor(here), ord=norm).item()
        assert moved <= answer.change.item()


def test_between_what_is_found_and_what_is_proved_it_stays_undecided(random_network: object) -> None:
    network, x = random_network((2, 12, 10, 1), 14), tensor([[0.3, 0.2], [1.0, -1.0]])
    box = Box.ball(x, 0.5)
    loose = adversarial_robustness(network, x, box, 0.0)
    assert (loose.found < loose.change).all()
    gamma = 0.5 * (loose.found.max() + loose.change.min()).item()
    assert loose.found.max().item() < gamma < loose.change.min().item()
    answer = adversarial_robustness(network, x, box, gamma)
    assert answer.verdict == (Verdict.UNDECIDED, Verdict.UNDECIDED)


@pytest.mark.parametrize("norm", [1.0, 2.0, INF])
def test_the_gap_at_a_point_counts_against_both_verdicts(random_network: object, norm: float) -> None:
    """With two hidden layers even single points have an interval; its far end counts, for what is proved and found."""
    for seed in range(6):
        network = random_network((2, 1, 5, 2), seed, std=1.5)
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


def test_a_point_does_not_change(random_network: object) -> None:
    x = tensor([[0.3, 0.2]])
    answer = adversarial_robustness(random_network((2, 5, 1), 15), x, Box(x, x), 1e-9)
    assert answer.verdict == (Verdict.CERTIFIED,)
    exact = adversarial_robustness(random_network((2, 5, 1), 15), x, Box(x, x), 0.0)
    assert exact.verdict == (Verdict.UNDECIDED,)  # rounding leaves a gap, and zero is less than that


@pytest.mark.parametrize("size", [1e120, 1e200, 1e300])
def test_no_verdict_is_won_by_overflow(random_network: object, size: float) -> None:
    """The true change is about ``size**2`` times what a network of ordinary weights does, far above gamma."""
    small = random_network((2, 4, 4, 1), 16)
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
    ("gamma", "norm", "message"),
    [
        (-1e-9, INF, "gamma must be >= 0, got -1e-09"),
        (math.nan, INF, "gamma must be >= 0, got nan"),
        (1.0, 0.5, "norm must be >= 1, got 0.5"),
        (1.0, math.nan, "norm must be >= 1, got nan"),
    ],
)
def test_robustness_refuses_nonsense(random_network: object, gamma: float, norm: float, message: str) -> None:
    x = tensor([[0.3, 0.2]])
    with pytest.raises(InputError, match=message):
        adversarial_robustness(random_network((2, 4, 1)), x, Box.ball(x, 0.1), gamma, norm=norm)


def test_robustness_refuses_a_point_outside_its_region(random_network: object) -> None:
    x = tensor([[0.3, 0.2], [0.0, 0.0]])
    with pytest.raises(InputError, match="must lie in its region"):
        adversarial_robustness(random_network((2, 4, 1)), x + 1, Box.ball(x, 0.1), 1.0)


# The interpreter may drop asserts: nothing may rest on one


SOURCES = sorted(Path(bnndp.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(SOURCES[0].parent).as_posix())
def test_there_is_no_assert_in_the_package(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)] == []


def test_optimised_python_gives_the_same() -> None:
    program = """
import torch, bnndp
from bnndp.layers import Linear
torch.set_num_threads(1)
g = torch.Generator().manual_seed(0)
n = lambda *s: torch.randn(s, generator=g, dtype=torch.float64)
shapes = ((2, 5), (5, 4), (4, 1))
net = bnndp.BayesianNetwork.from_linears(Linear(n(b, a), n(b, a).abs(), n(b), n(b).abs()) for a, b in shapes)
box = bnndp.Box([[0.1, 0.2]], [[0.3, 0.2]])
for method in ("moment", "partition", "best"):
    bounds = bnndp.certify(net, box, bnndp.Options(method=method, refine=3))
    print(bounds.lower.item().hex(), bounds.upper.item().hex())
try:
    bnndp.certify(net, bnndp.Box([[0.1]], [[0.3]]))
except bnndp.CertError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=True)
    optimised, here = done.stdout, io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(program, {})
    plain = here.getvalue()
    assert plain == optimised
    assert len(plain.splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("model.safetensors", "box"), "network must be a BayesianNetwork or Ensemble, got str"),
        (("network", "array"), r"box must be a Box, got Tensor; give bnndp\.Box"),
        (("network", "box", {"refine": 2}), "options must be a Options, got dict"),
        (("network", "empty"), "there is no box"),
    ],
)
def test_wrong_kinds_of_arguments_are_named(random_network: object, arguments: tuple[object, ...], words: str) -> None:
    known = {
        "network": random_network((2, 3, 1), 0),
        "box": Box([[0.0, 0.0]], [[1.0, 1.0]]),
        "array": torch.zeros(1, 2),
        "empty": Box(torch.zeros(0, 2), torch.zeros(0, 2)),
    }
    with pytest.raises(InputError, match=words):
        certify(*(known.get(a, a) if isinstance(a, str) else a for a in arguments))


def test_every_region_needs_its_point(random_network: object) -> None:
    network, box = random_network((2, 3, 1), 0), Box.ball(torch.zeros(3, 2), 0.1)
    with pytest.raises(InputError, match=r"x has shape \(1, 2\), the regions \(3, 2\)"):
        adversarial_robustness(network, torch.zeros(2), box, 0.1)


def test_networks_print_their_sizes(random_network: object) -> None:
    network = random_network((2, 3, 1), 0)
    assert repr(network) == "BayesianNetwork(2-3-1, regression)"
    assert repr(network.linears[0]) == "Linear(2 -> 3)"
