"""Guides that Pyro itself made: live, as a state_dict, as a ParamStore in a file; samples agree with those of Pyro."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
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


def test_the_three_ways_to_an_auto_normal_agree(fresh: Any, tmp_path: Path) -> None:
    body, guide = trained(fresh, "AutoNormal")
    live = bnndp.importers.from_pyro(guide, table=IGNORE)
    assert live.digest() == bnndp.importers.from_pyro(guide.state_dict(), table=IGNORE).digest()
    assert live.digest() == bnndp.importers.from_pyro(fresh.get_param_store(), table=IGNORE).digest()
    for index, layer in enumerate(live.linears):  # type: ignore[union-attr]
        scale = getattr(guide.scales.net, str(2 * index)).weight
        torch.testing.assert_close(layer.weight_std.float(), scale.detach(), rtol=1e-6, atol=0)
    expect_same_mean(sampled(fresh, body, guide, X), live, X)
    fresh.get_param_store().save(str(tmp_path / "store.pt"))
    (tmp_path / "table.json").write_text('{"ignore": ["sigma"]}')
    assert converted(tmp_path).digest() == live.digest()


def converted(folder: Path) -> Any:
    from bnndp.importers.convert import Asked

    return convert(folder / "store.pt", asked=Asked(table=folder / "table.json")).posterior


def test_a_live_guide_knows_its_own_transform(fresh: Any) -> None:
    _, guide = trained(fresh, "AutoNormal")
    softplus = bnndp.importers.from_pyro(guide, table=IGNORE)
    guide.scales.net.__getattr__("0")._pyro_params["weight"] = (torch.distributions.constraints.positive, None)
    exp = bnndp.importers.from_pyro(guide, table=IGNORE)
    raw = guide.state_dict()["scales.net.0.weight_unconstrained"].double()
    assert torch.equal(exp.linears[0].weight_std, raw.exp())  # type: ignore[union-attr]
    assert not torch.equal(exp.linears[0].weight_std, softplus.linears[0].weight_std)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["AutoDiagonalNormal", "AutoMultivariateNormal", "AutoLowRankMultivariateNormal"])
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
    assert network.digest() == bnndp.importers.from_pyro(fresh.get_param_store(), table=IGNORE).digest()
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
    ensemble = bnndp.importers.from_samples(samples)
    outputs = fresh.infer.Predictive(body, chain.get_samples(), return_sites=("_RETURN",))(X)["_RETURN"]
    bounds = bnndp.certify(ensemble, bnndp.Box.ball(X.double(), 0.0))
    torch.testing.assert_close(bounds.lower.float(), outputs.mean(0).detach(), rtol=1e-4, atol=1e-5)
