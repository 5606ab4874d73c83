"""The record of a classification set: what it holds and what it refuses."""

import math
from typing import Any

import pytest
import torch

from bnndp.data import ClassificationData
from bnndp.errors import InputError


def test_holds_float64_points_and_int64_labels() -> None:
    data = ClassificationData(torch.ones(3, 2), torch.tensor([0, 3, 1], dtype=torch.uint8), classes=4)
    assert (data.points, data.n_in, data.n_out) == (3, 2, 4)
    assert data.x.dtype == torch.float64
    assert data.y.dtype == torch.int64
    assert data.y.tolist() == [0, 3, 1]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"x": torch.zeros(3)}, "x must have shape"),
        ({"x": torch.tensor([[0.0], [math.nan], [0.0]])}, r"x\[1, 0\] is not finite: nan"),
        ({"x": torch.zeros(2, 1)}, "x has 2 points, y has 3; give one label"),
        ({"y": torch.tensor([0, 3, 1])}, r"y\[1\] is 3 \(1 such of 3\); labels must be in 0..2"),
        ({"y": torch.tensor([0, 1, -1])}, r"y\[2\] is -1"),
        ({"y": torch.tensor([0.0, 1.0, 1.0])}, "y has dtype torch.float32"),
        ({"y": torch.tensor([True, False, True])}, "y has dtype torch.bool"),
        ({"y": torch.zeros(3, 1, dtype=torch.int64)}, r"y must have shape \(points,\), .* got \(3, 1\)"),
        ({"classes": 1}, "classes must be at least 2, got 1"),
    ],
)
def test_wrong_records_are_refused(wrong: dict[str, Any], says: str) -> None:
    right = {"x": torch.zeros(3, 1), "y": torch.tensor([0, 2, 1]), "classes": 3}
    ClassificationData(**right)
    with pytest.raises(InputError, match=says):
        ClassificationData(**(right | wrong))
