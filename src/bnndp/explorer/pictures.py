"""An answer as markup: a sentence, a picture of the input and its ball, and a chart of the bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from bnndp.explorer.answers import Answer, Claim
from bnndp.explorer.backdrop import Backdrop, mean_at
from bnndp.explorer.session import Session
from bnndp.questions.verdict import Verdict
from bnndp.report.page.charts import band_chart, distance_chart
from bnndp.report.page.document import number_table
from bnndp.report.page.frame import Frame, legend
from bnndp.report.page.markup import Child, Markup, tag
from bnndp.report.page.network_curves import affine_lines, distances
from bnndp.report.page.pixels import image_shape, input_images
from bnndp.report.page.scales import at_least, at_most, short

_BARS = 40  # outputs that are drawn

Pair = tuple[float, float]


def sentence(answer: Answer) -> Markup:
    """What is proved, in one sentence."""
    eps = short(answer.question.eps)
    if answer.claim is not None:
        return tag("p", _verdict(answer.claim), f" {_about(answer.claim, eps)}", class_="lead")
    low, high = answer.bounds.lower[0].tolist(), answer.bounds.upper[0].tolist()
    if len(low) == 1:
        text = f"At every input within {eps} the mean output lies between {at_least(low[0])} and {at_most(high[0])}"
    else:
        text = f"At every input within {eps} all {len(low)} mean outputs lie in the intervals below"
    inside = answer.inside
    found = ""
    if inside is not None:
        ends = f"{short(inside[0][0, 0].item())} to {short(inside[1][0, 0].item())}"
        found = f"; an attack found {ends} from inside" if len(low) == 1 else "; the marks are what an attack found"
    return tag("p", tag("strong", "Certified."), f" {text}{found}.", class_="lead")


def _verdict(claim: Claim) -> Markup:
    name = claim.verdict.value if claim.attacked or claim.verdict is Verdict.CERTIFIED else "not certified"
    return tag("strong", f"{name.capitalize()}.", class_=f"verdict {claim.verdict.value}", id="verdict")


def _about(claim: Claim, eps: str) -> str:
    if claim.verdict is Verdict.CERTIFIED:
        return f"At every input within {eps} the class is {claim.label}, ahead by at least {at_least(claim.lead)}."
    if claim.verdict is Verdict.FALSIFIED:
        return f"Within {eps} an attack found an input at which class {claim.rival} is ahead of class {claim.label}."
    tried = "and no attack found another decision" if claim.attacked else "and no attack has been tried yet"
    return f"It is not proved that the class is {claim.label} at every input within {eps}, {tried}."


def view(session: Session, backdrop: Backdrop, answer: Answer) -> Child:
    """The picture of the input and what was found near it."""
    if backdrop.band is not None:
        return _line(session, backdrop, answer)
    if backdrop.field is not None:
        return _plane(session, backdrop, answer)
    shape = image_shape(session.shape)
    return None if shape is None else _images(session, answer, shape)


def _line(session: Session, backdrop: Backdrop, answer: Answer) -> Child:
    """The mean over all inputs, and on the ball the certified interval and its affine bounds."""
    low, high = answer.box.lower.item(), answer.box.upper.item()
    ends = (answer.bounds.lower.item(), answer.bounds.upper.item())
    inside = []
    if answer.inside is not None:
        inside = [((low, answer.inside[0].item()), (high, answer.inside[1].item()))]
    affine = answer.bounds.affine
    chart = band_chart(
        session.span[0],
        [((low, ends[0]), (high, ends[1]))] if all(map(math.isfinite, ends)) else [],
        inside,
        backdrop.band,
        [] if affine is None else affine_lines(affine),
        text="The mean of the network with the certified bounds on the ball; drag to move the input.",
    )
    entries = [("interval", "certified interval"), ("bound", "certified affine bounds")]
    entries += [("inside", "range found from inside")] if inside else []
    entries += [("mean", "mean, from inside"), ("band", "90 % of the networks")]
    return (chart.inline(), legend(entries))


def _plane(session: Session, backdrop: Backdrop, answer: Answer) -> Child:
    """The plane of inputs with the ball, and the witness of an attack."""
    frame = Frame.over(session.span[0], session.span[1], ("first input", "second input"))
    box, x = answer.box, answer.question.x[0].tolist()
    kind = "interval" if answer.claim is None else f"ball {answer.claim.verdict.value}"
    corners = [(ends[0, 0].item(), ends[0, 1].item()) for ends in (box.lower, box.upper)]
    witness = None if answer.claim is None else answer.claim.witness
    parts = [
        tag(
            "image",
            href=backdrop.field or "",
            x=frame.x.start,
            y=frame.y.end,
            width=frame.x.end - frame.x.start,
            height=frame.y.start - frame.y.end,
            preserveAspectRatio="none",
            class_="field",
        ),
        tag("path", d=frame.box(corners[0], corners[1]), class_=kind),
        tag("path", d=f"M{frame.x(x[0]):.1f} {frame.y(x[1]):.1f}h0", class_="dots point"),
    ]
    if witness is not None:
        at = witness[0].tolist()
        parts.append(tag("path", d=f"M{frame.x(at[0]):.1f} {frame.y(at[1]):.1f}h0", class_="dots witness"))
    text = "The plane of inputs with the ball around the chosen one; drag to move the input."
    entries = [("field", backdrop.shown), ("interval", "the ball")]
    entries += [("falsified", "witness of an attack")] if witness is not None else []
    return (frame.svg(text, parts), legend(entries))


def _images(session: Session, answer: Answer, shape: tuple[int, int, int]) -> Markup:
    witness = None if answer.claim is None or answer.claim.witness is None else answer.claim.witness[0].numpy()
    x = answer.question.x[0].numpy()
    return input_images(x, witness, shape, session.domain, size=160, class_="images card")


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
    rows = (
        (str(i), at_least(low), at_most(high), short(m))
        for i, ((low, high), m) in enumerate(zip(certified, mean, strict=True))
    )
    names = ("class" if decides else "output", "at least", "at most", "at the input")
    return (chart, legend(entries), number_table(names, rows, "numbers"))


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
    return frame.svg(
        f"Certified bounds of {len(certified)} outputs on the ball.",
        tag("path", d=boxes(certified, 0.3), class_="interval"),
        tag("path", d=boxes(inside, 0.12), class_="inside"),
        tag("path", d=marks, class_="line mean"),
    )


def _distance(session: Session, answer: Answer) -> Child:
    """Of one input and one output: the affine bounds less the mean, for both are hard to tell apart beside it."""
    affine = answer.bounds.affine
    if affine is None or session.network.n_in != 1 or not answer.box.lower.item() < answer.box.upper.item():
        return None
    lower, upper = distances(session.network, affine)
    chart = distance_chart(lower, upper, text="The certified affine bounds on the ball, less the mean.")
    return (chart.inline(), legend([("bound", "certified affine bounds"), ("mean", "mean, from inside")]))
