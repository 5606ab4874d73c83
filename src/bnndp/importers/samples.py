"""Sets of samples as ensembles: a list of state_dicts, or weights and biases stacked along a first axis.

Deep ensembles, chains of HMC or SG-MCMC, draws of SWAG. Members of a list may be read by any other importer, so that an
ensemble of networks with Gaussian weights is a mixture of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from bnndp.errors import ModelFileError
from bnndp.importers.foreign import Choices, Foreign, Imported, Importer, expect_used
from bnndp.importers.mean_field import STATE_DICT, is_stacked
from bnndp.importers.prefixes import network_tensors
from bnndp.importers.values import to_float64

_WEIGHTS = "weights"  # of the samples, beside stacked ones


def samples_of(inner: Sequence[Importer]) -> Importer:
    """The importer of many networks in one file; ``inner`` are those of single networks."""

    def knows(foreign: Foreign) -> bool:
        parts = _listed(foreign)
        return any(each.knows(parts[0]) for each in inner) if parts else is_stacked(_stack(foreign)[0])

    def read(foreign: Foreign, choices: Choices) -> Imported:
        parts = _listed(foreign)
        return join_members(list(_members(parts, inner, choices))) if parts else _unstacked(*_stack(foreign), choices)

    looks_for = "a list of state_dicts, or <layer>.weight and .bias with a first axis of samples"
    return Importer("samples", looks_for, ("bias",), knows, read)


def _members(parts: tuple[Foreign, ...], inner: Sequence[Importer], choices: Choices) -> Iterator[Imported]:
    able = [each for each in inner if each.knows(parts[0])]
    if len(able) != 1:
        known = " or ".join(each.name for each in able) or "none of the importers"
        raise ModelFileError(f"its samples are known to {known}; save a list of state_dicts of one library")
    expect_used(able[0], choices)
    for index, part in enumerate(parts):
        if set(part.tensors) != set(parts[0].tensors):
            odd = sorted(set(part.tensors) ^ set(parts[0].tensors))[0]
            raise ModelFileError(f"sample {index} has other tensors than sample 0: {odd!r:.80} is in one of them only")
        try:
            yield able[0].read(part, choices)
        except ModelFileError as error:
            raise ModelFileError(f"sample {index}: {error}") from error


def join_members(found: list[Imported]) -> Imported:
    """Several posteriors as a mixture with equal shares; they must be of one kind."""
    first = found[0]
    if len(found) == 1:
        return first
    for index, each in enumerate(found):
        if each.formula != first.formula or dict(each.kinds) != dict(first.kinds):
            raise ModelFileError(f"part {index} is of another kind than part 0: {each.formula}, and {first.formula}")
        if each.task != first.task:
            raise ModelFileError(
                f"part {index} is for {each.task}, part 0 for {first.task}: they are not one posterior"
            )
    weights = None
    if any(each.weights is not None for each in found):
        weights = torch.cat([_weights(each) / len(found) for each in found])
    members = tuple(member for each in found for member in each.members)
    remarks = tuple(dict.fromkeys(remark for each in found for remark in each.remarks))
    ordered = all(each.ordered for each in found)
    return Imported(members, first.formula, weights, first.kinds, remarks, ordered, first.task)


def _weights(found: Imported) -> Tensor:
    n = len(found.members)
    return torch.full((n,), 1 / n, dtype=torch.float64) if found.weights is None else found.weights


def _listed(foreign: Foreign) -> tuple[Foreign, ...]:
    """The networks of the only list that holds all tensors; none if there is no such list."""
    for name, length in foreign.lists.items():
        starts = tuple(f"{name}.{index}".lstrip(".") for index in range(length))
        held = {
            next((start for start in starts if f"{each}.".startswith(f"{start}.")), each) for each in foreign.holders
        }
        below = all(not name or each.startswith(f"{name}.") for each in foreign.tensors)
        if length and held == set(starts) and below:
            return tuple(map(foreign.below, starts))
    return ()


def _stack(foreign: Foreign) -> tuple[dict[str, Tensor], Tensor | None]:
    """The tensors of the network, and beside them the weights of the samples."""
    try:
        tensors = network_tensors(foreign)
    except ModelFileError:
        return {}, None
    return tensors, tensors.pop(_WEIGHTS, None)


def sample_count(tensors: Mapping[str, Tensor]) -> int:
    """The length of the first axis, which must be the same of all tensors."""
    counts = {name: tensor.shape[0] if tensor.ndim else 0 for name, tensor in tensors.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        some = ", ".join(f"{name!r:.40}: {count}" for name, count in list(counts.items())[:4])
        raise ModelFileError(f"its tensors must have the same number of samples, on their first axis; got {some}")
    return next(iter(counts.values()))


def _unstacked(stack: dict[str, Tensor], weights: Tensor | None, choices: Choices) -> Imported:
    if weights is not None and weights.ndim != 1:
        raise ModelFileError(f"{_WEIGHTS} has shape {tuple(weights.shape)}; expected one number for each sample")
    count = sample_count(stack if weights is None else {**stack, _WEIGHTS: weights})
    expect_used(STATE_DICT, choices)
    each = [
        STATE_DICT.read(Foreign({name: tensor[index] for name, tensor in stack.items()}), choices)
        for index in range(count)
    ]
    found = join_members(each)
    shares = None if weights is None else to_float64(_WEIGHTS, weights)
    return Imported(found.members, f"{found.formula}, for each sample", shares, remarks=found.remarks)
