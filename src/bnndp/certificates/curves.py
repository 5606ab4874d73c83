r"""Activations as the proofs see them: a smooth function plus hinges, with the ranges of its derivatives.

:math:`\varphi(x)=f(x)+l\,x+b+\sum_kJ_k(x-t_k)_+`, up to an error (docs/certificates.md, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.activations import (
    Elu,
    Gelu,
    HardTanh,
    Identity,
    LeakyRelu,
    PiecewiseAffine,
    Relu,
    Sigmoid,
    Silu,
    Softplus,
    Tanh,
)  # fmt: skip
from bnndp.activations.activation import Activation
from bnndp.errors import UnsupportedLayerError
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import expected_relu, relu_probability

_PIECES = 8  # of a range of means, as in the checker
_SLACK = 2.0**-38  # of the sizes of all terms: far above the rounding of either program


@dataclass(frozen=True, slots=True)
class Smooth:
    """A function with its derivative, and the ranges of its first and second derivative on the whole line."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    slopes: tuple[float, float]
    curvature: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Lines:
    """Slopes and constants of one line for each value: (batch, n) each."""

    slope: Tensor
    constant: Tensor


_T, _S = 4 / (3 * math.sqrt(3)), 1 / (6 * math.sqrt(3))
_PEAK = 1 / math.sqrt(2 * math.pi)
_STEEP = 0.5 * (1 + math.erf(1.0)) + math.sqrt(2) * _PEAK * math.exp(-1.0)  # of the GELU, at sqrt 2
_BEND = (-2 * _PEAK * math.exp(-2.0), 2 * _PEAK)  # its second derivative at 2 and at 0
_SMOOTH: dict[type[object], Smooth] = {
    Tanh: Smooth(torch.tanh, lambda x: 1 - torch.tanh(x).square(), (0.0, 1.0), (-_T, _T)),
    Sigmoid: Smooth(torch.sigmoid, lambda x: torch.sigmoid(x) * torch.sigmoid(-x), (0.0, 0.25), (-_S, _S)),
    # torch's own softplus is x beyond 20, which is too little by 2e-9
    Softplus: Smooth(lambda x: torch.logaddexp(x, torch.zeros_like(x)), torch.sigmoid, (0.0, 1.0), (0.0, 0.25)),
    Gelu: Smooth(lambda x: x * cdf(x), lambda x: cdf(x) + x * pdf(x), (1 - _STEEP, _STEEP), _BEND),
    Silu: Smooth(
        lambda x: x * torch.sigmoid(x),
        lambda x: torch.sigmoid(x) * (1 + x * torch.sigmoid(-x)),
        (-0.1, 1.1),
        (-0.1, 0.5),
    ),
    Elu: Smooth(
        lambda x: torch.expm1(x.clamp_max(0)) + x.clamp_min(0), lambda x: x.clamp_max(0).exp(), (0.0, 1.0), (0.0, 1.0)
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Curve:
    """See the module."""

    smooth: Smooth | None = None
    weight: float = 1.0
    line: float = 0.0
    constant: float = 0.0
    hinges: tuple[tuple[float, float], ...] = ()  # (t, J), t increasing
    error: float = 0.0
    within: tuple[float, float] | None = None  # where the error holds
    lipschitz: float | None = None  # of a function that is not just its parts

    def value(self, x: Tensor) -> Tensor:
        """The sum of the parts."""
        return self.mean(x, torch.zeros_like(x))

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        """E phi(m + r xi) of the line and the hinges, and the smooth part at m."""
        found = self.line * m + self.constant
        for t, j in self.hinges:
            found = found + j * expected_relu(m - t, r)
        return found if self.smooth is None else found + self.weight * self.smooth.value(m)

    def tilt(self, m: Tensor, r: Tensor) -> Tensor:
        """Its derivative in m."""
        found = torch.full_like(m, self.line)
        for t, j in self.hinges:
            found = found + j * relu_probability(m - t, r)
        return found if self.smooth is None else found + self.weight * self.smooth.slope(m)

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of the derivative on [low, high]."""
        if self.lipschitz is not None:
            return torch.full_like(low, -self.lipschitz), torch.full_like(low, self.lipschitz)
        at = torch.full_like(low, self.line)
        for t, j in self.hinges:
            at = at + j * (low >= t)
        least = most = at
        for t, j in self.hinges:
            at = at + j * ((low < t) & (high > t))
            least, most = torch.minimum(least, at), torch.maximum(most, at)
        if self.smooth is not None:
            slope, half = self.smooth.slope(0.5 * (low + high)), 0.5 * (high - low)
            reach = max(-self.smooth.curvature[0], self.smooth.curvature[1]) * half
            least = least + self.weight * (slope - reach).clamp_min(self.smooth.slopes[0])
            most = most + self.weight * (slope + reach).clamp_max(self.smooth.slopes[1])
        return least, most

    @property
    def steepest(self) -> float:
        """A Lipschitz constant."""
        if self.lipschitz is not None:
            return self.lipschitz
        at = self.line
        found = abs(at)
        for _, j in self.hinges:
            at += j
            found = max(found, abs(at))
        if self.smooth is not None:
            found += self.weight * max(map(abs, self.smooth.slopes))
        return found * (1 + _SLACK)

    @property
    def turn(self) -> float:
        """By how much two slopes can differ; of a user's function, which is cut off flat, the Lipschitz constant."""
        if self.lipschitz is not None:
            return self.lipschitz * (1 + 1e-6)
        at = [self.line + sum(j for _, j in self.hinges[:k]) for k in range(len(self.hinges) + 1)]
        down, up = (0.0, 0.0) if self.smooth is None else self.smooth.slopes
        return (max(at) - min(at) + self.weight * (up - down)) * (1 + _SLACK)

    def range(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of the function on [low, high]."""
        least, most = self.slopes(low, high)
        reach = torch.maximum(least.abs(), most.abs()) * 0.5 * (high - low)
        middle = self.value(0.5 * (low + high))
        rising = (least >= 0) & (self.lipschitz is None)
        return (
            torch.where(rising, self.value(low), middle - reach) - self.error,
            torch.where(rising, self.value(high), middle + reach) + self.error,
        )

    def lines(self, m: tuple[Tensor, Tensor], r: tuple[Tensor, Tensor], sign: int) -> Lines:
        """Lines above E phi (``sign`` 1) or below it (-1) on the rectangle of (m, r), the better of two slopes."""
        low, high = m
        middle = 0.5 * (low + high)
        ends = [self.mean(end, r[1]) for end in m]
        width = high - low
        tilt = self.tilt(middle, r[0] if sign < 0 else r[1])
        chord = torch.where(width > 0, (ends[1] - ends[0]) / width.clamp_min(1e-300), tilt)
        found = [Lines(slope, self._constant(m, r, slope, sign)) for slope in (chord.clamp(-1e6, 1e6), tilt)]
        values = [sign * (line.slope * middle + line.constant) for line in found]
        take = values[1] < values[0]
        return Lines(
            torch.where(take, found[1].slope, found[0].slope), torch.where(take, found[1].constant, found[0].constant)
        )

    def _constant(self, m: tuple[Tensor, Tensor], r: tuple[Tensor, Tensor], slope: Tensor, sign: int) -> Tensor:
        """The best constant for a slope that the checker's pieces prove."""
        low, high = m
        convex = self.smooth is None and all(sign * j >= 0 for _, j in self.hinges)
        pieces = 1 if convex else _PIECES
        h = (high - low) / pieces
        remainder = torch.full_like(low, self.error)
        if self.smooth is not None:
            down, up = self.smooth.curvature if sign > 0 else (-self.smooth.curvature[1], -self.smooth.curvature[0])
            remainder = remainder + self.weight * (
                max(up, 0.0) * 0.5 * r[1].square() + max(-down, 0.0) * h.square() / 8
            )
        best = torch.full_like(low, -torch.inf)
        size = torch.zeros_like(low)
        for i in range(pieces):
            ends = (low + i * h, low + (i + 1) * h)
            middle = 0.5 * (ends[0] + ends[1])
            for at in ends:
                found = sign * (self.line * at + self.constant) + remainder
                if self.smooth is not None:
                    found = found + sign * self.weight * self.smooth.value(at)
                for t, j in self.hinges:
                    if sign * j >= 0:
                        found = found + sign * j * expected_relu(at - t, r[1])
                    else:
                        touch = middle - t
                        tangent = expected_relu(touch, r[0]) + relu_probability(touch, r[0]) * (at - middle)
                        lowest = torch.minimum(touch, touch.clamp_min(0) + at - middle)  # of both slopes at a kink
                        kinked = torch.where(touch < 0, touch.clamp_min(0), touch.clamp_min(0) + at - middle)
                        near = touch.abs() <= _SLACK * (middle.abs() + abs(t))
                        kinked = torch.where(near, torch.minimum(lowest, kinked), kinked)
                        found = found + sign * j * torch.where(r[0] > 0, tangent, kinked)
                best = torch.maximum(best, found - sign * slope * at)
                size = torch.maximum(size, found.abs() + (slope * at).abs() + sum(abs(j * t) for t, j in self.hinges))
        return sign * (best + _SLACK * (size + r[1] + at.abs()))


RELU = Curve(hinges=((0.0, 1.0),))


def curve_of(layer: Activation) -> Curve:
    """The activation of a layer as a curve."""
    match layer:
        case Identity():
            found = Curve(line=1.0)
        case Relu():
            found = RELU
        case LeakyRelu():
            found = Curve(line=layer.negative_slope, hinges=((0.0, 1 - layer.negative_slope),))
        case HardTanh():
            found = Curve(constant=-1.0, hinges=((-1.0, 1.0), (1.0, -1.0)))
        case Elu():
            found = Curve(_SMOOTH[Elu], layer.alpha, hinges=((0.0, 1 - layer.alpha),))
        case PiecewiseAffine():
            found = _by_knots(layer)
        case _ if type(layer) in _SMOOTH:
            found = Curve(_SMOOTH[type(layer)])
        case _:
            raise UnsupportedLayerError(f"certificates do not support the activation {layer.kind!r}.")
    return found


def _by_knots(layer: PiecewiseAffine) -> Curve:
    slopes = torch.nn.functional.pad(layer.values.diff() / layer.knots.diff(), (1, 1))
    jumps = tuple(zip(layer.knots.tolist(), slopes.diff().tolist(), strict=True))
    ends = (layer.knots[0].item(), layer.knots[-1].item())
    return Curve(None, 1.0, 0.0, layer.values[0].item(), jumps, layer.inner_error, ends, layer.lipschitz)
