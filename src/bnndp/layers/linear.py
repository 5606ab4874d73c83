"""Dense layers with independent weights: mean-field Gaussian, deterministic, or with uncertain biases only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.layers.checks import expect_shapes, parameter, take


class DenseSizes:
    """What all dense layers share: the sizes of their ``weight_mean`` (n_out, n_in), and the shapes they map."""

    __slots__ = ()
    weight_mean: Tensor

    @property
    def n_in(self) -> int:
        """Number of inputs of the layer."""
        return self.weight_mean.shape[1]

    @property
    def n_out(self) -> int:
        """Number of outputs of the layer."""
        return self.weight_mean.shape[0]

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the outputs for inputs of this shape."""
        if len(shape) != 1:
            raise InputError(f"a dense layer takes a vector, got the shape {shape}; put a Flatten() before it.")
        if shape[0] != self.n_in:
            raise InputError(f"a dense layer takes {self.n_in} inputs, but the layer before gives {shape[0]}.")
        return (self.n_out,)

    def _expect_matrix(self) -> tuple[int, int]:
        """n_out and n_in, or an error if ``weight_mean`` is not a matrix."""
        shape = tuple(self.weight_mean.shape)
        if len(shape) != 2 or 0 in shape:
            raise InputError(f"weight_mean must have shape (n_out, n_in) with both positive, got {shape}.")
        return shape[0], shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class Linear(DenseSizes):
    """A dense layer ``W z + b`` with independent Gaussian weights and biases (mean-field).

    A standard deviation of zero makes a parameter deterministic.

    Args:
        weight_mean: Means of the weights, ``(n_out, n_in)``.
        weight_std: Standard deviations of the weights, ``(n_out, n_in)``.
        bias_mean: Means of the biases, ``(n_out,)``.
        bias_std: Standard deviations of the biases, ``(n_out,)``.

    Examples:
        >>> Linear(torch.ones(3, 2), 0.1 * torch.ones(3, 2), torch.zeros(3), torch.zeros(3))
        Linear(2 -> 3)
    """

    kind: ClassVar[str] = "linear"
    tensors: ClassVar[tuple[str, ...]] = ("weight_mean", "weight_std", "bias_mean", "bias_std")
    settings: ClassVar[tuple[str, ...]] = ()

    weight_mean: Tensor  # (n_out, n_in)
    weight_std: Tensor  # (n_out, n_in)
    bias_mean: Tensor  # (n_out,)
    bias_std: Tensor  # (n_out,)

    def __post_init__(self) -> None:
        take(self, self.tensors)
        n_out, n_in = self._expect_matrix()
        wanted = {"weight_std": (n_out, n_in), "bias_mean": (n_out,), "bias_std": (n_out,)}
        expect_shapes(self, wanted, "weight_mean")

    @classmethod
    def fixed(cls, weight: Tensor, bias: Tensor | None = None, bias_std: Tensor | None = None) -> Linear:
        """Create a layer whose weights have no variance.

        Args:
            weight: The weights, ``(n_out, n_in)``.
            bias: Means of the biases, ``(n_out,)``; zero if not given.
            bias_std: Standard deviations of the biases, ``(n_out,)``; zero if not given.

        Returns:
            The layer.

        Examples:
            >>> Linear.fixed(torch.ones(1, 2))
            Linear(2 -> 1)
        """
        mean = parameter("weight", weight)
        zero = mean.new_zeros(mean.shape[:1])
        return cls(mean, torch.zeros_like(mean), zero if bias is None else bias, zero if bias_std is None else bias_std)

    def __repr__(self) -> str:
        """Sizes only."""
        return f"Linear({self.n_in} -> {self.n_out})"

    @property
    def random(self) -> bool:
        """Whether any weight or bias has a variance."""
        return bool((self.weight_std > 0).any() | (self.bias_std > 0).any())

    def to(self, device: torch.device | str) -> Linear:
        """The same layer with its tensors on ``device``."""
        return Linear(*(t.to(device) for t in (self.weight_mean, self.weight_std, self.bias_mean, self.bias_std)))
