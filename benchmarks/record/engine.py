"""All that ``benchmarks.record`` takes from bnndp: its names, and each question as a function that gives plain arrays.

Nothing else of the recorder imports bnndp, so that a change of names is followed here alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import bnndp
from bnndp.activations import ACTIVATIONS, PiecewiseAffine
from bnndp.attack import AttackBudget, Reach, attack_radius, inside_range
from bnndp.data.mnist import mnist
from bnndp.files.posterior import load
from bnndp.geometry.box import Box
from bnndp.layers import (
    AveragePool,
    BatchNorm,
    Conv2d,
    CorrelatedLinear,
    Dropout,
    Flatten,
    Linear,
    MatrixNormalLinear,
    MaxPool,
    Residual,
)
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.options import Options
from bnndp.questions.radius import Search

__all__ = [
    "SENSES", "AveragePool", "BatchNorm", "BayesianNetwork", "Box", "Conv2d", "CorrelatedLinear",
    "Dropout", "Ensemble", "Flatten", "Linear", "MatrixNormalLinear", "MaxPool", "Residual", "activation", "attack",
    "bounds", "decided", "decision", "evaluation", "inside", "load", "mnist", "probability", "radius", "robustness",
    "standardised",
]  # fmt: skip

Answer = dict[str, Any]
"""Tensors and lists by name: floats are compared up to rounding, everything else must be equal."""

SENSES = {
    "lower": 1, "upper": -1, "lead": 1, "radius": 1, "change": -1, "found": 1, "attack": -1, "inside_lower": -1,
    "inside_upper": 1,
}  # fmt: skip
"""Arrays of which a larger (1) or a smaller (-1) value is the tighter one."""


def activation(kind: str) -> Any:
    if kind == "piecewise_affine":  # the sine stands for a function given by its user
        return PiecewiseAffine.of(torch.sin, 1.0, reach=12.0, pieces=240, curvature=1.0)
    if kind == "elu_bent":
        return ACTIVATIONS["elu"](0.7)
    return ACTIVATIONS[kind](*((0.1,) if kind == "leaky_relu" else ()))


def standardised(network: Any, inputs: tuple[Tensor, Tensor], outputs: tuple[Tensor, Tensor]) -> Any:
    return network.in_units(inputs, outputs)


def bounds(model: Any, box: Any, quantity: str = "mean", **how: Any) -> Answer:
    """The expected output (its variance, its noise), or the expected softmax of a classifier."""
    return _ends(bnndp.certify(model, box, Options(**how), quantity=quantity))


def probability(model: Any, box: Any, a: float, b: float, **how: Any) -> Answer:
    return _ends(bnndp.probability(model, box, a, b, Options(**how)))


def _ends(found: Any) -> Answer:
    answer = _fields(found, "lower", "upper", "method")
    if found.affine is not None:
        for side in ("lower", "upper"):
            answer |= _fields(
                getattr(found.affine, side), **{f"affine_{side}_{part}": part for part in ("matrix", "offset")}
            )
    if found.cells is not None:
        answer["cells"] = found.cells.owner.bincount()
    return answer


def decision(model: Any, x: Tensor, box: Any, losses: Tensor | None = None, **how: Any) -> Answer:
    found = bnndp.robust_decision(model, x, box, losses=losses, options=Options(**how), seed=1)
    return _fields(found, "verdict", "label", "witness", "margin", "error", "rival", "proved", lead="bound")


def radius(model: Any, x: Tensor, domain: Any = None, search: dict[str, Any] | None = None, **how: Any) -> Answer:
    found = bnndp.certified_radius(model, x, None, domain, search=_search(search), options=Options(**how))
    return _fields(found, "label", "radius", "attack", "witness", "rival")


def evaluation(model: Any, x: Tensor, label: Tensor, search: dict[str, Any] | None = None, **how: Any) -> Answer:
    found = bnndp.evaluate(model, x, label, search=_search(search), options=Options(**how))
    curve = _fields(found.curve([0.0, 0.01, 0.05, 0.2]), "certified", "attacked", "correct")
    return curve | _fields(found, "decision", "radius", "attack")


def _search(given: dict[str, Any] | None) -> Any:
    """Of the norm, the losses and the like."""
    settings = dict(given or {})
    settings.pop("precision", None)  # a search in float32 that there was
    return Search(losses=settings.pop("losses", None), seed=1, **settings)


def robustness(model: Any, x: Tensor, box: Any, gamma: float, norm: float = math.inf, **how: Any) -> Answer:
    found = bnndp.adversarial_robustness(model, x, box, gamma, norm=norm, options=Options(**how))
    return _fields(found, "verdict", "change", "found", "witness")


def inside(model: Any, box: Any) -> Answer:
    found = inside_range(model, box, seed=1, samples=512, restarts=2, steps=10)
    names = ("x_lower", "x_upper", "error", "width_error")
    return _fields(found, *names, inside_lower="lower", inside_upper="upper")


def decided(model: Any, x: Tensor, losses: Tensor | None = None) -> Answer:
    return {"decision": bnndp.decide(model, x, losses=losses, seed=1)}


def attack(model: Any, x: Tensor, losses: Tensor | None = None, **reach: Any) -> Answer:
    """The attacked radius with a small budget."""
    label, budget = (
        bnndp.decide(model, x, losses=losses),
        AttackBudget(restarts=2, steps=6, draws=16, samples=512, seed=1),
    )
    found = attack_radius(model, x, label, losses=losses, reach=Reach(**reach), budget=budget)
    return _fields(found, "margin", "error", attack="radius", witness="x", rival="rival")


def _fields(found: Any, *names: str, **renamed: str) -> Answer:
    """Fields of an answer by their names here; verdicts by their words, and what is None not at all."""
    values = {name: getattr(found, field) for name, field in (dict(zip(names, names, strict=True)) | renamed).items()}
    if "verdict" in values:
        values["verdict"] = [verdict.value for verdict in values["verdict"]]
    return {name: value for name, value in values.items() if value is not None}
