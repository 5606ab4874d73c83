"""The breakdown of the gap: the pass is the package's, true values agree with quadrature, all sources explain it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.pool import call, mapped
from benchmarks.tightness import classification, layers, regression, substitute
from benchmarks.tightness.__main__ import main
from benchmarks.tightness.report import markdown, sections
from benchmarks.tightness.sources import ALL, Breakdown, Source, planes_source, remainder_source, sources_of
from benchmarks.tightness.suite import CLASSIFICATION, QUICK, REGRESSION
from benchmarks.tightness.truth import draw, sample
from benchmarks.tightness.widening import growth, predictive_std, random_posterior
from support.dice import Dice
from torch import Tensor

from bnndp import Options
from bnndp.activations import Relu
from bnndp.attack import decision_rows
from bnndp.attack.inside import inside_range
from bnndp.attack.noise import LayerNoise
from bnndp.engine.margins import margins
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.moments.signal import POWERS
from bnndp.engine.nodes.activation import Activated
from bnndp.engine.propagation.forward import activations_of
from bnndp.geometry.box import Box
from bnndp.layers import Dropout, Linear
from bnndp.network import BayesianNetwork
from bnndp.questions.decision import decide
from bnndp.questions.from_margins import row_bound
from bnndp.questions.softmax import bound_rows
from bnndp.tighten.pass_choice import pass_over


def random_network(sizes: tuple[int, ...], *, std: float = 0.3, task: str = "regression") -> BayesianNetwork:
    normal = Dice(len(sizes)).normal

    def linear(n_in: int, n_out: int) -> Linear:
        spread = std / math.sqrt(n_in) * (0.5 + normal(n_out, n_in).abs())
        return Linear(normal(n_out, n_in) * math.sqrt(2 / n_in), spread, 0.1 * normal(n_out), 0.1 * spread[:, 0])

    return BayesianNetwork.from_linears([linear(a, b) for a, b in pairwise(sizes)], task)


def balls(n: int, eps: float, count: int = 3) -> Box:
    generator = torch.Generator().manual_seed(1)
    return Box.ball(2 * torch.rand(count, n, generator=generator, dtype=torch.float64) - 1, eps)


def judge_of(network: BayesianNetwork, box: Box, draws: int) -> Any:
    """What judges the decisions for the classes 0, 1 and 2 on three boxes, at their centres."""
    truth = sample(network.linears, box.centre, noise_of(network, draws))
    claim = classification.Claim(box, torch.tensor([0, 1, 2]), box.centre)
    return classification._Judge.make(network, claim, truth)


def noise_of(network: BayesianNetwork, draws: int) -> LayerNoise:
    return draw(network, draws, seed=3)


@pytest.mark.parametrize("sizes", [(2, 8, 1), (2, 8, 7, 1), (3, 8, 7, 6, 1)])
def test_without_sources_the_pass_is_that_of_the_package(sizes: tuple[int, ...]) -> None:
    network, box = random_network(sizes), balls(sizes[0], 0.05)
    truth = sample(network.linears, box.centre, noise_of(network, 16))
    found, one = regression.interval(network, box, truth, ()), torch.eye(sizes[-1], dtype=torch.float64)
    wanted = MomentPass.of(network, box)
    assert torch.allclose(found.lower, wanted.least(one), rtol=1e-12, atol=0)  # sums in another order
    assert torch.allclose(found.upper, -wanted.least(-one), rtol=1e-12, atol=0)


def test_without_sources_the_margins_are_those_of_the_package() -> None:
    network, box = random_network((3, 8, 7, 3), task="classification"), balls(3, 0.02)
    label, judge = torch.tensor([0, 1, 2]), judge_of(network, box, 16)
    found, wanted = judge.moments(()), margins(pass_over(network, box, Options()), label[:, None], 3)
    torch.testing.assert_close(found.mean, wanted.mean, rtol=0, atol=0)
    torch.testing.assert_close(found.variance, wanted.variance, rtol=1e-12, atol=1e-300)
    rows = decision_rows(label, 3)[0]
    least = torch.maximum(row_bound(rows, wanted, label, judge.tails).amin(-1), torch.tensor(-1.0).double())
    torch.testing.assert_close(judge.lead(()), least)


def quadrature(network: BayesianNetwork, x: Tensor) -> dict[str, Tensor]:
    """Moments of the second layer over a single source z = ReLU(zeta), on a fine grid; no code of the package."""
    first, second, _ = network.linears
    m0 = float(first.weight_mean[0] @ x + first.bias_mean[0])
    r0 = math.sqrt(float(first.weight_std[0].square() @ x.square() + first.bias_std[0] ** 2))
    xi = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    weight = torch.exp(-0.5 * xi.square())
    weight = (weight / weight.sum())[:, None]
    z = (m0 + r0 * xi).clamp_min(0)[:, None]
    m = z @ second.weight_mean.T + second.bias_mean  # (grid, n)
    s = z.square() @ second.weight_std.square().T + second.bias_std.square()

    def relu(mean: Tensor, variance: Tensor) -> Tensor:
        u = mean / variance.sqrt()
        density = torch.exp(-0.5 * u.square()) / math.sqrt(2 * math.pi)
        return mean * torch.special.ndtr(u) + variance.sqrt() * density

    mean, spread = (m * weight).sum(0), (s * weight).sum(0)
    return {
        "mean": mean,
        "spread": spread,
        "noise": ((m - mean).square() * weight).sum(0),
        "spread_deviation": ((s - spread).square() * weight).sum(0).sqrt(),
        "output": (relu(m, s) * weight).sum(0),
    }


def test_true_values_agree_with_quadrature() -> None:
    network = random_network((2, 1, 6, 1), std=0.8)
    x = torch.tensor([[0.4, -0.7]], dtype=torch.float64)
    true = sample(network.linears, x, noise_of(network, 2**15)).hidden[1]
    wanted = quadrature(network, x[0])
    for name in ("mean", "spread", "noise", "spread_deviation"):  # closed forms
        torch.testing.assert_close(getattr(true, name)[0], wanted[name], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(true.output[0], wanted["output"], rtol=1e-2, atol=1e-3)
    assert bool((true.central == 0).all())  # nothing is random before the first layer


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_true_moments_agree_with_draws_of_the_network(layer: int) -> None:
    network = random_network((2, 6, 5, 4, 1), std=0.8)
    x = balls(2, 0.0, count=1).centre
    true = sample(network.linears, x, noise_of(network, 2**14)).hidden[layer]
    generator = torch.Generator().manual_seed(5)
    z = x.expand(2**16, -1)
    for linear in network.linears[: layer + 1]:
        m, s = z @ linear.weight_mean.T + linear.bias_mean, z.square() @ linear.weight_std.square().T
        s = s + linear.bias_std.square()
        below, z = z, (m + s.sqrt() * torch.randn(m.shape, generator=generator, dtype=m.dtype)).clamp_min(0)
    found = (true.below, true.mean, true.spread, true.noise + true.central, true.spread_deviation, true.output)
    drawn = (below.mean(0), m.mean(0), s.mean(0), m.var(0), s.std(0), z.mean(0))
    for value, wanted in zip(found, drawn, strict=True):
        torch.testing.assert_close(value[0], wanted, rtol=0.03, atol=0.01)


@pytest.mark.parametrize("sizes", [(2, 8, 1), (2, 16, 12, 1), (2, 12, 12, 12, 1)])
def test_all_sources_together_close_the_gap_of_regression(sizes: tuple[int, ...]) -> None:
    network, box = random_network(sizes), balls(2, 2e-3)
    inside = inside_range(network, box, samples=1024, restarts=1, steps=10)
    broken = regression.break_down(network, box, inside, draws=2048)
    assert broken.certified > broken.inside > 0
    assert broken.shares[ALL] == pytest.approx(1, abs=0.03)
    single = [share for name, share in broken.shares.items() if name != ALL]
    assert all(-0.1 < share < 1.03 for share in single)
    assert set(broken.shares) == {ALL, *(s.value for s in sources_of(len(sizes) - 2, classification=False))}


def test_all_sources_together_close_the_gap_of_a_decision() -> None:
    network = random_network((3, 12, 12, 3), std=0.4, task="classification")
    x = balls(3, 0.0, count=4).centre
    truth = sample(network.linears, x, noise_of(network, 512))
    claim = classification.Claim(Box(x, x), truth.output.argmax(-1), x)
    broken = classification.break_down(network, claim, draws=4096, point=True)
    assert broken.certified < broken.inside
    assert broken.shares[ALL] == pytest.approx(1, abs=0.03)


def activation(network: BayesianNetwork, box: Box, sources: Collection[Source | None], index: int) -> Activated:
    """The activation of this index in the pass with the true values of the sources at the centre."""
    truth = sample(network.linears, box.centre, noise_of(network, 256))
    bounds = substitute.Substituted(network.layers, network.shapes, box, truth=truth, sources=sources)
    return list(activations_of(bounds.hidden.nodes).values())[index]


@pytest.mark.parametrize("index", [1, 2])
def test_with_the_true_remainder_both_bounds_are_exact(index: int) -> None:
    network, box = random_network((2, 8, 7, 6, 1), std=0.8), balls(2, 0.05)
    true = sample(network.linears, box.centre, noise_of(network, 256)).hidden[index]
    sources = (remainder_source(index), planes_source(index), Source.SECOND)
    planes = activation(network, box, sources, index).planes
    low = planes.lower_alpha * true.mean + planes.lower_offset
    high = planes.upper_alpha * true.mean + planes.upper_offset
    assert not planes.tilted
    torch.testing.assert_close(low, true.output, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(high, true.output, rtol=1e-9, atol=1e-9)


def test_the_law_behind_tails_and_union_has_the_moments_of_the_pass() -> None:
    network, box = random_network((3, 8, 7, 3), task="classification"), balls(3, 0.02)
    judge = judge_of(network, box, 256)
    known = judge.moments(())
    law = judge._law(known)
    torch.testing.assert_close(law.mean(1), known.mean[:, 0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(law.var(1, correction=0), known.variance[:, 0], rtol=1e-9, atol=1e-9)


def test_exponential_moments_are_no_source_where_the_worst_input_is_calm() -> None:
    network = random_network((3, 8, 3), std=0.02, task="classification")
    judge = judge_of(network, Box.ball(balls(3, 0.0).centre, 0.5), 256)
    assert bool((judge._point().tails == 1).all())  # calm at x*
    for tails in (judge.tails, torch.full_like(judge.tails, 0.5)):  # whatever is used on the box
        assert torch.equal(replace(judge, tails=tails)._exponent_loss(), torch.ones_like(tails))


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_a_plane_that_touches_is_exact_at_the_worst_input(at: float) -> None:
    network, box = random_network((2, 8, 1)), balls(2, 0.1)
    x = box.centre + at * (box.upper - box.centre)
    truth = sample(network.linears, x, noise_of(network, 8))  # exact for one hidden layer
    bounds = substitute.Substituted(network.layers, network.shapes, box, truth=truth, sources=(Source.PLANES_1,))
    rows = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    plane = bounds.affine(rows).affine(x)
    torch.testing.assert_close(plane, truth.output @ rows.T, rtol=1e-9, atol=1e-9)


def test_moments_are_replaced_one_at_a_time() -> None:
    network, box = random_network((2, 8, 7, 1)), balls(2, 0.05)
    plain, other = (activation(network, box, sources, 1).pre for sources in ((), (Source.SPREAD_VARIANCE,)))
    true = sample(network.linears, box.centre, noise_of(network, 256)).hidden[1]
    assert torch.equal(other.spread_deviation, true.spread_deviation)
    assert bool((other.spread_deviation < plain.spread_deviation).all())  # exact at the centre, a bound on the box
    for name in ("central", "norms", "third", "quartic"):
        assert torch.equal(getattr(other, name), getattr(plain, name))
    for name in ("spread", "noise"):
        assert torch.equal(getattr(other, name).upper, getattr(plain, name).upper)


def test_no_true_moment_is_above_its_bound() -> None:
    network, box = random_network((2, 8, 7, 6, 1)), balls(2, 0.05)
    truth = sample(network.linears, box.centre, noise_of(network, 2**12))
    for index in (1, 2):
        x, true = activation(network, box, (), index).pre, truth.hidden[index]
        size, away, deviation = true.mean_norms(POWERS), true.spread_norms(POWERS[:2]), true.v.std(1, correction=0)
        bounds = (x.central, x.norms, x.spread_deviation, x.spread_deltas, x.noise_deviation)
        for bound, value in zip(bounds, (true.central, size, true.spread_deviation, away, deviation), strict=True):
            assert bool((value <= 1.05 * bound + 1e-12).all())
        for name in ("spread", "noise"):
            found, value = getattr(x, name), getattr(true, name)
            assert bool(((0.95 * found.lower <= value) & (value <= 1.05 * found.upper)).all())


def test_shares_are_parts_of_the_gap() -> None:
    broken = Breakdown(certified=3.0, inside=1.0, without={"a": 2.5, "b": 2.0, "region": 1.0, ALL: 1.0})
    assert broken.shares == {"a": 0.25, "b": 0.5, "region": 1.0, ALL: 1.0}
    assert broken.leading == "b"
    assert Breakdown(1.0, 1.0, {"a": 1.0}).shares == {"a": 0.0}


def test_widening_compares_equal_predictive_deviations() -> None:
    x = balls(2, 0.0, count=5).centre
    for width in (16, 64):
        network = random_posterior(width, 0, 0.3, x)
        assert float(predictive_std(network, x).mean()) == pytest.approx(0.3, rel=0.02)
        assert network.sizes == (2, width, width, 1)


def test_growth_names_the_source_that_grows() -> None:
    def row(width: int, gap: float, share: float) -> dict[str, object]:
        shares = {"higher order": share, "remainder 2": 1 - share, "all": 1.0}
        return {"family": "f", "width": width, "std": 0.1, "point_gap": gap, "shares": shares, "gap_broken_down": gap}

    found = growth([row(512, 3.0, 0.9), row(64, 1.0, 0.5)])
    assert found["factor"] == pytest.approx(3)
    assert found["grows_most"] == "higher order"
    assert growth([row(64, 1.0, 0.5), row(512, 0.5, 0.9)])["grows_most"] is None


def test_tables_hold_every_network_and_leave_absent_sources_empty() -> None:
    shares = {"planes 1": 0.254, ALL: 1.0}
    broken = {"certified": 2.0, "inside": 1.0, "shares": shares, "leading": "planes 1"}
    row = {"name": "one", "eps": 0.01, "paper": None, "width": 2.0, "inside": 1.0, "inside_error": 0.0, "ratio": 2.0}
    row |= {"point_gap": 0.0, "boxes": 3, "breakdown": broken}
    other = row | {"name": "two", "breakdown": broken | {"shares": shares | {"higher order": 0.5}}}
    results = {"command": "make tightness", "regression": [row, other]}
    text = markdown(results)
    assert len(sections(results)) == 2
    assert "| one | 1.00e+00 | 25 |  | 100 |" in text
    assert "| two | 1.00e+00 | 25 | 50 | 100 |" in text


def test_an_unknown_network_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--only", "sine9d-1x1"])
    assert stopped.value.code == 2
    assert "sine9d-1x1: no such network" in capsys.readouterr().err


def test_what_was_measured_is_printed_where_a_network_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BNNDP_DATA", raising=False)
    with pytest.raises(SystemExit, match="nothing written: mnist_2x64_vogn: there is no"):
        main(["--quick", "--jobs", "1", "--only", "authors-mnist-2x64", "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("processes", [1, 2])
def test_jobs_keep_their_order(processes: int) -> None:
    jobs: list[partial[dict[str, int]]] = [partial(dict, row=index) for index in range(3)]
    assert list(mapped(call, jobs, processes)) == [{"row": 0}, {"row": 1}, {"row": 2}]


def test_the_suite_has_what_was_asked_for() -> None:
    names = [*(case.name for case in REGRESSION), *(case.name for case in CLASSIFICATION)]
    assert len(set(names)) == len(names)
    assert set(QUICK) <= set(names)
    paper = {case.name: case.paper for case in REGRESSION}
    assert (paper["sine2d-3x64"], paper["sine2d-3x128"]) == (0.477, 0.629)


def _dropped() -> BayesianNetwork:
    generator = torch.Generator().manual_seed(2)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    first, last = Linear.fixed(matrix(12, 4), matrix(12)), Linear.fixed(0.5 * matrix(3, 12), matrix(3))
    return BayesianNetwork((first, Relu(), Dropout(0.1), last), "classification")


def test_without_a_step_replaced_the_claims_of_other_layers_are_those_of_the_package() -> None:
    network, x = _dropped(), torch.linspace(-1, 1, 32, dtype=torch.float64).reshape(8, 4).abs()
    label, radius = decide(network, x), torch.linspace(0, 0.1, 8, dtype=torch.float64)
    judge = layers.Judge(network, x, label, draws=512)
    found = judge.decided(radius, torch.arange(8), None)
    rows, ball = decision_rows(label, 3)[0], Box.ball(x, radius, domain=layers.PIXELS)
    assert found.tolist() == (bound_rows(network, ball, rows, label, Options()) > 0).all(-1).tolist()
    assert 0 < int(found.sum()) < 8


def test_no_step_of_other_layers_makes_a_radius_smaller() -> None:
    network, x = _dropped(), torch.linspace(-1, 1, 32, dtype=torch.float64).reshape(8, 4).abs()
    judge = layers.Judge(network, x, decide(network, x), draws=4096)
    most = torch.full((8,), 0.5, dtype=torch.float64)

    def reached(step: layers.Step | None) -> Tensor:
        return layers.largest(lambda radius, at: judge.decided(radius, at, step), most)

    certified = reached(None)
    for step in layers.Step:
        assert bool((reached(step) >= certified - 0.01 * most).all()), step
    assert float(reached(layers.Step.LAW).mean()) > float(certified.mean())


def test_the_largest_radius_is_found_to_one_per_cent() -> None:
    truth, most = torch.tensor([-1.0, 0.0, 0.3, 0.77, 2.0]), torch.ones(5)
    found = layers.largest(lambda radius, at: radius <= truth[at], most)
    assert found.tolist()[:2] == [-1.0, 0.0]
    assert torch.allclose(found[2:], truth[2:].clamp_max(1.0), atol=0.01)
