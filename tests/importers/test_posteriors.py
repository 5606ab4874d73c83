"""States of the library ``posteriors``: values are those of its formulas, and vectors are in its order."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.foreign_states import RELUS, SETTINGS
from support.site_states import SEEDS, Sites, check_independent, covariance, random_sites, random_sizes
from torch import Tensor, nn

import bnndp
from bnndp.errors import InputError, ModelFileError
from bnndp.importers.convert import convert
from bnndp.importers.flatten import flat
from bnndp.importers.foreign import Choices, Foreign
from bnndp.importers.registry import importer_for
from bnndp.layers import CorrelatedLinear

KINDS = {
    "log_sd_diag": lambda value: value.double().exp(),
    "prec_diag": lambda value: 1 / value.double().sqrt(),
    "sd_diag": lambda value: value.double(),
}


def spread(sizes: tuple[int, ...], seed: int, kind: str) -> Sites:
    found = random_sites(sizes, seed + 100, start=-2.0)
    return found if kind == "log_sd_diag" else {name: value.exp() for name, value in found.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_diagonal_states(seed: int, kind: str) -> None:
    sizes = random_sizes(seed)
    params, given = random_sites(sizes, seed), spread(sizes, seed, kind)
    state = {"params": params, kind: given, "step": torch.tensor(3)}
    assert importer_for(flat(state)).name == "posteriors"
    stds = {name: KINDS[kind](value) for name, value in given.items()}
    check_independent(bnndp.importers.from_posteriors(state, **SETTINGS), params, stds)
    live = SimpleNamespace(**state, opt_state=object())  # as the library has it
    check_independent(bnndp.importers.from_posteriors(live, **SETTINGS), params, stds)


def ordered(sites: Sites, names: list[str]) -> Tensor:
    """Places of ours, weights then biases, in the vector of these names."""
    places, start = {}, 0
    for name in names:
        places[name] = torch.arange(start, start + sites[name].numel())
        start += sites[name].numel()
    return torch.cat([places["0.weight"], places["0.bias"]])


@pytest.mark.parametrize("kind", ["L_factor", "prec", "cov"])
@pytest.mark.parametrize("seed", SEEDS)
def test_dense_states_of_one_layer(seed: int, kind: str) -> None:
    """A plain dictionary is raveled by its sorted names, the bias first; an OrderedDict as it is."""
    params = random_sites(random_sizes(3 * seed)[:2], seed)
    n = sum(value.numel() for value in params.values())
    root = torch.randn(n, n, generator=torch.Generator().manual_seed(seed)) + 2 * torch.eye(n)
    lower = root.tril()
    wanted = root.double() @ root.double().T
    rows, columns = torch.tril_indices(n, n)
    given = {"L_factor": lower[rows, columns], "prec": wanted, "cov": wanted}[kind]
    truth = {"L_factor": lower.double() @ lower.double().T, "prec": torch.linalg.inv(wanted), "cov": wanted}[kind]
    for held, names in ((dict(params), ["0.bias", "0.weight"]), (OrderedDict(params), ["0.weight", "0.bias"])):
        layer = bnndp.importers.from_posteriors({"params": held, kind: given}, **SETTINGS).layers[0]  # type: ignore[union-attr]
        assert isinstance(layer, CorrelatedLinear)
        at = ordered(params, names)
        torch.testing.assert_close(covariance(layer), truth[at][:, at], rtol=1e-7, atol=1e-9)
        if kind == "L_factor":
            size = params["0.weight"].numel()
            assert torch.equal(layer.factor[:, :-1].flatten(0, 1), lower.double()[at[:size]])


def test_the_order_of_a_vector_in_a_file_must_be_said() -> None:
    params = {"0.weight": torch.randn(2, 3), "0.bias": torch.randn(2)}
    foreign = flat({"params": params, "cov": torch.eye(8)})
    with pytest.raises(ModelFileError, match="the order of its vector is ambiguous"):
        importer_for(foreign).read(foreign, Choices())
    held = {"params.0.bias": params["0.bias"], "params.0.weight": params["0.weight"], "cov": torch.eye(8)}
    unsure = Foreign(held, holders=("",), ordered=False)  # sorted, whatever it was
    with pytest.raises(ModelFileError, match="the order of its vector is ambiguous"):
        importer_for(unsure).read(unsure, Choices())
    foreign = flat({"params": params, "cov": torch.diag(torch.arange(8.0))})
    table = {"sites": [{"site": "0.bias"}, {"site": "0.weight"}]}
    found = importer_for(foreign).read(foreign, Choices(table=table)).members[0]
    bias = torch.diag(covariance_of(found))[6:]
    torch.testing.assert_close(bias, torch.tensor([0.0, 1.0]).double())


def covariance_of(found: dict[str, Tensor]) -> Tensor:
    names = ("weight_mean", "weight_std", "bias_mean", "bias_std", "factor")
    return covariance(CorrelatedLinear(**{name: found[f"0.{name}"] for name in names}, shared=True))


def test_layers_that_the_state_does_not_have_are_those_of_the_network() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    params = {name: value.detach() + 1 for name, value in net.named_parameters() if name.startswith("2.")}
    state = {"params": params, "prec": 4 * torch.eye(10)}
    network = bnndp.importers.from_posteriors(state, network=net, **SETTINGS)
    assert [layer.kind for layer in network.layers] == ["linear", "relu", "correlated_linear"]  # type: ignore[union-attr]
    assert torch.equal(network.layers[2].weight_mean, params["2.weight"].double())  # type: ignore[union-attr]
    torch.testing.assert_close(covariance(network.layers[2]), torch.eye(10).double() / 4)  # type: ignore[union-attr]


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize("seed", SEEDS)
def test_samples(seed: int, tmp_path: Path) -> None:
    sizes = random_sizes(seed)
    draws = [random_sites(sizes, 10 * seed + k) for k in range(3)]
    states = [
        {
            "params": draw,
            "momenta": random_sites(sizes, 5),
            "log_posterior": torch.tensor(-1.0),
            "step": torch.tensor(k),
        }
        for k, draw in enumerate(draws)
    ]
    ensemble = bnndp.importers.from_posteriors([SimpleNamespace(**state) for state in states], **SETTINGS)
    for member, draw in zip(ensemble.members, draws, strict=True):  # type: ignore[union-attr]
        check_independent(member, draw, {})
    if seed == 0:
        torch.save(states, tmp_path / "s.pt")
        assert convert(tmp_path / "s.pt", RELUS).posterior.digest() == ensemble.digest()


def fault(state: object, **choices: object) -> str:
    foreign = flat(state)
    with pytest.raises(ModelFileError) as caught:
        importer_for(foreign, "posteriors").read(foreign, Choices(**choices))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_states_that_cannot_be_read() -> None:
    params = random_sites((2, 3, 1), 0)
    spreads = {name: torch.ones_like(value) for name, value in params.items()}
    less = {name: value for name, value in spreads.items() if name != "2.bias"}
    assert (
        fault({"params": params, "sd_diag": less})
        == "it has the mean of '2.bias', but not its sd_diag: a tensor is missing"
    )
    less = {name: value for name, value in params.items() if name != "2.bias"}
    assert fault({"params": less, "sd_diag": spreads}).startswith("it has the scale of '2.bias' without its mean")
    assert "sd_diag and cov: it is not one state" in fault({"params": params, "sd_diag": spreads, "cov": torch.eye(13)})
    assert "'other' is not part of a state" in fault({"params": params, "sd_diag": spreads, "other": torch.ones(1)})
    assert "as standard deviation" in fault({"params": params, "sd_diag": {n: -v for n, v in spreads.items()}})
    zero = {name: torch.zeros_like(value) for name, value in params.items()}
    assert "has no finite rsqrt" in fault({"params": params, "prec_diag": zero})
    table = {"sites": [{"site": name} for name in sorted(params)]}
    dense = {"params": params, "cov": torch.eye(13) + 0.1}
    assert "weights of the layers '0' and '2' are correlated" in fault(dense, table=table)
    assert "cov has shape (2, 2); expected (13, 13)" in fault(dense | {"cov": torch.eye(2)}, table=table)
    assert "not positive semi-definite" in fault(dense | {"cov": -torch.eye(13)}, table=table)
    short = {"params": params, "L_factor": torch.ones(90)}
    assert "L_factor has shape (90,); expected (91,)" in fault(short, table=table)
    assert "must be the params of the state" in fault(short, table={"sites": [{"site": "0.weight"}]})
    with pytest.raises(InputError, match="there are no states"):
        bnndp.importers.from_posteriors([], **SETTINGS)
    with pytest.raises(InputError, match="a state needs params, a dictionary by parameter names, got Tensor"):
        bnndp.importers.from_posteriors({"params": torch.ones(3)}, **SETTINGS)
