"""The one place that chooses a pass: which engine serves a network, by its layers and by the options.

Whatever is asked, a pass sees the normal form of the network (``network/normal_form.py``), with numbers within the
range of magnitudes that bounds are computed for.

Above it, questions speak to passes through their protocol (``engine/protocol.py``) and to all networks as mixtures of
members, of which a single network has one. New engines, methods and ways to tighten a pass are chosen here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from bnndp.engine.chunks import device_size, timed_chunks
from bnndp.engine.combined import Best, Shifted
from bnndp.engine.laws.stacked import stacked_layers
from bnndp.engine.mixture import Mixture, Part
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.propagation.forward import joint_numbers
from bnndp.engine.protocol import ClimbablePass, Pass
from bnndp.engine.tails.tailed import MOST_LAYERS, Tailed
from bnndp.errors import InputError, UnsupportedLayerError
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork, Posterior, expect_box, normal_form
from bnndp.options import Options
from bnndp.paper import recursion, softmax
from bnndp.paper.paper_pass import PaperPass
from bnndp.tighten.effort import Stage, stages
from bnndp.tighten.slopes import Sloped

_FLOATS_PER_ENTRY = 12  # float64 numbers alive for each entry of the largest matrix: `make bench` measures the peak
_CACHED = 2**27  # bytes by the same estimate: measured, the best for networks of 8 and of 784 inputs


def plan(network: Posterior, options: Options) -> tuple[Stage, ...]:
    """What to do one after the other; the partition method is left to networks that it knows."""
    network = normal_form(network)
    depth = network.depth if all(member.plain for member in network.examples) else 0
    return stages(options, network.task, network.n_in, depth)


def chunked(network: Posterior, box: Box, options: Options, rows: int) -> Iterator[tuple[slice, Mixture]]:
    """The passes over chunks of the boxes that fit the memory, if about ``rows`` rows are asked for.

    Nothing more comes when the deadline of the options has passed.
    """
    if box.n != network.n_in:
        raise InputError(
            f"the boxes have {box.n} inputs, the network takes {network.n_in}; check the order of the axes."
        )
    network = normal_form(network)
    expect_box(box)
    memory = options.memory if "memory" in options.own else device_size(options.memory, box.lower.device)
    size = max(1, memory // max(_footprint(member, options, rows) for member in network.examples))
    for part in timed_chunks(box.batch, size, box.lower.device, options.deadline):
        yield part, _mixture(network, box[part], options, size, memory)


def pass_over(network: BayesianNetwork, box: Box, options: Options) -> Pass:
    """The pass of one network: the functions of x that it gives are those of the user's x, before any shift."""
    if network.shift is None:
        return _unshifted(network, box, options)
    inner = _unshifted(network.unshifted(), box.moved(network.shift), options)
    return Shifted(inner, network.shift, box)


def _unshifted(network: BayesianNetwork, box: Box, options: Options) -> Pass:
    if not network.plain:
        if options.method in ("partition", "best"):
            raise UnsupportedLayerError(
                f"method {options.method!r} knows Linear and Relu layers only, got {network!r}; use method 'moment'."
            )
        return _sloped(MomentPass.of(network, box), options)
    partition = PaperPass(network, box, options.mass, options.cells)
    if options.method == "partition":
        return partition
    moment = _moment(network, box, options)
    return Best(moment, partition) if options.method == "best" else moment


def _moment(network: BayesianNetwork, box: Box, options: Options) -> Pass:
    """The pass by moments of a network of Linear and Relu."""
    linears, bounds = network.linears, _sloped(MomentPass.of(network, box), options)
    return Tailed(bounds, linears) if network.random and 1 < len(linears) <= MOST_LAYERS else bounds


def _sloped(bounds: ClimbablePass, options: Options) -> Pass:
    return Sloped(bounds, options.optimise, options.deadline) if options.optimise else bounds


def _mixture(network: Posterior, box: Box, options: Options, size: int, memory: int) -> Mixture:
    """The passes over all members on boxes, ``size`` of which fit the memory.

    Where boxes are fewer, several members that are alike go together: on a CPU no more than its caches hold, more or
    less, as larger batches are slower (docs/layers.md). The partition method takes them one by one.
    """
    weights = network.probabilities.to(box.lower.device)
    positive = (weights > 0).tolist()
    may_stack = options.method in ("auto", "moment")
    share = min(1.0, _CACHED / memory) if box.lower.device.type == "cpu" else 1.0

    def passes(region: Box, stack: bool) -> Iterator[Part]:
        together = max(1, int(size * share) // max(1, region.batch))
        for group in network.alike:
            left = [index for index in group if positive[index]]
            stacked = stack and may_stack and len(group) > 1
            step = together if stacked else 1
            for chosen in (left[start : start + step] for start in range(0, len(left), step)):
                members = [network.members[index] for index in chosen]
                bounds = _stacked(members, region, options) if stacked else pass_over(members[0], region, options)
                yield Part(weights[chosen], bounds)

    return Mixture(box, network.n_out, sum(positive), size, passes)


def _stacked(members: list[BayesianNetwork], box: Box, options: Options) -> Pass:
    """One pass over several dense members without variance that differ in their weights only."""
    again = torch.arange(box.batch, device=box.lower.device).repeat(len(members))
    region, first = box if len(members) == 1 else box[again], members[0]
    shifts = [member.shift for member in members if member.shift is not None]
    shift = torch.stack(shifts).repeat_interleave(box.batch, 0) if shifts else None
    inside = region if shift is None else region.moved(shift)
    layers = stacked_layers([member.layers for member in members], box.batch)
    found = _sloped(MomentPass(layers, first.shapes, inside), options)
    return found if shift is None else Shifted(found, shift, region)


def _footprint(network: BayesianNetwork, options: Options, rows: int) -> int:
    """Estimated bytes of the intermediate tensors of one box, if ``rows`` rows are asked for.

    Rows of the hidden layers are carried to the inputs a few at a time (``propagation/mean_range.py``); those that are
    asked all at once, as they are the answer.
    """
    entry = 8 * _FLOATS_PER_ENTRY
    if not network.plain:
        return entry * (rows * network.widest + 2 * joint_numbers(network.layers, network.shapes))
    sizes = network.sizes
    widest = max(sizes[1:-1], default=1)
    hidden = max((2 * n_in * n_out for n_in, n_out in pairwise(sizes[1:-1])), default=widest)
    climbs = options.optimise or options.branch > 1  # the gradient keeps what it needs
    size = entry * (max(hidden, rows * (sizes[0] + widest) * (4 if climbs else 1)) + 2 * sizes[0])
    if options.method in ("partition", "best"):
        size = max(size, recursion.footprint(network, options.cells), softmax.footprint(network, options.cells))
    return size
