r"""Rows of the expected softmax of one network by branching: levels that every mean margin is to be above.

All bounds of rows rise in the means of the margins :math:`D_j` (``from_margins.py``). So there is a level t such that
all rows are positive wherever every :math:`M_j=\mathbb ED_j` is at least the larger of t and of what is known there.
That :math:`M_j(x)>t` for every x is a claim about one row of the mean outputs (``tighten/row_claim.py``), one for each
rival j that may be below, and each is proved on cells of its own.

On a cell more is known of all margins, so a lower level may do: :math:`t_j(x)\le t`, found for a set of x that holds
this x. All claims together still prove the rows at x. Let k be the rival with the least :math:`t_j(x)`: then
:math:`M_j(x)>t_j(x)\ge t_k(x)` for every claim, the margins without a claim are above t, and the level of k holds at x.

Where the outputs are Gaussian at every x, the row of one rival is positive from a level of its margin alone, whatever
the other margins are (``margin_threshold.turned_threshold``). Then every claim proves its own row, on all cells, and
never the other rows: the two kinds of levels are not mixed in a box.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bnndp.engine.margins import by_class, gaussian_tails, margin_rows, middle_rows
from bnndp.engine.protocol import BranchablePass, Margins, Planes
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import gamma
from bnndp.questions.chance import Chance
from bnndp.questions.from_margins import quick_row_bound, row_bound
from bnndp.questions.margin_threshold import CUT, POSITIVE, KnownMargins, turned_covariance, turned_threshold
from bnndp.tighten.branching import Branching, branch
from bnndp.tighten.hidden_ranges import with_branched_ranges, with_optimised_ranges
from bnndp.tighten.row_claim import RowClaim
from bnndp.tighten.slopes import climb

__all__ = ["Known", "branched_rows", "least_level", "margin_planes"]

_HALVINGS = 16  # of the range of the margins, by which a level is found
_LOW, _BY_JOINT_LEADS = 0.1, 4  # levels that are low enough; halvings by joint leads, which cost many times the others
_OF_RANGES = 5  # steps of ascent for the ranges of hidden means
_DEEP = 3  # hidden layers from which on ranges are found on cells
_CELLS_OF_RANGES, _STEPS_OF_RANGES = 8, 3  # of the claim that a mean has one sign, and of ascent on each of its cells
_A_NEURON, _A_CELL = 700, 128  # bounds of hidden values that a proof for most weights may use, beside
_ROWS = 24  # bounds of rows, for each cell
_HIGH, _HIGHEST = 0.5, 15.0  # levels from which on these are asked for, and from which on all count the same
_FIRM, _NEAR = 2.0, 3.0  # how many times a level counts beside a plane; how much farther a second proof may be
_ON_CELLS = 4  # levels from the bound of a margin on a cell on, below the level of the larger one


def branched_rows(bounds: BranchablePass, rows: Tensor, label: Tensor, how: Branching) -> Tensor:
    """Lower bounds (batch, rows) of the rows (batch, rows, classes), positive where cells of known signs decide.

    What is left open of deep networks is asked again with ranges of the hidden means that are found on cells, too.
    Where variances make for high levels, bounds for most weights are tried beside those of means: there levels are
    next to nothing, and planes less tight.
    """
    known = _known(with_optimised_ranges(bounds, _OF_RANGES, how.deadline), rows, label, how)
    other = _for_most_weights(bounds, known, how)
    if other is None:
        return _by_rounds(known, how)
    # Planes get better on cells, levels hardly do; what is much farther from a proof is left alone.
    first, second = (each.margins.mean[:, 0].masked_fill(each.own, torch.inf).amin(-1) for each in (known, other))
    first, second = (
        least - _FIRM * each.level.clamp_max(_HIGHEST) for least, each in ((first, known), (second, other))
    )
    better = (second > first) & (known.level > _HIGH)  # (batch,)
    near = (torch.minimum(first, second) > _NEAR * torch.maximum(first, second)) & (known.level > _HIGH)
    found = torch.full_like(rows[..., 0], -torch.inf)
    for each, at in ((known, ~better), (other, better), (known, better & near), (other, ~better & near)):
        boxes = (at & ~(found > 0).all(-1)).nonzero()[:, 0]
        if boxes.numel() and not how.deadline.passed:
            found[boxes] = torch.fmax(found[boxes], _by_rounds(each.restricted(boxes), how))
    return found


def _known(bounds: BranchablePass, rows: Tensor, label: Tensor, how: Branching) -> Known:
    """What is known of the margins on boxes by slopes that are optimised for them."""
    return Known.of(bounds, rows, label, margin_planes(bounds, label, rows.shape[-1], how))


def _for_most_weights(bounds: BranchablePass, known: Known, how: Branching) -> Known | None:
    """The same by bounds that hold for most weights; None where the pass has none, or levels are low."""
    high = bounds.random and not bounds.gaussian and bool((known.level > _HIGH).any())
    if not high or how.deadline.passed:
        return None
    layers, every = len(bounds.widths), sum(bounds.widths) + known.rows.shape[-1]
    chance = Chance(_A_NEURON * every + _A_CELL * layers * how.cells, _ROWS * how.cells + 4 * known.rows.shape[-1])
    other = bounds.for_most_weights(chance.deviations)
    if other is None:
        return None
    other = with_optimised_ranges(other, _OF_RANGES, how.deadline)
    # Of a pass for every layer; of the planes of the margins, and of their least values by the ranges below.
    counts = [4 * (layers + 1) * every, 2 * known.rows.shape[-1]]
    used = known.label.new_tensor(counts).expand(len(known.label), -1)
    return replace(_known(other, known.rows, known.label, how), chance=chance, used=used)


def _by_rounds(known: Known, how: Branching) -> Tensor:  # (batch, rows)
    """By the ranges that are known, and of deep networks then by those that are found on cells."""
    found, used = _by_claims(known, how)
    at = (~(found > 0).all(-1)).nonzero()[:, 0]
    if len(known.bounds.widths) < _DEEP or at.numel() == 0 or how.deadline.passed:
        return found
    of_ranges = replace(how, cells=_CELLS_OF_RANGES, steps=_STEPS_OF_RANGES)
    bounds, more = with_branched_ranges(known.bounds.restricted(at, ()), of_ranges)
    again = _known(bounds, known.rows[at], known.label[at], how)
    if known.used is not None:
        more = torch.stack([more, torch.zeros_like(more)], -1)
        again = replace(again, chance=known.chance, used=used[at] + more + known.used[at])
    return found.index_copy(0, at, torch.fmax(found[at], _by_claims(again, how)[0]))


def _by_claims(known: Known, how: Branching) -> tuple[Tensor, Tensor]:  # (batch, rows), (batch, 2)
    """The rows by claims about their margins, and how many bounds are behind them."""
    bounds, rows, label = known.bounds, known.rows, known.label
    least = known.margins.mean[:, 0]
    found = known.rows_at(least)
    every = torch.arange(rows.shape[-1], device=rows.device)
    each = [known.level_alone(rival.expand_as(label)) for rival in every] if bounds.random and bounds.gaussian else []
    alone = torch.stack(each, 1) if each else torch.full_like(least, torch.inf)  # (batch, classes)
    by_itself = (alone < torch.inf).all(-1)
    together = known.level
    raised = known.rows_at(known._raised(together))
    levels = torch.where(by_itself[:, None], alone, together[:, None])
    open_ = ~(found > 0).all(-1) & (levels < torch.inf).all(-1)
    wanted = open_[:, None] & ~known.own & ~(least > levels)
    hardest = (levels - least).masked_fill(~wanted, -torch.inf).argmax(-1, keepdim=True)
    first = wanted & (every == hardest)  # where that fails no other claim is worth its cells
    used = label.new_zeros(len(label), 2) if known.used is None else known.used
    for claims in (first, wanted & ~first):
        box, rival = (claims & open_[:, None]).nonzero().unbind(-1)
        proved, more = _proved(known, box, rival, levels, by_itself, how)
        open_ &= torch.bincount(box[~proved], minlength=rows.shape[0]) == 0
        used = used + more
    raised = torch.where(by_itself[:, None], POSITIVE, raised.clamp_max(CUT))
    found = torch.where(open_[:, None], torch.fmax(found, raised), found)
    if known.chance is not None:
        found = torch.where(known.chance.allows(used)[:, None], found, -torch.inf)
    return found, used


def _proved(
    known: Known,
    box: Tensor,  # (claims,)
    rival: Tensor,  # (claims,)
    levels: Tensor,  # (batch, classes)
    by_itself: Tensor,  # (batch,): whether these are levels for the row of each rival alone
    how: Branching,
) -> tuple[Tensor, Tensor]:  # (claims,), (batch, 2)
    """Whether the mean margins of the rivals are above their levels, or above lower ones that are enough on cells.

    And how many bounds are behind that.
    """
    if box.numel() == 0:
        return torch.ones_like(box, dtype=torch.bool), known.label.new_zeros(len(known.label), 2)

    def lower(cells: BranchablePass, owner: Tensor, between: Interval) -> Tensor:
        one = by_itself[box[owner]]  # of these levels little is gained on cells, at many times the cost
        if bool(one.all()):
            return between.upper
        return torch.where(one, between.upper, known[box[owner]].on(cells).level_between(between))

    asked = _duel(known.label[box], rival, known.rows)
    claim = RowClaim(known.bounds, box, asked, levels[box, rival], how, lower if known.bounds.random else None)
    found = branch(claim, torch.arange(box.numel(), device=box.device), how, box)
    return found.least > 0, claim.used(found.cells)


def _duel(label: Tensor, rival: Tensor, rows: Tensor) -> Tensor:  # (batch,) each -> (batch, 1, classes)
    """The difference of the outputs for both classes."""
    one = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
    return (one[label] - one[rival])[:, None]


def margin_planes(bounds: BranchablePass, label: Tensor, classes: int, how: Branching) -> Planes:  # label (batch,)
    """Planes below the mean margins of the labels, by slopes that are optimised for each of them."""
    return climb(bounds, margin_rows(label[:, None], classes), how.first, how.deadline)[0]


def least_level(
    enough: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, halvings: int = _HALVINGS
) -> Tensor:  # (batch,) each
    """About the least number between these from which on there is enough; infinite where that is nowhere known."""
    for _ in range(halvings):
        middle = 0.5 * low + 0.5 * high
        there = enough(middle)
        low, high = torch.where(there, low, middle), torch.where(there, middle, high)
    return torch.where(enough(high), high, torch.inf)


@dataclass(frozen=True)
class Known:
    """What is known of the margins on boxes or cells, and bounds of rows where some of them are raised."""

    bounds: BranchablePass
    rows: Tensor  # (batch, rows, classes)
    label: Tensor  # (batch,)
    margins: Margins  # (batch, 1, classes)
    most: Tensor  # (batch, classes): the mean margins are at most this
    middles: Tensor | None  # variances of ``middle_rows``
    own: Tensor  # (batch, classes): the class of the label
    quick: bool = False  # whether leads are left out
    chance: Chance | None = None  # of bounds of the margins themselves, for most weights; None: they are of the means
    used: Tensor | None = None  # (batch, 2): how many such bounds are behind all of this, of hidden values and of rows

    @classmethod
    def of(cls, bounds: BranchablePass, rows: Tensor, label: Tensor, planes: Planes) -> Known:
        """On whole boxes, from planes below all margins."""
        classes = rows.shape[-1]
        pairs = margin_rows(label[:, None], classes)
        with torch.no_grad():
            margins = by_class(planes.least, bounds.variance(pairs), label[:, None])
            most, middles = -bounds.least(-pairs), None
            if bounds.random:
                middles = bounds.variance(middle_rows(label, classes)).unflatten(1, (-1, classes))
        own = label[:, None] == torch.arange(classes, device=label.device)
        return cls(bounds, rows, label, margins, most.masked_fill(own, 0.0), middles, own)

    def __getitem__(self, index: Tensor) -> Known:
        """The same for boxes at ``index``; the pass is still that of all boxes."""
        middles = None if self.middles is None else self.middles[index]
        margins, most, own = self.margins[index], self.most[index], self.own[index]
        rows, label, used = self.rows[index], self.label[index], None if self.used is None else self.used[index]
        return Known(self.bounds, rows, label, margins, most, middles, own, self.quick, self.chance, used)

    def on(self, cells: BranchablePass) -> Known:
        """The same with what is known of the margins on cells of the boxes, one for each."""
        pairs, own = margin_rows(self.label[:, None], self.rows.shape[-1]), self.own[:, None]
        mean, variance = torch.fmax(self.margins.mean, cells.least(pairs)[:, None]), self.margins.variance
        if cells.gaussian:  # other variances on cells are those of the whole boxes
            variance = torch.fmin(variance, cells.variance(pairs)[:, None])
        margins = Margins(mean.masked_fill(own, 0.0), variance.masked_fill(own, 0.0))
        return replace(self, bounds=cells, margins=margins)

    def rows_at(self, mean: Tensor, rows: Tensor | None = None) -> Tensor:  # (batch, classes) -> (batch, rows)
        """Lower bounds of the rows where the mean margins are at least these."""
        margins = Margins(mean[:, None], self.margins.variance)
        tails = gaussian_tails(self.bounds, margins)[:, 0]
        rows = self.rows if rows is None else rows
        if self.quick:
            found, _ = quick_row_bound(rows, margins, self.label, tails)
        else:
            found = row_bound(rows, margins, self.label, tails, self.middles)
        if self.chance is not None:  # for all other weights the rows are at least their least coefficient
            lost = self.chance.failure * (rows.amax(-1) - rows.amin(-1))
            found = found - lost - gamma(8) * (found.abs() + lost)
        return found.nan_to_num(-torch.inf, neginf=-torch.inf)

    def restricted(self, boxes: Tensor) -> Known:
        """The same for some of the boxes, with the pass over them."""
        return replace(self[boxes], bounds=self.bounds.restricted(boxes, ()))

    @cached_property
    def level(self) -> Tensor:  # (batch,)
        """That of all margins together."""
        return self.level_together()

    def level_together(self) -> Tensor:
        """The level (batch,) of all margins from which on the rows are more than ``CUT``.

        Infinite where there is none that the margins can reach.
        """
        plain = replace(self, middles=None)  # joint leads cost many times the others
        least = self.margins.mean[:, 0].masked_fill(self.own, torch.inf).amin(-1)
        most = self.most.masked_fill(self.own, torch.inf).amin(-1)
        level = least_level(plain._are_enough, least, most)
        at = (level > torch.maximum(least, least.new_tensor(_LOW))).nonzero()[:, 0]
        if self.middles is not None and at.numel():
            low, high = least[at].clamp_min(0), torch.fmin(level, most)[at]
            lower = least_level(self[at]._are_enough, low, high, _BY_JOINT_LEADS)
            level = level.index_copy(0, at, torch.fmin(level[at], lower))
        return level

    def level_between(self, between: Interval) -> Tensor:
        """The least of a few levels (batch,) that is enough, as :meth:`level_together`; infinite where none is."""
        share = torch.arange(_ON_CELLS, device=self.label.device)[:, None] / _ON_CELLS
        level = (between.lower + share * (between.upper - between.lower)).flatten()
        many = replace(self, quick=True)[torch.arange(len(self.label), device=self.label.device).repeat(_ON_CELLS)]
        return torch.where(many._are_enough(level), level, torch.inf).unflatten(0, (_ON_CELLS, -1)).amin(0)

    def level_alone(self, rival: Tensor) -> Tensor:
        """Levels (batch,) of the margins of the rivals (batch,) from which on their own rows are positive.

        Only if the outputs are Gaussian at every x; minus infinity for the label itself, infinite where none is known.
        """
        row, at = _duel(self.label, rival, self.rows), rival[:, None]
        own = rival == self.label
        duel = (self.rows == row).all(-1) & ~own[:, None]
        asked = (duel | (self.rows.argmin(-1) != at)).all(-1)  # no other row of this rival
        mean, most = self.margins.mean[:, 0], self.most.gather(1, at)[:, 0]
        turned = turned_covariance(self.bounds, row, self.label)
        known = KnownMargins(mean, self.most, self.margins.variance[:, 0], turned)
        level = turned_threshold(row, self.label, known, random=True)[:, 0]

        found = least_level(lambda t: self._is_enough(t, rival), mean.gather(1, at)[:, 0], most)
        level = torch.fmin(level, found)
        return torch.where(asked, torch.where(own, -torch.inf, level), torch.inf)

    def _are_enough(self, level: Tensor) -> Tensor:  # (batch,)
        """Whether the rows are more than ``CUT`` from this level on."""
        return (self.rows_at(self._raised(level)) > CUT).all(-1)

    def _is_enough(self, level: Tensor, rival: Tensor) -> Tensor:  # (batch,) each
        """Whether the row of the rival is more than ``CUT`` from this level of its margin on."""
        mean = self.margins.mean[:, 0].scatter(1, rival[:, None], level[:, None])
        return self.rows_at(mean, _duel(self.label, rival, self.rows))[:, 0] > CUT

    def _raised(self, level: Tensor) -> Tensor:  # (batch,) -> (batch, classes)
        return torch.maximum(self.margins.mean[:, 0], level[:, None]).masked_fill(self.own, 0.0)
