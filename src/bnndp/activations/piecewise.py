r"""Any Lipschitz function as an activation, by a piecewise affine surrogate (remark ``remark:extGenAct``).

The surrogate S joins the values at the knots by lines and is flat beyond them. With :math:`|\varphi'|\le L` and a
piece of length h whose slope is s, :math:`|\varphi-S|\le\tfrac{L^2-s^2}{2L}h\le\tfrac12Lh` on it (the lines of slope
:math:`\pm L` through both ends meet there), at most :math:`\tfrac18Ch^2` if :math:`|\varphi''|\le C`, and at most
:math:`L\,(|x|-\text{reach})` more beyond the knots. So

.. math:: |\mathbb E\varphi(X)-\mathbb ES(X)|\le\delta+L\,(g(m-k_n,r)+g(k_1-m,r)) .

S is a sum of shifted ReLUs. With :math:`g(x,r)=[x]_++r\gamma(|x|/r)` their lines add up to S(m), and only the tails,
weighted by the jumps of the slope, are left: :math:`\mathbb ES(X)=S(m)+r\sum_i\Delta s_i\,\gamma(|m-k_i|/r)`.
Every bound of this module holds for the function itself, not only for its surrogate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.activations.activation import UNKNOWN, Central, Elementwise, Shape
from bnndp.activations.moments import central_of, lipschitz_central, perturbed
from bnndp.activations.settings import finite, vector
from bnndp.errors import InputError
from bnndp.maths.gaussian_rule import SMALLEST, in_chunks
from bnndp.maths.normal import cdf, pdf, tail
from bnndp.maths.rectified import expected_relu, moments, ratio
from bnndp.maths.rounding import ELEMENTARY, TINY, UNIT, UP

Function = Callable[[Tensor], Tensor]

_ROUNDED = (3.0, 10.0, 50.0, 200.0)  # at least (2a)^k (1 + a^2) phi(a), k = 1 to 4: rounding of one piece, see _raw


@dataclass(frozen=True, slots=True, eq=False)
class PiecewiseAffine(Elementwise):
    """A user-defined activation, known by its values at knots, a Lipschitz constant and an interpolation error.

    Use :meth:`of` to create one from a function.

    Args:
        knots: Where the function was evaluated, increasing, ``(k,)``.
        values: The values at the knots, ``(k,)``.
        lipschitz: A Lipschitz constant of the function on the whole line.
        inner_error: An upper bound of the error of linear interpolation between the first and the last knot.
        curvature: An upper bound of the absolute second derivative, if known.
        function: The function itself; if None, the interpolation is used in its place.

    Examples:
        >>> PiecewiseAffine.of(torch.sin, 1.0, curvature=1.0).kind
        'piecewise_affine'
    """

    kind: ClassVar[str] = "piecewise_affine"
    tensors: ClassVar[tuple[str, ...]] = ("knots", "values")
    settings: ClassVar[tuple[str, ...]] = ("lipschitz", "inner_error", "curvature")

    knots: Tensor  # (k,)
    values: Tensor  # (k,)
    lipschitz: float
    inner_error: float
    curvature: float | None = None
    function: Function | None = None

    def __post_init__(self) -> None:
        for field in self.tensors:
            vector(self, field)
        if len(self.knots) < 2 or len(self.values) != len(self.knots):
            raise InputError(
                f"knots and values must have one length >= 2, got {len(self.knots)} and {len(self.values)}."
            )
        finite(self, "lipschitz", least=0.0)
        if self.lipschitz == 0:
            raise InputError("lipschitz of PiecewiseAffine must be positive, got 0; use 1e-9 for a constant.")
        finite(self, "inner_error", least=0.0)
        if self.curvature is not None:
            finite(self, "curvature", least=0.0)
        gap = self.knots.diff()
        if not bool((gap > 0).all()):
            i = int((~(gap > 0)).nonzero()[0, 0])
            raise InputError(
                f"knots must increase; knots[{i}]={self.knots[i].item()}, knots[{i + 1}]={self.knots[i + 1].item()}."
            )
        self._check_slopes(gap)

    @classmethod
    def of(
        cls,
        function: Function,
        lipschitz: float,
        *,
        reach: float = 20.0,
        pieces: int = 2000,
        curvature: float | None = None,
    ) -> PiecewiseAffine:
        """Create an activation from a function by evaluating it at equidistant knots.

        The constants are promises of the caller; they are checked at the knots and midpoints only. Computed values are
        taken to be within 2^-44 of their magnitude.

        Args:
            function: An elementwise function of tensors.
            lipschitz: A Lipschitz constant of the function on the whole line.
            reach: The knots cover [-reach, reach].
            pieces: Number of intervals between the knots.
            curvature: An upper bound of the absolute second derivative, if known.

        Returns:
            The activation.
        """
        if not (isinstance(pieces, int) and 1 <= pieces <= 1_000_000):
            raise InputError(f"pieces must be an integer from 1 to 1000000, got {pieces!r}.")
        if not (isinstance(reach, int | float) and 0 < reach <= 1e6):
            raise InputError(f"reach must be positive and at most 1e6, got {reach!r}.")
        if not (isinstance(lipschitz, int | float) and lipschitz > 0 and math.isfinite(lipschitz)):
            raise InputError(f"lipschitz must be a positive number, got {lipschitz!r}.")
        if curvature is not None and not (isinstance(curvature, int | float) and 0 <= curvature < math.inf):
            raise InputError(f"curvature must be None or a number >= 0, got {curvature!r}.")
        knots = torch.linspace(-reach, reach, pieces + 1, dtype=torch.float64)  # (k,)
        values = _sample(function, knots)
        gap = knots.diff()  # (k - 1,)
        slopes = values.diff() / gap
        inner = ((lipschitz**2 - slopes**2).clamp_min(0) * gap / (2 * lipschitz)).max().item()
        if curvature is not None:
            inner = min(inner, curvature * gap.max().item() ** 2 / 8)
        inner = inner * (1 + 1e-9) + 4 * ELEMENTARY * values.abs().max().item()
        found = cls(knots, values, lipschitz, inner, curvature, function)
        middle = 0.5 * (knots[:-1] + knots[1:])
        off = (_sample(function, middle) - found.surrogate(middle)).abs()
        if not bool((off <= inner).all()):
            i = int(off.argmax())
            raise InputError(
                f"the function breaks its constants (lipschitz={lipschitz}, curvature={curvature}): "
                f"at x={middle[i].item()} it is {off[i].item():.3g} off the line between its neighbours, "
                f"more than the allowed {inner:.3g}. Give larger constants."
            )
        return found

    @property
    def shape(self) -> Shape:
        """What the Lipschitz constant and the bound of the curvature say; nothing is read off the knots."""
        bend = math.inf if self.curvature is None else self.curvature
        slopes = (-self.lipschitz, self.lipschitz)  # ``slope`` is that of the surrogate
        return Shape(slopes, math.inf, math.inf, bend, bend, slope_known=False)

    def to(self, device: torch.device | str) -> PiecewiseAffine:
        """The same function with its tensors on ``device``."""
        return replace(self, knots=self.knots.to(device), values=self.values.to(device))

    @property
    def square(self) -> Shape:
        """Nothing is known."""
        return UNKNOWN

    def __call__(self, x: Tensor) -> Tensor:
        """The function itself, or its surrogate if there is none."""
        return self.surrogate(x) if self.function is None else self.function(x)

    def surrogate(self, x: Tensor) -> Tensor:
        """S(x): lines between the knots, flat beyond."""
        inside = x.clamp(self.knots[0].item(), self.knots[-1].item())
        i = (torch.searchsorted(self.knots, inside.detach().contiguous(), right=True) - 1).clamp(0, len(self.knots) - 2)
        return self.values[i] + self._slopes()[i] * (inside - self.knots[i])

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        """The mean of the surrogate; where r = 0 the function itself."""
        jumps = self._jumps()

        def total(m: Tensor, r: Tensor) -> Tensor:
            return self.surrogate(m) + self._tails(m, r) @ jumps

        found = in_chunks(total, m.flatten(), r.flatten(), len(self.knots)).reshape(m.shape)
        return torch.where(r == 0, self(m), found)

    def error(self, m: Tensor, r: Tensor) -> Tensor:
        """What lines miss, what is beyond the knots, and rounding of the sum of tails and of the slopes in it."""
        size = self.values.abs().max().item()
        # A tail is off by 16 units of (1 + t^2) phi(t) r <= 0.76 r exp(-t^2 / 4), a slope by 3 units of itself.
        steepest = self._slopes().abs().max()
        weight = (64 + 4 * len(self.knots)) * UNIT * self._jumps().abs() + 8 * UNIT * steepest  # (k,)

        def total(m: Tensor, r: Tensor) -> Tensor:
            t = ratio(m[:, None] - self.knots, r[:, None])  # (n, k)
            return (0.4 * r) * (torch.exp(-0.25 * t * t) @ weight)

        rounding = in_chunks(total, m.flatten(), r.flatten(), len(self.knots)).reshape(m.shape)
        beyond = expected_relu(m - self.knots[-1], r) + expected_relu(self.knots[0] - m, r)
        return (self.inner_error + self.lipschitz * beyond + rounding + 32 * UNIT * size) * UP + TINY

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        """The slopes of the pieces, weighted by their probabilities."""
        jumps = self._jumps()
        flat = in_chunks(
            lambda m, r: cdf(ratio(m[:, None] - self.knots, r[:, None])) @ jumps,
            m.flatten(),
            r.flatten(),
            len(self.knots),
        )
        return flat.reshape(m.shape)

    def central(self, m: Tensor, r: Tensor) -> Central:
        """Those of the surrogate in closed form, widened by what the function may differ from it (``perturbed``)."""
        flat_m, flat_r = m.flatten(), r.flatten().clamp_min(SMALLEST)
        raw = in_chunks(self._raw, flat_m, flat_r, 4 * len(self.knots)).reshape(4, *m.shape)
        known = lipschitz_central(r + 0 * m, self.lipschitz)
        units = lipschitz_central(torch.ones_like(r), self.lipschitz)
        errors = [
            torch.full_like(r, len(self.knots) * 256 * UNIT * c * self.lipschitz ** (k + 1))
            for k, c in enumerate(_ROUNDED)
        ]
        safe = r.clamp_min(SMALLEST)
        size = self.values.abs().max().item()
        rounded = 16 * UNIT * (size + 10 * self.lipschitz * r)  # of the lines in _raw
        beyond = moments(m - self.knots[-1], r).fourth ** 0.25 + moments(self.knots[0] - m, r).fourth ** 0.25
        off = (self.inner_error + self.lipschitz * beyond + rounded) / safe * (1 + 1e-4) + TINY
        return perturbed(central_of(raw.unbind(0), errors, torch.ones_like(r), units), off, r, known)

    def _slopes(self) -> Tensor:
        return self.values.diff() / self.knots.diff()  # (k - 1,)

    def _jumps(self) -> Tensor:
        """Jumps of the slope at the knots: (k,)."""
        slopes, zero = self._slopes(), self.values.new_zeros(1)
        return torch.cat([slopes, zero]) - torch.cat([zero, slopes])

    def _tails(self, m: Tensor, r: Tensor) -> Tensor:  # (n,) each
        r"""The tails :math:`r\gamma(t)=r(\varphi(t)-tQ(t))`, :math:`t=|m-k|/r`: (n, k); absolute digits are enough."""
        t = ratio(m[:, None] - self.knots, r[:, None]).abs()
        return r[:, None] * (pdf(t) - t * tail(t))

    def _raw(self, m: Tensor, r: Tensor) -> Tensor:  # (n,) each, r > 0
        r"""Moments of :math:`(S(m+r\xi)-S(m))/r`: (4, n), from truncated moments of xi on each piece.

        With :math:`\Delta` over a piece, :math:`P_0=\Delta\Phi`, :math:`P_1=-\Delta\varphi` and
        :math:`P_j=(j-1)P_{j-2}-\Delta(a^{j-1}\varphi)`.
        """
        a = ratio(self.knots - m[:, None], r[:, None])  # (n, k)
        start = self.surrogate(m)[:, None]
        slopes = self._slopes()
        offset = (self.values[:-1] + slopes * (m[:, None] - self.knots[:-1]) - start) / r[:, None]  # (n, k - 1)
        density = pdf(a)
        right = a[:, :-1] > 0  # both ends on the right: differences of upper tails
        lower, upper = cdf(a), cdf(-a)
        truncated = [torch.where(right, upper[:, :-1] - upper[:, 1:], lower[:, 1:] - lower[:, :-1]), -density.diff()]
        power = density
        for j in (2, 3, 4):
            power = power * a
            truncated.append((j - 1) * truncated[j - 2] - power.diff())
        low, high = (self.values[0] - start[:, 0]) / r, (self.values[-1] - start[:, 0]) / r  # beyond the knots
        # Where a piece has no mass its line may be far off; the value on it is at most L |xi|.
        mass = truncated[0] > 0
        offset, slope = torch.where(mass, offset, 0.0), torch.where(mass, slopes, 0.0)
        found = []
        for k in range(1, 5):
            total = torch.where(lower[:, 0] > 0, low, 0.0) ** k * lower[:, 0]
            total = total + torch.where(upper[:, -1] > 0, high, 0.0) ** k * upper[:, -1]
            for j in range(k + 1):
                total = total + math.comb(k, j) * (slope**j * offset ** (k - j) * truncated[j]).sum(-1)
            found.append(total)
        return torch.stack(found)

    def _check_slopes(self, gap: Tensor) -> None:
        """Refuse values that no function with these constants has."""
        slack = 8 * ELEMENTARY * self.values.abs().max()
        rise = self.values.diff().abs()
        if bool((rise > self.lipschitz * gap * (1 + 1e-9) + slack).any()):
            i = int((rise / gap).argmax())
            raise InputError(
                f"values break lipschitz={self.lipschitz}: between the knots {self.knots[i].item()} and "
                f"{self.knots[i + 1].item()} the slope is {(rise / gap)[i].item():.6g}. Give a larger constant."
            )


def _sample(function: Function, x: Tensor) -> Tensor:  # (k,)
    with torch.no_grad():
        values = function(x)
    if not isinstance(values, Tensor) or values.shape != x.shape or values.dtype != torch.float64:
        what = f"{tuple(values.shape)} of {values.dtype}" if isinstance(values, Tensor) else type(values).__name__
        raise InputError(
            f"the function must map a float64 tensor to one of the same shape {tuple(x.shape)}, got {what}."
        )
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        i = int(bad.nonzero()[0, 0])
        raise InputError(f"the function is not finite at x={x[i].item()}: {values[i].item()}.")
    return values
