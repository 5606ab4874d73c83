"""Tables of names: which tensors of a foreign file are which of ours, and by which function.

A table is a list of rows, one for each name that a layer may have: a template such as ``<layer>.rho_weight``, what that
tensor is, and how its values become ours. A name that no row fits is refused, never left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bnndp.errors import InputError, ModelFileError
from bnndp.importers.values import TRANSFORMS, to_float64, to_std

ROLES = ("weight_mean", "weight_std", "bias_mean", "bias_std", "weight", "bias", "copy", "unused")
"""The first four are ours. ``weight`` and ``bias`` have no variance; a ``copy`` is of another tensor of its layer."""

LAYOUTS = ("out_in", "in_out")
"""How the axes of a weight lie: as in torch, or inputs before outputs, with height and width of a kernel first."""

_LAYER = "<layer>"


@dataclass(frozen=True, slots=True)
class Row:
    """One name of a layer's tensors."""

    name: str  # a template
    role: str
    transform: str = "none"  # of a standard deviation, in values.TRANSFORMS
    layout: str = "out_in"  # of a weight
    of: str = ""  # of a copy: the template of the original
    stale: bool = False  # whether a copy may differ from the original, which is then the posterior
    _form: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.name.count(_LAYER) != 1:
            raise InputError(f"the name {self.name!r:.80} must have {_LAYER} in it, once.")
        for key, known in (("role", ROLES), ("transform", tuple(TRANSFORMS)), ("layout", LAYOUTS)):
            value = getattr(self, key)
            if value not in known:
                raise InputError(
                    f"the row of {self.name!r:.80} has the {key} {value!r:.40}; known: {', '.join(known)}."
                )
        if self.transform != "none" and not self.role.endswith("_std"):
            raise InputError(f"the row of {self.name!r:.80} has a transform, but is not a standard deviation.")
        before, _, after = (re.escape(part) for part in self.name.partition(_LAYER))
        nameless = not before and after.startswith(r"\.")  # a single layer has no name, and no dot after it
        form = rf"(?:(?P<layer>.+)\.)?{after[2:]}" if nameless else rf"{before}(?P<layer>.+){after}"
        object.__setattr__(self, "_form", re.compile(form))

    def layer(self, name: str) -> str | None:
        """The layer that a tensor of that name belongs to, None if the row does not fit."""
        found = self._form.fullmatch(name)
        return None if found is None else found["layer"] or "layer"

    def value(self, name: str, tensor: Tensor) -> Tensor:
        """What we make of the tensor: float64, in the layout of torch."""
        tensor = to_std(name, tensor, self.transform) if self.role.endswith("_std") else to_float64(name, tensor)
        if self.layout == "in_out" and self.role.startswith("weight"):
            tensor = tensor.T if tensor.ndim == 2 else tensor.permute(-1, -2, *range(tensor.ndim - 2))
        return tensor.contiguous()


FIXED = (Row("<layer>.weight", "weight"), Row("<layer>.bias", "bias"))
"""Layers of torch, which have no variance."""


@dataclass(frozen=True, slots=True)
class Table:
    """The names of one library."""

    name: str
    formula: str  # what ours are in terms of theirs
    rows: tuple[Row, ...]  # the first that fits a name counts
    signs: tuple[tuple[str, ...], ...]  # templates of rows: it is known by all names of one of these
    remark: str = ""  # always true of its files
    idle_biases: bool = False  # whether a layer may hold biases that it does not use

    @property
    def looks_for(self) -> str:
        """The signs in words."""
        return " or ".join(" with ".join(each) for each in self.signs)

    def knows(self, names: Sequence[str]) -> bool:
        """Whether these are its names."""
        return any(all(any(Row(sign, "unused").layer(name) for name in names) for sign in each) for each in self.signs)

    def layers(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, dict[str, Tensor]], tuple[str, ...]]:
        """Tensors by layer and role, in the order of the file, and remarks on them."""
        layers: dict[str, dict[str, Tensor]] = {}
        copies: list[tuple[str, str, Row]] = []
        for name, tensor in tensors.items():
            row, layer = self._row(name)
            if row.role == "copy":
                copies.append((name, layer, row))
            elif row.role != "unused":
                parts = layers.setdefault(layer, {})
                if row.role in parts:
                    raise ModelFileError(f"layer {layer!r:.80} has two tensors for its {row.role}, one is {name!r:.80}")
                parts[row.role] = row.value(name, tensor)
        return layers, tuple(remark for each in copies for remark in _compared(*each, tensors))

    def _row(self, name: str) -> tuple[Row, str]:
        for row in self.rows:
            layer = row.layer(name)
            if layer is not None:
                return row, layer
        known = ", ".join(dict.fromkeys(row.name for row in self.rows))
        raise ModelFileError(
            f"tensor {name!r:.80} is not known to {self.name}, whose names are {known}; a table of your own says what "
            f"others are: --table, docs/importers/torch.md; --ignore {name:.80} leaves it out"
        )


def _compared(name: str, layer: str, row: Row, tensors: Mapping[str, Tensor]) -> list[str]:
    """A copy against its original: refused if it must be the same and is not, else what there is to say."""
    start = "" if layer == "layer" and not name.startswith("layer.") else f"{layer}."
    original = row.of.replace(f"{_LAYER}.", start)
    if original not in tensors:
        raise ModelFileError(f"tensor {name!r:.80} is there, but not {original!r:.80}, which holds the posterior")
    if torch.equal(tensors[name], tensors[original]):
        return []
    if not row.stale:
        raise ModelFileError(f"tensors {name!r:.80} and {original!r:.80} must be the same, and differ")
    return [f"{name} differs from {original}: the latter is the posterior and was read"]


def layer_tensors(layers: Mapping[str, Mapping[str, Tensor]], *, bias: bool = True) -> dict[str, Tensor]:
    """Layers by role as tensors in our names; a layer without a bias gets one of zero.

    So do, without ``bias``, all layers whose biases have a variance: they hold some that they do not use.
    A mean without its std, or the reverse, is refused: the file is cut off, or the table is wrong.
    """
    found: dict[str, Tensor] = {}
    for layer, parts in layers.items():
        weight = _pair(layer, "weight", parts)
        pair = _pair(layer, "bias", parts) if bias or "bias" in parts else None
        if weight is None:
            raise ModelFileError(
                f"layer {layer!r:.80} has a {' and a '.join(parts)}, but no weight: a tensor is missing"
            )
        zeros = weight[0].new_zeros(weight[0].shape[:1])
        values = (*weight, *((zeros, zeros.clone()) if pair is None else pair))
        found |= {f"{layer}.{role}": value for role, value in zip(ROLES[:4], values, strict=True)}
    return found


def _pair(layer: str, part: str, parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
    """Mean and std of the weight or the bias, None if there is neither."""
    mean, std, fixed = (parts.get(name) for name in (f"{part}_mean", f"{part}_std", part))
    if fixed is not None and (mean is not None or std is not None):
        raise ModelFileError(f"layer {layer!r:.80} has a {part} with and one without variance: which one is used?")
    if fixed is not None:
        return fixed, torch.zeros_like(fixed)
    if mean is not None and std is not None:
        if mean.shape != std.shape:
            shapes = f"{tuple(mean.shape)} and {tuple(std.shape)}"
            raise ModelFileError(f"mean and std of the {part} of layer {layer!r:.80} have shapes {shapes}")
        return mean, std
    if mean is None and std is None:
        return None
    there, lacking = ("mean", "std") if std is None else ("std", "mean")
    raise ModelFileError(
        f"layer {layer!r:.80} has the {there} of its {part}, but not the {lacking}: a tensor is missing"
    )
