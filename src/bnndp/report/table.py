"""A table of boxes: what is certified, what an attack found, and the ratio of the two."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from rich.table import Table

from bnndp.attack.inside import Inside
from bnndp.geometry.box import Box
from bnndp.questions.bounds import Bounds


def box_table(box: Box, bounds: Bounds, inside: Inside) -> Table:
    """One line per box of a network with one input and one output; the last line has the means."""
    table = Table("box", "certified", "from inside", "ratio", title="E f(x) over each box")
    certified, found = bounds.width[:, 0], inside.width[:, 0]
    for i in range(box.batch):
        table.add_row(
            f"[{box.lower[i, 0].item():5.2f}, {box.upper[i, 0].item():5.2f}]",
            _interval(bounds.lower[i, 0].item(), bounds.upper[i, 0].item()),
            f"[{inside.lower[i, 0].item():7.4f}, {inside.upper[i, 0].item():7.4f}]",
            _ratio(certified[i].item(), found[i].item()),
            end_section=i == box.batch - 1,
        )
    mean, mean_inside = certified.mean().item(), found.mean().item()
    table.add_row("mean width", f"{mean:.4f}", f"{mean_inside:.4f}", _ratio(mean, mean_inside))
    return table


def _interval(lower: float, upper: float) -> str:
    """The interval rounded outward to four digits, so that what is printed holds too."""
    low = Decimal(lower).quantize(Decimal("0.0001"), ROUND_FLOOR)
    high = Decimal(upper).quantize(Decimal("0.0001"), ROUND_CEILING)
    return f"[{low:>7}, {high:>7}]"


def _ratio(certified: float, found: float) -> str:
    return f"{certified / found:.3f}" if found > 0 else "-"
