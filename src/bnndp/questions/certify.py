"""Certification: bounds of the mean output or of the expected softmax, and the verdict on adversarial robustness.

The same questions are answered for one network and for an ensemble of them. The variance of the outputs, the
probability that they lie in an interval and the noise of a heteroscedastic head have bounds too (``quantities.py``).

The mean of a Bayesian network at x is the value function V_0(x) of a dynamic program over its layers (Adams et al.
2023, Theorem ``Theorem:ValueIteration``). A method gives affine functions below and above V_0 on a box; their smallest
and largest values bound the mean for every x of the box, over the whole posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from bnndp.attack.inside import inside_range
from bnndp.engine.methods import one_pass, plan
from bnndp.errors import InputError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork, Ensemble, Posterior
from bnndp.options import Options
from bnndp.questions.bounds import Bounds
from bnndp.questions.quantities import Between
from bnndp.questions.quantities import noise as noise_pass
from bnndp.questions.quantities import probability as probability_pass
from bnndp.questions.quantities import variance as variance_pass
from bnndp.questions.softmax import expected_softmax
from bnndp.questions.verdict import Verdict, judge
from bnndp.tighten.effort import last
from bnndp.tighten.refinement import refine

__all__ = [
    "QUANTITIES", "Robustness", "Verdict", "adversarial_robustness", "better_bounds", "better_probabilities", "certify",
    "probability",
]  # fmt: skip

QUANTITIES = ("mean", "variance", "noise")


def certify(network: Posterior, box: Box, options: Options | None = None, *, quantity: str = "mean") -> Bounds:
    """Bounds of the mean output of ``network`` for every x of each box, over the whole unbounded posterior.

    For a classifier the bounds are those of its expected softmax, one for each class. When ``options.time_limit`` is
    over, or on Ctrl-C, what was reached after the first pass is the answer.

    Of a regression network there are bounds of other things by ``quantity``: ``"variance"``, Var f_j(x) of each output;
    ``"noise"``, E exp(f_j(x)), which is the variance of the data where output j is its logarithm (the head of a
    heteroscedastic network; of its other outputs it means nothing). The variance of a prediction is that of the mean
    output plus the noise. Noise is refused where it is not known to be finite: if more is random than the last layer.

    >>> from bnndp.layers import Linear
    >>> hidden = Linear(torch.tensor([[1.0], [-1.0]]), torch.full((2, 1), 0.1), torch.zeros(2), torch.full((2,), 0.1))
    >>> output = Linear(torch.tensor([[1.0, 1.0]]), torch.full((1, 2), 0.1), torch.zeros(1), torch.zeros(1))
    >>> bounds = certify(BayesianNetwork.from_linears([hidden, output]), Box([[0.9]], [[1.1]]))
    >>> round(bounds.lower.item(), 6), round(bounds.upper.item(), 6)
    (0.9, 1.1)
    """
    options = _options(options)
    return last(better_bounds(network, box, options, quantity=quantity), options.time_limit)


def probability(network: Posterior, box: Box, a: float, b: float, options: Options | None = None) -> Bounds:
    """Bounds of P(a <= f_j(x) <= b) for each output of a regression network and every x of each box.

    From the bounds of mean and variance alone, by Cantelli's inequality and its kin; exact over their ranges where only
    the last layer is random, for then the outputs are Gaussian. An end may be infinite.

    >>> from bnndp.layers import Linear
    >>> layer = Linear(torch.ones(1, 1), torch.zeros(1, 1), torch.zeros(1), torch.ones(1))
    >>> bounds = probability(BayesianNetwork((layer,)), Box([[0.0]], [[0.1]]), -1.0, 1.0)
    >>> round(bounds.lower.item(), 6), round(bounds.upper.item(), 6)
    (0.680274, 0.682689)
    """
    options = _options(options)
    return last(better_probabilities(network, box, options, Between(a, b)), options.time_limit)


@torch.no_grad()
def better_bounds(network: Posterior, box: Box, options: Options, *, quantity: str = "mean") -> Iterator[Bounds]:
    """The bounds of :func:`certify` as they get better: one pass first, then whatever ``options`` ask for.

    Each answer is the intersection of what was found until then. The time limit is for the caller to keep.
    """
    _expect_question(network, box)
    if quantity not in QUANTITIES:
        raise InputError(f"quantity must be one of {', '.join(QUANTITIES)}, got {quantity!r}.")
    stages = [stage.options for stage in plan(network, options)]
    if quantity != "mean":
        found = {"variance": variance_pass, "noise": noise_pass}[quantity]
        yield from _running(_by_cells(lambda cells, how: _alone(found(network, cells, how)), box, stages[-1]))
    elif network.task == "classification":  # signs are for decisions: without them a stage may be that before it
        different = dict.fromkeys(replace(how, branch=1) for how in stages)
        yield from _running(
            answer for how in different for answer in _by_cells(partial(expected_softmax, network), box, how)
        )
    else:  # a refinement goes through all coarser ones
        yield from _running(_refined(network, box, stages[-1]))


@torch.no_grad()
def better_probabilities(network: Posterior, box: Box, options: Options, between: Between) -> Iterator[Bounds]:
    """The bounds of :func:`probability` as they get better, as those of :func:`better_bounds` do."""
    _expect_question(network, box)
    how = plan(network, options)[-1].options
    yield from _running(_by_cells(lambda cells, how: _alone(probability_pass(network, cells, how, between)), box, how))


def _expect_question(network: object, box: object) -> None:
    module = isinstance(network, torch.nn.Module)
    advice = "make one of it with bnndp.from_module(module)" if module else "load one with bnndp.load(path)"
    _expect("network", network, (BayesianNetwork, Ensemble), advice)
    _expect("box", box, Box, "give bnndp.Box(lower, upper) or bnndp.Box.ball(x, eps)")
    if isinstance(box, Box) and box.batch == 0:
        raise InputError("there is no box to certify: the batch is empty.")


def _options(given: Options | None) -> Options:
    options = given or Options()
    _expect("options", options, Options, "give bnndp.Options(...)")
    return options


def _alone(interval: Interval) -> tuple[Interval, tuple[str, ...]]:
    return interval, ("moment",) * interval.lower.shape[0]


def _running(answers: Iterator[Bounds]) -> Iterator[Bounds]:
    """The intersection of all answers so far, after each of them, with the affine bounds of the latest."""
    best = next(answers)
    yield best
    for found in answers:
        lower, upper = torch.maximum(best.lower, found.lower), torch.minimum(best.upper, found.upper)
        best = replace(found, lower=lower, upper=upper)
        yield best


def _refined(network: Posterior, box: Box, options: Options) -> Iterator[Bounds]:
    """Bounds of the mean output: of one pass, then after every round of splitting."""
    affine, interval, method = one_pass(network, box, options)
    yield Bounds(interval.lower, interval.upper, affine, method)
    if options.refine == 1:
        return
    for cells in refine(network, affine, interval, options):
        ends = _union(cells.interval, cells.owner, box.batch)
        yield Bounds(ends.lower, ends.upper, affine, method, cells)


_Pass = Callable[[Box, Options], tuple[Interval, tuple[str, ...]]]


def _by_cells(one: _Pass, box: Box, options: Options) -> Iterator[Bounds]:
    """Bounds of one pass, then of the union of equal cells, about four times as many each time."""
    cells, owner = box, torch.arange(box.batch, device=box.lower.device)
    while True:
        interval, method = one(cells, options)
        ends = _union(interval, owner, box.batch)
        yield Bounds(ends.lower, ends.upper, None, method[: box.batch])
        before = cells.batch
        for _ in range(2):
            if 2 * cells.batch <= options.refine * box.batch and bool((cells.upper > cells.lower).any()):
                cells, owner = cells.split((cells.upper - cells.lower).argmax(-1)), owner.repeat(2)
        if cells.batch == before:
            return


def _union(interval: Interval, owner: Tensor, boxes: int) -> Interval:
    """The ends (boxes, outputs) of the union of the intervals of each box's cells."""
    index = owner[:, None].expand_as(interval.lower)
    start = interval.lower.new_zeros(boxes, interval.lower.shape[1])
    return Interval(
        start.scatter_reduce(0, index, interval.lower, "amin", include_self=False),
        start.scatter_reduce(0, index, interval.upper, "amax", include_self=False),
    )


def _expect(name: str, value: object, kind: type | tuple[type, ...], advice: str) -> None:
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(one.__name__ for one in kinds)
        raise InputError(f"{name} must be a {wanted}, got {type(value).__name__}; {advice}.")


@dataclass(frozen=True, slots=True)
class Robustness:
    """Answer to Definition ``def:AdversarialRObustness`` for a batch of points and regions.

    ``change`` is a proved upper bound of the change of the mean output within each region, ``found`` a proved lower
    bound of the largest change, attained at ``witness``. What is certified is not attacked: there ``found`` is 0 and
    ``witness`` the point itself.
    """

    verdict: tuple[Verdict, ...]
    change: Tensor  # (batch,): the mean output changes by at most this within the region
    found: Tensor  # (batch,): it provably changes by at least this between x* and ``witness``; 0 where it was certified
    witness: Tensor  # (batch, n): the input of the region at which that change was found, x* itself where certified


def adversarial_robustness(
    network: Posterior,
    x: Tensor,  # (n,) or (batch, n): the points x*
    box: Box,
    gamma: float,
    *,
    norm: float = math.inf,
    options: Options | None = None,
) -> Robustness:
    """Whether ``|| y(x') - y(x) ||_norm <= gamma`` for the mean output y and every x' of the region around each x.

    CERTIFIED and FALSIFIED are both proved: the first by the bounds on the region, the second by the bounds at the
    point and at an input found by attack. Only what is not certified is attacked.
    """
    if not gamma >= 0:
        raise InputError(f"gamma must be >= 0, got {gamma!r}.")
    if not norm >= 1:
        raise InputError(f"norm must be >= 1, got {norm!r}.")
    options = _options(options)
    _expect("box", box, Box, "give bnndp.Box.ball(x, eps)")
    if network.task != "regression":
        raise InputError(f"gamma bounds the change of a regression network; for {network.task} use robust_decision.")
    point = Box(x, x)
    if point.lower.shape != box.lower.shape:
        raise InputError(
            f"x has shape {tuple(point.lower.shape)}, the regions {tuple(box.lower.shape)}; give one point a region."
        )
    if not bool(box.contains(point.lower).all()):
        raise InputError("each point x must lie in its region; give the region around it.")
    at, region = certify(network, point, options), certify(network, box, options)
    largest = torch.maximum(region.upper - at.lower, at.upper - region.lower).clamp_min(0)
    change = _norm(largest, norm) * (1 + 1e-12)
    found, witness = torch.zeros_like(change), point.lower.clone()
    left = ~(change <= gamma)
    if bool(left.any()):
        found[left], witness[left] = _attack(
            network, box[left], Interval(at.lower[left], at.upper[left]), norm, options
        )
    pairs = zip(change.tolist(), found.tolist(), strict=True)
    verdict = tuple(judge(proved=c <= gamma, broken=f > gamma) for c, f in pairs)
    return Robustness(verdict, change, found, witness)


def _attack(network: Posterior, box: Box, at: Interval, norm: float, options: Options) -> tuple[Tensor, Tensor]:
    """The largest change from the point with bounds ``at`` that can be proved, and the input where it is: per box."""
    inside = inside_range(network, box)
    candidates = torch.cat([inside.x_lower, inside.x_upper], dim=1)  # (batch, 2 outputs, n)
    batch, several, n = candidates.shape
    there = certify(network, Box(candidates.reshape(-1, n), candidates.reshape(-1, n)), options)
    low, high = (end.reshape(batch, several, -1) for end in (there.lower, there.upper))
    smallest = torch.maximum(low - at.upper[:, None], at.lower[:, None] - high).clamp_min(0)
    found, index = (_norm(smallest, norm) * (1 - 1e-12)).max(dim=1)
    return found, candidates[torch.arange(batch), index]


def _norm(values: Tensor, norm: float) -> Tensor:
    return torch.linalg.vector_norm(values, ord=norm, dim=-1)
