"""The general pass behind the protocol: networks of any layers, and stacked members of an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.engine.general.forward import Passed, hidden_layers, interval_rows, mean_rows, row_variance
from bnndp.engine.general.magnitudes import expect_magnitudes
from bnndp.engine.general.nodes import Activated, Bound, vanished
from bnndp.engine.general.rows import DenseRows, Rows
from bnndp.engine.protocol import Branchable, Margins, Planes, Slopes, known, movable
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box
from bnndp.maths.rounding import SMALL, UP, gamma
from bnndp.network import BayesianNetwork, Layer

__all__ = ["GeneralPass"]


@dataclass(frozen=True, eq=False)
class GeneralPass:
    """Bounds of a chain of any layers on the boxes (docs/layers.md)."""

    name: ClassVar[str] = "moment"
    moments: ClassVar[bool] = True
    tailed: ClassVar[bool] = False
    costly_tails: ClassVar[bool] = False
    branchable: ClassVar[Branchable | None] = None

    layers: Sequence[Layer]
    shapes: Sequence[tuple[int, ...]]
    box: Box

    @classmethod
    def of(cls, network: BayesianNetwork, box: Box) -> GeneralPass:
        """Of a network without a shift of its inputs."""
        return cls(network.layers, network.shapes, box)

    @cached_property
    def passed(self) -> Passed:
        """All layers but the last on the boxes."""
        expect_magnitudes(self.layers, self.box)
        return hidden_layers(self.layers, self.shapes, self.box)

    @property
    def random(self) -> bool:
        """Whether any layer has a variance."""
        return any(layer.random for layer in self.layers)

    @property
    def gaussian(self) -> bool:
        """Whether nothing is random before the last layer."""
        return self.passed.last.signal.fixed

    def affine(self, rows: Tensor) -> Planes:
        """By the rows carried down to x, and by the ranges of the means below the last layer."""
        u = self._of_boxes(rows)
        found = mean_rows(self.passed, u)
        return Planes(found, self._least(found, u), (self.name,) * self.box.batch)

    def least(self, rows: Tensor) -> Tensor:
        """The same without the functions."""
        return self.affine(rows).least

    def _least(self, found: Affine, rows: Tensor) -> Tensor:
        planes = self.box.minimum(found.matrix, found.offset)
        return known(torch.maximum(planes, interval_rows(self.passed, rows)))

    def variance(self, rows: Tensor) -> Tensor:
        """By the noise of the last layer and the deviation of what is below."""
        found = row_variance(self.passed, self._of_boxes(rows))
        return torch.where(found.isfinite(), found, torch.inf)

    def output_variance(self) -> Interval:
        """From below by the noise given the history: the law of total variance, see ``questions/variance.py``."""
        weights, z = self.passed.output.weights, self.passed.last.signal
        unit = torch.eye(weights.n_out, dtype=torch.float64, device=self.box.lower.device)
        high = self.variance(unit)
        low = weights.power(z.noise.lower, 2)
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
        """Tangent points of the hinges, at first pulled to where the slope still moves."""
        usual, start = [], []
        for node in self._hinges.values():
            if node.hinge is None:
                continue
            usual.append(node.hinge.start[:, None].expand(-1, rows.shape[-2], -1))
            start.append(movable(usual[-1], node.linear.pre.mean).clone())
        return (Slopes(usual), Slopes(start)) if usual else None

    def multiplier_scale(self, rows: Tensor) -> float:
        """There are no multipliers."""
        return 1.0

    def affine_at(self, rows: Tensor, slopes: Slopes) -> Affine:
        """Functions of x below the rows, with these tangent points."""
        u, points = self._of_boxes(rows), dict(zip(self._hinges, slopes.tangents, strict=True))
        bound: Bound = self.passed.output.lower(DenseRows(u), None, u.new_zeros(u.shape[:2]))
        for index in range(len(self.passed.chain) - 1, -1, -1):
            node = self.passed.chain[index]
            free = index in points and isinstance(node, Activated)
            bound = _through(node, *bound, points[index]) if free else node.lower(*bound)  # type: ignore[arg-type]
        return Affine(bound[0].dense().values, bound[1])

    @cached_property
    def _hinges(self) -> dict[int, Activated]:
        """The nodes whose lower planes may touch anywhere, by their place in the chain."""
        chain = enumerate(self.passed.chain)
        return {i: node for i, node in chain if isinstance(node, Activated) and node.hinge is not None}

    def _of_boxes(self, rows: Tensor) -> Tensor:  # (batch, rows, outputs)
        return rows if rows.ndim == 3 else rows.expand(self.box.batch, -1, -1)


def _through(node: Activated, rows: Rows, constant: Tensor, points: Tensor) -> Bound:
    """As ``Activated.lower``, with other lower planes for every row."""
    hinge, planes = node.hinge, node.planes
    if hinge is None or node.weighted is None:
        return node.lower(rows, constant)
    values = rows.dense().values
    positive, negative = values.clamp_min(0), values.clamp_max(0)
    slope, tilt, level = hinge.at(points)
    alpha = positive * slope + negative * planes.upper_alpha[:, None]
    beta = positive * tilt + negative * planes.upper_beta[:, None]
    offset = (positive * level).sum(-1) + DenseRows(negative).dot(planes.upper_offset)
    lost = DenseRows(values.abs()).dot(torch.maximum(planes.size, hinge.size)) + constant.abs()
    constant = constant + offset - gamma(2 * values.shape[-1] + 8) * lost - vanished(node.linear.pre.mean)
    sloped = bool((hinge.tilt != 0).any() | (planes.upper_beta != 0).any())
    return node.weighted.lower(DenseRows(alpha), DenseRows(beta) if sloped else None, constant)
