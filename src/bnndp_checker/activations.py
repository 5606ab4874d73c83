r"""Activations: a smooth function plus hinges, :math:`\varphi(x)=f(x)+l\,x+b+\sum_kJ_k(x-t_k)_+`, up to an error.

The mean of :math:`\varphi(m+r\xi)` over a standard Gaussian :math:`\xi` is exact for the line and the hinges,
:math:`J_kg(m-t_k,r)`, and for the smooth part within :math:`\tfrac12r^2[\inf f'',\sup f'']` of f(m) (Taylor).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from flint import arb

from bnndp_checker.ball_arithmetic import ONE, ZERO, cdf, g, larger, pdf, require, smaller, sq
from bnndp_checker.read_model import Layer

_PIECES = 8  # of a range of means, on which lines are compared


@dataclass(frozen=True)
class Smooth:
    """A function with its derivative, and the ranges of its first and second derivative on the whole line."""

    value: Callable[[arb], arb]
    slope: Callable[[arb], arb]
    slopes: tuple[arb, arb]
    curvature: tuple[arb, arb]


def _sigmoid(x: arb) -> arb:
    return ONE / (ONE + (-x).exp())


def _softplus(x: arb) -> arb:
    return x.exp().log1p() if x < 30 else x + (-x).exp().log1p()


def _gelu_slope(x: arb) -> arb:
    return cdf(x) + x * pdf(x)


_T, _S, _ROOT2 = 4 / (3 * arb(3).sqrt()), 1 / (6 * arb(3).sqrt()), arb(2).sqrt()
_SMOOTH = {
    "tanh": Smooth(arb.tanh, lambda x: ONE - sq(x.tanh()), (ZERO, ONE), (-_T, _T)),
    "sigmoid": Smooth(_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x), (ZERO, ONE / 4), (-_S, _S)),
    "softplus": Smooth(_softplus, _sigmoid, (ZERO, ONE), (ZERO, ONE / 4)),
    # x Phi(x): the second derivative (2 - x^2) phi(x) is extreme at 0 and +-2, the first at +-sqrt 2.
    "gelu": Smooth(
        lambda x: x * cdf(x),
        _gelu_slope,
        (_gelu_slope(-_ROOT2), _gelu_slope(_ROOT2)),
        (-2 * pdf(arb(2)), 2 * pdf(ZERO)),
    ),
    # x sigma(x): f' = sigma + x sigma(1 - sigma), f'' = sigma(1 - sigma)(2 + x(1 - 2 sigma)), at most 1/2 (at 0).
    "silu": Smooth(
        lambda x: x * _sigmoid(x),
        lambda x: _sigmoid(x) * (ONE + x * _sigmoid(-x)),
        (-ONE / 10, ONE + ONE / 10),
        (-ONE / 10, ONE / 2),
    ),
    # the ELU with alpha = 1
    "elu": Smooth(
        lambda x: smaller(x, ZERO).expm1() + larger(x, ZERO), lambda x: smaller(x, ZERO).exp(), (ZERO, ONE), (ZERO, ONE)
    ),
}


@dataclass(frozen=True)
class Activation:
    """The parts; a function given by its user has a Lipschitz constant, and is near them between its knots."""

    smooth: Smooth | None = None
    weight: arb = ONE  # of the smooth part, >= 0
    line: arb = ZERO
    constant: arb = ZERO
    hinges: tuple[tuple[arb, arb], ...] = ()  # (t, J), t increasing
    error: arb = ZERO  # the function is within this of the parts ...
    within: tuple[arb, arb] | None = None  # ... on this interval; None: everywhere
    lipschitz: arb | None = None  # of a function that is not just its parts

    def value(self, x: arb) -> arb:
        """The sum of the parts."""
        found = self.line * x + self.constant + sum((j * larger(x - t, ZERO) for t, j in self.hinges), ZERO)
        return found if self.smooth is None else found + self.weight * self.smooth.value(x)

    def _kinks(self, low: arb | None = None, high: arb | None = None) -> tuple[arb, arb]:
        """Bounds of the slopes of line and hinges on [low, high], or on the whole line."""
        at = self.line + sum((j for t, j in self.hinges if low is not None and t <= low), ZERO)
        values = [at]
        for t, j in self.hinges:
            if not (low is not None and t <= low) and not (high is not None and t >= high):
                at += j
                values.append(at)
        return smaller(*values), larger(*values)

    def slopes(self, low: arb, high: arb) -> tuple[arb, arb]:
        """Bounds of the derivative on [low, high]."""
        if self.lipschitz is not None:
            return -self.lipschitz, self.lipschitz
        least, most = self._kinks(low, high)
        if self.smooth is not None:
            at, bend = self.smooth.slope((low + high) / 2), larger(*map(abs, self.smooth.curvature)) * (high - low) / 2
            least += self.weight * larger(at - bend, self.smooth.slopes[0])
            most += self.weight * smaller(at + bend, self.smooth.slopes[1])
        return least, most

    @property
    def steepest(self) -> arb:
        """A Lipschitz constant on the whole line."""
        if self.lipschitz is not None:
            return self.lipschitz
        found = larger(*map(abs, self._kinks()))
        return found if self.smooth is None else found + self.weight * larger(*map(abs, self.smooth.slopes))

    @property
    def turn(self) -> arb:
        """By how much two slopes of the parts can differ; of a user's function from zero, to which it is cut off."""
        least, most = self._kinks()
        if self.lipschitz is not None:
            return larger(abs(least), abs(most))
        down, up = (ZERO, ZERO) if self.smooth is None else self.smooth.slopes
        return most - least + self.weight * (up - down)

    def range(self, low: arb, high: arb) -> tuple[arb, arb]:
        """Bounds of the function on [low, high]."""
        if self.within is not None:
            require(self.within[0] <= low and high <= self.within[1], "a pre-activation leaves the knots of a function")
        least, most = self.slopes(low, high)
        if least >= 0:
            return self.value(low) - self.error, self.value(high) + self.error
        middle, reach = self.value((low + high) / 2), larger(abs(least), abs(most)) * (high - low) / 2 + self.error
        return middle - reach, middle + reach

    def above(self, m: tuple[arb, arb], r: tuple[arb, arb], slope: arb, constant: arb, sign: int) -> bool:
        """Whether ``sign`` E phi(m + r xi) is proved to be at most ``slope m + constant`` on the rectangle of (m, r).

        On each piece of the range of m: convex hinges lie below their chord (and rise with r), concave ones below a
        tangent (and fall with r), the smooth part below its chord plus h^2 / 8 times the largest -f''.
        """
        low, high = m
        pieces = 1 if self.smooth is None and all(sign * j >= 0 for _, j in self.hinges) else _PIECES
        h = (high - low) / pieces
        remainder = self.error
        if self.smooth is not None:
            down, up = self.smooth.curvature if sign > 0 else (-self.smooth.curvature[1], -self.smooth.curvature[0])
            remainder += self.weight * (larger(up, ZERO) * sq(r[1]) / 2 + larger(-down, ZERO) * sq(h) / 8)
        for i in range(pieces):
            ends = (low + i * h, low + (i + 1) * h)
            middle = (ends[0] + ends[1]) / 2
            for at in ends:
                found = sign * (self.line * at + self.constant) + remainder
                if self.smooth is not None:
                    found += sign * self.weight * self.smooth.value(at)
                for t, j in self.hinges:
                    found += sign * j * (g(at - t, r[1]) if sign * j >= 0 else _tangent(middle - t, at - t, r[0]))
                if not found <= slope * at + constant:
                    return False
        return True


def _tangent(touch: arb, at: arb, r: arb) -> arb:
    """The tangent of the convex g(., r) at ``touch``; for r = 0 one of the two lines of max(., 0)."""
    if r.is_zero():
        return at if touch >= 0 else ZERO
    return g(touch, r) + cdf(touch / r) * (at - touch)


RELU = Activation(hinges=((ZERO, ONE),))


def activation(layer: Layer) -> Activation:
    """The activation of a layer of the file."""
    settings = {name: arb(float(value)) for name, value in layer.settings.items() if value is not None}
    match layer.kind:
        case "identity":
            found = Activation(line=ONE)
        case "relu":
            found = RELU
        case "leaky_relu":
            slope = settings["negative_slope"]
            found = Activation(line=slope, hinges=((ZERO, ONE - slope),))
        case "hard_tanh":
            found = Activation(constant=-ONE, hinges=((-ONE, ONE), (ONE, -ONE)))
        case "elu":
            alpha = settings["alpha"]
            found = Activation(_SMOOTH["elu"], alpha, hinges=((ZERO, ONE - alpha),))
        case "piecewise_affine":
            knots, values = layer.tensors["knots"].numbers(), layer.tensors["values"].numbers()
            rises = zip(pairwise(values), pairwise(knots), strict=True)
            slopes = [ZERO, *((b - a) / (t - s) for (a, b), (s, t) in rises), ZERO]
            hinges = tuple((t, b - a) for t, (a, b) in zip(knots, pairwise(slopes), strict=True))
            error, steep, ends = settings["inner_error"], settings["lipschitz"], (knots[0], knots[-1])
            found = Activation(constant=values[0], hinges=hinges, error=error, within=ends, lipschitz=steep)
        case kind:
            found = Activation(_SMOOTH[kind])
    return found
