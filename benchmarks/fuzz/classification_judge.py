"""Holds bounds of E softmax against what the network does: attacked points, exact or sampled probabilities.

All claims have one form, ``rows . E softmax(f(x)) >= bound`` for every x of each box: the range of a class is two of
them, a decision one for each other class. For every row the worst points are sought by the evasion attack, among
vertices and random points and by climbing; a suspicion is settled by an oracle that shares no code with the package:
in Arb where no weight is random, by quadrature, or with fresh draws (16 times as many, and 64 times as many where that
leaves a doubt) and six standard errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from flint import arb
from torch import Tensor

from benchmarks.fuzz import classification_oracle as oracle
from benchmarks.fuzz.campaign import SIGMAS, Finding
from benchmarks.fuzz.regression_cases import Case
from benchmarks.fuzz.regression_oracle import magnitude, precision, rounding_unit
from bnndp.attack import AttackBudget, decision_rows, evade
from bnndp.attack.inside import candidates, climb
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

__all__ = ["Claim", "Evidence", "Questions", "ask", "gather", "judge", "rounding_of"]

_STEPS = 16
_SEARCH = 64  # draws of the search


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked about each box: combinations of the probabilities, and whose margins may be used for them."""

    decisions: Tensor  # (batch, classes - 1, classes): the label against every other class
    rows: Tensor  # (batch, rows, classes): the same, the label against weighted losses, and a row with any coefficients
    label: Tensor  # (batch,): the decision at the centre
    other: Tensor  # (batch,): any class


@dataclass(frozen=True, slots=True)
class Claim:
    """``rows . E softmax >= bound`` on each box."""

    kind: str
    rows: Tensor  # (batch, rows, classes)
    bound: Tensor  # (batch, rows)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The mean softmax at points of each box; ``covariance`` is that of the means, ``rounding`` of any one of them."""

    points: Tensor  # (points, batch, n)
    mean: Tensor  # (points, batch, classes)
    covariance: Tensor  # (points, batch, classes, classes)
    rounding: Tensor  # (points, batch): error that is not random
    samples: int
    seed: int

    def of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Values of the rows (batch, rows, classes) at all points and their slack: (points, batch, rows) each."""
        value = torch.einsum("bri,pbi->pbr", rows, self.mean)
        square = torch.einsum("bri,pbij,brj->pbr", rows, self.covariance, rows)
        return value, SIGMAS * square.clamp_min(0).sqrt() + self.rounding[..., None] * rows.abs().sum(-1)


def ask(case: Case, *, seed: int) -> Questions:
    """The questions about a case, the same for every method."""
    network, box = case.network, case.box
    classes, generator = network.n_out, torch.Generator().manual_seed(seed)
    label = oracle.sampled_softmax(network, box.centre, 512, seed).mean.argmax(-1)
    losses = torch.rand(classes, classes, generator=generator, dtype=torch.float64).fill_diagonal_(0)
    plain, weighted = (decision_rows(label, classes, given)[0] for given in (None, losses))
    free = torch.randn(box.batch, 1, classes, generator=generator, dtype=torch.float64)
    other = torch.randint(classes, (box.batch,), generator=generator)
    return Questions(plain, torch.cat([plain, weighted, free], 1), label, other)


def gather(case: Case, questions: Questions, *, samples: int, seed: int) -> Evidence:
    """For every row the worst point found, with fresh probabilities at all of these."""
    network, box = case.network, case.box
    unit = torch.eye(network.n_out, dtype=torch.float64).expand(box.batch, -1, -1)
    rows = torch.cat([unit, -unit, questions.rows], 1)
    budget = AttackBudget(restarts=2, steps=12, draws=64, samples=256, seed=seed % 1000)
    found = evade(network, box, questions.label, budget=budget).x[None]
    starts = torch.cat([found, case.planted, candidates(box, seed=seed, points=16, vertices=24)])
    points = _worst(network, box, _inside(box, starts), rows, seed)
    points = torch.cat([_inside(box, points), box.project(box.centre)[None]])
    flat = points.reshape(-1, box.n)
    classes, shape = network.n_out, points.shape[:-1]
    rounding, spread = rounding_of(network, flat), torch.zeros(len(flat), classes, classes, dtype=torch.float64)
    if oracle.is_ordinary(network):
        mean = oracle.softmax(network, flat, _silence(network))[0]
    elif oracle.has_quadrature(network):
        mean, error = oracle.quadrature_softmax(network, flat)
        rounding = rounding + error.amax(-1)
    else:
        draws = oracle.sampled_softmax(network, flat, samples, seed=3 * seed + 2)
        mean, spread = draws.mean, draws.covariance
    mean, spread = mean.reshape(*shape, classes), spread.reshape(*shape, classes, classes)
    return Evidence(points, mean, spread, rounding.reshape(shape), samples, seed)


def judge(case: Case, claim: Claim, evidence: Evidence) -> tuple[list[Finding], Tensor]:
    """Suspicions against a claim, settled; and how far each bound lies below what was found: (batch, rows)."""
    value, slack = evidence.of(claim.rows)
    exact = oracle.is_ordinary(case.network)
    excess = claim.bound - value
    suspicion = (excess + slack if exact else excess - slack).nan_to_num(torch.inf, neginf=-torch.inf)
    worst, where = suspicion.max(0)  # (batch, rows); NaN is suspicious
    suspects = (worst > 0).nonzero().tolist()
    findings = [_settle(case, claim, evidence.points[where[b, r], b], (b, r), evidence) for b, r in suspects]
    return findings, (-excess).amin(0)


def _settle(case: Case, claim: Claim, x: Tensor, which: tuple[int, int], evidence: Evidence) -> Finding:
    """Decide one suspicion."""
    b, r = which
    network, row, bound = case.network, claim.rows[b, r], float(claim.bound[b, r])
    rounding = float(rounding_of(network, x[None])[0] * row.abs().sum())
    if oracle.is_ordinary(network):
        name, error = "arb", 0.0
        with precision():
            parts = zip(row.tolist(), oracle.exact_softmax(network, x), strict=True)
            truth = sum((arb(a) * p for a, p in parts), arb(0))
            mean, excess = float(truth.mid()), float((arb(bound) - truth).mid())
            bad = not bool(arb(bound) <= truth)  # NaN and what cannot be told apart count as wrong
    elif oracle.has_quadrature(network):
        value, errors = oracle.quadrature_softmax(network, x[None], nodes=128)
        name, mean = "quadrature", float(value[0] @ row)
        error, excess = float(errors[0] @ row.abs()) + rounding, bound - mean
        bad = not excess <= error
    else:
        name = "sampled"
        for more in (16, 64):
            seed = evidence.seed + 7919 * more
            draws = oracle.sampled_softmax(network, x[None], more * evidence.samples, seed, pushed=True)
            mean = float(draws.mean[0] @ row)
            error = SIGMAS * float(draws.error(row[None, None])[0, 0]) + rounding
            excess = bound - mean
            bad = not excess <= error
            if not bad or excess > 3 * error:
                break
    return Finding(b, claim.kind, str(row.tolist()), x.tolist(), bound, mean, error, excess, bad, name)


def _worst(network: BayesianNetwork, box: Box, starts: Tensor, rows: Tensor, seed: int) -> Tensor:
    """The point of each box with the least value of each row, of the starts and of a climb from there: (rows, ...)."""
    generator = torch.Generator().manual_seed(seed + 1)
    widths = [layer.n_out for layer in network.linears]
    drawn = [torch.randn(_SEARCH // 2, width, generator=generator, dtype=torch.float64) for width in widths]
    noise = _silence(network) if oracle.is_ordinary(network) else [torch.cat([part, -part]) for part in drawn]
    with torch.no_grad():
        flat = starts.reshape(-1, box.n).split(32)
        mean = torch.cat([oracle.softmax(network, part, noise).mean(0) for part in flat])
    value = torch.einsum("bri,pbi->rpb", rows, mean.reshape(*starts.shape[:-1], -1))
    best = value.argmin(1)  # (rows, batch)
    x = starts.gather(0, best[..., None].expand(-1, -1, box.n))
    weights = rows.transpose(0, 1).reshape(-1, network.n_out)

    def objective(at: Tensor) -> tuple[Tensor, Tensor]:
        leaf = at.reshape(-1, box.n).detach().requires_grad_()
        found = -(oracle.softmax(network, leaf, noise).mean(0) * weights).sum(-1)
        (slope,) = torch.autograd.grad(found.sum(), leaf)
        return found.detach().reshape(*at.shape[:-1], 1), slope.nan_to_num(0.0).reshape(at.shape)

    far = (torch.arange(x.shape[0]) % 2 == 0)[:, None, None].expand(*x.shape[:-1], 1)
    return climb(box, x, objective, far=far, steps=_STEPS)


def _inside(box: Box, points: Tensor) -> Tensor:
    """The points (points, batch, n), the centre instead of those that a projection left outside by rounding."""
    return torch.where(box.contains(points)[..., None], points, box.project(box.centre))


def _silence(network: BayesianNetwork) -> list[Tensor]:
    """One draw without noise."""
    return [torch.zeros(1, layer.n_out, dtype=torch.float64) for layer in network.linears]


def rounding_of(network: BayesianNetwork, x: Tensor) -> Tensor:
    """A bound on the rounding error of any probability at each of the points (points, n); softmax is 1-Lipschitz."""
    return rounding_unit(network) * (1 + 2 * magnitude(network.linears, x.abs()).amax(-1))
