r"""Classification: the certified lead of a decision on a ball and at its centre, and what each source takes from it.

The lead is the least of the rows :math:`A_k\cdot\mathbb E\,p`, p the softmax (docs/theory.md, section 6). It is bounded
from the margins D of the logits: their means and variances by the moment method, from these the means of
:math:`\sigma(-D_j)` (tails), from these the rows (union over the classes). Exponential moments give other tails.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.tightness.sources import ALL, Breakdown, Source, broken_down, sources_of
from benchmarks.tightness.substitute import Substituted
from benchmarks.tightness.truth import Truth, draw, sample
from bnndp.attack import decision_rows
from bnndp.engine.laws.weights import row_variance
from bnndp.engine.margins import by_class, margin_rows
from bnndp.engine.protocol import Margins
from bnndp.engine.rows import DenseRows
from bnndp.engine.tails.tails import useful_tails
from bnndp.geometry.box import Box, apply_rows
from bnndp.maths.softmax import union_bound
from bnndp.network import BayesianNetwork
from bnndp.questions.from_margins import CALM, row_bound

__all__ = ["Claim", "break_down"]

_NUMBERS = 2**22  # in a tensor of draws: inputs are taken in chunks
_LAMBDAS = 20  # tried for the sampled Chernoff bound


@dataclass(frozen=True, slots=True)
class Claim:
    """The decisions ``label`` on the boxes, and the worst input x* of each box that was found from inside."""

    box: Box
    label: Tensor  # (batch,)
    x: Tensor  # (batch, n)

    def __getitem__(self, chunk: slice) -> Claim:
        return Claim(self.box[chunk], self.label[chunk], self.x[chunk])


def break_down(network: BayesianNetwork, claim: Claim, *, draws: int = 4096, point: bool = False) -> Breakdown:
    """The mean lead over the boxes, certified and at x*, and what it is without each source."""
    if network.shift is not None:
        claim = Claim(claim.box.moved(network.shift), claim.label, claim.x - network.shift)
        network = network.unshifted()
    noise = draw(network, draws, seed=7)
    single = sources_of(network.depth, classification=True, point=point)
    step = max(1, _NUMBERS // (noise.draws * max(network.sizes[1:])))

    def measure(chunk: slice) -> dict[str, Tensor]:
        part = claim[chunk]
        return _leads(_Judge.make(network, part, sample(network.linears, part.x, noise)), single)

    return broken_down(measure, claim.box.batch, step)


def _leads(judge: _Judge, single: Collection[Source]) -> dict[str, Tensor]:
    """Leads (batch,): certified, at x*, without each source, without all."""
    result = {"certified": judge.lead(()), "inside": judge.true_lead()}
    for source in single:
        result[source.value] = judge.at_the_worst() if source is Source.REGION else judge.lead((source,))
    result[ALL] = judge.lead([source for source in single if source not in (Source.REGION, Source.EXPONENT)])
    return result


@dataclass(frozen=True, slots=True)
class _Judge:
    """What the leads of a chunk need: the claim, the truth at x*, the rows, and the tails by exponential moments."""

    network: BayesianNetwork
    claim: Claim
    truth: Truth
    rows: Tensor  # (batch, rows, classes)
    margins: Tensor  # (batch, classes, classes): rows of the margins of the label
    draws: Tensor  # (batch, draws, classes): margins D_j of the label at x*
    tails: Tensor  # (batch, classes)

    @classmethod
    def make(cls, network: BayesianNetwork, claim: Claim, truth: Truth) -> _Judge:
        rows = decision_rows(claim.label, network.n_out)[0]
        margins = margin_rows(claim.label[:, None], network.n_out)
        own = truth.draws.gather(-1, claim.label[:, None, None].expand(-1, truth.draws.shape[1], 1))
        plain = cls(network, claim, truth, rows, margins, own - truth.draws, torch.ones_like(truth.output))
        return replace(plain, tails=_exponential(network, claim, plain.moments(())))

    def moments(self, sources: Collection[Source]) -> Margins:
        """Mean (at least) and variance (at most) of the margins: (batch, 1, classes)."""
        last, rows = self.network.linears[-1], self.margins
        bounds = Substituted(
            self.network.layers, self.network.shapes, self.claim.box, truth=self.truth, sources=sources
        )
        spread = row_variance(bounds.hidden.output.weights, DenseRows(rows), bounds.hidden.last.signal)
        through = (bounds.variance(rows) - spread).clamp_min(0)
        if Source.SECOND in sources:
            second = self.truth.z_second @ last.weight_std.square().T + last.bias_std.square()
            spread = apply_rows(rows.square(), second)
        if Source.MEAN_VARIANCE in sources:
            through = (self.truth.z @ (rows @ last.weight_mean).mT).var(1, correction=0)
        return by_class(bounds.least(rows), spread + through, self.claim.label[:, None])

    def lead(self, sources: Collection[Source]) -> Tensor:
        """The least row (batch,) with the true values of the sources."""
        known = self.moments(sources)
        tails = self.tails * self._exponent_loss() if Source.EXPONENT in sources else self.tails
        bound = self._row_bound(known, tails)  # (batch, rows)
        if not {Source.TAILS, Source.UNION} & set(sources):
            return bound.amin(-1)
        law = self._law(known)  # (batch, draws, classes)
        if {Source.TAILS, Source.UNION} <= set(sources):  # nothing is left between the margins and the rows
            return torch.maximum(bound, self._true_rows(law).nan_to_num(-torch.inf)).amin(-1)
        if Source.TAILS in sources:
            single = torch.sigmoid(-law).mean(1).nan_to_num(1.0)  # E sigma(-D) of each class
            better = torch.minimum(single, tails * self._chernoff_loss())
            return torch.maximum(bound, union_bound(self.rows, better, self.claim.label)).amin(-1)
        plain = self._row_bound(known, torch.ones_like(tails))
        by_exponent = (bound.amin(-1) > plain.amin(-1))[:, None]  # then the bound says nothing of ``law``
        lost = torch.where(by_exponent, self._union_loss(self.draws), self._union_loss(law, plain))
        return (bound + lost.nan_to_num(0.0)).amin(-1)

    def _row_bound(self, known: Margins, tails: Tensor) -> Tensor:
        """The rows (batch, rows); no average of probabilities is below its least coefficient."""
        return torch.maximum(row_bound(self.rows, known, self.claim.label, tails), self.rows.amin(-1))

    def _true_rows(self, law: Tensor) -> Tensor:
        """The rows (batch, rows) for margins with these draws (batch, draws, classes)."""
        return apply_rows(self.rows, torch.softmax(-law, -1).mean(1))

    def _union_loss(self, law: Tensor, plain: Tensor | None = None) -> Tensor:
        """What the rows (batch, rows) lose between the true tails of the margins and their joint law.

        ``plain`` (batch, rows): a bound for that law that is used where it is better than the union.
        """
        union = union_bound(self.rows, torch.sigmoid(-law).mean(1), self.claim.label)
        return self._true_rows(law) - (union if plain is None else torch.maximum(union, plain))

    def _exponent_loss(self) -> Tensor:
        """The Chernoff bound sampled at x* over the one that is proved there: (batch, classes), at most one."""
        if not bool(self._by_exponent.any()):
            return torch.ones_like(self.tails)
        point = self._point()
        share = self._chernoff() / point.tails.clamp_min(1e-300)
        both = self._by_exponent & point._by_exponent  # where x* is calm there is nothing to compare with
        return torch.where(both, share.clamp_max(1), 1.0)

    def _chernoff_loss(self) -> Tensor:
        """E sigma(-D) over its Chernoff bound, both sampled at x*: (batch, classes), at most one."""
        share = torch.sigmoid(-self.draws).mean(1) / self._chernoff().clamp_min(1e-300)
        return torch.where(self._by_exponent, share.clamp_max(1), 1.0)

    @property
    def _by_exponent(self) -> Tensor:
        """Where exponential moments are used: (batch, 1)."""
        return (self.tails < 1).any(-1, keepdim=True)

    def at_the_worst(self) -> Tensor:
        """The certified lead (batch,) at x* alone."""
        return self._point().lead(())

    def _point(self) -> _Judge:
        """The same claim at x* alone."""
        point = Claim(Box(self.claim.x, self.claim.x), self.claim.label, self.claim.x)
        return _Judge.make(self.network, point, self.truth)

    def true_lead(self) -> Tensor:
        """The sampled lead at x*: (batch,)."""
        return self._true_rows(self.draws).amin(-1)

    def _law(self, known: Margins) -> Tensor:
        """The draws at x*, moved and stretched to the means and variances of ``known``."""
        mean = self.draws.mean(1, keepdim=True)
        true = self.draws.var(1, keepdim=True, correction=0)
        stretch = (known.variance / true.clamp_min(1e-300)).sqrt()
        stretch = torch.where(true > 0, stretch, 0.0)  # the margin of the label against itself
        return known.mean + (self.draws - mean) * stretch

    def _chernoff(self) -> Tensor:
        """The least C(lambda) E exp(-lambda D) at x*, sampled; ones where no exponential moments are used.

        (batch, classes).
        """
        best = torch.ones_like(self.tails)
        for step in range(1, _LAMBDAS + 1):
            lam = torch.tensor(step / _LAMBDAS, dtype=torch.float64)
            constant = torch.exp(torch.xlogy(lam, lam) + torch.xlogy(1 - lam, 1 - lam))
            best = torch.minimum(best, constant * torch.exp(-lam * self.draws).mean(1))
        return torch.where(self._by_exponent, best, 1.0).scatter(1, self.claim.label[:, None], 1.0)


def _exponential(network: BayesianNetwork, claim: Claim, found: Margins) -> Tensor:
    """The tails by exponential moments (batch, classes); ones where the margins are calm."""
    tails = torch.ones_like(found.mean[:, 0])
    at = (found.variance.amax((-1, -2)) > CALM).nonzero()[:, 0]
    if at.numel():
        part = found[at]
        tails[at] = useful_tails(network.linears, claim.box[at], claim.label[at], part.mean[:, 0], part.variance[:, 0])
    return tails
