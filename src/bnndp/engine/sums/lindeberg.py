"""What the steps of Lindeberg cost: independent terms become Gaussian one after the other (proof in ``series.py``)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.moments.pre_activation import Pieces
from bnndp.engine.sums.terms import Sums, Terms
from bnndp.maths.replacement import blocks_of
from bnndp.maths.rounding import UP

__all__ = ["Steps", "pieces_of", "steps_of"]


@dataclass(frozen=True, slots=True)
class Steps:
    """What the steps of Lindeberg cost, of some of the terms: (batch, n_out) each."""

    noise: Tensor  # their variance, at least
    own: Tensor  # sum of |E A^3|
    third: Tensor  # A_3
    quartic: Tensor  # A_4
    excess: Tensor  # sum of |E A^4 - 3 v^2| / 24
    fifth: Tensor
    sixth: Tensor


def steps_of(
    terms: Terms, sums: Sums, signed: Sums, chosen: Tensor
) -> Steps:  # (batch, n_in), or with an axis of outputs
    """Of the terms with a one in ``chosen``, all of which are made Gaussian at the smoothing S."""

    def total(values: Tensor, power: int) -> Tensor:
        return sums(values * chosen, power, 0)

    return Steps(
        signed(terms.least * chosen, 2, 0) / UP,  # those of sizes are larger
        total(terms.third_size, 3),
        total(terms.step3, 3),
        total(terms.step4, 4),
        total(terms.excess_size, 4) / 24,
        total(terms.step5 / 120 + terms.third_size * terms.second / 12, 5),
        total(terms.excess_size * terms.second / 48, 6),
    )


def pieces_of(terms: Terms, sums: Sums, signed: Sums) -> Pieces:
    """The terms in blocks, the most nearly Gaussian ones first: once they are Gaussian they smooth for the others."""
    key = (terms.step5 / terms.gauss5).log().mul(1e6).round()  # so that rounding changes no order
    masks = blocks_of(key.squeeze(-2) if key.ndim == 3 else key)  # (batch, blocks, n_in)
    shape = key.shape
    steps = [steps_of(terms, sums, signed, mask.to(key.dtype).reshape(shape)) for mask in masks.unbind(1)]
    stacked = {
        name: torch.stack([getattr(s, name) for s in steps], -1) for name in ("noise", "own", "third", "quartic")
    }
    before = torch.cumsum(stacked["noise"], -1) - stacked["noise"]
    # Terms that follow one of a block: those of later blocks, and on average over an order of the block and its
    # reverse half of the block itself. One of the two orders is at least as good as the average.
    later = {name: stacked[name].flip(-1).cumsum(-1).flip(-1) - 0.5 * stacked[name] for name in ("third", "quartic")}
    excess, fifth, sixth = (torch.stack([getattr(s, name) for s in steps], -1) for name in ("excess", "fifth", "sixth"))
    remainders = {
        5: fifth,
        6: stacked["own"] * later["third"] / 36 + sixth,
        7: excess * later["third"] / 6 + stacked["own"] * later["quartic"] / 144,
        8: excess * later["quartic"] / 24,
    }
    return Pieces(
        (before / UP).clamp_min(0),
        stacked["third"] * UP,
        stacked["quartic"] * UP,
        {order: part * UP for order, part in remainders.items()},
    )
