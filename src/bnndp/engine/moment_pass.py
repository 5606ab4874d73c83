"""The moment pass behind the protocol: networks of any layers, and stacked members of an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.engine.chunks import selected
from bnndp.engine.laws.stacked import StackedLinear
from bnndp.engine.nodes.activation import Activated
from bnndp.engine.nodes.bound import Bound, vanished
from bnndp.engine.nodes.node import Node
from bnndp.engine.propagation.activation_step import Region, relaxed, relaxed_on_cells
from bnndp.engine.propagation.backward import lower_bound
from bnndp.engine.propagation.forward import HiddenLayers, activations_of, hidden_layers
from bnndp.engine.propagation.outputs import least_rows, output_bound, row_variance
from bnndp.engine.propagation.reach import reached_covariance
from bnndp.engine.propagation.spreads import Spreads
from bnndp.engine.protocol import BranchablePass, Deviations, Margins, Planes, Slopes, finite, known, movable
from bnndp.engine.rows import DenseRows
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box
from bnndp.geometry.half_space import HalfSpace
from bnndp.layers import WEIGHTED, Concatenate, Residual
from bnndp.maths.rounding import SMALL, TINY, UP, gamma
from bnndp.network import BayesianNetwork, Layer

__all__ = ["MomentPass"]

_LITTLE = 1e-6  # of the largest coefficient of a layer


@dataclass(frozen=True, eq=False)
class MomentPass:
    """Bounds of a graph of any layers on the boxes (docs/theory.md)."""

    name: ClassVar[str] = "moment"
    moments: ClassVar[bool] = True
    tailed: ClassVar[bool] = False
    costly_tails: ClassVar[bool] = False

    layers: Sequence[Layer]
    shapes: Sequence[tuple[int, ...]]
    box: Box
    signs: tuple[Tensor, ...] = ()  # (batch, n) of -1, 0 and 1 for each activation, or none
    cut: HalfSpace | None = None  # x outside of it are not asked about
    whole: tuple[MomentPass, Tensor] | None = None  # the pass over whole boxes, and the box (batch,) of each cell
    ranges: tuple[Interval, ...] = ()  # known ranges of the means before each activation
    anew: tuple[Tensor, ...] | None = None  # (batch, n) each: where better ones are asked for; None: everywhere
    until: int | None = None  # the activation whose input is the output of the pass; None: the network's output
    deviations: Deviations | None = None  # of the noise of bounds for most weights; None: bounds of means
    given: HiddenLayers | None = None  # the nodes, if they are known

    @classmethod
    def of(cls, network: BayesianNetwork, box: Box) -> MomentPass:
        """Of a network without a shift of its inputs."""
        return cls(network.layers, network.shapes, box)

    @cached_property
    def hidden(self) -> HiddenLayers:
        """All layers but the last on the boxes."""
        if self.given is not None:
            return self.given
        relax = relaxed
        if self.whole is not None and self.random:
            relax = partial(relaxed_on_cells, list(self.whole[0]._activations.values()), self.whole[1])
        region = Region(self.box, self.signs, self.cut, relax, self.ranges, self.anew, self.until)
        if self.deviations is not None:
            deviations = self.deviations.hidden
            spreads = Spreads(self.box, deviations, self._known_spreads)
            region = replace(region, deviations=deviations, spreads=spreads)
        return hidden_layers(self.layers, self.shapes, region)

    @property
    def _noise(self) -> float:
        """Of the noise of rows, so many standard deviations are taken off."""
        return 0.0 if self.deviations is None else self.deviations.rows

    @property
    def _known_spreads(self) -> list[Tensor | None] | None:
        """Of cells those of their boxes."""
        if self.whole is None:
            return None
        whole, owner = self.whole
        return [None if spread is None else spread[owner] for spread in whole.hidden.spreads]

    @property
    def random(self) -> bool:
        """Whether any layer has a variance, which bounds for most weights have in them already."""
        return self.deviations is None and any(layer.random for layer in self.layers)

    @property
    def gaussian(self) -> bool:
        """Whether nothing is random before the last layer."""
        return self.hidden.fixed

    @property
    def branchable(self) -> BranchablePass | None:
        """Itself, if there is an activation; members that are stacked have no cells of their own."""
        stacked = any(isinstance(layer, StackedLinear) for layer in self.layers)
        return self if self._activations and not stacked else None

    def affine(self, rows: Tensor) -> Planes:
        """By the rows carried down to x, and by the ranges of the means below the last layer."""
        start, box, cut = output_bound(self.hidden, self._of_boxes(rows)), self.box, self.cut
        bound = lower_bound(self.hidden.nodes, start, None, self._noise)
        found = finite(Affine(bound.rows.dense().values, bound.constant))
        plane = found.matrix, found.offset
        planes = box.minimum(*plane) if cut is None else cut.minimum(box, *plane)
        least = known(torch.maximum(planes, start.least_in(self.hidden.last.mean, self._noise)))
        return Planes(found, least, (self.name,) * box.batch)

    def least(self, rows: Tensor) -> Tensor:
        """The same without the functions."""
        return known(least_rows(self.hidden, rows if rows.ndim == 3 else rows[None], self.cut, self._noise))

    def variance(self, rows: Tensor, at: Tensor | None = None) -> Tensor:
        """By the noise of the last layer and the deviation of what is below."""
        if not self.random:
            return rows.new_zeros(self.box.batch if at is None else at.numel(), rows.shape[-2])
        found = row_variance(self.hidden, self._of_boxes(rows), at)
        return torch.where(found.isfinite(), found, torch.inf)

    def covariance(self, left: Tensor, right: Tensor) -> Tensor:
        """By the form of the features where they are functions of x; else by the variance of the sum."""
        left, right = self._of_boxes(left), self._of_boxes(right)
        if not self.random:
            return torch.zeros_like(left[..., 0])
        found = reached_covariance(self.hidden.output, self.hidden.last, left, right)
        most = 0.25 * self.variance(left + right) if found is None else found
        return torch.where(most.isfinite(), most, torch.inf)

    def output_variance(self) -> Interval:
        """From below by the noise given the history: the law of total variance, see ``questions/variance.py``."""
        weights, z = self.hidden.output.weights, self.hidden.last.signal
        unit = torch.eye(weights.n_out, dtype=torch.float64, device=self.box.lower.device)
        high = self.variance(unit)
        low = weights.power(z.noise.lower, 2)
        if z.joint is not None:
            mean = weights.pull(DenseRows(unit[None])).dense().values
            low = torch.maximum(low, z.joint.form(z.joint.covariance, mean).interval.lower)
        if weights.random:
            low = low + weights.mean_spread(z).lower
        low = torch.where(low >= SMALL**2, low / UP, 0.0)  # below may be rounding alone; NaN says nothing
        return Interval(torch.minimum(low, high), high)

    def tails(self, at: Tensor, label: Tensor, margins: Margins) -> Tensor:
        """None are known."""
        return torch.ones_like(margins.mean)

    def softmax(self, rows: Tensor) -> Tensor | None:
        """Only by margins."""
        return None

    def slopes(self, rows: Tensor) -> tuple[Slopes, Slopes] | None:
        """Tangent points of hinges, at first pulled to where the slope still moves; multipliers of zero on cells."""
        count, usual, start = rows.shape[-2], list[Tensor](), list[Tensor]()
        for node in self._activations.values():
            if node.hinge is not None:
                usual.append(node.hinge.start[:, None].expand(-1, count, -1))
                start.append(movable(usual[-1], node.pre.mean).clone())
        if not usual and not self.signs:
            return None
        zeros = [self.box.lower.new_zeros(self.box.batch, count, s.shape[-1]) for s in self.signs]
        return Slopes(usual, zeros), Slopes(start, [zero.clone() for zero in zeros])

    def multiplier_scale(self, rows: Tensor) -> float:
        """The largest coefficient of the last hidden layer."""
        return float(self.hidden.output.weights.pull(DenseRows(self._of_boxes(rows))).dense().values.abs().amax())

    def affine_at(self, rows: Tensor, slopes: Slopes) -> Affine:
        """Functions of x below the rows, with these slopes."""
        bound = self._carried(self._of_boxes(rows), slopes, [])
        return Affine(bound.rows.dense().values, bound.constant)

    def least_of(self, plane: Affine) -> Tensor:
        """On the boxes, or on what the half-spaces leave of them."""
        cut, box, of = self.cut, self.box, (plane.matrix, plane.offset)
        return box.minimum(*of) if cut is None else cut.least(box, *of)

    def _carried(self, rows: Tensor, slopes: Slopes, met: list[Tensor]) -> Bound:
        """The rows (batch, rows, outputs) in terms of x; ``met`` gets the coefficients at activations, last first."""
        tangents, multipliers = list(slopes.tangents), list(slopes.multipliers)

        def lower(node: Node, bound: Bound) -> Bound:
            if not isinstance(node, Activated):
                return node.lower(bound)
            values = bound.rows.dense().values
            met.append(values)
            points = tangents.pop() if node.hinge is not None else None
            signed = multipliers.pop().clamp_min(0) * self.signs[len(multipliers)][:, None] if multipliers else None
            return _through(node, bound, values, points, signed)

        return lower_bound(self.hidden.nodes, output_bound(self.hidden, rows), lower, self._noise)

    @property
    def widths(self) -> Sequence[int]:
        """Of the layers before an activation."""
        return [node.planes.size.shape[-1] for node in self._activations.values()]

    @property
    def empty(self) -> Tensor:
        """Cells (batch,) that provably hold no x: a mean has no value of its sign on the box."""
        means = [node.pre.mean for node in self._activations.values()]
        return torch.stack([(mean.lower > mean.upper).any(-1) for mean in means]).any(0)

    def restricted(
        self,
        owner: Tensor,
        signs: tuple[Tensor, ...],
        cut: HalfSpace | None = None,
        ranges: tuple[Interval, ...] = (),
        anew: tuple[Tensor, ...] = (),
    ) -> MomentPass:
        """The pass on cells of the boxes ``owner``.

        The ranges of the means are those of the boxes if none are given; those ``anew`` are bounded anew.
        """
        whole = (self, owner) if self.whole is None else (self.whole[0], self.whole[1][owner])
        known = ranges or tuple(selected(each, owner) for each in self.ranges_of_means)
        cells = MomentPass(self.layers, self.shapes, self.box[owner], signs, cut, whole, known, anew, self.until)
        return replace(cells, deviations=self.deviations)

    def for_most_weights(self, deviations: Deviations) -> MomentPass | None:
        """The pass on the same boxes whose bounds are those of the outputs themselves, for most weights at every x."""
        if not self.random or any(_random_factors(layer) for layer in self.layers):
            return None
        return MomentPass(self.layers, self.shapes, self.box, deviations=deviations)

    @property
    def ranges_of_means(self) -> tuple[Interval, ...]:
        """Of the means before each activation: (batch, n) each."""
        return tuple(node.pre.mean for node in self._activations.values())

    def with_ranges(self, ranges: tuple[Interval, ...]) -> MomentPass:
        """The pass on the same boxes where these ranges of the means before each activation are known."""
        return replace(self, ranges=ranges, anew=None)

    def before(self, number: int) -> MomentPass | None:
        """The pass whose outputs are what goes into an activation; None if that is not a layer with weights."""
        activations = list(self._activations.values())
        weighted = activations[number].weighted
        if weighted is None:
            return None
        below = self.hidden.before(weighted)
        kept = set(below.nodes)
        signs = tuple(sign for node, sign in zip(activations, self.signs, strict=False) if node in kept)
        found = replace(self, signs=signs, until=number, given=below)
        if self.deviations is None:
            return found
        return replace(found, deviations=Deviations(self.deviations.hidden, self.deviations.hidden))

    def branching_scores(self, rows: Tensor, slopes: Slopes, worst: Tensor) -> list[Tensor]:
        """The coefficient of a neuron in the bound times the gap between its planes at a mean of zero.

        A coefficient that costs nothing counts a little: at the best slopes many are zero, where their sign changes.
        """
        row = worst[:, None, None]
        own = self._of_boxes(rows).gather(1, row.expand(-1, 1, rows.shape[-1]))
        at = slopes.map([tensor.gather(1, row.expand(-1, 1, tensor.shape[-1])) for tensor in slopes.tensors])
        met: list[Tensor] = []
        self._carried(own, at, met)
        scores = []
        for node, signs, values in zip(self._activations.values(), self.signs, reversed(met), strict=True):
            mean, coefficient = node.pre.mean, values[:, 0]
            lost = -coefficient.clamp_max(0) if node.hinge is not None else coefficient.abs()
            lost = lost + _LITTLE * coefficient.abs().amax(-1, keepdim=True) + TINY
            unknown = (mean.lower < 0) & (mean.upper > 0) & (signs == 0)
            scores.append(known(torch.where(unknown, lost * _gap(node), -torch.inf)))
        return scores

    @cached_property
    def _activations(self) -> dict[int, Activated]:
        return activations_of(self.hidden.nodes)

    def _of_boxes(self, rows: Tensor) -> Tensor:  # (batch, rows, outputs)
        return rows if rows.ndim == 3 else rows.expand(self.box.batch, -1, -1)


def _random_factors(layer: Layer) -> bool:
    """Whether anything but Gaussian weights is random in a layer."""
    if isinstance(layer, (Residual, Concatenate)):
        return any(_random_factors(inner) for branch in layer.branches for inner in branch)
    return layer.random and not isinstance(layer, WEIGHTED)


def _gap(node: Activated) -> Tensor:  # (batch, n)
    """How far the upper plane is above the lower one at a mean of zero; below, a hinge may touch anywhere."""
    planes, hinge, spread = node.planes, node.hinge, node.pre.smoothing.upper
    above = planes.upper_offset + planes.upper_beta * spread
    if hinge is None:
        return (above - planes.lower_offset - planes.lower_beta * spread).clamp_min(0)
    _, tilt, level = hinge.at(torch.zeros_like(above)[:, None])
    return (above - level[:, 0] - tilt[:, 0] * spread).clamp_min(0)


def _through(
    node: Activated,
    bound: Bound,
    values: Tensor,  # (batch, rows, n): the rows of the bound
    points: Tensor | None,  # (batch, rows, n)
    signed: Tensor | None,  # (batch, rows, n)
) -> Bound:
    r"""As ``Activated.lower``, with lower planes that touch at these points, and multipliers times signs of the means.

    Where :math:`\pm M_i(x)\ge0`, a lower bound of :math:`f-\beta_i(\pm M_i)`, :math:`\beta_i\ge0`, is one of f
    (Lagrange; Wang et al. 2021, beta-CROWN).
    """
    planes, hinge, constant = node.planes, node.hinge, bound.constant
    positive, negative = values.clamp_min(0), values.clamp_max(0)
    slope, tilt, level = planes.lower_alpha[:, None], planes.lower_beta[:, None], planes.lower_offset[:, None]
    size, sloped = planes.size, planes.tilted
    if hinge is not None and points is not None:
        slope, tilt, level = hinge.at(points)
        size, sloped = torch.maximum(size, hinge.size), bool((hinge.tilt != 0).any() | (planes.upper_beta != 0).any())
    alpha = positive * slope + negative * planes.upper_alpha[:, None]
    offset = (positive * level).sum(-1) + DenseRows(negative).dot(planes.upper_offset)
    lost = DenseRows(values.abs()).dot(size) + constant.abs()
    constant = constant + offset - gamma(2 * values.shape[-1] + 8) * lost - vanished(node.pre.mean)
    below, above = positive * tilt, negative * planes.upper_beta[:, None]
    tangent = planes.tangent if hinge is None or points is None else hinge.tangent
    beta = DenseRows(above if tangent else below + above) if sloped else None
    coefficients = DenseRows(alpha if signed is None else alpha - signed)
    bound = replace(bound, constant=constant)
    return node.lower_in_planes(coefficients, beta, DenseRows(below) if tangent and sloped else None, bound)
