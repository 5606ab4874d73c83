"""Levels of effort: what they stand for, that none is worse than a lower one, and that the work may stop anywhere."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.classifiers import classifier, sampled_softmax

from bnndp.attack import decision_rows
from bnndp.attack.sampling import draw_noise, estimate
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.options import LEVELS, Options
from bnndp.questions import radius as radius_module
from bnndp.questions.certify import adversarial_robustness, better_bounds, certify
from bnndp.questions.decision import robust_decision
from bnndp.questions.evaluate import evaluate
from bnndp.questions.radius import Radius, Search, better_radii, certified_radius
from bnndp.questions.softmax import bound_rows
from bnndp.questions.verdict import Verdict
from bnndp.tighten.effort import last, stages


def points(count: int, n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestStages:
    @pytest.mark.parametrize("task", ["regression", "classification"])
    @pytest.mark.parametrize("n_in", [1, 8, 9, 784])
    @pytest.mark.parametrize("depth", [0, 2, 3])
    def test_low_is_one_pass_and_each_level_goes_through_the_lower_ones(self, task: str, n_in: int, depth: int) -> None:
        (only,) = stages(Options(), task, n_in, depth)
        assert (only.level, only.options) == ("low", Options())
        found = stages(Options(effort="high"), task, n_in, depth)
        assert [stage.level for stage in found] == list(LEVELS)
        assert found[:2] == stages(Options(effort="medium"), task, n_in, depth)
        assert all(stage.options.effort == "low" for stage in found)  # plain options: nothing is gone through twice

    def test_what_the_user_chose_wins(self) -> None:
        plan = stages(Options(effort="high", branch=3, method="best", memory=2**21), "classification", 784, 3)
        assert [(stage.level, stage.options.branch) for stage in plan] == [("low", 1), ("low", 3), ("high", 3)]
        assert {(stage.options.method, stage.options.memory) for stage in plan} == {("best", 2**21)}

    def test_a_default_that_is_given_wins_too(self) -> None:
        assert [stage.options.refine for stage in stages(Options(effort="high", refine=1), "regression", 2, 1)] == [
            1,
            6,
            48,
        ]
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

    def test_refusals(self) -> None:
        with pytest.raises(InputError, match="effort must be one of low, medium, high, got 'huge'"):
            Options(effort="huge")
        with pytest.raises(InputError, match="fixed names the option 'cels'"):
            Options(fixed=frozenset({"cels"}))
        with pytest.raises(TypeError, match="cels"):
            Options.of("high", cels=3)
        with pytest.raises(InputError, match=r"refine .*>= 1, got 0"):
            Options.of("high", refine=0)


class TestLast:
    def test_without_a_limit_it_is_the_last(self) -> None:
        assert last(iter([1, 2, 3])) == 3

    @pytest.mark.parametrize(("limit", "answer"), [(1e-9, 1), (1.5, 2), (2.5, 3), (99.0, 5)])
    def test_the_clock_stops_it(self, monkeypatch: pytest.MonkeyPatch, limit: float, answer: int) -> None:
        """A clock that moves by one second a look."""
        seconds = itertools.count()
        monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
        assert last(iter([1, 2, 3, 4, 5]), limit) == answer

    def test_an_interruption_keeps_what_was_reached(self) -> None:
        def answers() -> Iterator[int]:
            yield 1
            yield 2
            raise KeyboardInterrupt

        with pytest.warns(RuntimeWarning, match="interrupted"):
            assert last(answers()) == 2

    def test_before_the_first_answer_an_interruption_is_one(self) -> None:
        def answers() -> Iterator[int]:
            raise KeyboardInterrupt
            yield 1

        with pytest.raises(KeyboardInterrupt):
            last(answers())

    def test_an_error_is_not_an_answer(self) -> None:
        def answers() -> Iterator[int]:
            yield 1
            raise InputError("No bound for box 0.")

        with pytest.raises(InputError):
            last(answers())


class TestRegression:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("sizes", [(1, 8, 1), (2, 10, 2), (3, 6, 6, 1), (2, 5, 5, 5, 1), (2, 1)])
    def test_no_level_is_worse_than_a_lower_one_and_all_hold(
        self, random_network: Any, sizes: tuple[int, ...], seed: int
    ) -> None:
        network, box = random_network(sizes, seed), Box.ball(points(3, sizes[0], seed), 0.2)
        low, medium, high = (certify(network, box, Options(effort=level)) for level in LEVELS)
        blur = 1e-13 * (1 + low.upper.abs().amax())  # another batch may round otherwise
        for better, worse in ((medium, low), (high, medium)):
            assert bool((better.lower >= worse.lower - blur).all())
            assert bool((better.upper <= worse.upper + blur).all())
        if len(sizes) == 3:
            assert float(high.width.mean()) < float(medium.width.mean()) < float(low.width.mean())
        noise = draw_noise(network, 4096, seed=seed)
        for share in torch.linspace(0, 1, 5, dtype=torch.float64):
            found = estimate(network, box.lower + share * (box.upper - box.lower), noise)
            assert bool((high.lower <= found.mean + 5 * found.std_error + 1e-12).all())
            assert bool((high.upper >= found.mean - 5 * found.std_error - 1e-12).all())

    def test_every_answer_on_the_way_is_better(self, random_network: Any) -> None:
        network, box = random_network((2, 12, 1), 1), Box.ball(points(4, 2), 0.3)
        answers = list(better_bounds(network, box, Options(effort="high")))
        assert len(answers) > 4
        for worse, better in itertools.pairwise(answers):
            assert bool((better.lower >= worse.lower).all())
            assert bool((better.upper <= worse.upper).all())

    def test_hardly_any_time_gives_the_low_answer(self, random_network: Any) -> None:
        network, box = random_network((2, 12, 1), 1), Box.ball(points(4, 2), 0.3)
        low, found = certify(network, box), certify(network, box, Options(effort="high", time_limit=1e-9))
        assert torch.equal(low.lower, found.lower)
        assert torch.equal(low.upper, found.upper)

    def test_it_may_be_interrupted(self, random_network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        network, box = random_network((2, 12, 1), 1), Box.ball(points(4, 2), 0.3)
        calls: list[int] = []
        from bnndp.tighten import refinement as refine

        real = refine.one_pass

        def interrupted(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return real(*arguments)

        monkeypatch.setattr(refine, "one_pass", interrupted)
        with pytest.warns(RuntimeWarning, match="interrupted"):
            found = certify(network, box, Options(effort="high"))
        low, high = certify(network, box), certify(network, box, Options(effort="high"))
        assert bool((high.width <= found.width).all())
        assert float(found.width.mean()) < float(low.width.mean())

    def test_robustness_takes_a_level(self, random_network: Any) -> None:
        network, x = random_network((2, 12, 1), 1), points(4, 2)
        found = [
            adversarial_robustness(network, x, Box.ball(x, 0.3), 0.1, options=Options(effort=level)) for level in LEVELS
        ]
        for worse, better in itertools.pairwise(found):
            assert bool((better.change <= worse.change * (1 + 1e-12)).all())


class TestClassification:
    @pytest.mark.parametrize(
        ("sizes", "std"), [((2, 8, 3), 0.1), ((2, 6, 6, 2), 0.05), ((10, 8, 3), 0.02), ((9, 6, 6, 6, 3), 0.02)]
    )
    def test_no_level_is_worse_than_a_lower_one_and_all_hold(self, sizes: tuple[int, ...], std: float) -> None:
        network, x = classifier(sizes, 5, std=std, gain=2.0), points(5, sizes[0], 3)
        box = Box.ball(x, 0.15)
        found = [certify(network, box, Options(effort=level)) for level in LEVELS]
        for worse, better in itertools.pairwise(found):
            assert bool((better.lower >= worse.lower).all())
            assert bool((better.upper <= worse.upper).all())
        for share in (0.0, 0.5, 1.0):
            mean, error = sampled_softmax(network, box.lower + share * (box.upper - box.lower), 5000, seed=1)
            assert bool((found[-1].lower <= mean + 5 * error + 1e-9).all())
            assert bool((found[-1].upper >= mean - 5 * error - 1e-9).all())

    @pytest.mark.parametrize(("sizes", "std"), [((2, 8, 3), 0.1), ((10, 8, 3), 0.02)])
    def test_no_radius_is_smaller_than_that_of_a_lower_level(self, sizes: tuple[int, ...], std: float) -> None:
        network, x = classifier(sizes, 6, std=std, gain=2.0), points(2, sizes[0], 4)
        coarse = Search(tolerance=0.05)
        low, medium, high = (
            certified_radius(network, x, search=coarse, options=Options(effort=level)) for level in LEVELS
        )
        for worse, better in ((low, medium), (medium, high)):
            assert torch.equal(worse.attack, better.attack)
            assert bool((better.radius.nan_to_num(-1) >= worse.radius.nan_to_num(-1)).all())
        assert float(medium.radius.nan_to_num(0).mean()) > 1.01 * float(low.radius.nan_to_num(0).mean())
        assert bool((high.radius.nan_to_num(0) <= high.attack).all())

    @pytest.mark.parametrize("sizes", [(2, 8, 3), (10, 8, 3)])
    def test_a_radius_is_one_that_the_bounds_certify(self, sizes: tuple[int, ...]) -> None:
        network, x = classifier(sizes, 6, std=0.02, gain=2.0), points(3, sizes[0], 4)
        options = Options(effort="medium")
        found = certified_radius(network, x, search=Search(attack=False), options=options)
        at = found.radius.isfinite()
        rows = decision_rows(found.label, 3)[0]
        with torch.no_grad():
            bound = bound_rows(network, Box.ball(x[at], found.radius[at]), rows[at], found.label[at], options)
        assert bool((bound > 0).all())

    def test_verdicts_only_become_certain(self) -> None:
        network, x = classifier((2, 8, 3), 6, std=0.1, gain=2.0), points(12, 2, 5)
        box = Box.ball(x, 0.45)
        found = [robust_decision(network, x, box, options=Options(effort=level)) for level in LEVELS]
        proved = [sum(verdict is Verdict.CERTIFIED for verdict in answer.verdict) for answer in found]
        assert proved[0] < proved[2]
        for worse, better in itertools.pairwise(found):
            assert bool((better.bound >= worse.bound).all())
            for old, new in zip(worse.verdict, better.verdict, strict=True):
                assert new is old or old is Verdict.UNDECIDED

    def test_hardly_any_time_gives_the_low_answer(self) -> None:
        network, x = classifier((2, 8, 3), 6, std=0.1, gain=2.0), points(6, 2, 4)
        hurried = Options(effort="high", time_limit=1e-9)
        search = Search(attack=False)
        low, found = (certified_radius(network, x, search=search, options=options) for options in (None, hurried))
        assert torch.equal(low.radius.nan_to_num(-1), found.radius.nan_to_num(-1))
        curves = [evaluate(network, x, search=search, options=o).curve([0.05, 0.1]) for o in (None, hurried)]
        assert curves[0] == curves[1]
        box = Box.ball(x, 0.1)
        once, soon = certify(network, box), certify(network, box, hurried)
        assert torch.equal(once.lower, soon.lower)

    def test_a_search_may_be_interrupted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        network, x = classifier((2, 8, 3), 6, std=0.1, gain=2.0), points(2, 2, 4)
        low = certified_radius(network, x)
        real = radius_module.bound_rows
        calls: list[int] = []

        def interrupted(*arguments: Any) -> Any:
            if arguments[-1].refine > 1:
                calls.append(1)
                if len(calls) == 3:
                    raise KeyboardInterrupt
            return real(*arguments)

        monkeypatch.setattr(radius_module, "bound_rows", interrupted)
        with pytest.warns(RuntimeWarning, match="interrupted"):
            found = certified_radius(network, x, options=Options(effort="high"))
        assert bool((found.radius.nan_to_num(-1) >= low.radius.nan_to_num(-1)).all())
        assert torch.equal(found.attack, low.attack)

    def test_a_search_goes_on_from_an_earlier_answer_and_below_its_attack(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        network, x = classifier((2, 8, 3), 6, std=0.1, gain=2.0), points(2, 2, 4)
        low = certified_radius(network, x)
        tried: list[torch.Tensor] = []
        real = radius_module.Box.ball

        def spy(centre: Any, eps: Any, **others: Any) -> Any:
            if isinstance(eps, torch.Tensor):
                tried.append(eps)
            return real(centre, eps, **others)

        monkeypatch.setattr(radius_module.Box, "ball", spy)
        first, *others = better_radii(network, x, known=low, options=Options(effort="medium"))
        assert first is low
        assert others
        assert all(bool((radii <= low.attack.max()).all()) for radii in tried)
        assert min(float(radii.min()) for radii in tried) >= float(low.radius.nan_to_num(0).min())

    def test_where_nothing_is_certified_nothing_is_by_any_level(self) -> None:
        network = classifier((2, 8, 3), 6, std=1e160, gain=2.0)
        x = points(3, 2, 4)
        found = certified_radius(network, x, 0, search=Search(attack=False), options=Options(effort="high"))
        assert bool(found.radius.isnan().all())

    def test_an_attack_that_succeeds_at_the_input_ends_the_search(self) -> None:
        network, x = classifier((2, 8, 3), 6, std=0.1, gain=2.0), points(2, 2, 4)
        low = certified_radius(network, x)
        broken = Radius(low.label, low.radius * torch.nan, torch.zeros_like(low.radius), x)
        *_, found = better_radii(network, x, known=broken, options=Options(effort="medium"))
        assert bool(found.radius.isnan().all())
