"""Markup cannot be broken out of."""

from __future__ import annotations

import pytest
from support.markup import outline

from bnndp.report.page.markup import Markup, data_script, tag

NASTY = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    '" onload="alert(1)',
    "' onclick='alert(1)",
    "&lt;b&gt;",
    "<!-- -->",
    "]]>",
    "\u202ereversed",
    "\x00\x1b[31m",
    "\ud800",
]


@pytest.mark.parametrize("text", NASTY)
def test_a_text_stays_a_text(text: str) -> None:
    found = outline(tag("p", text, title=text))
    assert found.names == ["p"]
    assert set(found.elements[0][1]) == {"title"}
    if text.isprintable():
        assert found.text == text
        assert found.elements[0][1]["title"] == text


@pytest.mark.parametrize("text", NASTY)
def test_data_do_not_leave_their_element(text: str) -> None:
    found = outline(data_script("d", {text: [text]}))
    assert found.names == ["script"]
    assert "<" not in data_script("d", text).removeprefix('<script type="application/json" id="d">')[:-9]


def test_what_cannot_be_seen_is_shown_by_its_number() -> None:
    assert tag("p", "a\u202eb\x00\ud800") == "<p>a\\u202eb\\u0000\\ud800</p>"


def test_only_markup_is_left_as_it_is() -> None:
    assert tag("p", Markup("<b>"), "<b>") == "<p><b>&lt;b&gt;</p>"
