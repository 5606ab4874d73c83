r"""How large s gets on the boxes: what bounds for most weights take the noise of a layer from.

With independent weights s is a sum of squares, and :math:`z^2\le(l+u)z-lu` on a range: rows of z, carried down to x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bnndp.engine.chunks import cache_size
from bnndp.engine.laws.weights import Weights
from bnndp.engine.nodes.bound import Bound
from bnndp.engine.nodes.first_layer import NUMBERS
from bnndp.engine.nodes.node import Node
from bnndp.engine.propagation.backward import least_value
from bnndp.geometry.box import Box
from bnndp.maths.rounding import UP, gamma

__all__ = ["Spreads"]


@dataclass(frozen=True, slots=True)
class Spreads:
    """Upper bounds of s of the layers, in the order in which a pass meets them; None where there are none of this kind.

    Those of cells are known from their boxes.
    """

    box: Box
    deviations: float
    known: Sequence[Tensor | None] | None = None
    found: list[Tensor | None] = field(default_factory=list)

    def next(self, weights: Weights, nodes: Sequence[Node]) -> Tensor | None:  # (batch, n_out)
        """Of the next layer, above these nodes."""
        spread = _above(weights, nodes, self) if self.known is None else self.known[len(self.found)]
        self.found.append(spread)
        return spread


def _above(weights: Weights, nodes: Sequence[Node], of: Spreads) -> Tensor | None:
    box = of.box
    widest = max(node.mean.lower.shape[-1] for node in nodes)
    numbers = cache_size(NUMBERS, box.lower.device) // (2 * box.batch) * weights.n_in // widest
    pieces = None if len(nodes) == 1 or weights.coupled else weights.square_rows(numbers)
    if pieces is None:
        return None
    z, found = nodes[-1].mean, list[Tensor]()
    slope, product, size = z.lower + z.upper, z.lower * z.upper, z.magnitude.square()
    for _, rows in pieces:
        constant = rows.dot(product) - gamma(2 * weights.terms + 16) * rows.dot(4 * size)
        start = Bound(rows.map(torch.neg).times(slope), constant)
        found.append(-least_value(nodes, start, box, deviations=of.deviations))
    return (torch.cat(found, 1).clamp_min(0) + weights.spread(torch.zeros_like(slope))) * UP
