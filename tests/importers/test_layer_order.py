"""Weights that lie as (inputs, outputs) are refused with the setting that would make them fit, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.foreign_states import RELUS, SETTINGS
from torch import Tensor

from bnndp.errors import CertError, ModelFileError
from bnndp.importers import from_pyro, from_tensors
from bnndp.importers.architecture import Architecture
from bnndp.importers.convert import ConvertOptions, convert
from bnndp.network import BayesianNetwork

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
    with pytest.raises(CertError, match=ADVICE):
        from_tensors(state(*sizes), table={"tensors": ROWS}, **SETTINGS)
    rows = [row | ({"layout": "in_out"} if row["role"].startswith("weight") else {}) for row in ROWS]
    network = from_tensors(state(*sizes), table={"tensors": rows}, **SETTINGS)
    assert (network.n_in, network.n_out) == (sizes[0], sizes[-1])


def test_a_file_without_order(tmp_path: Path) -> None:
    save_file(state(2, 8, 1, names="xa"), tmp_path / "n.safetensors")
    (tmp_path / "t.json").write_text(str({"tensors": ROWS}).replace("'", '"'))
    with pytest.raises(CertError, match=ADVICE):
        convert(tmp_path / "n.safetensors", RELUS, options=ConvertOptions(table=tmp_path / "t.json"))


def test_no_advice_where_it_would_not_help() -> None:
    broken = state(2, 8, 1, turned=False) | {"b.m": torch.ones(1, 5), "b.s": torch.ones(1, 5)}
    with pytest.raises(CertError) as caught:
        from_tensors(broken, table={"tensors": ROWS}, **SETTINGS)
    assert "layout" not in str(caught.value)


def test_a_site_whose_name_says_the_other_layout() -> None:
    locs = {"0.weight": torch.ones(2, 8), "0.bias": torch.ones(8)}
    guide = {f"{kind}.{name}_unconstrained": value for kind in ("locs", "scales") for name, value in locs.items()}
    with pytest.raises(CertError, match=r'they would as \(inputs, outputs\): say layout = "in_out" by --table'):
        from_pyro(guide, scale_transform="exp", **SETTINGS)


def test_layers_of_a_safetensors_file_are_not_in_its_order(tmp_path: Path) -> None:
    """Its tensors are sorted by name, 10 before 2: of layers of one size nothing else would tell."""
    torch.manual_seed(0)
    modules = [module for _ in range(7) for module in (torch.nn.Linear(2, 2), torch.nn.ReLU())][:-1]
    tensors = torch.nn.Sequential(*modules).state_dict()
    save_file(tensors, tmp_path / "f.safetensors")
    found = convert(tmp_path / "f.safetensors", RELUS).posterior
    assert isinstance(found, BayesianNetwork)
    for layer, index in zip(found.linears, range(0, 14, 2), strict=True):
        assert torch.equal(layer.weight_mean, tensors[f"{index}.weight"].double())


def test_a_mapping_that_was_sorted_by_name_is_noticed(tmp_path: Path) -> None:
    tensors = {f"{index}.weight": torch.randn(2, 2) for index in range(12)}
    save_file(tensors, tmp_path / "f.safetensors")
    words = "come in the order 0, 1, 10, 11, 2, 3, which is not that of their numbers"
    with pytest.raises(ModelFileError, match=words):
        from_tensors(load_file(tmp_path / "f.safetensors"), **SETTINGS)
    assert from_tensors(tensors, **SETTINGS).digest() == convert(tmp_path / "f.safetensors", RELUS).posterior.digest()


def test_an_order_that_is_not_sure_is_refused(tmp_path: Path) -> None:
    sizes = {"input": (3, 4), "hidden": (4, 4), "output": (4, 1)}
    tensors = {f"{name}.weight": torch.randn(n_out, n_in) for name, (n_in, n_out) in sizes.items()}
    save_file(tensors, tmp_path / "f.safetensors")
    found = convert(tmp_path / "f.safetensors", RELUS)
    assert found.posterior.digest() == from_tensors(tensors, **SETTINGS).digest()
    assert found.origin is not None
    assert found.origin["layers"] == list(sizes)
    save_file(tensors | {"more.weight": torch.ones(4, 4)}, tmp_path / "f.safetensors")
    words = r"keeps no order of its layers, .* fit in more than one order; give --arch"
    with pytest.raises(ModelFileError, match=words):
        convert(tmp_path / "f.safetensors", RELUS)
    layers = [{"type": "linear", "name": name} for name in ("input", "more", "hidden", "output")]
    assert convert(tmp_path / "f.safetensors", Architecture("regression", layers=tuple(layers))).posterior.n_out == 1
    save_file(tensors | {"more.weight": torch.ones(5, 5)}, tmp_path / "f.safetensors")
    with pytest.raises(ModelFileError, match="fit in no order"):
        convert(tmp_path / "f.safetensors", RELUS)
