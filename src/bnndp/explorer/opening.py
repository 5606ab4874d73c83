"""Opening the page in the user's browser without showing its address to others.

The command line of a process can be seen by every user of the machine, and that of a browser holds what it is to open.
So it is given a file that only this user can read, which leads on to the address.
"""

from __future__ import annotations

import contextlib
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path

from bnndp.report.page.markup import tag

__all__ = ["opened"]


@contextlib.contextmanager
def opened(address: str) -> Iterator[Path]:
    """Open the browser; the file is there as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="bnndp-explore-") as folder:  # for this user only
        place = Path(folder) / "open.html"
        lead = tag("meta", http_equiv="refresh", content=f"0; url={address}")
        place.write_text(f"<!doctype html>{lead}{tag('a', 'Open the explorer', href=address)}", encoding="utf-8")
        webbrowser.open(place.as_uri())
        yield place
