"""Gauss and Legendre's rule on panels: its constant, and polynomials times densities on random intervals."""

from __future__ import annotations

import torch
from flint import acb, arb, ctx

from bnndp.maths.panels import NODES, PANELS, SIXTEEN, panels


def test_constant() -> None:
    assert arb(SIXTEEN) >= arb(64) / 15 * arb(4) ** -32 / (1 - arb(1) / 16)


def test_nodes_and_weights_cover_the_interval() -> None:
    lower, upper = torch.tensor([[-8.8125, 8.8125], [-8.8125, -8.8125], [0.3, 0.4]], dtype=torch.float64).T
    xi, weight = panels(lower, upper)
    assert xi.shape == weight.shape == (3, NODES)
    assert NODES == 16 * PANELS
    assert torch.allclose(weight.sum(-1), upper - lower, atol=1e-14)
    assert (xi >= lower[:, None]).all()
    assert (xi <= upper[:, None]).all()
    assert not weight[1].any()


def test_integrals_of_a_density() -> None:
    ends = [(-8.8125, 8.8125), (-8.8125, -1.3), (0.2, 8.8125), (-0.7, 0.1)]
    lower, upper = torch.tensor(ends, dtype=torch.float64).T
    xi, weight = panels(lower, upper)
    found = (weight * xi**4 * torch.exp(-0.5 * xi * xi) * torch.expm1(xi)).sum(-1)
    with ctx.workprec(100):
        for value, (a, b) in zip(found.tolist(), ends, strict=True):
            exact = acb.integral(lambda z, _: z**4 * (-z * z / 2).exp() * (z.exp() - 1), a, b).real
            assert abs(arb(value) - exact) < 1e-14 * (1 + abs(exact))
