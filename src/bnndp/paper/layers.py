r"""One linear layer prepared for the recursion, and the ranges of its pre-activations over a batch of regions.

Given :math:`z`, pre-activation ``h`` is :math:`N(m_h(z), s_h(z))` with :math:`m=\mu z+b`,
:math:`s=\sigma^2z^2+\sigma_b^2` and :math:`r=\sqrt s` (Eqn. ``eq:defFuncs_mAnds`` for independent weights).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.layers import Linear
from bnndp.maths.rectified import expected_relu
from bnndp.maths.rounding import TINY, UNIT, down, gamma, up

SLACK = 2.0**-40
"""Relative error granted to a tail or a mean deep in the tail: up to 38 standard deviations cost t^2 units each."""


@dataclass(frozen=True, slots=True)
class Region:
    """Boxes of layer inputs, ``cells`` of them for each box of the batch, with the points ``at`` to relax around."""

    lower: Tensor  # (batch, cells, n_in)
    upper: Tensor  # (batch, cells, n_in)
    at: Tensor  # (batch, cells, n_in), inside

    @property
    def magnitude(self) -> Tensor:
        """``max |z|`` in each coordinate."""
        return torch.maximum(self.lower.abs(), self.upper.abs())


@dataclass(frozen=True, slots=True)
class Ranges:
    """Outer intervals of ``m(z)`` and ``r(z)`` over each region."""

    mean_lower: Tensor  # (batch, cells, n_out)
    mean_upper: Tensor  # (batch, cells, n_out)
    std_lower: Tensor  # (batch, cells, n_out), >= 0
    std_upper: Tensor  # (batch, cells, n_out)


@dataclass(frozen=True, slots=True)
class Layer:
    """Parameters of a hidden layer; variances are kept as an upper and a lower version, both free of underflow."""

    mean: Tensor  # (n_out, n_in)
    bias: Tensor  # (n_out,)
    var_lower: Tensor  # (n_out, n_in)
    var_upper: Tensor  # (n_out, n_in)
    bias_var_lower: Tensor  # (n_out,)
    bias_var_upper: Tensor  # (n_out,)
    rise: Tensor  # (n_out, n_in), at least E max(w, 0)
    fall: Tensor  # (n_out, n_in), at least E max(-w, 0)
    bias_rise: Tensor  # (n_out,), at least E max(b, 0)
    met: Tensor  # (), at least the sum of all means and variances that a coefficient is multiplied with

    @classmethod
    def of(cls, linear: Linear) -> Layer:
        """The records of ``linear`` that every step of the recursion shares."""
        mean, std = linear.weight_mean, linear.weight_std
        var_lower, var_upper = _variances(std)
        return cls(
            mean,
            linear.bias_mean,
            var_lower,
            var_upper,
            *_variances(linear.bias_std),
            _rectified_upper(mean, std),
            _rectified_upper(-mean, std),
            _rectified_upper(linear.bias_mean, linear.bias_std),
            1 + mean.abs().sum() + var_upper.sum(),
        )

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return self.mean.shape[1]

    @property
    def n_out(self) -> int:
        """Number of neurons."""
        return self.mean.shape[0]

    def point(self, z: Tensor) -> tuple[Tensor, Tensor]:  # z (..., n_in)
        """``m(z)`` and ``r(z)`` to working accuracy: (..., n_out). Only for choices, never for a bound."""
        return z @ self.mean.T + self.bias, (z * z @ self.var_upper.T + self.bias_var_upper).sqrt()

    def std_upper(self, z: Tensor) -> Tensor:  # z (..., n_in), the magnitudes
        r"""A value above :math:`r` at every point of magnitude at most ``z``: (..., n_out)."""
        return up(z * z @ self.var_upper.T + self.bias_var_upper, 2 * self.n_in + 4).sqrt() * (1 + 4 * UNIT)

    def std_lower(self, z: Tensor) -> Tensor:  # z (..., n_in), the magnitudes
        r"""A value below :math:`r` at every point of magnitude at least ``z``: (..., n_out)."""
        return down(z * z @ self.var_lower.T + self.bias_var_lower, 2 * self.n_in + 4).sqrt() * (1 - 4 * UNIT)

    def ranges(self, region: Region) -> Ranges:
        """Intervals of ``m`` and ``r`` over each region by interval arithmetic, rounded outward."""
        positive, negative = self.mean.clamp_min(0).T, self.mean.clamp_max(0).T
        size = region.magnitude
        error = gamma(2 * self.n_in + 8) * (size @ self.mean.abs().T + self.bias.abs()) + TINY
        lower = region.lower @ positive + region.upper @ negative + self.bias - error
        upper = region.upper @ positive + region.lower @ negative + self.bias + error
        nearest = torch.maximum(region.lower, -region.upper).clamp_min(0)  # min |z|: 0 where the box holds zero
        return Ranges(lower, upper, self.std_lower(nearest), self.std_upper(size))


def _variances(std: Tensor) -> tuple[Tensor, Tensor]:
    """The squares from below and above: what is under ``TINY`` is zero, and ``TINY``."""
    square = std * std
    lower = torch.where(square >= TINY, square, 0.0)
    return lower, torch.where(std > 0, square.clamp_min(TINY), 0.0)


def _rectified_upper(mean: Tensor, std: Tensor) -> Tensor:
    some = (std > 0).to(std.dtype)  # times a mask of booleans TINY would be a float32, and zero
    return expected_relu(mean, std) * (1 + SLACK) + TINY * some
