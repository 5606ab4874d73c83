r"""IVON: means are the weights of the network, variances lie in the state of the optimiser.

A weight with the curvature :math:`h` has the standard deviation :math:`1/\sqrt{\lambda(h+\delta)}`, with the effective
sample size :math:`\lambda` (``ess``) and the weight decay :math:`\delta` of its group of parameters. Curvatures are one
flat vector per group, in the order in which the optimiser was given the parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bnndp.errors import ModelFileError
from bnndp.importers.architecture import Architecture, merge_architecture
from bnndp.importers.flatten import flat, state_of
from bnndp.importers.foreign import Choices, Foreign, Imported, Importer
from bnndp.importers.live import describe_network, posterior_of_live
from bnndp.importers.prefixes import network_tensors, optimisers
from bnndp.importers.tables import layer_tensors
from bnndp.importers.values import to_float64, to_std
from bnndp.network import Posterior

_HESS = re.compile(r"(?:.*\.)?param_groups\.\d+\.hess")


def _knows(foreign: Foreign) -> bool:
    """Whether a group of parameters has curvatures."""
    return any(map(_HESS.fullmatch, foreign.tensors))


def _read(foreign: Foreign, choices: Choices) -> Imported:
    """Weights as means; stds by the formula, zero for parameters that the optimiser does not hold."""
    tensors = _network(foreign, choices)
    groups = _groups(foreign)
    stds = _stds(groups, tensors, _order(groups, tensors, choices))
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        if part not in ("weight", "bias"):
            raise ModelFileError(f"tensor {name!r:.80} of the network is not a weight or bias of a layer")
        mean = to_float64(name, tensor)
        parts = layers.setdefault(layer or "layer", {})
        parts |= {f"{part}_mean": mean, f"{part}_std": stds.get(name, torch.zeros_like(mean))}
    fixed = [name for name in tensors if name not in stds]
    remarks = ["the weights are taken for means: they must have been saved outside of sampled_params()"]
    remarks += [f"not in the optimiser, so without variance: {', '.join(fixed[:4])}"] if fixed else []
    formula = "mean = weight, std = 1/sqrt(ess*(hess + weight_decay))"
    return Imported((layer_tensors(layers),), formula, remarks=tuple(remarks))


def _network(foreign: Foreign, choices: Choices) -> dict[str, Tensor]:
    if choices.beside is not None:
        return network_tensors(choices.beside)
    try:
        return network_tensors(foreign)
    except ModelFileError as error:
        raise ModelFileError(f"{error}; give the state_dict of the network by --beside") from error


IVON = Importer("ivon", "param_groups.<number>.hess", ("beside", "table"), _knows, _read)
"""Networks trained by ``ivon-opt``: state_dicts of the optimiser and of the network, in one file or in two."""


def from_ivon(
    network: object,
    optimiser: object,
    architecture: Architecture | None = None,
    *,
    task: str | None = None,
    activation: str | None = None,
    parameters: Sequence[str] | None = None,
) -> Posterior:
    """Read the network that IVON trained. Call it outside of ``sampled_params()``.

    Args:
        network: The module, which says its activations, or its ``state_dict()``.
        optimiser: The optimiser, or its ``state_dict()``.
        architecture: The layers, and anything else that the module does not specify.
        task: ``"regression"`` or ``"classification"``, if not given in ``architecture``.
        activation: The activation between each two layers, if not given in ``architecture``.
        parameters: The names of the optimiser's parameters in its order. Needed if it has several groups, or does not
            hold all parameters of the network.

    Returns:
        The network, with variance in the parameters that the optimiser holds.

    Examples:
        >>> group = {"hess": torch.ones(3), "ess": 4.0, "weight_decay": 0.0, "params": [0, 1]}
        >>> module = torch.nn.Linear(2, 1)
        >>> network = from_ivon(module, {"state": {}, "param_groups": [group]}, task="regression")
        >>> network.linears[0].weight_std  # 1 / sqrt(4 (1 + 0))
        tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    given = merge_architecture(architecture, task, activation)
    table = None if parameters is None else {"parameters": list(parameters)}
    choices = Choices(beside=flat(state_of(network)), table=table)
    found = IVON.read(flat(state_of(optimiser)), choices)
    return posterior_of_live(found, given, partial(describe_network, network, found))


@dataclass(frozen=True, slots=True)
class _Group:
    """Parameters of the optimiser that have the same settings."""

    hess: Tensor  # (numbers in all its parameters,)
    count: int  # parameters
    ess: float
    weight_decay: float

    def __post_init__(self) -> None:
        if not (0 < self.ess < math.inf and 0 <= self.weight_decay < math.inf):
            raise ModelFileError(f"a group has ess {self.ess} and weight_decay {self.weight_decay}; expected > 0, >= 0")

    def std(self) -> Tensor:
        """The formula; refused where the curvature is not a positive number."""
        return to_std("hess", self.ess * (self.hess + self.weight_decay), "rsqrt")


def _groups(foreign: Foreign) -> list[_Group]:
    found = optimisers(foreign)
    if len(found) != 1:
        raise ModelFileError(f"it holds the state of {len(found)} optimisers, expected one; choose by --key")
    state = foreign.below(found[0])
    groups = []
    for index in range(state.lists["param_groups"]):
        start = f"param_groups.{index}"
        hess, count = state.tensors.get(f"{start}.hess"), state.lists.get(f"{start}.params")
        settings = [state.values.get(f"{start}.{name}") for name in ("ess", "weight_decay")]
        numbers = [float(value) for value in settings if isinstance(value, int | float)]
        if hess is None or hess.ndim != 1 or count is None or len(numbers) < 2:
            raise ModelFileError(
                f"{start} lacks one of hess, params, ess and weight_decay: it is not a complete state of IVON"
            )
        groups.append(_Group(to_float64(f"{start}.hess", hess), count, *numbers))
    return groups


def _order(groups: list[_Group], tensors: dict[str, Tensor], choices: Choices) -> list[str]:
    """The names of the optimiser's parameters, which it does not keep: all of the network's, unless the user says."""
    count = sum(group.count for group in groups)
    given = None if choices.table is None else choices.table.get("parameters")
    if given is not None:
        if not isinstance(given, list) or not all(isinstance(name, str) and name in tensors for name in given):
            raise ModelFileError(
                f"'parameters' of --table must be names of the network: {', '.join(list(tensors)[:6])}"
            )
        if len(given) != count or len(set(given)) != count:
            raise ModelFileError(f"'parameters' of --table must be {count} names, all different, got {len(given)}")
        return given
    if (choices.beside is not None and not choices.beside.ordered) or _was_sorted(tensors):
        raise ModelFileError(
            "the tensors of the network are in no order, as those of all safetensors files; give the .pt file, or "
            "--table with parameters = [names in the order of the optimiser]"
        )
    if len(groups) > 1 or count != len(tensors):
        raise ModelFileError(
            f"the optimiser has {count} parameters in {len(groups)} groups, the network {len(tensors)} tensors, so "
            "their order is ambiguous; give --table with parameters = [names in the order of the optimiser]"
        )
    return list(tensors)


def _was_sorted(tensors: dict[str, Tensor]) -> bool:
    """Whether a bias comes before its weight, as in no module: some program has sorted the names."""
    place = {name: index for index, name in enumerate(tensors)}
    biases = (name for name in place if name.rpartition(".")[2] == "bias")
    return any(place.get(f"{name.removesuffix('bias')}weight", -1) > place[name] for name in biases)


def _stds(groups: list[_Group], tensors: dict[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    """Stds by name; refused unless each group has as many curvatures as its parameters have numbers."""
    found: dict[str, Tensor] = {}
    left = list(names)
    for index, group in enumerate(groups):
        own, left = left[: group.count], left[group.count :]
        sizes = [tensors[name].numel() for name in own]
        if sum(sizes) != group.hess.numel():
            raise ModelFileError(
                f"group {index} has {group.hess.numel()} curvatures, its parameters {', '.join(own[:4])} have "
                f"{sum(sizes)} numbers: this network is not the optimiser's"
            )
        parts = group.std().split(sizes)
        found |= {name: part.reshape(tensors[name].shape) for name, part in zip(own, parts, strict=True)}
    return found
