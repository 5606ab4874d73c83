"""Small networks whose means and variances are known: all masks, nested quadrature, dense twins of convolutions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from support import records
from support.layer_judge import node_layers
from support.layer_networks import ACTS, activation
from torch import Tensor
from torch.nn import functional

from bnndp.activations import Identity, Relu, Tanh
from bnndp.engine.general.forward import bound, hidden, row_variance
from bnndp.engine.general.nodes import deviation
from bnndp.engine.general.rows import DenseRows
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.layers import AveragePool, Conv2d, CorrelatedLinear, Dropout, Flatten, Linear, MatrixNormalLinear, MaxPool
from bnndp.network import BayesianNetwork

ROW = torch.ones(1, 1, 1, dtype=torch.float64)


def _masks(network: BayesianNetwork, x: Tensor) -> list[tuple[float, list[Tensor]]]:
    """Chance and values after every layer, for all masks of a network whose only randomness is Bernoulli dropout."""
    sizes = []
    for layer, shape in zip(network.layers, network.shapes[:-1], strict=True):
        if isinstance(layer, Dropout):
            sizes.append(shape[0] if layer.channels else math.prod(shape))
    found = []
    for bits in itertools.product((0, 1), repeat=sum(sizes)):
        left, chance, z, values = list(bits), 1.0, x.reshape(1, *network.shapes[0]), []
        for layer in network.layers:
            if isinstance(layer, Dropout):
                n = z.shape[1] if layer.channels else z[0].numel()
                own, left = left[:n], left[n:]
                chance *= math.prod(1 - layer.rate if bit else layer.rate for bit in own)
                mask = torch.tensor(own, dtype=torch.float64) / (1 - layer.rate)
                z = z * (mask.reshape(-1, 1, 1) if layer.channels else mask.reshape(z.shape[1:]))
            elif isinstance(layer, Conv2d):
                z = functional.conv2d(z, layer.weight_mean, layer.bias_mean, layer.stride, layer.padding)
            elif isinstance(layer, Linear):
                z = functional.linear(z, layer.weight_mean, layer.bias_mean)
            elif isinstance(layer, AveragePool | MaxPool):
                z = (functional.avg_pool2d if isinstance(layer, AveragePool) else functional.max_pool2d)(
                    z, layer.size, layer.stride
                )
            else:
                z = z.flatten(1) if isinstance(layer, Flatten) else layer(z)
            values.append(z.flatten())
        found.append((chance, values))
    return found


def _fixed(o: int, i: int, seed: int) -> Linear:
    return Linear.fixed(records.normal(o, i, seed=seed), 0.3 * records.normal(o, seed=seed + 1))


def _dropouts(act: str, rate: float) -> dict[str, BayesianNetwork]:
    phi, drop = activation(act), Dropout(rate)
    kernel = Conv2d.fixed(records.normal(2, 1, 2, 2, seed=4), records.normal(2, seed=6))
    return {
        "one": BayesianNetwork((_fixed(5, 2, 1), phi, drop, _fixed(2, 5, 3))),
        "input": BayesianNetwork((drop, _fixed(4, 3, 1), phi, _fixed(3, 4, 2), phi, _fixed(1, 3, 5))),
        "two": BayesianNetwork((_fixed(4, 2, 1), phi, drop, _fixed(4, 4, 3), phi, drop, _fixed(2, 4, 5))),
        "signal": BayesianNetwork((_fixed(5, 2, 1), phi, drop, phi, _fixed(3, 5, 2), phi, _fixed(1, 3, 3))),
        "channels": BayesianNetwork(
            (kernel, phi, Dropout(rate, channels=True), Flatten(), _fixed(3, 8, 7), phi, _fixed(2, 3, 8)),
            input_shape=(1, 3, 3),
        ),
        "average": BayesianNetwork(
            (kernel, phi, drop, AveragePool(2), Flatten(), _fixed(3, 2, 7), phi, _fixed(2, 3, 8)), input_shape=(1, 3, 3)
        ),
        "max": BayesianNetwork(
            (kernel, phi, drop, MaxPool(2), Flatten(), _fixed(3, 2, 7), phi, _fixed(2, 3, 8)), input_shape=(1, 3, 3)
        ),
        "overlapping": BayesianNetwork(
            (Dropout(rate), AveragePool((1, 2), 1), Flatten(), _fixed(2, 4, 7), phi, _fixed(1, 2, 8)),
            input_shape=(1, 2, 3),
        ),
    }


@pytest.mark.parametrize("rate", [0.1, 0.9])
@pytest.mark.parametrize("act", ACTS)
def test_dropout_by_all_masks(act: str, rate: float) -> None:
    for name, network in _dropouts(act, rate).items():
        if (act not in {"relu", "hard_tanh", "gelu"} or rate < 0.5) and name not in {"one", "signal", "channels"}:
            continue  # enough of them
        centre = records.normal(1, network.n_in, seed=12)
        box = Box(centre - 0.05, centre + 0.05)
        interval, passed = bound(network, box).interval(), hidden(network, box)
        for x in (box.lower[0], box.upper[0], box.centre[0]):
            outcomes = _masks(network, x)
            chance = torch.tensor([p for p, _ in outcomes], dtype=torch.float64)
            assert float(chance.sum()) == pytest.approx(1)
            y = torch.stack([values[-1] for _, values in outcomes])
            mean = chance @ y
            assert bool((interval.lower[0] <= mean + 1e-11).all() & (interval.upper[0] >= mean - 1e-11).all()), name
            rows = records.normal(1, 3, network.n_out, seed=4)
            along = y @ rows[0].T
            variance = chance @ (along - chance @ along).square()
            claim = row_variance(passed, rows)[0]
            assert bool((claim >= variance * (1 - 1e-9)).all()), (name, (claim / variance).min())
            for index, node in zip(node_layers(network), passed.chain[1:], strict=True):
                z = torch.stack([values[index] for _, values in outcomes])
                _node(f"{name} after layer {index}", node, chance, z)


def _node(name: str, node: Any, chance: Tensor, z: Tensor) -> None:
    s, mean = node.signal, chance @ z
    centred = (z - mean).abs()
    assert bool((s.mean.lower[0] <= mean + 1e-11).all() & (s.mean.upper[0] >= mean - 1e-11).all()), name
    scale = 1e-12 * (1 + mean.abs())
    variance = chance @ centred.square()
    assert bool((variance <= s.variance[0] * (1 + 1e-9) + scale).all()), name
    assert bool((s.noise.lower[0] <= variance * (1 + 1e-9) + scale).all()), name
    for i, q in enumerate((4, 8, 16)):
        assert bool(((chance @ centred**q) ** (1 / q) <= s.norms[0, :, i] * (1 + 1e-9) + scale).all()), (name, q)
    if s.source and not s.fixed:
        assert bool((variance <= s.noise.upper[0] * (1 + 1e-9) + scale).all()), name
        assert bool(((chance @ (z - mean) ** 3).abs() <= s.third[0] * (1 + 1e-9) + scale).all()), name
        assert bool((chance @ centred**4 <= s.noise_fourth[0] * (1 + 1e-9) + scale).all()), name
    rows = torch.cat([torch.ones(1, z.shape[1], dtype=torch.float64), records.normal(2, z.shape[1], seed=9)])
    along = ((z - mean) @ rows.T).abs()
    found, tails = deviation(node, DenseRows(rows[None]))[0], node.tails(DenseRows(rows[None]))
    assert bool((chance @ along.square() <= found.square() * (1 + 1e-9) + 1e-12).all()), name
    for i, q in enumerate((4, 8, 16)):
        assert bool(((chance @ along**q) ** (1 / q) <= tails.norms[0, :, i] * (1 + 1e-9) + 1e-9).all()), (name, q)


def test_dropout_alone_is_exact() -> None:
    """Mean and variance of one layer of dropout are known: nothing is lost on a point."""
    network = BayesianNetwork((Dropout(0.7), Linear.fixed(torch.tensor([[1.0, -2.0, 0.5]]))))
    x = torch.tensor([[1.0, 0.5, -3.0]], dtype=torch.float64)
    found = row_variance(hidden(network, Box(x, x)), ROW).item()
    assert found == pytest.approx(0.7 / 0.3 * (1 + 1 + 1.5**2), rel=1e-7)


def _hermite(n: int) -> tuple[Tensor, Tensor]:
    off = torch.arange(1, n, dtype=torch.float64).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return values, vectors[0].square()


@pytest.mark.parametrize("act", ["tanh", "sigmoid", "softplus", "gelu", "silu", "identity"])
def test_two_layers_by_nested_quadrature(act: str) -> None:
    """2-2-2-1 with independent weights: the first layer by a product rule, the second in closed form."""
    phi = activation(act)
    for seed in range(4):
        first, second = records.linear(2, 2, 5 + seed, std=0.5), records.linear(2, 2, 50 + seed, std=0.5)
        last = records.linear(1, 2, 90 + seed)
        network = BayesianNetwork((first, phi, second, phi, last))
        x = records.normal(1, 2, seed=seed)
        mean, covariance = records.law(first, x[0])
        nodes, weights = _hermite(60)
        grid = torch.cartesian_prod(nodes, nodes)
        chance = torch.cartesian_prod(weights, weights).prod(-1)
        z = phi(mean + grid * covariance.diagonal().sqrt())
        m = z @ second.weight_mean.T + second.bias_mean
        s = z.square() @ second.weight_std.square().T + second.bias_std.square()
        h = phi.mean(m, s.sqrt())  # E[phi(X_i) | z]
        central = phi.central(m, s.sqrt()).variance
        truth = chance @ h
        out = last.weight_mean @ truth + last.bias_mean
        box = Box(x, x)
        interval, passed = bound(network, box).interval(), hidden(network, box)
        assert bool((interval.lower[0] <= out + 1e-9).all() & (interval.upper[0] >= out - 1e-9).all())
        noise = chance @ (0.5 * (central.lower + central.upper))
        h0 = h - truth
        between = (h0 * chance[:, None]).T @ h0
        node = passed.chain[2]
        signal = node.signal
        total = noise + between.diagonal()
        assert bool((total <= signal.variance[0] * (1 + 1e-7)).all())
        assert bool(
            (noise <= signal.noise.upper[0] * (1 + 1e-7)).all() & (noise >= signal.noise.lower[0] * (1 - 1e-7)).all()
        )
        spread = chance @ (0.5 * (central.lower + central.upper) - noise).square()
        assert bool((spread.sqrt() <= signal.noise_deviation[0] * (1 + 1e-7)).all())
        rows = records.normal(5, 2, seed=seed)
        given, apart = node.parts(DenseRows(rows[None]))
        assert bool((given[0] >= rows.square() @ noise * (1 - 1e-7)).all())
        assert bool((apart[0].square() >= (rows @ between * rows).sum(-1) * (1 - 1e-7)).all())
        second_moment = total + truth.square()
        own = last.weight_std.square()[0] @ second_moment + last.bias_std.square()[0]
        cov = between + noise.diag()
        variance = own + last.weight_mean[0] @ cov @ last.weight_mean[0]
        assert row_variance(passed, ROW).item() >= variance.item() * (1 - 1e-7)


@pytest.mark.parametrize("act", ["tanh", "gelu", "relu", "hard_tanh"])
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
    x = records.normal(2, n_in, seed=1)
    box = Box(x - 0.02, x + 0.02)
    convolved = BayesianNetwork((layer, phi, Flatten(), last), input_shape=shape)
    dense = BayesianNetwork((twin, phi, last))
    a, b = bound(convolved, box).interval(), bound(dense, box).interval()
    assert torch.allclose(a.lower, b.lower, atol=2e-2)
    assert torch.allclose(a.upper, b.upper, atol=2e-2)
    point = Box(x, x)
    a, b = bound(convolved, point).interval(), bound(dense, point).interval()
    assert torch.allclose(a.lower, b.lower, atol=1e-9)
    assert torch.allclose(a.upper, b.upper, atol=1e-9)
    rows = records.normal(2, 3, 2, seed=4)
    one, other = row_variance(hidden(convolved, point), rows), row_variance(hidden(dense, point), rows)
    # groups of channels only help the rests of the convolution
    assert bool((one <= other * (1 + 1e-7)).all())
    # exact with no activation
    plain, plain_twin = (
        BayesianNetwork((layer, Flatten(), last), input_shape=shape),
        BayesianNetwork((twin, Identity(), last)),
    )
    one, other = row_variance(hidden(plain, point), rows), row_variance(hidden(plain_twin, point), rows)
    assert torch.allclose(one, other, rtol=1e-6)


def _matrix(kernel: Tensor, layer: Conv2d, shape: tuple[int, ...]) -> Tensor:
    """The dense matrix of a convolution: (n_out, n_in)."""
    units = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    return functional.conv2d(units, kernel, stride=layer.stride, padding=layer.padding).flatten(1).T


@pytest.mark.parametrize("batch", [1, 3])
def test_local_rows_are_the_dense_ones(batch: int) -> None:
    """Through two convolutions, dropout, pooling and padding the local windows give what whole rows give."""
    from bnndp.engine.general.weights import weights_of

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
    n = BayesianNetwork((*layers, _ones(layers, shape)), input_shape=shape)
    x = records.normal(batch, 42, seed=2)
    passed = hidden(n, Box(x - 0.1, x + 0.1))
    for index, layer in enumerate(layers):
        if not isinstance(layer, Conv2d) or index == 0:
            continue
        weights = weights_of(layer, n.shapes[index])
        below = passed.chain[[i for i, k in enumerate(node_layers(n), 1) if k < index][-1]]
        pieces = [*weights.own_rows(10**6), *weights.own_rows(1)]  # at once, and as small as they get
        assert [part.stop for part, _ in pieces].count(weights.n_out) == 2
        for part, rows in pieces:
            identity = torch.eye(weights.n_out, dtype=torch.float64)[None, part].expand(batch, -1, -1)
            whole = weights.pull(DenseRows(identity))
            assert torch.allclose(rows.dense().values.expand(batch, -1, -1), whole.values, atol=1e-15)
            for one, other in zip(below.parts(rows), below.parts(whole), strict=True):
                assert torch.allclose(one, other, rtol=1e-9, atol=1e-14)
            assert torch.allclose(below.tails(rows).norms, below.tails(whole).norms, rtol=1e-9, atol=1e-14)
            constant = torch.zeros(batch, rows.count, dtype=torch.float64)
            low, dense = below.lower(rows, constant), below.lower(whole, constant)
            assert torch.allclose(low[0].dense().values, dense[0].dense().values, atol=1e-12)
            assert torch.allclose(low[1], dense[1], rtol=1e-9, atol=1e-12)


def _ones(layers: tuple[Any, ...], shape: tuple[int, ...]) -> Linear:
    for layer in layers:
        shape = layer.out_shape(shape)
    return Linear.fixed(torch.ones(2, math.prod(shape)))


@pytest.mark.parametrize("kind", ["shared", "rows", "matrix"])
@pytest.mark.parametrize("scale", [1.0, 1e20])
def test_loadings_that_cancel(kind: str, scale: float) -> None:
    """3 x - 1 at the float next to 1/3: computed it is 0, in truth 2^-54, and so is the deviation of the weights."""
    zero, one = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    factor = torch.tensor([[[3.0], [-1.0]]], dtype=torch.float64) * scale
    if kind == "matrix":
        layer: Any = MatrixNormalLinear(zero, zero[0], one, factor[0])
    else:
        layer = CorrelatedLinear(zero, zero, zero[0], zero[0], factor, kind == "shared")
    network = BayesianNetwork((layer, Relu(), Linear.fixed(one)))
    deviation_ = abs(float(3 * Fraction(1 / 3) - 1)) * scale
    x = one / 3
    interval, passed = bound(network, Box(x, x)).interval(), hidden(network, Box(x, x))
    assert interval.lower.item() <= deviation_ * 0.3989422804 <= interval.upper.item()
    assert row_variance(passed, ROW).item() >= deviation_**2 * 0.3408
    last = BayesianNetwork((layer,))
    assert row_variance(hidden(last, Box(x, x)), ROW).item() >= deviation_**2


def test_a_sine_of_the_user_has_sound_variances() -> None:
    """The slope of the surrogate is not that of the sine: its rest must not be expanded around it."""
    phi = activation("piecewise_affine")
    one = torch.ones(1, 1, dtype=torch.float64)
    xi, weight = _hermite(40)
    for m in torch.linspace(0.6, 0.8, 11).tolist():
        for r in (1e-5, 1e-3, 0.1):
            noisy = Linear(one, 0 * one, 0 * one[0], r * one[0])
            network = BayesianNetwork((noisy, Identity(), Linear.fixed(one), phi, Linear.fixed(one)))
            x = torch.tensor([[m]], dtype=torch.float64)
            value = torch.sin(x[0] + r * xi)
            truth = weight @ (value - weight @ value).square()
            assert row_variance(hidden(network, Box(x, x)), ROW).item() >= truth.item()


@pytest.mark.parametrize("norm", [1.0, 2.0])
@pytest.mark.parametrize("act", ["relu", "gelu", "hard_tanh"])
def test_balls_by_all_masks(act: str, norm: float) -> None:
    """On l1 and l2 balls the bounds hold for points of the ball, and are inside those of the box around it."""
    network = _dropouts(act, 0.3)["one"]
    centre = records.normal(1, 2, seed=12)
    ball = Box.ball(centre, 0.4, norm=norm)
    interval, around = bound(network, ball).interval(), bound(network, Box(ball.lower, ball.upper)).interval()
    assert float((interval.upper - interval.lower).sum()) < float((around.upper - around.lower).sum())
    for angle in range(8):
        step = torch.tensor([math.cos(angle * math.pi / 4), math.sin(angle * math.pi / 4)], dtype=torch.float64)
        x = centre[0] + 0.4 * step / torch.linalg.vector_norm(step, ord=norm)
        mean = sum(p * values[-1] for p, values in _masks(network, x))
        assert bool((interval.lower[0] <= mean + 1e-11).all() & (interval.upper[0] >= mean - 1e-11).all())


@pytest.mark.parametrize("act", ["relu", "leaky_relu"])
def test_searched_planes_hold_by_all_masks(act: str) -> None:
    from bnndp.engine.general.optimise import best_rows

    for name, network in _dropouts(act, 0.4).items():
        if name in {"two", "overlapping", "max", "average"}:
            continue
        centre = records.normal(1, network.n_in, seed=12)
        box = Box(centre - 0.2, centre + 0.2)
        passed, rows = hidden(network, box), records.normal(1, 3, network.n_out, seed=6)
        usual, searched = best_rows(passed, rows, 0), best_rows(passed, rows, 10)
        least = box.minimum(searched.matrix, searched.offset)
        assert bool((least >= box.minimum(usual.matrix, usual.offset)).all()), name
        for seed in range(5):
            x = box.lower[0] + 0.4 * records.uniform(network.n_in, seed=seed)
            mean = rows[0] @ sum(p * values[-1] for p, values in _masks(network, x))
            assert bool((searched.matrix[0] @ x + searched.offset[0] <= mean + 1e-11).all()), name


@pytest.mark.parametrize("kind", ["linear", "correlated", "matrix", "conv"])
def test_deviations_whose_squares_underflow_are_refused(kind: str) -> None:
    """1e-170 squared is 0, so a kink there would count as certain: after weights of 1e200 the mean is 4e29, not 0."""
    one = torch.ones(1, 1, dtype=torch.float64)
    zero, tiny = 0 * one, 1e-170 * one
    layers = {
        "linear": Linear(zero, tiny, zero[0], zero[0]),
        "correlated": CorrelatedLinear(zero, zero, zero[0], zero[0], tiny.expand(2, 1)[None], True),
        "matrix": MatrixNormalLinear(zero, zero[0], tiny, one.expand(2, 1)),
        "conv": Conv2d(zero[..., None, None], tiny[..., None, None], zero[0], zero[0]),
    }
    shape = (1, 1, 1) if kind == "conv" else (1,)
    network = BayesianNetwork((layers[kind], Tanh(), Flatten(), Linear.fixed(1e200 * one)), input_shape=shape)
    with pytest.raises(InputError, match="1e-170: deviations must be 0 or at least 1e-100"):
        bound(network, Box(one, one))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("stride", [1, 2])
def test_maxima_of_dropped_inputs(rate: float, stride: int) -> None:
    """Equal means with all the variance of dropout: the maximum of four ones is 1/keep but where all are dropped."""
    layers = (Dropout(rate), MaxPool(2, stride), Flatten())
    n = _ones(layers, (1, 3, 3)).n_in
    network = BayesianNetwork((*layers, Linear.fixed(torch.ones(1, n) / n)), input_shape=(1, 3, 3))
    for x in (torch.ones(1, 9, dtype=torch.float64), 1 + records.uniform(1, 9, seed=3), records.normal(1, 9, seed=4)):
        outcomes = _masks(network, x[0])
        chance = torch.tensor([p for p, _ in outcomes], dtype=torch.float64)
        mean = sum(p * values[-1].item() for p, values in outcomes)
        if bool((x == 1).all()):
            assert mean == pytest.approx((1 - rate**4) / (1 - rate))
        interval, passed = bound(network, Box(x, x)).interval(), hidden(network, Box(x, x))
        assert interval.lower.item() <= mean + 1e-12
        assert interval.upper.item() >= mean - 1e-12
        for index, node in zip(node_layers(network), passed.chain[1:], strict=True):
            _node(f"after layer {index}", node, chance, torch.stack([values[index] for _, values in outcomes]))
