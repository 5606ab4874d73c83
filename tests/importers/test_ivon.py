"""IVON: deviations by the formula, bit for bit; an optimiser that is not the network's is noticed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.foreign_states import RELUS, SETTINGS
from support.site_states import SEEDS
from torch import Tensor, nn

import bnndp
from bnndp.errors import ModelFileError
from bnndp.importers.build import posterior_of
from bnndp.importers.convert import ConvertOptions, convert
from bnndp.importers.flatten import flat
from bnndp.importers.foreign import Choices
from bnndp.importers.registry import importer_for
from bnndp.network import BayesianNetwork

State = dict[str, Any]


def network(seed: int) -> nn.Sequential:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    sizes = [draw.randint(1, 5) for _ in range(draw.randint(2, 4))]
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out, bias=draw.random() < 0.7), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def optimiser(parameters: list[list[Tensor]], seed: int = 0) -> State:
    """The state of an IVON optimiser with these groups of parameters."""
    torch.manual_seed(seed)
    groups: list[dict[str, Any]] = []
    count = 0
    for group in parameters:
        size = sum(tensor.numel() for tensor in group)
        settings = {"lr": 0.1, "ess": 50 + 10 * len(groups), "weight_decay": 1e-4 * (1 + len(groups)), "numel": size}
        numbers = {"momentum": torch.randn(size), "hess": torch.rand(size) + 0.01}
        groups.append(settings | numbers | {"params": list(range(count, count + len(group)))})
        count += len(group)
    return {"state": {"count": 0, "avg_grad": None, "avg_nxg": None, "avg_gsq": None}, "param_groups": groups}


def wanted(state: State, index: int = 0) -> Tensor:
    """The formula of the library, in float64."""
    group = state["param_groups"][index]
    return 1 / (group["ess"] * (group["hess"].double() + group["weight_decay"])).sqrt()


@pytest.mark.parametrize("seed", SEEDS)
def test_values_are_those_of_the_formula(seed: int) -> None:
    module = network(seed)
    state = optimiser([list(module.parameters())], seed)
    found = bnndp.importers.from_ivon(module, state, **SETTINGS)
    assert isinstance(found, BayesianNetwork)
    linears = [part for part in module if isinstance(part, nn.Linear)]
    flat_std = []
    for layer, part in zip(found.linears, linears, strict=True):
        assert torch.equal(layer.weight_mean, part.weight.detach().double())
        flat_std.append(layer.weight_std.flatten())
        if part.bias is None:
            assert not layer.bias_std.any()
        else:
            assert torch.equal(layer.bias_mean, part.bias.detach().double())
            flat_std.append(layer.bias_std)
    assert torch.equal(torch.cat(flat_std), wanted(state))


@pytest.mark.usefixtures("no_child")
def test_one_checkpoint_or_two_files(tmp_path: Path) -> None:
    module = network(1)
    state = optimiser([list(module.parameters())])
    digest = bnndp.importers.from_ivon(module.state_dict(), state, **SETTINGS).digest()
    both = flat({"model": module.state_dict(), "optimizer": state, "epoch": 3})
    assert posterior_of(importer_for(both).read(both, Choices()), RELUS).digest() == digest
    torch.save(state, tmp_path / "opt.pt")
    np.savez(tmp_path / "model.npz", **{name: tensor.numpy() for name, tensor in module.state_dict().items()})
    two = convert(tmp_path / "opt.pt", RELUS, options=ConvertOptions(beside=tmp_path / "model.npz"))
    assert two.posterior.digest() == digest
    assert two.origin is not None
    assert two.origin["importer"] == "ivon"
    assert two.origin["beside"]["file"] == "model.npz"
    assert any("outside of sampled_params" in remark for remark in two.origin["remarks"])
    foreign = flat(state)
    with pytest.raises(ModelFileError, match="none of a network; give the state_dict of the network by --beside"):
        importer_for(foreign).read(foreign, Choices())


def test_a_network_whose_tensors_have_no_order_is_refused() -> None:
    """In a safetensors file a bias comes before its weight, and a wrong one of two vectors of one size is not seen."""
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    foreign, beside = flat(optimiser([list(module.parameters())])), replace(flat(module.state_dict()), ordered=False)
    with pytest.raises(ModelFileError, match="are in no order, as those of all safetensors files"):
        importer_for(foreign).read(foreign, Choices(beside=beside))
    with pytest.raises(ModelFileError, match="are in no order"):  # as load_file of safetensors gives them
        bnndp.importers.from_ivon(
            dict(sorted(module.state_dict().items())), optimiser([list(module.parameters())]), **SETTINGS
        )
    names = {"parameters": list(module.state_dict())}
    told = importer_for(foreign).read(foreign, Choices(beside=beside, table=names))
    sure = importer_for(foreign).read(foreign, Choices(beside=flat(module.state_dict())))
    assert all(torch.equal(told.members[0][name], value) for name, value in sure.members[0].items())


def test_several_groups_need_the_names() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3))
    parts = [list(module[2].parameters()), list(module[0].parameters())]  # the other way round
    state = optimiser(parts)
    with pytest.raises(ModelFileError, match="order is ambiguous; give --table with parameters"):
        bnndp.importers.from_ivon(module, state, **SETTINGS)
    found = bnndp.importers.from_ivon(
        module, state, parameters=["2.weight", "2.bias", "0.weight", "0.bias"], **SETTINGS
    )
    assert isinstance(found, BayesianNetwork)
    first, last = found.linears
    assert torch.equal(torch.cat([last.weight_std.flatten(), last.bias_std]), wanted(state, 0))
    assert torch.equal(torch.cat([first.weight_std.flatten(), first.bias_std]), wanted(state, 1))


def test_what_was_not_trained_has_no_variance() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    state = optimiser([list(module[2].parameters())])
    foreign, beside = flat(state), flat(module.state_dict())
    with pytest.raises(ModelFileError, match="2 parameters in 1 groups, the network 4 tensors"):
        importer_for(foreign).read(foreign, Choices(beside=beside))
    found = importer_for(foreign).read(foreign, Choices(beside=beside, table={"parameters": ["2.weight", "2.bias"]}))
    assert not found.members[0]["0.weight_std"].any()
    assert found.members[0]["2.weight_std"].all()
    assert any("without variance: 0.weight, 0.bias" in remark for remark in found.remarks)


def _set(path: tuple[Any, ...], value: object) -> Callable[[State], None]:
    def change(state: State) -> None:
        place: Any = state
        for part in path[:-1]:
            place = place[part]
        if value is None:
            del place[path[-1]]
        else:
            place[path[-1]] = value

    return change


GROUP = ("param_groups", 0)
BAD: dict[str, tuple[Callable[[State], None], str]] = {
    "too few curvatures": (_set((*GROUP, "hess"), torch.ones(12)), "this network is not the optimiser's"),
    "no curvature": (_set((*GROUP, "hess"), torch.zeros(13)), ""),
    "negative": (_set((*GROUP, "hess"), torch.full((13,), -1.0)), "has no finite rsqrt"),
    "NaN": (_set((*GROUP, "hess"), torch.full((13,), torch.nan)), "is not finite"),
    "no ess": (_set((*GROUP, "ess"), None), "lacks one of hess, params, ess and weight_decay"),
    "ess a text": (_set((*GROUP, "ess"), "many"), "lacks one of"),
    "ess zero": (_set((*GROUP, "ess"), 0.0), "expected > 0"),
    "decay infinite": (_set((*GROUP, "weight_decay"), torch.inf), "expected > 0, >= 0"),
    "no params": (_set((*GROUP, "params"), None), "lacks one of"),
    "fewer params": (_set((*GROUP, "params"), [0, 1, 2]), "order is ambiguous"),
}


@pytest.mark.parametrize("case", BAD)
def test_states_that_are_refused(case: str) -> None:
    change, words = BAD[case]
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    state = optimiser([list(module.parameters())])
    change(state)
    if not words:  # the weight decay alone is a prior
        assert bnndp.importers.from_ivon(module, state, **SETTINGS).linears[0].weight_std.max() > 1
        return
    with pytest.raises(ModelFileError, match=words):
        bnndp.importers.from_ivon(module, state, **SETTINGS)


def test_a_checkpoint_with_ivon_is_never_read_as_weights_alone() -> None:
    module = network(3)
    foreign = flat({"model": module.state_dict(), "optimizer": optimiser([list(module.parameters())])})
    assert importer_for(foreign).name == "ivon"
