"""The protocol between the engines and everything above them: what a pass over a batch of boxes can be asked.

A pass knows one kind of network on some boxes. Questions, branching and refinement are written once, on this protocol;
which pass serves a network is decided in ``tighten/pass_choice.py`` alone. Rows are combinations of the outputs f of a
network: (rows, outputs) for all boxes, or (batch, rows, outputs) for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box
from bnndp.geometry.half_space import HalfSpace

_MOVABLE = 2.0  # standard deviations from zero within which the slope of a smoothed hinge still moves


@dataclass(frozen=True, slots=True)
class Planes:
    """Affine functions of x below ``rows . E f(x)`` on the boxes, and lower bounds of ``rows . E f`` there."""

    affine: Affine  # (batch, rows)
    least: Tensor  # (batch, rows): at least as large as the least values of the functions
    method: tuple[str, ...]  # of each box: the engine that found them


@dataclass(frozen=True, slots=True)
class Margins:
    """Moments of margins for every x of the boxes: (batch, references, classes); zero for a class against itself."""

    mean: Tensor  # E D_j is at least this
    variance: Tensor  # Var D_j is at most this

    def __getitem__(self, index: Tensor | slice) -> Margins:
        """The margins of the boxes at ``index``."""
        return Margins(self.mean[index], self.variance[index])

    def reshape(self, *shape: int) -> Margins:
        """The same numbers in another shape."""
        return Margins(self.mean.reshape(shape), self.variance.reshape(shape))


@dataclass(frozen=True, slots=True)
class Deviations:
    """How many standard deviations of their noise are taken off bounds that are to hold for most weights."""

    hidden: float  # of those of hidden values
    rows: float  # of rows of the outputs


class Pass(Protocol):
    """What is known of the outputs f of a network for every x of each box, over the whole posterior."""

    @property
    def box(self) -> Box:
        """The boxes of x."""
        ...

    @property
    def name(self) -> str:
        """Of the engine."""
        ...

    @property
    def moments(self) -> bool:
        """Whether there are bounds of any rows and of their variances; if not, of the outputs and of softmax only."""
        ...

    @property
    def random(self) -> bool:
        """Whether the outputs vary at all at a given x."""
        ...

    @property
    def gaussian(self) -> bool:
        """Whether the outputs at a given x are Gaussian."""
        ...

    @property
    def tailed(self) -> bool:
        """Whether there are exponential moments of the margins."""
        ...

    @property
    def costly_tails(self) -> bool:
        """Whether these cost many times a pass."""
        ...

    def affine(self, rows: Tensor) -> Planes:
        """Functions of x below ``rows . E f(x)``."""
        ...

    def least(self, rows: Tensor) -> Tensor:
        """Lower bounds (batch, rows) of ``rows . E f(x)``; minus infinity where nothing is known."""
        ...

    def variance(self, rows: Tensor, at: Tensor | None = None) -> Tensor:
        """Upper bounds (batch, rows) of the variance of ``rows . f(x)``; infinite where nothing is known.

        With ``at`` (some,) the rows (some, rows, outputs) are those of these boxes only: (some, rows).
        """
        ...

    def output_variance(self) -> Interval:
        """Bounds (batch, outputs) of the variance of each output."""
        ...

    def tails(self, at: Tensor, label: Tensor, margins: Margins) -> Tensor:
        """Upper bounds (some, classes) of ``E sigma(-D_j)`` on the boxes ``at`` (some,), by exponential moments.

        D_j are the margins of the classes ``label`` (some,), ``margins`` (some, classes) what is known of them. One
        where nothing is known, or where two moments say as much.
        """
        ...

    def softmax(self, rows: Tensor) -> Tensor | None:
        """Lower bounds (batch, rows) of the mean of the rows of softmax f, not from margins; None: there are none.

        The rows are (batch, rows, outputs).
        """
        ...

    @property
    def branchable(self) -> BranchablePass | None:
        """The pass on whose cells a decision can be branched, if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Slopes:
    """What may be chosen for each row without losing soundness: (batch, rows, n) for each layer that has a choice.

    ``tangents`` are the points at which the lower planes touch. ``multipliers`` >= 0 belong to cells on which the sign
    of some means is known (Lagrange; Wang et al. 2021, beta-CROWN); there are none elsewhere.
    """

    tangents: Sequence[Tensor]
    multipliers: Sequence[Tensor] = ()

    @property
    def tensors(self) -> list[Tensor]:
        """All of them."""
        return [*self.tangents, *self.multipliers]

    def map(self, tensors: Sequence[Tensor]) -> Slopes:
        """With other tensors in the place of :attr:`tensors`."""
        count = len(self.tangents)
        return Slopes(tensors[:count], tensors[count:])


class Climbable(Protocol):
    """Lower planes that can be chosen, row by row, so that they can be optimised (``tighten/slopes.py``)."""

    @property
    def box(self) -> Box:
        """The boxes of x."""
        ...

    def affine(self, rows: Tensor) -> Planes:
        """Functions of x below ``rows . E f(x)``."""
        ...

    def slopes(self, rows: Tensor) -> tuple[Slopes, Slopes] | None:
        """The slopes of the usual planes, and those from which to begin; None where there is no choice."""
        ...

    def multiplier_scale(self, rows: Tensor) -> float:
        """The size of coefficients that multipliers compare with."""
        ...

    def affine_at(self, rows: Tensor, slopes: Slopes) -> Affine:
        """As :meth:`affine`, with these slopes; differentiable in them."""
        ...

    def least_of(self, plane: Affine) -> Tensor:
        """Lower bounds (batch, rows) of functions of x on what is asked about; differentiable in them."""
        ...


class ClimbablePass(Climbable, Pass, Protocol):
    """A pass whose planes can be optimised."""


class BranchablePass(ClimbablePass, Protocol):
    """A pass that can be restricted to cells: the x of a box on which some hidden means have known signs."""

    @property
    def widths(self) -> Sequence[int]:
        """Numbers of neurons of the hidden layers."""
        ...

    @property
    def empty(self) -> Tensor:
        """Cells (batch,) that provably hold no x."""
        ...

    @property
    def cut(self) -> HalfSpace | None:
        """The half-spaces (batch,) of x that are asked about; None: all x."""
        ...

    @property
    def ranges_of_means(self) -> tuple[Interval, ...]:
        """Of the means before each activation: (batch, n) each."""
        ...

    def with_ranges(self, ranges: tuple[Interval, ...]) -> BranchablePass:
        """The pass on the same boxes where these ranges are known."""
        ...

    def for_most_weights(self, deviations: Deviations) -> BranchablePass | None:
        """The pass on the same boxes whose bounds are of f itself in place of E f; None: there is none.

        Each of its bounds holds at every x of a box, but for weights of a probability of at most twice that of a
        Gaussian below minus so many deviations.
        """
        ...

    def before(self, number: int) -> BranchablePass | None:
        """The pass whose outputs are what goes into an activation; None if that is not a layer with weights."""
        ...

    def branching_scores(self, rows: Tensor, slopes: Slopes, worst: Tensor) -> list[Tensor]:
        """What an unknown sign costs the row ``worst`` (batch,), about: (batch, n) for each hidden layer.

        Minus infinity where the sign is known.
        """
        ...

    def covariance(self, left: Tensor, right: Tensor) -> Tensor:
        """Upper bounds (batch, rows) of ``Cov(left . f(x), right . f(x))``; rows (batch, rows, outputs) both."""
        ...

    def restricted(
        self,
        owner: Tensor,
        signs: tuple[Tensor, ...],
        cut: HalfSpace | None = None,
        ranges: tuple[Interval, ...] = (),
        anew: tuple[Tensor, ...] = (),
    ) -> BranchablePass:
        """The pass on cells (cells,) of the boxes ``owner``; signs (cells, n) of -1, 0, 1 for each hidden layer.

        Only x in the half-spaces ``cut`` (cells,) are asked about, if there are some. With ``ranges`` of the means
        before each activation, which hold on larger cells, only those of the neurons ``anew`` (cells, n) are bounded
        anew, if any.
        """
        ...


@dataclass(frozen=True)
class Wrapped:
    """A pass that answers as ``inner`` does, but for what a subclass changes."""

    inner: Pass

    @property
    def box(self) -> Box:
        """The boxes of x."""
        return self.inner.box

    @property
    def name(self) -> str:
        """Of the engine."""
        return self.inner.name

    @property
    def moments(self) -> bool:
        """Whether there are bounds of any rows and of their variances."""
        return self.inner.moments

    @property
    def random(self) -> bool:
        """Whether the outputs vary at all."""
        return self.inner.random

    @property
    def gaussian(self) -> bool:
        """Whether the outputs are Gaussian."""
        return self.inner.gaussian

    @property
    def tailed(self) -> bool:
        """Whether there are exponential moments of the margins."""
        return self.inner.tailed

    @property
    def costly_tails(self) -> bool:
        """Whether these cost many times a pass."""
        return self.inner.costly_tails

    @property
    def branchable(self) -> BranchablePass | None:
        """The pass on whose cells a decision can be branched."""
        return self.inner.branchable

    def affine(self, rows: Tensor) -> Planes:
        """Functions of x below ``rows . E f(x)``."""
        return self.inner.affine(rows)

    def least(self, rows: Tensor) -> Tensor:
        """Lower bounds of ``rows . E f(x)``."""
        return self.inner.least(rows)

    def variance(self, rows: Tensor, at: Tensor | None = None) -> Tensor:
        """Upper bounds of ``Var(rows . f(x))``."""
        return self.inner.variance(rows, at)

    def output_variance(self) -> Interval:
        """Bounds of the variance of each output."""
        return self.inner.output_variance()

    def tails(self, at: Tensor, label: Tensor, margins: Margins) -> Tensor:
        """Upper bounds of ``E sigma(-D_j)``."""
        return self.inner.tails(at, label, margins)

    def softmax(self, rows: Tensor) -> Tensor | None:
        """Lower bounds of ``rows . E softmax``."""
        return self.inner.softmax(rows)


def both_signs(outputs: int, box: Box) -> Tensor:  # (2 outputs, outputs)
    """The rows of every output, then of their negatives: lower bounds of these are upper bounds."""
    one = torch.eye(outputs, dtype=box.lower.dtype, device=box.lower.device)
    return torch.cat([one, -one])


def known(lower: Tensor) -> Tensor:
    """Minus infinity for whatever is NaN or has overflowed."""
    return torch.where(lower.isfinite(), lower, -torch.inf)


def finite(affine: Affine) -> Affine:
    """The same, with minus infinity for functions with a NaN coefficient."""
    fine = affine.offset.isfinite() & affine.matrix.sum(-1).isfinite()  # a sum is finite only if its terms are
    if bool(fine.all()):
        return affine
    return Affine(torch.where(fine[..., None], affine.matrix, 0.0), torch.where(fine, affine.offset, -torch.inf))


def movable(tangent: Tensor, mean: Interval) -> Tensor:  # (batch, rows, n), (batch, n)
    """Tangent points from which an ascent begins: pulled to where the slope still moves, if either sign is possible."""
    either = ((mean.lower < 0) & (mean.upper > 0))[:, None]
    return torch.where(either, tangent.clamp(-_MOVABLE, _MOVABLE), tangent)
