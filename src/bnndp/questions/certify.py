"""Certification: bounds of the mean output or of the expected softmax, and the verdict on adversarial robustness.

The same questions are answered for one network and for an ensemble of them. The variance of the outputs, the
probability that they lie in an interval and the noise of a heteroscedastic head have bounds too (``quantities.py``).

The mean of a Bayesian network at x is the value function V_0(x) of a dynamic program over its layers (Adams et al.
2023, Theorem ``Theorem:ValueIteration``). A method gives affine functions below and above V_0 on a box; their smallest
and largest values bound the mean for every x of the box, over the whole posterior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate

import torch

from bnndp.errors import InputError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork, Ensemble, Posterior
from bnndp.options import Options
from bnndp.questions.bounds import Bounds
from bnndp.questions.interval_probability import Between, interval_probability
from bnndp.questions.mean import mean
from bnndp.questions.noise import noise
from bnndp.questions.softmax import expected_softmax
from bnndp.questions.variance import variance
from bnndp.tighten.cells import equal_cells
from bnndp.tighten.effort import last
from bnndp.tighten.pass_choice import plan

QUANTITIES = ("mean", "variance", "noise")


def certify(network: Posterior, box: Box, options: Options | None = None, *, quantity: str = "mean") -> Bounds:
    """Bound the mean output of a network for every x of each box, over the whole posterior.

    For a classifier the bounds are those of the expected softmax, one per class. When ``options.time_limit`` has
    passed, or on Ctrl-C after the first pass, the answer is the best found so far.

    Args:
        network: The network or ensemble.
        box: The regions of inputs.
        options: Method, effort and limits.
        quantity: What to bound. ``"mean"`` is the default. For a regression network, ``"variance"`` is Var f_j(x) of
            each output, and ``"noise"`` is E exp(f_j(x)), the variance of the data if output j is its logarithm (the
            head of a heteroscedastic network). The variance of a prediction is the variance of the mean output plus the
            noise. Noise is refused if anything but the last layer is random, as it may then be infinite.

    Returns:
        The bounds of each box and output.

    Examples:
        >>> from bnndp.layers import Linear
        >>> hidden = Linear(
        ...     torch.tensor([[1.0], [-1.0]]), torch.full((2, 1), 0.1), torch.zeros(2), torch.full((2,), 0.1)
        ... )
        >>> output = Linear(torch.tensor([[1.0, 1.0]]), torch.full((1, 2), 0.1), torch.zeros(1), torch.zeros(1))
        >>> bounds = certify(BayesianNetwork.from_linears([hidden, output]), Box([[0.9]], [[1.1]]))
        >>> round(bounds.lower.item(), 6), round(bounds.upper.item(), 6)
        (0.9, 1.1)
    """
    options = asked_options(options)
    return last(better_bounds(network, box, options, quantity=quantity), options.deadline)


def probability(network: Posterior, box: Box, a: float, b: float, options: Options | None = None) -> Bounds:
    """Bound P(a <= f_j(x) <= b) for each output of a regression network and every x of each box.

    The bounds follow from those of mean and variance, by inequalities of Cantelli's kind. If only the last layer is
    random, the outputs are Gaussian, and the bounds are exact over the ranges of mean and variance.

    Args:
        network: The network or ensemble.
        box: The regions of inputs.
        a: Lower end of the interval; may be ``-math.inf``.
        b: Upper end of the interval; may be ``math.inf``.
        options: Method, effort and limits.

    Returns:
        The bounds of each box and output.

    Examples:
        >>> from bnndp.layers import Linear
        >>> layer = Linear(torch.ones(1, 1), torch.zeros(1, 1), torch.zeros(1), torch.ones(1))
        >>> bounds = probability(BayesianNetwork((layer,)), Box([[0.0]], [[0.1]]), -1.0, 1.0)
        >>> round(bounds.lower.item(), 6), round(bounds.upper.item(), 6)
        (0.680274, 0.682689)
    """
    options = asked_options(options)
    return last(better_probabilities(network, box, options, Between(a, b)), options.deadline)


def better_bounds(network: Posterior, box: Box, options: Options, *, quantity: str = "mean") -> Iterator[Bounds]:
    """The bounds of :func:`certify` as they get better: one pass first, then whatever ``options`` ask for.

    Each answer is the intersection of what was found until then.
    """
    _expect_question(network, box)
    if quantity not in QUANTITIES:
        raise InputError(f"quantity must be one of {', '.join(QUANTITIES)}, got {quantity!r}.")
    stages = [stage.options for stage in plan(network, options.started())]
    if quantity != "mean":
        found = {"variance": variance, "noise": noise}[quantity]
        answers = _of_intervals(lambda cells: found(network, cells, stages[-1]), box, stages[-1])
    elif network.task == "classification":  # signs are for decisions: without them a stage may be that before it
        different = dict.fromkeys(replace(how, branch=1) for how in stages)
        answers = (answer for how in different for answer in _softmax(network, box, how))
    else:  # a refinement goes through all coarser ones
        answers = mean(network, box, stages[-1])
    return accumulate(answers, _met)


def better_probabilities(network: Posterior, box: Box, options: Options, between: Between) -> Iterator[Bounds]:
    """The bounds of :func:`probability` as they get better, as those of :func:`better_bounds` do."""
    _expect_question(network, box)
    how = plan(network, options.started())[-1].options
    return accumulate(_of_intervals(lambda cells: interval_probability(network, cells, how, between), box, how), _met)


@torch.no_grad()
def _of_intervals(bounds: Callable[[Box], Interval], box: Box, options: Options) -> Iterator[Bounds]:
    for ends in equal_cells(bounds, box, options):
        yield Bounds(ends.lower, ends.upper, None, ("moment",) * box.batch)


@torch.no_grad()
def _softmax(network: Posterior, box: Box, options: Options) -> Iterator[Bounds]:
    """Bounds of the expected softmax, with more and more cells."""
    methods: list[tuple[str, ...]] = []

    def bounds(cells: Box) -> Interval:
        interval, method = expected_softmax(network, cells, options)
        methods.append(method)
        return interval

    for ends in equal_cells(bounds, box, options):
        yield Bounds(ends.lower, ends.upper, None, methods[-1][: box.batch])


def _expect_question(network: object, box: object) -> None:
    module = isinstance(network, torch.nn.Module)
    advice = "make one of it with bnndp.from_module(module, task=...)" if module else "load one with bnndp.load(path)"
    expect("network", network, (BayesianNetwork, Ensemble), advice)
    expect("box", box, Box, "give bnndp.Box(lower, upper) or bnndp.Box.ball(x, eps)")
    if isinstance(box, Box) and box.batch == 0:
        raise InputError("there is no box to certify: the batch is empty.")


def asked_options(given: Options | None) -> Options:
    """The options of a question that is asked now, by default the usual ones."""
    options = given or Options()
    expect("options", options, Options, "give bnndp.Options(...)")
    return options.started()


def _met(best: Bounds, found: Bounds) -> Bounds:
    """The intersection, with the affine bounds of the latest."""
    return replace(found, lower=torch.maximum(best.lower, found.lower), upper=torch.minimum(best.upper, found.upper))


def expect(name: str, value: object, kind: type | tuple[type, ...], advice: str) -> None:
    """Refuse an argument of another kind, and say what to give."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(one.__name__ for one in kinds)
        raise InputError(f"{name} must be a {wanted}, got {type(value).__name__}; {advice}.")
