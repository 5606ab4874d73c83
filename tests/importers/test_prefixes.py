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
    assert list(network_tensors(flat({"net": state, "opt": adam}))) == ["0.weight"]
    with pytest.raises(ModelFileError, match="give --key a or b"):
        network_tensors(flat({"a": state, "b": state}))
    with pytest.raises(ModelFileError, match="give --key net or scaler"):  # a layer of that name is not left out
        network_tensors(flat({"net": state, "scaler": {"weight": torch.ones(1, 1)}}))
    number = torch.tensor(0.5)
    assert list(network_tensors(flat({"net": state, "best": number, "losses": [number, number]}))) == ["0.weight"]
    with pytest.raises(ModelFileError, match=r"tensor 'spread.0' is not in the entry with the others; give --key net"):
        network_tensors(flat({"net": state, "spread": [torch.ones(1, 2)]}))  # without it the weights had no variance
    with pytest.raises(ModelFileError, match="several of its entries hold tensors; give --key net"):
        network_tensors(flat({"net": state, "log_std": torch.ones(2)}))
    with pytest.raises(ModelFileError, match="tensors of an optimiser and none of a network"):
        network_tensors(flat(adam))
    with pytest.raises(ModelFileError, match="give --key net or scaler"):
        importer_for(flat({"net": state, "scaler": {"weight": torch.ones(1, 1)}}))
