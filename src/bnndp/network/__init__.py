"""What is certified: a Bayesian network, or a mixture of them, as frozen records."""

from bnndp.network.ensemble import Ensemble, Posterior, dense_structure
from bnndp.network.network import KINDS, TASKS, BayesianNetwork, Layer, flat, is_activation

__all__ = [
    "KINDS", "TASKS", "BayesianNetwork", "Ensemble", "Layer", "Posterior", "dense_structure", "flat", "is_activation",
]  # fmt: skip
