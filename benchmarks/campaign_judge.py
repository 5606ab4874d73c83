"""Holds the bounds of one case against what the network does: points, gradients, exact or sampled means.

A claim is a region with a lower and an upper function of x (the affine bounds, or constants for the interval). Points
are found where the mean comes nearest to the claim; a suspicion is then settled by an independent oracle: in Arb without
any tolerance where the mean is a closed form, with 16 times the samples and six standard errors elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import campaign_oracle as oracle
from benchmarks.campaign_cases import Case
from bnndp.attacks import candidates, inside_range
from bnndp.bounds import Affine, Bounds
from bnndp.maths.rounding import gamma
from bnndp.network import BayesianNetwork
from bnndp.regions import Box
from bnndp.sampling import Noise, ascent_direction, draw_noise, estimate

__all__ = ["SIGMAS", "Attack", "Claim", "Finding", "attack", "claims_of", "judge"]

SIGMAS = 6.0
_CLIMBS, _STEPS = 4, 24


@dataclass(frozen=True, slots=True)
class Claim:
    """``lower(x) <= E f(x) <= upper(x)`` for every x of each region."""

    kind: str  # interval, affine, cell interval, cell affine
    region: Box
    lower: Affine
    upper: Affine
    owner: Tensor  # (regions,): the box of the case that each region is a part of


@dataclass(frozen=True, slots=True)
class Attack:
    """What was found in the boxes of a case without knowledge of any bound, and the noise for more."""

    points: Tensor  # (points, batch, n)
    lower: Tensor  # (batch, outputs), range from inside
    upper: Tensor  # (batch, outputs)
    samples: int
    seed: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One suspicion and how it was settled."""

    family: str
    index: int
    box: int
    output: int
    kind: str
    side: str
    x: list[float]
    bound: float
    mean: float
    std_error: float
    excess: float  # by how much the mean lies outside, positive for a violation
    violation: bool
    judge: str  # arb or sampled


def attack(case: Case, *, seed: int, samples: int, restarts: int = 4, steps: int = 30) -> Attack:
    """Vertices, random points, zero, planted points and the inputs that the gradient attack ends at."""
    inside = inside_range(case.network, case.box, seed=seed, samples=samples, restarts=restarts, steps=steps)
    found = [inside.x_lower.transpose(0, 1), inside.x_upper.transpose(0, 1)]
    grid = candidates(case.box, seed=seed + 1, points=32)
    points = torch.cat([*found, case.planted, grid])
    return Attack(points, inside.lower, inside.upper, samples, seed)


def claims_of(bounds: Bounds, box: Box) -> list[Claim]:
    """All that a :class:`Bounds` claims: interval and affine functions of the boxes, and of the cells if refined."""
    whole = torch.arange(box.batch)
    result = [_constant("interval", box, bounds.lower, bounds.upper, whole)]
    result.append(Claim("affine", box, bounds.affine.lower, bounds.affine.upper, whole))
    if bounds.cells is not None:
        pieces, owner = bounds.cells.pieces, bounds.cells.owner
        interval = bounds.cells.interval
        result.append(_constant("cell interval", pieces.region, interval.lower, interval.upper, owner))
        result.append(Claim("cell affine", pieces.region, pieces.lower, pieces.upper, owner))
    return result


def judge(case: Case, claim: Claim, attack: Attack) -> tuple[list[Finding], float]:
    """Suspicions against a claim, and the smallest margin to it in units of its own gap (negative: outside)."""
    network, region = case.network, claim.region
    noise = draw_noise(network, attack.samples, seed=3 * attack.seed + 2)
    whole = claim.owner.shape[0] == case.box.batch and not claim.kind.startswith("cell")
    points = attack.points if whole else candidates(region, seed=attack.seed, points=4, vertices=8)
    points = torch.cat([points, *(_climb(network, claim, points, attack, up=up) for up in (False, True))])
    points = torch.where(region.contains(points)[..., None], points, region.project(region.centre))
    inside = region.contains(points)  # the centre of a ball that was cut may still lie outside
    result = estimate(network, points, noise)
    slack = SIGMAS * result.std_error + _rounding(network, region)
    lower, upper = _values(claim.lower, points), _values(claim.upper, points)
    gap = (upper - lower).clamp_min(1e-300)
    findings, worst = [], float("inf")
    for side, excess in (("lower", lower - result.mean), ("upper", result.mean - upper)):
        worst = min(worst, float((-excess / gap)[inside].min()))
        tight = excess - slack if not oracle.has_exact_mean(network) else excess + _rounding(network, region)
        tight = torch.where(inside[..., None], tight.nan_to_num(torch.inf), -torch.inf)  # NaN counts as suspicious
        value, where = tight.max(0)  # (regions, outputs): the worst point
        for r, o in (value > 0).nonzero().tolist():
            findings.append(_settle(case, claim, points[where[r, o], r], r, o, side, attack))
    return findings, worst


def _settle(case: Case, claim: Claim, x: Tensor, r: int, o: int, side: str, attack: Attack) -> Finding:
    """Decide one suspicion with the oracle that shares no code with the package."""
    affine = claim.lower if side == "lower" else claim.upper
    bound = oracle.affine_value(affine.matrix[r, o], affine.offset[r, o], x)
    sign = 1.0 if side == "upper" else -1.0
    if oracle.has_exact_mean(case.network):
        truth = oracle.exact_mean(case.network, x)[o]
        mean, error, kind = float(truth.mid()), 0.0, "arb"
        bad = oracle.provably_less(bound, truth) if side == "upper" else oracle.provably_less(truth, bound)
        bad = bad or not bound.is_finite()
        excess = float((truth - bound).mid()) * sign
    else:
        means, errors = oracle.sampled_mean(case.network, x, 16 * attack.samples, seed=attack.seed + 7919)
        mean, error, kind = float(means[o]), float(errors[o]), "sampled"
        excess = sign * (mean - float(bound.mid()))
        allowance = SIGMAS * error + float(_rounding(case.network, claim.region)[r, o])
        bad = not excess <= allowance
    return Finding(
        family=case.family, index=case.index, box=int(claim.owner[r]), output=o, kind=claim.kind, side=side,
        x=x.tolist(), bound=float(bound.mid()), mean=mean, std_error=error, excess=excess, violation=bad, judge=kind,
    )  # fmt: skip


def _climb(network: BayesianNetwork, claim: Claim, points: Tensor, attack: Attack, *, up: bool) -> Tensor:
    """Points that ascend the excess over one side of the claim, from the best few points: (found, regions, n).

    The excess of an affine bound is largest where the mean and the bound differ in slope, which is often inside.
    """
    region, outputs = claim.region, network.n_out
    noise = draw_noise(network, max(64, attack.samples // 32), seed=3 * attack.seed, replicates=1)
    affine, sign = (claim.upper, 1.0) if up else (claim.lower, -1.0)
    inside = region.contains(points)
    score = sign * (estimate(network, points, noise).mean - _values(affine, points))
    score = torch.where(inside[..., None], score, -torch.inf)
    best = score.topk(min(_CLIMBS, points.shape[0]), dim=0).indices  # (starts, regions, outputs)
    starts, regions, n = best.shape[0], region.batch, region.n
    x = points.gather(0, best.permute(0, 2, 1).reshape(-1, regions, 1).expand(-1, -1, n))  # (starts * outputs, ...)
    rows = (sign * torch.eye(outputs, dtype=torch.float64))[None, :, None].expand(starts, -1, regions, -1)
    tilt = sign * affine.matrix.transpose(0, 1).expand(starts, outputs, regions, n).reshape(x.shape)
    return _ascend(network, region, x, rows.reshape(-1, outputs), tilt, noise)


def _ascend(network: BayesianNetwork, region: Box, x: Tensor, rows: Tensor, tilt: Tensor, noise: Noise) -> Tensor:
    """Sign steps that shrink from half the box to a ten-thousandth of it; the best point of each path."""
    half = 0.5 * (region.upper - region.lower)
    top, best = torch.full(x.shape[:-1], -torch.inf, dtype=torch.float64), x
    for step in range(_STEPS):
        value, slope = ascent_direction(network, x.reshape(-1, region.n), rows, noise)
        value = value.reshape(top.shape) - (tilt * x).sum(-1)
        better = value > top
        top, best = torch.where(better, value, top), torch.where(better[..., None], x, best)
        direction = (slope.reshape(x.shape) - tilt).sign()
        x = region.project(x + half * (1e-4 ** (step / _STEPS)) * direction)
    return best


def _rounding(network: BayesianNetwork, region: Box) -> Tensor:
    """A bound on the rounding error of a float64 evaluation of the mean in each region: (regions, outputs)."""
    size = region.magnitude
    *below, last = network.linears
    for layer in below:
        std = (size.square() @ layer.weight_std.square().T + layer.bias_std.square()).sqrt()
        size = size @ layer.weight_mean.abs().T + layer.bias_mean.abs() + 10 * std
    operations = sum(network.sizes) + 64 * len(network.linears)
    return gamma(4 * operations) * (size @ last.weight_mean.abs().T + last.bias_mean.abs())


def _values(affine: Affine, points: Tensor) -> Tensor:
    """Values at (points, regions, n): (points, regions, outputs)."""
    return torch.einsum("ron,prn->pro", affine.matrix, points) + affine.offset


def _constant(kind: str, region: Box, lower: Tensor, upper: Tensor, owner: Tensor) -> Claim:
    flat = torch.zeros(*lower.shape, region.n, dtype=torch.float64)
    return Claim(kind, region, Affine(flat, lower), Affine(flat, upper), owner)
