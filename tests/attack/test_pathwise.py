"""Layers on Gaussian noise: the law of the record for every input, marginals in closed form, gradients to climb on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.records import FIXED, RANDOM, apply_once, law, normal
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import ACTIVATIONS, Gelu, Relu, Tanh
from bnndp.attack.pathwise import breadth, integrated, marginals, noise_width, step, symmetric

WEIGHTED = {name: case for name, case in RANDOM.items() if case[0].tensors}


def noise(layer: Any, shape: tuple[int, ...], draws: int) -> Tensor:
    return normal(draws, noise_width(layer, shape), seed=8)


@pytest.mark.parametrize("name", slow_but(RANDOM, "linear", "low rank", "matrix normal", "dropout"))
@pytest.mark.parametrize("spread", [False, True], ids=["one draw below", "draws below"])
def test_a_layer_on_noise_has_the_law_of_its_record(name: str, spread: bool) -> None:
    layer, shape = RANDOM[name]
    z = normal(1, 2, *shape, seed=3)
    count = 4000
    below = z.expand(count, *z.shape[1:]) if spread else z
    samples = step(layer, below, noise(layer, shape, count)).flatten(2)
    for index in range(2):
        mean, covariance = law(layer, z[0, index])
        centred = samples[:, index] - mean
        assert (centred.mean(0).abs() <= 5 * centred.std(0) / math.sqrt(count) + 1e-12).all()
        products = centred[:, :, None] * centred[:, None]
        assert ((products.mean(0) - covariance).abs() <= 5 * products.std(0) / math.sqrt(count) + 1e-12).all()


@pytest.mark.parametrize("name", RANDOM)
def test_without_noise_a_layer_is_its_mean(name: str) -> None:
    layer, shape = RANDOM[name]
    z = normal(1, 2, *shape, seed=3)
    got = step(layer, z, None)
    assert tuple(got.shape) == (1, 2, *layer.out_shape(shape))
    for index in range(2):
        torch.testing.assert_close(got[0, index].flatten(), law(layer, z[0, index])[0], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", FIXED)
def test_layers_without_variance_need_no_noise(name: str) -> None:
    layer, shape = FIXED[name]
    assert noise_width(layer, shape) == 0
    z = normal(2, 3, *shape, seed=3)
    want = apply_once(layer, z.flatten(0, 1)).unflatten(0, (2, 3))
    torch.testing.assert_close(step(layer, z, None), want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", WEIGHTED)
def test_marginals_are_those_of_the_covariance(name: str) -> None:
    layer, shape = WEIGHTED[name]
    z = normal(2, 3, *shape, seed=3)
    means, stds = marginals(layer, z)
    for i in range(2):
        for j in range(3):
            mean, covariance = law(layer, z[i, j])
            torch.testing.assert_close(means[i, j].flatten(), mean, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(stds[i, j].flatten() ** 2, covariance.diag(), rtol=1e-12, atol=1e-12)
    assert breadth(layer, shape) >= math.prod(layer.out_shape(shape))


@pytest.mark.parametrize("activation", [Tanh(), Gelu(), Relu()], ids=lambda record: record.kind)
def test_integrated_activations_have_usable_gradients(activation: Any) -> None:
    mean, std = normal(50, seed=1), normal(50, seed=2).abs() + 0.1
    leaves = mean.clone().requires_grad_(), std.clone().requires_grad_()
    value = integrated(activation, *leaves)
    torch.testing.assert_close(value.detach(), activation.mean(mean, std), rtol=1e-12, atol=1e-12)
    got = torch.autograd.grad(value.sum(), leaves)
    h = 1e-5
    want = [
        (activation.mean(mean + a * h, std + b * h) - activation.mean(mean - a * h, std - b * h)) / (2 * h)
        for a, b in ((1, 0), (0, 1))
    ]
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_gradients_are_finite_where_there_is_no_variance() -> None:
    for kind in sorted(set(ACTIVATIONS) - {"piecewise_affine"}):
        leaf = normal(6, seed=1).requires_grad_()
        value = integrated(ACTIVATIONS[kind](), leaf, torch.full_like(leaf, 1e-150))
        assert torch.autograd.grad(value.sum(), leaf)[0].isfinite().all()


@pytest.mark.parametrize("activation", [Tanh(), Gelu(), Relu()], ids=lambda record: record.kind)
def test_the_rule_of_degree_three_is_unbiased(activation: Any) -> None:
    mean, std = normal(1, 2, 6, seed=1), normal(1, 2, 6, seed=2).abs()
    found = symmetric(activation, mean, std, normal(20000, 18, seed=3))
    error = (found.mean(0) - activation.mean(mean, std)[0]).abs()
    assert (error <= 5 * found.std(0) / math.sqrt(20000)).all()
    plain = activation(mean + std * normal(20000, 1, 6, seed=4))
    assert (found.std(0) < 0.7 * plain.std(0)).all()


def test_the_rule_of_degree_three_is_exact_for_cubics() -> None:
    mean, std = normal(1, 2, 6, seed=1), normal(1, 2, 6, seed=2).abs()
    found = symmetric(lambda x: x**3 - 2 * x**2 + 1, mean, std, normal(50, 18, seed=3))
    want = mean**3 + 3 * mean * std**2 - 2 * (mean**2 + std**2) + 1
    torch.testing.assert_close(found, want.expand_as(found), rtol=1e-9, atol=1e-9)


def test_no_radius_of_the_rule_is_too_small() -> None:
    mean, std = normal(1, 2, 6, seed=1), normal(1, 2, 6, seed=2).abs()
    found = symmetric(Tanh(), mean, std, 1e-9 * normal(50, 18, seed=3))
    slope = 1 - mean.tanh() ** 2
    want = mean.tanh() - mean.tanh() * slope * std**2  # phi + phi'' r^2 / 2
    torch.testing.assert_close(found, want.expand_as(found), rtol=1e-3, atol=1e-3)
