"""Levels of effort: what they stand for, that none is worse than a lower one, and that the work may stop anywhere."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support.classifiers import classifier, sampled_softmax
from support.dice import Dice
from support.networks import make_network
from tests.marks import slow_but

from bnndp.attack import decision_rows
from bnndp.attack.sampling import draw_noise, estimate
from bnndp.deadline import NEVER, Deadline
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.options import LEVELS, Options
from bnndp.questions import mean as mean_module
from bnndp.questions import radius as radius_module
from bnndp.questions.certify import better_bounds, certify
from bnndp.questions.decision import robust_decision
from bnndp.questions.radius import Radius, Search, better_radii, certified_radius
from bnndp.questions.robustness import adversarial_robustness
from bnndp.questions.softmax import bound_rows
from bnndp.questions.verdict import Verdict
from bnndp.tighten.effort import last, stages


def points(count: int, n: int, seed: int = 0) -> torch.Tensor:
    return Dice(seed).normal(count, n)


class TestStages:
    @pytest.mark.parametrize("task", ["regression", "classification"])
    @pytest.mark.parametrize("n_in", [1, 8, 9, 784])
    @pytest.mark.parametrize("depth", [0, 2, 3])
    def test_low_is_one_pass_and_each_level_goes_through_the_lower_ones(self, task: str, n_in: int, depth: int) -> None:
        (only,) = stages(Options(), task, n_in, depth)
        assert (only.level, only.options) == ("low", Options())
        found = stages(Options(effort="high"), task, n_in, depth)
        below = stages(Options(effort="medium"), task, n_in, depth)
        assert [stage.level for stage in below] == list(LEVELS[:2])
        if task == "classification" and n_in > 8:  # its cells are the first of those of the level above
            assert [stage.level for stage in found] == ["low", "high"]
            assert found[1].options.branch > below[1].options.branch
        else:
            assert [stage.level for stage in found] == list(LEVELS)
            assert found[:2] == below
        assert all(stage.options.effort == "low" for stage in found)  # plain options: nothing is gone through twice

    def test_what_the_user_chose_wins(self) -> None:
        plan = stages(Options(effort="high", branch=3, method="best", memory=2**21), "classification", 784, 3)
        assert [(stage.level, stage.options.branch) for stage in plan] == [("low", 1), ("low", 3), ("high", 3)]
        assert {(stage.options.method, stage.options.memory) for stage in plan} == {("best", 2**21)}

    def test_a_default_that_is_given_wins_too(self) -> None:
        usual = stages(Options(effort="high", refine=1), "regression", 2, 1)
        assert [stage.options.refine for stage in usual] == [1, 6, 48]
        (only,) = stages(Options.of("high", refine=1), "regression", 2, 1)
        assert (only.level, only.options.refine) == ("high", 1)

    def test_deep_classifiers_take_the_better_of_both_methods(self) -> None:
        for depth, method in ((2, "auto"), (3, "best")):
            plan = stages(Options(effort="medium"), "classification", 784, depth)
            assert [stage.options.method for stage in plan] == ["auto", method]
        plan = stages(Options.of("medium", method="auto"), "classification", 784, 3)
        assert {stage.options.method for stage in plan} == {"auto"}

    def test_explicit_options_without_an_effort_come_after_one_pass(self) -> None:
        plan = stages(Options(refine=5, optimise=2), "regression", 2, 1)
        assert [(stage.options.refine, stage.options.optimise) for stage in plan] == [(1, 0), (5, 2)]
        assert {stage.level for stage in plan} == {"low"}


def answers(*values: Any) -> Iterator[Any]:
    """These, an exception by being raised."""
    for value in values:
        if isinstance(value, BaseException):
            raise value
        yield value


class TestLast:
    @pytest.mark.parametrize(("limit", "answer"), [(1e-9, 1), (1.5, 2), (2.5, 3), (99.0, 5), (None, 5)])
    def test_the_clock_stops_it(self, monkeypatch: pytest.MonkeyPatch, limit: float | None, answer: int) -> None:
        """A clock that moves by one second a look."""
        seconds = itertools.count()
        monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
        assert last(answers(1, 2, 3, 4, 5), Deadline.after(limit)) == answer

    def test_an_interruption_keeps_what_was_reached(self) -> None:
        with pytest.warns(RuntimeWarning, match="interrupted"):
            assert last(answers(1, 2, KeyboardInterrupt()), NEVER) == 2

    @pytest.mark.parametrize("values", [(KeyboardInterrupt(),), (1, InputError("No bound for box 0."))])
    def test_neither_nothing_nor_an_error_is_an_answer(self, values: tuple[Any, ...]) -> None:
        with pytest.raises(type(values[-1])):
            last(answers(*values), NEVER)


class TestRegression:
    @pytest.mark.parametrize("seed", slow_but(range(3), 0))
    @pytest.mark.parametrize("sizes", [(1, 8, 1), (2, 10, 2), (3, 6, 6, 1), (2, 5, 5, 5, 1), (2, 1)])
    def test_no_level_is_worse_than_a_lower_one_and_all_hold(self, sizes: tuple[int, ...], seed: int) -> None:
        network, box = make_network(sizes, seed), Box.ball(points(3, sizes[0], seed), 0.2)
        found = [certify(network, box, Options(effort=level)) for level in LEVELS]
        blur = 1e-13 * (1 + found[0].upper.abs().amax())  # another batch may round otherwise
        for worse, better in itertools.pairwise(found):
            assert bool((better.lower >= worse.lower - blur).all() & (better.upper <= worse.upper + blur).all())
            assert len(sizes) != 3 or float(better.width.mean()) < float(worse.width.mean())
        noise = draw_noise(network, 4096, seed=seed)
        for share in torch.linspace(0, 1, 5, dtype=torch.float64):
            at = estimate(network, box.lower + share * (box.upper - box.lower), noise)
            error = 5 * at.std_error + 1e-12
            assert bool((found[-1].lower <= at.mean + error).all() & (found[-1].upper >= at.mean - error).all())

    def test_every_answer_on_the_way_is_better(self) -> None:
        network, box = make_network((2, 12, 1), 1), Box.ball(points(4, 2), 0.3)
        found = list(better_bounds(network, box, Options(effort="high")))
        assert len(found) > 4
        for worse, better in itertools.pairwise(found):
            assert bool((better.lower >= worse.lower).all() & (better.upper <= worse.upper).all())

    def test_it_may_be_interrupted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        network, box = make_network((2, 12, 1), 1), Box.ball(points(4, 2), 0.3)
        low, high = certify(network, box), certify(network, box, Options(effort="high"))
        interrupt(monkeypatch, mean_module, "one_pass", lambda *_: True)
        with pytest.warns(RuntimeWarning, match="interrupted"):
            found = certify(network, box, Options(effort="high"))
        assert bool((high.width <= found.width).all())
        assert float(found.width.mean()) < float(low.width.mean())

    def test_robustness_takes_a_level(self) -> None:
        network, x = make_network((2, 12, 1), 1), points(4, 2)
        region = Box.ball(x, 0.3)
        found = [adversarial_robustness(network, x, region, 0.1, options=Options(effort=level)) for level in LEVELS]
        for worse, better in itertools.pairwise(found):
            assert bool((better.change <= worse.change * (1 + 1e-12)).all())


def interrupt(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, counts: Any) -> None:
    """Ctrl-C at the fourth call of a function that counts."""
    calls, real = itertools.count(1), getattr(module, name)

    def interrupted(*arguments: Any) -> Any:
        if counts(*arguments) and next(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module, name, interrupted)


MODEL = classifier((2, 8, 3), 6, std=0.1, gain=2.0)


@pytest.fixture(scope="module")
def low() -> Radius:
    return certified_radius(MODEL, points(1, 2, 4))


class TestClassification:
    @pytest.mark.parametrize(
        ("sizes", "std"),
        [((2, 8, 3), 0.1), ((10, 8, 3), 0.02), pytest.param((9, 6, 6, 6, 3), 0.02, marks=pytest.mark.slow)],
    )
    def test_no_level_is_worse_than_a_lower_one_and_all_hold(self, sizes: tuple[int, ...], std: float) -> None:
        network, x = classifier(sizes, 5, std=std, gain=2.0), points(5, sizes[0], 3)
        box = Box.ball(x, 0.15)
        found = [certify(network, box, Options(effort=level)) for level in LEVELS]
        for worse, better in itertools.pairwise(found):
            assert bool((better.lower >= worse.lower).all() & (better.upper <= worse.upper).all())
        for share in (0.0, 0.5, 1.0):
            mean, error = sampled_softmax(network, box.lower + share * (box.upper - box.lower), 5000, seed=1)
            slack = 5 * error + 1e-9
            assert bool((found[-1].lower <= mean + slack).all() & (found[-1].upper >= mean - slack).all())

    @pytest.mark.parametrize(
        ("sizes", "std"), [((2, 8, 3), 0.1), pytest.param((10, 8, 3), 0.02, marks=pytest.mark.slow)]
    )
    def test_no_radius_is_smaller_than_that_of_a_lower_level(self, sizes: tuple[int, ...], std: float) -> None:
        network, x = classifier(sizes, 6, std=std, gain=2.0), points(2, sizes[0], 4)
        coarse = Search(tolerance=0.1, attack=False)
        found = [certified_radius(network, x, search=coarse, options=Options(effort=level)) for level in LEVELS]
        radii = [each.radius.nan_to_num(0) for each in found]
        assert all(bool((better >= worse).all()) for worse, better in itertools.pairwise(radii))
        assert float(radii[1].mean()) > 1.01 * float(radii[0].mean())

    @pytest.mark.parametrize("sizes", [(2, 8, 3), (10, 8, 3)])
    def test_a_radius_is_one_that_the_bounds_certify(self, sizes: tuple[int, ...]) -> None:
        network, x = classifier(sizes, 6, std=0.02, gain=2.0), points(2, sizes[0], 4)
        options = Options(effort="medium")
        found = certified_radius(network, x, search=Search(attack=False, tolerance=0.1), options=options)
        at = found.radius.isfinite()
        rows = decision_rows(found.label, 3)[0]
        with torch.no_grad():
            bound = bound_rows(network, Box.ball(x[at], found.radius[at]), rows[at], found.label[at], options)
        assert bool((bound > 0).all())

    def test_verdicts_only_become_certain(self) -> None:
        x = points(12, 2, 5)
        box = Box.ball(x, 0.45)
        found = [robust_decision(MODEL, x, box, options=Options(effort=level)) for level in LEVELS]
        proved = [sum(verdict is Verdict.CERTIFIED for verdict in answer.verdict) for answer in found]
        assert proved[0] < proved[2]
        for worse, better in itertools.pairwise(found):
            assert bool((better.bound >= worse.bound).all())
            for old, new in zip(worse.verdict, better.verdict, strict=True):
                assert new is old or old is Verdict.UNDECIDED

    def test_a_search_may_be_interrupted(self, low: Radius, monkeypatch: pytest.MonkeyPatch) -> None:
        interrupt(monkeypatch, radius_module, "bound_rows", lambda *arguments: arguments[-1].refine > 1)
        with pytest.warns(RuntimeWarning, match="interrupted"):
            found = certified_radius(MODEL, points(1, 2, 4), options=Options(effort="high"))
        assert bool((found.radius.nan_to_num(-1) >= low.radius.nan_to_num(-1)).all())
        assert torch.equal(found.attack, low.attack)

    def test_a_search_goes_on_from_an_earlier_answer_and_below_its_attack(
        self, low: Radius, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spy = Mock(wraps=Box.ball)
        monkeypatch.setattr(Box, "ball", spy)
        first, *others = better_radii(MODEL, points(1, 2, 4), known=low, options=Options(effort="medium"))
        tried = [call.args[1] for call in spy.call_args_list if isinstance(call.args[1], torch.Tensor)]
        assert first is low
        assert others
        assert all(bool((radii <= low.attack.max()).all()) for radii in tried)
        assert min(float(radii.min()) for radii in tried) >= float(low.radius.nan_to_num(0).min())

    def test_where_nothing_is_certified_nothing_is_by_any_level(self, low: Radius) -> None:
        """Of numbers at the end of the range; and where an attack succeeds at the input, the search ends."""
        wild, high = classifier((2, 8, 3), 6, std=1e9, gain=2.0), Options(effort="high")
        found = certified_radius(wild, points(3, 2, 4), 0, search=Search(attack=False), options=high)
        assert bool(found.radius.isnan().all())
        broken = Radius(low.label, low.radius * torch.nan, torch.zeros_like(low.radius), points(1, 2, 4))
        *_, found = better_radii(MODEL, points(1, 2, 4), known=broken, options=Options(effort="medium"))
        assert bool(found.radius.isnan().all())
