"""HTML that is safe by construction: whatever is not :class:`Markup` is escaped when it is put into an element.

There is no other way into a page. Names of elements and attributes are written in the code, never taken from data.
Characters that cannot be seen but change how a text reads (controls, marks that turn the direction of writing round,
halves of surrogate pairs) are shown by their numbers.
"""

from __future__ import annotations

import html
import json
import unicodedata
from collections.abc import Iterable
from typing import TypeAlias


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = str | int | Iterable["Child"] | None
"""What may stand in an element: text, markup, nothing, or several of them."""

_VOID = frozenset({"meta", "input", "img", "br"})  # elements without an end
_INVISIBLE = ("Cc", "Cf", "Cs")  # categories of characters: controls, format marks, surrogates


def escaped(text: str) -> Markup:
    r"""A text as it is read, whatever is in it.

    >>> escaped("<b>\u202e&")
    '&lt;b&gt;\\u202e&amp;'
    """
    return Markup(html.escape("".join(map(_visible, text)), quote=True))


def _visible(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _INVISIBLE:
        return character
    return f"\\u{ord(character):04x}"


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """An element. ``class_`` stands for class, ``aria_label`` for aria-label; None and False leave an attribute out.

    >>> tag("p", "a < b", tag("em", "!"), class_="note", hidden=True, title=None)
    '<p class="note" hidden>a &lt; b<em>!</em></p>'
    """
    named = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{named}>")
    return Markup(f"<{name}{named}>{joined(children)}</{name}>")


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f" {name}" if value is True else f' {name}="{escaped(text)}"'


def joined(child: Child) -> Markup:
    """All of it, one after the other."""
    if child is None:
        return Markup("")
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int):
        return escaped(str(child))
    return Markup("".join(map(joined, child)))


def data_script(name: str, data: object) -> Markup:
    """Data for the script of the page; nothing in it can end the element or begin another."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return tag("script", Markup(text), type="application/json", id=name)
