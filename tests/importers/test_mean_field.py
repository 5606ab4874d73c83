"""Tables of names: values are those of each library's formula, bit for bit; what is not understood is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.foreign_states import LIBRARIES, RELUS, SETTINGS, ForeignState, dense, posterior, random_tensors, softplus
from torch import Tensor

import bnndp
from bnndp.errors import InputError, ModelFileError
from bnndp.files.posterior import read_model
from bnndp.importers.architecture import Architecture
from bnndp.importers.foreign import Choices, Foreign
from bnndp.importers.registry import IMPORTERS, importer_for
from bnndp.importers.tables import Row
from bnndp.network import BayesianNetwork

NAMES = sorted(LIBRARIES)
FIELDS = ("weight_mean", "weight_std", "bias_mean", "bias_std")


def check(network: object, case: ForeignState) -> None:
    """All values equal, bit for bit."""
    assert isinstance(network, BayesianNetwork)
    assert network.sizes == case.sizes
    for layer, wanted in zip(network.linears, case.layers.values(), strict=True):
        for field in FIELDS:
            assert torch.equal(getattr(layer, field), wanted[field]), field


@pytest.mark.parametrize(
    "seed",  # these have one to three layers, with and without biases, and a last layer of torch
    [0, 4, 6, 8, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20) if seed not in (0, 4, 6, 8))],
)
@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_library(name: str, seed: int) -> None:
    case = dense(LIBRARIES[name], seed, last_fixed=seed % 3 == 2 and seed > 5)
    random = any(bool((layer["weight_std"] > 0).any()) for layer in case.layers.values())
    if random:
        assert importer_for(Foreign(dict(case.state))).name == name
    check(bnndp.importers.from_tensors(case.state, importer=name, **SETTINGS), case)


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_each_library(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bnndp.cli.main import main

    case = dense(LIBRARIES[name], 1)
    source, out = tmp_path / "net", tmp_path / "m.safetensors"
    state = {f"module.{key}": value.clone() for key, value in case.state.items()}
    if name == "bayesian-torch":  # a pickle costs a process
        adam = {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
        torch.save({"epoch": 7, "best_prec1": 0.5, "state_dict": state, "optimizer": adam}, source)
    else:
        save_file(state, source)
    assert main(["convert", str(source), "-o", str(out), "--task", "regression", "--activation", "relu"]) == 0
    printed = capsys.readouterr().out
    assert f"read by {name}: " in printed
    assert "part.0: linear" in printed
    assert "std of the weights" in printed
    found = read_model(out)
    check(found.posterior, case)
    assert found.origin is not None
    assert found.origin["importer"] == name
    assert found.origin["layers"] == list(case.layers)


@pytest.mark.parametrize("start", ["module.", "model.", "net.", "_orig_mod.", "model._orig_mod.module.", ""])
def test_prefixes_that_all_names_share_are_cut_off(start: str) -> None:
    case = dense(LIBRARIES["torchbnn"], 3)
    given = {start + name: tensor for name, tensor in case.state.items()}
    check(bnndp.importers.from_tensors(given, **SETTINGS), case)
    names = tuple({"type": "linear", "name": start + name} for name in case.layers)  # as the user knows them
    layers = tuple(entry for name in names for entry in ({"type": "relu"}, name))[1:]
    check(bnndp.importers.from_tensors(given, Architecture("regression", layers=layers)), case)


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "whatever"])
def test_wrappers_of_checkpoints(key: str) -> None:
    case = dense(LIBRARIES["bayesian-cnn"], 3)
    adam = {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"params": [0]}]}
    for beside in ({}, {"optimizer": adam}, {"optimizer_states": [adam], "epoch": 1, "hyper": {"lr": 0.1}}):
        check(bnndp.importers.from_tensors({key: case.state, **beside}, **SETTINGS), case)


def test_a_checkpoint_of_lightning() -> None:
    case = dense(LIBRARIES["torch-uncertainty"], 3)
    adam = {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"params": [0]}]}
    checkpoint = {
        "epoch": 4,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {f"model.{name}": tensor for name, tensor in case.state.items()},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_k_models": torch.ones(2)}},
        "optimizer_states": [adam],
    }
    check(bnndp.importers.from_tensors(checkpoint, **SETTINGS), case)
    del checkpoint["pytorch-lightning_version"]
    with pytest.raises(ModelFileError, match="several of its entries hold tensors; give --key state_dict or callbacks"):
        bnndp.importers.from_tensors(checkpoint, **SETTINGS)


@pytest.mark.parametrize("name", NAMES)
def test_convolutions(name: str) -> None:
    library = LIBRARIES[name]
    torch.manual_seed(0)
    tensors = random_tensors(library, "conv", (2, 1, 3, 3), True) | random_tensors(library, "fc", (3, 8), True)
    layers = (
        {"type": "conv2d", "name": "conv", "stride": [1, 1], "padding": [0, 0]},
        {"type": "relu"},
        {"type": "flatten"},
        {"type": "linear", "name": "fc"},
    )
    found = bnndp.importers.from_tensors(tensors, Architecture("classification", layers=layers, input_shape=(1, 4, 4)))
    assert isinstance(found, BayesianNetwork)
    wanted = posterior(library, "conv", tensors)
    assert all(torch.equal(getattr(found.layers[0], field), wanted[field]) for field in FIELDS)
    with pytest.raises(ModelFileError, match="not a chain of dense layers; give --arch"):
        bnndp.importers.from_tensors(tensors, **SETTINGS)


# Traps, each by the library it is of


def single(name: str = "blitz", **changes: Tensor) -> dict[str, Tensor]:
    torch.manual_seed(2)
    found = random_tensors(LIBRARIES[name], "fc", (2, 3), True)
    return found | {key.replace("__", "."): value for key, value in changes.items()}


def read(tensors: dict[str, Tensor], **choices: Any) -> Any:
    foreign = Foreign(dict(tensors))
    return importer_for(foreign).read(foreign, Choices(**choices))


def test_stale_means_of_blitz_are_not_the_posterior() -> None:
    stale = single(fc__weight_mu=torch.full((2, 3), 9.0))
    found = read(stale)
    assert torch.equal(found.members[0]["fc.weight_mean"], stale["fc.weight_sampler.mu"].double())
    assert "fc.weight_mu differs from fc.weight_sampler.mu: the latter is the posterior and was read" in found.remarks
    assert not any("differs" in remark for remark in read(single()).remarks)


def test_biases_that_blitz_keeps_but_does_not_use() -> None:
    assert any("--no-bias" in remark for remark in read(single()).remarks)
    found = read(single(), bias=False)
    assert not found.members[0]["fc.bias_mean"].any()
    assert not found.members[0]["fc.bias_std"].any()
    assert torch.equal(found.members[0]["fc.weight_std"], read(single()).members[0]["fc.weight_std"])
    assert any("left out" in remark for remark in found.remarks)
    mixed = single() | {"last.weight": torch.ones(1, 2), "last.bias": torch.ones(1)}  # of torch, which keeps none idle
    assert read(mixed, bias=False).members[0]["last.bias_mean"].item() == 1


def test_sigma_of_torch_uncertainty_is_rho() -> None:
    found = read(single("torch-uncertainty"))
    wanted = softplus(single("torch-uncertainty")["fc.weight_sigma"])
    assert torch.equal(found.members[0]["fc.weight_std"], wanted)
    torn = single("torch-uncertainty", fc__weight_sampler__rho=torch.zeros(2, 3))
    with pytest.raises(ModelFileError, match=r"'fc.weight_sampler.rho' and 'fc.weight_sigma' must be the same"):
        read(torn)


def test_a_negative_sigma_is_refused() -> None:
    table = {"tensors": [{"name": "<layer>.m", "role": "weight_mean"}, {"name": "<layer>.s", "role": "weight_std"}]}
    with pytest.raises(ModelFileError, match=r"'fc.s' as standard deviation: \[0, 1\] is -7.0 .* must be >= 0"):
        bnndp.importers.from_tensors(
            {"fc.m": torch.zeros(1, 2), "fc.s": torch.tensor([[0.0, -7.0]])}, table=table, **SETTINGS
        )


@pytest.mark.parametrize(
    ("rho", "std"), [(100.0, 100.0), (1e4, 1e4), (-800.0, 0.0), (-40.0, math.log1p(math.exp(-40)))]
)
def test_softplus_neither_overflows_nor_loses_small_ones(rho: float, std: float) -> None:
    tensors = {"mu_weight": torch.zeros(1, 1), "rho_weight": torch.full((1, 1), rho)}
    assert bnndp.importers.from_tensors(tensors, **SETTINGS).linears[0].weight_std.item() == std


def test_exp_that_overflows_is_refused() -> None:
    tensors = {"weight_mu": torch.zeros(1, 1), "weight_log_sigma": torch.full((1, 1), 800.0)}
    with pytest.raises(ModelFileError, match=r"'weight_log_sigma': \[0, 0\] is 800.0 .* no finite exp"):
        bnndp.importers.from_tensors(tensors, **SETTINGS)


def test_the_draw_of_a_frozen_layer_is_not_used() -> None:
    frozen = single("torchbnn", fc__weight_eps=torch.ones(2, 3))
    assert torch.equal(read(frozen).members[0]["fc.weight_mean"], single("torchbnn")["fc.weight_mu"].double())


# What is not understood


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("part", ["weight", "bias"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_tensor_is_noticed(name: str, part: str, which: int) -> None:
    case = dense(LIBRARIES[name], 2)
    layer = next(layer for layer in case.layers if f"{layer}.{LIBRARIES[name].bias[0]}" in case.state)
    gone = f"{layer}.{getattr(LIBRARIES[name], part)[which]}"
    rest = {key: value for key, value in case.state.items() if key != gone}
    with pytest.raises(ModelFileError, match=r"a tensor is missing|which holds the posterior|lacks") as caught:
        bnndp.importers.from_tensors(rest, importer=name, **SETTINGS)
    assert layer in str(caught.value)


BAD: dict[str, tuple[dict[str, Tensor], str]] = {
    "a name more": (single() | {"fc.gamma": torch.ones(2)}, "'fc.gamma' is not known to blitz"),
    "batch norm": (
        single("torchbnn") | {"bn.running_mean": torch.ones(2)},
        "'bn.running_mean' is not known to torchbnn",
    ),
    "shapes that differ": (single("bayesian-torch", fc__rho_weight=torch.ones(3, 2)), r"shapes \(2, 3\) and \(3, 2\)"),
    "NaN": (
        single("bayesian-torch", fc__rho_bias=torch.tensor([0.0, torch.nan])),
        r"'fc.rho_bias' is not finite: \[1\]",
    ),
    "infinity": (single("bayesian-torch", fc__mu_bias=torch.tensor([torch.inf, 0.0])), r"is not finite: \[0\] is inf"),
    "whole numbers": (single("bayesian-torch", fc__mu_bias=torch.ones(2, dtype=torch.int64)), "dtype torch.int64"),
    "two libraries": (
        single("bayesian-torch") | single("torchbnn"),
        "known to several importers; choose --from bayesian",
    ),
    "both with and without variance": (
        single("bayesian-torch") | {"fc.weight": torch.ones(2, 3)},
        "a weight with and one without variance",
    ),
    "no library": (
        {"fc.w": torch.ones(2, 3)},
        "tensor 'fc.w' is known to no importer; if it is not a weight of the network, leave it out with --ignore fc.w",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_files_that_are_refused(case: str) -> None:
    tensors, words = BAD[case]
    with pytest.raises(ModelFileError, match=words):
        bnndp.importers.from_tensors(tensors, **SETTINGS)


def test_an_unused_choice_is_refused(tmp_path: Path) -> None:
    from bnndp.importers.convert import ConvertOptions, convert

    save_file(single("torchbnn"), tmp_path / "n.pt")
    (tmp_path / "t.toml").write_text("sites = []")
    for asked, option in (
        (ConvertOptions(scale_transform="exp"), "--scale-transform"),
        (ConvertOptions(beside=tmp_path / "n.pt"), "--beside"),
        (ConvertOptions(table=tmp_path / "t.toml"), "--table"),
        (ConvertOptions(bias=False), "--no-bias"),
    ):
        with pytest.raises(ModelFileError, match=f"read by torchbnn, which has no use for {option}"):
            convert(tmp_path / "n.pt", RELUS, options=asked)
    with pytest.raises(InputError, match="there is no importer 'tensorflow'; known: auto, bnndp"):
        convert(tmp_path / "n.pt", RELUS, options=ConvertOptions(importer="tensorflow"))
    with pytest.raises(ModelFileError, match="not known to blitz"):
        convert(tmp_path / "n.pt", RELUS, options=ConvertOptions(importer="blitz"))


def test_no_two_importers_have_one_name() -> None:
    assert len({importer.name for importer in IMPORTERS}) == len(IMPORTERS)
    assert all(set(importer.uses) <= {"scale_transform", "bias", "beside", "table", "ignore"} for importer in IMPORTERS)


# The user's own table

TABLE = """
tensors = [
  {name = "w_<layer>_loc", role = "weight_mean", layout = "in_out"},
  {name = "w_<layer>_logvar", role = "weight_std", transform = "exp_half", layout = "in_out"},
  {name = "b_<layer>_loc", role = "bias_mean"},
  {name = "b_<layer>_prec", role = "bias_std", transform = "rsqrt"},
  {name = "steps_<layer>", role = "unused"},
]
"""


def test_a_table_of_the_user(tmp_path: Path) -> None:
    from bnndp.importers.convert import ConvertOptions, convert

    torch.manual_seed(0)
    state: dict[str, Tensor] = {}
    for name, (n_in, n_out) in {"a": (3, 4), "b": (4, 2)}.items():
        state |= {f"w_{name}_loc": torch.randn(n_in, n_out), f"w_{name}_logvar": torch.randn(n_in, n_out)}
        state |= {f"b_{name}_loc": torch.randn(n_out), f"b_{name}_prec": torch.rand(n_out) + 1}
    state["steps_a"] = torch.tensor(3)
    save_file(state, tmp_path / "n.pt")
    (tmp_path / "t.toml").write_text(TABLE)
    found = convert(tmp_path / "n.pt", RELUS, options=ConvertOptions(table=tmp_path / "t.toml"))
    assert isinstance(found.posterior, BayesianNetwork)
    for name, layer in zip("ab", found.posterior.linears, strict=True):
        assert torch.equal(layer.weight_mean, state[f"w_{name}_loc"].double().T)
        assert torch.equal(layer.weight_std, torch.exp(0.5 * state[f"w_{name}_logvar"].double()).T)
        assert torch.equal(layer.bias_std, 1 / torch.sqrt(state[f"b_{name}_prec"].double()))
    assert found.origin is not None
    assert found.origin["table"]["file"] == "t.toml"
    assert "weight_std = exp_half(w_<layer>_logvar), transposed" in found.origin["formula"]


def test_kernels_of_keras_are_turned() -> None:
    kernel = torch.randn(3, 2, 1, 4)  # height, width, in, out
    turned = Row("<layer>.kernel", "weight", layout="in_out").value("c.kernel", kernel)
    assert turned.shape == (4, 1, 3, 2)
    assert turned[3, 0, 2, 1] == kernel[2, 1, 0, 3].double()


BAD_TABLES: dict[str, tuple[Any, str]] = {
    "no rows": ({"tensors": []}, "needs a list 'tensors' of rows"),
    "no list": ({"tensors": "x"}, "needs a list 'tensors' of rows"),
    "another key": ({"tensors": [{"name": "<layer>.a", "role": "weight"}], "hook": 1}, "unknown settings: 'hook'"),
    "no role": ({"tensors": [{"name": "<layer>.a"}]}, "row 0 of the table needs the texts 'name' and 'role'"),
    "unknown role": ({"tensors": [{"name": "<layer>.a", "role": "x"}]}, "has the role 'x'; known: weight_mean"),
    "no layer": ({"tensors": [{"name": "a", "role": "weight"}]}, "must have <layer> in it"),
    "unknown function": (
        {"tensors": [{"name": "<layer>.a", "role": "weight_std", "transform": "sin"}]},
        "transform 'sin'",
    ),
    "transform of a mean": (
        {"tensors": [{"name": "<layer>.a", "role": "weight_mean", "transform": "exp"}]},
        "is not a standard deviation",
    ),
    "another setting": ({"tensors": [{"name": "<layer>.a", "role": "weight", "x": "y"}]}, "unknown settings: 'x'"),
    "a copy of nothing": ({"tensors": [{"name": "<layer>.a", "role": "copy"}]}, "must say of which name"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables_are_refused(case: str) -> None:
    table, words = BAD_TABLES[case]
    with pytest.raises(ModelFileError, match=words):
        bnndp.importers.from_tensors({"fc.a": torch.ones(1, 1)}, table=table, **SETTINGS)
