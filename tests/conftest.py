"""Fixtures shared by all tests: one thread, the shared data and posteriors, random networks in float64.

The default dtype of torch is left at float32 on purpose: a constant in the package that forgets its dtype then loses
digits here as it would in a user's program, and the oracles notice.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
os.environ["BNNDP_OFFLINE"] = "1"  # no test reaches for the network, nor for what a user has downloaded before
_cache = tempfile.TemporaryDirectory(prefix="bnndp-tests-")  # removed with the process
os.environ["XDG_CACHE_HOME"] = _cache.name

from support.browser import Browser, find_browser, open_browser  # noqa: E402 (after the environment is set)


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
