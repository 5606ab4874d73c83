"""Dense layers of several networks at once: each member gets what it gets by itself."""

from __future__ import annotations

import pytest
import torch
from support.ensembles import certain_member
from support.records import normal

from bnndp.activations import Tanh
from bnndp.engine.laws.dense import Dense
from bnndp.engine.laws.stacked import StackedLinear, stacked_layers
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.rows import DenseRows
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.layers import Linear


def test_stacked_layers_are_the_layers_of_the_members() -> None:
    members, count = 3, 4
    layers = [Linear.fixed(normal(5, 6, seed=k), normal(5, seed=k + 9)) for k in range(members)]
    (stack,) = stacked_layers([[layer] for layer in layers], count)
    assert isinstance(stack, StackedLinear)
    z, rows = normal(members * count, 6, seed=1), normal(members * count, 7, 5, seed=2)
    for k, layer in enumerate(layers):
        own, at = Dense(layer, False), slice(k * count, (k + 1) * count)
        assert torch.allclose(stack.apply(z)[at], own.apply(z[at]), rtol=1e-13, atol=1e-14)
        assert torch.allclose(stack.power(z, 3)[at], own.power(z[at], 3), rtol=1e-13, atol=1e-13)
        assert torch.equal(stack.bias[at], layer.bias_mean.expand(count, -1))
        pulled = stack.pull(DenseRows(rows)).dense().values[at]
        assert torch.allclose(pulled, rows[at] @ layer.weight_mean, rtol=1e-13, atol=1e-13)
        pieces = [(part, own_rows.dense().values[at]) for part, own_rows in stack.own_rows(2 * 6)]
        assert [part.stop - part.start for part, _ in pieces] == [2, 2, 1]
        assert torch.equal(torch.cat([values for _, values in pieces], 1), layer.weight_mean.expand(count, -1, -1))
    assert not stack.random
    assert stack.out_shape((6,)) == (5,)
    with pytest.raises(InputError, match="vectors of 6"):
        stack.out_shape((5,))
    with pytest.raises(InputError, match="biases"):
        StackedLinear(stack.weight, stack.offsets[:, :2], count)


def test_functions_of_a_stack_are_those_of_each_member() -> None:
    members = [certain_member((3, 7, 5, 2), seed, activation=Tanh()) for seed in range(3)]
    box, rows = Box.ball(normal(2, 3, seed=5), 0.2), normal(6, 4, 2, seed=1)
    layers = stacked_layers([member.layers for member in members], 2)
    found = MomentPass(layers, members[0].shapes, box[torch.arange(2).repeat(3)]).affine(rows)
    for k, member in enumerate(members):
        at = slice(2 * k, 2 * k + 2)
        own = MomentPass.of(member, box).affine(rows[at])
        assert torch.allclose(found.affine.matrix[at], own.affine.matrix, rtol=1e-12, atol=1e-13)
        assert torch.allclose(found.affine.offset[at], own.affine.offset, rtol=1e-12, atol=1e-12)
        assert torch.allclose(found.least[at], own.least, rtol=1e-12, atol=1e-12)
