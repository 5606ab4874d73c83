"""Expected softmax of a mixture: the bounds of the members as affine functions of x, added before minimising.

Whatever is known of one member by itself counts too: the better of both sums is taken, box by box.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bnndp.engine.margins import by_class, gaussian_tails, margin_rows
from bnndp.engine.mixture import LowerSum, Mixture, Part, plane_size, summed, weighted_interval
from bnndp.engine.protocol import Margins
from bnndp.engine.tails.tails import hoped_tails
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box, apply_rows
from bnndp.maths.logistic import logistic_tail
from bnndp.maths.rounding import ELEMENTARY, TINY, gamma
from bnndp.maths.softmax import consistent, second_order_bound, union_bound
from bnndp.questions.from_margins import CALM, class_interval, own_classes, row_bound, strongest_tails
from bnndp.questions.softmax_lines import SHARES, MarginPlanes, tail_lines
from bnndp.questions.softmax_sums import best_rows, lower_classes, plus, upper_classes


def mixture_classes(passes: Mixture) -> tuple[Interval, str]:
    """Ranges (batch, classes) of E softmax, of the added affine functions and of the added intervals of the members."""
    classes, box = passes.outputs, passes.box
    every = torch.arange(classes, device=box.lower.device).expand(box.batch, -1)
    found: list[tuple[Tensor, Interval]] = []
    lows, highs = ([LowerSum.zero(box, classes) for _ in SHARES] for _ in range(2))
    names: set[str] = set()
    moments = False
    for part in passes.parts():
        bounds, own = part.bounds, list[Interval]()
        if bounds.moments:
            moments, known = True, margin_planes(part, every, classes)
            tails = strongest_tails(bounds, Margins(known.least, known.variance))
            known = replace(known, tails=torch.minimum(known.tails, tails))
            own.append(class_interval(Margins(known.least, known.variance), known.tails))
            matrix = known.plane.matrix.unflatten(1, (classes, classes))
            planes = (matrix, known.plane.offset.unflatten(1, (classes, classes)), known.size)
            turned = tuple(each.transpose(1, 2) for each in planes)
            for i, (share, lines) in enumerate(zip(SHARES, tail_lines(known), strict=True)):
                lows[i] = plus(lows[i], part.weights, lower_classes(known, lines, share), *planes)
                highs[i] = plus(highs[i], part.weights, upper_classes(known, lines, share), *turned)
        direct = own_classes(bounds, classes)
        own += [] if direct is None else [direct]
        names.update(bounds.name.split("+"))
        low = torch.stack([interval.lower for interval in own]).amax(0)
        high = torch.stack([interval.upper for interval in own]).amin(0)
        found.append((part.weights, Interval(*consistent(low, high))))
    ends = weighted_interval(found)
    if moments:
        ends = Interval(torch.fmax(ends.lower, _least(lows, box)), torch.fmin(ends.upper, -_least(highs, box)))
    return Interval(*consistent(ends.lower, ends.upper)), "+".join(sorted(names))


def mixture_rows(passes: Mixture, rows: Tensor, label: Tensor) -> Tensor:
    """Lower bounds (batch, rows) of ``rows . E softmax`` for every x of each box.

    By exponential moments too, where only the spread of the margins keeps that from deciding.
    """
    bound, hope, spread = _rows(passes, rows, label, exponential=False)
    at = (~(bound > 0).all(-1) & (hope > 0).all(-1) & (spread > CALM)).nonzero()[:, 0]
    if at.numel():
        again, _, _ = _rows(passes[at], rows[at], label[at], exponential=True)
        bound[at] = torch.fmax(bound[at], again)
    return bound


def _rows(passes: Mixture, rows: Tensor, label: Tensor, *, exponential: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Bounds (batch, rows), what exponential moments may make of them, and the largest variance (batch,) of a margin.

    The better of the added affine functions and of the added bounds of each member by itself; no bound of a member is
    below the least coefficient of its row.
    """
    floor, box, classes = rows.amin(-1), passes.box, rows.shape[-1]
    separate = hope = size = torch.zeros_like(floor)
    spread, moments = floor.new_zeros(box.batch), False
    total = LowerSum.zero(box, len(SHARES) * rows.shape[1])
    for part in passes.parts():
        bounds, own_rows, own_label = part.bounds, part.again(rows), part.again(label)
        best = hoped = part.again(floor)  # (members * batch, rows)
        if bounds.moments:
            moments, known = True, margin_planes(part, label[:, None], classes)
            if bounds.tailed:
                spread = torch.maximum(spread, known.variance.amax((-1, -2)))
                mean, variance = known.least[:, 0], known.variance[:, 0]
                if exponential:
                    every = torch.arange(box.batch, device=label.device)
                    tails = bounds.tails(every, own_label, Margins(mean, variance))
                    known = replace(known, tails=torch.minimum(known.tails, tails[:, None]))
                else:
                    hoped = union_bound(own_rows, hoped_tails(mean, variance), own_label)
            best = torch.fmax(best, _by_itself(own_rows, own_label, known))
            planes = (known.plane.matrix[:, None], known.plane.offset[:, None], known.size)
            total = plus(total, part.weights, best_rows(own_rows, own_label, known), *planes)
        direct = bounds.softmax(own_rows)
        best = best if direct is None else torch.fmax(best, direct)
        separate, size = separate + summed(part.weights, best), size + summed(part.weights, best.abs())
        hope = hope + summed(part.weights, torch.fmax(best, hoped))
    bound = separate - gamma(2 * passes.members + 32) * size - TINY
    if moments:
        bound = torch.fmax(bound, _least([total], box).unflatten(1, (len(SHARES), -1)).amax(1))
    return bound, torch.fmax(hope, bound), spread


def _by_itself(rows: Tensor, label: Tensor, known: MarginPlanes) -> Tensor:
    """Lower bounds (batch, rows) of ``rows . E softmax`` of one member."""
    mean, variance, tails = known.least[:, 0], known.variance[:, 0], known.tails[:, 0]
    if known.random:
        return row_bound(rows, Margins(known.least, known.variance), label, tails)
    return torch.maximum(union_bound(rows, tails, label), second_order_bound(rows, mean, variance, label))


def _least(sums: list[LowerSum], box: Box) -> Tensor:
    """The least value of each function on the box, the best of all sums: (batch, rows)."""
    planes = [total.rounded() for total in sums]
    found = torch.stack([box.minimum(plane.matrix, plane.offset) for plane in planes])
    return found.nan_to_num(-torch.inf, neginf=-torch.inf).amax(0)


def margin_planes(part: Part, reference: Tensor, classes: int) -> MarginPlanes:  # reference (batch, references)
    """Margins of the reference classes of the members of a part, with planes in x."""
    bounds, reference = part.bounds, part.again(reference)
    rows, box = margin_rows(reference, classes), bounds.box
    found = bounds.affine(rows)
    known = by_class(found.least, bounds.variance(rows), reference)
    own = reference[..., None] == torch.arange(classes, device=reference.device)
    planes = _on_box(found.affine, known, own, box)
    mean, variance = planes.least, planes.variance
    tails = logistic_tail(mean, variance) if bounds.random else (torch.sigmoid(-mean) + ELEMENTARY).clamp_max(1.0)
    if bounds.gaussian:
        tails = torch.minimum(tails, gaussian_tails(bounds, Margins(mean, variance)))
    return replace(planes, tails=tails, random=bounds.random, gaussian=bounds.gaussian)


def _on_box(plane: Affine, known: Margins, own: Tensor, box: Box) -> MarginPlanes:
    """Ranges of the planes (batch, references * classes) on the box; zero planes where anything is NaN."""
    size = plane_size(plane, box)
    fine = size.isfinite()
    if not bool(fine.all()):
        plane = Affine(torch.where(fine[..., None], plane.matrix, 0.0), torch.where(fine, plane.offset, 0.0))
    middle = apply_rows(plane.matrix, box.centre) + plane.offset
    radius = apply_rows(plane.matrix.abs(), 0.5 * (box.upper - box.lower))
    slack = gamma(4 * box.n + 32) * size + TINY
    least, most = middle - radius - slack, middle + radius + slack
    if box.within is not None:
        ends = box.range(plane.matrix, plane.offset)
        least, most = torch.maximum(least, ends[0]), torch.minimum(most, ends[1])
    shape = known.mean.shape
    fine, least, most, middle, size = (each.reshape(shape) for each in (fine, least, most, middle, size))
    least = torch.maximum(least, known.mean)
    fine = fine & least.isfinite() & known.variance.isfinite()  # NaN in either mean is one in the larger of them
    return MarginPlanes(
        plane=plane,
        least=torch.where(fine, least, -torch.inf).masked_fill(own, 0.0),
        middle=middle,
        most=torch.where(fine, most, 0.0).masked_fill(own, 0.0),
        size=torch.where(fine, size, 0.0).masked_fill(own, 0.0),
        variance=torch.where(fine, known.variance, torch.inf).masked_fill(own, 0.0),
        tails=torch.ones_like(least),
        random=True,
        gaussian=False,
    )
