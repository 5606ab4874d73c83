"""Numbers as they are written and where they stand: short texts, ticks of axes, scales from data to the picture.

What is proved is never shown as more than it is: lower ends and radii are rounded down, upper ends and widths up.
"""

from __future__ import annotations

import decimal
import math
import re
from dataclasses import dataclass

_MISSING = "–"
_EXPONENT = re.compile(r"e\+?(-?)0*")  # as it is printed: e-06, e+05
_DIGITS = 5  # of numbers in tables


def rounded(value: float, *, up: bool, digits: int = _DIGITS) -> float:
    """A number of a few digits that is not below (``up``) or not above the given one.

    Its shortest decimal is rounded: reading a decimal is monotone, so that the result lies on the right side.

    >>> rounded(0.1234567, up=False), rounded(0.1234567, up=True), rounded(-0.1234567, up=True), rounded(0.3, up=False)
    (0.12345, 0.12346, -0.12345, 0.3)
    """
    if not math.isfinite(value):
        return value
    direction = decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR
    return float(decimal.Context(prec=digits, rounding=direction).create_decimal(repr(float(value))))


def at_least(value: float) -> str:
    """A proved lower end or radius in four digits, rounded down."""
    return short(rounded(value, up=False, digits=4))


def at_most(value: float) -> str:
    """A proved upper end or width in four digits, rounded up."""
    return short(rounded(value, up=True, digits=4))


def short(value: float | None) -> str:
    """A number with four digits.

    >>> short(0.0310427), short(float("inf")), short(None), short(-0.5), short(-4e-6)
    ('0.03104', '∞', '–', '−0.5', '−4e−6')
    """
    if value is None or math.isnan(value):
        return _MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return _EXPONENT.sub(r"e\1", f"{value:.4g}").replace("-", "−")


def percent(part: int, whole: int, *, up: bool = False) -> str:
    """A share in tenths of a percent, rounded down unless ``up``: what is proved is never made more.

    >>> percent(2, 3), percent(2, 3, up=True), percent(9999, 10000), percent(5, 5)
    ('66.6 %', '66.7 %', '99.9 %', '100.0 %')
    """
    if whole == 0:
        return _MISSING
    tenths = -(-1000 * part // whole) if up else 1000 * part // whole
    return f"{tenths // 10}.{tenths % 10} %"


def counted(number: int, one: str, several: str | None = None) -> str:
    """A number with its noun.

    >>> counted(1, "input"), counted(1200, "box", "boxes")
    ('1 input', '1,200 boxes')
    """
    return f"{number:,} {one if number == 1 else several or one + 's'}"


@dataclass(frozen=True, slots=True)
class Scale:
    """The line that takes ``low`` to ``start`` and ``high`` to ``end``; what lies beyond stays at the ends."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where a number stands."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def _step(span: float, count: int) -> float:
    """The largest of 1, 2, 5 times a power of ten that gives at least ``count`` steps, or nearly so."""
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= rough * (1 + 1e-9))


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers from ``low`` to ``high``, about ``count`` to twice as many.

    >>> ticks(0.0, 0.083)
    [0.0, 0.02, 0.04, 0.06, 0.08]
    """
    step = _step(high - low, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def round_down(value: float) -> float:
    """A number of two digits that is not above the given one; 0 if that is not positive.

    >>> round_down(0.034821), round_down(0.3), round_down(-1.0)
    (0.034, 0.3, 0.0)
    """
    return rounded(value, up=False, digits=2) if value > 0 else 0.0
