"""Weights that lie as (inputs, outputs) are refused with the setting that would make them fit, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.foreign_states import RELUS, SAID
from torch import Tensor

import bnndp
from bnndp.errors import CertError
from bnndp.importers.convert import ConvertOptions, convert

ROWS = [
    {"name": "<layer>.m", "role": "weight_mean"},
    {"name": "<layer>.s", "role": "weight_std"},
    {"name": "<layer>.b", "role": "bias"},
]
ADVICE = 'say layout = "in_out" of the weights by --table'


def state(*sizes: int, names: str = "ab", turned: bool = True) -> dict[str, Tensor]:
    torch.manual_seed(0)
    found: dict[str, Tensor] = {}
    for name, n_in, n_out in zip(names, sizes, sizes[1:], strict=False):
        shape = (n_in, n_out) if turned else (n_out, n_in)
        found |= {f"{name}.m": torch.randn(shape), f"{name}.s": torch.rand(shape), f"{name}.b": torch.randn(n_out)}
    return found


@pytest.mark.parametrize("sizes", [(2, 8, 1), (3, 4)])
def test_a_table_that_lacks_the_layout(sizes: tuple[int, ...]) -> None:
    with pytest.raises(CertError) as caught:
        bnndp.importers.from_tensors(state(*sizes), table={"tensors": ROWS}, **SAID)
    assert ADVICE in str(caught.value)
    rows = [row | ({"layout": "in_out"} if row["role"].startswith("weight") else {}) for row in ROWS]
    network = bnndp.importers.from_tensors(state(*sizes), table={"tensors": rows}, **SAID)
    assert (network.n_in, network.n_out) == (sizes[0], sizes[-1])


def test_a_file_without_order(tmp_path: Path) -> None:
    save_file(state(2, 8, 1, names="xa"), tmp_path / "n.safetensors")
    (tmp_path / "t.json").write_text(str({"tensors": ROWS}).replace("'", '"'))
    with pytest.raises(CertError) as caught:
        convert(tmp_path / "n.safetensors", RELUS, options=ConvertOptions(table=tmp_path / "t.json"))
    assert ADVICE in str(caught.value)


def test_no_advice_where_it_would_not_help() -> None:
    broken = state(2, 8, 1, turned=False) | {"b.m": torch.ones(1, 5), "b.s": torch.ones(1, 5)}
    with pytest.raises(CertError) as caught:
        bnndp.importers.from_tensors(broken, table={"tensors": ROWS}, **SAID)
    assert "layout" not in str(caught.value)


def test_a_site_whose_name_says_the_other_layout() -> None:
    locs = {"0.weight": torch.ones(2, 8), "0.bias": torch.ones(8)}
    guide = {f"{kind}.{name}_unconstrained": value for kind in ("locs", "scales") for name, value in locs.items()}
    with pytest.raises(CertError, match=r'they would as \(inputs, outputs\): say layout = "in_out" by --table'):
        bnndp.importers.from_pyro(guide, scale_transform="exp", **SAID)
