"""Guides of Pyro and TyXe: a ParamStore, or the state_dict of a guide.

Both hold unconstrained values; how scales come from them is in :mod:`bnndp.importers.pyro_scales`.

========================== =========================================================================================
``AutoNormal``             ``locs.<site>``, ``scales.<site>``: independent weights
``AutoDelta``              ``<site>``: no variance
``AutoDiagonalNormal``     ``loc``, ``scale``, vectors of all sites in the order of the trace
``AutoMultivariateNormal`` and ``scale_tril`` T: the covariance is L L^T with L = diag(scale) T
``AutoLowRank...``         and ``cov_factor`` F: the covariance is diag(scale) (F F^T + 1) diag(scale)
TyXe                       ``<site>.loc``, ``<site>.scale``
========================== =========================================================================================

Weights must have priors on all real numbers, such as normal ones: a guide of others is Gaussian in other coordinates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from bnndp.errors import ModelFileError
from bnndp.importers.foreign import Choices, Foreign, Imported, Importer
from bnndp.importers.gaussian import (
    REAL_PRIORS,
    Law,
    expect_joint_shapes,
    expect_scales,
    fixed_beside,
    site_shapes,
    to_layers,
)
from bnndp.importers.prefixes import shared_prefix
from bnndp.importers.pyro_scales import REAL, Param, remarks, scale, transform, words
from bnndp.importers.sites import site_table
from bnndp.importers.values import to_float64, to_std

_RAW = "_unconstrained"  # how a guide's state_dict marks values under a constraint
_STORE = "constraints."  # how values of a ParamStore begin
_MODULE = "$$$"  # of pyro.module: "net$$$0.weight" is a parameter without variance
_CERTAIN = {"weight": "out_in", "kernel": "in_out"}
_NORMAL = re.compile(r"(?:.*?\.)?(?P<kind>locs|scales)\.(?P<site>.+)")
_FLAT = re.compile(r"(?:.*\.)?(?P<kind>loc|scale|scale_tril|cov_factor)")
_TYXE = re.compile(r"(?P<site>.+)\.(?P<kind>loc|scale)")
_WEIGHT = re.compile(r".*(?:weight|bias|kernel|\b[wb])_?\d*")
_DIAGONALS = {"unit_lower_cholesky": "unit", "softplus_lower_cholesky": "softplus", "lower_cholesky": "exp"}


def _read_pyro(foreign: Foreign, choices: Choices) -> Imported:
    """By the form of guide that the names show."""
    params = _params(foreign)
    if any(_NORMAL.fullmatch(name) for name in params):
        found = _independent(params, _NORMAL, choices, "softplus")
    elif all(_FLAT.fullmatch(name) for name in params):
        found = _joint(params, choices)
    else:
        found = _point(params, choices)
    return _layers(found, choices, ordered=foreign.ordered)


PYRO = Importer(
    "pyro",
    "params with constraints, or locs.<site>_unconstrained, or loc with scale_unconstrained",
    ("scale_transform", "beside", "table", "ignore"),
    lambda foreign: _is_guide(foreign) and not _is_tyxe(foreign),
    _read_pyro,
)
"""Autoguides of Pyro."""


def _read_tyxe(foreign: Foreign, choices: Choices) -> Imported:
    """Location and scale of each site."""
    return _layers(_independent(_params(foreign), _TYXE, choices, "exp"), choices, ordered=foreign.ordered)


TYXE = Importer(
    "tyxe",
    "<site>.loc_unconstrained with <site>.scale_unconstrained",
    ("scale_transform", "beside", "table", "ignore"),
    lambda foreign: _is_guide(foreign) and _is_tyxe(foreign),
    _read_tyxe,
)
"""Guides of TyXe."""


@dataclass(frozen=True, slots=True)
class _Read:
    """The law of the sites of a guide, and how it was read."""

    law: Law
    formula: str
    remarks: tuple[str, ...] = ()


def _is_store(foreign: Foreign) -> bool:
    return any(name.startswith(_STORE) for name in foreign.values)


def _is_guide(foreign: Foreign) -> bool:
    return _is_store(foreign) or any(name.endswith(_RAW) for name in foreign.tensors)


def _is_tyxe(foreign: Foreign) -> bool:
    """Whether the location of any weight has a name of its own, as ``net.0.weight.loc``."""
    found = (_TYXE.fullmatch(name.removesuffix(_RAW)) for name in foreign.tensors)
    return any(each is not None and _WEIGHT.fullmatch(each["site"]) is not None for each in found)


def _params(foreign: Foreign) -> dict[str, Param]:
    """The parameters of either form, by their names in a ParamStore."""
    if not _is_store(foreign):
        return _once(
            (name.removesuffix(_RAW), Param(name, tensor, None if name.endswith(_RAW) else REAL))
            for name, tensor in foreign.tensors.items()
        )
    odd = next((name for name in foreign.tensors if not name.startswith("params.")), None)
    if odd is not None:
        raise ModelFileError(f"tensor {odd!r:.80} is not part of a ParamStore, whose tensors are in its entry params")
    names = {name.removeprefix("params."): name for name in foreign.tensors}
    return {own: Param(name, foreign.tensors[name], _constraint(foreign, own)) for own, name in names.items()}


_Value = TypeVar("_Value")


def _once(pairs: Iterable[tuple[str, _Value]]) -> dict[str, _Value]:
    """Values by name; refused if there are two of one name."""
    found: dict[str, _Value] = {}
    for name, value in pairs:
        if name in found:
            raise ModelFileError(f"it has {name!r:.80} twice: it holds several guides, save one")
        found[name] = value
    return found


def _constraint(foreign: Foreign, name: str) -> str:
    found = foreign.values.get(f"{_STORE}{name}")
    if not isinstance(found, str):
        raise ModelFileError(f"the ParamStore has no constraint of {name!r:.80}: it is cut off")
    return found


def _independent(params: Mapping[str, Param], form: re.Pattern[str], choices: Choices, default: str) -> _Read:
    """Sites with a location and a scale each, and parameters of registered modules, which have no variance."""
    matches = {name: form.fullmatch(name) for name in params}
    parts = {name: (found["kind"].rstrip("s"), found["site"]) for name, found in matches.items() if found is not None}
    means = _once((site, _location(params[name])) for name, (kind, site) in parts.items() if kind == "loc")
    raw = _once((site, params[name]) for name, (kind, site) in parts.items() if kind == "scale")
    expect_scales(means, raw)
    by = {site: transform(param, choices.scale_transform, default) for site, param in raw.items()}
    stds = {site: scale(param, by[site]) for site, param in raw.items()}
    fixed = _once(_fixed(name, params[name]) for name in params if name not in parts)
    notes = remarks(raw.values(), choices.scale_transform, default)
    return _Read(Law(means, stds).with_fixed(fixed), f"mean = loc, std = {words(by.values())}", notes)


def _fixed(name: str, param: Param) -> tuple[str, Tensor]:
    _, marked, site = name.partition(_MODULE)
    if not marked:
        raise ModelFileError(f"tensor {param.name!r:.80} is neither a location nor a scale of the guide")
    return site, _location(param)


def _location(param: Param) -> Tensor:
    if param.constraint not in (None, REAL):
        raise ModelFileError(
            f"{param.name!r:.80} is under the constraint {param.constraint!r:.60}; a mean must be real"
        )
    return to_float64(param.name, param.tensor)


def _layers(read: _Read, choices: Choices, *, ordered: bool) -> Imported:
    """The layers of all sites, with those of a second file, which have no variance."""
    table, law = site_table(choices), read.law
    start = "" if table.sites else shared_prefix([name for name in law.means if name not in table.ignore])

    def unprefixed(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name if name in table.ignore else name.removeprefix(start): value for name, value in values.items()}

    beside = fixed_beside(choices.beside)
    law = Law(unprefixed(law.means), unprefixed(law.stds), unprefixed(law.rows)).with_fixed(beside)
    tensors, kinds = to_layers(law, table, _CERTAIN, ordered=ordered and not beside)
    return Imported((tensors,), read.formula, kinds=kinds, remarks=(*read.remarks, REAL_PRIORS), ordered=True)


def _point(params: Mapping[str, Param], choices: Choices) -> _Read:
    """A guide without variance."""
    ignore = site_table(choices).ignore
    sites = _once((_site(name), param) for name, param in params.items())
    means = {site: param.tensor if site in ignore else _location(param) for site, param in sites.items()}
    return _Read(Law(means, {}), "mean = value, all std = 0")


def _site(name: str) -> str:
    """The site of a point: its name without that of the guide or the module."""
    first, _, rest = name.partition(".")
    return name.partition(_MODULE)[2] or (rest if first.startswith("Auto") and rest else name)


def _joint(params: Mapping[str, Param], choices: Choices) -> _Read:
    """One vector of all sites, with a diagonal, full or low-rank covariance."""
    kinds = {name: found["kind"] for name in params if (found := _FLAT.fullmatch(name)) is not None}
    parts = {kind: params[name] for name, kind in kinds.items()}
    if len(parts) < len(params):
        raise ModelFileError("it holds several guides; save one")
    if set(parts) not in _FORMS:
        raise ModelFileError(f"it has the {' and '.join(parts)} of a guide and nothing else: a tensor is missing")
    mean = _location(parts["loc"])
    shapes = site_shapes(site_table(choices), mean.numel())
    expect_joint_shapes({kind: tuple(param.tensor.shape) for kind, param in parts.items()}, "loc", mean.numel())
    std, factor, formula = _covariance(parts, len(mean), choices.scale_transform)
    notes = remarks([parts["scale"]], choices.scale_transform, "softplus") if "scale" in parts else ()
    return _Read(Law.joint(mean, std, factor, shapes), f"mean = loc, {formula}", notes)


_FORMS = (
    {"loc", "scale"},
    {"loc", "scale", "cov_factor"},
    {"loc", "scale", "scale_tril"},  # since Pyro 1.8
    {"loc", "scale_tril"},
)


def _covariance(parts: Mapping[str, Param], size: int, chosen: str | None) -> tuple[Tensor, Tensor | None, str]:
    """Stds of the independent part, the factor, and both in words."""
    if "scale" not in parts:
        lower, how = _lower(parts["scale_tril"], chosen)
        return torch.zeros(size, dtype=torch.float64), lower, f"std = 0, factor = {how}"
    by = transform(parts["scale"], chosen, "softplus")
    std, how = scale(parts["scale"], by), words([by])
    if "cov_factor" in parts:
        factor = to_float64(parts["cov_factor"].name, parts["cov_factor"].tensor)
        return std, std[:, None] * factor, f"std = s, factor = s cov_factor with s = {how}"
    if "scale_tril" in parts:
        lower, unit = _lower(parts["scale_tril"], "unit")
        return torch.zeros_like(std), std[:, None] * lower, f"std = 0, factor = s ({unit}) with s = {how}"
    return std, None, f"std = {how}"


def _lower(param: Param, chosen: str | None) -> tuple[Tensor, str]:
    """A triangular matrix from its values: with ones on the diagonal beside a scale, else what was constrained."""
    value = to_float64(param.name, param.tensor)
    found = chosen if param.constraint is None else _DIAGONALS.get(param.constraint)
    if found not in _DIAGONALS.values() or (found == "unit") != (chosen == "unit"):
        raise ModelFileError(
            f"how the diagonal of {param.name!r:.80} comes from its values is not known (constraint: "
            f"{param.constraint or 'unknown'}); give --scale-transform softplus for Pyro 1.7, exp for an older one"
        )
    if found == "unit":
        return value.tril(-1) + torch.eye(len(value), dtype=value.dtype), "1 + scale_tril below its diagonal"
    diagonal = to_std(param.name, value.diagonal(), str(found))
    return value.tril(-1) + diagonal.diag_embed(), f"scale_tril below its diagonal + {found}(its diagonal)"
