r"""Are the outputs of a network safe on all inputs of some boxes? The question of VNN-LIB files, for the mean output.

Unsafe are the x with :math:`y=\mathbb Ef(x)` in a union of polyhedra (``geometry/unsafe_set.py``); for a network
without variance y is its output. The answer is CERTIFIED if no x of any box is unsafe, by bounds; FALSIFIED if one is,
for which bounds at that x alone are the proof; UNDECIDED otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.attack.draws import Drawn, evaluate
from bnndp.attack.violation import drawn_mean, search_unsafe
from bnndp.deadline import NEVER, Deadline
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.geometry.unsafe_set import Region, UnsafeSet
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.questions.verdict import Verdict, judge
from bnndp.tighten.input_splitting import Cells, bounded
from bnndp.tighten.safety import unproved

__all__ = ["Safety", "verify"]

_STARTS = 64  # random ones of an attack, beside the centre
_SHARE = 0.2  # of the time that is left, for an attack
_MANY = 4096  # of one on many cells
_AGAIN = 16  # times as many cells as at the attack before
_LAST = 8  # times as many where nothing was proved


@dataclass(frozen=True, slots=True)
class Safety:
    """Whether any input of some regions is unsafe, with the evidence.

    Attributes:
        verdict: CERTIFIED: none is; FALSIFIED: ``witness`` is; UNDECIDED: neither is proved.
        witness: An unsafe input, ``(n,)``; None if none was found.
        output: The mean output there, as computed, ``(outputs,)``.
        cells: Number of cells whose bounds were computed.
        left: Number of cells that are not proved.
        late: Whether the time was over before the end.
    """

    verdict: Verdict
    witness: Tensor | None = None  # (n,)
    output: Tensor | None = None  # (outputs,)
    cells: int = 0
    left: int = 0
    late: bool = False


@torch.no_grad()
def verify(network: Posterior, regions: Sequence[Region], options: Options | None = None, *, seed: int = 0) -> Safety:
    """Decide whether the mean output of a network is safe on all inputs of the regions.

    Args:
        network: The network or ensemble.
        regions: Boxes of inputs, and which outputs are unsafe on them.
        options: Effort and limits. Without a time limit boxes of few inputs are split until everything is decided.
        seed: Seed of the attack.

    Returns:
        The verdict and its evidence.

    Examples:
        >>> import bnndp
        >>> network = bnndp.BayesianNetwork((bnndp.layers.Linear.fixed(torch.tensor([[1.0, 1.0]])),))
        >>> sum_at_most_one = UnsafeSet([[-1.0]], [-1.0], [0])  # unsafe: -y <= -1
        >>> verify(network, [Region(Box([[0.0, 0.0]], [[0.4, 0.5]]), sum_at_most_one)]).verdict.value
        'certified'
        >>> verify(network, [Region(Box([[0.0, 0.0]], [[0.6, 0.5]]), sum_at_most_one)]).verdict.value
        'falsified'
    """
    options = (options or Options()).started()
    for region in regions:
        _expect_fitting(network, region)
    drawn, generator = drawn_mean(network, seed), torch.Generator().manual_seed(seed)
    for region in regions:
        found = _attacked(network, drawn, region, options, _starts(region, _STARTS, generator))
        if found is not None:
            return found
    cells, left, proved = 0, 0, []
    for region in regions:
        last, again = None, _AGAIN
        for last in unproved(network, region.box, region.unsafe, options):
            cells += last.bounded
            found = _confirmed(network, region, _likeliest(drawn, region, last.new.lowest), drawn, options)
            if found is None and last.left.count > again:
                again *= _AGAIN
                found = _attacked(network, drawn, region, options, _starts(region, _MANY, generator, last.left))
            if found is not None:
                return replace(found, cells=cells, left=left + last.left.count)
        left += 0 if last is None else last.left.count
        proved.append(last is not None and last.left.count == 0)
    safe = bool(proved) and all(proved)
    for region in () if safe else regions:
        found = _attacked(network, drawn, region, options, _starts(region, _LAST * _STARTS, generator))
        if found is not None:
            return replace(found, cells=cells, left=left)
    return Safety(judge(proved=safe, broken=False), None, None, cells, left, options.deadline.passed)


def _expect_fitting(network: Posterior, region: Region) -> None:
    """Refuse regions of another network."""
    wanted, found = (network.n_in, network.n_out), (region.box.n, region.unsafe.rows.shape[1])
    if found != wanted:
        raise InputError(
            f"the property has {found[0]} inputs and {found[1]} outputs, the network {wanted[0]} and {wanted[1]}."
        )


def _attacked(
    network: Posterior, drawn: Drawn, region: Region, options: Options, starts: Tensor
) -> Safety | None:  # starts (points, n)
    """What an attack from these points finds."""
    if options.deadline.passed:
        return None
    end = options.deadline.at
    share = Deadline.after(None if end is None else _SHARE * max(0.0, end - time.monotonic()))
    x, excess = search_unsafe(drawn, region.within, region.unsafe, starts, share)
    worth = bool(excess <= 0) or drawn.draws > 1  # a mean of draws is an estimate: bounds decide
    return _confirmed(network, region, x if worth else None, drawn, options)


def _starts(region: Region, count: int, generator: torch.Generator, cells: Cells | None = None) -> Tensor:
    """Points of a region (points, n): the centre, random ones and corners, and the likeliest of some cells."""
    box = region.within
    share = torch.rand(count, box.n, generator=generator, dtype=torch.float64).to(box.lower.device)
    share[::2] = share[::2].round()
    points = torch.cat([box.centre, box.lower + share * (box.upper - box.lower)])
    if cells is not None:
        at = cells.lead.topk(min(count, cells.count), largest=False).indices
        points = torch.cat([points, cells.lowest[at]])
    return points.clamp(box.lower, box.upper)


def _likeliest(drawn: Drawn, region: Region, x: Tensor) -> Tensor | None:  # x (points, n)
    """The point that is deepest in the unsafe set, if one may be in it."""
    if not len(x):
        return None
    x = x.clamp(region.within.lower, region.within.upper)
    excess = region.unsafe.excess(evaluate(drawn, x).mean(0), x).nan_to_num(torch.inf).amin(-1)
    least = excess.min(0)
    return x[least.indices] if bool(least.values <= 0) or drawn.draws > 1 else None


def _confirmed(network: Posterior, region: Region, x: Tensor | None, drawn: Drawn, options: Options) -> Safety | None:
    """The proof that an input (n,) is unsafe: bounds at this input alone. A float32 beside it is tried first."""
    if x is None:
        return None
    for point in (_float32(x, region.within), x):
        if _unsafe_at(network, region, point, options):
            output = evaluate(drawn, point[None]).mean(0)[0]
            return Safety(judge(proved=False, broken=True), point, output)
    return None


def _float32(x: Tensor, box: Box) -> Tensor:  # (n,) -> (n,)
    """A float32 beside every input, in the box where that holds one."""
    near = x.float()
    up, down = (torch.nextafter(near, torch.full_like(near, way)).double() for way in (torch.inf, -torch.inf))
    found, (lower, upper) = near.double(), (box.lower[0], box.upper[0])
    found = torch.where(found < lower, up, torch.where(found > upper, down, found))
    return torch.where((found >= lower) & (found <= upper), found, x)


def _unsafe_at(network: Posterior, region: Region, x: Tensor, options: Options) -> bool:
    """Whether bounds of the rows at x (n,) prove that all those of one polyhedron are below their bounds.

    An input that is fixed at a number that is no float64 is bounded between both its neighbours.
    """
    unsafe, box = region.unsafe, region.box
    fixed = torch.nextafter(box.lower, torch.full_like(box.lower, torch.inf)) >= box.upper
    point = Box(torch.where(fixed, box.lower[0], x), torch.where(fixed, box.upper[0], x))
    turned = UnsafeSet(
        -unsafe.rows, -unsafe.certain, unsafe.conjunct, None if unsafe.inputs is None else -unsafe.inputs
    )
    above = bounded(network, point, turned, replace(options, deadline=NEVER))[
        0
    ].least  # (1, rows): -row is at least this
    below = (above > -unsafe.certain).double()  # NaN is not above
    return bool((-unsafe.largest(-below) > 0).any())
