"""Every importer answers any file."""

from __future__ import annotations

import contextlib

import torch
from support.foreign_states import RELUS

from bnndp.errors import ModelFileError
from bnndp.importers.build import posterior_of
from bnndp.importers.flatten import flat
from bnndp.importers.foreign import Choices, Foreign
from bnndp.importers.registry import IMPORTERS


def test_every_importer_answers_any_names() -> None:
    """By names alone: no file makes an importer fail before it is chosen."""
    strange = {"": torch.ones(1), ".": torch.ones(1), "..weight": torch.ones(1), "a\nb.rho_weight": torch.ones(1)}
    for foreign in (Foreign({}), Foreign(strange), flat([strange]), Foreign(strange, {"": None}, {"": 4}, ("x",))):
        for importer in IMPORTERS:
            assert importer.knows(foreign) in (True, False)
            with contextlib.suppress(ModelFileError):  # the only fault that there may be
                posterior_of(importer.read(foreign, Choices()), RELUS)
                raise AssertionError(f"{importer.name} made a network of that")
