r"""Mixtures: weighted sums over the members of an ensemble, affine in x, added before they are minimised over a box.

:math:`\min_x\sum_kw_kf_k(x)\ge\sum_kw_k\min_xf_k(x)`, and the left side needs functions of x that can be added: affine
ones (Adams et al. 2023, remark on ensembles). A network is a mixture of one member. Members that are alike go through
one pass together: every box is repeated for each of them, member by member, and the weights of the layers get an axis
of members (``laws/stacked.py``).

The members' weights have a sum of one up to :math:`2^{-51}`; what that changes is covered like rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine.protocol import Pass, Planes
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box
from bnndp.maths.rounding import TINY, gamma


@dataclass(frozen=True, slots=True)
class Part:
    """Members that go through a pass together: its batch holds all boxes of the first, then of the second."""

    weights: Tensor  # (members,)
    bounds: Pass

    def again(self, values: Tensor) -> Tensor:  # (batch, ...) -> (members * batch, ...)
        """What is asked of every box, for each member."""
        count = len(self.weights)
        return values if count == 1 else values.repeat(count, *(1,) * (values.ndim - 1))


@dataclass(frozen=True, slots=True)
class Mixture:
    """The passes over the members of a mixture on some boxes, made one after the other whenever they are asked for."""

    box: Box
    outputs: int
    members: int  # of positive weight
    capacity: int  # boxes of one member that fit the memory
    passes: Callable[[Box, bool], Iterator[Part]]  # of boxes, and whether members may go together

    @property
    def several(self) -> bool:
        """Whether there is anything to add."""
        return self.members > 1

    def parts(self) -> Iterator[Part]:
        """The members, some at a time."""
        return self.passes(self.box, True)

    def one_by_one(self) -> Iterator[Part]:
        """The members, each by itself."""
        return self.passes(self.box, False)

    def alone(self) -> Pass:
        """The pass over the only member."""
        return next(self.parts()).bounds

    def __getitem__(self, index: Tensor) -> Mixture:
        """The mixture on the boxes at ``index``."""
        return replace(self, box=self.box[index])

    def affine(self, rows: Tensor) -> Planes:  # (rows, outputs)
        """Functions of x below the mean of ``rows . f(x)`` over members and posteriors, as of ``Pass.affine``."""
        if not self.several:
            return self.alone().affine(rows)
        total, names = LowerSum.zero(self.box, rows.shape[-2]), []
        for part in self.parts():
            planes = part.bounds.affine(rows)
            total = total.plus(part.weights, of_affine(planes.affine, part.bounds.box))
            names.append(planes.method[: self.box.batch])
        plane = total.rounded()
        each = (sorted({word for name in of_box for word in name.split("+")}) for of_box in zip(*names, strict=True))
        least = self.box.minimum(plane.matrix, plane.offset)
        return Planes(plane, least, tuple("+".join(words) for words in each))


def summed(weights: Tensor, values: Tensor) -> Tensor:  # (members,), (members * batch, ...) -> (batch, ...)
    """The weighted sum over members whose values stand one member after the other."""
    return torch.tensordot(weights, values.unflatten(0, (len(weights), -1)), 1)


@dataclass(frozen=True, slots=True)
class LowerSum:
    """A running sum of affine functions of x, each below some f_k, with the size of its terms on the box."""

    matrix: Tensor  # (batch, rows, n)
    offset: Tensor  # (batch, rows)
    size: Tensor  # (batch, rows): the sum of |weight| (|matrix| |x| + |offset|) over all terms
    terms: int = 0  # number of terms in the longest sum of products

    @classmethod
    def zero(cls, box: Box, rows: int) -> LowerSum:
        """Nothing yet."""
        flat = box.lower.new_zeros(box.batch, rows)
        return cls(box.lower.new_zeros(box.batch, rows, box.n), flat, flat)

    def plus(self, weights: Tensor, part: LowerSum) -> LowerSum:
        """With the ``weights`` (members,) times the sums of that many members, of batch members * batch.

        Negative weights turn functions above into functions below.
        """
        return LowerSum(
            self.matrix + summed(weights, part.matrix),
            self.offset + summed(weights, part.offset),
            self.size + summed(weights.abs(), part.size),
            self.terms + len(weights) * (part.terms + 1),
        )

    def rounded(self) -> Affine:
        """Functions that are below the exact sum for every x of the box; minus infinity where that is NaN."""
        offset = self.offset - gamma(4 * self.terms + 64) * self.size - TINY
        fine = offset.isfinite() & self.matrix.isfinite().all(-1)
        return Affine(torch.where(fine[..., None], self.matrix, 0.0), torch.where(fine, offset, -torch.inf))


def of_affine(part: Affine, box: Box) -> LowerSum:
    """One affine function as a sum."""
    return LowerSum(part.matrix, part.offset, plane_size(part, box))


def plane_size(plane: Affine, box: Box) -> Tensor:
    """An upper bound of |matrix| |x| + |offset| on the box, for rounding errors: (batch, rows)."""
    largest = box.magnitude.amax(-1, keepdim=True) * (1 + gamma(box.n + 8))
    return torch.linalg.vector_norm(plane.matrix, ord=1, dim=-1) * largest + plane.offset.abs()


def weighted_interval(parts: Iterable[tuple[Tensor, Interval]]) -> Interval:
    """The weighted sum of intervals of non-negative numbers, rounded outward.

    A part has weights (members,) and an interval of batch members * batch.
    """
    pairs = list(parts)
    slack = gamma(2 * sum(len(weights) for weights, _ in pairs) + 16)
    low = torch.stack([summed(weights, part.lower) for weights, part in pairs]).sum(0)
    high = torch.stack([summed(weights, part.upper) for weights, part in pairs]).sum(0)
    return Interval((low * (1 - slack) - TINY).clamp_min(0), high * (1 + slack) + TINY)
