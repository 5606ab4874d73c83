"""States that the library ``posteriors`` itself made (``make test-importers``): same samples, same order of vectors."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.foreign_states import SETTINGS
from support.site_states import expect_same_mean, library
from torch import Tensor, nn

import bnndp
from bnndp.importers import from_posteriors

X = torch.tensor([[0.3, -0.2, 0.9], [1.0, 0.5, -1.5]])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[Any]:
    posteriors = library("posteriors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(2)
        yield posteriors


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def outputs(net: nn.Module, draws: dict[str, Tensor]) -> Tensor:
    count = len(next(iter(draws.values())))
    each = [{name: value[k] for name, value in draws.items()} for k in range(count)]
    return torch.stack([torch.func.functional_call(net, weights, X) for weights in each]).detach()


def test_diagonal_states(quiet: Any) -> None:
    net = network()
    params = dict(net.named_parameters())
    optimiser = library("torchopt").adam(lr=1e-2)
    sds = {name: torch.randn_like(value) - 2 for name, value in params.items()}
    state = quiet.vi.diag.init(params, optimiser, sds)
    draws = quiet.vi.diag.sample(state, torch.Size([600]))
    expect_same_mean(outputs(net, draws), from_posteriors(state, **SETTINGS), X)
    precisions = {name: (1 + value.exp()) * 20 for name, value in sds.items()}
    state = quiet.laplace.diag_fisher.init(params, precisions)
    draws = quiet.laplace.diag_fisher.sample(state, torch.Size([600]))
    expect_same_mean(outputs(net, draws), from_posteriors(state, **SETTINGS), X)


@pytest.mark.parametrize("keep", [dict, OrderedDict])
def test_dense_states_of_the_last_layer(quiet: Any, keep: type) -> None:
    net = network()
    params = keep((name, value.detach()) for name, value in net.named_parameters() if name.startswith("2."))
    optimiser = library("torchopt").adam(lr=1e-2)
    lower = (torch.diag(torch.linspace(0.01, 1.0, 10)) + 0.2 * torch.randn(10, 10)).tril()
    state = quiet.vi.dense.init(params, optimiser, lower)
    draws = quiet.vi.dense.sample(state, torch.Size([600]))
    expect_same_mean(outputs(net, draws), from_posteriors(state, network=net, **SETTINGS), X)
    wrong = OrderedDict(reversed(params.items())) if keep is OrderedDict else OrderedDict(params)
    other = from_posteriors({"params": wrong, "L_factor": state.L_factor}, network=net, **SETTINGS)
    with pytest.raises(AssertionError):  # the order matters, and this test notices
        expect_same_mean(outputs(net, draws), other, X)


def test_samples(quiet: Any) -> None:
    net = network()
    params = dict(net.named_parameters())
    transform = quiet.sgmcmc.sghmc.build(
        lambda p, _: (-sum((v**2).sum() for v in p.values()), torch.tensor([])), lr=1e-2
    )
    state = transform.init(params)
    states = []
    for _ in range(5):
        state, _ = transform.update(state, None)
        states.append(state)
    ensemble = from_posteriors(states, **SETTINGS)
    draws = {name: torch.stack([state.params[name].detach() for state in states]) for name in params}
    bounds = bnndp.certify(ensemble, bnndp.Box.ball(X.double(), 0.0))
    torch.testing.assert_close(bounds.lower.float(), outputs(net, draws).mean(0), rtol=1e-4, atol=1e-5)
