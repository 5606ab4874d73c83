"""Settings to start from: those of the published figures stay, and the two rules that depart from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bnndp.data import NAMES, describe
from bnndp.training import default_options
from bnndp.training.fit import Plan
from bnndp.training.options import INFERENCES, TrainingOptions

VOGN = TrainingOptions(init_std=0.05, steps=4000, inference="vogn", schedule="warm_cosine")
KIN8NM = replace(VOGN, noise_std=0.25, prior="fan_in", batch=128, learning_rate=2e-2)
MNIST = replace(VOGN, prior_std=0.2, batch=200, learning_rate=1e-2)


@pytest.mark.parametrize("hidden", [(64, 64), (256, 256), (64, 64, 64)])
def test_deep_networks_have_the_settings_of_the_figures(hidden: tuple[int, ...]) -> None:
    """docs/training.md has figures of them; other settings would make these untrue."""
    assert Plan("kin8nm", "vogn", hidden).options() == replace(KIN8NM, hidden=hidden)
    assert Plan("sine2d", "vogn", hidden).options() == replace(KIN8NM, hidden=hidden)
    for data in ("mnist", "fashion_mnist"):
        assert Plan(data, "vogn", hidden).options() == replace(MNIST, hidden=hidden)


@pytest.mark.parametrize("width", [64, 512])
def test_one_hidden_layer(width: int) -> None:
    expected = replace(KIN8NM, hidden=(width,), prior_std=3.0, steps=8000, batch=256, learning_rate=0.1)
    assert Plan("kin8nm", "vogn", (width,)).options() == expected
    assert Plan("mnist", "vogn", (width,)).options() == replace(MNIST, hidden=(width,))
    for inference in ("bbb", "noisy-adam"):
        usual = default_options(inference, "regression")
        assert Plan("kin8nm", inference, (width,)).options() == replace(usual, hidden=(width,))


def test_few_points_have_a_wide_prior_of_classification() -> None:
    few = {name for name in NAMES if Plan(name, "vogn").options().prior_std != default(name).prior_std}
    assert few == {"digits", "moons"}
    for inference in INFERENCES:
        usual = default_options(inference, "classification")
        expected = usual if inference == "noisy-adam" else replace(usual, prior_std=1.0)
        assert all(Plan(name, inference).options() == expected for name in few)


def default(name: str) -> TrainingOptions:
    return default_options("vogn", describe(name).task)


def test_what_the_plan_says_comes_before_every_rule() -> None:
    shallow = Plan("kin8nm", "vogn", (8,), prior_std=0.7, steps=12, batch=3, learning_rate=0.5).options()
    assert (shallow.prior_std, shallow.steps, shallow.batch, shallow.learning_rate) == (0.7, 12, 3, 0.5)
    assert Plan("moons", "vogn", prior_std=0.2).options().prior_std == 0.2


def test_without_hidden_layers_and_points_there_are_no_rules() -> None:
    assert default_options("vogn", "regression") == KIN8NM
    assert default_options("vogn", "classification") == MNIST
