"""Units of inputs and outputs folded into the layers: the same draws give the same outputs in other units."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.records import conv, correlated, linear, matrix_normal, normal, uniform

from bnndp.activations import Tanh
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.errors import InputError
from bnndp.layers import AveragePool, Dropout, Flatten
from bnndp.network import BayesianNetwork

FIRST: dict[str, tuple[Any, ...]] = {
    "linear": (linear(5, 4, 1),),
    "rows": (correlated(5, 4, 1, shared=False),),
    "low rank": (correlated(5, 4, 1, shared=True),),
    "matrix normal": (matrix_normal(5, 4, 1),),
    "dropout first": (Dropout(0.3), linear(5, 4, 1)),
}
LAST: dict[str, Any] = {
    "linear": linear(3, 5, 2),
    "rows": correlated(3, 5, 2, shared=False),
    "low rank": correlated(3, 5, 2, shared=True),
    "matrix normal": matrix_normal(3, 5, 2),
}


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("last", LAST)
def test_the_same_draws_in_other_units(first: str, last: str) -> None:
    network = BayesianNetwork((*FIRST[first], Tanh(), LAST[last]))
    shift, scale = normal(4, seed=1), 0.5 + uniform(4, seed=2)
    offset, factor = normal(3, seed=3), 0.5 + uniform(3, seed=4)
    changed = network.in_units((shift, scale), (offset, factor))
    z = normal(7, 4, seed=5)
    want = offset + factor * evaluate(draw_networks(network, 20, seed=6), z)
    got = evaluate(draw_networks(changed, 20, seed=6), z * scale + shift)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    with pytest.raises(InputError, match="standardise once"):
        changed.in_units((shift, scale))


def image_network() -> BayesianNetwork:
    layers = (conv(3, 2, 1, padding=1), Tanh(), AveragePool(2), Flatten(), linear(2, 12, 2))
    return BayesianNetwork(layers, input_shape=(2, 4, 4))


def test_channels_of_an_image_may_have_scales_of_their_own_and_pixels_a_shift() -> None:
    network = image_network()
    shift, scale = normal(32, seed=1), torch.tensor([0.5, 3.0], dtype=torch.float64).repeat_interleave(16)
    changed = network.in_units((shift, scale))
    z = normal(5, 32, seed=2)
    want = evaluate(draw_networks(network, 10, seed=3), z)
    torch.testing.assert_close(
        evaluate(draw_networks(changed, 10, seed=3), z * scale + shift), want, rtol=1e-12, atol=1e-12
    )
    assert changed.input_shape == (2, 4, 4)


def test_units_without_a_place_are_refused() -> None:
    one, four = torch.ones(4, dtype=torch.float64), torch.arange(1, 5, dtype=torch.float64)
    with pytest.raises(InputError, match="one scale for each channel"):
        image_network().in_units((torch.zeros(32), 1 + torch.arange(32)))
    with pytest.raises(InputError, match="cannot be folded into tanh"):
        BayesianNetwork((Tanh(), linear(2, 4, 1))).in_units((one, four))
    ends = BayesianNetwork((conv(2, 1, 1, size=2), Flatten()), input_shape=(1, 2, 2))
    with pytest.raises(InputError, match="need a dense layer at the end, got conv2d"):
        ends.in_units((0 * one, one), (torch.zeros(2), torch.ones(2)))
    assert replace(ends.in_units((0 * one, 2 * one)), shift=None).random
