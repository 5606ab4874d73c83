"""Guides and chains that NumPyro itself made; it is not among the packages of the tests (``make test-importers``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.foreign_states import SETTINGS
from support.site_states import expect_same_mean, library

import bnndp
from bnndp.importers import from_numpyro

X = np.array([[0.3, -0.2, 0.9], [1.0, 0.5, -1.5]], np.float32)


@pytest.fixture(scope="module")
def numpyro() -> Any:
    library("jax")
    library("numpyro.infer.autoguide")
    return library("numpyro")


def network(numpyro: Any, x: Any) -> Any:
    import jax.numpy as jnp

    def drawn(name: str, *shape: int) -> Any:
        return numpyro.sample(name, numpyro.distributions.Normal(0, 1).expand(shape).to_event(len(shape)))

    hidden = jnp.maximum(x @ drawn("w1", 3, 4) + drawn("b1", 4), 0)
    return hidden @ drawn("w2", 4, 2) + drawn("b2", 2)


def trained(numpyro: Any, kind: str) -> tuple[Any, dict[str, Any], Any]:
    """Guide, parameters, and 600 samples of the outputs."""
    import jax

    def model(x: Any, y: Any = None) -> None:
        mean = numpyro.deterministic("mean", network(numpyro, x))
        numpyro.sample("y", numpyro.distributions.Normal(mean, 0.1).to_event(1), obs=y)

    guide = getattr(numpyro.infer.autoguide, kind)(model)
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    inference = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(0.02), numpyro.infer.Trace_ELBO())
    found = inference.run(jax.random.PRNGKey(0), 50, x, x[:, :2], progress_bar=False)
    draws = numpyro.infer.Predictive(guide, params=found.params, num_samples=600)(jax.random.PRNGKey(1), x)
    outputs = numpyro.infer.Predictive(model, draws)(jax.random.PRNGKey(2), X)["mean"]
    return guide, found.params, torch.tensor(np.asarray(outputs))


@pytest.mark.parametrize("kind", ["AutoNormal", "AutoDiagonalNormal"])
def test_samples_agree(numpyro: Any, kind: str) -> None:
    guide, params, outputs = trained(numpyro, kind)
    order = [{"site": name, "shape": list(value.shape)} for name, value in guide._init_locs.items()]
    ours = from_numpyro(params, table={"sites": order} if kind == "AutoDiagonalNormal" else None, **SETTINGS)
    expect_same_mean(outputs, ours, torch.tensor(X))


def test_a_chain(numpyro: Any) -> None:
    import jax

    def model(x: Any, y: Any = None) -> None:
        mean = numpyro.deterministic("mean", network(numpyro, x))
        numpyro.sample("y", numpyro.distributions.Normal(mean, 0.1).to_event(1), obs=y)

    chain = numpyro.infer.MCMC(numpyro.infer.NUTS(model), num_warmup=5, num_samples=6, progress_bar=False)
    chain.run(jax.random.PRNGKey(0), X, X[:, :2])
    samples = chain.get_samples()
    mean = numpyro.infer.Predictive(model, samples)(jax.random.PRNGKey(2), X)["mean"].mean(0)
    ours = from_numpyro({name: value for name, value in samples.items() if name != "mean"}, **SETTINGS)
    bounds = bnndp.certify(ours, bnndp.Box.ball(torch.tensor(X).double(), 0.0))
    torch.testing.assert_close(bounds.lower.float(), torch.tensor(np.asarray(mean)), rtol=1e-4, atol=1e-4)
