"""Networks from other libraries: files by ``bnndp convert``, objects in memory by the functions ``from_...`` here.

Names are imported when they are first used: the child process that opens a pickle must not load more than it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bnndp.importers.api import from_samples, from_tensors
    from bnndp.importers.architecture import Architecture
    from bnndp.importers.ivon import from_ivon
    from bnndp.importers.laplace import from_laplace
    from bnndp.importers.module import from_module
    from bnndp.importers.numpyro import from_numpyro
    from bnndp.importers.posteriors import from_posteriors
    from bnndp.importers.pyro_live import from_pyro

__all__ = [
    "Architecture", "from_ivon", "from_laplace", "from_module", "from_numpyro", "from_posteriors", "from_pyro",
    "from_samples", "from_tensors",
]  # fmt: skip
_ELSEWHERE = {"from_pyro": "pyro_live", "from_samples": "api", "from_tensors": "api"}


def __getattr__(name: str) -> object:
    if name in __all__:
        module = _ELSEWHERE.get(name, name.removeprefix("from_").lower())
        return vars(import_module(f"bnndp.importers.{module}"))[name]
    raise AttributeError(f"module 'bnndp.importers' has no attribute {name!r}")
