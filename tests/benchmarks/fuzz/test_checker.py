"""Hill climbing on the numbers of certificates proves nothing beyond the truth (`make campaign-checker`, in small)."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flint", reason="the checker needs python-flint")
from benchmarks.fuzz.checker import attack, claims_of
from support.layer_networks import make_case

from bnndp_checker.activations import Activation


@pytest.mark.parametrize(("kind", "index"), [("mean_field", 3), ("whole", 1), ("dropout_bernoulli", 0)])
def test_changed_numbers_prove_nothing_false(kind: str, index: int) -> None:
    case = make_case(7, kind, index)
    for claim in claims_of(case.network, case.box[torch.tensor([1])]):
        found = attack(claim, seed=index, seconds=0.3, draws=20_000)
        assert found.tries > 3
        assert not found.broken


def test_a_checker_that_believes_lines_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search finds the way through a hole that is made for it."""
    monkeypatch.setattr(Activation, "above", lambda *_: True)
    case = make_case(7, "whole", 1)
    claim = claims_of(case.network, case.box[torch.tensor([1])])[0]
    found = attack(claim, seed=1, seconds=1.5, draws=5_000)
    assert found.broken
