"""The moment method knows no units: what is measured in others has the same bounds, in others.

ReLU(t x) = t ReLU(x), so that a hidden layer whose weights and biases are t times as large, with the biases of all that
follows, multiplies every moment of degree d after it by t^d. A bound in which a power is wrong (a square or a root left
out, a quotient for a product) may be right in one unit, but then it is too small in another. Powers of two are exact
in float64, so that the records of two runs agree to the rounding of a few roots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest
import torch
from tests.engine.dense.cases import CASES, Case, network, region
from tests.engine.dense.truth import Pass, run
from torch import Tensor

from bnndp.engine.dense.rare_neurons import rarity, stability
from bnndp.engine.dense.slope import slope
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

NAMES = ("narrow", "wide box", "large deviations", "all scales", "dead neurons", "nearly dead second layer",
         "active in a box", "some zeros", "negative inputs", "deep", "one source", "l2 ball")  # fmt: skip
PICKED = [case for case in CASES if case.name in NAMES]
ROUNDING = 1e-9  # relative: roots and powers of scaled numbers; errors of units are factors of a million
NOTHING = 1e-20  # of a typical size: absolute terms against underflow

DEGREES = {
    # PreActivation
    "jensen": 1, "spread": 2, "spread_variance": 4, "spread_fourth": 8, "noise": 2, "noise_variance": 4, "central": 2,
    "fourth": 4, "norm8": 1, "replacement": 1, "above": 1, "below": 1, "probability": 0, "mean8": 1, "spread8": 1,
    "spread16": 1, "usual": 2, "rare": 2, "unlikely": 2, "kept": 2, "left": 2, "covariance": 3, "absolute": 3,
    # Conditional and Through
    "noise_deviation": 2, "cube": 3, "slope": 0, "psi": -1, "curvature": -1, "slope_rest": 1, "largest": 0,
    "plain_rest": 1, "top": 0, "square_usual": 2, "square_extra": 2, "gram": 4, "kurtosis": 4, "centre": 0,
    "delta": 0, "widest": 0, "density": 0, "active_spread": 2,
    # Latent, Relaxation, Slope
    "mean": 1, "second": 2, "variance": 2, "activity": 0, "tangent": 0, "rho": 1, "loss": 1, "upper_slope": 0,
    "upper_offset": 1, "size": 1,
}  # fmt: skip
OTHER_DEGREES = {"cross.second": 4, "cross.third": 5, "at.variance": 0, "at.square": 0, "at.norm4": 0}
OF_SOURCES = ("energy.kept", "energy.left", "through.kurtosis", "through.rare")  # of the first layer, whatever follows


def in_units(model: BayesianNetwork, unit: float, start: int) -> BayesianNetwork:
    """Everything from the layer ``start`` on, measured in 1 / unit."""
    layers = list(model.linears)
    for k in range(start, len(layers)):
        layer, weight = layers[k], unit if k == start else 1.0
        layers[k] = Linear(
            weight * layer.weight_mean, weight * layer.weight_std, unit * layer.bias_mean, unit * layer.bias_std
        )
    return BayesianNetwork.from_linears(layers)


def tensors(record: object, name: str) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a record, by the path of their names; ends of an interval by that of the interval."""
    if isinstance(record, Tensor):
        if record.is_floating_point():  # no index
            yield name, record
    elif isinstance(record, tuple):
        for part in record:
            yield from tensors(part, name)
    elif is_dataclass(record) and not isinstance(record, Linear):
        for field in fields(record):
            inside = name if field.name in ("lower", "upper") else f"{name}.{field.name}"
            yield from tensors(getattr(record, field.name), inside)


def records(found: Pass) -> Iterator[tuple[str, Tensor]]:
    """Everything that a run knows of the layers after the first."""
    for (before, given), layer in zip(found.given, found.hidden, strict=True):
        yield from tensors(before, "before")
        yield from tensors(given, "given")
        yield from tensors(layer.latent, "latent")
        yield from tensors(layer.relaxation, "relaxation")
        yield from tensors(slope(before, layer.mean), "at")
        if before.tail is not None:
            yield from tensors(stability(before.tail, layer.mean), "stable")
            yield from tensors(rarity(before.tail, layer.mean, layer.latent.fourth), "rare")


def degree(name: str, start: int) -> int:
    """The power of the unit in a tensor."""
    short = ".".join(name.split(".")[-2:])
    if start > 0 and short in OF_SOURCES:
        return 0
    return OTHER_DEGREES[short] if short in OTHER_DEGREES else DEGREES[name.rpartition(".")[-1]]


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("case", PICKED, ids=str)
def test_every_record_in_other_units(case: Case, start: int) -> None:
    box = region(case)
    plain = run(network(case), box)
    for unit in (2.0**-20, 2.0**60):
        other = run(in_units(network(case), unit, start), box)
        for (name, a), (_, b) in zip(records(plain), records(other), strict=True):
            power = unit ** degree(name, start)
            finite = a[torch.isfinite(a)].abs()
            size = finite.max().item() if finite.numel() else 1.0
            same = torch.isclose(b / power, a, rtol=ROUNDING, atol=NOTHING * size + 1e-200, equal_nan=True)
            assert same.all(), (name, unit, a[~same][0].item(), (b / power)[~same][0].item())
        for a, b in ((plain.bounds.lower, other.bounds.lower), (plain.bounds.upper, other.bounds.upper)):
            assert torch.allclose(b.matrix / unit, a.matrix, rtol=1e-7, atol=1e-9 * a.matrix.abs().max().item())
            assert torch.allclose(b.offset / unit, a.offset, rtol=1e-7, atol=1e-9 * a.offset.abs().max().item())
