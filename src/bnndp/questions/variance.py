r"""The variance of each output of a regression network, for every x of a box and over the whole posterior.

With the signal z below the last layer, whose weights are drawn independently of z (docs/theory.md, section 5.1),
:math:`\operatorname{Var}f=\mathbb Es(z)+\operatorname{Var}(\mu\cdot z)` (law of total variance). Below, the second term
is at least :math:`\sum_j\mu_j^2\,\mathbb E\operatorname{Var}(z_j\mid Y)`, Y being a history given which the z_j are
independent (``engine/moments/signal.py``). A mixture has
:math:`\operatorname{Var}f=\sum_kw_kV_k+\sum_kw_k(M_k-\bar M)^2`.
"""

from __future__ import annotations

import torch

from bnndp.engine.mixture import LowerSum, Mixture, of_affine, weighted_interval
from bnndp.engine.protocol import both_signs
from bnndp.geometry.bounds import Affine, AffineBounds, Interval
from bnndp.geometry.box import Box
from bnndp.maths.rounding import TINY, gamma
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.questions.mean import sides
from bnndp.questions.quantity import quantity_bounds


def variance(network: Posterior, box: Box, options: Options) -> Interval:
    """Bounds (batch, outputs) of Var f(x) for every x of each box; infinite above where float64 overflows."""
    return quantity_bounds(network, box, options, _variance)


def _variance(passes: Mixture) -> Interval:
    if not passes.several:
        return passes.alone().output_variance()
    rows = both_signs(passes.outputs, passes.box)
    whole = sides(passes.affine(rows).affine, passes.box)
    within, between = [], []
    for part in passes.parts():
        within.append((part.weights, part.bounds.output_variance()))
        between.append(
            (part.weights, _square(_difference(sides(part.bounds.affine(rows).affine, part.bounds.box), whole)))
        )
    inner, outer = weighted_interval(within), weighted_interval(between)
    return Interval((inner.lower + outer.lower) * (1 - gamma(8)), (inner.upper + outer.upper) * (1 + gamma(8)))


def _difference(each: AffineBounds, whole: AffineBounds) -> Interval:
    """Range of the means of members less that of all, with their planes subtracted before minimising.

    ``each`` is on the boxes of ``whole`` repeated for each member, as the answer (members * batch, outputs).
    """
    box, one, ends = each.region, whole.region.lower.new_ones(1), []
    again = torch.arange(whole.region.batch, device=one.device).repeat(box.batch // whole.region.batch)
    low, high = (Affine(side.matrix[again], side.offset[again]) for side in (whole.lower, whole.upper))
    for above, below in ((each.lower, high), (low, each.upper)):
        total = LowerSum.zero(box, above.offset.shape[1])
        plane = total.plus(one, of_affine(above, box)).plus(-one, of_affine(below, box)).rounded()
        ends.append(box.minimum(plane.matrix, plane.offset))
    return Interval(ends[0], -ends[1])


def _square(d: Interval) -> Interval:
    """Range of the square; infinite above and zero below where an end is NaN."""
    least = torch.maximum(d.lower, -d.upper).nan_to_num(0.0).clamp_min(0)
    most = d.magnitude.nan_to_num(torch.inf, posinf=torch.inf)
    return Interval(least.square() * (1 - gamma(4)), most.square() * (1 + gamma(4)) + TINY)
