"""One row of the tables of ``make tightness``: a network measured, as numbers that can be written to a file."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.tightness import classification, layers, regression
from benchmarks.tightness.sources import Breakdown
from benchmarks.tightness.suite import ClassificationCase, RegressionCase, inputs, posterior
from bnndp import Options, certify
from bnndp.attack import AttackBudget, evade
from bnndp.attack.inside import Inside, inside_range
from bnndp.attack.sampled_softmax import draw_softmax_noise, estimate_softmax
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.questions.decision import decide
from bnndp.questions.radius import Search, certified_radius

__all__ = ["FULL", "QUICK_SIZE", "Size", "measure", "measure_layers"]

PIXELS = (0.0, 1.0)
_CONFIDENT = 0.9


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured of every network."""

    boxes: int  # balls of regression whose widths are compared
    broken_down: int  # how many of them are broken down
    images: int  # of classification
    draws: int


FULL = Size(boxes=100, broken_down=10, images=20, draws=4096)
QUICK_SIZE = Size(boxes=10, broken_down=4, images=5, draws=1024)


def measure(case: RegressionCase | ClassificationCase, size: Size) -> dict[str, Any]:
    """The row of a network."""
    start = time.process_time()
    found = _regression(case, size) if isinstance(case, RegressionCase) else _classification(case, size)
    return {**asdict(case), **found, "seconds": round(time.process_time() - start, 1)}


def measure_layers(name: str, size: Size) -> dict[str, Any]:
    """The row of a network of other layers."""
    start = time.process_time()
    found = layers.radii(name, size.images, size.draws)
    return {"name": name, "images": size.images, **found, "seconds": round(time.process_time() - start, 1)}


def _regression(case: RegressionCase, size: Size) -> dict[str, Any]:
    network = posterior(case.name)
    centres = inputs(case.name, size.boxes)
    box = Box.ball(centres, case.eps)
    # In boxes this small the mean is nearly linear: a short search finds what a long one does (checked to 2e-4).
    inside = inside_range(network, box, samples=2048, restarts=1, steps=10)
    with torch.no_grad():
        width = certify(network, box, Options(method="moment")).width.mean()
        point = certify(network, Box(centres, centres), Options(method="moment")).width.mean()
    some, found = slice(0, size.broken_down), float(inside.width.mean())
    part = Inside(*(getattr(inside, name)[some] for name in inside.__dataclass_fields__))
    broken = regression.break_down(network, box[some], part, draws=size.draws)
    return {
        "width": float(width),
        "inside": found,
        "inside_error": float(inside.width_error.mean()),
        "ratio": float(width) / found,
        "point_gap": float(point),
        "boxes": size.boxes,
        "breakdown": _record(broken),
    }


def _classification(case: ClassificationCase, size: Size) -> dict[str, Any]:
    network = posterior(case.name)
    x, label = _images(network, case, size.images)
    ball = Box.ball(x, case.eps, domain=PIXELS)
    worst = evade(network, ball, label, budget=AttackBudget()).x
    on_ball = classification.break_down(network, classification.Claim(ball, label, worst), draws=size.draws)
    point = classification.Claim(Box(x, x), label, x)
    at_point = classification.break_down(network, point, draws=size.draws, point=True)
    found = certified_radius(network, x, label, PIXELS, search=Search(), options=Options())
    good = found.attack.isfinite() & (found.attack > 0)
    radius = found.radius.nan_to_num(0.0)
    return {
        "images": size.images,
        "radius": float(radius[good].mean()),
        "attack": float(found.attack[good].mean()),
        "ratio": float(found.ratio[good].mean()),
        "above_attack": int((radius > found.attack).sum()),
        "on_ball": _record(on_ball),
        "at_point": _record(at_point),
    }


def _images(network: BayesianNetwork, case: ClassificationCase, count: int) -> tuple[Tensor, Tensor]:
    """Images and the network's own decisions on them; of an uncertain one the first that it is sure of."""
    x = inputs(case.name, 2 * count if case.uncertain else count)
    if not case.uncertain:
        return x, decide(network, x)
    best = estimate_softmax(network, x, draw_softmax_noise(network, 4096, seed=1)).mean.max(-1)
    at = (best.values >= _CONFIDENT).nonzero()[:count, 0]
    return x[at], best.indices[at]


def _record(broken: Breakdown) -> dict[str, Any]:
    return {
        "certified": broken.certified,
        "inside": broken.inside,
        "shares": broken.shares,
        "leading": broken.leading,
    }
