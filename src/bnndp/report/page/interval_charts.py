"""Charts of a run of bounds: the bounds themselves over one input, their widths, and how tight they are."""

from __future__ import annotations

import numpy as np

from bnndp.network import Posterior
from bnndp.report.page.charts import band_chart, histogram, scatter, stairs, stairs_chart
from bnndp.report.page.document import section
from bnndp.report.page.frame import Point, legend
from bnndp.report.page.gap_sentences import gap_sentences
from bnndp.report.page.markup import Child, tag
from bnndp.report.page.network_curves import affine_bounds, affine_lines, band_of
from bnndp.report.page.outcome import Intervals
from bnndp.report.page.plots import Plot, plot_figure
from bnndp.report.page.record import Record

_LINES = 400  # boxes up to which their affine bounds are drawn
_SPREAD = "90 % of the networks of the posterior, sampled"


def has_mean(record: Record) -> bool:
    """Whether it is the mean output that is bounded, which a picture can show beside its bounds."""
    return record.options.get("quantity", "mean") == "mean" and record.options.get("between") is None


def interval_sections(record: Record, outcome: Intervals, network: Posterior | None) -> tuple[Child, list[Plot]]:
    """The sections between the summary and the worst cases, and their plots; with the network its mean is drawn too."""
    bounds, widths, tightness = _bounds(record, outcome, network), _widths(outcome), _tightness(outcome)
    sections: list[Child] = []
    if bounds is not None:
        note = None
        if network is None and has_mean(record):
            note = tag("p", "The model file is not where the run says, so its mean is not drawn; give it by --model.")
        shown = tag("div", bounds.chart.inline(), tag("div", legend(bounds.keys, tall=True), note), class_="pair")
        sections.append(section("overview", "The bounds", shown))
    charts = tag("div", plot_figure(widths), plot_figure(tightness), class_="pair")
    sections.append(section("widths", "Widths of the intervals", charts))
    gap = [tag("p", sentence) for sentence in gap_sentences(outcome)]
    if gap:
        sections.append(section("gap", "What is left open", tag("div", gap)))
    return sections, [plot for plot in (bounds, widths, tightness) if plot is not None]


def _widths(outcome: Intervals) -> Plot:
    """The share of boxes up to every width, certified and from inside."""
    width, inside, end = _finite(outcome), outcome.inside, _end(outcome)
    certified = stairs(width, len(width), end, rising=True)
    found = None if inside is None else stairs(inside, len(width), end, rising=True)
    text = "Share of the boxes whose widest interval is at most so wide: certified, and found from inside."
    chart = stairs_chart(certified, found, ("width", "share of boxes"), text)
    keys = (("certified", "certified interval"), ("attacked", "range found from inside"), ("gap", "not known"))
    return Plot("widths", "Share of boxes at most so wide", chart, keys[: 1 if found is None else 3])


def _tightness(outcome: Intervals) -> Plot:
    """Certified against inside widths; without the latter the widths alone."""
    width, inside = _finite(outcome), outcome.inside
    if inside is None:
        labels = ("width", "boxes")
        chart = histogram(width, np.empty(0), _end(outcome), labels, "How many boxes have which width.")
        return Plot("width-counts", "Widths of the certified intervals", chart)
    labels = ("width from inside", "certified width")
    chart = scatter(inside, np.nan_to_num(width), labels, "Certified width of every box against the range from inside.")
    return Plot(
        "tightness",
        "Certified width against range from inside",
        chart,
        (("certified", "a box"), ("equal", "equal: nothing to win")),
    )


def _finite(outcome: Intervals) -> np.ndarray:
    return np.where(np.isfinite(outcome.width), outcome.width, np.nan)


def _end(outcome: Intervals) -> float:
    return 1.02 * float(np.nanmax(np.append(_finite(outcome), 0.0))) or 1.0


def _bounds(record: Record, outcome: Intervals, network: Posterior | None) -> Plot | None:
    """Of a network with one input and one output: all boxes in one picture."""
    inputs = record.inputs
    if inputs is None or inputs.x.shape[1] != 1 or outcome.lower.shape[1] != 1:
        return None
    at = list(record.index)
    left, right = inputs.lower[at, 0].tolist(), inputs.upper[at, 0].tolist()
    boxes = _rectangles(left, right, outcome.lower, outcome.upper)
    inside = []
    if outcome.inside_lower is not None and outcome.inside_upper is not None:
        inside = _rectangles(left, right, outcome.inside_lower, outcome.inside_upper)
    low, high = min(left), max(right)
    band, lines = None, []
    if network is not None and low < high:
        band = band_of(network, low, high)
        affine = affine_bounds(network, inputs.lower[at], inputs.upper[at]) if len(at) <= _LINES else None
        lines = [] if affine is None else affine_lines(affine)
    text = "Certified intervals over the boxes, with the mean of the network."
    chart = band_chart((low, high), boxes, inside, band, lines, text=text)
    entries = [("interval", "certified interval of a box")]
    entries += [("inside", "range found from inside")] if inside else []
    entries += [("bound", "certified affine bounds, by one pass")] if lines else []
    entries += [("mean", "mean of the network, from inside"), ("band", _SPREAD)] if band is not None else []
    return Plot("bounds", "Certified bounds", chart, entries)


def _rectangles(
    left: list[float], right: list[float], lower: np.ndarray, upper: np.ndarray
) -> list[tuple[Point, Point]]:
    columns = zip(left, right, lower[:, 0].tolist(), upper[:, 0].tolist(), strict=True)
    return [((a, low), (b, high)) for a, b, low, high in columns]
