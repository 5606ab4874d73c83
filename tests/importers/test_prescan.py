"""The scan of a pickle lets tensors through and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.foreign_states import three_linears

from bnndp.errors import ModelFileError
from bnndp.importers.prescan import expect_plain


def test_the_scan_lets_state_dicts_through(tmp_path: Path) -> None:
    parameters = {"w": torch.nn.Parameter(torch.ones(2)), "b": torch.ones(1).bfloat16()}
    for found in (
        three_linears(),
        parameters,
        {"model": three_linears(), "rate": 0.1, "steps": [1, 2**40], "none": None, "on": True},
    ):
        for zipped in (True, False):
            torch.save(found, tmp_path / "f", _use_new_zipfile_serialization=zipped)
            expect_plain((tmp_path / "f").read_bytes())


def test_the_scan_refuses_whole_modules(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(1, 1), tmp_path / "f")
    with pytest.raises(
        ModelFileError,
        match=r"it names 'torch\.nn\.modules\.linear\.Linear', which is not part of a tensor; save the state_dict\(\)",
    ):
        expect_plain((tmp_path / "f").read_bytes())
