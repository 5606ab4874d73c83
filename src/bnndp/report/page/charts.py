"""The charts of the page, as functions from numbers to SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bnndp.report.page.frame import Chart, Frame, Point
from bnndp.report.page.markup import tag
from bnndp.report.page.scales import short

_BINS = 24


def stairs(values: np.ndarray, total: int, end: float, *, rising: bool) -> list[Point]:
    """The share of ``total`` that is at most (``rising``) or at least x, for x from 0 to ``end``, as corners.

    >>> stairs(np.array([0.1, 0.2]), 2, 0.3, rising=False)
    [(0.0, 1.0), (0.1, 1.0), (0.1, 0.5), (0.2, 0.5), (0.2, 0.0), (0.3, 0.0)]
    """
    places, counts = np.unique(values[values <= end], return_counts=True)  # NaN fails the comparison
    after = np.cumsum(counts) if rising else int((~np.isnan(values)).sum()) - np.cumsum(counts)
    share = 0.0 if rising else float((~np.isnan(values)).sum()) / total
    corners: list[Point] = [(0.0, share)]
    for place, count in zip(places.tolist(), after.tolist(), strict=True):
        corners += [(place, share), (place, count / total)]
        share = count / total
    return [*corners, (end, share)]


def stairs_chart(
    certified: Sequence[Point],
    found: Sequence[Point] | None,
    labels: tuple[str, str],
    text: str,
    *,
    marks: Sequence[float] = (),
) -> Chart:
    """Two stairs and the gap between them: what is proved, and what an attack leaves possible."""
    frame = Frame.over((0.0, certified[-1][0]), (0.0, 1.0), labels, shares=True)
    parts = [
        tag("path", d=f"M{frame.x(mark):.1f} {frame.y.start}V{frame.y.end}", class_="mark")
        for mark in marks
        if mark <= frame.x.high
    ]
    if found is not None:
        parts.append(tag("path", d=frame.path([*certified, *reversed(found)], closed=True), class_="gap"))
        parts.append(tag("path", d=frame.path(found), class_="line attacked"))
    parts.append(tag("path", d=frame.path(certified), class_="line certified"))
    return frame.chart(text, parts)


def histogram(certified: np.ndarray, found: np.ndarray, end: float, labels: tuple[str, str], text: str) -> Chart:
    """How often numbers from 0 to ``end`` occur: bars of what is certified, an outline of what was found."""
    edges = np.linspace(0.0, end, _BINS + 1)
    proved, broken = (np.histogram(values[np.isfinite(values)], edges)[0] for values in (certified, found))
    frame = Frame.over((0.0, end), (0.0, float(max(1, proved.max(), broken.max()))), labels, whole="y")
    bars = (
        tag(
            "path",
            tag("title", f"{short(float(low))} to {short(float(high))}: {count}"),
            d=frame.box((float(low), 0.0), (float(high), float(count))),
            class_="bar certified",
        )
        for low, high, count in zip(edges[:-1], edges[1:], proved.tolist(), strict=True)
        if count
    )
    outline: list[Point] = [(0.0, 0.0)]
    for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), broken.tolist(), strict=True):
        outline += [(low, count), (high, count)]
    line = tag("path", d=frame.path([*outline, (end, 0.0)]), class_="line attacked") if broken.any() else None
    return frame.chart(text, bars, line)


def scatter(x: np.ndarray, y: np.ndarray, labels: tuple[str, str], text: str) -> Chart:
    """Points, and the line on which both numbers are equal; points that fall on one another are drawn once."""
    end = max(float(x.max(initial=0.0)), float(y.max(initial=0.0))) or 1.0
    frame = Frame.over((0.0, end), (0.0, end), labels)
    places = dict.fromkeys(f"M{frame.x(a):.0f} {frame.y(b):.0f}h0" for a, b in zip(x.tolist(), y.tolist(), strict=True))
    return frame.chart(
        text,
        tag("path", d=frame.path([(0.0, 0.0), (end, end)]), class_="equal"),
        tag("path", d="".join(places), class_="dots certified"),
    )


@dataclass(frozen=True, slots=True)
class Band:
    """A network with one input: its mean at some inputs and a range that holds most networks of the posterior."""

    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def band_chart(
    x: tuple[float, float],
    boxes: Iterable[tuple[Point, Point]],
    inside: Iterable[tuple[Point, Point]],
    band: Band | None,
    lines: Sequence[Sequence[Point]] = (),
    *,
    text: str,
) -> Chart:
    """Certified intervals over boxes of inputs, the ranges found from inside, affine bounds, and the network itself."""
    boxes, inside = list(boxes), list(inside)
    heights = [end for low, high in boxes for end in (low[1], high[1])]
    heights += [] if band is None else [*band.low, *band.high]
    heights += [y for line in lines for _, y in line]
    finite = [height for height in heights if math.isfinite(height)] or [0.0]
    margin = 0.05 * (max(finite) - min(finite))
    frame = Frame.over(x, (min(finite) - margin, max(finite) + margin), ("x", "output"))
    parts = []
    if band is not None:
        outline = [*zip(band.x, band.low, strict=True), *reversed(list(zip(band.x, band.high, strict=True)))]
        parts.append(tag("path", d=frame.path(outline, closed=True), class_="band"))
    parts.append(tag("path", d="".join(frame.box(*box) for box in boxes), class_="interval"))
    parts.append(tag("path", d="".join(frame.box(*box) for box in inside), class_="inside"))
    parts += [tag("path", d=frame.path(line), class_="line certified") for line in lines]
    if band is not None:
        parts.append(tag("path", d=frame.path(zip(band.x, band.mean, strict=True)), class_="line mean"))
    return frame.chart(text, parts)


def distance_chart(lower: Sequence[Point], upper: Sequence[Point], *, text: str) -> Chart:
    """Affine bounds over one box less the mean of the network, which is the line at zero."""
    heights = [y for _, y in (*lower, *upper, (0.0, 0.0))]
    margin = 0.08 * (max(heights) - min(heights))
    across = (lower[0][0], lower[-1][0])
    frame = Frame.over(across, (min(heights) - margin, max(heights) + margin), ("x", "bound less mean"))
    return frame.chart(
        text,
        tag("path", d=frame.path([*lower, *reversed(upper)], closed=True), class_="gap"),
        tag("path", d=frame.path([(across[0], 0.0), (across[1], 0.0)]), class_="zero"),
        [tag("path", d=frame.path(line), class_="line certified") for line in (lower, upper)],
    )


def plane_chart(x: np.ndarray, radius: np.ndarray, witness: np.ndarray, *, square: bool, text: str) -> Chart:
    """Inputs in the plane (n, 2) with what is certified around them, and the witnesses (n, 2) of an attack, or NaN."""
    known = np.nan_to_num(radius, nan=0.0, posinf=0.0)[:, None]
    ends = np.concatenate([x - known, x + known, witness])
    low, high = np.nanmin(ends, 0), np.nanmax(ends, 0)
    margin = 0.04 * (high - low)
    (left, bottom), (right, top) = (low - margin).tolist(), (high + margin).tolist()
    frame = Frame.over((left, right), (bottom, top), ("first input", "second input"))
    regions, ways = [], []
    for (a, b), r, (c, d) in zip(x.tolist(), known[:, 0].tolist(), witness.tolist(), strict=True):
        if square and r > 0:
            regions.append(frame.box((a - r, b - r), (a + r, b + r)))
        if not math.isnan(c):
            ways.append(frame.path([(a, b), (c, d)]))
    dots = "".join(f"M{frame.x(a):.1f} {frame.y(b):.1f}h0" for a, b in x.tolist())
    return frame.chart(
        text,
        tag("path", d="".join(regions), class_="interval"),
        tag("path", d="".join(ways), class_="way attacked"),
        tag("path", d=dots, class_="dots certified"),
    )
