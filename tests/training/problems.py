"""Problems whose best mean-field posterior is known: linear regression exactly, logistic regression by quadrature."""

from __future__ import annotations

import math
from functools import cache

import torch
from tests.training.truth import expected_log_sigmoid
from torch import Tensor

from bnndp.data import ClassificationData, RegressionData
from bnndp.network import BayesianNetwork

LOGISTIC_PRIOR = 0.7


def linear_problem(
    points: int = 200, n_in: int = 3, n_out: int = 2, noise: float = 0.5, *, seed: int = 7
) -> RegressionData:
    """Correlated inputs, so that the mean-field optimum differs from the exact marginals."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(points, n_in, generator=generator, dtype=torch.float64)
    x[:, 1] += 0.8 * x[:, 0]
    truth = torch.randn(n_in + 1, n_out, generator=generator, dtype=torch.float64)
    y = design(x) @ truth
    return RegressionData(x, y + noise * torch.randn(y.shape, generator=generator, dtype=torch.float64))


def design(x: Tensor) -> Tensor:
    """The inputs and a column of ones: (points, n_in + 1)."""
    return torch.cat([x, torch.ones(x.shape[0], 1, dtype=torch.float64)], 1)


def exact_mean_field(
    data: RegressionData, noise: float, prior: float, temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, std (n_in + 1, n_out) of the best mean-field Gaussian of Bayesian linear regression, and the precision P.

    The exact posterior is N(m, P^-1) with P = X'X / noise^2 + I / prior^2. The best factorised Gaussian in KL(q || p)
    has the same mean and the variances 1 / P_jj (Bishop, Pattern Recognition and Machine Learning, section 10.1.2).
    A KL term of weight T counts every point 1 / T times.
    """
    columns = design(data.x)
    eye = torch.eye(columns.shape[1], dtype=torch.float64)
    precision = columns.T @ columns / (temperature * noise**2) + eye / prior**2
    mean = torch.linalg.solve(precision, columns.T @ data.y / (temperature * noise**2))
    return mean, precision.diagonal().rsqrt()[:, None].expand_as(mean), precision


def linear_parameters(network: BayesianNetwork) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of a network without hidden layers, biases in the last row: (n_in + 1, n_out)."""
    (layer,) = network.linears
    mean = torch.cat([layer.weight_mean.T, layer.bias_mean[None]])
    return mean, torch.cat([layer.weight_std.T, layer.bias_std[None]])


def logistic_problem(points: int = 120) -> ClassificationData:
    """Labels of two classes drawn from a logistic model with correlated inputs."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(points, 2, generator=generator, dtype=torch.float64)
    x[:, 1] += 0.8 * x[:, 0]
    chance = torch.sigmoid(1.5 * x[:, 0] - x[:, 1] + 0.5)
    return ClassificationData(x, (torch.rand(points, generator=generator) > chance).long(), 2)


def logistic_objective(data: ClassificationData, means: Tensor, log_stds: Tensor, temperature: float = 1.0) -> Tensor:
    """Expected log-likelihood less ``temperature`` times the KL; weights and bias are the columns of (2, 3) tensors."""
    columns = design(data.x)
    sign = 1 - 2 * data.y  # of the margin of class 0 over class 1
    mean = columns @ (means[0] - means[1])
    variance = columns.square() @ (2 * log_stds).exp().sum(0)
    scaled = ((2 * log_stds).exp() + means.square()) / LOGISTIC_PRIOR**2
    kl = (0.5 * (scaled - 1) - log_stds + math.log(LOGISTIC_PRIOR)).sum()
    return expected_log_sigmoid(sign * mean, variance.sqrt()).sum() - temperature * kl


def logistic_parameters(network: BayesianNetwork) -> tuple[Tensor, Tensor]:
    """Means and logarithms of the standard deviations, biases in the last column: (classes, n_in + 1) each."""
    (layer,) = network.linears
    return (
        torch.cat([layer.weight_mean, layer.bias_mean[:, None]], 1),
        torch.cat([layer.weight_std, layer.bias_std[:, None]], 1).log(),
    )


@cache
def best_logistic(temperature: float) -> tuple[Tensor, Tensor]:
    """Where the objective is largest, by L-BFGS on the quadrature."""
    data = logistic_problem()
    means = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    log_stds = torch.full((2, 3), -1.0, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([means, log_stds], max_iter=300, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def loss() -> float:
        optimiser.zero_grad()
        value = -logistic_objective(data, means, log_stds, temperature)
        value.backward()
        return value.item()

    optimiser.step(loss)
    return means.detach(), log_stds.detach()


def quadrants(points: int, seed: int) -> ClassificationData:
    """Four blobs at (+-1, +-1) with standard deviation 0.5; the class says whether the signs agree.

    No line parts the classes. The best rule, the signs of the inputs, is right with probability p^2 + (1 - p)^2, where
    p = Phi(2) = 0.97725: 0.95554.
    """
    generator = torch.Generator().manual_seed(seed)
    centre = 2.0 * torch.randint(2, (points, 2), generator=generator) - 1
    noise = torch.randn(points, 2, generator=generator, dtype=torch.float64)
    return ClassificationData(centre + 0.5 * noise, (centre[:, 0] == centre[:, 1]).long(), 2)
