"""VOGN and Noisy Adam against posteriors that are known: the best mean-field Gaussian, or the method's own fixed point.

With targets drawn from the model (``fisher``) the mean of the squares is the second derivative itself, for linear and
for logistic regression, so that both methods must find the best mean-field posterior. With the squares as published
they must find the fixed point of their own update, which for linear regression is the solution of a few equations.

Tolerances. The average of the curvature has, in steps, the memory 1 / (1 - decay), so its relative error is
sqrt((1 - decay) / (1 + decay)) = 0.05 times that of one step's curvature; that of the standard deviation is half of it.
The mean moves by draws of the size of the standard deviation times the learning rate, which falls to zero: over the
last steps it averages about 1 / rate draws, where rate * steps left is about 1; see ``MEAN``.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.training.problems import (
    LOGISTIC_PRIOR,
    best_logistic,
    design,
    exact_mean_field,
    linear_parameters,
    linear_problem,
    logistic_objective,
    logistic_parameters,
    logistic_problem,
    quadrants,
)
from torch import Tensor

from bnndp.data import ClassificationData, RegressionData
from bnndp.errors import InputError
from bnndp.training import NaturalGradient, TrainingOptions, train

METHODS = ("vogn", "noisy-adam")
NOISE, PRIOR, POINTS = 0.5, 0.15, 60  # a prior that counts: it moves the means by several standard deviations
DECAY = 0.995
STEPS, RATE = 2500, 0.1
OPTIONS = TrainingOptions(
    (), NOISE, prior_std=PRIOR, init_std=0.05, steps=STEPS, learning_rate=RATE, dtype="float64", inference="vogn"
)
# Cosine schedule: the rate is RATE (pi r / 2 STEPS)^2 with r steps left; rate * r / 3 = 1 gives r = 424 and a rate of
# 0.007, so an error of about sqrt(0.007 / 2) = 0.06 standard deviations, and somewhat more with correlated inputs.
MEAN = 5 * 0.06


def natural(curvature: str | None = None, **changes: Any) -> NaturalGradient:
    return NaturalGradient(decay=DECAY, curvature=curvature, **changes)


def problem() -> RegressionData:
    return linear_problem(POINTS, noise=NOISE)


def std_tolerance(relative: float) -> float:
    """Five errors of a standard deviation whose curvature has this relative error in one step."""
    return 5 * 0.5 * math.sqrt((1 - DECAY) / (1 + DECAY)) * relative


def fixed_point(data: RegressionData, curvature: str) -> Tensor:
    """Standard deviations (n_in + 1, n_out) at which the update on all points stands still on average.

    At the exact mean m with residuals r, and theta = m + sigma eps, the gradient of point i is
    (r_i - x_i sigma eps) x_i / noise^2. ``examples``: E g_ij^2 = (r_i^2 + sum_k x_ik^2 sigma_k^2) x_ij^2 / noise^4.
    ``batch``: the mean gradient is, at m, m / (N prior^2), and its variance sum_k A_jk^2 sigma_k^2 with
    A = X'X / (N noise^2).
    """
    columns, points = design(data.x), data.points
    mean, std, _ = exact_mean_field(data, NOISE, PRIOR)
    gram = columns.T @ columns / (points * NOISE**2)
    variance = std.square()
    for _ in range(1000):
        if curvature == "examples":
            expected = (data.y - columns @ mean).square() + columns.square() @ variance
            square = columns.square().T @ expected / (points * NOISE**4)
        else:
            square = (mean / (points * PRIOR**2)).square() + gram.square() @ variance
        variance = (variance * 1 / (points * square + 1 / PRIOR**2)).sqrt()  # geometric mean of old and new
    return variance.sqrt()


@pytest.mark.parametrize("inference", METHODS)
class TestLinearRegression:
    @pytest.mark.parametrize(
        ("changes", "own"),
        [
            ({}, {}),
            pytest.param({"batch": 20}, {}, marks=pytest.mark.slow),
            pytest.param({"dtype": "float32"}, {"samples": 3, "momentum": 0.5}, marks=pytest.mark.slow),
            pytest.param({"temperature": 0.3}, {}, marks=pytest.mark.slow),
            pytest.param({"warm_up": 0.3, "temperature": 2.0}, {}, marks=pytest.mark.slow),
        ],
        ids=str,
    )
    def test_with_drawn_targets_it_finds_the_mean_field_optimum(
        self, inference: str, changes: dict[str, Any], own: dict[str, Any]
    ) -> None:
        data, options = problem(), replace(OPTIONS, inference=inference, natural=natural("fisher", **own), **changes)
        mean, std, _ = exact_mean_field(data, NOISE, PRIOR, options.temperature)
        got_mean, got_std = linear_parameters(train(data, options).network)
        # one step's curvature is a mean of x^2 n^2 over the batch: relative variance (3 * 3 - 1) / batch
        batch = options.batch or POINTS
        assert (got_std / std - 1).abs().max() <= std_tolerance(math.sqrt(8 / batch))
        extra = math.sqrt(POINTS / batch)  # the batch, beside the draw of the weights
        assert ((got_mean - mean) / std).abs().max() <= MEAN * extra

    def test_the_problem_can_tell(self, inference: str) -> None:
        """Without the prior, at another temperature or with exact marginals, the tolerances would not be met."""
        data = problem()
        mean, std, precision = exact_mean_field(data, NOISE, PRIOR)
        for other in (exact_mean_field(data, NOISE, 1e3), exact_mean_field(data, NOISE, PRIOR, 0.3)):
            assert ((other[0] - mean) / std).abs().max() > 2 * MEAN
            assert (other[1] / std - 1).abs().max() > std_tolerance(math.sqrt(8 / POINTS))
        marginal = torch.linalg.inv(precision).diagonal().sqrt()
        assert (marginal / std[:, 0] - 1).max() > std_tolerance(math.sqrt(8 / POINTS))

    @pytest.mark.parametrize("curvature", ["examples", "batch"])
    @pytest.mark.slow
    def test_with_the_targets_of_the_data_it_finds_its_own_fixed_point(self, inference: str, curvature: str) -> None:
        data = problem()
        mean, best, _ = exact_mean_field(data, NOISE, PRIOR)
        std = fixed_point(data, curvature)
        options = replace(OPTIONS, inference=inference, natural=natural(curvature))
        got_mean, got_std = linear_parameters(train(data, options).network)
        # a square of one Gaussian has the relative error sqrt(2); the mean over examples has less
        tolerance = std_tolerance(math.sqrt(2))
        assert (got_std / std - 1).abs().max() <= tolerance
        assert ((got_mean - mean) / std).abs().max() <= MEAN
        if curvature == "batch":  # here the squares of all points together say next to nothing
            assert (std / best - 1).max() > 2 * tolerance

    def test_published_curvature_is_the_default(self, inference: str) -> None:
        published = {"vogn": "examples", "noisy-adam": "batch"}[inference]
        options = replace(OPTIONS, inference=inference, steps=20)
        first, same, other = (
            train(problem(), replace(options, natural=own)).network.digest()
            for own in (None, NaturalGradient(curvature=published), NaturalGradient(curvature="fisher"))
        )
        assert first == same
        assert first != other


@pytest.mark.parametrize("inference", METHODS)
@pytest.mark.parametrize("damping", [0.05, None])
def test_one_step_is_the_published_update(inference: str, damping: float | None) -> None:
    """Two steps of a network with a hidden layer, by autograd and loops over the points."""
    generator = torch.Generator().manual_seed(9)
    data = RegressionData(*(torch.randn(6, n, generator=generator, dtype=torch.float64) for n in (2, 1)))
    own = NaturalGradient(momentum=0.8, decay=0.7, damping=damping)
    options = TrainingOptions(
        (3,), 0.6, prior_std=0.9, init_std=0.2, steps=2, learning_rate=0.2, schedule="constant", dtype="float64",
        temperature=0.5, inference=inference, natural=own, seed=4,
    )  # fmt: skip
    network = train(data, options).network
    want = _by_hand(data, options, own)
    got = [t for layer in network.linears for t in (layer.weight_mean, layer.bias_mean)]
    stds = [t for layer in network.linears for t in (layer.weight_std, layer.bias_std)]
    for (mean, std), found, found_std in zip(want, got, stds, strict=True):
        assert torch.allclose(found, mean, rtol=1e-10, atol=1e-12)
        assert torch.allclose(found_std, std, rtol=1e-10, atol=1e-12)


def _by_hand(data: RegressionData, options: TrainingOptions, own: NaturalGradient) -> list[tuple[Tensor, Tensor]]:
    """The updates as the papers write them."""
    generator = torch.Generator().manual_seed(options.seed)
    mu = [
        (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) / math.sqrt(n_in)
        for n_in, n_out in ((2, 3), (3, 1))
        for shape in ((n_out, n_in), (n_out,))
    ]
    n, kl, eta = data.points, options.temperature, options.prior_std**2
    gamma = kl / (n * eta)
    usual = (1 - kl) / (n * eta) if options.inference == "vogn" else 0.0  # what a cold posterior lacks
    damping = usual if own.damping is None else own.damping
    curvature = [torch.full_like(t, kl / (n * options.init_std**2) - gamma) for t in mu]
    momentum = [torch.zeros_like(t) for t in mu]
    for k in (1, 2):
        w = [
            m + (kl / (n * (f + gamma))).sqrt() * torch.randn(m.shape, generator=generator, dtype=torch.float64)
            for m, f in zip(mu, curvature, strict=True)
        ]
        leaves = [t.clone().requires_grad_() for t in w]
        single = []
        for x, y in zip(data.x, data.y, strict=True):
            output = leaves[2] @ (leaves[0] @ x + leaves[1]).relu() + leaves[3]
            log_p = -(y - output).square().sum() / (2 * options.noise_std**2)
            single.append(torch.autograd.grad(log_p, leaves))
        for i in range(4):
            g = sum(gradients[i] for gradients in single) / n
            if options.inference == "vogn":
                step, square = g - gamma * mu[i], sum(gradients[i] ** 2 for gradients in single) / n
            else:
                step, square = g - gamma * w[i], g**2
            momentum[i] = own.momentum * momentum[i] + (1 - own.momentum) * step
            curvature[i] = own.decay * curvature[i] + (1 - own.decay) * square
            unbiased = momentum[i] / (1 - own.momentum**k)
            mu[i] = mu[i] + options.learning_rate * unbiased / (curvature[i] + gamma + damping)
    return [(m, (kl / (n * (f + gamma))).sqrt()) for m, f in zip(mu, curvature, strict=True)]


LOGISTIC = TrainingOptions(
    (), prior_std=LOGISTIC_PRIOR, init_std=0.3, steps=STEPS, learning_rate=RATE, dtype="float64",
    inference="vogn", natural=natural("fisher", samples=2),
)  # fmt: skip


@pytest.mark.parametrize("inference", METHODS)
@pytest.mark.parametrize("temperature", [1.0, 0.2])
@pytest.mark.slow
def test_logistic_regression_against_quadrature(inference: str, temperature: float) -> None:
    """Means start near zero: only the prior, at a rate of T / (N prior^2 s), moves what both logits have in common."""
    data = logistic_problem()
    options = replace(LOGISTIC, init_gain=0.01, temperature=temperature, inference=inference)
    got, want = logistic_parameters(train(data, options).network), best_logistic(temperature)
    assert ((got[0] - want[0]) / want[1].exp()).abs().max() <= MEAN
    # squares of (label - probability) x over 120 points and two draws: less noisy than Gaussian residuals
    assert (got[1] - want[1]).abs().max() <= std_tolerance(math.sqrt(8 / data.points)) + 0.02
    top, reached = (logistic_objective(data, *point, temperature).item() for point in (want, got))
    assert top - 0.2 <= reached <= top + 1e-9


@pytest.mark.slow
def test_ivon_finds_the_same_posterior() -> None:
    """IVON (Shen et al. 2024) learns the same expected second derivatives from the draws themselves."""
    ivon = pytest.importorskip("ivon", reason="ivon-opt (GPL, for this test only) is not installed")
    data = logistic_problem()
    columns = design(data.x)
    weight = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    optimiser = ivon.IVON(
        [weight], lr=RATE, ess=data.points, hess_init=0.1, beta2=DECAY, weight_decay=1 / (data.points * 0.7**2),
        rescale_lr=False,
    )  # fmt: skip
    torch.manual_seed(0)
    for step in range(STEPS):
        optimiser.param_groups[0]["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        for _ in range(2):
            with optimiser.sampled_params(train=True):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(columns @ weight.T, data.y).backward()
        optimiser.step()
    group = optimiser.param_groups[0]
    std = (group["ess"] * (group["hess"] + group["weight_decay"])).rsqrt().reshape(2, 3)
    mean, log_std = logistic_parameters(train(data, LOGISTIC).network)
    assert ((mean - weight.detach()) / std).abs().max() <= MEAN * math.sqrt(2)
    assert (log_std - std.log()).abs().max() <= 0.2  # IVON's curvature of one step is far noisier


@pytest.mark.slow
@pytest.mark.parametrize(("inference", "batch", "rate"), [("vogn", 200, 0.05), ("noisy-adam", 20, 0.02)])
def test_quadrants_are_learnt(inference: str, batch: int, rate: float) -> None:
    held_out = quadrants(4000, seed=1)
    options = TrainingOptions(
        (16,), init_std=0.05, steps=800, batch=batch, learning_rate=rate, inference=inference,
        natural=NaturalGradient(decay=0.99),
    )  # fmt: skip
    card = train(quadrants(2000, seed=0), options, held_out=held_out).card
    best = 0.95554
    error = math.sqrt(best * (1 - best) / held_out.points)
    assert best - 0.015 - 4 * error <= card.held_out.accuracy <= best + 4 * error
    assert card.held_out.calibration_error <= 0.08
    assert card.held_out.logit_std > 0.1


@pytest.mark.parametrize("inference", METHODS)
@pytest.mark.slow
def test_points_that_say_nothing_leave_the_prior(inference: str) -> None:
    data = ClassificationData(torch.zeros(10, 4), torch.arange(10) % 2, 2)
    options = TrainingOptions(
        (), prior="fan_in", prior_std=0.8, init_std=0.05, steps=3000, learning_rate=0.1, inference=inference,
        natural=natural(),
    )  # fmt: skip
    layer = train(data, options).network.linears[0]
    assert torch.allclose(layer.weight_std, torch.tensor(0.4, dtype=torch.float64), rtol=1e-3)  # sqrt(n_in) = 2
    assert layer.weight_mean.abs().max() <= 1e-3 + (0.4 * MEAN if inference == "noisy-adam" else 0)


def test_a_training_that_diverges_says_so() -> None:
    with pytest.raises(InputError, match=r"training diverged: .* learning_rate"):
        train(problem(), replace(OPTIONS, learning_rate=1e4, steps=200, natural=natural("fisher")))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"momentum": 1.0}, "momentum must be in [0, 1), got 1.0"),
        ({"decay": -0.1}, "decay must be in [0, 1), got -0.1"),
        ({"decay": math.nan}, "decay must be in [0, 1), got nan"),
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"damping": math.inf}, "damping must be finite and at least 0, got inf"),
        ({"curvature": "hessian"}, "curvature must be one of examples, batch, fisher, got 'hessian'"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        NaturalGradient(**wrong)
    assert words in str(caught.value)


def test_methods_that_do_not_exist_are_refused_in_one_line() -> None:
    for name in ("dropout", "ensemble", "laplace"):
        words = f"^inference '{name}' is an option beside the method; choose one of bbb, vogn, noisy-adam, map"
        with pytest.raises(InputError, match=words):
            TrainingOptions(inference=name)
    with pytest.raises(InputError, match=r"^inference 'hmc' is unknown; choose one of bbb, vogn, noisy-adam, map\.$"):
        TrainingOptions(inference="hmc")
    with pytest.raises(InputError, match="belongs to vogn and noisy-adam, inference is 'bbb'"):
        TrainingOptions(natural=NaturalGradient())
