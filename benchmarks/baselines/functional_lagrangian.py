r"""The functional Lagrangian with linear multipliers, converged: a linear programme (Berrada et al. 2021).

Cut the posterior at k standard deviations, and let :math:`a_k` be the pre-activations of hidden layer k,
:math:`z_k=[a_k]_+`, :math:`z_0=x`. The dual of the mean output has a function :math:`\lambda_k` of each :math:`a_k`,

.. math:: \max_x\mathbb E\,c\,f(x)\ \le\ \max_{x}\mathbb E\,\lambda_1(a_1\mid x)
          +\sum_{k=1}^K\max_{\underline a_k\le a_k\le\overline a_k}
          \Big(\mathbb E\big[\lambda_{k+1}(a_{k+1})\mid a_k\big]-\lambda_k(a_k)\Big),
          \qquad\lambda_{K+1}(a)=c\,a,

where :math:`[\underline a_k,\overline a_k]` are the intervals of :mod:`benchmarks.baselines.truncated`. With
:math:`\lambda_k(a)=\theta_k a` the inner expectation is
:math:`\theta_{k+1}(\bar W_{k+1}z_k+\bar b_{k+1})`: a Gaussian cut symmetrically keeps its mean, and the weights of a
layer are independent of what is below. The inner maximum falls into neurons, each the maximum of a linear function of
:math:`(a,[a]_+)` over an interval, which is that over the hull of this graph, a triangle:

.. math:: z\ge 0,\quad z\ge a,\quad z\le\frac{\overline a\,(a-\underline a)}{\overline a-\underline a}.

Minimising over :math:`\theta` is thus the dual of a linear programme: the network of the means, with a triangle over
the wide intervals of the cut in place of every ReLU. There is no gap, so its optimum is the bound that FL converges to;
the published schedule ends above it. It can be proved directly, too: :math:`(\mathbb E\,a,\mathbb E\,z)` lies in the
hull, and :math:`\mathbb E\,a_{k+1}=\bar W_{k+1}\mathbb E\,z_k+\bar b_{k+1}`.

The optimum is one of the solver (HiGHS, feasible to 1e-7), not a certificate. It is an upper bound, and with -c a lower
one, of the mean over the cut posterior, not over the whole.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.baselines.search import asked_ball
from benchmarks.baselines.truncated import propagate
from benchmarks.paper.columns import Subject
from bnndp.errors import InputError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

__all__ = ["mean_range", "width"]

SECONDS = 3.0
"""Limit of one programme; those of 3x256 took 0.2 to 0.4 s."""

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class _Programme:
    """The feasible set ``below @ v <= below_value``, ``equal @ v == equal_value``, ``lower <= v <= upper``.

    ``v`` is the input, then the pre-activations and the activations of each hidden layer.
    """

    equal: Any  # sparse, (rows, variables)
    equal_value: Array
    below: Any  # sparse, (rows, variables)
    below_value: Array
    lower: Array  # (variables,)
    upper: Array  # (variables,)


def width(subject: Subject, *, cut: float) -> Tensor:
    """Widths of the range of the mean over the cut posterior by the programmes, the largest output's: (points,)."""
    found = mean_range(subject.network, asked_ball(subject), cut)
    return (found.upper - found.lower).amax(-1)


def mean_range(network: BayesianNetwork, shifted: Box, cut: float) -> Interval:
    """Bounds (boxes, n_out) on the mean output of the posterior cut at ``cut`` standard deviations.

    ``shifted`` are boxes of what the first layer sees. Two programs per box and output; where one is not solved in time
    the interval's end stands, which is the bound of multipliers zero, with a warning.
    """
    if shifted.within is not None:
        raise InputError(f"mean_range takes boxes, got balls of norm {shifted.within.norm}; give Box(lower, upper).")
    intervals = propagate(network, shifted, cut)
    lower, upper = intervals[-1].lower.clone(), intervals[-1].upper.clone()  # (boxes, n_out)
    for box in range(shifted.batch):
        programme = _programme(network, shifted[box : box + 1], [_one(interval, box) for interval in intervals[:-1]])
        for output in range(network.n_out):
            least, most = _ends(network, programme, output)
            lower[box, output] = max(float(lower[box, output]), least)
            upper[box, output] = min(float(upper[box, output]), most)
    return Interval(lower, upper)


def _one(interval: Interval, box: int) -> tuple[Array, Array]:
    return interval.lower[box].numpy(), interval.upper[box].numpy()


def _programme(network: BayesianNetwork, shifted: Box, hidden: list[tuple[Array, Array]]) -> _Programme:
    from scipy import sparse  # type: ignore[import-untyped]

    sizes = network.sizes
    blocks = [sizes[0], *(size for size in sizes[1:-1] for _ in range(2))]  # x, a_1, z_1, a_2, z_2, ...
    lower, upper = [shifted.lower[0].numpy()], [shifted.upper[0].numpy()]
    equal, equal_value, below, below_value = [], [], [], []

    def rows(entries: dict[int, Any]) -> list[Any]:
        """Rows of the matrix, block by block: zero but for the ``entries``."""
        height = next(iter(entries.values())).shape[0]
        return [entries.get(i, sparse.csr_array((height, size))) for i, size in enumerate(blocks)]

    for k, (low, high) in enumerate(hidden):
        a, z, under = 2 * k + 1, 2 * k + 2, 2 * k  # blocks
        layer = network.linears[k]
        one = sparse.eye_array(layer.n_out, format="csr")
        equal.append(rows({a: one, under: sparse.csr_array(-layer.weight_mean.numpy())}))
        equal_value.append(layer.bias_mean.numpy())
        active, open_ = low >= 0, (low < 0) & (high > 0)
        equal.append(rows({a: one[active], z: -one[active]}))
        equal_value.append(np.zeros(int(active.sum())))
        slope = high[open_] / (high[open_] - low[open_])
        below += [
            rows({a: one[open_], z: -one[open_]}),  # a <= z
            rows({a: -sparse.diags_array(slope) @ one[open_], z: one[open_]}),  # z <= slope (a - low)
        ]
        below_value += [np.zeros(len(slope)), -slope * low[open_]]
        lower += [low, low.clip(0)]
        upper += [high, high.clip(0)]
    return _Programme(
        sparse.block_array(equal, format="csr") if equal else None,
        np.concatenate(equal_value) if equal else np.zeros(0),
        sparse.block_array(below, format="csr") if below else None,
        np.concatenate(below_value) if below else np.zeros(0),
        np.concatenate(lower),
        np.concatenate(upper),
    )


def _ends(network: BayesianNetwork, programme: _Programme, output: int) -> tuple[float, float]:
    """Least and largest mean of an output; infinite where the programme was not solved."""
    from scipy.optimize import linprog  # type: ignore[import-untyped]

    last = network.linears[-1]
    row = last.weight_mean[output].numpy()
    objective = np.zeros(len(programme.lower))
    objective[len(objective) - len(row) :] = row
    offset = float(last.bias_mean[output])
    ends = []
    for sign in (1.0, -1.0):
        solved = linprog(
            sign * objective,
            A_ub=programme.below,
            b_ub=programme.below_value if programme.below is not None else None,
            A_eq=programme.equal,
            b_eq=programme.equal_value if programme.equal is not None else None,
            bounds=np.stack([programme.lower, programme.upper], 1),
            method="highs",
            options={"time_limit": SECONDS},
        )
        if solved.status != 0:
            warnings.warn(f"a linear programme was not solved: {solved.message}; intervals stand for it.", stacklevel=2)
        ends.append(sign * float(solved.fun) + offset if solved.status == 0 else -sign * np.inf)
    return ends[0], ends[1]
