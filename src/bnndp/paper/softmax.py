r"""Bounds of E softmax on a partition of the logits (``prop:decisionLayer``, ``corol:advRobustnessClass``).

All that is used of the logits is their differences :math:`D_{il}=\zeta_i-\zeta_l`: lower bounds
:math:`D_{il}\ge d_{il}-M_{il}` on the chain of rectangles, M dominated by a Gaussian (:mod:`bnndp.paper.chain`).
Two bounds of the mean of a form :math:`a\cdot p` follow, and the better one is kept for each row: the minimum over
rectangles of differences, as in the paper, and the mean of sigmoids of differences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.maths.normal import interval_probability, rectangle_quantile
from bnndp.maths.rounding import ELEMENTARY, UNIT, gamma, up
from bnndp.network import BayesianNetwork
from bnndp.paper.chain import Chain, Form, is_random, links_of
from bnndp.paper.concentration import dominated_sigmoid
from bnndp.paper.layers import Layer

MASSES = (3e-2, 1e-3)
"""Masses that are tried where none is given. The mass outside costs a share of the range of the form, a small one
wider rectangles: nearly deterministic networks want a small one, uncertain ones a large one."""

_LARGEST = 1e15  # differences of logits beyond it are treated as unknown


@dataclass(frozen=True, slots=True)
class SoftmaxBounds:
    """Bounds of E softmax for every x of each box; [0, 1] and -1 where nothing is known."""

    probability: Interval  # (batch, classes)
    difference: Tensor  # (batch, classes, classes), at most E[p_c - p_j] at [c, j]; zero on the diagonal


@dataclass(frozen=True, slots=True)
class _Differences:
    r"""What is known of the logits on the chain: :math:`\zeta_i-\zeta_l\ge-` ``top`` ``[i, l]`` :math:`-M_{il}`."""

    hidden: Form  # rows i * classes + l: zeta_l - zeta_i without the noise of the last layer
    std_lower: Tensor  # (batch, classes), of the noise of the logits on the chain
    std_upper: Tensor  # (batch, classes)
    centre: Tensor  # (batch, classes): typical logits, only to choose cells by
    outside: float  # at least the probability of leaving the chain or of more noise than that


def bound_softmax(network: BayesianNetwork, box: Box, *, mass: float | None = None, cells: int = 2) -> SoftmaxBounds:
    """Bounds of every E p_i and of every E[p_c - p_j] over the whole posterior (Algorithm ``al:classification``)."""
    n = network.n_out
    unit = torch.eye(n, dtype=torch.float64, device=box.lower.device)
    pairs = (unit[:, None] - unit[None]).reshape(n * n, n)
    rows = torch.cat([unit, -unit, pairs]).expand(box.batch, -1, -1)
    found = bound_rows(network, box, rows, mass=mass, cells=cells)
    probability = Interval(found[:, :n].clamp(0, 1), (-found[:, n : 2 * n]).clamp(0, 1))
    return SoftmaxBounds(probability, found[:, 2 * n :].reshape(-1, n, n))


def bound_rows(
    network: BayesianNetwork,
    box: Box,
    rows: Tensor,  # (batch, rows, classes), any real coefficients
    *,
    mass: float | None = None,
    cells: int = 2,
) -> Tensor:
    """At most ``rows . E softmax(f(x))`` for every x of each box, over the whole posterior: (batch, rows).

    ``mass`` is what the main rectangle of one layer may leave outside; without it all of :data:`MASSES` are tried.
    ``cells`` counts the regions of the logits: the complement, and ``cells - 1`` parts of their main rectangle. Where
    float64 overflows the answer is the smallest coefficient of the row, which always holds.
    """
    _check(network, box, rows, mass, cells)
    best = rows.amin(-1)
    for one in MASSES if mass is None else (mass,):
        chain = links_of(network, box, one)
        known = _differences(network, chain, one)
        best = torch.fmax(best, _by_rectangles(network, known, rows, one, cells))
        best = torch.fmax(best, _by_sigmoids(known, rows))
    return best


def footprint(network: BayesianNetwork, cells: int = 2) -> int:
    """About the bytes of intermediate tensors that :func:`bound_softmax` needs for each box, on the safe side."""
    sizes, n = network.sizes, network.n_out
    forms = max(max(2 * width for width in sizes[1:-1]) if network.depth else 0, n * n)
    rows = n * n + 2 * n
    return 8 * (12 * forms * max(sizes[:-1]) + n * n * 1000 + 6 * rows * n * n * max(cells - 1, 1))


def least_average(values: Tensor, low: Tensor, high: Tensor) -> Tensor:  # each (..., n)
    r"""At most :math:`\sum_ia_ix_i/\sum_ix_i` for all weights with :math:`\log x_i` in ``[low, high]``: (...).

    The average rises with :math:`x_i` exactly where :math:`a_i` exceeds it, so that it is least where the weights of
    all :math:`a_i` below some threshold are largest and the others smallest; the thresholds are the :math:`a_i`.
    With :math:`x_i=e^{\zeta_i-\zeta_l}` it is a form of the softmax, least over a rectangle of differences of logits.
    """
    below = values[..., None, :] < values[..., :, None]  # (..., thresholds, n)
    logs = torch.where(below, high[..., None, :], low[..., None, :])
    weights = torch.exp(logs - logs.amax(-1, keepdim=True))  # an error in the exponent t is lost in t e^-t
    average = (weights * values[..., None, :]).sum(-1) / weights.sum(-1)
    slack = (ELEMENTARY + gamma(16 * values.shape[-1])) * values.abs().amax(-1)
    return average.amin(-1) - slack


def _differences(network: BayesianNetwork, chain: Chain, mass: float) -> _Differences:
    """The forms ``zeta_l - zeta_i`` of the last layer; the rounding of the differences of its rows is in the offset."""
    last, n = network.unshifted_linears[-1], network.n_out
    layer, size = Layer.of(last), chain.end.magnitude[:, 0]
    matrix = (last.weight_mean[None] - last.weight_mean[:, None]).reshape(n * n, -1)
    offset = (last.bias_mean[None] - last.bias_mean[:, None]).reshape(n * n)
    reach = size @ last.weight_mean.abs().T + last.bias_mean.abs()  # (batch, n)
    error = gamma(layer.n_in + 8) * (reach[:, None] + reach[:, :, None]).flatten(1)
    hidden = chain.form(matrix[None], offset + error)
    ranges = chain.ranges(layer, 0.5 * mass)
    spent = 0.5 * mass * (any(is_random(linear) for linear in network.unshifted_linears[:-1]) and is_random(last))
    outside = (chain.outside + spent) * (1 + 4 * UNIT)
    centre = layer.point(chain.end.at[:, 0])[0]
    return _Differences(hidden, ranges.std_lower[:, 0], ranges.std_upper[:, 0], centre, outside)


def _with_noise(known: _Differences) -> Form:
    """The forms with the noise of the last layer in the Gaussian."""
    square = known.std_upper * known.std_upper
    noise = (square[:, None] + square[:, :, None]).flatten(1)
    std = up(known.hidden.std * known.hidden.std + noise, 8).sqrt() * (1 + 4 * UNIT)
    return Form(known.hidden.top, std)


def _by_rectangles(network: BayesianNetwork, known: _Differences, rows: Tensor, mass: float, cells: int) -> Tensor:
    r""":math:`\sum_jP(Z_j)\min_{Z_j}a\cdot p` over regions of the logits, the complement at the smallest coefficient.

    With two regions the rectangle is one of the differences, noise included. With more, what comes from the hidden
    layers lies in a rectangle and the standard noise of the logits, which is independent of it, is cut into cells;
    their probabilities are the same at every x (errata item 8).
    """
    n = network.n_out
    chance = mass / max(n * (n - 1), 1)
    random = [is_random(linear) for linear in network.unshifted_linears]
    whole = _pairs(_with_noise(known).within(chance))
    outside = (known.outside + mass * any(random)) * (1 + 4 * UNIT)
    found = _mean(rows, _minimum(whole[:, None], rows), torch.full_like(rows[:, :1, 0], 1 - outside))
    if cells == 2 or not random[-1]:
        return found
    low, high = _noise_cells(known, mass, cells - 1)
    shift = _pairs_of_noise(known, low, high)  # (batch, cells, n, n), at least zeta_l - zeta_i of the noise
    inner = _pairs(known.hidden.within(chance))[:, None] + shift
    inner = inner + gamma(4) * (inner.abs() + shift.abs())
    share = interval_probability(low, high) - 4 * ELEMENTARY
    share = share.clamp_min(0).prod(-1) * (1 - gamma(n + 4)) * (1 - (known.outside + mass * any(random[:-1])))
    return torch.fmax(found, _mean(rows, _minimum(inner, rows), share.clamp_min(0)))


def _by_sigmoids(known: _Differences, rows: Tensor) -> Tensor:
    r""":math:`a\cdot p\ge a_c-\sum_l(a_c-a_l)_+p_l` with :math:`p_l\le\sigma(-D_{cl})`, for the best class c.

    Off the chain the form is at least its smallest coefficient.
    """
    form = _with_noise(known)
    above = _pairs(dominated_sigmoid(-form.top, form.std))  # [c, l], at least E sigma(zeta_l - zeta_c) on the chain
    least, size = rows.amin(-1, keepdim=True), rows.abs().amax(-1, keepdim=True)
    drop = (rows[..., :, None] - rows[..., None, :]).clamp_min(0)  # (batch, rows, c, l)
    loss = up((drop * above[:, None]).sum(-1), 2 * rows.shape[-1])
    lost = (rows - least) * min(known.outside, 1.0)
    return (rows - loss - lost - gamma(16) * (size + loss)).amax(-1)


def _minimum(above: Tensor, rows: Tensor) -> Tensor:  # above (batch, cells, n, n): at least zeta_l - zeta_i at [i, l]
    """Least value of each row on each rectangle of differences: (batch, cells, rows); NaN where they are unknown.

    The largest and the smallest coefficient are the classes of reference, the first of them being exact for
    ``p_c - p_j`` and ``p_c``, the second for ``-p_c``.
    """
    sure = (above.abs() <= _LARGEST).all(-1).all(-1)[..., None]
    best = torch.full((), -torch.inf, dtype=rows.dtype, device=rows.device)
    for pick in (rows.argmax(-1), rows.argmin(-1)):  # (batch, rows)
        index = pick[:, None, :, None].expand(-1, above.shape[1], -1, above.shape[-1])
        high = above.gather(2, index)  # zeta_l - zeta_c at most
        low = -above.mT.gather(2, index)  # zeta_l - zeta_c at least
        best = torch.fmax(best, least_average(rows[:, None].expand_as(high), low, high))
    return torch.where(sure, best, torch.nan)


def _mean(
    rows: Tensor, least: Tensor, share: Tensor
) -> Tensor:  # (batch, rows, n), (batch, cells, rows), (batch, cells)
    """Mean of a form from its least values on regions with at least these probabilities: (batch, rows)."""
    floor, size = rows.amin(-1), rows.abs().amax(-1)
    gain = (least - floor[:, None]).clamp_min(0) * share[..., None].clamp(0, 1)
    return floor + gain.sum(1) - gamma(least.shape[1] + 16) * size


def _pairs(flat: Tensor) -> Tensor:  # (batch, n * n)
    """As (batch, n, n), with the difference of a logit and itself at zero."""
    n = round(flat.shape[-1] ** 0.5)
    own = torch.eye(n, dtype=torch.bool, device=flat.device)
    return flat.reshape(-1, n, n).masked_fill(own, 0.0)


def _pairs_of_noise(known: _Differences, low: Tensor, high: Tensor) -> Tensor:  # (batch, cells, n)
    """At least ``r_l xi_l - r_i xi_i`` for noise in the cells: (batch, cells, n, n) at [i, l]."""
    small, large = known.std_lower[:, None], known.std_upper[:, None]
    most = high * torch.where(high > 0, large, small)
    least = low * torch.where(low < 0, large, small)
    spread = most[..., None, :] - least[..., :, None]
    spread = spread + gamma(4) * (most.abs()[..., None, :] + least.abs()[..., :, None])
    return spread * (1 - torch.eye(low.shape[-1], dtype=low.dtype, device=low.device))


def _noise_cells(known: _Differences, mass: float, parts: int) -> tuple[Tensor, Tensor]:
    """REFINE: halve, ``parts - 1`` times, the cell and class with the largest spread times probability.

    Lower and upper ends of the standard noise, (batch, parts, n) each; the cells meet in faces.
    """
    n = known.centre.shape[-1]
    reach = rectangle_quantile(mass, n)
    p = torch.softmax(known.centre, -1)
    weight = known.std_upper * (p * (1 - p) + 1e-6)  # what moves the softmax at the typical logits
    low, high = (torch.full_like(p[:, None], end) for end in (-reach, reach))
    batch = torch.arange(p.shape[0], device=p.device)
    for _ in range(parts - 1):
        chance = interval_probability(low, high).prod(-1, keepdim=True)
        best = (weight[:, None] * (high - low) * chance).flatten(1).argmax(1)
        cell, neuron = best // n, best % n
        middle = 0.5 * (low[batch, cell, neuron] + high[batch, cell, neuron])
        left, right = high[batch, cell].clone(), low[batch, cell].clone()
        last = high[batch, cell].clone()
        left[batch, neuron] = middle
        right[batch, neuron] = middle
        high = high.clone()
        high[batch, cell] = left
        low, high = torch.cat([low, right[:, None]], 1), torch.cat([high, last[:, None]], 1)
    return low, high


def _check(network: BayesianNetwork, box: Box, rows: Tensor, mass: float | None, cells: int) -> None:
    if box.n != network.n_in:
        raise InputError(f"the network takes {network.n_in} inputs, the box has {box.n}; give a box of the right size.")
    want = (box.batch, network.n_out)
    if rows.ndim != 3 or (rows.shape[0], rows.shape[2]) != want or rows.shape[1] == 0:
        raise InputError(
            f"rows must have shape ({want[0]}, rows, {want[1]}) for {want[0]} boxes and {want[1]} classes, "
            f"got {tuple(rows.shape)}."
        )
    if rows.dtype != torch.float64 or not bool(torch.isfinite(rows).all()):
        raise InputError(f"rows must be finite float64 numbers, got {rows.dtype} with {rows.isfinite().sum()} finite.")
    if mass is not None and not 1e-250 <= mass < 1:
        raise InputError(f"mass must lie between 1e-250 and 1 (excluded), or be None to try several, got {mass!r}.")
    if not (isinstance(cells, int) and cells >= 2):
        raise InputError(f"cells must be an integer of at least 2 (one for the complement), got {cells!r}.")
