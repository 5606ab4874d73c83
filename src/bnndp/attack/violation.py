"""Search for unsafe inputs: projected gradient descent on how far outputs are from an unsafe set, from many starts."""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.attack.draws import Drawn, draw_networks, evaluate
from bnndp.deadline import Deadline
from bnndp.geometry.box import Box
from bnndp.geometry.unsafe_set import UnsafeSet
from bnndp.network import Posterior

__all__ = ["drawn_mean", "search_unsafe"]

_DRAWS = 256  # of a network with variance; its mean output is about theirs
_STEPS = 50
_RATES = (0.5, 0.5)  # first step, in widths of the box, and from each step to the one ten later
_NEAREST = 3  # polyhedra to which points descend, from each start to one of them
_MOST = 2**22  # numbers of inputs at a time


def drawn_mean(network: Posterior, seed: int) -> Drawn:
    """Networks whose mean output stands for that of the posterior: the network itself if it has no variance."""
    return draw_networks(network, _DRAWS if network.random or len(network.members) > 1 else 1, seed=seed)


def search_unsafe(
    drawn: Drawn, box: Box, unsafe: UnsafeSet, starts: Tensor, deadline: Deadline
) -> tuple[Tensor, Tensor]:  # starts (points, n)
    """The point with the least excess that descents from ``starts`` find: (n,), and its excess.

    Ends early when the deadline passes, and for a network without variance once the excess is negative.
    """
    sure = drawn.draws == 1
    best_x, best = starts[0], torch.tensor(torch.inf, dtype=torch.float64)
    for part in torch.arange(len(starts), device=starts.device).split(max(1, _MOST // box.n)):
        x, at = starts[part].clone(), None
        rate = _RATES[0] * (box.upper - box.lower)
        for step in range(_STEPS + 1):
            x.requires_grad_()
            with torch.enable_grad():
                excess = unsafe.excess(evaluate(drawn, x).mean(0), x)
                if at is None:  # the nearest polyhedron, the one after it, ...
                    at = excess.argsort(-1).gather(1, part[:, None] % min(_NEAREST, unsafe.count))
                own = excess.gather(1, at)[:, 0]
                (gradient,) = torch.autograd.grad(own.nan_to_num(0.0).sum(), x)
            x = x.detach()
            least = excess.detach().nan_to_num(torch.inf).amin(-1).min(0)
            if least.values < best:
                best_x, best = x[least.indices], least.values
            if (sure and best < 0) or step == _STEPS or deadline.passed:
                break
            x = (x - rate * gradient.sign()).clamp(box.lower, box.upper)
            rate = rate * _RATES[1] ** 0.1
        if (sure and best < 0) or deadline.passed:
            break
    return best_x, best
