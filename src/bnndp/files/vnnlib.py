"""Boxes of inputs from VNN-LIB files: the part of the language that says between which numbers each input lies.

Read are ``(declare-const X_i Real)``, ``(declare-const Y_i Real)`` and ``(assert ...)`` of ``(<= X_i c)`` and
``(>= X_i c)``, with either order of the two, or of an ``(and ...)`` of such. Anything else is refused: a constraint
that is not understood may not be passed over. A decimal that is not a float64 is rounded outward, so that the box holds
all that the file says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias

from bnndp.errors import InputError

_TOKEN = re.compile(r"\s+|;[^\n]*|(?P<open>\()|(?P<close>\))|(?P<word>[^\s();]+)")
_NAME = re.compile(r"([XY])_(0|[1-9][0-9]{0,6})")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_DEEP = 32  # parentheses within one another
_ASK = "the question about the outputs is asked by --label"

_Expression: TypeAlias = "str | list[_Expression]"


@dataclass(frozen=True, slots=True)
class VnnBox:
    """A box by its ends, and the number of outputs that the file declares."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    outputs: int


@dataclass(slots=True)
class _Found:
    """What was read so far."""

    inputs: set[int] = field(default_factory=set)
    outputs: set[int] = field(default_factory=set)
    lower: dict[int, float] = field(default_factory=dict)
    upper: dict[int, float] = field(default_factory=dict)

    def declare(self, words: list[_Expression]) -> None:
        name = _NAME.fullmatch(words[1]) if len(words) == 3 and isinstance(words[1], str) else None
        if name is None or words[2] != "Real":
            raise InputError(f"{_text(words)} is not a supported declaration; write (declare-const X_0 Real).")
        known = self.inputs if name[1] == "X" else self.outputs
        if int(name[2]) in known:
            raise InputError(f"{name[0]} is declared twice.")
        known.add(int(name[2]))

    def take(self, claim: _Expression) -> None:
        """One constraint, or all of an ``and``."""
        if isinstance(claim, list) and claim[:1] == ["and"]:
            for part in claim[1:]:
                self.take(part)
            return
        if not (isinstance(claim, list) and len(claim) == 3 and claim[0] in ("<=", ">=")):
            raise InputError(f"{_text(claim)} is not supported; use (<= X_0 1.0), (>= X_0 0.0) and (and ...) of them.")
        below = claim[0] == "<="
        first, second = claim[1], claim[2]
        if _is(_NUMBER, first):
            first, second, below = second, first, not below
        if not (_is(_NAME, first) and _is(_NUMBER, second)):
            raise InputError(f"{_text(claim)} does not compare one input with one number{_about_outputs(claim)}.")
        self._bound(str(first), str(second), below=below)

    def _bound(self, name: str, text: str, *, below: bool) -> None:
        index = int(name[2:])
        if name[0] == "Y":
            raise InputError(f"constrains the output {name}; only inputs are read, {_ASK}.")
        if index not in self.inputs:
            raise InputError(f"{name} is used before it is declared.")
        value = _outward(text, math.inf if below else -math.inf)
        if below:
            self.upper[index] = min(value, self.upper.get(index, math.inf))
        else:
            self.lower[index] = max(value, self.lower.get(index, -math.inf))

    def box(self) -> VnnBox:
        """All inputs with both ends."""
        if not self.inputs:
            raise InputError("declares no inputs X_0, X_1, ...")
        for name, known in (("X", self.inputs), ("Y", self.outputs)):
            lacking = sorted(set(range(len(known))) - known)
            if lacking:
                raise InputError(f"declares {len(known)} variables {name}, but not {name}_{lacking[0]}.")
        for index in range(len(self.inputs)):
            low, high = self.lower.get(index), self.upper.get(index)
            if low is None or high is None:
                end = "lower" if low is None else "upper"
                raise InputError(f"X_{index} has no {end} end; a box needs both for every input.")
            if low > high:
                raise InputError(f"the box is empty: X_{index} is to lie between {low!r} and {high!r}.")
        order = range(len(self.inputs))
        return VnnBox(tuple(self.lower[i] for i in order), tuple(self.upper[i] for i in order), len(self.outputs))


def parse_vnnlib(text: str) -> VnnBox:
    """The box of a file, by its text.

    >>> parse_vnnlib("(declare-const X_0 Real) (assert (and (<= X_0 0.5) (>= X_0 -1)))")
    VnnBox(lower=(-1.0,), upper=(0.5,), outputs=0)
    """
    found = _Found()
    for command in _expressions(text):
        if isinstance(command, list) and command[:1] == ["declare-const"]:
            found.declare(command)
        elif isinstance(command, list) and command[:1] == ["assert"] and len(command) == 2:
            found.take(command[1])
        else:
            raise InputError(f"{_text(command)} is not supported; use declare-const and assert.")
    return found.box()


def _expressions(text: str) -> Iterator[_Expression]:
    """The expressions of a text, one after the other."""
    open_: list[list[_Expression]] = []
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise InputError(f"{text[position : position + 20]!r} cannot be read.")
        position = token.end()
        done: _Expression | None = token["word"]
        if token["open"]:
            open_.append([])
            if len(open_) > _DEEP:
                raise InputError(f"has more than {_DEEP} parentheses within one another.")
        elif token["close"]:
            if not open_:
                raise InputError("closes a parenthesis that was not opened.")
            done = open_.pop()
        if done is not None:
            if open_:
                open_[-1].append(done)
            else:
                yield done
    if open_:
        raise InputError("ends within parentheses; the file is not whole.")


def _outward(text: str, direction: float) -> float:
    """The decimal as float64, rounded in ``direction`` where it is none."""
    value = float(text)
    if not math.isfinite(value):
        raise InputError(f"{text:.40} is too large a number.")
    exact, found = Decimal(text), Decimal(value)
    wrong = found < exact if direction > 0 else found > exact
    return math.nextafter(value, direction) if wrong else value


def _is(pattern: re.Pattern[str], word: _Expression) -> bool:
    return isinstance(word, str) and pattern.fullmatch(word) is not None


def _about_outputs(claim: list[_Expression]) -> str:
    words = (word for word in claim[1:] if isinstance(word, str))
    return f"; {_ASK}" if any(word.startswith("Y_") for word in words) else ""


def _text(expression: _Expression) -> str:
    """The beginning of an expression, for messages."""
    if isinstance(expression, str):
        return expression[:60]
    inner = " ".join(_text(part) for part in expression[:4]) + (" ..." if len(expression) > 4 else "")
    return f"({inner})"[:120]
