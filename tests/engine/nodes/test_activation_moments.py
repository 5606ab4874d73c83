"""Moments after an activation, and the remainders of a line, for explicit laws of what goes into it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from support.dice import Dice
from support.layer_networks import ACTS, activation
from tests.engine.explicit_laws import Law, given, laws, of_gaussian, quadrature
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import PiecewiseAffine
from bnndp.engine.inequalities.expectation import expectation_bounds
from bnndp.engine.inequalities.remainders import remainders
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.moments.signal import GAUSSIAN, POWERS, Signal
from bnndp.engine.nodes.activation_moments import Linearised, activated, activated_signal
from bnndp.engine.planes.mean import planes
from bnndp.engine.propagation.pre_activation import pre_of_signal
from bnndp.geometry.bounds import Interval

SLACK = 1 + 2e-4  # the quadrature at kinks
SCALES = (0.05, 1.0, 4.0)


def _function(act: str, phi: Any) -> Any:
    return torch.sin if act == "piecewise_affine" else phi


def _activated(phi: Any, x: PreActivation) -> tuple[Signal, Linearised]:
    near = expectation_bounds(phi, x)
    return activated(phi, x, near, planes(phi, x, near))


def _count(act: str) -> int:
    return 20 if act == "piecewise_affine" else 60


def _at_most(truth: Tensor, claim: Tensor, what: str) -> None:
    worst = truth - claim * SLACK - 1e-9
    assert not bool((worst > 0).any()), (
        f"{what}: {truth.flatten()[int(worst.argmax())]} above the claim by {worst.max()}"
    )


@pytest.mark.parametrize(("act", "wide"), slow_but(itertools.product(ACTS, (0.0, 0.4)), ("relu", 0.4), ("gelu", 0.0)))
def test_moments_after_an_activation(act: str, wide: float) -> None:
    phi = activation(act)
    for seed, scale in enumerate(SCALES):
        law = laws(_count(act), seed, source=seed % 2 == 0, scale=scale, wide=wide, fluctuation=2.0 * seed)
        signal, linear = _activated(phi, law.pre)
        values, weight, mean = given(_function(act, phi), law.m, law.s)  # (laws, outcomes, nodes)
        centred = values - mean[..., None]
        noise, third, fourth = (centred**k @ weight for k in (2, 3, 4))
        _at_most(law.mean(noise), signal.noise.upper, "noise")
        _at_most(signal.noise.lower / SLACK**2 - 1e-6 * scale**2, law.mean(noise), "noise from below")
        _at_most(law.deviation(noise), signal.noise_deviation, "deviation of the noise")
        blur = 1e-4 * law.mean(law.s.square()) ** 0.75  # of the quadrature
        _at_most(law.mean(third) - blur, signal.third.upper, "third moment")
        _at_most(signal.third.lower - blur, law.mean(third), "third moment from below")
        _at_most(law.deviation(third) - blur, signal.third_deviation, "deviation of the third moment")
        _at_most(law.mean(fourth.square()).sqrt(), signal.noise_fourth.upper, "fourth moment")
        _at_most(signal.noise_fourth.lower * (1 - 1e-3) - blur, law.mean(fourth), "fourth moment from below")
        _at_most(law.mean(noise.square()).sqrt().sqrt(), signal.deviations[..., 0], "norm of the deviation")
        if signal.excess is not None:
            excess = fourth - 3 * noise.square()
            _at_most(law.mean(excess.square()).sqrt() - blur, signal.excess, "fourth cumulant")
        total = law.mean(noise) + law.deviation(mean).square()
        _at_most(total, signal.variance, "variance")
        _at_most(signal.variance_low / SLACK**2 - 1e-6 * scale**2, total, "variance from below")
        whole = (values - law.mean(mean)[..., None]).abs()
        for i, q in enumerate(POWERS):
            _at_most(law.mean(whole**q @ weight) ** (1 / q), signal.norms[..., i], f"norm {q}")
            _at_most(law.norm(mean, q), signal.inner[..., i], f"norm {q} of the mean given y")
            _at_most(law.mean(centred.abs() ** q @ weight) ** (1 / q), signal.given[..., i], f"norm {q} given y")
            _at_most(law.mean(noise ** (q / 2)) ** (1 / q), signal.deviations[..., i], f"norm {q} of the deviation")
        _squares(linear, law, values, weight)
        _rests(phi, law.pre, linear.slope, linear.remainder, law, values, weight)


def _squares(linear: Linearised, law: Law, values: Tensor, weight: Tensor) -> None:
    line, squares = linear.square, values.square()
    assert line is not None
    mean = squares @ weight  # E[z^2 | y]: (laws, outcomes)
    centred = (squares - mean[..., None]).abs()
    given = centred.square() @ weight
    _at_most(law.mean(given).sqrt(), line.given, "squares given y")
    _at_most(law.deviation(mean - line.slope * law.m), line.remainder, "rest of the squares")
    for i, q in enumerate(POWERS[:2]):
        _at_most(law.norm(mean, q), line.norms[..., i], f"norm {q} of the mean of squares")
        _at_most(law.mean(centred**q @ weight) ** (1 / q), line.given_norms[..., i], f"norm {q} of squares given y")
        _at_most(law.mean(given ** (q / 2)) ** (1 / q), line.deviations[..., i], f"norm {q} of their deviation")


def _rests(phi: Any, x: PreActivation, p: Tensor, rest: Any, law: Law, values: Tensor, weight: Tensor) -> None:
    xi, _ = quadrature()
    noise = law.s.sqrt()[..., None] * xi
    rho = values - p[..., None] * (law.m[..., None] + noise)
    mean = rho @ weight  # E[rho | y]: (laws, outcomes)
    centred = rho - mean[..., None]
    _at_most(law.mean(centred.square() @ weight).sqrt(), rest.given, "rest given y")
    _at_most(law.deviation(mean), rest.central, "central rest")
    whole = (rho - law.mean(mean)[..., None]).abs()
    for i, q in enumerate(POWERS):
        _at_most(law.norm(mean, q), rest.central_norms[..., i], f"central norm {q} of the rest")
        norm = law.mean(whole**q @ weight) ** (1 / q)
        _at_most(norm, rest.norms[..., i], f"norm {q} of the rest")
        apart = law.mean(centred.abs() ** q @ weight) ** (1 / q)
        _at_most(apart, rest.norms[..., i], f"norm {q} of the rest given y")


@pytest.mark.parametrize("act", slow_but(ACTS, "relu", "tanh", "gelu"))
@pytest.mark.parametrize("width", [0.0, 0.3])
def test_rests_of_gaussians(act: str, width: float) -> None:
    """X is Gaussian with a mean and a variance anywhere in their ranges."""
    phi, dice = activation(act), Dice(8)
    count = 60 if act == "piecewise_affine" else 300
    m, s = 5 * dice.uniform(shape=(count, 1)) - 2.5, 10 ** (5 * dice.uniform(shape=(count, 1)) - 4)
    spread = Interval(s * (1 - 0.9 * width * dice.uniform(shape=(count, 1))), s * (1 + 2 * width))
    x = of_gaussian(
        Interval(m - width * dice.uniform(shape=(count, 1)), m + width * dice.uniform(shape=(count, 1))), spread
    )
    signal, linear = _activated(phi, x)
    assert signal.source
    p, rest = linear.slope, linear.remainder
    share = torch.tensor([0.0, 1.0, 0.5, 0.0, 1.0], dtype=torch.float64)
    other = torch.tensor([0.0, 1.0, 0.5, 1.0, 0.0], dtype=torch.float64)
    at_m = x.mean.lower + share * (x.mean.upper - x.mean.lower)
    at_s = spread.lower + other * (spread.upper - spread.lower)
    values, weight, mean = given(_function(act, phi), at_m, at_s)
    xi, _ = quadrature()
    rho = values - p[..., None] * (at_s.sqrt()[..., None] * xi)
    rho = (rho - (rho @ weight)[..., None]).abs()
    _at_most((rho.square() @ weight).sqrt(), rest.given, "rest")
    centred = (values - mean[..., None]).abs()
    _at_most(centred.square() @ weight, signal.variance, "variance")
    _at_most(signal.noise.lower / SLACK**2 - 1e-6, centred.square() @ weight, "noise from below")
    third = ((values - mean[..., None]) ** 3 @ weight).abs()
    _at_most(third - 1e-4 * at_s**1.5, signal.third_size, "third moment")
    _at_most(centred**4 @ weight, signal.noise_fourth.upper, "fourth moment")
    for i, q in enumerate(POWERS):
        _at_most((rho**q @ weight) ** (1 / q), rest.norms[..., i], f"norm {q} of the rest")
        _at_most((centred**q @ weight) ** (1 / q), signal.norms[..., i], f"norm {q}")


@pytest.mark.parametrize("act", ACTS)
def test_rests_where_the_mean_is_gaussian_too(act: str) -> None:
    """m is N(M, a^2)."""
    phi, dice = activation(act), Dice(9)
    count = 20 if act == "piecewise_affine" else 60
    m, a, s = (
        8 * dice.uniform(shape=(count, 1)) - 4,
        10 ** (2 * dice.uniform(shape=(count, 1)) - 2),
        10 ** (4 * dice.uniform(shape=(count, 1)) - 4),
    )
    zero, point = torch.zeros_like(m), Interval(m, m)
    none = zero[..., None].expand(count, 1, len(POWERS))
    norms = a[..., None] * torch.tensor(GAUSSIAN, dtype=torch.float64)
    square = a.square()
    x = PreActivation(
        mean=point,
        spread=Interval(s, s),
        spread_deviation=zero,
        noise=Interval(square, square),
        noise_deviation=zero,
        central=zero,
        third=zero,
        absolute_third=1.6 * a**3,
        convex=False,
        quartic=6 * square.square(),
        norms=norms,
        spread_norms=s.sqrt()[..., None].expand_as(none),
        spread_away=none,
        spread_deltas=none[..., 1:],
        expansion=None,
        fixed=False,
        source=True,
    )
    signal, linear = _activated(phi, x)
    rest, p = linear.remainder, linear.slope
    function = _function(act, phi)
    xi, weight = quadrature()
    inner = m + a * xi  # (count, nodes): values of m
    mean = (
        phi.mean(inner, s.sqrt().expand_as(inner))
        if act != "piecewise_affine"
        else torch.exp(-0.5 * s) * torch.sin(inner)
    )
    central = mean - p * inner
    centred = central - (central @ weight)[:, None]
    error = 2e-3 if act == "piecewise_affine" else 0.0
    _at_most((centred.square() @ weight).sqrt()[:, None] - error, rest.central, "central rest")
    total = m + (square + s).sqrt() * xi  # X itself
    rho = function(total) - p * total
    whole = (rho - (rho @ weight)[:, None]).abs()
    variance = (whole.square() @ weight) - (centred.square() @ weight)
    _at_most(variance.clamp_min(0).sqrt()[:, None] - error - 1e-5, rest.given, "rest given y")
    for i, q in enumerate(POWERS):
        _at_most(
            (centred.abs() ** q @ weight)[:, None] ** (1 / q) - error, rest.central_norms[..., i], f"central norm {q}"
        )
        _at_most((whole**q @ weight)[:, None] ** (1 / q), rest.norms[..., i], f"norm {q} of the rest")
    value = function(total)
    value = (value - (value @ weight)[:, None]).abs()
    _at_most((value.square() @ weight)[:, None], signal.variance, "variance")
    for i, q in enumerate(POWERS):
        _at_most((value**q @ weight)[:, None] ** (1 / q), signal.norms[..., i], f"norm {q}")


@pytest.mark.parametrize("act", ACTS)
def test_an_activation_on_a_signal(act: str) -> None:
    """z takes the values of m of a law; given Y it is a sum of terms, here one coordinate."""
    phi = activation(act)
    function = _function(act, phi)
    for seed, scale in enumerate(SCALES):
        law = laws(_count(act), 30 + seed, source=False, scale=scale, wide=0.3 * seed)
        z = _signal(law)
        x = pre_of_signal(z)
        near = expectation_bounds(phi, x)
        signal, linear = activated_signal(phi, z, x, planes(phi, x, near))
        value = function(law.m)
        truth = law.mean(value)
        assert bool((signal.mean.lower <= truth + 1e-9).all()), float((signal.mean.lower - truth).max())
        assert bool((signal.mean.upper >= truth - 1e-9).all()), float((truth - signal.mean.upper).max())
        _at_most(law.deviation(value).square(), signal.variance, "variance")
        noise, third, fourth = _given_history(law, value)
        _at_most(law.mean(noise), signal.noise.upper, "noise")
        _at_most(law.deviation(noise), signal.noise_deviation, "deviation of the noise")
        _at_most(law.mean(third.square()).sqrt(), signal.third_size, "third moment")
        _at_most(law.mean(fourth), signal.noise_fourth.upper, "fourth moment")
        rho = value - linear.slope * law.m
        _at_most(law.deviation(rho), linear.remainder.central, "rest")
        inner = _mean_given_history(law, value)
        for i, q in enumerate(POWERS):
            _at_most(law.norm(value, q), signal.norms[..., i], f"norm {q}")
            _at_most(law.norm(inner, q), signal.inner[..., i], f"norm {q} of the mean given Y")
            _at_most(law.mean((value - inner).abs() ** q) ** (1 / q), signal.given[..., i], f"norm {q} given Y")
            _at_most(law.mean(noise ** (q / 2)) ** (1 / q), signal.deviations[..., i], f"norm {q} of the deviation")
            _at_most(law.norm(rho, q), linear.remainder.norms[..., i], f"norm {q} of the rest")


def _given_history(law: Law, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Second, third and fourth central moment given Y, at every outcome."""
    found = torch.zeros(3, *value.shape, dtype=torch.float64)
    for y in (0, 1):
        at = law.history == y
        chance = torch.where(at, law.chance, 0.0)
        chance = chance / chance.sum(-1, keepdim=True)
        centred = value - (chance * value).sum(-1, keepdim=True)
        for i, k in enumerate((2, 3, 4)):
            found[i] = torch.where(at, (chance * centred**k).sum(-1, keepdim=True), found[i])
    return found[0], found[1], found[2]


def _mean_given_history(law: Law, value: Tensor) -> Tensor:
    found = torch.zeros_like(value)
    for y in (0, 1):
        at = law.history == y
        chance = torch.where(at, law.chance, 0.0)
        mean = (chance * value).sum(-1, keepdim=True) / chance.sum(-1, keepdim=True)
        found = torch.where(at, mean, found)
    return found


def _signal(law: Law) -> Signal:
    """The signal that takes the values m."""
    noise, third, fourth = _given_history(law, law.m)
    mean_noise = law.mean(noise)

    def point(value: Tensor) -> Interval:
        return Interval(value, value)

    inner = _mean_given_history(law, law.m)
    centred = (law.m - inner).abs()
    return Signal(
        mean=law.pre.mean,
        variance=law.deviation(law.m).square(),
        variance_low=law.deviation(law.m).square(),
        norms=law.pre.norms,
        inner=torch.stack([law.norm(inner, q) for q in POWERS], -1),
        given=torch.stack([law.mean(centred**q) ** (1 / q) for q in POWERS], -1),
        deviations=torch.stack([law.mean(noise ** (q / 2)) ** (1 / q) for q in POWERS], -1),
        roughness=2**0.5 * mean_noise.sqrt(),
        noise=point(mean_noise),
        noise_deviation=law.deviation(noise),
        third=point(law.mean(third)),
        third_deviation=law.deviation(third),
        noise_fourth=point(law.mean(fourth.square()).sqrt()),
        fixed=False,
        source=False,
    )


def test_a_user_function_with_steep_pieces_has_sound_rests() -> None:
    """Between the knots the slope of the function is not that of its surrogate: sin 50x, known at steps of 0.02."""
    phi = PiecewiseAffine.of(lambda x: torch.sin(50 * x), 50.0, reach=2.0, pieces=200, curvature=2500.0)
    m = torch.linspace(0.7, 0.72, 21, dtype=torch.float64)[:, None]
    s = torch.full_like(m, 1e-10)
    x = of_gaussian(Interval(m, m), Interval(s, s))
    p = phi.slope(m, s.sqrt())
    rest = remainders(phi, x, p, phi.central(m, s.sqrt()).variance.upper)
    xi, weight = quadrature()
    rho = torch.sin(50 * (m + s.sqrt() * xi)) - p * s.sqrt() * xi
    truth = ((rho - (rho @ weight)[:, None]).square() @ weight).sqrt()[:, None]
    _at_most(truth / 1e-5, rest.given / 1e-5, "rest")


def test_a_user_function_with_steep_pieces_has_sound_rests_of_the_mean() -> None:
    """The same where m is N(M, a^2): an expansion around the slope of the surrogate would leave next to nothing."""
    phi = PiecewiseAffine.of(lambda x: torch.sin(50 * x), 50.0, reach=2.0, pieces=200, curvature=2500.0)
    m = torch.linspace(0.7, 0.72, 21, dtype=torch.float64)[:, None]
    s, a = torch.full_like(m, 1e-10), torch.full_like(m, 1e-6)
    zero, square = torch.zeros_like(m), a.square()
    none = zero[..., None].expand(*m.shape, len(POWERS))
    x = PreActivation(
        mean=Interval(m, m),
        spread=Interval(s, s),
        spread_deviation=zero,
        noise=Interval(square, square),
        noise_deviation=zero,
        central=zero,
        third=zero,
        absolute_third=1.6 * a**3,
        convex=False,
        quartic=6 * square.square(),
        norms=a[..., None] * torch.tensor(GAUSSIAN, dtype=torch.float64),
        spread_norms=s.sqrt()[..., None].expand_as(none),
        spread_away=none,
        spread_deltas=none[..., 1:],
        expansion=None,
        fixed=False,
        source=True,
    )
    p = phi.slope(m, s.sqrt())
    rest = remainders(phi, x, p, phi.central(m, s.sqrt()).variance.upper)
    xi, weight = quadrature()
    inner = m + a * xi
    central = torch.exp(-1250 * s) * torch.sin(50 * inner) - p * inner
    truth = ((central - (central @ weight)[:, None]).square() @ weight).sqrt()[:, None]
    _at_most(truth / 1e-6, rest.central / 1e-6, "central rest")


@pytest.mark.parametrize("act", ["tanh", "sigmoid", "gelu", "softplus"])
def test_rests_of_tiny_deviations_allow_for_the_error_of_the_slope(act: str) -> None:
    """A slope is known to 1e-9: with r = 1e-12 a line that is off by that leaves more than the curvature does."""
    phi = activation(act)
    m = torch.tensor([[-0.7, 0.2, 1.5]], dtype=torch.float64)
    s = torch.full_like(m, 1e-24)
    x = of_gaussian(Interval(m, m), Interval(s, s))
    p = phi.slope(m, s.sqrt()) + 0.9e-9
    rest = remainders(phi, x, p, phi.central(m, s.sqrt()).variance.upper)
    for i in range(len(POWERS)):
        assert bool((rest.norms[..., i] >= 0.8e-9 * s.sqrt() * GAUSSIAN[i]).all())
    assert bool((rest.given >= 0.8e-9 * s.sqrt()).all())
