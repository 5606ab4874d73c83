"""Guides of Pyro and TyXe: values are those of the formula, bit for bit; what is not sure is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.foreign_states import RELUS, SETTINGS
from support.site_states import (
    SEEDS,
    Sites,
    check_independent,
    covariance,
    random_sites,
    random_sizes,
    table_of,
    vector,
)
from torch import Tensor
from torch.distributions import constraints

import bnndp
from bnndp.cli.main import main
from bnndp.errors import InputError, ModelFileError
from bnndp.files.posterior import load, read_model
from bnndp.importers.convert import ConvertOptions, convert
from bnndp.importers.flatten import flat
from bnndp.importers.foreign import Choices, Foreign
from bnndp.importers.gaussian import REAL_PRIORS
from bnndp.importers.pyro import PYRO, TYXE
from bnndp.importers.registry import importer_for
from bnndp.layers import CorrelatedLinear

RAW = "_unconstrained"


def softplus(value: Tensor) -> Tensor:
    return torch.log1p(torch.exp(value.double()))


def exp(value: Tensor) -> Tensor:
    return torch.exp(value.double())


def auto_normal(locs: Sites, scales: Sites, start: str = "") -> dict[str, Tensor]:
    """The state_dict of a guide."""
    return {f"locs.{start}{n}{RAW}": v for n, v in locs.items()} | {
        f"scales.{start}{n}{RAW}": v for n, v in scales.items()
    }


def store(locs: Sites, scales: Sites, constraint: str) -> Foreign:
    """A ParamStore as it is read from a file."""
    params = {f"params.AutoNormal.locs.{name}": value for name, value in locs.items()}
    params |= {f"params.AutoNormal.scales.{name}": value for name, value in scales.items()}
    said = {f"constraints.AutoNormal.locs.{name}": "real" for name in locs}
    return Foreign(params, said | {f"constraints.AutoNormal.scales.{name}": constraint for name in scales})


def pair(seed: int) -> tuple[Sites, Sites]:
    sizes = random_sizes(seed)
    return random_sites(sizes, seed), random_sites(sizes, seed + 1000, start=-4.0)


def read(foreign: Foreign, **choices: object) -> dict[str, Tensor]:
    return importer_for(foreign).read(foreign, Choices(**choices)).members[0]  # type: ignore[arg-type]


# AutoNormal


@pytest.mark.parametrize("seed", SEEDS)
def test_the_state_of_a_guide_has_softplus_scales(seed: int) -> None:
    locs, raw = pair(seed)
    state = auto_normal(locs, raw, start="net." if seed % 2 else "")
    assert importer_for(flat(state)).name == "pyro"
    check_independent(
        bnndp.importers.from_pyro(state, **SETTINGS), locs, {name: softplus(value) for name, value in raw.items()}
    )
    check_independent(
        bnndp.importers.from_pyro(state, scale_transform="exp", **SETTINGS),
        locs,
        {name: exp(value) for name, value in raw.items()},
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("constraint", "scale"),
    [
        ("softplus_positive", softplus),
        ("greater_than 0.0", exp),
        ("interval 0.0 0.25", lambda value: 0.25 * torch.sigmoid(value.double())),
    ],
)
def test_a_store_says_how_its_scales_are_made(constraint: str, scale: object, seed: int) -> None:
    locs, raw = pair(seed)
    foreign = store(locs, raw, constraint)
    found = importer_for(foreign).read(foreign, Choices())
    assert found.remarks == (REAL_PRIORS,)  # nothing is assumed of the scales
    for name, value in raw.items():
        assert torch.equal(found.members[0][f"{name}_mean"], locs[name].double())
        assert torch.equal(found.members[0][f"{name}_std"], scale(value))  # type: ignore[operator]


def test_the_assumed_transform_is_stated() -> None:
    locs, raw = pair(0)
    found = PYRO.read(flat(auto_normal(locs, raw)), Choices())
    assert "softplus" in found.formula
    assert found.remarks[0].startswith("scales are read by softplus, as Pyro has it since 1.7; the file does not say")
    chosen = PYRO.read(flat(auto_normal(locs, raw)), Choices(scale_transform="exp"))
    assert chosen.remarks == (REAL_PRIORS,)
    assert chosen.formula == "mean = loc, std = exp(value)"


def test_large_values_do_not_overflow() -> None:
    state = {"locs.0.weight" + RAW: torch.ones(1, 1), "scales.0.weight" + RAW: torch.full((1, 1), 2e4)}
    assert bnndp.importers.from_pyro(state, **SETTINGS).linears[0].weight_std.item() == 2e4  # type: ignore[union-attr]
    with pytest.raises(ModelFileError, match="has no finite exp"):
        bnndp.importers.from_pyro(state, scale_transform="exp", **SETTINGS)


@pytest.mark.usefixtures("no_child")
def test_a_file_of_an_old_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the networks of the paper were saved: with the constraint of Pyro up to 1.6."""
    locs, raw = pair(5)
    params = {f"AutoNormal.locs.{name}": value for name, value in locs.items()}
    params |= {f"AutoNormal.scales.{name}": value for name, value in raw.items()}
    kinds = {name: constraints.real if ".locs." in name else constraints.positive for name in params}
    torch.save({"params": params, "constraints": kinds}, tmp_path / "params.pt")
    command = ["convert", str(tmp_path / "params.pt"), "-o", str(tmp_path / "m.safetensors")]
    assert main([*command, "--task", "regression", "--activation", "relu"]) == 0
    assert "exp(value)" in capsys.readouterr().out
    found = read_model(tmp_path / "m.safetensors")
    check_independent(found.posterior, locs, {name: exp(value) for name, value in raw.items()})
    assert found.origin is not None
    assert found.origin["importer"] == "pyro"


@pytest.mark.parametrize("name", ["sine1d_1x256", "mnist_2x64_vogn"])
def test_the_published_networks(posteriors: Path, name: str) -> None:
    """Sealed files are read as ever; a store with the same scales gives them back, up to the float32 of the files."""
    network = load(posteriors / f"{name}.safetensors")
    assert convert(posteriors / f"{name}.safetensors").posterior.digest() == network.digest()
    assert isinstance(network, bnndp.BayesianNetwork)
    locs, raw = {}, {}
    for index, layer in enumerate(network.linears):
        for part in ("weight", "bias"):
            locs[f"{2 * index}.{part}"] = getattr(layer, f"{part}_mean").float()
            raw[f"{2 * index}.{part}"] = getattr(layer, f"{part}_std").log().float()
    tensors = read(store(locs, raw, "greater_than 0.0"))
    for index, layer in enumerate(network.linears):
        for part in ("weight", "bias"):
            assert torch.equal(tensors[f"{2 * index}.{part}_mean"], getattr(layer, f"{part}_mean"))
            std = getattr(layer, f"{part}_std")
            # the logarithm, of up to 10, was rounded to float32
            assert bool(((tensors[f"{2 * index}.{part}_std"] - std).abs() <= 1e-6 * std).all())


# TyXe


@pytest.mark.parametrize("seed", SEEDS)
def test_tyxe_has_exp(seed: int) -> None:
    locs, raw = pair(seed)
    state: dict[str, Tensor] = {}
    for name in locs:
        state |= {f"net.{name}.loc{RAW}": locs[name], f"net.{name}.scale{RAW}": raw[name]}
    assert importer_for(flat(state)).name == "tyxe"
    check_independent(
        bnndp.importers.from_pyro(state, **SETTINGS), locs, {name: exp(value) for name, value in raw.items()}
    )
    most = bnndp.importers.from_pyro(state, scale_transform="sigmoid 0.1", **SETTINGS)
    check_independent(most, locs, {name: 0.1 * torch.sigmoid(value.double()) for name, value in raw.items()})
    assert "max_guide_scale" in TYXE.read(flat(state), Choices()).remarks[0]


# One vector for all sites


@pytest.mark.parametrize("seed", SEEDS)
def test_a_diagonal_vector_in_the_order_of_the_table(seed: int) -> None:
    locs, raw = pair(seed)
    table = table_of(locs)
    state = {"loc": vector(locs), "scale" + RAW: vector(raw)}
    assert importer_for(flat(state)).name == "pyro"
    check_independent(
        bnndp.importers.from_pyro(state, table=table, **SETTINGS),
        locs,
        {name: softplus(value) for name, value in raw.items()},
    )
    with pytest.raises(ModelFileError, match=r"one vector of .* values for all sites and does not say which is where"):
        bnndp.importers.from_pyro(state, **SETTINGS)
    table["sites"] = table["sites"][:-1]  # type: ignore[index]
    with pytest.raises(ModelFileError, match=r"the sites of the table have \d+ values, the vector of the file has \d+"):
        bnndp.importers.from_pyro(state, table=table, **SETTINGS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_full_covariance_of_one_layer(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sites = random_sites(random_sizes(3 * seed)[:2], seed)  # one layer
    n = len(vector(sites))
    raw, tril = torch.randn(n, generator=generator), torch.randn(n, n, generator=generator)
    state = {"loc": vector(sites), "scale" + RAW: raw, "scale_tril" + RAW: tril}
    layer = bnndp.importers.from_pyro(state, table=table_of(sites), **SETTINGS).layers[0]  # type: ignore[union-attr]
    assert isinstance(layer, CorrelatedLinear)
    lower = softplus(raw)[:, None] * (tril.double().tril(-1) + torch.eye(n).double())
    assert torch.equal(layer.weight_mean, sites["0.weight"].double())
    size = sites["0.weight"].numel()
    assert torch.equal(layer.factor[:, :-1].flatten(0, 1), lower[:size])
    assert torch.equal(layer.factor[:, -1], lower[size:])
    torch.testing.assert_close(covariance(layer), lower @ lower.mT, rtol=1e-13, atol=1e-13)
    older = {"loc": vector(sites), "scale_tril" + RAW: tril}  # Pyro 1.7 and before: no scale
    for name, function in (("exp", exp), ("softplus", softplus)):
        found = bnndp.importers.from_pyro(older, table=table_of(sites), scale_transform=name, **SETTINGS).layers[0]  # type: ignore[union-attr]
        old = tril.double().tril(-1) + torch.diag(function(tril.diagonal()))
        assert torch.equal(found.factor[:, -1], old[size:])
    with pytest.raises(ModelFileError, match=r"give --scale-transform softplus for Pyro 1.7, exp for an older one"):
        bnndp.importers.from_pyro(older, table=table_of(sites), **SETTINGS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_low_rank_covariance_of_one_layer(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sites = random_sites(random_sizes(3 * seed)[:2], seed)
    n = len(vector(sites))
    raw, factor = torch.randn(n, generator=generator), torch.randn(n, 2, generator=generator)
    state = {"loc": vector(sites), "scale" + RAW: raw, "cov_factor": factor}
    layer = bnndp.importers.from_pyro(state, table=table_of(sites), **SETTINGS).layers[0]  # type: ignore[union-attr]
    scale = softplus(raw)
    wanted = scale[:, None] * factor.double()
    size = sites["0.weight"].numel()
    assert torch.equal(torch.cat([layer.weight_std.flatten(), layer.bias_std]), scale)
    assert torch.equal(layer.factor[:, :-1].flatten(0, 1), wanted[:size])
    assert torch.equal(layer.factor[:, -1], wanted[size:])


def test_a_covariance_between_layers_is_refused() -> None:
    sites = random_sites((2, 3, 1), 0)
    n = len(vector(sites))
    tril = torch.zeros(n, n)
    state = {"loc": vector(sites), "scale" + RAW: torch.zeros(n), "scale_tril" + RAW: tril}
    network = bnndp.importers.from_pyro(state, table=table_of(sites), **SETTINGS)
    assert [type(layer).__name__ for layer in network.layers] == ["CorrelatedLinear", "Relu", "CorrelatedLinear"]  # type: ignore[union-attr]
    tril[-1, 0] = 1e-30
    with pytest.raises(
        ModelFileError, match=r"weights of the layers '0' and '2' are correlated; only .* within a layer"
    ):
        bnndp.importers.from_pyro(state, table=table_of(sites), **SETTINGS)
    table = table_of(sites) | {"ignore": ["2.weight", "2.bias"]}  # the rest, marginally
    assert bnndp.importers.from_pyro(state, table=table, **SETTINGS).sizes == (2, 3)  # type: ignore[union-attr]


def test_a_last_layer_beside_a_network_without_variance() -> None:
    torch.manual_seed(1)
    body = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 4), torch.nn.ReLU())
    sites = {"4.weight": torch.randn(2, 4), "4.bias": torch.randn(2)}
    state = {"loc": vector(sites), "scale" + RAW: torch.zeros(10), "scale_tril" + RAW: torch.randn(10, 10)}
    network = bnndp.importers.from_pyro(state, network=body, table=table_of(sites), **SETTINGS)
    assert [getattr(layer, "kind", "") for layer in network.layers] == [  # type: ignore[union-attr]
        *("linear", "relu", "linear", "relu", "correlated_linear")
    ]
    body_weight = body.get_parameter("2.weight").detach().double()
    assert torch.equal(network.layers[2].weight_mean, body_weight)  # type: ignore[union-attr]
    assert not network.layers[2].random  # type: ignore[union-attr]
    both = {"0.weight": torch.randn(5, 3), "0.bias": torch.randn(5)}
    with pytest.raises(ModelFileError, match=r"'0.weight' is a site of the posterior and has a value without variance"):
        bnndp.importers.from_pyro(auto_normal(both, both), network=body, **SETTINGS)


def test_parameters_of_a_registered_module_have_no_variance() -> None:
    locs, raw = (
        {"2.weight": torch.randn(1, 3), "2.bias": torch.randn(1)},
        {"2.weight": torch.zeros(1, 3), "2.bias": torch.zeros(1)},
    )
    foreign = store(locs, raw, "softplus_positive")
    fixed = {"0.weight": torch.randn(3, 2), "0.bias": torch.randn(3)}
    tensors = {f"params.net$$${name}": value for name, value in fixed.items()} | foreign.tensors
    values = {f"constraints.net$$${name}": "real" for name in fixed} | foreign.values
    found = read(Foreign(tensors, values), table=table_of(fixed | locs))
    assert next(iter(found)) == "0.weight_mean"
    assert not found["0.weight_std"].any()
    assert torch.equal(found["2.weight_std"], softplus(raw["2.weight"]))


# AutoDelta


@pytest.mark.parametrize("seed", SEEDS)
def test_a_point_has_no_variance(seed: int) -> None:
    locs, _ = pair(seed)
    check_independent(
        bnndp.importers.from_pyro({name + RAW: value for name, value in locs.items()}, **SETTINGS), locs, {}
    )
    tensors = {f"params.AutoDelta.{name}": value for name, value in locs.items()}
    found = read(Foreign(tensors, {name.replace("params", "constraints"): "real" for name in tensors}))
    assert torch.equal(found["0.weight_mean"], locs["0.weight"].double())


# Files that keep no order


def test_a_file_without_order_is_read_by_numbers_or_not_at_all(tmp_path: Path) -> None:
    locs = random_sites((2, *([3] * 11), 1), 0)  # "10" comes before "2" in such a file
    raw = {name: torch.zeros_like(value) for name, value in locs.items()}
    save_file(auto_normal(locs, raw), tmp_path / "g.safetensors")
    check_independent(
        convert(tmp_path / "g.safetensors", RELUS).posterior, locs, {n: softplus(v) for n, v in raw.items()}
    )
    square = {f"{name}.weight": torch.randn(3, 3) for name in ("first", "second")}
    scales = {name: torch.zeros_like(value) for name, value in square.items()}
    save_file(auto_normal(square, scales), tmp_path / "s.safetensors")
    with pytest.raises(ModelFileError, match="fit one another in several orders; give their sites in order by --table"):
        convert(tmp_path / "s.safetensors", RELUS)
    (tmp_path / "t.json").write_text(json.dumps({"sites": [{"site": "second.weight"}, {"site": "first.weight"}]}))
    told = convert(tmp_path / "s.safetensors", RELUS, options=ConvertOptions(table=tmp_path / "t.json")).posterior
    assert torch.equal(told.linears[0].weight_mean, square["second.weight"].double())  # type: ignore[union-attr]


# What is refused


def fault(state: dict[str, Tensor], **choices: object) -> str:
    with pytest.raises(ModelFileError) as caught:
        read(flat(state), **choices)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_missing_or_surplus_is_named() -> None:
    locs, raw = pair(4)
    whole = auto_normal(locs, raw)
    less = {name: value for name, value in whole.items() if name != "scales.0.bias" + RAW}
    assert fault(less) == "it has the location of '0.bias' without its scale: a tensor is missing"
    less = {name: value for name, value in whole.items() if name != "locs.0.bias" + RAW}
    assert fault(less) == "it has the scale of '0.bias' without its mean: a tensor is missing"
    noise = whole | {"locs.sigma" + RAW: torch.zeros(()), "scales.sigma" + RAW: torch.zeros(())}
    assert fault(noise).startswith("site 'sigma' is not known to be a weight or a bias: say so by a row of sites")
    assert read(flat(noise), table={"ignore": ["sigma"]}).keys() == read(flat(whole)).keys()
    told = fault(whole, table={"ignore": ["tau"]})
    assert told.startswith("'tau' of --table or --ignore is not a site of the file; its sites are '0.weight', '0.bias'")
    assert fault(whole | {"other": torch.ones(1)}) == "tensor 'other' is neither a location nor a scale of the guide"
    bent = whole | {"scales.0.bias" + RAW: torch.zeros(9)}
    assert fault(bent).startswith("mean and scale of '0.bias' have the shapes")
    hole = whole | {"scales.0.bias" + RAW: torch.full_like(raw["0.bias"], torch.nan)}
    assert "'scales.0.bias_unconstrained' is not finite" in fault(hole)
    assert fault({"loc": torch.ones(3), "cov_factor": torch.ones(3, 1), "x" + RAW: torch.ones(1)})
    assert "of a guide and nothing else" in fault({"scale" + RAW: torch.ones(3)})
    again = whole | {f"other.locs.0.bias{RAW}": locs["0.bias"]}
    assert fault(again) == "it has '0.bias' twice: it holds several guides, save one"
    assert "it has 'locs.0.bias' twice" in fault(whole | {"locs.0.bias": locs["0.bias"]})
    twice = {"AutoDelta.0.weight" + RAW: torch.ones(1, 1), "0.weight" + RAW: torch.zeros(1, 1)}
    assert "it has '0.weight' twice" in fault(twice)


def test_a_store_that_is_cut_off_or_contradicted() -> None:
    locs, raw = pair(2)
    foreign = store(locs, raw, "greater_than 0.0")
    values = dict(foreign.values)
    del values["constraints.AutoNormal.scales.0.bias"]
    with pytest.raises(ModelFileError, match=r"no constraint of 'AutoNormal.scales.0.bias': it is cut off"):
        read(Foreign(foreign.tensors, values))
    with pytest.raises(ModelFileError, match="says exp; leave out --scale-transform softplus"):
        read(foreign, scale_transform="softplus")
    assert read(foreign, scale_transform="exp").keys() == read(foreign).keys()
    for constraint in ("greater_than 1.0", "interval -1.0 1.0", "<Dependent>", "simplex"):
        with pytest.raises(ModelFileError, match="is under the constraint"):
            read(store(locs, raw, constraint))
    odd = dict(foreign.values) | {"constraints.AutoNormal.locs.0.bias": "greater_than 0.0"}
    with pytest.raises(ModelFileError, match="a mean must be real"):
        read(Foreign(foreign.tensors, odd))
    with pytest.raises(ModelFileError, match="give --scale-transform exp, softplus or 'sigmoid M'"):
        read(flat(auto_normal(locs, raw)), scale_transform="square")
    with pytest.raises(InputError, match="got int"):
        bnndp.importers.from_pyro(5, **SETTINGS)


def test_weights_by_hand_are_told_by_shapes_or_by_the_user() -> None:
    locs = {"w1": torch.randn(3, 5), "b1": torch.randn(5), "w2": torch.randn(5, 2), "b2": torch.randn(2)}
    raw = {name: torch.zeros_like(value) for name, value in locs.items()}
    network = bnndp.importers.from_pyro(auto_normal(locs, raw), **SETTINGS)
    assert torch.equal(network.linears[0].weight_mean, locs["w1"].T.double())  # type: ignore[union-attr]
    square = {"w1": torch.randn(3, 3), "w2": torch.randn(3, 3)}
    state = auto_normal(square, {name: torch.zeros_like(value) for name, value in square.items()})
    assert "fit one another in several layouts" in fault(state)
    for layout, wanted in (("in_out", square["w1"].T), ("out_in", square["w1"])):
        told = bnndp.importers.from_pyro(state, table={"layout": layout}, **SETTINGS)
        assert torch.equal(told.linears[0].weight_mean, wanted.double())  # type: ignore[union-attr]
