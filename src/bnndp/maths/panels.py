r"""Gauss and Legendre's rule on eight panels of an interval of each entry, for functions with a kink.

On an interval of half length l, with the integrand analytic and at most M in the ellipse with foci at the ends and half
axes :math:`\tfrac l2(\rho\pm\rho^{-1})`, the rule with n nodes is off by at most
:math:`\tfrac{64}{15}\,l\,M\,\rho^{-2n}/(1-\rho^{-2})` (Trefethen, Approximation Theory and Approximation Practice,
theorem 19.3). Here :math:`\rho=4`, n = 16.
"""

import numpy as np
import torch
from torch import Tensor

PANELS = 8
_ORDER = 16
NODES = PANELS * _ORDER

SIXTEEN = 2.5e-19
"""At least ``64/15 * 4**-32 / (1 - 1/16)``: the error of the rule in units of l M."""


def panels(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:  # (n,) each
    """Nodes and weights of the rule for ``lower <= upper``: (n, NODES) each."""
    x, w = (torch.as_tensor(a, dtype=lower.dtype, device=lower.device) for a in np.polynomial.legendre.leggauss(_ORDER))
    middle = 2 * torch.arange(PANELS, dtype=lower.dtype, device=lower.device) + 1
    place = (middle[:, None] + x).flatten()  # (NODES,), from 0 to 2 PANELS
    half = ((upper - lower) / (2 * PANELS))[:, None]  # (n, 1)
    return lower[:, None] + half * place, half * w.repeat(PANELS)
