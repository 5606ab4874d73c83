"""Adversarial robustness of regression: how far the mean output may change within a region around a point."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.attack.inside import inside_range
from bnndp.errors import InputError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.questions.certify import asked_options, certify, expect
from bnndp.questions.verdict import Verdict, judge


@dataclass(frozen=True, slots=True)
class Robustness:
    """Verdict on the change of the mean output in each region (Definition ``def:AdversarialRObustness`` of the paper).

    Certified regions are not attacked: there ``found`` is 0 and ``witness`` is the point itself.

    Attributes:
        verdict: The verdict on each region.
        change: A proved upper bound of the change within the region, ``(batch,)``.
        found: A proved lower bound of the change between the point and ``witness``, ``(batch,)``.
        witness: The input of the region at which that change was found, ``(batch, n)``.

    Examples:
        >>> from bnndp.layers import Linear
        >>> from bnndp.network import BayesianNetwork
        >>> network = BayesianNetwork((Linear.fixed([[2.0]]),))
        >>> found = adversarial_robustness(network, [[0.5]], Box([[0.4]], [[0.6]]), gamma=0.25)
        >>> round(found.change.item(), 6)
        0.2
    """

    verdict: tuple[Verdict, ...]
    change: Tensor  # (batch,)
    found: Tensor  # (batch,)
    witness: Tensor  # (batch, n)


def adversarial_robustness(
    network: Posterior,
    x: Tensor,  # (n,) or (batch, n): the points x*
    box: Box,
    gamma: float,
    *,
    norm: float = math.inf,
    options: Options | None = None,
) -> Robustness:
    """Decide whether the mean output changes by at most ``gamma`` within each region around x.

    The claim is ``||y(x') - y(x)|| <= gamma`` for the mean output y and every x' of the region. CERTIFIED and FALSIFIED
    are both proved: the first by the bounds on the region, the second by the bounds at the point and at an input found
    by an attack. Only regions that are not certified are attacked.

    Args:
        network: A regression network or ensemble.
        x: The points, ``(n,)`` or ``(batch, n)``.
        box: One region around each point.
        gamma: The largest change allowed.
        norm: Order of the norm of the outputs, at least 1.
        options: Method, effort and limits.

    Returns:
        A verdict on each region, with bounds of the change.

    Examples:
        >>> from bnndp.layers import Linear
        >>> from bnndp.network import BayesianNetwork
        >>> network = BayesianNetwork((Linear.fixed([[2.0]]),))
        >>> adversarial_robustness(network, [[0.5]], Box([[0.4]], [[0.6]]), gamma=0.25).verdict[0].value
        'certified'
    """
    if not gamma >= 0:
        raise InputError(f"gamma must be >= 0, got {gamma!r}.")
    if not norm >= 1:
        raise InputError(f"norm must be >= 1, got {norm!r}.")
    options = asked_options(options)
    expect("box", box, Box, "give bnndp.Box.ball(x, eps)")
    if network.task != "regression":
        raise InputError(f"gamma bounds the change of a regression network; for {network.task} use robust_decision.")
    point = Box(x, x)
    if point.lower.shape != box.lower.shape:
        raise InputError(
            f"x has shape {tuple(point.lower.shape)}, the regions {tuple(box.lower.shape)}; give one point per region."
        )
    if not bool(box.contains(point.lower).all()):
        raise InputError("each point x must lie in its region; give the region around it.")
    at, region = certify(network, point, options), certify(network, box, options)
    largest = torch.maximum(region.upper - at.lower, at.upper - region.lower).clamp_min(0)
    change = _norm(largest, norm) * (1 + 1e-12)
    found, witness = torch.zeros_like(change), point.lower.clone()
    left = ~(change <= gamma)
    if bool(left.any()) and not options.deadline.passed:
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
