r"""Dropout as a layer of the posterior: each unit (or channel) times an independent factor of mean one.

Bernoulli: :math:`z_jB_j/(1-\text{rate})` with :math:`P(B_j=1)=1-\text{rate}`, variance of the factor
:math:`\text{rate}/(1-\text{rate})`. Gaussian: :math:`z_j(1+\sqrt\alpha\,\varepsilon_j)` with the same variance
:math:`\alpha=\text{rate}/(1-\text{rate})` (Srivastava et al. 2014, section 10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from bnndp.errors import InputError

LAWS = ("bernoulli", "gaussian")


@dataclass(frozen=True, slots=True)
class Dropout:
    """Dropout as a part of the posterior: each unit is multiplied by an independent factor of mean one.

    The variance of the factors is ``rate / (1 - rate)``.

    Args:
        rate: The dropout rate, at least 0 and below 1.
        law: ``"bernoulli"`` (a factor is 0 or ``1 / (1 - rate)``) or ``"gaussian"``.
        channels: Whether all values of a channel share one factor, as in ``torch.nn.Dropout2d``.

    Examples:
        >>> Dropout(0.1).random
        True
    """

    kind: ClassVar[str] = "dropout"
    tensors: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[tuple[str, ...]] = ("rate", "law", "channels")

    rate: float
    law: str = "bernoulli"
    channels: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.rate, float | int) and not isinstance(self.rate, bool) and 0 <= self.rate < 1):
            raise InputError(f"rate must be at least 0 and below 1, got {self.rate!r}.")
        object.__setattr__(self, "rate", float(self.rate))
        if self.law not in LAWS:
            raise InputError(f"law must be one of {', '.join(LAWS)}, got {self.law!r}.")
        if not isinstance(self.channels, bool):
            raise InputError(f"channels must be true or false, got {self.channels!r}.")

    @property
    def random(self) -> bool:
        """Whether anything is dropped."""
        return self.rate > 0

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the outputs for inputs of this shape."""
        if self.channels and len(shape) != 3:
            raise InputError(f"dropout of channels takes (channels, height, width), got {shape}.")
        return shape

    def to(self, device: torch.device | str) -> Dropout:  # noqa: ARG002 (as of all records)
        """Itself: there is nothing to move."""
        return self
