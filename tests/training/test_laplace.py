"""Last-layer Laplace against exact answers: Bayesian linear regression, the Hessian of softmax regression."""

from __future__ import annotations

import pytest
import torch
from support.dice import Dice
from tests.training.problems import design, linear_problem

from bnndp.activations import Relu
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.data import ClassificationData, RegressionData
from bnndp.errors import InputError
from bnndp.layers import CorrelatedLinear, Linear
from bnndp.network import BayesianNetwork
from bnndp.training.laplace import evidence, features, gauss_newton, last_layer
from bnndp.training.predictive import predict


def features_problem(classes: int = 3) -> tuple[BayesianNetwork, ClassificationData]:
    dice = Dice(0)
    first, last = (Linear.fixed(dice.normal(o, i), dice.normal(o)) for o, i in ((4, 2), (classes, 4)))
    network = BayesianNetwork((first, Relu(), last), "classification")
    x = dice.normal(60, 2)
    return network, ClassificationData(x, torch.randint(classes, (60,), generator=dice.generator), classes)


def test_regression_without_hidden_layers_is_bayesian_linear_regression() -> None:
    data, noise = linear_problem(), 0.5
    columns = design(data.x)  # (points, 4)
    precision = 3.0
    exact = columns.T @ columns / noise**2 + precision * torch.eye(4, dtype=torch.float64)
    mean = torch.linalg.solve(exact, columns.T @ data.y / noise**2)  # (4, 2)
    found = gauss_newton(columns, mean.T, noise) + precision * torch.eye(8, dtype=torch.float64)
    assert torch.allclose(found, torch.block_diag(exact, exact), rtol=1e-12)  # the outputs are independent


def test_evidence_is_that_of_bayesian_linear_regression() -> None:
    """Where the weights are the exact posterior mean for each precision the Laplace estimate is the evidence itself."""
    data, noise = linear_problem(n_out=1), 0.5
    columns = design(data.x)
    eye = torch.eye(4, dtype=torch.float64)

    def exact(precision: float) -> float:
        covariance = noise**2 * torch.eye(200, dtype=torch.float64) + columns @ columns.T / precision
        law = torch.distributions.MultivariateNormal(torch.zeros(200, dtype=torch.float64), covariance)
        return float(law.log_prob(data.y[:, 0]))

    def estimate(precision: float) -> float:
        curvature = columns.T @ columns / noise**2
        mode = torch.linalg.solve(curvature + precision * eye, columns.T @ data.y / noise**2).T  # (1, 4)
        fit = torch.distributions.Normal(columns @ mode.T, noise).log_prob(data.y).sum()
        values = torch.linalg.eigvalsh(curvature)
        return float(fit + evidence(values, mode, torch.tensor([precision], dtype=torch.float64)))

    for one, other in ((0.1, 1.0), (1.0, 30.0)):
        assert estimate(one) - estimate(other) == pytest.approx(exact(one) - exact(other), abs=1e-8)


def test_gauss_newton_is_the_hessian_of_softmax_regression() -> None:
    network, data = features_problem()
    phi = features(network, data.x)
    assert torch.equal(phi[:, -1], torch.ones(60, dtype=torch.float64))
    last = network.layers[-1]
    assert isinstance(last, Linear)
    mode = torch.cat([last.weight_mean, last.bias_mean[:, None]], 1)  # (3, 5)

    def loss(flat: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(phi @ flat.reshape(3, 5).T, data.y, reduction="sum")

    hessian = torch.autograd.functional.hessian(loss, mode.flatten())
    assert torch.allclose(gauss_newton(phi, mode, None), hessian, rtol=1e-9, atol=1e-10)


def test_the_posterior_of_a_last_layer() -> None:
    network, data = features_problem()
    found = last_layer(network, data, noise_std=1.0)
    head = found.network.layers[-1]
    assert isinstance(head, CorrelatedLinear)
    assert head.shared
    phi = features(network, data.x)
    mode = torch.cat([head.weight_mean, head.bias_mean[:, None]], 1)
    matrix = gauss_newton(phi, mode, None)
    factor = head.factor.reshape(15, -1)
    identity = (matrix + found.prior_precision * torch.eye(15, dtype=torch.float64)) @ factor @ factor.T
    assert torch.allclose(identity, torch.eye(15, dtype=torch.float64), atol=1e-8)
    values = torch.linalg.eigvalsh(matrix).clamp_min(0)
    grid = found.prior_precision * torch.logspace(-1, 1, 41, dtype=torch.float64)
    assert int(evidence(values, mode, grid).argmax()) == 20  # nothing near it is better
    cold = last_layer(network, data, noise_std=1.0, temperature=0.01)
    # of a margin: a shift of all logits together has the prior's variance at every temperature
    spread = [(f[0] - f[1]).square().sum().item() for f in (head.factor, cold.network.layers[-1].factor)]  # type: ignore[attr-defined]
    assert spread[1] < 0.2 * spread[0]


def test_predictions_of_a_last_layer_are_those_of_drawn_networks() -> None:
    network, data = features_problem()
    posterior = last_layer(network, data, noise_std=1.0).network
    found = predict(posterior, data.x[:5], draws=4000)
    outputs = evaluate(draw_networks(posterior, 4000, seed=9), data.x[:5])  # other draws
    assert torch.allclose(found.log_probability.exp(), outputs.softmax(-1).mean(0), atol=0.02)
    assert torch.allclose(found.logit_std, outputs.std(0), rtol=0.1)


def test_refusals() -> None:
    network, data = features_problem()
    posterior = last_layer(network, data, noise_std=1.0).network
    with pytest.raises(InputError, match="needs a network without variances"):
        last_layer(posterior, data, noise_std=1.0)
    wide = BayesianNetwork(
        (Linear.fixed(torch.ones(500, 2)), Relu(), Linear.fixed(torch.ones(10, 500))), "classification"
    )
    with pytest.raises(InputError, match="has 5010 weights and biases"):
        last_layer(wide, data, noise_std=1.0)
    regression = BayesianNetwork((Linear.fixed(torch.ones(1, 2)),))
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert last_layer(regression, RegressionData(x, x[:, :1]), noise_std=0.1).network.random
