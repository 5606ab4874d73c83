"""Guides that Pyro itself made: live, as a state_dict, as a ParamStore in a file; samples agree with those of Pyro."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.foreign_states import RELUS, SETTINGS
from support.site_states import covariance, expect_same_mean, library
from torch import Tensor, nn

import bnndp
from bnndp.errors import InputError, ModelFileError
from bnndp.importers.convert import convert
from bnndp.layers import CorrelatedLinear

IGNORE = {"ignore": ["sigma"]}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[Any]:
    """Pyro with an empty store; its warnings are none of ours."""
    pyro = library("pyro")
    library("pyro.infer.autoguide")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pyro.clear_param_store()
        pyro.set_rng_seed(3)
        yield pyro
        pyro.clear_param_store()


def model(pyro: Any, *, fixed: bool = False, positive: bool = False) -> Any:
    """3-4-2 with normal priors, of the last layer alone if the first is ``fixed``, and noise of unknown size."""
    dist, nns = pyro.distributions, pyro.nn

    class Model(nns.PyroModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            linear = nns.PyroModule[nn.Linear]
            self.net = nns.PyroModule[nn.Sequential](linear(3, 4), nn.ReLU(), linear(4, 2))
            for index in (2,) if fixed else (0, 2):
                for name, value in list(self.net[index].named_parameters()):
                    base = dist.LogNormal(0.0, 1.0) if positive else dist.Normal(0.0, 1.0)
                    setattr(self.net[index], name, nns.PyroSample(base.expand(value.shape).to_event(value.ndim)))
            self.sigma = nns.PyroSample(dist.LogNormal(0.0, 1.0))

        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            mean, sigma = self.net(x), self.sigma
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Normal(mean, sigma).to_event(1), obs=y)
            return mean

    return Model()


def trained(pyro: Any, kind: str, **settings: bool) -> tuple[Any, Any]:
    """A guide after a few steps, so that its values are those of training."""
    torch.manual_seed(0)
    body = model(pyro, **settings)
    guide = getattr(pyro.infer.autoguide, kind)(body)
    inference = pyro.infer.SVI(body, guide, pyro.optim.Adam({"lr": 0.05}), pyro.infer.Trace_ELBO())
    x = torch.randn(20, 3)
    for _ in range(15):
        inference.step(x, torch.stack([x.sum(1), x[:, 0] ** 2], 1))
    return body, guide


def sampled(pyro: Any, body: Any, guide: Any, x: Tensor, draws: int = 400) -> Tensor:
    """Outputs of the network itself with weights that the guide draws."""
    found = []
    with torch.no_grad():
        for _ in range(draws):
            trace = pyro.poutine.trace(guide).get_trace(x)
            found.append(pyro.poutine.replay(body, trace=trace)(x))
    return torch.stack(found)


X = torch.tensor([[0.3, -0.2, 0.9], [1.0, 0.5, -1.5]])


@pytest.mark.usefixtures("no_child")
def test_the_three_ways_to_an_auto_normal_agree(fresh: Any, tmp_path: Path) -> None:
    body, guide = trained(fresh, "AutoNormal")
    live = bnndp.importers.from_pyro(guide, table=IGNORE)
    assert live.digest() == bnndp.importers.from_pyro(guide.state_dict(), table=IGNORE, **SETTINGS).digest()
    assert live.digest() == bnndp.importers.from_pyro(fresh.get_param_store(), table=IGNORE, **SETTINGS).digest()
    for index, layer in enumerate(live.linears):  # type: ignore[union-attr]
        scale = getattr(guide.scales.net, str(2 * index)).weight
        torch.testing.assert_close(layer.weight_std.float(), scale.detach(), rtol=1e-6, atol=0)
    expect_same_mean(sampled(fresh, body, guide, X), live, X)
    fresh.get_param_store().save(str(tmp_path / "store.pt"))
    (tmp_path / "table.json").write_text('{"ignore": ["sigma"]}')
    assert converted(tmp_path).digest() == live.digest()


def converted(folder: Path) -> Any:
    from bnndp.importers.convert import ConvertOptions

    return convert(folder / "store.pt", RELUS, options=ConvertOptions(table=folder / "table.json")).posterior


def test_a_live_guide_knows_its_own_transform(fresh: Any) -> None:
    _, guide = trained(fresh, "AutoNormal")
    softplus = bnndp.importers.from_pyro(guide, table=IGNORE)
    guide.scales.net.__getattr__("0")._pyro_params["weight"] = (torch.distributions.constraints.positive, None)
    exp = bnndp.importers.from_pyro(guide, table=IGNORE)
    raw = guide.state_dict()["scales.net.0.weight_unconstrained"].double()
    assert torch.equal(exp.linears[0].weight_std, raw.exp())  # type: ignore[union-attr]
    assert not torch.equal(exp.linears[0].weight_std, softplus.linears[0].weight_std)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "kind",
    [
        "AutoLowRankMultivariateNormal",  # it has both stds and a factor
        pytest.param("AutoDiagonalNormal", marks=pytest.mark.slow),
        pytest.param("AutoMultivariateNormal", marks=pytest.mark.slow),
    ],
)
def test_a_live_guide_knows_the_order_of_its_vector(fresh: Any, kind: str) -> None:
    body, guide = trained(fresh, kind, fixed=True)
    network = bnndp.importers.from_pyro(guide, network=body.net, table=IGNORE)
    expect_same_mean(sampled(fresh, body, guide, X), network, X)
    last = network.layers[2]  # type: ignore[union-attr]
    wanted = guide.get_posterior()
    size = 10  # the noise is after the weights
    if kind == "AutoDiagonalNormal":
        found = torch.cat([last.weight_std.flatten(), last.bias_std])
        torch.testing.assert_close(found.float(), wanted.base_dist.scale.detach()[:size], rtol=1e-5, atol=1e-7)
    else:
        assert isinstance(last, CorrelatedLinear)
        covered = wanted.covariance_matrix.detach()[:size, :size]
        torch.testing.assert_close(covariance(last).float(), covered, rtol=1e-4, atol=1e-6)


def test_all_layers_at_once_are_refused(fresh: Any) -> None:
    _, guide = trained(fresh, "AutoMultivariateNormal")
    with pytest.raises(ModelFileError, match=r"weights of the layers 'net.0' and 'net.2' are correlated"):
        bnndp.importers.from_pyro(guide, table=IGNORE)


def test_a_point(fresh: Any) -> None:
    body, guide = trained(fresh, "AutoDelta")
    network = bnndp.importers.from_pyro(guide, table=IGNORE)
    assert network.digest() == bnndp.importers.from_pyro(fresh.get_param_store(), table=IGNORE, **SETTINGS).digest()
    assert not network.random  # type: ignore[union-attr]
    torch.testing.assert_close(
        bnndp.certify(network, bnndp.Box.ball(X.double(), 0.0)).lower.float(),
        sampled(fresh, body, guide, X, 1)[0],
        rtol=1e-5,
        atol=1e-5,
    )


def test_weights_that_are_not_gaussian_are_refused(fresh: Any) -> None:
    _, guide = trained(fresh, "AutoNormal", positive=True)
    with pytest.raises(InputError, match=r"site 'net.0.weight' has the support .*, not all real numbers"):
        bnndp.importers.from_pyro(guide, table=IGNORE)


def test_a_guide_that_never_ran(fresh: Any) -> None:
    with pytest.raises(InputError, match="the guide has no parameters: run it once"):
        bnndp.importers.from_pyro(fresh.infer.autoguide.AutoNormal(model(fresh)))


def test_samples_of_a_chain(fresh: Any) -> None:
    body = model(fresh)
    x = torch.randn(10, 3)
    chain = fresh.infer.MCMC(
        fresh.infer.NUTS(body, max_tree_depth=2), num_samples=8, warmup_steps=2, disable_progbar=True
    )
    chain.run(x, x[:, :2])
    samples = {name: value for name, value in chain.get_samples().items() if name != "sigma"}
    ensemble = bnndp.importers.from_samples(samples, **SETTINGS)
    outputs = fresh.infer.Predictive(body, chain.get_samples(), return_sites=("_RETURN",))(X)["_RETURN"]
    bounds = bnndp.certify(ensemble, bnndp.Box.ball(X.double(), 0.0))
    torch.testing.assert_close(bounds.lower.float(), outputs.mean(0).detach(), rtol=1e-4, atol=1e-5)


# What a live guide says of its network


def classifier(pyro: Any, finish: str = "logits", act: Any = torch.relu) -> Any:
    """3-4-5-2 with a module and a function between its layers; ``finish`` is what becomes of its outputs."""
    dist, nns = pyro.distributions, pyro.nn

    class Model(nns.PyroModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            linear = nns.PyroModule[nn.Linear]
            self.out, self.first, self.middle = linear(5, 2), linear(3, 4), linear(4, 5)
            self.tanh = nns.PyroModule[nn.Tanh]()
            self.scale = nns.PyroParam(torch.tensor(0.5), constraint=dist.constraints.positive)
            for layer in (self.out, self.first, self.middle):
                for name, value in list(layer.named_parameters()):
                    setattr(layer, name, nns.PyroSample(dist.Normal(0.0, 1.0).expand(value.shape).to_event(value.ndim)))

        def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
            outputs = self.out(act(self.middle(self.tanh(self.first(x)))))
            pyro.deterministic("outputs", outputs)
            law = {
                "logits": lambda: dist.Categorical(logits=outputs),
                "probs": lambda: dist.Categorical(probs=outputs.softmax(-1)),
                "halved": lambda: dist.Categorical(logits=outputs / 2),
                "normal": lambda: dist.Normal(outputs, self.scale).to_event(1),
                "student": lambda: dist.StudentT(5.0, outputs, self.scale).to_event(1),
                "poisson": lambda: dist.Poisson(outputs.exp()).to_event(1),
                "bernoulli": lambda: dist.Bernoulli(logits=outputs).to_event(1),
            }[finish]()
            with pyro.plate("data", len(x)):
                drawn = pyro.sample("obs", law, obs=y)
            return outputs if finish in ("poisson", "halved") else drawn

    return Model()


def fitted(pyro: Any, body: Any, kind: str = "AutoNormal") -> Any:
    guide = getattr(pyro.infer.autoguide, kind)(body)
    y = pyro.poutine.trace(body).get_trace(X).nodes["obs"]["value"]
    pyro.infer.SVI(body, guide, pyro.optim.Adam({"lr": 0.01}), pyro.infer.Trace_ELBO()).step(X, y)
    return guide


LAYERS = ["linear", "tanh", "linear", "relu", "linear"]


@pytest.mark.parametrize(
    "kind",
    ["AutoDelta", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("AutoNormal", "AutoDiagonalNormal"))],
)
def test_a_live_guide_says_its_layers_in_the_order_in_which_they_are_run(fresh: Any, kind: str) -> None:
    body = classifier(fresh)
    guide = fitted(fresh, body, kind)
    store = set(fresh.get_param_store().keys())
    with pytest.raises(InputError, match=r"between 'middle' and 'out' .* needs a name: activation='relu'"):
        bnndp.importers.from_pyro(guide)
    network = bnndp.importers.from_pyro(guide, activation="relu")
    assert ([layer.kind for layer in network.layers], network.task) == (LAYERS, "classification")  # type: ignore[union-attr]
    assert network.sizes == (3, 4, 5, 2)  # type: ignore[union-attr]
    assert set(fresh.get_param_store().keys()) == store
    bounds = bnndp.certify(network, bnndp.Box.ball(X.double(), 1e-9), bnndp.Options(refine=8))
    draws = []
    with torch.no_grad():
        for _ in range(400):
            trace = fresh.poutine.trace(guide).get_trace(X)
            nodes = fresh.poutine.trace(fresh.poutine.replay(body, trace=trace)).get_trace(X).nodes
            draws.append(nodes["outputs"]["value"].softmax(-1))
    softmax = torch.stack(draws).double()
    error = 5 * softmax.std(0) / 20 + 1e-5
    assert bool((bounds.lower - error <= softmax.mean(0)).all())
    assert bool((softmax.mean(0) <= bounds.upper + error).all())


def test_a_live_guide_is_not_contradicted(fresh: Any) -> None:
    guide = fitted(fresh, classifier(fresh))
    with pytest.raises(InputError, match="an activation is not the one named"):
        bnndp.importers.from_pyro(guide, activation="tanh")
    with pytest.raises(InputError, match="is said to be regression, but what was trained is for classification"):
        bnndp.importers.from_pyro(guide, activation="relu", task="regression")
    modules = fitted(fresh, classifier(fresh, act=nn.Identity()))
    assert [layer.kind for layer in bnndp.importers.from_pyro(modules).layers] == ["linear", "tanh", "linear", "linear"]  # type: ignore[union-attr]
    with pytest.raises(InputError, match="'relu' is not what the module has between its layers: tanh"):
        bnndp.importers.from_pyro(modules, activation="relu")
    names = {"first": "tanh", "middle": "relu", "out": ""}
    layers = [({"type": "linear", "name": name}, {"type": kind}) for name, kind in names.items()]
    right = tuple(entry for pair in layers for entry in pair)[:-1]
    wanted = bnndp.importers.from_pyro(guide, activation="relu").digest()
    assert bnndp.importers.from_pyro(guide, bnndp.importers.Architecture(layers=right)).digest() == wanted
    wrong = (*right[:3], {"type": "tanh"}, right[4])
    with pytest.raises(InputError, match="the architecture contradicts the live network"):
        bnndp.importers.from_pyro(guide, bnndp.importers.Architecture(layers=wrong))


TASKS = {"logits": "classification", "normal": "regression", "student": "regression"}


@pytest.mark.parametrize("finish", TASKS)
def test_the_task_is_that_of_what_is_observed(fresh: Any, finish: str) -> None:
    assert bnndp.importers.from_pyro(fitted(fresh, classifier(fresh, finish)), activation="relu").task == TASKS[finish]


@pytest.mark.parametrize("finish", ["poisson", "bernoulli"])
def test_a_task_that_is_not_known_must_be_given(fresh: Any, finish: str) -> None:
    guide = fitted(fresh, classifier(fresh, finish))
    with pytest.raises(InputError, match="nothing is guessed: give the task"):
        bnndp.importers.from_pyro(guide, activation="relu")
    assert bnndp.importers.from_pyro(guide, activation="relu", task="regression").task == "regression"


@pytest.mark.parametrize("finish", ["probs", "halved"])
def test_outputs_that_are_changed_are_refused(fresh: Any, finish: str) -> None:
    guide = fitted(fresh, classifier(fresh, finish))
    with pytest.raises(InputError, match="the model changes the output of 'out' before it is observed"):
        bnndp.importers.from_pyro(guide, activation="relu", task="classification")


def test_models_that_say_nothing_must_be_described(fresh: Any) -> None:
    dist = fresh.distributions

    def by_hand(x: Tensor, y: Tensor | None = None) -> None:
        first = fresh.sample("w1", dist.Normal(0.0, 1.0).expand([3, 4]).to_event(2))
        last = fresh.sample("w2", dist.Normal(0.0, 1.0).expand([4, 2]).to_event(2))
        with fresh.plate("data", len(x)):
            fresh.sample("obs", dist.Categorical(logits=torch.tanh(x @ first) @ last), obs=y)

    guide = fitted(fresh, by_hand)
    with pytest.raises(InputError, match=r"give the activation between its layers .* and the task"):
        bnndp.importers.from_pyro(guide)
    assert bnndp.importers.from_pyro(guide, activation="tanh", task="classification").sizes == (3, 4, 2)  # type: ignore[union-attr]
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    fresh.nn.module.to_pyro_module_(net)
    for layer in (net[0], net[2]):
        for name, value in list(layer.named_parameters()):
            setattr(layer, name, fresh.nn.PyroSample(dist.Normal(0.0, 1.0).expand(value.shape).to_event(value.ndim)))
    alone = fresh.infer.autoguide.AutoNormal(net)  # as TyXe has it: the likelihood is not part of the model
    alone(X)
    with pytest.raises(InputError, match="nothing is guessed: give the task"):
        bnndp.importers.from_pyro(alone)
    assert (
        repr(bnndp.importers.from_pyro(alone, task="regression"))
        == "BayesianNetwork(3-4-2, regression, linear tanh linear)"
    )
