"""The bounds of an answer as a chart: a bar for every output, or the distance of the bounds from the mean of one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from bnndp.explorer.answers import Answer
from bnndp.explorer.backdrop import mean_at
from bnndp.explorer.session import Session
from bnndp.report.page.charts import distance_chart
from bnndp.report.page.frame import Frame, legend
from bnndp.report.page.markup import Child, Markup, tag
from bnndp.report.page.scales import at_least, at_most, short
from bnndp.report.page.views import distances

__all__ = ["bounds_chart"]

_BARS = 40  # outputs that are drawn

Pair = tuple[float, float]


def bounds_chart(session: Session, answer: Answer) -> Child:
    """The certified interval of every output as a bar, the mean at the input as a mark, and the range from inside."""
    certified = _pairs(answer.bounds.lower, answer.bounds.upper)
    if len(certified) == 1:
        return _distance(session, answer)
    mean = mean_at(session, answer.question.x)[0, :_BARS].tolist()
    inside = [] if answer.inside is None else _pairs(*answer.inside)
    decides = session.network.task == "classification"
    entries = [("interval", "certified interval on the ball"), ("mean", "at the input itself, sampled")]
    entries += [("inside", "range found from inside")] if inside else []
    chart = _bars(certified, inside, mean, decides=decides)
    return (chart, legend(entries), _numbers("class" if decides else "output", certified, mean))


def _pairs(lower: Tensor, upper: Tensor) -> list[Pair]:  # (1, outputs) each
    return list(zip(lower[0, :_BARS].tolist(), upper[0, :_BARS].tolist(), strict=True))


def _bars(certified: Sequence[Pair], inside: Sequence[Pair], mean: Sequence[float], *, decides: bool) -> Markup:
    finite = [value for pair in (*certified, mean) for value in pair if math.isfinite(value)]
    ends = (0.0, 1.0) if decides else (min(finite), max(finite))
    labels = ("class", "E softmax") if decides else ("output", "E f(x)")
    frame = Frame.over((-0.6, len(certified) - 0.4), ends, labels, whole="x")

    def boxes(pairs: Sequence[Pair], half: float) -> str:
        return "".join(frame.box((i - half, low), (i + half, high)) for i, (low, high) in enumerate(pairs))

    marks = "".join(f"M{frame.x(i - 0.3):.1f} {frame.y(m):.1f}H{frame.x(i + 0.3):.1f}" for i, m in enumerate(mean))
    return frame.drawn(
        f"Certified bounds of {len(certified)} outputs on the ball.",
        tag("path", d=boxes(certified, 0.3), class_="interval"),
        tag("path", d=boxes(inside, 0.12), class_="inside"),
        tag("path", d=marks, class_="line mean"),
    )


def _numbers(name: str, certified: Sequence[Pair], mean: Sequence[float]) -> Markup:
    """The same in numbers, rounded to the safe side."""
    rows = (
        (str(i), at_least(low), at_most(high), short(m))
        for i, ((low, high), m) in enumerate(zip(certified, mean, strict=True))
    )
    names = (name, "at least", "at most", "at the input")
    head = tag("thead", tag("tr", (tag("th", text, scope="col", class_="number") for text in names)))
    body = tag("tbody", (tag("tr", (tag("td", cell, class_="number") for cell in row)) for row in rows))
    return tag("details", tag("summary", "As numbers"), tag("table", head, body), id="numbers")


def _distance(session: Session, answer: Answer) -> Child:
    """Of one input and one output: the affine bounds less the mean, for both are hard to tell apart beside it."""
    affine = answer.bounds.affine
    if affine is None or session.network.n_in != 1 or not answer.box.lower.item() < answer.box.upper.item():
        return None
    lower, upper = distances(session.network, affine)
    chart = distance_chart(lower, upper, text="The certified affine bounds on the ball, less the mean.")
    return (chart.inline(), legend([("bound", "certified affine bounds"), ("mean", "mean, from inside")]))
