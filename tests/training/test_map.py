"""Weights without variances: maximum a posteriori, the worst case, ensembles, plans and their networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.problems import design, linear_problem, quadrants

from bnndp.data import load
from bnndp.errors import InputError
from bnndp.layers import CorrelatedLinear, Dropout, Linear
from bnndp.network import Ensemble
from bnndp.training import Robust, TrainingOptions, train
from bnndp.training.fit import Parts, Plan, checkpoint_paths, fit
from bnndp.training.mean_field import initial_layers
from bnndp.training.predictive import predict
from bnndp.training.robust import robust_objective, worst_log_probability


def test_the_mode_of_linear_regression() -> None:
    data, noise, prior = linear_problem(), 0.5, 0.4
    options = TrainingOptions(
        (), noise, prior_std=prior, steps=1500, learning_rate=0.03, inference="map", dtype="float64"
    )
    trained = train(data, options)
    columns = design(data.x)
    precision = columns.T @ columns / noise**2 + torch.eye(4, dtype=torch.float64) / prior**2
    mode = torch.linalg.solve(precision, columns.T @ data.y / noise**2)  # (4, 2)
    (layer,) = trained.network.linears
    found = torch.cat([layer.weight_mean.T, layer.bias_mean[None]])
    assert torch.allclose(found, mode, atol=1e-3)
    assert not trained.network.random
    likelihood = torch.distributions.Normal(columns @ mode, noise).log_prob(data.y).sum()
    assert trained.card.elbo == pytest.approx(float(likelihood - mode.square().sum() / (2 * prior**2)), rel=1e-4)


def test_the_worst_case_bounds_every_case() -> None:
    options = TrainingOptions((6,), conv="3x2", image=(1, 4, 4), inference="map", activation="sigmoid", dtype="float64")
    layers = initial_layers(options, 16, 3, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    x, y, eps = torch.rand(4, 16, generator=generator, dtype=torch.float64), torch.tensor([0, 1, 2, 0]), 0.3
    with torch.no_grad():
        worst = worst_log_probability(layers, x, y, eps)
        moved = x[:, None] + eps * (2 * torch.rand(4, 500, 16, generator=generator, dtype=torch.float64) - 1)
        inside = worst_log_probability(layers, moved.flatten(0, 1), y.repeat_interleave(500), 0.0).reshape(4, 500)
        assert (inside >= worst[:, None]).all()
        at = worst_log_probability(layers, x, y, 0.0)
        assert (worst < at - 0.01).all()  # and it is no bound that says nothing
        half = robust_objective(at.mean(), layers, x, y, Robust(eps, 0.5), 0.9)
        assert half == pytest.approx(0.5 * float(at.mean() + worst.mean()))
        assert robust_objective(at.mean(), layers, x, y, Robust(eps, 0.5), 0.0) == at.mean()


@pytest.mark.slow
def test_training_against_the_worst_case_helps_against_it() -> None:
    data, held_out = quadrants(1000, 0), quadrants(500, 1)
    eps = 0.15
    found = {}
    for robust in (None, Robust(eps)):
        options = TrainingOptions(
            (16,), prior_std=1.0, steps=800, batch=100, learning_rate=1e-2, inference="map", robust=robust
        )
        network = train(data, options).network
        layers = initial_layers(options, 2, 2, torch.Generator())
        free = [
            layer.with_parameters((linear.weight_mean, linear.bias_mean))
            for layer, linear in zip(layers, network.linears, strict=True)
        ]
        found[robust] = float(worst_log_probability(free, held_out.x, held_out.y, eps).mean())
    assert found[Robust(eps)] > found[None] + 0.05


def test_robust_is_for_classes() -> None:
    with pytest.raises(InputError, match="is for classification"):
        train(linear_problem(), TrainingOptions((), inference="map", robust=Robust(0.1)))
    with pytest.raises(InputError, match="robust is for classification, but sine1d is for regression"):
        Plan("sine1d", "map", robust=Robust(0.1))


class TestPlans:
    def test_an_ensemble_is_its_members(self) -> None:
        plan = Plan("digits", "map", (8,), steps=60, ensemble=2, seed=5)
        fitted = fit(plan)
        assert isinstance(fitted.network, Ensemble)
        single = [fit(Plan("digits", "map", (8,), steps=60, seed=seed)) for seed in (5, 6)]
        assert [member.digest() for member in fitted.network.members] == [s.network.digest() for s in single]
        assert fitted.record()["ensemble"] == 2
        x = load("digits", "test").x[:20]
        found = predict(fitted.network, x, draws=2)
        logits = torch.stack([predict(s.network, x, draws=2).logit_mean for s in single])
        assert torch.allclose(found.log_probability.exp(), logits.softmax(-1).mean(0), atol=1e-12)
        assert torch.allclose(found.logit_std, logits.std(0, correction=0), atol=1e-12)

    def test_an_ensemble_goes_on_from_its_checkpoints(self, tmp_path: Path) -> None:
        plan = Plan("digits", "map", (8,), steps=60, ensemble=3)
        checkpoint = tmp_path / "c"
        whole = fit(plan)

        def stop(_stage: str, step: int) -> None:
            if step == 100:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit(plan, watcher=stop, checkpoint=checkpoint)
        assert checkpoint.exists()  # of the first member, which was done
        seen: list[int] = []
        again = fit(plan, watcher=lambda _stage, step: seen.append(step), checkpoint=checkpoint)
        assert again.network.digest() == whole.network.digest()
        assert min(seen) == 61
        assert sorted(tmp_path.iterdir()) == checkpoint_paths(plan, checkpoint)

    @pytest.mark.slow
    def test_an_ensemble_of_regression_in_units(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from tests.training import synthetic

        synthetic.install(monkeypatch, tmp_path)
        plan = Plan(synthetic.NAME, "map", (8,), steps=300, ensemble=2)
        fitted = fit(plan, Parts.load(plan, tmp_path))
        assert isinstance(fitted.network, Ensemble)
        assert fitted.network.members[0].shift is not None
        assert fitted.test.rmse < 0.5 * synthetic.FACTOR

    def test_a_last_layer_by_laplace(self) -> None:
        fitted = fit(Plan("digits", "map", (8,), steps=200, laplace="last-layer"))
        assert isinstance(fitted.network.layers[-1], CorrelatedLinear)
        first = fitted.network.layers[0]
        assert isinstance(first, Linear)
        assert not first.random
        record = fitted.record()
        assert record["laplace"] == "last-layer"
        assert record["prior_precision"] == fitted.prior_precision
        assert fitted.test.logit_std > 0.05

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"ensemble": 0}, "ensemble must be at least 1 member"),
            ({"laplace": "all"}, "laplace must be last-layer, got 'all'"),
            ({"laplace": "last-layer", "inference": "vogn"}, "choose inference map, without dropout"),
            ({"laplace": "last-layer", "dropout": Dropout(0.1)}, "choose inference map, without dropout"),
            ({"laplace": "last-layer", "hidden": (512,)}, "has 5130 weights and biases"),
            ({"data": "moons", "conv": "3x3"}, "needs images, but inputs of moons are vectors"),
            ({"conv": "3x9"}, r"does not fit images of shape \(1, 8, 8\)"),
            ({"inference": "vogn", "dropout": Dropout(0.1)}, "dropout is trained by map"),
        ],
    )
    def test_plans_that_are_refused(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words):
            Plan(**({"data": "digits", "inference": "map"} | changes))
