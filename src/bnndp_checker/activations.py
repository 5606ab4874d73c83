r"""Activations: a smooth function plus hinges, :math:`\varphi(x)=f(x)+l\,x+b+\sum_kJ_k(x-t_k)_+`, up to an error.

The mean of :math:`\varphi(m+r\xi)` over a standard Gaussian :math:`\xi` is exact for the line and the hinges,
:math:`J_kg(m-t_k,r)`, and for the smooth part within :math:`\tfrac12r^2[\inf f'',\sup f'']` of f(m) (Taylor).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flint import arb

from bnndp_checker.balls import ONE, ZERO, cdf, g, larger, pdf, require, smaller
from bnndp_checker.reading import Layer, Unreadable

__all__ = ["Activation", "activation"]

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


_ROOT3 = arb(3).sqrt()
_SMOOTH = {
    "tanh": Smooth(arb.tanh, lambda x: ONE - x.tanh() ** 2, (ZERO, ONE), (-4 / (3 * _ROOT3), 4 / (3 * _ROOT3))),
    "sigmoid": Smooth(
        _sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x), (ZERO, ONE / 4), (-1 / (6 * _ROOT3), 1 / (6 * _ROOT3))
    ),
    "softplus": Smooth(lambda x: x.exp().log1p() if x < 30 else x + (-x).exp().log1p(), _sigmoid, (ZERO, ONE), (ZERO, ONE / 4)),
    # x Phi(x): the second derivative (2 - x^2) phi(x) is extreme at 0 and +-2, the first at +-sqrt 2.
    "gelu": Smooth(
        lambda x: x * cdf(x),
        lambda x: cdf(x) + x * pdf(x),
        (cdf(-arb(2).sqrt()) - arb(2).sqrt() * pdf(arb(2).sqrt()), cdf(arb(2).sqrt()) + arb(2).sqrt() * pdf(arb(2).sqrt())),
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
}  # fmt: skip


@dataclass(frozen=True)
class Activation:
    """See the module; ``slopes`` bounds the derivative of the whole where the parts do not."""

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

    def slopes(self, low: arb, high: arb) -> tuple[arb, arb]:
        """Bounds of the derivative on [low, high]; wider than the interval is no harm."""
        if self.lipschitz is not None:
            return -self.lipschitz, self.lipschitz
        ends = self.line + sum((j for t, j in self.hinges if t <= low), ZERO)
        least = most = ends
        for t, j in self.hinges:
            if not (t <= low or t >= high):
                ends += j
                least, most = smaller(least, ends), larger(most, ends)
        if self.smooth is not None:
            at, half = self.smooth.slope((low + high) / 2), (high - low) / 2
            down, up = self.smooth.curvature
            reach = larger(-down, up) * half
            least += self.weight * larger(at - reach, self.smooth.slopes[0])
            most += self.weight * smaller(at + reach, self.smooth.slopes[1])
        return least, most

    def steepest(self) -> arb:
        """A Lipschitz constant on the whole line."""
        if self.lipschitz is not None:
            return self.lipschitz
        found = larger(abs(self.line), ZERO)
        at = self.line
        for _, j in self.hinges:
            at += j
            found = larger(found, abs(at))
        if self.smooth is not None:
            found += self.weight * larger(abs(self.smooth.slopes[0]), abs(self.smooth.slopes[1]))
        return found

    def range(self, low: arb, high: arb) -> tuple[arb, arb]:
        """Bounds of the function on [low, high]."""
        if self.within is not None:
            require(self.within[0] <= low and high <= self.within[1], "a pre-activation leaves the knots of a function")
        middle, half = (low + high) / 2, (high - low) / 2
        least, most = self.slopes(low, high)
        if least >= 0 and self.lipschitz is None:
            return self.value(low) - self.error, self.value(high) + self.error
        reach = larger(abs(least), abs(most)) * half + self.error
        return self.value(middle) - reach, self.value(middle) + reach

    def above(self, m: tuple[arb, arb], r: tuple[arb, arb], slope: arb, constant: arb, sign: int) -> bool:
        """Whether ``sign`` E phi(m + r xi) is proved to be at most ``slope m + constant`` on the rectangle of (m, r).

        On each piece of the range of m: convex parts lie below their chord (and rise with r), concave hinges below a
        tangent (and fall with r), the smooth part below its chord by at most sup|f''| h^2 / 8.
        """
        low, high = m
        pieces = 1 if self.smooth is None and all(sign * j >= 0 for _, j in self.hinges) else _PIECES
        h = (high - low) / pieces
        rest = self.error
        if self.smooth is not None:
            down, up = self.smooth.curvature if sign > 0 else (-self.smooth.curvature[1], -self.smooth.curvature[0])
            rest += self.weight * (larger(up, ZERO) * r[1] ** 2 / 2 + larger(-down, ZERO) * h**2 / 8)
        for i in range(pieces):
            ends = (low + i * h, low + (i + 1) * h)
            middle = (ends[0] + ends[1]) / 2
            for at in ends:
                found = sign * (self.line * at + self.constant) + rest
                if self.smooth is not None:
                    found += sign * self.weight * self.smooth.value(at)
                for t, j in self.hinges:
                    found += sign * j * (g(at - t, r[1]) if sign * j >= 0 else _tangent(middle - t, at - t, r[0]))
                if not found <= slope * at + constant:
                    return False
        return True


def _tangent(touch: arb, at: arb, r: arb) -> arb:
    """The tangent of the convex g(., r) at ``touch``."""
    slope = (ONE if touch >= 0 else ZERO) if r.is_zero() else cdf(touch / r)
    return g(touch, r) + slope * (at - touch)


def activation(layer: Layer) -> Activation:
    """The activation of a layer of the file."""
    kind = layer.kind
    if kind == "identity":
        return Activation(line=ONE)
    if kind == "relu":
        return Activation(hinges=((ZERO, ONE),))
    if kind == "leaky_relu":
        slope = arb(layer.settings["negative_slope"])
        return Activation(line=slope, hinges=((ZERO, ONE - slope),))
    if kind == "hard_tanh":
        return Activation(constant=-ONE, hinges=((-ONE, ONE), (ONE, -ONE)))
    if kind == "elu":
        alpha = arb(layer.settings["alpha"])
        require(alpha >= 0, "the alpha of an ELU is not negative")
        return Activation(_SMOOTH[kind], alpha, hinges=((ZERO, ONE - alpha),))
    if kind == "piecewise_affine":
        knots, values = layer.tensors["knots"].numbers(), layer.tensors["values"].numbers()
        slopes = [ZERO, *((b - a) / (t - s) for a, b, s, t in zip(values, values[1:], knots, knots[1:], strict=False)), ZERO]
        jumps = tuple((t, b - a) for t, a, b in zip(knots, slopes, slopes[1:], strict=False))
        error, steep = arb(layer.settings["inner_error"]), arb(layer.settings["lipschitz"])
        return Activation(constant=values[0], hinges=jumps, error=error, within=(knots[0], knots[-1]), lipschitz=steep)
    if kind in _SMOOTH:
        return Activation(_SMOOTH[kind])
    raise Unreadable(f"no activation {kind!r}")
