"""From margins to E softmax: laws of the logits on few atoms (exact), and networks by draws."""

from __future__ import annotations

import math

import pytest
import torch
from support.classifiers import classifier, logistic_mean, random_linear, sampled_softmax
from support.ensembles import points_of
from support.passes import holds
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.margins import margins
from bnndp.engine.protocol import Margins
from bnndp.geometry.box import Box
from bnndp.options import Options
from bnndp.questions.from_margins import class_interval, row_bound
from bnndp.tighten.pass_choice import pass_over

INF, NAN = math.inf, math.nan
TRUST = 1e-14  # rounding of the truth


def law(seed: int, classes: int, scale: float, size: float) -> tuple[Tensor, Tensor]:
    """Logits on atoms (atoms, classes) and their probabilities; the first atom far away and rare."""
    generator = torch.Generator().manual_seed(seed)
    atoms = 2 + seed % 4
    centre = size * torch.randn(classes, generator=generator, dtype=torch.float64)
    logits = centre + scale * torch.randn(atoms, classes, generator=generator, dtype=torch.float64)
    weights = torch.rand(atoms, generator=generator, dtype=torch.float64) ** 3 + 1e-4
    return logits, weights / weights.sum()


def known(logits: Tensor, weights: Tensor) -> tuple[Margins, Tensor, Tensor]:
    """Exact margins of all classes, exact tails E sigma(-D) of all pairs, and E p: a batch of one."""
    d = logits[:, :, None] - logits[:, None, :]  # (atoms, c, i)
    mean = torch.einsum("a,aci->ci", weights, d)
    variance = torch.einsum("a,aci->ci", weights, (d - mean).square())
    tails = torch.einsum("a,aci->ci", weights, torch.sigmoid(-d))
    return Margins(mean[None], variance[None]), tails[None], weights @ torch.softmax(logits, -1)


@pytest.mark.parametrize("classes", slow_but([2, 3, 6, 10], 2, 6))
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e-2, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("size", [0.1, 1.0, 5.0])
def test_every_class_lies_within_its_range(classes: int, scale: float, size: float) -> None:
    """From two moments alone, and with exact tails as well."""
    for seed in range(8):
        given, tails, p = known(*law(seed, classes, scale, size))
        for extra in (None, tails, torch.full_like(tails, NAN)):
            found = class_interval(given, extra)
            assert holds(found, p, TRUST)
            assert (found.lower >= 0).all()
            assert (found.upper <= 1).all()


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 4.0])
def test_rows_hold_for_every_reference(classes: int, scale: float) -> None:
    for seed in range(8):
        given, tails, p = known(*law(seed, classes, scale, 2.0))
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(1, 9, classes, generator=generator, dtype=torch.float64)
        for c in range(classes):
            part = Margins(given.mean[:, c : c + 1], given.variance[:, c : c + 1])
            for extra in (None, tails[:, c]):
                found = row_bound(rows, part, torch.tensor([c]), extra)
                assert (found[0] <= rows[0] @ p + TRUST * classes).all()


@pytest.mark.parametrize("classes", [2, 5])
def test_better_tails_are_used_and_worse_ones_are_not(classes: int) -> None:
    given, tails, p = known(*law(1, classes, 3.0, 6.0))
    plain = class_interval(given)
    better, worse = class_interval(given, tails), class_interval(given, torch.ones_like(tails))
    assert (better.upper - better.lower).sum() < (plain.upper - plain.lower).sum()
    assert torch.equal(worse.lower, plain.lower)
    assert torch.equal(worse.upper, plain.upper)
    if classes == 2:
        assert torch.allclose(better.lower[0], p, atol=1e-12)
        assert torch.allclose(better.upper[0], p, atol=1e-12)


def test_without_variance_the_range_is_a_point() -> None:
    given, _, p = known(*law(2, 6, 0.0, 2.0))
    found = class_interval(given)
    assert torch.allclose(found.lower[0], p, atol=1e-12)
    assert torch.allclose(found.upper[0], p, atol=1e-12)


def test_the_width_falls_like_the_variance() -> None:
    widths = []
    for scale in (1e-1, 1e-2, 1e-3):
        found = class_interval(known(*law(4, 5, scale, 1.0))[0])
        widths.append(float((found.upper - found.lower).max()))
    assert 30 < widths[0] / widths[1] < 300
    assert 30 < widths[1] / widths[2] < 300


UNKNOWN = [(-INF, INF), (NAN, None), (None, NAN), (NAN, NAN), (None, INF), (-INF, None)]  # None: as it is


@pytest.mark.parametrize(("mean", "variance"), UNKNOWN)
def test_one_unknown_margin_spoils_nothing_else(mean: float | None, variance: float | None) -> None:
    for seed in range(6):
        given, tails, p = known(*law(seed, 4, 0.5, 2.0))
        m, v = given.mean.clone(), given.variance.clone()
        m[0, 1, 2] = m[0, 1, 2] if mean is None else mean
        v[0, 1, 2] = v[0, 1, 2] if variance is None else variance
        for extra in (None, tails):
            assert holds(class_interval(Margins(m, v), extra), p, TRUST)


def test_nothing_known_is_the_whole_range() -> None:
    nothing = Margins(torch.full((2, 3, 3), -INF, dtype=torch.float64), torch.full((2, 3, 3), INF, dtype=torch.float64))
    found = class_interval(nothing)
    assert (found.lower == 0).all()
    assert (found.upper == 1).all()
    part = Margins(nothing.mean[:, :1], nothing.variance[:, :1])
    rows = torch.tensor([[[1.0, -1.0, 0.0]]], dtype=torch.float64).expand(2, -1, -1)
    assert (row_bound(rows, part, torch.tensor([0, 1])) <= -1).all()


@pytest.mark.parametrize("std", [1e-6, 0.1, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("seed", range(3))
def test_two_gaussian_classes_by_quadrature(seed: int, std: float) -> None:
    """No hidden layer: the margin is Gaussian."""
    network, scale = random_linear(2, 2, seed, std=std), 10.0 ** torch.arange(-2, 2, dtype=torch.float64)[:, None]
    x = scale * torch.randn(4, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = class_interval(margins(pass_over(network, Box(x, x), Options()), torch.tensor([[0, 1]] * 4), 2))
    (layer,) = network.linears
    mean = x @ (layer.weight_mean[0] - layer.weight_mean[1]) + layer.bias_mean[0] - layer.bias_mean[1]
    spread = std * (2 * (x.square().sum(-1) + 1)).sqrt()
    p = torch.tensor(list(map(logistic_mean, mean.tolist(), spread.tolist())), dtype=torch.float64)
    assert holds(found, torch.stack([p, 1 - p], -1), 1e-12)


@pytest.mark.parametrize("sizes", [(2, 3), (2, 7, 4), (2, 6, 5, 3), (2, 5, 4, 4, 2)])
@pytest.mark.parametrize("std", slow_but([1e-3, 0.2, 1.0], 0.2))
def test_networks_by_draws(sizes: tuple[int, ...], std: float) -> None:
    network, box = classifier(sizes, 11, std=std), Box.ball([0.3, -0.6], 0.05)
    every = torch.arange(network.n_out)[None]
    found = class_interval(margins(pass_over(network, box, Options()), every, network.n_out))
    mean, error = sampled_softmax(network, points_of(box, 4)[:, 0], 8000, 3)
    assert holds(found, mean, 5 * error + 1e-13)
