"""Training cards: how well a posterior fits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from bnndp.attack.sampling import draw_noise, estimate
from bnndp.data import ClassificationData, RegressionData
from bnndp.errors import InputError
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.training.elbo import elbo
from bnndp.training.options import TrainingOptions
from bnndp.training.predictive import (
    TargetPredictive,
    calibration_error,
    coverage_error,
    predict,
    predict_targets,
)

__all__ = ["Card", "ClassificationCard", "RegressionCard", "Scores", "evaluate", "scores"]

_POINTS, _DRAWS = 1024, 256  # of a card of regression
_LABELLED_POINTS, _LABELLED_DRAWS = 10_000, 128  # of a card of classification
_SLOW_DRAWS = 16  # of one of convolutions
_TRAINED_POINTS = 2000  # of its training part, which is there to be compared with the other
_ELBO_DRAWS = 2**16  # points times samples


@dataclass(frozen=True, slots=True)
class RegressionCard:
    """Errors of the mean function E f(x) on the first 1024 points of each set, and the ELBO of all training points."""

    rmse_train: float
    rmse_clean: float | None  # against the function without noise, where it is known
    rmse_held_out: float | None
    elbo: float  # of all points, estimated; the KL term has weight one whatever the temperature; map: see mean_field
    seconds: float
    nll_train: float | None = None  # mean of -log of the predictive density of the targets; None in cards of old
    nll_held_out: float | None = None
    calibration_error_train: float | None = None  # of the quantiles of the predictive distribution
    calibration_error_held_out: float | None = None
    output_std: float | None = None  # standard deviation of f(x), mean over training points


@dataclass(frozen=True, slots=True)
class Scores:
    """How well E softmax predicts the labels of a set."""

    points: int  # the first so many of the set
    accuracy: float  # of argmax E softmax
    nll: float  # mean of -log E softmax of the right class
    calibration_error: float  # expected calibration error, 15 bins
    logit_std: float  # standard deviation of the logits, mean over classes and points


@dataclass(frozen=True, slots=True)
class ClassificationCard:
    """Scores of the predictive distribution on each set, and the ELBO of all training points."""

    train: Scores
    held_out: Scores | None
    elbo: float  # of all points, estimated; the KL term has weight one whatever the temperature
    seconds: float


Card = RegressionCard | ClassificationCard


def evaluate(
    network: BayesianNetwork,
    data: RegressionData | ClassificationData,
    options: TrainingOptions,
    *,
    held_out: RegressionData | ClassificationData | None = None,
    seconds: float = 0.0,
) -> Card:
    """The card of a posterior trained on ``data`` with ``options``."""
    if held_out is not None and type(held_out) is not type(data):
        raise InputError(
            f"held_out is {type(held_out).__name__}, the training set {type(data).__name__}; give two of one kind."
        )
    samples = 1 if options.conv else max(1, min(8, _ELBO_DRAWS // data.points))
    bound = elbo(network, data, options, samples=samples)
    if isinstance(data, ClassificationData):
        return ClassificationCard(
            train=scores(network, data, points=_TRAINED_POINTS),
            held_out=scores(network, held_out) if isinstance(held_out, ClassificationData) else None,
            elbo=bound,
            seconds=seconds,
        )
    fitted = _targets(network, data, options)
    other = _targets(network, held_out, options) if isinstance(held_out, RegressionData) else None
    return RegressionCard(
        rmse_train=_rmse(network, data.x, data.y),
        rmse_clean=None if data.clean is None else _rmse(network, data.x, data.clean),
        rmse_held_out=_rmse(network, held_out.x, held_out.y) if isinstance(held_out, RegressionData) else None,
        elbo=bound,
        seconds=seconds,
        nll_train=float(-fitted.log_density.mean()),
        nll_held_out=None if other is None else float(-other.log_density.mean()),
        calibration_error_train=coverage_error(fitted.level),
        calibration_error_held_out=None if other is None else coverage_error(other.level),
        output_std=float(fitted.output_std.mean()),
    )


def scores(
    network: BayesianNetwork | Ensemble,
    data: ClassificationData,
    *,
    points: int = _LABELLED_POINTS,
    draws: int | None = None,
) -> Scores:
    """Scores on the first ``points`` of ``data``; 128 draws a point, or 16 of images."""
    x, labels = data.x[:points], data.y[:points]
    draws = draws or (_LABELLED_DRAWS if len(network.input_shape or ()) == 1 else _SLOW_DRAWS)
    found = predict(network, x, draws=draws)
    chosen = found.log_probability.argmax(-1)
    return Scores(
        points=labels.numel(),
        accuracy=float((chosen == labels).double().mean()),
        nll=float(-found.log_probability.gather(-1, labels[:, None]).mean()),
        calibration_error=calibration_error(found.log_probability.exp(), labels),
        logit_std=float(found.logit_std.mean()),
    )


def _rmse(network: BayesianNetwork, x: Tensor, y: Tensor) -> float:
    """Root mean square of E f(x) - y, less the share of it that is the sampling error of E f (none if K <= 1)."""
    mean = estimate(network, x[:_POINTS], draw_noise(network, _DRAWS, seed=0))
    square = (mean.mean - y[:_POINTS]).square() - mean.std_error.square()
    return math.sqrt(max(0.0, float(square.mean())))


def _targets(network: BayesianNetwork, data: RegressionData, options: TrainingOptions) -> TargetPredictive:
    """The predictive distribution at the first 1024 points."""
    part = RegressionData(data.x[:_POINTS], data.y[:_POINTS])
    return predict_targets(network, part, options.noise_std, draws=_DRAWS)
