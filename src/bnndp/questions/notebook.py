"""Results as tables of HTML, for notebooks: the first rows, and how many there are."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

_ROWS = 12  # shown; the rest is counted
_CELLS = 6  # numbers shown of a list


def html_table(caption: str, columns: Mapping[str, Sequence[object]]) -> str:
    """A table with these columns, all of one length; numbers have five digits, and everything is escaped.

    >>> html_table("one row", {"radius": [0.25], "verdict": ["<b>"]}).count("&lt;b&gt;")
    1
    """
    count = len(next(iter(columns.values()), ()))
    head = "".join(f'<th style="text-align:right">{html.escape(name)}</th>' for name in ("", *columns))
    rows = zip(range(_ROWS), *columns.values())  # noqa: B905 (the first rows)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    more = f"<p>and {count - _ROWS} more</p>" if count > _ROWS else ""
    title = f"<caption>{html.escape(caption)}</caption>"
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: object) -> str:
    return f'<td style="text-align:right">{html.escape(_text(value))}</td>'


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}" if math.isfinite(value) else {math.inf: "∞", -math.inf: "−∞"}.get(value, "–")
    if isinstance(value, (list, tuple)):
        more = ", …" if len(value) > _CELLS else ""
        return ", ".join(map(_text, value[:_CELLS])) + more if len(value) != 1 else _text(value[0])
    return str(value)
