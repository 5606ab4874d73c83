"""A hook of mkdocs: what the pages of docs/ have for their examples and for the repository, and a site has not.

Links to files of the repository beside docs/ become plain text. The mark ``no-run`` of a block, which is for
``tools/run_examples.py``, is left out: with it mkdocs would not know the block for one.
"""

from __future__ import annotations

import re

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:docs/|\.\./)+(?!docs)[^)]*\)")
_MARK = re.compile(r"^(```[a-z]+) no-run$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """The page as the site shows it."""
    return _MARK.sub(r"\1", _OUTSIDE.sub(lambda found: found[1], markdown))
