"""Rows of a decision: they say the same as the decision itself."""

from __future__ import annotations

import pytest
import torch

from bnndp.attack import decision_rows
from bnndp.errors import InputError


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_non_negative_exactly_where_the_decision_is_taken(weighted: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.softmax(2 * torch.randn(500, 4, generator=generator, dtype=torch.float64), -1)
    weights = torch.rand(4, 4, generator=generator, dtype=torch.float64) if weighted else None
    losses = 1 - torch.eye(4, dtype=torch.float64) if weights is None else weights
    decision = (p @ losses.T).argmin(-1)
    if not weighted:
        assert torch.equal(decision, p.argmax(-1))
    for label in range(4):
        rows, classes = decision_rows(torch.full((500,), label), 4, weights)
        assert rows.shape == (500, 3, 4)
        holds = ((rows @ p[..., None])[..., 0] >= 0).all(-1)
        assert torch.equal(holds, decision == label)
        assert 0 < holds.sum() < 500
        assert sorted([label, *classes[0].tolist()]) == [0, 1, 2, 3]
        torch.testing.assert_close(rows[0], losses[classes[0]] - losses[label], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("label", "classes", "weights", "message"),
    [
        ([0, 4], 4, None, "label 1 is 4, but the classes are 0 to 3"),
        ([-1], 4, None, "label 0 is -1"),
        ([0.5], 4, None, "one integer for each input, got torch.float32"),
        ([True], 4, None, "one integer for each input, got torch.bool"),
        ([[1]], 4, None, r"of shape \(1, 1\)"),
        ([0], 1, None, "at least 2 classes"),
        ([0], 2, [[0.0, 1.0]], r"must be \(2, 2\), decision by true class, got \(1, 2\)"),
        ([0], 2, [[0.0, 1.0], [float("nan"), 0.0]], r"losses\[1, 0\] is nan"),
    ],
)
def test_what_is_no_decision_is_refused(
    label: list[int], classes: int, weights: list[list[float]] | None, message: str
) -> None:
    losses = None if weights is None else torch.tensor(weights)
    with pytest.raises(InputError, match=message):
        decision_rows(torch.tensor(label), classes, losses)
