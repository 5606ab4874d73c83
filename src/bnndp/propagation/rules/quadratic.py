"""The mean of a quadratic form of a signal, for posteriors that couple the weights of a row."""

from __future__ import annotations

from torch import Tensor

from bnndp.bounds import Interval
from bnndp.propagation.signal import UP, Signal
from bnndp.propagation.weights import Weights

__all__ = ["mean_form"]


def mean_form(weights: Weights, z: Signal, diagonal: Tensor) -> Interval:  # diagonal (n_out, n_in) of the forms
    r"""Range of :math:`\mathbb Es(z)=s(\mathbb Ez)+\mathbb E\,d^\top\Sigma d`, d = z - E z: (batch, n_out).

    s at the mean lies between its tangent at the middle c of the means and the tangent plus the excess; the second
    part is :math:`\sum_j\Sigma_{jj}\operatorname{Var}z_j` for independent coordinates, at least the same with
    :math:`\mathbb E\operatorname{Var}(z_j\mid Y)` always, and at most the excess of the standard deviations.
    """
    middle, radius = 0.5 * (z.mean.lower + z.mean.upper), 0.5 * (z.mean.upper - z.mean.lower)
    at, excess = weights.spread(middle), weights.spread_excess(radius)
    # |grad s . d| <= 2 sqrt(s(c)) sqrt(excess), by Cauchy and Schwarz.
    slope = 2 * (at * excess).sqrt()
    low = (at / UP - slope * UP).clamp_min(0) + z.noise.lower @ diagonal.mT / UP
    random = z.variance @ diagonal.mT if z.source else weights.spread_excess(z.variance.sqrt())
    return Interval(low / UP, (at + slope + excess + random) * UP)
