"""Laplace approximations that laplace-torch itself fitted (``make test-importers``): same covariance, same samples."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.site_states import covariance, expect_same_mean, library
from torch import Tensor, nn

import bnndp
from bnndp.errors import InputError
from bnndp.importers import from_laplace
from bnndp.layers import CorrelatedLinear

X = torch.tensor([[0.3, -0.2, 0.9], [1.0, 0.5, -1.5]]).double()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[Any]:
    laplace = library("laplace")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield laplace


def fitted(
    laplace: Any, subset: str, structure: str, likelihood: str = "regression", **settings: Any
) -> tuple[Any, Any]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = torch.randn(30, 3).double()
    y = torch.stack([x.sum(1), x[:, 0] ** 2], 1) if likelihood == "regression" else (x.sum(1) > 0).long()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10)
    found = laplace.Laplace(net, likelihood, subset_of_weights=subset, hessian_structure=structure, **settings)
    found.fit(loader)
    return found, net


def stored(approximation: Any) -> Any:
    """As it comes back from a file."""
    buffer = io.BytesIO()
    torch.save(approximation.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def sampled(approximation: Any, net: nn.Module, draws: int = 800) -> Tensor:
    """Outputs with weights that the library draws."""
    names = list(dict(net.named_parameters()))
    own = names if approximation.n_params == 26 else names[2:]
    shapes = [net.get_parameter(name).shape for name in own]
    found = []
    for draw in approximation.sample(draws, generator=torch.Generator().manual_seed(5)):
        parts = draw.split([shape.numel() for shape in shapes])
        weights = {name: part.reshape(shape) for name, part, shape in zip(own, parts, shapes, strict=True)}
        found.append(torch.func.functional_call(net, weights, X).detach())
    return torch.stack(found)


SETTINGS: list[dict[str, Any]] = [
    {"prior_precision": 2.0, "temperature": 0.7, "sigma_noise": 0.4},
    {"prior_precision": 0.3},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("subset", "structure"), [("all", "diag"), ("last_layer", "diag")])
def test_diagonals(quiet: Any, subset: str, structure: str, settings: dict[str, Any]) -> None:
    approximation, net = fitted(quiet, subset, structure, **settings)
    network = from_laplace(approximation)
    assert network.digest() == from_laplace(stored(approximation), net).digest()
    std = torch.cat([torch.cat([layer.weight_std.flatten(), layer.bias_std]) for layer in network.linears])
    wanted = approximation.posterior_variance.sqrt()
    torch.testing.assert_close(std[-len(wanted) :], wanted, rtol=1e-12, atol=0)
    expect_same_mean(sampled(approximation, net), network, X)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("structure", ["full", "kron"])
def test_covariances_of_the_last_layer(quiet: Any, structure: str, settings: dict[str, Any]) -> None:
    approximation, net = fitted(quiet, "last_layer", structure, **settings)
    network = from_laplace(approximation)
    assert network.digest() == from_laplace(stored(approximation), net).digest()
    if structure == "full":
        wanted = approximation.posterior_covariance
    else:
        wanted = approximation.posterior_precision.to_matrix(exponent=-1)
    torch.testing.assert_close(covariance(network.layers[2]), wanted, rtol=1e-8, atol=1e-11)
    expect_same_mean(sampled(approximation, net), network, X)


def test_kronecker_of_all_layers(quiet: Any) -> None:
    approximation, net = fitted(quiet, "all", "kron", prior_precision=torch.tensor([1.0, 2.0, 0.5, 3.0]).double())
    network = from_laplace(approximation)
    dense = approximation.posterior_precision.to_matrix(exponent=-1)
    ours = [covariance(layer) for layer in network.layers if isinstance(layer, CorrelatedLinear)]
    torch.testing.assert_close(torch.block_diag(*ours), dense, rtol=1e-8, atol=1e-11)
    expect_same_mean(sampled(approximation, net), network, X)


def test_a_classifier(quiet: Any) -> None:
    """The mean of the softmax over draws is what is certified, not the default prediction of the library."""
    approximation, _ = fitted(quiet, "last_layer", "kron", "classification", prior_precision=0.05)
    network = from_laplace(approximation)
    assert network.task == "classification"
    sampled = approximation(X, pred_type="nn", link_approx="mc", n_samples=20_000)
    bounds = bnndp.certify(network, bnndp.Box.ball(X, 1e-9), bnndp.Options(refine=16))
    assert bool((bounds.lower <= sampled + 0.01).all())
    assert bool((sampled - 0.01 <= bounds.upper).all())


@pytest.mark.parametrize(("subset", "structure"), [("all", "diag"), ("all", "kron"), ("last_layer", "full")])
def test_activations_and_the_task_are_those_of_the_live_object(quiet: Any, subset: str, structure: str) -> None:
    """Tanh and ReLU by position; bounds on a box contain the mean of the softmax over draws at points of it."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    x = torch.randn(40, 3).double()
    data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long())
    found = quiet.Laplace(
        net, "classification", subset_of_weights=subset, hessian_structure=structure, prior_precision=50.0
    )
    found.fit(torch.utils.data.DataLoader(data, batch_size=10))
    network = from_laplace(found)
    assert [layer.kind for layer in network.layers][1::2] == ["tanh", "relu"]
    assert network.task == "classification"
    assert network.digest() == from_laplace(stored(found), net).digest()
    with pytest.raises(InputError, match="nothing is guessed: give the activation between its layers"):
        from_laplace(stored(found), net.state_dict())
    with pytest.raises(InputError, match="is not what the module has between its layers: tanh, relu"):
        from_laplace(found, activation="relu")
    box = bnndp.Box.ball(X[:1], 0.05)
    bounds = bnndp.certify(network, box)
    points = box.lower + (box.upper - box.lower) * torch.rand(5, 3).double()
    sampled = found(points, pred_type="nn", link_approx="mc", n_samples=2000)
    assert bool((bounds.lower <= sampled + 0.02).all())
    assert bool((sampled - 0.02 <= bounds.upper).all())
