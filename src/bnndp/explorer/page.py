"""The page of the explorer: controls on one side, what is proved on the other, in the style of the report."""

from __future__ import annotations

from collections.abc import Iterator

from bnndp.explorer.session import Session
from bnndp.report.page.document import asset, document, page_style
from bnndp.report.page.markup import Child, Markup, data_script, joined, tag


def explorer_page(session: Session) -> str:
    """The page; everything that changes is asked for by its script."""
    settings = {"free": session.free, "largest": session.largest, "points": _points(session)}
    body = (
        tag(
            "header",
            tag("div", tag("p", "bnndp explore", class_="kicker"), tag("h1", "Explore"), tag("p", session.name)),
            tag("button", "Dark", id="theme", type="button", hidden=True),
            class_="top",
        ),
        tag(
            "main",
            tag(
                "section",
                tag("h2", "Input and radius", id="controls-title"),
                tag("form", _choice(session), _sliders(session), _radius(session), id="controls", class_="controls"),
                aria_labelledby="controls-title",
            ),
            tag(
                "section",
                tag("h2", "What is proved", id="answer-title"),
                tag("div", id="sentence", role="status", aria_live="polite"),
                tag("div", tag("div", id="view"), tag("div", id="bounds"), class_="pair"),
                tag("p", id="state", class_="small"),
                aria_labelledby="answer-title",
            ),
            tag("noscript", tag("p", "This page needs its script.", class_="alarm")),
        ),
        data_script("settings", settings),
    )
    script = Markup(asset("page.js") + asset("explore.js", "bnndp.explorer"))
    return document(f"bnndp: {session.name}", body, style=page_style(), script=script, more="; connect-src 'self'")


def _points(session: Session) -> int:
    return 0 if session.x is None else session.x.shape[0]


def _choice(session: Session) -> Child:
    points = _points(session)
    if not points:
        return None
    return _number(f"Input, 0 to {points - 1}", "index", max=str(points - 1), step="1", value="0")


def _number(label: str, name: str, **settings: str) -> Markup:
    """A field for a number from 0 upward, and the place where the script says what is wrong with it."""
    fault = f"{name}-fault"
    field = tag("input", type="number", id=name, min="0", aria_describedby=fault, **settings)
    return tag("div", tag("label", label, field), tag("p", id=fault, class_="fault", role="alert"))


def _sliders(session: Session) -> Iterator[Markup]:
    """One for each number of an input that can be put anywhere; the picture moves them too."""
    if not session.free:
        return
    names = ("x",) if session.network.n_in == 1 else ("first input", "second input")
    for index, (name, (low, high)) in enumerate(zip(names, session.span, strict=True)):
        middle = (low + high) / 2 if session.x is None else session.x[0, index].item()
        ends = {"min": repr(low), "max": repr(high), "step": "any", "value": repr(middle)}
        shown = tag("span", f"{name} ", tag("strong", id=f"x{index}-shown"))  # an output would take the label
        yield tag("label", shown, tag("input", type="range", id=f"x{index}", **ends))


def _radius(session: Session) -> Markup:
    start = 0.025 * session.largest
    return joined(
        (
            _number("Radius ", "eps", max=repr(session.largest), step="any", value=f"{start:.3g}"),
            tag(
                "label",
                "Radius, by hand ",
                tag("input", type="range", id="eps-range", min="0", max="1", step="any", value="0.29"),
            ),
        )
    )
