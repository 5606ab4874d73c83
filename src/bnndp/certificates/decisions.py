"""Decisions that the checker will prove: on given boxes, and the largest radius for which it does."""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.attack import decision_rows
from bnndp.certificates.prove import Proof, prove_softmax
from bnndp.geometry.box import Box
from bnndp.network import Posterior

__all__ = ["prove_decision", "proved_radius"]

_STEPS = 10  # of bisection


def prove_decision(network: Posterior, box: Box, label: Tensor, *, cells: int = 1) -> Proof:
    """Lower bounds of E p_c - E p_j; the decision is proved where all are positive."""
    return prove_softmax(network, box, decision_rows(label, network.n_out)[0], label, cells=cells)


def proved_radius(
    network: Posterior,
    x: Tensor,  # (batch, n)
    label: Tensor,  # (batch,)
    upper: Tensor,  # (batch,): radii beyond which nothing is sought, for example those certified without a checker
    domain: tuple[float, float] | None = None,
) -> tuple[Tensor, Proof]:
    """The largest radii found (NaN where not even the input is proved), and the proofs for the balls with them."""

    def ball(radius: Tensor) -> Box:
        return Box.ball(x, radius.nan_to_num(0.0), domain=domain)

    low = torch.zeros_like(upper)
    proof = prove_decision(network, ball(low), label)
    proved = (proof.at_least > 0).all(-1)
    high = upper.nan_to_num(0.0).clamp_min(0)
    best = torch.where(proved, low, torch.nan)
    tried = high
    for _ in range(_STEPS):
        found = prove_decision(network, ball(tried), label)
        good = (found.at_least > 0).all(-1) & proved
        best = torch.where(good, tried, best)
        low, high = torch.where(good, tried, low), torch.where(good, high, tried)
        tried = 0.5 * (low + high)
    return best, prove_decision(network, ball(best), label)
