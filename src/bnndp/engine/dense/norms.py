r"""Eighth moments of the means of the third hidden layer, whose inputs are correlated (docs/theory.md, section 4.14).

:math:`T_i=m_i-\mathbb Em_i=A_i+F_i` with :math:`A_i=\sum_j\mu_{ij}(z_j-h_j)`, which given the first layer y is a
function of the Gaussians of the second layer, and :math:`F_i=\sum_j\mu_{ij}(h_j(y)-\mathbb Eh_j)`, one of those of the
first. For a function of Gaussians :math:`\|F-\mathbb EF\|_p\le\sqrt{p-1}\,\|\,|\nabla F|\,\|_p` (Aida and Stroock 1994,
from the logarithmic Sobolev inequality), so with p = 8

.. math:: \|T_i\|_8\le\sqrt7\Bigl(\Bigl\|\sum_j\mu_{ij}^2s_j1_j\Bigr\|_4^{1/2}+\bigl\|\,|\nabla F_i|\,\bigr\|_8\Bigr).

With :math:`\Phi_j=p_j+\delta_j` the gradient of F in source k is

.. math:: r_k1_k\Bigl[\sum_j\mu_{ij}p_j\mu_{jk}+\sum_j\mu_{ij}\delta_j\mu_{jk}
          +z_k\sum_j\mu_{ij}\tfrac{\varphi_j}{\sqrt{s_j}}\sigma_{jk}^2\Bigr],

and the norms of the three parts are added: the first is a number; the second is bounded by the largest eigenvalue of
the sources' Gram matrix over the neurons; the third by :math:`s_j\ge\sum_k\sigma_{jk}^2z_k^2`, which makes
:math:`\sum_kr_k^21_k\sigma_{jk}^4z_k^2/s_j` at most the largest of the :math:`r_k^2\sigma_{jk}^2`.
"""

import math

import torch
from torch import Tensor

from bnndp.engine.dense.conditional import Gradients
from bnndp.engine.dense.records import Energy, PreActivation, Sources
from bnndp.errors import UnsupportedLayerError
from bnndp.geometry.box import apply_rows
from bnndp.layers import Linear
from bnndp.maths.rounding import TINY, UP, gamma
from bnndp.maths.tails import PEAK

__all__ = ["mean_norm"]

_LEVELS = (1e-8, 1e-5, 1e-3)  # sources less often active are counted by their probability


def mean_norm(layer: Linear, before: PreActivation, top: Tensor, known: Gradients, sources: Sources) -> Tensor:
    """Upper bound of the L8 norms of T for the layer after the second, which is ``before``: (batch, n).

    ``top`` (batch, 1) is the largest eigenvalue of A scaled to a unit diagonal, at most.
    """
    mu, energy = layer.weight_mean, before.energy
    if energy is None:
        raise UnsupportedLayerError("the second hidden layer has no Poincare constants; a bug of the moment method.")
    inner = apply_rows(mu.square(), known.active_spread).sqrt()
    gradient = _linear(mu, before, known.centre, sources) + _slope(mu, before, top, known, energy, sources)
    gradient = gradient + apply_rows(mu.abs(), _spread_slope(before.layer, known.density, sources))
    return math.sqrt(7) * (inner + gradient) * UP


def _linear(mu: Tensor, before: PreActivation, p: Tensor, sources: Sources) -> Tensor:
    """The norm of the first part: (batch, n). A source counts by the L4 norm of its indicator."""
    inner, weight = before.layer.weight_mean, sources.noise * sources.active.sqrt().sqrt()
    rows = (mu * p[:, None]) @ inner  # (batch, n, sources)
    size = apply_rows(mu.abs(), p * apply_rows(inner.square(), weight).sqrt())
    lost = gamma(2 * mu.shape[-1] + 8) * size  # the rows may cancel
    return apply_rows(rows.square(), weight).sqrt() + lost


def _slope(
    mu: Tensor, before: PreActivation, top: Tensor, known: Gradients, energy: Energy, sources: Sources
) -> Tensor:
    """The norm of the second part: spectral or plain for usual sources, with absolute values for rare ones."""
    spectral = (top * apply_rows(mu.square(), energy.usual * known.delta.square())).sqrt()
    plain = apply_rows(mu.abs(), energy.usual.sqrt() * known.delta)
    reach = (mu.abs() * known.widest[:, None]) @ before.layer.weight_mean.abs()  # (batch, n, sources)
    rare = apply_rows(reach.square(), energy.left * sources.active.sqrt().sqrt())
    return torch.minimum(spectral, plain) + rare.sqrt()


def _spread_slope(layer: Linear, density: Tensor, sources: Sources) -> Tensor:
    """The norm of phi_j (sum_k r_k^2 1_k sigma_jk^4 z_k^2 / s_j)^(1/2): (batch, n).

    Sources below a level of activity are taken out of the maximum and added by the norms of their indicators.
    """
    v2 = layer.weight_std.square()
    found = []
    for level in _LEVELS:
        usual = sources.active > level
        largest = (v2 * torch.where(usual, sources.noise, 0.0)[:, None]).amax(-1)
        rest = apply_rows(v2, torch.where(usual, 0.0, sources.noise * sources.active.sqrt().sqrt()))
        found.append(density * (largest + TINY).sqrt() + PEAK * (rest + TINY).sqrt())
    return torch.stack(found).amin(0)
