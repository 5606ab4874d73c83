"""Nested entries by flat names; cycles, entries that multiply and constraints of Pyro do no harm."""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from support.foreign_states import RELUS

from bnndp.errors import ModelFileError
from bnndp.importers.build import posterior_of
from bnndp.importers.flatten import flat
from bnndp.importers.foreign import Choices, Foreign
from bnndp.importers.pickles import open_in_child, open_pickle
from bnndp.importers.prefixes import network_tensors
from bnndp.importers.prescan import expect_plain
from bnndp.importers.pyro_constraints import CONSTRAINTS, text_of
from bnndp.importers.registry import IMPORTERS, importer_for


def test_names_are_joined_by_dots() -> None:
    one = torch.ones(1)
    found = flat({"a": OrderedDict({"w.x": one}), "b": [one, {"c": (one, 2)}], 3: {"t": "text"}, "n": None})
    assert list(found.tensors) == ["a.w.x", "b.0", "b.1.c.0"]
    assert found.values == {"b.1.c.1": 2, "3.t": "text", "n": None}
    assert found.lists == {"b": 2, "b.1.c": 2}
    assert found.holders == ("a",)
    inner = found.below("b")
    assert (list(inner.tensors), inner.lists, inner.values) == (["0", "1.c.0"], {"": 2, "1.c": 2}, {"1.c.1": 2})


def _cycle() -> Any:
    found: list[Any] = [torch.ones(1)]
    found.append(found)
    return found


def _doubling() -> Any:
    found: list[Any] = [1.0]
    for _ in range(15):
        found = [found] * 8
    return found


BAD: dict[str, tuple[Any, str]] = {
    "a number": (3, "holds no named tensors but a int"),
    "nothing": ({}, "holds no named tensors but a dict"),
    "no tensors": ({"epoch": 3, "lr": [0.1]}, "it holds no tensors; its entries are 'epoch', 'lr'"),
    "a cycle": (_cycle(), "deeper than 16"),
    "entries that multiply": (_doubling(), "more than 50000 entries"),
    "one name twice": ({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, "two of its entries have the name 'a.b'"),
    "a name that is none": ({(1, 2): torch.ones(1)}, r"the name \(1, 2\) is no text"),
    "sparse": ({"a": torch.ones(1).to_sparse()}, "only plain, dense numbers are read"),
    "complex": ({"a": torch.ones(1, dtype=torch.complex64)}, "only plain, dense numbers are read"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(case: str) -> None:
    found, words = BAD[case]
    with pytest.raises(ModelFileError, match=words):
        flat(found)


def test_which_entry_is_the_network() -> None:
    state = {"0.weight": torch.ones(1, 2)}
    adam = {"state": {0: {"exp_avg": torch.ones(1)}}, "param_groups": [{"lr": 0.1}]}
    assert list(network_tensors(flat({"net": state, "opt": adam}))) == ["0.weight"]
    with pytest.raises(ModelFileError, match="give --key a or b"):
        network_tensors(flat({"a": state, "b": state}))
    with pytest.raises(ModelFileError, match="give --key net or scaler"):  # a layer of that name is not left out
        network_tensors(flat({"net": state, "scaler": {"weight": torch.ones(1, 1)}}))
    number = torch.tensor(0.5)
    assert list(network_tensors(flat({"net": state, "best": number, "losses": [number, number]}))) == ["0.weight"]
    with pytest.raises(ModelFileError, match=r"tensor 'spread.0' is not in the entry with the others; give --key net"):
        network_tensors(flat({"net": state, "spread": [torch.ones(1, 2)]}))  # without it the weights had no variance
    with pytest.raises(ModelFileError, match="several of its entries hold tensors; give --key net"):
        network_tensors(flat({"net": state, "log_std": torch.ones(2)}))
    with pytest.raises(ModelFileError, match="tensors of an optimiser and none of a network"):
        network_tensors(flat(adam))
    with pytest.raises(ModelFileError, match="give --key net or scaler"):
        importer_for(flat({"net": state, "scaler": {"weight": torch.ones(1, 1)}}))


def test_every_importer_answers_any_names() -> None:
    """By names alone: no file makes an importer fail before it is chosen."""
    strange = {"": torch.ones(1), ".": torch.ones(1), "..weight": torch.ones(1), "a\nb.rho_weight": torch.ones(1)}
    for foreign in (Foreign({}), Foreign(strange), flat([strange]), Foreign(strange, {"": None}, {"": 4}, ("x",))):
        for importer in IMPORTERS:
            assert importer.knows(foreign) in (True, False)
            with contextlib.suppress(ModelFileError):  # the only fault that there may be
                posterior_of(importer.read(foreign, Choices()), RELUS)
                raise AssertionError(f"{importer.name} made a network of that")


# Constraints of Pyro


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
    with pytest.raises(ModelFileError, match=r"it names 'torch.distributions.constraints._Simplex', which is no part"):
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
