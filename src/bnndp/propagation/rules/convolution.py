r"""Rules of convolutions with independent Gaussian kernels, one kernel for all positions.

Channels are independent given z, positions are not: for the output (c, p) with the patch :math:`z_{p}` of the input,
:math:`\operatorname{Cov}(X_{cp},X_{cq}\mid z)=\sum_j\sigma_{cj}^2z_{pj}z_{qj}+\sigma_{b,c}^2`. No matrix of the
convolution is ever formed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bnndp.bounds import Interval
from bnndp.layers import Conv2d
from bnndp.maths.rounding import gamma
from bnndp.propagation.signal import UP, Signal
from bnndp.propagation.weights import Weights, weights_of

__all__ = ["Convolution"]

_PATCHES = 2**24  # numbers of kernel sums held at a time


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution on flat images (channels * height * width)."""

    layer: Conv2d
    shape: tuple[int, ...]  # of the input: (channels, height, width)
    out: tuple[int, ...]
    random: bool

    @property
    def n_in(self) -> int:
        return math.prod(self.shape)

    @property
    def n_out(self) -> int:
        return math.prod(self.out)

    @property
    def groups(self) -> int:
        return self.out[0]

    @property
    def terms(self) -> int:
        return max(self.layer.weight_mean[0].numel(), self.layer.weight_mean[:, 0].numel())

    @property
    def bias(self) -> Tensor:
        return self.layer.bias_mean.repeat_interleave(self.out[1] * self.out[2])

    def apply(self, z: Tensor) -> Tensor:
        return self._convolve(z, self.layer.weight_mean)

    def power(self, z: Tensor, exponent: int) -> Tensor:
        return self._convolve(z, self.layer.weight_mean.abs() ** exponent)

    def pull(self, rows: Tensor) -> Tensor:
        return self._transpose(rows, self.layer.weight_mean)

    def spread(self, z: Tensor) -> Tensor:
        return self._convolve(z.square(), self._variance) + self._bias_variance

    def spread_pull(self, rows: Tensor, z: Tensor) -> Tensor:
        return self._transpose(rows, self._variance) * (2 * z[:, None])

    def spread_excess(self, radius: Tensor) -> Tensor:
        return self._convolve(radius.square(), self._variance) * UP

    def mean_spread(self, z: Signal) -> Interval:
        second = z.second
        return Interval(
            (self._convolve(second.lower, self._variance).clamp_min(0) + self._bias_variance) / UP,
            (self._convolve(second.upper, self._variance) + self._bias_variance) * UP,
        )

    def spread_deviation(self, z: Signal) -> Tensor:
        each = z.square_deviation
        if z.source:
            return self._convolve(each.square(), self._variance.square()).sqrt() * UP
        return self._convolve(each, self._variance) * UP

    def row_parts(self, rows: Tensor, z: Signal, away: Tensor) -> tuple[Tensor, Tensor]:
        r"""Roots of sums over channels and kernel entries of :math:`\sigma_{cj}^2(\sum_pu_{cp}z_{pj})^2`.

        At the mean the inner sum is at most :math:`|\sum_pu_{cp}\bar z_{pj}|+\sum_p|u_{cp}|\rho_{pj}` for means within
        rho of the middle; a norm of its deviation at most :math:`\sum_p|u_{cp}|` times those of the inputs.
        """
        batch, count = rows.shape[:2]
        if not self.random:
            zero = rows.new_zeros(batch, count)
            return zero, zero[..., None].expand(batch, count, away.shape[-1])
        channels = self.out[0]
        middle, radius = 0.5 * (z.mean.lower + z.mean.upper), 0.5 * (z.mean.upper - z.mean.lower)
        variance = self._variance.reshape(channels, -1)
        size = max(1, _PATCHES // (batch * channels * variance.shape[1]))
        at_middle, size_middle, at_radius = (self._patches(part) for part in (middle, middle.abs(), radius))
        others = [] if z.fixed else [self._patches(part) for part in away.unbind(-1)]
        lost = gamma(2 * at_middle.shape[-1] + 8)
        at, further = [], []
        for part in rows.reshape(batch, count, channels, -1).split(size, dim=1):
            size_of = part.abs()
            inner = torch.einsum("brcp,bjp->brcj", part, at_middle).abs()
            inner = inner + torch.einsum("brcp,bjp->brcj", size_of, at_radius + lost * size_middle)
            total = (inner.square() * variance).sum((-1, -2))
            own = part.sum(-1).abs() + lost * size_of.sum(-1)
            at.append((total + (own.square() * self.layer.bias_std.square()).sum(-1)).sqrt())
            moved = [
                (torch.einsum("brcp,bjp->brcj", size_of, other).square() * variance).sum((-1, -2)).sqrt()
                for other in others
            ]
            zero = torch.zeros_like(at[-1])[..., None].expand(*at[-1].shape, away.shape[-1])
            further.append(torch.stack(moved, -1) if moved else zero)
        return torch.cat(at, dim=1) * UP, torch.cat(further, dim=1) * UP

    @property
    def _variance(self) -> Tensor:
        return self.layer.weight_std.square()

    @property
    def _bias_variance(self) -> Tensor:
        return self.layer.bias_std.square().repeat_interleave(self.out[1] * self.out[2])

    def _convolve(self, z: Tensor, kernel: Tensor) -> Tensor:
        images = z.reshape(-1, *self.shape)
        found = functional.conv2d(images, kernel, stride=self.layer.stride, padding=self.layer.padding)
        return found.reshape(*z.shape[:-1], self.n_out)

    def _transpose(self, rows: Tensor, kernel: Tensor) -> Tensor:
        images = rows.reshape(-1, *self.out)
        spare = tuple(
            n + 2 * pad - k - (count - 1) * step
            for n, pad, k, count, step in zip(
                self.shape[1:], self.layer.padding, kernel.shape[2:], self.out[1:], self.layer.stride, strict=True
            )
        )  # inputs that no window reaches at the far end
        found = functional.conv_transpose2d(
            images, kernel, stride=self.layer.stride, padding=self.layer.padding, output_padding=spare
        )
        return found.reshape(*rows.shape[:-1], self.n_in)

    def _patches(self, z: Tensor) -> Tensor:
        return functional.unfold(
            z.reshape(-1, *self.shape),
            tuple(self.layer.weight_mean.shape[2:]),
            stride=self.layer.stride,
            padding=self.layer.padding,
        )


@weights_of.register
def _(layer: Conv2d, shape: tuple[int, ...]) -> Weights:
    return Convolution(layer, shape, layer.out_shape(shape), layer.random)
