"""Charts of a run of radii: accuracy over the radius, the radii, how tight they are, and inputs in the plane."""

from __future__ import annotations

import numpy as np

from bnndp.report.page.charts import histogram, plane_chart, stairs, stairs_chart
from bnndp.report.page.document import section
from bnndp.report.page.frame import figure, legend
from bnndp.report.page.gap import gap_words
from bnndp.report.page.markup import Child, Markup, tag
from bnndp.report.page.outcome import Radii
from bnndp.report.page.record import Record
from bnndp.report.page.scales import percent, short, ticks
from bnndp.report.page.words import asked_radii, largest_tried

__all__ = ["radii_charts", "radius_end"]


def radius_end(record: Record, outcome: Radii) -> float:
    """Where the axis of radii ends: beyond the largest number there is, but not beyond what was tried."""
    known = [float(v[np.isfinite(v)].max(initial=0.0)) for v in (outcome.radius, outcome.attack)]
    return min(1.02 * max(known) or 1.0, largest_tried(record))


def radii_charts(record: Record, outcome: Radii) -> Child:
    """All sections between the summary and the worst cases."""
    plane = _plane(record, outcome)
    said = tag("div", (tag("p", sentence) for sentence in gap_words(record, outcome)))
    return (
        section(
            "accuracy",
            "Certified against attacked",
            tag("div", _curve(record, outcome), _radii(record, outcome), class_="pair"),
        ),
        section("gap", "What is left open", tag("div", said, _ratios(outcome), class_="pair")),
        section("plane", "In the plane of inputs", plane) if plane is not None else None,
    )


def _curve(record: Record, outcome: Radii) -> Markup:
    """Certified and attacked accuracy, with the gap between them."""
    total, end = len(outcome.radius), radius_end(record, outcome)
    proved = np.where(outcome.radius >= largest_tried(record), np.inf, outcome.radius)  # and perhaps beyond
    certified, found = stairs(proved, total, end, rising=False), None
    if outcome.attacked:
        found = stairs(np.where(outcome.breaking > 0, outcome.breaking, np.nan), total, end, rising=False)
    text = (
        "Share of inputs whose decision is the label on the whole ball, by radius: proved, and not broken by an attack."
    )
    marks = asked_radii(record)
    chart = stairs_chart(certified, found, ("radius", "share of inputs"), text, marks=marks, name="curve")
    keys = (("certified", "proved"), ("attacked", "not broken by the attack"), ("gap", "not known"))
    return figure(
        chart, legend(keys[: 1 if found is None else 3]), _levels(outcome, end), caption="Accuracy over the radius"
    )


def _radii(record: Record, outcome: Radii) -> Markup:
    """How the radii are spread."""
    labels = ("radius", "inputs")
    chart = histogram(
        outcome.radius, outcome.attack, radius_end(record, outcome), labels, "How many inputs have which radius."
    )
    keys = (("certified", "proved radius"), ("attacked", "radius of the attack"))
    return figure(chart, legend(keys if outcome.attacked else keys[:1]), caption="Radii")


def _ratios(outcome: Radii) -> Markup | None:
    """How much of the radius of the attack is proved."""
    ratio = outcome.ratio[~np.isnan(outcome.ratio)]
    if not ratio.size:
        return None
    chart = histogram(ratio, np.empty(0), 1.0, ("proved over attacked radius", "inputs"), "How tight the radii are.")
    return figure(chart, caption="Ratio, at most 1")


def _levels(outcome: Radii, end: float) -> Markup:
    """The curve as a table, for those who would rather read it."""
    total = len(outcome.radius)

    def row(eps: float) -> Markup:
        proved = int((outcome.radius >= eps).sum())
        unbroken = int((outcome.correct & (outcome.attack > eps)).sum())
        cells = (short(eps), percent(proved, total), percent(unbroken, total, up=True) if outcome.attacked else "–")
        return tag("tr", (tag("td", cell, class_="number") for cell in cells))

    names = ("radius", "certified", "attacked")
    return tag(
        "details",
        tag("summary", "As numbers"),
        tag(
            "table",
            tag("thead", tag("tr", (tag("th", name, scope="col", class_="number") for name in names))),
            tag("tbody", (row(eps) for eps in ticks(0.0, end, 6))),
        ),
    )


def _plane(record: Record, outcome: Radii) -> Markup | None:
    """Inputs with two numbers, as points with their certified squares and the way to their witnesses."""
    if record.inputs is None or record.inputs.x.shape[1] != 2:
        return None
    x = record.inputs.x[list(record.index)]
    witness = np.full_like(x, np.nan)
    for at, index in enumerate(record.index):
        found = record.witnesses.get(index)
        if found is not None and found.x.shape == (2,):
            witness[at] = found.x
    square = record.options.get("norm") in ("inf", None)
    text = (
        "Inputs in the plane, with the region in which each decision is proved and the way to the witness of an attack."
    )
    chart = plane_chart(x, outcome.radius, witness, square=square, text=text)
    entries = [("certified", "an input"), ("attacked", "the way to the witness of an attack")]
    entries += [("interval", "region in which the decision is proved")] if square else []
    return tag("div", chart, legend(entries, tall=True), class_="pair")
