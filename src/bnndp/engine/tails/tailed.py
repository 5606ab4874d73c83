"""Exponential moments of the margins beside a pass of a chain of Linear and Relu with independent weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bnndp.engine.protocol import Margins, Wrapped
from bnndp.engine.tails.tails import useful_tails
from bnndp.layers import Linear

__all__ = ["MOST_LAYERS", "Tailed"]

MOST_LAYERS = 3
"""Layers with weights up to which exponential moments are known."""


@dataclass(frozen=True)
class Tailed(Wrapped):
    """A pass over two or three random layers."""

    linears: tuple[Linear, ...]

    @property
    def tailed(self) -> bool:
        """Always."""
        return True

    @property
    def costly_tails(self) -> bool:
        """With two hidden layers."""
        return len(self.linears) == MOST_LAYERS

    def tails(self, at: Tensor, label: Tensor, margins: Margins) -> Tensor:
        """Where they may say more than two moments."""
        return useful_tails(self.linears, self.box[at], label, margins.mean, margins.variance)
