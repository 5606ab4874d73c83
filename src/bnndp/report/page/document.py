"""The HTML document around a page: one style, one script, and a policy that allows no more.

Style and script stand in the page. The policy names them by their digests, so that a browser runs nothing else, and
nothing is fetched from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources

from bnndp.report.page.markup import Child, Markup, tag


def asset(name: str, package: str = "bnndp.report") -> Markup:
    """A file that comes with a package, in its folder ``assets``."""
    return Markup((resources.files(package) / "assets" / name).read_text(encoding="utf-8"))


def page_style() -> Markup:
    """The style of a page: that of charts first, for a page has its own ways on a phone."""
    return Markup(asset("chart.css") + asset("page.css"))


def policy(*, style: str, script: str, more: str = "") -> str:
    """A content security policy that allows this style, this script, pictures inside the page, and nothing else."""
    styles, scripts = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    own = f"style-src 'sha256-{styles}'; script-src 'sha256-{scripts}'; img-src data:"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'{more}"


def document(title: str, body: Child, *, style: Markup, script: Markup, more: str = "") -> str:
    """A whole HTML page."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy(style=style, script=script, more=more)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", style),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', body, tag('script', script)), lang='en')}\n"


def section(name: str, title: str, *content: Child) -> Markup:
    """A part of the page under its title."""
    return tag("section", tag("h2", title, id=f"{name}-title"), content, id=name, aria_labelledby=f"{name}-title")


def number_table(names: Sequence[str], rows: Iterable[Sequence[str]], name: str | None = None) -> Markup:
    """A table of numbers that opens on demand: a chart for those who would rather read it."""
    head = tag("thead", tag("tr", (tag("th", text, scope="col", class_="number") for text in names)))
    body = tag("tbody", (tag("tr", (tag("td", cell, class_="number") for cell in row)) for row in rows))
    return tag("details", tag("summary", "As numbers"), tag("table", head, body), id=name)
