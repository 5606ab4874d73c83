"""The networks that come with the package, both trained by Bayes by backprop.

``NAME``: 1D noisy sine, two hidden layers of 32, made by ``python -m benchmarks.networks --demo`` (family ``paper``,
see there for the settings). ``CLASSIFIER``: two moons, one hidden layer of 32, made by ``python tools/make_moons.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

__all__ = ["CLASSIFIER", "NAME", "network_path"]

NAME = "sine1d_2x32.safetensors"
CLASSIFIER = "moons_1x32.safetensors"


@contextmanager
def network_path(name: str = NAME) -> Iterator[Path]:
    """The file of a network, for as long as the context lasts (a temporary copy if the package lies in an archive).

    >>> with network_path() as path:
    ...     path.name
    'sine1d_2x32.safetensors'
    """
    with resources.as_file(resources.files(__name__) / name) as path:
        yield path
