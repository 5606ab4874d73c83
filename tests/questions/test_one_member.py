"""A mixture of one member has the answers of that member, to every question."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from support.classifiers import classifier
from support.ensembles import certain_member
from support.networks import make_network
from support.records import linear, normal
from torch import Tensor

from bnndp.activations import Tanh
from bnndp.geometry.box import Box
from bnndp.layers import Dropout
from bnndp.network import BayesianNetwork, Ensemble, Posterior
from bnndp.options import Options
from bnndp.questions.certify import certify, probability
from bnndp.questions.decision import robust_decision
from bnndp.questions.evaluate import evaluate
from bnndp.questions.radius import Search, certified_radius
from bnndp.questions.robustness import adversarial_robustness

X = normal(2, 2, seed=3)
BOX = Box.ball(X, 0.05)
REGRESSION = {
    "dense": make_network((2, 6, 5, 2), 1),
    "certain": certain_member((2, 6, 5, 2), 1),
    "shifted": certain_member((2, 6, 2), 2, shift=True),
    "tanh and dropout": BayesianNetwork((linear(5, 2, 1), Tanh(), Dropout(0.2), linear(2, 5, 3))),
    "linear": make_network((2, 2), 3),
}
CLASSES = {
    "dense": classifier((2, 6, 3), 1, std=0.1),
    "certain": certain_member((2, 6, 3), 1, task="classification"),
    "tanh": BayesianNetwork((linear(5, 2, 1, 0.05), Tanh(), linear(3, 5, 3, 0.05)), "classification"),
}


def same(one: Any, other: Any) -> None:
    """All numbers of two answers are equal, bit by bit."""
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert torch.equal(one.nan_to_num(-7.0), other.nan_to_num(-7.0))
    elif isinstance(one, list):
        for pair in zip(one, other, strict=True):
            same(*pair)
    elif is_dataclass(one):
        for field in fields(one):
            same(getattr(one, field.name), getattr(other, field.name))
    else:
        assert one == other


@pytest.mark.parametrize("name", REGRESSION)
def test_regression(name: str) -> None:
    member = REGRESSION[name]

    def answers(network: Posterior) -> list[Any]:
        return [
            certify(network, BOX),
            certify(network, BOX, Options(refine=3)),
            certify(network, BOX, Options(optimise=2)),
            certify(network, BOX, quantity="variance"),
            probability(network, BOX, -1.0, 0.5),
            adversarial_robustness(network, X, BOX, 1e9),
        ]

    same(answers(member), answers(Ensemble((member,))))


@pytest.mark.parametrize("name", CLASSES)
def test_classification(name: str) -> None:
    member = CLASSES[name]

    def answers(network: Posterior) -> list[Any]:
        how, label = Search(attack=False, tolerance=0.1), torch.tensor([0, 1])
        return [
            certify(network, BOX),
            certify(network, BOX, Options(optimise=2)),
            certified_radius(network, X, label, search=how),
            certified_radius(network, X, label, search=how, options=Options(effort="medium")).radius,
            evaluate(network, X, label, search=how).radius,
            robust_decision(network, X, Box.ball(X, 1e-3), label).bound,
        ]

    same(answers(member), answers(Ensemble((member,))))


@pytest.mark.parametrize("method", ["partition", "best"])
def test_the_partition_method(method: str) -> None:
    for member in (REGRESSION["dense"], CLASSES["dense"]):
        same(*(certify(network, BOX, Options(method=method)) for network in (member, Ensemble((member,)))))
