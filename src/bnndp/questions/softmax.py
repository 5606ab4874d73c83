"""The expected softmax of a classifier on boxes: the range of each class's probability, and bounds of combinations.

What a decision needs are lower bounds of combinations (rows) of the class probabilities (docs/theory.md, section 6).
They come from the margins of the logits: their means and variances by the pass, exponential moments where only the
spread of the margins keeps two moments from deciding, and the signs of neurons where a pass can be branched. Over the
members of a mixture they are added as affine functions of x, before they are minimised (``softmax_sums.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine.margins import by_class, gaussian_tails, margin_rows, margins, middle_rows
from bnndp.engine.mixture import Mixture
from bnndp.engine.protocol import BranchablePass, Margins, Pass
from bnndp.engine.tails.tails import hoped_tails
from bnndp.errors import InputError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.maths.softmax import consistent, union_bound
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.questions.from_margins import CALM, class_interval, own_classes, row_bound, strongest_tails, undecided
from bnndp.questions.margin_levels import branched_rows
from bnndp.questions.member_levels import branched_mixture_rows
from bnndp.questions.mixture_softmax import mixture_classes, mixture_rows
from bnndp.tighten.branching import Branching
from bnndp.tighten.effort import last
from bnndp.tighten.halving import halve
from bnndp.tighten.pass_choice import chunked, plan

_FIRST_STEPS = 10  # of ascent on a box that is to be branched, at least
_STEPS = 1  # of ascent on each of its cells
_CELLS = 4  # for each box that fits the memory: a cell is asked for one row


@dataclass(frozen=True, slots=True)
class _Asked:
    """Combinations of class probabilities that are asked about on each box, by the margins of the class ``label``."""

    rows: Tensor  # (batch, rows, classes)
    label: Tensor  # (batch,): the class whose margins are used, the largest where the rows should hold

    def __getitem__(self, index: Tensor | slice) -> _Asked:
        """The same for some of the boxes."""
        return _Asked(self.rows[index], self.label[index])


def expected_softmax(network: Posterior, box: Box, options: Options) -> tuple[Interval, tuple[str, ...]]:
    """Bounds (batch, classes) of E softmax for every x of each box, and the method that gave them."""
    _expect_classes(network)
    low = box.lower.new_zeros(box.batch, network.n_out)
    high, names = torch.ones_like(low), ["none"] * box.batch
    for part, passes in chunked(network, box, options, rows=network.n_out**2):
        found, name = mixture_classes(passes) if passes.several else _classes(passes.alone(), passes.outputs)
        low[part], high[part] = found.lower, found.upper
        names[part] = [name] * (part.stop - part.start)
    return Interval(low, high), tuple(names)


def _classes(bounds: Pass, classes: int) -> tuple[Interval, str]:
    """The ranges of one network, by the margins of every class and by the pass itself."""
    found: list[Interval] = []
    box = bounds.box
    if bounds.moments:
        every = torch.arange(classes, device=box.lower.device).expand(box.batch, -1)
        known = margins(bounds, every, classes)
        tails = torch.minimum(gaussian_tails(bounds, known), strongest_tails(bounds, known))
        found.append(class_interval(known, tails))
    own = own_classes(bounds, classes)
    found += [] if own is None else [own]
    low = torch.stack([interval.lower for interval in found]).amax(0)
    high = torch.stack([interval.upper for interval in found]).amin(0)
    return Interval(*consistent(low, high)), bounds.name


def bound_rows(
    network: Posterior,
    box: Box,
    rows: Tensor,  # (batch, rows, classes)
    label: Tensor,  # (batch,): the class whose margins are used, the largest where the rows should hold
    options: Options,
) -> Tensor:  # (batch, rows)
    """Lower bounds of ``rows . E softmax`` for every x of each box; minus infinity where nothing is known.

    An effort above low is spent only on boxes with a row that is not positive yet, stage by stage.
    """
    _expect_classes(network)
    asked, options = _Asked(rows, label), options.started()
    if options.effort == "low":
        return _on_cells(network, box, asked, options)
    return last(_better_rows(network, box, asked, options), options.deadline)


def _better_rows(network: Posterior, box: Box, asked: _Asked, options: Options) -> Iterator[Tensor]:
    """The bounds (batch, rows) after every stage of the effort; each is the best so far."""
    first, *others = plan(network, options)
    bound = _on_cells(network, box, asked, first.options)
    yield bound
    for stage in others:
        at = (~(bound > 0).all(-1)).nonzero()[:, 0]
        if at.numel() == 0:
            return
        found = _on_cells(network, box[at], asked[at], stage.options)
        bound = bound.index_copy(0, at, torch.maximum(bound[at], found))
        yield bound


def _on_cells(network: Posterior, box: Box, asked: _Asked, options: Options) -> Tensor:
    """Bounds (batch, rows), by cells of the boxes where the options allow some and a row is not positive."""
    whole, _ = one_pass_rows(network, box, asked.rows, asked.label, options)
    if options.refine == 1:
        return whole
    plain = replace(options, branch=1)  # signs and cells at once do not pay

    def on_cells(cells: Box, owner: Tensor) -> Tensor:
        part = asked[owner]
        return one_pass_rows(network, cells, part.rows, part.label, plain)[0]

    return halve(on_cells, box, whole, options.refine, options.deadline)


def one_pass_rows(
    network: Posterior,
    box: Box,
    rows: Tensor,  # (batch, rows, classes)
    label: Tensor,  # (batch,)
    options: Options,
    *,
    costly: bool = True,
) -> tuple[Tensor, Tensor]:
    """:func:`bound_rows` of one pass, and the boxes (batch,) for which ``costly`` bounds would be tighter.

    Exponential moments through two hidden layers cost many times a pass, and least if they are asked for many boxes at
    once; a search may leave them out at first.
    """
    bound = torch.full_like(rows[..., 0], -torch.inf)
    hopeful = torch.zeros_like(label, dtype=torch.bool)
    for part, passes in chunked(network, box, options, rows=network.n_out):
        asked = _Asked(rows[part], label[part])
        if passes.several:
            found = mixture_rows(passes, asked.rows, asked.label)
            if options.branch > 1:
                found = _branched_members(passes, asked, found, options)
        else:
            bounds, reference = passes.alone(), asked.label[:, None]
            own = bounds.softmax(asked.rows)
            found = bound[part] if own is None else own
            if bounds.moments:
                pairs = margin_rows(reference, network.n_out)
                known = by_class(bounds.least(pairs), bounds.variance(pairs), reference)
                by_moments, hopeful[part] = _by_margins(bounds, asked, known, costly=costly)
                found = torch.fmax(found, by_moments)
                if options.branch > 1 and bounds.branchable is not None:
                    first = max(options.optimise, _FIRST_STEPS)
                    how = Branching(options.branch, first, _STEPS, _CELLS * passes.capacity, options.deadline)
                    found = _branched(bounds.branchable, asked, found, how)
        bound[part] = found.nan_to_num(-torch.inf, neginf=-torch.inf)
    return bound, hopeful


def _by_margins(bounds: Pass, asked: _Asked, known: Margins, *, costly: bool) -> tuple[Tensor, Tensor]:
    """Bounds (batch, rows) of one network from its margins, and boxes whose costly tails were left out: (batch,)."""
    rows, label = asked.rows, asked.label
    tails, left = gaussian_tails(bounds, known)[:, 0], torch.zeros_like(label, dtype=torch.bool)
    bound = _from_moments(bounds, asked, known, tails)
    if not bounds.tailed:
        return bound, left
    hopeful = ~(bound > 0).all(-1) & _hopeful(known, tails, asked)
    if bounds.costly_tails and not costly:
        return bound, hopeful
    at = hopeful.nonzero()[:, 0]
    if at.numel():
        more = torch.minimum(tails[at], bounds.tails(at, label[at], known[at].reshape(at.numel(), -1)))
        bound[at] = torch.fmax(bound[at], row_bound(rows[at], known[at], label[at], more))
    return bound, left


def _from_moments(bounds: Pass, asked: _Asked, known: Margins, tails: Tensor) -> Tensor:
    """Bounds (batch, rows) from the margins; the variances of their middles are asked for where the leads need them."""
    rows, label = asked.rows, asked.label
    bound = row_bound(rows, known, label, tails)
    at = undecided(bound, known).nonzero()[:, 0]
    if not bounds.random or at.numel() == 0:
        return bound
    middles = bounds.variance(middle_rows(label[at], rows.shape[-1]), at).unflatten(1, (-1, rows.shape[-1]))
    more = row_bound(rows[at], known[at], label[at], tails[at], middles)
    return bound.index_copy(0, at, torch.fmax(bound[at], more))


def _hopeful(known: Margins, tails: Tensor, asked: _Asked) -> Tensor:
    """Boxes (batch,) whose rows might be positive by exponential moments."""
    best = torch.minimum(tails, hoped_tails(known.mean[:, 0], known.variance[:, 0]))
    hope = union_bound(asked.rows, best, asked.label)
    return (hope > 0).all(-1) & (known.variance.amax((-1, -2)) > CALM)


def _branched(bounds: BranchablePass, asked: _Asked, bound: Tensor, how: Branching) -> Tensor:
    """The bounds (batch, rows), better where cells of known signs decide."""
    at = (~(bound > 0).all(-1)).nonzero()[:, 0]
    if at.numel() == 0:
        return bound
    found = branched_rows(bounds.restricted(at, ()), asked.rows[at], asked.label[at], how)
    return bound.index_copy(0, at, torch.fmax(bound[at], found))


def _branched_members(passes: Mixture, asked: _Asked, bound: Tensor, options: Options) -> Tensor:
    """The bounds (batch, rows), better where cells of signs of single members decide."""
    at = (~(bound > 0).all(-1)).nonzero()[:, 0]
    if at.numel() == 0:
        return bound
    first = max(options.optimise, _FIRST_STEPS)
    how = Branching(options.branch, first, _STEPS, _CELLS * passes.capacity, options.deadline)
    found = branched_mixture_rows(passes[at], asked.rows[at], asked.label[at], how)
    return bound.index_copy(0, at, torch.fmax(bound[at], found))


def _expect_classes(network: Posterior) -> None:
    if network.n_out < 2:
        raise InputError(f"a classifier needs at least 2 logits, the network has {network.n_out}.")
