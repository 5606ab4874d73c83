"""Files in our own names, and state_dicts of torch, whose weights have no variance."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bnndp.errors import ModelFileError
from bnndp.importers.foreign import Choices, Foreign, Found
from bnndp.importers.prefixes import network_names, network_tensors, optimisers
from bnndp.importers.tables import FIXED, Table, layer_tensors

__all__ = ["OwnNames", "StateDict", "is_stacked"]

_TABLE = Table("state_dict", "weight_mean = weight, bias_mean = bias or 0, all std = 0", FIXED, ())


def _last(name: str) -> str:
    return name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class OwnNames:
    """Tensors by the names of docs/format.md."""

    name: str = "bnndp"
    looks_for: str = "<layer>.weight_mean"
    uses: tuple[str, ...] = ()

    def knows(self, foreign: Foreign) -> bool:
        """Whether any tensor is a ``weight_mean``."""
        return any(_last(name) == "weight_mean" for name in network_names(foreign))

    def read(self, foreign: Foreign, choices: Choices) -> Found:  # noqa: ARG002 (as of all importers)
        """The tensors as they are."""
        return Found((network_tensors(foreign),), "the tensors as they are")


@dataclass(frozen=True, slots=True)
class StateDict:
    """Layers of torch; of a checkpoint with an optimiser that holds the posterior they are only half of it."""

    name: str = "state_dict"
    looks_for: str = "<layer>.weight and .bias alone"
    uses: tuple[str, ...] = ()

    def knows(self, foreign: Foreign) -> bool:
        """Whether the network has weights and biases alone, one of each in a layer."""
        half = any(name.endswith(".hess") for name in foreign.tensors) and bool(optimisers(foreign))
        half = half or any(name.startswith("constraints.") for name in foreign.values)  # means and scales of Pyro
        names = network_names(foreign)
        plain = bool(names) and all(_last(name) in ("weight", "bias") for name in names)
        return plain and not half and not is_stacked(network_tensors(foreign))

    def read(self, foreign: Foreign, choices: Choices) -> Found:  # noqa: ARG002 (as of all importers)
        """Means alone, deviations of zero; a layer without a bias gets one of zero."""
        tensors = network_tensors(foreign)
        for name in tensors:
            layer, _, part = name.rpartition(".")
            if part == "bias" and f"{layer}.weight".lstrip(".") not in tensors:
                raise ModelFileError(f"tensor {name!r:.80} is a bias without a weight of the same layer")
        layers, _ = _TABLE.layers(tensors)
        return Found((layer_tensors(layers),), _TABLE.formula)


def is_stacked(tensors: dict[str, Tensor]) -> bool:
    """Whether weights and biases of torch have one axis more than a layer's: many samples, the first axis counts them.

    Without any bias that is not sure: kernels of one-dimensional convolutions have three axes too.
    """
    found = {(_last(name), tensor.ndim) for name, tensor in tensors.items()}
    return ("bias", 2) in found and found <= {("weight", 3), ("weight", 5), ("bias", 2)}
