"""Ensembles: affine bounds added before minimising, against members evaluated one by one and quadrature."""

from __future__ import annotations

import pytest
import torch
from support.classifiers import classifier, logistic_mean, random_linear
from torch import Tensor

from bnndp.activations import Tanh
from bnndp.attack import decision_rows
from bnndp.attack.draws import draw_networks, evaluate, stacked
from bnndp.engine.methods import one_pass, plan
from bnndp.engine.mixture import SHARES, MemberMargins, tail_lines
from bnndp.errors import InputError, UnsupportedLayerError
from bnndp.geometry.bounds import Affine
from bnndp.geometry.box import Box
from bnndp.layers import Conv2d, Dropout, Flatten, Linear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.options import Options
from bnndp.questions.certify import adversarial_robustness, certify
from bnndp.questions.decision import robust_decision
from bnndp.questions.evaluate import evaluate as robust_accuracy
from bnndp.questions.radius import Search, certified_radius
from bnndp.questions.softmax import bound_rows, expected_softmax
from bnndp.questions.verdict import Verdict

F64 = torch.float64


def members(count: int, sizes: tuple[int, ...], *, std: float = 0.0, gain: float = 1.0) -> tuple[BayesianNetwork, ...]:
    return tuple(classifier(sizes, 40 + seed, std=std, gain=gain) for seed in range(count))


def regression(network: BayesianNetwork) -> BayesianNetwork:
    return BayesianNetwork(network.layers, shift=network.shift)


def weights(count: int) -> Tensor:
    w = torch.rand(count, generator=torch.Generator().manual_seed(count), dtype=F64)
    return w / w.sum()


def points_of(box: Box, count: int, seed: int = 0) -> Tensor:
    """Corners and inner points of each box, projected into its ball: (count, batch, n)."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(count, box.batch, box.n, generator=generator, dtype=F64)
    share[::2] = share[::2].round()
    return box.project(box.lower + share * (box.upper - box.lower))


def exact_outputs(ensemble: Ensemble, x: Tensor) -> Tensor:
    """Outputs (members, ...) of members without variance."""
    chain = stacked(ensemble.members)
    assert chain is not None
    return evaluate(chain, x.reshape(-1, x.shape[-1])).unflatten(1, x.shape[:-1])


def average(ensemble: Ensemble, values: Tensor) -> Tensor:
    return torch.einsum("k,k...->...", ensemble.probabilities, values)


# Lines above the mean of the logistic function


def margins_on(least: Tensor, most: Tensor, variance: Tensor, *, random: bool, gaussian: bool) -> MemberMargins:
    shape = least.shape
    plane = Affine(torch.zeros(shape[0], shape[1] * shape[2], 1, dtype=F64), torch.zeros(shape[0], shape[1] * shape[2]))
    one = torch.ones(shape, dtype=F64)
    middle = 0.5 * (least + most)
    return MemberMargins(plane, least, middle, most, one, variance, one, random=random, gaussian=gaussian)


def ranges() -> tuple[Tensor, Tensor]:
    a = torch.tensor([-40.0, -6.0, -3.0, -1.0, -0.1, 0.0, 0.3, 2.0, 9.0, 80.0], dtype=F64)
    width = torch.tensor([0.0, 1e-12, 0.1, 1.0, 4.0, 30.0], dtype=F64)
    a, width = (grid.reshape(1, 1, -1) for grid in torch.meshgrid(a, width, indexing="ij"))
    return a, a + width


def test_lines_lie_above_the_logistic_function_and_touch_it() -> None:
    a, b = ranges()
    found = tail_lines(margins_on(a, b, torch.zeros_like(a), random=False, gaussian=False))
    assert len(found) == len(SHARES)
    for lines in found:
        assert bool((lines.slope >= 0).all())
        for share in torch.linspace(0, 1, 401, dtype=F64).tolist():
            d = (a + share * (b - a)).clamp(a, b)
            assert bool((lines.intercept - lines.slope * d >= torch.sigmoid(-d)).all())
    sharp = found[1].intercept - found[1].slope * 0.5 * (a + b)
    chord = torch.maximum(0.5 * (torch.sigmoid(-a) + torch.sigmoid(-b)), torch.sigmoid(-0.5 * (a + b)))
    assert bool((sharp <= chord + 1e-9)[a >= 0].all())  # convex there: the chord is the least line


@pytest.mark.parametrize("variance", [1e-6, 0.04, 0.5, 3.0, 40.0])
def test_lines_hold_for_every_law_of_two_points(variance: float) -> None:
    a, b = ranges()
    for lines in tail_lines(margins_on(a, b, torch.full_like(a, variance), random=True, gaussian=False)):
        for share in (0.0, 0.1, 0.37, 0.5, 0.8, 0.99, 1.0):
            d = (a + share * (b - a)).clamp(a, b)
            for p in (0.01, 0.1, 0.5, 0.9, 0.99):  # mass p below the mean
                low, high = d - (variance * (1 - p) / p) ** 0.5, d + (variance * p / (1 - p)) ** 0.5
                mean = p * torch.sigmoid(-low) + (1 - p) * torch.sigmoid(-high)
                assert bool((lines.intercept - lines.slope * d >= mean - 1e-15).all())


@pytest.mark.parametrize("variance", [0.2, 2.0])
def test_lines_of_gaussian_margins_against_quadrature(variance: float) -> None:
    a, b = torch.tensor([[[-1.0, 0.0, 0.5, 3.0]]], dtype=F64), torch.tensor([[[1.0, 0.7, 6.0, 3.2]]], dtype=F64)
    known = margins_on(a, b, torch.full_like(a, variance), random=True, gaussian=True)
    wider = margins_on(a, b, torch.full_like(a, variance), random=True, gaussian=False)
    for lines, others in zip(tail_lines(known), tail_lines(wider), strict=True):
        for share in (0.0, 0.25, 0.5, 1.0):
            d = a + share * (b - a)
            for spread in (variance, 0.3 * variance):  # the variance is an upper bound
                truth = torch.tensor([logistic_mean(-m, spread**0.5) for m in d.flatten().tolist()], dtype=F64)
                assert bool((lines.intercept - lines.slope * d >= truth - 1e-12).all())
        at = 0.5 * (a + b)
        assert bool((lines.intercept - lines.slope * at)[..., 2] < (others.intercept - others.slope * at)[..., 2])


def test_nothing_is_said_where_nothing_is_known() -> None:
    a = torch.tensor([[[-torch.inf, 0.0, 1.0]]], dtype=F64)
    most, variance = torch.tensor([[[3.0, torch.inf, 2.0]]], dtype=F64), torch.tensor([[[0.1, 0.1, torch.inf]]])
    for lines in tail_lines(margins_on(a, most, variance.to(F64), random=True, gaussian=False)):
        assert lines.intercept.tolist() == [[[1.0, 1.0, 1.0]]]
        assert lines.slope.tolist() == [[[0.0, 0.0, 0.0]]]


# Regression


@pytest.mark.parametrize("norm", [torch.inf, 2.0, 1.0])
def test_mean_outputs_of_deterministic_members(norm: float) -> None:
    ensemble = Ensemble(tuple(map(regression, members(7, (3, 12, 9, 2)))), weights(7))
    box = Box.ball(torch.randn(6, 3, generator=torch.Generator().manual_seed(3), dtype=F64), 0.4, norm=norm)
    affine, interval, names = one_pass(ensemble, box, Options())
    x = points_of(box, 200)
    truth = average(ensemble, exact_outputs(ensemble, x))
    for point, value in zip(x, truth, strict=True):
        assert bool((affine.lower(point) <= value + 1e-13).all())
        assert bool((affine.upper(point) >= value - 1e-13).all())
    assert bool((interval.lower <= truth.amin(0)).all())
    assert bool((interval.upper >= truth.amax(0)).all())
    parts = [one_pass(member, box, Options())[1] for member in ensemble.members]
    separate = sum(w * (part.upper - part.lower) for w, part in zip(ensemble.probabilities, parts, strict=True))
    assert bool((interval.upper - interval.lower < 0.95 * separate).all())  # members differ in where they are extreme
    assert names == ("moment",) * 6


def test_a_point_is_exact_and_shifts_may_differ() -> None:
    shifts = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=F64)
    plain = [regression(m) for m in members(3, (4, 8, 2))]
    ensemble = Ensemble(tuple(BayesianNetwork(m.layers, shift=s) for m, s in zip(plain, shifts, strict=True)))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(2), dtype=F64)
    bounds = certify(ensemble, Box(x, x))
    truth = torch.stack([evaluate(draw_networks(m, 1, seed=0), x)[0] for m in ensemble.members]).mean(0)
    assert bool((bounds.lower <= truth + 1e-14).all())
    assert bool((bounds.upper >= truth - 1e-14).all())
    assert bool((bounds.width < 1e-11).all())


def test_random_members_are_the_sum_of_their_means() -> None:
    ensemble = Ensemble(tuple(map(regression, members(3, (2, 10, 1), std=0.3))), weights(3))
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(4), dtype=F64)
    parts = [certify(member, Box(x, x)) for member in ensemble.members]
    found = certify(ensemble, Box(x, x))
    low = average(ensemble, torch.stack([part.lower for part in parts]))
    assert torch.allclose(found.lower, low, rtol=0, atol=1e-12)
    assert bool((found.lower <= low).all())
    narrow = certify(ensemble, Box.ball(x, 0.5), Options(refine=16))
    assert bool((narrow.width < certify(ensemble, Box.ball(x, 0.5)).width).all())


def test_members_without_weight_do_not_count() -> None:
    good, bad = members(2, (2, 4, 2), gain=1.0)
    broken = overflowing(2, "regression")
    one = Ensemble((regression(good), broken), torch.tensor([1.0, 0.0]))
    box = Box.ball([[0.1, 0.2]], 0.1)
    assert torch.allclose(certify(one, box).lower, certify(regression(good), box).lower, rtol=0, atol=1e-12)
    both = certify(Ensemble((regression(good), regression(bad))), box)
    assert not torch.allclose(both.lower, certify(one, box).lower)


def test_any_layers_and_any_mixture_of_kinds() -> None:
    generator = torch.Generator().manual_seed(8)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=F64)

    kernel = Conv2d.fixed(normal(2, 1, 2, 2), normal(2)) if hasattr(Conv2d, "fixed") else None
    dense = BayesianNetwork((Linear.fixed(normal(6, 9)), Tanh(), Linear.fixed(normal(1, 6))), input_shape=(1 * 9,))
    drop = BayesianNetwork((Linear.fixed(normal(6, 9)), Tanh(), Dropout(0.3), Linear.fixed(normal(1, 6))))
    ensemble = Ensemble((dense, drop), torch.tensor([0.25, 0.75]))
    box = Box.ball(normal(2, 9), 0.1)
    bounds = certify(ensemble, box)
    x = points_of(box, 60)
    truth = 0.25 * exact_outputs(Ensemble((dense,)), x)[0] + 0.75 * exact_outputs(Ensemble((no_drop(drop),)), x)[0]
    assert bool((bounds.lower <= truth.amin(0)).all())  # dropout after the last activation keeps the mean
    assert bool((bounds.upper >= truth.amax(0)).all())
    if kernel is not None:
        image = BayesianNetwork((kernel, Tanh(), Flatten(), Linear.fixed(normal(1, 8))), input_shape=(1, 3, 3))
        pair = Ensemble((image, image))
        assert torch.allclose(certify(pair, box).lower, certify(image, box).lower, rtol=0, atol=1e-11)


def overflowing(outputs: int, task: str) -> BayesianNetwork:
    first, last = (torch.full(shape, 1e300, dtype=F64) for shape in ((4, 2), (outputs, 4)))
    return BayesianNetwork((Linear.fixed(first), Tanh(), Linear.fixed(last)), task)


def no_drop(network: BayesianNetwork) -> BayesianNetwork:
    return BayesianNetwork(tuple(layer for layer in network.layers if not isinstance(layer, Dropout)))


def test_gamma_robustness_of_an_ensemble_is_certified_and_falsified() -> None:
    ensemble = Ensemble(tuple(map(regression, members(3, (2, 6, 1)))))
    x = torch.tensor([[0.2, -0.1]], dtype=F64)
    box = Box.ball(x, 0.2)
    change = adversarial_robustness(ensemble, x, box, 1e9).change.item()
    assert adversarial_robustness(ensemble, x, box, 1.01 * change).verdict == (Verdict.CERTIFIED,)
    assert adversarial_robustness(ensemble, x, box, 0.2 * change).verdict == (Verdict.FALSIFIED,)


# Classification


@pytest.mark.parametrize(("classes", "count", "gain"), [(2, 3, 1.0), (3, 5, 3.0), (6, 4, 0.5), (10, 3, 8.0)])
@pytest.mark.parametrize("norm", [torch.inf, 2.0])
def test_expected_softmax_of_deterministic_members(classes: int, count: int, gain: float, norm: float) -> None:
    ensemble = Ensemble(members(count, (3, 10, classes), gain=gain), weights(count))
    box = Box.ball(torch.randn(8, 3, generator=torch.Generator().manual_seed(7), dtype=F64), 0.25, norm=norm)
    truth = average(ensemble, exact_outputs(ensemble, points_of(box, 300)).softmax(-1))  # (points, batch, classes)
    interval, _ = expected_softmax(ensemble, box, Options())
    assert bool((interval.lower <= truth.amin(0) + 1e-14).all())
    assert bool((interval.upper >= truth.amax(0) - 1e-14).all())
    parts = [expected_softmax(member, box, Options())[0] for member in ensemble.members]
    pairs = list(zip(ensemble.probabilities.tolist(), parts, strict=True))
    width = sum(w * (part.upper - part.lower) for w, part in pairs)
    assert bool((interval.upper - interval.lower <= width + 1e-12).all())
    assert (interval.upper - interval.lower).mean() < (0.98 if gain < 5 else 1.0) * width.mean()
    generator = torch.Generator().manual_seed(classes)
    rows = torch.randn(8, 5, classes, generator=generator, dtype=F64)
    for label in (truth.mean(0).argmax(-1), truth.mean(0).argmin(-1)):
        found = bound_rows(ensemble, box, rows, label, Options())
        exact = torch.einsum("brc,pbc->pbr", rows, truth)
        assert bool((found <= exact.amin(0) + 1e-14).all())
        each = [torch.maximum(bound_rows(m, box, rows, label, Options()), rows.amin(-1)) for m in ensemble.members]
        separate = average(ensemble, torch.stack(each))
        assert bool((found >= separate - 1e-11).all())  # alone, a member has a pass of its own that rounds less


def test_decisions_gain_by_adding_before_minimising() -> None:
    ensemble = Ensemble(members(10, (20, 16, 4)))
    x = torch.randn(200, 20, generator=torch.Generator().manual_seed(0), dtype=F64)
    box = Box.ball(x, 0.03)
    label = average(ensemble, exact_outputs(ensemble, x).softmax(-1)).argmax(-1)
    rows = decision_rows(label, 4)[0]
    found = bound_rows(ensemble, box, rows, label, Options())
    each = [torch.maximum(bound_rows(m, box, rows, label, Options()), rows.amin(-1)) for m in ensemble.members]
    separate = average(ensemble, torch.stack(each))
    assert bool((found > separate).all())
    assert int((found > 0).all(-1).sum()) > int((separate > 0).all(-1).sum())


@pytest.mark.parametrize("std", [0.05, 1.0, 4.0])
def test_two_classes_of_random_linear_members_by_quadrature(std: float) -> None:
    ensemble = Ensemble(tuple(random_linear(2, 2, seed, std=std) for seed in range(3)), weights(3))
    box = Box.ball([[0.3, 0.1], [-1.0, 2.0], [3.0, 0.0]], 0.2)
    interval, _ = expected_softmax(ensemble, box, Options())
    x = points_of(box, 40)
    label = torch.zeros(3, dtype=torch.int64)
    rows = torch.tensor([[[1.0, -1.0]]], dtype=F64).expand(3, 1, 2)
    found = bound_rows(ensemble, box, rows, label, Options())
    for point in x:
        truth = torch.zeros(3, dtype=F64)
        for member, w in zip(ensemble.members, ensemble.probabilities.tolist(), strict=True):
            layer = member.linears[0]
            mean = point @ (layer.weight_mean[0] - layer.weight_mean[1]) + layer.bias_mean[0] - layer.bias_mean[1]
            spread = (point.square() @ layer.weight_std.square().sum(0) + layer.bias_std.square().sum()).sqrt()
            pairs = zip(mean.tolist(), spread.tolist(), strict=True)
            truth += w * torch.tensor([logistic_mean(m, r) for m, r in pairs], dtype=F64)
        assert bool((interval.lower[:, 0] <= truth + 1e-12).all())
        assert bool((interval.upper[:, 0] >= truth - 1e-12).all())
        assert bool((found[:, 0] <= 2 * truth - 1 + 1e-12).all())


@pytest.mark.parametrize("std", [0.1, 0.6])
def test_random_hidden_layers_against_drawn_networks(std: float) -> None:
    ensemble = Ensemble(members(3, (2, 8, 8, 3), std=std, gain=2.0), weights(3))
    box = Box.ball(torch.randn(5, 2, generator=torch.Generator().manual_seed(5), dtype=F64), 0.1)
    interval, _ = expected_softmax(ensemble, box, Options())
    x = points_of(box, 6)
    parts = [evaluate(draw_networks(m, 2000, seed=1), x.reshape(-1, 2)).softmax(-1) for m in ensemble.members]
    mean = average(ensemble, torch.stack([part.mean(0) for part in parts])).reshape(6, 5, 3)
    error = 5 * (1 / 2000) ** 0.5 * torch.stack([part.std(0) for part in parts]).amax(0).reshape(6, 5, 3)
    assert bool((interval.lower <= mean + error).all())
    assert bool((interval.upper >= mean - error).all())
    label = mean.mean(0).argmax(-1)
    rows = decision_rows(label, 3)[0]
    found = bound_rows(ensemble, box, rows, label, Options())
    exact = torch.einsum("brc,pbc->pbr", rows, mean)
    assert bool((found <= exact + 2 * error.amax(-1, keepdim=True)).all())


def test_members_of_any_layers_and_shifts_against_their_exact_outputs() -> None:
    generator = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=F64)

    def member() -> BayesianNetwork:
        layers = (Linear.fixed(normal(8, 3), normal(8)), Tanh(), Linear.fixed(normal(4, 8), normal(4)))
        return BayesianNetwork(layers, "classification", normal(3))

    ensemble = Ensemble(tuple(member() for _ in range(4)))
    box = Box.ball(normal(6, 3), 0.1)
    truth = average(ensemble, exact_outputs(ensemble, points_of(box, 100)).softmax(-1))
    interval, _ = expected_softmax(ensemble, box, Options())
    assert bool((interval.lower <= truth.amin(0)).all())
    assert bool((interval.upper >= truth.amax(0)).all())
    point = certify(ensemble, Box(box.centre, box.centre))
    assert bool((point.width < 1e-10).all())


def test_last_layer_laplace_members_by_quadrature() -> None:
    generator = torch.Generator().manual_seed(12)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=F64)

    def member() -> BayesianNetwork:
        last = Linear(normal(2, 5), normal(2, 5).abs(), normal(2), normal(2).abs())
        return BayesianNetwork((Linear.fixed(normal(5, 2)), Tanh(), last), "classification")

    ensemble = Ensemble((member(), member()))
    box = Box.ball(normal(4, 2), 0.1)
    interval, _ = expected_softmax(ensemble, box, Options())
    for point in points_of(box, 10):
        truth = torch.zeros(4, dtype=F64)
        for part in ensemble.members:
            first, _, last = part.layers
            assert isinstance(first, Linear)
            assert isinstance(last, Linear)
            z = torch.tanh(point @ first.weight_mean.T)
            mean = z @ (last.weight_mean[0] - last.weight_mean[1]) + last.bias_mean[0] - last.bias_mean[1]
            spread = (z.square() @ last.weight_std.square().sum(0) + last.bias_std.square().sum()).sqrt()
            pairs = zip(mean.tolist(), spread.tolist(), strict=True)
            truth += 0.5 * torch.tensor([logistic_mean(m, r) for m, r in pairs], dtype=F64)
        assert bool((interval.lower[:, 0] <= truth + 1e-12).all())
        assert bool((interval.upper[:, 0] >= truth - 1e-12).all())


def test_overflow_of_a_member_leaves_what_is_known_of_the_others() -> None:
    good = random_linear(2, 3, 0)
    bad = overflowing(3, "classification")
    interval, _ = expected_softmax(Ensemble((good, bad)), Box.ball([[0.2, 0.1]], 0.1), Options())
    alone, _ = expected_softmax(good, Box.ball([[0.2, 0.1]], 0.1), Options())
    assert bool((interval.lower >= 0.5 * alone.lower - 1e-12).all())
    assert bool((interval.upper <= 0.5 * alone.upper + 0.5 + 1e-12).all())
    assert not bool(interval.lower.isnan().any())


def test_decisions_radii_and_accuracy_of_an_ensemble() -> None:
    ensemble = Ensemble(members(4, (2, 8, 3), gain=2.0))
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(21), dtype=F64)
    found = certified_radius(ensemble, x, search=Search(upper=1.0, tolerance=0.02))
    assert int((found.radius > 0).sum()) >= 5
    assert bool((found.radius.nan_to_num(0.0) <= found.attack * 1.0001).all())
    x = x[found.radius > 0.01]
    found = certified_radius(ensemble, x, search=Search(upper=1.0, tolerance=0.02))
    quick = Search(tolerance=0.05, attack=False)
    better = certified_radius(ensemble, x[:2], search=quick, options=Options(refine=4))
    assert bool((better.radius >= found.radius[:2] * 0.94).all())
    for i in range(x.shape[0]):  # no point of the ball has another decision
        ball = Box.ball(x[i], found.radius[i].item())
        inner = points_of(ball, 400)[:, 0]
        mean = average(ensemble, exact_outputs(ensemble, inner).softmax(-1))
        assert bool((mean.argmax(-1) == found.label[i]).all())
    small = robust_decision(ensemble, x, Box.ball(x, 0.5 * found.radius.min().item()))
    assert set(small.verdict) == {Verdict.CERTIFIED}
    large = robust_decision(ensemble, x, Box.ball(x, 1.5 * found.attack.max().item()))
    assert set(large.verdict) == {Verdict.FALSIFIED}
    curve = robust_accuracy(ensemble, x, search=Search(attack=False)).curve([0.0, 0.05])
    assert curve.correct == x.shape[0]
    assert curve.certified[0] == x.shape[0]


@pytest.mark.parametrize("method", ["partition", "best"])
def test_the_partition_method_for_plain_members_and_its_refusal(method: str) -> None:
    ensemble = Ensemble(members(2, (2, 5, 3), std=0.1))
    box = Box.ball([[0.1, 0.4]], 0.05)
    interval, names = expected_softmax(ensemble, box, Options(method=method))
    x = points_of(box, 3)[:, 0]
    drawn = torch.stack([evaluate(draw_networks(m, 4000, seed=0), x).softmax(-1).mean(0) for m in ensemble.members])
    assert bool((interval.lower <= drawn.mean(0) + 0.02).all())
    assert bool((interval.upper >= drawn.mean(0) - 0.02).all())
    assert names == ({"partition": "partition", "best": "moment+partition"}[method],)
    label = torch.tensor([0])
    rows = decision_rows(label, 3)[0]
    assert bool((bound_rows(ensemble, box, rows, label, Options(method=method)) <= 1).all())
    layers = (Linear.fixed(torch.ones(3, 2)), Tanh(), Linear.fixed(torch.ones(3, 3)))
    general = BayesianNetwork(layers, "classification")
    with pytest.raises(UnsupportedLayerError, match="moment"):
        expected_softmax(Ensemble((general,)), box, Options(method=method))


def test_effort_never_asks_for_a_method_that_does_not_know_the_layers() -> None:
    layers = (Linear.fixed(torch.ones(9, 9)), Tanh()) * 3 + (Linear.fixed(torch.ones(2, 9)),)
    deep = BayesianNetwork(layers, "classification")
    for network in (deep, Ensemble((deep, deep))):
        assert {stage.options.method for stage in plan(network, Options(effort="high"))} == {"auto"}
    plain = classifier((9, 4, 4, 4, 2), 0)
    for network in (plain, Ensemble((plain,))):
        assert plan(network, Options(effort="high"))[-1].options.method == "best"


def test_wrong_inputs_are_refused() -> None:
    ensemble = Ensemble(members(2, (3, 4, 2)))
    with pytest.raises(InputError, match="takes 3"):
        certify(ensemble, Box.ball([[0.0, 0.0]], 0.1))
    with pytest.raises(InputError, match="takes 3"):
        certify(Ensemble(tuple(map(regression, ensemble.members))), Box.ball([[0.0, 0.0]], 0.1))
    with pytest.raises(InputError, match="BayesianNetwork or Ensemble"):
        certify(list(ensemble.members), Box.ball([[0.0] * 3], 0.1))  # type: ignore[arg-type]
