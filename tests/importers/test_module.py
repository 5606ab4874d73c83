"""Live modules: layers are those that run, in the order in which they run; whatever else happens is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bnndp
from bnndp.errors import CertError, InputError, UnsupportedLayerError
from bnndp.network import BayesianNetwork

ACTIVATIONS = {
    "relu": nn.ReLU(),
    "leaky_relu": nn.LeakyReLU(0.2),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "softplus": nn.Softplus(),
    "elu": nn.ELU(0.7),
    "gelu": nn.GELU(),
    "silu": nn.SiLU(),
    "hard_tanh": nn.Hardtanh(),
}


def agree(network: BayesianNetwork, module: nn.Module, shape: tuple[int, ...]) -> None:
    """A network without variance gives what the module gives."""
    torch.manual_seed(1)
    x = torch.randn(5, *shape, dtype=torch.float64)
    module = module.double().eval()
    with torch.no_grad():
        wanted = module(x)
    bounds = bnndp.certify(network, bnndp.Box.ball(x.flatten(1), eps=0.0))
    assert torch.allclose(bounds.lower, wanted, atol=1e-7)
    assert torch.allclose(bounds.upper, wanted, atol=1e-7)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(kind: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 6), ACTIVATIONS[kind], nn.Linear(6, 2, bias=False))
    network = bnndp.from_module(module, task="regression")
    assert [layer.kind for layer in network.layers] == ["linear", kind, "linear"]
    agree(network, module, (3,))


class Images(nn.Module):
    """Children in another order than they are run in, functions between them, and a view."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 3)
        self.hidden = nn.Linear(2 * 2 * 2, 8)
        self.norm = nn.BatchNorm2d(2)
        self.first = nn.Conv2d(1, 2, 3, stride=2, padding=1)
        self.pool = nn.AvgPool2d(2)
        self.unused = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.first(x)))
        x = self.pool(x).view(len(x), -1)
        return self.last(functional.relu(self.hidden(x)))


def test_a_module_with_functions_in_its_forward() -> None:
    torch.manual_seed(0)
    module = Images()
    module(torch.randn(16, 1, 8, 8))  # running statistics
    modes = [part.training for part in module.modules()]
    network = bnndp.from_module(module, input_shape=(1, 8, 8), activation="relu", task="classification")
    kinds = ["conv2d", "relu", "average_pool", "flatten", "linear", "relu", "linear"]
    assert [layer.kind for layer in network.layers] == kinds
    assert network.task == "classification"
    assert [part.training for part in module.modules()] == modes
    agree(
        bnndp.from_module(module.double(), input_shape=(1, 8, 8), activation="relu", task="regression"),
        module,
        (1, 8, 8),
    )


def test_random_numbers_and_hooks_are_as_before() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 1))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    bnndp.from_module(module, task="regression")
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


# Gaussian layers, known by their parameters


class Reparameterised(nn.Module):
    """A layer in the names of bayesian-torch, which gives a divergence with its output."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.bias = in_features, True
        self.mu_weight = nn.Parameter(torch.randn(out_features, in_features))
        self.rho_weight = nn.Parameter(torch.randn(out_features, in_features) - 3)
        self.mu_bias = nn.Parameter(torch.randn(out_features))
        self.rho_bias = nn.Parameter(torch.randn(out_features) - 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.mu_weight + functional.softplus(self.rho_weight) * torch.randn_like(self.mu_weight)
        return functional.linear(x, weight, self.mu_bias), torch.zeros(())


class TwoLayers(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        self.b, self.a = Reparameterised(4, 2), Reparameterised(3, 4)
        self.change = change

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, first = self.a(x)
        x, second = self.b(self.change(x))
        return x, first + second


def test_gaussian_layers() -> None:
    torch.manual_seed(0)
    module = TwoLayers()
    network = bnndp.from_module(module, activation="tanh", input_shape=(3,), task="regression")
    assert [layer.kind for layer in network.layers] == ["linear", "tanh", "linear"]
    first, _, last = cast("tuple[Any, ...]", network.layers)
    for layer, part in ((first, module.a), (last, module.b)):
        assert torch.equal(layer.weight_mean, part.mu_weight.detach().double())
        assert torch.equal(layer.weight_std, torch.log1p(part.rho_weight.detach().double().exp()))
        assert torch.equal(layer.bias_std, torch.log1p(part.rho_bias.detach().double().exp()))


# What is refused


class Doing(nn.Module):
    """Two layers with something between them."""

    def __init__(self, act: Callable[[nn.Module, nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second, self.act = nn.Linear(3, 3), nn.Linear(3, 3), act

    def forward(self, x: Tensor) -> Any:
        return self.act(self.first, self.second, x)


WRONG: dict[str, tuple[Callable[[Any, Any, Tensor], Any], str]] = {
    "a function that has no name": (lambda f, g, x: g(torch.relu(f(x))), "between 'first' and 'second'"),
    "changed in place": (lambda f, g, x: g(f(x).mul_(2)), "between 'first' and 'second'"),
    "a sum": (lambda f, g, x: g(f(x) + x), "between 'first' and 'second'"),
    "inputs changed in place": (lambda f, g, x: g(f(x.mul_(2))), "between the inputs and 'first'"),
    "scaled inputs": (lambda f, g, x: g(f(x / 255)), "between the inputs and 'first'"),
    "a softmax at the end": (lambda f, g, x: torch.softmax(g(f(x)), -1), "between 'second' and the result"),
    "transposed": (lambda f, g, x: g(f(x).flip(1)), "between 'first' and 'second'"),
    "a result that is no tensor": (lambda f, g, x: {"y": g(f(x))}, "gives dict, not a tensor"),
    "a part that is not used": (lambda f, g, x: g(x) if f(x) is not None else x, "between 'first' and 'second'"),
    "a part in two places": (lambda f, g, x: g(f(x)) + f(x), "between 'second' and 'first'"),
    "a fault": (lambda f, g, x: g(f(x[:, :2])), "cannot be run on inputs of shape"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_chain_is_refused(case: str) -> None:
    act, words = WRONG[case]
    with pytest.raises(InputError, match=words):
        bnndp.from_module(Doing(act), task="regression")


def test_another_function_than_the_one_named_is_refused() -> None:
    with pytest.raises(InputError, match="an activation is not the one named"):
        bnndp.from_module(Doing(lambda f, g, x: g(torch.tanh(f(x)))), activation="relu", task="regression")
    with pytest.raises(InputError, match="activation must be one of"):
        bnndp.from_module(Doing(lambda f, g, x: g(f(x))), activation="mish", task="regression")
    assert bnndp.from_module(Doing(lambda f, g, x: g(f(x))), activation="relu", task="regression").sizes == (3, 3, 3)
    modules = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    with pytest.raises(InputError, match="'relu' is not what the module has between its layers: tanh, relu; leave"):
        bnndp.from_module(modules, activation="relu", task="regression")
    with pytest.raises(InputError, match="does not say its task; give task='regression' or task='classification'"):
        bnndp.from_module(modules)


def _frozen() -> nn.Module:
    module = TwoLayers()
    module.a.frozen = True  # type: ignore[assignment]
    return module


def _transposed() -> nn.Module:
    layer = Reparameterised(3, 4)
    layer.mu_weight, layer.rho_weight = (nn.Parameter(torch.zeros(4, 3, 1)) for _ in range(2))
    layer.forward = lambda x: (x.sum(-1, keepdim=True).repeat(1, 4), torch.zeros(()))  # type: ignore[method-assign]
    return layer


UNKNOWN: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "another layer": (
        lambda: nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)),
        {},
        "'1': there is no rule for LayerNorm",
    ),
    "a softmax at the end": (
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1)),
        {},
        "'1': Softmax is not a layer here: leave it out and give task='classification'",
    ),
    "an approximate GELU": (
        lambda: nn.Sequential(nn.Linear(2, 2), nn.GELU("tanh"), nn.Linear(2, 1)),
        {},
        "approximate is 'tanh'; only 'none'",
    ),
    "another softplus": (
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Softplus(2), nn.Linear(2, 1)),
        {},
        "'1': beta is 2",
    ),
    "groups": (lambda: nn.Sequential(nn.Conv2d(2, 2, 1, groups=2)), {"input_shape": (2, 3, 3)}, "groups is 2"),
    "dilation": (lambda: nn.Sequential(nn.Conv2d(1, 1, 2, dilation=2)), {"input_shape": (1, 4, 4)}, "dilation is"),
    "padding of copies": (
        lambda: nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")),
        {"input_shape": (1, 4, 4)},
        "padding_mode is 'reflect'",
    ),
    "padding in words": (
        lambda: nn.Sequential(nn.Conv2d(1, 1, 3, padding="same")),
        {"input_shape": (1, 4, 4)},
        "padding is 'same'",
    ),
    "pooling with padding": (
        lambda: nn.Sequential(nn.MaxPool2d(2, padding=1), nn.Flatten(), nn.Linear(4, 1)),
        {"input_shape": (1, 2, 2)},
        "padding is 1",
    ),
    "a norm after an activation": (
        lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.BatchNorm1d(2), nn.Linear(2, 1)),
        {},
        "'2': a batch norm can be folded only right after",
    ),
    "a norm of the batch": (
        lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)),
        {},
        "depends on the whole batch",
    ),
    "dropout without a word": (
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(2, 1)),
        {},
        "'1': say whether masks are drawn",
    ),
    "frozen": (_frozen, {"activation": "tanh", "input_shape": (3,)}, "'a': it is frozen"),
    "weights of three axes": (_transposed, {"input_shape": (3,)}, "with weights of 3 axes"),
    "no shape": (lambda: nn.Sequential(nn.Conv2d(1, 1, 1)), {}, "input_shape must be given"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_layers_that_cannot_be_read(case: str) -> None:
    make, settings, words = UNKNOWN[case]
    with pytest.raises(CertError, match=words):
        bnndp.from_module(make(), task="regression", **settings)


def test_a_gaussian_layer_in_two_places_is_refused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Reparameterised(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x)[0])[0]

    with pytest.raises(UnsupportedLayerError, match="'layer' is run more than once"):
        bnndp.from_module(Twice(), task="regression")
    shared = nn.Linear(2, 2)
    assert bnndp.from_module(nn.Sequential(shared, nn.Sequential(nn.ReLU(), shared)), task="regression").sizes == (
        2,
        2,
        2,
    )


@pytest.mark.parametrize("masks", [True, False])
def test_dropout_is_what_the_user_says(masks: bool) -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Dropout2d(0.25), nn.Flatten(), nn.Dropout(0.5), nn.Linear(2, 1))
    network = bnndp.from_module(module, input_shape=(1, 2, 2), mc_dropout=masks, task="regression")
    kinds = [layer.kind for layer in network.layers]
    assert kinds == (
        ["conv2d", "dropout", "flatten", "dropout", "linear"] if masks else ["conv2d", "flatten", "linear"]
    )
    if masks:
        assert [(layer.rate, layer.channels) for layer in network.layers if layer.kind == "dropout"] == [  # type: ignore[attr-defined]
            (0.25, True),
            (0.5, False),
        ]
