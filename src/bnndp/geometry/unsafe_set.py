r"""Unsafe outputs as unions of polyhedra: the constraints of verification, in disjunctive normal form.

An input x with output y is unsafe if, for one conjunct, :math:`a\cdot y+c\cdot x\le b` for all its rows (a, c, b).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.geometry.box import Box

__all__ = ["Region", "UnsafeSet"]


@dataclass(frozen=True, slots=True, eq=False)
class UnsafeSet:
    """A union of polyhedra of outputs, and of inputs where their coefficients are not zero.

    Args:
        rows: Coefficients of the outputs, ``(rows, outputs)``.
        bound: What the rows are at most, ``(rows,)``; where the number meant is no float64, it is rounded up.
        conjunct: The polyhedron that each row belongs to, ``(rows,)`` of integers 0, 1, ..., each at least once.
        inputs: Coefficients of the inputs, ``(rows, n)``; None: there are none.
        surely: The bound rounded down, ``(rows,)``; None: the bound itself.

    Examples:
        >>> UnsafeSet([[1.0, -1.0]], [0.0], [0])  # y_0 <= y_1
        UnsafeSet(conjuncts=1, rows=1)
    """

    rows: Tensor  # (rows, outputs)
    bound: Tensor  # (rows,)
    conjunct: Tensor  # (rows,)
    inputs: Tensor | None = None  # (rows, n)
    surely: Tensor | None = None  # (rows,)

    def __post_init__(self) -> None:
        for name in ("rows", "bound", "inputs", "surely"):
            value = getattr(self, name)
            if value is not None:
                tensor = torch.as_tensor(value, dtype=torch.float64)
                if not bool(tensor.isfinite().all()):
                    raise InputError(f"{name} of an unsafe set must be finite numbers.")
                object.__setattr__(self, name, tensor)
        object.__setattr__(self, "conjunct", torch.as_tensor(self.conjunct, dtype=torch.int64))
        count = self.rows.shape[0] if self.rows.ndim == 2 else 0
        found = tuple(self.bound.shape), tuple(self.conjunct.shape)
        if not count or found != ((count,), (count,)):
            raise InputError(f"rows must be (rows, outputs) with one bound and conjunct each, got {found}.")
        given = self.conjunct.unique()
        if not torch.equal(given, torch.arange(len(given), device=given.device)):
            raise InputError(f"conjuncts must be numbered 0, 1, ..., got {given.tolist()[:8]}.")

    def __repr__(self) -> str:
        """Sizes only."""
        return f"UnsafeSet(conjuncts={self.count}, rows={self.rows.shape[0]})"

    @property
    def count(self) -> int:
        """Number of polyhedra."""
        return int(self.conjunct.amax()) + 1

    @property
    def certain(self) -> Tensor:
        """Bounds that are not above what is meant: (rows,)."""
        return self.bound if self.surely is None else self.surely

    def largest(self, values: Tensor) -> Tensor:  # (batch, rows) -> (batch, conjuncts)
        """The largest value among the rows of each polyhedron."""
        start = values.new_full((values.shape[0], self.count), -torch.inf)
        return start.scatter_reduce(1, self.conjunct.expand_as(values), values, "amax")

    def excess(self, y: Tensor, x: Tensor) -> Tensor:  # (points, outputs), (points, n) -> (points, conjuncts)
        """How far points are from each polyhedron: not positive in it, up to rounding; differentiable."""
        values = y @ self.rows.mT - self.bound
        return self.largest(values if self.inputs is None else values + x @ self.inputs.mT)

    def to(self, device: torch.device | str) -> UnsafeSet:
        """The same with its tensors on ``device``."""
        moved = (None if each is None else each.to(device) for each in (self.inputs, self.surely))
        return UnsafeSet(self.rows.to(device), self.bound.to(device), self.conjunct.to(device), *moved)


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A box of inputs, and which outputs are unsafe on it.

    Args:
        box: One box, which holds all inputs that are meant.
        unsafe: The outputs that are unsafe there.
        inner: The box of the float64 inputs that are meant, where it is smaller; None: the box itself. An input that is
            fixed at a number which is no float64 has the ends of ``box``.
    """

    box: Box
    unsafe: UnsafeSet
    inner: Box | None = None

    def __post_init__(self) -> None:
        if self.box.batch != 1:
            raise InputError(f"a region has one box, got {self.box.batch}.")
        if any(each is not None and each.within is not None for each in (self.box, self.inner)):
            raise InputError("a region is a box; balls in the norms 1 and 2 are not supported, take the box around it.")

    def to(self, device: torch.device | str) -> Region:
        """The same with its tensors on ``device``."""
        inner = None if self.inner is None else self.inner.to(device)
        return Region(self.box.to(device), self.unsafe.to(device), inner)

    @property
    def within(self) -> Box:
        """Where inputs are searched."""
        return self.box if self.inner is None else self.inner
