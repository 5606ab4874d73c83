"""Moments of activations of a Gaussian in ball arithmetic (Arb's integrals), sharing no code with the package.

An activation is a list of pieces: analytic functions of a complex ball, and the kinks between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from flint import acb, arb, ctx

BITS = 150
CUT = 15  # standard deviations: what is beyond is below 1e-46 of any moment and goes into the radius
Piece = Callable[[acb, bool], acb]


@dataclass(frozen=True)
class Constant:
    """A piece that is flat."""

    value: float

    def __call__(self, z: acb, analytic: bool) -> acb:
        return acb(self.value)


@dataclass(frozen=True)
class Truth:
    """Pieces from left to right and the kinks between them; ``steepest`` bounds the slope."""

    pieces: tuple[Piece, ...]
    kinks: tuple[float, ...] = ()
    steepest: float = 2.0

    def value(self, x: float | arb) -> arb:
        """phi(x)."""
        with ctx.workprec(BITS):
            i = sum(bool(arb(x) > k) for k in self.kinks)
            return self.pieces[i](acb(x), False).real

    def raw(self, m: float, r: float, order: int = 4) -> list[arb]:
        """E (phi(m + r xi) - phi(m))^k for k = 1 to order."""
        return [self._integral(m, r, k) for k in range(1, order + 1)]

    def derivative(self, m: float, r: float, k: int) -> arb:
        """The k-th derivative in m of E phi(m + r xi), E (phi(m + r xi) - phi(m)) He_k(xi) / r^k (Stein)."""
        with ctx.workprec(BITS):
            return self._integral(m, r, 1, lambda z: _hermite(k, z)) / arb(r) ** k

    def norm(self, m: float, r: float, q: int) -> arb:
        """The norm in Lq of phi(m + r xi) less its mean, q even."""
        with ctx.workprec(2 * BITS):
            y = [arb(1), *self.raw(m, r, q)]
            power = sum((math.comb(q, k) * y[k] * (-y[1]) ** (q - k) for k in range(q + 1)), arb(0))
            return power.root(q)

    def _integral(self, m: float, r: float, k: int, weight: Callable[[acb], acb] | None = None) -> arb:
        with ctx.workprec(BITS):
            start, mid, dev, norm = acb(self.value(m)), acb(m), acb(r), (2 * acb.pi()).sqrt()
            kinks = [(arb(at) - arb(m)) / arb(r) for at in self.kinks if abs(at - m) < 14.9 * r]
            ends = sorted([arb(-CUT), *kinks, arb(CUT)], key=float)
            small = arb(2) ** -80
            total = arb(0)
            for a, b in pairwise(ends):
                middle = m + r * (float(a) + float(b)) / 2
                piece = self.pieces[sum(middle > kink for kink in self.kinks)]
                if isinstance(piece, Constant) and acb(piece.value) == start:
                    continue

                def integrand(z: acb, analytic: bool, piece: Piece = piece) -> acb:
                    product = (-z * z / 2).exp() / norm
                    for _ in range(k):  # Arb has no power of a ball around zero
                        product *= piece(mid + dev * z, analytic) - start
                    return product if weight is None else product * weight(z)

                inner = [arb(c) for c in (-3, 0, 3) if float(a) < c < float(b)]  # helps Arb to bisect
                for low, high in pairwise([a, *inner, b]):
                    absolute = small * arb(self.steepest * r) ** k
                    total += acb.integral(integrand, low, high, rel_tol=small, abs_tol=absolute).real
            return total + arb(0, 1e-40) * arb(self.steepest * r) ** k

    def mean(self, m: float, r: float) -> arb:
        """E phi(m + r xi)."""
        with ctx.workprec(BITS):
            return self.value(m) + (self.raw(m, r, 1)[0] if r > 0 else 0)

    def central(self, m: float, r: float) -> tuple[arb, arb, arb]:
        """Central moments of second to fourth order."""
        with ctx.workprec(BITS):
            y1, y2, y3, y4 = self.raw(m, r)
            a = y1 * y1
            return y2 - a, y3 - 3 * y1 * y2 + 2 * a * y1, y4 - 4 * y1 * y3 + 6 * a * y2 - 3 * a * a


def _hermite(k: int, z: acb) -> acb:
    before, now = acb(1), z
    for j in range(1, k):
        before, now = now, z * now - j * before
    return now


def _sigmoid(z: acb, _: bool) -> acb:
    return 1 / (1 + (-z).exp()) if z.real.mid() > 0 else z.exp() / (1 + z.exp())


def _softplus(z: acb, analytic: bool) -> acb:
    return (1 + z.exp()).log(analytic=analytic) if z.real.mid() < 0 else z + (1 + (-z).exp()).log(analytic=analytic)


def _cdf(z: acb) -> acb:
    return (-z / acb(2).sqrt()).erfc() / 2


def _line(z: acb, _: bool) -> acb:
    return z


TRUTHS: dict[str, Truth] = {
    "relu": Truth((Constant(0), _line), (0.0,), 1.0),
    "leaky_relu": Truth((lambda z, _: z * acb(0.01), _line), (0.0,), 1.0),
    "identity": Truth((_line,), (), 1.0),
    "hard_tanh": Truth((Constant(-1), _line, Constant(1)), (-1.0, 1.0), 1.0),
    "tanh": Truth((lambda z, _: 2 * _sigmoid(2 * z, _) - 1,), (), 1.0),
    "sigmoid": Truth((_sigmoid,), (), 0.25),
    "softplus": Truth((_softplus,), (), 1.0),
    "elu": Truth((lambda z, _: z.exp() - 1, _line), (0.0,), 1.0),
    "gelu": Truth((lambda z, _: z * _cdf(z),), (), 1.13),
    "silu": Truth((lambda z, _: z * _sigmoid(z, _),), (), 1.1),
}
"""By kind, with the default settings."""

TRUTHS["piecewise_affine"] = Truth((lambda z, _: z.sin(),), (), 1.0)


def elu(alpha: float) -> Truth:
    return Truth((lambda z, _: acb(alpha) * (z.exp() - 1), _line), (0.0,), max(1.0, alpha))


def leaky(slope: float) -> Truth:
    return Truth((lambda z, _: z * acb(slope), _line), (0.0,), max(1.0, abs(slope)))


def inside(value: float, error: float, ball: arb) -> bool:
    """Whether the ball is provably within ``error`` of ``value``."""
    return math.isfinite(value) and bool(abs(arb(value) - ball) <= arb(error))
