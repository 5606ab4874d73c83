r"""How far a sum of independent terms is from Gaussian, inside a rectified mean: Lindeberg's replacement method.

Let :math:`T=\sum_jY_j` be a sum of independent centred terms with variances :math:`v_j`, third and fourth central
moments :math:`\kappa_j,c_j`, and :math:`F=g(M+\cdot,\sqrt{s_0})`. Replacing the terms one after the other by Gaussians
of the same variance turns :math:`\mathbb E F(T)` into :math:`g(M,\sqrt{s_0+\sum v_j})`. At step j the terms before are
already Gaussian and smooth F, so that its derivatives there are those of :math:`g(\cdot,\rho_j)`,
:math:`\rho_j^2=s_0+\sum_{l<j}v_l`:

.. math::
   |\partial_m^3 g|\le\varphi(1)/\rho^2,\qquad |\partial_m^4 g|\le\varphi(0)/\rho^3 .

Taylor's formula to third or fourth order, with equal first and second moments, gives for the step the smaller of

.. math::
   \frac{\varphi(1)}{6\rho_j^2}\bigl(\mathbb E|Y_j|^3+\mathbb E|\xi|^3v_j^{3/2}\bigr)
   \quad\text{and}\quad
   \frac{\varphi(1)}{6\rho_j^2}|\kappa_j|+\frac{\varphi(0)}{24\rho_j^3}(c_j+3v_j^2).

The sum over j bounds :math:`|\mathbb E F(T)-g(M,\sqrt{s_0+\sum_jv_j})|` from above.
"""

import math

import torch
from torch import Tensor

from bnndp.maths.tails import PEAK

__all__ = ["TO_CDF", "TO_DENSITY_SQUARE", "TO_SECOND_MOMENT", "conditional_replacement_error", "replacement_error"]

_PHI_1 = math.exp(-0.5) / math.sqrt(2 * math.pi)  # sup |u phi(u)|
_BLOCKS = 8
_GAUSS_3 = 2 * math.sqrt(2 / math.pi)  # E |xi|^3

TO_SECOND_MOMENT = 2 * PEAK / _PHI_1
r"""Times :math:`\sqrt{s_0+V}`: the error of the mean of ReLU^2, whose derivatives are 2 phi(0)/rho, 2 phi(1)/rho^2."""

TO_CDF = PEAK / _PHI_1
r"""Over :math:`\sqrt{s_0}`: the error of the mean of Phi(. / sqrt(s0)); derivatives phi(0)/rho^3, 0.5506/rho^4."""

TO_DENSITY_SQUARE = 4.7874
r"""Over :math:`\sqrt{s_0}`: error of :math:`\mathbb E\,\varphi(\cdot/\sqrt{s_0})^2` (docs/theory.md, section 4)."""


def replacement_error(
    base: Tensor,  # (batch, rows): s0 > 0
    weight: Tensor,  # (rows, n): Y_j = weight_j (z_j - E z_j)
    variance_lower: Tensor,  # (batch, n): Var z_j is at least this
    variance: Tensor,  # (batch, n): and at most this
    third: Tensor,  # (batch, n): |E (z_j - E z_j)^3| is at most this
    fourth: Tensor,  # (batch, n): E (z_j - E z_j)^4 is at most this
) -> Tensor:  # (batch, rows)
    """Upper bound of the error of the module docstring; infinite where ``base`` is zero and the sum is random.

    The terms are taken in blocks: within a block the smoothing by the blocks before it is used, and the smaller of the
    two sums over the block. Both only make the bound larger.
    """
    w = weight.abs()
    smooth = torch.cumsum(_blocks(w.square(), variance_lower), dim=1)  # (batch, blocks, rows)
    rho2 = base[:, None] + torch.nn.functional.pad(smooth[:, :-1], (0, 0, 1, 0))  # only the blocks before
    absolute = variance.sqrt() * fourth.sqrt() + _GAUSS_3 * variance * variance.sqrt()
    w3 = w * w * w
    by_three = _blocks(w3, absolute)
    by_four = (
        _blocks(w3, third) + (PEAK / (4 * _PHI_1)) * _blocks(w3 * w, fourth + 3 * variance * variance) / rho2.sqrt()
    )
    step = (_PHI_1 / 6) * torch.minimum(by_three, by_four) / rho2
    return torch.where(by_three == 0, 0.0, step).nan_to_num(torch.inf, posinf=torch.inf).sum(1)  # NaN is no bound


def _blocks(weight: Tensor, values: Tensor) -> Tensor:
    """Sums of ``weight_ij values_j`` over consecutive blocks of j: (batch, blocks, rows)."""
    rows, n = weight.shape
    size = -(-n // _BLOCKS)
    pad = size * -(-n // size) - n
    left = torch.nn.functional.pad(weight, (0, pad)).reshape(rows, -1, size)
    right = torch.nn.functional.pad(values, (0, pad)).reshape(values.shape[0], -1, size)
    return torch.einsum("ikj,bkj->bki", left, right)


def conditional_replacement_error(base: Tensor, cube: Tensor) -> Tensor:
    r"""The same given a random layer y, averaged over y: :math:`\varphi(1)(\sqrt3+E|\xi|^3)\,\text{cube}/(6s_0)`.

    ``cube`` (batch, rows) bounds :math:`\sum_j|w_j|^3\sqrt{\mathbb Ev_j\,\mathbb Es_j^2}`. A rectified Gaussian of
    variance v made from variance s has :math:`c_4\le3s^2`, so :math:`\mathbb E|Y|^3\le\mathbb E\sqrt{v\,3s^2}` and
    :math:`\mathbb Ev^{3/2}\le\mathbb E\sqrt{v\,s^2}`, both at most that by Cauchy and Schwarz.
    """
    return (_PHI_1 / 6) * (math.sqrt(3) + _GAUSS_3) * cube / base
