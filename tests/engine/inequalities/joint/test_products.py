"""Products of two values of a jointly Gaussian vector: how they vary, on dense grids of two noises."""

from __future__ import annotations

import pytest
import torch
from support import records
from support.layer_networks import ACTS
from tests.engine.gaussian_truths import F64, ball, matrix_normal, outcomes, shared, value_of
from tests.engine.laws.test_weights import points
from tests.engine.moments.test_joint_gaussian import joint_at, node_of
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.inequalities.joint.products import products_deviation
from bnndp.engine.moments.joint_gaussian import Coupling
from bnndp.engine.propagation.row_moments import _remainder_norms

FIRST = {
    "rank two": shared(5, 3, 70, 0.4),
    "one noise": matrix_normal(4, 3, 80, 0.3, rank=1),
    "strong": shared(4, 3, 71, 1.5),
}


def coupling_of(n: int, seed: int) -> Tensor:  # (4, n, n)
    """Symmetric, zero on the diagonal: dense, of one pair, of one sign."""
    found = records.normal(4, n, n, seed=seed)
    found = found + found.mT
    found[1] = 0.0
    found[1, 0, 1] = found[1, 1, 0] = 1.0
    found[2] = found[2].abs()
    return found * (1 - torch.eye(n, dtype=F64))


def every(forms: Tensor) -> Coupling:
    return Coupling(forms, torch.ones(len(forms), dtype=F64))


def varies(act: str, m: Tensor, covariance: Tensor, coupling: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviation and L4 norm of the centred q."""
    x, weight = outcomes(m, covariance)
    z = value_of(act, x)
    d = z - weight @ z
    q = torch.einsum("pj,ojk,pk->po", d, coupling, d)
    q = q - weight @ q
    return (weight @ q.square()).sqrt(), (weight @ q**4) ** 0.25


@pytest.mark.parametrize("act", slow_but(ACTS, "relu", "tanh", "hard_tanh", "piecewise_affine"))
@pytest.mark.parametrize("radius", [0.0, 0.15])
@pytest.mark.parametrize("name", slow_but(FIRST, "rank two", "one noise"))
def test_products_hold_on_boxes(name: str, radius: float, act: str) -> None:
    layer, x = FIRST[name], records.normal(3, seed=1)
    node = node_of(layer, (3,), act, x, radius)
    joint = node.signal.joint
    assert joint is not None
    coupling = coupling_of(layer.n_out, 3)
    deviation, norm4 = products_deviation(joint, every(coupling), _remainder_norms(node, joint))
    for at in points(ball(x, radius), 3 if radius else 1, 2):
        sd, fourth = varies(act, *records.law(layer, at), coupling)
        assert bool((sd <= deviation[0] * (1 + 1e-4) + 1e-6).all()), (sd, deviation)
        assert bool((fourth <= norm4[0] * (1 + 1e-4) + 1e-6).all()), (fourth, norm4)


def test_products_of_gaussians_are_exact() -> None:
    """Var of d Sigma d is 2 tr (Sigma K)^2; without slopes that vary nothing else is left."""
    covariance = torch.cov(records.normal(4, 9, seed=1))
    joint, coupling = joint_at("identity", records.normal(4, seed=2), covariance), coupling_of(4, 5)
    remainders = torch.zeros(1, 4, 3, dtype=F64)
    deviation, norm4 = products_deviation(joint, every(coupling), remainders)
    form = coupling @ covariance
    truth = (2 * (form * form.mT).sum((-1, -2))).sqrt()
    assert torch.allclose(deviation[0], truth, rtol=1e-3)
    assert bool((deviation[0] >= truth * (1 - 1e-9)).all())
    eigen = torch.linalg.eigvals(form).real
    fourth = (12 * eigen.square().sum(-1).square() + 48 * (eigen**4).sum(-1)) ** 0.25
    assert bool((fourth <= norm4[0]).all())


def test_groups_are_independent() -> None:
    """A product of two channels varies as two independent ones do."""
    layer = records.conv(2, 1, 5, size=1, std=0.6)
    x = torch.tensor([0.7, -1.1], dtype=F64)
    node = node_of(layer, (1, 1, 2), "relu", x, 0.0)
    joint = node.signal.joint
    assert joint is not None
    deviation, _ = products_deviation(joint, every(coupling_of(4, 5)), _remainder_norms(node, joint))
    m, covariance = records.law(layer, x.reshape(1, 1, 2))
    draws = torch.randn(2_000_000, 4, generator=torch.Generator().manual_seed(1), dtype=F64)
    values, vectors = torch.linalg.eigh(covariance)
    d = (m + draws @ (vectors * values.clamp_min(0).sqrt()).mT).clamp_min(0)
    d = d - d.mean(0)
    q = torch.einsum("pj,ojk,pk->po", d, coupling_of(4, 5), d)
    assert bool((q.std(0) <= deviation[0] * 1.01).all())
