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

**Only the x that are left.** A line carried to x is a plane :math:`\pi(x)\le A\cdot\mathbb Ep(x)`. Where it is
positive nothing is left to prove, so a cell is bounded again, or cut, with the half-space :math:`\pi(x)\le\epsilon`: on
it the ranges of all layers are shorter (as with the output constraints of Kotha et al. 2023). The mean over members is
positive where all of them are, so of a mixture only the x are asked about at which some member may be behind, one claim
for each. A single member needs no lines: its largest rival must be behind by enough (``_turn``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine.margins import by_class, gaussian_tails, margin_rows
from bnndp.engine.protocol import BranchablePass, Margins
from bnndp.engine.side_by_side import Group, SideBySide
from bnndp.geometry.bounds import Affine
from bnndp.geometry.box import Box
from bnndp.geometry.half_space import HalfSpace
from bnndp.maths.logistic import logistic_tail
from bnndp.maths.rounding import ELEMENTARY, TINY, gamma
from bnndp.maths.softmax import second_order_bound, union_bound
from bnndp.questions.softmax_lines import SHARES, MarginPlanes
from bnndp.questions.softmax_sums import Combination, best_rows
from bnndp.tighten.branching import Branching, Cells, costliest
from bnndp.tighten.slopes import climb

_ENOUGH = 0.01  # l: more than this need not be proved
_POSITIVE = 1e-250  # where a row is known to be positive: it is more than this (``_turn``)
_CUT = 1e-6  # x with more than this are left out; a decision needs no more
_AHEAD, _NEAR = 1e-3, 300.0  # mean margins: by how much they must be ahead, and their largest size (``_turn``)
_WIDE, _CLASSES = 100.0, 1000  # variances of margins and numbers of classes up to which that is known
_STEPS = 12  # of the halving by which g is found
_CLEAR = 1e-9  # by which a member must be above what is needed
_BITS = 40  # of coefficients: sums of up to 2^12 of them are exact
_AGAIN = 0.25  # of what is missing: a cell whose bound rose by this much is bounded again before it is cut in two


@dataclass(frozen=True, slots=True)
class _Known:
    """Margins of the label for the members of a group: (members * cells, classes) each."""

    least: Tensor  # E D_j is at least this
    most: Tensor  # and at most this
    variance: Tensor  # Var D_j is at most this
    turned: Tensor  # Cov(f_j - (f_c + f_k) / 2, f_c - f_k) is at most this, k the rival


@dataclass(frozen=True, slots=True)
class _State:
    """What is known of cells, for the cells that they are cut into."""

    reached: Tensor  # (cells,): the best of the lines so far
    cut: HalfSpace  # the x of a cell that are still asked about
    margins: list[Tensor]  # (cells, members * classes) four times for each group
    slopes: list[Tensor]  # (cells, shares, n) each

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.reached, self.cut.normal, self.cut.level, *self.margins, *self.slopes)

    @classmethod
    def of(cls, tensors: Sequence[Tensor], groups: int) -> _State:
        reached, normal, level, *others = tensors
        return cls(reached, HalfSpace(normal, level), others[: 4 * groups], others[4 * groups :])


@dataclass(frozen=True, slots=True)
class JointClaim:
    """That a row of the expected softmax is positive on each box of a mixture."""

    whole: SideBySide
    weights: Tensor  # (members,)
    rows: Tensor  # (batch, 1, classes)
    label: Tensor  # (batch,)
    behind: Tensor  # (batch,): the member whose own row may not be positive at the x that are asked about; -1: all x
    how: Branching

    @property
    def widths(self) -> Sequence[int]:
        """Numbers of neurons of the hidden layers."""
        return self.whole.widths

    def on_cells(self, owner: Tensor, signs: tuple[Tensor, ...], before: tuple[Tensor, ...] | None) -> Cells:
        """By the lines of the row, on what the lines of the larger cell have left of it."""
        label, rows = self.label[owner], self.rows[owner]
        known = None if before is None else _State.of(before, len(self.whole.groups))
        cells = self.whole.restricted(owner, signs, None if known is None else known.cut)
        with torch.no_grad():
            whole = not any(bool(sign.any()) for sign in signs)
            margins = self._margins(cells, label, rows, known, whole)
            cut = None if known is None else known.cut
            if known is None and self.several:
                cut, margins = self._where_behind(cells, owner, margins)
            value, asked, constant = (self.lines if self.several else self.duel)(cells, label, rows, margins)
            begin = None
            if known is not None and (usual := cells.slopes(asked)) is not None:
                begin = usual[0].map(known.slopes)
        steps = self.how.first if known is None else self.how.steps
        planes, slopes = climb(cells, asked, steps, self.how.deadline, begin)
        with torch.no_grad():
            lowered = constant - gamma(64) * (planes.least.abs() + constant.abs())
            lowered = torch.where(lowered.isfinite(), lowered, -torch.inf)
            reached = planes.least + lowered  # (cells, shares)
            reached = torch.where(reached.isfinite(), reached, -torch.inf)
            best = reached.max(-1)
            layer, neuron = costliest(cells, asked, slopes, best.indices)
            by_line = best.values if self.several else torch.where(best.values > 0, _POSITIVE, -torch.inf)
            value = torch.maximum(value[:, 0], by_line).nan_to_num(-torch.inf, neginf=-torch.inf)
            value = value.clamp_max(_POSITIVE)  # more is not known of all other x
            value = torch.where(cells.empty | _void(cells, margins), _POSITIVE, value)
            cut = _deeper(_left(planes.affine, lowered, best), cut, cells.box)
            again = _worthwhile(best.values, None if known is None else known.reached)
            top = best.values if known is None else torch.maximum(best.values, known.reached)
        parts = [
            group.joined(each)
            for group, own in zip(cells.groups, margins, strict=True)
            for each in (own.least, own.most, own.variance, own.turned)
        ]
        state = _State(top, cut, parts, [] if slopes is None else slopes.tensors)
        return Cells(value, layer, neuron, again, state.tensors)

    def _shares(self, cells: SideBySide) -> tuple[Tensor, ...]:
        """The weights (members,) of each group."""
        return self.weights.split([group.members for group in cells.groups])

    def _margins(
        self, cells: SideBySide, label: Tensor, rows: Tensor, known: _State | None, whole: bool
    ) -> list[_Known]:
        """What one pass says of the margins of each group, and what held on the larger cell."""
        classes, found = rows.shape[-1], list[_Known]()
        for i, group in enumerate(cells.groups):
            reference, bounds = _again(group, label)[:, None], group.bounds
            margins = margin_rows(reference, classes)
            own = reference == torch.arange(classes, device=label.device)
            ends = bounds.least(torch.cat([margins, -margins], 1))
            least, most = ends[:, :classes], (-ends[:, classes:]).masked_fill(own, 0.0)
            if known is None:
                least = torch.fmax(least, climb(bounds, margins, self.how.first, self.how.deadline)[0].least)
                here = by_class(least, bounds.variance(margins), reference)
                turned = torch.full_like(least, torch.inf)
                held = _Known(here.mean[:, 0], most, here.variance[:, 0], turned)
            else:
                held = _Known(*(group.spread(each) for each in known.margins[4 * i : 4 * i + 4]))
            turned, variance = held.turned, held.variance
            if bounds.random and bounds.gaussian and not self.several:
                turned = torch.fmin(turned, _turned(bounds, rows, label)) if whole else turned
            elif bounds.random and known is not None:
                variance = torch.fmin(variance, bounds.variance(margins))
            found.append(_Known(torch.fmax(least, held.least), torch.fmin(most, held.most), variance, turned))
        return found

    @property
    def several(self) -> bool:
        """Whether there are sums over members."""
        return self.whole.members > 1

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
        rows: Tensor,  # (cells, 1, classes)
        known: list[_Known],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds of the rows by members alone, and lines below them in the outputs of all members.

        These are (cells, 1), rows (cells, shares, members * outputs) and their constants. Where the lines are above
        what they bound, that is above ``_ENOUGH``.
        """
        each = self._by_members(cells, rows, label, known)  # of every group: (members, cells, 1)
        every = torch.cat(each)
        value = every.sum(0) - gamma(2 * len(every) + 32) * every.abs().sum(0) - TINY
        spare = [_ENOUGH - (value - own) for own in each]  # what a member needs if all others are at their least
        joint, constant = list[Tensor](), rows.new_zeros(rows.shape[0], len(SHARES))
        for group, weight, own, left in zip(cells.groups, self._shares(cells), known, spare, strict=True):
            need = left / weight[:, None, None]
            part = _combined(group, _again(group, rows), _again(group, label), own, need.flatten(0, 1) + _CLEAR)
            share = weight.repeat_interleave(rows.shape[0])
            outputs, lost = _as_rows(share, part.tilt, _again(group, label), own)
            low = share[:, None] * (part.constant - ELEMENTARY * part.size)
            low = low - lost - ELEMENTARY * low.abs()
            joint.append(group.joined(outputs))
            constant = constant + low.unflatten(0, (group.members, -1)).sum(0)
        return value, torch.cat(joint, -1), constant

    def _where_behind(
        self, cells: SideBySide, owner: Tensor, known: list[_Known]
    ) -> tuple[HalfSpace | None, list[_Known]]:
        """The x at which the row of the member ``behind`` may not be positive, and the margins there.

        If the rows of all members are positive, so is their mean: what is left to prove are these x for every member.
        """
        label, rows, behind = self.label[owner], self.rows[owner], self.behind[owner]
        one = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
        rival = rows[:, 0].argmin(-1)
        duel, count = one[label] - one[rival], owner.shape[0]
        asked, level, found, start = list[Tensor](), torch.full_like(rows[:, 0, 0], torch.inf), list[_Known](), 0
        for group, own in zip(cells.groups, known, strict=True):
            members = torch.arange(start, start + group.members, device=label.device).repeat_interleave(count)
            mine = (members == behind.repeat(group.members))[:, None]  # (members * cells, 1)
            enough = _ahead(group, _again(group, rows), _again(group, label), own)
            short = mine & (_again(group, one[rival]) > 0)
            found.append(replace(own, most=torch.where(short, torch.minimum(own.most, enough), own.most)))
            level = torch.minimum(level, torch.where(mine, enough, torch.inf).unflatten(0, (-1, count)).amin(0)[:, 0])
            asked.append(group.joined(torch.where(mine, _again(group, duel), 0.0)))
            start += group.members
        planes = climb(cells, torch.cat(asked, -1)[:, None], self.how.first, self.how.deadline)[0].affine
        normal, offset = planes.matrix[:, 0], planes.offset[:, 0]
        level = level - offset + gamma(8) * (level.abs() + offset.abs())
        fine = level.isfinite() & normal.isfinite().all(-1) & (behind >= 0)
        return HalfSpace(torch.where(fine[:, None], normal, 0.0), torch.where(fine, level, 0.0)), found

    def duel(
        self,
        cells: SideBySide,
        label: Tensor,  # (cells,)
        rows: Tensor,  # (cells, 1, classes)
        known: list[_Known],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same for a single member: the mean margin of the largest rival, less what is enough of it.

        Where that is positive the row is more than ``_CUT``, whatever the other margins are on the cell.
        """
        (group,), (own,) = cells.groups, known
        value = _by_itself(group, rows, label, own)
        rival = rows[:, 0].argmin(-1, keepdim=True)
        enough = _ahead(group, rows, label, own)
        one = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
        asked = one[label] - one[rival[:, 0]]
        return value, asked[:, None], -enough


def _ahead(group: Group, rows: Tensor, label: Tensor, known: _Known) -> Tensor:
    """The mean margins (batch, 1) of the largest rival from which on the rows (batch, 1, classes) are positive.

    Infinite where that is nowhere known.
    """
    rival = rows[:, 0].argmin(-1, keepdim=True)
    need = torch.full_like(rows[..., 0], 2 * _CUT)
    enough = _enough(group, rows, label, known, rival, need)
    ahead = replace(known, least=known.least.scatter(1, rival, enough))
    enough = torch.where(_by_itself(group, rows, label, ahead) > need, enough, torch.inf)
    if group.bounds.gaussian or not group.bounds.random:
        enough = torch.fmin(enough, _turn(rows, label, known, random=group.bounds.random))
    return enough


def _turned(bounds: BranchablePass, rows: Tensor, label: Tensor) -> Tensor:
    """Upper bounds (cells, classes) of the covariances of f_j - (f_c + f_k) / 2 and f_c - f_k."""
    one = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
    own, rival = one[label], one[rows[:, 0].argmin(-1)]
    left = one - (0.5 * own + 0.5 * rival)[:, None]
    return bounds.covariance(left, (own - rival)[:, None].expand_as(left))


def _turn(rows: Tensor, label: Tensor, known: _Known, *, random: bool) -> Tensor:  # (cells, 1)
    r"""Mean margins from which on a row of one rival is positive, if the outputs are Gaussian at every x.

    Let D be the margin of the rival k, of mean M and variance V at x, and :math:`R_j=\zeta_j-(\zeta_c+\zeta_k)/2`.
    Then :math:`p_c-p_k=2\sinh(D/2)/(2\cosh(D/2)+\sum_je^{R_j})`, and :math:`R_j=\kappa_jD+R_j^0` with
    :math:`\kappa_j=\operatorname{Cov}(R_j,D)/V` and :math:`R^0` independent of D. Given :math:`R^0`, the values at
    D = d and D = -d, d > 0, have densities of ratio :math:`1:e^{-2Md/V}`, so they add up to a multiple of

    .. math:: \frac1A-\frac{e^{-2Md/V}}B,\qquad A,B=2\cosh(d/2)+\sum_je^{R_j^0\pm\kappa_jd},\qquad
              \frac BA\ge\min(1,\min_je^{-2\kappa_jd}).

    It is positive if :math:`M>\max_j\operatorname{Cov}(R_j,D)` and M > 0, whatever the other means are: for logits of
    equal variances that are independent the threshold is zero. Without variance M > 0 is enough.

    ``_POSITIVE``: with M ahead by :math:`\delta=10^{-3}`, means of at most 300 and variances of margins of at most 100,
    D lies in [M, M + sd] and all :math:`R_j` (up to 1000 of them) within 4 sd with probability 0.3; there the sum of
    both values is at least :math:`n(d)\tanh(\delta/2)(1-e^{-2\delta^2/V})/(1+\tfrac12\sum_je^{R_j})`, above 1e-240.
    """
    classes = torch.arange(rows.shape[-1], device=rows.device)
    rival = rows[:, 0].argmin(-1, keepdim=True)
    own = classes == label[:, None]
    pair = own | (classes == rival)
    alike = (rows[:, 0] == (own.double() - (classes == rival).double())).all(-1, keepdim=True)
    fine = (known.least >= -_NEAR).all(-1, keepdim=True) & (known.most <= _NEAR).all(-1, keepdim=True)
    fine &= rows.shape[-1] <= _CLASSES
    if not random:
        return torch.where(alike & fine, _AHEAD, torch.inf)
    most = known.turned.masked_fill(pair, 0.0).amax(-1, keepdim=True)
    fine &= (known.variance <= _WIDE).all(-1, keepdim=True)
    return torch.where(alike & fine & ~most.isnan(), most * (1 + ELEMENTARY) + _AHEAD, torch.inf)


def _enough(group: Group, rows: Tensor, label: Tensor, known: _Known, rival: Tensor, need: Tensor) -> Tensor:
    """The margins of ``rival`` (batch, 1) from which on the row (batch, 1, classes) is above ``need`` (batch, 1).

    The largest possible ones where that is nowhere known.
    """
    low, high = known.least.gather(1, rival), known.most.gather(1, rival)
    for _ in range(_STEPS):
        at = 0.5 * low + 0.5 * high
        ahead = replace(known, least=known.least.scatter(1, rival, at))
        enough = _by_itself(group, rows, label, ahead) > need
        low, high = torch.where(enough, low, at), torch.where(enough, at, high)
    return high


def _void(cells: SideBySide, known: list[_Known]) -> Tensor:  # (cells,)
    """Cells that hold no x: the bounds of a margin cross."""
    pairs = zip(cells.groups, known, strict=True)
    each = [(own.least > own.most).any(-1).unflatten(0, (group.members, -1)).any(0) for group, own in pairs]
    return torch.stack(each).any(0)


def _left(plane: Affine, constant: Tensor, best: torch.return_types.max) -> HalfSpace:
    """The x at which the best line of each cell is not above ``_CUT``."""
    at = best.indices[:, None]
    normal = plane.matrix.gather(1, at[..., None].expand(-1, 1, plane.matrix.shape[-1]))[:, 0]
    offset, constant = plane.offset.gather(1, at)[:, 0], constant.gather(1, at)[:, 0]
    level = _CUT - offset - constant + gamma(8) * (_CUT + offset.abs() + constant.abs())
    fine = best.values.isfinite() & level.isfinite() & normal.isfinite().all(-1)
    return HalfSpace(torch.where(fine[:, None], normal, 0.0), torch.where(fine, level, 0.0))


def _deeper(new: HalfSpace, old: HalfSpace | None, box: Box) -> HalfSpace:
    """Of two half-spaces for each box the one that leaves less of the box between its least and largest values."""
    if old is None:
        return new
    better = _part(new, box) <= _part(old, box)
    return HalfSpace(torch.where(better[:, None], new.normal, old.normal), torch.where(better, new.level, old.level))


def _part(cut: HalfSpace, box: Box) -> Tensor:  # (cells,)
    reach = (cut.normal.abs() * box.half).sum(-1)
    left = cut.level - (cut.normal * box.centre).sum(-1) + reach
    return torch.where(reach > 0, left / (2 * reach).clamp_min(TINY), torch.inf)


def _worthwhile(reached: Tensor, before: Tensor | None) -> Tensor:
    """Whether another bound of the same cells, on what its line has left, may decide them: (cells,)."""
    if before is None:
        return reached.isfinite()
    return reached - before >= _AGAIN * (-reached).clamp_min(_ENOUGH)


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
    most = most.scatter(
        1, rival, _enough(group, flat, labels, _Known(least, most, variance, variance), rival, need.flatten()[:, None])
    )
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
