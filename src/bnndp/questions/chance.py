"""How many bounds for most weights a proof may use, and what that asks of each of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bnndp.engine.protocol import Deviations

__all__ = ["Chance"]

_HIDDEN, _ROWS = 0.02, 0.005  # probability of the weights for which some bound of either kind may fail


@dataclass(frozen=True, slots=True)
class Chance:
    """At every x all of so many bounds hold, but for weights of a probability of at most :attr:`failure`.

    >>> found = Chance(hidden=10**5, rows=10**3).deviations
    >>> round(found.hidden, 3), round(found.rows, 3)
    (5.199, 4.565)
    """

    hidden: int  # of hidden values
    rows: int  # of rows of the outputs

    @property
    def failure(self) -> float:
        """The probability."""
        return _HIDDEN + _ROWS

    @property
    def deviations(self) -> Deviations:
        """Of the noise of a bound: it is below minus so many for at most twice the share of a Gaussian."""
        shares = torch.tensor([_HIDDEN / (2 * self.hidden), _ROWS / (2 * self.rows)], dtype=torch.float64)
        hidden, rows = (-torch.special.ndtri(shares) + 1e-6).tolist()
        return Deviations(hidden, rows)

    def allows(self, used: torch.Tensor) -> torch.Tensor:  # (batch, 2) -> (batch,)
        """Whether no more bounds of either kind were used."""
        return (used[:, 0] <= self.hidden) & (used[:, 1] <= self.rows)
