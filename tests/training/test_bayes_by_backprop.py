"""Bayes by backprop against posteriors that are known exactly, and its estimate of the ELBO against brute force."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.ensembles import outputs
from tests.training.problems import design, exact_mean_field, linear_parameters, linear_problem
from tests.training.truth import divergence, random_network

from bnndp.data import RegressionData, noisy_sine
from bnndp.errors import InputError
from bnndp.training import TrainingOptions, train
from bnndp.training.cards import RegressionCard
from bnndp.training.elbo import elbo

NOISE, PRIOR = 0.5, 2.0


def evidence(data: RegressionData) -> float:
    """log p(y): the targets of an output are N(0, noise^2 I + prior^2 X X')."""
    columns = design(data.x)
    covariance = NOISE**2 * torch.eye(data.points, dtype=torch.float64) + PRIOR**2 * columns @ columns.T
    law = torch.distributions.MultivariateNormal(torch.zeros(data.points, dtype=torch.float64), covariance)
    return law.log_prob(data.y.T).sum().item()


OPTIONS = TrainingOptions((), NOISE, prior_std=PRIOR, steps=1000, learning_rate=0.1, dtype="float64")


class TestLinearRegression:
    def test_finds_the_mean_field_optimum_and_its_elbo(self) -> None:
        data = linear_problem()
        trained = train(data, OPTIONS)
        mean, std, precision = exact_mean_field(data, NOISE, PRIOR)
        got_mean, got_std = linear_parameters(trained.network)
        assert torch.allclose(got_mean, mean, rtol=0, atol=1e-5)
        assert torch.allclose(got_std, std, rtol=1e-5, atol=0)
        # the exact marginals are wider: this is variational inference, and the problem can tell the two apart
        marginal = torch.linalg.inv(precision).diagonal().sqrt()
        assert (marginal / std[:, 0]).max() > 1.1
        # KL(q || posterior) of one output: the gap between evidence and ELBO
        gap = 0.5 * (std[:, 0].square().reciprocal().log().sum() - torch.logdet(precision))
        assert trained.card.elbo == pytest.approx(evidence(data) - data.n_out * gap.item(), abs=1e-5)
        assert trained.card.elbo < evidence(data)

    @pytest.mark.parametrize(
        ("changes", "mean_error", "std_error"),
        [
            ({"dtype": "float32"}, 1e-3, 1e-3),
            pytest.param({"batch": 50, "steps": 1500}, 0.02, 0.02, marks=pytest.mark.slow),
            pytest.param({"sampling": "weights", "steps": 2500}, 0.03, 0.15, marks=pytest.mark.slow),
        ],
    )
    def test_float32_minibatches_and_weight_draws_reach_the_same_optimum(
        self, changes: dict[str, Any], mean_error: float, std_error: float
    ) -> None:
        data = linear_problem()
        mean, std, _ = exact_mean_field(data, NOISE, PRIOR)
        got_mean, got_std = linear_parameters(train(data, replace(OPTIONS, **changes)).network)
        assert (got_mean - mean).abs().max() <= mean_error
        assert (got_std / std - 1).abs().max() <= std_error

    @pytest.mark.slow
    def test_without_data_to_speak_of_the_posterior_is_the_prior(self) -> None:
        """Inputs that are all zero say nothing about the weights, whose posterior must be their prior."""
        data = RegressionData(torch.zeros(10, 4), torch.ones(10, 1))
        unit = train(data, OPTIONS).network.linears[0]
        scaled = train(data, replace(OPTIONS, prior="fan_in")).network.linears[0]
        assert torch.allclose(unit.weight_std, torch.tensor(PRIOR).double(), rtol=1e-4)
        assert torch.allclose(scaled.weight_std, torch.tensor(PRIOR / 2).double(), rtol=1e-4)  # sqrt(n_in) = 2
        bias = 1 / math.sqrt(10 / NOISE**2 + 1 / PRIOR**2)
        assert unit.bias_std.item() == pytest.approx(bias, rel=1e-4)
        assert scaled.bias_std.item() == pytest.approx(bias, rel=1e-4)


@pytest.mark.parametrize("sizes", [(2, 5, 1), (2, 4, 4, 2), (1, 3, 3, 3, 1)])
class TestAgainstWeightDraws:
    DRAWS = 20_000

    def test_elbo(self, sizes: tuple[int, ...]) -> None:
        network = random_network(sizes)
        x = torch.linspace(-1, 1, 3 * sizes[0], dtype=torch.float64).reshape(3, -1)
        data = RegressionData(x, torch.ones(3, sizes[-1]))
        options = TrainingOptions(sizes[1:-1], NOISE, prior_std=PRIOR)
        likelihood = torch.distributions.Normal(outputs(network, x, self.DRAWS), NOISE)
        draws = likelihood.log_prob(data.y).sum((1, 2))
        estimate = torch.tensor([elbo(network, data, replace(options, seed=s), samples=100) for s in range(20)])
        error = math.sqrt(draws.var().item() / self.DRAWS + estimate.var().item() / 20)
        assert abs((draws.mean() - divergence(network, PRIOR)).item() - estimate.mean().item()) <= 5 * error


class TestSine:
    @pytest.mark.slow
    @pytest.mark.parametrize("sampling", ["local", "weights"])
    def test_fits_the_sine_and_tells_so(self, sampling: str) -> None:
        data = noisy_sine(1, points=1024)
        options = TrainingOptions(
            (32,), 0.1, steps=1200, batch=128, learning_rate=3e-2, init_std=0.02, sampling=sampling
        )
        trained = train(data, options, held_out=noisy_sine(1, points=512, seed=1))
        card = trained.card
        assert trained.network.sizes == (1, 32, 1)
        assert isinstance(card, RegressionCard)
        assert card.rmse_clean is not None
        assert data.clean is not None
        assert card.rmse_clean <= 0.06
        assert card.rmse_held_out == pytest.approx(math.hypot(card.rmse_clean, 0.1), rel=0.1)
        assert card.rmse_train == pytest.approx(math.hypot(card.rmse_clean, 0.1), rel=0.1)
        draws = outputs(trained.network, data.x, 2000)
        assert card.rmse_clean == pytest.approx((draws.mean(0) - data.clean).square().mean().sqrt().item(), rel=0.1)
        assert card.seconds > 0

    @pytest.mark.parametrize("sampling", ["local", "weights"])
    def test_seed_decides_everything(self, sampling: str) -> None:
        data = noisy_sine(2, points=64)
        options = TrainingOptions((8,), steps=20, batch=16, sampling=sampling)
        first, same, other = (train(data, replace(options, seed=seed)).network.digest() for seed in (0, 0, 1))
        assert first == same
        assert first != other

    @pytest.mark.slow
    def test_warm_up_ends_at_the_full_elbo(self) -> None:
        """With a KL term that only rises to one at the end of the warm-up the optimum is the same."""
        data = linear_problem()
        mean, std, _ = exact_mean_field(data, NOISE, PRIOR)
        got_mean, got_std = linear_parameters(train(data, replace(OPTIONS, warm_up=0.3)).network)
        assert torch.allclose(got_mean, mean, rtol=0, atol=1e-5)
        assert torch.allclose(got_std, std, rtol=1e-5, atol=0)


WRONG: dict[str, Any] = {"noise_std": 0.0, "prior_std": -1.0, "init_std": math.nan, "learning_rate": math.inf}
WRONG |= {"init_gain": 0.0, "prior": "cauchy", "schedule": "none", "sampling": "flipout", "dtype": "float16"}
WRONG |= {"hidden": (4, 0), "steps": 0, "batch": 0, "warm_up": 1.0, "temperature": 0.0}


@pytest.mark.parametrize("field", WRONG)
def test_wrong_options_are_refused(field: str) -> None:
    with pytest.raises(InputError, match=field) as caught:
        TrainingOptions(**{field: WRONG[field]})
    assert str(WRONG[field]) in str(caught.value)
