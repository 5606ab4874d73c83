r"""Other things than the mean of a regression network: its variance, probabilities of intervals, noise of the data.

All hold for every x of a box and over the whole posterior. With the signal z below the last layer, whose weights are
drawn independently of z (docs/theory.md, section 8):

* variance: :math:`\operatorname{Var}f=\mathbb Es(z)+\operatorname{Var}(\mu\cdot z)` (law of total variance). Below, the
  second term is at least :math:`\sum_j\mu_j^2\,\mathbb E\operatorname{Var}(z_j\mid Y)`, Y being a history given which
  the z_j are independent (``engine/general/signal.py``).
* probability of :math:`a\le f\le b`: from mean and variance alone by Cantelli's inequality and by parabolas; exact,
  over the ranges of mean and variance, where z is a function of x, for then f is Gaussian.
* noise: an output l that is trained to be the logarithm of the variance of the data (a heteroscedastic head, which has
  outputs of means and others of such logarithms) says that this variance is :math:`\mathbb Ee^l`. Where z is a function
  of x, it is :math:`e^{m+s/2}`; else it may be infinite. The variance of a prediction is
  :math:`\operatorname{Var}f+\mathbb Ee^l`: that of the mean output plus the noise.

An ensemble has :math:`\operatorname{Var}f=\sum_kw_kV_k+\sum_kw_k(M_k-\bar M)^2` and sums of probabilities and of noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.chunks import fitted
from bnndp.engine.dense.forward import Parameters, hidden_layers
from bnndp.engine.dense.variance import linear_variance
from bnndp.engine.general.forward import hidden, row_variance
from bnndp.engine.general.signal import UP
from bnndp.engine.members import Part, parts
from bnndp.engine.methods import members_together, one_pass, part_bounds, piece_size
from bnndp.engine.mixture import LowerSum, mixed, of_affine, weighted_interval
from bnndp.errors import InputError, UnsupportedLayerError
from bnndp.geometry.bounds import Affine, AffineBounds, Interval
from bnndp.geometry.box import Box, apply_rows
from bnndp.maths.normal import interval_probability
from bnndp.maths.rounding import ELEMENTARY, TINY, gamma, up
from bnndp.network import BayesianNetwork, Ensemble, Posterior
from bnndp.options import Options

__all__ = ["Between", "noise", "probability", "variance"]

_LOG_LARGEST = 709.0  # exp of more overflows
_TINY_ROOT = 1e-150  # squares of less underflow


@dataclass(frozen=True, slots=True)
class Between:
    """The interval [lower, upper] of outputs that is asked about; infinite ends are allowed."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not self.lower <= self.upper or math.inf in (self.lower, -self.upper):
            raise InputError(
                f"an interval [a, b] needs a <= b, a below infinity and b above minus infinity; got "
                f"a={self.lower!r}, b={self.upper!r}."
            )


@dataclass(frozen=True, slots=True)
class _Law:
    """Mean and variance of every output of a network for every x of each box: (batch, outputs) each."""

    mean: Interval
    variance: Interval
    gaussian: bool


def variance(network: Posterior, box: Box, options: Options) -> Interval:
    """Bounds (batch, outputs) of Var f(x) for every x of each box; infinite above where float64 overflows."""
    return _in_pieces(network, box, options, _variance)


def probability(network: Posterior, box: Box, options: Options, between: Between) -> Interval:
    """Bounds (batch, outputs) of P(a <= f(x) <= b) for every x of each box."""

    def found(network: Posterior, box: Box, options: Options) -> Interval:
        if isinstance(network, Ensemble):
            ends = weighted_interval(_each(network, lambda member: found(member, box, options)))
            return Interval(ends.lower.clamp(0, 1), ends.upper.clamp(0, 1))
        return _probability(_law(network, box, options), between)

    return _in_pieces(network, box, options, found)


def noise(network: Posterior, box: Box, options: Options) -> Interval:
    """Bounds (batch, outputs) of E exp(f(x)) for every x of each box; refused where it is not known to be finite."""

    def found(network: Posterior, box: Box, options: Options) -> Interval:
        if isinstance(network, Ensemble):
            return weighted_interval(_each(network, lambda member: found(member, box, options)))
        return _noise(network, _law(network, box, options))

    return _in_pieces(network, box, options, found)


_Found = Callable[[Posterior, Box, Options], Interval]


def _in_pieces(network: Posterior, box: Box, options: Options, found: _Found) -> Interval:
    """Cut into pieces that fit the memory; NaN says nothing."""
    if network.task != "regression":
        raise InputError(
            f"variance, probability and noise are those of a regression network; this one is for {network.task}, "
            "whose expected softmax has bounds by quantity='mean'."
        )
    if box.n != network.n_in:
        raise InputError(
            f"the boxes have {box.n} inputs, the network takes {network.n_in}; check the order of the axes."
        )
    if options.method in ("partition", "best"):
        raise InputError(f"method {options.method!r} bounds the mean only; use method 'moment'.")
    options = fitted(options, box.lower.device)
    size = piece_size(network, options)
    pieces = [found(network, box[start : start + size], options) for start in range(0, box.batch, size)]
    low, high = torch.cat([piece.lower for piece in pieces]), torch.cat([piece.upper for piece in pieces])
    return Interval(
        low.nan_to_num(0.0, posinf=torch.finfo(low.dtype).max), high.nan_to_num(torch.inf, posinf=torch.inf)
    )


def _variance(network: Posterior, box: Box, options: Options) -> Interval:
    if not isinstance(network, Ensemble):
        return _network_variance(network, box)[0]
    together = list(parts(network, members_together(box, piece_size(network, options), options)))
    means = [(part.weights, part_bounds(part, box, options)[0]) for part in together]
    within = weighted_interval((part.weights, _part_variance(part, box)) for part in together)
    whole = mixed(means, box, network.n_out)
    between = weighted_interval((weights, _square(_difference(mean, whole))) for weights, mean in means)
    return Interval((within.lower + between.lower) * (1 - gamma(8)), (within.upper + between.upper) * (1 + gamma(8)))


def _each(network: Ensemble, found: Callable[[BayesianNetwork], Interval]) -> Iterator[tuple[Tensor, Interval]]:
    """Weight and interval of each member, one by one."""
    return ((part.weights, found(part.members[0])) for part in parts(network, 1))


def _part_variance(part: Part, box: Box) -> Interval:
    """Variance of each member of a part on the boxes repeated for each; those that are stacked have none."""
    if not part.stacked:
        return _network_variance(part.members[0], box)[0]
    none = box.lower.new_zeros(len(part.members) * box.batch, part.members[0].n_out)
    return Interval(none, none)


def _difference(each: AffineBounds, whole: AffineBounds) -> Interval:
    """Range of the means of members less that of all, with their planes subtracted before minimising.

    ``each`` is on the boxes of ``whole`` repeated for each member, as the answer (members * batch, outputs).
    """
    box, one, ends = each.region, whole.region.lower.new_ones(1), []
    again = torch.arange(whole.region.batch, device=one.device).repeat(box.batch // whole.region.batch)
    low, high = (Affine(side.matrix[again], side.offset[again]) for side in (whole.lower, whole.upper))
    for above, below in ((each.lower, high), (low, each.upper)):
        total = LowerSum.zero(box, above.offset.shape[1])
        plane = total.plus(one, of_affine(above, box)).plus(-one, of_affine(below, box)).rounded()
        ends.append(box.minimum(plane.matrix, plane.offset))
    return Interval(ends[0], -ends[1])


def _square(d: Interval) -> Interval:
    """Range of the square; infinite above and zero below where an end is no number."""
    least = torch.maximum(d.lower, -d.upper).nan_to_num(0.0).clamp_min(0)
    most = d.magnitude.nan_to_num(torch.inf, posinf=torch.inf)
    return Interval(least.square() * (1 - gamma(4)), most.square() * (1 + gamma(4)) + TINY)


def _law(network: BayesianNetwork, box: Box, options: Options) -> _Law:
    _, mean, _ = one_pass(network, box, options)
    found, gaussian = _network_variance(network, box)
    return _Law(mean, found, gaussian)


def _network_variance(network: BayesianNetwork, box: Box) -> tuple[Interval, bool]:
    """Bounds of the variance of one network, and whether its outputs are Gaussian (given x, on all boxes)."""
    if network.shift is not None:
        return _network_variance(network.unshifted(), box.moved(network.shift))
    passed = hidden(network, box)
    weights, z = passed.output.weights, passed.last.signal
    unit = torch.eye(network.n_out, dtype=torch.float64, device=box.lower.device).expand(box.batch, -1, -1)
    high = row_variance(passed, unit)
    low = weights.power(z.noise.lower, 2)
    if weights.random:
        low = low + weights.mean_spread(z).lower
    if network.plain:
        high = torch.fmin(high, _plain_variance(network, box))
    low = low.nan_to_num(0.0).clamp_min(0) / UP
    return Interval(torch.minimum(low, high), high), z.fixed


def _plain_variance(network: BayesianNetwork, box: Box) -> Tensor:
    """The upper bound of the pass for networks of Linear and Relu: (batch, outputs); infinite where it knows none."""
    *below, output = network.seen
    n, squares = output.n_in + 8, output.weight_std.square() + TINY  # the squares may underflow
    if not below:
        return up(apply_rows(squares, box.magnitude.square()) + output.bias_std.square() + TINY, n)
    layers = hidden_layers(below, box, Parameters(), take_last_apart=True)
    spread = up(apply_rows(squares, layers.latents[-1].second.upper) + output.bias_std.square() + TINY, n)
    through = up(linear_variance(output.weight_mean, layers.given, layers.latents, layers.first.sources), n + 12)
    found = (spread + through) * (1 + gamma(8))
    return torch.where(layers.fine & found.isfinite(), found, torch.inf)


def _noise(network: BayesianNetwork, law: _Law) -> Interval:
    if not law.gaussian:
        raise UnsupportedLayerError(
            f"the noise E exp(f) of {network!r} is not known to be finite: something before its last layer is random, "
            "so that the output is no Gaussian; make only the last layer random, or use an ensemble of such networks."
        )
    low = law.mean.lower + 0.5 * law.variance.lower
    high = law.mean.upper + 0.5 * law.variance.upper
    slack = [ELEMENTARY * (1 + end.abs()) for end in (low, high)]
    least = torch.exp((low - slack[0]).clamp_max(_LOG_LARGEST)) * (1 - ELEMENTARY)
    most = torch.where(high < _LOG_LARGEST, torch.exp((high + slack[1]).clamp_max(_LOG_LARGEST + 0.5)), torch.inf)
    return Interval((least - TINY).clamp_min(0), most * (1 + ELEMENTARY) + TINY)


def _probability(law: _Law, between: Between) -> Interval:
    low, high = _by_moments(law.mean, law.variance.upper, between)
    if law.gaussian:
        least, most = _gaussian(law.mean, law.variance, between)
        low, high = torch.fmax(low, least), torch.fmin(high, most)
    low, high = low.nan_to_num(0.0).clamp(0, 1), high.nan_to_num(1.0).clamp(0, 1)
    return Interval(torch.minimum(low, high), high)


def _by_moments(mean: Interval, most: Tensor, between: Between) -> tuple[Tensor, Tensor]:
    r"""From means in an interval and variances of at most V.

    Cantelli: :math:`P(f-\mathbb Ef\ge t)\le V/(V+t^2)`. Parabolas: for any c within (a, b), at a distance
    :math:`\rho` from the nearer end, :math:`P(f\notin(a,b))\le\mathbb E(f-c)^2/\rho^2=(V+(M-c)^2)/\rho^2`; c in the
    middle, or where the parabola of Cantelli's inequality for the nearer end has its zero (Selberg 1940).
    """
    a, b = between.lower, between.upper
    above, below = _cantelli(b - mean.upper, most), _cantelli(mean.lower - a, most)  # P(f > b), P(f < a)
    outside = above + below
    if math.isfinite(a) and math.isfinite(b):
        middle = torch.full_like(most, 0.5 * a + 0.5 * b)
        nearer = torch.minimum(mean.lower - a, b - mean.upper).clamp_min(TINY)
        zero = torch.where(mean.lower - a < b - mean.upper, mean.lower + most / nearer, mean.upper - most / nearer)
        for c in (middle, zero):
            reach = torch.minimum(c - a, b - c).clamp_max(1e150) * (1 - gamma(8)) - gamma(8) * (abs(a) + abs(b))
            away = torch.maximum((mean.lower - c).abs(), (mean.upper - c).abs())
            away = away + gamma(8) * (mean.magnitude + c.abs())
            ratio = (most + away.square()) / reach.square()
            outside = torch.where((reach > _TINY_ROOT) & (ratio < outside), ratio, outside)  # false for NaN
    inside = torch.fmin(_cantelli(a - mean.upper, most), _cantelli(mean.lower - b, most))
    return 1 - outside * (1 + ELEMENTARY) - ELEMENTARY, inside * (1 + ELEMENTARY) + ELEMENTARY


def _cantelli(distance: Tensor, most: Tensor) -> Tensor:
    """Bound of the probability of straying from the mean by more than this to one side; 1 where it is not positive."""
    t = (distance - gamma(4) * distance.abs()).clamp_max(1e100)
    square = t.square()
    found = torch.where((t > _TINY_ROOT) & most.isfinite(), most / (most + square), 1.0)
    return torch.where(distance == torch.inf, 0.0, found)


def _gaussian(mean: Interval, spread: Interval, between: Between) -> tuple[Tensor, Tensor]:
    r"""The least and the largest :math:`P(a\le N(m,r^2)\le b)` over a rectangle of means and deviations.

    In m it rises up to the middle of [a, b] and falls after it, for every r: the least is at an end, the largest at the
    middle cut to the means. In r it falls if m is within [a, b], and else rises up to
    :math:`r^2=(d_2^2-d_1^2)/(2\log(d_2/d_1))`, the distances to both ends, and falls after it: the least is at an end.
    """
    a, b = between.lower, between.upper
    low, high = (spread.lower * (1 - gamma(4))).sqrt(), (spread.upper * (1 + gamma(4))).sqrt().clamp_min(TINY)
    low = torch.where(low < TINY, 0.0, low)
    least = torch.stack([_chance(m, r, a, b) for m in (mean.lower, mean.upper) for r in (low, high)]).amin(0)
    blur = 0.0
    if math.isfinite(a) and math.isfinite(b):
        blur = gamma(4) * (abs(a) + abs(b))  # of the middle, by rounding
        m = torch.full_like(mean.lower, 0.5 * a + 0.5 * b).clamp(mean.lower, mean.upper)
    else:
        m = mean.lower if a == -math.inf else mean.upper
    within = (m >= a) & (m <= b)
    near, far = torch.maximum(a - m, m - b).clamp_min(TINY), torch.maximum(b - m, m - a)
    peak = ((far - near) * (far + near) / (2 * torch.log1p((far - near) / near))).sqrt()
    peak = torch.where(within, 0.0, peak.nan_to_num(torch.inf, posinf=torch.inf)).clamp(low, high)
    inner = torch.where(low == 0, 1.0, _chance(m, low, a - blur, b + blur))
    most = torch.where(within, inner, _chance(m, peak, a, b))
    fine = high.isfinite() & mean.lower.isfinite() & mean.upper.isfinite()
    return torch.where(fine, least - ELEMENTARY, 0.0), torch.where(fine, most + ELEMENTARY, 1.0)


def _chance(m: Tensor, r: Tensor, a: float, b: float) -> Tensor:
    """P(a <= N(m, r^2) <= b); for r = 0 the limit of small r."""
    half = m.new_tensor(0.5)
    limit = torch.heaviside(b - m, half) - torch.heaviside(a - m, half)
    scale = torch.where(r > 0, r, 1.0)
    return torch.where(r > 0, interval_probability((a - m) / scale, (b - m) / scale), limit)
