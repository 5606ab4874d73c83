"""The dynamic program backwards: affine bounds of rows of E z_k, carried through the layers down to x.

A lower bound ``A @ E z_k + c`` meets the affine bounds of E z_k in the means of the layer, positive coefficients with
the lower and negative ones with the upper bound, and so on down to the input (Theorem ``Theorem:ValueIteration`` with
the relaxations of docs/theory.md). Upper bounds are lower bounds of the negated rows. What rounding may add at each
step is taken off the constant at once, with the magnitude of the quantities on the box as its scale.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.dense.first import FirstLayer, Planes
from bnndp.engine.dense.records import Relaxation, of_boxes
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box, apply_rows
from bnndp.layers import Linear
from bnndp.maths.rounding import TINY, gamma

__all__ = ["Choice", "Ground", "Relaxed", "least", "lower_bound", "narrowed"]

_CACHED, _HELD = 2**23, 2**28  # bytes of the matrices made at a time: in the caches of a CPU, on another device
_PIECES = 8  # at least so many, so that boxes of which little is asked are not carried along with others

Relaxed = Sequence[tuple[Linear, Relaxation, Tensor]]
"""Of the hidden layers 2 to k: the layer, its relaxation and the scale ``|W| E z + |b|`` of its means (batch, n)."""


@dataclass(frozen=True, slots=True)
class Choice:
    r"""What may be chosen for each row without losing soundness; of the hidden layers 1 to k, (batch, rows, n) or None.

    ``tangents`` are the tangent points u of the lower planes; None: those of the layer. ``multipliers`` belong to cells
    on which the sign of some means M_i is known: :math:`\beta_i\ge0` times that sign. Where :math:`\pm M_i(x)\ge0`,
    a lower bound of :math:`f-\beta_i(\pm M_i)` is one of f (Lagrange; Wang et al. 2021, beta-CROWN).
    """

    tangents: Sequence[Tensor | None] = ()
    multipliers: Sequence[Tensor | None] = ()

    def of(self, k: int) -> tuple[Tensor | None, Tensor | None]:
        """Tangents and multipliers of hidden layer k, counted from zero."""
        return (
            self.tangents[k] if k < len(self.tangents) else None,
            self.multipliers[k] if k < len(self.multipliers) else None,
        )


@dataclass(frozen=True, slots=True)
class _Sum:
    """Rows as ``alpha . m(x) + beta . q(x) + offset + dense @ x`` of the first layer (see ``first.py``)."""

    alpha: Tensor  # (batch, rows, n_1)
    beta: Tensor  # (batch, rows, n_1)
    offset: Tensor  # (batch, rows)
    dense: Tensor | None  # (batch, rows, n_in), or None for zero


@dataclass(frozen=True, slots=True)
class _Around:
    """The planes of the first layer, what they are in at the centre of each box, and how far the box reaches."""

    planes: Planes
    centre: Tensor  # (batch, n_in): c of ``first.py``
    half: Tensor  # (batch, n_in): the half-widths
    m: Tensor  # (batch, n_1): m(x) at the centre of the box
    q: Tensor  # (batch, n_1): q(x) there


class _Place:
    """Room for two matrices that are made again and again."""

    def __init__(self) -> None:
        self._numbers: Tensor | None = None

    def of(self, like: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Two matrices of any numbers, in the same memory as those before."""
        if self._numbers is None or self._numbers.shape[1] < rows * columns:
            self._numbers = like.new_empty(2, rows * columns)
        first, second = (part[: rows * columns].view(rows, columns) for part in self._numbers)
        return first, second


@dataclass(frozen=True, slots=True)
class Ground:
    """Where rows that are carried down end: the first layer on the boxes, and room for the matrices of a few."""

    first: FirstLayer
    box: Box
    around: _Around
    place: _Place

    @classmethod
    def of(cls, first: FirstLayer, box: Box) -> "Ground":
        """Of the boxes on which ``first`` was relaxed."""
        layer, at = first.layer, box.centre
        q = apply_rows(layer.weight_std.square(), first.centre * at)
        m = apply_rows(layer.weight_mean, at) + layer.bias_mean
        return cls(first, box, _Around(first.planes(), first.centre, box.half, m, q), _Place())


def least(
    weight: Tensor,  # (rows, n_k), or (batch, rows, n_k)
    bias: Tensor,  # (rows,) or (batch, rows)
    relaxed: Relaxed,
    ground: Ground,
    asked: Tensor | None = None,  # (batch, rows) of booleans; None: all
) -> Tensor:  # (batch, rows)
    """What ``weight @ E z_k + bias`` is at least on each box; minus infinity for rows that nobody asks for.

    The affine functions are made a few boxes at a time, as their matrices are much larger than anything else in a pass:
    those of a piece stay in the caches, all pieces in the same place. On balls, and where planes have a dense part, all
    rows are carried down.
    """
    first, box = ground.first, ground.box
    simple = box.within is None and first.upper.dense is None
    asked = asked if simple else None
    best = torch.full((box.batch, weight.shape[-2]), -torch.inf, dtype=weight.dtype, device=weight.device)
    for at, row in _pieces(best if asked is None else asked, asked is None, max(box.n, weight.shape[-1])):
        own = [(layer, of_boxes(relaxation, at), scale[at]) for layer, relaxation, scale in relaxed]
        if not simple:
            affine = lower_bound(*_rows_of(weight, bias, at, row), own, of_boxes(first, at), box[at])
            best[at] = box[at].minimum(affine.matrix, affine.offset)
            continue
        around = of_boxes(ground.around, at)
        matrix, constant = _carried(*_rows_of(weight, bias, at, row), own)
        found = _onto_first(matrix, constant, around.planes, terms=2 * box.n + 16)
        value = _least_on_box(found, first.layer, around, ground.place)
        best[at] = value if row is None else best[at].scatter(1, row, value)
    return best if asked is None else best.masked_fill(~asked, -torch.inf)  # whatever other boxes are in the batch


def _pieces(asked: Tensor, every: bool, n: int) -> Iterator[tuple[slice | Tensor, Tensor | None]]:
    """Boxes that go together, and the rows (boxes, rows) asked of each; None: ``every`` row.

    Boxes of which more is asked come first, so that those of a piece have about as many rows; a box with fewer than its
    neighbours gets some that nobody asked for.
    """
    batch, rows = asked.shape
    most = (_CACHED if asked.device.type == "cpu" else _HELD) // (8 * n)
    if every:
        size = max(1, most // rows)
        yield from ((slice(start, min(start + size, batch)), None) for start in range(0, batch, size))
        return
    count, order = asked.sum(-1).sort(descending=True)
    counts, start = count.tolist(), 0
    while start < batch and counts[start]:
        size = min(max(1, most // counts[start]), -(-batch // _PIECES))
        at = order[start : start + size]
        yield at, asked[at].byte().argsort(dim=-1, descending=True, stable=True)[:, : counts[start]]
        start += size


def _rows_of(weight: Tensor, bias: Tensor, at: slice | Tensor, row: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights and biases of the rows ``row`` (boxes, rows) of the boxes ``at``; None: of all rows."""
    if row is None:
        return weight if weight.ndim == 2 else weight[at], bias if bias.ndim == 1 else bias[at]
    if weight.ndim == 2:
        return weight[row], bias[row]
    return weight[at].gather(1, row[..., None].expand(-1, -1, weight.shape[-1])), bias[at].gather(1, row)


def narrowed(rows: Linear, relaxed: Relaxed, ground: Ground, known: Interval, dead: Tensor) -> Interval:
    """The ranges ``known`` of the means of a layer, cut down by its rows carried to x.

    Upper ends come first; where one is below ``dead``, nobody needs to know it any better: (batch, n) each.
    """
    weight, bias = rows.weight_mean, rows.bias_mean
    high = torch.minimum(known.upper, -least(-weight, -bias, relaxed, ground, ~(known.upper < dead)))
    low = torch.maximum(known.lower, least(weight, bias, relaxed, ground, ~(high < dead)))
    return Interval(low, high)


def lower_bound(
    weight: Tensor,  # (rows, n_k), or (batch, rows, n_k)
    bias: Tensor,  # (rows,) or (batch, rows)
    relaxed: Relaxed,
    first: FirstLayer,
    box: Box,
    choice: Choice | None = None,
) -> Affine:
    """An affine function of x below ``weight @ E z_k + bias`` on the box (or cell); differentiable in the choice."""
    choice = choice or Choice()
    matrix, constant = _carried(weight, bias, relaxed, choice)
    tangent, multiplier = choice.of(0)
    found = _onto_first(matrix, constant, first.planes(tangent))
    layer, alpha, offset = first.layer, found.alpha, found.offset
    if multiplier is not None:
        alpha = alpha - multiplier
        m_size = apply_rows(layer.weight_mean.abs(), box.magnitude) + layer.bias_mean.abs()
        lost = apply_rows(multiplier.abs(), m_size) * 1.001  # the size itself is rounded
        offset = offset - gamma(4 * layer.n_out + 16) * lost
    slope = torch.addcmul(alpha @ layer.weight_mean, found.beta @ layer.weight_std.square(), first.centre[:, None])
    if found.dense is not None:
        slope = slope + found.dense
    return Affine(slope, offset + alpha @ layer.bias_mean)


def _carried(matrix: Tensor, constant: Tensor, relaxed: Relaxed, choice: Choice | None = None) -> tuple[Tensor, Tensor]:
    """Rows of E z_k as rows of the outputs of the first layer, each below: (rows, n) or (batch, rows, n), constants."""
    choice = choice or Choice()
    for k in range(len(relaxed), 0, -1):
        layer, relaxation, scale = relaxed[k - 1]
        tangent, multiplier = choice.of(k)
        matrix, constant = _through_relu(matrix, constant, relaxation, tangent)
        if multiplier is not None:
            matrix = matrix - multiplier
        matrix, constant = _through_linear(matrix, constant, layer, scale)
    return matrix, constant


def _through_relu(
    matrix: Tensor, constant: Tensor, relaxation: Relaxation, tangent: Tensor | None
) -> tuple[Tensor, Tensor]:
    positive, negative = matrix.clamp_min(0), matrix.clamp_max(0)
    low_slope, low_offset = relaxation.lower(tangent)
    slope = positive * low_slope + negative * relaxation.upper_slope[:, None]
    offset = (positive * low_offset).sum(-1) + apply_rows(negative, relaxation.upper_offset)
    lost = apply_rows(positive - negative, relaxation.size) + constant.abs()
    return slope, constant + offset - gamma(2 * matrix.shape[-1] + 8) * lost - TINY


def _through_linear(matrix: Tensor, constant: Tensor, layer: Linear, scale: Tensor) -> tuple[Tensor, Tensor]:
    lost = apply_rows(matrix.abs(), scale) + constant.abs()
    shifted = constant + matrix @ layer.bias_mean - gamma(layer.n_out + 8) * lost - TINY
    return matrix @ layer.weight_mean, shifted


def _onto_first(matrix: Tensor, constant: Tensor, planes: Planes, *, terms: int = 0) -> _Sum:
    """Rows of the outputs of the first layer by its planes; the constant also covers ``terms`` further roundings.

    Four sums of n_1 products are covered, whose terms are all within ``planes.size``: of the offsets here, and of the
    slopes and the value at a point that the caller takes of alpha and beta.
    """
    positive, negative = matrix.clamp_min(0), matrix.clamp_max(0)
    low, high = planes.lower, planes.upper
    alpha = torch.addcmul(positive * low.alpha, negative, high.alpha[:, None])
    beta = torch.addcmul(positive * low.beta, negative, high.beta[:, None])
    offset = torch.addcmul(positive * low.offset, negative, high.offset[:, None]).sum(-1)
    lost = _dots(positive - negative, planes.size) + constant.abs()
    offset = constant + offset - gamma(4 * matrix.shape[-1] + 16 + terms) * lost - TINY
    return _Sum(alpha, beta, offset, None if high.dense is None else negative @ high.dense)


def _least_on_box(found: _Sum, layer: Linear, around: _Around, place: _Place) -> Tensor:
    r"""The value at the centre less :math:`\sum_j|\text{slope}_j|e_j`, e the half-widths: (batch, rows).

    The sizes of all terms at the centre and of all that may be lost from there to the edge add up to those at a point
    of the box: ``|c| + e`` is the largest ``|x|``. The ``2 n_in`` roundings of both sums are in the offset already.
    """
    batch, rows, n = found.alpha.shape
    slope, bend = place.of(found.alpha, batch * rows, layer.n_in)
    torch.mm(found.alpha.reshape(-1, n), layer.weight_mean, out=slope)
    torch.mm(found.beta.reshape(-1, n), layer.weight_std.square(), out=bend)
    slope, bend = (part.view(batch, rows, -1) for part in (slope, bend))
    reach = slope.addcmul_(bend, around.centre[:, None]).abs_().mul_(around.half[:, None]).sum(-1)
    return found.offset + _dots(found.alpha, around.m) + _dots(found.beta, around.q) - reach


def _dots(matrix: Tensor, x: Tensor) -> Tensor:
    """The same as ``apply_rows``, but quicker for short rows of each box than a product of a matrix and a vector."""
    return x @ matrix.mT if matrix.ndim == 2 else (matrix * x[:, None]).sum(-1)
