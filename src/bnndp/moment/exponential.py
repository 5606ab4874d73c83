r"""Upper bounds of E sigma(-D_j), :math:`D_j=\zeta_c-\zeta_j`, from exponential moments of the margins.

They are for margins of large variance, where bounds from two moments are too weak. Sources and proofs are in
docs/theory-exponential.md. Three hidden layers and more are not known.
"""

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.maths.exponential import chernoff_constant
from bnndp.maths.rounding import ELEMENTARY, TINY
from bnndp.moment.exponential_first import one_layer
from bnndp.moment.exponential_second import two_layers
from bnndp.moment.first import first_layer
from bnndp.network import BayesianNetwork
from bnndp.regions import Box

__all__ = ["margin_tails"]

_MOST_NUMBERS = 2**23  # in the largest tensor of a piece of the batch


def margin_tails(
    network: BayesianNetwork,
    box: Box,
    label: Tensor,  # (batch,) of integers: c
    mean: Tensor,  # (batch, classes): E D_j is at least this on the box
    variance: Tensor,  # (batch, classes): Var D_j is at most this
) -> Tensor:  # (batch, classes)
    """u_j >= E sigma(-D_j) for every x of each box; 1 for j = c and where nothing is known."""
    if label.shape != (box.batch,):
        raise InputError(f"label must have one class for each of {box.batch} boxes, got shape {tuple(label.shape)}.")
    if network.depth == 0:
        found = _gaussian(mean, variance)
    elif network.depth <= 2:
        step = max(1, _MOST_NUMBERS // (network.n_out * max(network.sizes[:-1]) * network.sizes[-2]))
        pieces = [slice(start, start + step) for start in range(0, box.batch, step)]
        found = torch.cat([_hidden(network, box[piece], label[piece], mean[piece]) for piece in pieces])
    else:
        found = torch.ones_like(mean)
    found = (found.nan_to_num(1.0) + TINY).clamp(0, 1)
    return found.scatter(1, label[:, None], 1.0)


def _gaussian(mean: Tensor, variance: Tensor) -> Tensor:
    r"""No hidden layer: D is Gaussian, :math:`\mathbb Ee^{-\lambda D}=e^{-\lambda d+\lambda^2V/2}`."""
    lam = (mean / variance.clamp_min(TINY)).clamp(1e-3, 1)
    total = -lam * mean + 0.5 * lam.square() * variance
    return chernoff_constant(lam) * torch.exp(total + ELEMENTARY * (lam * mean.abs() + variance))


def _hidden(network: BayesianNetwork, box: Box, label: Tensor, mean: Tensor) -> Tensor:
    linears = network.seen
    ranges = first_layer(linears[0], box).ranges
    if network.depth == 1:
        return one_layer((linears[0], linears[1]), box, ranges, label)
    return two_layers((linears[0], linears[1], linears[2]), box, ranges, label, mean)
