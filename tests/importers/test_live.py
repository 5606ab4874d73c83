"""Live objects say what their networks are: activations by position, and the task; they must not be contradicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bnndp
from bnndp.errors import CertError, InputError, ModelFileError, UnsupportedLayerError
from bnndp.importers import Architecture, from_laplace, from_posteriors


class Approximation:
    """As a Laplace approximation of laplace-torch with a diagonal: its model, its likelihood and its state."""

    def __init__(self, model: nn.Module, likelihood: str = "classification", precision: float = 4.0) -> None:
        self.model, self.likelihood, self.precision = model, likelihood, precision

    def state_dict(self) -> dict[str, object]:
        mean = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        return {
            "mean": mean, "H": torch.zeros(len(mean)), "prior_precision": torch.tensor(self.precision),
            "sigma_noise": 1.0, "temperature": 1.0, "likelihood": self.likelihood, "cls_name": "DiagLaplace",
        }  # fmt: skip


def classifier(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def kinds(network: Any) -> list[str]:
    return [layer.kind for layer in network.layers]


def sampled_softmax(model: nn.Module, std: float, x: Tensor, draws: int) -> tuple[Tensor, Tensor]:
    """Mean over draws of all weights, by torch alone, and five times its error: (points, classes) each."""
    generator = torch.Generator().manual_seed(7)
    means = {name: value.detach().double() for name, value in model.named_parameters()}
    found = []
    for _ in range(draws):
        weights = {
            name: mean + std * torch.randn(mean.shape, generator=generator).double() for name, mean in means.items()
        }
        found.append(torch.func.functional_call(model, weights, x).softmax(-1))
    outputs = torch.stack(found)
    return outputs.mean(0), 5 * outputs.std(0) / draws**0.5


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3))])
def test_bounds_of_a_live_classifier_contain_what_it_does(seed: int) -> None:
    model: Any = classifier(seed)
    with torch.no_grad():
        for index in (0, 2, 4):
            model[index].weight.mul_(4)  # type: ignore[operator]  # so that tanh and relu differ
    network = from_laplace(Approximation(model, precision=400.0))
    assert kinds(network) == ["linear", "tanh", "linear", "relu", "linear"]
    assert network.task == "classification"
    box = bnndp.Box.ball(torch.randn(1, 2).double(), 0.01)
    bounds = bnndp.certify(network, box)
    x = box.lower + (box.upper - box.lower) * torch.rand(20, 2).double()
    mean, error = sampled_softmax(model, 400.0**-0.5, x, 1000)
    assert bool((bounds.lower - error <= mean).all())
    assert bool((mean <= bounds.upper + error).all())
    state = model.state_dict()
    other = from_laplace(Approximation(model, precision=400.0).state_dict(), state, activation="relu")
    wrong = bnndp.certify(other, box)  # of another network: the test would notice
    assert bool((mean < wrong.lower - error).any() or (wrong.upper + error < mean).any())


def test_a_network_beside_a_state_says_its_activations() -> None:
    model = classifier()
    found = Approximation(model)
    wanted = from_laplace(found).digest()
    assert from_laplace(found.state_dict(), model).digest() == wanted
    assert from_laplace(found, model.state_dict()).digest() == wanted  # the live approximation says them
    with pytest.raises(InputError, match="nothing is guessed: give the activation between its layers"):
        from_laplace(found.state_dict(), model.state_dict())
    with pytest.raises(InputError, match="is said to be regression, but what was trained is for classification"):
        from_laplace(found, task="regression")
    for activation in ("relu", "tanh"):
        with pytest.raises(InputError, match=f"'{activation}' is not what the module has between its layers: tanh, re"):
            from_laplace(found, activation=activation)
    reward = Approximation(model, "reward_modeling")
    with pytest.raises(InputError, match="nothing is guessed: give the task"):
        from_laplace(reward)


def test_a_network_without_hidden_layers_needs_no_activation() -> None:
    for model in (nn.Sequential(nn.Linear(2, 3)), nn.Linear(2, 3)):
        found = Approximation(model, "regression")
        assert kinds(from_laplace(found)) == ["linear"]
        assert from_laplace(found.state_dict(), model.state_dict()).task == "regression"


class FeatureExtractor(nn.Module):
    """As laplace-torch has it around the network of a last-layer approximation."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)  # type: ignore[no-any-return]


class Scaled(FeatureExtractor):
    def forward(self, x: Tensor) -> Tensor:
        return self.model(x / 255)  # type: ignore[no-any-return]


def test_wrappers_are_read_for_what_they_do() -> None:
    model = classifier()
    wanted = from_laplace(Approximation(model)).digest()
    wrapped = Approximation(FeatureExtractor(model))
    assert from_laplace(wrapped).digest() == wanted
    with pytest.raises(InputError, match=r"between the inputs and 'model.0' the module does something"):
        from_laplace(Approximation(Scaled(model)))


class Net(nn.Module):
    """Layers that are defined in another order than they are run in; what is between the last two may be anything."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.last, self.middle, self.first = nn.Linear(4, 2), nn.Linear(4, 4), nn.Linear(4, 4)
        self.tanh, self.act = nn.Tanh(), act

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.middle(self.tanh(self.first(x)))))  # type: ignore[no-any-return]


def test_layers_are_in_the_order_in_which_they_are_run() -> None:
    model = Net(torch.relu)
    found = Approximation(model, "regression")
    with pytest.raises(InputError, match=r"between 'middle' and 'last' .* needs a name: activation='relu'"):
        from_laplace(found)
    network = from_laplace(found, activation="relu")
    assert kinds(network) == ["linear", "tanh", "linear", "relu", "linear"]
    for layer, part in zip(network.layers[::2], (model.first, model.middle, model.last), strict=True):
        assert torch.equal(layer.weight_mean, part.weight.detach().double())
    with pytest.raises(InputError, match="an activation is not the one named"):
        from_laplace(found, activation="tanh")


def layers(*parts: str) -> tuple[dict[str, Any], ...]:
    own = ("first", "middle", "last")
    return tuple({"type": "linear", "name": part} if part in own else {"type": part} for part in parts)


def test_described_layers_must_be_those_that_are_run() -> None:
    found = Approximation(Net(torch.relu), "regression")
    wanted = from_laplace(found, activation="relu").digest()
    right = Architecture(layers=layers("first", "tanh", "middle", "relu", "last"))
    assert from_laplace(found, None, right).digest() == wanted
    for wrong in (("first", "tanh", "middle", "tanh", "last"), ("middle", "tanh", "first", "relu", "last")):
        with pytest.raises(InputError, match="the architecture contradicts the live network"):
            from_laplace(found, None, Architecture(layers=layers(*wrong)))
    added = Approximation(Net(lambda z: z + 1), "regression")
    for said in ({}, {"activation": "relu"}):
        with pytest.raises(InputError, match="between 'middle' and 'last' the module does something"):
            from_laplace(added, **said)


def test_dropout_must_be_described() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1))
    found = Approximation(model, "regression")
    with pytest.raises(InputError, match=r"'2': it is dropout, .*; an Architecture can say its input_shape, or its la"):
        from_laplace(found)
    entries: list[dict[str, Any]] = [{"type": "linear", "name": "0"}, {"type": "relu"}, {"type": "linear", "name": "3"}]
    assert kinds(from_laplace(found, None, Architecture(layers=tuple(entries))))[1] == "relu"
    entries.insert(2, {"type": "dropout", "rate": 0.5, "law": "bernoulli", "channels": False})
    masked = from_laplace(found, None, Architecture(layers=tuple(entries)))
    assert kinds(masked) == ["linear", "relu", "dropout", "linear"]
    entries[1] = {"type": "tanh"}
    with pytest.raises(InputError, match="contradicts the live network"):
        from_laplace(found, None, Architecture(layers=tuple(entries)))


def test_images() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.SiLU(), nn.Flatten(), nn.Linear(18, 2))
    found = Approximation(model, "regression")
    with pytest.raises(InputError, match="input_shape must be given"):
        from_laplace(found)
    network = from_laplace(found, architecture=Architecture(input_shape=(1, 8, 8)))
    assert kinds(network) == ["conv2d", "silu", "flatten", "linear"]
    assert (network.layers[0].stride, network.sizes) == ((2, 2), (64, 18, 2))


def test_a_layer_in_two_places_is_refused() -> None:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    params = {name: value.detach().abs() for name, value in model.named_parameters()}  # those of the layer once
    with pytest.raises(UnsupportedLayerError, match="is run more than once: layers must be independent"):
        from_posteriors({"params": params, "sd_diag": params}, network=model, task="regression")


def test_activations_with_settings() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.LeakyReLU(0.3), nn.Linear(4, 4), nn.ELU(0.5), nn.Linear(4, 1))
    network = from_laplace(Approximation(model, "regression"))
    assert kinds(network)[1::2] == ["leaky_relu", "elu"]
    assert (network.layers[1].negative_slope, network.layers[3].alpha) == (0.3, 0.5)
    with pytest.raises(CertError, match="there is no rule for Mish"):
        from_laplace(Approximation(nn.Sequential(nn.Linear(2, 2), nn.Mish(), nn.Linear(2, 1)), "regression"))


def test_layers_without_an_activation_between_them() -> None:
    found = Approximation(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)), "regression")
    assert kinds(from_laplace(found)) == ["linear", "linear"]
    with pytest.raises(InputError, match="activation='relu', but the module has none between its layers"):
        from_laplace(found, activation="relu")


def test_a_network_of_posteriors() -> None:
    model = classifier()
    params = {name: value.detach() for name, value in model.named_parameters()}
    whole = {"params": params, "sd_diag": {name: torch.ones_like(value) for name, value in params.items()}}
    last = {name: {key: value for key, value in part.items() if key[0] == "4"} for name, part in whole.items()}
    for state in (whole, last):
        network = from_posteriors(state, network=model, task="classification")
        assert kinds(network) == ["linear", "tanh", "linear", "relu", "linear"]
        with pytest.raises(InputError, match="'relu' is not what the module has between its layers: tanh, relu"):
            from_posteriors(state, network=model, task="classification", activation="relu")
        with pytest.raises(InputError, match="give the task"):
            from_posteriors(state, network=model)


def test_a_network_with_some_of_the_layers() -> None:
    """What is around it is not known, but it must not be contradicted."""
    body = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    params = {"4.weight": torch.ones(1, 4), "4.bias": torch.ones(1)}
    state = {"params": params, "sd_diag": params}
    with pytest.raises(InputError, match="give the activation between its layers"):
        from_posteriors(state, network=body, task="regression")
    with pytest.raises(InputError, match="'relu' is not what the module has between its layers: tanh, tanh"):
        from_posteriors(state, network=body, task="regression", activation="relu")
    network = from_posteriors(state, network=body, task="regression", activation="tanh")
    assert kinds(network) == ["linear", "tanh", "linear", "tanh", "linear"]


def test_layers_of_the_users_own_say_nothing() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T + self.bias

    class Two(nn.Module):
        def __init__(self, act: nn.Module | None = None) -> None:
            super().__init__()
            self.a, self.b = Own(), Own()
            self.act = act

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.tanh(self.a(x)) if self.act is None else self.act(self.a(x)))  # type: ignore[no-any-return]

    found = Approximation(Two(), "regression")
    with pytest.raises(InputError, match="give the activation between its layers"):
        from_laplace(found)
    assert kinds(from_laplace(found, activation="tanh")) == ["linear", "tanh", "linear"]
    with pytest.raises(CertError, match="input_shape must be given"):
        from_laplace(Approximation(Two(nn.Tanh()), "regression"), activation="relu")


def test_states_of_two_tasks_are_no_ensemble() -> None:
    from bnndp.importers.foreign import Imported
    from bnndp.importers.samples import join_members

    parts = [Imported(({},), "", task=task) for task in ("regression", "classification")]
    with pytest.raises(ModelFileError, match="part 1 is for classification, part 0 for regression"):
        join_members(parts)
    assert join_members(parts[:1] * 2).task == "regression"
