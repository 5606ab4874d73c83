"""bnndp certifies the adversarial robustness of Bayesian neural networks, over their whole posterior.

What most programs need is here. Layers are in :mod:`bnndp.layers`, activations in :mod:`bnndp.activations`, readers of
other libraries in :mod:`bnndp.importers`, attacks in :mod:`bnndp.attack`, the records of answers in
:mod:`bnndp.questions`. Names are imported when they are first used, so that ``bnndp --help`` does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bnndp import activations as activations
    from bnndp import attack as attack
    from bnndp import importers as importers
    from bnndp import layers as layers
    from bnndp import questions as questions
    from bnndp.attack.inside import inside_range
    from bnndp.attack.radius import attack_radius
    from bnndp.errors import CertError
    from bnndp.files.posterior import load, save
    from bnndp.geometry.box import Box
    from bnndp.importers.module import from_module
    from bnndp.network import BayesianNetwork, Ensemble
    from bnndp.options import Options
    from bnndp.questions.assertions import assert_robust
    from bnndp.questions.bounds import Bounds
    from bnndp.questions.certify import certify, probability
    from bnndp.questions.decision import Decision, decide, robust_decision
    from bnndp.questions.evaluate import Evaluation, evaluate
    from bnndp.questions.radius import Radius, Search, certified_radius
    from bnndp.questions.robustness import adversarial_robustness
    from bnndp.questions.verdict import Verdict

_HOMES = {
    "BayesianNetwork": "network",
    "Bounds": "questions.bounds",
    "Box": "geometry.box",
    "CertError": "errors",
    "Decision": "questions.decision",
    "Ensemble": "network",
    "Evaluation": "questions.evaluate",
    "Options": "options",
    "Radius": "questions.radius",
    "Search": "questions.radius",
    "Verdict": "questions.verdict",
    "adversarial_robustness": "questions.robustness",
    "assert_robust": "questions.assertions",
    "attack_radius": "attack.radius",
    "certified_radius": "questions.radius",
    "certify": "questions.certify",
    "decide": "questions.decision",
    "evaluate": "questions.evaluate",
    "from_module": "importers.module",
    "inside_range": "attack.inside",
    "load": "files.posterior",
    "probability": "questions.certify",
    "robust_decision": "questions.decision",
    "save": "files.posterior",
}
_MODULES = ("activations", "attack", "importers", "layers", "questions")

__all__ = [
    "BayesianNetwork", "Bounds", "Box", "CertError", "Decision", "Ensemble", "Evaluation", "Options", "Radius",
    "Search", "Verdict", "adversarial_robustness", "assert_robust", "attack_radius", "certified_radius", "certify",
    "decide", "evaluate", "from_module", "inside_range", "load", "probability", "robust_decision", "save",
]  # fmt: skip
__version__ = "0.2.0.dev0"


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return vars(import_module(f"bnndp.{_HOMES[name]}"))[name]
    if name in _MODULES:
        return import_module(f"bnndp.{name}")
    raise AttributeError(f"module 'bnndp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
