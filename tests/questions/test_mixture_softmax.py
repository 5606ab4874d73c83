"""Expected softmax of ensembles: against members evaluated one by one, quadrature and draws."""

from __future__ import annotations

import pytest
import torch
from support.classifiers import classifier, logistic_mean, random_linear, sampled_softmax
from support.ensembles import average, certain_ensemble, certain_member, mean_output, points_of
from support.passes import holds
from support.records import normal, uniform
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import Relu, Tanh
from bnndp.activations.activation import Activation
from bnndp.attack import decision_rows
from bnndp.errors import MagnitudeError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.options import Options
from bnndp.questions.softmax import bound_rows, expected_softmax
from bnndp.tighten import pass_choice

F64 = torch.float64


def classes(network: BayesianNetwork | Ensemble, box: Box, **options: object) -> Interval:
    return expected_softmax(network, box, Options(**options))[0]


def separately(ensemble: Ensemble, box: Box, rows: Tensor, label: Tensor) -> Tensor:
    """The sum of the bounds of the members, each by itself."""
    found = (bound_rows(member, box, rows, label, Options()) for member in ensemble.members)
    return average(ensemble, [torch.maximum(bound, rows.amin(-1)) for bound in found])


@pytest.mark.parametrize(("count", "gain"), [(2, 1.0), (5, 3.0), (4, 0.5), (3, 8.0)])
@pytest.mark.parametrize("norm", [torch.inf, 2.0])
def test_members_without_variance(count: int, gain: float, norm: float) -> None:
    """Truth at points; never worse than the sum of the members, and better on the whole."""
    members = tuple(classifier((3, 10, 2 * count), 40 + seed, std=0.0, gain=gain) for seed in range(count))
    weights = uniform(count, seed=count)
    ensemble = Ensemble(members, weights / weights.sum())
    box = Box.ball(normal(8, 3, seed=7), 0.25, norm=norm)
    truth = mean_output(ensemble, points_of(box, 300))  # (points, batch, classes)
    interval = classes(ensemble, box)
    assert holds(interval, truth, 1e-14)
    parts = [classes(member, box) for member in members]
    width = average(ensemble, [part.upper - part.lower for part in parts])
    assert bool((interval.upper - interval.lower <= width + 1e-12).all())
    assert (interval.upper - interval.lower).mean() < (0.98 if gain < 5 else 1.0) * width.mean()
    rows = normal(8, 5, 2 * count, seed=count)
    for label in (truth.mean(0).argmax(-1), truth.mean(0).argmin(-1)):
        found = bound_rows(ensemble, box, rows, label, Options())
        assert bool((found <= torch.einsum("brc,pbc->pbr", rows, truth) + 1e-14).all())
        assert bool((found >= separately(ensemble, box, rows, label) - 1e-11).all())


def test_decisions_gain_by_adding_before_minimising() -> None:
    ensemble = certain_ensemble(10, (20, 16, 4), task="classification")
    x = normal(200, 20, seed=0)
    box, label = Box.ball(x, 0.03), mean_output(ensemble, x).argmax(-1)
    rows = decision_rows(label, 4)[0]
    found, separate = bound_rows(ensemble, box, rows, label, Options()), separately(ensemble, box, rows, label)
    assert bool((found > separate).all())
    assert int((found > 0).all(-1).sum()) > int((separate > 0).all(-1).sum())


def gaussian_softmax(network: BayesianNetwork, x: Tensor) -> Tensor:
    """E p_0 (batch,) of two classes by quadrature at x (batch, n): nothing but the last layer is random."""
    *before, layer = (each for each in network.layers if isinstance(each, Linear))
    z = x if not before else torch.tanh(x @ before[0].weight_mean.T)
    mean = z @ (layer.weight_mean[0] - layer.weight_mean[1]) + layer.bias_mean[0] - layer.bias_mean[1]
    spread = (z.square() @ layer.weight_std.square().sum(0) + layer.bias_std.square().sum()).sqrt()
    return torch.tensor(list(map(logistic_mean, mean.tolist(), spread.tolist())), dtype=F64)


def last_layer_random(seed: int) -> BayesianNetwork:
    first = Linear.fixed(normal(5, 2, seed=seed))
    last = (normal(2, 5, seed=seed + 1), normal(2, 5, seed=seed + 2).abs(), normal(2, seed=seed + 3), torch.ones(2))
    return BayesianNetwork((first, Tanh(), Linear(*last)), "classification")


@pytest.mark.parametrize("std", [0.05, 1.0, 4.0, None], ids=lambda std: f"linear {std}" if std else "last layer")
def test_two_classes_with_gaussian_margins_by_quadrature(std: float | None) -> None:
    made = (last_layer_random(9 * seed) if std is None else random_linear(2, 2, seed, std=std) for seed in range(3))
    ensemble = Ensemble(tuple(made), torch.tensor([0.5, 0.2, 0.3], dtype=F64))
    box = Box.ball([[0.3, 0.1], [-1.0, 2.0], [3.0, 0.0]], 0.2)
    interval, rows = classes(ensemble, box), torch.tensor([[[1.0, -1.0]]], dtype=F64).expand(3, 1, 2)
    found = bound_rows(ensemble, box, rows, torch.zeros(3, dtype=torch.int64), Options())
    for point in points_of(box, 20):
        truth = average(ensemble, [gaussian_softmax(member, point) for member in ensemble.members])
        assert holds(interval, torch.stack([truth, 1 - truth], -1), 1e-12)
        assert bool((found[:, 0] <= 2 * truth - 1 + 1e-12).all())


@pytest.mark.parametrize("method", ["auto", "partition", "best"])
@pytest.mark.parametrize(("std", "sizes"), [(0.6, (2, 4, 3)), *slow_but([(0.1, (2, 4, 3)), (0.6, (2, 4, 4, 3))])])
def test_random_hidden_layers_by_draws(std: float, method: str, sizes: tuple[int, ...]) -> None:
    members = tuple(classifier(sizes, 40 + seed, std=std, gain=2.0) for seed in range(3))
    ensemble, box = Ensemble(members), Box.ball(normal(2, 2, seed=5), 0.1)
    interval, names = expected_softmax(ensemble, box, Options(method=method))
    assert set(names) == {{"auto": "moment", "best": "moment+partition"}.get(method, method)}
    x = points_of(box, 6)
    drawn = [sampled_softmax(member, x.flatten(0, 1), 2000, 1) for member in members]
    mean = average(ensemble, [each for each, _ in drawn]).unflatten(0, (6, 2))
    error = 5 * torch.stack([each for _, each in drawn]).amax(0).unflatten(0, (6, 2))
    assert holds(interval, mean, error)
    label = mean.mean(0).argmax(-1)
    rows = decision_rows(label, 3)[0]
    found = bound_rows(ensemble, box, rows, label, Options(method=method))
    exact = torch.einsum("brc,pbc->pbr", rows, mean)
    assert bool((found <= exact + 2 * error.amax(-1, keepdim=True)).all())


# Members that go through a pass together


@pytest.mark.parametrize(
    ("steps", "shift"), slow_but([(0, False), (0, True), (4, False), (4, True)], (0, False), (4, True))
)
@pytest.mark.parametrize("phi", [Relu(), Tanh()], ids=lambda phi: phi.kind)
def test_how_many_go_together_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, phi: Activation, steps: int, shift: bool
) -> None:
    ensemble = certain_ensemble(6, (3, 9, 7, 4), task="classification", activation=phi, shift=shift, zeros=True)
    box, label = Box.ball(normal(4, 3, seed=5), 0.1), torch.tensor([0, 1, 2, 3])
    rows, how, found, parts = decision_rows(label, 4)[0], Options(optimise=steps), [], []
    for cached in (pass_choice._CACHED, 1):
        monkeypatch.setattr(pass_choice, "_CACHED", cached)
        parts.append(sum(1 for _, passes in pass_choice.chunked(ensemble, box, how, rows=16) for _ in passes.parts()))
        ends = classes(ensemble, box, optimise=steps)
        found.append(torch.cat([ends.lower, -ends.upper, bound_rows(ensemble, box, rows, label, how)], 1))
    assert parts == [1, 4]
    assert torch.allclose(found[0], found[1], rtol=0, atol=1e-10)
    p = mean_output(ensemble, points_of(box, 100))
    truth = torch.cat([p, -p, torch.einsum("brc,pbc->pbr", rows, p)], -1)
    assert bool((found[0] <= truth + 1e-14).all())
    point = classes(ensemble, Box(box.centre, box.centre), optimise=steps)
    assert bool((point.upper - point.lower < 1e-10).all())


# What overflows, what has no weight


@pytest.mark.parametrize("phi", [Relu(), Tanh()], ids=lambda phi: phi.kind)
def test_a_member_that_overflows_is_refused_by_its_index(phi: Activation) -> None:
    good = certain_member((2, 3, 3), 0, task="classification", activation=phi)
    layers = (Linear.fixed(1e200 * normal(3, 2, seed=1).abs()), phi, Linear.fixed(1e200 * normal(3, 3, seed=2)))
    ensemble, box = Ensemble((good, BayesianNetwork(layers, "classification"))), Box.ball([[1.0, 1.0]], 0.1)
    with pytest.raises(MagnitudeError, match=r"^member 1: "):
        classes(ensemble, box)
    label = torch.tensor([0])
    with pytest.raises(MagnitudeError, match=r"^member 1: "):
        bound_rows(ensemble, box, decision_rows(label, 3)[0], label, Options())


def test_a_member_of_no_weight_does_not_count() -> None:
    good, bad, box = classifier((2, 6, 3), 1), classifier((2, 6, 3), 2), Box.ball([[0.1, 0.2]], 0.1)
    whole, alone = classes(Ensemble((good, bad), torch.tensor([1.0, 0.0])), box), classes(good, box)
    assert torch.equal(whole.lower, alone.lower)
    assert torch.equal(whole.upper, alone.upper)
