"""Fixtures shared by all tests: one thread, the shared data and posteriors, random networks in float64.

The default dtype of torch is left at float32 on purpose: a constant in the package that forgets its dtype then loses
digits here as it would in a user's program, and the oracles notice.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

torch.set_num_threads(1)
os.environ["BNNDP_OFFLINE"] = "1"  # no test reaches for the network, nor for what a user has downloaded before
_cache = tempfile.TemporaryDirectory(prefix="bnndp-tests-")  # removed with the process
os.environ["XDG_CACHE_HOME"] = _cache.name

from support.browser import Browser, find_browser, open_browser  # noqa: E402 (after the environment is set)

NetworkFactory = Callable[..., BayesianNetwork]


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder of the shared data sets, named by the environment variable BNNDP_DATA."""
    named = os.environ.get("BNNDP_DATA")
    if not named:
        pytest.skip("BNNDP_DATA is not set; it names the folder of the shared data sets")
    folder = Path(named)
    if not folder.is_dir():
        pytest.skip(f"BNNDP_DATA names {named}, which is not a folder")
    return folder


@pytest.fixture(scope="session")
def posteriors(data_folder: Path) -> Path:
    """Folder of the shared posterior files, beside that of the data sets."""
    folder = data_folder.parent / "posteriors"
    if not folder.is_dir():
        pytest.skip(f"no folder 'posteriors' beside {data_folder}")
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests of pages."""
    program = find_browser()
    if program is None:
        pytest.skip("there is no Chromium; tools/setup_browser.sh installs one")
    with open_browser(program) as opened:
        yield opened


@pytest.fixture(scope="session")
def random_network() -> NetworkFactory:
    """Make networks: ``random_network(sizes, seed, std=0.2, zeros=0.0, task="regression")``."""
    return make_network


def make_network(
    sizes: tuple[int, ...], seed: int = 0, *, std: float = 0.2, zeros: float = 0.0, task: str = "regression"
) -> BayesianNetwork:
    """A network of these sizes: He-scaled means, deviations up to about ``std``, a share ``zeros`` of them zero."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def deviation(*shape: int) -> torch.Tensor:
        value = std * torch.rand(shape, generator=generator, dtype=torch.float64)
        return value * (torch.rand(shape, generator=generator) >= zeros)

    linears = [
        Linear(
            normal(n_out, n_in) * (2 / n_in) ** 0.5, deviation(n_out, n_in) / n_in**0.5, normal(n_out), deviation(n_out)
        )
        for n_in, n_out in pairwise(sizes)
    ]
    return BayesianNetwork.from_linears(linears, task)
