"""The range of the mean output from inside: the smallest and largest value that an attack finds in each box.

What a certificate claims for all inputs is compared with what some inputs do. Every value here is the mean output at a
concrete input of the region, so ``certified lower <= inside lower <= inside upper <= certified upper`` up to ``error``.
The search evaluates centre, vertices, face centres and Sobol points, then climbs from the best of them in all boxes,
outputs, directions and restarts at once. Where the mean is sampled (two or more random hidden layers) the inputs are
chosen with one set of noise and valued with another, so the choice does not flatter the value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.attack.noise import Noise
from bnndp.attack.sampling import ascent_direction, draw_noise, estimate, is_exact
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.maths.sobol import MOST_DIMENSIONS, sobol_points
from bnndp.network import Posterior

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Value (points, batch, 1) and gradient (points, batch, n) at points (points, batch, n) of a batch of regions."""

CONFIDENCE = 4.0
"""Standard errors in ``Inside.error`` (a t law with 31 degrees of freedom: 99.96 % for each value)."""

_MEMORY = 2**28  # bytes for the candidates of the boxes attacked at a time
_ALL_VERTICES = 6  # inputs up to which every vertex is tried: 64 points
_SHORT_STEP = 0.1  # first step along a gradient; those towards a vertex start with the whole way


@dataclass(frozen=True, slots=True)
class Inside:
    """The smallest and largest means found in each box, and the inputs at which they are attained.

    Both errors are zero where the mean is exact: with at most one hidden layer, or without variance below the last
    hidden layer. Rounding is not counted.

    Attributes:
        lower: The smallest means found, ``(batch, outputs)``.
        upper: The largest means found, ``(batch, outputs)``.
        x_lower: The inputs of the smallest means, ``(batch, outputs, n)``.
        x_upper: The inputs of the largest means, ``(batch, outputs, n)``.
        error: Half-width of the confidence interval of ``lower`` and of ``upper``, ``(batch, outputs)``.
        width_error: The same for ``upper - lower``, ``(batch, outputs)``; much smaller, as both share their noise.

    Examples:
        >>> from bnndp.layers import Linear
        >>> from bnndp.network import BayesianNetwork
        >>> network = BayesianNetwork((Linear.fixed([[2.0]]),))
        >>> inside_range(network, Box([[0.0]], [[1.0]])).width
        tensor([[2.]], dtype=torch.float64)
    """

    lower: Tensor  # (batch, outputs)
    upper: Tensor  # (batch, outputs)
    x_lower: Tensor  # (batch, outputs, n)
    x_upper: Tensor  # (batch, outputs, n)
    error: Tensor  # (batch, outputs)
    width_error: Tensor  # (batch, outputs)

    @property
    def width(self) -> Tensor:
        """The range found: a lower estimate of the true range of the mean: (batch, outputs)."""
        return self.upper - self.lower


def inside_range(
    network: Posterior,
    box: Box,
    *,
    seed: int = 0,
    samples: int = 4096,
    restarts: int = 8,
    steps: int = 60,
) -> Inside:
    """Find the smallest and the largest mean of every output in each box by an attack.

    The true range of the mean contains what is found, up to ``error``. The same arguments give the same answer. Large
    batches are processed in chunks that fit into memory.

    Args:
        network: The network or ensemble.
        box: The regions of inputs.
        seed: Seed of the search and of the draws.
        samples: Draws with which the result is evaluated; the search uses fewer.
        restarts: Number of starting points of the search.
        steps: Number of steps from each of them.

    Returns:
        The means found, and their inputs.

    Examples:
        >>> from bnndp.layers import Linear
        >>> from bnndp.network import BayesianNetwork
        >>> found = inside_range(BayesianNetwork((Linear.fixed([[2.0]]),)), Box([[0.0]], [[1.0]]))
        >>> found.lower.item(), found.upper.item()
        (0.0, 2.0)
    """
    if network.n_in != box.n:
        raise InputError(f"the network takes {network.n_in} inputs, but the box has {box.n}; give boxes of its inputs.")
    for name, given in (("samples", samples), ("restarts", restarts), ("steps", steps)):
        if given < 1:
            raise InputError(f"{name} must be at least 1, got {given}.")
    points = 1024 + 8 * network.n_out * restarts
    size = max(1, _MEMORY // (8 * points * max(box.n, network.n_out)))
    search = draw_noise(network, max(64, samples // 32), seed=3 * seed, replicates=1)
    choose = draw_noise(network, max(64, samples // 4), seed=3 * seed + 1, replicates=1)
    value = draw_noise(network, samples, seed=3 * seed + 2)
    chunks = []
    for start in range(0, box.batch, size):
        part = box[start : start + size]
        x = _search(network, part, search, seed=seed, restarts=restarts, steps=steps)
        chunks.append(_value(network, _choose(network, x, choose), value))
    return Inside(*(torch.cat(fields) for fields in zip(*chunks, strict=True)))


def candidates(box: Box, *, seed: int = 0, vertices: int = 64, points: int | None = None) -> Tensor:
    """Inputs of each box to start from, centre first: (candidates, batch, n).

    All vertices for up to six inputs, else ``vertices`` random ones; the centres of the faces (or, of a ball, the
    points on the axes) for up to 32 inputs; scrambled Sobol points, 256 for up to four inputs and 64 beyond.
    """
    count = points if points is not None else (256 if box.n <= 4 else 64)
    generator = torch.Generator().manual_seed(seed)
    units = [torch.full((1, box.n), 0.5, dtype=torch.float64)]
    if box.n <= _ALL_VERTICES:
        units.append(torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * box.n).reshape(-1, box.n))
    else:
        units.append(torch.randint(2, (vertices, box.n), generator=generator).to(torch.float64))
    if box.n <= 32:
        axes = 0.5 * torch.eye(box.n, dtype=torch.float64)
        units.append(torch.cat([0.5 - axes, 0.5 + axes]))
    if count > 0 and box.n <= MOST_DIMENSIONS:
        units.append(sobol_points(box.n, count, seed))
    elif count > 0:
        units.append(torch.rand(count, box.n, generator=generator, dtype=torch.float64))
    share = torch.cat(units).to(box.lower.device)[:, None]
    # Written so that a share of 0 or 1 is exactly an end of the box.
    return box.project((1 - share) * box.lower + share * box.upper)


def _search(network: Posterior, box: Box, noise: Noise, *, seed: int, restarts: int, steps: int) -> Tensor:
    """Best inputs by the search noise, direction 0 down and 1 up: (2, outputs, restarts, batch, n)."""
    starts = candidates(box, seed=seed)
    values = estimate(network, starts, noise).mean.permute(2, 0, 1)  # (outputs, candidates, batch)
    sign = torch.tensor([-1.0, 1.0], dtype=torch.float64, device=starts.device)
    scores = sign[:, None, None, None] * values
    chosen = _choose_starts(scores, restarts, seed)  # (2, outputs, restarts, batch)
    shape = (*chosen.shape, box.n)
    x = starts.gather(0, chosen.reshape(-1, box.batch, 1).expand(-1, -1, box.n)).reshape(-1, box.batch, box.n)
    rows = sign[:, None, None] * torch.eye(network.n_out, dtype=torch.float64, device=x.device)
    rows = rows[:, :, None, None].expand(*chosen.shape, network.n_out).reshape(-1, network.n_out)

    def objective(points: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = ascent_direction(network, points.reshape(-1, box.n), rows, noise)
        return value.reshape(-1, box.batch, 1), slope.reshape(points.shape)

    far = (torch.arange(restarts, device=x.device) % 2 == 0)[:, None].expand(chosen.shape).reshape(-1, box.batch, 1)
    return climb(box, x, objective, far=far, steps=steps).reshape(shape)


def _choose_starts(scores: Tensor, restarts: int, seed: int) -> Tensor:
    """Indices of the centre, then of the best candidates, then of random ones: (2, outputs, restarts, batch)."""
    directions, outputs, count, batch = scores.shape
    best = scores.topk(min(max(1, restarts // 2), count), dim=2).indices
    generator = torch.Generator().manual_seed(seed)
    random = torch.randint(count, (directions, outputs, restarts, 1), generator=generator).to(scores.device)
    random = random.expand(-1, -1, -1, batch)  # the same in every box: a box is attacked alike in any batch
    centre = torch.zeros_like(best[:, :, :1])
    order = [centre, best, random] if restarts > 1 else [best]
    return torch.cat(order, dim=2)[:, :, :restarts]


def climb(box: Box, x: Tensor, objective: Objective, *, far: Tensor, steps: int) -> Tensor:
    """Ascend the objective from every point by steps that are kept only if they gain; they grow on success.

    ``x`` is (points, batch, n). Where ``far`` (points, batch, 1) is true the aim is the extreme point of the region
    along the gradient, so that the first step tries the vertex and no scale is needed; elsewhere the gradient itself
    is followed, which settles better in the interior.
    """
    value, slope = objective(x)
    share = torch.where(far, 1.0, _SHORT_STEP).to(x.dtype)
    for _ in range(steps):
        aim = torch.where(far, extreme(box, slope, x), _uphill(box, slope, x))
        trial = box.project(x + share * (aim - x))
        new, new_slope = objective(trial)
        gain = new > value
        x, value, slope = (
            torch.where(gain, trial, x),
            torch.where(gain, new, value),
            torch.where(gain, new_slope, slope),
        )
        share = torch.where(gain, 1.6 * share, 0.4 * share).clamp_max(1)
    return x


def _uphill(box: Box, slope: Tensor, x: Tensor) -> Tensor:
    """A point along the gradient, in units of the widths of the box, as far away as half of the widest move."""
    width = box.upper - box.lower
    scaled = width * slope
    largest = scaled.abs().amax(-1, keepdim=True)
    return box.project(x + 0.5 * width * scaled / torch.where(largest > 0, largest, 1.0))


def extreme(box: Box, slope: Tensor, x: Tensor) -> Tensor:
    """The point of each region farthest along ``slope`` (points, batch, n); coordinates without slope stay."""
    if box.within is None:
        return torch.where(slope > 0, box.upper, torch.where(slope < 0, box.lower, x))
    ball = box.within
    if ball.norm == 1:
        largest = slope.abs() == slope.abs().amax(-1, keepdim=True)
        direction = torch.where(largest, slope.sign(), 0.0)
    else:
        direction = slope
    length = torch.linalg.vector_norm(direction, ord=ball.norm, dim=-1, keepdim=True)
    still = length == 0
    far = ball.centre + ball.radius[:, None] * direction / torch.where(still, 1.0, length)
    return torch.where(still, x, box.project(far))


def _choose(network: Posterior, x: Tensor, noise: Noise) -> Tensor:
    """The best restart of each direction, output and box by the choosing noise: (2, outputs, batch, n)."""
    mean = estimate(network, x, noise).mean  # (2, outputs, restarts, batch, outputs)
    own = mean.diagonal(dim1=1, dim2=4)  # (2, restarts, batch, outputs)
    index = torch.stack([own[0].argmin(0), own[1].argmax(0)]).transpose(1, 2)  # (2, outputs, batch)
    return x.gather(2, index[:, :, None, :, None].expand(-1, -1, 1, -1, x.shape[-1]))[:, :, 0]


def _value(network: Posterior, x: Tensor, noise: Noise) -> tuple[Tensor, ...]:
    """Fields of :class:`Inside` for the chosen inputs (2, outputs, batch, n); the noise had no part in the choice.

    Where the fresh values are in the wrong order (a range below the noise) the two inputs are exchanged.
    """
    result = estimate(network, x, noise)
    parts = result.replicates.diagonal(dim1=2, dim2=4)  # (replicates, 2, batch, outputs)
    mean = parts.mean(0)
    error = CONFIDENCE * result.std_error.diagonal(dim1=1, dim2=3).amax(0)
    gap = parts[:, 1] - parts[:, 0]
    zero = torch.zeros_like(error)
    width_error = zero if is_exact(network) else CONFIDENCE * gap.std(0) / gap.shape[0] ** 0.5
    x = x.transpose(1, 2)  # (2, batch, outputs, n)
    crossed = mean[0] > mean[1]
    lower, upper = torch.where(crossed, mean.flip(0), mean)
    x_lower, x_upper = torch.where(crossed[..., None], x.flip(0), x)
    return lower, upper, x_lower, x_upper, error, width_error
