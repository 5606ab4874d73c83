"""The frame of a chart: axes with round numbers, a grid, a text for those who cannot see it. All of it is SVG.

Colours are not given here: parts of a chart have classes, and ``assets/chart.css`` colours these for light, dark and
paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bnndp.report.page.markup import Child, Markup, joined, tag
from bnndp.report.page.scales import Scale, short, ticks

WIDTH, HEIGHT = 460.0, 270.0  # of every chart, in its own units; a phone shows it at three quarters of that
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 14.0, 12.0, 46.0

Point = tuple[float, float]
Key = tuple[str, str]
"""An entry of a legend: the class of a part of a chart, and what it means."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Two scales and what they are of."""

    x: Scale
    y: Scale
    x_label: str
    y_label: str
    shares: bool = False  # whether y is a share, written in percent
    whole: str = ""  # the axes, of "xy", that count something: only whole numbers are written there

    @classmethod
    def over(
        cls,
        x: tuple[float, float],
        y: tuple[float, float],
        labels: tuple[str, str],
        *,
        shares: bool = False,
        whole: str = "",
    ) -> Frame:
        """A frame for these ranges; one that is a point is widened."""
        across, upward = _widened(*x), _widened(*y)
        return cls(
            Scale(*across, _LEFT, WIDTH - _RIGHT),
            Scale(*upward, HEIGHT - _BOTTOM, _TOP),
            *labels,
            shares=shares,
            whole=whole,
        )

    def path(self, points: Iterable[Point], *, closed: bool = False) -> str:
        """The line through these points, less those that lie on a straight way: of thousands of stairs most."""
        found: list[Point] = []
        for x, y in points:
            at = (round(self.x(x), 1), round(self.y(y), 1))
            if len(found) > 1 and _on_segment(found[-2], found[-1], at):
                found.pop()
            if not found or found[-1] != at:
                found.append(at)
        return f"M{'L'.join(f'{x:.1f} {y:.1f}' for x, y in found)}{'Z' if closed else ''}" if found else ""

    def box(self, low: Point, high: Point) -> str:
        """A rectangle with these corners, as a part of a path."""
        left, bottom, right, top = self.x(low[0]), self.y(low[1]), self.x(high[0]), self.y(high[1])
        return f"M{left:.1f} {bottom:.1f}H{right:.1f}V{top:.1f}H{left:.1f}Z"

    def svg(self, label: str, *parts: Child) -> Markup:
        """The chart as a part of a page; ``label`` describes it in words."""
        return self.chart(label, *parts).inline()

    def chart(self, label: str, *parts: Child) -> Chart:
        """The grid, the parts, the axes."""
        drawn = (
            self._grid(),
            parts,
            tag("path", d=f"M{self.x.start} {self.y.start}H{self.x.end}", class_="axis"),
            tag("text", self.x_label, x=(self.x.start + self.x.end) / 2, y=HEIGHT - 5, class_="label"),
            tag(
                "text",
                self.y_label,
                transform=f"translate(11 {(self.y.start + self.y.end) / 2:.0f}) rotate(-90)",
                class_="label",
            ),
        )
        return Chart(self, label, joined(drawn))

    def _ticks(self, scale: Scale, axis: str) -> list[float]:
        return [v for v in ticks(scale.low, scale.high) if axis not in self.whole or v.is_integer()]

    def _grid(self) -> Iterable[Markup]:
        for value in self._ticks(self.y, "y"):
            at = self.y(value)
            yield tag("path", d=f"M{self.x.start} {at:.1f}H{self.x.end}", class_="grid")
            text = f"{100 * value:.3g} %" if self.shares else short(value)
            yield tag("text", text, x=self.x.start - 6, y=at + 4, class_="tick end")
        for value in self._ticks(self.x, "x"):
            yield tag("text", short(value), x=self.x(value), y=self.y.start + 16, class_="tick")


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn in a frame, as SVG that is WIDTH wide and HEIGHT high, and what it shows in words."""

    frame: Frame
    label: str
    content: Markup

    def inline(self, *more: Child, name: str | None = None) -> Markup:
        """The chart as a part of a page; ``more`` is drawn on it."""
        x, y = self.frame.x, self.frame.y
        return tag(
            "svg",
            self.content,
            more,
            viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
            role="img",
            aria_label=self.label,
            class_="chart",
            id=name,
            data_x=f"{x.low!r} {x.high!r} {x.start} {x.end}",
            data_y=f"{y.low!r} {y.high!r} {y.start} {y.end}",
        )


def _on_segment(start: Point, middle: Point, end: Point) -> bool:
    """Whether the middle lies between the others, on a line that is level or upright."""
    between = all(sorted((a, b, c))[1] == b for a, b, c in zip(start, middle, end, strict=True))
    return between and any(a == c for a, c in zip(start, end, strict=True))


def _widened(low: float, high: float) -> tuple[float, float]:
    if low < high:
        return low, high
    half = max(abs(low), 1.0) / 2
    return low - half, high + half


def legend(entries: Sequence[Key], *, tall: bool = False) -> Markup:
    """What the colours mean."""
    return tag(
        "ul",
        (tag("li", tag("span", class_=f"key {kind}", aria_hidden="true"), text) for kind, text in entries),
        class_="legend tall" if tall else "legend",
    )


def figure(chart: Child, *under: Child, caption: str) -> Markup:
    """A chart with its caption and what belongs to it."""
    return tag("figure", tag("figcaption", caption), chart, *under)
