"""Putting faults into the package: every function of the certifier can be made to fail or to give NaN.

A point is one function or method. A fault wraps it while a claim is computed: it raises, or replaces numbers of the
result by NaN, at every call or at one of them only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

import bnndp
from bnndp.activations.activation import Activation
from bnndp.errors import CertError
from bnndp.network import KINDS, BayesianNetwork
from bnndp.options import Options

__all__ = ["FAULTS", "Fault", "HarnessError", "Point", "hits", "injected", "points"]

_LEFT_OUT = ("cli", "data", "explorer", "files", "importers", "report", "runs", "training")
_UNTOUCHED = (BayesianNetwork, Options, *KINDS.values())  # what is certified and how: not results


@dataclass(frozen=True)
class Point:
    """A function of a module, or a method or property of a class in it."""

    module: str
    owner: str | None
    name: str

    def __str__(self) -> str:
        return ".".join(part for part in (self.module.removeprefix("bnndp."), self.owner, self.name) if part)

    @property
    def home(self) -> Any:
        """The module or class that holds it."""
        module = sys.modules[self.module]
        return module if self.owner is None else getattr(module, self.owner)


@dataclass(frozen=True)
class Fault:
    """What goes wrong: ``error`` is raised, or NaN is in the result, everywhere or at one number of it."""

    name: str
    error: BaseException | None = None
    single: bool = False
    call: int | None = None  # only at this call, counted from 0; None: at all


FAULTS = (
    Fault("NaN"),
    Fault("one NaN", single=True),
    Fault("NaN once", call=0),
    Fault("NaN at the third call", call=2),
    Fault("error", RuntimeError("put in by the campaign")),
    Fault("error at the second call", RuntimeError("put in by the campaign"), call=1),
    Fault("no memory", MemoryError("put in by the campaign")),
    Fault("no memory on the device", torch.OutOfMemoryError("put in by the campaign")),
    Fault("interrupt", KeyboardInterrupt()),
    Fault("interrupt at the second call", KeyboardInterrupt(), call=1),
)


def points() -> list[Point]:
    """All functions and methods of the certifier."""
    found = []
    for entry in pkgutil.walk_packages(bnndp.__path__, "bnndp."):
        if entry.name.split(".")[1] in _LEFT_OUT:
            continue
        module = importlib.import_module(entry.name)
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != entry.name:
                continue
            if inspect.isfunction(value):
                found.append(Point(entry.name, None, name))
            elif inspect.isclass(value) and value is not Activation:
                found += [
                    Point(entry.name, name, method) for method, own in vars(value).items() if _is_method(method, own)
                ]
    return found


def _is_method(name: str, value: object) -> bool:
    return not name.startswith("__") and isinstance(value, property | classmethod | staticmethod | type(_is_method))


def poisoned(value: Any, *, single: bool) -> Any:
    """The value with NaN for its numbers; what is not a result is left alone."""
    again = functools.partial(poisoned, single=single)
    if isinstance(value, Tensor):
        return _poisoned_tensor(value, single=single)
    if isinstance(value, float):
        return float("nan")
    if isinstance(value, Generator):
        return (again(item) for item in value)
    if isinstance(value, tuple | list):
        items = [again(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not isinstance(value, _UNTOUCHED):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        changed = {name: again(part) for name, part in fields.items()}
        return dataclasses.replace(value, **{n: part for n, part in changed.items() if part is not fields[n]})
    return value


def _poisoned_tensor(value: Tensor, *, single: bool) -> Tensor:
    if not value.is_floating_point() or value.numel() == 0:
        return value
    found = value.detach().clone().contiguous()
    found.view(-1)[: 1 if single else None] = torch.nan
    return found


class HarnessError(BaseException):
    """The campaign itself is wrong; it must not count as an error of the package."""


def _harmed(result: Any, fault: Fault) -> Any:
    """With NaN; a record that refuses it does what it should."""
    try:
        return poisoned(result, single=fault.single)
    except CertError:
        raise
    except Exception as error:
        raise HarnessError(f"{type(result).__name__} cannot be harmed") from error


def _wrapped(function: Callable[..., Any], fault: Fault) -> Callable[..., Any]:
    count = 0

    @functools.wraps(function)
    def inner(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        now, count = fault.call in (None, count), count + 1
        if now and fault.error is not None:
            raise fault.error
        result = function(*arguments, **named)
        return _harmed(result, fault) if now else result

    return inner


@contextlib.contextmanager
def injected(point: Point, fault: Fault) -> Iterator[None]:
    """The fault at that point, wherever the package refers to it."""
    with _replaced(point, lambda function: _wrapped(function, fault)):
        yield


@contextlib.contextmanager
def _replaced(point: Point, wrap: Callable[[Any], Any]) -> Iterator[None]:
    original = vars(point.home)[point.name]
    if isinstance(original, property):
        new: Any = property(wrap(original.fget))
    elif isinstance(original, classmethod | staticmethod):
        new = type(original)(wrap(original.__func__))
    else:
        new = wrap(original)
    places = [vars(point.home)] if point.owner else list(_references(original))
    changed = [(place, key) for place in places for key, value in list(place.items()) if value is original]
    for place, key in changed:
        _put(point, place, key, new)
    try:
        yield
    finally:
        for place, key in changed:
            _put(point, place, key, original)


def _put(point: Point, place: Any, key: Any, value: object) -> None:
    if point.owner is not None:
        setattr(point.home, key, value)
    else:
        place[key] = value


def _references(original: object) -> Iterator[dict[Any, Any]]:
    """The namespaces of all modules of the package, and the dictionaries in them."""
    for name, module in list(sys.modules.items()):
        if name == "bnndp" or name.startswith("bnndp."):
            yield vars(module)
            yield from (
                value for value in list(vars(module).values()) if type(value) is dict and original in _values(value)
            )


def _values(table: dict[Any, Any]) -> list[Any]:
    return [value for value in table.values() if inspect.isfunction(value)]


def hits(run: Callable[[], object], among: list[Point]) -> list[Point]:
    """Which of the points a computation passes through."""
    codes = {inspect.unwrap(_function(point)).__code__: point for point in among}
    seen: set[Point] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in codes:
            seen.add(codes[frame.f_code])

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return [point for point in among if point in seen]


def _function(point: Point) -> Callable[..., Any]:
    found = vars(point.home)[point.name]
    return getattr(found, "fget", getattr(found, "__func__", found))  # of a property, a class method, or itself
