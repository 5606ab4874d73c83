"""Exponential moments with two hidden layers: each step against what it bounds, the whole against quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.dice import Dice
from tests.engine.tails.cases import Layers, gaussian, inside, make, regions, tails
from tests.engine.tails.nested import narrow_box, narrow_layers, nodes, points
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.tails import two_layers as subject
from bnndp.engine.tails.first_layer import first_ranges
from bnndp.engine.tails.one_layer import Rows, margin_exponents
from bnndp.engine.tails.quadratic_forms import base_at, log_mean_of_form
from bnndp.geometry.box import Box
from bnndp.maths.exponential import tilted

F64 = torch.float64
ACCURACY = 1e-7  # of the quadrature, relative


def setting(seed: int, radius: float = 0.0) -> tuple[Layers, Box, Rows]:
    layers, lam = make((5, 8, 7, 4), seed, std=0.35, margin=4.0), torch.tensor([0.2, 0.45, 0.8, 0.5], dtype=F64)
    label, rival = torch.tensor([[0], [1], [0]]).expand(3, 4), torch.arange(4).expand(3, 4)
    return layers, regions(5, radius, seed), margin_exponents(layers[2], label, rival, lam.expand(3, 4))


@pytest.mark.parametrize("seed", slow_but(range(6), 0))
@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("wide", [1.3, 12.0])
def test_the_exponent_lies_above_for_every_first_layer(seed: int, keep: float, wide: float) -> None:
    """A + v z + q z^2 + (z - z0)^T S (z - z0) / 2 >= sum_i L_i(z) wherever no variance exceeds its level."""
    dice, (layers, box, rows) = Dice(seed), setting(seed)
    layer = layers[1]
    top = subject._levels(layer, first_ranges(layers[0], box))[:, None]
    z0, kept = dice.uniform(shape=(3, 4, 8)), dice.uniform(shape=(3, 4, 8)) < keep
    exponent = subject._exponent(layer, rows, top, subject._Point(z0, wide * z0.square() + 0.1, kept))
    z = 2 * dice.uniform(shape=(1500, 1, 1, 1)) * dice.uniform(shape=(1500, 3, 4, 8))
    z[::3] *= dice.uniform(shape=z[::3].shape) < 0.5
    z[0], z[1] = z0, 0.0
    z[2:250] = z0 + 0.02 * z[2:250]
    z[250:350] *= 3
    bound = exponent.constant + (exponent.linear * z + exponent.square * z.square()).sum(-1)
    bound = bound + quadratic(exponent, layer.weight_mean, z - z0, kept)
    m, r = gaussian(layer, z)
    truth = tilted(m, r, rows.linear, rows.square).log.sum(-1)
    allowed = (r.square() <= top).all(-1)
    assert allowed.double().mean() > 0.5
    assert (bound - truth)[allowed].min() >= -1e-10
    assert (exponent.square >= 0).all()
    if keep == 1.0 and wide < 2:
        assert (bound - truth)[0].max() < 3  # and not far above where it is expanded


def quadratic(exponent: subject._Exponent, mu: Tensor, d: Tensor, kept: Tensor) -> Tensor:
    """``d^T S d / 2`` from the definition: curvatures times squared steps of the means, of all sources or the kept."""
    some = (exponent.kept_curvature * (torch.where(kept, d, 0.0) @ mu.mT).square()).sum(-1)
    return 0.5 * (some + (exponent.full_curvature * (d @ mu.mT).square()).sum(-1))


@pytest.mark.parametrize("a", [-1.2, -0.3, 0.3, 1.2])
def test_the_bound_of_one_neuron(a: float) -> None:
    """Helpful and harmful neurons on a grid of (m, r), without the randomness of r: r itself in place of its bounds."""
    m, r = torch.linspace(-8, 8, 161, dtype=F64)[:, None], torch.linspace(0.01, 3, 150, dtype=F64)
    slope = torch.tensor([a], dtype=F64)
    truth = tilted(m, r.expand(161, 150), slope, torch.zeros(1, dtype=F64)).log
    for m0 in (-4.0, -1.0, 0.0, 0.7, 3.0):
        for norm, spread in ((0.2, 0.1), (0.79, 0.5), (0.8, 3.0)):
            at, r0, n, top, s = (torch.tensor([x], dtype=F64) for x in (m0, 0.8, norm, 9.0, spread))
            part = subject._helpful(at, r0, slope) if a < 0 else subject._harmful(at, r0, n, top, slope, s)
            d = m - m0
            bound = part.constant + part.slope * d + part.in_std * r + part.in_variance * r * r
            assert (bound + 0.5 * part.curvature * d * d >= truth - 1e-12).all()


def sample_tilted(m: Tensor, r: Tensor, a: Tensor, c: Tensor, count: int) -> Tensor:
    """Draws of Z under the tilted law, by inversion of its two parts: (count, *m.shape)."""
    w = 1 / (1 - 2 * c * r * r)
    mean, std = w * (m + a * r * r), w.sqrt() * r
    u, v = Dice(7).uniform(shape=(2, count, *m.shape))
    low = torch.special.ndtr(-mean / std)
    z = mean + std * torch.special.ndtri(low + v * (1 - low))
    return torch.where(u < tilted(m, r, a, c).active, z.clamp_min(0), 0.0)


@pytest.mark.parametrize("seed", slow_but(range(4), 0))
def test_the_mean_of_the_exponent(seed: int) -> None:
    """The form that the exponent makes, with its z0, S and base, against draws under the tilted law."""
    count, (layers, box, rows) = 20_000, setting(seed, radius=0.05)
    first, layer = layers[:2]
    ranges = first_ranges(first, box)
    point = subject._start(ranges, rows)
    exponent = subject._exponent(layer, rows, subject._levels(layer, ranges)[:, None], point)
    form = subject._form(layer, exponent, point, exponent.linear)
    bound = log_mean_of_form(first, box, ranges, form, base_at(first, box.centre[:, None].expand(-1, 4, -1)))
    checked = 0
    for x in inside(box, 3, seed):
        m, r = (value[:, None].expand_as(exponent.linear) for value in gaussian(first, x))
        d = sample_tilted(m, r, exponent.linear, exponent.square, count) - point.z
        value = torch.exp(quadratic(exponent, layer.weight_mean, d, point.kept))
        limit = torch.exp(bound - tilted(m, r, exponent.linear, exponent.square).log.sum(-1))
        fine = torch.isfinite(bound) & (value.std(0) < 0.5 * value.mean(0) * count**0.5 / 10)
        assert (limit >= value.mean(0) - 4 * value.std(0) / count**0.5)[fine].all()
        checked += int(fine.sum())
        assert (limit[fine] < 60 * value.mean(0)[fine]).double().mean() > 0.3
    assert checked > 10


def test_the_matrix_of_the_form() -> None:
    layers, box, rows = setting(2)
    ranges = first_ranges(layers[0], box)
    start, dice = subject._start(ranges, rows), Dice(2)
    kept = dice.uniform(shape=start.z.shape) < 0.6
    point = subject._Point(start.z, start.square, kept)
    exponent = subject._exponent(layers[1], rows, subject._levels(layers[1], ranges)[:, None], point)
    form, d = subject._form(layers[1], exponent, point, exponent.linear), dice.normal(*start.z.shape)
    assert torch.equal(form.centre, point.z)
    found = 0.5 * torch.einsum("brj,brjk,brk->br", d, form.matrix, d)
    assert torch.allclose(found, quadratic(exponent, layers[1].weight_mean, d, kept))


def test_levels_are_exceeded_no_more_often_than_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, box, _ = setting(1)
    ranges, (m, r) = first_ranges(layers[0], box), gaussian(layers[0], box.centre)
    s = gaussian(layers[1], (m + r * Dice(3).normal(20_000, *m.shape)).clamp_min(0))[1].square()
    for escape in (0.3, 0.03):
        monkeypatch.setattr(subject, "_ESCAPE", escape)
        top = subject._levels(layers[1], ranges)
        assert ((s > top).any(-1).double().mean(0) <= escape).all()
        assert (top < 6 * s.mean(0)).double().mean() > 0.5


def test_the_probability_of_an_exceeded_level_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, box = make((4, 8, 6, 3), 2, std=0.1, margin=60.0), regions(4, 0.01, 1, count=1)
    for escape in (1e-3, 0.05):
        monkeypatch.setattr(subject, "_ESCAPE", escape)
        got = tails(layers, box, torch.tensor([0]))[0, 1:]
        assert ((got >= escape) & (got < 1.2 * escape)).all()


def log_mean(layers: Layers, rows: Rows, top: Tensor, x: Tensor) -> float:
    """log E[e^(-lam D); s <= top] at x for the first row of ``rows``, by quadrature over both hidden layers."""
    z, weight = nodes(*gaussian(layers[0], x), reach=14.0, panels=12 if layers[0].n_out == 1 else 4)
    m, r = gaussian(layers[1], z)
    inner = (r.square() <= top).all(-1).double()
    for i in range(layers[1].n_out):  # given z the neurons are independent
        y, share = nodes(m[:, i : i + 1], r[:, i : i + 1], reach=14.0, panels=6)
        a, c = rows.linear[0, 0, i], rows.square[0, 0, i]
        inner = inner * (share * torch.exp(a * y[..., 0] + c * y[..., 0].square())).sum(-1)
    return math.log((weight * inner).sum().item()) + rows.constant[0, 0].item()


@pytest.mark.parametrize("wide", slow_but([False, True], True))
@pytest.mark.parametrize("seed", slow_but(range(2), 0))
def test_the_log_mean_lies_above_quadrature(seed: int, wide: bool) -> None:
    """Most bounds lie within a few per cent of the truth, so that a wrong sign or factor anywhere shows."""
    dice, gaps = Dice(100 * seed + wide), []
    for case in range(8):
        layers = narrow_layers(dice, (1 + case % 2, 1 + case // 4, 1 + case // 2 % 2, 2))
        box = narrow_box(dice, layers[0].n_in, wide)
        ranges = first_ranges(layers[0], box)
        top = subject._levels(layers[1], ranges)[:, None]
        lam = dice.log_uniform(0.06, 1.0, (1, 1))
        rows = margin_exponents(layers[2], torch.tensor([[0]]), torch.tensor([[1]]), lam)
        bound = subject._log_mean(layers[:2], box, ranges, rows, top).item()
        if math.isfinite(bound):
            truth = max(log_mean(layers, rows, top[0, 0], x) for x in points(box))
            gaps.append(bound - truth)
            assert gaps[-1] >= -ACCURACY * (1 + abs(truth)), (seed, case)
    assert len(gaps) >= 4
    assert np.quantile(gaps, 0.25) <= (0.05 if not wide else 0.5)  # or the comparison could not fail
