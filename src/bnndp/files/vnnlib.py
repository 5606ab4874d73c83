"""Properties of networks from VNN-LIB 1.0 files: boxes of inputs, and which outputs are unsafe on them.

Read are ``(declare-const X_i Real)``, ``(declare-const Y_i Real)`` and ``(assert ...)`` of linear inequalities between
them, joined by ``and`` and ``or`` in any order. All assertions together describe counterexamples: an input and its
output that satisfy them. They are brought into disjunctive normal form, exactly, in rational numbers. Anything else is
refused: a constraint that is not understood may not be passed over.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product

from bnndp.errors import InputError, ModelFileError, one_line
from bnndp.files.compressed import read_compressed
from bnndp.files.expressions import Expression, expressions

__all__ = ["Case", "Inequality", "Property", "VnnBox", "parse_vnnlib", "read_vnnlib", "rounded"]

_NAME = re.compile(r"([XY])_(0|[1-9][0-9]{0,6})")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE]([+-]?[0-9]{1,9}))?")
_EXPONENT = 1000  # largest of a number that is read
_DIGITS = 1000  # most characters of a number
_LARGEST = 2**26  # bytes of a file
_MOST = 2**17  # inequalities after everything is multiplied out
_IGNORED = ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit")

Terms = Mapping[str, Fraction]
"""Coefficients of variables; that of ``""`` is the constant."""


@dataclass(frozen=True, slots=True)
class Inequality:
    """``sum c_i Y_i + sum d_i X_i <= bound``, exactly: pairs of index and coefficient, none of them zero."""

    outputs: tuple[tuple[int, Fraction], ...]
    inputs: tuple[tuple[int, Fraction], ...]
    bound: Fraction


@dataclass(frozen=True, slots=True)
class Case:
    """A box of inputs, and the counterexamples in it: those that satisfy all inequalities of one of ``unsafe``."""

    lower: tuple[Fraction, ...]
    upper: tuple[Fraction, ...]
    unsafe: tuple[tuple[Inequality, ...], ...]


@dataclass(frozen=True, slots=True)
class VnnBox:
    """A box by its ends, rounded outward, and the number of outputs that the file declares."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    outputs: int


@dataclass(frozen=True, slots=True)
class Property:
    """What a file says: the numbers of inputs and outputs that it declares, and the cases of a counterexample."""

    inputs: int
    outputs: int
    cases: tuple[Case, ...]

    def box(self) -> VnnBox:
        """The box of a property that is about inputs alone; any other is refused."""
        if any(conjunct for case in self.cases for conjunct in case.unsafe):
            raise InputError(
                "constrains outputs; only a box is read here, the question is asked by --label or bnndp verify."
            )
        if len(self.cases) != 1:
            raise InputError(
                f"holds {len(self.cases)} boxes of inputs; only one is read here, bnndp verify takes them all."
            )
        case = self.cases[0]
        lower = tuple(rounded(end, -math.inf) for end in case.lower)
        return VnnBox(lower, tuple(rounded(end, math.inf) for end in case.upper), self.outputs)


def read_vnnlib(path: str | os.PathLike[str]) -> Property:
    """The property in a file, which may be compressed by gzip; every fault is one line with the file."""
    try:
        text = read_compressed(path, _LARGEST).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(one_line(f"{path}: is not UTF-8 text: {error}")) from error
    try:
        return parse_vnnlib(text)
    except InputError as error:
        raise ModelFileError(one_line(f"{path}: {error}")) from error


def parse_vnnlib(text: str) -> Property:
    """The property of a text.

    >>> found = parse_vnnlib(
    ...     "(declare-const X_0 Real) (declare-const Y_0 Real)"
    ...     "(assert (and (<= X_0 0.5) (>= X_0 -1))) (assert (or (<= Y_0 -2) (>= Y_0 2)))"
    ... )
    >>> found.inputs, found.outputs, len(found.cases), len(found.cases[0].unsafe)
    (1, 1, 1, 2)
    """
    known = _Variables()
    claims: list[list[tuple[Inequality, ...]]] = []
    for command in expressions(text):
        if command.head in ("declare-const", "declare-fun"):
            known.declare(command)
        elif command.head == "assert" and len(command.items) == 2:
            claims.append(_alternatives(command.items[1], known))
        elif command.head in ("vnnlib-version", "declare-network"):
            raise command.fault("is of VNN-LIB 2.0; only files of VNN-LIB 1.0 are read.")
        elif command.head not in _IGNORED:
            raise command.fault("is not supported; use declare-const and assert.")
    known.expect_whole()
    return Property(len(known.inputs), len(known.outputs), _cases(claims, len(known.inputs)))


@dataclass(slots=True)
class _Variables:
    """Those that are declared."""

    inputs: set[int] = field(default_factory=set)
    outputs: set[int] = field(default_factory=set)

    def declare(self, command: Expression) -> None:
        """One more, by ``declare-const X_0 Real`` or ``declare-fun X_0 () Real``."""
        words = [item.word for item in command.items]
        shape = [None] if command.head == "declare-fun" else []
        name = _NAME.fullmatch(words[1]) if len(words) > 1 and words[1] is not None else None
        empty = not shape or (len(command.items) > 2 and command.items[2].content == ())
        if name is None or words[2:] != [*shape, "Real"] or not empty:
            raise command.fault("is not a supported declaration; write (declare-const X_0 Real).")
        known = self.inputs if name[1] == "X" else self.outputs
        if int(name[2]) in known:
            raise command.fault(f"declares {name[0]} twice.")
        known.add(int(name[2]))

    def term(self, word: Expression) -> Terms:
        """A variable or a number."""
        text = word.word or ""
        name = _NAME.fullmatch(text)
        if name is not None:
            if int(name[2]) not in (self.inputs if name[1] == "X" else self.outputs):
                raise InputError(f"line {word.line}: {text} is used before it is declared.")
            return {text: Fraction(1)}
        number = _NUMBER.fullmatch(text) if len(text) <= _DIGITS else None
        if number is None:
            raise word.fault("is neither a decimal number nor one of the variables X_0, ..., Y_0, ....")
        if abs(int(number[3] or 0)) > _EXPONENT:
            raise word.fault(f"is out of range: exponents go up to {_EXPONENT}.")
        return {"": Fraction(text)}

    def expect_whole(self) -> None:
        """Refuse gaps."""
        if not self.inputs:
            raise InputError("declares no inputs X_0, X_1, ...")
        for name, known in (("X", self.inputs), ("Y", self.outputs)):
            lacking = next((index for index in range(len(known)) if index not in known), None)
            if lacking is not None:
                raise InputError(f"declares {len(known)} variables {name}, but not {name}_{lacking}.")


def _alternatives(claim: Expression, known: _Variables) -> list[tuple[Inequality, ...]]:
    """A claim in disjunctive normal form."""
    parts = claim.items[1:]
    if claim.head == "or":
        return [found for part in parts for found in _alternatives(part, known)]
    if claim.head == "and":
        found = [_alternatives(part, known) for part in parts]
        _expect_few(found)
        return [tuple(each for part in choice for each in part) for choice in product(*found)]
    if claim.head not in ("<=", ">=", "<", ">", "=") or len(parts) != 2:
        raise claim.fault("is not supported; use (<= a b) and (>= a b) of linear terms, (and ...) and (or ...).")
    less, more = (_linear(part, known) for part in parts)
    if claim.head in (">=", ">"):
        less, more = more, less
    pairs = [(less, more), (more, less)] if claim.head == "=" else [(less, more)]
    return [tuple(_inequality(_sum([a, _times(b, Fraction(-1))])) for a, b in pairs)]


def _expect_few(parts: list[list[tuple[Inequality, ...]]]) -> None:
    """Refuse what would be too long when it is multiplied out."""
    count = math.prod(len(part) for part in parts)
    size = sum(max(map(len, part), default=0) for part in parts)
    if count > 1 and count * max(1, size) > _MOST:
        raise InputError(f"holds {count} combinations of its alternatives, more than can be read.")


def _linear(term: Expression, known: _Variables) -> Terms:
    """A term as a sum of variables."""
    if term.word is not None:
        return known.term(term)
    parts = [_linear(part, known) for part in term.items[1:]]
    if term.head == "+" and parts:
        return _sum(parts)
    if term.head == "-" and parts:
        negative = [_times(part, Fraction(-1)) for part in parts]
        return negative[0] if len(parts) == 1 else _sum([parts[0], *negative[1:]])
    if term.head == "*" and parts:
        factors = [part.get("", Fraction(0)) for part in parts if not set(part) - {""}]
        others = [part for part in parts if set(part) - {""}]
        if len(others) <= 1:
            return _times(others[0] if others else {"": Fraction(1)}, math.prod(factors, start=Fraction(1)))
    raise term.fault("is not a linear term; use numbers, variables, (+ ...), (- ...) and (* number variable).")


def _sum(parts: Iterable[Terms]) -> Terms:
    total: dict[str, Fraction] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, Fraction(0)) + value
    return total


def _times(part: Terms, factor: Fraction) -> Terms:
    return {name: value * factor for name, value in part.items()}


def _inequality(terms: Terms) -> Inequality:
    """The inequality ``terms <= 0``."""
    used = sorted((name[0], int(name[2:]), value) for name, value in terms.items() if name and value != 0)
    inputs, outputs = (tuple((index, value) for of, index, value in used if of == kind) for kind in "XY")
    return Inequality(outputs, inputs, -terms.get("", Fraction(0)))


def _cases(claims: list[list[tuple[Inequality, ...]]], inputs: int) -> tuple[Case, ...]:
    """All claims together, by the boxes of inputs; alternatives that no input satisfies are left out."""
    sure = tuple(each for claim in claims if len(claim) == 1 for each in claim[0])
    open_ = [claim for claim in claims if len(claim) != 1]
    _expect_few(open_)
    common = _Part({}, {}, ()).cut(sure)
    common.expect_possible()
    found: dict[object, tuple[_Part, list[tuple[Inequality, ...]]]] = {}
    for choice in product(*open_):
        part = common.cut(tuple(each for alternative in choice for each in alternative))
        if part.crossed is None and part.possible:
            part.expect_both_ends(inputs)
            key = tuple(part.lower.items()), tuple(part.upper.items())
            found.setdefault(key, (part, []))[1].append(part.rows)
    if not found:
        raise InputError("no input satisfies any of the alternatives; the file asks nothing.")
    order = range(inputs)
    return tuple(
        Case(tuple(part.lower[i] for i in order), tuple(part.upper[i] for i in order), tuple(unsafe))
        for part, unsafe in found.values()
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A conjunction: the ends of the inputs that it gives, and its other inequalities."""

    lower: Mapping[int, Fraction]
    upper: Mapping[int, Fraction]
    rows: tuple[Inequality, ...]
    possible: bool = True  # no inequality between numbers is false
    crossed: int | None = None  # an input whose lower end is above its upper one

    def cut(self, more: tuple[Inequality, ...]) -> _Part:
        """With more inequalities."""
        lower, upper, rows, possible = dict(self.lower), dict(self.upper), list(self.rows), self.possible
        crossed = self.crossed
        for each in more:
            if each.outputs or len(each.inputs) > 1:
                rows.append(each)
            elif not each.inputs:
                possible = possible and each.bound >= 0
            else:
                (index, factor), end = each.inputs[0], each.bound / each.inputs[0][1]
                if factor > 0:
                    upper[index] = min(end, upper.get(index, end))
                else:
                    lower[index] = max(end, lower.get(index, end))
                if index in lower and index in upper and lower[index] > upper[index]:
                    crossed = index
        return _Part(lower, upper, tuple(rows), possible, crossed)

    def expect_possible(self) -> None:
        """Refuse what no input satisfies."""
        if not self.possible:
            raise InputError("asserts an inequality between numbers that is false.")
        if self.crossed is not None:
            ends = f"between {float(self.lower[self.crossed])!r} and {float(self.upper[self.crossed])!r}"
            raise InputError(f"the box is empty: X_{self.crossed} is to lie {ends}.")

    def expect_both_ends(self, inputs: int) -> None:
        """Refuse inputs without ends."""
        for index in range(inputs):
            if index not in self.lower or index not in self.upper:
                end = "lower" if index not in self.lower else "upper"
                raise InputError(f"X_{index} has no {end} end; a box needs both for every input.")


def rounded(value: Fraction, direction: float) -> float:
    """The nearest float64 that is not on the other side.

    >>> rounded(Fraction(1, 10), -math.inf) < Fraction(1, 10) < rounded(Fraction(1, 10), math.inf)
    True
    """
    try:
        found = float(value)
    except OverflowError as error:
        raise InputError(f"a number of {value.numerator.bit_length()} bits is too large.") from error
    wrong = found < value if direction > 0 else found > value
    return math.nextafter(found, direction) if wrong else found
