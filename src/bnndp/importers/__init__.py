"""Networks from other libraries: files by ``bnndp convert``, objects in memory by the functions ``from_...`` here.

Names are imported when they are first used: the child process that opens a pickle must not load more than it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bnndp.importers.api import from_ivon, from_samples, from_tensors
    from bnndp.importers.architecture import Architecture
    from bnndp.importers.module import from_module
    from bnndp.importers.probabilistic import from_laplace, from_numpyro, from_posteriors, from_pyro

_HOMES = {
    "Architecture": "architecture",
    "from_ivon": "api",
    "from_laplace": "probabilistic",
    "from_module": "module",
    "from_numpyro": "probabilistic",
    "from_posteriors": "probabilistic",
    "from_pyro": "probabilistic",
    "from_samples": "api",
    "from_tensors": "api",
}
__all__ = [
    "Architecture", "from_ivon", "from_laplace", "from_module", "from_numpyro", "from_posteriors", "from_pyro",
    "from_samples", "from_tensors",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return vars(import_module(f"bnndp.importers.{_HOMES[name]}"))[name]
    raise AttributeError(f"module 'bnndp.importers' has no attribute {name!r}")
