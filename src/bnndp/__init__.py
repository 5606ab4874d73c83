"""bnndp certifies the adversarial robustness of Bayesian neural networks, over their whole posterior.

Names are imported when they are first used, so that ``import bnndp`` and ``bnndp --help`` do not load torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bnndp.activations import Elu, Gelu, HardTanh, Identity, LeakyRelu, Relu, Sigmoid, Silu, Softplus, Tanh
    from bnndp.assertions import NotRobust, assert_robust
    from bnndp.attacks import Inside, inside_range
    from bnndp.bounds import AffineBounds, Bounds
    from bnndp.certify import Robustness, adversarial_robustness, certify, probability
    from bnndp.decision import Decision, decide, robust_decision
    from bnndp.ensemble import Ensemble
    from bnndp.errors import CertError
    from bnndp.evaluate import Curve, Evaluation, evaluate
    from bnndp.evasion import AttackRadius, Effort, Evasion, Reach, attack_radius, evade
    from bnndp.files import load, save
    from bnndp.importers.api import Architecture, from_ivon, from_samples, from_tensors
    from bnndp.importers.module import from_module
    from bnndp.importers.probabilistic import from_laplace, from_numpyro, from_posteriors, from_pyro
    from bnndp.layers import (
        AveragePool,
        Conv2d,
        CorrelatedLinear,
        Dropout,
        Flatten,
        Linear,
        MatrixNormalLinear,
        MaxPool,
        Residual,
    )
    from bnndp.network import BayesianNetwork
    from bnndp.options import Options
    from bnndp.radius import Radius, Search, certified_radius
    from bnndp.regions import Box
    from bnndp.verdict import Verdict

__all__ = [
    "AffineBounds", "Architecture", "AttackRadius", "AveragePool", "BayesianNetwork", "Bounds", "Box", "CertError",
    "Conv2d", "CorrelatedLinear", "Curve", "Decision", "Dropout", "Effort", "Elu", "Ensemble", "Evaluation", "Evasion",
    "Flatten", "Gelu", "HardTanh", "Identity", "Inside", "LeakyRelu", "Linear", "MatrixNormalLinear", "MaxPool",
    "NotRobust", "Options", "Radius", "Reach", "Relu", "Residual", "Robustness", "Search", "Sigmoid", "Silu",
    "Softplus", "Tanh", "Verdict", "adversarial_robustness", "assert_robust", "attack_radius", "certified_radius",
    "certify", "decide", "evade", "evaluate", "from_ivon", "from_laplace", "from_module", "from_numpyro",
    "from_posteriors", "from_pyro", "from_samples", "from_tensors", "inside_range", "load", "probability",
    "robust_decision", "save",
]  # fmt: skip
__version__ = "0.1.0"
_MODULES = (
    "activations", "assertions", "attacks", "bounds", "certify", "decision", "ensemble", "errors", "evaluate",
    "evasion", "files", "layers", "network", "options", "radius", "regions", "verdict",
    "importers.api", "importers.module", "importers.probabilistic",
)  # fmt: skip


def __getattr__(name: str) -> object:
    if name in __all__:
        homes = (import_module(f"bnndp.{module}") for module in _MODULES)
        return next(vars(home)[name] for home in homes if name in home.__all__)
    raise AttributeError(f"module 'bnndp' has no attribute {name!r}")


class _Package(ModuleType):
    """Importing the submodules ``certify`` and ``evaluate`` must not hide the functions of these names."""

    def __setattr__(self, name: str, value: object) -> None:
        hidden = isinstance(value, ModuleType) and name in ("certify", "evaluate")
        super().__setattr__(name, vars(value)[name] if hidden else value)


sys.modules[__name__].__class__ = _Package
