"""Sets of samples become ensembles: lists of state_dicts, stacked arrays, several files; dropout by --arch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.foreign_states import LIBRARIES, RELUS, SETTINGS, dense
from support.site_states import SEEDS
from torch import Tensor, nn

import bnndp
from bnndp.errors import InputError, ModelFileError
from bnndp.files.posterior import load
from bnndp.importers.convert import ConvertOptions, convert
from bnndp.importers.flatten import flat
from bnndp.importers.foreign import Choices
from bnndp.importers.registry import importer_for
from bnndp.network import Ensemble


def network(seed: int, *sizes: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.ReLU(), nn.Linear(sizes[1], sizes[2]))


def states(count: int, seed: int = 0) -> list[dict[str, Tensor]]:
    return [dict(network(seed + index, 3, 4, 2).state_dict()) for index in range(count)]


def check(posterior: object, wanted: list[dict[str, Tensor]]) -> None:
    assert isinstance(posterior, Ensemble)
    assert len(posterior.members) == len(wanted)
    for member, state in zip(posterior.members, wanted, strict=True):
        for layer, name in zip(member.linears, ("0", "2"), strict=True):
            assert torch.equal(layer.weight_mean, state[f"{name}.weight"].double())
            assert torch.equal(layer.bias_mean, state[f"{name}.bias"].double())
            assert not layer.random


def stacked(wanted: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([state[name] for state in wanted]) for name in wanted[0]}


@pytest.mark.parametrize("seed", SEEDS)
def test_lists_and_stacks_are_the_same_ensemble(seed: int) -> None:
    wanted = states(2 + seed % 4, seed)
    check(bnndp.importers.from_samples(wanted, **SETTINGS), wanted)
    check(bnndp.importers.from_samples(stacked(wanted), **SETTINGS), wanted)
    for found in (flat(wanted), flat({"samples": wanted, "accepted": 0.8}), flat(stacked(wanted))):
        assert importer_for(found).name == "samples"
        assert len(importer_for(found).read(found, Choices()).members) == len(wanted)


def test_the_mean_of_an_ensemble_is_that_of_its_members() -> None:
    modules = [network(seed, 3, 4, 2) for seed in range(5)]
    found = bnndp.importers.from_samples([module.state_dict() for module in modules], **SETTINGS)
    x = torch.randn(7, 3)
    exact = torch.stack([module(x) for module in modules]).mean(0).detach().double()
    got = torch.stack([_run(member, x.double()) for member in found.members]).mean(0)
    assert torch.allclose(got, exact, atol=1e-5)
    inside = bnndp.certify(found, bnndp.Box.ball(x.double(), eps=0.0))
    assert bool(((inside.lower <= got + 1e-9) & (got - 1e-9 <= inside.upper)).all())


def _run(member: Any, x: Tensor) -> Tensor:
    first, last = member.linears
    return (x @ first.weight_mean.T + first.bias_mean).clamp_min(0) @ last.weight_mean.T + last.bias_mean


def test_weights_of_samples(tmp_path: Path) -> None:
    wanted = states(3)
    shares = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    check(bnndp.importers.from_samples(wanted, weights=shares, **SETTINGS), wanted)
    save_file(stacked(wanted) | {"weights": shares}, tmp_path / "f")
    found = convert(tmp_path / "f", RELUS).posterior
    check(found, wanted)
    assert isinstance(found, Ensemble)
    assert torch.equal(found.probabilities, shares)
    with pytest.raises(InputError, match="weights"):
        bnndp.importers.from_samples(wanted, weights=torch.ones(2), **SETTINGS)
    with pytest.raises(InputError, match="weights"):
        bnndp.importers.from_samples(wanted[:1], weights=torch.ones(2), **SETTINGS)


def test_a_mixture_of_gaussian_networks() -> None:
    case = [dense(LIBRARIES["torchbnn"], 5) for _ in range(2)]
    found = bnndp.importers.from_samples([each.state for each in case], **SETTINGS)
    assert isinstance(found, Ensemble)
    assert found.random
    assert importer_for(flat([each.state for each in case])).name == "samples"


@pytest.mark.usefixtures("no_child")
def test_pickles_of_lists_and_several_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bnndp.cli.main import main

    wanted = states(3)
    torch.save(wanted, tmp_path / "all.pt")
    check(convert(tmp_path / "all.pt", RELUS).posterior, wanted)
    names = []
    for index, state in enumerate(wanted):
        names.append(str(tmp_path / f"{index}.safetensors"))
        save_file(state, names[-1])
    command = ["convert", *names, "-o", str(tmp_path / "m.safetensors")]
    assert main([*command, "--task", "regression", "--activation", "relu"]) == 0
    assert "Ensemble(3 x BayesianNetwork(3-4-2, regression))" in capsys.readouterr().out
    check(load(tmp_path / "m.safetensors"), wanted)
    save_file(dense(LIBRARIES["torchbnn"], 1).state, tmp_path / "odd")
    with pytest.raises(ModelFileError, match="these files are read by state_dict, torchbnn, not by one"):
        convert([names[0], tmp_path / "odd"], RELUS)
    save_file(dict(network(0, 3, 5, 1).state_dict()), tmp_path / "other")
    with pytest.raises(ModelFileError, match="member 1 has n_out 1, but member 0 has 2"):
        convert([names[0], tmp_path / "other"], RELUS)
    with pytest.raises(InputError, match="is a whole model; convert it alone"):
        convert([names[0], tmp_path / "m.safetensors"], RELUS)


def test_samples_that_differ_are_refused() -> None:
    wanted = states(3)
    wanted[1] = {name: tensor for name, tensor in wanted[1].items() if name != "2.bias"}
    found = flat(wanted)
    with pytest.raises(ModelFileError, match=r"sample 1 has other tensors than sample 0: '2.bias'"):
        importer_for(found).read(found, Choices())
    uneven = stacked(states(3))
    uneven["2.bias"] = uneven["2.bias"][:2]
    with pytest.raises(ModelFileError, match="must have the same number of samples"):
        bnndp.importers.from_samples(uneven, **SETTINGS)
    for found in (flat(states(2)), flat(stacked(states(2)))):
        with pytest.raises(ModelFileError, match="read by state_dict, which has no use for --no-bias"):
            importer_for(found).read(found, Choices(bias=False))
    with pytest.raises(InputError, match="no samples"):
        bnndp.importers.from_samples([], **SETTINGS)


def test_one_dimensional_kernels_are_not_taken_for_samples() -> None:
    with pytest.raises(ModelFileError, match="not a chain of dense layers"):
        bnndp.importers.from_tensors({"conv.weight": torch.ones(4, 2, 3)}, **SETTINGS)
    with pytest.raises(ModelFileError, match="not a chain of dense layers"):
        bnndp.importers.from_tensors({"conv.weight": torch.ones(4, 2, 3), "conv.bias": torch.ones(4)}, **SETTINGS)


def test_arrays_of_numpy(tmp_path: Path) -> None:
    wanted = states(4)
    arrays = {name: tensor.numpy() for name, tensor in stacked(wanted).items()}
    np.savez(tmp_path / "f.npz", **arrays)
    check(convert(tmp_path / "f.npz", RELUS).posterior, wanted)
    np.savez_compressed(tmp_path / "g.npz", **{name: array.astype(">f8") for name, array in arrays.items()})
    check(convert(tmp_path / "g.npz", RELUS).posterior, wanted)
    np.savez(tmp_path / "one.npz", **{name: array[0] for name, array in arrays.items()})
    assert convert(tmp_path / "one.npz", RELUS).posterior.n_in == 3
    np.save(tmp_path / "weight.npy", np.ones((1, 2)))
    assert repr(convert(tmp_path / "weight.npy", RELUS).posterior) == "BayesianNetwork(2-1, regression)"
    with pytest.raises(InputError, match="leave out --key"):
        convert(tmp_path / "f.npz", RELUS, options=ConvertOptions(key="a"))
