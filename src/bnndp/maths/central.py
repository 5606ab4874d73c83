r"""Central moments of a standard rectified Gaussian :math:`\max(u+\xi,0)`, largest over an interval of u."""

import torch
from torch import Tensor

from bnndp.maths.rectified import standard_raw
from bnndp.maths.rounding import ELEMENTARY

_THIRD_MODE = 0.6074743291261784  # where the standard deviation equals the mean; see third_central


def third_central(lower: Tensor, upper: Tensor) -> Tensor:
    r"""Upper bound of :math:`c_3(u)=\mathbb E(Y-\mathbb EY)^3\ge0` over ``lower <= u <= upper``.

    :math:`c_3'(u)=3(1-\Phi(u))(v(u)-g(u,1)^2)` (differentiate under the integral: below the kink Y is constant), and
    :math:`v/g^2` decreases, so :math:`c_3` rises to the point where the standard deviation equals the mean and falls
    after it: the largest value is at that point cut to the interval. (:math:`v/g^2+1=\mathbb EZ^2/(\mathbb EZ)^2` falls
    because its logarithmic derivative has the sign of :math:`g^2-\Phi\,\mathbb EZ^2\le0`, Cauchy and Schwarz.)
    """
    u = torch.full_like(lower, _THIRD_MODE).clamp(lower, upper)
    y1, y2, y3, _ = standard_raw(u.abs(), u >= 0)
    value = y3 - 3 * y1 * y2 + 2 * y1 * y1 * y1
    return value.clamp_min(0) + ELEMENTARY


def fourth_central(upper: Tensor) -> Tensor:
    r"""Upper bound of :math:`c_4(u)=\mathbb E(Y-\mathbb EY)^4` over ``u <= upper``: it increases in u.

    :math:`c_4'(u)=4\operatorname{Cov}((Y-\mathbb EY)^3,\mathbf 1\{u+\xi>0\})\ge0`, both being non-decreasing in xi.
    """
    y1, y2, y3, y4 = standard_raw(upper.abs(), upper >= 0)
    a = y1 * y1
    return (y4 - 4 * y1 * y3 + 6 * a * y2 - 3 * a * a).clamp_min(0) + ELEMENTARY
