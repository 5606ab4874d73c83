"""Constraints of Pyro come out of pickles as words, and their stubs do nothing."""

from __future__ import annotations

import importlib
import io
import pickle
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from bnndp.errors import ModelFileError
from bnndp.importers.pickles import open_in_child, open_pickle
from bnndp.importers.prescan import expect_plain
from bnndp.importers.pyro_constraints import CONSTRAINTS, text_of


def pickled(constraints: dict[str, Any]) -> bytes:
    """A file as ``ParamStore.save`` writes it, with the real classes of torch."""
    buffer = io.BytesIO()
    torch.save({"params": {"w": torch.ones(2)}, "constraints": constraints}, buffer)
    return buffer.getvalue()


@pytest.mark.usefixtures("no_child")
def test_constraints_come_as_words() -> None:
    real = torch.distributions.constraints
    found = {"a": real.real, "b": real.positive, "c": real.interval(0.0, 2.5), "d": real.real_vector}
    got = open_pickle(pickled(found), "f").foreign
    wanted = {"a": "real", "b": "greater_than 0.0", "c": "interval 0.0 2.5", "d": "real"}
    assert got.values == {f"constraints.{name}": text for name, text in wanted.items()}
    assert list(got.tensors) == ["params.w"]


def test_only_these_classes_are_let_through() -> None:
    with pytest.raises(ModelFileError, match=r"it names 'torch.distributions.constraints._Simplex', which is not part"):
        expect_plain(pickled({"a": torch.distributions.constraints.simplex}))
    for name in CONSTRAINTS:
        module, _, kind = name.rpartition(".")
        if module.startswith("torch"):
            assert isinstance(getattr(importlib.import_module(module), kind), type)


class _Odd:
    """Pickled as a constraint of our choice, made by a call with arguments, or with a state that is none."""

    def __init__(self, arguments: tuple[Any, ...], state: Any) -> None:
        self.parts = (type(torch.distributions.constraints.real), arguments, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


@pytest.mark.slow
def test_constraints_that_are_none_end_in_one_line() -> None:
    content = pickled({"a": _Odd((), 5)})
    expect_plain(content)
    with pytest.raises(ModelFileError, match="f: cannot be converted: torch cannot open it as plain tensors"):
        open_in_child(content, "f")


def test_stubs_can_do_nothing() -> None:
    for stub in CONSTRAINTS.values():
        assert [name for name in vars(stub) if not name.startswith("__")] == ["words"]
        found = stub()
        vars(found).update({"lower_bound": "x" * 99, "base_constraint": found, "__class__": int})
        text = text_of(found)
        assert text is None or len(text) < 60
    assert text_of(3) is None


def test_the_archive_is_what_torch_writes() -> None:
    """The recipe above makes the operations that a file of Pyro has: new objects and their states."""
    with zipfile.ZipFile(io.BytesIO(pickled({"a": torch.distributions.constraints.positive}))) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        operations = {operation.name for operation, _, _ in pickletools.genops(archive.read(name))}
    assert {"NEWOBJ", "BUILD"} <= operations
    assert pickle.DEFAULT_PROTOCOL >= 2
    assert Path(name).name == "data.pkl"
