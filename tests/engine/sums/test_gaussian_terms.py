"""Sums of functions of independent Gaussians: the expansion of sines of them, by characteristic functions.

The pass itself says what is known of the terms: whether they are convex functions, and how far they are from Gaussians.
"""

from __future__ import annotations

import pytest
import torch
from support.layer_networks import ACTS, activation
from tests.engine.explicit_laws import of_gaussian
from tests.engine.sums.test_expansion import Sine
from torch import Tensor

import bnndp.engine.laws  # noqa: F401 - registers the weights of layers
from bnndp.engine.inequalities.expectation import _expanded, _replacement, expectation_bounds
from bnndp.engine.laws.weights import weights_of
from bnndp.engine.moments.pre_activation import RowMoments
from bnndp.engine.moments.signal import Signal
from bnndp.engine.nodes.activation_moments import activated
from bnndp.engine.planes.mean import planes
from bnndp.engine.propagation.pre_activation import pre_of_weights
from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear

SMOOTH = [act for act in ACTS if act != "piecewise_affine"]
NODES, REACH = 2001, 9.0


def gaussian_grid() -> tuple[Tensor, Tensor]:
    xi = torch.linspace(-REACH, REACH, NODES, dtype=torch.float64)
    weight = torch.exp(-0.5 * xi.square())
    return xi, weight / weight.sum()


def signal_of(act: str, m: Tensor, s: Tensor) -> Signal:  # (1, n) each
    phi = activation(act)
    x = of_gaussian(Interval(m, m), Interval(s, s))
    near = expectation_bounds(phi, x)
    return activated(phi, x, near, planes(phi, x, near))[0]


def _not_asked() -> RowMoments:
    raise AssertionError("the expansion says all that is needed")


@pytest.mark.parametrize("act", SMOOTH)
@pytest.mark.parametrize("n", [1, 3, 40])
def test_sines_of_sums(act: str, n: int) -> None:
    phi, generator = activation(act), torch.Generator().manual_seed(n)
    xi, weight = gaussian_grid()
    for scale, spread in ((0.3, 0.2), (1.0, 1.0), (3.0, 0.3), (0.05, 3.0), (2.0, 2.0)):
        m, s = (
            scale * torch.randn(1, n, generator=generator, dtype=torch.float64),
            torch.full((1, n), spread**2).double(),
        )
        mean = torch.randn(12, n, generator=generator, dtype=torch.float64) * n**-0.5
        std = (0.0, 0.3, 1.0)[n % 3] * torch.rand(12, n, generator=generator, dtype=torch.float64) * n**-0.5
        bias = torch.linspace(0, 6, 12, dtype=torch.float64)
        layer = Linear(mean, std, bias, torch.full((12,), 0.05, dtype=torch.float64))
        signal, weights = signal_of(act, m, s), weights_of(layer, (n,))
        values = phi(m[0, :, None] + spread * xi)  # (n, nodes)
        h = values @ weight
        true = (mean @ h + bias)[None]
        slack = 1e-4 * spread * (mean.abs().sum(-1) + std.sum(-1))[None] + 1e-9  # of the quadrature at kinks
        x = pre_of_weights(weights, signal, Interval(true - 1e-12, true + 1e-12), _not_asked)
        assert x.expansion is not None
        for w in (0.3, 1.0, 3.0):
            sine = Sine(w)
            powers = 1j * w * mean[..., None] * (values - h[:, None]) - 0.5 * (w * std[..., None] * values) ** 2
            wave = (torch.exp(powers) @ weight.to(powers.dtype)).prod(-1) * torch.exp(
                torch.tensor(-0.5 * (0.05 * w) ** 2)
            )
            truth = (wave * torch.exp(1j * w * true[0])).imag[None]
            for pointwise in (_expanded(sine, x, x.expansion), _replacement(sine, x)):  # type: ignore[arg-type]
                found = pointwise.at_one_spread(sine.shape)
                low = sine.mean(true, found.lower_rho) - found.lower_error - w * slack
                high = sine.mean(true, found.upper_rho) + found.upper_error + w * slack
                assert bool(((low <= truth) & (truth <= high)).all()), (scale, w)


@pytest.mark.parametrize("act", SMOOTH)
def test_distance_from_a_gaussian(act: str) -> None:
    """That of quantiles is the least of all (Gelbrich): it must not be above what is claimed of some Gaussian."""
    phi = activation(act)
    xi, weight = gaussian_grid()
    m = torch.linspace(-3, 3, 13, dtype=torch.float64)[None]
    for spread in (0.01, 0.3, 1.0, 4.0):
        signal = signal_of(act, m, torch.full_like(m, spread**2))
        values = phi(m[0, :, None] + spread * xi)
        centred = values - (values @ weight)[:, None]
        variance = centred.square() @ weight
        ordered = centred.sort(-1).values if (phi.shape.slopes[0] < 0) else centred
        if phi.shape.slopes[0] < 0:  # not increasing: only that it is no less than the least by moments
            assert bool((signal.roughness[0] >= 0).all())
            continue
        truth = ((ordered - variance.sqrt()[:, None] * xi).square() @ weight).sqrt()
        assert bool((truth <= signal.roughness[0] * (1 + 1e-3) + 1e-6 * spread).all())


@pytest.mark.parametrize("act", SMOOTH)
def test_convex_terms_need_their_third_moment_only(act: str) -> None:
    """E F(A) - E F(B) for F = (x - t)_+^3 / 6 is between 0 and E A^3 / 6: the kernel of the step has one sign."""
    phi = activation(act)
    xi, weight = gaussian_grid()
    signal = signal_of(act, torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))
    assert signal.convex == (act in ("relu", "leaky_relu", "identity", "softplus", "elu"))
    if not signal.convex:
        return
    for m in (-2.0, 0.0, 0.7, 3.0):
        a = phi(m + 2 * xi)
        a = a - a @ weight
        b = (a.square() @ weight).sqrt() * xi
        third = float(a**3 @ weight) / 6
        for t in (-5.0, -1.0, -0.2, 0.0, 0.3, 1.0, 4.0):
            kernel = float(0.5 * ((a - t).clamp_min(0) ** 2 - (b - t).clamp_min(0) ** 2) @ weight)
            step = float(((a - t).clamp_min(0) ** 3 - (b - t).clamp_min(0) ** 3) @ weight) / 6
            assert kernel >= -1e-4
            assert -1e-4 <= step <= third + 1e-4
