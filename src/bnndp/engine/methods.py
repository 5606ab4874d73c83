"""One pass of a method over a batch of boxes, cut into pieces that fit the memory."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from bnndp.engine import certain
from bnndp.engine.chunks import fitted, pieces
from bnndp.engine.dense import forward, optimise
from bnndp.engine.general import forward as propagation
from bnndp.engine.general.optimise import best_bounds
from bnndp.engine.members import Part, parts
from bnndp.engine.mixture import mixed
from bnndp.errors import InputError, UnsupportedLayerError
from bnndp.geometry.bounds import Affine, AffineBounds, Interval
from bnndp.geometry.box import Box, apply_rows
from bnndp.maths.rounding import TINY, gamma
from bnndp.network import BayesianNetwork, Ensemble, Posterior, dense_structure
from bnndp.options import Options
from bnndp.paper import recursion
from bnndp.tighten.effort import Stage, stages

__all__ = ["expect_moment", "members_together", "moved_back", "one_pass", "part_bounds", "piece_size", "plan"]

_FLOATS_A_ENTRY = (
    12  # float64 numbers alive for each entry of the largest matrix: an estimate, `make bench` measures the peak
)

_CACHED = 2**27  # bytes by the same estimate: measured, the best for networks of 8 and of 784 inputs


def plan(network: Posterior, options: Options) -> tuple[Stage, ...]:
    """What to do one after the other; the partition method is left to networks that it knows."""
    kinds = network.examples if isinstance(network, Ensemble) else (network,)
    depth = network.depth if all(member.plain for member in kinds) else 0
    return stages(options, network.task, network.n_in, depth)


def one_pass(network: Posterior, box: Box, options: Options) -> tuple[AffineBounds, Interval, tuple[str, ...]]:
    """Affine bounds, their interval (rounded outward) and the name of the method that gave it, for each box."""
    if box.n != network.n_in:
        raise InputError(
            f"the boxes have {box.n} inputs, the network takes {network.n_in}; check the order of the axes."
        )
    options = fitted(options, box.lower.device)
    size = piece_size(network, options)
    cuts = pieces(box.batch, size, box.lower.device)
    if len(cuts) <= 1:
        return _piece(network, box, options, size)
    # The bounds of many boxes may fill the memory by themselves: they are written once, where they stay.
    shape, empty = (box.batch, network.n_out), box.lower.new_empty
    low, high = (Affine(empty((*shape, box.n)), empty(shape)) for _ in range(2))
    interval = Interval(empty(shape), empty(shape))
    names: tuple[str, ...] = ()
    for part in cuts:
        affine, ends, name = _piece(network, box[part], options, size)
        for whole, piece in ((low, affine.lower), (high, affine.upper)):
            whole.matrix[part], whole.offset[part] = piece.matrix, piece.offset
        interval.lower[part], interval.upper[part] = ends.lower, ends.upper
        names += name
    return AffineBounds(low, high, box), interval, names


def piece_size(network: Posterior, options: Options) -> int:
    """How many boxes at a time keep the intermediate tensors within ``options.memory`` bytes."""
    if isinstance(network, Ensemble):  # of one member; where boxes are fewer, several members go together
        return min(piece_size(member, options) for member in network.examples)
    if not network.plain and dense_structure(network) is None:  # it cuts the rows of its hidden layers by itself
        return max(1, options.memory // (8 * _FLOATS_A_ENTRY * 2 * network.n_out * network.widest))
    sizes = network.sizes
    # Rows of the hidden layers are carried to the inputs a few boxes at a time (engine/dense/backward.py), those of the last
    # all at once: they are the answer.
    size = 8 * _FLOATS_A_ENTRY * max(2 * rows * n for n, rows in pairwise(sizes[1:])) if network.depth else 0
    size = max(size, 8 * _FLOATS_A_ENTRY * 2 * network.n_out * (sizes[0] + sizes[-2])) + 8 * _FLOATS_A_ENTRY * sizes[0]
    size *= 2 if options.optimise else 1  # what the gradient keeps
    if options.method in ("partition", "best"):
        size = max(size, recursion.footprint(network, options.cells))
    return max(1, options.memory // size)


def members_together(box: Box, size: int, options: Options) -> int:
    """How many members go through a pass together where ``size`` boxes of one member fit into the memory.

    On a CPU no more than its caches hold, more or less: larger batches are slower (docs/layers.md, section 9).
    """
    share = min(1.0, _CACHED / options.memory) if box.lower.device.type == "cpu" else 1.0
    return max(1, int(size * share) // box.batch)


def _piece(network: Posterior, box: Box, options: Options, size: int) -> tuple[AffineBounds, Interval, tuple[str, ...]]:
    """One pass over boxes that fit the memory with room for ``size`` of them."""
    return _mixed(network, box, options, size) if isinstance(network, Ensemble) else _single(network, box, options)


def _single(network: BayesianNetwork, box: Box, options: Options) -> tuple[AffineBounds, Interval, tuple[str, ...]]:
    """One pass over what the first layer sees of the boxes; the affine bounds are carried back to x."""
    if network.shift is None:
        return _inner(network, box, options)
    affine, interval, names = _inner(network.unshifted(), box.moved(network.shift), options)
    return _in_x(affine, network.shift, box), interval, names


def _in_x(found: AffineBounds, shift: Tensor, box: Box) -> AffineBounds:
    """Bounds on the boxes of ``x - shift`` as those of x."""
    low, high = (moved_back(side, shift, box, sign) for side, sign in ((found.lower, -1), (found.upper, 1)))
    return AffineBounds(low, high, box)


def _mixed(network: Ensemble, box: Box, options: Options, size: int) -> tuple[AffineBounds, Interval, tuple[str, ...]]:
    """The affine bounds of the members, added before they are minimised over the boxes."""
    names: list[tuple[str, ...]] = []

    def found() -> Iterator[tuple[Tensor, AffineBounds]]:
        for part in parts(network, members_together(box, size, options), stacked=options.method in ("auto", "moment")):
            affine, name = part_bounds(part, box, options)
            names.append(name)
            yield part.weights, affine

    affine, interval, _ = _named(mixed(found(), box, network.n_out), "moment")
    each = (sorted({part for name in of_box for part in name.split("+")}) for of_box in zip(*names, strict=True))
    return affine, interval, tuple("+".join(parts) for parts in each)


def part_bounds(part: Part, box: Box, options: Options) -> tuple[AffineBounds, tuple[str, ...]]:
    """Affine bounds of each member of a part, on the boxes repeated for each, and the methods for the boxes."""
    if not part.stacked:
        affine, _, names = _single(part.members[0], box, options)
        return affine, names
    every, shift = part.repeated(box), part.shift(box.batch)
    found = best_bounds(part.hidden(every if shift is None else every.moved(shift)), options.optimise)
    return found if shift is None else _in_x(found, shift, every), ("moment",) * box.batch


def moved_back(found: Affine, shift: Tensor, box: Box, sign: int) -> Affine:  # shift (n,) or (batch, n)
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
    moment = _moment(network, box, options.optimise)
    if options.method != "best":
        return moment
    partition = _named(recursion.bound(network, box, mass=options.mass, cells=options.cells), "partition")
    return _intersection(moment, partition)


def _moment(network: BayesianNetwork, box: Box, steps: int) -> tuple[AffineBounds, Interval, tuple[str, ...]]:
    """By moments, with planes optimised by ``steps`` steps; without variance there are no moments to take."""
    if not certain.certain(network):
        return _named(optimise.bound(network, box, steps) if steps else forward.bound(network, box), "moment")
    found = _named(certain.bound(network, box), "moment")
    if not steps:
        return found
    affine, interval, _ = _intersection(found, _named(optimise.bound(network, box, steps), "moment"))
    return affine, interval, found[2]


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
