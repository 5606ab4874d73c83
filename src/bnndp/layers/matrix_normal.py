r"""Dense layers with a matrix-normal (Kronecker) posterior: covariances of rows and of columns.

:math:`(W,b)=(\mu,\bar b)+A\,\Xi\,B^\top` with a matrix :math:`\Xi` of independent standard Gaussians, so the
covariance of the entries (i, j) and (k, l) is :math:`(AA^\top)_{ik}(BB^\top)_{jl}`. The factors are the posterior.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.layers.checks import expect_shapes, take
from bnndp.layers.correlated import factor_of
from bnndp.layers.linear import DenseSizes


@dataclass(frozen=True, slots=True, eq=False)
class MatrixNormalLinear(DenseSizes):
    """A dense layer ``W z + b`` with a matrix-normal (Kronecker) posterior ``mean + A Xi B^T``.

    ``Xi`` is a matrix of independent standard Gaussians. The factors are the posterior: no covariance is formed.

    Args:
        weight_mean: Means of the weights, ``(n_out, n_in)``.
        bias_mean: Means of the biases, ``(n_out,)``.
        row_factor: The factor A of the covariance of the rows, ``(n_out, a)``.
        column_factor: The factor B of the covariance of the columns, ``(n_in + 1, b)``; the bias is last.

    Examples:
        >>> MatrixNormalLinear(torch.ones(1, 2), torch.zeros(1), 0.1 * torch.eye(1), torch.eye(3))
        MatrixNormalLinear(2 -> 1)
    """

    kind: ClassVar[str] = "matrix_normal_linear"
    tensors: ClassVar[tuple[str, ...]] = ("weight_mean", "bias_mean", "row_factor", "column_factor")
    settings: ClassVar[tuple[str, ...]] = ()

    weight_mean: Tensor  # (n_out, n_in)
    bias_mean: Tensor  # (n_out,)
    row_factor: Tensor  # (n_out, a)
    column_factor: Tensor  # (n_in + 1, b)

    def __post_init__(self) -> None:
        take(self, self.tensors)
        n_out, n_in = self._expect_matrix()
        for field, rows in (("row_factor", n_out), ("column_factor", n_in + 1)):
            got = tuple(getattr(self, field).shape)
            if len(got) != 2 or got[0] != rows or got[1] == 0:
                raise InputError(f"{field} must have shape ({rows}, rank) to fit weight_mean, got {got}.")
        expect_shapes(self, {"bias_mean": (n_out,)}, "weight_mean")

    @classmethod
    def of_covariances(
        cls, weight_mean: Tensor, bias_mean: Tensor, rows: Tensor, columns: Tensor
    ) -> MatrixNormalLinear:
        """Create a layer from the covariances of its rows and columns.

        Args:
            weight_mean: Means of the weights, ``(n_out, n_in)``.
            bias_mean: Means of the biases, ``(n_out,)``.
            rows: Covariance of the rows, ``(n_out, n_out)``.
            columns: Covariance of the columns and the bias, which is last, ``(n_in + 1, n_in + 1)``.

        Returns:
            The layer.
        """
        return cls(weight_mean, bias_mean, factor_of(rows), factor_of(columns))

    def __repr__(self) -> str:
        """Sizes only."""
        return f"MatrixNormalLinear({self.n_in} -> {self.n_out})"

    @property
    def random(self) -> bool:
        """Whether any weight or bias has a variance."""
        return bool((self.row_factor != 0).any() & (self.column_factor != 0).any())

    def to(self, device: torch.device | str) -> MatrixNormalLinear:
        """The same layer with its tensors on ``device``."""
        return MatrixNormalLinear(*(getattr(self, name).to(device) for name in self.tensors))
