r"""Dense layers with correlated Gaussian weights: rows of their own, a whole layer's, low rank plus diagonal.

With :math:`\tilde z=(z,1)` and independent standard Gaussians,

.. math:: X_i=\mu_i\cdot z+b_i+\sum_j\sigma_{ij}\varepsilon_{ij}\tilde z_j+\sum_qF_{ijq}\tilde z_j\,\xi_{(i)q},

where :math:`\xi` is the same for all rows (``shared``) or drawn anew for each. The factor F *is* the posterior: the
covariance :math:`FF^\top` is positive semi-definite whatever the rounding of F.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.layers.checks import expect_shapes, parameter, take
from bnndp.layers.linear import DenseSizes


@dataclass(frozen=True, slots=True, eq=False)
class CorrelatedLinear(DenseSizes):
    """A dense layer ``W z + b`` with jointly Gaussian weights: independent noise plus a low-rank factor.

    The module docstring has the formula. :meth:`rows`, :meth:`whole` and :meth:`low_rank` cover the usual cases.

    Args:
        weight_mean: Means of the weights, ``(n_out, n_in)``.
        weight_std: Standard deviations of the independent part of the weights, ``(n_out, n_in)``.
        bias_mean: Means of the biases, ``(n_out,)``.
        bias_std: Standard deviations of the independent part of the biases, ``(n_out,)``.
        factor: Factor of the covariance of each row and its bias, which is last, ``(n_out, n_in + 1, rank)``.
        shared: Whether all rows share one noise vector. If False, each row has its own.

    Examples:
        >>> CorrelatedLinear.rows(torch.ones(1, 2), torch.zeros(1), torch.eye(3)[None])
        CorrelatedLinear(2 -> 1, rows of rank 3)
    """

    kind: ClassVar[str] = "correlated_linear"
    tensors: ClassVar[tuple[str, ...]] = ("weight_mean", "weight_std", "bias_mean", "bias_std", "factor")
    settings: ClassVar[tuple[str, ...]] = ("shared",)

    weight_mean: Tensor  # (n_out, n_in)
    weight_std: Tensor  # (n_out, n_in)
    bias_mean: Tensor  # (n_out,)
    bias_std: Tensor  # (n_out,)
    factor: Tensor  # (n_out, n_in + 1, rank)
    shared: bool

    def __post_init__(self) -> None:
        take(self, self.tensors)
        n_out, n_in = self._expect_matrix()
        if self.factor.ndim != 3 or self.factor.shape[-1] == 0:
            raise InputError(f"factor must have shape (n_out, n_in + 1, rank), got {tuple(self.factor.shape)}.")
        wanted = {"weight_std": (n_out, n_in), "bias_mean": (n_out,), "bias_std": (n_out,)}
        expect_shapes(self, wanted | {"factor": (n_out, n_in + 1, self.factor.shape[-1])}, "weight_mean")
        if not isinstance(self.shared, bool):
            raise InputError(f"shared must be true or false, got {self.shared!r}.")

    @classmethod
    def rows(cls, weight_mean: Tensor, bias_mean: Tensor, covariance: Tensor) -> CorrelatedLinear:
        """Create a layer with independent rows, each with its own covariance.

        Args:
            weight_mean: Means of the weights, ``(n_out, n_in)``.
            bias_mean: Means of the biases, ``(n_out,)``.
            covariance: Covariance of each row and its bias, which is last, ``(n_out, n_in + 1, n_in + 1)``.

        Returns:
            The layer.
        """
        zero = torch.zeros_like(parameter("weight_mean", weight_mean))
        return cls(weight_mean, zero, bias_mean, zero[:, 0], factor_of(covariance), False)

    @classmethod
    def whole(cls, weight_mean: Tensor, bias_mean: Tensor, covariance: Tensor) -> CorrelatedLinear:
        """Create a layer with one covariance for all its weights and biases.

        Args:
            weight_mean: Means of the weights, ``(n_out, n_in)``.
            bias_mean: Means of the biases, ``(n_out,)``.
            covariance: Covariance of all parameters, ``(n, n)`` with ``n = n_out * (n_in + 1)``: row by row, the bias
                of each row last.

        Returns:
            The layer.
        """
        zero = torch.zeros_like(parameter("weight_mean", weight_mean))
        n_out, n_in = zero.shape
        factor = factor_of(covariance)
        if factor.shape != (n_out * (n_in + 1),) * 2:
            found = tuple(torch.as_tensor(covariance).shape)
            raise InputError(f"covariance must have shape (n, n) with n = n_out (n_in + 1), got {found}.")
        return cls(weight_mean, zero, bias_mean, zero[:, 0], factor.reshape(n_out, n_in + 1, -1), True)

    @classmethod
    def low_rank(
        cls, weight_mean: Tensor, weight_std: Tensor, bias_mean: Tensor, bias_std: Tensor, factor: Tensor
    ) -> CorrelatedLinear:
        """Create a layer whose covariance is low rank plus diagonal, as in SWAG.

        Args:
            weight_mean: Means of the weights, ``(n_out, n_in)``.
            weight_std: Standard deviations of the diagonal part of the weights, ``(n_out, n_in)``.
            bias_mean: Means of the biases, ``(n_out,)``.
            bias_std: Standard deviations of the diagonal part of the biases, ``(n_out,)``.
            factor: The low-rank factor, ``(n_out, n_in + 1, rank)``; all rows share its noise.

        Returns:
            The layer.
        """
        return cls(weight_mean, weight_std, bias_mean, bias_std, factor, True)

    def __repr__(self) -> str:
        """Sizes only."""
        law = "layer" if self.shared else "rows"
        return f"CorrelatedLinear({self.n_in} -> {self.n_out}, {law} of rank {self.rank})"

    @property
    def rank(self) -> int:
        """Number of Gaussians behind the correlated part of a row (or of the layer)."""
        return self.factor.shape[-1]

    @property
    def random(self) -> bool:
        """Whether any weight or bias has a variance."""
        return bool((self.weight_std > 0).any() | (self.bias_std > 0).any() | (self.factor != 0).any())

    def to(self, device: torch.device | str) -> CorrelatedLinear:
        """The same layer with its tensors on ``device``."""
        return replace(self, **{name: getattr(self, name).to(device) for name in self.tensors})


def factor_of(covariance: Tensor) -> Tensor:
    """A factor F with ``F F^T`` equal to the covariance (..., n, n) up to rounding; refused where it is not PSD.

    From here on F is the posterior. Eigenvalues that are negative by no more than rounding count as zero.
    """
    matrix = parameter("covariance", covariance)
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise InputError(f"covariance must be square in its last two axes, got {tuple(matrix.shape)}.")
    size = matrix.abs().amax((-1, -2), keepdim=True)
    if bool(((matrix - matrix.mT).abs() > 1e-9 * size).any()):
        raise InputError("covariance is not symmetric; give (C + C^T) / 2 if the difference is rounding.")
    values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.mT))
    least = values.amin(-1)
    if bool((least < -1e-9 * values.amax(-1).clamp_min(0)).any()):
        raise InputError(f"covariance is not positive semi-definite: an eigenvalue is {least.min().item():.3g}.")
    return vectors * values.clamp_min(0).sqrt()[..., None, :]
