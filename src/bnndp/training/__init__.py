"""Training of Bayesian networks: one file for each method of inference."""

from bnndp.training.bayes_by_backprop import Trained, train
from bnndp.training.cards import Card, ClassificationCard, RegressionCard, Scores, scores
from bnndp.training.options import TrainingOptions

__all__ = [
    "Card",
    "ClassificationCard",
    "RegressionCard",
    "Scores",
    "Trained",
    "TrainingOptions",
    "scores",
    "train",
]
