"""One pass of a method over a batch of boxes, cut into pieces that fit the memory."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from bnndp.bounds import Affine, AffineBounds, Interval
from bnndp.effort import Stage, stages
from bnndp.ensemble import Ensemble, Posterior
from bnndp.errors import InputError, UnsupportedLayerError
from bnndp.maths.rounding import TINY, gamma
from bnndp.mixture import mixed, weighted
from bnndp.moment import forward, optimise
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.partition import recursion
from bnndp.propagation import forward as propagation
from bnndp.regions import Box, apply_rows

__all__ = ["expect_moment", "moved_back", "one_pass", "piece_size", "plan"]

_FLOATS_A_ENTRY = (
    12  # float64 numbers alive for each entry of the largest matrix: an estimate, `make bench` measures the peak
)


def plan(network: Posterior, options: Options) -> tuple[Stage, ...]:
    """What to do one after the other; the partition method is left to networks that it knows."""
    members = network.members if isinstance(network, Ensemble) else (network,)
    depth = network.depth if all(member.plain for member in members) else 0
    return stages(options, network.task, network.n_in, depth)


def one_pass(network: Posterior, box: Box, options: Options) -> tuple[AffineBounds, Interval, tuple[str, ...]]:
    """Affine bounds, their interval (rounded outward) and the name of the method that gave it, for each box."""
    if box.n != network.n_in:
        raise InputError(
            f"the boxes have {box.n} inputs, the network takes {network.n_in}; check the order of the axes."
        )
    size = piece_size(network, options)
    if box.batch <= size:
        return _piece(network, box, options)
    # The bounds of many boxes may fill the memory by themselves: they are written once, where they stay.
    shape, empty = (box.batch, network.n_out), box.lower.new_empty
    low, high = (Affine(empty((*shape, box.n)), empty(shape)) for _ in range(2))
    interval = Interval(empty(shape), empty(shape))
    names: tuple[str, ...] = ()
    for start in range(0, box.batch, size):
        part = slice(start, min(start + size, box.batch))
        affine, ends, name = _piece(network, box[part], options)
        for whole, piece in ((low, affine.lower), (high, affine.upper)):
            whole.matrix[part], whole.offset[part] = piece.matrix, piece.offset
        interval.lower[part], interval.upper[part] = ends.lower, ends.upper
        names += name
    return AffineBounds(low, high, box), interval, names


def piece_size(network: Posterior, options: Options) -> int:
    """How many boxes at a time keep the intermediate tensors within ``options.memory`` bytes."""
    if isinstance(network, Ensemble):  # one member after the other
        return min(piece_size(member, options) for member in network.members)
    if not network.plain:  # it cuts the rows of its hidden layers by itself
        return max(1, options.memory // (8 * _FLOATS_A_ENTRY * 2 * network.n_out * network.widest))
    sizes = network.sizes
    size = 8 * _FLOATS_A_ENTRY * max(2 * rows * (n + sizes[0]) for n, rows in pairwise(sizes))
    size *= 2 if options.optimise else 1  # what the gradient keeps
    if options.method in ("partition", "best"):
        size = max(size, recursion.footprint(network, options.cells))
    return max(1, options.memory // size)


def _piece(network: Posterior, box: Box, options: Options) -> tuple[AffineBounds, Interval, tuple[str, ...]]:
    """One pass over what the first layer sees of the boxes; the affine bounds are carried back to x."""
    if isinstance(network, Ensemble):
        return _mixed(network, box, options)
    if network.shift is None:
        return _inner(network, box, options)
    affine, interval, names = _inner(network.unshifted(), box.moved(network.shift), options)
    low, high = (moved_back(side, network.shift, box, sign) for side, sign in ((affine.lower, -1), (affine.upper, 1)))
    return AffineBounds(low, high, box), interval, names


def _mixed(network: Ensemble, box: Box, options: Options) -> tuple[AffineBounds, Interval, tuple[str, ...]]:
    """The affine bounds of the members, added before they are minimised over the boxes."""
    names: list[tuple[str, ...]] = []

    def parts() -> Iterator[tuple[float, AffineBounds]]:
        for member, weight in weighted(network):
            affine, _, name = _piece(member, box, options)
            names.append(name)
            yield weight, affine

    affine, interval, _ = _named(mixed(parts(), box, network.n_out), "moment")
    each = (sorted({part for name in of_box for part in name.split("+")}) for of_box in zip(*names, strict=True))
    return affine, interval, tuple("+".join(parts) for parts in each)


def moved_back(found: Affine, shift: Tensor, box: Box, sign: int) -> Affine:
    """``A (x - shift) + b`` as a function of x, rounded outward: down with the sign -1, up with 1."""
    at_shift = apply_rows(found.matrix, shift.expand(box.batch, -1))
    size = apply_rows(found.matrix.abs(), shift.abs().expand(box.batch, -1)) + found.offset.abs()
    return Affine(found.matrix, found.offset - at_shift + sign * (gamma(2 * box.n + 8) * size + TINY))


def _inner(network: BayesianNetwork, box: Box, options: Options) -> tuple[AffineBounds, Interval, tuple[str, ...]]:
    if not network.plain:
        expect_moment(network, options)
        return _named(propagation.bound(network, box), "moment")
    if options.method == "partition":
        return _named(recursion.bound(network, box, mass=options.mass, cells=options.cells), "partition")
    found = optimise.bound(network, box, options.optimise) if options.optimise else forward.bound(network, box)
    moment = _named(found, "moment")
    if options.method != "best":
        return moment
    partition = _named(recursion.bound(network, box, mass=options.mass, cells=options.cells), "partition")
    return _intersection(moment, partition)


def expect_moment(network: BayesianNetwork, options: Options) -> None:
    """Refuse the methods that know dense ReLU networks with independent weights only."""
    if options.method in ("partition", "best"):
        raise UnsupportedLayerError(
            f"method {options.method!r} knows Linear and Relu layers only, got {network!r}; use method 'moment'."
        )


def _named(affine: AffineBounds, name: str) -> tuple[AffineBounds, Interval, tuple[str, ...]]:
    """With its interval; where float64 overflowed there is no bound, and the interval says so by its infinite end."""
    found = affine.interval()
    interval = Interval(
        torch.where(found.lower.isfinite(), found.lower, -torch.inf),
        torch.where(found.upper.isfinite(), found.upper, torch.inf),
    )
    return affine, interval, (name,) * affine.region.batch


def _intersection(
    a: tuple[AffineBounds, Interval, tuple[str, ...]], b: tuple[AffineBounds, Interval, tuple[str, ...]]
) -> tuple[AffineBounds, Interval, tuple[str, ...]]:
    """The tighter end of each output from either method, with its affine function."""
    low, high = b[1].lower > a[1].lower, b[1].upper < a[1].upper  # (batch, outputs): b is better
    affine = AffineBounds(_choose(low, b[0].lower, a[0].lower), _choose(high, b[0].upper, a[0].upper), a[0].region)
    interval = Interval(torch.maximum(a[1].lower, b[1].lower), torch.minimum(a[1].upper, b[1].upper))
    from_b = (low.sum(-1) + high.sum(-1)).tolist()
    ends = 2 * low.shape[-1]
    pairs = zip(from_b, a[2], b[2], strict=True)
    names = tuple(x if n == 0 else y if n == ends else f"{x}+{y}" for n, x, y in pairs)
    return affine, interval, names


def _choose(take: Tensor, a: Affine, b: Affine) -> Affine:
    return Affine(torch.where(take[..., None], a.matrix, b.matrix), torch.where(take, a.offset, b.offset))
