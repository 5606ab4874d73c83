"""Holds what is claimed of the margins themselves against draws: their mean, their variance, and E sigma(-D).

The softmax hides errors here: an exponential tail that is wrong by a factor of three may not change any decision.
Given the last hidden layer a margin is Gaussian, so all three are integrated over the last layer and only the hidden
layers are drawn; without hidden layers they are exact to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.campaign_cases import Case
from benchmarks.campaign_judge import SIGMAS
from benchmarks.campaign_softmax_judge import Evidence, Finding, Questions, rounding_of
from benchmarks.campaign_softmax_oracle import forward, mean_sigmoid, noise_of
from bnndp.maths.logistic import logistic_tail
from bnndp.moment.exponential import margin_tails
from bnndp.moment.margins import margins
from bnndp.network import BayesianNetwork, Linear

__all__ = ["Bound", "bounds_of", "judge_margins", "sampled_margins"]

_NODES, _MORE = 32, 256  # of the quadrature over the last layer, to suspect and to settle
_TRUST = 1e-8  # relative error of the latter


@dataclass(frozen=True, slots=True)
class Bound:
    """A claim on all margins of the label of each box: one of ``mean`` (from below), ``variance``, ``tail`` (above)."""

    kind: str
    quantity: str
    value: Tensor  # (batch, classes)


def bounds_of(case: Case, label: Tensor) -> list[Bound]:
    """What the package claims of the margins of ``label`` (batch,)."""
    network, box = case.network, case.box
    known = margins(network, box, label[:, None])
    better = margins(network, box, label[:, None], steps=4)
    mean, variance = known.mean[:, 0], known.variance[:, 0]
    return [
        Bound("mean margin", "mean", mean),
        Bound("optimised mean margin", "mean", better.mean[:, 0]),
        Bound("variance of a margin", "variance", variance),
        Bound("tail by two moments", "tail", logistic_tail(mean, variance)),
        Bound("exponential tail", "tail", margin_tails(network, box, label, mean, variance)),
    ]


def judge_margins(case: Case, questions: Questions, claims: list[Bound], evidence: Evidence) -> list[Finding]:
    """Suspicions against the claims at the worst points of the decisions and at the centre, settled."""
    network, batch = case.network, case.box.batch
    start = 2 * network.n_out  # after the ranges of the classes come the decisions: see gather
    points = torch.cat([evidence.points[start : start + network.n_out - 1], evidence.points[-1:]])
    flat, label = points.reshape(-1, case.box.n), questions.label.repeat(len(points))
    found = sampled_margins(network, flat, label, evidence.samples // 2, seed=5 * evidence.seed + 3)
    trust = rounding_of(network, flat).reshape(-1, batch, 1)
    other = torch.arange(network.n_out) != questions.label[:, None]
    findings = []
    for claim in claims:
        value, error = (part.reshape(*points.shape[:-1], -1) for part in found[claim.quantity])
        sign = -1.0 if claim.quantity == "mean" else 1.0
        slack = SIGMAS * error + trust * (1 + value.abs()) + _TRUST * value.abs()
        suspicion = torch.where(other, (sign * (value - claim.value) - slack).nan_to_num(torch.inf), -torch.inf)
        worst, where = suspicion.max(0)
        for b, j in (worst > 0).nonzero().tolist():
            findings.append(_settle(case, claim, points[where[b, j], b], (b, int(questions.label[b]), j), evidence))
    return findings


def _settle(case: Case, claim: Bound, x: Tensor, which: tuple[int, int, int], evidence: Evidence) -> Finding:
    b, c, j = which
    bound, trust = float(claim.value[b, j]), float(rounding_of(case.network, x[None])[0])
    sign = -1.0 if claim.quantity == "mean" else 1.0
    for more in (16, 64):
        pair, seed = _pair(case.network, c, j), evidence.seed + 7919 * more
        found = sampled_margins(pair, x[None], torch.tensor([0]), more * evidence.samples, seed, pushed=True)
        value, error = (float(part[0, 1]) for part in found[claim.quantity])
        error = SIGMAS * error + trust * (1 + abs(value)) + _TRUST * abs(value)
        excess = sign * (value - bound)
        if excess <= error:
            break
    return Finding(
        family=case.family, index=case.index, box=b, kind=claim.kind, row=[float(c), float(j)], x=x.tolist(),
        bound=bound, mean=value, error=error, excess=excess, violation=not excess <= error, judge="sampled",
    )  # fmt: skip


def sampled_margins(
    network: BayesianNetwork,
    x: Tensor,  # (points, n)
    label: Tensor,  # (points,)
    samples: int,
    seed: int,
    *,
    pushed: bool = False,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean, variance and tail E sigma(-D) of the margins of ``label``, with standard errors: (points, classes) each."""
    hidden, last, nodes = network.linears[:-1], network.linears[-1], _MORE if pushed else _NODES
    if not hidden:
        mean, variance, tail = _given(last, x[None], label, nodes)
        return {
            name: (value[0], 0 * value[0]) for name, value in (("mean", mean), ("variance", variance), ("tail", tail))
        }
    parts, weights = [], []
    for weight, noise in noise_of(hidden, samples, seed, pushed=pushed):
        both = [forward(hidden, x, [sign * part for part in noise]).clamp_min(0) for sign in (1, -1)]
        parts.append(
            torch.stack([torch.stack(_given(last, z, label, nodes)) for z in both])
        )  # (2, 3, draws, points, ...)
        weights.append(weight)
    mean, variance, tail = torch.cat(parts, 2).unbind(1)  # (2, draws, points, classes) each
    weight = torch.cat(weights)
    centre, _ = _average(mean, weight)
    return {
        "mean": _average(mean, weight),
        "variance": _average((mean - centre).square() + variance, weight),
        "tail": _average(tail, weight),
    }


def _average(values: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:  # (2, draws, points, classes), (draws,)
    """Weighted mean of antithetic pairs, and its standard error."""
    pairs, share = values.mean(0), (weight / weight.sum())[:, None, None]
    mean = (share * pairs).sum(0)
    return mean, (share * (pairs - mean)).square().sum(0).sqrt()


def _pair(network: BayesianNetwork, c: int, j: int) -> BayesianNetwork:
    """The network with two of its classes only."""
    *hidden, last = network.linears
    parts = (t[[c, j]] for t in (last.weight_mean, last.weight_std, last.bias_mean, last.bias_std))
    return BayesianNetwork.from_linears([*hidden, Linear(*parts)], "classification")


def _given(last: Linear, z: Tensor, label: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the margins given the last hidden layer z (draws, points, n), and their mean sigma(-D)."""
    other = (torch.arange(last.n_out) != label[:, None]).to(torch.float64)
    weight = last.weight_mean[label][:, None] - last.weight_mean  # (points, classes, n)
    spread = (last.weight_std[label].square()[:, None] + last.weight_std.square()) * other[..., None]
    mean = torch.einsum("dpn,pcn->dpc", z, weight) + last.bias_mean[label][:, None] - last.bias_mean
    variance = torch.einsum("dpn,pcn->dpc", z.square(), spread)
    variance = variance + (last.bias_std[label].square()[:, None] + last.bias_std.square()) * other
    return mean, variance, mean_sigmoid(-mean, variance.sqrt(), nodes)
