r"""Rules of convolutions with independent Gaussian kernels, one kernel for all positions.

Channels are independent given z, positions are not: for the output (c, p) with the patch :math:`z_{p}` of the input,
:math:`\operatorname{Cov}(X_{cp},X_{cq}\mid z)=\sum_j\sigma_{cj}^2z_{pj}z_{qj}+\sigma_{b,c}^2`. No matrix of the
convolution is ever formed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from bnndp.engine.chunks import device_size
from bnndp.engine.laws.weights import SpreadRemainder, Weights, weights_of
from bnndp.engine.moments.intervals import BLUR
from bnndp.engine.moments.joint_gaussian import LARGEST_JOINT, Coupling, Near
from bnndp.engine.moments.pre_activation import Expansion
from bnndp.engine.moments.signal import SecondMoments, Signal, nothing
from bnndp.engine.rows import DenseRows, LocalRows, Rows, single_rows
from bnndp.engine.sums.expansion import expansion_of
from bnndp.engine.sums.series import History
from bnndp.engine.sums.terms import sums_of
from bnndp.geometry.bounds import Interval
from bnndp.layers import Conv2d
from bnndp.maths.rounding import UP, gamma

__all__ = ["MANY", "Convolution"]

MANY = 8  # times as many rows over windows cost as much as single rows over the whole image
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

    def pull(self, rows: Rows) -> Rows:
        return self._transpose(rows, self.layer.weight_mean)

    def own_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]]:
        return self._kernel_rows(self.layer.weight_mean, numbers)

    @property
    def few(self) -> int:
        return self.n_out // MANY

    def rows_at(self, at: Tensor) -> Rows:
        return self.pull(single_rows(at, self.n_out))

    def square_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]] | None:
        return self._kernel_rows(self._variance, numbers) if self.random else None

    def _kernel_rows(self, kernel: Tensor, numbers: int) -> Iterator[tuple[slice, Rows]]:
        channels, height, width = self.out
        places = height * width
        kernel = kernel[None, :, None].expand(-1, -1, places, -1, -1, -1)
        step = max(1, numbers // (places * self.layer.weight_mean[0].numel()))
        for start in range(0, channels, step):
            stop = min(start + step, channels)
            part = kernel[:, start:stop]
            grid, stride, padding = (height, width), self.layer.stride, self.layer.padding
            yield slice(start * places, stop * places), LocalRows(part, self.shape, grid, stride, padding)

    def spread_remainder(self, z: Signal) -> SpreadRemainder | None:
        return None

    def expansion(self, z: Signal, history: History | None) -> Expansion | None:
        return expansion_of(z, *sums_of(self.layer.weight_mean, self._variance, self._convolve), history)

    def joint(self, z: Interval) -> Near | None:
        places = self.out[1] * self.out[2]
        if self.groups * places**2 > LARGEST_JOINT:
            return None
        middle, radius = self._patches(0.5 * (z.lower + z.upper)), self._patches(0.5 * (z.upper - z.lower) * UP)
        variance, bias = self._variance.reshape(self.out[0], -1), self.layer.bias_std.square()[:, None, None]

        def pairs(left: Tensor, right: Tensor) -> Tensor:  # (batch, entries, positions) each
            return torch.einsum("bjp,cj,bjq->bcpq", left, variance, right)

        size = middle.abs()
        moved = pairs(size, radius)
        off = moved + moved.mT + pairs(radius, radius) + BLUR * (pairs(size, size) + bias)
        return Near(pairs(middle, middle) + bias, off * UP)

    @property
    def coupling(self) -> Coupling | None:
        return None

    def spread(self, z: Tensor) -> Tensor:
        return self._convolve(z.square(), self._variance) + self._bias_variance

    def spread_size(self, z: Tensor) -> Tensor:
        return self.spread(z)

    def spread_pull(self, rows: Rows, z: Tensor) -> Rows:
        return self.variance_pull(rows).times(2 * z)

    @property
    def coupled(self) -> bool:
        return False

    def variance_pull(self, rows: Rows) -> Rows:
        return self._transpose(rows, self._variance)

    def power_pull(self, rows: Rows, exponent: int) -> Rows:
        return self._transpose(rows, self.layer.weight_mean.abs() ** exponent)

    def spread_excess(self, radius: Tensor) -> Tensor:
        return self._convolve(radius.square(), self._variance) * UP

    def mean_spread(self, z: Signal) -> Interval:
        second = z.second
        return Interval(
            (self._convolve(second.lower, self._variance).clamp_min(0) + self._bias_variance) / UP,
            (self._convolve(second.upper, self._variance) + self._bias_variance) * UP,
        )

    def spread_deviation(self, z: Signal) -> Tensor:
        each = z.square_std
        if z.source:
            return self._convolve(each.square(), self._variance.square()).sqrt() * UP
        return self._convolve(each, self._variance) * UP

    def row_parts(self, rows: Rows, z: SecondMoments, away: Tensor) -> tuple[Tensor, Tensor]:
        r"""Roots of sums over channels and kernel entries of :math:`\sigma_{cj}^2(\sum_pu_{cp}z_{pj})^2`.

        At the mean the inner sum is at most :math:`|\sum_pu_{cp}\bar z_{pj}|+\sum_p|u_{cp}|\rho_{pj}` for means within
        rho of the middle; a norm of its deviation at most :math:`\sum_p|u_{cp}|` times those of the inputs.
        """
        batch = z.variance.shape[0]
        if not self.random:
            zero = nothing(z, rows)
            return zero, nothing(z, rows, away.shape[-1])
        variance = self._variance.reshape(self.out[0], -1)
        middle, radius = 0.5 * (z.mean.lower + z.mean.upper), 0.5 * (z.mean.upper - z.mean.lower)
        lost = gamma(2 * self.out[1] * self.out[2] + 8)
        others = [] if z.fixed else [self._patches(part) for part in away.unbind(-1)]
        at_middle, at_radius = self._patches(middle), self._patches(radius + lost * middle.abs())
        one = torch.ones_like(at_middle[:, :1])
        at, further = [], []
        most = device_size(_PATCHES, variance.device)
        for part in _split(rows, max(1, most // (batch * variance.numel()))):
            size = part.abs()
            inner = _sums(part, at_middle).abs() + _sums(size, at_radius)
            own = _sums(part, one).abs() + lost * _sums(size, one)
            total = (inner.square() * variance).sum((-1, -2))
            at.append((total + (own[..., 0].square() * self.layer.bias_std.square()).sum(-1)).sqrt())
            if others:
                moved = [(_sums(size, other).square() * variance).sum((-1, -2)).sqrt() for other in others]
                further.append(torch.stack(moved, -1))
        found = torch.cat(at, dim=1) * UP
        return found, torch.cat(further, dim=1) * UP if others else nothing(z, rows, away.shape[-1])

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

    def _transpose(self, rows: Rows, kernel: Tensor) -> Rows:
        stride, padding = self.layer.stride, self.layer.padding
        if isinstance(rows, LocalRows):
            return rows.pulled(kernel, self.shape, stride, padding)
        values = rows.dense().values
        spare = tuple(
            n + 2 * pad - k - (count - 1) * step
            for n, pad, k, count, step in zip(
                self.shape[1:], padding, kernel.shape[2:], self.out[1:], stride, strict=True
            )
        )  # inputs that no window reaches at the far end
        images = values.reshape(-1, *self.out)
        found = functional.conv_transpose2d(images, kernel, stride=stride, padding=padding, output_padding=spare)
        return DenseRows(found.reshape(*values.shape[:-1], self.n_in))

    def _patches(self, z: Tensor) -> Tensor:
        """What each entry of the kernel meets at each position: (batch, entries, positions)."""
        return functional.unfold(
            z.reshape(-1, *self.shape),
            tuple(self.layer.weight_mean.shape[2:]),
            stride=self.layer.stride,
            padding=self.layer.padding,
        )


def _split(rows: Rows, count: int) -> list[Rows]:
    """Pieces of about ``count`` rows; of whole output channels for local ones."""
    if not isinstance(rows, LocalRows):
        return [DenseRows(part) for part in rows.dense().values.split(count, dim=1)]
    step = max(1, count // rows.values.shape[2])
    return [replace(rows, values=part) for part in rows.values.split(step, dim=1)]


def _sums(rows: Rows, patches: Tensor) -> Tensor:  # patches (batch, entries, positions)
    """Sum over positions p of a channel c of ``u_cp patches_jp``: (batch, rows, channels, entries)."""
    batch, entries = patches.shape[:2]
    if not isinstance(rows, LocalRows):
        parts = rows.dense().values.unflatten(-1, (-1, patches.shape[-1]))
        return torch.einsum("brcp,bjp->brcj", parts.expand(batch, -1, -1, -1), patches)
    seen = rows.windows_of(patches.reshape(batch, entries, *rows.shape[1:]))  # (batch, entries * window, rows' places)
    seen = seen.reshape(batch, entries, -1, seen.shape[-1])
    values = rows.values.flatten(4)  # (batch, outputs, places, channels, window)
    found = torch.einsum("bopck,bjkp->bopcj", values.expand(batch, -1, -1, -1, -1), seen)
    return found.flatten(1, 2)


@weights_of.register
def _(layer: Conv2d, shape: tuple[int, ...]) -> Weights:
    return Convolution(layer, shape, layer.out_shape(shape), layer.random)
