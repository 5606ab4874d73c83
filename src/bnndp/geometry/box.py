"""Regions of inputs: batches of boxes, possibly cut down to a ball in the l1 or l2 norm around a point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.maths.rounding import TINY, UNIT, gamma

_SMALLEST = 2.0**-1074  # of the positive float64 numbers


@dataclass(frozen=True, slots=True)
class Ball:
    """The points within ``radius`` of ``centre`` in the l1 (``norm=1``) or l2 (``norm=2``) norm."""

    centre: Tensor  # (batch, n)
    radius: Tensor  # (batch,)
    norm: float


@dataclass(frozen=True, slots=True)
class Box:
    """A batch of closed boxes ``{x : lower <= x <= upper}``, or of their intersections with balls.

    Args:
        lower: Lower ends, ``(batch, n)``, or ``(n,)`` for a single box.
        upper: Upper ends, of the same shape.
        within: If given, each region is the part of the box that lies in this ball. Affine bounds are then minimised by
            the better of the box and the dual norm. :meth:`ball` sets it.

    Examples:
        >>> Box([[0.0, -1.0]], [[1.0, 1.0]])
        Box(batch=1, inputs=2)
    """

    lower: Tensor  # (batch, n), float64
    upper: Tensor  # (batch, n), float64
    within: Ball | None = None
    _centre: Tensor | None = field(default=None, init=False, repr=False, compare=False)  # once asked for
    _half: Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lower, upper = _matrix("lower", self.lower), _matrix("upper", self.upper)
        if lower.shape != upper.shape:
            raise InputError(
                f"Box ends differ in shape: lower {tuple(lower.shape)}, upper {tuple(upper.shape)}; give both the same."
            )
        bad = ~(lower <= upper) | ~torch.isfinite(lower) | ~torch.isfinite(upper)  # NaN fails the comparison
        if bad.any():
            b, i = bad.nonzero()[0].tolist()
            raise InputError(
                f"Box needs finite lower <= upper; box {b}, input {i} has lower={lower[b, i].item()}, "
                f"upper={upper[b, i].item()} ({int(bad.sum())} bad of {bad.numel()})."
            )
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @classmethod
    def ball(
        cls,
        x: Tensor | Sequence[float],  # (n,) or (batch, n)
        eps: float | Tensor,  # scalar or (batch,)
        *,
        domain: tuple[float, float] | None = None,
        norm: float = math.inf,
    ) -> Box:
        """Create the balls of radius ``eps`` around points.

        Args:
            x: The centres, ``(n,)`` or ``(batch, n)``.
            eps: The radius: a scalar, or ``(batch,)``.
            domain: Smallest and largest value that an input may take; the balls are cut to it.
            norm: 1, 2 or ``math.inf``.

        Returns:
            The regions, rounded outward.

        Examples:
            >>> Box.ball([0.5, 0.1], 0.2, domain=(0, 1)).lower
            tensor([[0.3000, 0.0000]], dtype=torch.float64)
        """
        centre = _matrix("x", x)
        radius = torch.as_tensor(eps, dtype=torch.float64, device=centre.device)
        if radius.ndim > 1 or radius.numel() not in (1, centre.shape[0]):
            raise InputError(
                f"eps must be one number or one for each of {centre.shape[0]} points, got {tuple(radius.shape)}."
            )
        radius = radius.expand(centre.shape[0])
        if not bool((radius >= 0).all() & torch.isfinite(radius).all()):
            raise InputError(f"eps must be finite and >= 0, got {eps!r}.")
        if norm not in (1, 2, math.inf):
            raise InputError(f"norm must be 1, 2 or inf, got {norm!r}.")
        # x - eps and x + eps are rounded; one step outward keeps every real point of the ball inside.
        lower = _outward(centre - radius[:, None], radius, -math.inf)
        upper = _outward(centre + radius[:, None], radius, math.inf)
        if domain is not None:
            lower, upper = _cut(lower, upper, centre, domain)
        within = None if norm == math.inf else Ball(centre, radius, float(norm))
        return cls(lower, upper, within)

    @property
    def batch(self) -> int:
        """Number of boxes."""
        return self.lower.shape[0]

    @property
    def n(self) -> int:
        """Number of inputs."""
        return self.lower.shape[1]

    @property
    def centre(self) -> Tensor:
        """Midpoints, inside the boxes: (batch, n)."""
        if self._centre is None:
            middle = (0.5 * self.lower + 0.5 * self.upper).clamp(self.lower, self.upper)
            object.__setattr__(self, "_centre", middle)
            return middle
        return self._centre

    @property
    def half(self) -> Tensor:
        """Half-widths e such that the box is in [centre - e, centre + e]: (batch, n)."""
        if self._half is None:
            centre = self.centre
            half = torch.maximum(self.upper - centre, centre - self.lower) * (1 + 4 * UNIT)
            object.__setattr__(self, "_half", half)
            return half
        return self._half

    @property
    def magnitude(self) -> Tensor:
        """``max |x|`` in each coordinate: (batch, n)."""
        return torch.maximum(self.lower.abs(), self.upper.abs())

    def __getitem__(self, index: slice | Tensor) -> Box:
        """The boxes at ``index`` of the batch."""
        ball, part = self.within, object.__new__(Box)  # what is in a box that was checked needs no check
        within = None if ball is None else Ball(ball.centre[index], ball.radius[index], ball.norm)
        ends = (("lower", self.lower[index]), ("upper", self.upper[index]), ("within", within))
        for name, value in (*ends, ("_centre", None), ("_half", None)):
            object.__setattr__(part, name, value)
        return part

    def to(self, device: torch.device | str) -> Box:
        """The same boxes with their tensors on ``device``."""
        ball = self.within
        within = None if ball is None else Ball(ball.centre.to(device), ball.radius.to(device), ball.norm)
        return Box(self.lower.to(device), self.upper.to(device), within)

    def minimum(self, matrix: Tensor, offset: Tensor) -> Tensor:
        """Lower bound of ``matrix @ x + offset`` over the region, rounded down: (batch, rows).

        ``matrix`` is (batch, rows, n), or (rows, n) for all boxes; ``offset`` (batch, rows) or (rows,). On the box the
        minimum is exact up to rounding; on a ball it is ``matrix @ centre - radius * dual norm of the row``, and the
        larger of the two bounds is taken.
        """
        return self.range(matrix, offset)[0]

    def maximum(self, matrix: Tensor, offset: Tensor) -> Tensor:
        """Upper bound of ``matrix @ x + offset`` over the region, rounded up: (batch, rows)."""
        return self.range(matrix, offset)[1]

    def range(self, matrix: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        """Both, from the same products: (batch, rows) each."""
        centre, half = self.centre, self.half
        lost = gamma(2 * self.n + 8) * (centre.abs() + half)  # of two sums of n products and their difference
        middle, reach = apply_rows(matrix, centre), apply_rows(matrix.abs(), half + lost)
        low, high = middle - reach + offset, middle + reach + offset
        if self.within is not None:
            ball = apply_rows(matrix.abs(), self.within.centre.abs() + self.within.radius[:, None])
            middle, reach = self._ball_range(matrix)
            lost = gamma(2 * self.n + 8) * ball
            low = torch.maximum(low, middle - reach + offset - lost)
            high = torch.minimum(high, middle + reach + offset + lost)
        lost = gamma(2 * self.n + 8) * offset.abs() + TINY
        return low - lost, high + lost

    def contains(self, x: Tensor) -> Tensor:  # x (..., batch, n)
        """Whether each point provably lies in its region: (..., batch).

        There is no tolerance: on the surface of a ball, within rounding, the answer is no.
        """
        inside = ((x >= self.lower) & (x <= self.upper)).all(-1)
        if self.within is not None:
            # In units of the radius nothing that matters underflows; a radius of zero leaves the centre only.
            step = (x - self.within.centre) / self.within.radius[:, None].clamp_min(_SMALLEST)
            distance = torch.linalg.vector_norm(step, ord=self.within.norm, dim=-1)
            inside &= distance * (1 + gamma(self.n + 8)) <= 1
        return inside

    def project(self, x: Tensor) -> Tensor:  # x (..., batch, n)
        """A point of the region near ``x`` (its projection for a box; pulled to the centre for a ball).

        For a ball this needs its centre in the box; for a part from :meth:`split` ask :meth:`contains` afterwards.
        """
        x = x.clamp(self.lower, self.upper)
        if self.within is None:
            return x
        ball, norm = self.within, self.within.norm
        radius = ball.radius[:, None].clamp_min(_SMALLEST)
        step = x - ball.centre
        length = torch.linalg.vector_norm(step / radius, ord=norm, dim=-1, keepdim=True)
        blur = torch.linalg.vector_norm(self.magnitude / radius, ord=norm, dim=-1, keepdim=True)
        reach = (1 - 4 * gamma(self.n + 8) - 4 * UNIT * blur).clamp_min(0)  # the result is rounded, too
        return (ball.centre + (reach / length.clamp_min(TINY)).clamp_max(1) * step).clamp(self.lower, self.upper)

    def moved(self, step: Tensor) -> Box:  # step (n,)
        """A region that holds every ``x - step`` of this one: the ends are rounded outward, a ball grows by as much."""
        lower = torch.nextafter(self.lower - step, torch.full_like(self.lower, -math.inf))
        upper = torch.nextafter(self.upper - step, torch.full_like(self.upper, math.inf))
        if self.within is None:
            return Box(lower, upper)
        centre = self.within.centre - step
        off = torch.linalg.vector_norm(UNIT * centre, ord=self.within.norm, dim=-1)  # of the centre, by rounding
        radius = (self.within.radius + off) * (1 + gamma(self.n + 8)) + TINY
        return Box(lower, upper, Ball(centre, radius, self.within.norm))

    def split(self, axis: Tensor) -> Box:  # axis (batch,) of integers
        """Both halves of every box, cut across the input ``axis``; those of box i are at i and at i + batch."""
        rows = torch.arange(self.batch, device=self.lower.device)
        middle = self.centre[rows, axis]
        upper, lower = self.upper.clone(), self.lower.clone()
        upper[rows, axis] = middle
        lower[rows, axis] = middle
        ball = self.within
        within = None
        if ball is not None:
            within = Ball(ball.centre.repeat(2, 1), ball.radius.repeat(2), ball.norm)
        return Box(torch.cat([self.lower, lower]), torch.cat([upper, self.upper]), within)

    def __repr__(self) -> str:
        """Size only: the ends are in ``lower`` and ``upper``."""
        return f"Box(batch={self.batch}, inputs={self.n})"

    def _ball_range(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Values at the centre of the ball, and how far they move within it: (batch, rows) each."""
        ball = self.within
        if ball is None:
            raise InputError("the region is a plain box and has no ball to minimise over; this is a bug in the caller.")
        dual = {1.0: math.inf, 2.0: 2.0}[ball.norm]
        unit = matrix.abs().amax(-1, keepdim=True).clamp_min(_SMALLEST)  # squares of the entries may underflow
        size = torch.linalg.vector_norm(matrix / unit, ord=dual, dim=-1) * unit[..., 0]
        return apply_rows(matrix, ball.centre), ball.radius[:, None] * size


def apply_rows(matrix: Tensor, x: Tensor) -> Tensor:
    """``matrix @ x`` for x (batch, n) and a matrix (batch, rows, n) of each box or (rows, n) of all: (batch, rows).

    A row from the left is several times as fast as a column from the right.
    """
    return x @ matrix.mT if matrix.ndim == 2 else (x[..., None, :] @ matrix.mT)[..., 0, :]


def _matrix(name: str, value: Tensor | Sequence[float]) -> Tensor:
    try:
        if torch.as_tensor(value).is_complex():
            raise TypeError("complex numbers")
        tensor = torch.as_tensor(value, dtype=torch.float64).clone()  # no later change of ``value`` may reach the box
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} cannot be read as numbers of shape (inputs,) or (batch, inputs): {error}") from error
    if tensor.ndim == 1:
        tensor = tensor[None]
    if tensor.ndim != 2 or tensor.shape[1] == 0:
        raise InputError(f"{name} must have shape (inputs,) or (batch, inputs), got {tuple(tensor.shape)}.")
    return tensor


def _outward(end: Tensor, radius: Tensor, direction: float) -> Tensor:
    """One step further out, unless the radius is zero (an ``eps`` below the spacing of floats is not zero)."""
    moved = torch.nextafter(end, torch.full_like(end, direction))
    return torch.where(radius[:, None] == 0, end, moved)


def _cut(lower: Tensor, upper: Tensor, centre: Tensor, domain: tuple[float, float]) -> tuple[Tensor, Tensor]:
    low, high = (float(end) for end in domain)
    if not low <= high:
        raise InputError(f"domain must be (low, high) with low <= high, got {domain!r}.")
    outside = ~((centre >= low) & (centre <= high))
    if outside.any():
        b, i = outside.nonzero()[0].tolist()
        raise InputError(
            f"point {b} lies outside the domain [{low}, {high}]: input {i} is {centre[b, i].item()} "
            f"({int(outside.sum())} of {outside.numel()} values); rescale the inputs or give another domain."
        )
    return lower.clamp_min(low), upper.clamp_max(high)
