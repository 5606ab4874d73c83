"""The entry of a checkpoint that is the network."""

from __future__ import annotations

import pytest
import torch

from bnndp.errors import ModelFileError
from bnndp.importers.flatten import flat
from bnndp.importers.prefixes import network_tensors
from bnndp.importers.registry import importer_for


def test_which_entry_is_the_network() -> None:
    state = {"0.weight": torch.ones(1, 2)}
    adam = {"state": {0: {"exp_avg": torch.ones(1)}}, "param_groups": [{"lr": 0.1}]}
    number, scaler = torch.tensor(0.5), {"weight": torch.ones(1, 1)}
    for more in ({"opt": adam}, {"best": number, "losses": [number, number]}):
        assert list(network_tensors(flat({"net": state, **more}))) == ["0.weight"]
    refused: list[tuple[dict[str, object], str]] = [
        ({"a": state, "b": state}, "give --key a or b"),
        ({"net": state, "scaler": scaler}, "give --key net or scaler"),  # a layer of that name is not left out
        (
            {"net": state, "spread": [torch.ones(1, 2)]},
            "'spread.0' is not in the entry with the others; give --key net",
        ),
        ({"net": state, "log_std": torch.ones(2)}, "several of its entries hold tensors; give --key net"),
        (adam, "tensors of an optimiser and none of a network"),
    ]
    for checkpoint, words in refused:
        with pytest.raises(ModelFileError, match=words):
            network_tensors(flat(checkpoint))
    with pytest.raises(ModelFileError, match="give --key net or scaler"):
        importer_for(flat({"net": state, "scaler": scaler}))
