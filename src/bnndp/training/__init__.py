"""Training of Bayesian networks: one file for each method of inference."""

from bnndp.training.cards import Card, ClassificationCard, RegressionCard, Scores, scores
from bnndp.training.defaults import default_options
from bnndp.training.loop import Trained, train
from bnndp.training.options import INFERENCES, NaturalGradient, Robust, Stopping, TrainingOptions
from bnndp.training.stopping import hold_out

__all__ = [
    "INFERENCES",
    "Card",
    "ClassificationCard",
    "NaturalGradient",
    "RegressionCard",
    "Robust",
    "Scores",
    "Stopping",
    "Trained",
    "TrainingOptions",
    "default_options",
    "hold_out",
    "scores",
    "train",
]
