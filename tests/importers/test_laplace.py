"""Laplace approximations in the names of laplace-torch: values are those of its formulas, the rest is refused."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from support.site_states import SEEDS, check_independent, covariance, random_sizes
from torch import Tensor, nn

import bnndp
from bnndp.cli.main import main
from bnndp.errors import InputError, ModelFileError
from bnndp.files.posterior import read_model
from bnndp.importers.flatten import flat
from bnndp.importers.foreign import Choices, Foreign
from bnndp.importers.laplace import LAPLACE
from bnndp.importers.registry import importer_for
from bnndp.layers import CorrelatedLinear, Linear


def network(sizes: tuple[int, ...], seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        parts += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def vector(parameters: Any) -> Tensor:
    return nn.utils.parameters_to_vector(parameters).detach()


def state(kind: str, mean: Tensor, hessian: object, prior: Tensor, **other: object) -> dict[str, object]:
    """As ``la.state_dict()`` gives it."""
    found = {
        "mean": mean, "H": hessian, "loss": 0.5, "prior_mean": torch.tensor(0.0), "prior_precision": prior,
        "sigma_noise": torch.tensor(0.7), "n_data": 20, "n_outputs": 2, "likelihood": "regression", "temperature": 1.5,
        "enable_backprop": False, "cls_name": f"{kind}Laplace",
    }  # fmt: skip
    return (
        found
        | ({"data": (torch.ones(2, 3), torch.ones(2, 2)), "_last_layer_name": None} if "LL" in kind else {})
        | other
    )


FACTOR = 1 / float(torch.tensor(0.7)) ** 2 / 1.5


def spd(n: int, seed: int) -> Tensor:
    root = torch.randn(n, n + 2, generator=torch.Generator().manual_seed(seed))
    found = root @ root.T
    return 0.5 * (found + found.T)  # the product is not symmetric to the last bit on every processor


def matrices(net: nn.Module, seed: int) -> list[list[Tensor]]:
    """Kronecker factors of each parameter."""
    found = []
    for index, each in enumerate(net.parameters()):
        found.append([spd(n, seed + 10 * index + k) for k, n in enumerate(each.shape)])
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_diagonal_of_all_weights(seed: int) -> None:
    net = network(random_sizes(seed), seed)
    mean = vector(net.parameters())
    count = len(list(net.parameters()))
    hessian = torch.rand(len(mean)) * 30
    prior = torch.rand({0: 1, 1: count, 2: len(mean)}[seed % 3]) + 0.1
    given = state("Diag", mean, hessian, prior)
    assert importer_for(flat(given)).name == "laplace"
    if len(prior) == count:
        wide = torch.cat([value.expand(each.numel()) for value, each in zip(prior, net.parameters(), strict=True)])
    else:
        wide = prior.expand(len(mean))
    std = 1 / torch.sqrt(FACTOR * hessian.double() + wide.double())
    parts = dict(zip(dict(net.named_parameters()), std.split([p.numel() for p in net.parameters()]), strict=True))
    stds = {name: part.reshape(net.get_parameter(name).shape) for name, part in parts.items()}
    check_independent(
        bnndp.importers.from_laplace(given, net), {n: p.detach() for n, p in net.named_parameters()}, stds
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_last_layer(seed: int) -> None:
    net = network((2, 4, 3), seed)
    mean = vector(net[2].parameters())
    prior = torch.rand(1) + 0.1
    dense, diagonal, kron = spd(15, seed), torch.rand(15), matrices(net[2], seed)
    plain = bnndp.importers.from_laplace(state("DiagLL", mean, diagonal, prior), net)
    std = 1 / torch.sqrt(FACTOR * diagonal.double() + prior.double())
    assert torch.equal(torch.cat([plain.linears[1].weight_std.flatten(), plain.linears[1].bias_std]), std)  # type: ignore[union-attr]
    assert not plain.linears[0].random  # type: ignore[union-attr]
    full = bnndp.importers.from_laplace(state("FullLL", mean, dense, prior), net)
    inverse = torch.linalg.inv(FACTOR * dense.double() + prior.double() * torch.eye(15))
    torch.testing.assert_close(covariance(full.layers[2]), inverse, rtol=1e-9, atol=1e-12)  # type: ignore[union-attr]
    blocks = [torch.kron(kron[0][0].double(), kron[0][1].double()), kron[1][0].double()]
    precision = FACTOR * torch.block_diag(*blocks) + prior.double() * torch.eye(15)
    found = bnndp.importers.from_laplace(state("KronLL", mean, kron, prior), net).layers[2]  # type: ignore[union-attr]
    assert isinstance(found, CorrelatedLinear)
    torch.testing.assert_close(covariance(found), torch.linalg.inv(precision), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_kronecker_of_all_layers(seed: int) -> None:
    net = network(random_sizes(seed), seed)
    prior = torch.rand(len(list(net.parameters())) if seed % 2 else 1) + 0.1
    factors = matrices(net, seed)
    found = bnndp.importers.from_laplace(state("Kron", vector(net.parameters()), factors, prior), net)
    priors = prior.expand(len(factors)).double()
    for index, layer in enumerate(layer for layer in found.layers if isinstance(layer, CorrelatedLinear)):  # type: ignore[union-attr]
        (rows, columns), (bias,) = factors[2 * index], factors[2 * index + 1]
        weight = FACTOR * torch.kron(rows.double(), columns.double()) + priors[2 * index] * torch.eye(
            layer.n_in * layer.n_out
        )
        both = torch.block_diag(weight, FACTOR * bias.double() + priors[2 * index + 1] * torch.eye(layer.n_out))
        torch.testing.assert_close(covariance(layer), torch.linalg.inv(both), rtol=1e-8, atol=1e-11)
    assert index == len(factors) // 2 - 1


def test_parameters_that_were_not_trained_have_no_variance() -> None:
    net = network((2, 4, 3), 0)
    with torch.no_grad():
        torch.nn.init.zeros_(net[0].bias)
    mean = torch.cat([vector([net[0].bias]), vector([net[2].weight])])
    found = bnndp.importers.from_laplace(state("Diag", mean, torch.ones(len(mean)), torch.ones(1)), net)
    stds = [bool((each > 0).all()) for layer in found.linears for each in (layer.weight_std, layer.bias_std)]  # type: ignore[union-attr]
    assert stds == [False, True, True, False]
    kron = [[torch.eye(4)], [torch.eye(3), torch.eye(4)]]
    layers = bnndp.importers.from_laplace(state("Kron", mean, kron, torch.ones(1)), net).layers  # type: ignore[union-attr]
    assert not layers[0].factor[:, :-1].any()
    assert layers[0].factor[:, -1].any()
    assert not layers[2].factor[:, -1].any()


@pytest.mark.usefixtures("no_child")
def test_a_file_with_its_network_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = network((3, 4, 2), 3)
    given = state(
        "KronLL", vector(net[2].parameters()), matrices(net[2], 3), torch.ones(1), likelihood="classification"
    )
    torch.save(given, tmp_path / "la.pt")
    torch.save(net.state_dict(), tmp_path / "net.pt")
    out = tmp_path / "m.safetensors"
    command = ["convert", str(tmp_path / "la.pt"), "--beside", str(tmp_path / "net.pt"), "-o", str(out)]
    assert main(command) == 2
    assert "give the activation between its layers (--activation KIND" in capsys.readouterr().err
    assert main([*command, "--activation", "relu", "--task", "regression"]) == 2
    line = capsys.readouterr().err
    assert "the task is said to be regression, but what was trained is for classification" in line
    assert main([*command, "--activation", "relu"]) == 0  # its likelihood is the task
    printed = capsys.readouterr().out
    assert "read by laplace: factor with columns u_i x v_j" in printed
    assert "pred_type='nn', link_approx='mc'" in printed  # what is certified is not its default prediction
    found = read_model(out)
    wanted = bnndp.importers.from_laplace(given, net)
    assert wanted.task == "classification"
    assert found.posterior.digest() == wanted.digest()


# What is refused


def fault(given: dict[str, object], net: nn.Module | None) -> str:
    beside = None if net is None else flat(net.state_dict())
    with pytest.raises(ModelFileError) as caught:
        LAPLACE.read(flat(given), Choices(beside=beside))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_precision_between_layers_is_refused() -> None:
    net = network((2, 3, 1), 0)
    mean = vector(net.parameters())
    n = len(mean)
    hessian = torch.eye(n)
    assert bnndp.importers.from_laplace(state("Full", mean, hessian, torch.ones(1)), net).sizes == (2, 3, 1)  # type: ignore[union-attr]
    low = state("LowRank", mean, (torch.ones(n, 1), torch.ones(1)), torch.ones(1))
    assert "weights of the layers '0' and '2' are correlated" in fault(low, net)
    hessian[0, -1] = hessian[-1, 0] = 1e-30
    assert "weights of the layers '0' and '2' are correlated" in fault(state("Full", mean, hessian, torch.ones(1)), net)


def test_a_low_rank_precision_of_one_layer() -> None:
    net = network((2, 3), 0)
    basis, values = torch.randn(9, 2), torch.rand(2)
    given = state("LowRank", vector(net.parameters()), (basis, values), torch.full((1,), 0.5))
    layer = bnndp.importers.from_laplace(given, net).layers[0]  # type: ignore[union-attr]
    precision = FACTOR * (basis.double() * values.double()) @ basis.double().T + 0.5 * torch.eye(9)
    torch.testing.assert_close(covariance(layer), torch.linalg.inv(precision), rtol=1e-9, atol=1e-12)


def test_a_network_that_is_not_the_one(tmp_path: Path) -> None:
    net = network((2, 3, 1), 0)
    mean = vector(net.parameters())
    good = state("Diag", mean, torch.ones(len(mean)), torch.ones(1))
    assert "is not made of the values of the parameters 0.weight" in fault(good, network((2, 3, 1), 1))
    assert "give the state_dict of the network by --beside" in fault(good, None)
    with pytest.raises(InputError, match="give the network as well"):
        bnndp.importers.from_laplace(good)
    last = state("DiagLL", vector(net[2].parameters()), torch.ones(4), torch.ones(1))
    assert "is not made of the values of one layer" in fault(last, network((2, 3, 1), 1))  # the same shapes
    named = last | {"_last_layer_name": "0"}
    assert "is not made of the values of one layer" in fault(named, net)
    assert LAPLACE.read(flat(last | {"_last_layer_name": "2"}), Choices(beside=flat(net.state_dict())))
    twins = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    twins[2].load_state_dict(twins[0].state_dict())
    same = state("DiagLL", vector(twins[2].parameters()), torch.ones(6), torch.ones(1))
    assert "is in more than one way made of" in fault(same, twins)
    half = state("Diag", vector(twins[2].parameters()), torch.ones(6), torch.ones(1))
    assert "is in more than one way made of" in fault(half, twins)
    normed = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert "'1.running_mean' of the second file is not a weight or bias" in fault(good, normed)


def test_a_network_in_a_file_without_order_is_refused() -> None:
    net = network((2, 3, 1), 0)
    given = flat(state("Diag", vector(net.parameters()), torch.ones(13), torch.ones(1)))
    beside = Foreign(dict(sorted(net.state_dict().items())), holders=("",), ordered=False)
    with pytest.raises(ModelFileError, match="the file of the network keeps no order"):
        LAPLACE.read(given, Choices(beside=beside))


def test_states_that_are_cut_off_or_odd() -> None:
    net = network((2, 3, 1), 0)
    mean = vector(net.parameters())
    n = len(mean)
    good = state("Diag", mean, torch.ones(n), torch.ones(1))
    assert "H is not there" in fault({k: v for k, v in good.items() if k != "H"}, net)
    assert "H has shape (12,); expected shape (13,)" in fault(good | {"H": torch.ones(n - 1)}, net)
    assert "no vector 'mean'" in fault({k: v for k, v in good.items() if k != "mean"}, net)
    assert "prior_precision has 3 values; expected one of [1, 4, 13]" in fault(
        good | {"prior_precision": torch.ones(3)}, net
    )
    assert "sigma_noise is 0.0; expected a number > 0" in fault(good | {"sigma_noise": torch.tensor(0.0)}, net)
    assert "temperature is None" in fault({k: v for k, v in good.items() if k != "temperature"}, net)
    assert "temperature is nan" in fault(good | {"temperature": math.nan}, net)
    assert "has no finite rsqrt" in fault(good | {"H": -torch.ones(n) * 5}, net)
    assert "'H' is not finite" in fault(good | {"H": torch.full((n,), torch.inf)}, net)
    for kind, why in (("DiagSubnet", "its subnetwork is not in the file"), ("Functional", "not a Gaussian")):
        assert why in fault(good | {"cls_name": f"{kind}Laplace"}, net)
    layerwise = state("DiagLL", vector(net[2].parameters()), torch.ones(4), torch.ones(2))
    assert "prior_precision has 2 values; expected one of [1, 4]" in fault(layerwise, net)
    indefinite = state("FullLL", vector(net[2].parameters()), -torch.eye(4), torch.ones(1))
    assert "is not positive definite" in fault(indefinite, net)
    crooked = state("FullLL", vector(net[2].parameters()), torch.ones(4, 4).triu(), torch.ones(1))
    assert "is not symmetric" in fault(crooked, net)
    few = state("KronLL", vector(net[2].parameters()), [[torch.eye(1), torch.eye(3)]], torch.ones(1))
    assert "H.1.0 is not there" in fault(few, net)
    wide = network((90, 70), 0)
    factors = [[torch.eye(70), torch.eye(90)], [torch.eye(70)]]
    large = state("Kron", vector(wide.parameters()), factors, torch.ones(1))
    assert "has a factor of 40576900 numbers; at most 33554432 are read" in fault(large, wide)


def test_convolutions_have_diagonals_only() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    mean = vector(net.parameters())
    found = LAPLACE.read(
        flat(state("Diag", mean, torch.ones(len(mean)), torch.ones(1))), Choices(beside=flat(net.state_dict()))
    )
    assert found.members[0]["0.weight_std"].shape == (2, 1, 3, 3)
    kron = [[torch.eye(2), torch.eye(9)], [torch.eye(2)], [torch.eye(2), torch.eye(8)], [torch.eye(2)]]
    assert "the kernel of layer '0' is correlated" in fault(state("Kron", mean, kron, torch.ones(1)), net)


def test_a_diagonal_kronecker_factor() -> None:
    net = network((2, 3), 0)
    rows, columns, bias = torch.rand(3), spd(2, 1), spd(3, 2)
    mean = vector(net.parameters())
    one = bnndp.importers.from_laplace(state("Kron", mean, [[rows, columns], [bias]], torch.ones(1)), net).layers[0]  # type: ignore[union-attr]
    other = bnndp.importers.from_laplace(
        state("Kron", mean, [[rows.diag(), columns], [bias]], torch.ones(1)), net
    ).layers[0]  # type: ignore[union-attr]
    torch.testing.assert_close(covariance(one), covariance(other), rtol=1e-12, atol=1e-14)
    assert not isinstance(one, Linear)
