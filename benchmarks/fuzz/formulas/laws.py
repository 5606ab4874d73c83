"""Bounds from moments alone, for laws on few atoms whose every mean is a finite sum."""

from __future__ import annotations

import math

import torch
from flint import arb, ctx
from support.oracles import PRECISION, cdf, down, pdf, rectified, up

from benchmarks.fuzz.formulas.draws import Draw
from benchmarks.fuzz.formulas.judge import Judge
from benchmarks.fuzz.formulas.maths import rows
from bnndp.maths import logistic as logistic_bounds
from bnndp.maths import softmax as softmax_bounds
from bnndp.maths import tails
from bnndp.maths.joint_lead import joint_leads
from bnndp.maths.lead import lead_bound, leads
from bnndp.maths.rounding import UNIT

__all__ = ["constants", "logistic", "probabilities", "scarf", "softmax"]

_ROUNDED = 1 + 8 * arb(UNIT)  # what callers add is far more (8 ELEMENTARY)
_LEAST = arb(1e-300)
_CLASSES = (2, 3, 5, 10)
_ATOMS = 3


def scarf(judge: Judge, draw: Draw, n: int) -> None:
    """The mean of a positive part: the law that attains the bound, and any law on two points."""
    sd = draw.mixed(draw.log_uniform(n, -6, 6), draw.log_uniform(n, -150, 100))
    mean = draw.standard(n, 1e20) * sd
    v = torch.where(draw.uniform(n) < 0.03, 0.0, sd * sd)
    share = draw.mixed(draw.log_uniform(n, -4, 4), draw.log_uniform(n, -0.5, 0.5))
    for m, s, part, value in rows(mean, v, share, tails.relu_scarf(mean, v)):
        with ctx.workprec(8 * PRECISION):  # a far negative mean cancels
            mu, spread = arb(m), arb(s)
            root = (mu * mu + spread).sqrt()
            truth = (mu + root) / 2
            judge.near("relu_scarf", (m, s), value, 8 * UNIT * truth + _LEAST, truth, truth)
            if s > 0:
                left = arb(part) * spread.sqrt()
                p = spread / (spread + left * left)  # of mean - left; the rest lies at mean + v / left
                ends = ((p, mu - left), (1 - p, mu + spread / left))
                law = sum((q * x for q, x in ends if x > 0), arb(0))
                judge.above("a law on two points", (m, s, part), arb(value) * _ROUNDED + _LEAST, law)


def constants(judge: Judge, draw: Draw, n: int) -> None:
    """Quadratic remainders of E ReLU and E ReLU^2 in the variance, and mixed derivatives."""
    start = draw.log_uniform(n, -12, 12)
    end = torch.where(
        draw.uniform(n) < 0.05, 0.0, start * draw.mixed(draw.log_uniform(n, -6, 6), draw.uniform(n, 0, 3))
    )
    end = torch.where(end == start, 0.0, end)
    mean = draw.mixed(draw.uniform(n, -40, 40), draw.normal(n, 2), draw.signed(n, -9, 2)) * start.sqrt()
    for m, s0, s in rows(mean, start, end):
        with ctx.workprec(2 * PRECISION):
            root = arb(s0).sqrt()
            before, after, step = rectified(m, root), rectified(m, arb(s).sqrt()), arb(s) - arb(s0)
            u = arb(m) / root
            square = step * step
            remainder = (after.mean - before.mean - pdf(u) / (2 * root) * step) * arb(s0) * root / square
            second = (after.second - before.second - cdf(u) * step) * arb(s0) / square
            judge.above("MEAN_ABOVE", (m, s0, s), tails.MEAN_ABOVE, remainder)
            judge.below("MEAN_BELOW", (m, s0, s), -tails.MEAN_BELOW, remainder)
            judge.above("SECOND_CURVATURE", (m, s0, s), tails.SECOND_CURVATURE, abs(second))
            judge.above("HALF_PEAK", (m, s0), tails.HALF_PEAK * _ROUNDED, pdf(u) / 2)


def _sigmoid(x: arb) -> arb:
    return 1 / (1 + (-x).exp())


def logistic(judge: Judge, draw: Draw, n: int) -> None:
    """E sigma(-D) for laws on two points, among which is the worst; without variance the sigmoid itself."""
    mean = draw.mixed(draw.uniform(n, -20, 70), draw.normal(n, 3), draw.signed(n, -3, 4), draw.signed(n, -300, 30))
    v = draw.mixed(draw.log_uniform(n, -8, 4), draw.log_uniform(n, -300, 60))
    v = torch.where(draw.uniform(n) < 0.1, 0.0, v)
    share = draw.mixed(draw.log_uniform(n, -4, 4), draw.log_uniform(n, -0.5, 0.5))
    for d, s, part, found in rows(mean, v, share, logistic_bounds.logistic_tail(mean, v)):
        value = math.inf if found == 1 else found  # one says nothing
        if s == 0:
            truth = _sigmoid(-arb(d))
            judge.above("logistic_tail", (d, s), value, truth, truth if 0 <= d <= 60 else None)
            continue
        left = arb(part) * arb(s).sqrt()
        p = arb(s) / (arb(s) + left * left)
        law = p * _sigmoid(left - arb(d)) + (1 - p) * _sigmoid(-arb(d) - arb(s) / left)
        judge.above("logistic_tail", (d, s, part), value, law)


def softmax(judge: Judge, draw: Draw, n: int) -> None:
    """Combinations of mean probabilities, from margins of laws of the logits on three atoms."""
    for classes in _CLASSES:
        count = max(1, n // len(_CLASSES))
        size, scale = (
            draw.mixed(draw.log_uniform(count, -3, 1.5), draw.log_uniform(count, -3, 3)),
            draw.log_uniform(count, -9, 1),
        )
        centre = size[:, None] * draw.normal(count * classes).reshape(count, classes)
        noise = scale[:, None, None] * draw.normal(count * _ATOMS * classes).reshape(count, _ATOMS, classes)
        logits, shares = centre[:, None] + noise, draw.log_uniform(count * _ATOMS, -4, 0).reshape(count, _ATOMS)
        row = draw.signed(count, -3, 3)[:, None] * draw.normal(count * classes).reshape(count, classes)
        reference = draw.integers(count, 0, classes - 1)
        truths, tail_bounds, means, variances, middles, ahead = [], [], [], [], [], []
        for atoms, weights, c, factors in zip(
            logits.tolist(), shares.tolist(), reference.tolist(), row.tolist(), strict=True
        ):
            law = _Law(atoms, weights)
            truths.append(sum((arb(a) * p for a, p in zip(factors, law.softmax(), strict=True)), arb(0)))
            parts = [law.margin(c, i) for i in range(classes)]
            means.append([down(mean) for mean, _, _ in parts])
            variances.append([up(variance) for _, variance, _ in parts])
            tail_bounds.append([up(high) for _, _, high in parts])
            middles.append([[up(law.middle(c, k, i)) for i in range(classes)] for k in range(classes)])
            probability = law.softmax()
            ahead.append([probability[c] - p for p in probability])
        mean, variance, high, middle = (
            torch.tensor(x, dtype=torch.float64) for x in (means, variances, tail_bounds, middles)
        )
        union = softmax_bounds.union_bound(row[:, None], high, reference)[:, 0]
        second = softmax_bounds.second_order_bound(row[:, None], mean, variance, reference)[:, 0]
        for i, (a, b, truth) in enumerate(zip(union.tolist(), second.tolist(), truths, strict=True)):
            at = (classes, i, *row[i].tolist())
            judge.below(f"union_bound, {classes} classes", at, a, truth)
            judge.below(f"second_order_bound, {classes} classes", at, b, truth)
        found = leads(mean, variance, middle, high, reference)
        by_leads = lead_bound(row[:, None], found, reference)[:, 0]
        for i, (a, truth) in enumerate(zip(by_leads.tolist(), truths, strict=True)):
            judge.below(f"lead_bound, {classes} classes", (classes, i, *row[i].tolist()), a, truth)
            for k, (value, lead) in enumerate(zip(found[i].tolist(), ahead[i], strict=True)):
                if k != int(reference[i]):
                    least = -math.inf if value == -1 else value  # minus one says nothing
                    judge.below(f"leads, {classes} classes", (classes, i, k), least, lead)
        jointly = joint_leads(mean, variance, middle, high, reference, torch.full_like(mean, -math.inf))
        for i, leading in enumerate(ahead):
            for k, (value, lead) in enumerate(zip(jointly[i].tolist(), leading, strict=True)):
                if k != int(reference[i]):
                    judge.below(f"joint_leads, {classes} classes", (classes, i, k), value, lead)


class _Law:
    """Logits on atoms."""

    def __init__(self, atoms: list[list[float]], weights: list[float]) -> None:
        total = sum((arb(w) for w in weights), arb(0))
        self.atoms = [[arb(x) for x in atom] for atom in atoms]
        self.weights = [arb(w) / total for w in weights]

    def _mean(self, values: list[arb]) -> arb:
        return sum((w * v for w, v in zip(self.weights, values, strict=True)), arb(0))

    def softmax(self) -> list[arb]:
        powers = [[x.exp() for x in atom] for atom in self.atoms]
        totals = [sum(row, arb(0)) for row in powers]
        return [
            self._mean([row[i] / total for row, total in zip(powers, totals, strict=True)])
            for i in range(len(self.atoms[0]))
        ]

    def margin(self, c: int, i: int) -> tuple[arb, arb, arb]:
        """Mean and variance of zeta_c - zeta_i, and the mean of sigma of its negative."""
        gaps = [atom[c] - atom[i] for atom in self.atoms]
        mean = self._mean(gaps)
        return mean, self._mean([(g - mean) * (g - mean) for g in gaps]), self._mean([_sigmoid(-g) for g in gaps])

    def middle(self, c: int, k: int, i: int) -> arb:
        """Variance of the mean of zeta_c and zeta_k less zeta_i."""
        gaps = [(atom[c] + atom[k]) / 2 - atom[i] for atom in self.atoms]
        mean = self._mean(gaps)
        return self._mean([(g - mean) * (g - mean) for g in gaps])


def probabilities(judge: Judge, draw: Draw, n: int) -> None:
    """Bounds of probabilities after they were tightened by their sum: the true ones are still inside."""
    for classes in _CLASSES:
        count = max(1, n // len(_CLASSES))
        sizes = draw.log_uniform(count * classes, -12, 0).reshape(count, classes)
        slack = draw.log_uniform(2 * count * classes, -18, 0).reshape(2, count, classes)
        truths = []
        for row in sizes.tolist():
            total = sum((arb(x) for x in row), arb(0))
            truths.append([arb(x) / total for x in row])
        low, high = (
            torch.tensor([[side(p) for p in row] for row in truths], dtype=torch.float64) for side in (down, up)
        )
        found = softmax_bounds.consistent(low * (1 - slack[0]), high * (1 + slack[1]))
        for row, below, above in zip(truths, found[0].tolist(), found[1].tolist(), strict=True):
            for p, a, b in zip(row, below, above, strict=True):
                judge.below(f"consistent, {classes} classes", (a, b), a, p)
                judge.above(f"consistent, {classes} classes", (a, b), b, p)
