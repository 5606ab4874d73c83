"""What all methods share: interrupted trainings, early stopping, the record of a training."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors import safe_open
from tests.training.problems import quadrants

import bnndp.files.posterior
from bnndp.data import ClassificationData, RegressionData, noisy_sine
from bnndp.errors import CertError, InputError
from bnndp.training import (
    INFERENCES,
    NaturalGradient,
    Stopping,
    TrainingOptions,
    checkpoints,
    default_options,
    hold_out,
    loop,
    train,
)
from bnndp.training.predictive import negative_log_likelihood

OPTIONS = TrainingOptions((6, 5), steps=23, batch=13, learning_rate=5e-3, warm_up=0.3)
SINE = noisy_sine(2, points=64)
OTHER = noisy_sine(2, points=40, seed=1)


class Interrupted(Exception):
    """What stops a training in these tests."""


def interrupt_after(steps: int) -> Any:
    def progress(step: int, objective: float) -> None:
        if step + 1 == steps:
            raise Interrupted

    return progress


@pytest.fixture
def at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints after every step, not only after ten seconds."""
    monkeypatch.setattr(loop, "_SECONDS", 0.0)


@pytest.mark.parametrize("inference", INFERENCES)
class TestEveryMethod:
    @pytest.mark.usefixtures("at_every_step")
    @pytest.mark.parametrize(
        "changes",
        [{}, {"batch": None}, {"dtype": "float64"}, {"stopping": Stopping(every=3, patience=9, draws=4)}],
        ids=str,
    )
    def test_interrupted_trainings_go_on_bit_for_bit(
        self, inference: str, changes: dict[str, Any], tmp_path: Path
    ) -> None:
        options = replace(OPTIONS, inference=inference, **changes)
        path = tmp_path / "checkpoint"
        seen: list[int] = []
        for steps in (1, 4, 5, 17):  # the fifth and last batch of an epoch is 4
            with pytest.raises(Interrupted):
                train(SINE, options, held_out=OTHER, progress=interrupt_after(steps), checkpoint=path)
        resumed = train(
            SINE, options, held_out=OTHER, progress=lambda step, objective: seen.append(step), checkpoint=path
        )
        whole = train(SINE, options, held_out=OTHER)
        assert seen == list(range(17, 23))
        assert resumed.network.digest() == whole.network.digest()
        assert resumed.steps == whole.steps
        assert replace(resumed.card, seconds=0.0) == replace(whole.card, seconds=0.0)

    def test_classification_too_and_the_last_step_is_kept(self, inference: str, tmp_path: Path) -> None:
        """No checkpoint falls due in so short a training but the last one; going on from it only writes the card."""
        data, path = quadrants(50, seed=0), tmp_path / "checkpoint"
        options = replace(OPTIONS, inference=inference)
        with pytest.raises(Interrupted):
            train(data, options, progress=interrupt_after(5), checkpoint=path)
        assert not path.exists()
        first = train(data, options, checkpoint=path)
        second = train(data, options, progress=interrupt_after(1), checkpoint=path)
        assert first.network.digest() == second.network.digest() == train(data, options).network.digest()
        assert list(tmp_path.iterdir()) == [path]

    def test_seed_decides_everything(self, inference: str) -> None:
        options = replace(OPTIONS, inference=inference)
        first, same, other = (train(SINE, replace(options, seed=seed)).network.digest() for seed in (0, 0, 1))
        assert first == same
        assert first != other

    def test_training_leaves_no_trace(self, inference: str) -> None:
        before, x = torch.get_rng_state(), SINE.x.clone()
        with torch.no_grad():
            network = train(SINE, replace(OPTIONS, inference=inference)).network
        assert torch.equal(before, torch.get_rng_state())
        assert torch.equal(x, SINE.x)
        assert not any(layer.weight_mean.requires_grad for layer in network.linears)
        assert all(layer.weight_mean.dtype == torch.float64 for layer in network.linears)

    def test_progress_tells_an_estimate_of_the_objective(self, inference: str) -> None:
        """At a rate of next to nothing the mean of many steps is the ELBO of the card."""
        seen: list[float] = []
        options = TrainingOptions(
            (4,), 0.5, steps=400, init_std=0.1, learning_rate=1e-12, inference=inference, dtype="float64",
            natural=None if inference in ("bbb", "map") else NaturalGradient(decay=1 - 1e-12),
        )  # fmt: skip
        card = train(SINE, options, progress=lambda step, objective: seen.append(objective)).card
        values = torch.tensor(seen, dtype=torch.float64)
        assert len(seen) == 400
        error = values.std().item() / math.sqrt(len(seen))
        assert abs(values.mean().item() - card.elbo) <= 5 * error + 5 * values.std().item() / math.sqrt(8)
        assert abs(card.elbo) > 20 * error  # so that a wrong sign or a missing factor is seen


class TestCheckpoints:
    def make(self, path: Path) -> None:
        train(SINE, OPTIONS, checkpoint=path)

    @pytest.mark.parametrize(
        ("changes", "data", "words"),
        [
            ({"steps": 24}, SINE, "steps is 23 there, 24 here"),
            ({"inference": "vogn"}, SINE, "inference is 'bbb' there, 'vogn' here"),
            ({"seed": 1}, SINE, "seed is 0 there, 1 here"),
            ({}, noisy_sine(2, points=64, seed=5), "its data are other data"),
        ],
        ids=str,
    )
    def test_of_another_training_are_refused(
        self, changes: dict[str, Any], data: RegressionData, words: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "checkpoint"
        self.make(path)
        before = path.read_bytes()
        with pytest.raises(InputError) as caught:
            train(data, replace(OPTIONS, **changes), checkpoint=path)
        assert str(caught.value).startswith(f"{path}: is of another training ({words}); ")
        assert "resume=False" in str(caught.value)
        assert path.read_bytes() == before

    def test_another_held_out_set_matters_only_for_early_stopping(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint"
        self.make(path)
        train(SINE, OPTIONS, held_out=OTHER, checkpoint=path)
        options = replace(OPTIONS, stopping=Stopping(every=5))
        train(SINE, options, held_out=OTHER, checkpoint=path, resume=False)
        with pytest.raises(InputError, match="its held-out data are other data"):
            train(SINE, options, held_out=SINE, checkpoint=path)

    @pytest.mark.usefixtures("at_every_step")
    def test_resume_false_begins_again(self, tmp_path: Path) -> None:
        path, seen = tmp_path / "checkpoint", []
        self.make(path)
        train(SINE, replace(OPTIONS, seed=1), progress=lambda s, _: seen.append(s), checkpoint=path, resume=False)
        assert seen == list(range(23))

    def test_what_is_none_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint"
        path.write_bytes(b"not a checkpoint")
        with pytest.raises(CertError, match="cannot be read as a safetensors file"):
            train(SINE, OPTIONS, checkpoint=path)
        bnndp.files.posterior.save(train(SINE, OPTIONS).network, path)
        with pytest.raises(InputError, match="is not a checkpoint of a training"):
            train(SINE, OPTIONS, checkpoint=path)

    def test_one_that_lacks_a_tensor_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint"
        self.make(path)
        with safe_open(path, framework="pt") as file:
            own = json.loads(file.metadata()["bnndp"])
            tensors = {name: file.get_tensor(name) for name in file.keys() if name != "method.3"}  # noqa: SIM118
        checkpoints.write(path, own, tensors)
        with pytest.raises(InputError, match="is damaged"):
            train(SINE, OPTIONS, checkpoint=path)

    def test_a_folder_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(CertError, match="cannot be written: No such file or directory"):
            self.make(tmp_path / "no" / "checkpoint")

    @pytest.mark.usefixtures("at_every_step")
    def test_a_write_that_fails_leaves_the_one_before(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "checkpoint"
        with pytest.raises(Interrupted):
            train(SINE, OPTIONS, progress=interrupt_after(7), checkpoint=path)
        before = path.read_bytes()

        monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(CertError, match="No space left"):
            train(SINE, OPTIONS, checkpoint=path)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]


class TestEarlyStopping:
    """Few points, many weights, next to no prior: the likelihood of held-out points gets worse after a while."""

    DATA, OTHER = noisy_sine(1, points=12, noise_std=0.5), noisy_sine(1, points=400, noise_std=0.5, seed=1)
    OPTIONS = TrainingOptions(
        (64,), 0.1, prior_std=10.0, init_std=1e-3, steps=500, learning_rate=5e-3, schedule="constant",
        temperature=1e-3, stopping=Stopping(every=25, patience=3, draws=8),
    )  # fmt: skip

    def test_the_best_posterior_is_returned(self) -> None:
        trained = train(self.DATA, self.OPTIONS, held_out=self.OTHER)
        assert trained.steps % 25 == 0
        assert 25 < trained.steps < 500 - 75
        assert trained.epochs == trained.steps  # no batches
        # the same training without stopping, cut at the evaluations: the returned one is the best up to there
        losses = {}
        for steps in range(25, trained.steps + 76, 25):
            network = train(self.DATA, replace(self.OPTIONS, steps=steps, stopping=None)).network
            losses[steps] = negative_log_likelihood(network, self.OTHER, self.OPTIONS, draws=8), network.digest()
        best = min(losses, key=losses.__getitem__)
        assert best == trained.steps
        assert losses[best][1] == trained.network.digest()

    @pytest.mark.slow
    def test_patience_that_never_ends_keeps_the_best_all_the_same(self) -> None:
        options = replace(self.OPTIONS, stopping=Stopping(every=25, patience=10**6, draws=8))
        steps: list[int] = []
        kept = train(self.DATA, options, held_out=self.OTHER, progress=lambda step, _: steps.append(step))
        last = train(self.DATA, replace(options, stopping=None)).network
        assert len(steps) == 500
        assert kept.steps < 500
        loss, at_the_end = (
            negative_log_likelihood(network, self.OTHER, options, draws=8) for network in (kept.network, last)
        )
        assert loss < at_the_end - 1

    @pytest.mark.slow
    def test_a_training_that_has_stopped_stays_so(self, tmp_path: Path) -> None:
        first = train(self.DATA, self.OPTIONS, held_out=self.OTHER, checkpoint=tmp_path / "c")
        more: list[int] = []
        where: dict[str, Any] = {"checkpoint": tmp_path / "c", "progress": lambda step, _: more.append(step)}
        again = train(self.DATA, self.OPTIONS, held_out=self.OTHER, **where)
        assert more == []
        assert (again.steps, again.network.digest()) == (first.steps, first.network.digest())

    def test_the_last_step_is_looked_at(self) -> None:
        options = replace(OPTIONS, stopping=Stopping(every=10, patience=5, draws=4))  # 23 steps, and all improve
        assert train(SINE, options, held_out=OTHER).steps == 23

    def test_it_needs_held_out_points(self) -> None:
        with pytest.raises(InputError, match=r"stopping=Stopping\(.*\) needs held_out points"):
            train(SINE, replace(OPTIONS, stopping=Stopping()))

    @pytest.mark.parametrize("wrong", [{"every": 0}, {"patience": 0}, {"draws": 1}], ids=str)
    def test_wrong_rules_are_refused(self, wrong: dict[str, int]) -> None:
        ((field, value),) = wrong.items()
        with pytest.raises(InputError, match=f"{field} must be at least .*, got {value}"):
            Stopping(**wrong)


def test_schedules_of_the_learning_rate() -> None:
    def rates(schedule: str) -> list[float]:
        return [loop._rate(replace(OPTIONS, steps=100, schedule=schedule), step) for step in range(100)]

    assert rates("constant") == [1.0] * 100
    cosine, warm = rates("cosine"), rates("warm_cosine")
    assert (cosine[0], cosine[50]) == (1.0, pytest.approx(0.5))
    assert 0 < cosine[99] < 1e-3
    assert warm[:9] == pytest.approx([c * (k + 1) / 10 for k, c in enumerate(cosine[:9])])
    assert warm[9:] == cosine[9:]


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_every_method_has_default_options(task: str) -> None:
    for inference in INFERENCES:
        assert default_options(inference, task).inference == inference
    with pytest.raises(InputError, match="'dropout' is an option beside the method"):
        default_options("dropout", task)
    with pytest.raises(InputError, match=r"task must be one of .*, got 'ranking'"):
        default_options("bbb", "ranking")


class TestHoldOut:
    def test_parts_the_points(self) -> None:
        rest, held = hold_out(SINE, 10, seed=3)
        assert (rest.points, held.points) == (54, 10)
        rows = torch.cat([rest.x, held.x])
        assert torch.equal(rows[rows[:, 0].sort().indices], SINE.x[SINE.x[:, 0].sort().indices])
        at = [int((SINE.x == x).all(-1).nonzero()) for x in held.x]
        assert at == sorted(at)
        assert torch.equal(held.y, SINE.y[at])
        assert SINE.clean is not None
        assert torch.equal(held.clean, SINE.clean[at])

    def test_keeps_the_classes_and_the_seed_decides(self) -> None:
        data = quadrants(30, seed=0)
        first, same, other = (hold_out(data, 5, seed=seed)[1] for seed in (0, 0, 1))
        assert isinstance(first, ClassificationData)
        assert first.classes == 2
        assert torch.equal(first.x, same.x)
        assert not torch.equal(first.x, other.x)

    @pytest.mark.parametrize("points", [0, 64, 100])
    def test_nothing_or_all_is_refused(self, points: int) -> None:
        with pytest.raises(InputError, match=f"leave some of 64, got {points}"):
            hold_out(SINE, points)


@pytest.mark.parametrize("data", [SINE, quadrants(40, seed=0)], ids=["regression", "classification"])
def test_the_record_goes_into_the_file_and_comes_back(
    data: RegressionData | ClassificationData, tmp_path: Path
) -> None:
    trained = train(data, replace(OPTIONS, inference="vogn", seed=5), held_out=data)
    record = trained.record("a set")
    bnndp.files.posterior.save(trained.network, tmp_path / "n", card=record)
    card = bnndp.files.posterior.training_card(tmp_path / "n")
    assert card is not None
    assert bnndp.files.posterior.load(tmp_path / "n").digest() == trained.network.digest()
    assert card["data"] == "a set"
    assert (card["inference"], card["seed"], card["steps"]) == ("vogn", 5, 23)
    assert card["epochs"] == pytest.approx(23 * 13 / data.points)
    assert card["options"]["hidden"] == [6, 5]
    assert card["seconds"] > 0
    figures = card["held_out"] if isinstance(data, ClassificationData) else card
    wanted = {"accuracy", "nll", "calibration_error", "logit_std"}
    if isinstance(data, RegressionData):
        wanted = {"rmse_held_out", "nll_held_out", "calibration_error_held_out", "output_std", "elbo"}
    assert wanted <= set(figures)
    assert all(isinstance(figures[name], float) for name in wanted)
