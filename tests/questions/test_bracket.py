"""Brackets of the largest radius with a positive bound: what they say is what the trials found, and few are needed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from bnndp.questions.bracket import Bracket

F64 = torch.float64
TOLERANCE = 0.01


def narrowed(
    value_at: Callable[[Tensor, Tensor], Tensor], state: Bracket, upper: float, tolerance: float
) -> Iterator[Bracket]:
    """The search of a radius: the brackets after every trial."""
    yield state
    for index in itertools.count():
        at, radii = state.next(upper, tolerance, index)
        if at.numel() == 0:
            return
        state = state.told(at, radii, value_at(radii, at))
        yield state


class Recorder:
    """A value function of the radius alone that remembers what it was asked."""

    def __init__(self, value: Callable[[Tensor], Tensor]) -> None:
        self.value = value
        self.asked: dict[int, list[tuple[float, float]]] = {}

    def __call__(self, radius: Tensor, at: Tensor) -> Tensor:
        found = self.value(radius)
        for i, r, v in zip(at.tolist(), radius.tolist(), found.tolist(), strict=True):
            self.asked.setdefault(i, []).append((r, v))
        return found

    def certified(self, i: int) -> set[float]:
        return {r for r, v in self.asked.get(i, []) if v > 0}


def searched(value: Recorder, start: Tensor, upper: float = 1.0) -> Bracket:
    *_, state = narrowed(value, Bracket.empty(start), upper, TOLERANCE)
    return state


def lead(root: float, steep: float) -> Callable[[Tensor], Tensor]:
    """About how bounds of a lead fall with the radius: log odds along a line, without end below zero."""
    return lambda r: torch.where(r < root, torch.tanh(0.5 * steep * (1 - r / root)), steep * (1 - r / root))


def bent(steep: float) -> Callable[[Tensor], Tensor]:
    """A lead that bends a little more, with its root at 0.04."""
    return lambda r: lead(1.0, steep)((r / 0.04) ** 1.2)


SMOOTH = [lead(0.04, 16.0), lead(0.04, 60.0), lead(0.3, 4.0), lambda r: 0.04 - r, lambda r: 1 - (r / 0.04) ** 3]
ROOTS = [0.04, 0.04, 0.3, 0.04, 0.04]


@pytest.mark.parametrize("which", range(len(SMOOTH)))
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 1.0, 1.3, 2.0, 20.0, math.nan])
def test_a_root_is_found_within_the_tolerance(which: int, share: float) -> None:
    value, root = Recorder(SMOOTH[which]), ROOTS[which]
    state = searched(value, torch.tensor([share * root], dtype=F64))
    assert state.low.item() in value.certified(0)
    assert root / (1 + TOLERANCE) <= state.low.item() < root <= state.high.item()
    assert state.high.item() - state.low.item() <= TOLERANCE * state.low.item()


def test_few_trials_are_needed_from_a_good_start() -> None:
    """As for MNIST: starts between 0.6 and 1.3 of the radius, log odds that bend a little."""
    counts = []
    for steep in (12.0, 20.0, 35.0):
        for share in torch.linspace(0.6, 1.3, 8, dtype=F64):
            value = Recorder(bent(steep))
            searched(value, (0.04 * share)[None])
            counts.append(len(value.asked[0]))
    assert sum(counts) / len(counts) <= 5.5
    assert max(counts) <= 9


@pytest.mark.parametrize("number", [math.nan, -math.inf, 0.0, -1e300])
def test_nothing_is_certified_without_a_positive_bound(number: float) -> None:
    value = Recorder(lambda r: torch.full_like(r, number))
    state = searched(value, torch.tensor([0.0, 0.03, 5.0], dtype=F64))
    assert state.radius.isnan().all()
    assert all(value.asked[i][-1][0] == 0 for i in range(3))  # the input itself was tried
    assert all(len(value.asked[i]) <= 20 for i in range(3))


@pytest.mark.parametrize("number", [1e-300, 0.5, 1.0, 7.0, math.inf])
def test_what_always_holds_is_certified_up_to_the_largest_radius(number: float) -> None:
    value = Recorder(lambda r: torch.full_like(r, number))
    state = searched(value, torch.tensor([0.0, 1e-5, 0.03, 5.0], dtype=F64), upper=0.7)
    assert (state.radius == 0.7).all()
    assert max(r for asked in value.asked.values() for r, _ in asked) == 0.7


@pytest.mark.parametrize("seed", range(20))
def test_of_wild_bounds_only_what_was_positive_is_certified(seed: int) -> None:
    """Bounds that jump, are NaN or positive again further out: the radius was positive, the other end was not."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(1000, generator=generator, dtype=F64)
    table[torch.rand(1000, generator=generator) < 0.1] = math.nan
    value = Recorder(lambda r: table[(r * 7919).long() % 1000])
    state = searched(value, torch.rand(8, generator=generator, dtype=F64) * 0.5)
    for i in range(8):
        low, high = state.low[i].item(), state.high[i].item()
        assert low == -1 or low in value.certified(i)
        assert high == math.inf or (high in {r for r, _ in value.asked[i]} and high not in value.certified(i))
        assert low < high


def test_a_search_that_goes_on_keeps_what_is_certified_and_stays_below_the_attack() -> None:
    value = Recorder(lead(0.05, 16.0))
    state = Bracket.again(torch.tensor([0.04, 0.0, math.nan, 0.04], dtype=F64), torch.tensor([0.06, 0.06, 0.06, 0.04]))
    *_, state = narrowed(value, state, 1.0, TOLERANCE)
    assert (state.radius[:3] > 0.05 / 1.011).all()
    assert state.radius[3] == 0.04
    assert 3 not in value.asked
    assert all(0.04 < r < 0.06 for r, _ in value.asked[0])


def test_an_input_that_is_broken_at_once_is_left_alone() -> None:
    value = Recorder(lead(0.05, 16.0))
    *_, state = narrowed(value, Bracket.again(torch.tensor([math.nan]), torch.tensor([0.0])), 1.0, TOLERANCE)
    assert state.radius.isnan().all()
    assert not value.asked


def test_a_better_bound_goes_on_from_where_a_weaker_one_failed() -> None:
    """Good at the upper end: searched on from there; bad, or not asked about: what was known stays."""
    weak, strong = lead(0.04, 16.0), lead(0.09, 16.0)
    state = searched(Recorder(weak), torch.full((3,), 0.03, dtype=F64))
    value = torch.tensor([float(strong(state.high[:1])), -0.1, 0.5], dtype=F64)
    again = state.again_at(value, torch.tensor([True, True, False]))
    assert again.low.tolist() == [state.high[0].item(), state.low[1].item(), state.low[2].item()]
    assert again.high.tolist() == [math.inf, state.high[1].item(), state.high[2].item()]
    assert again.open(1.0, TOLERANCE).tolist() == [True, False, False]
    recorder = Recorder(strong)
    *_, found = narrowed(recorder, again, 1.0, TOLERANCE)
    assert set(recorder.asked) == {0}
    assert len(recorder.asked[0]) <= 8
    assert 0.09 / (1 + TOLERANCE) <= found.low[0].item() <= 0.09
    assert found.low[0].item() in recorder.certified(0)
