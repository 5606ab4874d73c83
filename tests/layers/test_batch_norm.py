"""Batch normalisation folded into the layer before it, against torch in evaluation mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.records import conv, correlated, law, linear, matrix_normal, normal, uniform

from bnndp.attack.draws import draw_networks, evaluate
from bnndp.errors import InputError
from bnndp.layers import BatchNorm, Conv2d, Dropout, Flatten, Linear
from bnndp.network import BayesianNetwork

GAMMA = torch.tensor([-0.7, 0.4, 1.3], dtype=torch.float64)  # of both signs
NORM = BatchNorm(normal(3, seed=1), uniform(3, seed=2), GAMMA, normal(3, seed=4))
LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (linear(3, 4, 1), (4,)),
    "rows": (correlated(3, 4, 1, shared=False), (4,)),
    "low rank": (correlated(3, 4, 1, shared=True), (4,)),
    "matrix normal": (matrix_normal(3, 4, 1), (4,)),
    "conv": (conv(3, 2, 1), (2, 4, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_law_is_that_of_both_layers(name: str) -> None:
    layer, shape = LAYERS[name]
    z = normal(*shape, seed=7)
    factor = NORM.weight / (NORM.variance + NORM.eps).sqrt()
    offset = NORM.bias - NORM.mean * factor
    mean, covariance = law(layer, z)
    repeat = len(mean) // 3
    factor, offset = factor.repeat_interleave(repeat), offset.repeat_interleave(repeat)
    got = law(NORM.after(layer), z)
    torch.testing.assert_close(got[0], factor * mean + offset, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got[1], factor[:, None] * covariance * factor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("image", [False, True])
def test_it_is_what_torch_evaluates(image: bool) -> None:
    shape = (2, 4, 4) if image else (4,)
    weight = normal(3, 2, 3, 3, seed=1) if image else normal(3, 4, seed=1)
    fixed = (Conv2d if image else Linear).fixed(weight, normal(3, seed=2))
    module = (torch.nn.BatchNorm2d if image else torch.nn.BatchNorm1d)(3, dtype=torch.float64).eval()
    module.load_state_dict(
        {
            "running_mean": NORM.mean,
            "running_var": NORM.variance,
            "weight": NORM.weight,
            "bias": NORM.bias,
            "num_batches_tracked": torch.tensor(1),
        }
    )
    x = normal(5, *shape, seed=3)
    plain = torch.nn.functional.conv2d(x, weight, fixed.bias_mean) if image else x @ weight.T + fixed.bias_mean
    with torch.no_grad():
        want = module(plain).flatten(1)
    network = BayesianNetwork((NORM.after(fixed), Flatten()), input_shape=shape)
    got = evaluate(draw_networks(network, 1, seed=0), x.flatten(1))[0]
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_what_cannot_be_folded_is_refused() -> None:
    with pytest.raises(InputError, match="it must follow a layer with weights"):
        NORM.after(Dropout(0.1))
    with pytest.raises(InputError, match=r"of 3 outputs follows a layer \(linear\) of 2"):
        NORM.after(linear(2, 4, 1))
    zero, one = torch.zeros(3), torch.ones(3)
    for variance, eps in ((zero, 0.0), (-one, 2.0), (one, float("nan")), (one, -1e-5)):
        with pytest.raises(InputError, match="variance"):
            BatchNorm(zero, variance, one, zero, eps)
    with pytest.raises(InputError, match="must have shape"):
        BatchNorm(zero, one, torch.ones(2), zero)
    with pytest.raises(InputError, match="not finite"):
        BatchNorm(zero, one, one * torch.nan, zero)
