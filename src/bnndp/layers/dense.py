"""What all dense layers share: the sizes of their matrix of means, and the shapes they map."""

from __future__ import annotations

from torch import Tensor

from bnndp.errors import InputError

__all__ = ["DenseSizes"]


class DenseSizes:
    """Sizes and shapes of a record with ``weight_mean`` (n_out, n_in)."""

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
