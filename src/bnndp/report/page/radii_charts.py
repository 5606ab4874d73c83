"""Charts of a run of radii: accuracy over the radius, the radii, how tight they are, and inputs in the plane."""

from __future__ import annotations

import numpy as np

from bnndp.report.page.charts import histogram, plane_chart, stairs, stairs_chart
from bnndp.report.page.document import number_table, section
from bnndp.report.page.explanations import asked_radii
from bnndp.report.page.frame import Chart, figure, legend
from bnndp.report.page.gap_sentences import gap_sentences
from bnndp.report.page.markup import Child, Markup, tag
from bnndp.report.page.outcome import Radii
from bnndp.report.page.plots import Plot, plot_figure
from bnndp.report.page.record import Record
from bnndp.report.page.scales import at_least, counted, percent, short, ticks

_PLANE = 150  # inputs that can be told apart in the plane


def radius_end(record: Record, outcome: Radii) -> float:
    """Where the axis of radii ends: beyond the largest number there is, but not beyond what was tried."""
    known = [float(v[np.isfinite(v)].max(initial=0.0)) for v in (outcome.radius, outcome.attack)]
    return min(1.02 * max(known) or 1.0, record.largest_tried)


def radii_sections(record: Record, outcome: Radii) -> tuple[Child, list[Plot]]:
    """The sections between the summary and the worst cases, and their plots."""
    accuracy, radii, ratios = _accuracy(record, outcome), _radii(record, outcome), _ratios(outcome)
    curve = figure(
        accuracy.chart.inline(_cursor(accuracy.chart), name="curve"),
        legend(accuracy.keys),
        _levels(outcome, radius_end(record, outcome)),
        caption=accuracy.title,
    )
    sections: list[Child] = [
        section("accuracy", "Certified against attacked", tag("div", curve, plot_figure(radii), class_="pair")),
        section("gap", "What is left open", _gap(outcome, ratios)),
    ]
    plane = _plane(record, outcome)
    if plane is not None:
        note = tag("p", plane.note) if plane.note else None
        shown = tag("div", plane.chart.inline(), tag("div", legend(plane.keys, tall=True), note), class_="pair")
        sections.append(section("plane", "In the plane of inputs", shown))
    return sections, [plot for plot in (accuracy, radii, ratios, plane) if plot is not None]


def _gap(outcome: Radii, ratios: Plot | None) -> Markup:
    """What is not known, in words and as a chart."""
    sentences = tag("div", (tag("p", sentence) for sentence in gap_sentences(outcome)))
    return sentences if ratios is None else tag("div", sentences, plot_figure(ratios), class_="pair")


def _cursor(chart: Chart) -> Markup:
    """The line at the radius that is chosen; the script moves it along."""
    x, y = chart.frame.x, chart.frame.y
    ends = {"data_from": x.start, "data_to": x.end}
    return tag("path", d=f"M0 {y.start}V{y.end}", class_="cursor", id="cursor", visibility="hidden", **ends)


def _accuracy(record: Record, outcome: Radii) -> Plot:
    """Certified and attacked accuracy, with the gap between them."""
    total, end = len(outcome.radius), radius_end(record, outcome)
    proved = np.where(outcome.radius >= end, np.inf, outcome.radius)  # does not fall at the edge of the chart
    certified, found = stairs(proved, total, end, rising=False), None
    if outcome.attacked:
        found = stairs(np.where(outcome.breaking > 0, outcome.breaking, np.nan), total, end, rising=False)
    text = (
        "Share of inputs whose decision is the label on the whole ball, by radius: proved, and not broken by an attack."
    )
    chart = stairs_chart(certified, found, ("radius", "share of inputs"), text, marks=asked_radii(record))
    keys = (("certified", "proved"), ("attacked", "not broken by the attack"), ("gap", "not known"))
    return Plot("certified-accuracy", "Accuracy over the radius", chart, keys[: 1 if found is None else 3])


def _radii(record: Record, outcome: Radii) -> Plot:
    """How the radii are spread."""
    labels = ("radius", "inputs")
    chart = histogram(
        outcome.radius, outcome.attack, radius_end(record, outcome), labels, "How many inputs have which radius."
    )
    keys = (("certified", "proved radius"), ("attacked", "radius of the attack"))
    return Plot("radii", "Certified radii", chart, keys if outcome.attacked else keys[:1], _capped_note(outcome))


def _capped_note(outcome: Radii) -> str:
    """A note on radii that may be larger than they are drawn."""
    count = int(outcome.capped.sum())
    if not count:
        return ""
    largest = at_least(float(outcome.radius[outcome.capped].max()))
    return (
        f"For {counted(count, 'input')} the search ended at the largest radius that was tried, {largest}: what is "
        "proved there is at least that, and may be more."
    )


def _ratios(outcome: Radii) -> Plot | None:
    """How much of the radius of the attack is proved."""
    ratio = outcome.ratio[~np.isnan(outcome.ratio)]
    if not ratio.size:
        return None
    chart = histogram(ratio, np.empty(0), 1.0, ("proved over attacked radius", "inputs"), "How tight the radii are.")
    return Plot("ratios", "Proved over attacked radius", chart)


def _levels(outcome: Radii, end: float) -> Markup:
    """The curve as a table."""
    total = len(outcome.radius)

    def row(eps: float) -> tuple[str, str, str]:
        unbroken = int((outcome.correct & (outcome.attack > eps)).sum())
        attacked = percent(unbroken, total, up=True) if outcome.attacked else "–"
        return short(eps), percent(int((outcome.radius >= eps).sum()), total), attacked

    return number_table(("radius", "certified", "attacked"), map(row, ticks(0.0, end, 6)))


def _plane(record: Record, outcome: Radii) -> Plot | None:
    """Inputs with two numbers, as points with their certified squares and the way to their witnesses."""
    if record.inputs is None or record.inputs.x.shape[1] != 2:
        return None
    total = len(record.index)
    chosen = np.unique(np.linspace(0, total - 1, _PLANE).round().astype(int)) if total > _PLANE else np.arange(total)
    places = [record.index[at] for at in chosen.tolist()]
    x, radius = record.inputs.x[places], outcome.radius[chosen]
    witness = np.full_like(x, np.nan)
    for at, index in enumerate(places):
        found = record.witnesses.get(index)
        if found is not None and found.x.shape == (2,):
            witness[at] = found.x
    square = record.options.get("norm") in ("inf", None)
    text = (
        "Inputs in the plane, with the region in which each decision is proved and the way to the witness of an attack."
    )
    chart = plane_chart(x, radius, witness, square=square, text=text)
    entries = [("certified", "an input")]
    entries += [("attacked", "the way to the witness of an attack")] if np.isfinite(witness).any() else []
    entries += [("interval", "region in which the decision is proved")] if square and (radius > 0).any() else []
    note = f"{len(places):,} of {total:,} inputs, taken evenly." if len(places) < total else ""
    return Plot("plane", "In the plane of inputs", chart, entries, note)
