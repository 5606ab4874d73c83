"""Sampled predictions against drawn weights and closed forms; the calibration error against counts by hand."""

import math

import pytest
import torch
from training.truth import gauss_hermite, random_network, sampled_outputs

from bnndp.errors import InputError
from bnndp.training.predictive import calibration_error, predict


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


def test_pieces_are_put_together_in_order() -> None:
    """More points than a piece holds: every one has its own prediction."""
    network = random_network((1, 300, 2), scale=0.0, task="classification")
    x = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    found = predict(network, x, draws=1000)  # 300 * 1000 values a point: 6 points in a piece
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
