"""Gradients of single points against autograd, one point at a time; slopes and drawn targets of the likelihoods."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from bnndp.training.likelihoods import Categorical, Gaussian, Likelihood
from bnndp.training.per_example import batch_gradients

LIKELIHOODS = [Gaussian(0.4), Categorical()]
GENERATOR = torch.Generator()


def problem(likelihood: Likelihood, sizes: tuple[int, ...] = (3, 5, 4, 3)) -> tuple[list[Tensor], Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    parameters = [
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for n_in, n_out in pairwise(sizes)
        for shape in ((n_out, n_in), (n_out,))
    ]
    x = torch.randn(7, sizes[0], generator=generator, dtype=torch.float64)
    if isinstance(likelihood, Categorical):
        return parameters, x, torch.randint(sizes[-1], (7,), generator=generator)
    return parameters, x, torch.randn(7, sizes[-1], generator=generator, dtype=torch.float64)


def network(parameters: list[Tensor], x: Tensor) -> Tensor:
    z = x
    for k, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
        z = torch.nn.functional.linear(z.relu() if k else z, weight, bias)
    return z


def single_gradients(likelihood: Likelihood, parameters: list[Tensor], x: Tensor, y: Tensor) -> list[list[Tensor]]:
    """The gradient of the log-likelihood of each point by itself, by autograd."""
    leaves = [t.clone().requires_grad_() for t in parameters]
    return [
        list(torch.autograd.grad(likelihood.log_probability(network(leaves, x[i : i + 1]), y[i : i + 1]).sum(), leaves))
        for i in range(x.shape[0])
    ]


@pytest.mark.parametrize("sizes", [(3, 3), (3, 5, 3), (3, 5, 4, 3)], ids=str)
@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=["gaussian", "categorical"])
def test_against_autograd_point_by_point(likelihood: Likelihood, sizes: tuple[int, ...]) -> None:
    parameters, x, y = problem(likelihood, sizes)
    single = single_gradients(likelihood, parameters, x, y)
    examples, batch = (batch_gradients(likelihood, parameters, x, y, kind, GENERATOR) for kind in ("examples", "batch"))
    gain = likelihood.log_probability(network(parameters, x), y).mean()
    for i in range(len(parameters)):
        each = torch.stack([gradients[i] for gradients in single])
        for found in (examples, batch):
            assert torch.allclose(found.gradient[i], each.mean(0), rtol=1e-10, atol=1e-12)
        assert torch.allclose(examples.square[i], each.square().mean(0), rtol=1e-10, atol=1e-12)
        assert torch.allclose(batch.square[i], each.mean(0).square(), rtol=1e-10, atol=1e-12)
        assert not torch.allclose(each.square().mean(0), each.mean(0).square(), rtol=0.1)  # the two differ here
    assert torch.allclose(examples.gain, gain)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=["gaussian", "categorical"])
def test_the_mean_of_the_fisher_squares_is_the_diagonal_of_gauss_newton(likelihood: Likelihood) -> None:
    """J' H J with H the second derivatives of -log p: 1 / noise^2, or diag(p) - p p'."""
    parameters, x, y = problem(likelihood)
    draws = 4000
    generator = torch.Generator().manual_seed(5)
    found = [batch_gradients(likelihood, parameters, x, y, "fisher", generator).square for _ in range(draws)]
    leaves = tuple(parameters)
    jacobians = torch.autograd.functional.jacobian(lambda *p: network(list(p), x), leaves)
    outputs = network(parameters, x)
    if isinstance(likelihood, Gaussian):
        inner = torch.eye(3, dtype=torch.float64).expand(7, 3, 3) / likelihood.noise_std**2
    else:
        p = outputs.softmax(-1)
        inner = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    for i, jacobian in enumerate(jacobians):
        flat = jacobian.reshape(7, 3, -1)
        truth = torch.einsum("noj,nop,npj->j", flat, inner, flat) / 7
        drawn = torch.stack([square[i].flatten() for square in found])
        error = drawn.std(0) / math.sqrt(draws)
        assert ((drawn.mean(0) - truth).abs() <= 5 * error + 1e-12).all()
        assert (error <= 0.15 * truth + 1e-12).all()  # so that a factor of two would be seen


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=["gaussian", "categorical"])
def test_slope_is_the_gradient_with_respect_to_the_outputs(likelihood: Likelihood) -> None:
    parameters, x, y = problem(likelihood)
    outputs = network(parameters, x).requires_grad_()
    (truth,) = torch.autograd.grad(likelihood.log_probability(outputs, y).sum(), outputs)
    assert torch.allclose(likelihood.output_gradient(outputs.detach(), y), truth, rtol=1e-12, atol=1e-14)


def test_drawn_targets_have_the_law_of_the_likelihood() -> None:
    generator = torch.Generator().manual_seed(2)
    draws = 40_000
    outputs = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64).expand(draws, 3)
    values = Gaussian(0.4).sample_targets(outputs, generator)
    assert ((values.mean(0) - outputs[0]).abs() <= 5 * 0.4 / math.sqrt(draws)).all()
    assert ((values.std(0) / 0.4 - 1).abs() <= 5 / math.sqrt(2 * draws)).all()
    labels = Categorical().sample_targets(outputs, generator)
    share = torch.bincount(labels, minlength=3) / draws
    assert ((share - outputs[0].softmax(-1)).abs() <= 5 * 0.5 / math.sqrt(draws)).all()
