"""The slope and the variance of ELU at the ends of the number range."""

from __future__ import annotations

import pytest
import torch
from flint import arb, ctx
from support.activation_truths import elu

from bnndp.activations import Elu, LeakyRelu
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.questions.certify import certify


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("r", [1e4, 1e8, 1e12, 1e16, 1e30])
def test_slope_of_elu_for_wide_laws(alpha: float, r: float) -> None:
    """E exp(X) 1{X < 0} is at most 0.4 / r: Phi(m / r) is all that is left. It was Phi + alpha (1 - Phi)."""
    u = torch.linspace(-6, 6, 25, dtype=torch.float64)
    found = Elu(alpha).slope(u * r, torch.full_like(u, r))
    for x, value in zip(u.tolist(), found.tolist(), strict=True):
        phi = (-arb(x) / arb(2).sqrt()).erfc() / 2
        assert phi - 1e-15 <= arb(value) <= phi + alpha * 0.4 / r + 1e-15


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.5])
def test_slope_of_elu_where_networks_live(alpha: float) -> None:
    for m, r in [(0.3, 0.1), (-1.2, 0.8), (-5.0, 2.0), (2.0, 1.9), (-40.0, 6.0), (10.0, 100.0), (-3.0, 0.0)]:
        at = torch.tensor([m, r], dtype=torch.float64)
        with ctx.workprec(150):
            truth = elu(alpha).derivative(m, r, 1) if r > 0 else arb(alpha) * arb(m).exp()
            assert abs(arb(Elu(alpha).slope(at[:1], at[1:]).item()) - truth) <= 1e-12, (m, r)


@pytest.mark.parametrize("alpha", [0.5, 2.5])
@pytest.mark.parametrize("r", [1e-90, 1e-101, 1e-120, 1e-140])
def test_variance_of_elu_at_its_kink_for_tiny_deviations(alpha: float, r: float) -> None:
    """There it is a leaky rectifier. Deviations below 1e-100 were replaced by that, which moved the kink."""
    u = torch.tensor([-1e9, -200.0, -15.0, -2.0, -1e-6, 0.0, 0.4, 3.0, 35.0, 1e9], dtype=torch.float64)
    deviation = torch.full_like(u, r)
    found, truth = (phi.central(u * r, deviation).variance for phi in (Elu(alpha), LeakyRelu(alpha)))
    assert (found.lower <= truth.upper).all()
    assert (found.upper >= truth.lower).all()
    assert torch.allclose(found.upper, truth.upper, rtol=1e-11, atol=0)
    assert torch.allclose(found.lower, truth.lower, rtol=1e-11, atol=0)


@pytest.mark.parametrize(("u", "truth"), [(-15.0, 6.25), (35.0, 1.0)])
def test_variance_of_a_network_with_tiny_deviations(u: float, truth: float) -> None:
    """Var f(x) of an ELU with alpha 2.5, times 1e-210. The bounds were [3.2669, 3.2669] for both, scaled by 1e120."""

    def linear(mean: float, std: float) -> Linear:
        return Linear(*(torch.tensor([[x]], dtype=torch.float64) for x in (mean, std)), *torch.zeros(2, 1).double())

    first, x = linear(u * 1e-90, 1e-90), torch.tensor([[1e-30]], dtype=torch.float64)
    network = BayesianNetwork((first, Elu(2.5), linear(1e15, 0.0)), input_shape=(1,))
    bounds = certify(network, Box(x, x), quantity="variance")
    assert bounds.lower.item() <= truth * 1e-210 <= bounds.upper.item()
    with pytest.raises(InputError, match=r"is 1e\+120; .* up to 1.84e\+19"):
        certify(BayesianNetwork((first, Elu(2.5), linear(1e120, 0.0))), Box(x, x), quantity="variance")
