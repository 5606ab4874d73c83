"""What decides a training, apart from the data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from bnndp.errors import InputError
from bnndp.layers import Dropout
from bnndp.training.architecture import NAMED_ACTIVATIONS, LayerSpec, layer_specs, parse

INFERENCES = ("bbb", "vogn", "noisy-adam", "map")
MODIFIERS = ("dropout", "ensemble", "laplace")  # they go with map
CURVATURES = ("examples", "batch", "fisher")

PRIORS = ("unit", "fan_in")
SCHEDULES = ("constant", "cosine", "warm_cosine")
SAMPLINGS = ("local", "weights")
NON_MONOTONE = ("gelu", "silu")  # activations that are not increasing
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, slots=True)
class NaturalGradient:
    """What VOGN and Noisy Adam have beside a learning rate.

    ``curvature`` says what the precision is learnt from: ``examples``, the mean of the squared gradients of the single
    points (as published for VOGN); ``batch``, the square of the mean gradient of the batch (as published for Noisy
    Adam; too small, the more so the larger the batch); ``fisher``, squared gradients of single points whose targets are
    drawn from the network itself, the mean of which is the diagonal of the Gauss-Newton matrix. None: as published.

    ``damping`` None is zero for Noisy Adam, and for VOGN what a temperature T < 1 takes from the prior's share in the
    denominator of a step, so that steps along weights without curvature stay as long as they are at T = 1.
    """

    momentum: float = 0.9  # beta_1
    decay: float = 0.999  # beta_2: of the moving average of the curvature
    samples: int = 1  # draws of the weights per step
    damping: float | None = None  # added to the curvature where it divides the gradient; not part of the posterior
    curvature: str | None = None

    def __post_init__(self) -> None:
        for field in ("momentum", "decay"):
            if not 0 <= getattr(self, field) < 1:
                raise InputError(f"{field} must be in [0, 1), got {getattr(self, field)!r}.")
        if self.samples < 1:
            raise InputError(f"samples must be at least 1, got {self.samples!r}.")
        if self.damping is not None and not (math.isfinite(self.damping) and self.damping >= 0):
            raise InputError(f"damping must be finite and at least 0, got {self.damping!r}.")
        if self.curvature is not None and self.curvature not in CURVATURES:
            raise InputError(f"curvature must be one of {', '.join(CURVATURES)}, got {self.curvature!r}.")


@dataclass(frozen=True, slots=True)
class Stopping:
    """Early stopping: the posterior with the least held-out negative log-likelihood is kept.

    The likelihood is estimated every ``every`` steps and after the last one; training ends when ``patience`` estimates
    in a row are no better than the best.
    """

    every: int = 200
    patience: int = 10
    draws: int = 32  # of the network, at every point of the first 2048 held out

    def __post_init__(self) -> None:
        for field, least in (("every", 1), ("patience", 1), ("draws", 2)):
            if getattr(self, field) < least:
                raise InputError(f"{field} must be at least {least}, got {getattr(self, field)!r}.")


@dataclass(frozen=True, slots=True)
class Robust:
    """Training against the worst case over balls of radius ``eps`` around the points, see :mod:`.robust`."""

    eps: float
    share: float = 0.5  # of the worst case in the objective, once it has risen to its full size

    def __post_init__(self) -> None:
        if not (math.isfinite(self.eps) and self.eps > 0):
            raise InputError(f"eps must be finite and positive, got {self.eps!r}.")
        if not 0 < self.share <= 1:
            raise InputError(f"share must be in (0, 1], got {self.share!r}.")


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Everything that decides the result, apart from the data.

    ``prior="unit"`` is N(0, prior_std^2) on every weight and bias; ``prior="fan_in"`` divides the standard deviation of
    the weights of a layer by sqrt(n_in), so that the prior over functions keeps its scale as layers grow wider.

    ``temperature`` is the weight of the KL term in the objective. One is Bayes' rule; a smaller one gives a cold
    posterior, which is what one would have had after seeing every point 1/temperature times.

    ``inference="map"`` trains weights without variances, to the maximum of the posterior density. With ``dropout`` they
    are followed by dropout, which is then the posterior (MC dropout). ``bbb`` with ``dropout`` takes convolutions
    without variances followed by dropout, and Gaussian dense layers.
    """

    hidden: tuple[int, ...] = (64, 64)
    noise_std: float = 0.1  # of the likelihood of regression; classification has no such noise
    prior: str = "unit"
    prior_std: float = 1.0
    init_std: float = 0.1  # where the standard deviations of the posterior start
    init_gain: float = 1.0  # means start uniform in +-init_gain / sqrt(n_in)
    steps: int = 2000
    batch: int | None = None  # points of a step; None: all of them
    learning_rate: float = 1e-2
    sampling: str = "local"  # of bbb: local reparametrisation, or one draw of all weights per step
    schedule: str = "cosine"  # constant; cosine: down to zero; warm_cosine: the same after a rise
    warm_up: float = 0.0  # share of the steps in which the weight of the KL term rises to ``temperature``
    seed: int = 0
    dtype: str = "float32"  # of the arithmetic; the result is float64
    temperature: float = 1.0  # weight of the KL term
    inference: str = "bbb"  # the method: bbb, vogn, noisy-adam or map
    natural: NaturalGradient | None = None  # of vogn and noisy-adam; None: the defaults
    stopping: Stopping | None = None  # early stopping; None: all steps
    activation: str = "relu"  # after every hidden layer
    conv: str = ""  # convolutions before the hidden layers, in the language of :mod:`.architecture`
    image: tuple[int, int, int] | None = None  # (channels, rows, columns) of an input, for convolutions
    dropout: Dropout | None = None
    dropout_last: bool = False  # after the last layer that would have it alone
    robust: Robust | None = None  # classification by bbb or map

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        _check_method(self.inference, self.natural)
        for field in ("noise_std", "prior_std", "init_std", "init_gain", "learning_rate", "temperature"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{field} must be finite and positive, got {value!r}.")
        for field, known in (
            ("prior", PRIORS),
            ("sampling", SAMPLINGS),
            ("schedule", SCHEDULES),
            ("dtype", tuple(DTYPES)),
        ):
            if getattr(self, field) not in known:
                raise InputError(f"{field} must be one of {', '.join(known)}, got {getattr(self, field)!r}.")
        if any(width < 1 for width in self.hidden):
            raise InputError(f"widths of hidden layers must be at least 1, got {self.hidden}.")
        if self.steps < 1 or (self.batch is not None and self.batch < 1):
            raise InputError(f"steps and batch must be at least 1, got steps={self.steps}, batch={self.batch}.")
        if not 0 <= self.warm_up < 1:
            raise InputError(f"warm_up must be in [0, 1), got {self.warm_up!r}.")
        self._check_layers()

    def _check_layers(self) -> None:
        if self.activation not in NAMED_ACTIVATIONS:
            raise InputError(f"activation must be one of {', '.join(NAMED_ACTIVATIONS)}, got {self.activation!r}.")
        if self.conv:
            parse(self.conv)
        if self.image is not None:
            object.__setattr__(self, "image", tuple(self.image))
        if self.dropout is not None and not (self.inference == "map" or (self.inference == "bbb" and self.conv)):
            raise InputError(
                f"dropout is trained by map, and by bbb after convolutions, not by {self.inference!r}"
                f"{'' if self.conv else ' without conv'}; choose inference map."
            )
        if self.robust is not None and (self.inference not in ("bbb", "map") or self.activation in NON_MONOTONE):
            raise InputError(
                f"robust is for bbb and map with an increasing activation, got inference {self.inference!r} and "
                f"activation {self.activation!r}; leave it out."
            )

    def layer_specs(self, n_in: int, n_out: int) -> tuple[LayerSpec, ...]:
        """The weight layers of a network with these numbers of inputs and outputs."""
        gaussian = "none" if self.inference == "map" else "all" if self.dropout is None else "dense"
        return layer_specs(
            n_in,
            self.hidden,
            n_out,
            activation=self.activation,
            conv=self.conv,
            image=self.image,
            dropout=self.dropout,
            dropout_last=self.dropout_last,
            gaussian=gaussian,
        )


def _check_method(inference: str, natural: NaturalGradient | None) -> None:
    if inference not in INFERENCES:
        reason = "is an option beside the method" if inference in MODIFIERS else "is unknown"
        raise InputError(f"inference {inference!r} {reason}; choose one of {', '.join(INFERENCES)}.")
    if inference in ("bbb", "map") and natural is not None:
        raise InputError(f"natural={natural} belongs to vogn and noisy-adam, inference is {inference!r}; leave it out.")
