"""One knob for cost against tightness: which options a level of effort stands for, and when to stop.

A level is gone through in stages, low to high. What a stage finds is joined with what was known before, so a higher
level never gives a worse bound, and every answer on the way is a valid one: the work may stop at any time
(docs/effort.md has the measurements behind the numbers here).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bnndp.deadline import Deadline
from bnndp.options import LEVELS, Options

Answer = TypeVar("Answer")

_ONE_PASS: dict[str, Any] = {"refine": 1, "optimise": 0, "branch": 1}
_FEW_INPUTS = 8  # classifiers with at most this many inputs are split into cells of the box, others by signs of neurons
_REGRESSION: dict[str, dict[str, Any]] = {"medium": {"refine": 6}, "high": {"refine": 48}}
_SMALL: dict[str, dict[str, Any]] = {"medium": {"refine": 8}, "high": {"refine": 96}}
_LARGE: dict[str, dict[str, Any]] = {
    "medium": {"optimise": 10, "branch": 4},
    "high": {"optimise": 10, "branch": 128},
}
_SHALLOW = {"branch": 512}  # at high effort with one hidden layer, where cells cost less
_DEPTH = 3  # hidden layers from which on the partition method may certify more of a classifier
_DEEP: dict[str, Any] = {"method": "best"}


@dataclass(frozen=True, slots=True)
class Stage:
    """A level of effort, and the options that it means: plain ones, of low effort and without a time limit."""

    level: str
    options: Options


def stages(options: Options, task: str, n_in: int, depth: int) -> tuple[Stage, ...]:
    """What to do one after the other: one pass first, then every level up to that of ``options``.

    The network is described by its task and the numbers of its inputs and of its hidden layers.

    Options that the user has chosen (``Options.own``) are used from the second stage on. Levels that come to the same
    are one stage, of the higher name.

    >>> [(stage.level, stage.options.refine) for stage in stages(Options(effort="medium"), "regression", 2, 1)]
    [('low', 1), ('medium', 6)]
    """
    chosen = replace(options, effort="low", fixed=frozenset(), time_limit=None)
    table = _REGRESSION if task == "regression" else _SMALL if n_in <= _FEW_INPUTS else _LARGE
    plan = [Stage("low", replace(chosen, **_ONE_PASS)), Stage("low", chosen)]
    levels = LEVELS[1 : LEVELS.index(options.effort) + 1]
    for level in levels[-1:] if table is _LARGE else levels:
        wanted = table[level] | (_DEEP if task == "classification" and depth >= _DEPTH else {})
        wanted |= _SHALLOW if table is _LARGE and level == "high" and depth == 1 else {}
        free = {name: value for name, value in wanted.items() if name not in options.own}
        plan.append(Stage(level, replace(chosen, **free)))
    merged = {stage.options: stage for stage in plan}  # the highest level of those that are the same
    return tuple(merged.values())


def last(answers: Iterator[Answer], deadline: Deadline) -> Answer:
    """The last of better and better answers: when there are no more, the time is over, or Ctrl-C is pressed.

    The first answer is always waited for: whoever makes it keeps the deadline. An interruption after it is answered by
    a warning, not by an exception.
    """
    best = next(answers)
    try:
        while not deadline.passed:
            found = next(answers, None)
            if found is None:
                break
            best = found
    except KeyboardInterrupt:
        warnings.warn("interrupted: the answer is what was reached so far, and holds", RuntimeWarning, stacklevel=3)
    return best
