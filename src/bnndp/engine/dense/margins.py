r"""Margins :math:`D_j=\zeta_c-\zeta_j` of the logits, as one more Gaussian layer: their mean and variance on a box.

Given the last hidden layer z the logits are independent Gaussians, so :math:`D_j` is Gaussian with weights
:math:`\mu_c-\mu_j` of variance :math:`\sigma_c^2+\sigma_j^2`. Its mean is carried down to x like that of any row
(``backward.py``), which keeps what the two logits share; two separate intervals would lose it. By the law of total
variance :math:`\operatorname{Var}D_j=\mathbb Es(z)+\operatorname{Var}(\mu\cdot z)`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.dense.backward import Choice, least, lower_bound
from bnndp.engine.dense.forward import HiddenLayers, Parameters, hidden_layers
from bnndp.engine.dense.optimise import best_choice
from bnndp.engine.dense.variance import linear_variance
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box, apply_rows
from bnndp.layers import Linear
from bnndp.maths.rounding import TINY, UNIT, gamma, up
from bnndp.network import BayesianNetwork

__all__ = [
    "MarginRows",
    "Margins",
    "interval_mean",
    "margin_rows",
    "margin_variance",
    "margins",
    "margins_above",
    "mean_margins",
]


@dataclass(frozen=True, slots=True)
class MarginRows:
    """The law of the weights of the margins of some classes c against all j, one row a pair; c against c is zero."""

    weight: Tensor  # (batch, rows, n): mu_c - mu_j, rounded
    variance: Tensor  # (batch, rows, n): sigma_c^2 + sigma_j^2, rounded; zero for c against itself
    bias: Tensor  # (batch, rows)
    bias_variance: Tensor  # (batch, rows)

    @property
    def blur(self) -> Tensor:
        """What rounding changed in ``weight``, at most: (batch, rows, n)."""
        return 2 * UNIT * self.weight.abs() + TINY

    @property
    def bias_blur(self) -> Tensor:
        """What rounding changed in ``bias``, at most: (batch, rows)."""
        return 2 * UNIT * self.bias.abs() + TINY


@dataclass(frozen=True, slots=True)
class Margins:
    """Moments of the margins for every x of the box: (batch, references, classes) each; zero for c against itself."""

    mean: Tensor  # E D_j is at least this
    variance: Tensor  # Var D_j is at most this

    def __getitem__(self, index: Tensor) -> "Margins":
        """Those of the boxes at ``index``."""
        return Margins(self.mean[index], self.variance[index])

    def reshape(self, *shape: int) -> "Margins":
        """The same numbers in another shape."""
        return Margins(self.mean.reshape(shape), self.variance.reshape(shape))


def margin_rows(output: Linear, reference: Tensor) -> MarginRows:  # reference (batch, references) of integers
    """Rows of the margins of the reference classes of each box: (batch, references * classes, n)."""
    batch, several = reference.shape
    rows = several * output.n_out
    other = reference[..., None] != torch.arange(output.n_out, device=reference.device)  # (batch, references, classes)

    def pairs(values: Tensor, sign: float) -> Tensor:  # (classes, ...)
        return (values[reference][:, :, None] + sign * values).reshape(batch, rows, *values.shape[1:])

    other = other.reshape(batch, rows)
    return MarginRows(
        weight=pairs(output.weight_mean, -1),
        variance=(pairs(output.weight_std.square(), 1) + TINY) * other[..., None],  # the squares may underflow
        bias=pairs(output.bias_mean, -1),
        bias_variance=(pairs(output.bias_std.square(), 1) + TINY) * other,
    )


def margins(
    network: BayesianNetwork, box: Box, reference: Tensor, *, steps: int = 0, parameters: Parameters | None = None
) -> Margins:  # reference (batch, references)
    """Bounds of the mean and variance of the margins of ``reference`` for every x of each box.

    The planes are optimised by ``steps`` steps of ascent.
    """
    *hidden, output = network.seen
    rows = margin_rows(output, reference)
    if not hidden:
        return Margins(*(moment.reshape(*reference.shape, -1) for moment in _gaussian(rows, box)))
    layers = hidden_layers(hidden, box, parameters or Parameters(), take_last_apart=True)
    choice = best_choice(rows.weight, rows.bias, layers, steps) if steps else None
    return margins_above(rows, layers, choice).reshape(*reference.shape, -1)


def margins_above(rows: MarginRows, layers: HiddenLayers, choice: Choice | None = None) -> Margins:
    """The same from hidden layers that are known already: (batch, rows) each."""
    below = layers.latents[-1].mean
    mean = torch.maximum(_least_margins(rows, layers, choice), interval_mean(rows, below))
    variance = margin_variance(rows, layers)
    fine = layers.fine & mean.isfinite() & variance.isfinite()  # no bound where powers overflow or nothing is a number
    return Margins(torch.where(fine, mean, -torch.inf), torch.where(fine, variance, torch.inf))


def _least_margins(rows: MarginRows, layers: HiddenLayers, choice: Choice | None) -> Tensor:
    """The least values on the box of :func:`mean_margins`: (batch, rows)."""
    if choice is not None:
        affine = mean_margins(rows, layers, choice)
        return layers.box.minimum(affine.matrix, affine.offset)
    return least(rows.weight, _shifted(rows, layers), layers.relaxed, layers.ground)


def mean_margins(rows: MarginRows, layers: HiddenLayers, choice: Choice | None = None) -> Affine:
    """Affine functions of x below the mean margins on the box: (batch, rows)."""
    return lower_bound(rows.weight, _shifted(rows, layers), layers.relaxed, layers.first, layers.box, choice)


def _shifted(rows: MarginRows, layers: HiddenLayers) -> Tensor:
    """The biases (batch, rows), lowered by what the rounding of the rows may change in the means."""
    return rows.bias - _blur(rows, layers.latents[-1].mean.upper)


def _blur(rows: MarginRows, largest: Tensor) -> Tensor:
    """What the rounding of the rows themselves may change in the mean, for inputs of at most this size."""
    return 2 * (apply_rows(rows.blur, largest) + rows.bias_blur)


def _gaussian(rows: MarginRows, box: Box) -> tuple[Tensor, Tensor]:
    """No hidden layer: given x, D is exactly Gaussian with this mean (at least) and variance (at most)."""
    mean = box.minimum(rows.weight, rows.bias) - _blur(rows, box.magnitude)
    return mean, up(apply_rows(rows.variance, box.magnitude.square()) + rows.bias_variance, box.n + 8)


def interval_mean(rows: MarginRows, below: Interval) -> Tensor:
    """Lower end of the mean from the ranges of E z alone."""
    positive, negative = rows.weight.clamp_min(0), rows.weight.clamp_max(0)
    size = apply_rows(rows.weight.abs(), below.upper) + rows.bias.abs()
    lost = gamma(2 * rows.weight.shape[-1] + 8) * size + _blur(rows, below.upper) + TINY
    return apply_rows(positive, below.lower) + apply_rows(negative, below.upper) + rows.bias - lost


def margin_variance(rows: MarginRows, layers: HiddenLayers) -> Tensor:
    """Upper end of the variance: that given the last hidden layer plus that of the conditional mean."""
    latents, n = layers.latents, rows.weight.shape[-1]
    spread = up(apply_rows(rows.variance, latents[-1].second.upper) + rows.bias_variance, n + 8)
    through = up(linear_variance(rows.weight, layers.given, latents, layers.first.sources), n + 20)
    blur = apply_rows(rows.blur, latents[-1].variance.sqrt())  # standard deviations add up
    return spread + (through.sqrt() + 2 * blur).square() * (1 + gamma(8))
