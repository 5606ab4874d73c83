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

__all__ = ["BatchNorm"]


@dataclass(frozen=True, slots=True, eq=False)
class BatchNorm:
    """The numbers of ``torch.nn.BatchNorm1d`` or ``2d`` in evaluation mode; no record of a network, see :meth:`after`.

    The formula is evaluated in float64: the layer that results is the one that is certified.
    """

    mean: Tensor  # (n,), running_mean
    variance: Tensor  # (n,), running_var
    weight: Tensor  # (n,), gamma
    bias: Tensor  # (n,), beta
    eps: float = 1e-5

    def __post_init__(self) -> None:
        fields = ("mean", "variance", "weight", "bias")
        take(self, fields)
        expect_shapes(self, dict.fromkeys(fields, (self.mean.numel(),)), "one another")
        if not self.eps >= 0 or not bool((self.variance + self.eps > 0).all()) or bool((self.variance < 0).any()):
            least = self.variance.min().item() if self.variance.numel() else None
            raise InputError(f"variance must be >= 0 and variance + eps positive, got {least} and eps {self.eps!r}.")

    def after(self, layer: Record) -> Record:
        """The layer followed by this normalisation, as one layer."""
        outputs = getattr(layer, "bias_mean", self.mean).numel()
        if outputs != self.mean.numel():
            raise InputError(f"batch norm of {self.mean.numel()} outputs follows a layer ({layer.kind}) of {outputs}.")
        factor = self.weight / (self.variance + self.eps).sqrt()
        return in_outputs(layer, self.bias - self.mean * factor, factor)
