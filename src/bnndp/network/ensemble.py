r"""Mixtures of networks: deep ensembles, samples of a chain (HMC, SG-MCMC), masks of dropout, multi-SWAG.

One member is drawn with probability :math:`w_i/\sum_jw_j` and then its weights from its own posterior, so
:math:`\mathbb E f=\sum_iw_i\,\mathbb E f_i/\sum_jw_j`, and likewise for the softmax.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bnndp.activations import Relu
from bnndp.errors import InputError
from bnndp.layers import Linear
from bnndp.layers.checks import parameter
from bnndp.network.network import BayesianNetwork, Layer, Referable, is_activation

_TOLERANCE = 1e-9  # of the sum of the weights as given: more than this is not rounding
_ROUNDING = 2.0**-51  # of the sum of the weights as kept: dividing once reaches it, and it is not divided again


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble(Referable):
    """A weighted mixture of networks with the same inputs, outputs and task.

    One member is drawn according to the weights, then its parameters from its own posterior.

    Args:
        members: The networks.
        weights: Probabilities of the members, ``(members,)``; equal if not given. They are kept as given if their sum
            is one up to 2^-51, and divided by it otherwise.

    Examples:
        >>> member = BayesianNetwork((Linear.fixed(torch.ones(1, 2)),))
        >>> Ensemble((member, member)).weights.tolist()
        [0.5, 0.5]
    """

    members: tuple[BayesianNetwork, ...]
    weights: Tensor | None = None  # (members,); equal if not given, a tensor in every ensemble that was made
    alike: tuple[tuple[int, ...], ...] = field(init=False, repr=False)
    """Indices of the members that go through a pass together: dense networks without variance that differ in their
    weights only. Every other member is alone."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(self.members))
        for index, member in enumerate(self.members):
            if not isinstance(member, BayesianNetwork):
                raise InputError(f"member {index} is {type(member).__name__}; members must be BayesianNetwork.")
        if not self.members:
            raise InputError("an ensemble needs at least one member.")
        for index, member in enumerate(self.members):
            for name in ("input_shape", "n_out", "task"):
                want, got = getattr(self.members[0], name), getattr(member, name)
                if want != got:
                    raise InputError(f"member {index} has {name} {got!r}, but member 0 has {want!r}; they must agree.")
        object.__setattr__(self, "weights", _weights(self.weights, len(self.members)))
        object.__setattr__(self, "alike", _alike(self.members))

    @classmethod
    def of_samples(
        cls,
        samples: Sequence[tuple[Tensor, Tensor]],  # (members, n_out, n_in) and (members, n_out), a layer
        task: str = "regression",
        *,
        activation: Layer | None = None,
        shift: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Ensemble:
        """Create an ensemble of deterministic dense networks from stacked weights and biases.

        Args:
            samples: Weights ``(members, n_out, n_in)`` and biases ``(members, n_out)`` of each layer, first to last.
            task: ``"regression"`` or ``"classification"``.
            activation: The activation between each two layers; ReLU if not given.
            shift: Subtracted from the inputs before the first layer, ``(n_in,)``.
            weights: Probabilities of the members, ``(members,)``; equal if not given.

        Returns:
            The ensemble.
        """
        between = Relu() if activation is None else activation
        counts = {tensor.shape[0] for pair in samples for tensor in pair}
        if len(counts) != 1:
            raise InputError(f"weights and biases must hold one sample for each member, got {sorted(counts)} samples.")
        members = []
        for index in range(counts.pop()):
            layers: list[Layer] = []
            for weight, bias in samples:
                layers += [between] if layers else []
                layers.append(Linear.fixed(weight[index], bias[index]))
            members.append(BayesianNetwork(tuple(layers), task, shift))
        return cls(tuple(members), weights)

    def __repr__(self) -> str:
        """Number of members and the first of them."""
        return f"Ensemble({len(self.members)} x {self.members[0]!r})"

    @property
    def probabilities(self) -> Tensor:
        """The weights: (members,)."""
        return torch.empty(0) if self.weights is None else self.weights  # __post_init__ makes them

    @property
    def task(self) -> str:
        """The task of all members."""
        return self.members[0].task

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the inputs of all members."""
        return self.members[0].shapes[0]

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return self.members[0].n_in

    @property
    def n_out(self) -> int:
        """Number of outputs."""
        return self.members[0].n_out

    @property
    def examples(self) -> tuple[BayesianNetwork, ...]:
        """One member of each of the groups that are ``alike``: all sizes and kinds there are."""
        return tuple(self.members[group[0]] for group in self.alike)

    @property
    def depth(self) -> int:
        """Largest number of activations in a member."""
        return max(member.depth for member in self.examples)

    @property
    def widest(self) -> int:
        """The largest number of values between any two layers of a member."""
        return max(member.widest for member in self.examples)

    @property
    def plain(self) -> bool:
        """Always False: an ensemble is not a chain of layers."""
        return False

    @property
    def random(self) -> bool:
        """Whether any member has a variance of its own."""
        return any(member.random for member in self.examples)

    def to(self, device: torch.device | str) -> Ensemble:
        """The same ensemble with its tensors on ``device``."""
        return replace(
            self, members=tuple(member.to(device) for member in self.members), weights=self.probabilities.to(device)
        )

    def digest(self) -> str:
        """SHA-256 of the members' digests and of the exact float64 bits of the weights."""
        hasher = hashlib.sha256(b"ensemble" + self.probabilities.cpu().numpy().astype("<f8").tobytes())
        for member in self.members:
            hasher.update(member.digest().encode())
        return hasher.hexdigest()


Posterior = BayesianNetwork | Ensemble
"""Whatever has a mean output: one network or a mixture of them."""


def _alike(members: tuple[BayesianNetwork, ...]) -> tuple[tuple[int, ...], ...]:
    """The groups in the order of their first members."""
    groups: dict[object, list[int]] = {}
    for index, member in enumerate(members):
        structure = dense_structure(member)
        groups.setdefault(("alone", index) if structure is None else structure, []).append(index)
    return tuple(tuple(group) for group in groups.values())


def dense_structure(network: BayesianNetwork) -> object | None:
    """What must agree for dense networks without variance to go together; None if it is not such a network.

    An activation with tensors of its own agrees only with itself.
    """
    own: list[object] = [network.shift is None]
    for index, layer in enumerate(network.layers):
        if index % 2 and is_activation(layer):
            settings = tuple(getattr(layer, name) for name in layer.settings)
            own.append((layer.kind, settings, id(layer) if layer.tensors else None))
        elif not index % 2 and isinstance(layer, Linear) and not layer.random:
            own.append((layer.n_in, layer.n_out))
        else:
            return None
    return tuple(own)


def _weights(given: Tensor | None, members: int) -> Tensor:
    """The weights in float64, checked, with a sum of one up to 2^-51 (``math.fsum`` adds without error)."""
    if given is None:
        return torch.full((members,), 1 / members, dtype=torch.float64)
    weights = parameter("weights", given)
    if weights.shape != (members,):
        raise InputError(f"weights must have shape ({members},), one per member, got {tuple(weights.shape)}.")
    if bool((weights < 0).any()):
        at = int((weights < 0).nonzero()[0, 0])
        raise InputError(f"weights[{at}] is {weights[at].item()}; weights must be >= 0.")
    total = math.fsum(weights.tolist())
    if not abs(total - 1) <= _TOLERANCE:
        raise InputError(f"weights must sum to 1, got {total!r}; divide them by their sum.")
    return weights if abs(total - 1) <= _ROUNDING else weights / total
