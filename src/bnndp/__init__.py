"""bnndp certifies the adversarial robustness of Bayesian neural networks, over their whole posterior.

Names are imported when they are first used, so that ``import bnndp`` and ``bnndp --help`` do not load torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bnndp.attacks import Inside, inside_range
    from bnndp.bounds import AffineBounds, Bounds
    from bnndp.certify import Robustness, Verdict, adversarial_robustness, certify
    from bnndp.errors import CertError
    from bnndp.files import load, save
    from bnndp.network import BayesianNetwork, Linear, Relu
    from bnndp.options import Options
    from bnndp.regions import Box

__all__ = [
    "AffineBounds", "BayesianNetwork", "Bounds", "Box", "CertError", "Inside", "Linear", "Options", "Relu",
    "Robustness", "Verdict", "adversarial_robustness", "certify", "inside_range", "load", "save",
]  # fmt: skip
__version__ = "0.1.0"
_MODULES = ("attacks", "bounds", "certify", "errors", "files", "network", "options", "regions")


def __getattr__(name: str) -> object:
    if name in __all__:
        homes = (import_module(f"bnndp.{module}") for module in _MODULES)
        return next(vars(home)[name] for home in homes if name in home.__all__)
    raise AttributeError(f"module 'bnndp' has no attribute {name!r}")


class _Package(ModuleType):
    """Importing the submodule ``certify`` must not hide the function of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value.certify if name == "certify" and isinstance(value, ModuleType) else value)


sys.modules[__name__].__class__ = _Package
