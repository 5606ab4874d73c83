"""Other ways to bound or to attack a network, to stand beside bnndp's: ``python -m benchmarks.paper --baselines``.

None of them holds for the whole posterior: two cut it off, the others draw networks from it.
"""

from functools import partial

from benchmarks.baselines import functional_lagrangian, sampled, truncated
from benchmarks.paper.columns import Column

__all__ = ["COLUMNS"]

LP_POINTS = 10  # a point of kin8nm, 3x256, takes 0.7 to 0.8 s; with the limit of 3 s a programme a row ends within 60 s

COLUMNS = {
    "table-1a": (
        *(Column(f"intervals, {k} sd", partial(truncated.width, cut=k), whole=False) for k in (1, 3, 5)),
        *(
            Column(f"FL (LP), {k} sd", partial(functional_lagrangian.width, cut=k), whole=False, points=LP_POINTS)
            for k in (3, 5)
        ),
        Column("sampled intervals", sampled.width, whole=False),
    ),
    "table-1b": (
        *(Column(f"intervals, {k} sd", partial(truncated.radius, cut=k), whole=False) for k in (1, 3, 5)),
        Column("sampled intervals", sampled.radius, whole=False),
        Column("FGSM (attack)", sampled.fgsm_radius, whole=False, attack=True),
    ),
}
"""Columns by table: widths of regression (1a), radii of classification (1b)."""
