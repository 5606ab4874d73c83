"""Training of Bayesian networks: one file for each method of inference."""

from bnndp.training.bayes_by_backprop import Card, Trained, TrainingOptions, train

__all__ = ["Card", "Trained", "TrainingOptions", "train"]
