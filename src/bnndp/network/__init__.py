"""What is certified: a Bayesian network, or a mixture of them, as frozen records."""

from bnndp.network.ensemble import Ensemble, Posterior, dense_structure
from bnndp.network.magnitudes import expect_box
from bnndp.network.network import KINDS, TASKS, BayesianNetwork, Layer, flat, is_activation
from bnndp.network.normal_form import normal_form

__all__ = [
    "KINDS", "TASKS", "BayesianNetwork", "Ensemble", "Layer", "Posterior", "dense_structure", "expect_box",
    "flat", "is_activation", "normal_form",
]  # fmt: skip
