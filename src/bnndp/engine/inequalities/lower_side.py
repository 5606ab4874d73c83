r"""How far a sum of squares of hinges falls below its mean, two layers above independent values.

:math:`s=\sum_jw_j(X_j)_+^2`, :math:`w_j\ge0`, :math:`X=Wy+b`: the rows of weights are independent and Gaussian,
independent of y, and the :math:`y_k` are independent of each other. Bounded is
:math:`\lVert(\mathbb Es-s)_+\rVert_4`. Norms of s itself count its upper tail, which is long: few neurons carry s.

*Convexity.* Given W, s is a convex function of y, so above its tangent at any :math:`y_0`, here the middle of the range
of E y. With :math:`X'=Wy_0+b`, :math:`s_0=\sum_jw_j(X'_j)_+^2`, :math:`g_k=\sum_jw_j\eta_{jk}`,
:math:`\eta_{jk}=2(X'_j)_+W_{jk}`, d = y - E y and :math:`\bar S\ge\mathbb Es`,

.. math:: \mathbb Es-s\le P+B,\qquad P=\bar S-s_0-g\cdot(\mathbb Ey-y_0),\quad B=-g\cdot d .

Given W, B is centred, of variance :math:`U=\sum_kg_k^2\operatorname{Var}y_k`, and :math:`\mathbb E[B^4\mid
W]\le3U^2+\sum_kg_k^4\mathbb Ed_k^4`. As for any sum (``sums/expansion.py``), :math:`\mathbb E(P+B)_+^4\le\mathbb
EP_+^4+6\mathbb EP_+^2U+4\mathbb EP_+|B|^3+\mathbb EB^4`, and by Hoelder, with p the norm of :math:`P_+` in L4 and
:math:`u=\sum_k\operatorname{Var}y_k\lVert g_k\rVert_4^2\ge\lVert U\rVert_2`, at most
:math:`p^4+6p^2u+4p(ub)^{1/2}+b`, :math:`b=3u^2+\sum_k\mathbb Eg_k^4\mathbb Ed_k^4`.

*P.* :math:`p\le\lVert(\bar S-s_0)_+\rVert_4+\sum_k|\mathbb Ey_k-y_{0,k}|\lVert g_k\rVert_4`. The :math:`X'_j` are
independent Gaussian variables of known mean m and variance v. As :math:`x_+^4\le(4/e\lambda)^4e^{\lambda x}` for every
:math:`\lambda>0`, :math:`\mathbb E(\bar S-s_0)_+^4\le(4/e\lambda)^4e^{\lambda\bar S}\prod_jL_j(\lambda w_j)` with

.. math:: L(t)=\mathbb Ee^{-tX_+^2}=\Phi(-m/\sqrt v)+D^{-1/2}e^{-tm^2/D}\Phi\bigl(m/\sqrt{vD}\bigr),\qquad D=1+2tv .

*g.* For each k the :math:`\eta_{jk}` are independent. Let W be one weight, of mean mu and variance :math:`\sigma^2`,
:math:`c=(\Sigma\tilde y_0)_k` its covariance with X', and :math:`M_p=\mathbb EX_+^p`, :math:`M_0=\mathbb P(X>0)`. By
parts (:math:`W-\mu=c(X-m)/v+` an independent Gaussian variable)

.. math:: \mathbb EX_+W&=\mu M_1+cM_0,\\
          \operatorname{Var}X_+W&=\sigma^2M_2+\mu^2\operatorname{Var}X_++2\mu cM_1(2-M_0)+c^2M_0(2-M_0),\\
          \mathbb EX_+^4(W-\mu)^4&=3\sigma^4M_4+72\sigma^2c^2M_2+24c^4M_0 .

So :math:`g_k` has a known mean and variance V, a fourth central moment of at most :math:`F=3V^2+\sum_jw_j^4\lVert
\eta_{jk}-\mathbb E\eta_{jk}\rVert_4^4` (Minkowski for both parts of W), and with e the size of its mean
:math:`\mathbb Eg_k^4\le e^4+6e^2V+4e(VF)^{1/2}+F`.

*Hinges with two slopes* a and b, :math:`z^2=a^2X_-^2+b^2X_+^2`, are convex too. L is a sum over both sides, as
:math:`\mathbb Ee^{-tX_+^2}1_{X>0}` is its second term; the norms of both parts of :math:`\eta` are added.

*Rounding.* m and the root of v are computed, so that X' is off by some :math:`\Delta`. The tangent is taken at the
computed one, whose law is exact: :math:`2X'_+|\Delta|\le\epsilon X_+'^2+\Delta^2/\epsilon`, the first of which makes
:math:`\bar S` larger by a share of :math:`\epsilon`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine.chunks import cache_size, chunks
from bnndp.engine.laws.weights import Weights
from bnndp.engine.moments.intervals import BLUR
from bnndp.engine.moments.signal import CENTRED, Signal
from bnndp.engine.rows import DenseRows
from bnndp.maths.hinge import positive_moments
from bnndp.maths.normal import cdf
from bnndp.maths.rectified import moments, ratio
from bnndp.maths.rounding import ELEMENTARY, SMALL, TINY, UP, gamma, power_of

__all__ = ["lower_norm"]

_RATES = (2.0, 3.5, 6.0, 10.0)  # lambda times the size of what s_0 falls below its mean by
_WIDEST = 512  # neurons up to which matrices of weights are formed for each box
_NUMBERS = 2**16  # in the matrices of the boxes made at a time: in the caches of a CPU
_LOWEST = -700.0  # of exponents
_EPSILON = UP - 1
_SQUARE = 3.3  # at least ||xi||_8^2
_LOGARITHM = 1e-11  # error granted to that of L

_Factors = tuple[float, float]
"""The squares of the slopes of a hinge, on the left and on the right."""


def lower_norm(
    weights: Weights, y: Signal, rows: DenseRows, most: Tensor, slopes: tuple[float, float] = (0.0, 1.0)
) -> Tensor | None:
    """Of s = rows . z^2, z a hinge of X = W y + b with these slopes: (batch, rows); ``most``, so too, is at least E s.

    None unless the rows of weights are independent, and the coordinates of y.
    """
    if (
        not (weights.random and weights.groups == weights.n_out and y.source)
        or max(weights.n_in, weights.n_out) > _WIDEST
    ):
        return None
    batch, n = y.variance.shape[0], weights.n_out
    middle, half = 0.5 * (y.mean.lower + y.mean.upper), 0.5 * (y.mean.upper - y.mean.lower) * UP
    unit = DenseRows(torch.eye(n, dtype=middle.dtype, device=middle.device)[None])
    mean, variance = (pull(unit).dense().values for pull in (weights.pull, weights.variance_pull))  # (1, n, n_in)
    m, v = weights.apply(middle) + weights.bias, weights.spread(middle)
    crossed = 0.5 * weights.spread_pull(unit, middle).dense().values
    size = weights.spread_size(middle.abs()).sqrt()
    off = gamma(4 * weights.n_in + 32) * (weights.power(middle.abs(), 1) + weights.bias.abs() + size)
    matrices = (each.expand(batch, -1, -1) for each in (rows.values, mean, variance, crossed))
    vectors = (half, y.variance, y.norms[..., 0], m, v, size, off, most)
    factors = (slopes[0] ** 2, slopes[1] ** 2)
    tensors = (*vectors, *matrices)
    size_of_chunk = max(1, cache_size(_NUMBERS, m.device) // (n * max(weights.n_in, rows.count)))
    parts = chunks(batch, size_of_chunk, m.device)
    found = torch.cat([_of_boxes(factors, *(each[part] for each in tensors)) for part in parts])
    return found * UP + SMALL**2


def _of_boxes(  # noqa: PLR0913 (what is known of each box)
    factors: _Factors,
    half: Tensor,  # how far E y may be from y_0: (batch, n_in)
    variance: Tensor,  # of y
    norm4: Tensor,  # ||d||_4
    m: Tensor,  # means and variances of X': (batch, n)
    v: Tensor,
    size: Tensor,  # the root of v with the sizes of all its terms
    off: Tensor,  # Delta, times one or the size of a Gaussian variable
    most: Tensor,  # (batch, rows): at least E s
    rows: Tensor,  # (batch, rows, n)
    mu: Tensor,  # means and variances of the weights: (batch, n, n_in)
    square: Tensor,
    c: Tensor,  # and their covariances with X'
) -> Tensor:  # (batch, rows)
    fourth = _slopes(
        factors, rows, m, v, _Crossed(mu, square, c, square.sqrt() * size[..., None])
    )  # E g^4: (batch, rows, n_in)
    norms = fourth.sqrt()
    u = _dot(norms, variance) * UP
    b = 3 * u.square() + _dot(fourth, power_of(norm4, 4))
    lost = _dot(rows, (1 + _SQUARE) * off.square()) * (2 * max(factors) / _EPSILON)
    p = (_gaussian(factors, rows, m, v, most) + _dot(norms.sqrt(), half) + lost) * UP
    return (power_of(p, 4) + 6 * p.square() * u + 4 * p * (u * b).sqrt() + b).sqrt().sqrt()


def _gaussian(factors: _Factors, rows: Tensor, m: Tensor, v: Tensor, most: Tensor) -> Tensor:  # (batch, rows)
    """The norm in L4 of what the sum for independent Gaussian X falls below ``most`` by."""
    r = v.sqrt()
    u, top = ratio(m, r)[:, None], most * UP**3  # its share of epsilon, and rounding
    left, right = (moments(sign * m, r) for sign in (-1, 1))
    square = _dot(rows.square(), factors[0] ** 2 * left.square_variance + factors[1] ** 2 * right.square_variance)
    mean = _dot(rows, factors[0] * left.second + factors[1] * right.second)
    scale = (square.sqrt() + 0.5 * (top - mean).clamp_min(0)).clamp_min(1e-6 * top).clamp_min(TINY)
    found = []
    for times in _RATES:
        rate = times / scale
        t = rate[..., None] * rows  # (batch, rows, n)
        laplace = _side(factors[0] * t, m, v, -u) + _side(factors[1] * t, m, v, u)
        found.append(4 * ((4 / rate).log() - 1) + rate * top + (laplace.log() + _LOGARITHM).sum(-1))
    return torch.fmin((0.25 * torch.stack(found).amin(0)).exp() * UP, top)  # s_0 is not negative


def _side(t: Tensor, m: Tensor, v: Tensor, u: Tensor) -> Tensor:  # t (batch, rows, n), u (batch, 1, n)
    r"""The mean of :math:`e^{-tX^2}` where X is on one side of zero; u is the distance of its mean from the other."""
    root = (1 + 2 * t * v[:, None]).rsqrt()
    return root * torch.exp((-t * (m[:, None] * root).square()).clamp_min(_LOWEST)) * cdf(u * root)


@dataclass(frozen=True, slots=True)
class _Crossed:
    """Weights beside X': (batch, n, n_in) each."""

    mean: Tensor
    variance: Tensor
    covariance: Tensor  # c
    size: Tensor  # of the terms of c, at least |c|


def _slopes(factors: _Factors, rows: Tensor, m: Tensor, v: Tensor, w: _Crossed) -> Tensor:
    """E g_k^4, at most: (batch, rows, n_in)."""
    right = _of_side(factors[1], m, v, w)
    if factors[0] == 0:
        mean, size, deviation, norm4 = right
    else:
        left = _of_side(factors[0], -m, v, replace(w, covariance=-w.covariance))
        mean, (size, deviation, norm4) = right[0] - left[0], (a + b for a, b in zip(right[1:], left[1:], strict=True))
    large = rows.clamp_min(SMALL**2)
    e = (rows @ mean).abs() + BLUR * (large @ size)
    spread = large.square() @ deviation.square() * UP + TINY
    fourth = 3 * spread.square() + power_of(large, 4) @ power_of(norm4, 4) * UP + TINY
    cube = 4 * e * (spread * fourth).sqrt()
    return (power_of(e, 4) + 6 * e.square() * spread + cube + fourth) * UP


def _of_side(factor: float, m: Tensor, v: Tensor, w: _Crossed) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of ``factor`` times eta: its mean, the size of the terms of that, its deviation and its central norm in L4."""
    r = v.sqrt()
    chance, one, two, _, four = (moment[..., None] for moment in positive_moments(4, m, r))  # (batch, n, 1)
    own = (moments(m, r).variance + ELEMENTARY * v)[..., None]  # Var X_+
    mu, square, c, size, other = w.mean, w.variance, w.covariance, w.mean.abs(), 2 - chance
    most = (c.abs() + BLUR * w.size).square()  # c^2
    parts = square * two + mu.square() * own + most * chance * other
    crossed = 2 * mu * c * one * other
    each = parts + crossed + BLUR * (parts + 2 * size * w.size * one * other)  # Var X_+ W
    noise = (3 * square.square() * four + 72 * square * most * two + 24 * most.square() * chance).sqrt().sqrt()
    central = torch.minimum(four, 3 * v.square()[..., None]).sqrt().sqrt()  # of X_+, which is below X in convex order
    found = mu * one + c * chance, size * one + w.size * chance, each.sqrt(), size * central + CENTRED[0] * noise
    return tuple(2 * factor * part for part in found)  # type: ignore[return-value]


def _dot(rows: Tensor, values: Tensor) -> Tensor:  # (batch, rows, n), (batch, n) -> (batch, rows)
    return (rows @ values[..., None])[..., 0]
