"""One pass for classification: bounds of the expected softmax on a batch of boxes, cut into pieces that fit the memory.

Two questions are answered, each by the method of the options: the range of every class's probability, and a lower
bound of given combinations of them, which is what a decision needs (docs/theory.md, section 7). For an ensemble the
bounds of the members are added as affine functions of x, before they are minimised (``mixture.py``).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine import certain
from bnndp.engine.chunks import fitted, pieces
from bnndp.engine.dense.margins import Margins, margins
from bnndp.engine.general.forward import hidden
from bnndp.engine.general.margins import gaussian_tails, margins_above
from bnndp.engine.margins_to_softmax import class_interval, row_bound
from bnndp.engine.methods import expect_moment, members_together, plan
from bnndp.engine.mixture_softmax import CALM, as_seen, mixture_bound, mixture_classes, strongest_tails
from bnndp.engine.tails.tails import hoped_tails, useful_tails
from bnndp.errors import InputError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.maths.softmax import consistent, union_bound
from bnndp.network import BayesianNetwork, Ensemble, Posterior, dense_structure
from bnndp.options import Options
from bnndp.paper import softmax as partition
from bnndp.tighten.branching import Claim, branch
from bnndp.tighten.effort import last
from bnndp.tighten.halving import halve

__all__ = ["bound_rows", "expected_softmax", "quick_rows"]

_FLOATS_A_ENTRY = 12  # float64 numbers alive for each entry of the largest matrix, as in methods.py
_BRANCHED = 0.25  # margins of more variance than this are not branched: the variance decides, not the relaxation
_BRANCH_STEPS = 10  # of ascent on each cell, at least


@dataclass(frozen=True, slots=True)
class _Question:
    """A lower bound of ``rows . E softmax`` on each box is asked for, by the margins of the class ``label``."""

    network: Posterior
    box: Box
    rows: Tensor  # (batch, rows, classes)
    label: Tensor  # (batch,)

    def __getitem__(self, index: Tensor | slice) -> "_Question":
        return replace(self, box=self.box[index], rows=self.rows[index], label=self.label[index])


def expected_softmax(network: Posterior, box: Box, options: Options) -> tuple[Interval, tuple[str, ...]]:
    """Bounds (batch, classes) of E softmax for every x of each box, and the method that gave them."""
    _check(network, box)
    network, box = _as_seen(network, box)
    options = fitted(options, box.lower.device)
    parts, names = [], []
    size = _piece_size(network, options, references=network.n_out)
    for piece in pieces(box.batch, size, box.lower.device):
        interval, name = _classes(network, box[piece], options, size)
        parts.append(interval)
        names += [name] * (piece.stop - piece.start)
    return Interval(torch.cat([p.lower for p in parts]), torch.cat([p.upper for p in parts])), tuple(names)


def bound_rows(
    network: Posterior,
    box: Box,
    rows: Tensor,  # (batch, rows, classes)
    label: Tensor,  # (batch,): the class whose margins are used, the largest where the rows should hold
    options: Options,
) -> Tensor:  # (batch, rows)
    """Lower bound of ``rows . E softmax`` for every x of each box; minus infinity where nothing is known.

    An effort above low is spent only on boxes of which a row is not positive yet, stage by stage.
    """
    _check(network, box)
    network, box = _as_seen(network, box)
    options = fitted(options, box.lower.device)
    asked = _Question(network, box, rows, label)
    if options.effort == "low":
        return _on_cells(asked, options)
    return last(_better_rows(asked, options), options.time_limit)


def quick_rows(
    network: Posterior,
    box: Box,
    rows: Tensor,  # (batch, rows, classes)
    label: Tensor,  # (batch,)
    options: Options,
) -> tuple[Tensor, Tensor]:
    """:func:`bound_rows` by two moments of the margins (batch, rows), and where it may do better yet (batch,).

    With two hidden layers exponential moments cost many times a pass, and least if they are asked for many boxes at
    once. In all other cases, and where more than a pass is wanted, these are the bounds of :func:`bound_rows`.
    """
    simple = options.method in ("auto", "moment") and options.effort == "low" and options.refine == 1
    if not simple or isinstance(network, Ensemble) or not network.plain or network.depth != 2:
        bound = bound_rows(network, box, rows, label, options)
        return bound, torch.zeros_like(label, dtype=torch.bool)
    _check(network, box)
    network, box = as_seen(network, box)
    options = fitted(options, box.lower.device)
    size = _piece_size(network, options, references=1)
    found = [
        _two_moments(network, box[piece], rows[piece], label[piece], options)[1:]
        for piece in pieces(box.batch, size, box.lower.device)
    ]
    bound, hopeful = (torch.cat(part) for part in zip(*found, strict=True))
    return bound.nan_to_num(-torch.inf, neginf=-torch.inf), hopeful


def _better_rows(asked: _Question, options: Options) -> Iterator[Tensor]:
    """The bounds (batch, rows) after every stage of the effort; each is the best so far."""
    first, *others = plan(asked.network, options)
    bound = _on_cells(asked, first.options)
    yield bound
    for stage in others:
        at = (~(bound > 0).all(-1)).nonzero()[:, 0]
        if at.numel() == 0:
            return
        bound = bound.index_copy(0, at, torch.maximum(bound[at], _on_cells(asked[at], stage.options)))
        yield bound


def _on_cells(asked: _Question, options: Options) -> Tensor:
    """Bounds (batch, rows), by cells of the boxes where the options allow some and a row is not positive."""
    whole = _bound(asked, options)
    if options.refine == 1:
        return whole
    plain = replace(options, branch=1)  # signs and cells at once do not pay
    return halve(lambda cells, owner: _bound(replace(asked[owner], box=cells), plain), asked.box, whole, options.refine)


def _bound(asked: _Question, options: Options) -> Tensor:
    network = asked.network
    size = _piece_size(network, options, references=1)

    def of_piece(piece: slice) -> Tensor:
        part = asked[piece]
        if isinstance(network, Ensemble):
            together = members_together(part.box, size, options)
            return mixture_bound(network, part.box, part.rows, part.label, options, together=together)
        return _rows(network, part.box, part.rows, part.label, options)

    found = [of_piece(piece) for piece in pieces(asked.box.batch, size, asked.rows.device)]
    return torch.cat(found).nan_to_num(-torch.inf, neginf=-torch.inf)


def _check(network: Posterior, box: Box) -> None:
    if box.n != network.n_in:
        raise InputError(
            f"the boxes have {box.n} inputs, the network takes {network.n_in}; check the order of the axes."
        )
    if network.n_out < 2:
        raise InputError(f"a classifier needs at least 2 logits, the network has {network.n_out}.")


def _as_seen(network: Posterior, box: Box) -> tuple[Posterior, Box]:
    """In terms of what the first layer sees; the members of an ensemble see each their own."""
    return (network, box) if isinstance(network, Ensemble) else as_seen(network, box)


def _piece_size(network: Posterior, options: Options, *, references: int) -> int:
    """How many boxes at a time keep the intermediate tensors within ``options.memory`` bytes.

    Of an ensemble it is that of one member; where boxes are fewer, several members go together.
    """
    if isinstance(network, Ensemble):
        return min(_piece_size(member, options, references=references) for member in network.examples)
    if not network.plain and dense_structure(network) is None:
        return max(1, options.memory // (8 * _FLOATS_A_ENTRY * references * network.n_out * network.widest))
    sizes = network.sizes
    widest, rows = max(sizes[1:-1], default=1), references * network.n_out
    # Rows of the hidden layers are carried to the inputs a few boxes at a time (engine/dense/backward.py).
    size = 8 * _FLOATS_A_ENTRY * (max(rows, 2 * widest) * widest + 2 * sizes[0])
    if options.optimise or options.branch > 1:  # what the gradient keeps
        size = max(size, 8 * _FLOATS_A_ENTRY * 4 * rows * (sizes[0] + widest))
    if options.method in ("partition", "best"):
        size = max(size, partition.footprint(network, options.cells))
    return max(1, options.memory // size)


def _classes(network: Posterior, box: Box, options: Options, size: int) -> tuple[Interval, str]:
    """On boxes that fit the memory with room for ``size`` of them."""
    if isinstance(network, Ensemble):
        return mixture_classes(network, box, options, together=members_together(box, size, options))
    if not network.plain:
        expect_moment(network, options)
    found: list[Interval] = []
    if options.method != "partition":
        found.append(_moment_classes(network, box, options))
    if options.method in ("partition", "best"):
        found.append(partition.bound_softmax(network, box, cells=options.cells).probability)
    low = torch.stack([interval.lower for interval in found]).amax(0)
    high = torch.stack([interval.upper for interval in found]).amin(0)
    name = {"partition": "partition", "best": "moment+partition"}.get(options.method, "moment")
    return Interval(*consistent(low, high)), name


def _moment_classes(network: BayesianNetwork, box: Box, options: Options) -> Interval:
    classes = network.n_out
    if not network.plain:
        return _general_classes(network, box, options.optimise)
    every = torch.arange(classes, device=box.lower.device)
    known = _margins(network, box, every.expand(box.batch, -1), options.optimise)
    return class_interval(known, strongest_tails(network, box, known))


def _margins(network: BayesianNetwork, box: Box, reference: Tensor, steps: int) -> Margins:
    """Of a plain network, with planes optimised by ``steps`` steps; without variance there are no moments to take."""
    if not certain.certain(network):
        return margins(network, box, reference, steps=steps)
    found = certain.margins(network, box, reference)
    if not steps:
        return found
    return Margins(torch.maximum(found.mean, margins(network, box, reference, steps=steps).mean), found.variance)


def _general_classes(network: BayesianNetwork, box: Box, steps: int) -> Interval:
    """The same for networks of any layers."""
    every = torch.arange(network.n_out, device=box.lower.device)
    passed = hidden(network, box)
    known = margins_above(passed, every.expand(box.batch, -1), steps=steps)
    return class_interval(known, gaussian_tails(passed, known))


def _general_rows(network: BayesianNetwork, box: Box, rows: Tensor, label: Tensor, steps: int) -> Tensor:
    passed = hidden(network, box)
    known = margins_above(passed, label[:, None], steps=steps)
    return row_bound(rows, known, label, gaussian_tails(passed, known)[:, 0])


def _rows(network: BayesianNetwork, box: Box, rows: Tensor, label: Tensor, options: Options) -> Tensor:
    if not network.plain:
        expect_moment(network, options)
    found: list[Tensor] = []
    if options.method != "partition":
        found.append(_moment_rows(network, box, rows, label, options))
    if options.method in ("partition", "best"):
        found.append(partition.bound_rows(network, box, rows, cells=options.cells))
    return torch.stack([bound.nan_to_num(-torch.inf, neginf=-torch.inf) for bound in found]).amax(0)


def _two_moments(
    network: BayesianNetwork, box: Box, rows: Tensor, label: Tensor, options: Options
) -> tuple[Margins, Tensor, Tensor]:
    """Of a plain network: margins, the bounds (batch, rows) that they give, and where more moments may say more."""
    known = _margins(network, box, label[:, None], options.optimise)
    bound = row_bound(rows, known, label)
    hope = union_bound(rows, hoped_tails(known.mean[:, 0], known.variance[:, 0]), label)
    hopeful = ~(bound > 0).all(-1) & (hope > 0).all(-1) & (known.variance.amax((-1, -2)) > CALM)
    return known, bound, hopeful


def _moment_rows(network: BayesianNetwork, box: Box, rows: Tensor, label: Tensor, options: Options) -> Tensor:
    """By moments; by exponential moments too where only the spread of the margins keeps that from deciding."""
    if not network.plain:
        return _general_rows(network, box, rows, label, options.optimise)
    known, bound, hopeful = _two_moments(network, box, rows, label, options)
    at = hopeful.nonzero()[:, 0]
    if at.numel():
        part = known[at]
        tails = useful_tails(network, box[at], label[at], part.mean[:, 0], part.variance[:, 0])
        again = row_bound(rows[at], part, label[at], tails)
        bound[at] = torch.maximum(bound[at], again)
    if options.branch > 1 and network.depth:
        left = ~(bound > 0).all(-1) & (known.variance.amax((-1, -2)) <= _BRANCHED)
        at = left.nonzero()[:, 0]
        if at.numel():
            steps, piece = max(options.optimise, _BRANCH_STEPS), _piece_size(network, options, references=1)
            least = branch(Claim(network, box[at], rows[at], label[at]), cells=options.branch, steps=steps, piece=piece)
            bound[at] = torch.maximum(bound[at], least[:, None])  # the least row on the box bounds them all
    return bound
