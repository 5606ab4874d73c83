"""A hook of mkdocs: links from docs/ to files of the repository beside it become plain text, for the site has none."""

from __future__ import annotations

import re

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:docs/|\.\./)+(?!docs)[^)]*\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """The page with links that lead out of docs/ replaced by their text."""
    return _OUTSIDE.sub(lambda found: found[1], markdown)
