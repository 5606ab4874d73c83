"""A search in float32: whatever the guesses say, what is certified is certified in float64 and within the tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import records
import torch
from classifiers import classifier, exact_radius, linear, random_linear
from torch import Tensor

import bnndp.radius
import bnndp.single
from bnndp.classify import bound_rows, quick_rows
from bnndp.decision import labels_of
from bnndp.ensemble import Ensemble, Posterior
from bnndp.errors import InputError
from bnndp.evaluate import evaluate
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.radius import Radius, Search, better_radii, certified_radius
from bnndp.regions import Box
from bnndp.single import Likeness

SINGLE = Search(upper=5.0, attack=False, precision="float32")
DOUBLE = Search(upper=5.0, attack=False)
NETWORKS: dict[str, Posterior] = {
    "dense": classifier((4, 8, 3), 3, std=0.03, gain=3.0),
    "ensemble": Ensemble(tuple(classifier((4, 6, 3), 3, std=0.0, gain=gain) for gain in (3.0, 2.0))),
    "images": records.classifier(records.networks()["convolution last"]),
}


@dataclass
class Passes:
    """What the search asked the bounds, and the answers."""

    kinds: list[tuple[Posterior, torch.dtype]] = field(default_factory=list)
    certified: set[tuple[float, ...]] = field(default_factory=set)  # lower and upper ends of the balls that hold


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    """Those in float64 of ``certified_radius``."""
    seen = Passes()

    def told(network: Posterior, box: Box, found: Tensor) -> None:
        seen.kinds.append((network, box.lower.dtype))
        good = (found > 0).all(-1)
        seen.certified |= {ends(box, i) for i in good.nonzero()[:, 0].tolist()}

    def watched(network: Posterior, box: Box, rows: Tensor, label: Tensor, options: Options) -> Tensor:
        found = bound_rows(network, box, rows, label, options)
        told(network, box, found)
        return found

    def quickly(network: Posterior, box: Box, rows: Tensor, label: Tensor, options: Options) -> tuple[Tensor, Tensor]:
        found, hopeful = quick_rows(network, box, rows, label, options)
        told(network, box, found)
        return found, hopeful

    monkeypatch.setattr(bnndp.radius, "bound_rows", watched)
    monkeypatch.setattr(bnndp.radius, "quick_rows", quickly)
    return seen


def ends(box: Box, index: int) -> tuple[float, ...]:
    return (*box.lower[index].tolist(), *box.upper[index].tolist())


def points(count: int, n: int, seed: int = 0) -> Tensor:
    return torch.randn(count, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def exact_case(norm: float = math.inf) -> tuple[BayesianNetwork, Tensor, Tensor, Tensor]:
    """A linear classifier, inputs, their labels and exact radii; the last label is wrong."""
    network, x = random_linear(3, 3, 2), points(6, 3)
    (layer,) = network.linears
    label = (x @ layer.weight_mean.T + layer.bias_mean).argmax(-1)
    label[-1] = (label[-1] + 1) % 3
    return network, x, label, exact_radius(network, x, label, norm=norm)


def expect_exact(found: Radius, exact: Tensor) -> None:
    assert bool(found.radius[-1].isnan())
    assert bool((found.radius[:-1] <= exact[:-1] * (1 + 1e-9)).all()), "more is claimed than is true"
    assert bool((found.radius[:-1] >= exact[:-1] / 1.011).all()), "less than the tolerance allows"
    assert found.radius.dtype == torch.float64


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
def test_linear_classifiers_are_exact(norm: float) -> None:
    network, x, label, exact = exact_case(norm)
    found = certified_radius(network, x, label, search=Search(norm=norm, upper=20.0, attack=False, precision="float32"))
    expect_exact(found, exact)


@pytest.mark.parametrize(("name", "refine"), [*((name, 1) for name in NETWORKS), ("dense", 2)])
def test_every_radius_was_certified_in_float64(name: str, refine: int, passes: Passes) -> None:
    network, options = NETWORKS[name], Options(refine=refine)
    x = points(4, network.n_in, 3)
    found = certified_radius(network, x, search=SINGLE, options=options)
    assert {dtype for _, dtype in passes.kinds} == {torch.float64}
    assert all(asked is network for asked, _ in passes.kinds)
    known = found.radius.isfinite()
    assert bool(((found.radius > 0) & (found.radius < 5)).any())
    balls = Box.ball(x, found.radius.nan_to_num(0.0))
    assert all(ends(balls, i) in passes.certified for i in known.nonzero()[:, 0].tolist())


def test_every_answer_on_the_way_was_certified_in_float64(passes: Passes) -> None:
    """An interruption or the end of the time may leave any of them."""
    network, x = NETWORKS["dense"], points(2, 4, 3)
    answers = list(better_radii(network, x, search=SINGLE, options=Options(refine=2)))
    assert len(answers) > 3
    for found in answers:
        balls = Box.ball(x, found.radius)
        assert all(ends(balls, i) in passes.certified for i in range(2))


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_as_fine_as_a_search_in_float64(name: str) -> None:
    """Either ends within the tolerance of where the bound by one pass changes its sign."""
    network = NETWORKS[name]
    x = points(4, network.n_in, 3)
    found, wide = (certified_radius(network, x, search=search).radius for search in (SINGLE, DOUBLE))
    known = found.isfinite()
    assert torch.equal(known, wide.isfinite())
    assert bool((found[known] <= 1.0101 * wide[known]).all())
    assert bool((wide[known] <= 1.0101 * found[known]).all())


@pytest.mark.parametrize("name", NETWORKS)
def test_good_guesses_leave_two_passes_to_float64(name: str, passes: Passes) -> None:
    network = NETWORKS[name]
    x = points(5, network.n_in, 3)
    label = labels_of(network, x, None, None)
    certified_radius(network, x, label, search=SINGLE)
    guided = len(passes.kinds)
    certified_radius(network, x, label, search=DOUBLE)
    assert guided <= 3 < len(passes.kinds) - guided


def scaled(factor: float) -> Callable[..., Tensor]:
    """Guesses that take the balls for others of ``factor`` times their radius."""

    def guess(self: Likeness, box: Box, rows: Tensor, label: Tensor, options: Options) -> Tensor:
        half = 0.5 * factor * (box.upper - box.lower)
        return bound_rows(exact_case()[0], Box(box.centre - half, box.centre + half), rows, label, options)

    return guess


def always(value: float) -> Callable[..., Tensor]:
    return lambda self, box, rows, label, options: torch.full_like(rows[..., 0], value)


def at_random(self: Likeness, box: Box, rows: Tensor, label: Tensor, options: Options) -> Tensor:
    return torch.randn(rows.shape[:2], generator=torch.Generator().manual_seed(len(rows)), dtype=torch.float64)


WRONG = {
    "no number": always(math.nan),
    "all is well": always(1.0),
    "all is infinitely well": always(math.inf),
    "nothing holds": always(-1.0),
    "nothing is known": always(-math.inf),
    "far too large": scaled(0.1),
    "far too small": scaled(10.0),
    "a little too large": scaled(0.995),
    "a little too small": scaled(1.005),
    "random": at_random,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_guesses_cost_time_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x, label, exact = exact_case()
    monkeypatch.setattr(Likeness, "guess_rows", WRONG[name])
    found = certified_radius(network, x, label, search=Search(upper=20.0, attack=False, precision="float32"))
    expect_exact(found, exact)


@pytest.mark.parametrize("error", [RuntimeError("Float and Double"), InputError("too large"), OverflowError("")])
def test_a_pass_that_fails_in_float32_is_no_guess(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Tensor:
        raise error

    network, x, label, exact = exact_case()
    monkeypatch.setattr(bnndp.single, "bound_rows", failing)
    expect_exact(
        certified_radius(network, x, label, search=Search(upper=20.0, attack=False, precision="float32")), exact
    )


def test_margins_that_float32_does_not_see() -> None:
    """1e-3 - 1e-9 r is a constant in float32, which holds at any radius; it ends at 1e6."""
    network = linear(torch.tensor([[1.0], [1.0 + 1e-9]], dtype=torch.float64), torch.tensor([1e-3, 0.0]))
    x, search = torch.zeros(1, 1), Search(upper=1e7, attack=False, precision="float32")
    exact = exact_radius(network, x.double(), torch.tensor([0]))
    assert exact.item() == pytest.approx(1e6, rel=1e-6)
    rows = torch.tensor([[[1.0, -1.0]]], dtype=torch.float64)
    far = Likeness.of(network).guess_rows(Box.ball(x, 9e6), rows, torch.tensor([0]), Options())
    assert far.item() > 0
    found = certified_radius(network, x, 0, search=search).radius
    assert exact.item() / 1.011 <= found.item() <= exact.item()


def test_an_interrupt_in_a_guess_leaves_what_was_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = NETWORKS["dense"], points(4, 4, 3)
    first = certified_radius(network, x, search=SINGLE)
    true = Likeness.guess_rows

    def interrupted(self: Likeness, box: Box, rows: Tensor, label: Tensor, options: Options) -> Tensor:
        if options.refine > 1:
            raise KeyboardInterrupt
        return true(self, box, rows, label, options)

    monkeypatch.setattr(Likeness, "guess_rows", interrupted)
    with pytest.warns(RuntimeWarning, match="interrupted"):
        found = certified_radius(network, x, search=SINGLE, options=Options(refine=2))
    assert torch.equal(found.radius, first.radius)


def test_an_interrupt_before_anything_is_proved_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(bnndp.single, "bound_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        certified_radius(NETWORKS["dense"], points(4, 4, 3), search=SINGLE)


def test_an_evaluation_takes_the_same_search() -> None:
    network, x, label, exact = exact_case()
    found = evaluate(network, x, label, search=Search(upper=20.0, attack=False, precision="float32"))
    assert bool((found.radius[:-1] <= exact[:-1] * (1 + 1e-9)).all())
    assert found.radius.dtype == torch.float64


@pytest.mark.parametrize("precision", ["float16", "tf32", "", None])
def test_other_precisions_are_refused(precision: Any) -> None:
    with pytest.raises(InputError, match="precision must be one of float64, float32"):
        Search(precision=precision)
