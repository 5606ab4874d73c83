"""From the name of a data set to a network in the user's units."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ensembles import outputs
from tests.training import synthetic

from bnndp.attack.sampling import draw_noise, estimate
from bnndp.data import load
from bnndp.errors import InputError
from bnndp.files.posterior import save, training_card
from bnndp.training.cards import Scores, TargetScores
from bnndp.training.fit import Fitted, Parts, Plan, fit
from bnndp.training.predictive import predict_targets


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the set ``synthetic``."""
    synthetic.install(monkeypatch, tmp_path / "data")
    return tmp_path / "data"


def synthetic_fit(folder: Path, **changes: Any) -> Fitted:
    plan = Plan(synthetic.NAME, **{"inference": "bbb", "hidden": (16, 8), "steps": 1200} | changes)
    return fit(plan, Parts.load(plan, folder))


@pytest.mark.parametrize("steps", [20, pytest.param(1200, marks=pytest.mark.slow)])
def test_a_synthetic_set_in_huge_units(folder: Path, steps: int) -> None:
    found = synthetic_fit(folder, steps=steps)
    test = load(synthetic.NAME, "test", folder=folder)
    assert found.network.shift is not None

    # In the user's units the network is the trained one between the two maps of the standardisation.
    noise = draw_noise(found.network, 256, seed=0)
    inner = estimate(found.trained.network, found.units.inputs.apply(test.x), noise).mean
    outer = estimate(found.network, test.x, noise).mean
    assert torch.allclose(outer, found.units.targets.undo(inner), rtol=0, atol=1e-6 * synthetic.FACTOR)

    # The figures of the test part, from draws of whole networks and from the standardised units.
    assert isinstance(found.test, TargetScores)
    assert found.test.points == synthetic.HELD
    drawn = outputs(found.network, test.x, 4000)
    rmse = float((drawn.mean(0) - test.y).square().mean().sqrt())
    assert found.test.rmse == pytest.approx(rmse, rel=0.02)
    assert found.test.output_std == pytest.approx(float(drawn.std(0).mean()), rel=0.05)
    assert found.noise_std is not None
    scale = found.units.targets.scale.item()
    inner_nll = -predict_targets(
        found.trained.network, found.units.apply(test), found.noise_std / scale, draws=2000, seed=1
    ).log_density.mean()
    assert found.test.nll == pytest.approx(float(inner_nll) + math.log(scale), abs=0.02)

    assert found.trained.options.noise_std == pytest.approx(found.noise_std / scale, rel=1e-12)
    if steps == 1200:  # the standard deviation of the targets is about 1.2 FACTOR, the noise a tenth of FACTOR
        assert synthetic.NOISE < found.test.rmse < 2 * synthetic.NOISE
        assert synthetic.NOISE < found.noise_std < 3 * synthetic.NOISE


def test_noise_is_given_in_the_units_of_the_target(folder: Path) -> None:
    found = synthetic_fit(folder, noise_std=3e5, steps=5)
    assert found.noise_std == 3e5
    assert found.trained.options.noise_std == 3e5 / found.units.targets.scale.item()
    assert found.plan.first_steps == 0


def test_the_record_is_whole_and_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    first, again = (synthetic_fit(folder, steps=8, fold=3, seed=2) for _ in range(2))
    assert first.record() == again.record()
    save(first.network, tmp_path / "m.safetensors", card=first.record())
    card = training_card(tmp_path / "m.safetensors")
    assert card is not None
    assert card == json.loads(json.dumps(first.record()))
    assert (card["data"], card["fold"], card["seed"], card["steps"]) == (synthetic.NAME, 3, 2, 8)
    assert card["test"]["rmse"] == first.test.rmse
    assert card["standardisation"]["targets"]["shift"][0] == pytest.approx(synthetic.OFFSET, rel=0.02)


def test_the_test_part_has_no_influence(folder: Path) -> None:
    plan = Plan(synthetic.NAME, "vogn", (8,), steps=20)
    parts = Parts.load(plan, folder)
    other = Parts(parts.train, load(synthetic.NAME, "test", folder=folder, fold=5))
    assert fit(plan, parts).network.digest() == fit(plan, other).network.digest()
    assert fit(plan, parts).test != fit(plan, other).test


def test_early_stopping_holds_points_out(folder: Path) -> None:
    found, whole = (synthetic_fit(folder, stop_early=stop, steps=60, noise_std=2e5) for stop in (True, False))
    assert found.trained.card.rmse_held_out is not None
    assert whole.trained.card.rmse_held_out is None
    points = synthetic.ROWS - synthetic.HELD
    batch = 128
    assert whole.trained.epochs == pytest.approx(60 * batch / points)
    assert found.trained.epochs == pytest.approx(found.trained.steps * batch / (points - points // 10))


def test_the_prior_is_that_of_the_plan(folder: Path) -> None:
    usual, same, other = (synthetic_fit(folder, steps=8, prior=prior) for prior in (None, "fan_in", "unit"))
    assert usual.record() == same.record()
    assert usual.network.digest() == same.network.digest()
    assert other.record()["options"] == usual.record()["options"] | {
        "prior": "unit",
        "noise_std": other.trained.options.noise_std,
    }
    assert other.network.digest() != usual.network.digest()
    assert Plan("digits", "vogn").options().prior == "unit"
    assert Plan("digits", "vogn", prior="fan_in").options().prior == "fan_in"


@pytest.mark.parametrize(
    "inference", ["vogn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bbb", "noisy-adam"))]
)
def test_digits_are_used_as_they_are(inference: str) -> None:
    found = fit(Plan("digits", inference, (32,), steps=300, temperature=0.1, learning_rate=1e-2))
    assert (found.units, found.network.shift, found.noise_std) == (None, None, None)
    assert found.network is found.trained.network
    assert isinstance(found.test, Scores)
    assert found.test.points == 359
    assert found.test.accuracy > 0.85
    assert found.record()["standardisation"] is None


@pytest.mark.parametrize("steps", [5, pytest.param(400, marks=pytest.mark.slow)])
def test_the_sine_has_its_own_noise(steps: int) -> None:
    found = fit(Plan("sine1d", "bbb", (32,), steps=steps))
    assert (found.units, found.network.shift, found.noise_std) == (None, None, 0.1)
    assert found.trained.options.noise_std == 0.1
    assert isinstance(found.test, TargetScores)
    # 0.1 is noise; the standard deviation of the sine itself is 0.71
    assert 0.09 < found.test.rmse < (0.4 if steps == 400 else 1.5)


def test_steps_are_told(folder: Path) -> None:
    plan = Plan(synthetic.NAME, "vogn", (4,), steps=8)
    told: list[tuple[str, int]] = []
    fit(plan, Parts.load(plan, folder), watcher=lambda stage, step: told.append((stage, step)))
    assert plan.first_steps == 2
    assert told == [("noise", 1), ("noise", 2), *(("train", k) for k in range(1, 9))]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": "letters"}, "there is no data set 'letters'"),
        (
            {"inference": "dropout"},
            "inference 'dropout' is an option beside the method; choose one of bbb, vogn, noisy-adam, map",
        ),
        ({"inference": "magic"}, "inference 'magic' is unknown"),
        ({"noise_std": 0.1}, "noise_std is for regression, but digits is for classification"),
        ({"data": "sine1d", "noise_std": math.nan}, "noise_std must be finite and positive, got nan"),
        ({"hidden": (4, 0)}, "widths of hidden layers"),
        ({"steps": 0}, "steps and batch must be at least 1"),
        ({"prior": "flat"}, "prior must be one of unit, fan_in, got 'flat'"),
        ({"learning_rate": -1.0}, "learning_rate must be finite and positive"),
    ],
)
def test_bad_plans(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Plan(**{"data": "digits", "inference": "vogn"} | changes)


def test_a_fold_that_is_not_there() -> None:
    with pytest.raises(InputError, match="fold"):
        fit(Plan("digits", "vogn", fold=5))
