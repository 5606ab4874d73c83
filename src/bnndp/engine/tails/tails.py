r"""Upper bounds of E sigma(-D_j), :math:`D_j=\zeta_c-\zeta_j`, from exponential moments of the margins.

They are for margins of large variance, where bounds from two moments are too weak. Sources and proofs are in
docs/theory-exponential.md. Three hidden layers and more are not known.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bnndp.engine.chunks import device_size
from bnndp.engine.tails.first_layer import first_ranges
from bnndp.engine.tails.one_layer import one_layer
from bnndp.engine.tails.two_layers import TRIALS, two_layers
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.maths.exponential import chernoff_gaussian
from bnndp.maths.logistic import logistic_tail
from bnndp.maths.rounding import TINY

__all__ = ["hoped_tails", "margin_tails", "useful_tails"]

_WORTH = 1e-3  # what two moments must have to spare over a margin without variance
_GAIN = 0.05  # of the variance: tails gained up to 0.035 of it on random networks, 0.013 on trained ones
_PROBES, _SAYS = 2, 0.99  # values of lambda in a probe, and the value below which it is informative
_LIKELY = 0.5  # of the variance, in the guess of what exponential moments may reach
_MOST_NUMBERS = 2**23  # in the largest tensor of a chunk of the pairs: what the caches of a CPU hold, more or less


def margin_tails(
    linears: Sequence[Linear],
    box: Box,
    label: Tensor,  # (batch,) of integers: c
    mean: Tensor,  # (batch, classes): E D_j is at least this on the box
    wanted: Tensor,  # (batch, classes) of booleans
    trials: int = TRIALS,  # of lambda, with two hidden layers
) -> Tensor:  # (batch, classes)
    """u_j >= E sigma(-D_j) for every x of each box; 1 for j = c, where nothing is known and where none is wanted."""
    if label.shape != (box.batch,):
        raise InputError(f"label must have one class for each of {box.batch} boxes, got shape {tuple(label.shape)}.")
    at, rival = wanted.scatter(1, label[:, None], False).nonzero().unbind(1)  # (pairs,) each
    found = torch.ones_like(mean)
    widest = max(layer.n_in for layer in linears)
    step = max(1, device_size(_MOST_NUMBERS, mean.device) // (widest * linears[-1].n_in))
    for i, j in zip(at.split(step), rival.split(step), strict=True):
        found[i, j] = _of_pairs(linears, box[i], label[i], j, mean[i, j], trials)
    return (found.nan_to_num(1.0) + TINY).clamp(0, 1)


def useful_tails(
    linears: Sequence[Linear],
    box: Box,
    label: Tensor,  # (batch,)
    mean: Tensor,  # (batch, classes)
    variance: Tensor,  # (batch, classes): Var D_j is at most this
) -> Tensor:
    """The bounds of :func:`margin_tails` where they may be below those from two moments; elsewhere 1.

    With two hidden layers they cost many times a pass, and on wide boxes they come to nothing: few lambdas are tried
    for the pair of classes that should gain most, and all of a box are asked for only if that says anything.
    """
    usual = logistic_tail(mean, variance)
    wanted = usual - torch.sigmoid(-mean) > _WORTH
    if len(linears) <= 2:
        return margin_tails(linears, box, label, mean, wanted)
    wanted = wanted.scatter(1, label[:, None], False)
    likely = (usual - chernoff_gaussian(mean, _LIKELY * variance)).masked_fill(~wanted, -torch.inf)
    probe = torch.zeros_like(wanted).scatter(1, likely.argmax(1, keepdim=True), True) & wanted
    found = margin_tails(linears, box, label, mean, probe, trials=_PROBES)
    at = (found < _SAYS).any(-1).nonzero()[:, 0]
    if at.numel():
        found[at] = margin_tails(linears, box[at], label[at], mean[at], wanted[at])
    return found


def hoped_tails(mean: Tensor, variance: Tensor) -> Tensor:
    """What :func:`margin_tails` may reach at best: no proof, but what keeps from asking in vain."""
    return torch.maximum(torch.sigmoid(-mean), logistic_tail(mean, variance) - _GAIN * variance)


def _of_pairs(linears: Sequence[Linear], box: Box, label: Tensor, rival: Tensor, mean: Tensor, trials: int) -> Tensor:
    """One pair of classes per box: (batch,) each."""
    ranges, label, rival = first_ranges(linears[0], box), label[:, None], rival[:, None]
    if len(linears) == 2:
        return one_layer((linears[0], linears[1]), box, ranges, label, rival)[:, 0]
    layers = (linears[0], linears[1], linears[2])
    return two_layers(layers, box, ranges, label, rival, mean[:, None], trials)[:, 0]
