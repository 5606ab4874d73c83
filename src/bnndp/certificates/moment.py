r"""The numbers of a proof by moments (docs/certificates.md, section 4), for a batch of boxes at once.

The steps are those of ``bnndp_checker.moment``: bounds of E z that hold on the whole support of the weights, from the
first two moments of the pre-activations. Nothing here has to be trusted.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnndp.certificates.maps import SLACK, Sides
from bnndp.layers import Linear
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import expected_relu, moments, ratio
from bnndp.maths.tails import HALF_PEAK, PEAK, relu_scarf
from bnndp.network import BayesianNetwork

_VERTICES = 4  # largest number of inputs for which all vertices are taken
_LEVELS = (0.0, 0.5, 1.5, 4.0)  # s0 = S + level sd(s)
_REACHES = (0.25, 0.5, 1.0, 2.0, 4.0)  # in units of the fourth norm of m - M
_UP = 1 + SLACK
_LEAST = 1e-200  # a level must be positive


@dataclass(slots=True)
class Known:
    """What is known of the outputs of a hidden layer on each box: (batch, n) each; as in the checker."""

    layer: Linear
    low: Tensor
    high: Tensor
    square_low: Tensor
    square: Tensor
    variance: Tensor
    square_noise: Tensor  # E Var(z^2 | layer before)
    square_sd: Tensor  # sd E[z^2 | layer before]
    fourth: Tensor
    noise: Tensor
    above: tuple[Tensor, Tensor] | None = None  # slope and constant in M
    below: tuple[Tensor, Tensor] | None = None
    slope: Tensor | None = None
    remainder: Tensor | None = None


@dataclass(slots=True)
class First:
    """Planes of the first layer: slopes of m, of q, constant, and slopes in x of the upper one."""

    layer: Linear
    box: Sides
    above: tuple[Tensor, Tensor, Tensor, Tensor | None]
    below: tuple[Tensor, Tensor, Tensor]

    def back(self, rows: Tensor, constants: Tensor) -> tuple[Tensor, Tensor]:
        """Upper bounds of ``rows . E z + constants`` as rows of x."""
        positive, negative = rows.clamp_min(0), rows.clamp_max(0)
        first, second = (
            positive * up[:, None] + negative * down[:, None]
            for up, down in zip(self.above[:2], self.below[:2], strict=True)
        )
        constants = constants + (positive @ self.above[2][..., None] + negative @ self.below[2][..., None])[..., 0]
        constants = constants + first @ self.layer.bias_mean
        found = first @ self.layer.weight_mean + (second @ self.layer.weight_std.square()) * self.box.centre[:, None]
        return (found if self.above[3] is None else found + positive @ self.above[3]), constants


@dataclass(slots=True)
class MomentLower:
    """Affine functions below the rows, numbers below them, and the numbers of every step."""

    slopes: Tensor
    constants: Tensor
    least: Tensor
    steps: list[dict[str, Any]]  # of (batch, ...) tensors

    def member(self, index: int) -> dict[str, Any]:
        """The proof for one box."""
        return {"steps": [{name: _at(value, index) for name, value in step.items()} for step in self.steps]}


def _at(value: Any, index: int) -> Any:
    return [part[index] for part in value] if isinstance(value, tuple) else value[index]


def moment_lower(network: BayesianNetwork, box: Sides, rows: Tensor) -> MomentLower:
    """Rows (rows, outputs) of the mean output of a plain network without shift, with at least one hidden layer."""
    *hidden, last = network.linears
    first, known, step = _first(hidden[0], box)
    chain, steps = [known], [step]
    for layer in hidden[1:]:
        found, step = _next(layer, first, chain)
        chain.append(found)
        steps.append(step)
    batch = box.low.shape[0]
    back, constants = _back(
        (-rows @ last.weight_mean).expand(batch, -1, -1), (-rows @ last.bias_mean).expand(batch, -1), first, chain
    )
    size = (back.abs() @ box.magnitude[..., None])[..., 0] + constants.abs()
    return MomentLower(-back, -constants - SLACK * size, -box.tops(back) - constants - 4 * SLACK * size, steps)


def _first(layer: Linear, box: Sides) -> tuple[First, Known, dict[str, Any]]:
    squares, bias_squares = layer.weight_std.square(), layer.bias_std.square()
    middle, reach = box.centre @ layer.weight_mean.mT + layer.bias_mean, box.radius @ layer.weight_mean.abs().mT
    least, most = ((z.square() @ squares.mT + bias_squares).sqrt() for z in (box.smallest, box.magnitude))
    at = (box.centre.square() @ squares.mT + bias_squares).sqrt()
    u = ratio(middle, at)
    tilt = torch.where(at > 0, pdf(u) / at.clamp_min(1e-300), 0.0)
    step: dict[str, Any] = {"tangent": u}
    size = (box.magnitude @ layer.weight_mean.abs().mT + layer.bias_mean.abs() + most) * SLACK
    low, high = middle - reach - size, middle + reach + size
    if box.low.shape[-1] <= _VERTICES:
        slopes, constant = _vertices(layer, box)
        step["vertices"] = slopes
        zero = torch.zeros_like(u)
        above: tuple[Tensor, Tensor, Tensor, Tensor | None] = (zero, zero, constant + size, slopes)
    else:
        root = (0.5 * (least + most)).clamp_min(1e-100)
        alpha = ((expected_relu(high, root) - expected_relu(low, root)) / (high - low).clamp_min(1e-300)).clamp(0, 1)
        width = (most - least).clamp_min(1e-300)
        beta = ((expected_relu(middle, most) - expected_relu(middle, least)) / width).clamp(0, 1)
        beta = torch.where(most > least, beta, 0.0)
        corners = [expected_relu(m, r) - alpha * m - beta * r for m in (low, high) for r in (least, most)]
        both = (box.low * box.high) @ squares.mT
        constant = torch.stack(corners).amax(0) + 0.5 * beta * (root + (bias_squares - both) / root)
        above = (alpha, beta / root, constant + 4 * size, None)
        step |= {"alpha": alpha, "beta": beta, "root": root}
    below = (cdf(u), tilt, tilt * bias_squares - size)
    start, end = moments(low, least * (1 - SLACK)), moments(high, most * _UP)
    scale = high.abs() + most
    known = Known(
        layer,
        (start.mean - size).clamp_min(0),
        end.mean + size,
        (start.second - size * scale).clamp_min(0),
        end.second + size * scale,
        end.variance * _UP + 1e-290,
        end.square_variance * _UP + 1e-290,
        torch.zeros_like(size),
        (end.fourth + SLACK * scale**4) * _UP,
        end.variance * _UP + 1e-290,
    )
    return First(layer, box, above, below), known, step


def _vertices(layer: Linear, box: Sides) -> tuple[Tensor, Tensor]:
    """Mean slopes across the box, and constants from all vertices."""
    n = box.low.shape[-1]
    corner = torch.tensor(list(itertools.product((0.0, 1.0), repeat=n)), dtype=torch.float64, device=box.low.device)
    points = torch.where(corner[:, None, :] > 0, box.high, box.low)  # (vertices, batch, n)
    m = points @ layer.weight_mean.mT + layer.bias_mean
    r = (points.square() @ layer.weight_std.square().mT + layer.bias_std.square()).sqrt()
    value = expected_relu(m, r)
    width = (box.high - box.low)[:, None, :]
    slopes = torch.einsum("vj,vbi->bij", (2 * corner - 1) / corner.shape[0], value) * 2 / width.clamp_min(1e-300)
    slopes = torch.where(width > 0, slopes, 0.0)
    flat = torch.einsum("bij,vbj->vbi", slopes, points)
    return slopes, (value - flat).amax(0)


def _back(rows: Tensor, constants: Tensor, first: First, known: list[Known]) -> tuple[Tensor, Tensor]:
    for layer in reversed(known[1:]):
        positive, negative = rows.clamp_min(0), rows.clamp_max(0)
        (up, over), (down, under) = layer.above, layer.below  # type: ignore[misc]
        constants = constants + (positive @ over[..., None] + negative @ under[..., None])[..., 0]
        rows = positive * up[:, None] + negative * down[:, None]
        constants = constants + rows @ layer.layer.bias_mean
        rows = rows @ layer.layer.weight_mean
    return first.back(rows, constants)


def _row_variance(rows: Tensor, known: list[Known]) -> Tensor:  # (batch, rows, n) -> (batch, rows)
    last = known[-1]
    if len(known) == 1 or last.slope is None or last.remainder is None:
        return (rows.square() @ last.variance[..., None])[..., 0] * _UP
    linear = _row_variance((rows * last.slope[:, None]) @ last.layer.weight_mean, known[:-1])
    size = (rows.abs() @ (last.remainder * _UP)[..., None])[..., 0]
    given = (rows.square() @ last.noise[..., None])[..., 0] + (linear.sqrt() * _UP + size).square()
    plain = (rows.abs() @ last.variance.sqrt()[..., None])[..., 0].square()
    return torch.minimum(given, plain) * _UP


def _next(layer: Linear, first: First, known: list[Known]) -> tuple[Known, dict[str, Any]]:
    z, second, batch = known[-1], len(known) == 1, first.box.low.shape[0]
    weight, squares, bias_squares = layer.weight_mean, layer.weight_std.square(), layer.bias_std.square()
    low, high = _means(layer, first, known)
    spread, spread_low, jensen = (v @ squares.mT + bias_squares for v in (z.square, z.square_low, z.low.square()))
    spread = spread * _UP + 1e-290
    uneven = z.square_noise @ squares.square().mT + (z.square_sd @ squares.mT).square()
    uneven = uneven * _UP + 1e-290  # Var s
    rows = weight.expand(batch, -1, -1)
    moved = _row_variance(rows, known) * _UP + 1e-290
    if second:
        most = 3 * (first.box.magnitude.square() @ z.layer.weight_std.square().mT + z.layer.bias_std.square()).square()
        far = (most @ (weight**4).mT + 3 * moved.square()).sqrt() * _UP
    else:
        far = (z.fourth.sqrt().sqrt() @ weight.abs().mT).square() * _UP
    total = spread + moved
    level, std = _level(low, high, spread, uneven, moved), jensen.sqrt() * (1 - SLACK)
    root = level.sqrt()
    excess = relu_scarf(spread - level, uneven)
    add = HALF_PEAK * (excess + moved) / root
    bounds = [[relu_scarf(end, total), expected_relu(end, root) + add] for end in (low, high)]
    width = (high - low).clamp_min(1e-300)
    pick = bounds[1][1] + bounds[0][1] < bounds[1][0] + bounds[0][0]
    ends = [torch.where(pick, b[1], b[0]) for b in bounds]
    slope = ((ends[1] - ends[0]) / width).clamp(0, 1)
    size = SLACK * (torch.maximum(low.abs(), high.abs()) + total.sqrt() + root)
    constants = [torch.maximum(bounds[0][k] - slope * low, bounds[1][k] - slope * high) for k in range(2)]
    u = ratio(0.5 * (low + high), std)
    mean_low = (expected_relu(low, std) - size).clamp_min(0)
    scale = high.clamp_min(0) + root + total.sqrt()
    square = torch.minimum(high.clamp_min(0).square() + total, moments(high, root).second + moved + excess)
    square = square * _UP + SLACK * scale.square()
    mean_high = torch.minimum(torch.minimum(*bounds[1]) + size, square.sqrt() * _UP)
    variance = torch.minimum(total, square - mean_low.square() * (1 - SLACK)).clamp_min(0) * _UP + 1e-290
    fourth = (high.clamp_min(0) + far.sqrt()) ** 4
    powers = spread.square() + uneven
    fourth = (fourth + 6 * (fourth * powers).sqrt() + 3 * powers) * _UP
    middle = spread.clamp_min(_LEAST)
    off = (middle - spread_low * (1 - SLACK)).abs() * _UP
    apart = (uneven + off.square()).sqrt() * _UP  # the norm of s - middle
    centre, reach, slip = _slip(low, high, middle.sqrt(), moved.sqrt(), far)
    remainder = (slip + PEAK * apart / middle.sqrt()) * _UP
    least = mean_low.square() * (1 - SLACK)
    tilt = (expected_relu(high, middle.sqrt()) + size) * _UP
    square_sd = (apart + 2 * tilt * moved.sqrt() + far) * _UP
    square_noise = 4 * (spread * square + uneven.sqrt() * square_sd) * _UP
    found = Known(
        layer, mean_low, mean_high, least, square, variance, square_noise, square_sd, fourth,
        torch.minimum(spread, variance), (slope, torch.minimum(*constants) + 4 * size),
        (cdf(u), pdf(u) * std - size), centre, remainder,
    )  # fmt: skip
    step = {"mean": (low, high), "tangent": u, "level": level, "slope": slope}
    step |= {"middle": middle, "centre": centre, "reach": reach}
    return found, step


def _means(layer: Linear, first: First, known: list[Known]) -> tuple[Tensor, Tensor]:
    """Ranges of the means, moved outward: by rows carried back to x, and by the ranges of E z."""
    z, batch = known[-1], first.box.low.shape[0]
    rows = torch.cat([layer.weight_mean, -layer.weight_mean])
    bias = torch.cat([layer.bias_mean, -layer.bias_mean])
    back, constants = _back(rows.expand(batch, -1, -1), bias.expand(batch, -1), first, known)
    size = (back.abs() @ first.box.magnitude[..., None])[..., 0] + constants.abs()
    size = size + z.high @ rows.abs().mT + bias.abs()
    plain = z.high @ rows.clamp_min(0).mT + z.low @ rows.clamp_max(0).mT + bias
    tops = torch.minimum(first.box.tops(back) + constants, plain) + SLACK * size
    high, low = tops.chunk(2, -1)
    return torch.minimum(-low, high), high


def _level(low: Tensor, high: Tensor, spread: Tensor, uneven: Tensor, moved: Tensor) -> Tensor:
    """Of several s0 the one with the least upper bound in the middle."""
    middle = 0.5 * (low + high)
    best, chosen = torch.full_like(low, torch.inf), spread
    for share in _LEVELS:
        level = (spread + share * uneven.sqrt()).clamp_min(_LEAST)
        root = level.sqrt()
        value = expected_relu(middle, root) + HALF_PEAK * (relu_scarf(spread - level, uneven) + moved) / root
        take = value < best
        best, chosen = torch.where(take, value, best), torch.where(take, level, chosen)
    return chosen.clamp_min(_LEAST)


def _slip(low: Tensor, high: Tensor, root: Tensor, sd: Tensor, far: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Centre p, reach, and the standard deviation of g(m, sqrt s0) - p m: the best of several reaches."""
    centre = cdf(ratio(0.5 * (low + high), root))
    best = torch.maximum(centre, 1 - centre) * sd
    reach = torch.ones_like(low)
    for times in _REACHES:
        tried = (times * far.sqrt()).clamp_min(_LEAST)
        least, most = cdf(ratio(low - tried, root)), cdf(ratio(high + tried, root))
        p = 0.5 * (least + most)
        wide = torch.maximum(p, 1 - p)
        found = torch.minimum((0.5 * (most - least) + SLACK) * sd + wide * far / tried, wide * sd)
        take = found < best
        best, centre, reach = (torch.where(take, a, b) for a, b in ((found, best), (p, centre), (tried, reach)))
    return centre.clamp(0, 1), reach, best * _UP
