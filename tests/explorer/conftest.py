"""One browser for all tests of pages; they are skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Browser, find_browser, open_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("there is no Chromium; tools/setup_browser.sh installs one")
    with open_browser(program) as opened:
        yield opened
