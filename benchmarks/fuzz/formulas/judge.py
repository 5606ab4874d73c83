"""Holds computed values against balls that contain the truth, and counts.

A comparison counts as held only if it is proved for the whole ball: NaN, and what cannot be decided, are failures. An
infinite bound holds, but says nothing; it is counted apart, so that no formula passes by saying nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from flint import arb

__all__ = ["Judge", "Tally"]

_KEPT = 3  # failures that are shown of each formula
_SMALLEST = 1e-200  # scales below it are left to the terms for underflow: no relative loss is defined there

Place = tuple[float, ...]  # the arguments


@dataclass(slots=True)
class Tally:
    """The results for one formula."""

    claims: int = 0
    failures: int = 0
    silent: int = 0  # bounds that are infinite
    loss: float = -math.inf  # largest distance of a bound from the truth, relative to the scale of its errors
    used: float = -math.inf  # largest share of an error term that an error took
    examples: list[str] = field(default_factory=list)


class Judge:
    """Tallies by the name of a formula; ``prefix`` is put before every name."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.prefix = ""

    def near(self, name: str, at: Place, value: float, granted: float | arb, truth: arb, scale: arb | None) -> None:
        """Claim ``|value - truth| <= granted``; losses are relative to ``scale``, if rounding is all there is."""
        tally, granted = self._tally(name), arb(granted)
        if not granted.is_finite() and granted > 0 and not math.isnan(value):
            tally.silent += 1
            return
        wrong = abs(arb(value) - truth)
        if not (math.isfinite(value) and wrong <= granted):
            self._fail(tally, at, value, truth, f"off by {float(wrong):.3g}, granted {float(granted):.3g}")
        if granted > _SMALLEST:
            tally.used = _larger(tally.used, wrong / granted)
        if scale is not None and scale > _SMALLEST:
            tally.loss = _larger(tally.loss, (wrong + granted) / scale)

    def above(self, name: str, at: Place, value: float | arb, truth: arb, scale: arb | None = None) -> None:
        """Claim ``value >= truth``; without a scale what lies between is not due to rounding."""
        tally, bound = self._tally(name), arb(value)
        if not bound >= truth:
            self._fail(tally, at, value, truth, f"below by {float(truth - bound):.3g}")
        elif not bound.is_finite():
            tally.silent += 1
        elif scale is not None and scale > _SMALLEST:
            tally.loss = _larger(tally.loss, (bound - truth) / scale)

    def below(self, name: str, at: Place, value: float | arb, truth: arb, scale: arb | None = None) -> None:
        """Claim ``value <= truth``."""
        self.above(name, at, -value, -truth, scale)

    def _tally(self, name: str) -> Tally:
        tally = self.tallies.setdefault(f"{self.prefix} {name}".strip(), Tally())
        tally.claims += 1
        return tally

    def _fail(self, tally: Tally, at: Place, value: float | arb, truth: arb, why: str) -> None:
        tally.failures += 1
        if len(tally.examples) < _KEPT:
            shown = float(value) if isinstance(value, arb) else value
            tally.examples.append(f"at {at}: {shown!r}, truth {truth.str(20)}: {why}")


def _larger(so_far: float, ball: arb) -> float:
    value = float(ball)
    return value if value > so_far else so_far
