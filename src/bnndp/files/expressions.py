"""S-expressions, as SMT-LIB and VNN-LIB files hold them: words and lists in parentheses, each with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from bnndp.errors import InputError

__all__ = ["Expression", "expressions"]

_TOKEN = re.compile(r"\s+|;[^\n]*|(?P<open>\()|(?P<close>\))|(?P<word>[^\s();]+)")
_DEEP = 32  # parentheses within one another


@dataclass(frozen=True, slots=True)
class Expression:
    """A word, or a list of expressions."""

    content: str | tuple[Expression, ...]
    line: int

    @property
    def word(self) -> str | None:
        """The word; None of a list."""
        return self.content if isinstance(self.content, str) else None

    @property
    def items(self) -> tuple[Expression, ...]:
        """What the list holds; nothing of a word."""
        return () if isinstance(self.content, str) else self.content

    @property
    def head(self) -> str | None:
        """The word that a list begins with."""
        return self.items[0].word if self.items else None

    def fault(self, what: str) -> InputError:
        """An error about it, with its line and its beginning."""
        return InputError(f"line {self.line}: {self} {what}")

    def __str__(self) -> str:
        """The beginning, for messages."""
        if isinstance(self.content, str):
            return self.content[:60]
        inner = " ".join(map(str, self.content[:4])) + (" ..." if len(self.content) > 4 else "")
        return f"({inner})"[:120]


def expressions(text: str) -> Iterator[Expression]:
    """The expressions of a text, one after the other.

    >>> [str(each) for each in expressions("(assert (<= X_0 1)) ; a comment")]
    ['(assert (<= X_0 1))']
    """
    open_: list[tuple[int, list[Expression]]] = []
    line = 1
    for token in _TOKEN.finditer(text):  # between them the tokens cover any text
        found = token[0]
        if token["open"]:
            open_.append((line, []))
            if len(open_) > _DEEP:
                raise InputError(f"line {line}: more than {_DEEP} parentheses are within one another.")
            continue
        if token["close"]:
            if not open_:
                raise InputError(f"line {line}: a parenthesis is closed that was not opened.")
            begun, items = open_.pop()
            done = Expression(tuple(items), begun)
        elif token["word"]:
            done = Expression(found, line)
        else:
            line += found.count("\n")
            continue
        if open_:
            open_[-1][1].append(done)
        else:
            yield done
    if open_:
        raise InputError(f"the text ends within the parentheses opened in line {open_[0][0]}; the file is not whole.")
