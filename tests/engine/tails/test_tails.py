"""Tails of margins by exponential moments: every step against the function that it bounds, the whole against draws."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from bnndp.engine.dense.first import first_layer
from bnndp.engine.dense.margins import margins
from bnndp.engine.tails import two_layers as second_part
from bnndp.engine.tails.one_layer import Rows, largest_log_moment, margin_exponents
from bnndp.engine.tails.quadratic_forms import base_at, log_mean_of_form
from bnndp.engine.tails.tails import margin_tails, useful_tails
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.maths.exponential import chernoff_constant, lipschitz, log_moment, tilted
from bnndp.maths.logistic import logistic_tail
from bnndp.network import BayesianNetwork

F64 = torch.float64


def make(sizes: tuple[int, ...], seed: int, std: float = 0.3, margin: float = 0.0) -> BayesianNetwork:
    """A random classifier; ``margin`` is added to the first logit."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=F64)

    layers = []
    for n_in, n_out in pairwise(sizes):
        spread = std * torch.rand(n_out, n_in, generator=generator, dtype=F64) / n_in**0.5
        layers.append(
            Linear(normal(n_out, n_in) * (2 / n_in) ** 0.5, 2 * spread, 0.4 * normal(n_out), 0.2 * spread[:, 0])
        )
    last = layers[-1]
    bias = last.bias_mean.clone()
    bias[0] += margin
    layers[-1] = Linear(last.weight_mean, last.weight_std, bias, last.bias_std)
    return BayesianNetwork.from_linears(layers, task="classification")


def regions(n: int, radius: float, seed: int, count: int = 3) -> Box:
    generator = torch.Generator().manual_seed(1000 + seed)
    return Box.ball(torch.randn(count, n, generator=generator, dtype=F64), radius)


def inside(box: Box, count: int, seed: int) -> Tensor:  # (count, batch, n)
    generator = torch.Generator().manual_seed(2000 + seed)
    share = torch.rand(count, *box.lower.shape, generator=generator, dtype=F64)
    share[::2] = share[::2].round()  # vertices
    return box.lower + share * (box.upper - box.lower)


def gaussian(layer: Linear, z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the pre-activations given z (..., n)."""
    s = z.square() @ layer.weight_std.square().mT + layer.bias_std.square()
    return z @ layer.weight_mean.mT + layer.bias_mean, s.sqrt()


def draw(network: BayesianNetwork, x: Tensor, count: int, seed: int) -> Tensor:  # (count, classes) logits at x (n,)
    generator = torch.Generator().manual_seed(seed)
    z = x.expand(count, -1)
    for k, layer in enumerate(network.linears):
        m, r = gaussian(layer, z)
        z = m + r * torch.randn(m.shape, generator=generator, dtype=F64)
        z = z.clamp_min(0) if k < network.depth else z
    return z


def unused(box: Box, network: BayesianNetwork) -> tuple[Tensor, Tensor]:
    """Moments that only serve to choose lambda if there is a hidden layer."""
    mean = torch.full((box.batch, network.n_out), 6.0, dtype=F64)
    return mean, mean


# No hidden layer


@pytest.mark.parametrize("deviation", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("mean", [-300.0, -20.0, -1.0, 0.0, 2.0, 15.0, 60.0])
def test_a_gaussian_margin_by_quadrature(mean: float, deviation: float) -> None:
    """E sigma(-D) for D ~ N(mean, deviation^2), also where the margin is negative and the tail nearly one."""
    network, box = make((2, 2), 0), regions(2, 0.0, 0, count=1)
    given = torch.full((1, 2), mean, dtype=F64), torch.full((1, 2), deviation**2, dtype=F64)
    found = margin_tails(network, box, torch.tensor([0]), *given)[0, 1].item()
    u = np.linspace(-14, 14, 40001)
    values = np.exp(-np.logaddexp(0, mean + deviation * u) - 0.5 * u * u) / math.sqrt(2 * math.pi)
    truth = float(np.trapezoid(values, u))
    assert truth * (1 - 1e-9) <= found <= 1
    assert found <= 12 * truth  # Chernoff


# One hidden layer


def test_exponent_given_the_last_hidden_layer() -> None:
    """E exp(-lam D) for Gaussian D: -lam E D + lam^2 Var D / 2, from the logits' own moments."""
    layer = make((5, 4), 0).linears[0]
    z = torch.rand(2, 5, generator=torch.Generator().manual_seed(0), dtype=F64)
    label = torch.tensor([2, 0])
    lam = torch.tensor([[0.1, 0.5, 0.3, 1.0], [0.7, 0.2, 0.9, 0.4]], dtype=F64)
    rows = margin_exponents(layer, label[:, None].expand(2, 4), torch.arange(4).expand(2, 4), lam)
    got = rows.constant + (rows.linear * z[:, None]).sum(-1) + (rows.square * z[:, None].square()).sum(-1)
    m, r = gaussian(layer, z)
    for b, c in enumerate(label.tolist()):
        for j in set(range(4)) - {c}:
            want = -lam[b, j] * (m[b, c] - m[b, j]) + 0.5 * lam[b, j] ** 2 * (r[b, c] ** 2 + r[b, j] ** 2)
            assert got[b, j].item() == pytest.approx(want.item(), abs=1e-10)
            assert got[b, j] >= want - 1e-15


@pytest.mark.parametrize("radius", [0.0, 0.01, 0.2, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_largest_log_moment_lies_above_every_point(radius: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    layer = make((6, 9, 2), seed, std=1.0).linears[0]
    box = regions(6, radius, seed)
    ranges = first_layer(layer, box).ranges
    a = torch.randn(3, 4, 9, generator=generator, dtype=F64)
    limit = 0.5 / ranges.r.upper[:, None].square()
    c = limit * 0.5 * torch.rand(3, 4, 9, generator=generator, dtype=F64) ** 2
    a[:, 1], a[:, 2], c[:, 3] = a[:, 1].abs(), -a[:, 2].abs(), 0
    bound = largest_log_moment(layer, box, ranges, a, c)
    m, r = gaussian(layer, inside(box, 60, seed))
    values = tilted(m[:, :, None], r[:, :, None], a, c).log.sum(-1)  # (points, batch, rows)
    assert (bound >= values - 1e-12).all()
    width = (bound - values.amax(0)).max().item()
    if radius <= 0.01:
        assert width <= 1e-9 + 25 * radius  # exact at a point, of first order in the radius


def quadrature(m: float, r: float, a: float, c: float) -> float:
    """E exp(a Z + c Z^2) by the trapezoidal rule on both sides of the kink."""
    below = np.linspace(m - 12 * r, 0, 4001) if m - 12 * r < 0 else np.array([0.0, 0.0])
    above = np.linspace(0, max(m, 0) + 25 * r, 40001)
    total = 0.0
    for x in (below, above):
        z = np.maximum(x, 0)
        total += float(np.trapezoid(np.exp(a * z + c * z * z - 0.5 * ((x - m) / r) ** 2), x))
    return total / (r * math.sqrt(2 * math.pi))


def test_one_layer_at_a_point_is_the_product_of_integrals() -> None:
    network = make((4, 7, 3), 3, std=1.0, margin=3.0)
    box = regions(4, 0.0, 3, count=1)
    got = margin_tails(network, box, torch.tensor([0]), *unused(box, network))
    m, r = (value[0].tolist() for value in gaussian(network.linears[0], box.centre))
    last = network.linears[1]
    for j in (1, 2):
        values = []
        for lam in np.linspace(0.05, 1, 96):
            a = -lam * (last.weight_mean[0] - last.weight_mean[j])
            c = 0.5 * lam**2 * (last.weight_std[0] ** 2 + last.weight_std[j] ** 2)
            total = -lam * (last.bias_mean[0] - last.bias_mean[j])
            total += 0.5 * lam**2 * (last.bias_std[0] ** 2 + last.bias_std[j] ** 2)
            total += sum(math.log(quadrature(*v)) for v in zip(m, r, a.tolist(), c.tolist(), strict=True))
            values.append(float(chernoff_constant(torch.tensor(lam)) * math.exp(total)))
        assert min(values) * (1 - 1e-6) <= got[0, j].item() <= 1.05 * min(values)


# Two hidden layers, step by step


def setting(seed: int, radius: float = 0.0) -> tuple[BayesianNetwork, Box, Rows]:
    network = make((5, 8, 7, 4), seed, std=0.35, margin=4.0)
    box = regions(5, radius, seed)
    lam = torch.tensor([0.2, 0.45, 0.8, 0.5], dtype=F64).expand(3, 4)
    label, rival = torch.tensor([[0], [1], [0]]).expand(3, 4), torch.arange(4).expand(3, 4)
    return network, box, margin_exponents(network.linears[2], label, rival, lam)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("wide", [1.3, 12.0])
def test_exponent_lies_above_for_every_first_layer(seed: int, keep: float, wide: float) -> None:
    """A + v z + q z^2 + (z - z0)^T S (z - z0) / 2 >= sum_i L_i(z) wherever no variance exceeds its level."""
    generator = torch.Generator().manual_seed(seed)
    network, box, rows = setting(seed)
    layer = network.linears[1]
    top = second_part._levels(layer, first_layer(network.linears[0], box).ranges)[:, None]
    z0 = torch.rand(3, 4, 8, generator=generator, dtype=F64)
    kept = torch.rand(3, 4, 8, generator=generator, dtype=F64) < keep
    exponent = second_part._exponent(layer, rows, top, second_part._Point(z0, wide * z0.square() + 0.1, kept))
    z = (
        2
        * torch.rand(3000, 1, 1, 1, generator=generator, dtype=F64)
        * torch.rand(3000, 3, 4, 8, generator=generator, dtype=F64)
    )
    z[::3] *= torch.rand(z[::3].shape, generator=generator, dtype=F64) < 0.5
    z[0], z[1] = z0, 0.0
    z[2:500] = z0 + 0.02 * z[2:500]
    z[500:700] *= 3
    d = z - z0
    mu = layer.weight_mean
    bound = exponent.constant + (exponent.linear * z + exponent.square * z.square()).sum(-1)
    bound = bound + 0.5 * (exponent.kept_curvature * (torch.where(kept, d, 0.0) @ mu.mT).square()).sum(-1)
    bound = bound + 0.5 * (exponent.full_curvature * (d @ mu.mT).square()).sum(-1)
    m, r = gaussian(layer, z)
    truth = tilted(m, r, rows.linear, rows.square).log.sum(-1)
    allowed = (r.square() <= top).all(-1)
    assert allowed.double().mean() > 0.5
    assert (bound - truth)[allowed].min() >= -1e-10
    assert (exponent.square >= 0).all()
    if keep == 1.0 and wide < 2:
        assert (bound - truth)[0].max() < 3  # and not far above where it is expanded


@pytest.mark.parametrize("a", [-1.2, -0.3, 0.3, 1.2])
def test_bound_of_one_neuron(a: float) -> None:
    """Helpful and harmful neurons on a grid of (m, r), without the randomness of r: r itself in place of its bounds."""
    m = torch.linspace(-8, 8, 161, dtype=F64)[:, None]
    r = torch.linspace(0.01, 3, 150, dtype=F64)
    slope = torch.tensor([a], dtype=F64)
    truth = tilted(m, r.expand(161, 150), slope, torch.zeros(1, dtype=F64)).log
    for m0 in (-4.0, -1.0, 0.0, 0.7, 3.0):
        for norm, spread in ((0.2, 0.1), (0.79, 0.5), (0.8, 3.0)):
            point = [torch.tensor([x], dtype=F64) for x in (m0, 0.8, norm, 9.0, spread)]
            if a < 0:
                part = second_part._helpful(point[0], point[1], slope)
            else:
                part = second_part._harmful(*point[:4], slope, point[4])
            d = m - m0
            bound = part.constant + part.slope * d + part.in_std * r + part.in_variance * r * r
            assert (bound + 0.5 * part.curvature * d * d >= truth - 1e-12).all()


def sample_tilted(m: Tensor, r: Tensor, a: Tensor, c: Tensor, count: int) -> Tensor:
    """Draws of Z under the tilted law, by inversion of its two parts: (count, *m.shape)."""
    generator = torch.Generator().manual_seed(7)
    w = 1 / (1 - 2 * c * r * r)
    mean, std = w * (m + a * r * r), w.sqrt() * r
    p = tilted(m, r, a, c).active
    u, v = torch.rand(2, count, *m.shape, generator=generator, dtype=F64)
    low = torch.special.ndtr(-mean / std)
    z = mean + std * torch.special.ndtri(low + v * (1 - low))
    return torch.where(u < p, z.clamp_min(0), 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_mean_of_the_exponent(seed: int) -> None:
    """The form that the exponent makes, with its z0, S and base, against draws under the tilted law."""
    network, box, rows = setting(seed, radius=0.05)
    first, layer = network.linears[:2]
    ranges = first_layer(first, box).ranges
    top = second_part._levels(layer, ranges)[:, None]
    point = second_part._start(ranges, rows)
    exponent = second_part._exponent(layer, rows, top, point)
    form = second_part._form(layer, exponent, point, exponent.linear)
    base = base_at(first, box.centre[:, None].expand(-1, 4, -1))
    bound = log_mean_of_form(first, box, ranges, form, base)
    checked = 0
    for x in inside(box, 3, seed):
        m, r = (value[:, None].expand_as(exponent.linear) for value in gaussian(first, x))
        d = sample_tilted(m, r, exponent.linear, exponent.square, 20000) - point.z
        mu = layer.weight_mean
        power = 0.5 * (exponent.kept_curvature * (torch.where(point.kept, d, 0.0) @ mu.mT).square()).sum(-1)
        power = power + 0.5 * (exponent.full_curvature * (d @ mu.mT).square()).sum(-1)
        value = torch.exp(power)
        limit = torch.exp(bound - tilted(m, r, exponent.linear, exponent.square).log.sum(-1))
        lower = value.mean(0) - 4 * value.std(0) / 20000**0.5
        fine = torch.isfinite(bound) & (value.std(0) < 0.5 * value.mean(0) * 20000**0.5 / 10)
        assert (limit >= lower)[fine].all()
        checked += int(fine.sum())
        assert (limit[fine] < 60 * value.mean(0)[fine]).double().mean() > 0.3
    assert checked > 10


def test_matrix_of_the_form() -> None:
    """S from the definition: curvatures times the squares of the steps of the means, of all sources or the kept."""
    network, box, rows = setting(2)
    layer = network.linears[1]
    ranges = first_layer(network.linears[0], box).ranges
    start = second_part._start(ranges, rows)
    kept = torch.rand(start.z.shape, generator=torch.Generator().manual_seed(2), dtype=F64) < 0.6
    point = second_part._Point(start.z, start.square, kept)
    exponent = second_part._exponent(layer, rows, second_part._levels(layer, ranges)[:, None], point)
    form = second_part._form(layer, exponent, point, exponent.linear)
    assert torch.equal(form.centre, point.z)
    d = torch.randn(start.z.shape, generator=torch.Generator().manual_seed(3), dtype=F64)
    want = (exponent.full_curvature * (d @ layer.weight_mean.mT).square()).sum(-1)
    want = want + (exponent.kept_curvature * ((d * kept) @ layer.weight_mean.mT).square()).sum(-1)
    assert torch.allclose(torch.einsum("brj,brjk,brk->br", d, form.matrix, d), want)


def test_levels_are_exceeded_no_more_often_than_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    network, box, _ = setting(1)
    ranges = first_layer(network.linears[0], box).ranges
    for escape in (0.3, 0.03):
        monkeypatch.setattr(second_part, "_ESCAPE", escape)
        top = second_part._levels(network.linears[1], ranges)
        m, r = gaussian(network.linears[0], box.centre)
        noise = torch.randn(20000, *m.shape, generator=torch.Generator().manual_seed(3), dtype=F64)
        s = gaussian(network.linears[1], (m + r * noise).clamp_min(0))[1].square()
        often = (s > top).any(-1).double().mean(0)
        assert (often <= escape).all()
        assert (top < 6 * s.mean(0)).double().mean() > 0.5


def test_the_probability_of_an_exceeded_level_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make((4, 8, 6, 3), 2, std=0.1, margin=60.0)
    box = regions(4, 0.01, 1, count=1)
    for escape in (1e-3, 0.05):
        monkeypatch.setattr(second_part, "_ESCAPE", escape)
        got = margin_tails(network, box, torch.tensor([0]), *unused(box, network))
        assert (got[0, 1:] >= escape).all()
        assert (got[0, 1:] < 1.2 * escape).all()


# The whole


@pytest.mark.parametrize("sizes", [(4, 3), (4, 8, 3), (4, 12, 10, 3), (3, 30, 20, 4)])
@pytest.mark.parametrize("radius", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("std", [0.1, 0.6, 1.5])
def test_tails_lie_above_draws(sizes: tuple[int, ...], radius: float, std: float) -> None:
    network = make(sizes, len(sizes), std=std, margin=5.0)
    box = regions(sizes[0], radius, 5)
    label = torch.tensor([0, 0, 1])
    mean, variance = _gaussian_moments(network, box, label) if network.depth == 0 else unused(box, network)
    got = margin_tails(network, box, label, mean, variance)
    assert got.shape == (3, sizes[-1])
    for k, x in enumerate(inside(box, 3, 1)):
        for b in range(3):
            logits = draw(network, x[b], 20000, seed=k)
            value = torch.sigmoid(logits - logits[:, label[b], None])
            low = value.mean(0) - 5 * value.std(0) / 20000**0.5
            low[label[b]] = 0
            assert (got[b] >= low).all()
    if network.depth and std == 0.1 and radius == 0:
        assert got[:2, 1:].max() < 0.6  # a bound that says something


def _gaussian_moments(network: BayesianNetwork, box: Box, label: Tensor) -> tuple[Tensor, Tensor]:
    points = inside(box, 200, 2)
    m, r = gaussian(network.linears[0], points)
    batch = torch.arange(box.batch)
    mean = (m[:, batch, label][..., None] - m).amin(0) - 0.5 * (box.upper - box.lower).sum(-1, keepdim=True)
    return mean, 2 * (r[:, batch, label][..., None].square() + r.square()).amax(0) + 0.5


def test_uncertain_posterior_is_decided_where_two_moments_cannot() -> None:
    """Margins of mean about 11 and variance above 2: Cantelli's inequality gives 0.02, this a fifth of it."""
    network = make((4, 40, 30, 3), 0, std=0.7, margin=9.0)
    box = regions(4, 0.0, 2, count=2)
    label = torch.zeros(2, dtype=torch.int64)
    got = margin_tails(network, box, label, *unused(box, network))
    logits = draw(network, box.centre[0], 20000, seed=1)
    margin = logits[:, :1] - logits[:, 1:]
    assert (margin.var(0) > 1).all()
    two_moments = margin.var(0) / (margin.var(0) + margin.mean(0) ** 2)
    assert (got[0, 1:] < 0.25 * two_moments).all()


def test_nothing_is_known_beyond_two_hidden_layers_or_for_a_wild_posterior() -> None:
    deep = make((3, 4, 4, 4, 2), 0)
    box = regions(3, 0.1, 0)
    label = torch.tensor([0, 1, 0])
    assert (margin_tails(deep, box, label, *unused(box, deep)) == 1).all()
    for sizes in ((3, 6, 2), (3, 6, 5, 2)):
        wild = make(sizes, 0, std=1e4)
        assert (margin_tails(wild, box, label, *unused(box, wild)) == 1).all()
        still = make(sizes, 0, std=0.0, margin=3.0)
        got = margin_tails(still, box[:1], label[:1], *unused(box[:1], still))
        assert got[0, 0] == 1
        assert torch.isfinite(got).all()
        values = torch.stack([draw(still, x[0], 1, 0)[0] for x in inside(box, 50, 0)])
        assert got[0, 1] >= torch.sigmoid(values[:, 1] - values[:, 0]).max()


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("radius", [0.05, 0.4])
def test_tails_of_balls_lie_above_draws(norm: int, radius: float) -> None:
    network = make((12, 10, 8, 3), norm, std=0.3, margin=5.0)
    centre = torch.randn(2, 12, generator=torch.Generator().manual_seed(norm), dtype=F64)
    box = Box.ball(centre, radius, norm=norm)
    label = torch.zeros(2, dtype=torch.int64)
    got = margin_tails(network, box, label, *unused(box, network))
    points = box.project(centre + 10 * radius * (inside(box, 6, 1) - centre))
    assert box.contains(points).all()
    for k, x in enumerate(points):
        for b in range(2):
            logits = draw(network, x[b], 20000, seed=k)
            value = torch.sigmoid(logits - logits[:, :1])
            low = value.mean(0) - 5 * value.std(0) / 20000**0.5
            assert (got[b, 1:] >= low[1:]).all()
    assert radius > 0.1 or got[:, 1:].max() < 1


@pytest.mark.parametrize("value", [1e8, 1e150])
@pytest.mark.parametrize("part", ["weight_mean", "weight_std", "bias_mean", "bias_std"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_huge_parameters_give_no_small_bound(part: str, value: float, which: int) -> None:
    """One parameter is absurd: the answer is 1, or above the tail of draws (the sign may decide the margin)."""
    network = make((3, 5, 4, 2), 1, margin=2.0)
    layers = list(network.linears)
    changed = getattr(layers[which], part).clone()
    changed[0] = value
    layers[which] = replace(layers[which], **{part: changed})
    wild = BayesianNetwork.from_linears(layers, task="classification")
    box = regions(3, 0.1, 0)
    label = torch.tensor([0, 1, 0])
    got = margin_tails(wild, box, label, *unused(box, wild))
    assert ((got >= 0) & (got <= 1)).all()
    for b in range(3):
        logits = draw(wild, box.centre[b], 1000, seed=b)
        value_ = torch.sigmoid(logits - logits[:, label[b], None])
        low = value_.mean(0) - 6 * value_.std(0) / 1000**0.5 - 1e-3
        low[label[b]] = 0
        assert (got[b] >= low).all()


@pytest.mark.parametrize("depth", [1, 2])
def test_sources_without_noise(depth: int) -> None:
    """Zero deviations in the first layer only: z is not random there, the rest is."""
    network = make((3, *[6] * depth, 2), 4, margin=3.0)
    layers = list(network.linears)
    layers[0] = replace(layers[0], weight_std=0 * layers[0].weight_std, bias_std=0 * layers[0].bias_std)
    still = BayesianNetwork.from_linears(layers, task="classification")
    for radius in (0.0, 0.05):
        box = regions(3, radius, 4)
        label = torch.zeros(3, dtype=torch.int64)
        got = margin_tails(still, box, label, *unused(box, still))
        for k, x in enumerate(inside(box, 4, 4)):
            for b in range(3):
                logits = draw(still, x[b], 10000, seed=k)
                value = torch.sigmoid(logits[:, 1] - logits[:, 0])
                assert got[b, 1] >= value.mean() - 5 * value.std() / 100


def test_pieces_of_a_batch_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make((4, 8, 6, 3), 2, margin=3.0)
    box = regions(4, 0.05, 1)
    label = torch.tensor([0, 1, 2])
    whole = margin_tails(network, box, label, *unused(box, network))
    monkeypatch.setattr("bnndp.engine.tails.tails._MOST_NUMBERS", 1)
    assert torch.allclose(whole, margin_tails(network, box, label, *unused(box, network)), rtol=1e-9, atol=0)


def test_a_label_for_every_box() -> None:
    network = make((3, 4, 2), 0)
    box = regions(3, 0.1, 0)
    with pytest.raises(InputError, match=r"one class for each of 3 boxes, got shape \(2,\)"):
        margin_tails(network, box, torch.tensor([0, 1]), *unused(box, network))


def test_sub_gaussian_constant_of_a_source_is_near_its_deviation() -> None:
    one = torch.ones(1, dtype=F64)
    ell = lipschitz((3 * one, 3 * one), (one, one), 0.3 * one, 0 * one)
    assert 1 <= ell.item() < 1.1
    assert log_moment(3 * one, one, 0.3 * one, 0 * one).item() == pytest.approx(0.9 + 0.045, abs=1e-3)


@pytest.mark.parametrize("sizes", [(5, 8, 4), (5, 8, 7, 4), (5, 4)])
def test_useful_tails_are_those_of_the_pairs_that_may_gain(sizes: tuple[int, ...]) -> None:
    """Every bound is one of margin_tails or 1, and some are below those from two moments."""
    network = make(sizes, 3, std=0.6, margin=9.0)
    box = regions(5, 1e-3, 3, count=6)
    label = torch.zeros(6, dtype=torch.int64)
    known = margins(network, box, label[:, None])
    mean, variance = known.mean[:, 0], known.variance[:, 0]
    useful, every = (f(network, box, label, mean, variance) for f in (useful_tails, margin_tails))
    assert ((useful == 1) | torch.isclose(useful, every, rtol=1e-9, atol=0)).all()
    usual = logistic_tail(mean, variance)
    assert (useful < usual).any()
    assert torch.allclose(torch.minimum(useful, usual), torch.minimum(every, usual), atol=2e-3)


def test_only_the_wanted_tails_are_made() -> None:
    network, box = make((5, 8, 7, 4), 0, std=0.35, margin=4.0), regions(5, 0.01, 0)
    label = torch.tensor([0, 1, 0])
    wanted = torch.tensor([[True, False, True, False], [False] * 4, [True, True, True, True]])
    some = margin_tails(network, box, label, *unused(box, network), wanted)
    every = margin_tails(network, box, label, *unused(box, network))
    asked = wanted.scatter(1, label[:, None], False)
    assert (some[~asked] == 1).all()
    assert torch.allclose(some[asked], every[asked], rtol=1e-9, atol=0)
