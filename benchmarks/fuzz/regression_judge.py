"""Holds the bounds of one case against what the network does: points, gradients, exact or sampled means.

A claim is a region with a lower and an upper function of x (the affine bounds, or constants for the interval). Points
are found where the mean comes nearest to a claim; a suspicion is then settled by an independent oracle: in Arb without
any tolerance where the mean is a closed form, by quadrature, or with 16 times the samples and six standard errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.fuzz import regression_oracle as oracle
from benchmarks.fuzz.campaign import SIGMAS, Finding
from benchmarks.fuzz.regression_cases import Case
from bnndp.attack.inside import Inside, candidates, climb, inside_range
from bnndp.attack.sampling import ascent_direction, draw_noise, estimate
from bnndp.geometry.bounds import Affine
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.questions.bounds import Bounds

__all__ = ["Claim", "Evidence", "attack", "claims_of", "gather", "judge"]

_STARTS, _STEPS = 4, 24


@dataclass(frozen=True, slots=True)
class Claim:
    """``lower(x) <= E f(x) <= upper(x)`` for every x of each region."""

    kind: str  # interval, affine, cell interval, cell affine
    region: Box
    lower: Affine
    upper: Affine
    owner: Tensor  # (regions,): the box of the case that each region is a part of


@dataclass(frozen=True, slots=True)
class Evidence:
    """Means at points of each region; ``slack`` covers their confidence interval and rounding."""

    points: Tensor  # (points, regions, n)
    inside: Tensor  # (points, regions): the others say nothing; a cell of a refined ball may have no point at all
    mean: Tensor  # (points, regions, outputs)
    slack: Tensor  # (points, regions, outputs)
    samples: int
    seed: int


def attack(case: Case, *, seed: int, samples: int) -> tuple[Inside, Tensor]:
    """The range from inside, and the points to look at before any bound is known: (points, batch, n)."""
    inside = inside_range(case.network, case.box, seed=seed, samples=samples, restarts=4, steps=30)
    found = [inside.x_lower.transpose(0, 1), inside.x_upper.transpose(0, 1)]
    return inside, torch.cat([*found, case.planted, candidates(case.box, seed=seed + 1, points=32)])


def claims_of(bounds: Bounds, box: Box) -> list[Claim]:
    """All that a :class:`Bounds` claims: interval and affine functions of the boxes, and of the cells if refined."""
    whole = torch.arange(box.batch)
    result = [_constant("interval", box, bounds.lower, bounds.upper, whole)]
    if bounds.affine is None:
        raise TypeError("bounds of a regression network have no affine functions.")
    result.append(Claim("affine", box, bounds.affine.lower, bounds.affine.upper, whole))
    if bounds.cells is not None:
        pieces, owner = bounds.cells.pieces, bounds.cells.owner
        interval = bounds.cells.interval
        result.append(_constant("cell interval", pieces.region, interval.lower, interval.upper, owner))
        result.append(Claim("cell affine", pieces.region, pieces.lower, pieces.upper, owner))
    return result


def gather(case: Case, region: Box, points: Tensor, claims: Sequence[Claim], *, samples: int, seed: int) -> Evidence:
    """Add to the points those that climb towards each claim, and take the mean at all of them."""
    network = case.network
    climbed = [_climb(network, claim, points, samples, seed, up=up) for claim in claims for up in (False, True)]
    points = torch.cat([points, *climbed])
    safe = region.project(region.centre)  # stands in for a point that a projection left outside by rounding
    points = torch.where(region.contains(points)[..., None], points, safe)
    inside = region.contains(points)
    rounding = _rounding(network, region)
    if 0 < oracle.sampled_neurons(network) <= 2 and not oracle.has_exact_mean(network):
        mean, error = oracle.quadrature_mean(network, points.reshape(-1, region.n))
        shape = (*points.shape[:-1], network.n_out)
        return Evidence(points, inside, mean.reshape(shape), error.reshape(shape) + rounding, samples, seed)
    result = estimate(network, points, draw_noise(network, samples, seed=3 * seed + 2))
    return Evidence(points, inside, result.mean, SIGMAS * result.std_error + rounding, samples, seed)


def judge(case: Case, claim: Claim, evidence: Evidence) -> tuple[list[Finding], float]:
    """Suspicions against a claim, settled, and the smallest margin to it as a share of its own gap.

    Where the mean is exact up to rounding, a point is suspicious as soon as rounding might hide a violation; where it
    is not, when it lies outside by more than its slack. The margin counts the slack in favour of the claim.
    """
    exact = oracle.has_exact_mean(case.network)
    lower, upper = _values(claim.lower, evidence.points), _values(claim.upper, evidence.points)
    gap = (upper - lower).clamp_min(1e-300)
    findings, worst = [], float("inf")
    for side, excess in (("lower", lower - evidence.mean), ("upper", evidence.mean - upper)):
        margin = torch.where(evidence.inside[..., None], (evidence.slack - excess) / gap, torch.inf)
        worst = min(worst, float(margin.min()))
        suspicion = excess + evidence.slack if exact else excess - evidence.slack
        suspicion = torch.where(evidence.inside[..., None], suspicion.nan_to_num(torch.inf), -torch.inf)
        value, where = suspicion.max(0)  # (regions, outputs); NaN is suspicious
        for r, o in (value > 0).nonzero().tolist():
            findings.append(_settle(case, claim, evidence.points[where[r, o], r], (r, o, side), evidence))
    return findings, worst


def _settle(case: Case, claim: Claim, x: Tensor, which: tuple[int, int, str], evidence: Evidence) -> Finding:
    """Decide one suspicion with an oracle that shares no code with the package."""
    r, o, side = which
    affine = claim.lower if side == "lower" else claim.upper
    bound = oracle.affine_value(affine.matrix[r, o], affine.offset[r, o], x)
    sign = 1.0 if side == "upper" else -1.0
    network, rounding = case.network, float(_rounding(case.network, claim.region)[r, o])
    if oracle.has_exact_mean(network):
        truth = oracle.exact_mean(network, x)[o]
        mean, error, name = float(truth.mid()), 0.0, "arb"
        bad = oracle.provably_less(bound, truth) if side == "upper" else oracle.provably_less(truth, bound)
        bad = bad or bound.is_nan()
        excess = sign * float((truth - bound).mid())
    else:
        if oracle.sampled_neurons(network) <= 2:
            means, errors = (
                t[0]
                for t in oracle.quadrature_mean(network, x[None], nodes=2048 // oracle.sampled_neurons(network) ** 3)
            )
            name = "quadrature"
        else:
            means, errors = oracle.sampled_mean(network, x, 16 * evidence.samples, seed=evidence.seed + 7919)
            name, errors = "sampled", SIGMAS * errors
        mean, error = float(means[o]), float(errors[o]) + rounding
        excess = sign * (mean - float(bound.mid()))
        bad = not excess <= error
    which_one, value = f"{side}, output {o}", float(bound.mid())
    return Finding(int(claim.owner[r]), claim.kind, which_one, x.tolist(), value, mean, error, excess, bad, name)


def _climb(network: BayesianNetwork, claim: Claim, points: Tensor, samples: int, seed: int, *, up: bool) -> Tensor:
    """Points that ascend the excess over one side of the claim, from the best few points: (found, regions, n).

    The excess of an affine bound is largest where the mean and the bound differ in slope, which is often inside.
    """
    region, outputs = claim.region, network.n_out
    noise = draw_noise(network, max(64, samples // 32), seed=3 * seed, replicates=1)
    affine, sign = (claim.upper, 1.0) if up else (claim.lower, -1.0)
    score = sign * (estimate(network, points, noise).mean - _values(affine, points))
    best = score.topk(min(_STARTS, points.shape[0]), dim=0).indices  # (starts, regions, outputs)
    starts, regions, n = best.shape[0], region.batch, region.n
    x = points.gather(0, best.permute(0, 2, 1).reshape(-1, regions, 1).expand(-1, -1, n))  # (starts * outputs, ...)
    rows = (sign * torch.eye(outputs, dtype=torch.float64))[None, :, None].expand(starts, -1, regions, -1)
    tilt = sign * affine.matrix.transpose(0, 1).expand(starts, outputs, regions, n).reshape(x.shape)

    def objective(at: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = ascent_direction(network, at.reshape(-1, n), rows.reshape(-1, outputs), noise)
        return (value.reshape(at.shape[:-1]) - (tilt * at).sum(-1))[..., None], slope.reshape(at.shape) - tilt

    far = (torch.arange(starts) % 2 == 1)[:, None, None].expand(starts, outputs, regions).reshape(-1, regions, 1)
    return climb(region, x, objective, far=far, steps=_STEPS)


def _rounding(network: BayesianNetwork, region: Box) -> Tensor:
    """A bound on the rounding error of a float64 evaluation of the mean in each region: (regions, outputs)."""
    *below, last = network.linears
    size = oracle.magnitude(below, region.magnitude)
    return oracle.rounding_unit(network) * (size @ last.weight_mean.abs().T + last.bias_mean.abs())


def _values(affine: Affine, points: Tensor) -> Tensor:
    """Values at (points, regions, n): (points, regions, outputs)."""
    return torch.einsum("ron,prn->pro", affine.matrix, points) + affine.offset


def _constant(kind: str, region: Box, lower: Tensor, upper: Tensor, owner: Tensor) -> Claim:
    flat = torch.zeros(*lower.shape, region.n, dtype=torch.float64)
    return Claim(kind, region, Affine(flat, lower), Affine(flat, upper), owner)
