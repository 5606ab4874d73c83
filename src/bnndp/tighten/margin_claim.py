"""A decision of one network as a claim about its margins, to be proved on cells of known signs (``branching.py``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.margins import by_class, margin_rows
from bnndp.engine.protocol import BranchablePass, Margins, Slopes
from bnndp.tighten.branching import Branching, Cells, costliest
from bnndp.tighten.slopes import climb

_ROWS = 3  # margins of a cell that are bounded anew: the least ones of the cell it was cut from

Value = Callable[[BranchablePass, Margins, Tensor], Tensor]
"""The least row bound (cells,) of what is claimed, by a pass on cells of the boxes (cells,): from the margins
(cells, 1, classes) there."""


@dataclass(frozen=True, slots=True)
class MarginClaim:
    """What ``value`` says of the margins of the class ``label`` on the boxes of a pass."""

    bounds: BranchablePass
    label: Tensor  # (batch,)
    classes: int
    value: Value
    how: Branching

    @property
    def widths(self) -> Sequence[int]:
        """Numbers of neurons of the hidden layers."""
        return self.bounds.widths

    def on_cells(self, owner: Tensor, signs: tuple[Tensor, ...], before: tuple[Tensor, ...] | None) -> Cells:
        """The state are margins (cells, classes), the classes (cells, few) bounded last, and the slopes found then."""
        bounds, label = self.bounds.restricted(owner, signs), self.label[owner]
        rows = margin_rows(label[:, None], self.classes)
        classes = torch.arange(self.classes, device=label.device).expand(label.shape[0], -1)
        begin, steps, known = None, self.how.first, None
        if before is not None:
            known, steps = Margins(*before[:2]), self.how.steps
            classes = _least(known, label)
            rows = rows.gather(1, classes[..., None].expand(-1, -1, self.classes))
            if (usual := bounds.slopes(rows)) is not None:
                begin = usual[0].map(_of_classes(before[3:], before[2], classes))
        planes, slopes = climb(bounds, rows, steps, self.how.deadline, begin)
        with torch.no_grad():
            found = Margins(planes.least, bounds.variance(rows))
            margins = found if known is None else _merged(known, found, classes)
            margins = by_class(margins.mean, margins.variance, label[:, None])
            value = torch.where(bounds.empty, torch.inf, self.value(bounds, margins, owner).nan_to_num(-torch.inf))
            own = (rows == 0).all(-1)  # the margin of a class with itself
            layer, neuron = costliest(bounds, rows, slopes, found.mean.masked_fill(own, torch.inf).argmin(-1))
        state = (margins.mean[:, 0], margins.variance[:, 0], *_few(margins, label, classes, slopes))
        return Cells(value, layer, neuron, torch.zeros_like(bounds.empty), state)


def _few(margins: Margins, label: Tensor, classes: Tensor, slopes: Slopes | None) -> list[Tensor]:
    """The classes (cells, few) that come next, and their slopes."""
    tensors = [] if slopes is None else slopes.tensors
    few = _least(Margins(margins.mean[:, 0], margins.variance[:, 0]), label)
    return [few, *_of_classes(tensors, classes, few)]


def _least(known: Margins, label: Tensor) -> Tensor:
    """The classes (cells, few) with the least margins."""
    rank = known.mean.scatter(1, label[:, None], torch.inf)
    return rank.topk(min(_ROWS, rank.shape[1]), largest=False).indices


def _of_classes(slopes: Sequence[Tensor], classes: Tensor, wanted: Tensor) -> list[Tensor]:
    """Of slopes for the margins of ``classes`` (cells, known) those of the ``wanted`` (cells, few); NaN: none."""
    same = wanted[..., None] == classes[:, None]
    at, known = same.byte().argmax(-1)[..., None], same.any(-1)[..., None]
    return [torch.where(known, t.gather(1, at.expand(-1, -1, t.shape[-1])), torch.nan) for t in slopes]


def _merged(before: Margins, found: Margins, classes: Tensor) -> Margins:
    """What held on the larger cell, and what was found on this one."""
    mean = before.mean.scatter(1, classes, torch.maximum(found.mean, before.mean.gather(1, classes)))
    variance = before.variance.scatter(1, classes, torch.minimum(found.variance, before.variance.gather(1, classes)))
    return Margins(mean, variance)
