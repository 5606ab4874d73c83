"""Claims with a known answer: most are false, so that "certified" is wrong whatever happens while they are computed.

The answers are found before any fault is put in: means by quadrature or many draws, changes of decisions by inputs at
which the posterior decides otherwise beyond doubt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from bnndp.activations import Tanh
from bnndp.attack.sampled_softmax import draw_softmax_noise, estimate_softmax
from bnndp.attack.sampling import draw_noise
from bnndp.attack.sampling import estimate as estimate_mean
from bnndp.geometry.box import Box
from bnndp.layers import Dropout, Linear
from bnndp.network import BayesianNetwork, Ensemble, Posterior
from bnndp.options import Options
from bnndp.questions.certify import certify, probability
from bnndp.questions.decision import robust_decision
from bnndp.questions.evaluate import evaluate
from bnndp.questions.radius import Search, certified_radius
from bnndp.questions.robustness import adversarial_robustness
from bnndp.questions.verdict import Verdict

__all__ = ["Claim", "claims"]

_DRAWS = 40_000


@dataclass(frozen=True)
class Claim:
    """A computation, and what is wrong with its result; None: nothing."""

    name: str
    judge: Callable[[], str | None]


def claims(only: str = "") -> list[Claim]:
    """All of them; of one network only where ``only`` begins with its name."""
    return [*_regression(only), *_classification(only)]


def _layer(n_out: int, n_in: int, generator: torch.Generator, std: float) -> Linear:
    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    mean, bias = normal(n_out, n_in) * (2 / n_in) ** 0.5, 0.3 * normal(n_out)
    return Linear(mean, std * mean.abs() + 0.01, bias, torch.full((n_out,), std, dtype=torch.float64))


def _networks(task: str, n_out: int, std: float, only: str) -> dict[str, Posterior]:
    """One of every kind that has a pass of its own."""
    draw = torch.Generator().manual_seed(3 if task == "regression" else 8)

    def plain(*sizes: int) -> BayesianNetwork:
        layers = [_layer(n, m, draw, std) for m, n in pairwise(sizes)]
        return BayesianNetwork.from_linears(layers, task)

    def general() -> BayesianNetwork:
        chain = (_layer(5, 2, draw, std), Tanh(), Dropout(0.05), _layer(n_out, 5, draw, std))
        return BayesianNetwork(chain, task)

    one, two = plain(2, 6, n_out), plain(2, 5, 4, n_out)
    found: dict[str, Posterior] = {
        "one hidden": one,
        "two hidden": two,
        "tanh and dropout": general(),
        "ensemble": Ensemble((one, plain(2, 4, n_out), general())),
    }
    chosen = {name: network for name, network in found.items() if only.startswith(name)}
    return chosen or found


OPTIONS = {
    "one pass": Options(),
    "best": Options(method="best"),
    "refined": Options(refine=6),
    "optimised": Options(optimise=3, branch=4, refine=2),
    "medium": Options(effort="medium"),
    "timed": Options(effort="medium", time_limit=1e6),  # looks at the clock, which the campaign turns
}


def _fits(network: Posterior, how: str) -> bool:
    plain = isinstance(network, BayesianNetwork) and network.plain
    return plain or how not in ("best", "optimised")


def _regression(only: str) -> Iterator[Claim]:
    for name, network in _networks("regression", 1, 0.1, only).items():
        centre = torch.tensor([[0.2, -0.1]], dtype=torch.float64)
        box = Box.ball(centre, 0.4)
        points = _spread(box)
        found = estimate_mean(network, points, draw_noise(network, _DRAWS, seed=1))
        low, high = found.mean - 6 * found.std_error - 1e-12, found.mean + 6 * found.std_error + 1e-12
        change = float((found.mean - found.mean[0]).abs().max() - 12 * found.std_error.max())
        for how, options in OPTIONS.items():
            if not _fits(network, how):
                continue
            yield Claim(f"{name}, mean, {how}", partial(_holds, network, box, options, (low, high)))
            for gamma, wrong in ((0.8 * change, Verdict.CERTIFIED), (1e3, Verdict.FALSIFIED)):
                yield Claim(
                    f"{name}, change of {gamma:.2g}, {how}",
                    partial(_robust, network, centre, box, gamma, options, wrong),
                )
        yield Claim(f"{name}, variance", partial(_variance, network, box))
        level = float(found.mean[0])
        yield Claim(f"{name}, probability", partial(_probability, network, box, level))


def _spread(box: Box) -> Tensor:
    """The centre and the corners of a box, and some more: (points, n)."""
    draw = torch.rand(12, box.n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    corners = torch.cartesian_prod(*torch.tensor([[0.0, 1.0]] * box.n, dtype=torch.float64))
    share = torch.cat([torch.full((1, box.n), 0.5, dtype=torch.float64), corners, draw])
    return box.lower + share * (box.upper - box.lower)


def _holds(network: Posterior, box: Box, options: Options, truth: tuple[Tensor, Tensor]) -> str | None:
    bounds = certify(network, box, options)
    return _contains(bounds.lower, bounds.upper, *truth)


def _contains(lower: Tensor, upper: Tensor, low: Tensor, high: Tensor) -> str | None:
    """Intervals of means ``low`` to ``high`` at some points must meet the bounds."""
    if bool(lower.isnan().any() | upper.isnan().any()):
        return "a bound is NaN"
    fine = (lower <= high) & (upper >= low)
    return None if bool(fine.all()) else f"[{lower.flatten().tolist()}, {upper.flatten().tolist()}] leaves out a mean"


def _robust(network: Posterior, x: Tensor, box: Box, gamma: float, options: Options, wrong: Verdict) -> str | None:
    answer = adversarial_robustness(network, x, box, gamma, options=options)
    return f"is {wrong.value}" if wrong in answer.verdict else None


def _variance(network: Posterior, box: Box) -> str | None:
    bounds = certify(network, box, quantity="variance")
    if bool(bounds.lower.isnan().any() | bounds.upper.isnan().any()):
        return "a bound is NaN"
    return None if bool((bounds.upper > 1e-4).all() & (bounds.lower < 1e3).all()) else "variance of nearly nothing"


def _probability(network: Posterior, box: Box, level: float) -> str | None:
    bounds = probability(network, box, level, math.inf)
    if bool(bounds.lower.isnan().any() | bounds.upper.isnan().any()):
        return "a bound is NaN"
    return (
        None if bool((bounds.upper > 0.05).all() & (bounds.lower < 0.95).all()) else "a tail of half the mass is none"
    )


def _classification(only: str) -> Iterator[Claim]:
    for name, network in _networks("classification", 3, 0.1, only).items():
        centre = torch.tensor([[0.3, 0.2]], dtype=torch.float64)
        label, size, truth = _changed(network, centre)
        box = Box.ball(centre, 1.05 * size)
        for how, options in OPTIONS.items():
            if not _fits(network, how):
                continue
            yield Claim(f"{name}, softmax, {how}", partial(_holds, network, box, options, truth))
            yield Claim(
                f"{name}, decision, {how}", partial(_decision, network, centre, box, label, options, Verdict.CERTIFIED)
            )
            yield Claim(f"{name}, radius, {how}", partial(_radius, network, centre, label, 1.05 * size, options))
        small = Box.ball(centre, 1e-3 * size)
        yield Claim(
            f"{name}, true decision",
            partial(_decision, network, centre, small, label, Options(), Verdict.FALSIFIED),
        )
        yield Claim(f"{name}, evaluation", partial(_evaluation, network, centre, label, 1.05 * size))
        other = (label + 1) % 3
        yield Claim(
            f"{name}, wrong label", partial(_decision, network, centre, small, other, Options(), Verdict.CERTIFIED)
        )


def _changed(network: Posterior, centre: Tensor) -> tuple[Tensor, float, tuple[Tensor, Tensor]]:
    """The decision at the centre, a radius at which it is another beyond doubt, and the softmax in that box."""
    noise = draw_softmax_noise(network, _DRAWS // 4, seed=1)
    label = estimate_softmax(network, centre, noise).mean.argmax(-1)
    for size in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8):
        found = estimate_softmax(network, _spread(Box.ball(centre, size)), noise)
        lead = found.mean[:, label[0]][:, None] - found.mean
        if bool((lead < -0.05).any()):
            low, high = found.mean - 8 * found.std_error - 1e-9, found.mean + 8 * found.std_error + 1e-9
            return label, size, (low, high)
    raise RuntimeError("the network decides the same everywhere; choose another seed")


def _decision(network: Posterior, x: Tensor, box: Box, label: Tensor, options: Options, wrong: Verdict) -> str | None:
    answer = robust_decision(network, x, box, label, options=options)
    return f"is {wrong.value}" if wrong in answer.verdict else None


def _radius(network: Posterior, x: Tensor, label: Tensor, broken: float, options: Options) -> str | None:
    found = certified_radius(
        network, x, label, search=Search(upper=4 * broken, attack=False, tolerance=0.3), options=options
    )
    return (
        f"has a radius of {found.radius.item()}, is broken at {broken}"
        if bool((found.radius >= broken).any())
        else None
    )


def _evaluation(network: Posterior, x: Tensor, label: Tensor, broken: float) -> str | None:
    found = evaluate(network, x, label, search=Search(upper=4 * broken, tolerance=0.3)).curve([broken, 2 * broken])
    return f"is certified at {broken}" if any(found.certified) else None
