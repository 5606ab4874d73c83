r"""Variances through layers whose coordinates are correlated (docs/theory.md, section 4.12).

For rows u, by the law of total variance over the layer before, :math:`\operatorname{Var}(u\cdot
z_k)=\sum_iu_i^2\,\mathbb E\operatorname{Var}(z_{k,i}\mid z_{k-1})+\operatorname{Var}(u\cdot h)`, and h is taken apart
as in ``conditional.py``: its linear part is a variance of the layer before with rows :math:`(u\circ p)\mu`
(recursion, exact at the first layer), its squares :math:`s_i` one with rows :math:`(u\circ\psi)\sigma^2` of squares,
its quadratic part has a closed form in the independent sources, and the standard deviations of all parts are added.
"""

import torch
from torch import Tensor

from bnndp.engine.dense.conditional import Conditional, Layers
from bnndp.engine.dense.records import Latent, Sources
from bnndp.geometry.box import apply_rows
from bnndp.maths.rounding import UP, gamma

__all__ = ["central_variance", "linear_variance", "square_sum_variance"]


def linear_variance(rows: Tensor, layers: Layers, latents: list[Latent], sources: Sources) -> Tensor:
    """Upper bound of Var(rows @ z) for the outputs z of the last of ``layers``: (batch, rows).

    ``rows`` are (rows, n) or (batch, rows, n); ``layers`` the hidden layers from the second on, ``latents`` the
    moments of all hidden layers from the first on.
    """
    if not layers:
        return apply_rows(rows.square(), sources.variance.upper) * UP
    _, given = layers[-1]
    sd = apply_rows(rows.abs(), latents[-1].variance.sqrt())
    total = apply_rows(rows.square(), given.noise.upper) + central_variance(rows, layers, latents, sources)
    return torch.minimum(total, sd.square()) * UP


def central_variance(rows: Tensor, layers: Layers, latents: list[Latent], sources: Sources) -> Tensor:
    """Upper bound of Var(rows @ E[z | before]) for the outputs z of the last of ``layers``: (batch, rows)."""
    before, given = layers[-1]
    linear = linear_variance(
        (rows * given.slope[:, None]) @ before.layer.weight_mean, layers[:-1], latents[:-1], sources
    )
    squares = (rows * given.psi[:, None]) @ before.layer.weight_std.square()
    curved = square_sum_variance(squares, layers[:-1], latents[:-1], sources)
    # The rows of the linear part may cancel: what rounding leaves out is covered by the sizes of their terms.
    size = given.slope * apply_rows(before.layer.weight_mean.abs(), latents[-2].variance.sqrt())
    lost = gamma(4 * rows.shape[-1]) * apply_rows(rows.abs(), size)
    part = linear.sqrt() + curved.sqrt() + apply_rows(rows.abs(), given.plain_rest) + lost
    if given.through is not None:
        part = (
            part
            + _first_order(rows, before.layer.weight_mean, given)
            + _quadratic(rows, before.layer.weight_mean, given)
        )
    return part.square() * UP


def square_sum_variance(rows: Tensor, layers: Layers, latents: list[Latent], sources: Sources) -> Tensor:
    """Upper bound of Var(rows @ z^2) for the outputs z of the last of ``layers``: (batch, rows)."""
    if not layers:
        return apply_rows(rows.square(), sources.square_variance) * UP
    before, given = layers[-1]
    latent = latents[-1]
    sd = (latent.fourth - latent.second.lower.square()).clamp_min(0).sqrt()  # Var z^2 = E z^4 - (E z^2)^2
    plain = apply_rows(rows.abs(), sd)
    through, gradients = given.through, given.beyond.gradients
    if through is None or gradients is None:
        return plain.square() * UP
    usual, extra = gradients.square_usual, gradients.square_extra
    # Given the layer before, Var z^2 <= 4 s E z^2 (Poincare), and E[s q] <= E s E q + sd(s) sd(q).
    noise = 4 * (before.spread.upper * latent.second.upper + before.spread_variance.sqrt() * (usual + extra))
    spectral = (through.top * apply_rows(rows.square(), usual.square())).sqrt()
    part = torch.minimum(apply_rows(rows.abs(), usual), spectral) + apply_rows(rows.abs(), extra)
    total = apply_rows(rows.square(), torch.minimum(noise, sd.square())) + part.square()
    return torch.minimum(total, plain.square()) * UP


def _first_order(rows: Tensor, mu: Tensor, given: Conditional) -> Tensor:
    r"""Standard deviation of the slope rests of first order: (batch, rows).

    :math:`\sum_iu_i(g(m_i,\sqrt{s_{0,i}})-p_im_i)` has gradient :math:`\sum_iu_i\delta_i\mu_{ij}` in the independent
    sources. By the Gaussian Poincare inequality its variance is at most :math:`\mathbb
    E(u\circ\delta)^TA(u\circ\delta)`, :math:`A=\mu\,\mathrm{diag}(r^2)\mu^T`, and that at most
    :math:`\lambda\sum_iu_i^2A_{ii}\mathbb E\delta_i^2`, :math:`\lambda=\lambda_{\max}` of A scaled to a unit
    diagonal. Sources that are hardly ever active are kept out of A and added with absolute values and their
    probability.
    """
    absolute = apply_rows(rows.abs(), given.slope_rest)
    through = given.through
    if through is None:
        return absolute
    spectral = (through.top * apply_rows(rows.square(), given.slope_rest.square())).sqrt()
    reach = (rows.abs() * given.largest[:, None]) @ mu.abs()  # (batch, rows, sources)
    rare = apply_rows(reach.square(), through.rare)
    return (torch.minimum(absolute, spectral).square() + rare).sqrt()


def _quadratic(rows: Tensor, mu: Tensor, given: Conditional) -> Tensor:
    r"""Deviation of :math:`\tfrac12\sum_iu_i\kappa_iT_i^2`, :math:`T_i=\mu_i\cdot(z-\mathbb Ez)`: (batch, rows).

    In the independent sources, with :math:`Q=\sum_iu_i\kappa_i\mu_i\mu_i^T` the variance of :math:`\tfrac12y^TQy` is
    :math:`\tfrac12\sum_{jl}Q_{jl}^2v_jv_l+\tfrac14\sum_jQ_{jj}^2(c_j-3v_j^2)`, and the first sum is
    :math:`(u\kappa)^T(G\circ G)(u\kappa)`, :math:`G=\mu\,\mathrm{diag}(v)\mu^T`. Both increase in the variances, so
    their upper ends serve the whole box.
    """
    through = given.through
    if through is None:
        return torch.zeros_like(apply_rows(rows, given.curvature))
    weight = rows * given.curvature[:, None]  # (batch, rows, n)
    diagonal = (weight @ mu.square()).square()
    weight = weight.gather(2, through.curved[:, None].expand(-1, weight.shape[1], -1))  # the others are zero
    pairs = ((weight @ through.gram) * weight).sum(-1).clamp_min(0)
    # The quadratic form may cancel: what rounding leaves out is covered by the sizes of its terms, G_ik^2 <= G_ii G_kk.
    size = apply_rows(weight.abs(), through.gram.diagonal(dim1=-2, dim2=-1).sqrt())
    lost = gamma(8 * (rows.shape[-1] + mu.shape[-1])) * size.square()
    return (0.5 * (pairs + lost) + 0.25 * apply_rows(diagonal, through.kurtosis)).sqrt()
