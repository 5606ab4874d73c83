"""Holds what is claimed of the margins themselves against draws: their mean, their variance, and E sigma(-D).

The softmax hides errors here: an exponential tail that is wrong by a factor of three may not change any decision.
Given the last hidden layer a margin is Gaussian, so all three are integrated over the last layer and only the hidden
layers are drawn; without hidden layers they are exact to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.fuzz.campaign import SIGMAS, Finding
from benchmarks.fuzz.classification_judge import Evidence, Questions, rounding_of
from benchmarks.fuzz.classification_oracle import forward, mean_sigmoid
from benchmarks.fuzz.regression_cases import Case
from benchmarks.fuzz.regression_oracle import noise_of
from bnndp.engine.margins import gaussian_tails, margins
from bnndp.engine.tails.tails import margin_tails
from bnndp.layers import Linear
from bnndp.maths.logistic import logistic_tail
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.tighten.pass_choice import pass_over

__all__ = ["Bound", "bounds_of", "judge_margins", "sampled_margins"]

_NODES, _MORE = 32, 64  # of the quadrature over the last layer, to suspect and to settle
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
    bounds, optimised = (pass_over(network, box, Options(optimise=steps)) for steps in (0, 4))
    known, better = (margins(each, label[:, None], network.n_out) for each in (bounds, optimised))
    mean, variance = known.mean[:, 0], known.variance[:, 0]
    exponential = gaussian_tails(bounds, known)[:, 0]
    if bounds.tailed:
        exponential = margin_tails(network.linears, box, label, mean, torch.ones_like(mean, dtype=torch.bool))
    return [
        Bound("mean margin", "mean", mean),
        Bound("optimised mean margin", "mean", better.mean[:, 0]),
        Bound("variance of a margin", "variance", variance),
        Bound("tail by two moments", "tail", logistic_tail(mean, variance)),
        Bound("exponential tail", "tail", exponential),
    ]


def judge_margins(case: Case, questions: Questions, claims: list[Bound], evidence: Evidence) -> list[Finding]:
    """Suspicions against the claims, settled: each margin at the worst point of its decision and at the centre."""
    network, batch = case.network, case.box.batch
    others = network.n_out - 1
    start = 2 * network.n_out  # after the ranges of the classes come the decisions: see gather
    points = torch.cat([evidence.points[start : start + others], evidence.points[-1:].expand(others, -1, -1)])
    label = questions.label.expand(2 * others, -1)
    other = torch.arange(others)[:, None].repeat(2, 1)
    other = other + (other >= label)  # (points, batch), in the order of the decisions
    flat = points.reshape(-1, case.box.n)
    found = sampled_margins(
        network, flat, (label.flatten(), other.flatten()), evidence.samples, seed=5 * evidence.seed + 3
    )
    trust = rounding_of(network, flat)
    findings = []
    for claim in claims:
        value, error = found[claim.quantity]
        bound = claim.value.expand(2 * others, -1, -1).gather(-1, other[..., None]).flatten()
        sign = -1.0 if claim.quantity == "mean" else 1.0
        slack = SIGMAS * error + trust * (1 + value.abs()) + _TRUST * value.abs()
        suspects = ((sign * (value - bound) - slack).nan_to_num(torch.inf) > 0).nonzero()[:, 0].tolist()
        for i in suspects:
            which = (i % batch, int(label.flatten()[i]), int(other.flatten()[i]))
            findings.append(_settle(case, claim, flat[i], which, evidence))
    return findings


def _settle(case: Case, claim: Bound, x: Tensor, which: tuple[int, int, int], evidence: Evidence) -> Finding:
    b, c, j = which
    bound, trust = float(claim.value[b, j]), float(rounding_of(case.network, x[None])[0])
    sign, pair = -1.0 if claim.quantity == "mean" else 1.0, (torch.tensor([c]), torch.tensor([j]))
    for more in (16, 64):
        seed = evidence.seed + 7919 * more
        found = sampled_margins(case.network, x[None], pair, more * evidence.samples, seed, pushed=True)
        value, error = (float(part[0]) for part in found[claim.quantity])
        error = SIGMAS * error + trust * (1 + abs(value)) + _TRUST * abs(value)
        excess = sign * (value - bound)
        if excess <= error or excess > 3 * error:
            break
    bad = not excess <= error
    return Finding(b, claim.kind, f"{c} against {j}", x.tolist(), bound, value, error, excess, bad, "sampled")


def sampled_margins(
    network: BayesianNetwork,
    x: Tensor,  # (points, n)
    pair: tuple[Tensor, Tensor],  # (points,) each: the margin of which class against which
    samples: int,
    seed: int,
    *,
    pushed: bool = False,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean, variance and tail E sigma(-D) of one margin at each point, with standard errors: (points,) each."""
    hidden, last, nodes = network.linears[:-1], network.linears[-1], _MORE if pushed else _NODES
    if not hidden:
        names = ("mean", "variance", "tail")
        values = _given(last, x[None], pair, nodes)
        return {name: (value[0], 0 * value[0]) for name, value in zip(names, values, strict=True)}
    parts, weights = [], []
    for weight, noise in noise_of(hidden, samples, seed, pushed=pushed):
        both = [forward(hidden, x, [sign * part for part in noise]).clamp_min(0) for sign in (1, -1)]
        parts.append(torch.stack([torch.stack(_given(last, z, pair, nodes)) for z in both]))  # (2, 3, draws, points)
        weights.append(weight)
    mean, variance, tail = torch.cat(parts, 2).unbind(1)  # (2, draws, points) each
    weight = torch.cat(weights)
    centre, _ = _average(mean, weight)
    return {
        "mean": _average(mean, weight),
        "variance": _average((mean - centre).square() + variance, weight),
        "tail": _average(tail, weight),
    }


def _average(values: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:  # (2, draws, points), (draws,)
    """Weighted mean of antithetic pairs, and its standard error."""
    pairs, share = values.mean(0), (weight / weight.sum())[:, None]
    mean = (share * pairs).sum(0)
    return mean, (share * (pairs - mean)).square().sum(0).sqrt()


def _given(last: Linear, z: Tensor, pair: tuple[Tensor, Tensor], nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the margins given the last hidden layer z (draws, points, n), and their mean sigma(-D)."""
    c, j = pair
    mean = (z * (last.weight_mean[c] - last.weight_mean[j])).sum(-1) + last.bias_mean[c] - last.bias_mean[j]
    spread, constant = (t[c].square() + t[j].square() for t in (last.weight_std, last.bias_std))
    variance = (z.square() * spread).sum(-1) + constant
    return mean, variance, mean_sigmoid(-mean, variance.sqrt(), nodes)
