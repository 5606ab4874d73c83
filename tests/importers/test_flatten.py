"""Nested entries by flat names; cycles, entries that multiply and constraints of Pyro do no harm."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

from bnndp.errors import ModelFileError
from bnndp.importers.flatten import flat


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
    "a name that is none": ({(1, 2): torch.ones(1)}, r"the name \(1, 2\) is not text"),
    "sparse": ({"a": torch.ones(1).to_sparse()}, "only plain, dense numbers are read"),
    "complex": ({"a": torch.ones(1, dtype=torch.complex64)}, "only plain, dense numbers are read"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(case: str) -> None:
    found, words = BAD[case]
    with pytest.raises(ModelFileError, match=words):
        flat(found)
