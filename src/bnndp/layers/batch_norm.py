r"""Batch normalisation in evaluation mode, folded into the layer with weights before it.

Its means :math:`\mu` and variances :math:`v` are fixed then, so it is an affine function of each output (or channel),

.. math:: y\mapsto\gamma\,(y-\mu)/\sqrt{v+\epsilon}+\beta ,

and the layer before it stays of its kind. One that follows anything else cannot be folded: its shift would enter the
next layer through random weights, and make the bias depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bnndp.errors import InputError
from bnndp.layers.checks import expect_shapes, take
from bnndp.layers.record import Record
from bnndp.layers.units import in_outputs


@dataclass(frozen=True, slots=True, eq=False)
class BatchNorm:
    """Batch normalisation in evaluation mode, to be folded into the layer before it by :meth:`after`.

    It is not a layer of a network. The formula is evaluated in float64, and the resulting layer is the one that is
    certified.

    Args:
        mean: ``running_mean``, ``(n,)``.
        variance: ``running_var``, ``(n,)``.
        weight: The scale gamma, ``(n,)``.
        bias: The shift beta, ``(n,)``.
        eps: Added to the variance, as in ``torch.nn.BatchNorm1d``.

    Examples:
        >>> import torch
        >>> from bnndp.layers import Linear
        >>> norm = BatchNorm(torch.zeros(2), torch.ones(2), torch.ones(2), torch.zeros(2))
        >>> norm.after(Linear.fixed(torch.ones(2, 3)))
        Linear(3 -> 2)
    """

    mean: Tensor  # (n,)
    variance: Tensor  # (n,)
    weight: Tensor  # (n,)
    bias: Tensor  # (n,)
    eps: float = 1e-5

    def __post_init__(self) -> None:
        fields = ("mean", "variance", "weight", "bias")
        take(self, fields)
        expect_shapes(self, dict.fromkeys(fields, (self.mean.numel(),)), "one another")
        if not self.eps >= 0 or not bool((self.variance + self.eps > 0).all()) or bool((self.variance < 0).any()):
            least = self.variance.min().item() if self.variance.numel() else None
            raise InputError(f"variance must be >= 0 and variance + eps positive, got {least} and eps {self.eps!r}.")

    def after(self, layer: Record) -> Record:
        """Fold the normalisation into a layer.

        Args:
            layer: A layer with weights and ``n`` outputs (or channels).

        Returns:
            A layer of the same kind that computes ``layer`` followed by the normalisation.
        """
        outputs = getattr(layer, "bias_mean", self.mean).numel()
        if outputs != self.mean.numel():
            raise InputError(f"batch norm of {self.mean.numel()} outputs follows a layer ({layer.kind}) of {outputs}.")
        factor = self.weight / (self.variance + self.eps).sqrt()
        return in_outputs(layer, self.bias - self.mean * factor, factor)
