r"""The numbers of a proof by a chain of boxes (docs/certificates.md, section 2), for a batch of boxes at once.

The steps are those of ``bnndp_checker.chain``. Every number is moved outward by far more than rounding; nothing here
has to be trusted, because the checker proves each of them again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from bnndp.certificates.curves import RELU, Curve, Lines, curve_of
from bnndp.certificates.maps import SLACK, Map, Sides, map_of
from bnndp.certificates.tilted import log_lines
from bnndp.errors import UnsupportedLayerError
from bnndp.layers import WEIGHTED, AveragePool, Branched, Concatenate, Dropout, Flatten, MaxPool
from bnndp.maths.normal import pdf
from bnndp.network import Layer, is_activation

__all__ = ["Chain", "Form", "chain_of"]


@dataclass(slots=True)
class Form:
    """Rows of z with constants, and the variances of a part that is not affine."""

    rows: Tensor  # (batch, rows, n)
    constants: Tensor  # (batch, rows)
    squares: Tensor  # (batch, rows)

    def through(self, mean: Tensor, bias: Tensor) -> None:
        """Put ``z = mean @ y + bias``."""
        self.constants = self.constants + self.rows @ bias
        self.rows = self.rows @ mean


class Step(Protocol):
    """One step of the chain; it knows how to carry forms back, and the numbers that prove it."""

    def back(self, form: Form) -> None: ...

    def numbers(self, index: int) -> dict[str, Any] | None: ...


@dataclass(slots=True)
class Fused:
    """A layer with Gaussian weights and the activation after it; or either of them alone."""

    layer: Map | None
    box: Sides
    mean: Sides  # of the means of the pre-activation
    std: tuple[Tensor, Tensor]  # least and largest
    above: Lines | None
    below: Lines | None
    middle: Tensor
    wide: Tensor
    lost: float  # what clipping may change in a mean, in units of the standard deviation
    rectified: bool = False  # independent ReLUs

    def back(self, form: Form) -> None:
        if self.layer is not None:
            most = self.std[1]
            form.squares = form.squares + self.layer.spread(form.rows, self.middle, self.wide, most, self.box)
        if self.above is not None and self.below is not None:
            positive, negative = form.rows.clamp_min(0), form.rows.clamp_max(0)
            over = positive @ self.above.constant[..., None] + negative @ self.below.constant[..., None]
            over = over + form.rows.abs() @ (self.lost * self.std[1])[..., None]
            form.constants = form.constants + over[..., 0]
            form.rows = positive * self.above.slope[:, None] + negative * self.below.slope[:, None]
        if self.layer is not None:
            form.through(self.layer.mean, self.layer.bias)

    def tilt(self, form: Form) -> None:
        """The same for the logarithm of the mean exponential, where the input is not random."""
        slope, constant = log_lines(form.rows, self.mean, self.std)
        form.rows = slope
        form.constants = form.constants + constant.sum(-1)
        if self.layer is not None:
            form.through(self.layer.mean, self.layer.bias)

    def numbers(self, index: int) -> dict[str, Any] | None:
        found: dict[str, Any] = {"mean": [self.mean.low[index], self.mean.high[index]]}
        if self.layer is not None:
            found["deviation"] = [part[index] for part in self.std]
        if self.above is not None and self.below is not None:
            found |= {
                name: [line.slope[index], line.constant[index]]
                for name, line in (("above", self.above), ("below", self.below))
            }
        return found


@dataclass(slots=True)
class Drop:
    """Factors of mean one on values, or on groups of them."""

    box: Sides
    size: int
    square: float

    def back(self, form: Form) -> None:
        middle = (form.rows * self.box.centre[:, None]).unflatten(-1, (-1, self.size)).sum(-1).abs()
        reach = (form.rows.abs() * self.box.radius[:, None]).unflatten(-1, (-1, self.size)).sum(-1)
        form.squares = form.squares + self.square * (middle + reach).square().sum(-1)

    def numbers(self, index: int) -> dict[str, Any] | None:  # noqa: ARG002 (as of all steps)
        return None


@dataclass(slots=True)
class Maximum:
    """The largest value of each window: lines above, and the chosen value below."""

    above: Tensor  # (batch, n_out, n_in)
    over: Tensor  # (batch, n_out)
    chosen: Tensor  # (batch, n_out), indices of inputs
    slopes: Tensor  # (batch, n_out, entries): of the differences to the chosen value
    constant: Tensor  # (batch, n_out), whether the line above is one

    def back(self, form: Form) -> None:
        positive, negative = form.rows.clamp_min(0), form.rows.clamp_max(0)
        form.constants = form.constants + (positive @ self.over[..., None])[..., 0]
        rows = positive @ self.above
        index = self.chosen[:, None].expand_as(negative)
        form.rows = rows.scatter_add(-1, index, negative)

    def numbers(self, index: int) -> dict[str, Any] | None:
        pairs = zip(self.slopes[index].tolist(), self.constant[index].tolist(), strict=True)
        return {"chosen": self.chosen[index].tolist(), "slopes": [[] if flat else slopes for slopes, flat in pairs]}


@dataclass(slots=True)
class Joined:
    """A block of branches: their sum, or their values side by side."""

    branches: list[list[Step]]
    sizes: list[int] | None  # of the values of each branch side by side; None: their sum

    def back(self, form: Form) -> None:
        rows, found = form.rows, list[Tensor]()
        for k, steps in enumerate(self.branches):
            form.rows = rows if self.sizes is None else rows.split(self.sizes, -1)[k]
            for step in reversed(steps):
                step.back(form)
            found.append(form.rows)
        form.rows = reduce(torch.add, found)

    def numbers(self, index: int) -> dict[str, Any] | None:  # noqa: ARG002 (as of all steps)
        return None


@dataclass(slots=True)
class Chain:
    """The steps so far, and how many events may fail with the probability e^-exponent each."""

    start: Sides
    exponent: float
    steps: list[Step] = field(default_factory=list)
    listed: list[Step] = field(default_factory=list)  # in the order of the certificate
    failures: Tensor | float = 0.0  # (batch,)

    @property
    def outside(self) -> Tensor:
        """At most the probability (batch,) that a value is outside its box."""
        failures = self.failures + torch.zeros_like(self.start.low[:, 0])
        return (failures * (math.exp(-self.exponent) * (1 + SLACK))).clamp_max(1)

    @property
    def reach(self) -> float:
        """N(0, 1), and what it dominates, exceed this with at most the probability e^-exponent."""
        return math.sqrt(2 * self.exponent)

    def add(self, step: Step) -> None:
        """One step more."""
        self.steps.append(step)
        self.listed.append(step)

    def form(self, rows: Tensor, constants: Tensor) -> Form:  # (batch, rows, n), (batch, rows)
        """The rows as forms of x that are at least as large."""
        found = Form(rows, constants, torch.zeros_like(constants))
        for step in reversed(self.steps):
            step.back(found)
        return found

    def exponents(self, rows: Tensor, constants: Tensor) -> Form:
        """Forms of x whose exponentials are above E exp(rows . z + constants; nothing has failed)."""
        found = Form(rows, constants, torch.zeros_like(constants))
        for index in reversed(range(len(self.steps))):
            step = self.steps[index]
            if index == 0 and isinstance(step, Fused) and step.rectified:
                step.tilt(found)
            else:
                step.back(found)
        return Form(found.rows, found.constants + 0.5 * found.squares, torch.zeros_like(found.squares))

    def better(self, rows: Tensor, constants: Tensor, known: Tensor, slack: Tensor | float = 0.0) -> Tensor:
        """Values (batch, rows) that the forms exceed with at most the probability e^-exponent, or those ``known``.

        Where a form is lower it is taken, and may fail.
        """
        found = self.form(rows, constants)
        reach = self.reach * found.squares.sqrt()
        size = (found.rows.abs() @ self.start.magnitude[..., None])[..., 0] + found.constants.abs() + reach
        tops = self.start.tops(found.rows) + found.constants + reach + SLACK * size + slack
        take = tops < known - 16 * SLACK * (size + known.abs())  # else what is known would do, and cannot fail
        self.failures = self.failures + (take & (found.squares > 0)).sum(-1)
        return torch.where(take, tops, known)


def chain_of(layers: Sequence[Layer], shape: tuple[int, ...], start: Sides, exponent: float) -> tuple[Chain, Sides]:
    """The chain of these layers on each box, and the box after them."""
    found = Chain(start, exponent)
    return found, _walk(list(layers), shape, start, found)


def _walk(layers: list[Layer], shape: tuple[int, ...], box: Sides, chain: Chain) -> Sides:
    index = 0
    while index < len(layers):
        layer, before = layers[index], shape
        shape, index = layer.out_shape(shape), index + 1
        if isinstance(layer, (*WEIGHTED, AveragePool)):
            curve = None
            after = layers[index] if index < len(layers) else None
            if after is not None and is_activation(after):
                curve, index = curve_of(after), index + 1
            box = _fused(map_of(layer, before), curve, box, chain)
        elif is_activation(layer):
            box = _fused(None, curve_of(layer), box, chain)
        elif isinstance(layer, Dropout):
            box = _dropout(layer, shape, box, chain)
        elif isinstance(layer, MaxPool):
            box = _maximum(layer, before, box, chain)
        elif isinstance(layer, Branched):
            box = _block(layer, before, box, chain)
        elif not isinstance(layer, Flatten):
            raise UnsupportedLayerError(f"certificates do not support the layer {layer.kind!r}.")
    return box


def _block(layer: Branched, shape: tuple[int, ...], box: Sides, chain: Chain) -> Sides:
    """Each branch goes on from the steps before the block, and none from those of another branch."""
    outer, branches, ends = len(chain.steps), list[list[Step]](), list[Sides]()
    for branch in layer.branches:
        ends.append(_walk(list(branch), shape, box, chain))
        branches.append(chain.steps[outer:])
        del chain.steps[outer:]
    sides = isinstance(layer, Concatenate)
    chain.steps.append(Joined(branches, [end.low.shape[-1] for end in ends] if sides else None))
    low, high = ([getattr(end, name) for end in ends] for name in ("low", "high"))
    if sides:
        return Sides(torch.cat(low, -1), torch.cat(high, -1))
    return Sides(reduce(torch.add, low), reduce(torch.add, high)).outward(
        reduce(torch.add, [e.magnitude for e in ends])
    )


def _fused(layer: Map | None, curve: Curve | None, box: Sides, chain: Chain) -> Sides:
    if layer is None:
        zero = torch.zeros_like(box.low)
        mean, least, most = box, zero, zero
    else:
        least, most = _std_range(layer, box, chain)
        mean = _means(layer, box, chain)
        chain.failures = chain.failures + (most > 0).sum(-1)
    ends = Sides(mean.low - chain.reach * most, mean.high + chain.reach * most)
    ends = ends.outward(mean.magnitude + chain.reach * most)
    if curve is None:
        one = torch.ones_like(most)
        chain.add(Fused(layer, box, mean, (least, most), None, None, one, torch.zeros_like(one), 0.0))
        return ends
    low, high = curve.slopes(ends.low, ends.high)
    lost = 2 * curve.turn * _tail(chain.reach)
    if curve.within is not None:  # beyond the knots nothing is known: no bound
        beyond = (ends.low < curve.within[0]) | (ends.high > curve.within[1])
        chain.failures = chain.failures + torch.where(beyond.any(-1), torch.nan, 0.0)
    sides, rectangle = (mean.low, mean.high), (least, most)
    above, below = (curve.lines(sides, rectangle, sign) for sign in (1, -1))
    rectified = layer is not None and layer.independent and curve == RELU
    around = (0.5 * (low + high), 0.5 * (high - low))
    chain.add(Fused(layer, box, mean, (least, most), above, below, *around, lost, rectified))
    return Sides(*curve.range(ends.low, ends.high)).outward(ends.magnitude * curve.steepest)


def _tail(reach: float) -> float:
    """E (xi - reach)_+, rounded up."""
    return math.exp(-0.5 * reach * reach) / (math.sqrt(2 * math.pi) * max(reach * reach, 1e-3))


def _std_range(layer: Map, box: Sides, chain: Chain) -> tuple[Tensor, Tensor]:
    """The smallest and the largest standard deviations: on the box, or by the chords of the squares."""
    low, high = layer.variance_range(box)
    if layer.by_squares and chain.steps and bool((high > 0).any()):
        ends, both = box.low + box.high, box.low * box.high
        size = box.magnitude.square() @ layer.squares.mT
        constants = layer.bias_squares - both @ layer.squares.mT
        high = chain.better(layer.squares * ends[:, None], constants, high, 8 * SLACK * size).clamp_min(0)
    return (low.sqrt() * (1 - SLACK)), high.sqrt() * (1 + SLACK)


def _means(layer: Map, box: Sides, chain: Chain) -> Sides:
    """Ranges of the means: on the box, or as forms carried back to x."""
    rows = torch.cat([layer.mean, -layer.mean]).expand(box.low.shape[0], -1, -1)
    constants = torch.cat([layer.bias, -layer.bias])
    size = box.magnitude @ layer.mean.abs().mT + layer.bias.abs()
    tops = box.tops(rows) + constants + SLACK * torch.cat([size, size], -1)
    if chain.steps:
        tops = chain.better(rows, constants.expand(box.low.shape[0], -1), tops)
    high, low = tops.chunk(2, -1)
    return Sides(torch.minimum(-low, high), high)


def _dropout(layer: Dropout, shape: tuple[int, ...], box: Sides, chain: Chain) -> Sides:
    if layer.rate == 0:
        return box
    size = math.prod(shape[1:]) if layer.channels else 1
    keep = 1 - layer.rate
    if layer.law == "bernoulli":
        square = (layer.rate / pdf(torch.special.ndtri(torch.tensor(keep, dtype=torch.float64))).item()) ** 2
        factors = (0.0, 1 / keep)
    else:
        square = layer.rate / keep
        factors = (1 - math.sqrt(square) * chain.reach, 1 + math.sqrt(square) * chain.reach)
        chain.failures += box.low.shape[-1] // size
    chain.add(Drop(box, size, square))
    chain.listed.pop()  # it needs no numbers
    ends = torch.stack([side * factor for side in (box.low, box.high) for factor in factors])
    return Sides(ends.amin(0), ends.amax(0)).outward(box.magnitude * max(map(abs, factors)))


def _maximum(layer: MaxPool, shape: tuple[int, ...], box: Sides, chain: Chain) -> Sides:
    """Of both lines above, the lower one at the centre."""
    channels, height, width = shape
    index = torch.arange(height * width, dtype=torch.float64, device=box.low.device).reshape(1, 1, height, width)
    cells = functional.unfold(index, layer.size, stride=layer.stride or layer.size)[0].mT.long()  # (places, entries)
    offsets = torch.arange(channels, device=cells.device) * height * width
    groups = (offsets[:, None, None] + cells).flatten(0, 1)  # (n_out, entries)
    low, high, centre = (side[:, groups] for side in (box.low, box.high, box.centre))  # (batch, n_out, entries)
    place = centre.argmax(-1, keepdim=True)
    own_low, own_high, own = (part.gather(-1, place) for part in (low, high, centre))
    least, most = low - own_high, high - own_low
    active = (most > 0).scatter(-1, place, False)
    slope = torch.where(least >= 0, 1.0, most / (most - least).clamp_min(1e-300)) * active
    exceed = torch.maximum(least.clamp_min(0) - slope * least, most.clamp_min(0) - slope * most)
    exceed = exceed + SLACK * (low.abs() + high.abs() + own.abs())
    over = exceed.scatter(-1, place, 0.0).sum(-1)
    top = high.amax(-1)
    value = own[..., 0] + (slope * (centre - own)).sum(-1) + over
    constant = ~(value < top)
    whole = slope.scatter(-1, place, 1 - slope.sum(-1, keepdim=True))
    lines = torch.zeros(*slope.shape[:2], box.low.shape[-1], dtype=slope.dtype, device=slope.device)
    lines = lines.scatter_add(-1, groups.expand_as(slope), torch.where(constant[..., None], 0.0, whole))
    chosen = groups.expand_as(slope).gather(-1, place)[..., 0]
    chain.add(Maximum(lines, torch.where(constant, top, over), chosen, slope, constant))
    return Sides(low.amax(-1), top)
