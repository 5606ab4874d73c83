r"""What is known of a value function on the whole orthant :math:`z\ge0` (errata item 3), without any rectangle.

Rows are always *signed*: they bound ``S = (V, -V)`` from above, so that one direction of every inequality is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bnndp.maths.rounding import TINY, gamma, up
from bnndp.paper.layers import Layer
from bnndp.paper.planes import lower_planes


@dataclass(frozen=True, slots=True)
class Outer:
    r"""Bounds of the signed value functions for all :math:`z\ge0`.

    :math:`S(z)\le` ``matrix @ z + offset``, and along each coordinate S grows by at most ``rise`` a unit upward and
    ``fall`` a unit downward: :math:`S(z+\delta e_i)-S(z)\le\delta\,\text{rise}_i`,
    :math:`S(z)-S(z+\delta e_i)\le\delta\,\text{fall}_i` for :math:`\delta\ge0`.
    """

    matrix: Tensor  # (batch, rows, n)
    offset: Tensor  # (batch, rows)
    rise: Tensor  # (rows, n)
    fall: Tensor  # (rows, n)

    def behind(self, layer: Layer, at: Tensor) -> Outer:  # at (batch, n_in): where the lower planes touch
        """The same for the value functions of the layer's inputs."""
        matrix, offset = self._affine(layer, at)
        rise, fall = self.rise.clamp_min(0), self.fall.clamp_min(0)
        n = rise.shape[-1] + 8
        return Outer(
            matrix,
            offset,
            up(rise @ layer.rise + fall @ layer.fall, 2 * n),
            up(rise @ layer.fall + fall @ layer.rise, 2 * n),
        )

    def _affine(self, layer: Layer, at: Tensor) -> tuple[Tensor, Tensor]:
        r"""Affine in z for all :math:`z\ge0`.

        Upper: :math:`\mathrm{ReLU}(w z+b)\le\sum_jz_j[w_j]_++[b]_+`, hence :math:`g\le\sum_jz_j\,g(\mu_j,\sigma_j)+
        g(b,\sigma_b)`, the smallest affine function that is above g on the orthant (let :math:`z=0` and
        :math:`z_j\to\infty`). Lower: a tangent plane. Rounding goes into the coefficients, as z is not bounded.
        """
        planes = lower_planes(layer, at[:, None])
        p, c, base = planes.a, planes.c, planes.offset  # (batch, 1, n_out)
        plus, minus = self.matrix.clamp_min(0), self.matrix.clamp_max(0)
        matrix = plus @ layer.rise + (minus * p) @ layer.mean + ((minus * c) @ layer.var_lower) * at[:, None]
        size = plus @ layer.rise - (minus * p) @ layer.mean.abs() - ((minus * c) @ layer.var_lower) * at.abs()[:, None]
        offset = plus @ layer.bias_rise + (minus * base).sum(-1) + self.offset
        offset_size = plus @ layer.bias_rise - (minus * base.abs()).sum(-1) + self.offset.abs()
        slack = gamma(2 * plus.shape[-1] + 16)
        return matrix + slack * size + TINY, offset + slack * offset_size + TINY

    @classmethod
    def of(cls, matrix: Tensor, offset: Tensor) -> Outer:  # (rows, n), (rows,)
        """The affine functions themselves."""
        return cls(matrix[None], offset[None], matrix, -matrix)
