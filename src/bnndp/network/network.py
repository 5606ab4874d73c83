"""Frozen descriptions of Bayesian networks: what is certified, and nothing else."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor

from bnndp.activations import ACTIVATIONS, Relu
from bnndp.activations.activation import Activation
from bnndp.errors import InputError, UnsupportedLayerError
from bnndp.layers import DENSE, LAYERS, WEIGHTED, Branched, Dropout, Flatten, Linear, Record, Residual
from bnndp.layers.checks import parameter
from bnndp.layers.record import chain_shapes
from bnndp.layers.units import divided, in_outputs

TASKS = ("regression", "classification")

Layer = Record
"""A layer of ``bnndp.layers`` or an activation of ``bnndp.activations``."""

KINDS: dict[str, type[Any]] = LAYERS | ACTIVATIONS
"""All records that a network may hold, by their kind."""


class Referable:
    """A base of records with slots that may be a key of what is kept only as long as they are."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True, eq=False)
class BayesianNetwork(Referable):
    """A chain of layers and activations with independent layers; the last one has weights.

    A convolution at the end is followed by a Flatten. Networks of the form Linear, Relu, ..., Linear are ``plain``.

    Args:
        layers: Layers of :mod:`bnndp.layers` and activations of :mod:`bnndp.activations`, first to last.
        task: ``"regression"`` or ``"classification"``.
        shift: Subtracted from the inputs before the first layer, ``(n_in,)``. It is the part of a standardisation that
            cannot be folded into a layer with independent weights (see :meth:`in_units`).
        input_shape: Shape ``(channels, height, width)`` of the images, which are given as vectors in the order of
            torch. Not needed if the first layer is dense.

    Examples:
        >>> layer = Linear(torch.ones(1, 2), torch.zeros(1, 2), torch.zeros(1), torch.zeros(1))
        >>> BayesianNetwork((layer,)).sizes
        (2, 1)
    """

    layers: tuple[Layer, ...]
    task: str = "regression"
    shift: Tensor | None = None  # (n_in,)
    input_shape: tuple[int, ...] | None = None  # a tuple in every network that was made

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if self.task not in TASKS:
            raise InputError(f"task must be one of {', '.join(TASKS)}, got {self.task!r}.")
        _check_kinds(self.layers)
        object.__setattr__(self, "input_shape", _input_shape(self.layers, self.input_shape))
        end = self.shapes[-1]
        if len(end) != 1:
            raise InputError(f"a network must give a vector, but its last layer gives {end}; put a Flatten() last.")
        if self.shift is not None:
            object.__setattr__(self, "shift", parameter("shift", self.shift))
            if self.shift.shape != (self.n_in,):
                found = tuple(self.shift.shape)
                raise InputError(f"shift must have shape ({self.n_in},), one for each input, got {found}.")

    @classmethod
    def from_linears(
        cls, linears: Iterable[Linear], task: str = "regression", shift: Tensor | None = None
    ) -> BayesianNetwork:
        """Create a network from linear layers with a ReLU between each two of them.

        Args:
            linears: The linear layers, first to last.
            task: ``"regression"`` or ``"classification"``.
            shift: Subtracted from the inputs before the first layer, ``(n_in,)``.

        Returns:
            The network.
        """
        layers: list[Layer] = []
        for linear in linears:
            layers += [Relu(), linear] if layers else [linear]
        return cls(tuple(layers), task, shift)

    def __repr__(self) -> str:
        """Sizes and task only, kinds too if not all are Linear and Relu: the weights are in ``layers``."""
        kinds = "" if self.plain else f", {' '.join(layer.kind for layer in self.layers)}"
        return f"BayesianNetwork({'-'.join(map(str, self.sizes))}, {self.task}{kinds})"

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape before each layer, and after the last."""
        return chain_shapes(self.layers, self.input_shape or ())

    @property
    def plain(self) -> bool:
        """Whether the layers are Linear, Relu, Linear, ..., Linear: dense, ReLU, independent weights."""
        return len(self.layers) % 2 == 1 and all(
            isinstance(layer, Relu if index % 2 else Linear) for index, layer in enumerate(self.layers)
        )

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The linear layers of a plain network, first to last; refused for all others, whose layers are more."""
        if not self.plain:
            raise UnsupportedLayerError(
                f"{self!r} is not a chain of Linear and Relu only; use network.layers, and methods for any layers."
            )
        return tuple(layer for layer in self.layers if isinstance(layer, Linear))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of inputs, then of values after each layer with weights: in a plain network the widths."""
        after = zip(self.layers, self.shapes[1:], strict=True)
        return (self.n_in, *(math.prod(shape) for layer, shape in after if isinstance(layer, WEIGHTED)))

    @property
    def widest(self) -> int:
        """The largest number of values between any two layers."""
        return max(_widest(layer, shape) for layer, shape in zip(self.layers, self.shapes[:-1], strict=True))

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return math.prod(self.input_shape or ())

    @property
    def n_out(self) -> int:
        """Number of outputs."""
        return self.shapes[-1][0]

    @property
    def depth(self) -> int:
        """Number K of activations: in a plain network the hidden layers."""
        return sum(is_activation(layer) for layer in flat(self.layers))

    @property
    def members(self) -> tuple[BayesianNetwork, ...]:
        """A network is a mixture of one: itself."""
        return (self,)

    @property
    def examples(self) -> tuple[BayesianNetwork, ...]:
        """One member of each kind."""
        return (self,)

    @property
    def probabilities(self) -> Tensor:
        """The weights of the members: (1,)."""
        return torch.ones(1, dtype=torch.float64)

    @property
    def alike(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the members that go through a pass together."""
        return ((0,),)

    @property
    def random(self) -> bool:
        """Whether any layer has a variance."""
        return any(layer.random for layer in self.layers)

    def to(self, device: torch.device | str) -> BayesianNetwork:
        """The same network with its tensors on ``device``."""
        moved = tuple(layer.to(device) for layer in self.layers)
        return replace(self, layers=moved, shift=None if self.shift is None else self.shift.to(device))

    def centred(self, x: Tensor) -> Tensor:  # (..., n_in)
        """What the first layer sees of ``x``, up to rounding."""
        return x if self.shift is None else x - self.shift

    @property
    def unshifted_linears(self) -> tuple[Linear, ...]:
        """The linear layers of a plain network that does not shift its inputs; raises otherwise."""
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
        """Convert a network trained on standardised data to the user's units.

        The network was trained on ``(x - shift) / scale``, with targets standardised in the same way. The scale of the
        inputs is folded into the weights of the first layer, scale and shift of the outputs into the last layer. The
        shift of the inputs stays separate, as it would make the bias depend on the weights.

        Args:
            inputs: Shift and scale of the inputs, ``(n_in,)`` each.
            outputs: Shift and scale of the outputs, ``(n_out,)`` each; None leaves the outputs as they are.

        Returns:
            The network in the user's units.

        Raises:
            InputError: If a layer cannot take them: an activation first, or a convolution with a scale for each pixel.
        """
        if self.shift is not None:
            raise InputError("the network has its units already; standardise once.")
        shift, scale = inputs
        layers = list(self.layers)
        keep_scale = (Flatten, Dropout)  # layer(z / scale) = layer(z) / scale for any positive scales, in law
        first = next(i for i, layer in enumerate(layers) if not isinstance(layer, keep_scale))
        layers[first] = divided(layers[first], scale, self.shapes[first])
        if outputs is not None:
            last = max(i for i, layer in enumerate(layers) if isinstance(layer, WEIGHTED))
            if not isinstance(layers[last], DENSE):
                raise InputError(f"units of outputs need a dense layer at the end, got {layers[last].kind}.")
            layers[last] = in_outputs(layers[last], *outputs)
        return replace(self, layers=tuple(layers), shift=shift)

    def digest(self) -> str:
        """SHA-256 of the structure and of the exact float64 bits of all tensors."""
        head: dict[str, Any] = {"task": self.task, "sizes": self.sizes}
        if self.plain:
            head["layers"] = [type(layer).__name__ for layer in self.layers]
        else:
            head |= {"layers": [_description(layer) for layer in self.layers], "input_shape": self.input_shape}
        hasher = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
        if self.shift is not None:
            hasher.update(b"shift" + _bits(self.shift))
        for layer in flat(self.layers):
            for name in layer.tensors:
                hasher.update(_bits(getattr(layer, name)))
        return hasher.hexdigest()


def is_activation(layer: Layer) -> TypeGuard[Activation]:
    """Whether it is an activation, and not a layer."""
    return layer.kind in ACTIVATIONS


def _check_kinds(layers: tuple[Layer, ...]) -> None:
    """Refuse what is not a known record, and a chain that does not end in a layer with weights."""
    _check_known(layers, "layer")
    last = next((layer for layer in reversed(layers) if not isinstance(layer, Flatten)), None)
    if not isinstance(last, WEIGHTED):
        found = "has no layers" if last is None else f"ends in {last.kind}"
        known = ", ".join(record.kind for record in WEIGHTED)
        raise UnsupportedLayerError(f"a network must end in a layer with weights ({known}); this one {found}.")


def _check_known(layers: tuple[Layer, ...], where: str) -> None:
    for index, layer in enumerate(layers):
        if not isinstance(layer, tuple(KINDS.values())):
            known = ", ".join(sorted(KINDS))
            raise UnsupportedLayerError(
                f"{where} {index} is {type(layer).__name__}, which has no rule; known kinds: {known}."
            )
        if isinstance(layer, Branched):
            for k, branch in enumerate(layer.branches):
                _check_known(branch, f"{where} {index}, {f'branch {k}, ' if k else ''}layer")


def flat(layers: Iterable[Layer]) -> Iterator[Layer]:
    """The layers one by one, those of blocks in the place of the block, branch after branch."""
    for layer in layers:
        if isinstance(layer, Branched):
            for branch in layer.branches:
                yield from flat(branch)
        else:
            yield layer


def _input_shape(layers: tuple[Layer, ...], given: object) -> tuple[int, ...]:
    """The shape of the inputs as a tuple: the given one, or what the first layer with weights takes if it is dense."""
    if given is None:
        first = next((layer for layer in layers if not (isinstance(layer, Dropout) or is_activation(layer))), None)
        if isinstance(first, DENSE):
            return (first.n_in,)
        kind = "none" if first is None else first.kind
        raise InputError(f"input_shape must be given where the first layer is not dense (it is {kind}).")
    shape = tuple(given) if isinstance(given, Iterable) else ()
    if len(shape) not in (1, 3) or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in shape):
        raise InputError(f"input_shape must be (inputs,) or (channels, height, width), all positive, got {given!r}.")
    return shape


def _widest(layer: Layer, shape: tuple[int, ...]) -> int:
    """The largest number of values before, within and after a layer."""
    sizes = [math.prod(shape), math.prod(layer.out_shape(shape))]
    if isinstance(layer, Branched):
        for branch, shapes in zip(layer.branches, layer.shapes(shape), strict=True):
            sizes += [_widest(inner, each) for inner, each in zip(branch, shapes, strict=False)]
    return max(sizes)


def _description(layer: Layer) -> list[object]:
    """Kind, settings and shapes of the tensors, in JSON-compatible values."""
    if isinstance(layer, Branched):
        chains = [[_description(inner) for inner in branch] for branch in layer.branches]
        plain = isinstance(layer, Residual) and not layer.shortcut  # described as before there were shortcuts
        return [layer.kind, *(chains[:1] if plain else chains)]
    settings = [getattr(layer, name) for name in layer.settings]
    return [layer.kind, settings, [list(getattr(layer, name).shape) for name in layer.tensors]]


def _bits(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().astype("<f8").tobytes()
