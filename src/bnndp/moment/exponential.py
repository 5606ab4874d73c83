"""Tails of margins by exponential moments (draft)."""

import torch
from torch import Tensor

from bnndp.maths.exponential import chernoff_constant, log_moment, tilted
from bnndp.maths.rounding import ELEMENTARY, TINY, gamma, up
from bnndp.moment.first import Ranges, first_layer
from bnndp.network import BayesianNetwork, Linear
from bnndp.regions import Box, apply_rows

GRID = (0.06, 0.1, 0.16, 0.25, 0.4, 0.6, 0.8, 1.0)


def largest_log_moment(layer: Linear, box: Box, ranges: Ranges, a: Tensor, c: Tensor) -> Tensor:
    alpha, beta, const = _plane(ranges, a, c)
    m_size = up(apply_rows(layer.weight_mean.abs(), box.magnitude) + layer.bias_mean.abs(), box.n)[:, None]
    variance, constant = layer.weight_std.square(), layer.bias_std.square()
    middle = (0.5 * (ranges.r.lower + ranges.r.upper)).clamp_min(TINY)[:, None]
    centre = ranges.r_centre[:, None]
    rise, fall = beta.clamp_min(0), torch.where(centre > 0, beta.clamp_max(0), 0.0)
    slope = rise / middle + fall / centre.clamp_min(TINY)
    chord = apply_rows(variance, box.lower * box.upper)[:, None]
    offset = alpha * layer.bias_mean + const + fall * constant / centre.clamp_min(TINY)
    offset = offset + 0.5 * rise * ((constant - chord) / middle + middle)
    size = alpha.abs() * m_size + (beta.abs() + slope.abs() * ranges.r.upper[:, None]) * ranges.r.upper[:, None]
    size = size + offset.abs()
    matrix = alpha @ layer.weight_mean + (slope @ variance) * box.centre[:, None]
    lost = gamma(2 * (layer.n_in + layer.n_out) + 16) * size.sum(-1)
    return box.maximum(matrix, offset.sum(-1)) + lost


def _plane(ranges: Ranges, a: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m, r = ranges.m, ranges.r
    m_low, m_high, r_low, r_high = (end[:, None] for end in (m.lower, m.upper, r.lower, r.upper))
    m_mid, r_mid = 0.5 * (m_low + m_high), 0.5 * (r_low + r_high)
    at = tilted(m_mid, r_mid, a, c)
    # convex
    corners = [(x, y, log_moment(x, y, a, c)) for x in (m_low, m_high) for y in (r_low, r_high)]
    wide_m, wide_r = (m_high - m_low), (r_high - r_low)
    alpha = 0.5 * (corners[2][2] + corners[3][2] - corners[0][2] - corners[1][2]) / wide_m.clamp_min(TINY)
    beta = 0.5 * (corners[1][2] + corners[3][2] - corners[0][2] - corners[2][2]) / wide_r.clamp_min(TINY)
    small = 1e-9
    alpha = torch.where(wide_m > small * (1 + m_mid.abs()), alpha, at.in_mean)
    beta = torch.where(wide_r > small * (1 + r_mid), beta, at.in_std)
    up_const = torch.stack([value - alpha * x - beta * y for x, y, value in corners]).amax(0)
    # concave up to the last layer's noise
    dm = torch.maximum(m_high - m_mid, m_mid - m_low)
    dr = torch.maximum(r_high - r_mid, r_mid - r_low)
    top = tilted(m_high, r_high, torch.zeros_like(c), c)
    second = top.second * torch.exp(top.log) * (1 + ELEMENTARY) + ELEMENTARY * r_high.square()
    root = second.sqrt()
    w = 1 / (1 - 2 * c * r_high.square())
    reach = (root + torch.maximum(m_low.abs(), m_high.abs())) / r_low.clamp_min(TINY) + r_high * (a.abs() + 2 * c * root)
    curve = 0.5 * (a.square() + 4 * c * c * second) * dr.square() + c * w * (dm + dr * reach).square()
    value = log_moment(m_mid, r_mid, a, c)
    down_const = value - at.in_mean * m_mid - at.in_std * r_mid + curve
    convex = a >= 0
    alpha, beta = torch.where(convex, alpha, at.in_mean), torch.where(convex, beta, at.in_std)
    const = torch.where(convex, up_const, down_const)
    size = alpha.abs() * torch.maximum(m_low.abs(), m_high.abs()) + beta.abs() * r_high + value.abs()
    return alpha, beta, const + 16 * ELEMENTARY * size


def _last(layer: Linear, label: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mu, var = layer.weight_mean, layer.weight_std.square()
    a = -lam[..., None] * (mu[label][:, None] - mu)
    c = 0.5 * lam[..., None].square() * (var[label][:, None] + var)
    bias, bvar = layer.bias_mean, layer.bias_std.square()
    const = -lam * (bias[label][:, None] - bias) + 0.5 * lam.square() * (bvar[label][:, None] + bvar)
    return a, c, const


def one_layer(network: BayesianNetwork, box: Box, label: Tensor, lam: Tensor | None = None) -> Tensor:
    first, last = network.linears
    ranges = first_layer(first, box).ranges
    if lam is None:
        best, lam = None, None
        for value in GRID:
            cand = torch.full((box.batch, last.n_out), value, dtype=torch.float64)
            a, c, const = _last(last, label, cand)
            total = log_moment(ranges.m_centre[:, None], ranges.r_centre[:, None], a, c).sum(-1) + const
            total = total + torch.log(chernoff_constant(cand))
            better = torch.ones_like(total, dtype=torch.bool) if best is None else total < best
            best = total if best is None else torch.where(better, total, best)
            lam = cand if lam is None else torch.where(better, cand, lam)
    a, c, const = _last(last, label, lam)
    total = largest_log_moment(first, box, ranges, a, c) + const
    return (chernoff_constant(lam) * torch.exp(total)).clamp_max(1.0).nan_to_num(1.0)


def margin_tails(network: BayesianNetwork, box: Box, label: Tensor, lam: Tensor | None = None) -> Tensor:
    """u_j >= E sigma(-D_j) for every x of each box: (batch, classes); 1 where nothing is known."""
    if network.depth == 1:
        return one_layer(network, box, label, lam)
    return torch.ones(box.batch, network.n_out, dtype=torch.float64)
