"""Training cards: how well a posterior fits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from bnndp.attack.sampling import draw_noise, estimate
from bnndp.data import ClassificationData, Data, RegressionData
from bnndp.errors import InputError
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.training.elbo import elbo
from bnndp.training.options import TrainingOptions
from bnndp.training.predictive import calibration_error, coverage_error, predict, predict_targets

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
class TargetScores:
    """How well the predictive distribution f(x) + noise predicts real targets, in their units."""

    points: int
    rmse: float  # of E f(x), without the part that is sampling error of E f
    nll: float  # mean of -log of the predictive density
    calibration_error: float  # of the quantiles of the predictive distribution
    output_std: float  # standard deviation of f(x), mean over points


@dataclass(frozen=True, slots=True)
class Scores:
    """How well E softmax predicts the labels of a set."""

    points: int  # the first ones of the set
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
    data: Data,
    options: TrainingOptions,
    *,
    held_out: Data | None = None,
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

    def first_scores(x: Tensor, y: Tensor) -> TargetScores:
        return target_scores(network, RegressionData(x[:_POINTS], y[:_POINTS]), options.noise_std)

    train = first_scores(data.x, data.y)
    other = first_scores(held_out.x, held_out.y) if isinstance(held_out, RegressionData) else None
    return RegressionCard(
        rmse_train=train.rmse,
        rmse_clean=None if data.clean is None else first_scores(data.x, data.clean).rmse,
        rmse_held_out=None if other is None else other.rmse,
        elbo=bound,
        seconds=seconds,
        nll_train=train.nll,
        nll_held_out=None if other is None else other.nll,
        calibration_error_train=train.calibration_error,
        calibration_error_held_out=None if other is None else other.calibration_error,
        output_std=train.output_std,
    )


def scores(
    network: BayesianNetwork | Ensemble,
    data: ClassificationData,
    *,
    points: int = _LABELLED_POINTS,
    draws: int | None = None,
) -> Scores:
    """Scores on the first ``points`` of ``data``; 128 draws per point, 16 for images."""
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


def target_scores(network: BayesianNetwork | Ensemble, data: RegressionData, noise_std: float) -> TargetScores:
    """Scores on all points of ``data``, in its units."""
    mean = estimate(network, data.x, draw_noise(network, _DRAWS, seed=0))
    square = (mean.mean - data.y).square() - mean.std_error.square()
    found = predict_targets(network, data, noise_std, draws=_DRAWS)
    return TargetScores(
        points=data.points,
        rmse=math.sqrt(max(0.0, float(square.mean()))),
        nll=float(-found.log_density.mean()),
        calibration_error=coverage_error(found.level),
        output_std=float(found.output_std.mean()),
    )
