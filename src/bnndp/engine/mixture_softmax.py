"""Expected softmax of an ensemble: the bounds of the members as affine functions of x, added before minimising.

Whatever is known of one member by itself counts too: the better of both sums is taken, box by box (``mixture.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine.dense.forward import Parameters, hidden_layers
from bnndp.engine.dense.margins import Margins, interval_mean, margin_rows, margin_variance, margins, mean_margins
from bnndp.engine.dense.optimise import best_choice
from bnndp.engine.general.forward import hidden, interval_rows, mean_rows, row_variance
from bnndp.engine.general.margins import gaussian_tails
from bnndp.engine.general.optimise import best_rows as best_planes
from bnndp.engine.margins_to_softmax import class_interval
from bnndp.engine.members import Part, parts
from bnndp.engine.methods import expect_moment, moved_back
from bnndp.engine.mixture import SHARES, LowerSum, MemberMargins, plane_size, summed, tail_lines, weighted_interval
from bnndp.engine.mixture_rows import best_rows, lower_classes, plus, upper_classes
from bnndp.engine.tails.tails import useful_tails
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box, apply_rows
from bnndp.maths.logistic import logistic_tail
from bnndp.maths.rounding import ELEMENTARY, TINY, gamma
from bnndp.maths.softmax import consistent, second_order_bound, union_bound
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.options import Options
from bnndp.paper import softmax as partition

__all__ = ["CALM", "as_seen", "mixture_bound", "mixture_classes", "strongest_tails"]

CALM = 0.02
"""Margins of less variance than this need no exponential moments: the second order is as good."""


def as_seen(network: BayesianNetwork, box: Box) -> tuple[BayesianNetwork, Box]:
    """The network and the boxes in terms of what its first layer sees."""
    return (network, box) if network.shift is None else (network.unshifted(), box.moved(network.shift))


def strongest_tails(network: BayesianNetwork, box: Box, known: Margins) -> Tensor:
    """Bounds of E sigma(-D) by exponential moments (batch, classes, classes), 1 where there are none."""
    classes = network.n_out
    tails = torch.ones_like(known.mean)
    at = (known.variance.amax((-1, -2)) > CALM).nonzero()[:, 0]
    if at.numel():  # margins of the strongest class only: those of the others have no tails to speak of
        least = known.mean[at].masked_fill(torch.eye(classes, dtype=torch.bool, device=box.lower.device), torch.inf)
        best = least.amin(-1).argmax(-1)
        part = Margins(known.mean[at, best], known.variance[at, best])
        tails[at, best] = useful_tails(network, box[at], best, part.mean, part.variance)
    return tails


def mixture_classes(ensemble: Ensemble, box: Box, options: Options, *, together: int = 1) -> tuple[Interval, str]:
    """Ranges (batch, classes) of E softmax, of the added affine functions and of the added intervals of the members.

    At most so many members go through a pass ``together``, where they are alike.
    """
    classes = ensemble.n_out
    every = torch.arange(classes, device=box.lower.device).expand(box.batch, -1)
    found: list[tuple[Tensor, Interval]] = []
    lows, highs = ([LowerSum.zero(box, classes) for _ in SHARES] for _ in range(2))
    names: set[str] = set()
    for part in parts(ensemble, together, stacked=_stacks(options)):
        own: list[Interval] = []
        if options.method != "partition":
            known = part_margins(part, box, every, options)
            if known.random and part.members[0].plain:
                tails = strongest_tails(*as_seen(part.members[0], box), Margins(known.least, known.variance))
                known = replace(known, tails=torch.minimum(known.tails, tails))
            own.append(class_interval(Margins(known.least, known.variance), known.tails))
            matrix = known.plane.matrix.unflatten(1, (classes, classes))
            planes = (matrix, known.plane.offset.unflatten(1, (classes, classes)), known.size)
            turned = tuple(part.transpose(1, 2) for part in planes)
            for i, (share, lines) in enumerate(zip(SHARES, tail_lines(known), strict=True)):
                lows[i] = plus(lows[i], part.weights, lower_classes(known, lines, share), *planes)
                highs[i] = plus(highs[i], part.weights, upper_classes(known, lines, share), *turned)
            names.add("moment")
        if options.method in ("partition", "best"):
            seen, inside = as_seen(part.members[0], box)
            _expect_known(seen, options)
            own.append(partition.bound_softmax(seen, inside, cells=options.cells).probability)
            names.add("partition")
        low = torch.stack([interval.lower for interval in own]).amax(0)
        high = torch.stack([interval.upper for interval in own]).amin(0)
        found.append((part.weights, Interval(*consistent(low, high))))
    ends = weighted_interval(found)
    if options.method != "partition":
        ends = Interval(torch.fmax(ends.lower, _least(lows, box)), torch.fmin(ends.upper, -_least(highs, box)))
    return Interval(*consistent(ends.lower, ends.upper)), "+".join(sorted(names))


def mixture_bound(
    ensemble: Ensemble,
    box: Box,
    rows: Tensor,  # (batch, rows, classes)
    label: Tensor,  # (batch,): the class whose margins are used
    options: Options,
    *,
    together: int = 1,
) -> Tensor:  # (batch, rows)
    """Lower bound of ``rows . E softmax`` for every x of each box; at most so many members ``together``.

    By exponential moments too, where only the spread of the margins keeps that from deciding.
    """
    asked = _Asked(ensemble, box, rows, label, options, together)
    bound, hope, spread = _rows(asked, exponential=False)
    at = (~(bound > 0).all(-1) & (hope > 0).all(-1) & (spread > CALM)).nonzero()[:, 0]
    if at.numel():
        again, _, _ = _rows(replace(asked, box=box[at], rows=rows[at], label=label[at]), exponential=True)
        bound[at] = torch.fmax(bound[at], again)
    return bound


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of :func:`mixture_bound`."""

    ensemble: Ensemble
    box: Box
    rows: Tensor  # (batch, rows, classes)
    label: Tensor  # (batch,)
    options: Options
    together: int


def _rows(asked: _Asked, *, exponential: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Bounds (batch, rows), what they would be without any spread, and the largest variance (batch,) of a margin.

    The better of the added affine functions and of the added bounds of each member by itself; no bound of a member is
    below the least coefficient of its row.
    """
    box, options = asked.box, asked.options
    floor = asked.rows.amin(-1)
    separate = hope = size = torch.zeros_like(floor)
    spread = floor.new_zeros(box.batch)
    total = LowerSum.zero(box, len(SHARES) * asked.rows.shape[1])
    for part in parts(asked.ensemble, asked.together, stacked=_stacks(options)):
        times = len(part.members)
        rows, label = asked.rows.repeat(times, 1, 1), asked.label.repeat(times)
        best = hoped = floor.repeat(times, 1)  # (members * batch, rows)
        if options.method != "partition":
            known = part_margins(part, box, asked.label[:, None], options)
            if known.random and part.members[0].plain:
                spread = torch.maximum(spread, known.variance.amax((-1, -2)))
                if exponential:
                    tails = useful_tails(*as_seen(part.members[0], box), label, known.least[:, 0], known.variance[:, 0])
                    known = replace(known, tails=torch.minimum(known.tails, tails[:, None]))
            best = torch.fmax(best, _by_itself(rows, label, known))
            if known.random and not exponential and bool((spread > CALM).any()):
                calm = torch.zeros_like(known.variance)
                hoped = _by_itself(rows, label, replace(known, variance=calm, tails=_tails(known.least, None)))
            planes = (known.plane.matrix[:, None], known.plane.offset[:, None], known.size)
            total = plus(total, part.weights, best_rows(rows, label, known), *planes)
        if options.method in ("partition", "best"):
            seen, inside = as_seen(part.members[0], box)
            _expect_known(seen, options)
            best = torch.fmax(best, partition.bound_rows(seen, inside, rows, cells=options.cells))
        separate, size = separate + summed(part.weights, best), size + summed(part.weights, best.abs())
        hope = hope + summed(part.weights, torch.fmax(best, hoped))
    bound = separate - gamma(2 * len(asked.ensemble.members) + 32) * size - TINY
    if options.method != "partition":
        bound = torch.fmax(bound, _least([total], box).unflatten(1, (len(SHARES), -1)).amax(1))
    return bound, torch.fmax(hope, bound), spread


def _by_itself(rows: Tensor, label: Tensor, known: MemberMargins) -> Tensor:
    """Lower bounds (batch, rows) of ``rows . E softmax`` of one member."""
    mean, variance, tails = known.least[:, 0], known.variance[:, 0], known.tails[:, 0]
    return torch.maximum(union_bound(rows, tails, label), second_order_bound(rows, mean, variance, label))


def _tails(least: Tensor, variance: Tensor | None) -> Tensor:
    """Upper bounds of E sigma(-D) for D of at least this mean and at most this variance; None: D is not random."""
    return (torch.sigmoid(-least) + ELEMENTARY).clamp_max(1.0) if variance is None else logistic_tail(least, variance)


def _least(sums: list[LowerSum], box: Box) -> Tensor:
    """The least value of each function on the box, the best of all sums: (batch, rows)."""
    planes = [total.rounded() for total in sums]
    found = torch.stack([box.minimum(plane.matrix, plane.offset) for plane in planes])
    return found.nan_to_num(-torch.inf, neginf=-torch.inf).amax(0)


def _expect_known(network: BayesianNetwork, options: Options) -> None:
    if not network.plain:
        expect_moment(network, options)


def _stacks(options: Options) -> bool:
    """Whether the method knows members that go together; the partition method takes them one by one."""
    return options.method in ("auto", "moment")


def part_margins(part: Part, box: Box, reference: Tensor, options: Options) -> MemberMargins:
    """Margins of the reference classes (batch, references) of the members of a part, with planes in x.

    Of several members the batch is that of the boxes repeated for each of them.
    """
    if not part.stacked:
        return member_margins(part.members[0], box, reference, options)
    every, shift = part.repeated(box), part.shift(box.batch)
    reference = reference.repeat(len(part.members), 1)
    passed = part.hidden(every if shift is None else every.moved(shift))
    rows = _differences(reference, passed.output.weights.n_out, passed.box)
    plane = best_planes(passed, rows, options.optimise)
    if shift is not None:
        plane = moved_back(plane, shift, every, -1)
    mean = interval_rows(passed, rows)
    found = _on_box(plane, Margins(mean, torch.zeros_like(mean)), every, reference)
    return replace(found, tails=_tails(found.least, None), random=False)


def member_margins(network: BayesianNetwork, box: Box, reference: Tensor, options: Options) -> MemberMargins:
    """The same of one member of any kind."""
    seen, inside = as_seen(network, box)
    tails: Tensor | None = None
    random, gaussian = network.random, False
    if seen.plain:
        plane, known = _plain_planes(seen, inside, reference, options.optimise, random=random)
    else:
        passed = hidden(seen, inside)
        rows = _differences(reference, seen.n_out, inside)
        plane = mean_rows(passed, rows)
        mean = inside.minimum(plane.matrix, plane.offset)
        known = Margins(mean, row_variance(passed, rows))
        gaussian = passed.last.signal.fixed
        tails = gaussian_tails(passed, known).reshape(*reference.shape, -1) if gaussian else None
    if network.shift is not None:
        plane = moved_back(plane, network.shift, box, -1)
    found = _on_box(plane, known, box, reference)
    own = _tails(found.least, found.variance if random else None)
    return replace(found, tails=own if tails is None else torch.minimum(own, tails), random=random, gaussian=gaussian)


def _differences(reference: Tensor, classes: int, box: Box) -> Tensor:  # reference (batch, references)
    """The rows of the margins of the reference classes against all: (batch, references * classes, classes)."""
    one = torch.eye(classes, dtype=box.lower.dtype, device=reference.device)
    return (one[reference][:, :, None] - one).reshape(reference.shape[0], -1, classes)


def _plain_planes(
    network: BayesianNetwork, box: Box, reference: Tensor, steps: int, *, random: bool
) -> tuple[Affine, Margins]:
    """Planes below the mean margins, and what else is known of their moments: (batch, rows) each."""
    *below, output = network.seen
    rows = margin_rows(output, reference)
    if not below:
        blur = 2 * (apply_rows(rows.blur, box.magnitude) + rows.bias_blur)
        known = margins(network, box, reference)
        return Affine(rows.weight, rows.bias - blur), known.reshape(box.batch, -1)
    layers = hidden_layers(below, box, Parameters(), take_last_apart=random)
    choice = best_choice(rows.weight, rows.bias, layers, steps) if steps else None
    plane = mean_margins(rows, layers, choice)
    mean = interval_mean(rows, layers.latents[-1].mean)
    variance = margin_variance(rows, layers) if random else torch.zeros_like(mean)
    return plane, Margins(torch.where(layers.fine, mean, torch.nan), variance)


def _on_box(plane: Affine, known: Margins, box: Box, reference: Tensor) -> MemberMargins:
    """Ranges of the planes (batch, references * classes) on the box; zero planes where anything is no number."""
    size = plane_size(plane, box)
    fine = size.isfinite()
    if not bool(fine.all()):
        plane = Affine(torch.where(fine[..., None], plane.matrix, 0.0), torch.where(fine, plane.offset, 0.0))
    middle = apply_rows(plane.matrix, box.centre) + plane.offset
    radius = apply_rows(plane.matrix.abs(), 0.5 * (box.upper - box.lower))
    slack = gamma(4 * box.n + 32) * size + TINY
    least, most = middle - radius - slack, middle + radius + slack
    if box.within is not None:
        least, most = torch.maximum(least, box.minimum(*_pair(plane))), torch.minimum(most, box.maximum(*_pair(plane)))
    least, variance = torch.maximum(least, known.mean), known.variance
    fine = fine & least.isfinite() & variance.isfinite()  # NaN in either mean is one in the larger of them
    own = (reference[..., None] == torch.arange(size.shape[1] // reference.shape[1], device=reference.device)).flatten(
        1
    )
    least = torch.where(fine, least, -torch.inf).masked_fill(own, 0.0)
    variance = torch.where(fine, variance, torch.inf).masked_fill(own, 0.0)
    most, size = (torch.where(fine, part, 0.0).masked_fill(own, 0.0) for part in (most, size))
    shape = (*reference.shape, -1)
    return MemberMargins(
        plane=plane,
        least=least.reshape(shape),
        middle=middle.reshape(shape),
        most=most.reshape(shape),
        size=size.reshape(shape),
        variance=variance.reshape(shape),
        tails=torch.ones_like(least).reshape(shape),
        random=True,
        gaussian=False,
    )


def _pair(plane: Affine) -> tuple[Tensor, Tensor]:
    return plane.matrix, plane.offset
