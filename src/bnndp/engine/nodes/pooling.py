"""Nodes of layers that move or collect values: average and maximum of windows, flattening."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bnndp.engine.moments.signal import CENTRED, Signal, fixed, nothing
from bnndp.engine.nodes.bound import Bound, vanished
from bnndp.engine.nodes.node import Node, OnOne, Unfolded, row_std
from bnndp.engine.nodes.step import step
from bnndp.engine.rows import DenseRows, LocalRows, Rows
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import apply_rows
from bnndp.layers import AveragePool, Flatten, MaxPool
from bnndp.maths.rounding import SMALL, TINY, UP, gamma

__all__ = ["Averaged", "Largest"]


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a pooling layer on flat images."""

    shape: tuple[int, ...]  # of the input: (channels, height, width)
    out: tuple[int, ...]
    size: tuple[int, int]
    stride: tuple[int, int]

    @property
    def count(self) -> int:
        """Values in a window."""
        return self.size[0] * self.size[1]

    @property
    def apart(self) -> bool:
        """Whether no value is in two windows."""
        return all(k <= step for k, step in zip(self.size, self.stride, strict=True))

    def split(self, z: Tensor) -> Tensor:  # (..., n_in) -> (..., n_out, count)
        images = z.reshape(-1, 1, *self.shape[1:])
        found = functional.unfold(images, self.size, stride=self.stride)  # (images * channels, count, positions)
        return found.mT.reshape(*z.shape[:-1], math.prod(self.out), self.count)

    def collect(self, parts: Tensor) -> Tensor:  # (..., n_out, count) -> (..., n_in): the transpose of split
        positions = self.out[1] * self.out[2]
        columns = parts.reshape(-1, positions, self.count).mT
        found = functional.fold(columns, self.shape[1:], self.size, stride=self.stride)
        return found.reshape(*parts.shape[:-2], math.prod(self.shape))


@dataclass(frozen=True, slots=True, eq=False)
class Averaged(OnOne):
    """Means of windows: a fixed linear map."""

    windows: Windows
    signal: Signal
    below: Node

    @property
    def mean(self) -> Interval:
        return self.signal.mean

    def lower(self, bound: Bound) -> Bound:
        variances, z = bound.variances, self.below.signal
        if variances is not None and z.source and not z.fixed:  # Var of a mean of independent values
            size, count = self.windows.split(z.variance).mean(-1), self.windows.count
            lost = gamma(count + 16) * variances.abs().dot(size) + vanished(Interval(z.variance, z.variance))
            bound = Bound(bound.rows, bound.constant - lost)
            variances = self._pull(variances).map(lambda v: v / count)
        else:
            bound, variances = bound.without_variances(self.signal), None
        constant = bound.constant - gamma(16) * bound.constant.abs() - self._lost(bound.rows)
        return Bound(self._pull(bound.rows), constant, variances)

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        pulled = self._pull(rows)
        noise, central = self.below.parts(pulled)
        if self.windows.apart:
            return noise * UP, central * UP
        return torch.zeros_like(noise), row_std(self.below, pulled)

    def norms(self, rows: Rows) -> Tensor:
        return self.below.norms(self._pull(rows))

    def unfold(self, rows: Rows) -> Unfolded:
        return (self._pull(rows),), lambda found: found * UP

    unfold_norms = unfold

    def _pull(self, rows: Rows) -> Rows:
        windows, count = self.windows, self.windows.count
        if isinstance(rows, LocalRows) and windows.size == windows.stride:
            return rows.spread(windows.size, windows.shape)
        values = rows.dense().values
        return DenseRows(windows.collect((values / count)[..., None].expand(*values.shape, count)))

    def _lost(self, rows: Rows) -> Tensor:
        size = self.windows.split(self.below.signal.mean.magnitude).mean(-1)
        return gamma(self.windows.count + 8) * rows.abs().dot(size) + vanished(self.below.signal.mean)


@dataclass(frozen=True, slots=True, eq=False)
class Largest(OnOne):
    r"""Maxima of windows, around one value j of each: :math:`z_j\le\max\le z_j+\sum_{i\ne j}(z_i-z_j)_+`.

    :math:`\mathbb E(z_i-z_j)_+\le\tfrac12(D+\sqrt{D^2+V})` for a difference of mean D and variance V (Scarf 1958), a
    convex increasing function of D, so at most its chord over the range of D.
    """

    windows: Windows
    chosen: Tensor  # (batch, n_out, count): 1 at j, 0 elsewhere
    upper: Tensor  # (batch, n_out, count): coefficients of the upper bound
    offset: Tensor  # (batch, n_out): its constant
    remainder: Tensor  # (batch, n_out): standard deviation of max - z_j, at most
    remainder_norms: Tensor  # (batch, n_out, q): norms of max - z_j less its mean, at most
    signal: Signal
    below: Node

    @property
    def mean(self) -> Interval:
        return self.signal.mean

    def lower(self, bound: Bound) -> Bound:
        bound = bound.without_variances(self.signal)
        matrix, constant = bound.rows.dense().values, bound.constant
        positive, negative = matrix.clamp_min(0), matrix.clamp_max(0)
        parts = positive[..., None] * self.chosen[:, None] + negative[..., None] * self.upper[:, None]
        size = 4 * self.windows.count * self.windows.split(self.below.signal.mean.magnitude).amax(-1)
        lost = apply_rows(matrix.abs(), size + self.offset.abs()) + constant.abs()
        lost = gamma(4 * matrix.shape[-1] + 16) * lost + vanished(self.below.signal.mean)
        return Bound(DenseRows(self.windows.collect(parts)), constant + apply_rows(negative, self.offset) - lost)

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        pulled = self._pull(rows)
        return nothing(self.signal, rows), (row_std(self.below, pulled) + rows.abs().dot(self.remainder)) * UP

    def norms(self, rows: Rows) -> Tensor:
        return self.below.norms(self._pull(rows)) + rows.abs().dots(self.remainder_norms) * UP

    def unfold(self, rows: Rows) -> Unfolded:
        return (self._pull(rows),), lambda found: (found + rows.abs().dot(self.remainder)) * UP

    def unfold_norms(self, rows: Rows) -> Unfolded:
        return (self._pull(rows),), lambda found: found + rows.abs().dots(self.remainder_norms) * UP

    def _pull(self, rows: Rows) -> Rows:
        return DenseRows(self.windows.collect(rows.dense().values[..., None] * self.chosen[:, None]))


@step.register
def _(layer: Flatten, below: Node, shape: tuple[int, ...]) -> Node:
    return below


@step.register
def _(layer: AveragePool, below: Node, shape: tuple[int, ...]) -> Node:
    windows = Windows(shape, layer.out_shape(shape), layer.size, layer.stride)  # type: ignore[arg-type]
    z, count = below.signal, windows.count

    def mean(values: Tensor) -> Tensor:
        return windows.split(values).mean(-1)

    slack = gamma(count + 8) * mean(z.mean.magnitude) + TINY
    ends = Interval(mean(z.mean.lower) - slack, mean(z.mean.upper) + slack)
    if z.fixed:
        return Averaged(windows, fixed(ends), below)
    third = mean(z.third_size) / count**2 * UP
    fourth = mean(z.noise_fourth.upper) / count**3
    fourth = (fourth + 3 * (mean(z.noise.upper).square() + mean(z.noise_deviation).square()) / count**2) * UP
    signal = Signal(
        mean=ends,
        variance=(mean(z.variance) / count if z.source else mean(z.variance.sqrt()).square()) * UP,
        variance_low=mean(z.noise.lower) / count / UP,
        norms=torch.stack([mean(norm) for norm in z.norms.unbind(-1)], -1) * UP,
        inner=torch.stack([mean(norm) for norm in z.inner.unbind(-1)], -1) * UP,
        given=torch.stack([mean(norm) for norm in z.given.unbind(-1)], -1) * UP,
        deviations=torch.stack([mean(norm) for norm in z.deviations.unbind(-1)], -1) * UP,
        roughness=math.sqrt(2) * (mean(z.noise.upper) / count).sqrt() * UP,
        noise=Interval(mean(z.noise.lower) / count / UP, mean(z.noise.upper) / count * UP),
        noise_deviation=mean(z.noise_deviation) / count * UP,
        third=Interval(-third, third),
        third_deviation=torch.zeros_like(third) if z.source else third,
        noise_fourth=Interval(torch.zeros_like(fourth), fourth),
        fixed=False,
        source=z.source,
    )
    return Averaged(windows, signal if windows.apart else signal.without_history(), below)


@step.register
def _(layer: MaxPool, below: Node, shape: tuple[int, ...]) -> Node:
    windows = Windows(shape, layer.out_shape(shape), layer.size, layer.stride)  # type: ignore[arg-type]
    z = below.signal
    low, high = windows.split(z.mean.lower), windows.split(z.mean.upper)  # (batch, n_out, count)
    index = (low + high).argmax(-1, keepdim=True)
    chosen = torch.zeros_like(low).scatter(-1, index, 1.0)
    others = 1 - chosen
    sd = windows.split(z.variance.sqrt())
    norms = torch.stack([windows.split(norm) for norm in z.norms.unbind(-1)], -1)  # (batch, n_out, count, q)
    pairs = norms + norms.gather(2, index[..., None].expand(*index.shape, norms.shape[-1]))
    own_low, own_high = low.gather(-1, index), high.gather(-1, index)
    least, most = low - own_high, high - own_low  # of the difference of means
    both = (sd + sd.gather(-1, index)) * UP + (0.0 if z.fixed else SMALL)
    ends = [0.5 * (d + torch.hypot(d, both)) for d in (least, most)]
    width = (most - least).clamp_min(TINY)
    slope = ((ends[1] - ends[0]) / width).clamp(0, 1) * others
    size = most.abs().maximum(least.abs()) + both
    offset = torch.maximum(ends[0] - slope * least, ends[1] - slope * most) + 1e-14 * size
    upper = slope + chosen * (1 - slope.sum(-1, keepdim=True))
    total = (offset * others).sum(-1) * UP
    # E (Y - d)_+^2 <= E Y^4 / (16 d^2) for d > 0, and <= Var Y + positive part of the mean, squared.
    far = pairs[..., 0].square() / (4 * (-most).clamp_min(TINY))
    remainder = (torch.minimum(torch.hypot(both, most.clamp_min(0)), far) * others).sum(-1) * UP
    top = own_high[..., 0] + (ends[1] * others).sum(-1)
    mean = Interval(low.amax(-1), top + 1e-13 * (own_high[..., 0].abs() + top.abs()) + TINY)
    if z.fixed:
        mean = Interval(low.amax(-1), high.amax(-1))
        left = norms.new_zeros(*remainder.shape, norms.shape[-1])
        return Largest(windows, chosen, upper, total, torch.zeros_like(remainder), left, fixed(mean), below)
    variance = (sd.gather(-1, index)[..., 0] + remainder).square() * UP
    zero = torch.zeros_like(variance)
    none = Interval(zero, zero)
    # max is within sum |z_i - E z_i| of a constant, and max - z_j of one.
    whole = norms.new_tensor(CENTRED) * norms.sum(2) * UP
    moments = (mean, variance, zero, whole, whole, *(torch.zeros_like(whole),) * 2)
    signal = Signal(*moments, zero, none, zero, none, zero, none, fixed=False, source=False)
    apart_norms = 2 * (pairs + most.clamp_min(0)[..., None]) * others[..., None]
    return Largest(windows, chosen, upper, total, remainder, apart_norms.sum(2) * UP, signal, below)
