"""Waiting in the browser: a page may be replaced by another at any time."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browser import Browser, PageReplacedError


@pytest.fixture
def pages(tmp_path: Path) -> tuple[str, str]:
    """Addresses of two pages."""
    paths = tmp_path / "first.html", tmp_path / "second.html"
    for path in paths:
        path.write_text("<!doctype html><p>A page</p>", encoding="utf-8")
    return paths[0].as_uri(), paths[1].as_uri()


def leaving_for(address: str) -> str:
    """True at an address; elsewhere a promise that is never kept, because its page is left for that address."""
    return f"location.href === '{address}' || new Promise(() => {{ location.href = '{address}'; }})"


def test_waiting_goes_on_after_the_page_was_replaced(browser: Browser, pages: tuple[str, str]) -> None:
    with browser.page(pages[0]) as page:
        page.wait(leaving_for(pages[1]))
        assert page.run("location.href") == pages[1]


def test_a_script_whose_page_is_replaced_has_no_value(browser: Browser, pages: tuple[str, str]) -> None:
    with browser.page(pages[0]) as page, pytest.raises(PageReplacedError, match=r"Runtime\.evaluate: "):
        page.run(leaving_for(pages[1]))
