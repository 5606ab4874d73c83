"""The kernel of a function of a Gaussian: weights of the squared derivative that bound variances of functions of it."""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.moments.signal import Kernel
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import UP

__all__ = ["kernel_of"]


def kernel_of(phi: Activation, variance: Interval, top: Tensor) -> Kernel:
    r"""Of :math:`z=\varphi(\zeta)`, :math:`\zeta` Gaussian with density p and variance r^2; ``top`` >= L^2 r^2.

    For an increasing :math:`\varphi` with :math:`\varphi(z_0)=\mu=\mathbb Ez`, by Cauchy and Schwarz
    :math:`(f(\varphi(t))-f(\mu))^2\le(\varphi(t)-\mu)\int_{z_0}^tf'(\varphi)^2\varphi'`, so that
    :math:`\operatorname{Var}f(z)\le\mathbb E\tau f'(z)^2` with :math:`\tau=\varphi'H/p`,
    :math:`H(s)=\operatorname{Cov}(\varphi(\zeta),1_{\zeta>s})` (Klaassen 1985).
    :math:`\mathbb E\tau=\operatorname{Var}z`: take f(z) = z. As :math:`H(s)=\int\varphi'(t)\operatorname{Cov}(
    1_{\zeta>t},1_{\zeta>s})dt\le L\operatorname{Cov}(\zeta,1_{\zeta>s})=Lr^2p(s)`,
    :math:`0\le\tau\le L^2r^2`, and Var tau <= E tau (L^2 r^2 - E tau) (Bhatia and Davis 2000). For any other
    :math:`\varphi` tau is :math:`r^2\varphi'^2`, by Poincare's inequality.
    """
    low, high = phi.shape.slopes
    if low < 0 < high:
        return Kernel(top, torch.zeros_like(top))
    worst = torch.minimum(torch.maximum(0.5 * top, variance.lower), variance.upper)
    return Kernel(variance.upper, (worst * (top - worst).clamp_min(0)).sqrt() * UP)
