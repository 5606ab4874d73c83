"""Scales of Pyro's guides from their unconstrained values: by the constraint in the file, or by what the user says.

A ParamStore keeps constraints: ``softplus_positive`` stands for softplus, ``greater_than 0.0`` for exp, ``interval 0.0
M`` for ``M sigmoid``. The state_dict of a guide keeps none. Pyro changed from exp (up to 1.6) to softplus (from 1.7),
TyXe has always had exp: that is the default, and a remark says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.errors import ModelFileError
from bnndp.importers.values import to_float64, to_std

REAL = "real"
_KNOWN = {"softplus_positive": "softplus", "greater_than 0.0": "exp", "greater_than 0": "exp"}
_INTERVAL = re.compile(r"(?:interval 0(?:\.0)?|sigmoid) (?P<most>[0-9.eE+-]+)")
_USUAL = {"softplus": "as Pyro has it since 1.7", "exp": "as TyXe has it without max_guide_scale"}
_ADVICE = "give --scale-transform exp, softplus or 'sigmoid M' (M is the largest scale)"


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a guide: its unconstrained value, and its constraint in words (None: the file does not say)."""

    name: str  # in the file
    tensor: Tensor
    constraint: str | None


def transform(param: Param, chosen: str | None, default: str) -> str:
    """By which function a scale comes from its value: ``softplus``, ``exp`` or ``sigmoid M``."""
    if param.constraint is not None:
        found = _stated(param.constraint)
        if found is None:
            raise ModelFileError(
                f"{param.name!r:.80} is under the constraint {param.constraint!r:.60}; those of scales that are known: "
                f"{', '.join(_KNOWN)}, interval 0.0 M"
            )
        if chosen is not None and _stated(chosen) != found and chosen != found:
            raise ModelFileError(
                f"the constraint of {param.name!r:.80} says {found}; leave out --scale-transform {chosen:.40}"
            )
        return found
    if chosen is None:
        return default
    if chosen not in _USUAL and _INTERVAL.fullmatch(chosen) is None:
        raise ModelFileError(f"the transform of scales is {chosen!r:.40}; {_ADVICE}")
    return _stated(chosen) or chosen


def _stated(text: str) -> str | None:
    interval = _INTERVAL.fullmatch(text)
    return _KNOWN.get(text) if interval is None else f"sigmoid {interval['most']}"


def scale(param: Param, function: str) -> Tensor:
    """The scale, by the function that :func:`transform` names."""
    interval = _INTERVAL.fullmatch(function)
    if interval is None:
        return to_std(param.name, param.tensor, function)
    try:
        most = float(interval["most"])
    except ValueError as error:
        raise ModelFileError(f"the transform of scales is {function!r:.40}; {_ADVICE}") from error
    return to_std(param.name, most * torch.sigmoid(to_float64(param.name, param.tensor)))


def words(functions: Iterable[str]) -> str:
    """The formula of scales.

    >>> words(["exp", "exp"]), words(["sigmoid 0.1"])
    ('exp(value)', '0.1 sigmoid(value)')
    """
    named = {f"{each.partition(' ')[2]} {each.partition(' ')[0]}".strip() for each in functions}
    return " or ".join(f"{each}(value)" for each in sorted(named)) or "0"


def remarks(params: Iterable[Param], chosen: str | None, default: str) -> tuple[str, ...]:
    """A remark if the function is only the usual one."""
    if chosen is not None or all(param.constraint is not None for param in params):
        return ()
    return (f"scales are read by {default}, {_USUAL[default]}; the file does not say. If it was not so, {_ADVICE}",)
