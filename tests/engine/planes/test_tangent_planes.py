"""Lower planes of hinges after Gaussian layers, whose deviation is a convex function of x, at points of boxes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from support import records
from support.dice import Dice
from support.layer_networks import dense
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import LeakyRelu, Relu
from bnndp.activations.activation import Activation
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.nodes.bound import Bound
from bnndp.engine.nodes.weighted import Weighted
from bnndp.engine.planes.folded import Before
from bnndp.engine.propagation.activation_step import Region
from bnndp.engine.propagation.forward import activations_of, hidden_layers
from bnndp.engine.protocol import Slopes
from bnndp.engine.rows import DenseRows
from bnndp.geometry.box import Box
from bnndp.layers import Conv2d, Flatten, Linear
from bnndp.network import BayesianNetwork

F64 = torch.float64
KINDS = ("mean_field", "bias", "rows", "whole", "low_rank", "matrix_normal", "conv")
ACTS = (Relu(), LeakyRelu(0.1))
STDS, RADII = (1e-6, 0.3, 3.0), (0.0, 0.1, 1.0, 5.0)


def first_layer(kind: str, std: float, seed: int) -> tuple[Any, tuple[int, ...]]:
    """A random layer of this kind of nine inputs, and the shape of them."""
    dice = Dice(seed)
    if kind != "conv":
        return dense(dice, kind, 4, 9, std), (9,)
    parts = ((2, 1, 2, 2), (2,))
    means, stds = ([dice.normal(*shape) for shape in parts], [std * dice.uniform(shape=shape) for shape in parts])
    return Conv2d(means[0], stds[0], means[1], stds[1]), (1, 3, 3)


def points(box: Box, count: int, seed: int) -> Tensor:  # (count, n)
    """Vertices and random points of one box."""
    share = Dice(seed).uniform(shape=(count, box.n))
    share[: count // 2] = share[: count // 2].round()
    return box.lower + share * (box.upper - box.lower)


def true_means(
    layer: Any, shape: tuple[int, ...], phi: Activation, z: Tensor
) -> Tensor:  # (points, n_in) -> (points, n)
    """E phi(X) at inputs z."""
    laws = [records.law(layer, point.reshape(shape)) for point in z]
    m, s = torch.stack([mean for mean, _ in laws]), torch.stack([covariance.diagonal() for _, covariance in laws])
    return phi.mean(m, s.clamp_min(0).sqrt())


@pytest.mark.parametrize("behind", [False, True], ids=["first", "behind a layer without variance"])
@pytest.mark.parametrize("phi", ACTS, ids=lambda phi: phi.kind)
@pytest.mark.parametrize("kind", KINDS)
def test_tangent_planes_hold_wherever_they_touch(kind: str, phi: Activation, behind: bool) -> None:
    """Those of the pass and of any tangent points; rows of both signs, so that upper planes come with them."""
    gap = math.inf
    for number, (std, radius) in enumerate(itertools.product(STDS, RADII)):
        layer, shape = first_layer(kind, std, number)
        dice = Dice(100 + number)
        n = math.prod(layer.out_shape(shape))
        certain = Linear.fixed(dice.normal(9, 5) / 2, 0.3 * dice.normal(9))
        below = (certain, Relu()) if behind and kind != "conv" else ()
        last = (phi, Flatten(), Linear.fixed(torch.eye(n, dtype=F64)))
        n_in = 5 if below else 9
        network = BayesianNetwork((*below, layer, *last), input_shape=None if below or kind != "conv" else shape)
        box = Box.ball(dice.normal(n_in), radius)
        x = points(box, 24, number)
        z = (x @ certain.weight_mean.T + certain.bias_mean).clamp_min(0) if below else x
        truth = true_means(layer, shape, phi, z)
        found = MomentPass.of(network, box)
        rows = torch.cat([torch.eye(n, dtype=F64), -torch.eye(n, dtype=F64), dice.normal(3, n)])
        start = found.slopes(rows)
        assert start is not None
        wild = [3 * dice.normal(*tangent.shape) for tangent in start[0].tangents]
        wild[-1][..., 0] = 40.0
        affines = [found.affine(rows).affine, *(found.affine_at(rows, s) for s in (*start, Slopes(wild)))]
        for affine in affines:
            value = x @ affine.matrix[0].T + affine.offset[0]
            slack = 1e-11 * (1 + truth.abs().amax())
            assert bool((value <= truth @ rows.T + slack).all()), (std, radius)
        if radius == 0 and not (below and std == 1e-6):
            value = x @ affines[0].matrix[0].T + affines[0].offset[0]
            gap = min(gap, float((truth @ rows.T - value).max()))
    assert gap < 1e-8  # at a point the planes of the pass touch


def _lower(layer: Weighted, rows: Tensor, beta: Tensor, tangent: Tensor) -> Bound:  # (rows, n) each
    alpha, other, touching = (DenseRows(part[None]) for part in (rows, beta, tangent))
    return layer.lower_less_bias(Before(alpha, other, touching, layer.with_bias(alpha, rows.new_zeros(1, len(rows)))))


@pytest.mark.parametrize("kind", KINDS)
def test_tangents_of_the_variance_do_not_cancel_its_excess(kind: str) -> None:
    r"""A row of E X, of s and of the tangent t of s at the middle: t - s is as low as minus the excess at the ends."""
    layer, shape = first_layer(kind, 1.0, 7)
    n = math.prod(layer.out_shape(shape))
    flat = (Relu(), Flatten(), Linear.fixed(torch.eye(n, dtype=F64)))
    network = BayesianNetwork((layer, *flat), input_shape=shape if kind == "conv" else None)
    dice, closest = Dice(3), math.inf
    for radius in RADII:
        box = Box.ball(dice.normal(9), radius)
        passed = hidden_layers(network.layers, network.shapes, Region(box))
        (node,) = activations_of(passed.nodes).values()
        assert node.weighted is not None
        weights, middle = node.weighted.weights, box.centre.clone().requires_grad_()
        at = weights.spread(middle)[0]
        slopes = torch.stack([torch.autograd.grad(value, middle, retain_graph=True)[0][0] for value in at])
        x = points(box, 200, 5)
        m, s = weights.apply(x) + weights.bias, weights.spread(x)
        t = at.detach() + (x - box.centre) @ slopes.T
        unit, zero = torch.eye(n, dtype=F64), torch.zeros(n, n, dtype=F64)
        cases = [(zero, -unit, unit), (zero, unit, zero), (zero, -unit, zero), (zero, zero, unit)]
        cases.append((dice.normal(n, n), dice.normal(n, n), dice.normal(n, n).abs()))
        for rows, beta, tangent in cases:
            bound = _lower(node.weighted, rows, beta, tangent)
            value = x @ bound.rows.dense().values[0].T + bound.constant[0]
            truth = m @ rows.T + s @ beta.T + t @ tangent.T
            assert bool((value <= truth + 1e-10 * (1 + truth.abs().max())).all())
        both = _lower(node.weighted, zero, -unit, unit)
        lost = (both.rows.dense().values[0] @ box.centre[0] + both.constant[0]).max()
        closest = min(closest, float(lost)) if radius == 5.0 else closest
    assert closest < -1e-3 or kind == "bias"  # the excess is there, unless s is constant


@pytest.mark.parametrize("sizes", [(2, 3, 2, 2), (2, 2, 3, 2, 2)])
@pytest.mark.parametrize("seed", slow_but(range(8), 0, 1, 2))
def test_tangents_with_coefficients_of_variances_of_both_signs(sizes: tuple[int, ...], seed: int) -> None:
    """Deeper networks ask for variances of the first layer as well, with either sign; means by draws of it."""
    dice, layers = Dice(seed), list[Linear]()
    for n_in, n_out in itertools.pairwise(sizes):
        scale = 1.0 if layers else 1.5
        layers.append(
            Linear(
                dice.normal(n_out, n_in),
                scale * dice.uniform(shape=(n_out, n_in)),
                dice.normal(n_out),
                0.1 * dice.uniform(shape=(n_out,)),
            )
        )
    network, box = BayesianNetwork.from_linears(layers), Box.ball(dice.normal(2), 0.6)
    found, rows = MomentPass.of(network, box), torch.cat([torch.eye(2, dtype=F64), -torch.eye(2, dtype=F64)])
    start = found.slopes(rows)
    assert start is not None
    wild = Slopes([dice.normal(*tangent.shape) for tangent in start[0].tangents])
    affines = [found.affine(rows).affine, *(found.affine_at(rows, slopes) for slopes in (*start, wild))]
    for x in points(box, 6, seed):
        z = x[None]
        for layer in layers[:-1]:
            m, s = z @ layer.weight_mean.T + layer.bias_mean, z.square() @ layer.weight_std.T**2 + layer.bias_std**2
            mean = Relu().mean(m, s.sqrt())
            z = (m + s.sqrt() * dice.normal(100_000, layer.n_out)).clamp_min(0)
        value = (mean @ layers[-1].weight_mean.T + layers[-1].bias_mean) @ rows.T
        error = value.std(0) / math.sqrt(len(value))
        for affine in affines:
            low = affine.matrix[0] @ x + affine.offset[0]
            assert bool((low <= value.mean(0) + 5 * error).all())
