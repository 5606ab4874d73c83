"""What a browser would see of a page."""

from __future__ import annotations

from html.parser import HTMLParser

__all__ = ["Outline", "outline"]


class Outline(HTMLParser):
    """Elements with their attributes, and the readable text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    @property
    def names(self) -> list[str]:
        """Of all elements."""
        return [name for name, _ in self.elements]

    @property
    def attributes(self) -> list[tuple[str, str, str | None]]:
        """Element, name and value of every attribute."""
        return [(tag, name, value) for tag, own in self.elements for name, value in own.items()]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if not self.elements or self.elements[-1][0] not in ("script", "style"):
            self.text += data


def outline(page: str) -> Outline:
    """The outline of a page or of a part of one."""
    found = Outline()
    found.feed(page)
    found.close()
    return found
