"""Sobol points do not depend on the default dtype, of which torch makes the first."""

from __future__ import annotations

import pytest
import torch

from bnndp.maths.sobol import sobol_points


@pytest.mark.parametrize("count", [1, 2, 9])
def test_they_are_those_of_torch(count: int) -> None:
    engine = torch.quasirandom.SobolEngine(3, scramble=True, seed=5)
    assert torch.equal(sobol_points(3, count, 5), engine.draw(count, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_in_any_default_dtype(dtype: torch.dtype) -> None:
    usual = sobol_points(3, 4, 5)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(sobol_points(3, 4, 5), usual)
    finally:
        torch.set_default_dtype(before)
