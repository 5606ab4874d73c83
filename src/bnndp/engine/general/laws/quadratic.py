"""The mean of a quadratic form of a signal, for posteriors that couple the weights of a row."""

from __future__ import annotations

from torch import Tensor

from bnndp.engine.general.signal import Signal
from bnndp.engine.general.weights import Weights, spread_around
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import UP

__all__ = ["mean_form"]


def mean_form(weights: Weights, z: Signal, diagonal: Tensor) -> Interval:  # diagonal (n_out, n_in) of the forms
    r"""Range of :math:`\mathbb Es(z)=s(\mathbb Ez)+\mathbb E\,d^\top\Sigma d`, d = z - E z: (batch, n_out).

    s at the mean lies between its tangent at the middle c of the means and the tangent plus the excess; the second
    part is :math:`\sum_j\Sigma_{jj}\operatorname{Var}z_j` for independent coordinates, at least the same with
    :math:`\mathbb E\operatorname{Var}(z_j\mid Y)` always, and at most the excess of the standard deviations.
    """
    at, reach = spread_around(weights, z.mean)
    # |grad s . d| <= 2 sqrt(s(c)) sqrt(excess), by Cauchy and Schwarz.
    slope, excess = 2 * at.sqrt() * reach, reach.square()
    low = (at / UP - slope * UP).clamp_min(0) + z.noise.lower @ diagonal.mT / UP
    random = z.variance @ diagonal.mT if z.source else weights.spread_excess(z.variance.sqrt())
    return Interval(low / UP, (at + slope + excess + random) * UP)
