"""``bnndp demo``: certify the network that comes with the package over a row of boxes, and draw it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["demo"]

_NETWORK = "sine1d_2x32.safetensors"


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes (.png, .svg or .pdf).")] = Path("bnndp-demo.png"),
    boxes: Annotated[int, typer.Option(min=1, max=400, help="Boxes that cover [-1, 1].")] = 20,
    refine: Annotated[int, typer.Option(min=1, metavar="CELLS", help="Split each box into at most CELLS.")] = 1,
) -> None:
    """Certify the embedded network (1D noisy sine) on boxes that cover [-1, 1]: a table, and a picture."""
    from importlib import resources

    import torch
    from rich.console import Console

    from bnndp.attacks import inside_range
    from bnndp.certify import certify
    from bnndp.cli.inputs import load_network
    from bnndp.options import Options
    from bnndp.regions import Box
    from bnndp.report.band import draw_band
    from bnndp.report.table import box_table

    with resources.as_file(resources.files("bnndp") / "demo" / _NETWORK) as path:
        network = load_network(path)
    ends = (2 * torch.arange(boxes + 1, dtype=torch.float64) / boxes - 1)[:, None]
    box = Box(ends[:-1], ends[1:])
    bounds = certify(network, box, Options(refine=refine))
    inside = inside_range(network, box)
    Console().print(box_table(box, bounds, inside))
    draw_band(network, box, bounds, out)
    typer.echo(f"picture: {out}")
