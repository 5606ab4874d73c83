"""Bayes by backprop for classes: logistic regression against quadrature, deeper networks against drawn weights.

With two classes and no hidden layer, the margin of the logits at a point is Gaussian, D ~ N(m, v), and the ELBO is a
sum of E log sigmoid(+-D): integrals over one variable, whose maximum an ordinary optimiser finds without any sampling.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ensembles import outputs
from tests.training.problems import (
    LOGISTIC_PRIOR,
    best_logistic,
    logistic_objective,
    logistic_parameters,
    logistic_problem,
    quadrants,
)
from tests.training.truth import divergence, random_network
from torch import Tensor

from bnndp.data import ClassificationData, mnist, noisy_sine
from bnndp.errors import InputError
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.training import ClassificationCard, TrainingOptions, train
from bnndp.training.cards import evaluate
from bnndp.training.elbo import elbo

OPTIONS = TrainingOptions((), prior_std=LOGISTIC_PRIOR, init_std=0.3, steps=1500, learning_rate=0.05, dtype="float64")


class TestLogisticRegression:
    def test_elbo_is_that_of_the_quadrature(self) -> None:
        data = logistic_problem()
        network = random_network((2, 2), scale=0.8, task="classification")
        draws = torch.tensor([elbo(network, data, replace(OPTIONS, seed=s), samples=200) for s in range(20)])
        error = draws.std().item() / math.sqrt(20)
        truth = logistic_objective(data, *logistic_parameters(network)).item()
        assert error < 0.3  # of a value about -200: the comparison can tell a missing factor or term
        assert abs(draws.mean().item() - truth) <= 5 * error

    @pytest.mark.parametrize(
        ("changes", "mean_error", "std_error", "loss"),
        [
            ({}, 0.03, 0.1, 0.02),
            pytest.param({"dtype": "float32", "warm_up": 0.3}, 0.03, 0.1, 0.02, marks=pytest.mark.slow),
            pytest.param({"batch": 40, "steps": 3000}, 0.05, 0.1, 0.05, marks=pytest.mark.slow),
            pytest.param({"temperature": 0.2}, 0.03, 0.1, 0.02, marks=pytest.mark.slow),
            pytest.param({"temperature": 3.0, "warm_up": 0.3}, 0.03, 0.1, 0.02, marks=pytest.mark.slow),
            pytest.param({"sampling": "weights", "steps": 3000}, 0.15, 0.2, 0.3, marks=pytest.mark.slow),
        ],
        ids=str,
    )
    def test_training_finds_the_best_posterior(
        self, changes: dict[str, Any], mean_error: float, std_error: float, loss: float
    ) -> None:
        """The noise of the gradients keeps parameters a little off; the objective hardly minds."""
        data, options = logistic_problem(), replace(OPTIONS, **changes)
        network = train(data, options).network
        want, got = best_logistic(options.temperature), logistic_parameters(network)
        assert network.task == "classification"
        assert (got[0] - want[0]).abs().max() <= mean_error
        assert (got[1] - want[1]).abs().max() <= std_error
        top, reached = (logistic_objective(data, *point, options.temperature).item() for point in (want, got))
        assert top - loss <= reached <= top + 1e-9

    def test_a_colder_posterior_is_sharper(self) -> None:
        """The optima of the temperatures above lie far apart, so that none can be mistaken for another."""
        cold, bayes, warm = (best_logistic(temperature)[1] for temperature in (0.2, 1.0, 3.0))
        assert ((bayes - cold) > 0.3).all()
        assert ((warm - bayes) > 0.15).all()

    def test_the_card_gives_the_elbo_itself_at_any_temperature(self) -> None:
        data, options = logistic_problem(), replace(OPTIONS, temperature=0.2)
        network = BayesianNetwork.from_linears([_linear(*best_logistic(0.2))], "classification")
        card = evaluate(network, data, options)
        draws = torch.tensor([elbo(network, data, replace(options, seed=s), samples=8) for s in range(20)])
        assert abs(card.elbo - logistic_objective(data, *best_logistic(0.2)).item()) <= 5 * draws.std().item()


def _linear(means: Tensor, log_stds: Tensor) -> Linear:
    stds = log_stds.exp()
    return Linear(means[:, :-1], stds[:, :-1], means[:, -1], stds[:, -1])


@pytest.mark.parametrize("sizes", [(2, 3), (2, 5, 3), (2, 4, 4, 4)])
def test_elbo_against_weight_draws(sizes: tuple[int, ...]) -> None:
    network = random_network(sizes, task="classification")
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)
    data = ClassificationData(x, torch.tensor([0, 2, 1]), sizes[-1])
    options = TrainingOptions(sizes[1:-1], prior_std=LOGISTIC_PRIOR)
    log_softmax = outputs(network, x, 20_000).log_softmax(-1)
    draws = sum(log_softmax[:, point, label] for point, label in enumerate(data.y.tolist()))
    estimate = torch.tensor([elbo(network, data, replace(options, seed=s), samples=200) for s in range(20)])
    error = math.sqrt(draws.var().item() / 20_000 + estimate.var().item() / 20)
    assert abs((draws.mean() - divergence(network, LOGISTIC_PRIOR)).item() - estimate.mean().item()) <= 5 * error


class TestQuadrants:
    BEST = 0.95554
    OPTIONS = TrainingOptions((16,), init_std=0.05, steps=800, batch=200, learning_rate=2e-2)

    @pytest.mark.slow
    @pytest.mark.parametrize("sampling", ["local", "weights"])
    def test_comes_near_the_best_accuracy_and_tells_so(self, sampling: str) -> None:
        held_out = quadrants(4000, seed=1)
        trained = train(quadrants(2000, seed=0), replace(self.OPTIONS, sampling=sampling), held_out=held_out)
        card = trained.card
        assert isinstance(card, ClassificationCard)
        assert trained.network.sizes == (2, 16, 2)
        assert trained.network.task == "classification"
        error = math.sqrt(self.BEST * (1 - self.BEST) / 4000)
        assert self.BEST - 0.01 - 4 * error <= card.held_out.accuracy <= self.BEST + 4 * error
        probability = outputs(trained.network, held_out.x, 500).softmax(-1).mean(0)
        right = probability.argmax(-1) == held_out.y
        assert card.held_out.accuracy == pytest.approx(right.double().mean().item(), abs=0.003)
        nll = -probability.gather(1, held_out.y[:, None]).log().mean().item()
        assert card.held_out.nll == pytest.approx(nll, rel=0.05)
        assert card.held_out.calibration_error <= 0.05
        assert card.seconds > 0

    def test_a_held_out_set_of_another_kind_is_refused(self) -> None:
        with pytest.raises(InputError, match="held_out is RegressionData, the training set ClassificationData"):
            train(quadrants(20, seed=0), TrainingOptions((2,), steps=1), held_out=noisy_sine(2, points=20))


@pytest.mark.slow
def test_digits_are_learnt(data_folder: Path) -> None:
    """A short training on a tenth of MNIST: clearly better than chance, and the logits uncertain."""
    if not (data_folder / "mnist").is_dir():
        pytest.skip(f"no folder 'mnist' in {data_folder}")
    part, held_out = (
        ClassificationData(data.x[:points], data.y[:points], data.classes)
        for data, points in ((mnist("train", data_folder), 6000), (mnist("test", data_folder), 1000))
    )
    options = TrainingOptions((16,), prior_std=0.2, init_std=0.05, steps=300, batch=100, learning_rate=1e-2)
    card = train(part, options, held_out=held_out).card
    assert card.held_out.accuracy >= 0.85
    assert 0.5 <= card.held_out.logit_std <= 3
