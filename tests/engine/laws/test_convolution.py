"""Convolutions: one kernel at all positions, its dense twin, and rows that know few positions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import records
from support.layer_judge import node_layers
from support.layer_networks import activation
from support.passes import ends
from tests.marks import slow_but
from torch import Tensor
from torch.nn import functional

from bnndp.activations import Identity, Relu, Tanh
from bnndp.engine.laws.weights import weights_of
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.nodes.bound import Bound
from bnndp.engine.rows import DenseRows
from bnndp.geometry.box import Box
from bnndp.layers import AveragePool, Conv2d, CorrelatedLinear, Dropout, Flatten, Linear, MaxPool
from bnndp.network import BayesianNetwork


@pytest.mark.parametrize("act", slow_but(("tanh", "gelu", "relu", "hard_tanh"), "tanh", "relu"))
@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 1), ((1, 2), (2, 0))])
def test_a_convolution_is_a_dense_layer_with_one_noise(act: str, stride: Any, padding: Any) -> None:
    """The dense twin has the kernel's noise as its factor: same means, spreads and conditional variances of rows."""
    shape = (2, 4, 5)
    layer = records.conv(2, 2, 3, size=2, stride=stride, padding=padding)
    n_in, out = math.prod(shape), layer.out_shape(shape)
    n_out = math.prod(out)
    zero = torch.zeros(n_out, n_in, dtype=torch.float64)
    columns = []
    for flat in range(layer.weight_mean.numel()):  # the derivative of the outputs in each entry of the kernel
        kernel = torch.zeros_like(layer.weight_mean).flatten()
        kernel[flat] = layer.weight_std.flatten()[flat]
        columns.append(torch.cat([_matrix(kernel.reshape(layer.weight_mean.shape), layer, shape), zero[:, :1]], 1))
    for c in range(out[0]):
        own = torch.zeros(out, dtype=torch.float64)
        own[c] = layer.bias_std[c]
        columns.append(torch.cat([zero, own.flatten()[:, None]], 1))
    mean = _matrix(layer.weight_mean, layer, shape)
    bias = layer.bias_mean.repeat_interleave(n_out // out[0])
    twin = CorrelatedLinear(mean, zero, bias, zero[:, 0], torch.stack(columns, -1), True)
    phi, last = activation(act), records.linear(2, n_out, 8)
    x, rows = records.normal(2, n_in, seed=1), records.normal(2, 3, 2, seed=4)

    def both(region: Box, *between: Any) -> tuple[MomentPass, MomentPass]:
        convolved = BayesianNetwork((layer, *between, Flatten(), last), input_shape=shape)
        return MomentPass.of(convolved, region), MomentPass.of(BayesianNetwork((twin, *between, last)), region)

    for region, slack in ((Box(x - 0.02, x + 0.02), 2e-2), (Box(x, x), 1e-9)):
        one, other = both(region, phi)
        a, b = ends(one, 2), ends(other, 2)
        assert torch.allclose(a.lower, b.lower, atol=slack)
        assert torch.allclose(a.upper, b.upper, atol=slack)
    # groups of channels only help the remainders of the convolution
    assert bool((one.variance(rows) <= other.variance(rows) * (1 + 1e-7)).all())
    one, other = both(Box(x, x), Identity())  # exact
    assert torch.allclose(one.variance(rows), other.variance(rows), rtol=1e-6)


def _matrix(kernel: Tensor, layer: Conv2d, shape: tuple[int, ...]) -> Tensor:
    """The dense matrix of a convolution: (n_out, n_in)."""
    units = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    return functional.conv2d(units, kernel, stride=layer.stride, padding=layer.padding).flatten(1).T


@pytest.mark.parametrize("batch", [1, 3])
def test_local_rows_are_the_dense_ones(batch: int) -> None:
    """Through two convolutions, dropout, pooling and padding the local windows give what whole rows give."""
    layers = (
        records.conv(2, 1, 1, size=3, padding=1, stride=(1, 2)),
        Tanh(),
        AveragePool((2, 1)),
        Dropout(0.3),
        records.conv(3, 2, 2, size=2, padding=1),
        Relu(),
        MaxPool(2, 1),
        records.conv(2, 3, 3, size=2),
        Tanh(),
        Flatten(),
    )
    shape = (1, 6, 7)
    network = BayesianNetwork((*layers, Linear.fixed(torch.ones(2, 12))), input_shape=shape)
    x = records.normal(batch, 42, seed=2)
    chain = MomentPass.of(network, Box(x - 0.1, x + 0.1)).hidden.nodes
    for index, layer in enumerate(layers):
        if not isinstance(layer, Conv2d) or index == 0:
            continue
        weights = weights_of(layer, network.shapes[index])
        below = chain[[i for i, k in enumerate(node_layers(network), 1) if k < index][-1]]
        pieces = [*weights.own_rows(10**6), *weights.own_rows(1)]  # at once, and as small as they get
        assert [part.stop for part, _ in pieces].count(weights.n_out) == 2
        at = torch.tensor([[0, weights.n_out - 1, 5], [3, 3, 7]])
        every = weights.own_rows(10**6)
        own = torch.cat([rows.dense().values for _, rows in every], 1)[0]
        assert torch.allclose(weights.rows_at(at).dense().values, own[at], atol=1e-15)
        for part, rows in pieces:
            identity = torch.eye(weights.n_out, dtype=torch.float64)[None, part].expand(batch, -1, -1)
            whole = weights.pull(DenseRows(identity))
            assert torch.allclose(rows.dense().values.expand(batch, -1, -1), whole.values, atol=1e-15)
            for one, other in zip(below.parts(rows), below.parts(whole), strict=True):
                assert torch.allclose(one, other, rtol=1e-9, atol=1e-14)
            assert torch.allclose(below.norms(rows), below.norms(whole), rtol=1e-9, atol=1e-14)
            constant = torch.zeros(batch, rows.count, dtype=torch.float64)
            for variances in ((None, None), (rows, whole)):
                low, dense = (below.lower(Bound(r, constant, v)) for r, v in zip((rows, whole), variances, strict=True))
                assert torch.allclose(low.rows.dense().values, dense.rows.dense().values, atol=1e-12)
                assert torch.allclose(low.constant, dense.constant, rtol=1e-9, atol=1e-12)
                assert (low.variances is None) == (dense.variances is None)
                if low.variances is not None and dense.variances is not None:
                    assert torch.allclose(low.variances.dense().values, dense.variances.dense().values, atol=1e-12)


def test_a_shared_kernel_is_one_noise_for_all_positions() -> None:
    """The sum over positions of one kernel has a variance of the square of their number, not of their number."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    layer, x = Conv2d(one, one, torch.zeros(1), torch.zeros(1)), torch.ones(1, 9, dtype=torch.float64)
    for row, truth in (([1.0] * 9, 81), ([(-1.0) ** i for i in range(9)], 1)):
        layers = (layer, Identity(), Flatten(), Linear.fixed(torch.tensor([row])))
        found = MomentPass.of(BayesianNetwork(layers, input_shape=(1, 3, 3)), Box(x, x)).variance(one[0, 0])
        assert truth <= found.item() < truth * (1 + 1e-6)
