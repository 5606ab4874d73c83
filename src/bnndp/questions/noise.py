r"""The noise of the data by a heteroscedastic head: :math:`\mathbb Ee^{f_j(x)}` where output j is a logarithm.

An output l that is trained to be the logarithm of the variance of the data (a heteroscedastic head has outputs of means
and others of such logarithms) says that this variance is :math:`\mathbb Ee^l`. Where nothing is random before the last
layer, l is Gaussian and the mean is :math:`e^{m+s/2}`; else it may be infinite. The variance of a prediction is
:math:`\operatorname{Var}f+\mathbb Ee^l`: that of the mean output plus the noise.
"""

from __future__ import annotations

import torch

from bnndp.engine.mixture import Mixture, weighted_interval
from bnndp.errors import UnsupportedLayerError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.maths.rounding import ELEMENTARY, TINY
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.questions.quantity import Law, laws, quantity_bounds

_LOG_LARGEST = 709.0  # exp of more overflows


def noise(network: Posterior, box: Box, options: Options) -> Interval:
    """Bounds (batch, outputs) of E exp(f(x)) for every x of each box; refused where it is not known to be finite."""

    def found(passes: Mixture) -> Interval:
        return weighted_interval((weights, _noise(network, law)) for weights, law in laws(passes))

    return quantity_bounds(network, box, options, found)


def _noise(network: Posterior, law: Law) -> Interval:
    if not law.gaussian:
        raise UnsupportedLayerError(
            f"the noise E exp(f) of {network!r} is not known to be finite: something before its last layer is random, "
            "so the output is not Gaussian; make only the last layer random, or use an ensemble of such networks."
        )
    low = law.mean.lower + 0.5 * law.variance.lower
    high = law.mean.upper + 0.5 * law.variance.upper
    slack = [ELEMENTARY * (1 + end.abs()) for end in (low, high)]
    least = torch.exp((low - slack[0]).clamp_max(_LOG_LARGEST)) * (1 - ELEMENTARY)
    most = torch.where(high < _LOG_LARGEST, torch.exp((high + slack[1]).clamp_max(_LOG_LARGEST + 0.5)), torch.inf)
    return Interval((least - TINY).clamp_min(0), most * (1 + ELEMENTARY) + TINY)
