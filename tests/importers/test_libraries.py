"""Networks of the libraries themselves, where they are installed: outputs have the mean that ours have, by sampling.

``make setup`` installs those that are small; a missing one skips its tests.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.foreign_states import RELUS, SETTINGS
from torch import Tensor, nn

import bnndp
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.importers import from_ivon, from_tensors
from bnndp.importers.architecture import Architecture
from bnndp.importers.build import posterior_of
from bnndp.importers.flatten import flat
from bnndp.importers.foreign import Choices
from bnndp.importers.registry import importer_for

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs are not ours to mend

DRAWS = 600
IMAGES = (
    {"type": "conv2d", "name": "0", "stride": [2, 2], "padding": [1, 1]},
    {"type": "tanh"},
    {"type": "flatten"},
    {"type": "linear", "name": "3"},
)


def library(name: str) -> ModuleType:
    return pytest.importorskip(name, reason=f"{name} is not installed: make setup")


def torch_uncertainty(name: str) -> ModuleType:
    """A file of its layers; the package itself imports Lightning, which no layer needs."""
    if "torch_uncertainty" not in sys.modules:
        found = importlib.util.find_spec("torch_uncertainty")
        if found is None or found.origin is None:
            pytest.skip("torch_uncertainty is not installed: make setup")
        root = Path(found.origin).parent
        for package, folder in (("", ""), (".layers", "layers"), (".layers.bayesian", "layers/bayesian")):
            module = ModuleType(f"torch_uncertainty{package}")
            module.__path__ = [str(root / folder)]
            sys.modules[module.__name__] = module
    return importlib.import_module(f"torch_uncertainty.layers.bayesian.{name}")


def first(made: Any) -> Tensor:
    return made[0] if isinstance(made, tuple) else made


class Chain(nn.Sequential):
    """Layers one after the other, whose outputs may come with a divergence."""

    def forward(self, x: Tensor) -> Tensor:
        for part in self:
            x = first(part(x))
        return x


def bayesian_torch(n_in: int, n_out: int, kind: str = "Reparameterization", **settings: Any) -> nn.Module:
    layer = getattr(library("bayesian_torch.layers"), f"Linear{kind}")
    return layer(n_in, n_out, posterior_rho_init=-1.0, **settings)


def blitz(n_in: int, n_out: int, **settings: Any) -> nn.Module:
    return library("blitz.modules").BayesianLinear(n_in, n_out, posterior_rho_init=-1.0, **settings)


def torchbnn(n_in: int, n_out: int, **settings: Any) -> nn.Module:
    return library("torchbnn").BayesLinear(0, 0.3, n_in, n_out, **settings)


def uncertainty(n_in: int, n_out: int, **settings: Any) -> nn.Module:
    return torch_uncertainty("bayes_linear").BayesLinear(n_in, n_out, sigma_init=-1.0, **settings)


DENSE: dict[str, tuple[str, Callable[..., nn.Module]]] = {
    "bayesian-torch": ("bayesian-torch", bayesian_torch),
    "bayesian-torch flipout": ("bayesian-torch", partial(bayesian_torch, kind="Flipout")),
    "blitz": ("blitz", blitz),
    "torchbnn": ("torchbnn", torchbnn),
    "torch-uncertainty": ("torch-uncertainty", uncertainty),
}
STEPS = {"stride": 2, "padding": 1}
RHO = {"posterior_rho_init": -1.0}
CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "bayesian-torch": lambda: library("bayesian_torch.layers").Conv2dReparameterization(1, 2, 3, **STEPS, **RHO),
    "blitz": lambda: library("blitz.modules").BayesianConv2d(1, 2, (3, 3), **STEPS, **RHO),
    "torchbnn": lambda: library("torchbnn").BayesConv2d(0, 0.3, 1, 2, 3, **STEPS),
    "torch-uncertainty": lambda: torch_uncertainty("bayes_conv").BayesConv2d(1, 2, 3, **STEPS, sigma_init=-1.0),
}


def agree(module: Callable[[Tensor], Tensor], network: Any, shape: tuple[int, ...]) -> None:
    """Means and spreads of sampled outputs, theirs and ours, are within five standard errors."""
    torch.manual_seed(0)
    x = torch.randn(2, *shape)
    with torch.no_grad():
        theirs = torch.stack([module(x) for _ in range(DRAWS)]).double()
    ours = evaluate(draw_networks(network, DRAWS, seed=1), x.flatten(1).double())
    assert float(theirs.std(0).min()) > 1e-3
    for power in (1, 2):  # the second moment notices a wrong transform of the deviations
        a, b = theirs**power, ours**power
        error = ((a.var(0) + b.var(0)) / DRAWS).sqrt()
        assert bool(((a.mean(0) - b.mean(0)).abs() <= 5 * error).all()), (a.mean(0), b.mean(0), error)


@pytest.mark.parametrize("name", DENSE)
def test_dense_networks(name: str) -> None:
    importer, layer = DENSE[name]
    torch.manual_seed(0)
    module = Chain(layer(3, 6), nn.ReLU(), layer(6, 2, bias=False) if name != "blitz" else layer(6, 2))
    found = from_tensors(module.state_dict(), importer=importer, **SETTINGS)
    assert found.digest() == from_tensors(module.state_dict(), **SETTINGS).digest()
    assert found.digest() == bnndp.from_module(module, task="regression").digest()
    agree(module, found, (3,))


def test_another_function_of_rho_would_be_noticed() -> None:
    torch.manual_seed(0)
    module = Chain(bayesian_torch(3, 6), nn.ReLU(), bayesian_torch(6, 2))
    state = module.state_dict()
    wrong = {name.replace("mu_", "x_mu_").replace("rho_", "x_rho_"): tensor for name, tensor in state.items()}
    table = []
    for part in ("weight", "bias"):
        table.append({"name": f"<layer>.x_mu_{part}", "role": f"{part}_mean"})
        table.append({"name": f"<layer>.x_rho_{part}", "role": f"{part}_std", "transform": "exp"})
    with pytest.raises(AssertionError):
        agree(module, from_tensors(wrong, table={"tensors": table}, **SETTINGS), (3,))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    torch.manual_seed(0)
    dense = DENSE[name][1]
    module = Chain(CONVOLUTIONS[name](), nn.Tanh(), nn.Flatten(), dense(2 * 2 * 2, 2))
    given = Architecture("regression", layers=IMAGES, input_shape=(1, 4, 4))
    found = from_tensors(module.state_dict(), given)
    assert found.digest() == bnndp.from_module(module, input_shape=(1, 4, 4), task="regression").digest()
    agree(module, found, (1, 4, 4))


def test_blitz_after_a_move_keeps_old_means_beside_the_trained_ones() -> None:
    """Moved to another dtype, only the sampler's parameters are trained; those are read."""
    torch.manual_seed(0)
    module = blitz(2, 1).double()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
    module(torch.ones(4, 2, dtype=torch.float64)).sum().backward()
    optimiser.step()
    state = module.state_dict()
    assert not torch.equal(state["weight_mu"], state["weight_sampler.mu"])
    found = from_tensors(state, **SETTINGS)
    assert torch.equal(found.linears[0].weight_mean, state["weight_sampler.mu"])
    agree(lambda x: module(x.double()), found, (2,))


def test_blitz_without_a_bias_keeps_one() -> None:
    torch.manual_seed(0)
    module = blitz(3, 2, bias=False)
    assert "bias_mu" in module.state_dict()
    found = from_tensors(module.state_dict(), bias=False, **SETTINGS)
    assert found.digest() == bnndp.from_module(module, task="regression").digest()  # which sees that there is none
    agree(module, found, (3,))


def test_a_frozen_layer_of_torchbnn() -> None:
    torch.manual_seed(0)
    module: Any = torchbnn(3, 2)
    before = from_tensors(module.state_dict(), **SETTINGS)
    module.freeze()
    assert "weight_eps" in module.state_dict()
    assert from_tensors(module.state_dict(), **SETTINGS).digest() == before.digest()
    with pytest.raises(bnndp.CertError, match="it is frozen"):
        bnndp.from_module(module, task="regression")


def trained_by_ivon(groups: bool) -> tuple[nn.Module, Any]:
    ivon = library("ivon")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    given = [{"params": module[2].parameters(), "weight_decay": 0.1}, {"params": module[0].parameters()}]
    optimiser = ivon.IVON(given if groups else module.parameters(), lr=0.05, ess=20, hess_init=0.5, beta2=0.9)
    x = torch.randn(32, 3)
    for _ in range(20):
        with optimiser.sampled_params(train=True):
            optimiser.zero_grad()
            (module(x) - x[:, :2]).square().mean().backward()
        optimiser.step()
    return module, optimiser


@pytest.mark.parametrize("groups", [False, True], ids=["one group", "two groups"])
def test_ivon(groups: bool) -> None:
    module, optimiser = trained_by_ivon(groups)
    names = ["2.weight", "2.bias", "0.weight", "0.bias"] if groups else None
    found = from_ivon(module, optimiser, parameters=names, **SETTINGS)

    def draw(x: Tensor) -> Tensor:
        with optimiser.sampled_params():
            return module(x)

    agree(draw, found, (3,))


def test_an_ivon_checkpoint() -> None:
    module, optimiser = trained_by_ivon(False)
    both = flat({"model": module.state_dict(), "optimizer": optimiser.state_dict(), "epoch": 5})
    found = importer_for(both)
    assert found.name == "ivon"
    read = posterior_of(found.read(both, Choices()), RELUS)
    assert read.digest() == from_ivon(module, optimiser, **SETTINGS).digest()
