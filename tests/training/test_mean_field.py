"""Layers in training against plain sampling and autograd: kernels, dropout, gradients of single points."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bnndp.activations import Tanh
from bnndp.data import ClassificationData
from bnndp.layers import AveragePool, Dropout, Flatten, MaxPool
from bnndp.training import TrainingOptions, train
from bnndp.training.forward import Stage, affine, apply_fixed
from bnndp.training.likelihoods import Categorical
from bnndp.training.mean_field import FreeLayer, initial_layers, output_moments, sampled_output
from bnndp.training.per_example import batch_gradients

IMAGE = (2, 6, 6)


def layers_of(**options: Any) -> list[FreeLayer]:
    given = TrainingOptions(**({"image": IMAGE, "dtype": "float64", "init_std": 0.2} | options))
    return initial_layers(given, 72, 3, torch.Generator().manual_seed(0))


def inputs(points: int) -> Tensor:
    return torch.randn(points, 72, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@torch.no_grad()
def test_flipout_has_the_law_of_kernels_that_are_drawn() -> None:
    """Mean and all covariances between positions and channels of one point, against kernels drawn plainly."""
    (layer, _) = layers_of(hidden=(), conv="3x3s2p1")
    draws = 8000
    x = inputs(1)
    generator = torch.Generator().manual_seed(2)
    found = torch.stack([layer.sample(x, generator)[0] for _ in range(draws)]).flatten(1)  # (draws, 3 * 9)
    windows = functional.unfold(x.reshape(1, *IMAGE), 3, padding=1, stride=2)[0].T  # (positions, window)
    assert layer.weight_log_std is not None
    assert layer.bias_log_std is not None
    variance = (2 * layer.weight_log_std).exp().flatten(1)  # (channels, window)
    shared = torch.einsum("cw,pw,qw->cpq", variance, windows, windows) + (2 * layer.bias_log_std).exp()[:, None, None]
    covariance = torch.block_diag(*shared)  # channels are independent, positions are not
    mean = layer.mean(x).flatten()
    scale = covariance.diagonal().sqrt()
    assert ((found.mean(0) - mean).abs() <= 5 * scale / draws**0.5).all()
    error = ((found.T.cov() - covariance) / scale / scale[:, None]).abs()
    assert (error <= 6 * (2 / draws) ** 0.5).all()
    assert (shared[:, 0, 1] / (shared[:, 0, 0] * shared[:, 1, 1]).sqrt()).abs().max() > 0.1  # there is something to see


@torch.no_grad()
def test_flipout_gives_points_signs_of_their_own() -> None:
    (layer, _) = layers_of(hidden=(), conv="8x3")
    x = inputs(1).expand(2, -1)
    generator = torch.Generator().manual_seed(2)
    pairs = torch.stack([layer.sample(x, generator) - layer.mean(x) for _ in range(4000)])  # (draws, 2, 8, 4, 4)
    both = (pairs[:, 0] * pairs[:, 1]).mean(0) / pairs.square().mean((0, 1))
    assert both.abs().max() < 6 / 4000**0.5 * 3  # products have heavier tails than Gaussians


@torch.no_grad()
def test_outputs_against_whole_networks() -> None:
    """E and Var of the outputs from local draws are those of networks drawn one at a time."""
    layers = layers_of(hidden=(5,), conv="3x3,pool2", activation="tanh")
    x, draws = inputs(3), 4000
    mean, variance = output_moments(layers, x, torch.Generator().manual_seed(3), draws=draws)
    mean, variance = (t.reshape(3, draws, 3) for t in (mean, variance))
    generator = torch.Generator().manual_seed(4)
    plain = torch.stack([sampled_output(layers, x, generator) for _ in range(draws)], 1)  # (points, draws, 3)
    total = variance.mean(1) + mean.var(1)
    assert ((mean.mean(1) - plain.mean(1)).abs() <= 7 * (total / draws).sqrt()).all()
    assert torch.allclose(total, plain.var(1), rtol=0.15)


@pytest.mark.parametrize("law", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("channels", [False, True])
def test_factors_of_dropout(law: str, channels: bool) -> None:
    rate, points = 0.3, 3000
    dropout = Dropout(rate, law, channels)
    ones = torch.ones(points, 2, 3, 3, dtype=torch.float64)
    found = apply_fixed((dropout,), ones, torch.Generator().manual_seed(0))
    spread = (rate / (1 - rate)) ** 0.5
    assert ((found.mean(0) - 1).abs() <= 5 * spread / points**0.5).all()
    assert torch.allclose(found.var(0), torch.full((2, 3, 3), spread**2, dtype=torch.float64), rtol=0.2)
    if law == "bernoulli":
        assert set(found.unique().tolist()) == {0.0, 1 / (1 - rate)}
    correlation = torch.corrcoef(found.flatten(1).T)  # (18, 18)
    same = torch.block_diag(*[torch.ones(9, 9)] * 2) if channels else torch.eye(18)
    assert (correlation - same).abs().max() < 6 / points**0.5
    assert torch.equal(apply_fixed((dropout,), ones, None), ones)  # its mean


CHAINS = {
    "strides": ([(4, 2, 3, 3), (3, 16)], [Stage((Tanh(), Flatten()), (2, 2), (0, 0), IMAGE), Stage()]),
    "padding and pools": (
        [(4, 2, 3, 3), (5, 4, 2, 2), (3, 5)],
        [Stage((Tanh(), AveragePool(2)), (1, 1), (1, 1), IMAGE), Stage((Tanh(), MaxPool(2), Flatten())), Stage()],
    ),
}


@pytest.mark.parametrize("case", CHAINS)
@pytest.mark.parametrize("curvature", ["examples", "batch"])
def test_gradients_of_single_points(case: str, curvature: str) -> None:
    shapes, steps = CHAINS[case]
    generator = torch.Generator().manual_seed(5)
    parameters = [
        torch.randn(shape, generator=generator, dtype=torch.float64) * 0.5
        for weights in shapes
        for shape in (weights, weights[:1])
    ]
    x, y = inputs(5), torch.tensor([0, 1, 2, 1, 0])

    def outputs(leaves: list[Tensor], one: Tensor) -> Tensor:
        z = one
        for step, weight, bias in zip(steps, leaves[::2], leaves[1::2], strict=True):
            z = apply_fixed(step.after, affine(step, weight, bias, step.as_image(z)), None)
        return z

    leaves = [t.clone().requires_grad_() for t in parameters]
    single = [
        torch.autograd.grad(Categorical().log_probability(outputs(leaves, x[i : i + 1]), y[i : i + 1]).sum(), leaves)
        for i in range(5)
    ]
    found = batch_gradients(Categorical(), parameters, x, y, curvature, torch.Generator(), steps)
    for k in range(len(parameters)):
        each = torch.stack([gradients[k] for gradients in single])
        expected = each.square().mean(0) if curvature == "examples" else each.mean(0).square()
        assert torch.allclose(found.gradient[k], each.mean(0), rtol=1e-9, atol=1e-12)
        assert torch.allclose(found.square[k], expected, rtol=1e-9, atol=1e-12)


def stripes(points: int, seed: int) -> ClassificationData:
    """Images of 6 x 6 with horizontal or vertical stripes of random phase and sign, and noise."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(2, (points,), generator=generator)
    phase = torch.randint(2, (points, 1), generator=generator)
    wave = 1.0 - 2.0 * ((torch.arange(6)[None] + phase) % 2)  # (points, 6)
    image = torch.where(label[:, None, None] == 0, wave[:, :, None], wave[:, None, :]).expand(points, 6, 6)
    noise = torch.randn(points, 6, 6, generator=generator, dtype=torch.float64)
    return ClassificationData((image + 0.5 * noise).flatten(1), label, 2)


@pytest.mark.parametrize(
    ("inference", "changes"),
    [
        pytest.param("bbb", {}, marks=pytest.mark.slow),
        ("vogn", {"schedule": "warm_cosine", "temperature": 0.1, "learning_rate": 3e-2}),
        pytest.param(
            "noisy-adam",
            {"schedule": "warm_cosine", "temperature": 0.01, "learning_rate": 3e-3},
            marks=pytest.mark.slow,
        ),
        ("map", {"dropout": Dropout(0.1, channels=True)}),
        pytest.param("bbb", {"dropout": Dropout(0.1)}, marks=pytest.mark.slow),
    ],
)
def test_every_method_learns_what_no_dense_layer_could(inference: str, changes: dict[str, Any]) -> None:
    """The mean image of both classes is zero: a linear classifier is at chance, local products are needed."""
    settings: dict[str, Any] = {"steps": 400, "batch": 100, "learning_rate": 1e-2, "init_std": 0.05, "prior_std": 1.0}
    options = TrainingOptions((), conv="4x3,pool4", image=(1, 6, 6), inference=inference, **(settings | changes))
    trained = train(stripes(2000, 0), options, held_out=stripes(500, 1))
    held_out = trained.card.held_out
    assert held_out.accuracy > 0.95
    assert held_out.logit_std > 1e-3  # a posterior
    assert trained.network.input_shape == (1, 6, 6)
