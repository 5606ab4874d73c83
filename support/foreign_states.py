"""State dicts in the names of other libraries, made by hand, with the posterior that each stands for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.importers.architecture import Architecture
from bnndp.network import BayesianNetwork

Layers = dict[str, dict[str, Tensor]]

SETTINGS = {"task": "regression", "activation": "relu"}
"""The settings of a regression network with ReLUs, which tensors do not say."""
RELUS = Architecture(**SETTINGS)


@dataclass(frozen=True)
class Library:
    """How a library names the tensors of a layer, and its standard deviation of a parameter, written independently."""

    weight: tuple[str, str]
    bias: tuple[str, str]
    std: Callable[[Tensor], Tensor]
    kernel: tuple[str, str] | None = None
    more: Callable[[str, Mapping[str, Tensor]], dict[str, Tensor]] = lambda name, tensors: {}


def softplus(rho: Tensor) -> Tensor:
    return torch.log1p(torch.exp(rho.double()))


def blitz(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies by other names, and the last draw."""
    found: dict[str, Tensor] = {}
    for part in ("weight", "bias"):
        for what in ("mu", "rho"):
            if f"{name}.{part}_sampler.{what}" in tensors:
                found[f"{name}.{part}_{what}"] = tensors[f"{name}.{part}_sampler.{what}"].clone()
                found[f"{name}.{part}_sampler.eps_w"] = torch.randn_like(tensors[f"{name}.{part}_sampler.mu"])
    return found


def torch_uncertainty(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The sampler's names for the same tensors, and the prior."""
    found: dict[str, Tensor] = {}
    for part in ("weight", "bias"):
        if f"{name}.{part}_mu" in tensors:
            found |= {
                f"{name}.{part}_sampler.mu": tensors[f"{name}.{part}_mu"],
                f"{name}.{part}_sampler.rho": tensors[f"{name}.{part}_sigma"],
                f"{name}.{part}_prior_dist.pi": torch.tensor([1.0, 0.0]),
                f"{name}.{part}_prior_dist.mus": torch.zeros(2),
                f"{name}.{part}_prior_dist.sigmas": torch.ones(2),
            }
    return found


LIBRARIES = {
    "bayesian-torch": Library(
        ("mu_weight", "rho_weight"), ("mu_bias", "rho_bias"), softplus, kernel=("mu_kernel", "rho_kernel")
    ),
    "blitz": Library(
        ("weight_sampler.mu", "weight_sampler.rho"), ("bias_sampler.mu", "bias_sampler.rho"), softplus, more=blitz
    ),
    "torchbnn": Library(
        ("weight_mu", "weight_log_sigma"), ("bias_mu", "bias_log_sigma"), lambda t: torch.exp(t.double())
    ),
    "torch-uncertainty": Library(
        ("weight_mu", "weight_sigma"), ("bias_mu", "bias_sigma"), softplus, more=torch_uncertainty
    ),
    "bayesian-cnn": Library(("W_mu", "W_rho"), ("bias_mu", "bias_rho"), softplus),
}


@dataclass(frozen=True)
class ForeignState:
    """A state_dict, and for each layer weight_mean, weight_std, bias_mean, bias_std in float64."""

    state: dict[str, Tensor]
    layers: Layers
    sizes: tuple[int, ...]


def dense(library: Library, seed: int, *, last_fixed: bool = False) -> ForeignState:
    """A chain of one to three dense layers of random sizes, some without biases; the last may be one of torch."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    sizes = [draw.randint(1, 5) for _ in range(draw.randint(2, 4))]
    state: dict[str, Tensor] = {}
    layers: Layers = {}
    for index, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        name, fixed = f"part.{2 * index}", last_fixed and index == len(sizes) - 2
        shape, biased = (n_out, n_in), draw.random() < 0.7
        new = fixed_tensors(name, shape, biased) if fixed else random_tensors(library, name, shape, biased)
        state |= new
        layers[name] = posterior(library, name, new)
    return ForeignState(state, layers, tuple(sizes))


def fixed_tensors(name: str, shape: tuple[int, ...], biased: bool) -> dict[str, Tensor]:
    found = {f"{name}.weight": torch.randn(shape)}
    return found | ({f"{name}.bias": torch.randn(shape[:1])} if biased else {})


def random_tensors(library: Library, name: str, shape: tuple[int, ...], biased: bool) -> dict[str, Tensor]:
    """Means near zero, parameters of standard deviations from -9 to 3."""
    pairs = [(library.weight if len(shape) == 2 else library.kernel or library.weight, shape)]
    pairs += [(library.bias, shape[:1])] if biased else []
    found: dict[str, Tensor] = {}
    for (mean, spread), size in pairs:
        found |= {f"{name}.{mean}": torch.randn(size), f"{name}.{spread}": 12 * torch.rand(size) - 9}
    return found | library.more(name, found)


def posterior(library: Library, name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The four tensors of a layer, by the library's own formula in float64."""
    found: dict[str, Tensor] = {}
    for part, pairs in (("weight", (library.weight, library.kernel)), ("bias", (library.bias,))):
        for pair in pairs:
            if pair is not None and f"{name}.{pair[0]}" in tensors:
                found[f"{part}_mean"] = tensors[f"{name}.{pair[0]}"].double()
                found[f"{part}_std"] = library.std(tensors[f"{name}.{pair[1]}"])
        if f"{name}.{part}" in tensors:
            found[f"{part}_mean"] = tensors[f"{name}.{part}"].double()
            found[f"{part}_std"] = torch.zeros_like(found[f"{part}_mean"])
    if "bias_mean" not in found:
        zeros = torch.zeros(found["weight_mean"].shape[0], dtype=torch.float64)
        found |= {"bias_mean": zeros, "bias_std": zeros}
    return found


def three_linears() -> dict[str, Tensor]:
    """Of a chain of three dense layers, the second without a bias."""
    torch.manual_seed(5)
    modules = (torch.nn.Linear(3, 4), torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 2))
    return torch.nn.Sequential(modules[0], torch.nn.ReLU(), modules[1], torch.nn.ReLU(), modules[2]).state_dict()


def check_linears(network: object, found: dict[str, Tensor]) -> None:
    """The network of ``three_linears()``, bit for bit."""
    assert isinstance(network, BayesianNetwork)
    assert not network.random
    assert network.sizes == (3, 4, 4, 2)
    for layer, name in zip(network.linears, ("0", "2", "4"), strict=True):
        assert torch.equal(layer.weight_mean, found[f"{name}.weight"].double())
        bias = found.get(f"{name}.bias")
        assert torch.equal(layer.bias_mean, torch.zeros(4).double() if bias is None else bias.double())
