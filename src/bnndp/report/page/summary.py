"""The first thing on the page: what is proved in one sentence, the verdicts as a bar, and the radius to choose."""

from __future__ import annotations

from bnndp.report.page.document import section
from bnndp.report.page.explanations import Tally, alarms, headline, subtitle, tally
from bnndp.report.page.markup import Markup, tag
from bnndp.report.page.outcome import Outcome
from bnndp.report.page.record import Record
from bnndp.report.page.scales import percent, short


def summary(record: Record, outcome: Outcome, eps: float | None, end: float | None) -> Markup:
    """The section; ``eps`` is the radius it opens with and ``end`` the largest that can be chosen."""
    found = tally(outcome, eps)
    return section(
        "summary",
        "In words",
        alarms(record, outcome),
        headline(record, outcome, eps),
        tag("p", subtitle(outcome), class_="small"),
        None if found is None else _bar(found),
        None if eps is None or end is None else _slider(eps, end),
    )


def _bar(found: Tally) -> Markup:
    """The verdicts as shares of a bar, and in numbers."""
    parts = (
        ("certified", found.certified, "certified: proved for every input of the region"),
        ("undecided", found.undecided, "undecided: neither proved nor broken"),
        ("falsified", found.falsified, "falsified: another decision was found, at the input or near it"),
    )
    start, rects = 0.0, []
    for kind, count, _ in parts:
        share = 100.0 * count / found.total
        rects.append(tag("rect", x=start, y=0, width=share, height=10, class_=f"share {kind}", id=f"share-{kind}"))
        start += share
    bar = tag("svg", rects, viewBox="0 0 100 10", preserveAspectRatio="none", class_="shares", aria_hidden="true")
    return tag(
        "div",
        bar,
        tag(
            "ul",
            (
                tag(
                    "li",
                    tag("span", class_=f"key {kind}", aria_hidden="true"),
                    tag("strong", f"{count:,}", id=f"count-{kind}"),
                    tag("span", f" ({percent(count, found.total, up=kind == 'undecided')}) ", id=f"percent-{kind}"),
                    text,
                )
                for kind, count, text in parts
            ),
            class_="legend tall",
        ),
    )


def _slider(eps: float, end: float) -> Markup:
    return tag(
        "p",
        tag("label", "Radius ", for_="radius"),
        tag("input", type="range", id="radius", min="0", max=f"{end:.6g}", step="any", value=f"{eps:.6g}"),
        tag("output", short(eps), id="radius-shown", for_="radius"),
        class_="slider",
        id="slider",
        hidden=True,
    )
