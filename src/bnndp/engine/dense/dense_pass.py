"""The moment pass of dense ReLU networks with independent weights, behind the protocol (docs/theory.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.activations import Relu
from bnndp.engine.dense.backward import Choice, least, lower_bound
from bnndp.engine.dense.conditional import Layers
from bnndp.engine.dense.first import first_layer
from bnndp.engine.dense.forward import HiddenLayers, deeper_layers, with_last
from bnndp.engine.dense.output import OutputRows, interval_mean, lowered_bias, output_rows, row_variance
from bnndp.engine.general.general_pass import GeneralPass
from bnndp.engine.protocol import BranchablePass, Margins, Planes, Slopes, movable
from bnndp.engine.tails.tails import useful_tails
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box
from bnndp.geometry.half_space import HalfSpace
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

__all__ = ["DensePass"]

_TAILED = 2  # hidden layers up to which exponential moments are known


@dataclass(frozen=True, eq=False)
class DensePass:
    """Bounds of a chain of Linear and Relu with at least one hidden layer, on boxes or on cells of them."""

    name: ClassVar[str] = "moment"
    moments: ClassVar[bool] = True

    linears: tuple[Linear, ...]
    box: Box
    signs: tuple[Tensor, ...] = ()  # (batch, n) of -1, 0 and 1 for each hidden layer, or none

    @cached_property
    def layers(self) -> HiddenLayers:
        """The hidden layers on the boxes."""
        first = first_layer(self.linears[0], self.box, self.signs[0] if self.signs else None)
        return deeper_layers(first, self.linears[:-1], self.box, self.signs)

    @cached_property
    def given(self) -> Layers:
        """The layers from the second on taken apart, the last included: what variances need."""
        return with_last(self.layers)

    @property
    def random(self) -> bool:
        """Whether any layer has a variance."""
        return any(layer.random for layer in self.linears)

    @property
    def gaussian(self) -> bool:
        """Whether nothing is random before the last layer."""
        return not any(layer.random for layer in self.linears[:-1])

    @property
    def tailed(self) -> bool:
        """Up to two hidden layers."""
        return self.random and len(self.linears) <= _TAILED + 1

    @property
    def costly_tails(self) -> bool:
        """With two hidden layers."""
        return self.tailed and len(self.linears) == _TAILED + 1

    @property
    def branchable(self) -> BranchablePass | None:
        """Itself."""
        return self

    def affine(self, rows: Tensor) -> Planes:
        """By the rows carried down to x, and by the ranges of the last hidden means."""
        outputs = self._rows(rows)
        found = self._lower(outputs, None)
        planes = self.box.minimum(found.matrix, found.offset)
        return Planes(found, self._with_interval(planes, outputs), (self.name,) * self.box.batch)

    def least(self, rows: Tensor) -> Tensor:
        """The same without the functions, which are much larger than all else."""
        outputs, layers = self._rows(rows), self.layers
        bias = lowered_bias(outputs, layers.latents[-1].mean)
        return self._with_interval(least(outputs.weight, bias, layers.relaxed, layers.ground), outputs)

    def _with_interval(self, planes: Tensor, outputs: OutputRows) -> Tensor:
        """The better of two lower bounds (batch, rows); minus infinity where powers overflow or nothing is a number."""
        mean = torch.maximum(planes, interval_mean(outputs, self.layers.latents[-1].mean))
        return torch.where(self.layers.fine & mean.isfinite(), mean, -torch.inf)

    def variance(self, rows: Tensor) -> Tensor:
        """By the law of total variance over the last hidden layer."""
        return row_variance(self._rows(rows), self.layers, self.given, self.linears[-1].n_out)

    def covariance(self, left: Tensor, right: Tensor) -> Tensor:
        """By the variance of the sum: 4 Cov(a, b) = Var(a + b) - Var(a - b)."""
        return 0.25 * self.variance(left + right)

    def output_variance(self) -> Interval:
        """The better of both passes from above; the general one from below."""
        found = self._general.output_variance()
        unit = torch.eye(self.linears[-1].n_out, dtype=torch.float64, device=self.box.lower.device)
        high = torch.minimum(found.upper, self.variance(unit))
        return Interval(torch.minimum(found.lower, high), high)

    def tails(self, at: Tensor, label: Tensor, margins: Margins) -> Tensor:
        """With one and two hidden layers, where they may say more than two moments."""
        return useful_tails(self.linears, self.box[at], label, margins.mean, margins.variance)

    def softmax(self, rows: Tensor) -> Tensor | None:
        """Only by margins."""
        return None

    def slopes(self, rows: Tensor) -> tuple[Slopes, Slopes]:
        """Tangent points of every layer, and multipliers of zero on cells."""
        layers, count = self.layers, rows.shape[-2]
        points = [layers.first.tangent, *(h.relaxation.tangent for h in layers.chain)]
        usual = [u[:, None].expand(-1, count, -1) for u in points]
        zeros = [torch.zeros_like(u) for u in usual[: len(self.signs)]]
        start = [movable(u, m).clone() for u, m in zip(usual, layers.ranges, strict=True)]
        return Slopes(usual, zeros), Slopes(start, [zero.clone() for zero in zeros])

    def multiplier_scale(self, rows: Tensor) -> float:
        """The largest coefficient of the last hidden layer."""
        return float(self._rows(rows).weight.abs().amax())

    def affine_at(self, rows: Tensor, slopes: Slopes) -> Affine:
        """Functions of x below the rows, with these slopes."""
        return self._lower(self._rows(rows), slopes)

    def _lower(self, outputs: OutputRows, slopes: Slopes | None) -> Affine:
        layers = self.layers
        bias = lowered_bias(outputs, layers.latents[-1].mean)
        choice = None if slopes is None else self._choice(slopes)
        found = lower_bound(outputs.weight, bias, layers.relaxed, layers.first, self.box, choice)
        fine = layers.fine
        return Affine(torch.where(fine[..., None], found.matrix, 0.0), torch.where(fine, found.offset, -torch.inf))

    def _choice(self, slopes: Slopes) -> Choice:
        signed = [b.clamp_min(0) * s[:, None] for b, s in zip(slopes.multipliers, self.signs, strict=True)]
        return Choice(slopes.tangents, signed)

    @property
    def widths(self) -> Sequence[int]:
        """Of the hidden layers."""
        return [layer.n_out for layer in self.linears[:-1]]

    @property
    def empty(self) -> Tensor:
        """Cells (batch,) that provably hold no x."""
        return self.layers.empty

    def restricted(self, owner: Tensor, signs: tuple[Tensor, ...], cut: HalfSpace | None = None) -> DensePass:
        """The pass on cells of the boxes ``owner``; it bounds what a cut leaves out as well."""
        return DensePass(self.linears, self.box[owner], signs)

    def branching_scores(self, rows: Tensor, slopes: Slopes, worst: Tensor) -> list[Tensor]:
        """The coefficient of a neuron's chord in the bound times its height above zero at a mean of zero."""
        layers, outputs, choice = self.layers, self._rows(rows), self._choice(slopes)
        bias = lowered_bias(outputs, layers.latents[-1].mean)
        tops = [layers.first.upper.offset, *(h.relaxation.upper_offset for h in layers.chain)]
        with torch.enable_grad():
            leaf = [top.detach().requires_grad_() for top in tops]
            first = replace(layers.first, upper=replace(layers.first.upper, offset=leaf[0]))
            relaxed = [
                (layer, replace(relaxation, upper_offset=top), scale)
                for (layer, relaxation, scale), top in zip(layers.relaxed, leaf[1:], strict=True)
            ]
            bound = lower_bound(outputs.weight, bias, relaxed, first, self.box, choice)
            value = self.box.minimum(bound.matrix, bound.offset).gather(1, worst[:, None])
            gradients = torch.autograd.grad(value.sum(), leaf)
        scores = []
        for gradient, top, m, signs in zip(gradients, tops, layers.ranges, self.signs, strict=True):
            unknown = (m.lower < 0) & (m.upper > 0) & (signs == 0)
            scores.append(torch.where(unknown, -gradient * top.clamp_min(0), -torch.inf).nan_to_num(-torch.inf))
        return scores

    def _rows(self, rows: Tensor) -> OutputRows:
        return output_rows(self.linears[-1], rows)

    @cached_property
    def _general(self) -> GeneralPass:
        layers = [record for layer in self.linears[:-1] for record in (layer, Relu())]
        return GeneralPass.of(BayesianNetwork((*layers, self.linears[-1])), self.box)
