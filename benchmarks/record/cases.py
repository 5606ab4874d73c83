"""The questions of ``benchmarks.record``: each a name "question/kind/..." and a function of the dice seeded by it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.record import engine
from benchmarks.record.networks import ACTS, DENSE, ENSEMBLES, IMAGES, VECTORS, Dice, balls, losses, model, points

__all__ = ["cases"]

Case = tuple[str, Callable[[Dice], dict[str, Any]]]
METHODS = ("auto", "moment", "partition", "best")
KINDS = (*VECTORS, *IMAGES, *ENSEMBLES)
NORMS = (math.inf, 2, 1)


def cases() -> Iterator[Case]:
    """All of them, in order."""
    for part in (_means, _quantities, _softmax, _decisions, _radii, _regression_answers, _from_inside, _published):
        yield from part()


def _means() -> Iterator[Case]:
    for k, kind in enumerate(KINDS):
        for j, act in enumerate(ACTS):
            if kind in DENSE or (j + k) % 4 == 0:
                yield f"mean/{kind}/{act}", partial(_bounds, kind=kind, act=act)
    yield from _plain("mean", _bounds)
    for kind in ("whole", "residual", "conv", *ENSEMBLES):
        yield f"mean/{kind}/medium", partial(_bounds, kind=kind, effort="medium")


def _plain(question: str, ask: Callable[..., Any], **fixed: Any) -> Iterator[Case]:
    """The same question of dense ReLU networks of every depth, by every method and with every effort."""
    for depth in range(5):
        ways: list[dict[str, Any]] = [{"method": method} for method in METHODS]
        ways += [
            {"effort": "medium"},
            {"effort": "high"},
            {"optimise": 3},
            {"method": "partition", "cells": 3, "mass": 0.7},
        ]
        for how in ways:
            way = "-".join(f"{value}" for value in how.values())
            yield f"{question}/plain/depth {depth}/{way}", partial(ask, kind="mean_field", depth=depth, **fixed, **how)
    yield f"{question}/ensemble_gaussians/best", partial(ask, kind="ensemble_gaussians", **fixed, method="best")


def _quantities() -> Iterator[Case]:
    for k, kind in enumerate(KINDS):
        yield f"variance/{kind}", partial(_bounds, kind=kind, act=ACTS[k % len(ACTS)], quantity="variance")
        yield f"probability/{kind}", partial(_probability, kind=kind, act=ACTS[(k + 5) % len(ACTS)])
    for kind in ("mean_field", "conv", "ensemble_samples"):
        yield f"variance/{kind}/medium", partial(_bounds, kind=kind, quantity="variance", effort="medium")
        yield f"probability/{kind}/medium", partial(_probability, kind=kind, effort="medium")
    for kind in DENSE:
        yield f"noise/{kind}/depth 0", partial(_bounds, kind=kind, depth=0, quantity="noise")
    for act in ACTS:
        yield f"noise/head/{act}", partial(_bounds, kind="head", act=act, quantity="noise")
        yield f"probability/head/{act}", partial(_probability, kind="head", act=act)
    for kind in ENSEMBLES[:2]:
        yield f"noise/{kind}", partial(_bounds, kind=kind, quantity="noise")


def _softmax() -> Iterator[Case]:
    for k, kind in enumerate(KINDS):
        for j in (k, k + 3, k + 7)[: 3 if kind in DENSE else 1]:
            act = ACTS[j % len(ACTS)]
            yield f"softmax/{kind}/{act}", partial(_bounds, kind=kind, act=act, task="classification")
    yield from _plain("softmax", _bounds, task="classification")
    for kind in ("rows", "conv_fixed", *ENSEMBLES):
        yield f"softmax/{kind}/medium", partial(_bounds, kind=kind, task="classification", effort="medium")


def _decisions() -> Iterator[Case]:
    for k, kind in enumerate(KINDS):
        yield f"decision/{kind}", partial(_decision, kind=kind, act=ACTS[(k + 2) % len(ACTS)])
    yield from _plain("decision", _decision)
    for kind in ("fixed", "whole", "conv", *ENSEMBLES):
        yield f"decision/{kind}/losses", partial(_decision, kind=kind, weighted=True)
        yield f"decision/{kind}/medium", partial(_decision, kind=kind, effort="medium")


def _radii() -> Iterator[Case]:
    for k, kind in enumerate((*DENSE, "residual", "conv", "conv_max_pool", *ENSEMBLES)):
        norm = NORMS[k % 3]
        yield f"radius/{kind}/norm {norm}", partial(_radius, kind=kind, act=ACTS[k % len(ACTS)], norm=norm)
    for norm in NORMS:
        yield f"radius/plain/domain/norm {norm}", partial(_radius, kind="mean_field", domain=(0.0, 1.0), norm=norm)
        yield f"radius/plain/losses/norm {norm}", partial(_radius, kind="mean_field", weighted=True, norm=norm)
    for depth in (0, 1, 2):
        yield (
            f"radius/plain/depth {depth}/float32",
            partial(_radius, kind="mean_field", depth=depth, precision="float32"),
        )
        yield f"radius/plain/depth {depth}/medium", partial(_radius, kind="mean_field", depth=depth, effort="medium")
    yield "radius/plain/high", partial(_radius, kind="fixed", depth=1, effort="high", attack=False)
    for kind in ("mean_field", "bias", "conv_fixed", "ensemble_samples"):
        yield f"evaluate/{kind}", partial(_evaluation, kind=kind)


def _regression_answers() -> Iterator[Case]:
    for k, kind in enumerate(("mean_field", "fixed", "whole", "units", "residual", "conv", *ENSEMBLES)):
        for effort in ("low", "medium")[: 1 + (k < 3)]:
            yield f"robustness/{kind}/{effort}", partial(_robustness, kind=kind, norm=NORMS[k % 3], effort=effort)


def _from_inside() -> Iterator[Case]:
    for k, kind in enumerate(("mean_field", "low_rank", "dropout_bernoulli", "conv", "batch_norm", *ENSEMBLES)):
        act = ACTS[k % len(ACTS)]
        yield f"inside/{kind}/{act}", partial(_inside, kind=kind, act=act)
        yield f"decide/{kind}/{act}", partial(_decided, kind=kind, act=act)
        yield f"attack/{kind}/{act}", partial(_attack, kind=kind, act=act, norm=NORMS[k % 3])


def _bounds(dice: Dice, *, kind: str, act: str = "relu", depth: int | None = None, **how: Any) -> Any:
    found = model(dice, kind, act, depth, how.pop("task", "regression"))
    return engine.bounds(found, balls(dice, points(dice, found.n_in)), **how)


def _probability(dice: Dice, *, kind: str, act: str = "relu", **how: Any) -> Any:
    found = model(dice, kind, act)
    between = dice.pick((-1.0, 1.0), (0.0, math.inf), (-math.inf, 0.5), (-5.0, 5.0))
    return engine.probability(found, balls(dice, points(dice, found.n_in)), *between, **how)


def _classifier(dice: Dice, how: dict[str, Any]) -> tuple[Any, Tensor, Tensor | None]:
    """A classifier by ``kind``, ``act`` and ``depth``, inputs for it, and losses where ``weighted``."""
    found = model(dice, how.pop("kind"), how.pop("act", "relu"), how.pop("depth", None), "classification")
    return found, points(dice, found.n_in), losses(dice, found.n_out) if how.pop("weighted", False) else None


def _decision(dice: Dice, **how: Any) -> Any:
    found, x, costs = _classifier(dice, how)
    return engine.decision(found, x, balls(dice, x, scale=2.5), costs, **how)


def _radius(dice: Dice, *, domain: Any = None, **how: Any) -> Any:
    found, x, costs = _classifier(dice, how)
    search: dict[str, Any] = {name: how.pop(name) for name in ("norm", "precision", "attack") if name in how}
    return engine.radius(found, x, domain, {"losses": costs, "upper": 4.0, **search}, **how)


def _evaluation(dice: Dice, **how: Any) -> Any:
    found, x, _ = _classifier(dice, how)
    wrong = torch.tensor([1, 0, 0])  # the label of the first input is not its decision
    return engine.evaluation(found, x, (engine.decided(found, x)["decision"] + wrong) % found.n_out, **how)


def _robustness(dice: Dice, *, kind: str, norm: float, **how: Any) -> Any:
    found = model(dice, kind, dice.pick("relu", "tanh"))
    x = points(dice, found.n_in)
    return engine.robustness(found, x, balls(dice, x, norm), dice.pick(0.03, 0.1), norm, **how)


def _inside(dice: Dice, *, kind: str, act: str) -> Any:
    found = model(dice, kind, act)
    return engine.inside(found, balls(dice, points(dice, found.n_in)))


def _decided(dice: Dice, **how: Any) -> Any:
    return engine.decided(*_classifier(dice, how))


def _attack(dice: Dice, *, norm: float, **how: Any) -> Any:
    return engine.attack(*_classifier(dice, how), norm=norm, domain=dice.pick(None, (0.0, 1.0)))


def _published() -> Iterator[Case]:
    """Of the posteriors that lie beside the data, if they do."""
    folder = Path(os.environ.get("BNNDP_DATA", "")).parent / "posteriors"
    for path in sorted(folder.rglob("*.safetensors")):
        found, name = engine.load(path), path.stem
        if found.task == "regression":
            for effort in ("low", "medium", "high"):
                yield f"mean/{name}/{effort}", partial(_line, found=found, ask=engine.bounds, effort=effort)
            yield f"variance/{name}", partial(_line, found=found, ask=engine.bounds, quantity="variance")
            yield f"probability/{name}", partial(_line, found=found, ask=engine.probability, a=-1.0, b=1.0)
            yield f"inside/{name}", partial(_line, found=found, ask=engine.inside)
            continue
        yield f"softmax/{name}", partial(_softmax_digits, found=found)
        yield f"decide/{name}", partial(_decided_digits, found=found)
        for norm, eps in zip(NORMS, (0.02, 0.1, 0.5), strict=True):
            yield f"decision/{name}/norm {norm}", partial(_digits, found=found, eps=eps, norm=norm)
        for effort in ("medium", "high"):
            yield f"decision/{name}/{effort}", partial(_digits, found=found, eps=0.04, effort=effort)
        yield f"radius/{name}", partial(_radius_digits, found=found)


def _line(dice: Dice, *, found: Any, ask: Callable[..., Any], **how: Any) -> Any:
    return ask(found, engine.Box.ball(2 * dice.uniform(3, 1) - 1, 0.05), **how)


def _softmax_digits(_: Dice, *, found: Any) -> Any:
    return engine.bounds(found, _near(0.005))


def _decided_digits(_: Dice, *, found: Any) -> Any:
    return engine.decided(found, _images())


def _radius_digits(_: Dice, *, found: Any) -> Any:
    return engine.radius(found, _images(), (0.0, 1.0), {"upper": 0.2})


def _digits(_: Dice, *, found: Any, eps: float, norm: float = math.inf, **how: Any) -> Any:
    return engine.decision(found, _images(), _near(eps, norm), **how)


def _near(eps: float, norm: float = math.inf) -> Any:
    return engine.Box.ball(_images(), eps, domain=(0.0, 1.0), norm=norm)


@cache
def _images() -> Tensor:
    return engine.mnist("test").x[:2]  # (2, 784)
