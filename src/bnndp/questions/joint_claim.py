r"""A decision of a mixture as a claim to be proved on cells of known signs, for all margins and members at one x.

A row :math:`A\cdot\mathbb Ep` of the expected softmax is at least :math:`\sum_kw_k(\alpha_k+\sum_i\beta_{ki}M_{ki}(x))`
with lines in the mean margins :math:`M_{ki}` of the members on their ranges (``softmax_sums.py``). That is one row of
the outputs of all members (``engine/side_by_side.py``): its planes are carried to x together, and their slopes are
chosen for it, so that no margin is taken at a worst x of its own.

**Only where the claim may fail.** Lines are tight on short ranges. Let :math:`B_k\le A\cdot\mathbb Ep_k` be what is
known of the members by themselves. If the bound of member k is more than
:math:`(\ell-\sum_{l\ne k}w_lB_l)/w_k` whenever its largest rival is at least g behind, then
:math:`A\cdot\mathbb Ep>\ell` at every x with :math:`M_{kj}(x)\ge g`. All others have :math:`M_{kj}(x)<g`, so the lines
need to hold up to g only, and :math:`A\cdot\mathbb Ep\ge\min(\ell,\text{bound})` everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.margins import by_class, gaussian_tails, margin_rows
from bnndp.engine.protocol import BranchablePass, Margins
from bnndp.engine.side_by_side import Group, SideBySide
from bnndp.geometry.bounds import Affine
from bnndp.maths.logistic import logistic_tail
from bnndp.maths.rounding import ELEMENTARY, TINY, gamma
from bnndp.maths.softmax import second_order_bound, union_bound
from bnndp.questions.softmax_lines import SHARES, MarginPlanes
from bnndp.questions.softmax_sums import Combination, best_rows
from bnndp.tighten.branching import Branching, Cells, costliest
from bnndp.tighten.slopes import climb

_ROWS = 3  # rows of a cell that are bounded anew: the least ones of the cell it was cut from
_ENOUGH = 0.01  # l: more than this need not be proved
_STEPS = 16  # of the grid on which g is found
_CLEAR = 1e-9  # by which a member must be above what is needed
_BITS = 40  # of coefficients: sums of up to 2^12 of them are exact


@dataclass(frozen=True, slots=True)
class _Known:
    """Margins of the label for the members of a group: (members * cells, classes) each."""

    least: Tensor  # E D_j is at least this
    most: Tensor  # and at most this
    variance: Tensor  # Var D_j is at most this


@dataclass(frozen=True, slots=True)
class JointClaim:
    """That rows of the expected softmax are positive on the boxes of a mixture."""

    whole: SideBySide
    weights: Tensor  # (members,)
    rows: Tensor  # (batch, rows, classes)
    label: Tensor  # (batch,)
    how: Branching

    @property
    def widths(self) -> Sequence[int]:
        """Numbers of neurons of the hidden layers."""
        return self.whole.widths

    def on_cells(self, owner: Tensor, signs: tuple[Tensor, ...], before: tuple[Tensor, ...] | None) -> Cells:
        """The state: row bounds (cells, rows), three tensors of margins a group, rows bounded last, their slopes."""
        cells, label, rows = self.whole.restricted(owner, signs), self.label[owner], self.rows[owner]
        last = 1 + 3 * len(cells.groups)
        with torch.no_grad():
            known = self._margins(cells, label, before)
            value, chosen, asked, constant = self.lines(
                cells, label, rows, known, None if before is None else before[0]
            )
            begin = None
            if before is not None and (usual := cells.slopes(asked)) is not None:
                begin = usual[0].map(_of_rows(before[last + 1 :], before[last], chosen))
        steps = self.how.first if before is None else self.how.steps
        planes, slopes = climb(cells, asked, steps, self.how.deadline, begin)
        with torch.no_grad():
            reached = planes.least + constant - gamma(64) * (planes.least.abs() + constant.abs())
            reached = torch.where(reached.isfinite(), reached, -torch.inf)
            best = reached.unflatten(1, (len(SHARES), -1)).amax(1).clamp_max(_ENOUGH)  # (cells, few)
            value = value.scatter(1, chosen, torch.maximum(value.gather(1, chosen), best))
            least = torch.where(cells.empty, torch.inf, value.amin(-1).nan_to_num(-torch.inf, neginf=-torch.inf))
            layer, neuron = costliest(cells, asked, slopes, _worst(reached, best))
        parts = [
            group.joined(each)
            for group, own in zip(cells.groups, known, strict=True)
            for each in (own.least, own.most, own.variance)
        ]
        return Cells(least, layer, neuron, (value, *parts, chosen, *([] if slopes is None else slopes.tensors)))

    def _shares(self, cells: SideBySide) -> tuple[Tensor, ...]:
        """The weights (members,) of each group."""
        return self.weights.split([group.members for group in cells.groups])

    def _margins(self, cells: SideBySide, label: Tensor, before: tuple[Tensor, ...] | None) -> list[_Known]:
        """What one pass says of the margins of each group, and what held on the larger cell."""
        classes, found = self.rows.shape[-1], list[_Known]()
        for i, group in enumerate(cells.groups):
            reference, bounds = _again(group, label)[:, None], group.bounds
            rows = margin_rows(reference, classes)
            if before is None:
                least = climb(bounds, rows, self.how.first, self.how.deadline)[0].least
                known = by_class(least, bounds.variance(rows), reference)
                own = reference == torch.arange(classes, device=label.device)
                most = (-bounds.least(-rows)).masked_fill(own, 0.0)
                found.append(_Known(known.mean[:, 0], most, known.variance[:, 0]))
            else:
                least, most, variance = (group.spread(each) for each in before[1 + 3 * i : 4 + 3 * i])
                found.append(_Known(torch.fmax(bounds.least(rows), least), most, variance))
        return found

    def _by_members(self, cells: SideBySide, rows: Tensor, label: Tensor, known: list[_Known]) -> list[Tensor]:
        """Lower bounds of the members by themselves, times their weights."""
        found = []
        for group, weight, own in zip(cells.groups, self._shares(cells), known, strict=True):
            bound = _by_itself(group, _again(group, rows), _again(group, label), own)
            found.append(weight[:, None, None] * bound.unflatten(0, (group.members, -1)))
        return found

    def lines(
        self,
        cells: SideBySide,
        label: Tensor,  # (cells,)
        rows: Tensor,  # (cells, rows, classes)
        known: list[_Known],
        before: Tensor | None,  # (cells, rows)
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bounds of all rows by members alone, the least rows, and lines below those in the outputs of all members.

        These are (cells, rows), (cells, few), rows (cells, shares * few, members * outputs) and their constants. Where
        the lines are above what they bound, that is above ``_ENOUGH``.
        """
        each = self._by_members(cells, rows, label, known)  # of every group: (members, cells, rows)
        every = torch.cat(each)
        value = every.sum(0) - gamma(2 * len(every) + 32) * every.abs().sum(0) - TINY
        spare = [_ENOUGH - (value - own) for own in each]  # what a member needs if all others are at their least
        value = value if before is None else torch.maximum(value, before)
        chosen = value.topk(min(_ROWS, value.shape[1]), largest=False).indices
        some = rows.gather(1, chosen[..., None].expand(-1, -1, rows.shape[-1]))
        joint, constant = list[Tensor](), rows.new_zeros(chosen.shape[0], len(SHARES) * chosen.shape[1])
        for group, weight, own, left in zip(cells.groups, self._shares(cells), known, spare, strict=True):
            need = left.gather(-1, chosen.expand(group.members, -1, -1)) / weight[:, None, None]
            part = _combined(group, _again(group, some), _again(group, label), own, need.flatten(0, 1) + _CLEAR)
            share = weight.repeat_interleave(chosen.shape[0])
            outputs, lost = _as_rows(share, part.tilt, _again(group, label), own)
            low = share[:, None] * (part.constant - ELEMENTARY * part.size)
            low = low - lost - ELEMENTARY * low.abs()
            joint.append(group.joined(outputs))
            constant = constant + low.unflatten(0, (group.members, -1)).sum(0)
        return value, chosen, torch.cat(joint, -1), constant


def _worst(reached: Tensor, best: Tensor) -> Tensor:
    """Of the rows (cells, shares * few) the better one of the least of ``best`` (cells, few)."""
    few = best.shape[1]
    row = best.argmin(-1, keepdim=True)
    choices = torch.cat([row + share * few for share in range(len(SHARES))], -1)
    return choices.gather(1, reached.gather(1, choices).argmax(-1, keepdim=True))[:, 0]


def _again(group: Group, values: Tensor) -> Tensor:  # (cells, ...) -> (members * cells, ...)
    return values.repeat(group.members, *(1,) * (values.ndim - 1))


def _tails(bounds: BranchablePass, least: Tensor, variance: Tensor) -> Tensor:
    found = logistic_tail(least, variance) if bounds.random else (torch.sigmoid(-least) + ELEMENTARY).clamp_max(1.0)
    return torch.minimum(found, gaussian_tails(bounds, Margins(least, variance)))


def _by_itself(group: Group, rows: Tensor, label: Tensor, known: _Known) -> Tensor:
    """Lower bounds (members * cells, rows) for each member from its margins."""
    tails = _tails(group.bounds, known.least, known.variance)
    found = torch.maximum(union_bound(rows, tails, label), second_order_bound(rows, known.least, known.variance, label))
    return torch.fmax(found, rows.amin(-1))


def _combined(group: Group, rows: Tensor, label: Tensor, known: _Known, need: Tensor) -> Combination:
    """Lines in the margins below the rows (members * cells, few, classes), once for each of SHARES.

    They hold where the claim may fail: a member that is more than ``need`` (members * cells, few) is not asked.
    """
    few, classes = rows.shape[1:]
    flat, labels = rows.flatten(0, 1)[:, None], label.repeat_interleave(few)
    least, most, variance = (t.repeat_interleave(few, 0) for t in (known.least, known.most, known.variance))
    rival = flat[:, 0].argmin(-1, keepdim=True)  # (members * cells * few, 1)
    low, high = least.gather(1, rival), most.gather(1, rival)
    for step in range(_STEPS, 0, -1):
        at = low + (high - low) * (step / _STEPS)
        ahead = _Known(least.scatter(1, rival, at), most, variance)
        enough = _by_itself(group, flat, labels, ahead) > need.flatten()[:, None]
        most = torch.where(enough, most.scatter(1, rival, torch.minimum(at, most.gather(1, rival))), most)
    fine = least.isfinite() & most.isfinite() & variance.isfinite()
    most = torch.maximum(most, least)
    planes = MarginPlanes(
        plane=Affine(least, least),
        least=torch.where(fine, least, -torch.inf)[:, None],
        middle=torch.where(fine, 0.5 * least + 0.5 * most, 0.0)[:, None],
        most=torch.where(fine, most, 0.0)[:, None],
        size=torch.zeros_like(least)[:, None],
        variance=torch.where(fine, variance, torch.inf)[:, None],
        tails=_tails(group.bounds, least, variance)[:, None],
        random=group.bounds.random,
        gaussian=group.bounds.gaussian,
    )
    found = best_rows(
        flat, labels, planes, floor=torch.full_like(flat[..., 0], -torch.inf)
    )  # (members * cells * few, shares)
    shape = (rows.shape[0], few, len(SHARES))
    constant, size = (t.reshape(shape).mT.flatten(1) for t in (found.constant, found.size))
    return Combination(constant, found.tilt.reshape(*shape, classes).transpose(1, 2).flatten(1, 2), size)


def _as_rows(weight: Tensor, tilt: Tensor, label: Tensor, known: _Known) -> tuple[Tensor, Tensor]:
    """Rows (batch, rows, classes) of the outputs for ``weight sum_i tilt_i (f_c - f_i)``, and what that may lose.

    The coefficients are rounded to multiples of a power of two, so that their sum is exact: weight (batch,), tilt
    (batch, rows, classes), label (batch,).
    """
    own = label[:, None] == torch.arange(tilt.shape[-1], device=label.device)
    exact = (weight[:, None, None] * tilt).masked_fill(own[:, None], 0.0)
    unit = torch.exp2(exact.amax(-1, keepdim=True).clamp_min(TINY).log2().ceil() - _BITS)
    rest = (exact / unit).round() * unit
    size = torch.maximum(known.least.abs(), known.most.abs())[:, None]
    lost = torch.where(exact > 0, 2 * unit * size, 0.0).sum(-1)
    return torch.where(own[:, None], rest.sum(-1, keepdim=True), -rest), lost


def _of_rows(slopes: Sequence[Tensor], rows: Tensor, wanted: Tensor) -> list[Tensor]:
    """Of slopes for ``rows`` (cells, few), once for each of SHARES, those of the ``wanted``; NaN: there are none."""
    same = wanted[..., None] == rows[:, None]
    at, known = same.byte().argmax(-1), same.any(-1).repeat(1, len(SHARES))[..., None]
    at = torch.cat([at + share * rows.shape[1] for share in range(len(SHARES))], -1)[..., None]
    return [torch.where(known, t.gather(1, at.expand(-1, -1, t.shape[-1])), torch.nan) for t in slopes]
