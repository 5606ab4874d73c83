"""Expected softmax of an ensemble: the bounds of the members as affine functions of x, added before minimising.

Whatever is known of one member by itself counts too: the better of both sums is taken, box by box (``mixture.py``).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bnndp.bounds import Affine, Interval
from bnndp.ensemble import Ensemble
from bnndp.maths.rounding import TINY, gamma
from bnndp.maths.softmax import consistent
from bnndp.methods import expect_moment, moved_back
from bnndp.mixture import SHARES, LowerSum, MemberMargins, class_planes, row_planes, weighted, weighted_interval
from bnndp.moment.exponential import margin_tails
from bnndp.moment.forward import Parameters, hidden_layers
from bnndp.moment.margins import Margins, margin_rows, margins, margins_above, mean_margins
from bnndp.moment.optimise import best_choice
from bnndp.moment.softmax import class_interval, row_bound
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.partition import softmax as partition
from bnndp.propagation.forward import hidden, mean_rows, row_variance
from bnndp.propagation.margins import gaussian_tails
from bnndp.regions import Box, apply_rows

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
        tails[at, best] = margin_tails(network, box[at], best, part.mean, part.variance)
    return tails


def mixture_classes(ensemble: Ensemble, box: Box, options: Options) -> tuple[Interval, str]:
    """Ranges (batch, classes) of E softmax, of the added affine functions and of the added intervals of the members."""
    every = torch.arange(ensemble.n_out, device=box.lower.device).expand(box.batch, -1)
    found: list[tuple[float, Interval]] = []
    sums = [LowerSum.zero(box, 2 * ensemble.n_out) for _ in SHARES]
    names: set[str] = set()
    for member, weight in weighted(ensemble):
        seen, inside = as_seen(member, box)
        parts: list[Interval] = []
        if options.method != "partition":
            known = _member_margins(member, box, every, options)
            if seen.plain and member.random:
                known = replace(known, tails=strongest_tails(seen, inside, known.margins))
            parts.append(class_interval(known.margins, known.tails))
            planes = (class_planes(known, known.lines(box, share), box) for share in SHARES)
            sums = [total.plus(weight, part) for total, part in zip(sums, planes, strict=True)]
            names.add("moment")
        if options.method in ("partition", "best"):
            _expect_known(seen, options)
            parts.append(partition.bound_softmax(seen, inside, cells=options.cells).probability)
            names.add("partition")
        low = torch.stack([part.lower for part in parts]).amax(0)
        high = torch.stack([part.upper for part in parts]).amin(0)
        found.append((weight, Interval(*consistent(low, high))))
    ends = weighted_interval(found)
    if options.method != "partition":
        least = _least(sums, box)
        low, high = least[:, : ensemble.n_out], -least[:, ensemble.n_out :]
        ends = Interval(torch.fmax(ends.lower, low), torch.fmin(ends.upper, high))
    return Interval(*consistent(ends.lower, ends.upper)), "+".join(sorted(names))


def mixture_bound(
    ensemble: Ensemble,
    box: Box,
    rows: Tensor,  # (batch, rows, classes)
    label: Tensor,  # (batch,): the class whose margins are used
    options: Options,
) -> Tensor:  # (batch, rows)
    """Lower bound of ``rows . E softmax`` for every x of each box.

    By exponential moments too, where only the spread of the margins keeps that from deciding.
    """
    bound, hope, spread = _rows(ensemble, box, rows, label, options, exponential=False)
    at = (~(bound > 0).all(-1) & (hope > 0).all(-1) & (spread > CALM)).nonzero()[:, 0]
    if at.numel():
        again, _, _ = _rows(ensemble, box[at], rows[at], label[at], options, exponential=True)
        bound[at] = torch.fmax(bound[at], again)
    return bound


def _rows(
    ensemble: Ensemble, box: Box, rows: Tensor, label: Tensor, options: Options, *, exponential: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Bounds (batch, rows), what they would be without any spread, and the largest variance (batch,) of a margin.

    The better of the added affine functions and of the added bounds of each member by itself; no bound of a member is
    below the least coefficient of its row.
    """
    floor = rows.amin(-1)
    separate = hope = size = torch.zeros_like(floor)
    spread = floor.new_zeros(box.batch)
    sums = [LowerSum.zero(box, rows.shape[1]) for _ in SHARES]
    for member, weight in weighted(ensemble):
        seen, inside = as_seen(member, box)
        best, hoped = floor, floor
        if options.method != "partition":
            known = _member_margins(member, box, label[:, None], options)
            margin = known.margins
            if seen.plain and member.random:
                spread = torch.maximum(spread, margin.variance.amax((-1, -2)))
                if exponential:
                    tails = margin_tails(seen, inside, label, margin.mean[:, 0], margin.variance[:, 0])
                    known = replace(known, tails=torch.minimum(known.tails, tails[:, None]))
            best = torch.fmax(best, row_bound(rows, margin, label, known.tails[:, 0]))
            calm = Margins(margin.mean, torch.zeros_like(margin.variance))
            hoped = torch.fmax(best, row_bound(rows, calm, label))
            planes = (row_planes(rows, label, known, known.lines(box, share), box) for share in SHARES)
            sums = [total.plus(weight, part) for total, part in zip(sums, planes, strict=True)]
        if options.method in ("partition", "best"):
            _expect_known(seen, options)
            best = torch.fmax(best, partition.bound_rows(seen, inside, rows, cells=options.cells))
        separate, size = separate + weight * best, size + weight * best.abs()
        hope = hope + weight * torch.fmax(best, hoped)
    bound = separate - gamma(2 * len(ensemble.members) + 32) * size - TINY
    if options.method != "partition":
        bound = torch.fmax(bound, _least(sums, box))
    return bound, torch.fmax(hope, bound), spread


def _least(sums: list[LowerSum], box: Box) -> Tensor:
    """The least value of each function on the box, the best of all sums: (batch, rows)."""
    planes = [total.rounded() for total in sums]
    found = torch.stack([box.minimum(plane.matrix, plane.offset) for plane in planes])
    return found.nan_to_num(-torch.inf, neginf=-torch.inf).amax(0)


def _expect_known(network: BayesianNetwork, options: Options) -> None:
    if not network.plain:
        expect_moment(network, options)


def _member_margins(network: BayesianNetwork, box: Box, reference: Tensor, options: Options) -> MemberMargins:
    """Margins of the reference classes (batch, references) of a member, with planes in x."""
    seen, inside = as_seen(network, box)
    if seen.plain:
        plane, known = _plain_planes(seen, inside, reference, options.optimise)
        tails, gaussian = torch.ones_like(known.mean), False
    else:
        passed = hidden(seen, inside)
        one = torch.eye(seen.n_out, dtype=torch.float64, device=box.lower.device)
        rows = (one[reference][:, :, None] - one).reshape(box.batch, -1, seen.n_out)
        plane = mean_rows(passed, rows)
        known = _margins_of(plane, row_variance(passed, rows), inside, reference)
        tails, gaussian = gaussian_tails(passed, known), passed.last.signal.fixed
    if network.shift is not None:
        plane = moved_back(plane, network.shift, box, -1)
    return MemberMargins(plane, known, tails, random=network.random, gaussian=gaussian)


def _plain_planes(network: BayesianNetwork, box: Box, reference: Tensor, steps: int) -> tuple[Affine, Margins]:
    """Planes below the mean margins and bounds of their moments, of a network of Linear and Relu."""
    *below, output = network.seen
    rows = margin_rows(output, reference)
    if not below:
        blur = 2 * (apply_rows(rows.blur, box.magnitude) + rows.bias_blur)
        return Affine(rows.weight, rows.bias - blur), margins(network, box, reference)
    layers = hidden_layers(below, box, Parameters(), take_last_apart=network.random)
    choice = best_choice(rows.weight, rows.bias, layers, steps) if steps else None
    plane = mean_margins(rows, layers, choice)
    if network.random:
        return plane, margins_above(rows, layers, choice).reshape(*reference.shape, -1)
    return plane, _margins_of(plane, torch.zeros_like(plane.offset), box, reference)


def _margins_of(plane: Affine, variance: Tensor, box: Box, reference: Tensor) -> Margins:
    """Moments on the box from planes and variances (batch, references * classes); nothing where they are no numbers."""
    shape = (*reference.shape, -1)
    mean, variance = box.minimum(plane.matrix, plane.offset).reshape(shape), variance.reshape(shape)
    fine = mean.isfinite() & variance.isfinite()
    own = reference[..., None] == torch.arange(mean.shape[-1], device=reference.device)
    mean, variance = torch.where(fine, mean, -torch.inf), torch.where(fine, variance, torch.inf)
    zero = torch.zeros_like(mean)
    return Margins(torch.where(own, zero, mean), torch.where(own, zero, variance))
