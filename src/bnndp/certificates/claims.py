r"""From the chain to bounds of the mean output and of the mean softmax, as ``bnndp_checker.claims`` proves them.

Bounds of one network are affine functions of x, added over the members of an ensemble before the worst x is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bnndp.certificates.chain import Chain, Form, chain_of
from bnndp.certificates.curves import curve_of
from bnndp.certificates.maps import Map, Sides, map_of
from bnndp.layers import Branched, Concatenate, Dropout, Flatten, MaxPool
from bnndp.network import BayesianNetwork, Layer, is_activation

_SLACK = 2.0**-34
_TILTS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)  # tried for each pair of classes
_CORNERS = (10.0, 16.0, 24.0)  # exponents of the corner, the best is kept


@dataclass(slots=True)
class Lower:
    """Affine functions of x below the rows of a claim, numbers below them, and what proves them."""

    slopes: Tensor  # (batch, rows, n)
    constants: Tensor  # (batch, rows)
    least: Tensor  # (batch, rows)
    chain: Chain
    final: dict[str, Tensor]  # (batch, ...) each; empty for means

    def member(self, index: int) -> dict[str, Any]:
        """The proof for one box."""
        steps = [step.numbers(index) for step in self.chain.listed]
        found: dict[str, Any] = {"exponent": self.chain.exponent, "steps": steps}
        if self.final:
            final: dict[str, Any] = {name: value[index] for name, value in self.final.items()}
            found["final"] = final | {"reference": int(final["reference"]), "exponent": float(final["exponent"])}
        return found


def _last(network: BayesianNetwork, box: Sides, exponent: float) -> tuple[Chain, Sides, Map]:
    layers = network.layers[:-1] if isinstance(network.layers[-1], Flatten) else network.layers
    chain, end = chain_of(layers[:-1], network.shapes[0], box, exponent)
    return chain, end, map_of(layers[-1], network.shapes[len(layers) - 1])


def _range(form: Form, box: Sides) -> tuple[Tensor, Tensor]:
    """Least and largest values (batch, rows) of the affine parts, moved outward."""
    size = (form.rows.abs() @ box.magnitude[..., None])[..., 0] + form.constants.abs()
    low, high = form.constants - box.tops(-form.rows), form.constants + box.tops(form.rows)
    return low - _SLACK * size, high + _SLACK * size


def mean_lower(network: BayesianNetwork, box: Sides, rows: Tensor, exponent: float) -> Lower:  # rows (rows, outputs)
    """Rows of the mean output of a network without shift."""
    chain, _, last = _last(network, box, exponent)
    lines = -rows @ last.mean
    form = chain.form(lines.expand(box.low.shape[0], -1, -1), (-rows @ last.bias).expand(box.low.shape[0], -1))
    low, high = _range(form, box)
    outside = chain.outside[:, None]
    sizes = _norms(network.layers, network.shapes[0], box.magnitude)
    extra = torch.maximum(low.abs(), high.abs()) * outside
    extra = extra + (form.squares.sqrt() + sizes @ rows.abs().mT) * outside.sqrt()
    return Lower(-form.rows, -form.constants - extra * (1 + _SLACK), -high - extra * (1 + _SLACK), chain, {})


def softmax_lower(network: BayesianNetwork, box: Sides, rows: Tensor, reference: Tensor, exponent: float) -> Lower:
    """Rows (batch, rows, classes) of the mean softmax, by the margins of the class ``reference`` (batch,)."""
    chain, end, last = _last(network, box, exponent)
    classes, batch = last.bias.shape[0], box.low.shape[0]
    one = torch.eye(classes, dtype=torch.float64, device=box.low.device)
    others = torch.arange(classes, device=box.low.device).expand(batch, -1)
    others = others[others != reference[:, None]].reshape(batch, classes - 1)
    pairs = one[others] - one[reference][:, None]  # (batch, classes - 1, classes)
    noise = _noise(last, end, chain, pairs)
    form = chain.form(pairs @ last.mean, pairs @ last.bias)
    squares = form.squares + noise
    _, high = _range(form, box)
    tilts, raised = _raised(chain, last, end, pairs, noise, box)
    low, top_ = _range(raised, box)
    scale = _scale(tilts)
    bottom, top = ((scale + end_).exp() for end_ in (low, top_))
    width = top_ - low
    slope = torch.where(width > 0, (top - bottom) / width.clamp_min(1e-300), 0.0).clamp_min(0)
    offset = top - slope * top_ + chain.outside[:, None]
    own = rows.gather(-1, reference[:, None, None].expand(-1, rows.shape[1], 1))  # (batch, rows, 1)
    weights = (own - rows.gather(-1, others[:, None].expand(-1, rows.shape[1], -1))).clamp_min(0)
    constants = own[..., 0] - (weights @ (offset + slope * raised.constants)[..., None])[..., 0]
    slopes = -(weights * slope[:, None]) @ raised.rows
    size = (weights @ (top + slope * (raised.rows.abs() @ box.magnitude[..., None])[..., 0])[..., None])[..., 0]
    constants = constants - _SLACK * (size + own[..., 0].abs())
    least = constants - box.tops(-slopes) - _SLACK * size
    corner, value = _corner(rows, weights, high, squares, chain.outside)
    least = torch.fmax(torch.fmax(least, value), rows.amin(-1))  # where exponentials overflow
    final = {"reference": reference, "noise": noise, "tilts": tilts, "exponent": corner}
    least = torch.where(chain.outside.isnan()[:, None], torch.nan, least.nan_to_num(-torch.inf, neginf=-torch.inf))
    return Lower(slopes, constants, least, chain, final)


def _scale(tilts: Tensor) -> Tensor:
    """Of sigma(S) below exp(scale + tilt S)."""
    return torch.special.xlogy(tilts, tilts) + torch.special.xlogy(1 - tilts, 1 - tilts)


def _raised(chain: Chain, last: Map, end: Sides, pairs: Tensor, noise: Tensor, box: Sides) -> tuple[Tensor, Form]:
    """Tilts (batch, pairs), the best of several at the worst x, and forms above log E exp(tilt S)."""
    rows, constants = pairs @ last.mean, pairs @ last.bias
    squares, extra = torch.zeros_like(rows), noise
    if last.by_squares and last.kernel is None:
        lines = pairs.square() @ last.squares
        squares = lines * (end.low + end.high)[:, None]
        extra = pairs.square() @ last.bias_squares - (lines @ (end.low * end.high)[..., None])[..., 0]
    best: tuple[Tensor, Tensor, Form] | None = None
    for tilt in _TILTS:
        form = chain.exponents(tilt * rows + 0.5 * tilt**2 * squares, tilt * constants + 0.5 * tilt**2 * extra)
        tilts = torch.full_like(constants, tilt)
        value = (_scale(tilts) + form.constants + box.tops(form.rows)).nan_to_num(torch.inf)
        if best is None:
            best = value, tilts, form
            continue
        take = value < best[0]
        kept = Form(
            torch.where(take[..., None], form.rows, best[2].rows),
            torch.where(take, form.constants, best[2].constants),
            best[2].squares,
        )
        best = torch.minimum(value, best[0]), torch.where(take, tilts, best[1]), kept
    if best is None:
        raise ValueError("there are no tilts to try")
    return best[1], best[2]


def _corner(rows: Tensor, weights: Tensor, high: Tensor, squares: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """The best exponent (batch,), and bounds (batch, rows) of those rows that are one class less another."""
    which = weights == 2  # the other class, where the class of reference has 1
    plain = which.any(-1) & (rows.abs().sum(-1) == 2) & (rows.amin(-1) == -1)
    best = torch.full_like(rows[..., 0], -torch.inf)
    chosen = torch.full_like(outside, _CORNERS[0])
    for exponent in _CORNERS:
        fails = (outside + high.shape[-1] * math.exp(-exponent)).clamp_max(1)[:, None]
        most = (high + (2 * exponent * squares).sqrt()).exp()
        value = (1 - most) / (1 + most.sum(-1, keepdim=True)) * (1 - fails) - fails
        value = torch.where(most <= 1, value, -torch.inf)[:, None]
        found = torch.where(which, value, -torch.inf).amax(-1)
        found = torch.where(plain, found, -torch.inf) - _SLACK
        better = torch.where(plain, found, torch.inf).amin(-1) > torch.where(plain, best, torch.inf).amin(-1)
        better = better | (exponent == _CORNERS[0])
        best = torch.where(better[:, None], found, best)
        chosen = torch.where(better, exponent, chosen)
    return chosen, best


def _noise(last: Map, box: Sides, chain: Chain, pairs: Tensor) -> Tensor:
    """Variances (batch, pairs) of the differences of two logits given the layer before."""
    _, high = last.variance_range(box)
    one = torch.ones_like(high)
    found = last.spread(pairs, one, torch.zeros_like(one), high.sqrt(), box) * (1 + _SLACK)
    if last.by_squares and last.kernel is None and chain.steps and bool((found > 0).any()):
        ends, both = box.low + box.high, box.low * box.high
        lines = pairs.square() @ last.squares  # (batch, pairs, n)
        constants = pairs.square() @ last.bias_squares - (lines @ both[..., None])[..., 0]
        size = (lines @ box.magnitude.square()[..., None])[..., 0]
        found = chain.better(lines * ends[:, None], constants, found, _SLACK * size).clamp_min(0)
    return found


def _norms(layers: Sequence[Layer], shape: tuple[int, ...], sizes: Tensor) -> Tensor:
    """Bounds (batch, n) of the L2 norms of the values after the layers."""
    for layer in layers:
        if is_activation(layer):
            curve = curve_of(layer)
            at = 0.0 if curve.within is None else curve.within[0]
            start = abs(curve.value(torch.tensor(at, dtype=torch.float64)).item()) + curve.error
            sizes = start + curve.steepest * (abs(at) + sizes)
        elif isinstance(layer, Dropout):
            sizes = sizes / math.sqrt(1 - layer.rate)
        elif isinstance(layer, MaxPool):
            image = sizes.unflatten(-1, shape)
            area = layer.size[0] * layer.size[1]  # type: ignore[index]
            sizes = (functional.avg_pool2d(image, layer.size, layer.stride) * area).flatten(1)
        elif isinstance(layer, Branched):
            ends = [_norms(branch, shape, sizes) for branch in layer.branches]
            sizes = torch.cat(ends, -1) if isinstance(layer, Concatenate) else reduce(torch.add, ends)
        elif not isinstance(layer, Flatten):
            weights = map_of(layer, shape)
            _, squares = weights.variance_range(Sides(-sizes, sizes))
            sizes = sizes @ weights.mean.abs().mT + weights.bias.abs() + squares.sqrt()
        sizes, shape = sizes * (1 + _SLACK), layer.out_shape(shape)
    return sizes
