"""What several questions are asked about."""

from __future__ import annotations

import torch
from support.records import linear

from bnndp.activations import Tanh
from bnndp.geometry.bounds import Interval
from bnndp.layers import Dropout, Linear
from bnndp.network import BayesianNetwork
from bnndp.questions.bounds import Bounds

DEEP = {
    "relu": BayesianNetwork.from_linears([linear(8, 2, 10), linear(8, 8, 20), linear(2, 8, 30)]),
    "tanh": BayesianNetwork((linear(8, 2, 40), Tanh(), linear(8, 8, 50), Tanh(), linear(2, 8, 60))),
    "dropout": BayesianNetwork((linear(8, 2, 70, 0.0), Tanh(), Dropout(0.3), linear(2, 8, 80, 0.0))),
}

CLASSIFIER = BayesianNetwork((Linear.fixed(torch.tensor([[1.0], [-1.0]])),), "classification")  # 0 where x > 0
LINE = BayesianNetwork((Linear.fixed(torch.tensor([[2.0]])),))
POINTS = torch.tensor([[0.3], [0.05], [0.6]], dtype=torch.float64)


def interval(bounds: Bounds) -> Interval:
    return Interval(bounds.lower, bounds.upper)
