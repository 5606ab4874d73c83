"""Without any deviation a mean has a sign and nothing else, however small it is."""

from __future__ import annotations

import torch

from bnndp.maths.rectified import ratio, relu_probability


def test_a_subnormal_mean_without_deviation_is_on_one_side() -> None:
    m = torch.tensor([5e-324, -5e-324, 1e-321, -1e-310, 1e308, -1e308, 0.0], dtype=torch.float64)
    zero = torch.zeros_like(m)
    assert ratio(m, zero).tolist() == [1000, -1000, 1000, -1000, 1000, -1000, 0]
    assert relu_probability(m, zero).tolist() == [1, 0, 1, 0, 1, 0, 0.5]


def test_a_subnormal_deviation_is_divided_by() -> None:
    m = torch.tensor([5e-324, -1e-323, 1.5e-323], dtype=torch.float64)
    assert ratio(m, torch.full_like(m, 5e-324)).tolist() == [1, -2, 3]
