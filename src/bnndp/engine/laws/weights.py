r"""What the pass asks of a layer with weights: its mean map and the covariance of its outputs given the input.

Given z, :math:`X=Wz+b` is Gaussian with mean :math:`\mu z+\bar b` and covariances :math:`C_{ik}(z)`, quadratic in z;
:math:`s_i=C_{ii}=\tilde z^\top\Sigma_i\tilde z` with :math:`\tilde z=(z,1)`. A kind of posterior is one file of rules
that registers itself here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Protocol

from torch import Tensor

from bnndp.engine.moments.joint_gaussian import Coupling, Near
from bnndp.engine.moments.pre_activation import Expansion
from bnndp.engine.moments.signal import SecondMoments, Signal
from bnndp.engine.rows import Rows
from bnndp.engine.sums.series import History
from bnndp.errors import UnsupportedLayerError
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import UP, gamma

__all__ = ["Weights", "row_variance", "spread_around", "weights_of"]


@dataclass(frozen=True, slots=True)
class SpreadRemainder:
    """s less its squares, around E z: rows of z - E z, and products of two of them."""

    rows: Tensor  # (batch, n_out, n_in)
    slack: Tensor  # (batch, n_out, n_in): how far the rows may be off on the box
    products: Tensor  # (batch, n_out, 3): norms of the products in L2, L4, L8


class Weights(Protocol):
    """A layer with weights for inputs of a given shape, on flat vectors."""

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        ...

    @property
    def n_out(self) -> int:
        """Number of outputs."""
        ...

    @property
    def groups(self) -> int:
        """Number of equal, contiguous groups of outputs; those of different groups are independent given the input."""
        ...

    @property
    def terms(self) -> int:
        """Length of the longest sum of a row or column, for the rounding."""
        ...

    @property
    def bias(self) -> Tensor:  # (n_out,), or (batch, n_out) where networks are stacked
        """Mean of the biases."""
        ...

    @property
    def random(self) -> bool:
        """Whether anything has a variance."""
        ...

    def apply(self, z: Tensor) -> Tensor:  # (..., n_in) -> (..., n_out)
        """Mu z, without the bias."""
        ...

    def power(self, z: Tensor, exponent: int) -> Tensor:  # (..., n_in) -> (..., n_out)
        """sum_j |mu_ij|^exponent z_j."""
        ...

    def pull(self, rows: Rows) -> Rows:
        """Rows mu; local rows must be zero outside the image."""
        ...

    def own_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]]:
        """The rows of mu itself, in pieces of about ``numbers`` coefficients for each box, and which they are."""
        ...

    @property
    def few(self) -> int:
        """Up to how many single rows (:meth:`rows_at`) cost less than all of them."""
        ...

    def rows_at(self, at: Tensor) -> Rows:  # (batch, k) of integers
        """The rows of mu with these indices, of each box its own."""
        ...

    def square_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]] | None:
        """The rows w of s_i = sum_j w_ij z_j^2 + ..., as of :meth:`own_rows`; None where they are not known."""
        ...

    def spread_remainder(self, z: Signal) -> SpreadRemainder | None:
        """What else there is in s; None if nothing but a constant."""
        ...

    def expansion(self, z: Signal, history: History | None) -> Expansion | None:
        """Cumulants of X for coordinates z, independent given a history (``sums/expansion.py``); None: not known."""
        ...

    def joint(self, z: Interval) -> Near | None:  # (batch, n_in) -> (batch, groups, g, g)
        """Covariances of the outputs of a group for inputs that are functions of x; None if they are not formed."""
        ...

    @property
    def coupling(self) -> Coupling | None:
        """Covariances of two different weights of a row; None if there are none, or if they are not formed."""
        ...

    def spread(self, z: Tensor) -> Tensor:  # (batch, n_in) -> (batch, n_out)
        """s_i(z)."""
        ...

    def spread_size(self, z: Tensor) -> Tensor:  # (batch, n_in) -> (batch, n_out)
        """s_i(z) with the sizes of all terms added, so that nothing cancels: the scale of its rounding."""
        ...

    def spread_pull(self, rows: Rows, z: Tensor) -> Rows:  # z (batch, n_in)
        """sum_i rows_i grad s_i(z)."""
        ...

    @property
    def coupled(self) -> bool:
        """Whether s_i(z) may have products of two coordinates: then Sigma_i is not diagonal."""
        ...

    def variance_pull(self, rows: Rows) -> Rows:
        """sum_i rows_i Sigma_i,jj."""
        ...

    def power_pull(self, rows: Rows, exponent: int) -> Rows:
        """sum_i rows_i |mu_ij|^exponent."""
        ...

    def spread_excess(self, radius: Tensor) -> Tensor:  # (batch, n_in) -> (batch, n_out)
        """Sup of d Sigma_i d over |d| <= radius, at most."""
        ...

    def mean_spread(self, z: Signal) -> Interval:  # (batch, n_out)
        """E s_i(z)."""
        ...

    def spread_deviation(self, z: Signal) -> Tensor:  # (batch, n_out)
        """Standard deviation of s_i(z), at most."""
        ...

    def row_parts(
        self, rows: Rows, z: SecondMoments, away: Tensor
    ) -> tuple[Tensor, Tensor]:  # away (batch, n_in, k) -> (batch, rows), (batch, rows, k)
        r"""Norms of the noise of ``rows . X``, which is a norm of (z, 1): at E z, and of deviations up to ``away``.

        The first is the standard deviation of ``rows . X`` given z = E z, at most over the box; the second bounds
        :math:`\lVert(d^\top\Sigma_ud)^{1/2}\rVert_q` if the norms of the d_j are at most ``away[:, j]``, q >= 2.
        """
        ...


def row_variance(weights: Weights, rows: Rows, z: SecondMoments) -> Tensor:  # (batch, rows)
    """E of the variance of ``rows . X`` given z, at most: that at E z plus that of z - E z."""
    at, away = weights.row_parts(rows, z, z.variance.sqrt()[..., None])
    return (at.square() + away[..., 0].square()) * UP


def spread_around(weights: Weights, z: Interval) -> tuple[Tensor, Tensor]:  # (batch, n_in) -> (batch, n_out) each
    """S at the middle of the range, and how far sqrt(s(z)) may be from its root on it, with the rounding of both.

    sqrt(s) is a norm of (z, 1), so it moves by at most that of the radius; loadings that cancel are off by units of
    the sizes of their terms.
    """
    middle, radius = 0.5 * (z.lower + z.upper), 0.5 * (z.upper - z.lower) * UP
    at = weights.spread(middle)
    size = weights.spread_size(middle.abs()) if weights.coupled else at
    blur = gamma(2 * weights.n_in + 16) * size.sqrt()
    return at, (weights.spread_excess(radius).sqrt() + blur) * UP


@singledispatch
def weights_of(layer: object, shape: tuple[int, ...]) -> Weights:
    """The rules of a layer with weights on inputs of this shape."""
    raise UnsupportedLayerError(f"the pass knows no weights of kind {type(layer).__name__}.")
