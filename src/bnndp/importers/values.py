"""The numbers of foreign tensors as ours: float64, finite, and standard deviations that are none below zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bnndp.errors import ModelFileError

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LARGE = 700.0  # exp of it is finite in float64, and softplus is the identity there


def to_float64(name: str, tensor: Tensor) -> Tensor:
    """The tensor in float64, every number as it is; refused unless it is one of finite floating point numbers."""
    if tensor.dtype not in _FLOATS:
        raise ModelFileError(f"tensor {name!r:.80} has dtype {tensor.dtype}; expected floating point of 16 to 64 bits")
    found = tensor.detach().to("cpu", torch.float64)
    bad = ~found.isfinite()
    if bad.any():
        raise ModelFileError(f"tensor {name!r:.80} is not finite: {_first(found, bad)}")
    return found


def softplus(rho: Tensor) -> Tensor:
    """``log1p(exp(rho))`` in float64, without overflow.

    >>> softplus(torch.tensor([0.0, 1e5], dtype=torch.float64)).tolist()
    [0.6931471805599453, 100000.0]
    """
    return torch.where(rho > _LARGE, rho, torch.log1p(torch.exp(rho.clamp(max=_LARGE))))


TRANSFORMS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": lambda value: value,
    "softplus": softplus,
    "exp": torch.exp,
    "sqrt": torch.sqrt,  # of a variance
    "exp_half": lambda value: torch.exp(0.5 * value),  # of the logarithm of a variance
    "rsqrt": lambda value: 1 / torch.sqrt(value),  # of a precision
}
"""How standard deviations come from what was trained."""


def to_std(name: str, tensor: Tensor, transform: str = "none") -> Tensor:
    """Standard deviations from a tensor and a name in ``TRANSFORMS``; refused unless finite and at least zero."""
    given = to_float64(name, tensor)
    found = TRANSFORMS[transform](given)
    bad = ~((found >= 0) & found.isfinite())
    if not bad.any():
        return found
    if transform == "none":
        advice = "must be >= 0; if it is a parameter such as rho, say by which function"
        raise ModelFileError(f"tensor {name!r:.80} as standard deviation: {_first(given, bad)} {advice}")
    raise ModelFileError(f"tensor {name!r:.80}: {_first(given, bad)} has no finite {transform} that is >= 0")


def _first(values: Tensor, bad: Tensor) -> str:
    """The first bad number, with its place."""
    place = bad.nonzero()[0].tolist()
    return f"{place} is {values[tuple(place)].item()} ({int(bad.sum())} of {bad.numel()} are bad)"
