"""What the moment method knows of a layer, over a whole box. Every field is (batch, n) unless it says otherwise.

Notation: z the output of the layer before, X = W z + b given which m(z), s(z) are the mean and variance of X, both
random because z is. ``lower`` and ``upper`` bound the value at every x of the box.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import TypeVar, cast

from torch import Tensor

from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear
from bnndp.maths.normal import cdf, pdf

__all__ = ["Cross", "Energy", "Latent", "Level", "PreActivation", "Relaxation", "Sources", "Tail", "of_boxes"]

_Record = TypeVar("_Record")


def of_boxes(record: _Record, index: slice | Tensor) -> _Record:
    """What a record of tensors with a leading axis of boxes says of some of them; layers are the same for all."""
    if isinstance(record, Tensor):
        return cast(_Record, record[index])
    if isinstance(record, Linear) or not is_dataclass(record):
        return record
    make: Callable[..., _Record] = type(record)
    return make(*(of_boxes(getattr(record, field.name), index) for field in fields(record)))


@dataclass(frozen=True, slots=True)
class Latent:
    """Moments of the outputs z >= 0 of a hidden layer."""

    mean: Interval  # E z_j
    second: Interval  # E z_j^2
    variance: Tensor  # Var z_j is at most this
    fourth: Tensor  # E z_j^4 is at most this
    activity: Tensor  # sqrt(E Phi(m_j / sqrt(s_j))^4) is at most this


@dataclass(frozen=True, slots=True)
class Sources:
    """The independent rectified Gaussians z_j = ReLU(zeta_j) of the first layer, from which all later ones are made."""

    variance: Interval  # Var z_j
    third: Tensor  # E (z_j - E z_j)^3, at most
    fourth: Tensor  # E (z_j - E z_j)^4, at most
    square_variance: Tensor  # Var z_j^2, at most
    cross: Interval  # Cov(z_j, z_j^2)
    noise: Tensor  # variance r_j^2 of zeta_j, at most
    active: Tensor  # P(zeta_j > 0), at most


@dataclass(frozen=True, slots=True)
class Level:
    """``M - below <= m <= M + above`` and ``s <= spread`` except with probability at most ``probability``."""

    above: Tensor
    below: Tensor
    spread: Tensor
    probability: Tensor  # (batch, 1)


@dataclass(frozen=True, slots=True)
class Tail:
    """How m and s concentrate: levels, and bounds of the norms ||m - M||_8, ||sqrt(s)||_8 and ||sqrt(s)||_16."""

    levels: tuple[Level, ...]
    mean8: Tensor
    spread8: Tensor
    spread16: Tensor


@dataclass(frozen=True, slots=True)
class Energy:
    """Poincare constants in the sources: ``Var f(m_i) <= usual E f'(m_i)^2 + rare sup f'^2``."""

    usual: Tensor  # sum of mu_ij^2 r_j^2 over the sources that are not rare
    rare: Tensor  # sum of mu_ij^2 r_j^2 P(active) over those that are
    unlikely: Tensor  # sum of mu_ij^2 r_j^2 over those that are
    kept: Tensor  # (batch, sources): r_j^2 of the sources that are not rare, 0 for the others
    left: Tensor  # (batch, sources): r_j^2 of the rare ones, 0 for the others


@dataclass(frozen=True, slots=True)
class Cross:
    """How m and s move together in the second hidden layer, where both are sums over independent sources."""

    covariance: Interval  # Cov(m_i, s_i), of either sign
    absolute: Tensor  # sum of |mu_ij| sigma_ij^2 Cov(z_j, z_j^2), at most
    second: Tensor  # sum of mu_ij^2 sigma_ij^2 sqrt(E (z_j - E z_j)^4 Var z_j^2), at most
    third: Tensor  # sum of |mu_ij|^3 sigma_ij^2 Var z_j Cov(z_j, z_j^2), at most


@dataclass(frozen=True, slots=True)
class PreActivation:
    """Moments of X_i for one hidden layer after the first, except its mean E X_i.

    y stands for the layer before z (for the second hidden layer it is the input x and not random): given y the z_j are
    independent, so m_i = E[m_i | y] + a sum of independent terms.
    """

    layer: Linear
    jensen: Tensor  # R_i: s_i(E z) is at least its square
    spread: Interval  # S_i = E s_i(z)
    spread_variance: Tensor  # Vs_i = Var s_i(z), at most
    spread_fourth: Tensor  # E (s_i - E s_i)^4, at most; infinite where not known
    noise: Interval  # N_i = E Var(m_i | y)
    noise_variance: Tensor  # Var Var(m_i | y), at most
    central: Tensor  # Vc_i = Var E[m_i | y], at most; zero for the second hidden layer
    fourth: Tensor  # E (m_i - E m_i)^4, at most
    norm8: Tensor  # ||m_i - E m_i||_8, at most; infinite where not known
    replacement: Interval  # error of taking the independent terms as Gaussian, at s0 = spread.lower and spread.upper
    tail: Tail | None  # only for the second hidden layer
    energy: Energy | None  # only for the second hidden layer
    cross: Cross | None = None  # only for the second hidden layer

    @property
    def mean_variance(self) -> Tensor:
        """Vm_i = Var m_i(z) = N_i + Vc_i, at most."""
        return self.noise.upper + self.central

    @property
    def deviation(self) -> Tensor:
        """The standard deviation of X_i, at most."""
        return (self.spread.upper + self.mean_variance).sqrt()


@dataclass(frozen=True, slots=True)
class Relaxation:
    r"""Affine bounds of E z_i in the mean M_i = E X_i: ``slope * M + offset`` below and above, on the box.

    Below, :math:`\mathbb Ez\ge g(M,\rho)-\text{loss}\ge\Phi(u)M+\varphi(u)\rho-\text{loss}` for every u: the tangent
    point u is free.
    """

    tangent: Tensor  # u where nobody asks for another one
    rho: Tensor
    loss: Tensor
    upper_slope: Tensor
    upper_offset: Tensor
    size: Tensor  # |slope * M| + |offset| is at most this for any tangent point: the scale of rounding errors

    def lower(self, tangent: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Slope and offset of the lower plane, (batch, 1, n), or (batch, rows, n) at the points of ``tangent``."""
        u = self.tangent[:, None] if tangent is None else tangent
        return cdf(u), pdf(u) * self.rho[:, None] - self.loss[:, None]
