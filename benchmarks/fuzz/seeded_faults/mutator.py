"""Mutants of a module: its source with one small change, of kinds that turn bounds into no bounds.

Comparisons and signs are flipped, factors turned over, terms and guards dropped, minimum and maximum, up and down,
lower and upper exchanged, constants doubled, halved and negated, and reassignments left out. Only code that computes is
changed: not docstrings, annotations, messages of errors, subscripts or the names of axes.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Mutant", "mutants", "sample"]

_SWAPS = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("clamp_min", "clamp_max"),
    ("amin", "amax"),
    ("fmin", "fmax"),
    ("argmin", "argmax"),
    ("up", "down"),
    ("lower", "upper"),
    ("smaller", "larger"),
    ("low", "high"),
)
_OTHER = {a: b for pair in _SWAPS for a, b in (pair, pair[::-1])}
_GUARDS = {"clamp_min", "clamp_max", "clamp", "nan_to_num", "abs", "square", "sqrt"}
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.Gt, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip
_NO_BOUNDS = {"__repr__", "__post_init__", "footprint"}
_AXES = {"dim", "keepdim", "dtype", "device", "dims", "strict"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed source, with what was changed where."""

    file: str
    line: int
    old: str
    new: str
    source: str

    @property
    def name(self) -> str:
        """One line to tell it by."""
        return f"{self.file}:{self.line}: {_short(self.old)} -> {_short(self.new)}"


def mutants(file: str, source: str) -> list[Mutant]:
    """All mutants of a source, in the order of the text."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, new in _changes(ast.parse(source)):
        begin, end = _span(source, starts, node)
        old = source[begin:end]
        found.append(Mutant(file, node.lineno, old, new, source[:begin] + new + source[end:]))
    unique = {mutant.source: mutant for mutant in found}
    return sorted(unique.values(), key=lambda mutant: (mutant.line, mutant.old, mutant.new))


def sample(file: str, source: str, count: int, seed: int) -> list[Mutant]:
    """So many mutants of a source, drawn without repetition: the same ones for the same seed and source."""
    every = mutants(file, source)
    return random.Random(f"{seed} {file}").sample(every, min(count, len(every)))


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 100 else flat[:97] + "..."


def _span(source: str, starts: list[int], node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Where a node stands, in characters (the tree counts bytes of UTF-8)."""
    ends = []
    for line, column in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)):
        if line is None or column is None:
            raise ValueError(f"a node of the tree has no end: {ast.dump(node)}")
        start = starts[line - 1]
        text = source[start : starts[line]]
        ends.append(start + len(text.encode()[:column].decode()))
    return ends[0], ends[1]


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Nodes and the texts that take their places."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name not in _NO_BOUNDS:
            assigned = {argument.arg for argument in function.args.args}
            for statement in function.body:
                yield from _dropped(statement, assigned)
    for node in _computing(tree):
        if isinstance(node, ast.expr):
            yield from ((node, f"({ast.unparse(new)})") for new in _variants(node))


def _dropped(statement: ast.stmt, assigned: set[str]) -> Iterator[tuple[ast.stmt, str]]:
    """Assignments to a name that has a value already are left out."""
    if isinstance(statement, ast.AugAssign):
        yield statement, "pass"
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        names = {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}
        if isinstance(target, ast.Name) and target.id in assigned:
            yield statement, "pass"
        assigned |= names
    elif isinstance(statement, ast.If | ast.For | ast.With | ast.While):
        for inner in [*statement.body, *(statement.orelse if not isinstance(statement, ast.With) else [])]:
            yield from _dropped(inner, assigned)


def _computing(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of code that computes."""
    for child in ast.iter_child_nodes(tree):
        if _is_left_alone(child):
            continue
        if isinstance(child, ast.FunctionDef):
            for statement in child.body:
                yield from _computing(ast.Module([statement], []))
        elif isinstance(child, ast.AnnAssign | ast.Subscript):  # without the annotation, without the index
            if child.value is not None:
                yield child.value
                yield from _computing(child.value)
        else:
            yield child
            yield from _computing(child)


def _is_left_alone(node: ast.AST) -> bool:
    """Whether a part of the tree computes nothing that a bound rests on."""
    if isinstance(node, ast.FunctionDef):
        return node.name in _NO_BOUNDS
    if isinstance(node, ast.keyword):
        return node.arg in _AXES
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)  # a docstring
    return isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.JoinedStr | ast.Slice | ast.arguments)


def _variants(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        yield ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BinOp):
        yield from _sums_and_products(node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.Attribute) and node.attr in _OTHER and isinstance(node.ctx, ast.Load):
        yield ast.Attribute(node.value, _OTHER[node.attr], node.ctx)
    elif isinstance(node, ast.Constant) and type(node.value) is float and node.value != 0:
        yield from map(ast.Constant, (2 * node.value, node.value / 2, -node.value))


def _sums_and_products(node: ast.BinOp) -> Iterator[ast.expr]:
    if type(node.op) in _OPERATORS:
        yield ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
    if isinstance(node.op, ast.Add | ast.Sub):
        yield node.left
    if isinstance(node.op, ast.Add | ast.Mult):
        yield node.right


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    """A function exchanged for its counterpart, and methods that guard a value left out."""
    function = node.func
    if isinstance(function, ast.Name) and function.id in _OTHER:
        yield ast.Call(ast.Name(_OTHER[function.id]), node.args, node.keywords)
    if isinstance(function, ast.Attribute) and function.attr in _GUARDS and _is_value(function.value):
        yield function.value


def _is_value(node: ast.expr) -> bool:
    """Whether an expression is a value, not a module."""
    return not (isinstance(node, ast.Name) and node.id in ("torch", "math", "np"))
