"""Numbers that break arithmetic: a table of networks and boxes, each to be bounded soundly or refused by name.

What is beyond the range of ``network/magnitudes.py`` may be refused with a MagnitudeError, and only that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

FIELDS = ("weight_mean", "weight_std", "bias_mean", "bias_std")


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass(frozen=True)
class Ingredients:
    """What a network with one hidden layer and its box are made of, before anything is checked."""

    hidden: dict[str, Any]
    output: dict[str, Any]
    lower: Any
    upper: Any
    task: str

    @classmethod
    def usual(cls, task: str, n_in: int = 2, width: int = 4) -> Ingredients:
        """Nothing hostile."""
        n_out = 1 if task == "regression" else 3

        def layer(seed: int, rows: int, columns: int) -> dict[str, Any]:
            weight, bias = normal(seed, rows, columns), normal(seed + 2, rows)
            stds = 0.3 * normal(seed + 1, rows, columns).abs(), 0.3 * normal(seed + 3, rows).abs()
            return dict(zip(FIELDS, (weight, stds[0], bias, stds[1]), strict=True))

        x = normal(9, 1, n_in)
        return cls(layer(1, width, n_in), layer(5, n_out, width), x - 0.2, x + 0.3, task)

    def network(self) -> BayesianNetwork:
        return BayesianNetwork.from_linears([Linear(**self.hidden), Linear(**self.output)], self.task)

    def box(self) -> Box:
        return Box(self.lower, self.upper)


Change = Callable[[Ingredients], Ingredients]


def times(part: str, name: str, factor: float) -> Change:
    """All numbers of a tensor times a factor."""
    return lambda i: replace(i, **{part: getattr(i, part) | {name: getattr(i, part)[name] * factor}})


def filled(part: str, name: str, value: float) -> Change:
    """All numbers of a tensor the same."""
    return lambda i: replace(i, **{part: getattr(i, part) | {name: torch.full_like(getattr(i, part)[name], value)}})


def first(part: str, name: str, value: float) -> Change:
    """The last number of a tensor replaced."""

    def change(i: Ingredients) -> Ingredients:
        tensor = getattr(i, part)[name].clone()
        tensor.view(-1)[-1] = value
        return replace(i, **{part: getattr(i, part) | {name: tensor}})

    return change


def all_of(*changes: Change) -> Change:
    return lambda i: reduce(lambda made, change: change(made), changes, i)


def every(names: tuple[str, ...], value: float) -> Change:
    """Tensors of these names in both layers filled with one value."""
    return all_of(*(filled(part, name, value) for part in ("hidden", "output") for name in names))


STDS = ("weight_std", "bias_std")
MEANS = ("weight_mean", "bias_mean")


def scaled(factor: float) -> Change:
    return all_of(*(times(part, name, factor) for part in ("hidden", "output") for name in FIELDS))


def ends(lower: Callable[[Tensor], Tensor], upper: Callable[[Tensor], Tensor]) -> Change:
    return lambda i: replace(i, lower=lower(i.lower), upper=upper(i.upper))


def constant(number: float) -> Callable[[Tensor], Tensor]:
    return lambda end: end * 0 + number


def widened(by: float) -> Change:
    return ends(lambda low: low - by, lambda high: high + by)


def sized(n_in: int, width: int) -> Change:
    return lambda i: Ingredients.usual(i.task, n_in, width)


def typed(kind: Callable[[Tensor], Any], *names: str) -> Change:
    """Tensors of these names, in both layers, as another type."""

    def change(i: Ingredients) -> Ingredients:
        hidden = i.hidden | {name: kind(i.hidden[name]) for name in names}
        return replace(i, hidden=hidden, output=i.output | {name: kind(i.output[name]) for name in names})

    return change


BOUNDED: dict[str, Change] = {
    "usual": all_of(),
    "no variance": every(STDS, 0.0),
    "variance of the biases only": every(("weight_std",), 0.0),
    "variance of the first layer only": all_of(filled("output", "weight_std", 0.0), filled("output", "bias_std", 0.0)),
    "variance of the last layer only": all_of(filled("hidden", "weight_std", 0.0), filled("hidden", "bias_std", 0.0)),
    "variance of the last layer only, 1e101": all_of(
        *(filled("hidden", name, 0.0) for name in STDS),
        *(times("output", name, 1e101) for name in MEANS),
        *(filled("output", name, 1e101) for name in STDS),
    ),
    "all zero": every(FIELDS, 0.0),
    "means zero": every(MEANS, 0.0),
    "negative zeros": every(FIELDS, -0.0),
    "smallest deviations": every(STDS, 5e-324),
    "subnormal deviations": every(STDS, 1e-310),
    **{
        f"deviations {value}": every(STDS, float(value))
        for value in ("1e-200", "1e-162", "1e-30", "1e-16", "4e9", "1e10", "1e30", "1e36", "1e100", "1e154", "1e300")
    },
    "one deviation 1e30": first("hidden", "weight_std", 1e30),
    "one deviation 1e200": first("hidden", "bias_std", 1e200),
    "one deviation 1e-300": first("hidden", "weight_std", 1e-300),
    **{f"means {value}": every(MEANS, float(value)) for value in ("4e9", "1e30", "1e150", "1e300")},
    "largest means": every(MEANS, 1.7976931348623157e308),
    "subnormal means": every(MEANS, 1e-310),
    "one mean -1e308": first("hidden", "bias_mean", -1e308),
    "one mean 1e308": first("output", "bias_mean", 1e308),
    "dead neurons": filled("hidden", "bias_mean", -4e9),
    "dead neurons, beyond": filled("hidden", "bias_mean", -1e30),
    "weights of 1e-85, then of 1e70": all_of(
        *(times("hidden", name, 1e-85) for name in FIELDS), *(times("output", name, 1e70) for name in FIELDS[:2])
    ),
    "largest outputs": all_of(*(times("output", name, 4e18) for name in FIELDS)),
    "dead neurons with a deviation": all_of(filled("hidden", "bias_mean", -40.0), filled("hidden", "bias_std", 1.0)),
    **{f"all times {factor}": scaled(float(factor)) for factor in ("1e-100", "1e-20", "1e20", "1e75")},
    "output weights 1e200, deviations 1e-162": all_of(
        filled("hidden", "weight_std", 1e-162), times("output", "weight_mean", 1e200)
    ),
    "output weights cancel": all_of(
        filled("output", "weight_mean", 1e16), first("output", "weight_mean", -3e16), filled("output", "bias_mean", 1.0)
    ),
    "a point": lambda i: replace(i, upper=i.lower),
    "a point at zero": ends(torch.zeros_like, torch.zeros_like),
    "a point at 1e300": ends(lambda low: torch.full_like(low, 1e300), lambda high: torch.full_like(high, 1e300)),
    "a width of one step": lambda i: replace(i, upper=torch.nextafter(i.lower, torch.full_like(i.lower, torch.inf))),
    "a point at 2e14": ends(lambda low: torch.full_like(low, 2e14), lambda high: torch.full_like(high, 2e14)),
    "a subnormal width": ends(torch.zeros_like, lambda high: torch.full_like(high, 1e-310)),
    **{f"a width of {value}": widened(float(value)) for value in ("1e5", "1e14", "1e30", "1e150", "1e300")},
    "the whole line": ends(lambda low: torch.full_like(low, -1.7e308), lambda high: torch.full_like(high, 1.7e308)),
    "one input": sized(1, 4),
    "one neuron": sized(2, 1),
    "one of each": sized(1, 1),
    "float32": typed(lambda t: t.float(), *FIELDS),
    "float16": typed(lambda t: t.half(), *FIELDS),
    "bfloat16": typed(lambda t: t.bfloat16(), *FIELDS),
    "float32 means, float64 deviations": typed(lambda t: t.float(), *MEANS),
    "integers": typed(lambda t: t.round().long().abs(), *FIELDS),
    "numpy arrays": typed(lambda t: t.numpy().astype(np.float32), *FIELDS),
    "lists": typed(lambda t: t.tolist(), *FIELDS),
    "strided": typed(lambda t: t.repeat_interleave(2, 0)[::2], *FIELDS),
    "with gradients": typed(lambda t: t.clone().requires_grad_(), *FIELDS),
}

SPECIAL = {"NaN": math.nan, "inf": math.inf, "-inf": -math.inf}
REFUSED: dict[str, tuple[Change, str]] = {
    f"{value} in {part} {name}": (first(part, name, number), f"{name}[")
    for part in ("hidden", "output")
    for name in FIELDS
    for value, number in SPECIAL.items()
}
REFUSED |= {
    f"negative {part} {name} {number}": (first(part, name, number), f"{name}[")
    for part in ("hidden", "output")
    for name in STDS
    for number in (-1.0, -5e-324)
}
for value, number in SPECIAL.items():
    REFUSED[f"lower {value}"] = (ends(constant(number), lambda high: high), "lower=")
    REFUSED[f"upper {value}"] = (ends(lambda low: low, constant(number)), "upper=")
REFUSED |= {
    "ends crossed": (ends(lambda low: low + 9, lambda high: high), "lower="),
    "complex": (typed(lambda t: t.to(torch.complex128), "weight_mean"), "weight_mean is complex"),
    "a deviation for all": (lambda i: replace(i, hidden=i.hidden | {"weight_std": 0.1}), "weight_std must have shape"),
    "no neurons": (sized(2, 0), "weight_mean must have shape"),
}
