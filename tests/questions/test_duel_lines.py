"""Lines below the lead over one rival: nowhere above it on the range of the margins."""

from __future__ import annotations

import pytest
import torch
from support.dice import Dice

from bnndp.questions.duel_lines import duel_lines


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_below_the_lead(seed: int, share: float) -> None:
    dice, batch, classes = Dice(seed), 60, 4
    least = 6 * dice.normal(batch, 1, classes)
    most = least + 8 * dice.uniform(shape=(batch, 1, classes)) * (torch.arange(batch) % 5 > 0)[:, None, None]
    own = torch.arange(classes) == torch.zeros(batch, 1)
    least, most = least.masked_fill(own[:, None], 0.0), most.masked_fill(own[:, None], 0.0)
    rows = (torch.eye(classes, dtype=torch.float64)[0] - torch.eye(classes, dtype=torch.float64))[1:].expand(
        batch, -1, -1
    )
    constant, slope = duel_lines(rows, own, least, most, share)
    part = dice.uniform(shape=(400, batch, 1, classes))
    part[:40] = part[:40].round()
    margins = least + part * (most - least)
    p = torch.softmax(-margins, -1)  # relative to the logit of c
    truth = (p * rows).sum(-1)
    assert bool((constant + (slope * margins).sum(-1) <= truth + 1e-12).all())
    assert bool(constant.isfinite().all())
    assert bool((slope >= 0).all())


def test_other_rows_have_none() -> None:
    own = torch.tensor([[True, False, False]])
    ends = torch.tensor([[[0.0, 1.0, 2.0]]], dtype=torch.float64)
    rows = torch.tensor([[[1.0, -0.5, -0.5], [2.0, -1.0, 0.0], [1.0, -1.0, 0.0]]], dtype=torch.float64)
    found = duel_lines(rows, own, ends, ends + 1, 0.5)[0]
    assert found.isfinite().tolist() == [[False, False, True]]
    assert not bool(duel_lines(rows, own, ends, ends * torch.inf, 0.5)[0].isfinite().any())
