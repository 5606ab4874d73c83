"""Norms of what is Gaussian given a random input."""

from __future__ import annotations

import torch
from tests.engine.explicit_laws import laws, quadrature

from bnndp.engine.moments.signal import GAUSSIAN, POWERS, with_gaussian


def test_norms_with_an_independent_gaussian() -> None:
    xi, weight = quadrature()
    for seed, fluctuation in enumerate((0.0, 1.0, 30.0)):
        for source in (True, False):
            law = laws(300, seed, source=source, scale=1.0, fluctuation=fluctuation)
            found = law.pre.total_norms
            values = law.m[..., None] - law.mean(law.m)[..., None] + law.s.sqrt()[..., None] * xi
            for k, q in enumerate(POWERS):
                truth = law.mean(values**q @ weight) ** (1 / q)
                assert bool((truth <= found[..., k] * (1 + 1e-7)).all()), q


def test_norms_with_a_gaussian_at_its_ends() -> None:
    """Without a Gaussian, or with nothing else, they are exact; otherwise between the larger part and the sum."""
    a = torch.tensor([0.0, 1.0, 1.0, 1e-30, 3.0], dtype=torch.float64)
    b = torch.tensor([1.0, 0.0, 1.0, 1e-30, 1e-9], dtype=torch.float64)
    found = with_gaussian(*(x[:, None].expand(-1, 3) for x in (a, b)))
    gaussian = torch.tensor(GAUSSIAN, dtype=torch.float64)
    assert torch.allclose(found[0], gaussian, rtol=1e-9)
    assert torch.allclose(found[1], torch.ones_like(gaussian), rtol=1e-9)
    parts = a[:, None] + b[:, None] * gaussian
    assert bool((found <= parts * (1 + 1e-9)).all())
    assert bool((found >= torch.maximum(a[:, None].expand_as(found), b[:, None] * gaussian) * (1 - 1e-9)).all())


def test_an_infinite_norm_hides_no_other() -> None:
    norms = torch.tensor([1.0, torch.inf, 1.0], dtype=torch.float64)
    found = with_gaussian(norms, torch.tensor([1.0, 1.0, torch.nan], dtype=torch.float64))
    assert float(found[0]) < 3
    assert float(found[1]) == torch.inf
    assert bool(found[2].isnan())
