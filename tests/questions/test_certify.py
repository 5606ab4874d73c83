"""The contract of ``certify``, over all methods, against means in ball arithmetic."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from flint import arb, ctx
from support import oracles
from support.ensembles import outputs, points_of
from support.networks import make_network
from support.passes import holds
from tests.marks import slow_but
from tests.questions.cases import interval
from torch import Tensor

from bnndp.errors import CertError, InputError, MagnitudeError
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.options import Options
from bnndp.questions.bounds import Bounds
from bnndp.questions.certify import certify

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
    centre = torch.randn(batch, n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    radius = tensor(list(itertools.islice(itertools.cycle(radii), batch)))[:, None]
    return Box(centre - radius, centre + radius)


def assert_true(bounds: Bounds, network: BayesianNetwork, x: Tensor) -> None:
    """No tolerance: means of a network with at most one hidden layer in ball arithmetic at x (points, batch, n)."""
    for points in x:
        for i, point in enumerate(points.tolist()):
            for j, truth in enumerate(oracles.exact_mean(network, point)):
                low, high = bounds.lower[i, j].item(), bounds.upper[i, j].item()
                assert low == -INF or oracles.below(low, truth)
                assert high == INF or oracles.above(high, truth)


@pytest.mark.parametrize("method", METHODS)
class TestEveryMethod:
    def test_shapes(self, method: str) -> None:
        network, box = make_network((3, 5, 4, 2), 1), random_boxes(4, 3, [0.1])
        bounds = certify(network, box, Options(method=method))
        assert bounds.lower.shape == bounds.upper.shape == bounds.width.shape == (4, 2)
        assert bounds.lower.dtype == F64
        assert not bounds.lower.requires_grad
        assert bounds.affine.lower.matrix.shape == (4, 2, 3)
        assert bounds.affine.upper.offset.shape == (4, 2)
        assert torch.equal(bounds.affine.region.lower, box.lower)
        assert len(bounds.method) == 4
        assert set(bounds.method) <= {"moment", "partition", "moment+partition"}
        assert bounds.cells is None
        assert torch.isfinite(bounds.width).all()

    @pytest.mark.parametrize("sizes", [(2, 4), (2, 6, 3), (2, 6, 5, 2), (2, 5, 4, 4, 1)])
    def test_a_batch_is_its_boxes(self, method: str, sizes: tuple[int, ...]) -> None:
        network, box = make_network(sizes, 2), random_boxes(5, 2, [0.0, 1e-3, 0.1, 1.0])
        together = certify(network, box, Options(method=method))
        for i in range(5):
            alone = certify(network, box[i : i + 1], Options(method=method))
            assert torch.allclose(together.lower[i], alone.lower[0], rtol=1e-9, atol=1e-11)
            assert torch.allclose(together.upper[i], alone.upper[0], rtol=1e-9, atol=1e-11)

    @pytest.mark.parametrize(("n_in", "std"), [(1, 0.3), (3, 1e-6), (6, 1.0)])
    def test_one_hidden_layer(self, method: str, n_in: int, std: float) -> None:
        network = make_network((n_in, 9, 2), 3, std=std, zeros=0.2)
        box = random_boxes(4, n_in, [0.0, 1e-3, 0.3, 2.0])
        assert_true(certify(network, box, Options(method=method)), network, points_of(box, 5))

    @pytest.mark.parametrize("std", [0.0, 1e-6, 0.3, 3.0])
    def test_a_point_of_one_hidden_layer_is_exact(self, method: str, std: float) -> None:
        network, box = make_network((4, 30, 3), 4, std=std), random_boxes(3, 4, [0.0])
        bounds = certify(network, box, Options(method=method))
        assert (bounds.width <= 1e-9).all()
        assert_true(bounds, network, box.lower[None])

    @pytest.mark.parametrize(("sizes", "std"), [((2, 8, 6, 2), 0.5), ((3, 6, 6, 5, 1), 0.2), ((2, 4, 4, 4, 4, 1), 1.0)])
    def test_deep_networks_by_draws(self, method: str, sizes: tuple[int, ...], std: float) -> None:
        network, box = make_network(sizes, 5, std=std), random_boxes(2, sizes[0], [0.0, 0.2], seed=3)
        bounds = certify(network, box, Options(method=method))
        drawn = outputs(network, points_of(box, 3), 5000)
        assert holds(interval(bounds), drawn.mean(0), 5 * drawn.std(0) / math.sqrt(5000))

    def test_no_hidden_layer_is_exact(self, method: str) -> None:
        network, box = make_network((5, 3), 6, std=9.0), random_boxes(3, 5, [0.0, 0.5, 100.0])
        bounds = certify(network, box, Options(method=method))
        layer = network.linears[0]
        for i, j in itertools.product(range(3), range(3)):
            low = high = arb(layer.bias_mean[j].item())
            ends = (layer.weight_mean[j].tolist(), box.lower[i].tolist(), box.upper[i].tolist())
            for w, a, b in zip(*ends, strict=True):
                low += arb(w) * arb(a if w > 0 else b)
                high += arb(w) * arb(b if w > 0 else a)
            assert oracles.below(bounds.lower[i, j].item(), low)
            assert oracles.above(bounds.upper[i, j].item(), high)
            assert arb(bounds.width[i, j].item()) <= high - low + 1e-12 * (1 + abs(high) + abs(low))

    @pytest.mark.parametrize("norm", [1.0, 2.0])
    def test_balls_are_tighter_than_their_boxes_and_hold(self, method: str, norm: float) -> None:
        network, centre = make_network((4, 7, 2), 7), random_boxes(3, 4, [0.0]).lower
        ball, box = Box.ball(centre, 0.5, norm=norm), Box.ball(centre, 0.5)
        tight, loose = (certify(network, region, Options(method=method)) for region in (ball, box))
        assert (tight.lower >= loose.lower).all()
        assert (tight.upper <= loose.upper).all()
        assert (tight.width < 0.9 * loose.width).all()
        units = torch.cat([torch.eye(4, dtype=F64), -torch.eye(4, dtype=F64)])[:, None]
        assert_true(tight, network, torch.cat([points_of(ball, 5), centre + 0.5 * (1 - 1e-9) * units]))

    @pytest.mark.parametrize("size", slow_but([1e100, 1e154, 1e200, 1e300], 1e154))
    @pytest.mark.parametrize("where", ["weights", "deviations", "inputs"])
    def test_huge_numbers_give_a_true_bound_or_none(self, method: str, where: str, size: float) -> None:
        """Never NaN, and never a bound that the truth breaks; an error is an answer, too."""
        mean, std, at = (size if where == name else 1.0 for name in ("weights", "deviations", "inputs"))
        network = BayesianNetwork.from_linears(
            Linear(mean * a.weight_mean, std * a.weight_std, a.bias_mean, std * a.bias_std)
            for a in make_network((2, 4, 2), 8).linears
        )
        x = at * tensor([[0.3, -0.8]])
        with contextlib.suppress(CertError):
            assert_true(certify(network, Box(x, x), Options(method=method)), network, x[None])

    def test_overflow_is_refused(self, method: str) -> None:
        """The mean is -1e400, a real number like any other."""
        network = BayesianNetwork((Linear.fixed(tensor([[1e200]])),))
        with pytest.raises(MagnitudeError, match=r"weight_mean\[0, 0\] of layer 0 \(linear\) is 1e\+200"):
            certify(network, Box([[-1e200]], [[-1e200]]), Options(method=method))

    @pytest.mark.parametrize("sizes", [(1, 5, 4, 1), (2, 6, 5, 2), (7, 6, 5, 4, 2)])
    def test_without_variance_every_output_is_inside(self, method: str, sizes: tuple[int, ...]) -> None:
        network, box = make_network(sizes, 11, std=0.0), random_boxes(3, sizes[0], [0.0, 0.1, 1.0])
        bounds = certify(network, box, Options(method=method))
        values = outputs(network, points_of(box, 400))[0]
        assert holds(interval(bounds), values, 1e-13 * values.abs())
        assert (bounds.width[0] <= 1e-9).all()

    def test_a_classifier_gets_probabilities(self, method: str) -> None:
        network = make_network((2, 4, 3), 0, task="classification")
        found = certify(network, random_boxes(2, 2, [0.1]), Options(method=method))
        assert found.affine is None
        assert bool(((found.lower >= 0) & (found.upper <= 1) & (found.lower <= found.upper)).all())
        assert bool((found.lower.sum(-1) <= 1).all() & (found.upper.sum(-1) >= 1).all())


@pytest.mark.parametrize("w", [1e-154, 1e9, 1e15, 1e18])
def test_rare_events_of_huge_weights_are_not_lost(w: float) -> None:
    """``E ReLU(w (z - 2)) = w g(-2, 1)``."""
    layers = [
        Linear(tensor([[0.0]]), tensor([[0.0]]), tensor([0.0]), tensor([1.0])),
        Linear.fixed(tensor([[w]]), tensor([-2 * w])),
        Linear.fixed(tensor([[1.0]])),
    ]
    truth = arb(w) * oracles.expected_relu(-2.0, 1.0)
    for method in METHODS:
        bounds = certify(BayesianNetwork.from_linears(layers), Box([0.0], [0.0]), Options(method=method))
        assert bounds.upper.item() == INF or oracles.above(bounds.upper.item(), truth)
        assert oracles.below(bounds.lower.item(), truth)


def test_best_is_no_wider_than_either() -> None:
    network, box = make_network((2, 6, 5, 2), 9), random_boxes(4, 2, [0.0, 0.1, 1.0])
    moment, partition, best = (certify(network, box, Options(method=m)) for m in METHODS)
    assert torch.equal(best.lower, torch.maximum(moment.lower, partition.lower))
    assert torch.equal(best.upper, torch.minimum(moment.upper, partition.upper))
    assert torch.equal(certify(network, box).lower, moment.lower)


def test_several_outputs_are_bounded_one_by_one() -> None:
    network, box = make_network((2, 5, 4), 5), random_boxes(3, 2, [0.2])
    first, last = network.linears
    for quantity in ("mean", "variance"):
        whole = certify(network, box, quantity=quantity)
        for j in range(4):
            one = Linear(*(getattr(last, name)[j : j + 1] for name in last.tensors))
            alone = certify(BayesianNetwork.from_linears([first, one]), box, quantity=quantity)
            assert torch.allclose(whole.lower[:, j], alone.lower[:, 0], rtol=1e-12)
            assert torch.allclose(whole.upper[:, j], alone.upper[:, 0], rtol=1e-12)


def test_optimised_python_gives_the_same() -> None:
    """The interpreter may drop asserts: nothing may rest on one."""
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
    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(program, {})
    assert here.getvalue() == done.stdout
    assert len(done.stdout.splitlines()) == 4


NETWORK, BOX = make_network((2, 3, 1), 0), Box([[0.0, 0.0]], [[1.0, 1.0]])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("model.safetensors", BOX), "network must be a BayesianNetwork or Ensemble, got str"),
        (([NETWORK], BOX), "network must be a BayesianNetwork or Ensemble, got list"),
        ((torch.nn.Linear(2, 1), BOX), r"got Linear; make one of it with bnndp\.from_module\(module, task=...\)"),
        ((NETWORK, torch.zeros(1, 2)), r"box must be a Box, got Tensor; give bnndp\.Box"),
        ((NETWORK, BOX, {"refine": 2}), "options must be a Options, got dict"),
        ((NETWORK, BOX[:0]), "there is no box"),
        ((NETWORK, random_boxes(1, 3, [0.1])), "the boxes have 3 inputs, the network takes 2"),
        ((Ensemble((NETWORK, NETWORK)), random_boxes(1, 3, [0.1])), "the boxes have 3 inputs, the network takes 2"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        certify(*arguments)


@pytest.mark.parametrize("quantity", ["variance", "noise"])
def test_quantities_that_a_question_does_not_have(quantity: str) -> None:
    with pytest.raises(InputError, match="one of mean, variance, noise, got 'median'"):
        certify(NETWORK, BOX, quantity="median")
    with pytest.raises(InputError, match="regression network; this one is for classification"):
        certify(BayesianNetwork(NETWORK.layers, "classification"), BOX, quantity=quantity)
    with pytest.raises(InputError, match="the network takes 2"):
        certify(NETWORK, Box.ball([[0.0]], 0.1), quantity=quantity)
    with pytest.raises(InputError, match="bounds the mean only"):
        certify(NETWORK, BOX, Options(method="partition"), quantity=quantity)
