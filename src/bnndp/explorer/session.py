"""What is explored, and what may be asked about it. Whatever comes from the browser is checked here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.network import Posterior

_RANGE = (-2.0, 2.0)  # of inputs, where neither a domain nor inputs are given
_MAX = sys.float_info.max
_MARGIN = 0.1  # by which the range of given inputs is widened


@dataclass(frozen=True, slots=True)
class Session:
    """A network, inputs to choose from, and the values that an input may have."""

    name: str
    network: Posterior
    x: Tensor | None = None  # (points, n_in)
    label: Tensor | None = None  # (points,)
    domain: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.x is None and self.network.n_in > 2:
            raise InputError(
                f"a network with {self.network.n_in} inputs needs some to choose from; give --data or --inputs FILE."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return self.network.input_shape or (self.network.n_in,)

    @property
    def free(self) -> bool:
        """Whether an input can be put anywhere in a picture: it has one or two numbers."""
        return self.network.n_in <= 2

    @property
    def span(self) -> tuple[tuple[float, float], ...]:
        """The range of every number of an input that can be put anywhere."""
        if self.domain is not None:
            return (self.domain,) * self.network.n_in
        if self.x is None:
            return (_RANGE,) * self.network.n_in
        low, high = self.x.amin(0), self.x.amax(0)
        margin = torch.where(high > low, _MARGIN * (high - low), 1.0)
        return tuple(zip((low - margin).tolist(), (high + margin).tolist(), strict=True))

    @property
    def largest(self) -> float:
        """The largest radius that can be asked about: six digits, so that it can be shown and typed."""
        return float(f"{max(high - low for low, high in self.span) / 2:.6g}")


@dataclass(frozen=True, slots=True)
class Question:
    """An input, the radius of the ball around it, whether an attack is wanted too, and the label if it has one."""

    x: Tensor  # (1, n_in)
    eps: float
    attack: bool
    label: int | None = None


def read_question(session: Session, asked: object) -> Question:
    """A question as the page sends it: ``eps``, ``attack``, and ``index`` of an input or its numbers ``x``."""
    if not isinstance(asked, Mapping) or set(asked) - {"index", "x", "eps", "attack"}:
        raise InputError("a question has the entries eps, attack, and index or x, and no others.")
    eps, attack = _number("eps", asked.get("eps")), asked.get("attack")
    if not 0 <= eps <= session.largest:
        raise InputError(f"eps must lie between 0 and {session.largest:g}, got {eps:g}.")
    if not isinstance(attack, bool):
        raise InputError("attack must be true or false.")
    if asked.get("x") is not None:
        return Question(_point(session, asked["x"]), eps, attack)
    if session.x is None:
        raise InputError("there are no inputs to choose from; give the numbers x of one.")
    index, last = asked.get("index"), session.x.shape[0] - 1
    if type(index) is not int or not 0 <= index <= last:
        raise InputError(f"index must be a whole number from 0 to {last}, got {index!r:.40}.")
    label = None if session.label is None else int(session.label[index])
    return Question(session.x[index : index + 1], eps, attack, label)


def _point(session: Session, given: object) -> Tensor:
    """The numbers of an input, which must lie in the picture."""
    n = session.network.n_in
    if not session.free or not isinstance(given, list) or len(given) != n:
        raise InputError(f"x must be a list of {n} numbers, and is only for networks with one or two inputs.")
    x = [_number("x", value) for value in given]
    for value, (low, high) in zip(x, session.span, strict=True):
        if not low <= value <= high:
            raise InputError(f"x must lie between {low!r} and {high!r}, got {value!r}.")
    return torch.tensor([x], dtype=torch.float64)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MAX:  # NaN fails
        raise InputError(f"{name} must be a finite number, got {value!r:.40}.")
    return float(value)
