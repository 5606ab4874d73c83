r"""The pass for plain networks without variance: planes of the ReLUs, rows carried down to x, and no moments.

With nothing random f(x) is a ReLU network, and what is left of the moment method are the planes of CROWN (Zhang et al.
2018): where a pre-activation y has values on both sides of zero on the box, :math:`l<0<u`,

.. math:: a\,y\ \le\ \max(y,0)\ \le\ s\,y+t,\qquad s=u/(u-l),\quad t=-s\,l,\quad a=[u>-l],

and elsewhere the ReLU is a line. Every row :math:`m\cdot z+c` of a layer's output z is bounded from below by taking the
lower plane where m is positive and the upper one where it is negative, layer by layer down to x; upper bounds are
lower bounds of the negated rows. The range of a pre-activation is the intersection of that with interval arithmetic.
A range that interval arithmetic keeps on one side of zero is not refined: its ReLU is a line whatever the range.

Rounding. Let P be the coefficients of :math:`y=Wz+b` after the planes, :math:`|P|\le|m|\max(a,s)`. What is computed for
:math:`P\cdot y+\min(m,0)\cdot t` differs from it by at most :math:`\gamma\,|m|\cdot e`, where :math:`e=\max(a,s)
(|W|\,|z|+|b|)+t` is taken at the largest values on the box and :math:`\gamma` counts the operations (``_Hinges``); what
underflow adds is below ``TINY`` times the sizes that the coefficients meet. Both are taken off at once. A number that
overflowed is no bound: it becomes an infinite end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.activations import Relu
from bnndp.engine.dense.output import OutputRows, interval_mean, lowered_bias, output_rows
from bnndp.engine.general.general_pass import GeneralPass
from bnndp.engine.protocol import BranchablePass, Margins, Planes, finite, known
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box, apply_rows
from bnndp.layers import Linear
from bnndp.maths.rounding import TINY, UNIT, gamma
from bnndp.network import BayesianNetwork

__all__ = ["CertainPass"]

_CACHED = 2**24  # bytes of the largest matrix held at a time on a CPU; fresh pages for larger ones cost more than sums
_FEW = 0.9  # of the rows of a layer: if no box needs more, rows are picked


@dataclass(frozen=True, eq=False)
class CertainPass:
    """Bounds of a chain of Linear and Relu with at least one hidden layer and no variance anywhere."""

    name: ClassVar[str] = "moment"
    moments: ClassVar[bool] = True
    random: ClassVar[bool] = False
    gaussian: ClassVar[bool] = False
    tailed: ClassVar[bool] = False
    costly_tails: ClassVar[bool] = False

    linears: tuple[Linear, ...]
    box: Box

    @cached_property
    def _chain(self) -> list[_Hinges]:
        return _chain(self.linears[:-1], self.box)

    @property
    def branchable(self) -> BranchablePass | None:
        """The general pass, whose planes can be climbed; it is begun only if it is asked."""
        layers = [record for layer in self.linears[:-1] for record in (layer, Relu())]
        return GeneralPass.of(BayesianNetwork((*layers, self.linears[-1])), self.box)

    def affine(self, rows: Tensor) -> Planes:
        """By the rows carried down to x, and by the ranges of the last hidden layer."""
        outputs = output_rows(self.linears[-1], rows)
        bias = lowered_bias(outputs, self._chain[-1].after)
        found = _affine(outputs.weight, bias, self._chain, self.box)
        planes = self.box.minimum(found.matrix, found.offset)
        return Planes(found, self._with_interval(planes, outputs), (self.name,) * self.box.batch)

    def least(self, rows: Tensor) -> Tensor:
        """The same without the functions."""
        outputs = output_rows(self.linears[-1], rows)
        bias = lowered_bias(outputs, self._chain[-1].after)
        return self._with_interval(_least(outputs.weight, bias, self._chain, self.box), outputs)

    def _with_interval(self, planes: Tensor, outputs: OutputRows) -> Tensor:
        return torch.maximum(known(planes), known(interval_mean(outputs, self._chain[-1].after)))

    def variance(self, rows: Tensor) -> Tensor:
        """There is none."""
        return self.box.lower.new_zeros(self.box.batch, rows.shape[-2])

    def output_variance(self) -> Interval:
        """There is none."""
        none = self.box.lower.new_zeros(self.box.batch, self.linears[-1].n_out)
        return Interval(none, none)

    def tails(self, at: Tensor, label: Tensor, margins: Margins) -> Tensor:
        """Two moments say all."""
        return torch.ones_like(margins.mean)

    def softmax(self, rows: Tensor) -> Tensor | None:
        """Only by margins."""
        return None


@dataclass(frozen=True, slots=True)
class _Constants:
    """All that a row m adds to its constant on the way through a layer: ``m . all + min(m, 0) . negative``."""

    all: Tensor  # (batch, n): a b - g e
    negative: Tensor  # (batch, n): t + (s - a) b + 2 g e

    def __getitem__(self, part: slice) -> _Constants:
        return _Constants(self.all[part], self.negative[part])


@dataclass(frozen=True, slots=True)
class _Hinges:
    """A hidden layer ``y = W z + b`` and the planes of its ReLUs on the boxes."""

    weight: Tensor  # (n, n_below)
    slope: Tensor  # (batch, n): a
    step: Tensor  # (batch, n): s - a
    constants: _Constants
    at_centre: _Constants  # of the first layer: with W c + b in the place of b, c the centre of the box
    underflow: Tensor  # (batch, 1): what may vanish of coefficients that meet y and z
    after: Interval  # (batch, n): ReLU(y)

    def __getitem__(self, part: slice) -> _Hinges:
        """Those of some boxes."""
        return _Hinges(
            self.weight,
            self.slope[part],
            self.step[part],
            self.constants[part],
            self.at_centre[part],
            self.underflow[part],
            Interval(self.after.lower[part], self.after.upper[part]),
        )


def _chain(hidden: Sequence[Linear], box: Box) -> list[_Hinges]:
    """All hidden layers, first to last."""
    below, chain = Interval(box.lower, box.upper), list[_Hinges]()
    for layer in hidden:
        size = below.magnitude
        scale = apply_rows(layer.weight_mean.abs(), size) + layer.bias_mean.abs()
        y = _interval(layer, below, scale, size)
        y = _refined(layer, y, chain, box) if chain else _in_ball(layer, y, box)
        chain.append(_hinges(layer, y, scale, size, None if chain else _middle(box.lower, box.upper)))
        below = chain[-1].after
    return chain


def _interval(layer: Linear, below: Interval, scale: Tensor, size: Tensor) -> Interval:
    """Ranges of the pre-activations by interval arithmetic."""
    middle = 0.5 * below.lower + 0.5 * below.upper
    reach = torch.maximum(below.upper - middle, middle - below.lower)
    value = apply_rows(layer.weight_mean, middle) + layer.bias_mean
    spread = apply_rows(layer.weight_mean.abs(), reach)
    spread = spread + gamma(3 * layer.n_in + 16) * scale + TINY * (1 + size.sum(-1, keepdim=True))
    return Interval(known(value - spread), -known(-value - spread))


def _in_ball(layer: Linear, y: Interval, box: Box) -> Interval:
    """Ranges of the first layer with what is known of a ball."""
    if box.within is None:
        return y
    return _meet(y, box.minimum(_both(layer.weight_mean), _both(layer.bias_mean)))


def _refined(layer: Linear, coarse: Interval, chain: list[_Hinges], box: Box) -> Interval:
    """Ranges with the rows carried down to x, of those that may have either sign: whatever the other boxes are."""
    either = (coarse.lower < 0) & (coarse.upper > 0)  # (batch, n)
    most = int(either.sum(-1).amax())
    if most == 0:
        return coarse
    if most > _FEW * layer.n_out:
        found = _meet(coarse, _least(_both(layer.weight_mean), _both(layer.bias_mean), chain, box))
    else:
        at = either.to(torch.uint8).topk(most, -1).indices  # (batch, most): those of each box, and others to fill it up
        least = _least(layer.weight_mean, layer.bias_mean, chain, box, at)
        some = _meet(Interval(coarse.lower.gather(-1, at), coarse.upper.gather(-1, at)), least)
        found = Interval(coarse.lower.scatter(-1, at, some.lower), coarse.upper.scatter(-1, at, some.upper))
    return Interval(torch.where(either, found.lower, coarse.lower), torch.where(either, found.upper, coarse.upper))


def _meet(y: Interval, least: Tensor) -> Interval:  # (batch, 2 n)
    """The intersection with lower bounds of y and of -y."""
    low, negated = known(least).chunk(2, -1)
    return Interval(torch.maximum(y.lower, low), torch.minimum(y.upper, -negated))


def _hinges(layer: Linear, y: Interval, scale: Tensor, size: Tensor, middle: Tensor | None) -> _Hinges:
    """The planes on the ranges y, with ``scale`` = |W| |z| + |b| and ``size`` = |z| at most."""
    low, high = y.lower, y.upper
    on, off = low >= 0, high <= 0
    s = torch.where(off, 0.0, torch.where(on, 1.0, high / (high - low)))
    a = torch.where(~off & (on | (high > -low)), 1.0, 0.0)
    ends = torch.maximum(-s * low, high - s * high)  # the line must be above the ReLU at both ends, whatever s
    t = torch.where(on | off, 0.0, ends + gamma(8) * y.magnitude + TINY)
    lost = torch.maximum(a, s) * scale + t + TINY
    lost = lost * gamma(3 * layer.n_out + 32 + (0 if middle is None else layer.n_in))

    def constants(bias: Tensor) -> _Constants:
        return _Constants(a * bias - lost, t + (s - a) * bias + 2 * lost)

    usual = constants(layer.bias_mean)
    centred = usual if middle is None else constants(apply_rows(layer.weight_mean, middle) + layer.bias_mean)
    underflow = TINY * (1 + size.sum(-1, keepdim=True) + y.magnitude.sum(-1, keepdim=True))
    after = Interval(low.clamp_min(0), high.clamp_min(0))
    return _Hinges(layer.weight_mean, a, s - a, usual, centred, underflow, after)


def _least(
    weight: Tensor,  # (rows, n) or (batch, rows, n)
    bias: Tensor,  # (rows,) or (batch, rows)
    chain: list[_Hinges],
    box: Box,
    picked: Tensor | None = None,  # (batch, some)
) -> Tensor:
    """Lower bounds (batch, rows) of ``weight @ z + bias`` on each box, z the output of the chain.

    With ``picked`` those of the rows that are named for each box, and then those of their negatives.
    """
    count = weight.shape[-2] if picked is None else 2 * picked.shape[-1]
    found = []
    for part in _pieces(box, count, chain):
        rows, below = _rows(weight, bias, picked, part), [hinges[part] for hinges in chain]
        if box.within is None:
            found.append(_least_on_box(rows, below, box.lower[part], box.upper[part]))
        else:
            affine = _carried(rows, below)
            found.append(box[part].minimum(affine.matrix, affine.offset))
    return known(torch.cat(found))


def _affine(weight: Tensor, bias: Tensor, chain: list[_Hinges], box: Box) -> Affine:
    """Affine functions of x below ``weight @ z + bias``, as of :func:`_least`; minus infinity where there is none."""
    pieces = _pieces(box, weight.shape[-2], chain)
    parts = [_carried(_rows(weight, bias, None, part), [hinges[part] for hinges in chain]) for part in pieces]
    return finite(Affine(torch.cat([part.matrix for part in parts]), torch.cat([part.offset for part in parts])))


def _pieces(box: Box, rows: int, chain: list[_Hinges]) -> Iterator[slice]:
    """Slices of the batch for which so many rows fit the cache."""
    widest = max(box.n, *(hinges.weight.shape[0] for hinges in chain))
    size = max(1, _CACHED // (8 * rows * widest)) if box.lower.device.type == "cpu" else box.batch
    return (slice(start, min(start + size, box.batch)) for start in range(0, box.batch, size))


def _rows(weight: Tensor, bias: Tensor, picked: Tensor | None, part: slice) -> tuple[Tensor, Tensor]:
    """The rows and their constants for some boxes."""
    if picked is None:
        return weight if weight.ndim == 2 else weight[part], bias if bias.ndim == 1 else bias[part]
    return _both(weight[picked[part]], 1), _both(bias[picked[part]], 1)


def _least_on_box(rows: tuple[Tensor, Tensor], chain: list[_Hinges], lower: Tensor, upper: Tensor) -> Tensor:
    """The value at the centre of each box less what x may add to it: the last and largest matrix is read only once."""
    first, middle = chain[0], _middle(lower, upper)
    matrix, constant = _down(rows, chain)
    matrix, constant = _through(matrix, constant, first, first.at_centre)
    slope = torch.mm(matrix.flatten(0, 1), first.weight).abs_()
    spread = apply_rows(slope.unflatten(0, matrix.shape[:2]), torch.maximum(upper - middle, middle - lower))
    return constant - (1 + gamma(lower.shape[-1] + 16)) * spread


def _carried(rows: tuple[Tensor, Tensor], chain: list[_Hinges]) -> Affine:
    """Affine functions of x below the rows."""
    matrix, constant = _down(rows, chain)
    matrix, constant = _through(matrix, constant, chain[0], chain[0].constants)
    return Affine(matrix @ chain[0].weight, constant)


def _down(rows: tuple[Tensor, Tensor], chain: list[_Hinges]) -> tuple[Tensor, Tensor]:
    """The rows in terms of the output of the first layer."""
    matrix, constant = rows
    for hinges in reversed(chain[1:]):
        matrix, constant = _through(matrix, constant, hinges, hinges.constants)
        matrix = matrix @ hinges.weight
    return matrix, constant


def _through(matrix: Tensor, constant: Tensor, hinges: _Hinges, constants: _Constants) -> tuple[Tensor, Tensor]:
    """Coefficients (batch, rows, n) of y in the place of those of ReLU(y), (batch, rows, n) or (rows, n)."""
    negative = matrix.clamp_max(0)
    added = apply_rows(matrix, constants.all) + apply_rows(negative, constants.negative)
    slopes = torch.addcmul(matrix * hinges.slope[:, None], negative, hinges.step[:, None])
    return slopes, constant + added - 4 * UNIT * constant.abs() - hinges.underflow


def _middle(lower: Tensor, upper: Tensor) -> Tensor:
    return (0.5 * lower + 0.5 * upper).clamp(lower, upper)


def _both(rows: Tensor, dim: int = 0) -> Tensor:
    """Rows, then their negatives."""
    return torch.cat([rows, -rows], dim)
