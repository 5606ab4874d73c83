"""Sampled intervals and FGSM: exact on small cases, and consistent with one another."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from benchmarks.baselines import sampled, truncated
from benchmarks.paper.columns import Subject
from support.networks import layer_of, make_network
from torch import Tensor

from bnndp.errors import InputError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

X = torch.tensor([[0.3, -0.2], [1.0, 0.5], [-0.6, 0.1]], dtype=torch.float64)


def test_drawn_weights_have_the_posteriors_law() -> None:
    network = make_network((3, 2), 1, zeros=0.3)
    drawn = sampled.draw(network, 40_000, seed=5)
    layer = network.linears[0]
    error = layer.weight_std / 200
    assert (torch.abs(drawn.weights[0].mean(0) - layer.weight_mean) <= 5 * error + 1e-12).all()
    torch.testing.assert_close(drawn.weights[0].std(0), layer.weight_std, rtol=0.03, atol=1e-12)
    torch.testing.assert_close(drawn.biases[0].std(0)[0], layer.bias_std, rtol=0.03, atol=1e-12)
    with pytest.raises(InputError, match="draws"):
        sampled.draw(network, 0)


def test_intervals_are_those_of_each_network_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network((2, 4, 4, 2), 3, std=0.5)
    drawn, box = sampled.draw(network, 7), Box.ball(X, 0.2)
    lower, upper = torch.zeros(3, 2, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    for s in range(7):
        certain = [layer_of(weight[s], bias[s, 0]) for weight, bias in zip(drawn.weights, drawn.biases, strict=True)]
        one = truncated.propagate(BayesianNetwork.from_linears(certain), box, 0.0)[-1]
        lower, upper = lower + one.lower / 7, upper + one.upper / 7
    for memory in (sampled._MEMORY, 1):
        monkeypatch.setattr(sampled, "_MEMORY", memory)
        found = sampled.mean_interval(drawn, box)
        torch.testing.assert_close(found.lower, lower, rtol=0, atol=1e-12)
        torch.testing.assert_close(found.upper, upper, rtol=0, atol=1e-12)


def test_without_variance_widths_are_those_of_the_means() -> None:
    subject = Subject(make_network((2, 5, 1), 2, std=0.0), X, eps=0.1)
    torch.testing.assert_close(sampled.width(subject), truncated.width(subject, cut=0.0), rtol=1e-12, atol=0)


def test_softmax_ranges_are_exact() -> None:
    logits = Interval(
        torch.tensor([[-1.0, 0.5, 2.0]], dtype=torch.float64), torch.tensor([[0.0, 0.7, 40.0]], dtype=torch.float64)
    )
    ends = zip(logits.lower[0].tolist(), logits.upper[0].tolist(), strict=True)
    at_corners = torch.tensor(list(itertools.product(*ends)), dtype=torch.float64).log_softmax(-1)
    found = sampled.softmax(logits)  # a probability is monotone in every logit: its extremes are at corners
    torch.testing.assert_close(found.lower[0], at_corners.amin(0), rtol=1e-13, atol=1e-16)
    torch.testing.assert_close(found.upper[0], at_corners.amax(0), rtol=1e-13, atol=1e-16)


def _linear(scale: float = 1.0, *, shift: Tensor | None = None) -> BayesianNetwork:
    """Two logits without variance whose difference is ``scale (2 x_0 - x_1 + 0.5)``."""
    layer = layer_of([[2.0 * scale, -scale], [0.0, 0.0]], [0.5 * scale, 0.0])
    return BayesianNetwork.from_linears([layer], "classification", shift)


@pytest.mark.parametrize("scale", [1.0, 1e4])  # with 1e4 the probability of the label is 1 in float64
@pytest.mark.parametrize("step", [0.0, 10.0])
def test_fgsm_finds_the_radius_of_a_linear_classifier(scale: float, step: float) -> None:
    shift = torch.full((2,), step, dtype=torch.float64)
    subject = Subject(_linear(scale, shift=shift), X[:2] + step, label=torch.tensor([0, 0]))
    truth = (2 * X[:2, 0] - X[:2, 1] + 0.5) / 3  # margin over the l1 norm of the row
    found = sampled.fgsm_radius(subject)
    assert (found >= truth * (1 - 1e-12)).all()
    assert (found <= truth * 1.0101).all()


def test_fgsm_stays_in_the_domain_and_knows_when_there_is_nothing_to_find() -> None:
    x = torch.tensor([[0.3, 0.9]], dtype=torch.float64)  # margin 0.2; x_1 can rise by 0.02 only
    subject = Subject(_linear(), x, label=torch.tensor([0]))
    assert sampled.fgsm_radius(subject).item() == pytest.approx(0.2 / 3, rel=0.0101)
    assert sampled.fgsm_radius(replace(subject, domain=(0.0, 0.92))).item() == pytest.approx(0.09, rel=0.0101)
    assert sampled.fgsm_radius(replace(subject, domain=(0.25, 0.92))).isinf().all()
    assert sampled.fgsm_radius(replace(subject, label=torch.tensor([1]))).item() == 0


def test_the_radius_of_sampled_intervals_of_a_linear_classifier_is_known() -> None:
    # 2 classes: the label's lower probability is above the other's upper one where its lower logit is above the upper.
    subject = Subject(_linear(), X[:2], label=torch.tensor([0, 0]))
    truth = (2 * X[:2, 0] - X[:2, 1] + 0.5) / 3
    found = sampled.radius(subject)
    assert (found <= truth).all()
    assert (found >= 0.99 * truth).all()
    assert sampled.radius(replace(subject, label=torch.tensor([1, 1]))).isnan().all()


def _classifier(std: float) -> Subject:
    network = make_network((4, 12, 12, 3), 10, std=std, task="classification")
    generator = torch.Generator().manual_seed(2)
    x = 2 * torch.rand(60, 4, generator=generator, dtype=torch.float64) - 1
    label = sampled.mean_log_softmax(sampled.draw(network), x).argmax(-1)
    return Subject(network, x, label=label, domain=(-1.5, 1.5))


def test_no_attack_succeeds_below_a_radius_proved_for_all_drawn_networks() -> None:
    subject, cut = _classifier(0.02), 6.0
    drawn = sampled.draw(subject.network)
    for layer, weight, bias in zip(subject.network.linears, drawn.weights, drawn.biases, strict=True):
        assert ((weight - layer.weight_mean).abs() <= cut * layer.weight_std).all()
        assert ((bias[:, 0] - layer.bias_mean).abs() <= cut * layer.bias_std).all()
    certified, attack = truncated.radius(subject, cut=cut), sampled.fgsm_radius(subject)
    proved = certified > 0
    assert (proved & attack.isfinite()).sum() >= 10
    assert (attack[proved] > certified[proved]).all()


def test_without_variance_sampled_intervals_stay_below_attacks_and_below_margins() -> None:
    subject = _classifier(0.0)
    found, attack = sampled.radius(subject), sampled.fgsm_radius(subject)
    known = found > 0
    assert (known & attack.isfinite()).sum() >= 10
    assert (attack[known] > found[known]).all()
    # The softmax bounds ask for more than the margins of the same intervals do.
    assert (found[known] <= 1.0101 * truncated.radius(subject, cut=0.0)[known]).all()
