r"""What a user would pick instead, beside bnndp: sampling, intervals of moments, CROWN on the network of the means.

Of every network the same boxes are bounded in batches, by turns, on one thread. What the rows say differs:

* ``bnndp`` bounds the mean over the posterior for every x of a box.
* ``intervals of moments`` does so too (``baselines/intervals.py``), without planes.
* ``CROWN, means only`` bounds the network whose weights are the means. That is another function than the mean over the
  posterior; no bound of one is a bound of the other.
* ``sampling, one point`` estimates the mean at the centre of the box, until its confidence interval of 99.99 % is as
  narrow as bnndp's certified interval of the whole box. It says nothing about the rest of the box, and is wrong for one
  point in 10,000. With the standard deviation d of one draw and the width w that takes
  :math:`(2\cdot3.891\,d/w)^2` draws, at least 30 as for fewer the normal law means little, each at the price of one of
  many drawn together by local reparametrisation in float32, the cheapest way we know.

Widths are means over the boxes of the widest output: of the mean output, or of E softmax for a classifier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from benchmarks import crown
from benchmarks.baselines import intervals
from benchmarks.baselines.sampled import softmax
from benchmarks.networks import network, vogn
from benchmarks.timing import by_turns, sample_local
from bnndp import certify
from bnndp.data import load
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

__all__ = ["CASES", "Case", "Row", "draws_needed", "measure"]

CONFIDENCE = 0.9999
BOXES = 64
_LEAST_DRAWS = 30
_DRAWS = 4096  # for the standard deviation of one draw, and for the time of one
_POINTS = 8  # at which draws are counted


@dataclass(frozen=True, slots=True)
class Case:
    """A network, the data set whose test inputs are the centres of its boxes, and their radius."""

    name: str
    network: Callable[[], BayesianNetwork]
    data: str
    eps: float
    domain: tuple[float, float] | None = None


CASES = (
    Case("sine2d-2x64", lambda: network("sine2d-2x64"), "sine2d", 1e-3),
    Case("kin8nm-2x64", lambda: vogn("kin8nm", (64, 64)), "kin8nm", 1e-3),
    Case("mnist-2x64", lambda: vogn("mnist", (64, 64)), "mnist", 5e-3, (0.0, 1.0)),
    Case("mnist-2x64, uncertain", lambda: network("mnist-2x64"), "mnist", 1e-3, (0.0, 1.0)),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One way to answer for one network: seconds per box (or point), the mean width, and for sampling its draws."""

    case: str
    eps: float
    way: str
    holds: str  # for what
    wall: float
    cpu: float
    width: float
    draws: float | None = None


def measure(boxes: int = BOXES) -> list[Row]:
    """All rows of all cases."""
    return [row for case in CASES for row in _rows(case, boxes)]


def draws_needed(std: Tensor, width: Tensor) -> Tensor:
    """How many draws make the confidence interval of a mean as narrow as ``width``."""
    return (2 * NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * std / width).square().ceil().clamp_min(_LEAST_DRAWS)


def _rows(case: Case, boxes: int) -> list[Row]:
    network, x = case.network(), load(case.data, "test").x[:boxes]
    box = Box.ball(x, case.eps, domain=case.domain)
    ways: dict[tuple[str, str], Callable[[], Interval]] = {
        ("bnndp", "every x of the box, whole posterior"): lambda: _ours(network, box),
        ("intervals of moments", "every x of the box, whole posterior"): lambda: _intervals(network, box),
    }
    if crown.available():
        means = crown.mean_network(network)
        theirs = crown.crown(means)
        ways["CROWN, means only", "every x of the box, one network"] = lambda: _in_task(network, theirs(box))
    turns = by_turns(list(ways.values()), budget=15)
    found = [way() for way in ways.values()]
    rows = [
        Row(case.name, case.eps, way, holds, turn.wall / box.batch, turn.cpu / box.batch, _width(interval))
        for (way, holds), turn, interval in zip(ways, turns, found, strict=True)
    ]
    return [*rows, _sampling(case, network, x, found[0])]


def _ours(network: BayesianNetwork, box: Box) -> Interval:
    bounds = certify(network, box)
    return Interval(bounds.lower, bounds.upper)


def _intervals(network: BayesianNetwork, box: Box) -> Interval:
    if network.task == "regression":
        return intervals.outputs(network, box).mean
    return intervals.probabilities(network, box)


def _in_task(network: BayesianNetwork, outputs: Interval) -> Interval:
    """Of the outputs of a regression, or of the softmax of logits."""
    if network.task == "regression":
        return outputs
    share = softmax(outputs)
    return Interval(share.lower.exp(), share.upper.exp())


def _width(interval: Interval) -> float:
    return float((interval.upper - interval.lower).amax(-1).mean())


def _sampling(case: Case, network: BayesianNetwork, x: Tensor, certified: Interval) -> Row:
    """Seconds until the mean of the output with the widest bounds is known as closely at the centre of a box."""
    width, output = (certified.upper - certified.lower).max(-1)
    torch.manual_seed(0)
    needed = []
    for point, j, w in list(zip(network.centred(x), output, width, strict=True))[:_POINTS]:
        drawn = sample_local(network, point, _DRAWS, dtype=torch.float32).double()
        values = drawn if network.task == "regression" else drawn.softmax(-1)
        needed.append(draws_needed(values[:, j].std(), w))
    centred = network.centred(x)[0]
    (all_draws,) = by_turns([lambda: sample_local(network, centred, _DRAWS, dtype=torch.float32)])
    draws = float(torch.stack(needed).mean())
    wall, cpu = (draws * seconds / _DRAWS for seconds in (all_draws.wall, all_draws.cpu))
    there = float(width[:_POINTS].mean())
    return Row(case.name, case.eps, "sampling, one point", "one x, 99.99 %", wall, cpu, there, draws)
