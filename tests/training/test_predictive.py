"""Sampled predictions against drawn weights and closed forms; the calibration error against counts by hand."""

import math

import pytest
import torch
from tests.training.truth import gauss_hermite, random_network, sampled_outputs

from bnndp.data import ClassificationData, RegressionData
from bnndp.errors import InputError
from bnndp.training import TrainingOptions, scores
from bnndp.training.predictive import (
    calibration_error,
    coverage_error,
    negative_log_likelihood,
    predict,
    predict_targets,
)


@pytest.mark.parametrize("sizes", [(2, 3), (2, 5, 3), (2, 6, 6, 4)])
def test_against_weight_draws(sizes: tuple[int, ...]) -> None:
    network = random_network(sizes, task="classification")
    x = torch.linspace(-2, 2, 10, dtype=torch.float64).reshape(5, 2)
    draws = 20_000
    logits = sampled_outputs(network, x, draws)
    probability = logits.softmax(-1)
    found = predict(network, x, draws=draws)
    error = probability.std(0) * math.sqrt(2 / draws)
    assert ((found.log_probability.exp() - probability.mean(0)).abs() <= 5 * error).all()
    assert torch.allclose(found.logit_std, logits.std(0), rtol=0.1)


def test_without_hidden_layers_against_quadrature() -> None:
    network = random_network((1, 2), scale=1.0, task="classification")
    x = torch.tensor([[-1.0], [0.5], [3.0]], dtype=torch.float64)
    (layer,) = network.linears
    mean = x @ layer.weight_mean.T + layer.bias_mean
    variance = x.square() @ layer.weight_std.T.square() + layer.bias_std.square()
    nodes, weights = gauss_hermite()
    margin = (mean[:, 0] - mean[:, 1])[:, None] + variance.sum(-1).sqrt()[:, None] * nodes
    found = predict(network, x, draws=100_000)
    truth = (torch.sigmoid(margin) * weights).sum(-1)
    assert ((found.log_probability[:, 0].exp() - truth).abs() <= 5 * 0.5 / math.sqrt(100_000)).all()
    assert torch.allclose(found.logit_std, variance.sqrt(), rtol=1e-12)  # nothing of it is sampled
    assert torch.allclose(found.log_probability.exp().sum(-1), torch.ones(3, dtype=torch.float64), rtol=1e-12)


def test_chunks_are_put_together_in_order() -> None:
    """More points than a chunk holds: every one has its own prediction."""
    network = random_network((1, 300, 2), scale=0.0, task="classification")
    x = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    found = predict(network, x, draws=1000)  # 300 * 1000 values a point: 6 points in a chunk
    (hidden, last) = network.linears
    logits = (x @ hidden.weight_mean.T + hidden.bias_mean).relu() @ last.weight_mean.T + last.bias_mean
    assert found.log_probability.shape == (50, 2)
    assert ((found.log_probability.exp() - logits.softmax(-1)).abs().mean()) <= 0.05


def test_seed_decides_everything() -> None:
    network, x = random_network((2, 4, 3), task="classification"), torch.ones(2, 2)
    first, same, other = (predict(network, x, draws=10, seed=seed).log_probability for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_one_draw_is_refused() -> None:
    with pytest.raises(InputError, match=r"draws must be at least 2 .* got 1"):
        predict(random_network((2, 2)), torch.ones(1, 2), draws=1)


class TestCalibrationError:
    def test_counts_by_hand(self) -> None:
        """Two bins of (0, 1/2] and (1/2, 1]: 0.4, 0.5 | 0.6, 0.9, 1.0 with two, and two, of them right."""
        confidence = torch.tensor([0.4, 0.5, 0.6, 0.9, 1.0], dtype=torch.float64)
        rest = (1 - confidence)[:, None] / 3
        probability = torch.cat([confidence[:, None], rest, rest, rest], 1)
        labels = torch.tensor([0, 0, 1, 0, 0])
        by_hand = (2 * abs(1 - 0.45) + 3 * abs(2 / 3 - 2.5 / 3)) / 5
        assert calibration_error(probability, labels, bins=2) == pytest.approx(by_hand, rel=1e-12)

    def test_zero_for_right_certainty_and_one_for_wrong(self) -> None:
        sure = torch.eye(3, dtype=torch.float64)
        assert calibration_error(sure, torch.tensor([0, 1, 2])) == 0
        assert calibration_error(sure, torch.tensor([1, 2, 0])) == 1

    def test_faults_of_one_bin_do_not_make_good_those_of_another(self) -> None:
        """Too sure in one bin, too unsure in another: the mean is right, the calibration is not."""
        probability = torch.tensor([[0.9, 0.1], [0.6, 0.4]], dtype=torch.float64)
        labels = torch.tensor([1, 0])
        assert calibration_error(probability, labels) == pytest.approx((0.9 + 0.4) / 2)


class TestTargets:
    NOISE = 0.3

    def data(self, n_out: int) -> RegressionData:
        x = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(6, 2)
        return RegressionData(x, torch.linspace(-1, 2, 6 * n_out).reshape(6, n_out))

    def test_without_hidden_layers_the_law_is_gaussian(self) -> None:
        network, data = random_network((2, 2)), self.data(2)
        (layer,) = network.linears
        mean = data.x @ layer.weight_mean.T + layer.bias_mean
        variance = data.x.square() @ layer.weight_std.T.square() + layer.bias_std.square()
        law = torch.distributions.Normal(mean, (variance + self.NOISE**2).sqrt())
        found = predict_targets(network, data, self.NOISE, draws=2)  # nothing of it is sampled
        assert torch.allclose(found.log_density, law.log_prob(data.y).sum(-1), rtol=1e-10)
        assert torch.allclose(found.level, law.cdf(data.y), rtol=1e-10, atol=1e-14)
        assert torch.allclose(found.output_std, variance.sqrt(), rtol=1e-10)
        options = TrainingOptions((), self.NOISE)
        want = -law.log_prob(data.y).sum(-1).mean().item()
        assert negative_log_likelihood(network, data, options, draws=2) == pytest.approx(want, rel=1e-10)

    @pytest.mark.parametrize("sizes", [(2, 5, 1), (2, 4, 4, 2)])
    def test_against_weight_draws(self, sizes: tuple[int, ...]) -> None:
        network, x, draws = random_network(sizes), self.data(1).x, 20_000
        outputs = sampled_outputs(network, x, draws)
        data = RegressionData(x, outputs.mean(0) + 0.3 * outputs.std(0))  # where many draws lie
        law = torch.distributions.Normal(outputs, self.NOISE)
        density = law.log_prob(data.y).sum(-1).exp()
        found = predict_targets(network, data, self.NOISE, draws=draws)
        error = math.sqrt(2 / draws) * density.std(0)
        assert ((found.log_density.exp() - density.mean(0)).abs() <= 5 * error).all()
        levels = law.cdf(data.y)
        assert ((found.level - levels.mean(0)).abs() <= 5 * math.sqrt(2 / draws) * levels.std(0)).all()
        assert torch.allclose(found.output_std, outputs.std(0), rtol=0.1)

    def test_labels_have_the_likelihood_of_the_card(self) -> None:
        network = random_network((2, 5, 3), task="classification")
        data = ClassificationData(torch.linspace(-1, 1, 40).reshape(20, 2), torch.arange(20) % 3, 3)
        loss = negative_log_likelihood(network, data, TrainingOptions((5,)), draws=128)
        assert loss == pytest.approx(scores(network, data, draws=128).nll, rel=1e-12)


def test_coverage_error_of_right_and_wrong_quantiles() -> None:
    uniform = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    assert coverage_error(uniform) == pytest.approx(0, abs=1e-9)
    # always below all quantiles: the mean of 1 - p is a half
    assert coverage_error(torch.zeros(5)) == pytest.approx(0.5)
    # only the middle half of the distribution occurs: |clamp(2 p - 1/2, 0, 1) - p|, mean over 19 levels
    levels = [k / 20 for k in range(1, 20)]
    want = sum(abs(min(max(2 * p - 0.5, 0), 1) - p) for p in levels) / 19
    assert coverage_error(0.25 + 0.5 * uniform) == pytest.approx(want, abs=2e-3)
