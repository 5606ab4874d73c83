"""``bnndp demo``: certify the network that comes with the package over a row of boxes, and draw it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_PICTURE = Path("bnndp-demo.png")


def demo(
    out: Annotated[
        Path | None,
        typer.Option(help="Where the picture goes (.png, .svg or .pdf); bnndp-demo.png by default, with matplotlib."),
    ] = None,
    boxes: Annotated[int, typer.Option(min=1, max=400, help="Boxes that cover [-1, 1].")] = 20,
    refine: Annotated[int, typer.Option(min=1, metavar="CELLS", help="Split each box into at most CELLS.")] = 1,
) -> None:
    """Certify the embedded network (1D noisy sine) on boxes that cover [-1, 1]: a table, and a picture."""
    from importlib import util

    import torch
    from rich.console import Console

    from bnndp.attack.inside import inside_range
    from bnndp.data.demo import network_path
    from bnndp.files.posterior import load
    from bnndp.geometry.box import Box
    from bnndp.options import Options
    from bnndp.questions.certify import certify
    from bnndp.report.band import draw_band
    from bnndp.report.figure import expect_picture
    from bnndp.report.table import box_table

    picture = _PICTURE if out is None and util.find_spec("matplotlib") is not None else out
    if picture is not None:
        expect_picture(picture, option="--out")
    with network_path() as path:
        network = load(path)
    ends = (2 * torch.arange(boxes + 1, dtype=torch.float64) / boxes - 1)[:, None]
    box = Box(ends[:-1], ends[1:])
    bounds = certify(network, box, Options(refine=refine))
    inside = inside_range(network, box)
    Console().print(box_table(box, bounds, inside))
    if picture is None:
        typer.echo("bnndp: no picture, which needs matplotlib: pip install 'bnndp[plot]'.", err=True)
        return
    draw_band(network, box, bounds, picture)
    typer.echo(f"picture: {picture}")
