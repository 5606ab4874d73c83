"""Frozen descriptions of Bayesian networks: what is certified, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.errors import InputError, UnsupportedLayerError

__all__ = ["TASKS", "BayesianNetwork", "Layer", "Linear", "Relu"]

TASKS = ("regression", "classification")


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A layer ``W z + b`` whose weights are independent Gaussians (mean-field); a standard deviation may be zero."""

    weight_mean: Tensor  # (n_out, n_in)
    weight_std: Tensor  # (n_out, n_in)
    bias_mean: Tensor  # (n_out,)
    bias_std: Tensor  # (n_out,)

    def __post_init__(self) -> None:
        for field in ("weight_mean", "weight_std", "bias_mean", "bias_std"):
            object.__setattr__(self, field, _parameter(field, getattr(self, field)))
        shape = self.weight_mean.shape
        if len(shape) != 2 or 0 in shape:
            raise InputError(f"weight_mean must have shape (n_out, n_in) with both positive, got {tuple(shape)}.")
        for field, want in (("weight_std", shape), ("bias_mean", shape[:1]), ("bias_std", shape[:1])):
            got = getattr(self, field).shape
            if got != want:
                raise InputError(f"{field} must have shape {tuple(want)} to fit weight_mean, got {tuple(got)}.")

    def __repr__(self) -> str:
        """Sizes only."""
        return f"Linear({self.n_in} -> {self.n_out})"

    @property
    def n_in(self) -> int:
        """Number of inputs of the layer."""
        return self.weight_mean.shape[1]

    @property
    def n_out(self) -> int:
        """Number of outputs of the layer."""
        return self.weight_mean.shape[0]

    def to(self, device: torch.device | str) -> Linear:
        """The same layer with its tensors on ``device``."""
        return Linear(*(t.to(device) for t in (self.weight_mean, self.weight_std, self.bias_mean, self.bias_std)))


@dataclass(frozen=True, slots=True)
class Relu:
    """The activation ``max(., 0)``."""


Layer = Linear | Relu


@dataclass(frozen=True, slots=True, eq=False)
class BayesianNetwork:
    """A fully connected network: linear layers with a ReLU between each two, ending in a linear layer.

    With ``shift`` the first layer sees ``x - shift``: the part of a standardisation that cannot be folded into a layer
    with independent weights (see :meth:`in_units`).

    >>> layer = Linear(torch.ones(1, 2), torch.zeros(1, 2), torch.zeros(1), torch.zeros(1))
    >>> BayesianNetwork((layer,)).sizes
    (2, 1)
    """

    layers: tuple[Layer, ...]
    task: str = "regression"
    shift: Tensor | None = None  # (n_in,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if self.task not in TASKS:
            raise InputError(f"task must be one of {', '.join(TASKS)}, got {self.task!r}.")
        for index, layer in enumerate(self.layers):
            want = Relu if index % 2 else Linear
            if not isinstance(layer, want):
                raise UnsupportedLayerError(
                    f"layer {index} is {type(layer).__name__}, expected {want.__name__}: "
                    "layers must be Linear, Relu, Linear, ..., Linear."
                )
        if len(self.layers) % 2 == 0:
            raise UnsupportedLayerError(f"a network must end in a Linear layer; got {len(self.layers)} layers.")
        linears = self.linears
        for k in range(1, len(linears)):
            if linears[k].n_in != linears[k - 1].n_out:
                raise InputError(
                    f"linear layer {k} takes {linears[k].n_in} inputs, but layer {k - 1} gives {linears[k - 1].n_out}."
                )
        if self.shift is not None:
            object.__setattr__(self, "shift", _parameter("shift", self.shift))
            if self.shift.shape != (self.n_in,):
                found = tuple(self.shift.shape)
                raise InputError(f"shift must have shape ({self.n_in},), one for each input, got {found}.")

    @classmethod
    def from_linears(
        cls, linears: Iterable[Linear], task: str = "regression", shift: Tensor | None = None
    ) -> BayesianNetwork:
        """A network of these linear layers with a ReLU between each two."""
        layers: list[Layer] = []
        for linear in linears:
            layers += [Relu(), linear] if layers else [linear]
        return cls(tuple(layers), task, shift)

    def __repr__(self) -> str:
        """Sizes and task only: the weights are in ``layers``."""
        return f"BayesianNetwork({'-'.join(map(str, self.sizes))}, {self.task})"

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The linear layers, first to last."""
        return tuple(layer for layer in self.layers if isinstance(layer, Linear))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Inputs, widths of the hidden layers, outputs."""
        linears = self.linears
        return (linears[0].n_in, *(layer.n_out for layer in linears))

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return self.sizes[0]

    @property
    def n_out(self) -> int:
        """Number of outputs."""
        return self.sizes[-1]

    @property
    def depth(self) -> int:
        """Number K of hidden layers."""
        return len(self.linears) - 1

    def to(self, device: torch.device | str) -> BayesianNetwork:
        """The same network with its tensors on ``device``."""
        moved = tuple(layer.to(device) if isinstance(layer, Linear) else layer for layer in self.layers)
        return replace(self, layers=moved, shift=None if self.shift is None else self.shift.to(device))

    def centred(self, x: Tensor) -> Tensor:  # (..., n_in)
        """What the first layer sees of ``x``, up to rounding."""
        return x if self.shift is None else x - self.shift

    @property
    def seen(self) -> tuple[Linear, ...]:
        """The linear layers, for bounds on regions of what the first layer sees; refused where that is not x itself."""
        if self.shift is not None:
            raise InputError("this network shifts its inputs: bound network.unshifted() on box.moved(network.shift).")
        return self.linears

    def unshifted(self) -> BayesianNetwork:
        """The same network as a function of what its first layer sees."""
        return self if self.shift is None else replace(self, shift=None)

    def in_units(
        self,
        inputs: tuple[Tensor, Tensor],  # shift and scale, (n_in,) each
        outputs: tuple[Tensor, Tensor] | None = None,  # shift and scale, (n_out,) each
    ) -> BayesianNetwork:
        """The network in the user's units, trained on ``(x - shift) / scale`` and on targets standardised alike.

        The scale of the inputs goes into the weights of the first layer, scale and shift of the outputs into the last
        layer; the shift of the inputs stays by itself, as it would make the bias depend on the weights.
        """
        if self.shift is not None:
            raise InputError("the network has its units already; standardise once.")
        shift, scale = inputs
        linears = list(self.linears)
        linears[0] = replace(
            linears[0], weight_mean=linears[0].weight_mean / scale, weight_std=linears[0].weight_std / scale
        )
        if outputs is not None:
            last, (offset, factor) = linears[-1], outputs
            linears[-1] = Linear(
                last.weight_mean * factor[:, None],
                last.weight_std * factor[:, None],
                last.bias_mean * factor + offset,
                last.bias_std * factor,
            )
        return BayesianNetwork.from_linears(linears, self.task, shift)

    def digest(self) -> str:
        """SHA-256 of the structure and of the exact float64 bits of all tensors."""
        head = {"task": self.task, "layers": [type(layer).__name__ for layer in self.layers], "sizes": self.sizes}
        hasher = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
        if self.shift is not None:
            hasher.update(b"shift" + self.shift.detach().cpu().contiguous().numpy().astype("<f8").tobytes())
        for layer in self.linears:
            for tensor in (layer.weight_mean, layer.weight_std, layer.bias_mean, layer.bias_std):
                hasher.update(tensor.detach().cpu().contiguous().numpy().astype("<f8").tobytes())
        return hasher.hexdigest()


def _parameter(field: str, value: Tensor) -> Tensor:
    """The tensor in float64, or an error that names its first value that is not finite or, for a std, negative."""
    tensor = torch.as_tensor(value)
    if tensor.is_complex():
        raise InputError(f"{field} is complex ({tensor.dtype}); weights must be real numbers.")
    # A list of Python numbers must not pass through float32; a later change of the argument must not reach the network.
    tensor = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    bad = ~torch.isfinite(tensor)
    fault = "not finite"
    if not bad.any() and field.endswith("std"):
        bad, fault = tensor < 0, "negative"
    if bad.any():
        index = tuple(bad.nonzero()[0].tolist())
        raise InputError(
            f"{field}{list(index)} is {fault}: {tensor[index].item()} ({int(bad.sum())} such of {bad.numel()}); "
            "means must be finite, standard deviations finite and >= 0."
        )
    return tensor
