"""``bnndp certify``: bounds for every input of a file, one JSON object a line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["certify"]

Method = Literal["auto", "moment", "partition", "best"]
Norm = Literal["inf", "2", "1"]


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def certify(  # noqa: PLR0913 (the options of the command)
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="The network: a bnndp-posterior-1 file (.safetensors).")
    ],
    inputs: Annotated[
        Path,
        typer.Argument(metavar="INPUTS", help="A .npz with x (n, inputs) or lower and upper; or a .csv of rows x."),
    ],
    out: Annotated[Path, typer.Option(help="Where the bounds go: one JSON object a line.", show_default=False)],
    eps: Annotated[
        float | None, typer.Option(min=0, callback=_finite, help="Radius of the ball around every row of x.")
    ] = None,
    norm: Annotated[Norm, typer.Option(help="Norm of the ball.")] = "inf",
    domain: Annotated[
        tuple[float, float] | None, typer.Option(metavar="LO HI", help="Only inputs between LO and HI count.")
    ] = None,
    method: Annotated[Method, typer.Option(help="How to bound.")] = "auto",
    refine: Annotated[int, typer.Option(min=1, metavar="CELLS", help="Split each box into at most CELLS.")] = 1,
    tolerance: Annotated[
        float, typer.Option(min=0, callback=_finite, help="Stop splitting a box when less than this can be won.")
    ] = 0.0,
    time_limit: Annotated[
        float | None, typer.Option(min=0, callback=_finite, metavar="SECONDS", help="Time for the splitting, in all.")
    ] = None,
    attack: Annotated[
        bool, typer.Option("--attack", help="Find the range from inside too: about a second a box for 2x64.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the attack.")] = 0,
) -> None:
    """Bound the mean output over each box: lower <= E f(x) <= upper for all its x, over the whole posterior.

    Each line of the output has the keys index, lower, upper, width, inside_lower, inside_upper, method, seconds:
    numbers for a network with one output, lists for several. The inside_* are the extremes that the attack found, null
    without --attack; method is the one that gave the interval (with --method best: moment, partition or both); seconds
    is the time of the certification, without the attack, shared out over its chunk.
    """
    from rich.console import Console

    from bnndp.cli.inputs import Neighbourhood, load_regression, read_boxes
    from bnndp.cli.job import Job, run
    from bnndp.cli.rows import RowFile
    from bnndp.options import Options

    network = load_regression(model)
    box = read_boxes(inputs, network.n_in, Neighbourhood(eps, float(norm), domain))
    options = Options(method=method, refine=refine, tolerance=tolerance, time_limit=time_limit)
    with RowFile(out, keep=(model, inputs)) as rows:
        summary = run(Job(network, box, options, attack, seed), rows, source=inputs)
    Console().print(summary)
