r"""Interval propagation of the posterior cut at k standard deviations.

Every weight and bias may be anywhere in :math:`\mu\pm k\sigma`, independently of all others and of the input. Layer by
layer, the least value of a pre-activation over intervals of weights and activations is a sum of least products,

.. math:: \underline a_i=\underline b_i+\sum_j\min\{\underline w_{ij}\underline z_j,\ \underline w_{ij}\overline z_j,\
          \overline w_{ij}\underline z_j,\ \overline w_{ij}\overline z_j\},

and the largest alike. For one layer this is exact. Hence ``lower <= f(x) <= upper`` for every network in the cut and
every x of the box, and so for the mean of the cut posterior. It says nothing of the rest, and the cut keeps only

.. math:: P(\text{all of }n\text{ random weights in the cut})=\operatorname{erf}(k/\sqrt 2)^n

of the posterior (:func:`mass`): of the 769 weights of a 1x256 on one input 3e-128 at 1 sd, 0.125 at 3 sd and 0.9996 at
5 sd; of the 55,050 of a 2x64 on MNIST less than 1e-300, 2e-65 and 0.97. Computed in float64, not rounded outward.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from benchmarks.baselines.search import asked_ball, bracket, shifted_ball
from benchmarks.paper.columns import Subject, labels_of
from bnndp.errors import InputError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

__all__ = ["least_margin", "mass", "propagate", "radius", "width"]

_MEMORY = 2**26  # bytes of the products of weights and inputs that both have either sign


def mass(network: BayesianNetwork, cut: float) -> float:
    """The share of the posterior that the cut at ``cut`` standard deviations keeps."""
    stds = [std for layer in network.linears for std in (layer.weight_std, layer.bias_std)]
    return math.erf(cut / math.sqrt(2)) ** sum(int((std > 0).sum()) for std in stds)


def propagate(network: BayesianNetwork, shifted: Box, cut: float) -> tuple[Interval, ...]:
    """Intervals (boxes, n_out) of the pre-activations of every layer, the outputs last, over the cut posterior.

    ``shifted`` are boxes of what the first layer sees.
    """
    if not 0 <= cut < math.inf:
        raise InputError(f"cut must be a number of standard deviations, finite and >= 0, got {cut!r}.")
    intervals: list[Interval] = []
    z = Interval(shifted.lower, shifted.upper)
    for layer in network.linears:
        if intervals:
            z = Interval(intervals[-1].lower.clamp_min(0), intervals[-1].upper.clamp_min(0))
        intervals.append(_layer(layer, z, cut))
    return tuple(intervals)


def width(subject: Subject, *, cut: float) -> Tensor:
    """Widths of the range of all networks in the cut over the balls, the largest output's: (points,)."""
    output = propagate(subject.network, asked_ball(subject), cut)[-1]
    return (output.upper - output.lower).amax(-1)


def radius(subject: Subject, *, cut: float) -> Tensor:
    """Largest radii, to 1 %, at which every network in the cut decides for the label; NaN where none: (points,)."""
    label = labels_of(subject)

    def holds(trial: Tensor, at: Tensor) -> Tensor:
        logits = propagate(subject.network, shifted_ball(subject, trial, at), cut)[-1]
        return least_margin(logits, label[at]) > 0

    return bracket(holds, subject.x.shape[0]).largest


def least_margin(logits: Interval, label: Tensor) -> Tensor:  # logits (boxes, classes), label (boxes,)
    """``lower_label - max upper_other`` (boxes,): at most the margin of the label over any other class.

    The rows of the last layer have weights of their own, so no difference of rows can be taken before the bound.
    """
    others = logits.upper.scatter(1, label[:, None], -torch.inf).amax(-1)  # (boxes,)
    return logits.lower.gather(1, label[:, None])[:, 0] - others


def _layer(layer: Linear, z: Interval, cut: float) -> Interval:
    w = Interval(layer.weight_mean - cut * layer.weight_std, layer.weight_mean + cut * layer.weight_std)
    negated = Interval(-w.upper, -w.lower)
    spread = cut * layer.bias_std
    return Interval(
        _least_products(w, z) + layer.bias_mean - spread, layer.bias_mean + spread - _least_products(negated, z)
    )


def _least_products(w: Interval, z: Interval) -> Tensor:  # w (n_out, n_in), z (boxes, n_in)
    """``sum_j min w_ij z_j`` over the intervals: (boxes, n_out).

    Where z >= 0 the least product has the least w, where z <= 0 the largest: matrix products over the signs of w do.
    Where z has either sign it is the lesser of ``w.lower z.upper`` and ``w.upper z.lower``, product by product.
    """
    positive = z.lower >= 0  # (boxes, n_in)
    negative = ~positive & (z.upper <= 0)
    mixed = ~(positive | negative)
    total = _signed(w.lower, z, positive)
    if negative.any():
        total = total + _signed(w.upper, z, negative)
    if mixed.any():
        total = total + _mixed(w, z, mixed)
    return total


def _signed(w: Tensor, z: Interval, where: Tensor) -> Tensor:
    """``sum_j min(w_ij z.lower_j, w_ij z.upper_j)`` over the j at which ``where`` (boxes, n_in): (boxes, n_out)."""
    return (z.lower * where) @ w.clamp_min(0).mT + (z.upper * where) @ w.clamp_max(0).mT


def _mixed(w: Interval, z: Interval, where: Tensor) -> Tensor:
    columns = where.any(0)
    w_lower, w_upper = w.lower[:, columns], w.upper[:, columns]  # (n_out, some)
    z_lower, z_upper = (z.lower * where)[:, columns], (z.upper * where)[:, columns]  # (boxes, some)
    boxes = max(1, _MEMORY // (16 * w_lower.numel()))
    parts = [
        torch.minimum(w_lower * above[:, None], w_upper * below[:, None]).sum(-1)  # (some boxes, n_out, some)
        for below, above in zip(z_lower.split(boxes), z_upper.split(boxes), strict=True)
    ]
    return torch.cat(parts)
