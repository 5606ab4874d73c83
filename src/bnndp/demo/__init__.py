"""The network that comes with the package: 1D noisy sine, two hidden layers of 32, trained by Bayes by backprop.

Made by ``python benchmarks/networks.py --demo`` (family ``paper``, see there for the settings).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

__all__ = ["NAME", "network_path"]

NAME = "sine1d_2x32.safetensors"


@contextmanager
def network_path() -> Iterator[Path]:
    """The file of the network, for as long as the context lasts (a temporary copy if the package lies in an archive).

    >>> with network_path() as path:
    ...     path.name
    'sine1d_2x32.safetensors'
    """
    with resources.as_file(resources.files(__name__) / NAME) as path:
        yield path
