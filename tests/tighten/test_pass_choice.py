"""Which pass serves which network, in which chunks of boxes and of members."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.classifiers import classifier
from support.ensembles import certain_ensemble, certain_member
from support.networks import make_network
from support.records import linear, normal

from bnndp.activations import LeakyRelu, Tanh
from bnndp.deadline import Deadline
from bnndp.engine.combined import Best, Shifted
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.tails.tailed import Tailed
from bnndp.errors import UnsupportedLayerError
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, Ensemble, Posterior
from bnndp.options import Options
from bnndp.paper.paper_pass import PaperPass
from bnndp.questions.certify import certify
from bnndp.tighten.pass_choice import chunked, pass_over, plan
from bnndp.tighten.slopes import Sloped

RANDOM = make_network((2, 4, 3), 1)
TANH = BayesianNetwork((linear(4, 2, 1), Tanh(), linear(3, 4, 2)))


@pytest.mark.parametrize(
    ("network", "options", "kinds"),
    [
        (RANDOM, Options(), [Tailed, MomentPass]),
        (make_network((2, 4, 4, 3), 1), Options(), [Tailed, MomentPass]),
        (make_network((2, 4, 4, 4, 3), 1), Options(), [MomentPass]),
        (RANDOM, Options(optimise=2), [Tailed, Sloped, MomentPass]),
        (RANDOM, Options(method="partition"), [PaperPass]),
        (RANDOM, Options(method="best"), [Best, Tailed, MomentPass]),
        (make_network((2, 3), 1), Options(), [MomentPass]),
        (certain_member((2, 4, 3), 1), Options(), [MomentPass]),
        (certain_member((2, 4, 3), 1), Options(optimise=2), [Sloped, MomentPass]),
        (certain_member((2, 4, 3), 1, shift=True), Options(), [Shifted, MomentPass]),
        (TANH, Options(), [MomentPass]),
        (TANH, Options(optimise=2), [Sloped, MomentPass]),
    ],
)
def test_the_pass_of_a_network(network: BayesianNetwork, options: Options, kinds: list[type]) -> None:
    found: object = pass_over(network, Box.ball([0.1, 0.2], 0.1), options)
    for kind in kinds:
        assert type(found) is kind
        found = getattr(found, "inner", getattr(found, "first", None))


@pytest.mark.parametrize("method", ["partition", "best"])
@pytest.mark.parametrize("network", [TANH, Ensemble((TANH,))], ids=["one", "ensemble"])
def test_the_partition_method_is_refused_for_other_layers(network: Posterior, method: str) -> None:
    with pytest.raises(UnsupportedLayerError, match="use method 'moment'"):
        certify(network, Box.ball([0.1, 0.2], 0.1), Options(method=method))


def test_effort_never_asks_for_a_method_that_does_not_know_the_layers() -> None:
    layers = (Linear.fixed(torch.ones(9, 9)), Tanh()) * 3 + (Linear.fixed(torch.ones(2, 9)),)
    deep, plain = BayesianNetwork(layers, "classification"), classifier((9, 4, 4, 4, 2), 0)
    for network in (deep, Ensemble((deep, deep)), Ensemble((plain, deep))):
        assert {stage.options.method for stage in plan(network, Options(effort="high"))} == {"auto"}
    for network in (plain, Ensemble((plain,))):
        assert plan(network, Options(effort="high"))[-1].options.method == "best"


# Chunks of boxes


def sizes(network: Posterior, box: Box, options: Options) -> list[int]:
    return [part.stop - part.start for part, _ in chunked(network, box, options, rows=2)]


@pytest.mark.parametrize("method", ["auto", "moment", "partition", "best"])
@pytest.mark.parametrize("norm", [torch.inf, 2.0])
def test_chunks_give_what_the_whole_gives(method: str, norm: float) -> None:
    network = make_network((40, 60, 50, 2), 1)
    box = Box.ball(normal(3, 40, seed=3), 0.1, norm=norm)
    small, large = Options(method=method, memory=2**20), Options(method=method)
    assert (sizes(network, box, small), sizes(network, box, large)) == ([1, 1, 1], [3])
    cut, whole = certify(network, box, small), certify(network, box, large)
    assert cut.method == whole.method
    pairs = [(cut.lower, whole.lower), (cut.upper, whole.upper), (cut.affine.lower.matrix, whole.affine.lower.matrix)]
    for a, b in pairs:
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)
    assert torch.equal(cut.affine.region.lower, box.lower)


def test_the_last_chunk_may_be_smaller_and_none_is_empty() -> None:
    network = make_network((784, 64, 64, 10), 0)
    box = Box(torch.zeros(7, 784), torch.ones(7, 784))
    found = [sizes(network, box, Options(memory=2**power)) for power in (20, 22, 30)]
    assert found[0] == [1] * 7
    assert 1 < found[1][0] < 7
    assert found[1][-1] <= found[1][0]
    assert found[2] == [7]
    assert all(sum(each) == 7 for each in found)


def test_nothing_more_comes_after_the_deadline() -> None:
    network, box = make_network((784, 64, 64, 10), 0), Box(torch.zeros(3, 784), torch.ones(3, 784))
    options = replace(Options(memory=2**20), deadline=Deadline.after(0.0))
    assert sizes(network, box, options) == []
    found = certify(network, box, options)
    assert found.method == ("none",) * 3
    assert bool((found.lower == -torch.inf).all() & (found.upper == torch.inf).all())


# Members together


def members(ensemble: Ensemble, box: Box, options: Options) -> list[list[float]]:
    """The weights of the members of each part."""
    ((_, passes),) = chunked(ensemble, box, options, rows=2)
    return [part.weights.tolist() for part in passes.parts()]


def test_members_that_are_alike_go_together_and_those_without_weight_not_at_all() -> None:
    alike = [certain_member((2, 3, 1), seed) for seed in range(4)]
    other = [certain_member((2, 3, 1), 5, activation=LeakyRelu(0.1)), make_network((2, 3, 1), 1)]
    weights = torch.tensor([0.1, 0.2, 0.0, 0.3, 0.0, 0.4], dtype=torch.float64)
    ensemble, box = Ensemble((*alike[:2], other[0], alike[2], alike[3], other[1]), weights), Box.ball([0.0, 0.0], 0.1)
    assert members(ensemble, box, Options()) == [[0.1, 0.2, 0.3], [0.4]]
    assert members(Ensemble(tuple(alike[:3])), box, Options(method="best")) == [[1 / 3]] * 3


def test_boxes_are_repeated_member_by_member() -> None:
    ensemble, box = certain_ensemble(3, (2, 3, 1), shift=True), Box.ball(normal(4, 2, seed=5), 0.1, norm=2.0)
    ((_, passes),) = chunked(ensemble, box, Options(), rows=2)
    (part,) = passes.parts()
    region, found = part.bounds.box, part.bounds
    assert region.batch == 12
    assert torch.equal(region.lower, box.lower.repeat(3, 1))
    assert region.within.radius.shape == (12,)
    assert isinstance(found, Shifted)
    assert torch.equal(found.shift[4:8], ensemble.members[1].shift.expand(4, -1))


def test_so_many_members_go_together_as_the_memory_holds() -> None:
    ensemble = Ensemble(tuple(certain_member((784, 64, 64, 10), seed) for seed in range(5)))
    for memory in (2**20, 2**25, 2**30):
        for batch in (1, 20):
            box = Box(torch.zeros(batch, 784), torch.ones(batch, 784))
            for part, passes in chunked(ensemble, box, Options(memory=memory), rows=20):
                together = max(len(each.weights) for each in passes.parts())
                boxes = part.stop - part.start
                assert together == 1 or together * boxes <= passes.capacity
                # one copy of the largest matrix
                assert together == 1 or together * boxes * 8 * 64 * (64 + 784) <= 2**27
    assert together > 1
